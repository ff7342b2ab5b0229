#include "cli/build_follow.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/exec.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

enum {
	POLL_MS = 200,
	PAGE = 100,            /* entries of the log in one answer, at most (e2b.md A.6) */
	PATIENCE_S = 60,       /* for a server that is being started again */
};

void build_init(struct build *b, struct client *cl, const struct cli *c, const char *name)
{
	*b = (struct build){.client = cl, .cli = c, .signals = -1};
	snprintf(b->name, sizeof(b->name), "%s", name);
	progress_init(&b->progress, c->json);
}

void build_done(struct build *b)
{
	progress_clear(&b->progress);
	if (b->signals >= 0)
		close(b->signals);
	b->signals = -1;
}

static void set_number(json_t *body, const struct cli *c, const char *flag, const char *key, json_int_t otherwise)
{
	const struct cli_value *v = cli_flag(c, flag);
	if (v->set || otherwise)
		json_object_set_new(body, key, json_integer(v->set ? v->number : otherwise));
}

int build_make(struct build *b, struct error *err)
{
	cleanup_json json_t *body = json_pack("{s:s}", "name", b->name), *made = NULL;
	if (!body)
		return error_set(err, -EINVAL, 400, "the template's name is no UTF-8");
	set_number(body, b->cli, "cpu", "cpuCount", b->cpu);
	set_number(body, b->cli, "memory", "memoryMB", b->memory);
	set_number(body, b->cli, "disk", "minFreeDiskMb", b->disk);
	int r = client_call(b->client, "POST", "/v3/templates", body, &made, NULL, err);
	if (r < 0)
		return r;
	struct str template = json_str(json_object_get(made, "templateID")), build = json_str(json_object_get(made, "buildID"));
	if (!template.n || template.n >= sizeof(b->template_id) || !build.n || build.n >= sizeof(b->build_id))
		return error_set(err, -EPROTO, 502, "the server did not say which template it made");
	snprintf(b->template_id, sizeof(b->template_id), "%.*s", STR_FMT(template));
	snprintf(b->build_id, sizeof(b->build_id), "%.*s", STR_FMT(build));
	return 0;
}

bool build_interrupted(int signals, int ms)
{
	struct signalfd_siginfo info;
	struct pollfd p = {.fd = signals, .events = POLLIN};
	int64_t end = clock_monotonic() + ms * NS_PER_MS, left;
	while ((left = end - clock_monotonic(), poll(&p, 1, (int)MAX(left / NS_PER_MS, 0)) > 0)) {
		/* The window's size is looked at whenever something is drawn. */
		if (read(signals, &info, sizeof(info)) == sizeof(info) && info.ssi_signo != SIGWINCH)
			return true;
	}
	return false;
}

static bool interrupted(struct build *b, int ms)
{
	if (b->signals < 0)
		b->signals = signals_block(true);
	return build_interrupted(b->signals, ms);
}

struct sending {
	struct build *b;
	uint64_t size;
};

static int sent_so_far(uint64_t sent, void *arg)
{
	struct sending *s = arg;
	progress_show(&s->b->progress, "uploading", s->size ? (int)(sent * 100 / s->size) : 100, sent, s->size);
	return interrupted(s->b, 0);
}

int build_upload(struct build *b, int fd, uint64_t size, const char *hash, struct error *err)
{
	char path[192];
	cleanup_json json_t *link = NULL;
	struct sending s = {b, size};
	snprintf(path, sizeof(path), "/templates/%s/files/%s", b->template_id, hash);
	int r = client_call(b->client, "GET", path, NULL, &link, NULL, err);
	if (r < 0 || json_is_true(json_object_get(link, "present")))
		return r;
	const char *url = json_string_value(json_object_get(link, "url"));
	if (!url)
		return error_set(err, -EPROTO, 502, "the server did not say where to send the files");
	r = client_upload(b->client, url, json_object_get(link, "headers"), fd, size, sent_so_far, &s, err);
	progress_clear(&b->progress);
	return r < 0 ? error_wrap(err, r, "uploading") : 0;
}

static void print_text(struct build *b, struct str text)
{
	if (!b->to_stdout) {
		progress_print(&b->progress, text);
		return;
	}
	cleanup_buf struct buf safe = BUF_INIT;
	print_safe(&safe, text);
	progress_clear(&b->progress);
	puts(buf_cstr(&safe) ? buf_cstr(&safe) : "");
}

static void print_entry(struct build *b, const json_t *entry)
{
	cleanup_buf struct buf line = BUF_INIT;
	if (b->cli->json) {
		json_dumpf(entry, stdout, JSON_COMPACT);
		putchar('\n');
		return;
	}
	struct str level = json_str(json_object_get(entry, "level")), step = json_str(json_object_get(entry, "step"));
	if (str_is(level, "debug"))
		return;
	if (step.n)
		buf_addf(&line, "[%.*s] ", STR_FMT(step));
	if (str_is(level, "warn") || str_is(level, "error"))
		buf_addf(&line, "%.*s: ", STR_FMT(level));
	buf_add_str(&line, json_str(json_object_get(entry, "message")));
	struct str rest = buf_str(&line), one;
	while (rest.n && rest.p[rest.n - 1] == '\n')
		rest.n--;
	/* What a program wrote is several lines. */
	while (str_cut(rest, '\n', &one, &rest))
		print_text(b, one);
	print_text(b, rest);
}

static int ask_status(struct build *b, size_t offset, json_t **ret, struct error *err)
{
	char path[256];
	int64_t since = clock_monotonic();
	for (;;) {
		snprintf(path, sizeof(path), "/templates/%s/builds/%s/status?logsOffset=%zu&limit=%d", b->template_id, b->build_id, offset, PAGE);
		struct error now = {0};
		int r = client_call(b->client, "GET", path, NULL, ret, NULL, &now);
		/* A build lives and dies with the server's node: a front that is started again, or one that waits for it, is no end. */
		bool passing = r == -ECONNREFUSED || r == -EIO || now.status == 503 || now.status == 502 || now.status == 504;
		if (r == 0 || !passing || clock_monotonic() - since > PATIENCE_S * NS_PER_S) {
			if (r < 0 && err)
				*err = now;
			return r;
		}
		if (interrupted(b, 1000))
			return error_set(err, -EINTR, 499, "interrupted");
	}
}

static bool has_ended(struct str status)
{
	return str_is(status, "ready") || str_is(status, "error") || str_is(status, "READY") || str_is(status, "FAILED");
}

int build_show_log(struct build *b, bool follow, char ret_status[16], struct error *err)
{
	size_t offset = 0;
	/* From here on a signal waits to be told of. */
	if (interrupted(b, 0))
		return error_set(err, -EINTR, 499, "interrupted");
	for (;;) {
		cleanup_json json_t *page = NULL;
		size_t i;
		const json_t *entry;
		int r = ask_status(b, offset, &page, err);
		if (r < 0)
			return r;
		const json_t *entries = json_object_get(page, "logEntries"), *percent = json_object_get(page, "progress");
		struct str status = json_str(json_object_get(page, "status")), phase = json_str(json_object_get(page, "phase"));
		bool ended = has_ended(status);
		json_array_foreach(entries, i, entry)
			print_entry(b, entry);
		offset += json_array_size(entries);
		if (fflush(stdout) != 0)
			return error_errno(err, -errno, "standard output");
		snprintf(ret_status, 16, "%.*s", STR_FMT(status));
		snprintf(b->reason, sizeof(b->reason), "%.*s", STR_FMT(json_str(json_object_get(json_object_get(page, "reason"), "message"))));
		if (!*b->reason)
			snprintf(b->reason, sizeof(b->reason), "%.*s", STR_FMT(json_str(json_object_get(page, "message"))));
		snprintf(b->step, sizeof(b->step), "%.*s", STR_FMT(json_str(json_object_get(json_object_get(page, "reason"), "step"))));
		/* Until an empty page: entries and the end come by themselves. */
		if (json_array_size(entries))
			continue;
		if (ended || !follow)
			return 0;
		cleanup_free char *name = str_dup(phase.n ? phase : status);
		progress_show(&b->progress, name ? name : "", json_is_integer(percent) ? (int)json_integer_value(percent) : -1, 0, 0);
		if (interrupted(b, POLL_MS))
			return error_set(err, -EINTR, 499, "interrupted");
	}
}

static int still_building(struct build *b)
{
	progress_clear(&b->progress);
	fprintf(stderr, "cubicle: the build goes on: `cubicle template logs -f %s` shows it\n", b->template_id);
	return EXIT_INTERRUPTED;
}

static int report(struct build *b, const char *status)
{
	if (b->cli->json) {
		cleanup_json json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:f}", "templateID", b->template_id, "buildID", b->build_id, "name", b->name, "status", status, "seconds",
			(double)(clock_monotonic() - b->progress.start) / NS_PER_S);
		json_dumpf(j, stdout, JSON_COMPACT);
		putchar('\n');
	} else {
		printf("%s\n", b->template_id);
	}
	return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
}

static int publish(struct build *b, struct error *err)
{
	char path[96];
	if (!cli_flag(b->cli, "public")->set)
		return 0;
	cleanup_json json_t *body = json_pack("{s:b}", "public", true);
	snprintf(path, sizeof(path), "/v2/templates/%s", b->template_id);
	return client_call(b->client, "PATCH", path, body, NULL, NULL, err);
}

static int watch(struct build *b, struct error *err)
{
	char status[16];
	int r = build_show_log(b, true, status, err);
	progress_clear(&b->progress);
	if (r == -EINTR)
		return still_building(b);
	if (r < 0)
		return cli_fail(b->cli, err);
	if (strcmp(status, "ready") != 0) {
		bool numbered = b->step[0] >= '0' && b->step[0] <= '9';
		error_set(err, -EREMOTEIO, 422, "the build failed%s%s: %s", *b->step ? numbered ? " in step " : " in " : "", b->step, *b->reason ? b->reason : "see the log");
		return cli_fail(b->cli, err);
	}
	return report(b, status);
}

int build_run(struct build *b, json_t *body)
{
	struct error err = {0};
	char path[160];
	if (cli_flag(b->cli, "no-cache")->set)
		json_object_set_new(body, "force", json_true());
	const struct cli_value *isolation = cli_flag(b->cli, "isolation");
	if (isolation->set && json_object_set_new(body, "isolation", json_string(isolation->text)) < 0)
		error_set(&err, -EINVAL, 400, "--isolation is no UTF-8");
	snprintf(path, sizeof(path), "/v2/templates/%s/builds/%s", b->template_id, b->build_id);
	if (err.code || publish(b, &err) < 0 || client_call(b->client, "POST", path, body, NULL, NULL, &err) < 0)
		return cli_fail(b->cli, &err);
	return cli_flag(b->cli, "no-wait")->set ? report(b, "building") : watch(b, &err);
}
