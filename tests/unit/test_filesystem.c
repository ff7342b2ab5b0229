#include "files_harness.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Calls and parses; the last answer's JSON is freed by the next call. */
static json_t *call(const char *method, const char *json)
{
	static json_t *last;
	json_decref(last);
	struct reply *r = rpc(method, json);
	assert_status(r, 200);
	assert_str(header(r, "Content-Type"), "application/json");
	struct error err = {0};
	last = json_parse(buf_str(&r->body), 1 << 27, "answer", &err);
	assert_non_null(last);
	return last;
}

static json_t *entry_of(const char *path)
{
	char json[600];
	snprintf(json, sizeof(json), "{\"path\":\"%s\"}", path);
	json_t *entry = json_object_get(call("Stat", json), "entry");
	assert_non_null(entry);
	return entry;
}

static void assert_text(const json_t *entry, const char *key, const char *wanted)
{
	assert_str(json_str(json_object_get(entry, key)), wanted);
}

static void make_tree(void)
{
	static const char *const directories[] = {"/work/t", "/work/t/a", "/work/t/a/deep", "/work/t/b"};
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		mkdir(directories[i], 0755);
	static const char *const files[] = {"/work/t/a/x", "/work/t/a-b", "/work/t/a.txt", "/work/t/B",
		"/work/t/a/deep/z", "/work/t/b/y", "/work/t/\xc3\xa9"};
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		disk_write(files[i], STR("12345"));
}

/* Joins the paths of a listing by spaces. */
static struct str paths_of(const json_t *answer)
{
	static struct buf joined;
	buf_done(&joined);
	const json_t *entries = json_object_get(answer, "entries");
	assert_true(json_is_array(entries));
	size_t i;
	json_t *e;
	json_array_foreach(entries, i, e)
	{
		buf_add_c(&joined, i ? " " : "");
		buf_add_str(&joined, json_str(json_object_get(e, "path")));
	}
	return buf_str(&joined);
}

static void an_entry_has_what_clients_read(void **state)
{
	disk_write("/work/a.txt", STR("12345"));
	assert_int_equal(chown("/work/a.txt", 1000, 1000), 0);
	struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1700000000, .tv_nsec = 1}};
	assert_int_equal(utimensat(AT_FDCWD, "/work/a.txt", times, 0), 0);
	rpc("Stat", "{\"path\":\"/work/a.txt\"}");
	struct reply *r = rpc("Stat", "{\"path\":\"/work/a.txt\"}");
	assert_status(r, 200);
	assert_body(r, STR("{\"entry\":{\"name\":\"a.txt\",\"type\":\"FILE_TYPE_FILE\",\"path\":\"/work/"
			   "a.txt\",\"size\":\"5\",\"mode\":420,"
			   "\"permissions\":\"-rw-r--r--\",\"owner\":\"user\",\"group\":\"user\","
			   "\"modifiedTime\":\"2023-11-14T22:13:20.000000001Z\"}}"));
	json_t *e = entry_of("/work");
	assert_text(e, "type", "FILE_TYPE_DIRECTORY");
	assert_text(e, "permissions", "drwxr-xr-x");
	assert_int_equal(json_integer_value(json_object_get(e, "mode")), 0755);
	assert_string_not_equal(json_string_value(json_object_get(e, "size")), "0");
	e = entry_of("/");
	assert_text(e, "name", "/");
	assert_text(e, "path", "/");
	/* An empty directory too (e2b.md F.64a): tmpfs and overlay say 0. */
	mkdir("/work/empty", 0755);
	assert_string_not_equal(json_string_value(json_object_get(entry_of("/work/empty"), "size")), "0");
}

static void permissions_are_written_as_go_does(void **state)
{
	disk_write("/work/p", STR(""));
	static const struct {
		mode_t mode;
		const char *text;
	} cases[] = {{0, "----------"}, {0777, "-rwxrwxrwx"}, {04755, "urwxr-xr-x"}, {02755, "grwxr-xr-x"},
		{06711, "ugrwx--x--x"}, {01644, "trw-r--r--"}};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(chmod("/work/p", cases[i].mode), 0);
		json_t *e = entry_of("/work/p");
		assert_text(e, "permissions", cases[i].text);
		assert_int_equal(json_integer_value(json_object_get(e, "mode")), cases[i].mode & 0777);
	}
	assert_text(entry_of("/tmp"), "permissions", "dtrwxrwxrwx");
	json_t *e = entry_of("/dev/zero");
	assert_text(e, "permissions", "Dcrw-rw-rw-");
	assert_text(e, "type", "FILE_TYPE_UNSPECIFIED");
	mkfifo("/work/pipe", 0600);
	e = entry_of("/work/pipe");
	assert_text(e, "permissions", "prw-------");
	assert_text(e, "type", "FILE_TYPE_UNSPECIFIED");
}

static void owners_without_a_name_are_numbers(void **state)
{
	disk_write("/work/owned", STR(""));
	assert_int_equal(chown("/work/owned", 4242, 27), 0);
	json_t *e = entry_of("/work/owned");
	assert_text(e, "owner", "4242");
	assert_text(e, "group", "sudo");
	/* Root inside may put anything there. */
	assert_int_equal(rename("/etc/passwd", "/etc/passwd.kept"), 0);
	assert_int_equal(mkfifo("/etc/passwd", 0644), 0);
	assert_text(entry_of("/work/owned"), "owner", "4242");
	unlink("/etc/passwd");
	disk_write("/etc/passwd", STR("\n::::\nx\nroot:x:zero:0::/:/"
				      "\nshort:x:4242\nuser:x:99999999999:1\n\n:x:4242:1::/:/bin/sh"));
	assert_text(entry_of("/work/owned"), "owner", "short");
	assert_int_equal(rename("/etc/passwd.kept", "/etc/passwd"), 0);
}

static void links_tell_their_target(void **state)
{
	disk_write("/work/target", STR("abc"));
	chmod("/work/target", 0600);
	symlink("target", "/work/link");
	symlink("link", "/work/link2");
	symlink("nowhere", "/work/broken");
	symlink("loop", "/work/loop");
	symlink("/home", "/work/todir");
	json_t *e = entry_of("/work/link2");
	assert_text(e, "type", "FILE_TYPE_FILE");
	assert_text(e, "permissions", "Lrwxrwxrwx");
	assert_text(e, "symlinkTarget", "/work/target");
	assert_text(e, "size", "4");
	assert_text(e, "path", "/work/link2");
	assert_true(json_is_true(json_object_get(e, "isSymlink")));
	assert_int_equal(json_integer_value(json_object_get(e, "mode")), 0600);
	assert_null(json_object_get(entry_of("/work/target"), "isSymlink"));
	assert_text(entry_of("/work/todir"), "type", "FILE_TYPE_DIRECTORY");
	for (int i = 0; i < 2; i++) {
		const char *path = i ? "/work/loop" : "/work/broken";
		e = entry_of(path);
		assert_text(e, "type", "FILE_TYPE_UNSPECIFIED");
		assert_text(e, "symlinkTarget", path);
		assert_int_equal(json_integer_value(json_object_get(e, "mode")), 0);
	}
}

static void stat_of_nothing_is_not_found(void **state)
{
	struct reply *r = rpc("Stat", "{\"path\":\"/work/none\"}");
	assert_int_equal(r->head.status, 404);
	assert_rpc_failure(r, "not_found", "file not found: /work/none");
	assert_rpc_failure(rpc("Stat", "{\"path\":\"/etc/passwd/x\"}"), "not_found", "file not found");
	char json[600] = "{\"path\":\"/work/";
	memset(json + strlen(json), 'n', 256);
	strcat(json, "\"}");
	r = rpc("Stat", json);
	assert_int_equal(r->head.status, 400);
	assert_rpc_failure(r, "invalid_argument", "name too long");
	assert_rpc_failure(rpc("Stat", "{\"path\":\"/work/a\\u0000b\"}"), "invalid_argument", "NUL");
	assert_rpc_failure(rpc("Stat", "{\"path\":\"~other/x\"}"), "invalid_argument",
		"cannot expand user-specific home dir");
}

static void make_dir_makes_the_chain_for_the_user(void **state)
{
	harness.user = "user";
	json_t *e = json_object_get(call("MakeDir", "{\"path\":\"new/b/c\"}"), "entry");
	assert_text(e, "path", "/home/user/new/b/c");
	assert_text(e, "name", "c");
	struct stat st;
	static const char *const made[] = {"/home/user/new", "/home/user/new/b", "/home/user/new/b/c"};
	for (size_t i = 0; i < ARRAY_SIZE(made); i++) {
		assert_int_equal(stat(made[i], &st), 0);
		assert_int_equal(st.st_mode & 07777, 0755);
		assert_int_equal(st.st_uid, 1000);
		assert_int_equal(st.st_gid, 1000);
	}
	struct reply *r = rpc("MakeDir", "{\"path\":\"new/b\"}");
	assert_int_equal(r->head.status, 409);
	assert_rpc_failure(r, "already_exists", "directory already exists: /home/user/new/b");
	disk_write("/home/user/file", STR(""));
	assert_rpc_failure(rpc("MakeDir", "{\"path\":\"file\"}"), "invalid_argument", "/home/user/file");
	assert_rpc_failure(rpc("MakeDir", "{\"path\":\"file/x/y\"}"), "invalid_argument",
		"path is a file: /home/user/file");
	call("MakeDir", "{\"path\":\"/work//d1/./d2/\"}");
	assert_true(disk_exists("/work/d1/d2"));
	assert_int_equal(stat("/home/user", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void the_user_of_basic_owns_what_is_made(void **state)
{
	struct stat st;
	static const char request[] = "POST /filesystem.Filesystem/MakeDir HTTP/1.1\r\nHost: "
				      "x\r\nContent-Type: application/json\r\nAuthorization: %s\r\n"
				      "Content-Length: %zu\r\n\r\n%s";
	const char *json = "{\"path\":\"/work/by-other\"}";
	assert_status(ask(request, "Basic b3RoZXI6", strlen(json), json), 200); /* other: */
	assert_int_equal(stat("/work/by-other", &st), 0);
	assert_int_equal(st.st_uid, 1001);
	json = "{\"path\":\"/work/by-default\"}";
	harness.user = "user";
	assert_status(ask(request, "Basic Og==", strlen(json), json), 200); /* : */
	assert_int_equal(stat("/work/by-default", &st), 0);
	assert_int_equal(st.st_uid, 1000);
	struct reply *r = ask(request, "basic Z2hvc3Q6cHc=", strlen(json), json);
	assert_int_equal(r->head.status, 401);
	assert_rpc_failure(r, "unauthenticated", "invalid username: 'ghost'");
	assert_rpc_failure(ask(request, "Basic !!", strlen(json), json), "unauthenticated", "Authorization");
}

static void move_renames_and_overwrites(void **state)
{
	disk_write("/work/from", STR("content"));
	disk_write("/work/old", STR("old"));
	json_t *e = json_object_get(
		call("Move", "{\"source\":\"/work/from\",\"destination\":\"/work/old\"}"), "entry");
	assert_text(e, "path", "/work/old");
	assert_text(e, "size", "7");
	assert_false(disk_exists("/work/from"));
	call("Move", "{\"source\":\"/work/old\",\"destination\":\"/work/n1/n2/x\"}");
	assert_str(disk_read("/work/n1/n2/x"), "content");
	struct reply *r = rpc("Move", "{\"source\":\"/work/none\",\"destination\":\"/work/n3/x\"}");
	assert_int_equal(r->head.status, 404);
	assert_rpc_failure(r, "not_found", "source file not found: /work/none");
	assert_false(disk_exists("/work/n3"));
	mkdir("/work/full", 0755);
	disk_write("/work/full/x", STR(""));
	assert_rpc_failure(rpc("Move", "{\"source\":\"/work/n1\",\"destination\":\"/work/full\"}"),
		"internal", "not empty");
	assert_rpc_failure(rpc("Move", "{\"source\":\"/work/full/x\",\"destination\":\"/small/x\"}"),
		"internal", "cross-device");
	assert_rpc_failure(rpc("Move", "{\"source\":\"/work/n1\",\"destination\":\"/work/full/x/y\"}"),
		"invalid_argument", "path is a file: /work/full/x");
	/* A link is moved, not what it leads to; a trailing slash names a directory. */
	symlink("nowhere", "/work/dangling");
	call("Move", "{\"source\":\"/work/dangling\",\"destination\":\"/work/moved\"}");
	assert_true(disk_exists("/work/moved"));
	call("Move", "{\"source\":\"/work/n1\",\"destination\":\"/work/n4/dir/\"}");
	assert_true(disk_exists("/work/n4/dir/n2/x"));
}

static void a_full_disk_is_told(void **state)
{
	/* Every inode of it. */
	char name[64];
	int made = 0;
	for (; made < 100; made++) {
		snprintf(name, sizeof(name), "/small/%d", made);
		int fd = open(name, O_WRONLY | O_CREAT, 0644);
		if (fd < 0)
			break;
		close(fd);
	}
	assert_true(made < 100);
	assert_rpc_failure(
		rpc("MakeDir", "{\"path\":\"/small/a/b\"}"), "internal", "No space left on device");
	for (; made >= 0; made--) {
		snprintf(name, sizeof(name), "/small/%d", made);
		unlink(name);
	}
	call("MakeDir", "{\"path\":\"/small/a/b\"}");
	assert_body(rpc("Remove", "{\"path\":\"/small/a\"}"), STR("{}"));
}

static void remove_takes_trees_and_forgives_nothing_there(void **state)
{
	make_tree();
	mkdir("/work/elsewhere", 0755);
	disk_write("/work/elsewhere/kept", STR(""));
	symlink("../elsewhere", "/work/t/out");
	assert_body(rpc("Remove", "{\"path\":\"/work/t/out/\"}"), STR("{}"));
	assert_false(disk_exists("/work/t/out"));
	symlink("../elsewhere", "/work/t/out");
	assert_body(rpc("Remove", "{\"path\":\"/work/t\"}"), STR("{}"));
	assert_false(disk_exists("/work/t"));
	assert_true(disk_exists("/work/elsewhere/kept"));
	assert_body(rpc("Remove", "{\"path\":\"/work/t\"}"), STR("{}"));
	assert_body(rpc("Remove", "{\"path\":\"/work/elsewhere/kept/x\"}"), STR("{}"));
	assert_true(disk_exists("/work/elsewhere/kept"));
}

static void remove_refuses_mounts_and_dots(void **state)
{
	disk_write("/small/kept", STR("x"));
	assert_rpc_failure(rpc("Remove", "{\"path\":\"/small\"}"), "internal", "mount point");
	assert_rpc_failure(rpc("Remove", "{\"path\":\"/small/\"}"), "internal", "mount point");
	mkdir("/work/holder", 0755);
	mkdir("/work/holder/mounted", 0755);
	assert_int_equal(mount("tmpfs", "/work/holder/mounted", "tmpfs", 0, NULL), 0);
	disk_write("/work/holder/mounted/kept", STR("x"));
	assert_rpc_failure(rpc("Remove", "{\"path\":\"/work/holder\"}"), "internal", "");
	assert_true(disk_exists("/work/holder/mounted/kept"));
	umount("/work/holder/mounted");
	assert_true(disk_exists("/small/kept"));
	static const char *const dots[] = {"/", "//", "/work/..", "/work/.", "/."};
	for (size_t i = 0; i < ARRAY_SIZE(dots); i++) {
		char json[64];
		snprintf(json, sizeof(json), "{\"path\":\"%s\"}", dots[i]);
		assert_rpc_failure(rpc("Remove", json), "invalid_argument", "cannot remove");
	}
	assert_true(disk_exists("/etc/passwd"));
}

static void a_listing_is_depth_first_in_bytewise_order(void **state)
{
	make_tree();
	assert_str(paths_of(call("ListDir", "{\"path\":\"/work/t\"}")),
		"/work/t/B /work/t/a /work/t/a-b /work/t/a.txt /work/t/b /work/t/\xc3\xa9");
	assert_str(paths_of(call("ListDir", "{\"path\":\"/work/t\",\"depth\":0}")),
		"/work/t/B /work/t/a /work/t/a-b /work/t/a.txt /work/t/b /work/t/\xc3\xa9");
	assert_str(paths_of(call("ListDir", "{\"path\":\"/work/t\",\"depth\":2}")),
		"/work/t/B /work/t/a /work/t/a/deep /work/t/a/x /work/t/a-b /work/t/a.txt /work/t/b "
		"/work/t/b/y /work/t/\xc3\xa9");
	assert_str(paths_of(call("ListDir", "{\"path\":\"/work/t/\",\"depth\":\"4294967295\"}")),
		"/work/t/B /work/t/a /work/t/a/deep /work/t/a/deep/z /work/t/a/x /work/t/a-b /work/t/a.txt "
		"/work/t/b /work/t/b/y /work/t/\xc3\xa9");
	mkdir("/work/nothing-in-it", 0755);
	assert_body(
		rpc("ListDir", "{\"path\":\"/work/nothing-in-it\",\"depth\":3}"), STR("{\"entries\":[]}"));
	assert_contains(paths_of(call("ListDir", "{\"path\":\"/\"}")), "/dev /etc /home");
}

static void links_in_a_listing_keep_the_prefix_and_are_not_entered(void **state)
{
	make_tree();
	symlink("t", "/work/to-t");
	assert_str(
		paths_of(call("ListDir", "{\"path\":\"/work/to-t/a\"}")), "/work/to-t/a/deep /work/to-t/a/x");
	assert_contains(paths_of(call("ListDir", "{\"path\":\"/work/to-t\"}")), "/work/to-t/B /work/to-t/a");
	mkdir("/work/links", 0755);
	symlink("/work/t", "/work/links/dir");
	symlink("gone", "/work/links/broken");
	assert_str(paths_of(call("ListDir", "{\"path\":\"/work/links\",\"depth\":5}")),
		"/work/links/broken /work/links/dir");
}

static void a_listing_of_no_directory_is_refused(void **state)
{
	disk_write("/work/file", STR(""));
	symlink("circle", "/work/circle");
	symlink("file", "/work/to-file");
	struct reply *r = rpc("ListDir", "{\"path\":\"/work/none\"}");
	assert_int_equal(r->head.status, 404);
	assert_rpc_failure(r, "not_found", "/work/none");
	assert_rpc_failure(rpc("ListDir", "{\"path\":\"/work/file\"}"), "invalid_argument",
		"path is not a directory: /work/file");
	assert_rpc_failure(rpc("ListDir", "{\"path\":\"/work/to-file\"}"), "invalid_argument",
		"path is not a directory: /work/to-file");
	assert_rpc_failure(rpc("ListDir", "{\"path\":\"/work/file/x\"}"), "not_found", "");
	r = rpc("ListDir", "{\"path\":\"/work/circle\"}");
	assert_int_equal(r->head.status, 400);
	assert_rpc_failure(r, "failed_precondition", "cyclic");
	assert_rpc_failure(rpc("ListDir", "{\"path\":\"/work\",\"depth\":-1}"), "invalid_argument", "depth");
	assert_rpc_failure(
		rpc("ListDir", "{\"path\":\"/work\",\"depth\":4294967296}"), "invalid_argument", "depth");
	assert_rpc_failure(
		rpc("ListDir", "{\"path\":\"/work\",\"depth\":\"x\"}"), "invalid_argument", "depth");
	assert_rpc_failure(
		rpc("ListDir", "{\"path\":\"/work\",\"depth\":true}"), "invalid_argument", "depth");
}

/* Processes come and go in it, and some of it is closed to everybody. */
static void a_listing_of_proc_survives(void **state)
{
	struct reply *r = rpc("ListDir", "{\"path\":\"/proc\",\"depth\":4}");
	assert_int_equal(r->result, 0);
	if (r->head.status != 200)
		assert_rpc_failure(r, "resource_exhausted", "100000");
	call("ListDir", "{\"path\":\"/proc/self\",\"depth\":3}");
}

static void large_listings_have_their_bounds(void **state)
{
	mkdir("/work/many", 0755);
	char name[64];
	for (int i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "/work/many/%06d", i);
		int fd = open(name, O_WRONLY | O_CREAT, 0644);
		assert_true(fd >= 0);
		close(fd);
	}
	json_t *all = call("ListDir", "{\"path\":\"/work/many\"}");
	assert_int_equal(json_array_size(json_object_get(all, "entries")), 100000);
	assert_text(json_array_get(json_object_get(all, "entries"), 99999), "name", "099999");
	disk_write("/work/many/one-more", STR(""));
	struct reply *r = rpc("ListDir", "{\"path\":\"/work/many\"}");
	assert_int_equal(r->head.status, 429);
	assert_rpc_failure(r, "resource_exhausted", "100000");
	assert_body(rpc("Remove", "{\"path\":\"/work/many\"}"), STR("{}"));
	assert_false(disk_exists("/work/many"));
}

/* Deeper than a path can say: entries are still found by descriptor, and the depth has an end. */
static void deep_trees_have_their_bounds(void **state)
{
	assert_int_equal(mkdir("/work/deep", 0755), 0);
	assert_int_equal(chdir("/work/deep"), 0);
	char name[201];
	memset(name, 'd', 200);
	name[200] = '\0';
	for (int i = 0; i < 60; i++) {
		assert_int_equal(mkdir(name, 0755), 0);
		assert_int_equal(chdir(name), 0);
	}
	json_t *all = call("ListDir", "{\"path\":\"/work/deep\",\"depth\":100}");
	assert_int_equal(json_array_size(json_object_get(all, "entries")), 60);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(mkdir("d", 0755), 0);
		assert_int_equal(chdir("d"), 0);
	}
	assert_rpc_failure(rpc("ListDir", "{\"path\":\"/work/deep\",\"depth\":5000}"), "resource_exhausted",
		"deeper than 1024");
	assert_int_equal(chdir("/"), 0);
	assert_body(rpc("Remove", "{\"path\":\"/work/deep\"}"), STR("{}"));
	assert_false(disk_exists("/work/deep"));
}

static void names_survive_byte_for_byte(void **state)
{
	static const char *const names[] = {"a b", "a%b", "a%2Fb", "\xc3\xa9", "e\xcc\x81", "...", "-rf",
		"a\"b\\c", "line\nfeed", "tab\t", "#?+&"};
	mkdir("/work/names", 0755);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char path[64];
		snprintf(path, sizeof(path), "/work/names/%s", names[i]);
		disk_write(path, STR("x"));
		cleanup_buf struct buf json = BUF_INIT;
		buf_add_c(&json, "{\"path\":");
		json_quote(&json, str_of(path));
		buf_add_c(&json, "}");
		json_t *e = json_object_get(call("Stat", buf_cstr(&json)), "entry");
		assert_text(e, "name", names[i]);
		assert_text(e, "path", path);
		json_t *list = json_object_get(call("ListDir", "{\"path\":\"/work/names\"}"), "entries");
		assert_int_equal(json_array_size(list), 1);
		assert_text(json_array_get(list, 0), "name", names[i]);
		assert_body(rpc("Remove", buf_cstr(&json)), STR("{}"));
		assert_false(disk_exists(path));
	}
	/* No UTF-8: shown with replacement characters, still valid JSON. */
	disk_write("/work/names/\xff\xfe", STR(""));
	json_t *list = json_object_get(call("ListDir", "{\"path\":\"/work/names\"}"), "entries");
	assert_text(json_array_get(list, 0), "name", "\xef\xbf\xbd\xef\xbf\xbd");
}

static void messages_are_checked(void **state)
{
	assert_rpc_failure(rpc("Stat", ""), "invalid_argument", "");
	assert_rpc_failure(rpc("Stat", "[]"), "invalid_argument", "object");
	assert_rpc_failure(rpc("Stat", "{\"path\":1}"), "invalid_argument", "path must be a string");
	assert_rpc_failure(rpc("Stat", "{\"path\":\"/\"} x"), "invalid_argument", "");
	call("Stat", "{\"path\":\"/\",\"someNewField\":[1]}");
	assert_text(json_object_get(call("Stat", "{\"path\":null}"), "entry"), "path", "/root");
	assert_text(json_object_get(call("Stat", "{}"), "entry"), "path", "/root");
	cleanup_buf struct buf large = BUF_INIT;
	buf_add_c(&large, "{\"path\":\"");
	for (int i = 0; i < 70000; i++)
		buf_add_c(&large, "/");
	buf_add_c(&large, "\"}");
	assert_rpc_failure(rpc("Stat", buf_cstr(&large)), "resource_exhausted", "65536");
	struct reply *r = rpc("Unheard", "{}");
	assert_int_equal(r->head.status, 501);
	assert_rpc_failure(r, "unimplemented", "Unheard");
}

static void transport_rules_are_kept(void **state)
{
	static const char request[] = "POST /filesystem.Filesystem/Stat HTTP/1.1\r\nHost: x\r\nContent-Type: "
				      "%s\r\n%sContent-Length: 12\r\n\r\n{\"path\":\"/\"}";
	assert_status(ask(request, "application/json", ""), 200);
	assert_status(
		ask(request, "application/json; charset=utf-8", "Connect-Content-Encoding: identity\r\n"),
		200);
	assert_status(ask(request, "application/json",
			      "Connect-Timeout-Ms: 60000\r\nConnect-Protocol-Version: 1\r\n"),
		200);
	assert_failure(ask(request, "application/json; charset=latin1", ""), 415, "application/json");
	assert_failure(ask(request, "text/plain", ""), 415, "text/plain");
	assert_failure(ask(request, "application/connect+json", ""), 415, "");
	assert_rpc_failure(ask(request, "application/json", "Connect-Timeout-Ms: soon\r\n"),
		"invalid_argument", "Connect-Timeout-Ms");
	assert_rpc_failure(ask(request, "application/json", "Connect-Timeout-Ms: 12345678901\r\n"),
		"invalid_argument", "Connect-Timeout-Ms");
	assert_rpc_failure(
		ask(request, "application/json", "Content-Encoding: gzip\r\n"), "unimplemented", "gzip");
	struct reply *r = ask("GET /filesystem.Filesystem/Stat HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_failure(r, 405, "");
	assert_str(header(r, "Allow"), "POST");
	r = ask("POST /filesystem.Filesystem/Stat HTTP/1.1\r\nHost: x\r\nContent-Type: "
		"application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
		"5\r\n{\"pat\r\n7\r\nh\":\"/\"}\r\n0\r\n\r\n");
	assert_status(r, 200);
	assert_true(r->keep_alive);
	r = ask("POST /filesystem.Filesystem/ListDir HTTP/1.1\r\nHost: x\r\nContent-Type: "
		"application/json\r\nConnect-Timeout-Ms: 0\r\nContent-Length: 12\r\n\r\n"
		"{\"path\":\"/\"}");
	assert_int_equal(r->head.status, 504);
	assert_rpc_failure(r, "deadline_exceeded", "context deadline exceeded");
}

int main(void)
{
	harness_enter();
#define T(f) cmocka_unit_test_setup(f, harness_reset)
	const struct CMUnitTest tests[] = {
		T(an_entry_has_what_clients_read),
		T(permissions_are_written_as_go_does),
		T(owners_without_a_name_are_numbers),
		T(links_tell_their_target),
		T(stat_of_nothing_is_not_found),
		T(make_dir_makes_the_chain_for_the_user),
		T(the_user_of_basic_owns_what_is_made),
		T(move_renames_and_overwrites),
		T(a_full_disk_is_told),
		T(remove_takes_trees_and_forgives_nothing_there),
		T(remove_refuses_mounts_and_dots),
		T(a_listing_is_depth_first_in_bytewise_order),
		T(links_in_a_listing_keep_the_prefix_and_are_not_entered),
		T(a_listing_of_no_directory_is_refused),
		T(a_listing_of_proc_survives),
		T(large_listings_have_their_bounds),
		T(deep_trees_have_their_bounds),
		T(names_survive_byte_for_byte),
		T(messages_are_checked),
		T(transport_rules_are_kept),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	harness_leave();
	return r;
}
