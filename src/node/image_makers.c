#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/random.h"
#include "image/merge.h"
#include "image/unpack.h"
#include "io/workq.h"
#include "node/builder_impl.h"
#include "sys/process.h"

#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

/*
 * Images made for a builder: of blobs that it has fetched, by `cubicle unpack`, or of layers, by `cubicle merge`; one process for each. A blob is hashed here, when nobody can write it any
 * more, so an image is never known by a digest that its blob has not. An image has no name until it is complete and on the disk.
 */

enum { LEASE_TRIES = 100, PIECE = 1 << 20 };

struct blob {
	int fd;
	uint64_t number;
	unsigned char digest[32];
};

struct image_maker {
	struct image_maker *next;
	struct builder *builder;
	uint64_t request;
	bool merge, ending, complete, lowest;
	struct blob *blobs;
	int *directories; /* of a merge: opened by the backend */
	char **paths;     /* ... and theirs, NULL-terminated */
	size_t n, below;
	int image;        /* the file; no name yet */
	int ours, theirs; /* ends of its channel */
	uint64_t size_max, size, entries;
	struct buf formats, diff_ids, layers;
	struct jail jail;
	char stage[PATH_MAX], images[PATH_MAX], path[PATH_MAX];
	struct builder_starter starter;
	struct jailed process;
	struct loop_fd *watch;
	struct chan *chan;
	struct layer_record layer;
	struct error err;
};

uint64_t image_makers_bytes(const struct builder *b)
{
	uint64_t bytes = 0;
	struct stat st;
	for (const struct image_maker *x = b->makers; x; x = x->next)
		if (x->image >= 0 && fstat(x->image, &st) == 0)
			bytes += (uint64_t)st.st_blocks * 512;
	return bytes;
}

static void release(struct image_maker *x)
{
	for (size_t i = 0; x->blobs && i < x->n; i++)
		if (x->blobs[i].fd >= 0)
			close(x->blobs[i].fd);
	for (size_t i = 0; x->directories && i < x->n + x->below; i++)
		if (x->directories[i] >= 0)
			close(x->directories[i]);
	for (char **path = x->paths; path && *path; path++)
		free(*path);
	free(x->paths);
	free(x->blobs);
	free(x->directories);
	for (int *fd = (int[]){x->image, x->ours, x->theirs}, *last = fd + 3; fd < last; fd++)
		if (*fd >= 0)
			close(*fd);
	buf_done(&x->formats);
	buf_done(&x->diff_ids);
	buf_done(&x->layers);
	chan_free(x->chan);
	if (x->watch)
		loop_fd_del(x->watch);
	free(x);
}

static void maker_free(struct image_maker *x)
{
	struct builder *b = x->builder;
	struct image_maker **at = &b->makers;
	while (*at != x)
		at = &(*at)->next;
	*at = x->next;
	b->n_makers--;
	release(x);
	builder_let(b);
}

/* There is no image: who waits for it may make it. */
static void failed(struct image_maker *x)
{
	struct builder *b = x->builder;
	builder_hold(b);
	builder_refuse(b, x->request, &x->err);
	if (x->merge)
		layers_give(b, str_of(x->layer.key));
	maker_free(x);
	builder_let(b);
}

static struct image_maker *maker_new(struct builder *b, uint64_t request)
{
	struct image_maker *x = calloc(1, sizeof(*x));
	if (!x)
		abort(); /* see records.c: without memory the node starts anew */
	*x = (struct image_maker){.next = b->makers, .builder = b, .request = request, .image = -1, .ours = -1, .theirs = -1, .starter = b->node->starter, .process = {0, -1}};
	snprintf(x->stage, sizeof(x->stage), "%s/builds", b->node->directory);
	snprintf(x->images, sizeof(x->images), "%s/images", b->node->directory);
	b->makers = x;
	b->n_makers++;
	builder_hold(b);
	return x;
}

/* On a worker: the image, and its process */

/* Nobody can write it any more, or bring it to change. */
static int nobody_writes(int fd)
{
	for (int i = 0; i < LEASE_TRIES; i++) {
		if (fcntl(fd, F_SETLEASE, F_RDLCK) == 0)
			return 0;
		if (errno != EAGAIN && errno != EBUSY)
			return -errno;
		usleep(10000); /* the builder's descriptor may be on its way yet */
	}
	return -ETXTBSY;
}

static int hash(int fd, unsigned char ret[32])
{
	char *piece = malloc(PIECE);
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	int r = piece && c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) ? 0 : -ENOMEM;
	off_t at = 0;
	while (r == 0) {
		ssize_t n = pread(fd, piece, PIECE, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			r = n < 0 ? -errno : 0;
			break;
		}
		at += n;
		if (!EVP_DigestUpdate(c, piece, (size_t)n))
			r = -EIO;
	}
	unsigned length = 32;
	if (r == 0 && !EVP_DigestFinal_ex(c, ret, &length))
		r = -EIO;
	EVP_MD_CTX_free(c);
	free(piece);
	return r;
}

static int check_blob(const struct blob *b, struct error *err)
{
	unsigned char found[32];
	char text[65];
	int r = nobody_writes(b->fd);
	if (r == -ETXTBSY)
		return error_set(err, r, 400, "file %llu is open for writing", (unsigned long long)b->number);
	if (r < 0)
		return error_errno(err, r, "lease of file %llu", (unsigned long long)b->number);
	r = hash(b->fd, found);
	if (r < 0)
		return error_errno(err, r, "file %llu", (unsigned long long)b->number);
	if (memcmp(found, b->digest, sizeof(found)) != 0)
		return error_set(err, -EBADMSG, 400, "the layer's digest is sha256:%s, not what its image says", hex_encode(text, found, sizeof(found)));
	return 0;
}

static void start_work(void *arg)
{
	static const char *const unpack[] = {"cubicle", "unpack", NULL}, *const merge[] = {"cubicle", "merge", NULL};
	struct image_maker *x = arg;
	int fds[JAIL_FDS];
	size_t n = 0, inputs = x->n + x->below;
	for (size_t i = 0; x->blobs && i < x->n; i++)
		if (check_blob(&x->blobs[i], &x->err) < 0)
			return;
	x->image = open(x->images, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (x->image < 0) {
		error_errno(&x->err, -errno, "image");
		return;
	}
	fds[n++] = x->theirs;
	fds[n++] = x->image;
	for (size_t i = 0; i < inputs; i++)
		fds[n++] = x->merge ? x->directories[i] : x->blobs[i].fd;
	x->jail.argv = x->merge ? merge : unpack;
	x->jail.fds = fds;
	x->jail.n_fds = n;
	if (x->starter.start(&x->jail, &x->process, x->starter.arg, &x->err) == 0)
		x->jail.fds = NULL;
}

/* It ends, in whatever way */

static void finish_work(void *arg)
{
	struct image_maker *x = arg;
	struct stat st;
	int r = fstat(x->image, &st) < 0 ? -errno : 0;
	if (r == 0 && ((uint64_t)st.st_size != x->size || !st.st_size || x->size > x->size_max))
		error_set(&x->err, -EPROTO, 500, "the image has %llu bytes, not %llu as was said", (unsigned long long)st.st_size, (unsigned long long)x->size);
	if (x->err.code)
		return;
	if (r == 0 && (fchmod(x->image, 0400) < 0 || fsync(x->image) < 0))
		r = -errno;
	if (r == 0)
		r = file_publish(x->image, x->path);
	if (r == -ENOSPC)
		error_set(&x->err, r, 507, "the server's disk is full");
	else if (r < 0)
		error_errno(&x->err, r, "image");
	x->layer.size = MAX((uint64_t)st.st_blocks * 512, UINT64_C(1));
}

static void recorded(const struct error *err, void *arg)
{
	struct image_maker *x = arg;
	struct builder *b = x->builder;
	struct msg_layer m = {0};
	if (err) {
		x->err = *err;
		failed(x);
		return;
	}
	FAULT(build_layer_recorded);
	msg_set(&m, layer, file, str_of(x->layer.file));
	msg_set(&m, layer, size, x->layer.size);
	msg_set(&m, layer, found, false);
	if (layers_implied(x->layer.file))
		msg_set(&m, layer, guessed, true);
	builder_hold(b);
	builder_answer(b, x->request, MSG_ID_layer, &m, -1);
	layers_give(b, str_of(x->layer.key));
	maker_free(x);
	builder_let(b);
}

static void finish_done(void *arg)
{
	struct image_maker *x = arg;
	struct builder *b = x->builder;
	struct node *n = b->node;
	if (x->err.code) {
		failed(x);
		return;
	}
	FAULT(build_layer_published);
	x->layer.used_at = node_realtime(n);
	/* Blobs are needed no more: a build has at most one and its image. */
	for (size_t i = 0; !x->merge && i < x->n; i++) {
		struct builder_file *f = builder_file(b, x->blobs[i].number);
		if (f)
			builder_file_free(b, f);
	}
	builder_made(b, str_of(x->layer.file), x->layer.size);
	layers_made(n, &x->layer, recorded, x);
}

static void over(struct image_maker *x)
{
	struct node *n = x->builder->node;
	if (!x->err.code && !x->complete)
		error_set(&x->err, -EPIPE, 500, "the process that makes the image ended unexpectedly");
	if (x->err.code || x->ending)
		failed(x);
	else if (workq_push(n->builds->makers, n->loop, finish_work, finish_done, x) < 0)
		abort();
}

/* more: what its name says beside (layers_implied()). */
static void name_layer(struct image_maker *x, char kind, const char *hex, const char *more)
{
	char tail[7];
	/* A name that no image had before: one that is being removed is another file. */
	random_text(tail, 6, "abcdefghijklmnopqrstuvwxyz0123456789");
	snprintf(x->layer.file, sizeof(x->layer.file), "images/%c%.64s-%s%s.erofs", kind, hex, tail, more);
	snprintf(x->path, sizeof(x->path), "%s/%s", x->builder->node->directory, x->layer.file);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct image_maker *x = arg;
	if (x->complete || x->err.code)
		return;
	if (m->header.type == MSG_ID_unpacked) {
		x->complete = true;
		x->size = m->body->unpacked.size;
		x->entries = m->body->unpacked.entries;
		if (m->body->unpacked.guessed && !x->merge)
			name_layer(x, 'o', strchr(x->layer.key, ':') + 1, "-implied");
	} else if (m->header.type == MSG_ID_error) {
		const struct msg_error *e = &m->body->error;
		int64_t code = e->code < 0 && e->code > -4096 ? e->code : -EIO;
		uint64_t status = e->status >= 400 && e->status < 600 ? e->status : 500;
		error_set(&x->err, (int)code, (int)status, "%.*s", STR_FMT(e->message));
	} else {
		return;
	}
	process_signal(x->process.pidfd, SIGKILL);
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	struct image_maker *x = arg;
	x->chan = NULL;
	if (x->process.pid)
		process_signal(x->process.pidfd, SIGKILL);
}

static const struct chan_ops maker_ops = {on_message, on_closed, NULL};

static void on_end(struct loop_fd *w, uint32_t events, void *arg)
{
	struct image_maker *x = arg;
	chan_take(x->chan);
	loop_fd_del(steal_pointer(&x->watch));
	jail_end(&x->process);
	over(x);
}

static void start_done(void *arg)
{
	struct image_maker *x = arg;
	struct builder *b = x->builder;
	struct node *n = b->node;
	struct error err = {0};
	if (x->err.code) {
		failed(x);
		return;
	}
	FAULT(unpacker_started);
	x->watch = loop_fd_add(n->loop, x->process.pidfd, EPOLLIN, on_end, x);
	x->chan = chan_new(n->loop, steal_fd(&x->ours), MSG_FROM_BUILDER, CHAN_NO_FDS, &maker_ops, x);
	if (!x->watch || !x->chan)
		abort();
	close(steal_fd(&x->theirs));
	struct msg_unpack_begin unpack = {.formats = {buf_str(&x->formats)}, .diff_ids = {buf_str(&x->diff_ids)}, .size_max = x->size_max};
	struct msg_merge_begin merge = {.layers = x->n, .below = x->below, .size_max = x->size_max};
	if (x->lowest)
		msg_set(&unpack, unpack_begin, lowest, true);
	if (x->ending)
		process_signal(x->process.pidfd, SIGKILL);
	else if (chan_send(x->chan, x->merge ? MSG_ID_merge_begin : MSG_ID_unpack_begin, x->merge ? (const void *)&merge : &unpack, 0, NULL, 0, &err) < 0)
		process_signal(x->process.pidfd, SIGKILL);
}

static void start(struct image_maker *x)
{
	struct builder *b = x->builder;
	struct node *n = b->node;
	int pair[2];
	x->size_max = MIN(x->size_max, (uint64_t)n->options->build_disk << 20);
	x->jail = (struct jail){.flags = x->merge ? JAIL_MERGE : 0, .uid = n->build_uid, .gid = n->build_gid, .stage = x->stage, .memory = (uint64_t)MAKER_MB << 20,
		.file_size = x->size_max, .nice = 5};
	int r = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
	if (r == 0) {
		x->theirs = pair[0];
		x->ours = pair[1];
		r = workq_push(n->builds->makers, n->loop, start_work, start_done, x);
	}
	if (r < 0) {
		error_errno(&x->err, r, "image");
		failed(x);
	}
}

/* Unpacking */

static bool take_hex(struct str digest, unsigned char ret[32])
{
	struct str hex = str_starts(digest, STR("sha256:")) ? str_from(digest, 7) : STR("");
	if (hex.n != 64)
		return false;
	for (size_t i = 0; i < 64; i++) {
		const char *at = hex.p[i] ? strchr("0123456789abcdef", hex.p[i]) : NULL;
		if (!at)
			return false;
		unsigned v = (unsigned)(at - "0123456789abcdef");
		ret[i / 2] = (unsigned char)(i % 2 ? ret[i / 2] | v : v << 4);
	}
	return true;
}

static bool take_number(struct str s, uint64_t *ret)
{
	uint64_t v = 0;
	if (!s.n || s.n > 18)
		return false;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(s.p[i] - '0');
	}
	*ret = v;
	return true;
}

static int take_blobs(struct image_maker *x, const struct msg_unpack_layer *m, struct error *err)
{
	struct str files = m->files.raw, digests = m->digests.raw, diff_ids = m->diff_ids.raw, formats = m->formats.raw, file, digest, diff_id, format;
	unsigned char ignored[32];
	x->blobs = calloc(UNPACK_MAX_BLOBS, sizeof(*x->blobs));
	if (!x->blobs)
		return error_errno(err, -ENOMEM, "blobs");
	while (msg_list_next(&files, &file)) {
		struct blob *b = &x->blobs[x->n];
		if (x->n == UNPACK_MAX_BLOBS)
			return error_set(err, -E2BIG, 400, "files: at most %d", UNPACK_MAX_BLOBS);
		if (!msg_list_next(&digests, &digest) || !msg_list_next(&diff_ids, &diff_id) || !msg_list_next(&formats, &format))
			return error_set(err, -EINVAL, 400, "files, digests, diff_ids and formats: one of each is needed for each blob");
		if (!take_number(file, &b->number) || !take_hex(digest, b->digest) || (diff_id.n && !take_hex(diff_id, ignored)))
			return error_set(err, -EINVAL, 400, "blob %zu: a number and sha256 digests are needed", x->n);
		if (!str_is(format, "tar") && !str_is(format, "gzip") && !str_is(format, "zstd"))
			return error_set(err, -EINVAL, 400, "blob %zu: format: tar, gzip or zstd", x->n);
		const struct builder_file *f = builder_file(x->builder, b->number);
		if (!f)
			return error_set(err, -ENOENT, 400, "there is no file %llu", (unsigned long long)b->number);
		b->fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
		x->n++;
		if (b->fd < 0)
			return error_errno(err, -errno, "file %llu", (unsigned long long)b->number);
		msg_list_add(&x->formats, format);
		msg_list_add(&x->diff_ids, diff_id);
	}
	if (!x->n || digests.n || diff_ids.n || formats.n)
		return error_set(err, -EINVAL, 400, "files, digests, diff_ids and formats: one of each is needed for each blob");
	return x->formats.failed || x->diff_ids.failed ? error_errno(err, -ENOMEM, "blobs") : 0;
}

/* The key that a layer of these blobs has: of one its digest, else of all of their digests (io/messages.h). */
static int key_of(const struct image_maker *x, char to[65])
{
	cleanup_buf struct buf text = BUF_INIT;
	unsigned char digest[32];
	char hex[65];
	if (x->n == 1 && !x->lowest) {
		hex_encode(to, x->blobs[0].digest, 32);
		return 0;
	}
	if (x->lowest)
		buf_add_c(&text, "lowest\n");
	for (size_t i = 0; i < x->n; i++)
		buf_addf(&text, "%s\n", hex_encode(hex, x->blobs[i].digest, 32));
	if (text.failed || !EVP_Digest(buf_str(&text).p, buf_len(&text), digest, NULL, EVP_sha256(), NULL))
		return -ENOMEM;
	hex_encode(to, digest, sizeof(digest));
	return 0;
}

void image_unpack(struct builder *b, uint64_t request, const struct msg_unpack_layer *m)
{
	struct error err = {0};
	char hex[65], key[80];
	if (b->n_makers >= BUILDER_MAKERS_MOST) {
		error_set(&err, -EAGAIN, 400, "at most %d images at once", BUILDER_MAKERS_MOST);
		builder_refuse(b, request, &err);
		return;
	}
	struct image_maker *x = maker_new(b, request);
	x->lowest = m->lowest;
	x->size_max = m->size_max;
	if (take_blobs(x, m, &x->err) == 0 && key_of(x, hex) < 0)
		error_errno(&x->err, -ENOMEM, "key");
	if (!x->err.code) {
		snprintf(key, sizeof(key), "oci:%s", hex);
		if (!str_is(m->key, key))
			error_set(&x->err, -EINVAL, 400, "key: that of these blobs is %s", key);
		else if (!layers_granted(b, m->key))
			error_set(&x->err, -EPERM, 400, "key: find_layer has not given it to this builder");
		else if (x->size_max < 1)
			error_set(&x->err, -EINVAL, 400, "size_max: at least a byte");
	}
	for (struct image_maker *other = x->next; !x->err.code && other; other = other->next)
		if (strcmp(other->layer.key, key) == 0)
			error_set(&x->err, -EALREADY, 400, "that image is being made");
	if (!x->err.code)
		builder_room(b, 0, &x->err);
	if (x->err.code) {
		failed(x);
		return;
	}
	snprintf(x->layer.key, sizeof(x->layer.key), "%s", key);
	name_layer(x, 'o', hex, "");
	start(x);
}

/* Merging */

static void directories_opened(const struct error *err, void *arg)
{
	struct image_maker *x = arg;
	if (err)
		x->err = *err;
	if (!x->err.code && x->ending)
		error_set(&x->err, -ECANCELED, 500, "the build ended");
	if (x->err.code)
		failed(x);
	else
		start(x);
}

static int merge_key(struct image_maker *x, const struct msg_merge_layers *m, char hex[65])
{
	cleanup_buf struct buf text = BUF_INIT;
	unsigned char digest[32];
	struct str rest = m->layers.raw, file;
	while (msg_list_next(&rest, &file))
		buf_addf(&text, "%.*s\n", STR_FMT(file));
	buf_add_c(&text, "\n");
	rest = m->below.raw;
	while (msg_list_next(&rest, &file))
		buf_addf(&text, "%.*s\n", STR_FMT(file));
	if (text.failed || !EVP_Digest(buf_str(&text).p, buf_len(&text), digest, NULL, EVP_sha256(), NULL))
		return -ENOMEM;
	hex_encode(hex, digest, sizeof(digest));
	return 0;
}

/* Their paths, lowest first those to be merged, then topmost first those below. */
static char **merge_paths(struct image_maker *x, const struct msg_merge_layers *m)
{
	const char *directory = x->builder->node->directory;
	char **paths = calloc(2 * BOX_MAX_LAYERS + 1, sizeof(*paths));
	struct str rest = m->layers.raw, file;
	if (!paths)
		abort();
	for (; msg_list_next(&rest, &file); x->n++)
		if (asprintf(&paths[x->n], "%s/%.*s", directory, STR_FMT(file)) < 0)
			abort();
	rest = m->below.raw;
	for (; msg_list_next(&rest, &file); x->below++) {
		memmove(&paths[x->n + 1], &paths[x->n], x->below * sizeof(*paths));
		if (asprintf(&paths[x->n], "%s/%.*s", directory, STR_FMT(file)) < 0)
			abort();
	}
	return paths;
}

/* It is there already; or is to be made: one merge of the same layers at a time. */
static void merge_go(void *arg, bool answered)
{
	struct image_maker *x = arg;
	struct builder *b = x->builder;
	size_t n = x->n + x->below;
	if (answered) {
		maker_free(x);
		return;
	}
	x->directories = malloc(n * sizeof(int));
	if (!x->directories)
		abort();
	for (size_t i = 0; i < n; i++)
		x->directories[i] = -1;
	int r = b->ending ? -ECANCELED : backend_open_layers(b->node->backend, (const char *const *)x->paths, n, x->directories, directories_opened, x);
	if (r < 0) {
		error_errno(&x->err, r, "layers");
		failed(x);
	}
}

void image_merge(struct builder *b, uint64_t request, const struct msg_merge_layers *m)
{
	struct error err = {0};
	char hex[65], key[80];
	if (b->n_makers >= BUILDER_MAKERS_MOST)
		error_set(&err, -EAGAIN, 400, "at most %d images at once", BUILDER_MAKERS_MOST);
	else if (build_check_layers(b, m->layers, BOX_MAX_LAYERS, &err) == 0 && m->below.raw.n)
		build_check_layers(b, m->below, BOX_MAX_LAYERS, &err);
	if (!err.code)
		builder_room(b, 0, &err);
	if (err.code) {
		builder_refuse(b, request, &err);
		return;
	}
	struct image_maker *x = maker_new(b, request);
	x->merge = true;
	x->size_max = UINT64_MAX;
	if (merge_key(x, m, hex) < 0)
		abort();
	snprintf(key, sizeof(key), "merge:%s", hex);
	snprintf(x->layer.key, sizeof(x->layer.key), "%s", key);
	name_layer(x, 'm', hex, "");
	x->paths = merge_paths(x, m);
	layers_find_for(b, request, str_of(key), merge_go, x);
}

/* The end */

void image_makers_end(struct builder *b)
{
	for (struct image_maker *x = b->makers; x; x = x->next) {
		x->ending = true;
		if (x->process.pid)
			process_signal(x->process.pidfd, SIGKILL);
	}
}

void image_makers_forget(struct builder *b)
{
	while (b->makers) {
		struct image_maker *x = b->makers;
		b->makers = x->next;
		if (x->process.pid) {
			process_signal(x->process.pidfd, SIGKILL);
			if (x->watch)
				loop_fd_del(steal_pointer(&x->watch));
			jail_end(&x->process);
		}
		release(x);
	}
}
