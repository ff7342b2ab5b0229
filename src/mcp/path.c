#include "mcp/path.h"

#include <errno.h>

bool mcp_path_inside(struct str path)
{
	struct str root = STR(MCP_WORKSPACE);
	return str_starts(path, root) && (path.n == root.n || path.p[root.n] == '/');
}

/* Takes the last part off. */
static void up(struct buf *to, size_t base)
{
	struct str all = buf_str(to);
	size_t n = all.n;
	while (n > base && all.p[n - 1] != '/')
		n--;
	to->end = to->start + (n > base ? n - 1 : base);
}

int mcp_path(struct str path, bool absolute, struct buf *to, struct error *err)
{
	size_t base = buf_len(to);
	if (!path.n)
		return error_set(err, -EINVAL, 400, "path must not be empty");
	if (path.n > MCP_MAX_PATH)
		return error_set(err, -EINVAL, 400, "path must have at most %d bytes", MCP_MAX_PATH);
	if (memchr(path.p, 0, path.n))
		return error_set(err, -EINVAL, 400, "path must not have a NUL character");
	bool relative = path.p[0] != '/';
	if (!relative && !absolute)
		return error_set(err, -EINVAL, 400, "path must be relative (to " MCP_WORKSPACE "): absolute ones are not allowed here");
	if (path.p[0] == '~' && (path.n == 1 || path.p[1] == '/'))
		path = str_from(path, 1);
	if (relative)
		buf_add_c(to, MCP_WORKSPACE);
	size_t root = buf_len(to);
	struct str part, rest = path;
	while (rest.n) {
		if (!str_cut(rest, '/', &part, &rest)) {
			part = rest;
			rest = str_n("", 0);
		}
		if (!part.n || str_is(part, "."))
			continue;
		if (!str_is(part, "..")) {
			buf_add_c(to, "/");
			buf_add_str(to, part);
			continue;
		}
		if (relative && !absolute && buf_len(to) <= root)
			return error_set(err, -EINVAL, 400, "path must not leave the workspace (" MCP_WORKSPACE ")");
		up(to, base);
	}
	if (buf_len(to) == base)
		buf_add_c(to, "/");
	return to->failed ? error_errno(err, -ENOMEM, "path") : 0;
}
