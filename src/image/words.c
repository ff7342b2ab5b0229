#include "image/words.h"
#include "base/cleanup.h"

#include <errno.h>

/* Where an expansion stands. */
struct reader {
	const struct words *w;
	struct str rest;
	unsigned depth;
	unsigned *work;
	struct buf *marks; /* for words_expand_list: a byte for each of the result, 1 = may end a word; NULL else */
	struct error *err;
};

static int bad(struct reader *r, const char *what)
{
	return error_set(r->err, -EINVAL, 400, "%s", what);
}

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Result bytes; `split`: white space among them ends a word. */
static int put(struct reader *r, struct buf *to, struct str s, bool split)
{
	if (s.n > WORDS_MAX || buf_len(to) + s.n > WORDS_MAX)
		return error_set(r->err, -E2BIG, 400, "the expanded text is longer than %d bytes", WORDS_MAX);
	int e = buf_add_str(to, s);
	if (r->marks && e == 0) {
		char *m = buf_reserve(r->marks, s.n);
		if (m) {
			memset(m, split, s.n);
			buf_commit(r->marks, s.n);
		} else {
			e = -ENOMEM;
		}
	}
	return e < 0 ? error_errno(r->err, e, "expansion") : 0;
}

static char take(struct reader *r)
{
	char c = r->rest.p[0];
	r->rest = str_from(r->rest, 1);
	return c;
}

/* A name, a run of digits or one of the shell's special parameters; empty when there is none. */
static struct str take_name(struct reader *r)
{
	struct str s = r->rest;
	size_t n = 0;
	if (s.n && is_digit(s.p[0]))
		while (n < s.n && is_digit(s.p[n]))
			n++;
	else if (s.n && memchr("@*#?-$!", s.p[0], 7))
		n = 1;
	else
		while (n < s.n && (is_name(s.p[n]) || is_digit(s.p[n])))
			n++;
	r->rest = str_from(s, n);
	return str_n(s.p, n);
}

static int expand(struct reader *r, struct buf *to, int stop, bool escapes_stay);

bool words_match(struct str p, struct str v, unsigned *work)
{
	size_t i = 0, j = 0, star = SIZE_MAX, after = 0;
	while (j < v.n) {
		if (*work == 0)
			return false;
		--*work;
		if (i < p.n && p.p[i] == '*') {
			star = i++;
			after = j;
			continue;
		}
		size_t width = i + 1 < p.n && p.p[i] == '\\' ? 2 : 1;
		if (i < p.n && (width == 2 ? p.p[i + 1] == v.p[j] : p.p[i] == '?' || p.p[i] == v.p[j])) {
			i += width;
			j++;
		} else if (star != SIZE_MAX) {
			i = star + 1;
			j = ++after;
		} else {
			return false;
		}
	}
	while (i < p.n && p.p[i] == '*')
		i++;
	return i == p.n;
}

/* What # ## % %% leave of the value: a view of it. */
static struct str without(struct reader *r, struct str value, struct str pattern, char side)
{
	bool longest = pattern.n && pattern.p[0] == side;
	if (longest)
		pattern = str_from(pattern, 1);
	for (size_t k = 0; k <= value.n && *r->work; k++) {
		size_t n = longest ? value.n - k : k; /* of what goes */
		struct str part = side == '#' ? str_n(value.p, n) : str_from(value, value.n - n);
		if (words_match(pattern, part, r->work))
			return side == '#' ? str_from(value, n) : str_n(value.p, value.n - n);
	}
	return value;
}

/* ${name/pattern/text}: the longest match at the first place that has one; with `all` everywhere. */
static int replace(struct reader *r, struct buf *to, struct str value, struct str pattern, struct str text, bool all)
{
	size_t at = 0;
	bool again = pattern.n > 0;
	while (again && at < value.n && *r->work) {
		size_t n = value.n - at;
		while (n > 0 && *r->work && !words_match(pattern, str_n(value.p + at, n), r->work))
			n--;
		int e = n ? put(r, to, text, true) : put(r, to, str_n(value.p + at, 1), true);
		if (e < 0)
			return e;
		at += n ? n : 1;
		again = all || n == 0;
	}
	return put(r, to, str_from(value, at), true);
}

/* The part of ${…} up to its end, expanded. */
static int take_part(struct reader *r, struct buf *to, char stop, bool escapes_stay)
{
	if (r->depth >= WORDS_DEPTH)
		return bad(r, "variables in variables, too deep");
	struct buf *marks = r->marks;
	r->marks = NULL;
	r->depth++;
	int e = expand(r, to, stop, escapes_stay);
	r->depth--;
	r->marks = marks;
	return e;
}

static int replaced(struct reader *r, struct buf *to, struct str name)
{
	cleanup_buf struct buf pattern = BUF_INIT, text = BUF_INIT;
	bool all = r->rest.n && r->rest.p[0] == '/';
	struct str value = STR("");
	if (all)
		take(r);
	int e = take_part(r, &pattern, '/', true);
	if (e == 0)
		e = take_part(r, &text, '}', true);
	if (e < 0)
		return e;
	r->w->get(r->w->data, name, &value);
	return replace(r, to, value, buf_str(&pattern), buf_str(&text), all);
}

static int required(struct reader *r, struct str name, struct str word, const char *otherwise)
{
	struct str why = word.n ? word : str_of(otherwise);
	return error_set(r->err, -EINVAL, 400, "%.*s: %.*s", STR_FMT(str_n(name.p, MIN(name.n, 64))), STR_FMT(str_n(why.p, MIN(why.n, 200))));
}

/* ${name OP word}: r stands behind the operator; `nothing`: empty counts as not set. */
static int modified(struct reader *r, struct buf *to, struct str name, char op, bool nothing)
{
	cleanup_buf struct buf word = BUF_INIT;
	struct str value = STR("");
	int e = take_part(r, &word, '}', op == '#' || op == '%');
	if (e < 0)
		return e;
	bool set = r->w->get(r->w->data, name, &value);
	bool there = set && !(nothing && value.n == 0);
	switch (op) {
	case '-':
		return put(r, to, there ? value : buf_str(&word), true);
	case '+':
		return there ? put(r, to, buf_str(&word), true) : 0;
	case '?':
		return there ? put(r, to, value, true) : required(r, name, buf_str(&word), set ? "is not allowed to be empty" : "is not allowed to be unset");
	default:
		return put(r, to, without(r, value, buf_str(&word), op), true);
	}
}

static int not_set(struct reader *r, struct str name)
{
	return error_set(r->err, -EINVAL, 400, "%.*s is not set", STR_FMT(str_n(name.p, MIN(name.n, 64))));
}

static int plain(struct reader *r, struct buf *to, struct str name)
{
	struct str value = STR("");
	if (!r->w->get(r->w->data, name, &value) && r->w->must_be_set)
		return not_set(r, name);
	return put(r, to, value, true);
}

/* At the name of ${…}. */
static int braced(struct reader *r, struct buf *to)
{
	if (r->rest.n == 0)
		return bad(r, "syntax error: missing '}'");
	if (memchr("{}:", r->rest.p[0], 3))
		return bad(r, "syntax error: bad substitution");
	struct str name = take_name(r);
	if (r->rest.n == 0)
		return bad(r, "syntax error: missing '}'");
	char op = take(r);
	bool colon = op == ':';
	if (op == '}')
		return plain(r, to, name);
	if (op == '/')
		return replaced(r, to, name);
	if (colon) {
		if (r->rest.n == 0)
			return bad(r, "syntax error: missing '}'");
		op = take(r);
	}
	if (!memchr("+-?#%", op, 5) || (colon && (op == '#' || op == '%')))
		return error_set(r->err, -EINVAL, 400, "unsupported modifier (%s%c) in substitution", colon ? ":" : "", op >= ' ' && op <= '~' ? op : '?');
	return modified(r, to, name, op, colon);
}

/* Behind the $. */
static int dollar(struct reader *r, struct buf *to)
{
	if (r->rest.n && r->rest.p[0] == '{') {
		take(r);
		return braced(r, to);
	}
	struct str name = take_name(r);
	return name.n ? plain(r, to, name) : put(r, to, STR("$"), true);
}

static int single_quoted(struct reader *r, struct buf *to)
{
	ptrdiff_t n = str_chr(r->rest, '\'');
	if (n < 0)
		return bad(r, "unexpected end of statement while looking for matching single-quote");
	int e = put(r, to, str_n(r->rest.p, (size_t)n), false);
	r->rest = str_from(r->rest, (size_t)n + 1);
	return e;
}

/* Everything as it is but variables, and the escape character before what it can escape here. */
static int double_quoted(struct reader *r, struct buf *to, bool escapes_stay)
{
	while (r->rest.n) {
		char c = take(r);
		int e = 0;
		if (c == '"')
			return 0;
		if (c == '$') {
			/* White space of a variable in quotes ends no word. */
			size_t from = buf_len(to);
			e = dollar(r, to);
			if (e == 0 && r->marks)
				memset(r->marks->data + r->marks->start + from, 0, buf_len(to) - from);
		} else {
			if (c == r->w->escape) {
				if (escapes_stay)
					e = put(r, to, str_n(&c, 1), false);
				if (r->rest.n == 0)
					break;
				if (r->rest.p[0] == '"' || r->rest.p[0] == '$' || r->rest.p[0] == r->w->escape)
					c = take(r);
			}
			if (e == 0)
				e = put(r, to, str_n(&c, 1), false);
		}
		if (e < 0)
			return e;
	}
	return bad(r, "unexpected end of statement while looking for matching double-quote");
}

static int escaped(struct reader *r, struct buf *to, bool escapes_stay)
{
	int e = escapes_stay ? put(r, to, str_n(&r->w->escape, 1), false) : 0;
	if (e < 0 || r->rest.n == 0)
		return e;
	char c = take(r);
	return put(r, to, str_n(&c, 1), false);
}

/* Up to and with `stop`; -1 = to the end. */
static int expand(struct reader *r, struct buf *to, int stop, bool escapes_stay)
{
	bool quotes = !r->w->quotes_stay;
	while (r->rest.n) {
		char c = take(r);
		int e;
		if (stop >= 0 && c == (char)stop)
			return 0;
		if (c == '$')
			e = dollar(r, to);
		else if (c == '\'' && quotes)
			e = single_quoted(r, to);
		else if (c == '"' && quotes)
			e = double_quoted(r, to, escapes_stay);
		else if (c == r->w->escape)
			e = escaped(r, to, escapes_stay);
		else
			e = put(r, to, str_n(&c, 1), true);
		if (e < 0)
			return e;
	}
	return stop < 0 ? 0 : bad(r, "syntax error: missing '}'");
}

static int start(const struct words *w, struct str text, struct buf *to, struct buf *marks, struct error *err)
{
	unsigned work = WORDS_WORK;
	cleanup_buf struct buf made = BUF_INIT;
	struct reader r = {.w = w, .rest = text, .work = &work, .marks = marks, .err = err};
	int e = expand(&r, &made, -1, false);
	if (e == 0 && work == 0)
		e = error_set(err, -E2BIG, 400, "the patterns take too much work");
	if (e == 0 && buf_add_str(to, buf_str(&made)) < 0)
		e = error_errno(err, -ENOMEM, "expansion");
	return e;
}

int words_expand(const struct words *w, struct str text, struct buf *to, struct error *err)
{
	return start(w, text, to, NULL, err);
}

int words_expand_list(const struct words *w, struct str text, struct buf *to, size_t *ret_n, struct error *err)
{
	cleanup_buf struct buf marks = BUF_INIT, made = BUF_INIT;
	size_t n = 0, from = 0;
	int e = start(w, text, &made, &marks, err);
	if (e < 0)
		return e;
	struct str s = buf_str(&made), m = buf_str(&marks);
	for (size_t i = 0; i <= s.n; i++) {
		if (i < s.n && !(m.p[i] && words_space(s.p[i])))
			continue;
		if (i > from) {
			buf_add_str(to, str_n(s.p + from, i - from));
			buf_add(to, "", 1);
			n++;
		}
		from = i + 1;
	}
	if (to->failed)
		return error_errno(err, -ENOMEM, "expansion");
	*ret_n = n;
	return 0;
}

bool words_next(struct str *rest, char escape, struct str *ret)
{
	struct str s = *rest;
	char quote = 0;
	size_t i = 0, end;
	while (s.n && words_space(s.p[0]))
		s = str_from(s, 1);
	if (s.n == 0) {
		*rest = s;
		return false;
	}
	for (; i < s.n; i++) {
		if (!quote && words_space(s.p[i]))
			break;
		if (s.p[i] == escape && quote != '\'') {
			if (i + 1 == s.n)
				break; /* the last one escapes nothing */
			i++;
		} else if (quote ? s.p[i] == quote : s.p[i] == '\'' || s.p[i] == '"') {
			quote = quote ? 0 : s.p[i];
		}
	}
	end = i;
	*ret = str_n(s.p, end);
	*rest = i < s.n ? str_from(s, i + 1) : str_from(s, s.n);
	return true;
}
