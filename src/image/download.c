#include "image/download.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>

enum {
	HASH_STEP = 256 * 1024,
	HASH_TURN = 4 << 20, /* bytes hashed before the transfers are looked at again */
	TURN_MS = 200,
};

struct blob;

/* A range that is being fetched. */
struct part {
	struct blob *blob;
	uint64_t at, end; /* what is missing; at == end: the slot is free */
	uint64_t mark;    /* at, when tries was last set back */
	struct outbound_transfer *t;
	unsigned tries, let_in, renewals;
	int64_t not_before; /* monotonic */
	char range[80];
	const char *headers[2];
};

struct blob {
	struct download *d;
	const struct source_want *want;
	struct source_layer *layer;
	struct part parts[DOWNLOAD_PARTS];
	uint64_t next;   /* first byte that no part was made for */
	uint64_t hashed; /* bytes from the first on */
	EVP_MD_CTX *md;
	bool begun, done;
	unsigned restarts;
	bool ranges;    /* the server has given one */
	bool no_ranges; /* it gives none, or not always: everything in one piece */
};

struct download {
	struct registry *r;
	const struct source_fetch *f;
	struct blob *blobs;
	unsigned transfers, active;
	uint64_t total;
	int64_t told;
	unsigned char step[HASH_STEP];
};

enum source_format download_format(const unsigned char *p, size_t n)
{
	if (n >= 3 && p[0] == 0x1f && p[1] == 0x8b && p[2] == 8) /* RFC 1952 */
		return SOURCE_GZIP;
	if (n >= 4 && p[0] == 0x28 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd) /* RFC 8878 §3.1.1 */
		return SOURCE_ZSTD;
	return SOURCE_TAR;
}

static int wrong(const struct blob *b, struct error *err, const char *why)
{
	return error_set(err, -EBADMSG, 502, "%s: layer %zu of the image: %s", b->d->r->ref.registry, b->want->layer, why);
}

static void end_transfer(struct part *p)
{
	if (p->t)
		p->blob->d->transfers--;
	outbound_end(p->t);
	p->t = NULL;
}

/* From the first byte: the first time, or again since the server gives no ranges. */
static int begin_blob(struct blob *b, struct error *err)
{
	for (size_t i = 0; i < DOWNLOAD_PARTS; i++) {
		end_transfer(&b->parts[i]);
		b->parts[i] = (struct part){.blob = b};
	}
	if (b->begun && ++b->restarts >= DOWNLOAD_TRIES)
		return wrong(b, err, "it breaks off again and again, and the registry gives no ranges");
	b->begun = true;
	b->ranges = false;
	b->next = b->hashed = 0;
	if (!b->md)
		b->md = EVP_MD_CTX_new();
	return b->md && EVP_DigestInit_ex(b->md, EVP_sha256(), NULL) ? 0 : error_set(err, -ENOMEM, 500, "out of memory");
}

/* The head of a success: what comes must be what was asked for. */
static int on_head(void *arg, struct error *err)
{
	struct part *p = arg;
	struct blob *b = p->blob;
	const struct outbound_answer *a = outbound_answer(p->t);
	uint64_t size = b->layer->size;
	if (a->status == 206) {
		if (!*p->range || a->from != (int64_t)p->at || a->to >= (int64_t)p->end || (a->whole >= 0 && (uint64_t)a->whole != size))
			return wrong(b, err, "the registry answers with another range than was asked for");
		b->ranges = true;
		return 0;
	}
	if (a->length >= 0 && (uint64_t)a->length != size)
		return wrong(b, err, "its size is not what the manifest says");
	if (p->at || b->ranges)
		return error_set(err, -EAGAIN, 502, "no ranges"); /* to begin_blob(), not from inside of curl */
	p->end = b->next = size;
	return 0;
}

static int on_data(void *arg, const void *data, size_t n, struct error *err)
{
	struct part *p = arg;
	const char *from = data;
	if (n > p->end - p->at)
		return wrong(p->blob, err, "the registry sends more than it announced");
	while (n) {
		ssize_t done = pwrite(p->blob->want->fd, from, n, (off_t)p->at);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return error_set(err, -errno, errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? 507 : 500, "a layer could not be written: %s", strerror(errno));
		from += done;
		n -= (size_t)done;
		p->at += (uint64_t)done;
	}
	if (p->at - p->mark >= DOWNLOAD_PROGRESS) {
		p->mark = p->at;
		p->tries = p->let_in = 0;
	}
	return 0;
}

static int begin_transfer(struct part *p, struct error *err)
{
	struct blob *b = p->blob;
	struct registry *r = b->d->r;
	char url[sizeof(r->base) + REFERENCE_REPOSITORY_MAX + SOURCE_DIGEST_MAX + 32];
	snprintf(url, sizeof(url), "%s/v2/%s/blobs/%s", r->base, r->ref.repository, b->layer->digest);
	*p->range = 0;
	if (!b->no_ranges && (p->at || p->end < b->layer->size))
		snprintf(p->range, sizeof(p->range), "Range: bytes=%llu-%llu", (unsigned long long)p->at, (unsigned long long)p->end - 1);
	p->headers[0] = *p->range ? p->range : NULL;
	p->renewals = r->renewals;
	const struct outbound_request q = {.url = url, .headers = p->headers, .authorization = r->authorization, .unverified = r->unverified, .data = on_data, .head = on_head, .arg = p};
	int e = outbound_begin(r->out, &q, &p->t, err);
	if (e == 0)
		b->d->transfers++;
	return e;
}

/* The transfer of a part failed (code, with *why) or was answered with no success: whether and when to try again. */
static int again(struct part *p, int code, const struct error *why, struct error *err)
{
	struct blob *b = p->blob;
	struct registry *r = b->d->r;
	const struct outbound_answer *a = outbound_answer(p->t);
	int e = 0, wait = 0;
	if (code == 0 && a->status == 401 && !a->elsewhere && (p->renewals != r->renewals || p->let_in++ < 2)) {
		if (p->renewals == r->renewals) /* else another part was let in meanwhile */
			e = registry_let_in(r, a, err);
		end_transfer(p);
		return e;
	}
	/* A signed URL may have run out: the registry gives another one. */
	bool passing = registry_passing(code, a->status) || (code == 0 && a->elsewhere && a->status == 403);
	if (!passing || ++p->tries >= DOWNLOAD_TRIES) {
		if (code && err)
			*err = *why;
		e = code ? code : registry_refusal(r, a, "a layer", err);
	} else {
		wait = code ? 0 : a->retry_after;
		p->not_before = clock_monotonic() + registry_backoff(p->tries, wait) * NS_PER_MS;
	}
	end_transfer(p);
	return e;
}

static int look_at(struct part *p, struct error *err)
{
	struct error why = {0};
	int e = p->t ? outbound_state(p->t, &why) : 1;
	if (e > 0)
		return 0;
	if (e == -EAGAIN) {
		if (p->blob->no_ranges)
			return wrong(p->blob, err, "the registry gives it in pieces that do not fit");
		p->blob->no_ranges = true;
		return begin_blob(p->blob, err);
	}
	int status = outbound_answer(p->t)->status;
	if (e < 0 || (status != 200 && status != 206))
		return again(p, e, &why, err);
	if (p->at < p->end) {
		e = error_set(&why, -ECONNRESET, 502, "%s: the answer ended before it was complete", p->blob->d->r->ref.registry);
		return again(p, e, &why, err);
	}
	end_transfer(p);
	return 0;
}

/* A free slot gets the next range; what waits begins when its time has come. The first range must have shown that there are ranges. */
static int start_part(struct part *p, int64_t now, struct error *err)
{
	struct blob *b = p->blob;
	uint64_t size = b->layer->size;
	if (p->t || b->d->transfers >= DOWNLOAD_TRANSFERS || now < p->not_before)
		return 0;
	if (p->at == p->end) {
		if (b->next == size || (b->next && !b->ranges))
			return 0;
		uint64_t end = b->no_ranges || size - b->next <= DOWNLOAD_PART ? size : b->next + DOWNLOAD_PART;
		*p = (struct part){.blob = b, .at = b->next, .mark = b->next, .end = end};
		b->next = end;
	} else if (p->at && b->no_ranges) {
		return begin_blob(b, err);
	}
	return begin_transfer(p, err);
}

/* Bytes from the first that are all there. */
static uint64_t contiguous(const struct blob *b)
{
	uint64_t least = b->next;
	for (size_t i = 0; i < DOWNLOAD_PARTS; i++)
		if (b->parts[i].at < b->parts[i].end)
			least = MIN(least, b->parts[i].at);
	return least;
}

static int hash_turn(struct blob *b, struct error *err)
{
	uint64_t end = MIN(contiguous(b), b->hashed + HASH_TURN);
	while (b->hashed < end) {
		ssize_t n = pread(b->want->fd, b->d->step, (size_t)MIN((uint64_t)HASH_STEP, end - b->hashed), (off_t)b->hashed);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_errno(err, n < 0 ? -errno : -EIO, "a layer could not be read back");
		if (!b->hashed)
			b->layer->format = download_format(b->d->step, (size_t)n);
		EVP_DigestUpdate(b->md, b->d->step, (size_t)n);
		b->hashed += (uint64_t)n;
	}
	return 0;
}

static int finish_blob(struct blob *b, struct error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	char text[SOURCE_DIGEST_MAX] = "sha256:";
	EVP_DigestFinal_ex(b->md, digest, NULL);
	hex_encode(text + 7, digest, 32);
	if (strcmp(text, b->layer->digest) != 0)
		return wrong(b, err, "its bytes are not those of its digest");
	b->done = true;
	b->d->active--;
	return b->d->f->complete ? b->d->f->complete(b->d->f->arg, b->want, err) : 0;
}

static int turn_blob(struct blob *b, int64_t now, bool *ret_busy, struct error *err)
{
	int e = 0;
	if (!b->begun) {
		if (b->d->active >= DOWNLOAD_BLOBS)
			return 0;
		b->d->active++;
		e = begin_blob(b, err);
	}
	for (size_t i = 0; e == 0 && i < DOWNLOAD_PARTS; i++)
		e = look_at(&b->parts[i], err);
	for (size_t i = 0; e == 0 && i < DOWNLOAD_PARTS; i++)
		e = start_part(&b->parts[i], now, err);
	if (e == 0)
		e = hash_turn(b, err);
	*ret_busy = *ret_busy || b->hashed < contiguous(b);
	return e == 0 && b->hashed == b->layer->size ? finish_blob(b, err) : e;
}

static void tell(struct download *d, bool last)
{
	int64_t now = clock_monotonic();
	uint64_t done = 0;
	if (!d->f->progress || (!last && now - d->told < 100 * NS_PER_MS))
		return;
	d->told = now;
	for (size_t i = 0; i < d->f->n_wants; i++) {
		const struct blob *b = &d->blobs[i];
		done += b->next;
		for (size_t k = 0; k < DOWNLOAD_PARTS; k++)
			done -= b->parts[k].end - b->parts[k].at;
	}
	d->f->progress(d->f->arg, done, d->total);
}

static int run(struct download *d, struct error *err)
{
	for (size_t left = d->f->n_wants; left;) {
		bool busy = false;
		int64_t now = clock_monotonic();
		left = 0;
		for (size_t i = 0; i < d->f->n_wants; i++) {
			int e = d->blobs[i].done ? 0 : turn_blob(&d->blobs[i], now, &busy, err);
			if (e < 0)
				return e;
			left += !d->blobs[i].done;
		}
		int e = left && !d->transfers && !busy ? registry_pause(d->r, 50, err) : 0;
		if (e == 0)
			e = outbound_run(d->r->out, busy ? 0 : TURN_MS, err);
		if (e < 0)
			return e;
		tell(d, !left);
	}
	return 0;
}

int download_layers(struct registry *r, struct source_layer *layers, const struct source_fetch *f, struct error *err)
{
	struct download *d = calloc(1, sizeof(*d));
	int e = 0;
	if (!d || !(d->blobs = calloc(f->n_wants + 1, sizeof(*d->blobs)))) {
		free(d);
		return error_set(err, -ENOMEM, 500, "out of memory");
	}
	d->r = r;
	d->f = f;
	for (size_t i = 0; i < f->n_wants; i++) {
		d->blobs[i].d = d;
		d->blobs[i].want = &f->wants[i];
		d->blobs[i].layer = &layers[f->wants[i].layer];
		d->total += d->blobs[i].layer->size;
	}
	e = run(d, err);
	for (size_t i = 0; i < f->n_wants; i++) {
		for (size_t k = 0; k < DOWNLOAD_PARTS; k++)
			end_transfer(&d->blobs[i].parts[k]);
		EVP_MD_CTX_free(d->blobs[i].md);
	}
	free(d->blobs);
	free(d);
	return e;
}
