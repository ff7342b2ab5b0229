#include "base/cleanup.h"
#include "guest/files_call.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

/* By extension; the rest is octets. Sniffing would only guess what a client can see for itself. */
static const struct type {
	const char *extension, *type;
	bool packed; /* compressed already: another time costs and gains nothing */
} TYPES[] = {
	{"avif", "image/avif", true},
	{"bmp", "image/bmp"},
	{"c", "text/plain; charset=utf-8"},
	{"css", "text/css; charset=utf-8"},
	{"csv", "text/csv; charset=utf-8"},
	{"gif", "image/gif", true},
	{"gz", "application/gzip", true},
	{"h", "text/plain; charset=utf-8"},
	{"htm", "text/html; charset=utf-8"},
	{"html", "text/html; charset=utf-8"},
	{"ico", "image/x-icon"},
	{"jpeg", "image/jpeg", true},
	{"jpg", "image/jpeg", true},
	{"js", "text/javascript; charset=utf-8"},
	{"json", "application/json"},
	{"log", "text/plain; charset=utf-8"},
	{"md", "text/markdown; charset=utf-8"},
	{"mjs", "text/javascript; charset=utf-8"},
	{"mp3", "audio/mpeg", true},
	{"mp4", "video/mp4", true},
	{"pdf", "application/pdf"},
	{"png", "image/png", true},
	{"py", "text/x-python; charset=utf-8"},
	{"sh", "text/x-sh; charset=utf-8"},
	{"svg", "image/svg+xml"},
	{"tar", "application/x-tar"},
	{"txt", "text/plain; charset=utf-8"},
	{"wasm", "application/wasm"},
	{"wav", "audio/wav"},
	{"webm", "video/webm", true},
	{"webp", "image/webp", true},
	{"xml", "text/xml; charset=utf-8"},
	{"zip", "application/zip", true},
};

static const struct type *type_of(struct str name)
{
	static const struct type octets = {"", "application/octet-stream", false};
	for (size_t i = name.n; i > 0; i--) {
		if (name.p[i - 1] != '.')
			continue;
		struct str extension = str_from(name, i);
		for (size_t k = 0; k < ARRAY_SIZE(TYPES); k++) {
			if (str_eq_nocase(extension, str_of(TYPES[k].extension)))
				return &TYPES[k];
		}
		break;
	}
	return &octets;
}

/*
 * RFC 6266: a quoted ASCII name for everybody and, when that cannot say it, filename* (RFC 8187), which needs
 * UTF-8. Control characters never reach the header.
 */
static void add_disposition(struct buf *to, struct str name)
{
	bool plain = true;
	buf_add_c(to, "Content-Disposition: inline; filename=\"");
	for (size_t i = 0; i < name.n; i++) {
		unsigned char ch = (unsigned char)name.p[i];
		bool shown = ch >= 0x20 && ch < 0x7f;
		/* A percent sign is decoded by some browsers even here. */
		plain = plain && shown && ch != '%' && ch != '"' && ch != '\\';
		if (shown && (ch == '"' || ch == '\\'))
			buf_add_c(to, "\\");
		buf_add(to, shown ? name.p + i : "_", 1);
	}
	buf_add_c(to, "\"");
	if (!plain && str_is_utf8(name)) {
		buf_add_c(to, "; filename*=UTF-8''");
		url_encode(to, name);
	}
	buf_add_c(to, "\r\n");
}

static char *http_date(char to[64], time_t t)
{
	struct tm tm;
	if (!gmtime_r(&t, &tm) || strftime(to, 64, "%a, %d %b %Y %H:%M:%S GMT", &tm) == 0)
		to[0] = '\0';
	return to;
}

/* Reads until the end of file or until the buffer is full; a source that has nothing now (/proc/kmsg) gives
 * -EAGAIN. */
static ssize_t read_start(int fd, char *p, size_t n)
{
	size_t got = 0;
	while (got < n) {
		ssize_t r = read(fd, p + got, n - got);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return got && errno == EAGAIN ? (ssize_t)got : -errno;
		if (r == 0)
			break;
		got += (size_t)r;
	}
	return (ssize_t)got;
}

/* A file of unknown length, whose first bytes are in the buffer: chunks until its end. */
static int send_unknown(struct files_call *c, int fd, char *buffer, size_t got, const char *headers)
{
	int r = files_start(c, 200, headers, HTTP_BODY_CHUNKED, 0);
	if (str_is(c->head.method, "HEAD"))
		return r;
	while (r == 0 && got) {
		r = files_send_chunk(c, str_n(buffer, got));
		ssize_t n = r == 0 ? read_start(fd, buffer, FILES_BUFFER) : 0;
		if (n < 0)
			return (int)n;
		got = (size_t)n;
	}
	return r == 0 ? files_send_chunk(c, str_n("", 0)) : r;
}

/* A download once its file is open. */
struct download {
	struct files_call *call;
	const char *path;
	int fd;
	struct stat st;
	bool gzip;
	struct buf headers; /* of a whole answer, whatever its coding */
};

static int add_range(struct buf *to, uint64_t from, uint64_t length, uint64_t size)
{
	return buf_addf(to, "Accept-Ranges: bytes\r\nContent-Range: bytes %llu-%llu/%llu\r\n",
		(unsigned long long)from, (unsigned long long)(from + length - 1), (unsigned long long)size);
}

static int out_of_range(struct download *d, uint64_t size)
{
	cleanup_buf struct buf headers = BUF_INIT;
	buf_addf(&headers, "Content-Range: bytes */%llu\r\n", (unsigned long long)size);
	const char *lines = buf_cstr(&headers);
	return lines ? files_respond(d->call, 416, "application/json", lines,
			       STR("{\"code\":416,\"message\":\"requested range not satisfiable\"}"))
		     : -ENOMEM;
}

/* The part of a file of known size that is asked for; its bytes when they were read already. */
static int send_plain(struct download *d, const char *bytes, uint64_t size)
{
	struct files_call *c = d->call;
	uint64_t from = 0, length = size;
	int r = files_range(&c->head, d->st.st_mtime, size, &from, &length);
	if (r < 0)
		return out_of_range(d, size);
	if (r > 0)
		add_range(&d->headers, from, length, size);
	else
		buf_add_c(&d->headers, "Accept-Ranges: bytes\r\n");
	const int status = r > 0 ? 206 : 200;
	const char *headers = buf_cstr(&d->headers);
	if (!headers)
		return -ENOMEM;
	if (bytes)
		return files_respond(c, status, NULL, headers, str_n(bytes + from, (size_t)length));
	r = files_start(c, status, headers, HTTP_BODY_LENGTH, length);
	return r < 0 || str_is(c->head.method, "HEAD") ? r : files_send_file(c, d->fd, from, length);
}

static void files_gzip_free_p(struct files_gzip **g)
{
	files_gzip_free(*g);
}

/* The first bytes of the file are in the buffer; it is read to its end, or to the size it had if it had one.
 */
static int send_gzip(struct download *d, char *buffer, size_t got)
{
	struct files_call *c = d->call;
	__attribute__((__cleanup__(files_gzip_free_p))) struct files_gzip *g = files_gzip_new();
	buf_add_c(&d->headers, "Accept-Ranges: bytes\r\nContent-Encoding: gzip\r\n");
	const char *headers = buf_cstr(&d->headers);
	if (!g || !headers)
		return -ENOMEM;
	uint64_t left = d->st.st_size ? (uint64_t)d->st.st_size - got : UINT64_MAX;
	int r = files_start(c, 200, headers, HTTP_BODY_CHUNKED, 0);
	if (r < 0 || str_is(c->head.method, "HEAD"))
		return r;
	for (;;) {
		bool last = got < FILES_BUFFER || left == 0;
		r = files_gzip_send(c, g, str_n(buffer, got), last);
		if (r < 0 || last)
			return r;
		ssize_t n = read_start(d->fd, buffer, (size_t)MIN(left, (uint64_t)FILES_BUFFER));
		if (n < 0)
			return (int)n;
		got = (size_t)n;
		left -= got;
	}
}

/*
 * st_size lies for files that the kernel makes up while they are read: 0 in /proc (e2b.md F.63), a whole page
 * in /sys. So whatever fits into a buffer is read first and announced as it was read, and a size of 0 means
 * unknown.
 */
static int send_file(struct download *d)
{
	if (!d->gzip && d->st.st_size > FILES_BUFFER)
		return send_plain(d, NULL, (uint64_t)d->st.st_size);
	cleanup_free char *buffer = malloc(FILES_BUFFER);
	if (!buffer)
		return -ENOMEM;
	ssize_t got = read_start(d->fd, buffer, FILES_BUFFER);
	if (got < 0)
		return files_fail_errno(d->call, (int)got, "cannot read", d->path);
	/* One that grew meanwhile is sent as it was when it was opened. */
	if (d->st.st_size && got > d->st.st_size)
		got = d->st.st_size;
	/* Nothing is nothing in any coding, and some clients look for Content-Length: 0 (e2b.md F.64). */
	if (d->gzip && got)
		return send_gzip(d, buffer, (size_t)got);
	if (got == FILES_BUFFER && d->st.st_size == 0) {
		const char *headers = buf_cstr(&d->headers);
		return headers ? send_unknown(d->call, d->fd, buffer, (size_t)got, headers) : -ENOMEM;
	}
	return send_plain(d, buffer, (uint64_t)got);
}

int files_open(struct files_call *c, const char *path, struct stat *ret_st)
{
	if (stat(path, ret_st) < 0)
		return files_fail_errno(c, errno, "error getting file info", path);
	if (S_ISDIR(ret_st->st_mode))
		return files_fail(c, 400, "path '%s' is a directory", path);
	if (!S_ISREG(ret_st->st_mode))
		return files_fail(c, 400, "path is not a regular file: %s", path);
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, ret_st) < 0)
		return files_fail_errno(c, errno, "error opening file", path);
	if (!S_ISREG(ret_st->st_mode))
		return files_fail(c, 400, "path is not a regular file: %s", path);
	return steal_fd(&fd);
}

static int query_path(struct files_call *c, struct buf *ret)
{
	cleanup_buf struct buf given = BUF_INIT;
	const char *why = NULL;
	int r = url_query_get(c->head.query, "path", &given);
	if (r < 0)
		return r == -ENOMEM ? r : files_fail(c, 400, "malformed query string");
	r = files_resolve(c, buf_str(&given), ret, &why);
	return r == -EINVAL ? files_fail(c, 400, "%s", why) : r;
}

/* A part of the file is a part of its own bytes, so who asks for one is better served with them. */
static int choose_encoding(struct download *d, const struct type *type)
{
	const struct http_head *h = &d->call->head;
	int r = files_encoding(h, type->packed || http_find(h, "Range"));
	d->gzip = r == FILES_GZIP;
	return r < 0 ? files_fail(d->call, 406,
			       "error parsing Accept-Encoding: no acceptable encoding found, supported: "
			       "[identity, gzip]")
		     : 0;
}

static int download(struct download *d, struct str name)
{
	struct files_call *c = d->call;
	char date[64];
	const struct type *type = type_of(name);
	int r = choose_encoding(d, type);
	if (r < 0)
		return r;
	d->fd = files_open(c, d->path, &d->st);
	if (d->fd < 0)
		return d->fd;
	buf_add_c(&d->headers, "Vary: Accept-Encoding\r\n");
	if (http_date(date, d->st.st_mtime)[0])
		buf_addf(&d->headers, "Last-Modified: %s\r\n", date);
	int status = files_precondition(&c->head, d->st.st_mtime);
	if (status == 304)
		return buf_cstr(&d->headers)
			       ? files_respond(c, 304, NULL, buf_cstr(&d->headers), str_n("", 0))
			       : -ENOMEM;
	if (status)
		return files_fail(c, status, "precondition failed: path '%s' was modified", d->path);
	buf_addf(&d->headers, "Content-Type: %s\r\n", type->type);
	add_disposition(&d->headers, name);
	return d->headers.failed ? -ENOMEM : send_file(d);
}

int files_download(struct files_call *c)
{
	cleanup_buf struct buf path = BUF_INIT;
	int r = query_path(c, &path);
	if (r < 0)
		return r;
	struct download d = {.call = c, .path = buf_cstr(&path), .fd = -1};
	r = download(&d, files_base_name(buf_str(&path)));
	cleanup_fd_p(&d.fd);
	buf_done(&d.headers);
	return r;
}
