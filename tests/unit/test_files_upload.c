#include "files_harness.h"

#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <zlib.h>
#include <unistd.h>

static const char RAW_HEAD[] =
	"POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n%s\r\n";

/* A chunked raw upload with these further body bytes as they are. */
static struct reply *put_chunked(const char *path, struct str wire)
{
	cleanup_buf struct buf request = BUF_INIT;
	buf_addf(&request, RAW_HEAD, path, "Transfer-Encoding: chunked\r\n");
	buf_add_str(&request, wire);
	return ask_bytes(buf_str(&request));
}

static void raw_bytes_arrive_as_they_were_sent(void **state)
{
	char all[256];
	for (size_t i = 0; i < sizeof(all); i++)
		all[i] = (char)i;
	struct reply *r = put("/work/raw", str_n(all, sizeof(all)));
	assert_status(r, 200);
	assert_str(header(r, "Content-Type"), "application/json");
	assert_body(r, STR("[{\"name\":\"raw\",\"path\":\"/work/raw\",\"type\":\"file\"}]"));
	assert_true(str_eq(disk_read("/work/raw"), str_n(all, sizeof(all))));
	assert_int_equal(disk_mode("/work/raw"), 0644);
	assert_true(r->keep_alive);
	r = put("/work/raw", STR(""));
	assert_status(r, 200);
	assert_str(disk_read("/work/raw"), "");
}

static void chunked_bodies_may_be_cut_anywhere(void **state)
{
	struct str wire =
		STR("5\r\nhello\r\n1;ext=1\r\n \r\n0005\r\nworld\r\n0\r\nTrailer: x\r\n\r\nGET /next");
	for (size_t rest = 0; rest < wire.n - 9; rest++) {
		harness.rest = rest;
		harness.step = rest % 7 + 1;
		struct reply *r = put_chunked("/work/chunked", wire);
		assert_status(r, 200);
		assert_str(disk_read("/work/chunked"), "hello world");
		assert_true(r->keep_alive);
	}
	harness.rest = wire.n;
	assert_str(buf_str(&put_chunked("/work/chunked", wire)->rest), "GET /next");
}

static void a_form_names_its_files(void **state)
{
	cleanup_buf struct buf body = BUF_INIT;
	form_part(&body, "name=\"file\"; filename=\"/work/one\"", STR("first"));
	form_part(&body, "name=\"note\"", STR("ignored"));
	form_part(&body, "name=\"other\"; filename=\"/work/ignored\"", STR("ignored"));
	form_part(&body, "name=\"file\"; filename=\"sub/dir/two\"", STR(""));
	form_part(&body, "name=\"file\"; filename=\"/work/three\"", STR("\r\n--b\r\n-\r\n"));
	form_end(&body);
	harness.user = "user";
	for (size_t step = 0; step < 3; step++) {
		harness.step = step;
		struct reply *r = post_form("", buf_str(&body));
		assert_status(r, 200);
		assert_body(r, STR("[{\"name\":\"one\",\"path\":\"/work/one\",\"type\":\"file\"},"
				   "{\"name\":\"two\",\"path\":\"/home/user/sub/dir/two\",\"type\":\"file\"},"
				   "{\"name\":\"three\",\"path\":\"/work/three\",\"type\":\"file\"}]"));
		assert_str(disk_read("/work/one"), "first");
		assert_str(disk_read("/home/user/sub/dir/two"), "");
		assert_str(disk_read("/work/three"), "\r\n--b\r\n-\r\n");
		assert_false(disk_exists("/work/ignored"));
		assert_true(r->keep_alive);
	}
}

static void the_path_of_the_query_wins(void **state)
{
	cleanup_buf struct buf body = BUF_INIT;
	form_part(&body, "name=\"file\"; filename=\"/work/loses\"", STR("1"));
	form_end(&body);
	assert_status(post_form("path=/work/wins", buf_str(&body)), 200);
	assert_str(disk_read("/work/wins"), "1");
	assert_false(disk_exists("/work/loses"));
	/* A string field of a browser's form. */
	buf_clear(&body);
	form_part(&body, "name=\"file\"", STR("text"));
	form_end(&body);
	assert_status(post_form("path=/work/wins", buf_str(&body)), 200);
	assert_str(disk_read("/work/wins"), "text");
	assert_failure(post_form("", buf_str(&body)), 400, "filename");
	/* The first of several is kept. */
	form_part(&body, "name=\"file\"; filename=\"x\"", STR("second"));
	buf_clear(&body);
	form_part(&body, "name=\"file\"; filename=\"a\"", STR("first"));
	form_part(&body, "name=\"file\"; filename=\"b\"", STR("second"));
	form_end(&body);
	assert_failure(post_form("path=/work/wins", buf_str(&body)), 400,
		"you cannot upload multiple files to the same path '/work/wins' in one upload request, only "
		"the first specified file was uploaded");
	assert_str(disk_read("/work/wins"), "first");
	buf_clear(&body);
	form_part(&body, "name=\"file\"; filename=\"/work/same\"", STR("first"));
	form_part(&body, "name=\"file\"; filename=\"/work/same\"", STR("second"));
	form_end(&body);
	assert_failure(post_form("", buf_str(&body)), 400, "multiple files to the same path '/work/same'");
}

/* e2b.md F.59, cases.md 85 */
static void names_survive_byte_for_byte(void **state)
{
	static const struct {
		const char *name, *in_form; /* NULL: as it is */
	} names[] = {{"a b", NULL}, {"a%b", NULL}, {"a%2Fb", NULL}, {"a%20b", NULL}, {"\xc3\xa9", NULL},
		{"e\xcc\x81", NULL}, {"...", NULL}, {"-rf", NULL}, {"a\"b", "a%22b"},
		{"line\nfeed", "line%0Afeed"}, {"cr\rx", "cr%0Dx"}, {"#?+&;=", NULL}};
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char path[64], disposition[128];
		snprintf(path, sizeof(path), "/work/names/%s", names[i].name);
		assert_status(put(path, STR("raw")), 200);
		assert_str(disk_read(path), "raw");
		assert_body(get(path), STR("raw"));
		snprintf(disposition, sizeof(disposition), "name=\"file\"; filename=\"/work/names/%s\"",
			names[i].in_form ? names[i].in_form : names[i].name);
		cleanup_buf struct buf body = BUF_INIT;
		form_part(&body, disposition, STR("form"));
		form_end(&body);
		assert_status(post_form("", buf_str(&body)), 200);
		assert_str(disk_read(path), "form");
	}
	char longest[300] = "/work/names/";
	memset(longest + strlen(longest), 'n', 255);
	assert_status(put(longest, STR("x")), 200);
	assert_str(disk_read(longest), "x");
	longest[strlen(longest)] = 'n';
	assert_failure(put(longest, STR("x")), 400, "file name too long");
	assert_failure(ask(RAW_HEAD, "/work/a%00b", "Content-Length: 0\r\n"), 400, "NUL");
	assert_status(put("/work/names/../dots", STR("x")), 200);
	assert_str(disk_read("/work/dots"), "x");
}

static void parents_belong_to_the_user(void **state)
{
	harness.user = "user";
	assert_status(put("p1/p2/file", STR("x")), 200);
	static const char *const made[] = {"/home/user/p1", "/home/user/p1/p2", "/home/user/p1/p2/file"};
	struct stat st;
	for (size_t i = 0; i < ARRAY_SIZE(made); i++) {
		assert_int_equal(stat(made[i], &st), 0);
		assert_int_equal(st.st_mode & 07777, i < 2 ? 0755 : 0644);
		assert_int_equal(st.st_uid, 1000);
		assert_int_equal(st.st_gid, 1000);
	}
	assert_status(ask("POST /files?path=/tmp/q/file&username=other HTTP/1.1\r\nHost: x\r\nContent-Type: "
			  "application/octet-stream\r\nContent-Length: 1\r\n\r\nx"),
		200);
	assert_int_equal(stat("/tmp/q", &st), 0);
	assert_int_equal(st.st_uid, 1001);
	assert_int_equal(stat("/tmp", &st), 0);
	assert_int_equal(st.st_uid, 0);
	assert_failure(
		put("/home/user/p1/p2/file/below/x", STR("x")), 500, "path is a file: /home/user/p1/p2/file");
	assert_failure(ask("POST /files?path=x&username=ghost HTTP/1.1\r\nHost: x\r\nContent-Type: "
			   "application/octet-stream\r\nContent-Length: 1\r\n\r\nx"),
		401, "error looking up user 'ghost': user: unknown user ghost");
}

static void an_existing_file_keeps_its_mode(void **state)
{
	harness.user = "user";
	disk_write("/work/script", STR("a longer content"));
	chmod("/work/script", 04711);
	assert_int_equal(chown("/work/script", 1000, 1000), 0);
	chmod("/work/script", 04711);
	link("/work/script", "/work/other-name");
	assert_status(put("/work/script", STR("short")), 200);
	assert_str(disk_read("/work/other-name"), "short");
	assert_int_equal(disk_mode("/work/script"), 04711);
	disk_write("/work/roots", STR("x"));
	chmod("/work/roots", 0600);
	assert_status(put("/work/roots", STR("y")), 200);
	struct stat st;
	assert_int_equal(stat("/work/roots", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_uid, 1000);
}

/* fs.protected_regular would refuse O_CREAT there. */
static void a_file_of_another_user_in_tmp_is_replaced(void **state)
{
	disk_write("/tmp/theirs", STR("x"));
	assert_int_equal(chown("/tmp/theirs", 1001, 1001), 0);
	assert_status(put("/tmp/theirs", STR("y")), 200);
	assert_str(disk_read("/tmp/theirs"), "y");
}

static void only_files_are_written(void **state)
{
	assert_failure(put("/work", STR("x")), 400, "path is a directory: /work");
	assert_failure(put("/work/new/", STR("x")), 400, "path is a directory: /work/new/");
	assert_false(disk_exists("/work/new"));
	mkfifo("/work/fifo", 0644);
	assert_failure(put("/work/fifo", STR("x")), 400, "path is not a regular file: /work/fifo");
	assert_failure(put("/dev/zero", STR("x")), 400, "path is not a regular file: /dev/zero");
	symlink("fifo", "/work/to-fifo");
	assert_failure(put("/work/to-fifo", STR("x")), 400, "path is not a regular file: /work/to-fifo");
	symlink("circle", "/work/circle");
	assert_failure(put("/work/circle", STR("x")), 400, "too many levels of symbolic links");
}

static void links_are_followed(void **state)
{
	disk_write("/work/target", STR("old"));
	symlink("target", "/work/link");
	assert_status(put("/work/link", STR("new")), 200);
	assert_str(disk_read("/work/target"), "new");
	symlink("made-by-link", "/work/dangling");
	assert_status(put("/work/dangling", STR("x")), 200);
	assert_str(disk_read("/work/made-by-link"), "x");
	mkdir("/work/real", 0755);
	symlink("real", "/work/dirlink");
	assert_status(put("/work/dirlink/sub/f", STR("x")), 200);
	assert_str(disk_read("/work/real/sub/f"), "x");
}

/* e2b.md B.4, F.66, F.97 */
static void a_full_disk_is_507_and_usable_after_a_delete(void **state)
{
	const size_t size = 8 << 20;
	cleanup_free char *bytes = malloc(size);
	memset(bytes, 'x', size);
	struct reply *r = put("/small/a/file", str_n(bytes, size));
	assert_failure(r, 507, "not enough disk space available");
	assert_false(r->keep_alive);
	assert_str(header(r, "Connection"), "close");
	cleanup_buf struct buf body = BUF_INIT;
	form_part(&body, "name=\"file\"; filename=\"/small/b\"", str_n(bytes, size));
	form_end(&body);
	assert_failure(post_form("", buf_str(&body)), 507, "not enough disk space available");
	/* Chunked and without an end, as Node sends it. */
	cleanup_buf struct buf wire = BUF_INIT;
	for (int i = 0; i < 100; i++) {
		buf_add_c(&wire, "10000\r\n");
		buf_add(&wire, bytes, 0x10000);
		buf_add_c(&wire, "\r\n");
	}
	harness.stop_sending = true;
	assert_failure(put_chunked("/small/c", buf_str(&wire)), 507, "not enough disk space available");
	harness.stop_sending = false;
	unlink("/small/a/file");
	unlink("/small/b");
	unlink("/small/c");
	assert_status(put("/small/d", STR("fits")), 200);
	assert_str(disk_read("/small/d"), "fits");
}

static struct str attribute(const char *path, const char *name)
{
	static char value[8192];
	ssize_t n = getxattr(path, name, value, sizeof(value));
	return n < 0 ? STR("(none)") : str_n(value, (size_t)n);
}

/* tmpfs has such attributes since Linux 6.6. */
static void need_attributes(void)
{
	disk_write("/work/probe", STR(""));
	if (setxattr("/work/probe", "user.e2b.probe", "1", 1, 0) < 0) {
		print_message("skipped: tmpfs keeps no attributes here: %s\n", strerror(errno));
		skip();
	}
}

/* e2b.md B.4, F.65 */
static void metadata_is_kept_and_replaced_by_the_next_upload(void **state)
{
	need_attributes();
	struct reply *r = ask(RAW_HEAD, "/work/meta",
		"Content-Length: 0\r\nX-Metadata-Author: me\r\nx-metadata-A.b_c: x \"y\"\r\n");
	assert_status(r, 200);
	assert_body(r,
		STR("[{\"name\":\"meta\",\"path\":\"/work/meta\",\"type\":\"file\",\"metadata\":{\"author\":"
		    "\"me\",\"a.b_c\":\"x \\\"y\\\"\"}}]"));
	assert_str(attribute("/work/meta", "user.e2b.author"), "me");
	assert_str(attribute("/work/meta", "user.e2b.a.b_c"), "x \"y\"");
	assert_int_equal(setxattr("/work/meta", "user.theirs", "stays", 5, 0), 0);
	r = rpc("Stat", "{\"path\":\"/work/meta\"}");
	assert_status(r, 200);
	assert_contains(buf_str(&r->body), "\"author\":\"me\"");
	assert_contains(buf_str(&r->body), "\"a.b_c\":\"x \\\"y\\\"\"");
	assert_null(memmem(r->body.data, buf_len(&r->body), "theirs", 6));
	symlink("meta", "/work/link-to-meta");
	assert_contains(
		buf_str(&rpc("Stat", "{\"path\":\"/work/link-to-meta\"}")->body), "\"author\":\"me\"");
	/* It goes with the file. */
	r = rpc("Move", "{\"source\":\"/work/meta\",\"destination\":\"/work/moved\"}");
	assert_contains(buf_str(&r->body), "\"author\":\"me\"");
	r = rpc("ListDir", "{\"path\":\"/work\"}");
	assert_contains(buf_str(&r->body), "\"author\":\"me\"");

	assert_status(ask(RAW_HEAD, "/work/moved", "Content-Length: 0\r\nX-Metadata-B:\r\n"), 200);
	assert_str(attribute("/work/moved", "user.e2b.author"), "(none)");
	assert_str(attribute("/work/moved", "user.e2b.b"), "");
	assert_str(attribute("/work/moved", "user.theirs"), "stays");
	r = put("/work/moved", STR("x"));
	assert_body(r, STR("[{\"name\":\"moved\",\"path\":\"/work/moved\",\"type\":\"file\"}]"));
	r = rpc("Stat", "{\"path\":\"/work/moved\"}");
	assert_null(memmem(r->body.data, buf_len(&r->body), "metadata", 8));
}

static void every_file_of_a_form_gets_the_metadata(void **state)
{
	need_attributes();
	cleanup_buf struct buf body = BUF_INIT, request = BUF_INIT;
	form_part(&body, "name=\"file\"; filename=\"/work/m1\"", STR("1"));
	form_part(&body, "name=\"file\"; filename=\"/work/m2\"", STR("2"));
	form_end(&body);
	buf_addf(&request,
		"POST /files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=B\r\n"
		"X-Metadata-K: v\r\nContent-Length: %zu\r\n\r\n",
		buf_len(&body));
	buf_add_str(&request, buf_str(&body));
	struct reply *r = ask_bytes(buf_str(&request));
	assert_status(r, 200);
	assert_body(r,
		STR("[{\"name\":\"m1\",\"path\":\"/work/m1\",\"type\":\"file\",\"metadata\":{\"k\":\"v\"}},"
		    "{\"name\":\"m2\",\"path\":\"/work/m2\",\"type\":\"file\",\"metadata\":{\"k\":\"v\"}}]"));
	assert_str(attribute("/work/m2", "user.e2b.k"), "v");
}

static void metadata_beyond_its_limits_is_refused(void **state)
{
	char key[300], value[4200], headers[6000];
	static const char form[] = "Content-Length: 0\r\nX-Metadata-%s: %s\r\n";
	memset(key, 'k', sizeof(key));
	memset(value, 'v', sizeof(value));
	key[246] = value[4096 - 246] = '\0';
	snprintf(headers, sizeof(headers), form, key, value);
	assert_status(ask(RAW_HEAD, "/work/limit", headers), 200);
	value[4096 - 246] = 'v';
	value[4096 - 245] = '\0';
	snprintf(headers, sizeof(headers), form, key, value);
	assert_failure(ask(RAW_HEAD, "/work/no", headers), 400, "invalid metadata: longer than 4096");
	key[246] = 'k';
	key[247] = value[1] = '\0';
	snprintf(headers, sizeof(headers), form, key, value);
	assert_failure(ask(RAW_HEAD, "/work/no", headers), 400, "invalid metadata: a key is longer than 246");
	static const char *const bad[] = {"X-Metadata-A: \xc3\xa9", "X-Metadata-A: a\tb", "X-Metadata-: a",
		"X-Metadata-A: 1\r\nx-metadata-a: 2"};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		snprintf(headers, sizeof(headers), "Content-Length: 0\r\n%s\r\n", bad[i]);
		assert_failure(ask(RAW_HEAD, "/work/no", headers), 400, "invalid metadata");
	}
	assert_false(disk_exists("/work/no"));
}

/* What the program inside writes as an attribute is read back with care. */
static void attributes_of_strangers_do_no_harm(void **state)
{
	need_attributes();
	static char large[60000];
	disk_write("/work/odd", STR("x"));
	assert_int_equal(setxattr("/work/odd", "user.e2b.bytes", "\xff\0\"", 3, 0), 0);
	if (setxattr("/work/odd", "user.e2b.large", large, sizeof(large), 0) == 0)
		assert_int_equal(getxattr("/work/odd", "user.e2b.large", NULL, 0), sizeof(large));
	struct reply *r = rpc("Stat", "{\"path\":\"/work/odd\"}");
	assert_status(r, 200);
	assert_contains(buf_str(&r->body), "\"metadata\":{\"bytes\":\"");
	assert_true(buf_len(&r->body) < 1000);
	assert_status(put("/work/odd", STR("y")), 200);
	assert_str(attribute("/work/odd", "user.e2b.bytes"), "(none)");
}

/* One gzip member. */
static void add_packed(struct buf *to, struct str bytes)
{
	z_stream z = {.next_in = (unsigned char *)(uintptr_t)bytes.p, .avail_in = (uInt)bytes.n};
	assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	size_t room = deflateBound(&z, bytes.n);
	z.next_out = (unsigned char *)buf_reserve(to, room);
	z.avail_out = (uInt)room;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	buf_commit(to, room - z.avail_out);
	deflateEnd(&z);
}

/* A raw upload whose body is said to be gzip. */
static struct reply *put_packed(const char *path, struct str packed)
{
	cleanup_buf struct buf request = BUF_INIT, headers = BUF_INIT;
	buf_addf(&headers, "Content-Encoding: gzip\r\nContent-Length: %zu\r\n", packed.n);
	buf_addf(&request, RAW_HEAD, path, buf_cstr(&headers));
	buf_add_str(&request, packed);
	return ask_bytes(buf_str(&request));
}

/* cases.md 88 */
static void gzip_bodies_are_unpacked(void **state)
{
	const size_t size = 3 << 20;
	cleanup_free char *bytes = malloc(size);
	for (size_t i = 0; i < size; i++)
		bytes[i] = (char)(i * 31 + i / 4093);
	cleanup_buf struct buf packed = BUF_INIT, nothing = BUF_INIT, form = BUF_INIT, request = BUF_INIT;
	add_packed(&packed, str_n(bytes, size));
	struct reply *r = put_packed("/work/packed", buf_str(&packed));
	assert_status(r, 200);
	assert_body(r, STR("[{\"name\":\"packed\",\"path\":\"/work/packed\",\"type\":\"file\"}]"));
	assert_true(str_eq(disk_read("/work/packed"), str_n(bytes, size)));
	assert_true(r->keep_alive);
	/* Cut anywhere, in several members. */
	buf_clear(&packed);
	add_packed(&packed, STR("hello "));
	add_packed(&packed, STR(""));
	add_packed(&packed, STR("world"));
	for (harness.step = 1; harness.step < 4; harness.step++) {
		assert_status(put_packed("/work/packed", buf_str(&packed)), 200);
		assert_str(disk_read("/work/packed"), "hello world");
	}
	add_packed(&nothing, STR(""));
	assert_status(put_packed("/work/packed", buf_str(&nothing)), 200);
	assert_str(disk_read("/work/packed"), "");
	/* The whole form is packed, not its parts. */
	buf_clear(&packed);
	form_part(&form, "name=\"file\"; filename=\"/work/formed\"", STR("part"));
	form_end(&form);
	add_packed(&packed, buf_str(&form));
	buf_addf(&request,
		"POST /files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=B\r\n"
		"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n",
		buf_len(&packed));
	buf_add_str(&request, buf_str(&packed));
	buf_add_c(&request, "\r\n0\r\n\r\n");
	assert_status(ask_bytes(buf_str(&request)), 200);
	assert_str(disk_read("/work/formed"), "part");
}

/* What JavaScript's files.write(path, data, {gzip: true}) sends. */
static void a_recorded_gzip_upload_is_taken(void **state)
{
	static const char wire[] =
		"POST /files?path=oct HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\n"
		"content-type: application/octet-stream\r\ncontent-encoding: gzip\r\nx-metadata-foo: bar\r\n"
		"accept: */*\r\naccept-encoding: gzip, deflate\r\ntransfer-encoding: chunked\r\n\r\n"
		"a\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\r\n"
		"f\r\n\xcb\x48\xcd\xc9\xc9\x07\x00\x86\xa6\x10\x36\x05\x00\x00\x00\r\n0\r\n\r\n";
	harness.user = "user";
	assert_status(ask_bytes(str_n(wire, sizeof(wire) - 1)), 200);
	assert_str(disk_read("/home/user/oct"), "hello");
}

static void bodies_that_are_not_gzip_are_400(void **state)
{
	cleanup_buf struct buf packed = BUF_INIT, bad = BUF_INIT;
	add_packed(&packed, STR("some text that is packed"));
	const size_t n = buf_len(&packed);
	assert_failure(put_packed("/work/bad", STR("plain text")), 400, "malformed gzip body");
	assert_failure(put_packed("/work/bad", STR("")), 400, "malformed gzip body");
	for (size_t cut = 1; cut < n; cut++)
		assert_failure(
			put_packed("/work/bad", str_n(buf_str(&packed).p, cut)), 400, "malformed gzip body");
	/* Checksum, length, and something behind. */
	for (size_t i = 0; i < 3; i++) {
		buf_clear(&bad);
		buf_add_str(&bad, buf_str(&packed));
		if (i < 2)
			bad.data[bad.start + n - 1 - 4 * i] ^= 1;
		else
			buf_add_c(&bad, "x");
		assert_failure(put_packed("/work/bad", buf_str(&bad)), 400, "malformed gzip body");
	}
}

/* cases.md 88: the disk bounds it, and memory does not grow with it. */
static void a_gzip_bomb_ends_at_the_size_of_the_disk(void **state)
{
	const size_t size = 64 << 20;
	cleanup_free char *zeros = calloc(1, size);
	cleanup_buf struct buf packed = BUF_INIT;
	add_packed(&packed, str_n(zeros, size));
	assert_true(buf_len(&packed) < 100000);
	struct reply *r = put_packed("/small/bomb", buf_str(&packed));
	assert_failure(r, 507, "not enough disk space available");
	assert_true(r->grown_kib < 8192);
	unlink("/small/bomb");
	r = put_packed("/work/bomb", buf_str(&packed));
	assert_status(r, 200);
	assert_true(r->grown_kib < 8192);
	unlink("/work/bomb");
}

static void what_is_not_supported_is_named(void **state)
{
	assert_failure(ask(RAW_HEAD, "/work/no", "Content-Length: 0\r\nContent-Encoding: br\r\n"), 400,
		"unsupported content encoding: br");
	assert_failure(ask("POST /files?path=x HTTP/1.1\r\nHost: x\r\nContent-Type: "
			   "text/plain\r\nContent-Length: 1\r\n\r\nx"),
		400, "unsupported content type: text/plain");
	assert_failure(ask("POST /files?path=x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"), 400,
		"unsupported content type");
	assert_failure(ask("POST /files HTTP/1.1\r\nHost: x\r\nContent-Type: "
			   "application/octet-stream\r\nContent-Length: 1\r\n\r\nx"),
		400, "path query parameter is required for raw body upload");
	assert_failure(ask("POST /files?path=/work/a%%zz HTTP/1.1\r\nHost: x\r\nContent-Type: "
			   "application/octet-stream\r\nContent-Length: 1\r\n\r\nx"),
		400, "query");
	assert_false(disk_exists("/work/no"));
	assert_status(ask(RAW_HEAD, "/work/yes", "Content-Length: 0\r\nContent-Encoding: identity\r\n"), 200);
}

static struct reply *compose(const char *json)
{
	return ask("POST /files/compose HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
		   "Content-Length: %zu\r\n\r\n%s",
		strlen(json), json);
}

/* e2b.md B.2 */
static void files_are_joined_and_their_parts_go(void **state)
{
	harness.user = "user";
	disk_write("/work/p1", STR("first "));
	disk_write("/home/user/p2", STR(""));
	disk_write("/work/p3", STR("third"));
	struct reply *r = compose("{\"source_paths\":[\"/work/p1\",\"p2\",\"/work/p3\",\"/work/p1\"],"
				  "\"destination\":\"made/joined\",\"unknown\":1}");
	assert_status(r, 200);
	assert_body(r, STR("{\"name\":\"joined\",\"path\":\"/home/user/made/joined\",\"type\":\"file\"}"));
	assert_str(disk_read("/home/user/made/joined"), "first thirdfirst ");
	assert_false(disk_exists("/work/p1") || disk_exists("/home/user/p2") || disk_exists("/work/p3"));
	struct stat st;
	assert_int_equal(stat("/home/user/made/joined", &st), 0);
	assert_int_equal(st.st_uid, 1000);
	/* Of another user, over a file that is there. */
	disk_write("/work/p1", STR("again"));
	disk_write("/work/to", STR("a longer content"));
	assert_status(compose("{\"source_paths\":[\"/work/p1\"],\"destination\":\"/work/"
			      "to\",\"username\":\"other\"}"),
		200);
	assert_str(disk_read("/work/to"), "again");
	assert_int_equal(stat("/work/to", &st), 0);
	assert_int_equal(st.st_uid, 1001);
}

static void parts_stay_when_they_cannot_be_joined(void **state)
{
	static const struct {
		const char *json;
		int status;
		const char *message;
	} cases[] = {
		{"{\"source_paths\":[\"/work/p1\",\"/work/gone\"],\"destination\":\"/work/no\"}", 404,
			"path '/work/gone' does not exist"},
		{"{\"source_paths\":[\"/work/p1\",\"/work\"],\"destination\":\"/work/no\"}", 400,
			"path '/work' is a directory"},
		{"{\"source_paths\":[\"/work/p1\"],\"destination\":\"/work\"}", 400,
			"path is a directory: /work"},
		{"{\"source_paths\":[\"/work/p1\"],\"destination\":\"/work/p1\"}", 400, "one of the sources"},
		{"{\"source_paths\":[\"/work/p1\"],\"destination\":\"/work/to-p1\"}", 400,
			"one of the sources"},
		{"{\"source_paths\":[\"/work/p1\"],\"destination\":\"\"}", 400, "destination must be a path"},
		{"{\"source_paths\":[\"/work/p1\"]}", 400, "destination must be a path"},
		{"{\"source_paths\":[\"/work/p1\",1],\"destination\":\"/work/no\"}", 400,
			"source_paths must be a path"},
		{"{\"source_paths\":[],\"destination\":\"/work/no\"}", 400, "source_paths"},
		{"{\"source_paths\":\"/work/p1\",\"destination\":\"/work/no\"}", 400, "source_paths"},
		{"{\"source_paths\":[\"/work/p1\"],\"destination\":\"/work/no\",\"username\":\"ghost\"}", 401,
			"unknown user ghost"},
		{"{\"source_paths\":[\"/work/p1\"],\"destination\":\"/work/no\",\"username\":1}", 400,
			"username"},
		{"[]", 400, "object"},
		{"{", 400, "body"},
	};
	disk_write("/work/p1", STR("x"));
	symlink("p1", "/work/to-p1");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_failure(compose(cases[i].json), cases[i].status, cases[i].message);
		assert_str(disk_read("/work/p1"), "x");
		assert_false(disk_exists("/work/no"));
	}
	static char large[2 << 20];
	disk_write("/work/large", str_n(large, sizeof(large)));
	assert_failure(
		compose("{\"source_paths\":[\"/work/p1\",\"/work/large\"],\"destination\":\"/small/no\"}"),
		507, "not enough disk space");
	assert_true(disk_exists("/work/large") && disk_exists("/work/p1"));
	unlink("/small/no");
	struct reply *r = ask("GET /files/compose HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_failure(r, 405, "method not allowed");
	assert_str(header(r, "Allow"), "POST");
}

static void forms_that_are_none_are_refused(void **state)
{
	static const char form[] = "POST /files?path=/work/form HTTP/1.1\r\nHost: x\r\nContent-Type: "
				   "multipart/form-data%s\r\nContent-Length: %zu\r\n\r\n%s";
	static const char part[] = "--B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx";
	assert_failure(ask(form, "", strlen(part), part), 400, "boundary");
	assert_failure(ask(form, "; boundary=", strlen(part), part), 400, "boundary");
	assert_failure(ask(form, "; boundary=B", strlen(part), part), 400, "malformed multipart body");
	assert_failure(ask(form, "; boundary=C", strlen(part), part), 400, "malformed multipart body");
	assert_failure(ask(form, "; boundary=B", (size_t)0, ""), 400, "malformed multipart body");
	/* Headers of a part that never end. */
	cleanup_buf struct buf body = BUF_INIT;
	buf_add_c(&body, "--B\r\n");
	for (int i = 0; i < 4000; i++)
		buf_add_c(&body, "X-Header: value\r\n");
	assert_failure(post_form("path=/work/form", buf_str(&body)), 400, "malformed multipart body");
	/* None of the parts is a file. */
	buf_clear(&body);
	form_part(&body, "name=\"x\"", STR("1"));
	form_end(&body);
	struct reply *r = post_form("", buf_str(&body));
	assert_status(r, 200);
	assert_body(r, STR("[]"));
}

static void broken_framing_is_400_and_ends_the_connection(void **state)
{
	static const char *const wires[] = {"zz\r\nhello\r\n0\r\n\r\n", "5\r\nhelloX\r\n0\r\n\r\n",
		"ffffffffffffffffff\r\nx", "-1\r\nx", "5\nhello\n0\n\n"};
	for (size_t i = 0; i < ARRAY_SIZE(wires); i++) {
		struct reply *r = put_chunked("/work/broken", str_of(wires[i]));
		assert_failure(r, 400, "malformed request body");
		assert_false(r->keep_alive);
	}
}

static void an_upload_that_is_cut_gets_no_answer(void **state)
{
	harness.stop_sending = true;
	struct reply *r = ask("POST /files?path=/work/cut HTTP/1.1\r\nHost: x\r\nContent-Type: "
			      "application/octet-stream\r\nContent-Length: 100\r\n\r\nhalf");
	assert_int_equal(r->result, -ECONNRESET);
	assert_int_equal(buf_len(&r->wire), 0);
	assert_false(r->keep_alive);
	assert_str(disk_read("/work/cut"), "half");
	r = put_chunked("/work/cut", STR("5\r\nhello\r\n"));
	assert_int_equal(r->result, -ECONNRESET);
	assert_int_equal(buf_len(&r->wire), 0);
}

static void an_idle_client_is_given_up(void **state)
{
	harness.idle_ns = 20000000;
	struct reply *r = ask("POST /files?path=/work/idle HTTP/1.1\r\nHost: x\r\nContent-Type: "
			      "application/octet-stream\r\nContent-Length: 100\r\n\r\nhalf");
	assert_int_equal(r->result, -ETIMEDOUT);
	assert_int_equal(buf_len(&r->wire), 0);
}

static void a_client_that_expects_100_gets_it_only_when_its_body_is_wanted(void **state)
{
	static const char expecting[] = "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: "
					"application/octet-stream\r\nExpect: 100-continue\r\n"
					"Content-Length: 5\r\n\r\nhello";
	struct reply *r = ask(expecting, "/work/expected");
	assert_status(r, 200);
	assert_true(str_starts(buf_str(&r->wire), STR("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")));
	assert_str(disk_read("/work/expected"), "hello");
	r = ask(expecting, "/work");
	assert_failure(r, 400, "directory");
	assert_null(memmem(r->wire.data, r->wire.end, "100 Continue", 12));
	harness.rest = 5;
	r = ask(expecting, "/work/expected");
	assert_status(r, 200);
	assert_true(str_starts(buf_str(&r->wire), STR("HTTP/1.1 200 OK\r\n")));
}

/* e2b.md F.58 */
static void memory_does_not_grow_with_the_upload(void **state)
{
	const size_t size = 48 << 20;
	cleanup_free char *bytes = malloc(size);
	for (size_t i = 0; i < size; i++)
		bytes[i] = (char)(i * 31 + i / 4093);
	struct reply *r = put("/work/large", str_n(bytes, size));
	assert_status(r, 200);
	assert_true(r->grown_kib < 8192);
	assert_true(str_eq(disk_read("/work/large"), str_n(bytes, size)));
	cleanup_buf struct buf body = BUF_INIT;
	form_part(&body, "name=\"file\"; filename=\"/work/large\"", str_n(bytes, size));
	form_end(&body);
	r = post_form("", buf_str(&body));
	assert_status(r, 200);
	assert_true(r->grown_kib < 8192);
	assert_true(str_eq(disk_read("/work/large"), str_n(bytes, size)));
}

int main(void)
{
	harness_enter();
#define T(f) cmocka_unit_test_setup(f, harness_reset)
	const struct CMUnitTest tests[] = {
		T(raw_bytes_arrive_as_they_were_sent),
		T(chunked_bodies_may_be_cut_anywhere),
		T(a_form_names_its_files),
		T(the_path_of_the_query_wins),
		T(names_survive_byte_for_byte),
		T(parents_belong_to_the_user),
		T(an_existing_file_keeps_its_mode),
		T(a_file_of_another_user_in_tmp_is_replaced),
		T(only_files_are_written),
		T(links_are_followed),
		T(a_full_disk_is_507_and_usable_after_a_delete),
		T(metadata_is_kept_and_replaced_by_the_next_upload),
		T(every_file_of_a_form_gets_the_metadata),
		T(metadata_beyond_its_limits_is_refused),
		T(attributes_of_strangers_do_no_harm),
		T(gzip_bodies_are_unpacked),
		T(a_recorded_gzip_upload_is_taken),
		T(bodies_that_are_not_gzip_are_400),
		T(a_gzip_bomb_ends_at_the_size_of_the_disk),
		T(what_is_not_supported_is_named),
		T(files_are_joined_and_their_parts_go),
		T(parts_stay_when_they_cannot_be_joined),
		T(forms_that_are_none_are_refused),
		T(broken_framing_is_400_and_ends_the_connection),
		T(an_upload_that_is_cut_gets_no_answer),
		T(an_idle_client_is_given_up),
		T(a_client_that_expects_100_gets_it_only_when_its_body_is_wanted),
		T(memory_does_not_grow_with_the_upload),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	harness_leave();
	return r;
}
