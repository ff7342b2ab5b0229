#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/client.h"
#include "cli/output.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define FOLLOW_EVERY (400 * NS_PER_MS)

/* How far the log was shown: entries come in the order of their times, several may have the same millisecond. */
struct shown {
	int64_t ms;
	size_t n; /* entries of that millisecond or later */
	bool ended; /* nothing follows */
};

static void print_entry(const struct cli *c, const json_t *entry)
{
	cleanup_buf struct buf line = BUF_INIT;
	const json_t *fields = json_object_get(entry, "fields"), *value;
	const char *key;
	if (c->json) {
		json_dumpf(entry, stdout, JSON_COMPACT);
		putchar('\n');
		return;
	}
	struct str level = json_str(json_object_get(entry, "level")), time = json_str(json_object_get(entry, "timestamp"));
	buf_addf(&line, "%.*s %-5.*s ", STR_FMT(time), STR_FMT(level));
	print_safe(&line, json_str(json_object_get(fields, "logger")));
	buf_add_c(&line, ": ");
	print_safe(&line, json_str(json_object_get(entry, "message")));
	json_object_foreach((json_t *)fields, key, value)
		if (strcmp(key, "logger") != 0) {
			buf_add_c(&line, " ");
			print_safe(&line, str_of(key));
			buf_add_c(&line, "=");
			print_safe(&line, json_str(value));
		}
	puts(buf_cstr(&line) ? buf_cstr(&line) : "");
}

/* What the server itself says, so nothing inside can pretend it (api/logs.c). */
static bool is_end(const json_t *entry)
{
	return str_is(json_str(json_object_get(json_object_get(entry, "fields"), "logger")), "lifecycle") && str_is(json_str(json_object_get(entry, "message")), "ended");
}

/* Shows the entries of an answer that were not shown yet. Returns how many were new. */
static size_t show(const struct cli *c, const json_t *answer, enum log_level lowest, struct shown *s)
{
	size_t i, skip = s->n, new = 0;
	const json_t *entry;
	json_array_foreach(json_object_get(answer, "logEntries"), i, entry) {
		int64_t at;
		enum log_level level;
		if (i < skip || rfc3339_parse(json_str(json_object_get(entry, "timestamp")), &at) < 0)
			continue;
		if (at / NS_PER_MS > s->ms)
			*s = (struct shown){.ms = at / NS_PER_MS, .ended = s->ended};
		s->n++;
		new++;
		s->ended = s->ended || is_end(entry);
		if (log_level_parse(json_str(json_object_get(entry, "level")), &level) == 0 && level >= lowest)
			print_entry(c, entry);
	}
	return new;
}

int cmd_sandbox_logs(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	char id[32];
	enum log_level lowest = LOG_DEBUG;
	const struct cli_value *level = cli_flag(c, "level");
	bool follow = cli_flag(c, "follow")->set, began = false;
	if (level->set && log_level_parse(str_of(level->text), &lowest) < 0) {
		error_set(&err, -EINVAL, 400, "--level: '%s' is not debug, info, warn or error", level->text);
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (client_open(&cl, c, &err) < 0 || client_resolve(&cl, c->words[0], id, &err) < 0)
		return cli_fail(c, &err);
	for (struct shown s = {0};; began = true) {
		char path[128];
		cleanup_json json_t *page = NULL;
		snprintf(path, sizeof(path), "/sandboxes/%s/logs?limit=1000&start=%lld", id, (long long)s.ms);
		if (client_call(&cl, "GET", path, NULL, &page, NULL, &err) < 0)
			return began && err.status == 404 ? EXIT_OK : cli_fail(c, &err);
		size_t new = show(c, page, lowest, &s);
		if (fflush(stdout) != 0)
			return EXIT_FAILED;
		/* The rest of a long log follows at once. */
		if (new && json_array_size(json_object_get(page, "logEntries")) == 1000)
			continue;
		if (!follow || s.ended)
			return EXIT_OK;
		nanosleep(&(struct timespec){.tv_nsec = FOLLOW_EVERY}, NULL);
	}
}
