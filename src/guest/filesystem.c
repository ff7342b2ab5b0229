#include "base/clock.h"
#include "base/fd.h"
#include "guest/filesystem_entry.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

/* A unary call with its parsed message. */
struct rpc {
	struct files_call *call;
	json_t *message;
	int64_t deadline; /* CLOCK_MONOTONIC, 0 = none */
	struct buf answer;
};

/* The path in a field, resolved; absent and null are the empty string (protobuf JSON mapping). */
static int path_field(struct rpc *q, const char *field, struct buf *ret)
{
	const json_t *value = json_object_get(q->message, field);
	if (value && !json_is_string(value) && !json_is_null(value))
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s must be a string", field);
	const char *why = NULL;
	int r = files_resolve(q->call, json_str(value), ret, &why);
	return r == -EINVAL ? files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s: %s", field, why) : r;
}

/* A uint32 field: a number or, as the mapping allows, its decimal text. */
static int number_field(struct rpc *q, const char *field, uint32_t *ret)
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

static int answer_entry(struct rpc *q, const char *path)
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

static int do_stat(struct rpc *q)
{
	cleanup_buf struct buf path = BUF_INIT;
	int r = path_field(q, "path", &path);
	return r < 0 ? r : answer_entry(q, buf_cstr(&path));
}

static int fail_parents(struct rpc *q, int r, const char *path, size_t bad)
{
	if (r == -ENOTDIR)
		return files_fail_rpc(
			q->call, CONNECT_INVALID_ARGUMENT, "path is a file: %.*s", (int)bad, path);
	return files_fail_rpc_errno(q->call, r, "error making directories", path);
}

static int do_make_dir(struct rpc *q)
{
	cleanup_buf struct buf buffer = BUF_INIT;
	int r = path_field(q, "path", &buffer);
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

static int do_move(struct rpc *q)
{
	cleanup_buf struct buf from = BUF_INIT, to = BUF_INIT;
	int r = path_field(q, "source", &from);
	if (r == 0)
		r = path_field(q, "destination", &to);
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

static int do_list_dir(struct rpc *q)
{
	cleanup_buf struct buf path = BUF_INIT;
	uint32_t depth = 0;
	int r = path_field(q, "path", &path);
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

static int do_remove(struct rpc *q)
{
	cleanup_buf struct buf path = BUF_INIT;
	int r = path_field(q, "path", &path);
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

/* Watching has its state in PID 1, which does not offer it yet. */
static int do_watch(struct rpc *q)
{
	return files_fail_rpc(q->call, CONNECT_UNIMPLEMENTED, "watching directories is not supported");
}

static const struct method {
	const char *name;
	int (*run)(struct rpc *q);
	bool stream;
} METHODS[] = {
	{"Stat", do_stat, false},
	{"MakeDir", do_make_dir, false},
	{"Move", do_move, false},
	{"ListDir", do_list_dir, false},
	{"Remove", do_remove, false},
	{"WatchDir", do_watch, true},
	{"CreateWatcher", do_watch, false},
	{"GetWatcherEvents", do_watch, false},
	{"RemoveWatcher", do_watch, false},
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

static int read_deadline(struct rpc *q)
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

/* Reads the message whole; of a stream the one envelope is no matter, since no stream is served. */
static int read_message(struct rpc *q, const struct method *method)
{
	cleanup_buf struct buf body = BUF_INIT;
	int r = files_body_read(q->call, FILES_MAX_MESSAGE, &body);
	if (r == -EMSGSIZE)
		return files_fail_rpc(q->call, CONNECT_RESOURCE_EXHAUSTED, "message longer than %d bytes",
			FILES_MAX_MESSAGE);
	if (r < 0 || method->stream)
		return r;
	struct error err = {0};
	q->message = json_parse(buf_str(&body), FILES_MAX_MESSAGE, "message", &err);
	if (!q->message)
		return files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "%s", err.message);
	return json_is_object(q->message)
		       ? 0
		       : files_fail_rpc(q->call, CONNECT_INVALID_ARGUMENT, "message must be an object");
}

static int serve_method(struct rpc *q, const struct method *method)
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
	return q->answer.failed ? -ENOMEM
				: files_respond(q->call, 200, "application/json", NULL, buf_str(&q->answer));
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
	struct rpc q = {.call = c};
	int r = serve_method(&q, method);
	buf_done(&q.answer);
	json_decref(q.message);
	return r;
}
