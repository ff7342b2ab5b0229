#include "image/path.h"

/* Takes the last part back, unless it is itself a `..`, or there is none. */
static bool take_back(struct buf *made, size_t base)
{
	struct str s = buf_str(made);
	size_t n = s.n;
	while (n > base && s.p[n - 1] != '/')
		n--;
	if (s.n == base || str_eq(str_from(s, n), STR("..")))
		return false;
	made->end = made->start + (n > base ? n - 1 : n);
	return true;
}

void path_clean(struct buf *to, struct str path)
{
	cleanup_buf struct buf made = BUF_INIT;
	bool rooted = path.n && path.p[0] == '/';
	size_t base = rooted ? 1 : 0;
	if (rooted)
		buf_add_c(&made, "/");
	while (path.n) {
		struct str part = path, rest = STR("");
		str_cut(path, '/', &part, &rest);
		path = rest;
		if (part.n == 0 || str_is(part, "."))
			continue;
		if (str_is(part, "..") && (take_back(&made, base) || rooted))
			continue;
		if (buf_len(&made) > base)
			buf_add_c(&made, "/");
		buf_add_str(&made, part);
	}
	if (buf_len(&made) == 0)
		buf_add_c(&made, ".");
	buf_add_str(to, buf_str(&made));
	to->failed = to->failed || made.failed;
}

void path_join(struct buf *to, struct str from, struct str path)
{
	cleanup_buf struct buf whole = BUF_INIT;
	if (path.n == 0 || path.p[0] != '/') {
		buf_add_str(&whole, from);
		buf_add_c(&whole, "/");
	}
	buf_add_str(&whole, path);
	path_clean(to, buf_str(&whole));
	to->failed = to->failed || whole.failed;
}
