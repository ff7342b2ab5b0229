#include "base/cleanup.h"
#include "image/maker.h"
#include "image/unpack.h"
#include "io/chan.h"

#include <locale.h>
#include <openssl/crypto.h>
#include <signal.h>

enum {
	MEMORY = 2047 << 20, /* address space: the tree's limit, its table growing, buffers, a zstd window, libraries */
	SECONDS = 3600,
};

struct request {
	struct str diff_ids[UNPACK_MAX_BLOBS];
	int fds[UNPACK_MAX_BLOBS];
	size_t n;
	uint64_t size_max;
	bool lowest;
};

static int bad(struct error *err, const char *what)
{
	return error_set(err, -EPROTO, 500, "unpack_begin: %s", what);
}

static int parse(const struct msg_unpack_begin *m, struct request *ret, struct error *err)
{
	struct str formats = m->formats.raw, diff_ids = m->diff_ids.raw, format;
	for (; msg_list_next(&formats, &format); ret->n++) {
		if (ret->n == UNPACK_MAX_BLOBS)
			return bad(err, "too many blobs");
		/* The blob itself says it better (image/blob.h). */
		if (!str_is(format, "tar") && !str_is(format, "gzip") && !str_is(format, "zstd"))
			return bad(err, "an unknown format");
		if (!msg_list_next(&diff_ids, &ret->diff_ids[ret->n]))
			return bad(err, "a diff_id is missing");
		ret->fds[ret->n] = UNPACK_BLOB_FD + (int)ret->n;
	}
	if (ret->n == 0 || diff_ids.n > 0)
		return bad(err, "no blob, or a diff_id too much");
	ret->size_max = m->size_max;
	ret->lowest = msg_has(m, unpack_begin, lowest) && m->lowest;
	return 0;
}

static int answer(const struct unpacked *made, size_t n, struct error *err)
{
	cleanup_buf struct buf diff_ids = BUF_INIT;
	for (size_t i = 0; i < n; i++)
		if (msg_list_add(&diff_ids, str_of(made->diff_ids[i])) < 0)
			return error_errno(err, -ENOMEM, "unpacked");
	struct msg_unpacked m = {0};
	msg_set(&m, unpacked, size, made->image.size);
	msg_set(&m, unpacked, entries, made->image.entries);
	msg_set(&m, unpacked, diff_ids, (struct msg_list){buf_str(&diff_ids)});
	msg_set(&m, unpacked, guessed, made->image.guessed);
	return msg_send_fd(UNPACK_CHANNEL_FD, MSG_ID_unpacked, &m, 0, NULL, 0, err);
}

static int work(struct error *err)
{
	static char storage[MSG_MAX];
	static struct request request;
	static char diff_ids[UNPACK_MAX_BLOBS][UNPACK_DIGEST + 1];
	struct unpacked made = {.diff_ids = diff_ids};
	union msg_any body;
	struct blobs *blobs = NULL;
	int r = maker_receive(UNPACK_CHANNEL_FD, MSG_ID_unpack_begin, storage, &body, err);
	if (r == 0)
		r = parse(&body.unpack_begin, &request, err);
	if (r < 0 || (r = maker_limit(request.size_max, MEMORY, SECONDS, err)) < 0)
		return r;
	/* What would read files later: the configuration of OpenSSL. */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
	r = blobs_new(request.fds, request.n, &blobs);
	if (r < 0)
		return error_errno(err, r, "starting a thread");
	r = maker_filter(false, err);
	struct unpack u = {
		.image = UNPACK_IMAGE_FD,
		.blobs = blobs,
		.n = request.n,
		.diff_ids = request.diff_ids,
		.limits = tree_limits_usual,
		.lowest = request.lowest,
	};
	u.limits.image = request.size_max;
	/* Headers and padding of as many entries as there may be. */
	u.bytes_max = request.size_max + u.limits.entries * 2048;
	if (r == 0)
		r = unpack(&u, &made, err);
	if (r == 0)
		r = answer(&made, request.n, err);
	blobs_free(blobs);
	return r;
}

int unpack_main(int argc, char **argv)
{
	struct error err = {0};
	/* A limit of the file's size is told as an error. */
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	return work(&err) < 0 ? maker_fail(UNPACK_CHANNEL_FD, &err) : 0;
}
