#include "image/steps.h"

#include <errno.h>
#include <string.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum { MAX_DEPTH = 8, MAX_VALUE = 64 * 1024 };

static bool is_first(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t name_length(struct str s)
{
	size_t n = 0;
	while (n < s.n && (is_first(s.p[n]) || (n && s.p[n] >= '0' && s.p[n] <= '9')))
		n++;
	return n;
}

/* What commands find although nobody has set it. */
static const char *value_of(const struct env *env, struct str name)
{
	const char *v = env_get(env, name);
	return v ? v : str_is(name, "PATH") ? DEFAULT_PATH : NULL;
}

static int expand(struct str value, const struct env *env, struct buf *to, unsigned depth, struct error *err);

/* Index of the '}' that belongs to a "${" before s, or -1. */
static ptrdiff_t closing(struct str s)
{
	unsigned open = 1;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '\\')
			i++;
		else if (s.p[i] == '$' && i + 1 < s.n && s.p[i + 1] == '{')
			open++;
		else if (s.p[i] == '}' && --open == 0)
			return (ptrdiff_t)i;
	}
	return -1;
}

/* The inside of ${…}. */
static int braces(struct str s, const struct env *env, struct buf *to, unsigned depth, struct error *err)
{
	struct str name = str_n(s.p, name_length(s)), word = str_from(s, name.n);
	const char *v = value_of(env, name);
	bool colon = word.n && word.p[0] == ':';
	char how = word.n > colon ? word.p[colon] : '\0';
	bool there = v && (!colon || *v);
	if (!name.n || (word.n && how != '-' && how != '+'))
		return error_set(err, -EINVAL, 400, "${%.*s}: only ${NAME}, ${NAME:-word} and ${NAME:+word} are known", (int)(s.n < 64 ? s.n : 64), s.p);
	word = str_from(word, (size_t)colon + 1);
	if (how == '-' && !there)
		return expand(word, env, to, depth + 1, err);
	if (how == '+')
		return there ? expand(word, env, to, depth + 1, err) : 0;
	return buf_add_c(to, v ? v : "");
}

/* What a '$' begins; *ret_n: how much of s (behind the '$') it took. */
static int dollar(struct str s, const struct env *env, struct buf *to, unsigned depth, size_t *ret_n, struct error *err)
{
	size_t n = name_length(s);
	*ret_n = n;
	if (n) {
		const char *v = value_of(env, str_n(s.p, n));
		return buf_add_c(to, v ? v : "");
	}
	if (!s.n || s.p[0] != '{')
		return buf_add_c(to, "$");
	ptrdiff_t end = closing(str_from(s, 1));
	if (end < 0)
		return error_set(err, -EINVAL, 400, "${ without }");
	*ret_n = (size_t)end + 2;
	return braces(str_n(s.p + 1, (size_t)end), env, to, depth, err);
}

static int expand(struct str value, const struct env *env, struct buf *to, unsigned depth, struct error *err)
{
	int r = 0;
	if (depth > MAX_DEPTH)
		return error_set(err, -E2BIG, 400, "an expansion in more than %d others", MAX_DEPTH);
	while (value.n && r == 0) {
		size_t taken = 1;
		if (buf_len(to) > MAX_VALUE)
			return error_set(err, -E2BIG, 400, "a value of more than %d bytes", MAX_VALUE);
		if (value.p[0] == '\\' && value.n > 1 && strchr("$`\"\\", value.p[1])) {
			r = buf_add(to, value.p + 1, 1);
			taken = 2;
		} else if (value.p[0] == '$') {
			r = dollar(str_from(value, 1), env, to, depth, &taken, err);
			taken++;
		} else {
			r = buf_add(to, value.p, 1);
		}
		value = str_from(value, taken);
	}
	return r;
}

int steps_expand(struct str value, const struct env *env, struct buf *to, struct error *err)
{
	int r = expand(value, env, to, 0, err);
	return r == -ENOMEM ? error_errno(err, r, "a value") : r;
}

static void add_parts(struct str path, struct buf *to)
{
	struct str part;
	while (path.n) {
		if (!str_cut(path, '/', &part, &path)) {
			part = path;
			path = STR("");
		}
		if (str_is(part, "..")) {
			while (buf_len(to) && to->data[--to->end] != '/')
				;
			continue;
		}
		if (part.n == 0 || str_is(part, "."))
			continue;
		buf_add_c(to, "/");
		buf_add_str(to, part);
	}
}

int steps_join(const char *workdir, struct str path, struct buf *to)
{
	bool dir = path.n == 0 || path.p[path.n - 1] == '/' || str_is(path, ".") || str_is(path, "..") || str_ends(path, STR("/.")) || str_ends(path, STR("/.."));
	if (path.n == 0 || path.p[0] != '/')
		add_parts(str_of(workdir), to);
	add_parts(path, to);
	if (dir || buf_len(to) == 0)
		buf_add_c(to, "/");
	return buf_cstr(to) ? 0 : -ENOMEM;
}

int steps_shell_line(const struct env *env, const char *command, struct buf *to)
{
	const char *path = env_get(env, STR("PATH"));
	if (path) {
		cleanup_buf struct buf all = BUF_INIT;
		buf_addf(&all, "%s%s" DEFAULT_PATH, path, *path ? ":" : "");
		buf_add_c(to, "export PATH=");
		shell_quote(to, buf_str(&all));
		buf_add_c(to, "; ");
	}
	buf_add_c(to, command);
	return buf_cstr(to) ? 0 : -ENOMEM;
}
