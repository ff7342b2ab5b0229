#include "base/cleanup.h"
#include "guest/files_call.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

/* By extension; the rest is octets. Sniffing would only guess what a client can see for itself. */
static const struct {
	const char *extension, *type;
} TYPES[] = {
	{"avif", "image/avif"},
	{"bmp", "image/bmp"},
	{"c", "text/plain; charset=utf-8"},
	{"css", "text/css; charset=utf-8"},
	{"csv", "text/csv; charset=utf-8"},
	{"gif", "image/gif"},
	{"gz", "application/gzip"},
	{"h", "text/plain; charset=utf-8"},
	{"htm", "text/html; charset=utf-8"},
	{"html", "text/html; charset=utf-8"},
	{"ico", "image/x-icon"},
	{"jpeg", "image/jpeg"},
	{"jpg", "image/jpeg"},
	{"js", "text/javascript; charset=utf-8"},
	{"json", "application/json"},
	{"log", "text/plain; charset=utf-8"},
	{"md", "text/markdown; charset=utf-8"},
	{"mjs", "text/javascript; charset=utf-8"},
	{"mp3", "audio/mpeg"},
	{"mp4", "video/mp4"},
	{"pdf", "application/pdf"},
	{"png", "image/png"},
	{"py", "text/x-python; charset=utf-8"},
	{"sh", "text/x-sh; charset=utf-8"},
	{"svg", "image/svg+xml"},
	{"tar", "application/x-tar"},
	{"txt", "text/plain; charset=utf-8"},
	{"wasm", "application/wasm"},
	{"wav", "audio/wav"},
	{"webm", "video/webm"},
	{"webp", "image/webp"},
	{"xml", "text/xml; charset=utf-8"},
	{"zip", "application/zip"},
};

static const char *type_of(struct str name)
{
	for (size_t i = name.n; i > 0; i--) {
		if (name.p[i - 1] != '.')
			continue;
		struct str extension = str_from(name, i);
		for (size_t k = 0; k < ARRAY_SIZE(TYPES); k++) {
			if (str_eq_nocase(extension, str_of(TYPES[k].extension)))
				return TYPES[k].type;
		}
		break;
	}
	return "application/octet-stream";
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

static int parse_http_date(struct str s, time_t *ret)
{
	char text[64];
	struct tm tm = {0};
	if (s.n >= sizeof(text))
		return -EINVAL;
	memcpy(text, s.p, s.n);
	text[s.n] = '\0';
	const char *end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
	if (!end || *end)
		return -EINVAL;
	*ret = timegm(&tm);
	return 0;
}

/* The status that the preconditions of RFC 9110 §13.2.2 ask for, 0 = go on. There are no entity tags here:
 * none matches, "*" does. */
static int precondition(const struct http_head *h, time_t modified)
{
	time_t t;
	const struct http_header *match = http_find(h, "If-Match"),
				 *none_match = http_find(h, "If-None-Match");
	if (match ? !str_is(match->value, "*")
		  : parse_http_date(http_value(h, "If-Unmodified-Since"), &t) == 0 && modified > t)
		return 412;
	if (none_match ? str_is(none_match->value, "*")
		       : parse_http_date(http_value(h, "If-Modified-Since"), &t) == 0 && modified <= t)
		return 304;
	return 0;
}

/* True when a weight is given and zero: ";q=0", ";q=0.000". */
static bool is_refused(struct str parameters)
{
	struct str value;
	parameters = str_trim(parameters);
	if (parameters.n < 3 || (parameters.p[0] | 0x20) != 'q' || parameters.p[1] != '=')
		return false;
	value = str_from(parameters, 2);
	for (size_t i = 0; i < value.n; i++) {
		if (value.p[i] != '0' && value.p[i] != '.')
			return false;
	}
	return true;
}

/* Answers are never compressed (that comes with gzip downloads): only a client that refuses the identity
 * cannot be served. */
static bool accepts_identity(const struct http_head *h)
{
	bool any_refused = false;
	for (size_t i = 0; i < h->n_headers; i++) {
		if (!str_eq_nocase(h->headers[i].name, STR("Accept-Encoding")))
			continue;
		for (struct str rest = h->headers[i].value, one; rest.n;) {
			one = rest;
			if (!str_cut(rest, ',', &one, &rest))
				rest = str_n("", 0);
			struct str coding = one, parameters = str_n("", 0);
			str_cut(one, ';', &coding, &parameters);
			coding = str_trim(coding);
			if (str_eq_nocase(coding, STR("identity")))
				return !is_refused(parameters);
			if (str_is(coding, "*"))
				any_refused = is_refused(parameters);
		}
	}
	return !any_refused;
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

/*
 * st_size lies for files that the kernel makes up while they are read: 0 in /proc (e2b.md F.63), a whole page
 * in /sys. So whatever fits into a buffer is read first and announced as it was read, and a size of 0 means
 * unknown.
 */
static int send_file(
	struct files_call *c, int fd, const struct stat *st, const char *path, const char *headers)
{
	if (st->st_size <= FILES_BUFFER) {
		cleanup_free char *buffer = malloc(FILES_BUFFER);
		if (!buffer)
			return -ENOMEM;
		ssize_t got = read_start(fd, buffer, FILES_BUFFER);
		if (got < 0)
			return files_fail_errno(c, (int)got, "cannot read", path);
		if (got == FILES_BUFFER && st->st_size == 0)
			return send_unknown(c, fd, buffer, (size_t)got, headers);
		/* One that grew meanwhile is sent as it was when it was opened. */
		if (st->st_size && got > st->st_size)
			got = st->st_size;
		return files_respond(c, 200, NULL, headers, str_n(buffer, (size_t)got));
	}
	int r = files_start(c, 200, headers, HTTP_BODY_LENGTH, (uint64_t)st->st_size);
	if (r < 0 || str_is(c->head.method, "HEAD"))
		return r;
	return files_send_file(c, fd, (uint64_t)st->st_size);
}

/* Without waiting for a writer of a FIFO, and without taking a terminal; nothing but regular files is opened
 * at all. */
static int open_regular(struct files_call *c, const char *path, struct stat *ret_st)
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

/* Range is not served yet: the whole file is a valid answer to it (RFC 9110 §14.2), and Accept-Ranges says
 * so. */
int files_download(struct files_call *c)
{
	cleanup_buf struct buf path = BUF_INIT;
	int r = query_path(c, &path);
	if (r < 0)
		return r;
	if (!accepts_identity(&c->head))
		return files_fail(c, 406,
			"error parsing Accept-Encoding: no acceptable encoding found, supported: [identity]");
	struct stat st;
	cleanup_fd int fd = open_regular(c, buf_cstr(&path), &st);
	if (fd < 0)
		return fd;

	char date[64];
	cleanup_buf struct buf headers = BUF_INIT;
	struct str name = files_base_name(buf_str(&path));
	buf_addf(&headers, "Vary: Accept-Encoding\r\nAccept-Ranges: none\r\n");
	if (http_date(date, st.st_mtime)[0])
		buf_addf(&headers, "Last-Modified: %s\r\n", date);
	int status = precondition(&c->head, st.st_mtime);
	if (status == 304)
		return buf_cstr(&headers) ? files_respond(c, 304, NULL, buf_cstr(&headers), str_n("", 0))
					  : -ENOMEM;
	if (status)
		return files_fail(c, status, "precondition failed: path '%s' was modified", buf_cstr(&path));
	buf_addf(&headers, "Content-Type: %s\r\n", type_of(name));
	add_disposition(&headers, name);
	return headers.failed || !buf_cstr(&headers)
		       ? -ENOMEM
		       : send_file(c, fd, &st, buf_cstr(&path), buf_cstr(&headers));
}
