#include "files_harness.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "guest/watch.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- the tree by itself ---- */

static struct buf told;

static void note(enum watch_op op, struct str name, void *arg)
{
	static const char LETTERS[] = "CNMWR"; /* create, name, mode, write, remove */
	buf_addf(&told, "%s%c:%.*s", buf_len(&told) ? " " : "", LETTERS[op], STR_FMT(name));
}

static int read_all(struct watch *w)
{
	int r;
	while ((r = watch_read(w, note, NULL)) == 1)
		;
	return r;
}

/* What was told since the last time. Everything happens in this process, so it is in the queue already. */
#define assert_told(w, wanted) \
	do { \
		assert_int_equal(read_all(w), 0); \
		assert_str(buf_str(&told), wanted); \
		buf_done(&told); \
	} while (0)

static struct watch *watch(const char *path, bool recursive)
{
	struct watch *w = NULL;
	buf_done(&told);
	assert_int_equal(watch_new(path, recursive, false, &w), 0);
	return w;
}

static void make(const char *path)
{
	assert_int_equal(mkdir(path, 0755), 0);
}

static void clean(void)
{
	buf_done(&told);
	assert_int_equal(rpc("Remove", "{\"path\":\"/work/w\"}")->head.status, 200);
	make("/work/w");
}

static void each_change_has_its_event(void **state)
{
	clean();
	make("/work/w/d");
	struct watch *w = watch("/work/w", false);
	disk_write("/work/w/f", STR("x"));
	assert_told(w, "C:f W:f");
	assert_int_equal(chmod("/work/w/f", 0600), 0);
	assert_int_equal(rename("/work/w/f", "/work/w/g"), 0);
	assert_int_equal(unlink("/work/w/g"), 0);
	assert_told(w, "M:f N:f C:g R:g");
	disk_write("/work/w/d/below", STR("x"));
	assert_told(w, "");
	assert_int_equal(chmod("/work/w", 0700), 0);
	assert_told(w, "M:.");
	watch_free(w);
}

static void directories_made_later_are_watched_with_what_is_in_them(void **state)
{
	clean();
	make("/work/w/old");
	struct watch *w = watch("/work/w", true);
	make("/work/w/a");
	make("/work/w/a/b");
	disk_write("/work/w/a/b/early", STR("x"));
	disk_write("/work/w/a/b/empty", STR(""));
	assert_int_equal(read_all(w), 0);
	static const char *const WANTED[] = {"C:a ", "C:a/b ", "C:a/b/early", "W:a/b/early", "C:a/b/empty"};
	for (size_t i = 0; i < ARRAY_SIZE(WANTED); i++)
		assert_contains(buf_str(&told), WANTED[i]);
	buf_done(&told);
	disk_write("/work/w/a/b/late", STR("x"));
	disk_write("/work/w/old/f", STR(""));
	assert_told(w, "C:a/b/late W:a/b/late C:old/f");
	watch_free(w);
}

static int before_scan_count;
static void in_between(enum watch_op op, struct str name, void *arg)
{
	note(op, name, arg);
	/* While the first name of the new directory is told it is watched already, and not yet read to its
	 * end. */
	if (str_is(name, "d/first") && before_scan_count++ == 0) {
		disk_write("/work/w/d/second", STR(""));
		assert_int_equal(unlink("/work/w/d/first"), 0);
		disk_write("/work/w/d/first", STR(""));
	}
}

static unsigned count(const char *text)
{
	unsigned n = 0;
	struct str rest = buf_str(&told);
	for (const char *at; (at = memmem(rest.p, rest.n, text, strlen(text))); n++)
		rest = str_from(rest, (size_t)(at - rest.p) + 1);
	return n;
}

static void what_a_scan_told_is_not_told_twice(void **state)
{
	clean();
	struct watch *w = watch("/work/w", true);
	make("/work/w/d");
	disk_write("/work/w/d/first", STR(""));
	before_scan_count = 0;
	while (watch_read(w, in_between, NULL) == 1)
		;
	assert_int_equal(count("C:d/second"), 1);
	/* Removed and made again is two of them. */
	assert_int_equal(count("C:d/first"), 2);
	assert_int_equal(count("R:d/first"), 1);
	watch_free(w);
}

static void a_renamed_directory_goes_on_under_its_new_name(void **state)
{
	clean();
	make("/work/w/a");
	make("/work/w/a/sub");
	make("/work/w/x");
	struct watch *w = watch("/work/w", true);
	assert_int_equal(rename("/work/w/a", "/work/w/b"), 0);
	disk_write("/work/w/b/sub/f", STR(""));
	assert_int_equal(rename("/work/w/b", "/work/w/x/c"), 0);
	disk_write("/work/w/x/c/sub/g", STR(""));
	assert_told(w, "N:a C:b C:b/sub/f N:b C:x/c C:x/c/sub/g");
	/* Into a directory that is not watched yet. */
	make("/work/w/n");
	assert_int_equal(rename("/work/w/x/c", "/work/w/n/c"), 0);
	assert_int_equal(read_all(w), 0);
	assert_contains(buf_str(&told), "N:x/c");
	buf_done(&told);
	disk_write("/work/w/n/c/sub/h", STR(""));
	assert_told(w, "C:n/c/sub/h");
	/* Out of the tree, and in again. */
	assert_int_equal(rename("/work/w/n/c", "/work/outside"), 0);
	disk_write("/work/outside/sub/unseen", STR(""));
	assert_told(w, "N:n/c");
	assert_int_equal(rename("/work/outside", "/work/w/back"), 0);
	disk_write("/work/w/back/sub/seen", STR(""));
	assert_int_equal(read_all(w), 0);
	assert_int_equal(count("C:back/sub/seen"), 1);
	/* Of what happened to it meanwhile the same is told as of any directory that appears. */
	assert_int_equal(count("C:back/sub/unseen"), 1);
	buf_done(&told);
	disk_write("/work/w/back/sub/later", STR(""));
	assert_told(w, "C:back/sub/later");
	watch_free(w);
}

static void links_are_not_followed_and_loops_end(void **state)
{
	clean();
	make("/work/w/d");
	make("/work/elsewhere");
	assert_int_equal(symlink("/work/elsewhere", "/work/w/link"), 0);
	assert_int_equal(mount("/work/w", "/work/w/d", NULL, MS_BIND, NULL), 0);
	struct watch *w = watch("/work/w", true);
	assert_int_equal(symlink("/work/elsewhere", "/work/w/later"), 0);
	disk_write("/work/elsewhere/f", STR("x"));
	disk_write("/work/w/once", STR(""));
	assert_told(w, "C:later C:once");
	watch_free(w);
	assert_int_equal(umount("/work/w/d"), 0);
	assert_int_equal(rmdir("/work/elsewhere/") == 0 || errno == ENOTEMPTY, 1);
}

static void a_removed_directory_is_told_and_then_silent(void **state)
{
	clean();
	make("/work/w/d");
	make("/work/w/d/sub");
	struct watch *w = watch("/work/w/d", true);
	assert_int_equal(rmdir("/work/w/d/sub"), 0);
	assert_int_equal(rmdir("/work/w/d"), 0);
	assert_told(w, "R:sub R:.");
	make("/work/w/d");
	make("/work/w/d/new");
	assert_told(w, "");
	watch_free(w);
}

static void a_moved_root_says_what_it_cannot_follow(void **state)
{
	clean();
	make("/work/w/d");
	struct watch *w = watch("/work/w/d", true);
	assert_int_equal(rename("/work/w/d", "/work/w/e"), 0);
	disk_write("/work/w/e/f", STR(""));
	assert_told(w, "N:. C:f");
	make("/work/w/e/sub");
	assert_int_equal(read_all(w), -ESTALE);
	watch_free(w);
}

static void bounds_are_told(void **state)
{
	const char *text;
	clean();
	disk_write("/work/w/f", STR("x"));
	struct watch *w = watch("/work/w", true);
	/* fs.inotify.max_queued_events, which those before hold too. */
	int most = atoi(disk_read("/proc/sys/fs/inotify/max_queued_events").p);
	for (int i = 0; i < most + 100; i++)
		assert_int_equal(chmod(i % 2 ? "/work/w/f" : "/work/w", i % 4 ? 0755 : 0700), 0);
	assert_int_equal(read_all(w), -EOVERFLOW);
	assert_int_equal(watch_failure(-EOVERFLOW, &text), CONNECT_DATA_LOSS);
	watch_free(w);
	assert_int_equal(watch_failure(-ENOSPC, &text), CONNECT_RESOURCE_EXHAUSTED);
	assert_contains(str_of(text), "max_user_watches");
	buf_done(&told);
	/* A tree that is too deep, at once and later. */
	int fd = open("/work/w", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < WATCH_MAX_LEVELS + 1; i++) {
		assert_int_equal(mkdirat(fd, "d", 0755), 0);
		int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
	}
	close(fd);
	assert_int_equal(watch_new("/work/w", true, false, &w), -E2BIG);
	make("/work/w/flat");
	w = watch("/work/w/flat", true);
	assert_int_equal(rename("/work/w/d", "/work/w/flat/d"), 0);
	assert_int_equal(read_all(w), -E2BIG);
	watch_free(w);
}

static void ten_thousand_files(void **state)
{
	clean();
	struct watch *w = watch("/work/w", true);
	make("/work/w/d");
	char path[64];
	for (int i = 0; i < 10000; i++) {
		snprintf(path, sizeof(path), "/work/w/d/f%05d", i);
		disk_write(path, STR(""));
		if (i == 5000)
			assert_int_equal(read_all(w), 0);
	}
	assert_int_equal(read_all(w), 0);
	assert_int_equal(count("C:d/f"), 10000);
	watch_free(w);
}

/* ---- the calls ---- */

static struct reply *watch_dir(const char *json, const char *headers)
{
	cleanup_buf struct buf request = BUF_INIT;
	buf_addf(&request,
		"POST /filesystem.Filesystem/WatchDir HTTP/1.1\r\nHost: x\r\nContent-Type: "
		"application/connect+json\r\n%sContent-Length: %zu\r\n\r\n",
		headers, strlen(json) + CONNECT_HEADER);
	connect_envelope(&request, 0, str_of(json));
	return ask_bytes(buf_str(&request));
}

/* The messages of a stream, joined; the last one is the end's. */
static struct str messages(const struct reply *r)
{
	static struct buf joined;
	buf_done(&joined);
	unsigned flags = 0;
	ssize_t n;
	struct str rest = buf_str(&r->body), message;
	assert_status(r, 200);
	assert_str(header(r, "Content-Type"), "application/connect+json");
	while ((n = connect_parse_envelope(rest, 1 << 20, &flags, &message)) > 0) {
		buf_add_str(&joined, message);
		rest = str_from(rest, (size_t)n);
	}
	assert_int_equal(rest.n, 0);
	assert_int_equal(flags, CONNECT_FLAG_END);
	return buf_str(&joined);
}

static void change_one(void)
{
	disk_write("/work/w/f", STR("12345"));
	unlink("/work/w/g");
}

static void a_stream_starts_tells_and_ends_at_its_deadline(void **state)
{
	clean();
	disk_write("/work/w/g", STR("x"));
	harness.call_at = 1;
	harness.call = change_one;
	struct str m = messages(
		watch_dir("{\"path\":\"/work/w\",\"includeEntry\":true}", "Connect-Timeout-Ms: 500\r\n"));
	assert_true(str_starts(m, STR("{\"start\":{}}{\"filesystem\":{\"name\":\"f\",\"type\":\"EVENT_TYPE_"
				      "CREATE\",\"entry\":{\"name\":\"f\",")));
	assert_contains(m, "\"path\":\"/work/w/f\",\"size\":\"5\"");
	assert_contains(m, "{\"filesystem\":{\"name\":\"g\",\"type\":\"EVENT_TYPE_REMOVE\"}}");
	assert_contains(
		m, "{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"context deadline exceeded\"}}");
}

static void silence_is_broken_by_keepalives(void **state)
{
	clean();
	struct str m = messages(watch_dir(
		"{\"path\":\"/work/w\"}", "Keepalive-Ping-Interval: 1\r\nConnect-Timeout-Ms: 1500\r\n"));
	assert_contains(m, "{\"start\":{}}{\"keepalive\":{}}{\"error\":");
}

static void a_client_that_leaves_ends_its_stream(void **state)
{
	clean();
	harness.stop_sending = true;
	assert_int_equal(watch_dir("{\"path\":\"/work/w\"}", "")->result, -ECONNRESET);
}

static void bad_requests_are_refused(void **state)
{
	clean();
	disk_write("/work/w/file", STR("x"));
	assert_rpc_failure(rpc("CreateWatcher", "{\"path\":\"/work/none\"}"), "not_found",
		"path /work/none not found: ");
	assert_rpc_failure(rpc("CreateWatcher", "{\"path\":\"/work/w/file\"}"), "invalid_argument",
		"path /work/w/file not a directory: ");
	assert_rpc_failure(rpc("CreateWatcher", "{\"path\":\"/work/w\",\"recursive\":\"yes\"}"),
		"invalid_argument", "recursive");
	static const char *const METHODS[] = {"GetWatcherEvents", "RemoveWatcher"};
	for (size_t i = 0; i < ARRAY_SIZE(METHODS); i++) {
		assert_rpc_failure(rpc(METHODS[i], "{\"watcherId\":\"w01234567890123456789\"}"), "not_found",
			"watcher with id w01234567890123456789 not found");
		assert_rpc_failure(rpc(METHODS[i], "{\"watcherId\":\"../x\"}"), "not_found",
			"watcher with id ../x not found");
		assert_rpc_failure(rpc(METHODS[i], "{}"), "not_found", "watcher with id  not found");
	}
	assert_contains(messages(watch_dir("{\"path\":\"/work/none\"}", "")),
		"{\"error\":{\"code\":\"not_found\",\"message\":\"path /work/none not found: ");
	assert_contains(messages(watch_dir("{\"path\":\"/work/w/file\"}", "")),
		"{\"error\":{\"code\":\"invalid_argument\",\"message\":\"path /work/w/file not a "
		"directory: ");
	assert_contains(messages(watch_dir("[]", "")), "\"invalid_argument\"");
	struct reply *r = ask("POST /filesystem.Filesystem/WatchDir HTTP/1.1\r\nHost: x\r\nContent-Type: "
			      "application/connect+json\r\nContent-Length: 3\r\n\r\nabc");
	assert_contains(messages(r), "exactly one message expected");
}

static const char *create(const char *json)
{
	static char id[64];
	struct reply *r = rpc("CreateWatcher", json);
	assert_status(r, 200);
	assert_int_equal(sscanf(buf_cstr(&r->body), "{\"watcherId\":\"%21[a-z0-9]\"}", id), 1);
	assert_int_equal(strlen(id), 21);
	return id;
}

static struct reply *of_watcher(const char *method, const char *id)
{
	char json[100];
	snprintf(json, sizeof(json), "{\"watcherId\":\"%s\"}", id);
	return rpc(method, json);
}

static void a_watcher_lives_between_the_calls(void **state)
{
	clean();
	const char *id = create("{\"path\":\"/work/w\",\"recursive\":true}");
	assert_body(of_watcher("GetWatcherEvents", id), STR("{\"events\":[]}"));
	make("/work/w/d");
	assert_body(of_watcher("GetWatcherEvents", id),
		STR("{\"events\":[{\"name\":\"d\",\"type\":\"EVENT_TYPE_CREATE\"}]}"));
	disk_write("/work/w/d/f", STR("x"));
	assert_body(of_watcher("GetWatcherEvents", id),
		STR("{\"events\":[{\"name\":\"d/f\",\"type\":\"EVENT_TYPE_CREATE\"},{\"name\":\"d/"
		    "f\",\"type\":\"EVENT_TYPE_WRITE\"}]}"));
	assert_body(of_watcher("GetWatcherEvents", id), STR("{\"events\":[]}"));
	assert_body(of_watcher("RemoveWatcher", id), STR("{}"));
	assert_int_equal(waitpid(-1, NULL, 0) > 0, 1);
	assert_rpc_failure(of_watcher("GetWatcherEvents", id), "not_found", id);
	assert_rpc_failure(of_watcher("RemoveWatcher", id), "not_found", id);
}

static void a_watcher_tells_what_it_lost_after_what_it_has(void **state)
{
	clean();
	const char *id = create("{\"path\":\"/work/w\",\"includeEntry\":true}");
	char path[64];
	/* Some 350 bytes of JSON for each. */
	for (int i = 0; i < 60000; i++) {
		snprintf(path, sizeof(path), "/work/w/f%d", i);
		disk_write(path, STR("x"));
	}
	struct reply *r = of_watcher("GetWatcherEvents", id);
	assert_status(r, 200);
	assert_contains(buf_str(&r->body), "\"f0\"");
	assert_rpc_failure(of_watcher("GetWatcherEvents", id), "data_loss", "events were lost");
	assert_rpc_failure(of_watcher("GetWatcherEvents", id), "data_loss", "events were lost");
	assert_body(of_watcher("RemoveWatcher", id), STR("{}"));
	waitpid(-1, NULL, 0);
}

static void a_watcher_that_was_killed_is_told(void **state)
{
	clean();
	const char *id = create("{\"path\":\"/work/w\"}");
	char path[64], children[64] = "";
	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0 && read(fd, children, sizeof(children) - 1) > 0);
	close(fd);
	pid_t pid = atoi(children);
	assert_true(pid > 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_rpc_failure(of_watcher("GetWatcherEvents", id), "not_found", "watcher with id w");
}

int main(void)
{
	harness_enter();
#define T(f) cmocka_unit_test_setup(f, harness_reset)
	const struct CMUnitTest tests[] = {
		T(each_change_has_its_event),
		T(directories_made_later_are_watched_with_what_is_in_them),
		T(what_a_scan_told_is_not_told_twice),
		T(a_renamed_directory_goes_on_under_its_new_name),
		T(links_are_not_followed_and_loops_end),
		T(a_removed_directory_is_told_and_then_silent),
		T(a_moved_root_says_what_it_cannot_follow),
		T(bounds_are_told),
		T(ten_thousand_files),
		T(a_stream_starts_tells_and_ends_at_its_deadline),
		T(silence_is_broken_by_keepalives),
		T(a_client_that_leaves_ends_its_stream),
		T(bad_requests_are_refused),
		T(a_watcher_lives_between_the_calls),
		T(a_watcher_tells_what_it_lost_after_what_it_has),
		T(a_watcher_that_was_killed_is_told),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	harness_leave();
	return r;
}
