/* The control plane answers what every published client sends as it did when that was recorded (tests/e2e/matrix/record.py). Argument: the directory of recordings. */
#include "api_world.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *directory;

/* Requests to a sandbox say whose they are; envd's are replayed by test_recorded.py. */
static bool is_for_a_sandbox(const char *request)
{
	return strcasestr(request, "\r\ne2b-sandbox-id:") || strcasestr(request, "\r\nhost: 49983-");
}

static void replace(struct buf *to, const char *text, const char *what, const char *by)
{
	for (const char *at; (at = strstr(text, what)); text = at + strlen(what)) {
		buf_add(to, text, (size_t)(at - text));
		buf_add_c(to, by);
	}
	buf_add_c(to, text);
}

static void post(struct world *w, const char *id, const char *route, int status, char snapshot[64])
{
	char target[128];
	snprintf(target, sizeof(target), "/sandboxes/%s/%s", id, route);
	cleanup_reply struct reply r = world_ask(w, "POST", target, NULL, NULL);
	assert_int_equal(r.status, status);
	if (snapshot)
		snprintf(snapshot, 64, "%s", reply_text(&r, "snapshotID"));
}

static void replay(struct world *w, const char *client, const char *request, int status)
{
	cleanup_buf struct buf with_key = BUF_INIT, with_id = BUF_INIT, bytes = BUF_INIT;
	char id[64] = "", snapshot[64] = "";
	bool needs_snapshot = strstr(request, "{snapshot}");
	if (needs_snapshot || strstr(request, "{id}")) {
		cleanup_reply struct reply made = world_ask(w, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}");
		assert_int_equal(made.status, 201);
		snprintf(id, sizeof(id), "%s", reply_text(&made, "sandboxID"));
	}
	if (needs_snapshot)
		post(w, id, "snapshots", 201, snapshot);
	/* What was answered with 201 was paused before. */
	if (status == 201 && (strstr(request, "/connect HTTP") || strstr(request, "/resume HTTP")))
		post(w, id, "pause", 204, NULL);
	replace(&with_key, request, "{key}", w->key);
	replace(&with_id, buf_cstr(&with_key), "{id}", id);
	replace(&bytes, buf_cstr(&with_id), "{snapshot}", snapshot);
	int fd = world_open(w, false);
	cleanup_reply struct reply r = world_send(w, fd, buf_str(&bytes));
	close(fd);
	world_turn(w);
	if (r.status != status)
		fail_msg("%s: %d, not %d, to:\n%s\n%.*s", client, r.status, status, request, STR_FMT(r.body));
	if (json_object_get(r.json, "sandboxID") && status == 201)
		assert_non_null(world_find(w, reply_text(&r, "sandboxID")));
}

static int replay_file(struct world *w, const char *name)
{
	char path[512], line[65536];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	FILE *f = fopen(path, "re");
	assert_non_null(f);
	int n = 0;
	while (fgets(line, sizeof(line), f)) {
		json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
		const char *request = json_string_value(json_object_get(j, "request"));
		assert_non_null(request);
		if (!is_for_a_sandbox(request)) {
			replay(w, name, request, (int)json_integer_value(json_object_get(j, "status")));
			n++;
		}
		json_decref(j);
	}
	fclose(f);
	return n;
}

static void every_recording_gets_the_same_answers(void **state)
{
	DIR *d = opendir(directory);
	assert_non_null(d);
	int n_files = 0;
	for (struct dirent *e; (e = readdir(d));) {
		if (!strstr(e->d_name, ".jsonl"))
			continue;
		struct world *w = world_new();
		world_connect_node(w);
		assert_true(replay_file(w, e->d_name) >= 7);
		world_free(w);
		n_files++;
	}
	closedir(d);
	assert_true(n_files >= 6);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	directory = argv[1];
	signal(SIGPIPE, SIG_IGN);
	log_setup("test", 2, LOG_ERROR);
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_recording_gets_the_same_answers)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
