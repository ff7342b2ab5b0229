#include "base/clock.h"
#include "base/fd.h"
#include "guest/filesystem_call.h"
#include "guest/filesystem_entry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

int filesystem_path(struct filesystem_call *q, const char *field, struct buf *ret)
{
	const json_t *value = json_object_get(q->message, field);
	if (value && !json_is_string(value) && !json_is_null(value))
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s must be a string", field);
	const char *why = NULL;
	int r = files_resolve(q->call, json_str(value), ret, &why);
	return r == -EINVAL ? files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s: %s", field, why) : r;
}

/* A uint32 field: a number or, as the mapping allows, its decimal text. */
static int number_field(struct filesystem_call *q, const char *field, uint32_t *ret)
{
	const json_t *value = json_object_get(q->message, field);
	uint64_t n = 0;
	if (json_is_integer(value) && json_integer_value(value) >= 0)
		n = (uint64_t)json_integer_value(value);
	else if (value && !json_is_null(value) &&
		 (!json_is_string(value) || str_to_u64(json_str(value), &n) < 0))
		n = UINT64_MAX;
	if (n > UINT32_MAX)
		return files_fail_rpc(
			q->call, CONNECT_INVALID_ARGUMENT, "%s must be an unsigned 32-bit number", field);
	*ret = (uint32_t)n;
	return 0;
}

static int answer_entry(struct filesystem_call *q, const char *path)
{
	struct user_names names;
	int r = user_names_load(&names);
	if (r < 0)
		return r;
	bool directory;
	buf_add_c(&q->answer, "{\"entry\":");
	r = entry_add(&q->answer, &names, AT_FDCWD, path, str_of(path), &directory);
	buf_add_c(&q->answer, "}");
	user_names_done(&names);
	if (r == -ENOENT || r == -ENOTDIR)
		return files_fail_rpc(q->call, CONNECT_NOT_FOUND, "file not found: %s", path);
	return r < 0 ? files_fail_rpc_errno(q->call, r, "error getting file info", path) : 0;
}

static int do_stat(struct filesystem_call *q)
{
	cleanup_buf struct buf path = BUF_INIT;
	int r = filesystem_path(q, "path", &path);
	return r < 0 ? r : answer_entry(q, buf_cstr(&path));
}

static int fail_parents(struct filesystem_call *q, int r, const char *path, size_t bad)
{
	if (r == -ENOTDIR)
		return files_fail_rpc(
			q->call, CONNECT_INVALID_ARGUMENT, "path is a file: %.*s", (int)bad, path);
	return files_fail_rpc_errno(q->call, r, "error making directories", path);
}

static int do_make_dir(struct filesystem_call *q)
{
	cleanup_buf struct buf buffer = BUF_INIT;
	int r = filesystem_path(q, "path", &buffer);
	if (r < 0)
		return r;
	const char *path = buf_cstr(&buffer);
	struct stat st;
	if (stat(path, &st) == 0)
		return S_ISDIR(st.st_mode)
			       ? files_fail_rpc(q->call, CONNECT_ALREADY_EXISTS,
					 "directory already exists: %s", path)
			       : files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT,
					 "path already exists but it is not a directory: %s", path);
	size_t bad = 0;
	r = files_make_dirs(q->call, path, &bad);
	return r < 0 ? fail_parents(q, r, path, bad) : answer_entry(q, path);
}

static int do_move(struct filesystem_call *q)
{
	cleanup_buf struct buf from = BUF_INIT, to = BUF_INIT;
	int r = filesystem_path(q, "source", &from);
	if (r == 0)
		r = filesystem_path(q, "destination", &to);
	if (r < 0)
		return r;
	const char *source = buf_cstr(&from), *destination = buf_cstr(&to);
	/* Looked at first, so that a move of nothing makes no directories. */
	struct stat st;
	if (lstat(source, &st) < 0 && (errno == ENOENT || errno == ENOTDIR))
		return files_fail_rpc(q->call, CONNECT_NOT_FOUND, "source file not found: %s", source);
	size_t bad = 0;
	r = files_make_parents(q->call, destination, &bad);
	if (r < 0)
		return fail_parents(q, r, destination, bad);
	if (rename(source, destination) == 0)
		return answer_entry(q, destination);
	switch (errno) {
	case ENOENT:
		return files_fail_rpc(q->call, CONNECT_NOT_FOUND, "source file not found: %s", source);
	case ENOSPC:
	case EDQUOT:
	case ENAMETOOLONG:
	case EACCES:
	case EPERM:
		return files_fail_rpc_errno(q->call, errno, "error renaming", source);
	default:
		return files_fail_rpc(q->call, CONNECT_INTERNAL, "error renaming '%s' to '%s': %s", source,
			destination, strerror(errno));
	}
}

static int do_list_dir(struct filesystem_call *q)
{
	cleanup_buf struct buf path = BUF_INIT;
	uint32_t depth = 0;
	int r = filesystem_path(q, "path", &path);
	if (r == 0)
		r = number_field(q, "depth", &depth);
	struct user_names names;
	if (r == 0)
		r = user_names_load(&names);
	if (r < 0)
		return r;
	buf_add_c(&q->answer, "{\"entries\":[");
	r = list_add(q->call, &q->answer, &names, buf_cstr(&path), depth, q->deadline);
	buf_add_c(&q->answer, "]}");
	user_names_done(&names);
	return r;
}

static bool is_mount_point(const char *path)
{
	struct statx st;
	return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &st) == 0 &&
	       (st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

static int do_remove(struct filesystem_call *q)
{
	cleanup_buf struct buf path = BUF_INIT;
	int r = filesystem_path(q, "path", &path);
	if (r < 0)
		return r;
	/* "link/" means the link here, as it does everywhere else in this service. */
	while (buf_len(&path) > 1 && path.data[path.end - 1] == '/')
		path.end--;
	const char *target = buf_cstr(&path);
	struct str name = files_base_name(buf_str(&path));
	if (str_is(name, "/") || str_is(name, ".") || str_is(name, ".."))
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "cannot remove '%s'", target);
	/* Before anything in it is gone. */
	if (is_mount_point(target))
		return files_fail_rpc(
			q->call, CONNECT_INTERNAL, "error removing '%s': it is a mount point", target);
	r = remove_tree(AT_FDCWD, target);
	if (r < 0 && r != -ENOENT && r != -ENOTDIR)
		return files_fail_rpc_errno(q->call, r, "error removing", target);
	return buf_add_c(&q->answer, "{}");
}

static const struct method {
	const char *name;
	int (*run)(struct filesystem_call *q);
	bool stream;
} METHODS[] = {
	{"Stat", do_stat, false},
	{"MakeDir", do_make_dir, false},
	{"Move", do_move, false},
	{"ListDir", do_list_dir, false},
	{"Remove", do_remove, false},
	{"WatchDir", filesystem_watch_dir, true},
	{"CreateWatcher", filesystem_create_watcher, false},
	{"GetWatcherEvents", filesystem_get_watcher_events, false},
	{"RemoveWatcher", filesystem_remove_watcher, false},
};

/* application/json for unary calls, application/connect+json for streams, nothing behind it but charset=utf-8
 * (B.5). */
static bool is_content_type(struct str value, const char *wanted)
{
	struct str media = value, parameter = str_n("", 0);
	if (str_cut(value, ';', &media, &parameter) &&
		!str_eq_nocase(str_trim(parameter), STR("charset=utf-8")))
		return false;
	return str_eq_nocase(str_trim(media), str_of(wanted));
}

static int read_deadline(struct filesystem_call *q)
{
	const struct http_header *sent = http_find(&q->call->head, "Connect-Timeout-Ms");
	uint64_t ms;
	if (!sent)
		return 0;
	if (sent->value.n > 10 || str_to_u64(sent->value, &ms) < 0)
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "malformed Connect-Timeout-Ms");
	q->deadline = clock_monotonic() + (int64_t)ms * NS_PER_MS;
	return 0;
}

/* Of the body of a stream: exactly one envelope. */
static int take_envelope(struct filesystem_call *q, struct str *body)
{
	unsigned flags;
	struct str message;
	ssize_t n = connect_parse_envelope(*body, FILES_MAX_MESSAGE, &flags, &message);
	if (n == -EMSGSIZE)
		return files_fail_rpc(q->call, CONNECT_RESOURCE_EXHAUSTED, "message longer than %d bytes",
			FILES_MAX_MESSAGE);
	if (n <= 0 || (size_t)n < body->n)
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "exactly one message expected");
	if (flags != 0)
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "envelope with flags 0x%02x", flags);
	*body = message;
	return 0;
}

static int read_message(struct filesystem_call *q, const struct method *method)
{
	cleanup_buf struct buf body = BUF_INIT;
	int r = files_body_read(
		q->call, FILES_MAX_MESSAGE + (method->stream ? (size_t)CONNECT_HEADER : 0), &body);
	if (r == -EMSGSIZE)
		return files_fail_rpc(q->call, CONNECT_RESOURCE_EXHAUSTED, "message longer than %d bytes",
			FILES_MAX_MESSAGE);
	struct str text = buf_str(&body);
	if (r == 0 && method->stream)
		r = take_envelope(q, &text);
	if (r < 0)
		return r;
	struct error err = {0};
	q->message = json_parse(text, FILES_MAX_MESSAGE, "message", &err);
	if (!q->message)
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s", err.message);
	return json_is_object(q->message)
		       ? 0
		       : files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "message must be an object");
}

static int serve_method(struct filesystem_call *q, const struct method *method)
{
	struct str coding =
		http_value(&q->call->head, method->stream ? "Connect-Content-Encoding" : "Content-Encoding");
	if (coding.n && !str_eq_nocase(coding, STR("identity")))
		return files_fail_rpc(q->call, CONNECT_UNIMPLEMENTED,
			"unknown compression '%.*s': supported encodings are none", STR_FMT(coding));
	int r = files_user_of_basic(q->call);
	if (r == 0)
		r = read_deadline(q);
	if (r == 0)
		r = read_message(q, method);
	if (r == 0)
		r = method->run(q);
	if (r < 0)
		return r;
	if (method->stream)
		return 0;
	r = q->answer.failed ? -ENOMEM
			     : files_respond(q->call, 200, "application/json", NULL, buf_str(&q->answer));
	/* Nobody will ever ask what its client does not know of. */
	if (r < 0 && q->watcher > 0)
		kill(q->watcher, SIGKILL);
	return r;
}

int filesystem_serve(struct files_call *c)
{
	struct str name = str_from(c->head.path, sizeof("/filesystem.Filesystem/") - 1);
	const struct method *method = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(METHODS); i++) {
		if (str_is(name, METHODS[i].name))
			method = &METHODS[i];
	}
	if (!method)
		return files_fail_rpc(
			c, CONNECT_UNIMPLEMENTED, "unknown method filesystem.Filesystem/%.*s", STR_FMT(name));
	if (!str_is(c->head.method, "POST"))
		return files_fail(c, 405, "method not allowed");
	struct str type = http_value(&c->head, "Content-Type");
	const char *wanted = method->stream ? "application/connect+json" : "application/json";
	if (!is_content_type(type, wanted))
		return files_fail(c, 415, "unsupported content type '%.*s', want %s", STR_FMT(type), wanted);
	c->stream = method->stream;
	struct filesystem_call q = {.call = c};
	int r = serve_method(&q, method);
	buf_done(&q.answer);
	json_decref(q.message);
	return r;
}
