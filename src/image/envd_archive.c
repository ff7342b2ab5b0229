#include "image/envd.h"
#include "base/cleanup.h"
#include "image/envd_http.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 60 * 1024 };

struct envd_download {
	struct envd_http http;
	struct str piece; /* taken from the answer, not given yet */
};

struct envd_upload {
	struct envd_http http;
	struct buf chunk;
	char path[256]; /* for errors */
};

static int target(struct buf *to, const char *path)
{
	buf_add_c(to, "/archive?path=");
	url_encode(to, str_of(path));
	return buf_cstr(to) ? 0 : -ENOMEM;
}

int envd_download_open(const struct envd *e, const char *path, struct envd_download **ret, struct error *err)
{
	cleanup_buf struct buf to = BUF_INIT;
	struct envd_download *d = calloc(1, sizeof(*d));
	if (!d || target(&to, path) < 0 || buf_add_c(&to, "&follow=1") < 0) {
		free(d);
		return error_errno(err, -ENOMEM, "%s", path);
	}
	d->http = ENVD_HTTP_INIT;
	int r = envd_http_open(&d->http, e, "GET", buf_cstr(&to), "", 0, err);
	if (r == 0)
		r = envd_http_answer(&d->http, err);
	if (r == 0 && d->http.status != 200)
		r = envd_http_refused(&d->http, path, err);
	if (r < 0)
		envd_download_close(d);
	else
		*ret = d;
	return r;
}

ssize_t envd_download_read(struct envd_download *d, void *to, size_t n, struct error *err)
{
	if (!d->piece.n) {
		int r = envd_http_next(&d->http, &d->piece, err);
		if (r <= 0)
			return r;
	}
	n = MIN(n, d->piece.n);
	memcpy(to, d->piece.p, n);
	d->piece = str_from(d->piece, n);
	return (ssize_t)n;
}

void envd_download_close(struct envd_download *d)
{
	if (d)
		envd_http_close(&d->http);
	free(d);
}

int envd_upload_open(const struct envd *e, const char *path, struct envd_upload **ret, struct error *err)
{
	cleanup_buf struct buf to = BUF_INIT;
	struct envd_upload *u = calloc(1, sizeof(*u));
	if (!u || target(&to, path) < 0) {
		free(u);
		return error_errno(err, -ENOMEM, "%s", path);
	}
	u->http = ENVD_HTTP_INIT;
	snprintf(u->path, sizeof(u->path), "%s", path);
	int r = envd_http_open(&u->http, e, "PUT", buf_cstr(&to), "Content-Type: application/x-tar\r\n", -1, err);
	if (r < 0)
		envd_upload_abort(u);
	else
		*ret = u;
	return r;
}

/* Its answer before the end of what we send: why it does not want more. */
static int refused_early(struct envd_upload *u, struct error *err)
{
	struct error why = {0};
	if (envd_http_answer(&u->http, &why) < 0)
		return err->code;
	return envd_http_refused(&u->http, u->path, err);
}

static int send_chunk(struct envd_upload *u, struct error *err)
{
	char size[24];
	struct error local = {0};
	int n = snprintf(size, sizeof(size), "%zx\r\n", buf_len(&u->chunk));
	int r = envd_http_send(&u->http, str_n(size, (size_t)n), &local);
	if (r == 0)
		r = envd_http_send(&u->http, buf_str(&u->chunk), &local);
	if (r == 0)
		r = envd_http_send(&u->http, STR("\r\n"), &local);
	buf_clear(&u->chunk);
	if (r == 0)
		return 0;
	r = refused_early(u, &local);
	return error_set(err, local.code, local.status, "%s", local.message);
}

int envd_upload_write(struct envd_upload *u, const void *p, size_t n, struct error *err)
{
	if (buf_add(&u->chunk, p, n) < 0)
		return error_errno(err, -ENOMEM, "%s", u->path);
	return buf_len(&u->chunk) >= CHUNK ? send_chunk(u, err) : 0;
}

int envd_upload_finish(struct envd_upload *u, struct error *err)
{
	int r = buf_len(&u->chunk) ? send_chunk(u, err) : 0;
	struct error local = {0};
	if (r == 0 && envd_http_send(&u->http, STR("0\r\n\r\n"), &local) < 0) {
		refused_early(u, &local);
		r = error_set(err, local.code, local.status, "%s", local.message);
	} else if (r == 0) {
		r = envd_http_answer(&u->http, err);
		if (r == 0 && (u->http.status < 200 || u->http.status > 299))
			r = envd_http_refused(&u->http, u->path, err);
	}
	envd_upload_abort(u);
	return r;
}

void envd_upload_abort(struct envd_upload *u)
{
	if (!u)
		return;
	envd_http_close(&u->http);
	buf_done(&u->chunk);
	free(u);
}
