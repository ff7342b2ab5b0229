#include "guest/filesystem_watch.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "guest/filesystem_entry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>

enum { FLUSH_BYTES = 64 * 1024 };

static int bool_field(struct filesystem_call *q, const char *field, const char *snake, bool *ret)
{
	const json_t *value = json_object_get(q->message, field);
	if (!value)
		value = json_object_get(q->message, snake);
	if (value && !json_is_boolean(value) && !json_is_null(value))
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s must be true or false", field);
	*ret = json_is_true(value);
	return 0;
}

static int refuse(struct filesystem_call *q, int r, const char *path)
{
	struct stat st;
	const char *text;
	switch (r) {
	case -ENOENT:
	case -ENOTDIR:
		if (stat(path, &st) == 0)
			return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT,
				"path %s not a directory: it is a file of another kind", path);
		return files_fail_rpc(
			q->call, CONNECT_NOT_FOUND, "path %s not found: %s", path, strerror(errno));
	case -EREMOTE:
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT,
			"path %s is on a network file system, where changes made elsewhere are not seen; "
			"allow it with allowNetworkMounts",
			path);
	case -EACCES:
	case -EPERM:
	case -ELOOP:
	case -ENAMETOOLONG:
		return files_fail_rpc_errno(q->call, r, "error watching", path);
	default: {
		enum connect_code code = watch_failure(r, &text);
		return files_fail_rpc(q->call, code, "cannot watch '%s': %s", path, text);
	}
	}
}

int watch_request_parse(struct filesystem_call *q, struct watch_options *ret)
{
	*ret = (struct watch_options){0};
	int r = filesystem_path(q, "path", &ret->path);
	if (r == 0)
		r = bool_field(q, "recursive", "recursive", &ret->recursive);
	if (r == 0)
		r = bool_field(q, "includeEntry", "include_entry", &ret->entries);
	if (r == 0)
		r = bool_field(q, "allowNetworkMounts", "allow_network_mounts", &ret->network_mounts);
	return r;
}

static int open_watch(struct filesystem_call *q, struct watch_options *o, struct watch_request *w)
{
	const char *path = buf_cstr(&o->path);
	w->entries = o->entries;
	files_clean(&w->path, buf_str(&o->path));
	if (!path || !buf_cstr(&w->path))
		return -ENOMEM;
	int r = watch_new(path, o->recursive, o->network_mounts, &w->watch);
	if (r < 0)
		return refuse(q, r, path);
	if (q->deadline && clock_monotonic() >= q->deadline)
		return files_fail_rpc(q->call, CONNECT_DEADLINE_EXCEEDED, "context deadline exceeded");
	return 0;
}

int watch_request_open(struct filesystem_call *q, struct watch_request *ret)
{
	struct watch_options options;
	*ret = (struct watch_request){0};
	int r = watch_request_parse(q, &options);
	if (r == 0)
		r = open_watch(q, &options, ret);
	buf_done(&options.path);
	if (r < 0)
		watch_request_done(ret);
	return r;
}

static void drop_names(struct watch_request *w)
{
	if (w->has_names)
		user_names_done(&w->names);
	w->has_names = false;
}

void watch_request_done(struct watch_request *w)
{
	watch_free(w->watch);
	buf_done(&w->path);
	drop_names(w);
	*w = (struct watch_request){0};
}

static void add_entry(struct watch_request *w, struct buf *to, struct str name)
{
	cleanup_buf struct buf path = BUF_INIT, entry = BUF_INIT;
	bool directory;
	buf_add_str(&path, buf_str(&w->path));
	if (!str_is(name, ".")) {
		buf_add_c(&path, buf_len(&path) == 1 ? "" : "/");
		buf_add_str(&path, name);
	}
	if (!w->has_names)
		w->has_names = user_names_load(&w->names) == 0;
	if (!w->has_names || !buf_cstr(&path))
		return;
	if (entry_add(&entry, &w->names, AT_FDCWD, buf_cstr(&path), buf_str(&path), &directory) < 0)
		return;
	buf_add_c(to, ",\"entry\":");
	buf_add_str(to, buf_str(&entry));
}

void watch_event_add(struct watch_request *w, struct buf *to, enum watch_op op, struct str name)
{
	static const char *const TYPES[] = {[WATCH_CREATE] = "CREATE",
		[WATCH_RENAME] = "RENAME",
		[WATCH_CHMOD] = "CHMOD",
		[WATCH_WRITE] = "WRITE",
		[WATCH_REMOVE] = "REMOVE"};
	buf_add_c(to, "{\"name\":");
	json_quote(to, name);
	buf_addf(to, ",\"type\":\"EVENT_TYPE_%s\"", TYPES[op]);
	if (w->entries && (op == WATCH_CREATE || op == WATCH_WRITE || op == WATCH_CHMOD))
		add_entry(w, to, name);
	buf_add_c(to, "}");
}

int watch_request_read(struct watch_request *w, watch_fn *tell, void *arg)
{
	int r = watch_read(w->watch, tell, arg);
	drop_names(w);
	return r;
}

/* ---- WatchDir ---- */

struct stream {
	struct files_call *call;
	struct watch_request watch;
	struct buf out; /* envelopes not sent yet */
};

static void flush(struct stream *s)
{
	if (s->out.failed)
		s->call->cut = -ENOMEM;
	else if (buf_len(&s->out) && s->call->cut == 0)
		files_send_chunk(s->call, buf_str(&s->out));
	buf_clear(&s->out);
}

static void on_event(enum watch_op op, struct str name, void *arg)
{
	struct stream *s = arg;
	cleanup_buf struct buf message = BUF_INIT;
	if (s->call->cut)
		return;
	buf_add_c(&message, "{\"filesystem\":");
	watch_event_add(&s->watch, &message, op, name);
	buf_add_c(&message, "}");
	if (message.failed)
		s->call->cut = -ENOMEM;
	else
		connect_envelope(&s->out, 0, buf_str(&message));
	if (buf_len(&s->out) >= FLUSH_BYTES)
		flush(s);
}

static int end(struct stream *s, enum connect_code code, const char *text)
{
	connect_end(&s->out, code, str_of(text));
	flush(s);
	return s->call->cut ? s->call->cut : files_send_chunk(s->call, STR(""));
}

static int64_t keepalive_of(const struct files_call *c)
{
	uint64_t s;
	if (str_to_u64(http_value(&c->head, "Keepalive-Ping-Interval"), &s) < 0 || s == 0 || s > 86400)
		s = 90;
	return (int64_t)s * NS_PER_S;
}

/* Until the queue holds something (1), or that time (0). The client's end is the connection's. */
static int await(struct stream *s, int64_t until)
{
	int64_t left = until - clock_monotonic();
	struct pollfd p[2] = {{.fd = watch_fd(s->watch.watch), .events = POLLIN},
		{.fd = s->call->request->conn, .events = POLLRDHUP}};
	/* Rounded up: not early, again and again. */
	int ms = left <= 0 ? 0 : (int)MIN((left + NS_PER_MS - 1) / NS_PER_MS, INT_MAX);
	int r = poll(p, 2, ms);
	if (r < 0 && errno != EINTR)
		return s->call->cut = -errno;
	/* Half closed counts: no client does that and reads on. */
	if (r > 0 && p[1].revents)
		return s->call->cut = -ECONNRESET;
	return r > 0 && p[0].revents;
}

static int run(struct stream *s, int64_t deadline)
{
	const int64_t interval = keepalive_of(s->call);
	int64_t due = clock_monotonic() + interval;
	connect_envelope(&s->out, 0, STR("{\"start\":{}}"));
	flush(s);
	while (s->call->cut == 0) {
		int64_t now = clock_monotonic();
		if (deadline && now >= deadline)
			return end(s, CONNECT_DEADLINE_EXCEEDED, "context deadline exceeded");
		if (now >= due)
			connect_envelope(&s->out, 0, STR("{\"keepalive\":{}}"));
		else if (await(s, deadline ? MIN(deadline, due) : due) > 0) {
			const char *text;
			int r = watch_request_read(&s->watch, on_event, s);
			if (r < 0) {
				enum connect_code code = watch_failure(r, &text);
				return end(s, code, text);
			}
		}
		if (buf_len(&s->out)) {
			flush(s);
			due = clock_monotonic() + interval;
		}
	}
	return s->call->cut;
}

int filesystem_watch_dir(struct filesystem_call *q)
{
	struct stream s = {.call = q->call};
	int r = watch_request_open(q, &s.watch);
	if (r < 0)
		return r;
	r = files_start(q->call, 200, "Content-Type: application/connect+json\r\n", HTTP_BODY_CHUNKED, 0);
	if (r == 0)
		r = run(&s, q->deadline);
	watch_request_done(&s.watch);
	buf_done(&s.out);
	return r;
}
