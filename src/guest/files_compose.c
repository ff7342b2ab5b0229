#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/files_call.h"
#include "io/json.h"

#include <errno.h>
#include <sys/stat.h>

enum { MAX_SOURCES = 1000 };

/* One request to join files (e2b.md B.2). */
struct compose {
	struct files_call *call;
	const json_t *sources;
	struct buf destination; /* resolved */
	char *buffer;           /* FILES_BUFFER bytes */
};

static int resolve(struct compose *k, const json_t *path, const char *field, struct buf *ret)
{
	const char *why = NULL;
	if (!json_is_string(path) || json_string_length(path) == 0)
		return files_fail(k->call, 400, "%s must be a path", field);
	int r = files_resolve(k->call, json_str(path), ret, &why);
	return r == -EINVAL ? files_fail(k->call, 400, "%s: %s", field, why) : r;
}

static int open_source(struct compose *k, size_t i, struct buf *path, struct stat *ret_st)
{
	buf_clear(path);
	int r = resolve(k, json_array_get(k->sources, i), "source_paths", path);
	return r < 0 ? r : files_open(k->call, buf_cstr(path), ret_st);
}

/* Everything is looked at before anything is written: the destination is emptied first, so it cannot be a
 * source. */
static int check_sources(struct compose *k)
{
	struct stat destination, source;
	bool exists = stat(buf_cstr(&k->destination), &destination) == 0;
	cleanup_buf struct buf path = BUF_INIT;
	for (size_t i = 0; i < json_array_size(k->sources); i++) {
		cleanup_fd int fd = open_source(k, i, &path, &source);
		if (fd < 0)
			return fd;
		if (exists && source.st_dev == destination.st_dev && source.st_ino == destination.st_ino)
			return files_fail(
				k->call, 400, "destination is one of the sources: %s", buf_cstr(&path));
	}
	return 0;
}

static int append(struct compose *k, int to, size_t i)
{
	struct stat st;
	cleanup_buf struct buf path = BUF_INIT;
	cleanup_fd int fd = open_source(k, i, &path, &st);
	if (fd < 0)
		return fd;
	for (;;) {
		ssize_t n = read(fd, k->buffer, FILES_BUFFER);
		if (n == 0)
			return 0;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return files_fail_errno(k->call, errno, "cannot read", buf_cstr(&path));
		int r = fd_write_all(to, k->buffer, (size_t)n);
		if (r < 0)
			return files_fail_errno(k->call, r, "error writing file", buf_cstr(&k->destination));
	}
}

static int join(struct compose *k)
{
	static const struct files_meta none;
	bool kept;
	const char *target = buf_cstr(&k->destination);
	cleanup_fd int fd = files_create(k->call, target, &none, &kept);
	if (fd < 0)
		return fd;
	for (size_t i = 0; i < json_array_size(k->sources); i++) {
		int r = append(k, fd, i);
		if (r < 0)
			return r;
	}
	if (close(steal_fd(&fd)) < 0 && errno != EINTR)
		return files_fail_errno(k->call, errno, "error writing file", target);
	return 0;
}

/* Only when their bytes are in the destination; one may be named twice. */
static int remove_sources(struct compose *k)
{
	cleanup_buf struct buf path = BUF_INIT;
	for (size_t i = 0; i < json_array_size(k->sources); i++) {
		buf_clear(&path);
		int r = resolve(k, json_array_get(k->sources, i), "source_paths", &path);
		if (r < 0)
			return r;
		if (unlink(buf_cstr(&path)) < 0 && errno != ENOENT)
			return files_fail_errno(k->call, errno, "error removing", buf_cstr(&path));
	}
	return 0;
}

static int answer(struct compose *k)
{
	cleanup_buf struct buf body = BUF_INIT;
	buf_add_c(&body, "{\"name\":");
	json_quote(&body, files_base_name(buf_str(&k->destination)));
	buf_add_c(&body, ",\"path\":");
	json_quote(&body, buf_str(&k->destination));
	buf_add_c(&body, ",\"type\":\"file\"}");
	return body.failed ? -ENOMEM : files_respond(k->call, 200, "application/json", NULL, buf_str(&body));
}

static int compose(struct compose *k, const json_t *message)
{
	const json_t *username = json_object_get(message, "username");
	k->sources = json_object_get(message, "source_paths");
	if (username && !json_is_null(username) && !json_is_string(username))
		return files_fail(k->call, 400, "username must be a string");
	if (!json_is_array(k->sources) || json_array_size(k->sources) == 0 ||
		json_array_size(k->sources) > MAX_SOURCES)
		return files_fail(k->call, 400, "source_paths must be a list of 1 to %d paths", MAX_SOURCES);
	int r = files_user_of_name(k->call, json_str(username));
	if (r == 0)
		r = resolve(k, json_object_get(message, "destination"), "destination", &k->destination);
	if (r == 0)
		r = check_sources(k);
	if (r == 0)
		r = join(k);
	if (r == 0)
		r = remove_sources(k);
	return r < 0 ? r : answer(k);
}

int files_compose(struct files_call *c)
{
	cleanup_buf struct buf body = BUF_INIT;
	int r = files_body_read(c, FILES_MAX_MESSAGE, &body);
	if (r < 0)
		return r;
	struct error err = {0};
	cleanup_json json_t *message = json_parse(buf_str(&body), FILES_MAX_MESSAGE, "body", &err);
	if (!message)
		return files_fail(c, 400, "%s", err.message);
	if (!json_is_object(message))
		return files_fail(c, 400, "body must be an object");
	cleanup_free char *buffer = malloc(FILES_BUFFER);
	if (!buffer)
		return -ENOMEM;
	struct compose k = {.call = c, .buffer = buffer};
	r = compose(&k, message);
	buf_done(&k.destination);
	return r;
}
