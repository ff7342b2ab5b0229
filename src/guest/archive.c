#include "guest/archive.h"

#include "base/cleanup.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

bool archive_carries(struct str xattr)
{
	static const char *const others[] = {"security.capability", "system.posix_acl_access", "system.posix_acl_default"};
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		if (str_is(xattr, others[i]))
			return true;
	return str_starts(xattr, STR("user."));
}

int archive_open(int dir, const char *path, int flags)
{
	struct open_how how = {
		.flags = (unsigned)flags | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	long fd;
	do
		fd = syscall(SYS_openat2, dir, path, &how, sizeof(how));
	while (fd < 0 && errno == EINTR);
	return fd < 0 ? -errno : (int)fd;
}

static int query_path(struct files_call *c, struct buf *ret)
{
	int r = url_query_get(c->head.query, "path", ret);
	if (r < 0)
		return r == -ENOMEM ? r : files_fail(c, 400, "malformed query string");
	struct str path = buf_str(ret);
	if (r == 0 || !path.n)
		return files_fail(c, 400, "the query parameter 'path' is missing");
	if (path.p[0] != '/' || memchr(path.p, '\0', path.n))
		return files_fail(c, 400, "path is not absolute: %.*s", STR_FMT(path));
	return buf_cstr(ret) ? 0 : -ENOMEM;
}

static int query_follow(struct files_call *c, bool *ret)
{
	cleanup_buf struct buf given = BUF_INIT;
	int r = url_query_get(c->head.query, "follow", &given);
	struct str value = buf_str(&given);
	if (r < 0)
		return r == -ENOMEM ? r : files_fail(c, 400, "malformed query string");
	*ret = str_is(value, "1") || str_is(value, "true");
	return r == 0 || *ret || str_is(value, "0") || str_is(value, "false") ? 0 : files_fail(c, 400, "follow: 0 or 1 is wanted");
}

/* A parameter that does nothing would be taken for one that does. */
static int check_query(struct files_call *c, bool get)
{
	struct str rest = c->head.query, key, value;
	while (url_query_next(&rest, &key, &value))
		if (!str_is(key, "path") && !(get && str_is(key, "follow")))
			return files_fail(c, 400, "unknown query parameter: %.*s", STR_FMT(key));
	return 0;
}

int archive_serve(struct files_call *c)
{
	cleanup_buf struct buf path = BUF_INIT;
	bool get = str_is(c->head.method, "GET"), follow = false;
	if (!get && !str_is(c->head.method, "PUT"))
		return files_fail(c, 405, "method not allowed");
	int r = check_query(c, get);
	if (r == 0)
		r = query_path(c, &path);
	if (r == 0 && get)
		r = query_follow(c, &follow);
	if (r < 0)
		return r;
	return get ? archive_get(c, buf_cstr(&path), follow) : archive_put(c, buf_cstr(&path));
}
