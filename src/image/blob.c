#include "image/blob.h"
#include "base/cleanup.h"

#include <pthread.h>
#include <zlib.h>
#include <zstd.h>

enum {
	PIECE = 256 * 1024,
	PIECES = 6,
	WINDOW_LOG_MAX = 27, /* what zstd itself takes unless told otherwise: 128 MiB */
};

struct piece {
	char *data;
	size_t n; /* 0: the end of a blob, or an error */
	struct error err;
};

/* A ring: the thread fills pieces[tail], blobs_next() hands out pieces[head], which stays in the ring until it is called again. */
struct blobs {
	const int *fds;
	size_t n_fds;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct piece pieces[PIECES];
	size_t head, count;
	bool running, stop, held;
	/* The thread's own */
	size_t blob;
	int fd;
	char *in;
	z_stream gzip;
	ZSTD_DStream *zstd;
};

/* A free piece, or NULL: stop. */
static struct piece *piece_free(struct blobs *b)
{
	pthread_mutex_lock(&b->lock);
	while (b->count == PIECES && !b->stop)
		pthread_cond_wait(&b->changed, &b->lock);
	struct piece *p = b->stop ? NULL : &b->pieces[(b->head + b->count) % PIECES];
	pthread_mutex_unlock(&b->lock);
	if (p) {
		p->n = 0;
		p->err = (struct error){0};
	}
	return p;
}

static void piece_done(struct blobs *b)
{
	pthread_mutex_lock(&b->lock);
	b->count++;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
}

static ssize_t read_some(struct blobs *b, char *to, size_t n, struct error *err)
{
	ssize_t got;
	do
		got = read(b->fd, to, n);
	while (got < 0 && errno == EINTR);
	return got < 0 ? error_errno(err, -errno, "reading a layer") : got;
}

static int damaged(struct error *err, const char *what)
{
	return error_set(err, -EBADMSG, 400, "the layer's blob: %s", what);
}

/* Input that is read and not taken yet is in->[at, n). */
struct input {
	size_t at, n;
};

struct decoding {
	struct input in;
	bool fresh;   /* at the beginning of a member or frame */
	bool padding; /* zeros followed a member */
	bool any;     /* there was one */
};

static ssize_t plain(struct blobs *b, struct decoding *d, char *to, struct error *err)
{
	size_t n = d->in.n - d->in.at;
	if (n > 0) {
		memcpy(to, b->in + d->in.at, n);
		d->in.at = d->in.n;
		return (ssize_t)n;
	}
	return read_some(b, to, PIECE, err);
}

/* More input when there is none: 1, 0 at the end, -errno. */
static int more(struct blobs *b, struct decoding *d, struct error *err)
{
	if (d->in.at < d->in.n)
		return 1;
	ssize_t n = read_some(b, b->in, PIECE, err);
	d->in = (struct input){0, n > 0 ? (size_t)n : 0};
	return n > 0 ? 1 : (int)n;
}

/* Between members: 1 another one begins, 0 the end. Writers that fill up a block leave zeros at the end. */
static int next_member(struct blobs *b, struct decoding *d, struct error *err)
{
	int r;
	while ((r = more(b, d, err)) > 0) {
		while (d->any && d->in.at < d->in.n && b->in[d->in.at] == 0) {
			d->in.at++;
			d->padding = true;
		}
		if (d->in.at < d->in.n)
			return d->padding ? damaged(err, "something follows its end") : 1;
	}
	return r < 0 || d->any ? r : damaged(err, "it is empty");
}

static ssize_t gunzip(struct blobs *b, struct decoding *d, char *to, struct error *err)
{
	z_stream *z = &b->gzip;
	z->next_out = (unsigned char *)to;
	z->avail_out = PIECE;
	while (z->avail_out == PIECE) {
		int r = d->fresh ? next_member(b, d, err) : more(b, d, err);
		if (r < 0 || (r == 0 && d->fresh))
			return r;
		if (r == 0)
			return damaged(err, "it is truncated");
		if (d->fresh && inflateReset(z) != Z_OK)
			return error_errno(err, -ENOMEM, "zlib");
		d->fresh = false;
		z->next_in = (unsigned char *)b->in + d->in.at;
		z->avail_in = (unsigned)(d->in.n - d->in.at);
		/* As many members as fit: small ones follow each other in indexed layers. */
		r = inflate(z, Z_NO_FLUSH);
		d->in.at = d->in.n - z->avail_in;
		if (r == Z_STREAM_END)
			d->fresh = d->any = true;
		else if (r == Z_MEM_ERROR)
			return error_errno(err, -ENOMEM, "zlib");
		else if (r != Z_OK && r != Z_BUF_ERROR)
			return damaged(err, d->any ? "something follows its end, or it is damaged" : "its gzip stream is damaged");
	}
	return PIECE - z->avail_out;
}

static ssize_t unzstd(struct blobs *b, struct decoding *d, char *to, struct error *err)
{
	ZSTD_outBuffer out = {to, PIECE, 0};
	while (out.pos == 0) {
		int r = more(b, d, err);
		if (r < 0)
			return r;
		/* At the end of the input there may still be output in the decoder. */
		ZSTD_inBuffer in = {b->in + d->in.at, d->in.n - d->in.at, 0};
		if (r == 0 && d->fresh)
			return 0;
		size_t left = ZSTD_decompressStream(b->zstd, &out, &in);
		if (ZSTD_isError(left))
			return damaged(err, d->any ? "something follows its end, or it is damaged" : "its zstd stream is damaged");
		d->in.at += in.pos;
		d->fresh = left == 0;
		d->any = d->any || d->fresh;
		if (r == 0 && out.pos == 0 && !d->fresh)
			return damaged(err, "it is truncated");
	}
	return (ssize_t)out.pos;
}

/* The blob at hand, to its end. False: stop. */
static bool decode(struct blobs *b)
{
	struct decoding d = {.fresh = true};
	ssize_t (*decoder)(struct blobs *, struct decoding *, char *, struct error *) = plain;
	struct error err = {0};
	ssize_t n = 0;
	b->fd = b->fds[b->blob];
	do {
		n = read_some(b, b->in + d.in.n, PIECE - d.in.n, &err);
		d.in.n += n > 0 ? (size_t)n : 0;
	} while (n > 0 && d.in.n < 4);
	if (d.in.n >= 2 && !memcmp(b->in, "\x1f\x8b", 2))
		decoder = gunzip;
	else if (d.in.n >= 4 && (!memcmp(b->in, "\x28\xb5\x2f\xfd", 4) || (!memcmp(b->in + 1, "\x2a\x4d\x18", 3) && (b->in[0] & 0xf0) == 0x50)))
		decoder = unzstd;
	if (decoder == unzstd)
		ZSTD_DCtx_reset(b->zstd, ZSTD_reset_session_only);
	do {
		struct piece *p = piece_free(b);
		if (!p)
			return false;
		if (n >= 0)
			n = decoder(b, &d, p->data, &p->err);
		else
			p->err = err;
		p->n = n > 0 ? (size_t)n : 0;
		piece_done(b);
	} while (n > 0);
	return n == 0;
}

static void *run(void *arg)
{
	struct blobs *b = arg;
	pthread_mutex_lock(&b->lock);
	b->running = true;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
	for (b->blob = 0; b->blob < b->n_fds && decode(b); b->blob++)
		;
	return NULL;
}

static void free_memory(struct blobs *b)
{
	for (size_t i = 0; i < PIECES; i++)
		free(b->pieces[i].data);
	inflateEnd(&b->gzip);
	ZSTD_freeDStream(b->zstd);
	free(b->in);
	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->changed);
	free(b);
}

int blobs_new(const int *fds, size_t n, struct blobs **ret)
{
	struct blobs *b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->fds = fds;
	b->n_fds = n;
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->changed, NULL);
	b->in = malloc(PIECE);
	b->zstd = ZSTD_createDStream();
	bool ok = b->in && b->zstd && inflateInit2(&b->gzip, 16 + MAX_WBITS) == Z_OK &&
		  !ZSTD_isError(ZSTD_DCtx_setParameter(b->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX));
	for (size_t i = 0; i < PIECES; i++)
		ok = (b->pieces[i].data = malloc(PIECE)) && ok;
	int r = ok ? -pthread_create(&b->thread, NULL, run, b) : -ENOMEM;
	if (r < 0) {
		free_memory(b);
		return r;
	}
	pthread_mutex_lock(&b->lock);
	while (!b->running)
		pthread_cond_wait(&b->changed, &b->lock);
	pthread_mutex_unlock(&b->lock);
	*ret = b;
	return 0;
}

void blobs_free(struct blobs *b)
{
	if (!b)
		return;
	pthread_mutex_lock(&b->lock);
	b->stop = true;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
	pthread_join(b->thread, NULL);
	free_memory(b);
}

int blobs_next(struct blobs *b, struct str *ret, struct error *err)
{
	pthread_mutex_lock(&b->lock);
	if (b->held) {
		b->head = (b->head + 1) % PIECES;
		b->count--;
		b->held = false;
		pthread_cond_broadcast(&b->changed);
	}
	while (b->count == 0)
		pthread_cond_wait(&b->changed, &b->lock);
	b->held = true;
	struct piece *p = &b->pieces[b->head];
	pthread_mutex_unlock(&b->lock);
	if (p->err.code < 0) {
		if (err)
			*err = p->err;
		return p->err.code;
	}
	*ret = str_n(p->data, p->n);
	return p->n > 0;
}
