#include "files_harness.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "base/sha256.h"
#include "guest/cors.h"
#include "io/envd_auth.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zlib.h>

static void bytes_come_as_they_are(void **state)
{
	char all[512];
	for (size_t i = 0; i < sizeof(all); i++)
		all[i] = (char)i;
	disk_write("/work/binary", str_n(all, sizeof(all)));
	struct reply *r = get("/work/binary");
	assert_status(r, 200);
	assert_body(r, str_n(all, sizeof(all)));
	assert_str(header(r, "Content-Type"), "application/octet-stream");
	assert_str(header(r, "Content-Length"), "512");
	assert_str(header(r, "Vary"), "Accept-Encoding");
	assert_int_equal(header(r, "Content-Encoding").n, 0);
	assert_true(r->keep_alive);
}

static void an_empty_file_has_length_0(void **state)
{
	disk_write("/work/empty", STR(""));
	struct reply *r = get("/work/empty");
	assert_status(r, 200);
	assert_str(header(r, "Content-Length"), "0");
	assert_body(r, STR(""));
}

static void large_files_are_sent_whole_around_the_buffer_size(void **state)
{
	const size_t sizes[] = {256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 5 * 1024 * 1024};
	char *bytes = malloc(5 * 1024 * 1024);
	for (size_t i = 0; i < 5 * 1024 * 1024; i++)
		bytes[i] = (char)(i * 7 + i / 251);
	for (size_t i = 0; i < 4; i++) {
		disk_write("/work/large", str_n(bytes, sizes[i]));
		struct reply *r = get("/work/large");
		assert_status(r, 200);
		assert_body(r, str_n(bytes, sizes[i]));
		assert_true(r->keep_alive);
	}
	free(bytes);
}

static void head_has_the_headers_and_no_body(void **state)
{
	disk_write("/work/a.json", STR("{}"));
	struct reply *r = ask("HEAD /files?path=/work/a.json HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_status(r, 200);
	assert_str(header(r, "Content-Length"), "2");
	assert_str(header(r, "Content-Type"), "application/json");
	assert_body(r, STR(""));
	assert_true(memcmp(r->wire.data + r->wire.end - 4, "\r\n\r\n", 4) == 0);
	disk_write("/work/sparse", STR(""));
	assert_int_equal(truncate("/work/sparse", 1 << 20), 0);
	r = ask("HEAD /files?path=/work/sparse HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_status(r, 200);
	assert_str(header(r, "Content-Length"), "1048576");
	assert_true(memcmp(r->wire.data + r->wire.end - 4, "\r\n\r\n", 4) == 0);
	assert_true(r->keep_alive);
}

/* e2b.md F.63 */
static void files_made_by_the_kernel_are_read_to_their_end(void **state)
{
	struct reply *r = get("/proc/version");
	assert_status(r, 200);
	assert_contains(buf_str(&r->body), "Linux version");
	r = get("/proc/kallsyms");
	assert_status(r, 200);
	assert_true(buf_len(&r->body) > 256 * 1024);
	assert_str(header(r, "Transfer-Encoding"), "chunked");
	assert_true(r->keep_alive);
	r = ask("HEAD /files?path=/proc/kallsyms HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_status(r, 200);
	assert_true(memcmp(r->wire.data + r->wire.end - 4, "\r\n\r\n", 4) == 0);
	r = ask("GET /files?path=/proc/kallsyms HTTP/1.0\r\n\r\n");
	assert_status(r, 200);
	assert_int_equal(header(r, "Transfer-Encoding").n, 0);
	assert_true(buf_len(&r->body) > 256 * 1024);
	assert_false(r->keep_alive);
	/* st_size says 4096. */
	r = get("/sys/kernel/uevent_seqnum");
	assert_status(r, 200);
	assert_true(buf_len(&r->body) > 0 && buf_len(&r->body) < 100);
}

/* cases.md 97 */
static void what_is_not_there_or_not_a_file_is_told(void **state)
{
	assert_failure(get("/work/nothing"), 404, "path '/work/nothing' does not exist");
	assert_failure(get("/etc/passwd/x"), 404, "path '/etc/passwd/x' does not exist");
	assert_failure(get("/work"), 400, "path '/work' is a directory");
	assert_failure(get(""), 400, "path '/root' is a directory");
	assert_int_equal(mkfifo("/work/fifo", 0644), 0);
	assert_failure(get("/work/fifo"), 400, "path is not a regular file: /work/fifo");
	assert_failure(get("/dev/zero"), 400, "not a regular file");
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/work/socket"};
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	close(fd);
	assert_failure(get("/work/socket"), 400, "not a regular file");
	symlink("circle", "/work/circle");
	assert_failure(get("/work/circle"), 400, "too many levels of symbolic links");
	char name[300] = "/work/";
	memset(name + 6, 'n', 256);
	assert_failure(get(name), 400, "file name too long");
	/* Refused or empty, but it must never wait for the kernel's next message. */
	struct reply *r = get("/proc/kmsg");
	assert_int_equal(r->result, 0);
	assert_true(r->head.status == 403 || r->head.status == 400 || r->head.status == 200);
	assert_failure(ask("GET /files?path=/work/a%%00b HTTP/1.1\r\nHost: x\r\n\r\n"), 400, "NUL");
	assert_failure(
		ask("GET /files?path=/work/a%%0 HTTP/1.1\r\nHost: x\r\n\r\n"), 400, "malformed query string");
	assert_failure(
		ask("DELETE /files?path=/work HTTP/1.1\r\nHost: x\r\n\r\n"), 405, "method not allowed");
	assert_failure(ask("GET /files/nothing HTTP/1.1\r\nHost: x\r\n\r\n"), 404, "");
}

static void links_are_followed(void **state)
{
	disk_write("/work/target", STR("through"));
	symlink("target", "/work/link");
	struct reply *r = get("/work/link");
	assert_status(r, 200);
	assert_body(r, STR("through"));
	assert_contains(header(r, "Content-Disposition"), "filename=\"link\"");
}

/* e2b.md B.3 */
static void paths_start_at_the_home_of_the_user(void **state)
{
	disk_write("/home/user/mine", STR("user"));
	disk_write("/root/mine", STR("root"));
	harness.user = "user";
	struct reply *r = get("mine");
	assert_body(r, STR("user"));
	assert_body(get("~/mine"), STR("user"));
	assert_body(get("~//mine"), STR("user"));
	assert_body(get("a/.././/x/../mine"), STR("user"));
	assert_body(get("../../../../../home/user/mine"), STR("user"));
	assert_failure(get("../x/../y"), 404, "path '/home/y' does not exist");
	assert_failure(get("~other/mine"), 400, "cannot expand user-specific home dir");
	assert_failure(get("~"), 400, "path '/home/user' is a directory");
	assert_failure(get("/a//b/../c"), 404, "path '/a//b/../c' does not exist");
	assert_body(ask("GET /files?path=mine&username=root HTTP/1.1\r\nHost: x\r\n\r\n"), STR("root"));
	assert_body(ask("GET /files?path=mine&username=1000 HTTP/1.1\r\nHost: x\r\n\r\n"), STR("user"));
	assert_failure(ask("GET /files?path=mine&username=gh%%6fst HTTP/1.1\r\nHost: x\r\n\r\n"), 401,
		"error looking up user 'ghost': user: unknown user ghost");
	harness.workdir = "/work";
	assert_failure(get(""), 400, "path '/work' is a directory");
	assert_body(get("mine"), STR("user"));
	harness.user = NULL;
	assert_body(get("mine"), STR("root"));
}

static void plus_and_percent_20_are_spaces_in_a_query(void **state)
{
	disk_write("/work/a b+c", STR("found"));
	assert_body(ask("GET /files?path=/work/a+b%%2Bc HTTP/1.1\r\nHost: x\r\n\r\n"), STR("found"));
	assert_body(ask("GET /files?path=/work/a%%20b%%2bc HTTP/1.1\r\nHost: x\r\n\r\n"), STR("found"));
}

/* cases.md 92 */
static void a_name_cannot_inject_a_header(void **state)
{
	static const struct {
		const char *name, *disposition;
	} cases[] = {
		{"plain.txt", "inline; filename=\"plain.txt\""},
		{"a b.txt", "inline; filename=\"a b.txt\""},
		{"a\"b.txt", "inline; filename=\"a\\\"b.txt\"; filename*=UTF-8''a%22b.txt"},
		{"a\\b", "inline; filename=\"a\\\\b\"; filename*=UTF-8''a%5Cb"},
		{"a%41", "inline; filename=\"a%41\"; filename*=UTF-8''a%2541"},
		{"\xc3\xa9.txt", "inline; filename=\"__.txt\"; filename*=UTF-8''%C3%A9.txt"},
		{"a\r\nX: y", "inline; filename=\"a__X: y\"; filename*=UTF-8''a%0D%0AX%3A%20y"},
		{"\xff\xfe", "inline; filename=\"__\""},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char path[64];
		snprintf(path, sizeof(path), "/work/%s", cases[i].name);
		disk_write(path, STR("x"));
		struct reply *r = get(path);
		assert_status(r, 200);
		assert_str(header(r, "Content-Disposition"), cases[i].disposition);
		assert_null(http_find(&r->head, "X"));
		assert_body(r, STR("x"));
	}
}

static void types_come_from_the_extension(void **state)
{
	disk_write("/work/page.HTML", STR("<p>"));
	assert_str(header(get("/work/page.HTML"), "Content-Type"), "text/html; charset=utf-8");
	disk_write("/work/archive.tar.gz", STR("x"));
	assert_str(header(get("/work/archive.tar.gz"), "Content-Type"), "application/gzip");
	disk_write("/work/txt", STR("x"));
	assert_str(header(get("/work/txt"), "Content-Type"), "application/octet-stream");
}

static void conditions_are_answered_by_the_date(void **state)
{
	disk_write("/work/dated", STR("x"));
	struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
	assert_int_equal(utimensat(AT_FDCWD, "/work/dated", times, 0), 0);
	const char *same = "Tue, 14 Nov 2023 22:13:20 GMT", *before = "Tue, 14 Nov 2023 22:13:19 GMT";
	struct reply *r = get("/work/dated");
	assert_str(header(r, "Last-Modified"), same);
	static const char request[] = "GET /files?path=/work/dated HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n";
	/* The two old forms of a date. */
	assert_int_equal(ask(request, "If-Modified-Since", "Tuesday, 14-Nov-23 22:13:20 GMT")->head.status, 304);
	assert_int_equal(ask(request, "If-Modified-Since", "Tue Nov 14 22:13:20 2023")->head.status, 304);
	r = ask(request, "If-Modified-Since", same);
	assert_int_equal(r->head.status, 304);
	assert_true(r->keep_alive);
	assert_int_equal(header(r, "Content-Length").n, 0);
	assert_status(ask(request, "If-Modified-Since", before), 200);
	assert_status(ask(request, "If-Modified-Since", "yesterday"), 200);
	assert_status(ask(request, "If-Unmodified-Since", same), 200);
	assert_failure(ask(request, "If-Unmodified-Since", before), 412, "modified");
	assert_status(ask(request, "If-None-Match", "\"x\""), 200);
	assert_int_equal(ask(request, "If-None-Match", "*")->head.status, 304);
	assert_failure(ask(request, "If-Match", "\"x\""), 412, "");
}

static struct reply *get_range(const char *path, const char *range)
{
	return ask("GET /files?path=%s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nRange: %s\r\n\r\n",
		path, range);
}

/* RFC 9110 §14.2; e2b.md F.70 */
static void one_range_is_served(void **state)
{
	disk_write("/work/ranged", STR("0123456789"));
	static const struct {
		const char *range, *body, *content_range;
	} cases[] = {
		{"bytes=2-3", "23", "bytes 2-3/10"},
		{"bytes=0-0", "0", "bytes 0-0/10"},
		{"bytes=7-", "789", "bytes 7-9/10"},
		{"bytes=7-99", "789", "bytes 7-9/10"},
		{"bytes=0-18446744073709551615", "0123456789", "bytes 0-9/10"},
		{"bytes=8-99999999999999999999999", "89", "bytes 8-9/10"},
		{"bytes=-99999999999999999999999", "0123456789", "bytes 0-9/10"},
		{"bytes=00000000000000000000000008-8", "8", "bytes 8-8/10"},
		{"bytes=-3", "789", "bytes 7-9/10"},
		{"bytes=-99", "0123456789", "bytes 0-9/10"},
		{"Bytes= 9-9 ", "9", "bytes 9-9/10"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct reply *r = get_range("/work/ranged", cases[i].range);
		assert_int_equal(r->head.status, 206);
		assert_body(r, str_of(cases[i].body));
		assert_str(header(r, "Content-Range"), cases[i].content_range);
		assert_int_equal(header(r, "Content-Encoding").n, 0);
		assert_str(header(r, "Accept-Ranges"), "bytes");
		assert_true(r->keep_alive);
	}
	static const char *const whole[] = {"bytes=0-1,3-4", "bytes=3-2", "bytes=a-b", "bytes=-",
		"bytes=", "lines=0-1", "bytes", "bytes=1", "bytes=+1-2"};
	for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
		struct reply *r = get_range("/work/ranged", whole[i]);
		assert_status(r, 200);
		assert_body(r, STR("0123456789"));
	}
	static const char *const outside[] = {"bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"};
	for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		struct reply *r = get_range("/work/ranged", outside[i]);
		assert_failure(r, 416, "not satisfiable");
		assert_str(header(r, "Content-Range"), "bytes */10");
		assert_true(r->keep_alive);
	}
	struct reply *r =
		ask("HEAD /files?path=/work/ranged HTTP/1.1\r\nHost: x\r\nRange: bytes=2-3\r\n\r\n");
	assert_status(r, 200);
	assert_str(header(r, "Content-Length"), "10");
	disk_write("/work/ranged", STR(""));
	assert_status(get_range("/work/ranged", "bytes=0-"), 200);
}

static void a_range_of_a_large_file_is_not_read_around(void **state)
{
	disk_write("/work/large", STR(""));
	assert_int_equal(truncate("/work/large", 5LL << 30), 0);
	int fd = open("/work/large", O_WRONLY);
	assert_int_equal(pwrite(fd, "far", 3, 4LL << 30), 3);
	close(fd);
	struct reply *r = get_range("/work/large", "bytes=4294967296-4294967298");
	assert_int_equal(r->head.status, 206);
	assert_body(r, STR("far"));
	assert_str(header(r, "Content-Range"), "bytes 4294967296-4294967298/5368709120");
	unlink("/work/large");
}

static void if_range_gives_the_whole_of_another_version(void **state)
{
	disk_write("/work/dated", STR("0123456789"));
	struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
	assert_int_equal(utimensat(AT_FDCWD, "/work/dated", times, 0), 0);
	static const char request[] =
		"GET /files?path=/work/dated HTTP/1.1\r\nHost: x\r\nRange: bytes=1-2\r\n"
		"If-Range: %s\r\n\r\n";
	assert_int_equal(ask(request, "Tue, 14 Nov 2023 22:13:20 GMT")->head.status, 206);
	assert_status(ask(request, "Tue, 14 Nov 2023 22:13:21 GMT"), 200);
	assert_status(ask(request, "\"tag\""), 200);
	assert_int_equal(ask("GET /files?path=/work/dated HTTP/1.1\r\nHost: x\r\nRange: bytes=1-2\r\n"
			     "If-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT\r\n\r\n")
				 ->head.status,
		304);
}

static const char accepting[] = "%s /files?path=%s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: %s\r\n\r\n";

/* The answer is a whole gzip stream of these bytes. */
static void assert_packed(const struct reply *r, struct str wanted)
{
	assert_status(r, 200);
	assert_str(header(r, "Content-Encoding"), "gzip");
	assert_str(header(r, "Transfer-Encoding"), "chunked");
	assert_str(header(r, "Vary"), "Accept-Encoding");
	assert_int_equal(header(r, "Content-Length").n, 0);
	assert_true(r->keep_alive);
	cleanup_free char *bytes = malloc(wanted.n + 1);
	z_stream z = {.next_in = (unsigned char *)r->body.data + r->body.start,
		.avail_in = (uInt)buf_len(&r->body),
		.next_out = (unsigned char *)bytes,
		.avail_out = (uInt)wanted.n + 1};
	assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
	assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
	assert_int_equal(z.avail_in, 0);
	assert_int_equal(z.total_out, wanted.n);
	assert_memory_equal(bytes, wanted.p, wanted.n);
	inflateEnd(&z);
}

/* e2b.md B.3 */
static void gzip_is_for_who_names_it(void **state)
{
	disk_write("/work/plain", STR("identity"));
	static const char *const packed[] = {"gzip, deflate", "gzip", "gzip, deflate, br, zstd", "GZIP",
		"gzip;q=1.0, identity; q=0.5, *;q=0", "gzip;q=0.001", "gzip, identity;q=0", "*, identity;q=0",
		"gzip, *;q=0.000", "x-gzip", "identity;q=0.5,gzip;q=0.5"};
	for (size_t i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
		assert_packed(ask(accepting, "GET", "/work/plain", packed[i]), STR("identity"));
	static const char *const plain[] = {"", "identity", "*", "br, *;q=0.1", "br", "deflate", "gzip;q=0",
		"gzip;q=0.5, identity;q=0.6", "gzip ; q=0.000 , identity", "gzipped"};
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		struct reply *r = ask(accepting, "GET", "/work/plain", plain[i]);
		assert_status(r, 200);
		assert_body(r, STR("identity"));
		assert_int_equal(header(r, "Content-Encoding").n, 0);
		assert_str(header(r, "Content-Length"), "8");
	}
	static const char *const neither[] = {
		"identity;q=0", "*;q=0", "gzip;q=0, identity;q=0", "br, *;q=0.0"};
	for (size_t i = 0; i < sizeof(neither) / sizeof(neither[0]); i++)
		assert_failure(ask(accepting, "GET", "/work/plain", neither[i]), 406,
			"error parsing Accept-Encoding");
	disk_write("/work/a.png", STR("packed already"));
	assert_body(ask(accepting, "GET", "/work/a.png", "gzip"), STR("packed already"));
	assert_packed(ask(accepting, "GET", "/work/a.png", "gzip, identity;q=0"), STR("packed already"));
	struct reply *r = ask(accepting, "HEAD", "/work/plain", "gzip");
	assert_status(r, 200);
	assert_str(header(r, "Content-Encoding"), "gzip");
	assert_true(memcmp(r->wire.data + r->wire.end - 4, "\r\n\r\n", 4) == 0);
	r = ask("GET /files?path=/work/plain HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
	assert_status(r, 200);
	assert_false(r->keep_alive);
	assert_int_equal(header(r, "Transfer-Encoding").n, 0);
}

/* e2b.md F.63, F.64 */
static void any_size_is_packed_whole(void **state)
{
	const size_t sizes[] = {1, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 512 * 1024, 5 * 1024 * 1024};
	cleanup_free char *bytes = malloc(5 * 1024 * 1024);
	unsigned x = 1;
	for (size_t i = 0; i < 5 * 1024 * 1024; i++)
		bytes[i] = (char)((x = x * 1103515245 + 12345) >> 16);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		disk_write("/work/large", str_n(bytes, sizes[i]));
		struct reply *r = ask(accepting, "GET", "/work/large", "gzip");
		assert_packed(r, str_n(bytes, sizes[i]));
		assert_true(r->grown_kib < 8192);
	}
	disk_write("/work/large", STR(""));
	struct reply *r = ask(accepting, "GET", "/work/large", "gzip");
	assert_status(r, 200);
	assert_str(header(r, "Content-Length"), "0");
	r = get("/proc/version");
	cleanup_buf struct buf version = BUF_INIT;
	buf_add_str(&version, buf_str(&r->body));
	assert_packed(ask(accepting, "GET", "/proc/version", "gzip"), buf_str(&version));
	r = ask(accepting, "GET", "/proc/kallsyms", "gzip");
	assert_status(r, 200);
	assert_str(header(r, "Content-Encoding"), "gzip");
	assert_true(r->complete);
	assert_failure(ask(accepting, "GET", "/work/nothing", "gzip"), 404, "does not exist");
}

/* What envd_auth_refusal() says about a request with these headers. */
static int refusal(const char *token, const char *line, const char *headers, const char **ret_message)
{
	char text[1024];
	static struct http_head head;
	int status = 0, n = snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: x\r\n%s\r\n", line, headers);
	*ret_message = "";
	assert_true(http_parse_request(str_n(text, (size_t)n), &head, &status) > 0);
	return envd_auth_refusal(&head, token ? str_of(token) : STR(""), ret_message);
}

/* e2b.md B.1 */
static void secured_sandboxes_want_their_token(void **state)
{
	static const struct {
		const char *line, *headers;
		int status;
		const char *message;
	} cases[] = {
		{"GET /files?path=x", "X-Access-Token: correct\r\n", 0, ""},
		{"GET /files?path=x&signature=v1_x", "x-access-token: correct\r\n", 0, ""},
		{"GET /files?path=x", "X-Access-Token: wrong\r\n", 401,
			"access token present in header but does not match"},
		{"GET /files?path=x&signature=v1_x", "X-Access-Token: correc\r\n", 401,
			"access token present in header but does not match"},
		{"GET /files?path=x", "", 401, "missing signature query parameter"},
		{"GET /files?path=x&signature=v1_x", "", 401, "invalid signature"},
		{"GET /files?path=x&signature=v1_x", "X-Access-Token:\r\n", 401, "invalid signature"},
		{"GET /files?signature=%zz", "", 400, "malformed query string"},
		{"POST /files?path=x", "", 401, "missing signature query parameter"},
		{"POST /files/compose", "", 401,
			"unauthorized access, please provide a valid access token or method signing if "
			"supported"},
		{"POST /filesystem.Filesystem/Stat", "", 401,
			"unauthorized access, please provide a valid access token or method signing if "
			"supported"},
		{"POST /filesystem.Filesystem/Stat?signature=x", "X-Access-Token: correct2\r\n", 401,
			"unauthorized access, please provide a valid access token or method signing if "
			"supported"},
	};
	const char *message;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(
			refusal("correct", cases[i].line, cases[i].headers, &message), cases[i].status);
		assert_string_equal(message, cases[i].message);
		assert_int_equal(refusal(NULL, cases[i].line, cases[i].headers, &message), 0);
	}
}

/* A signature over this text, as the clients compute it. */
static const char *sign(const char *fmt, ...)
{
	static char text[1024];
	cleanup_buf struct buf raw = BUF_INIT, plain = BUF_INIT, encoded = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&raw, fmt, ap);
	va_end(ap);
	unsigned char digest[SHA256_SIZE];
	sha256(buf_str(&raw), digest);
	base64_encode(&plain, str_n(digest, sizeof(digest)));
	plain.end--; /* one '=' behind 32 bytes */
	url_encode(&encoded, buf_str(&plain));
	snprintf(text, sizeof(text), "v1_%s", buf_cstr(&encoded));
	return text;
}

/* What is said to "METHOD /files?query" with that signature, in a sandbox whose token is "correct"; "" =
 * served. */
static const char *signed_by(const char *line, const char *signature)
{
	char with[512];
	const char *message;
	snprintf(with, sizeof(with), "%s&signature=%s", line, signature);
	int status = refusal("correct", with, "", &message);
	assert_true(status == (*message ? 401 : 0));
	return message;
}

/* e2b.md B.1, its published vector; the URL is as the SDK makes it. */
static void a_signed_url_needs_no_header(void **state)
{
	static const char token[] = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
	static const char query[] = "/files?username=user&path=hello.txt&signature="
				    "v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";
	static const struct {
		const char *method, *headers;
		int status;
		const char *message;
	} cases[] = {
		{"GET", "", 0, ""},
		{"HEAD", "", 0, ""},
		{"POST", "Content-Length: 0\r\n", 401, "invalid signature"},
		/* A wrong header is not mended by a signature. */
		{"GET", "X-Access-Token: wrong\r\n", 401,
			"access token present in header but does not match"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char line[256];
		const char *message;
		snprintf(line, sizeof(line), "%s %s", cases[i].method, query);
		assert_int_equal(refusal(token, line, cases[i].headers, &message), cases[i].status);
		assert_string_equal(message, cases[i].message);
	}
}

/* cases.md 91 */
static void what_is_signed_cannot_be_altered(void **state)
{
	/* F.60, F.61: over the decoded text, and without a user. */
	assert_string_equal(signed_by("GET /files?path=/work/a+b", sign("/work/a b:read::correct")), "");
	assert_string_equal(
		signed_by("GET /files?path=%2Fwork%2Fa%20b", sign("/work/a b:read::correct")), "");
	assert_string_equal(signed_by("GET /files?path=f", sign("f:read::correct")), "");
	assert_string_equal(signed_by("GET /files?username=&path=f", sign("f:read::correct")), "");
	assert_string_equal(signed_by("GET /files?a=b", sign(":read::correct")), "");
	assert_string_equal(signed_by("POST /files?path=f&username=u", sign("f:write:u:correct")), "");

	static const char wrong[] = "invalid signature";
	assert_string_equal(signed_by("GET /files?path=f", sign("/work/a b:read::correct")), wrong);
	assert_string_equal(signed_by("GET /files?path=f", sign("f:write::correct")), wrong);
	assert_string_equal(signed_by("POST /files?path=f", sign("f:read::correct")), wrong);
	assert_string_equal(signed_by("GET /files?path=f", sign("f:read::wrong")), wrong);
	assert_string_equal(
		signed_by("GET /files?path=f&username=other", sign("f:read:user:correct")), wrong);
	assert_string_equal(signed_by("GET /files?path=f&username=user", sign("f:read::correct")), wrong);
	assert_string_equal(signed_by("GET /files?path=f", ""), wrong);
	assert_string_equal(signed_by("GET /files?path=f", "v2_x"), wrong);
	/* Only /files is opened by one. */
	assert_contains(str_of(signed_by("POST /files/compose?path=f", sign("f:write::correct"))),
		"unauthorized access");
	assert_contains(
		str_of(signed_by("POST /filesystem.Filesystem/Stat?path=f", sign("f:write::correct"))),
		"unauthorized access");
}

/* cases.md 91 */
static void an_expiry_is_read_after_the_signature(void **state)
{
	static const char *const past[] = {"0", "-1", "1700000000", "-9223372036854775808"};
	char line[128];
	for (size_t i = 0; i < ARRAY_SIZE(past); i++) {
		snprintf(line, sizeof(line), "GET /files?path=f&signature_expiration=%s", past[i]);
		assert_string_equal(
			signed_by(line, sign("f:read::correct:%s", past[i])), "signature is already expired");
		assert_string_equal(signed_by(line, sign("f:read::correct")), "invalid signature");
	}
	static const char *const future = "GET /files?path=f&signature_expiration=4102444800";
	assert_string_equal(signed_by(future, sign("f:read::correct:4102444800")), "");
	assert_string_equal(signed_by(future, sign("f:read::correct:4102444801")), "invalid signature");
	assert_string_equal(
		signed_by("GET /files?path=f", sign("f:read::correct:4102444800")), "invalid signature");
	static const char *const junk[] = {"", "abc", "1.5", "%2B1", "9223372036854775808"};
	for (size_t i = 0; i < ARRAY_SIZE(junk); i++) {
		const char *message;
		snprintf(line, sizeof(line), "GET /files?path=f&signature=%s&signature_expiration=%s",
			sign("f:read::correct"), junk[i]);
		assert_int_equal(refusal("correct", line, "", &message), 400);
		assert_string_equal(message, "invalid signature_expiration: want unix seconds");
	}
}

/* e2b.md F.71 */
static void pages_of_other_origins_may_read(void **state)
{
	disk_write("/work/f", STR("x"));
	struct reply *r = ask("GET /files?path=/work/f HTTP/1.1\r\nHost: x\r\nOrigin: https://page\r\n\r\n");
	assert_status(r, 200);
	assert_str(header(r, "Access-Control-Allow-Origin"), "*");
	assert_contains(header(r, "Access-Control-Expose-Headers"), "Content-Range");
	r = ask("GET /files?path=/work/none HTTP/1.1\r\nHost: x\r\norigin: null\r\n\r\n");
	assert_failure(r, 404, "");
	assert_str(header(r, "Access-Control-Allow-Origin"), "*");
	assert_int_equal(header(get("/work/f"), "Access-Control-Allow-Origin").n, 0);

	static struct http_head head;
	int status;
	cleanup_buf struct buf lines = BUF_INIT;
	struct str request =
		STR("OPTIONS /files?path=x&signature=y HTTP/1.1\r\nHost: x\r\nOrigin: https://page\r\n"
		    "Access-Control-Request-Method: POST\r\n"
		    "Access-Control-Request-Headers: authorization,x-metadata-a\r\n\r\n");
	assert_true(http_parse_request(request, &head, &status) > 0);
	cors_add_preflight(&head, &lines);
	assert_contains(buf_str(&lines), "Access-Control-Allow-Headers: authorization,x-metadata-a\r\n");
	assert_contains(
		buf_str(&lines), "Access-Control-Allow-Methods: HEAD, GET, POST, PUT, PATCH, DELETE\r\n");
	assert_contains(buf_str(&lines), "Access-Control-Max-Age: 7200\r\n");
}

static void shrink(void)
{
	assert_int_equal(truncate("/work/changing", 100), 0);
}

/* cases.md: a length once announced is kept or the connection is cut. */
static void a_file_that_shrinks_is_cut(void **state)
{
	disk_write("/work/changing", STR(""));
	assert_int_equal(truncate("/work/changing", 64 << 20), 0);
	harness.call = shrink;
	harness.call_at = 1000;
	struct reply *r = get("/work/changing");
	assert_int_equal(r->head.status, 200);
	assert_int_equal(r->result, -EPIPE);
	assert_false(r->complete);
	assert_false(r->keep_alive);
}

static void grow(void)
{
	int fd = open("/work/changing", O_WRONLY | O_APPEND);
	assert_int_equal(write(fd, "more", 4), 4);
	close(fd);
}

static void a_file_that_grows_is_sent_as_announced(void **state)
{
	disk_write("/work/changing", STR(""));
	assert_int_equal(truncate("/work/changing", 8 << 20), 0);
	harness.call = grow;
	harness.call_at = 1000;
	struct reply *r = get("/work/changing");
	assert_status(r, 200);
	assert_int_equal(buf_len(&r->body), 8 << 20);
	assert_true(r->keep_alive);
}

static void what_follows_on_the_connection_is_given_back(void **state)
{
	disk_write("/work/first", STR("1"));
	harness.rest = 1000;
	struct reply *r =
		ask("GET /files?path=/work/first HTTP/1.1\r\nHost: x\r\n\r\nGET /next HTTP/1.1\r\n");
	assert_status(r, 200);
	assert_true(r->keep_alive);
	assert_str(buf_str(&r->rest), "GET /next HTTP/1.1\r\n");
	r = ask("GET /files?path=/work/first HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	assert_status(r, 200);
	assert_false(r->keep_alive);
	assert_str(header(r, "Connection"), "close");
	r = ask("GET /files?path=/work/none HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_failure(r, 404, "");
	assert_true(r->keep_alive);
	r = ask("GET /files?path=/work/first HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	assert_status(r, 200);
	assert_true(!r->keep_alive || str_is(header(r, "Connection"), "keep-alive"));
}

int main(void)
{
	harness_enter();
#define T(f) cmocka_unit_test_setup(f, harness_reset)
	const struct CMUnitTest tests[] = {
		T(bytes_come_as_they_are),
		T(an_empty_file_has_length_0),
		T(large_files_are_sent_whole_around_the_buffer_size),
		T(head_has_the_headers_and_no_body),
		T(files_made_by_the_kernel_are_read_to_their_end),
		T(what_is_not_there_or_not_a_file_is_told),
		T(links_are_followed),
		T(paths_start_at_the_home_of_the_user),
		T(plus_and_percent_20_are_spaces_in_a_query),
		T(a_name_cannot_inject_a_header),
		T(types_come_from_the_extension),
		T(conditions_are_answered_by_the_date),
		T(one_range_is_served),
		T(a_range_of_a_large_file_is_not_read_around),
		T(if_range_gives_the_whole_of_another_version),
		T(gzip_is_for_who_names_it),
		T(any_size_is_packed_whole),
		T(secured_sandboxes_want_their_token),
		T(a_signed_url_needs_no_header),
		T(what_is_signed_cannot_be_altered),
		T(an_expiry_is_read_after_the_signature),
		T(pages_of_other_origins_may_read),
		T(a_file_that_shrinks_is_cut),
		T(a_file_that_grows_is_sent_as_announced),
		T(what_follows_on_the_connection_is_given_back),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	harness_leave();
	return r;
}
