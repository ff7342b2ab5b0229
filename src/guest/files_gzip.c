#include "base/cleanup.h"
#include "guest/files_call.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

enum {
	WINDOW_GZIP = 15 + 16, /* zlib's way to say "with gzip's header" */
	OUTPUT = 64 * 1024,
};

struct files_gunzip {
	z_stream z;
	bool inside;   /* a member has begun and not ended */
	bool complete; /* one has ended */
	bool pending;  /* more output may come out of what is in already */
	unsigned char out[OUTPUT];
};

struct files_gunzip *files_gunzip_new(void)
{
	struct files_gunzip *g = calloc(1, sizeof(*g));
	if (g && inflateInit2(&g->z, WINDOW_GZIP) != Z_OK) {
		free(g);
		g = NULL;
	}
	return g;
}

void files_gunzip_free(struct files_gunzip *g)
{
	if (g)
		inflateEnd(&g->z);
	free(g);
}

/* Runs the decoder once over what it has. Bytes that it gave, or a negative errno. */
static int step(struct files_call *c, struct files_gunzip *g)
{
	/* Several members are one file (RFC 1952 §2.2); what follows the last must be another. */
	if (!g->inside)
		inflateReset(&g->z);
	g->inside = true;
	g->z.next_out = g->out;
	g->z.avail_out = OUTPUT;
	switch (inflate(&g->z, Z_NO_FLUSH)) {
	case Z_STREAM_END:
		g->inside = false;
		g->complete = true;
		break;
	case Z_OK:
	case Z_BUF_ERROR: /* nothing more without input */
		break;
	case Z_MEM_ERROR:
		return -ENOMEM;
	default:
		return files_fail(c, 400, "malformed gzip body: %s", g->z.msg ? g->z.msg : "damaged");
	}
	g->pending = g->inside && g->z.avail_out == 0;
	return OUTPUT - (int)g->z.avail_out;
}

int files_gunzip_next(struct files_call *c, struct files_gunzip *g, struct str *ret)
{
	for (;;) {
		if (g->z.avail_in == 0 && !g->pending) {
			struct str run;
			int r = files_body_next(c, &run);
			if (r < 0)
				return r;
			if (r == 0)
				return g->complete && !g->inside
					       ? 0
					       : files_fail(c, 400, "malformed gzip body: it has no end");
			g->z.next_in = (unsigned char *)(uintptr_t)run.p;
			g->z.avail_in = (uInt)run.n;
		}
		int n = step(c, g);
		if (n < 0)
			return n;
		if (n > 0) {
			*ret = str_n(g->out, (size_t)n);
			return 1;
		}
	}
}

/* ---- the way out ---- */

struct files_gzip {
	z_stream z;
	unsigned char out[OUTPUT];
};

struct files_gzip *files_gzip_new(void)
{
	struct files_gzip *g = calloc(1, sizeof(*g));
	/* The fastest level: the network behind it is mostly faster than any. */
	if (g && deflateInit2(&g->z, 1, Z_DEFLATED, WINDOW_GZIP, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
		free(g);
		g = NULL;
	}
	return g;
}

void files_gzip_free(struct files_gzip *g)
{
	if (g)
		deflateEnd(&g->z);
	free(g);
}

int files_gzip_send(struct files_call *c, struct files_gzip *g, struct str bytes, bool last)
{
	g->z.next_in = (unsigned char *)(uintptr_t)bytes.p;
	g->z.avail_in = (uInt)bytes.n;
	int r = 0;
	do {
		g->z.next_out = g->out;
		g->z.avail_out = OUTPUT;
		deflate(&g->z, last ? Z_FINISH : Z_NO_FLUSH);
		size_t n = OUTPUT - g->z.avail_out;
		/* An empty chunk would be the end. */
		if (n)
			r = files_send_chunk(c, str_n(g->out, n));
	} while (r == 0 && g->z.avail_out == 0);
	return r == 0 && last ? files_send_chunk(c, str_n("", 0)) : r;
}
