#include "image/dockerfile_lines.h"
#include "image/dockerfile.h"
#include "image/words.h"

#include <errno.h>
#include <strings.h>

static struct str left(struct str s)
{
	while (s.n && words_space(s.p[0]))
		s = str_from(s, 1);
	return s;
}

/* The next line with its newline; false at the end. */
static bool physical(struct dockerfile_lines *l, struct str *ret)
{
	if (l->rest.n == 0)
		return false;
	ptrdiff_t n = str_chr(l->rest, '\n');
	*ret = str_n(l->rest.p, n < 0 ? l->rest.n : (size_t)n + 1);
	l->rest = str_from(l->rest, ret->n);
	l->line++;
	return true;
}

static struct str without_newline(struct str s)
{
	while (s.n && (s.p[s.n - 1] == '\n' || s.p[s.n - 1] == '\r'))
		s.n--;
	return s;
}

/* "# name = value": 1 and the two. */
static bool directive(struct str s, struct str *ret_name, struct str *ret_value)
{
	if (s.n == 0 || s.p[0] != '#')
		return false;
	s = left(str_from(s, 1));
	size_t n = 0;
	while (n < s.n && ((s.p[n] >= 'a' && s.p[n] <= 'z') || (s.p[n] >= 'A' && s.p[n] <= 'Z') || (n && s.p[n] >= '0' && s.p[n] <= '9')))
		n++;
	*ret_name = str_n(s.p, n);
	s = left(str_from(s, n));
	if (n == 0 || s.n == 0 || s.p[0] != '=')
		return false;
	s = left(str_from(s, 1));
	while (s.n && words_space(s.p[s.n - 1]))
		s.n--;
	*ret_value = s;
	return s.n > 0;
}

int dockerfile_lines_start(struct dockerfile_lines *l, struct str text, struct error *err)
{
	static const char *const once[] = {"escape", "syntax", "check"};
	bool seen[3] = {false};
	struct str line, name, value;
	if (str_starts(text, STR("\xef\xbb\xbf")))
		text = str_from(text, 3);
	*l = (struct dockerfile_lines){.rest = text, .escape = '\\'};
	for (;;) {
		struct dockerfile_lines before = *l;
		if (!physical(l, &line) || !directive(without_newline(line), &name, &value)) {
			*l = before;
			return 0;
		}
		for (size_t i = 0; i < 3; i++) {
			if (!str_eq_nocase(name, str_of(once[i])))
				continue;
			if (seen[i])
				return error_set(err, -EINVAL, 400, "only one %s parser directive can be used", once[i]);
			seen[i] = true;
		}
		if (!str_eq_nocase(name, STR("escape")))
			continue;
		if (!str_is(value, "\\") && !str_is(value, "`"))
			return error_set(err, -EINVAL, 400, "the escape directive must name \\ or `");
		l->escape = value.p[0];
	}
}

/* Takes the escape character off that makes the next line part of this one. */
static bool continued(struct str *s, char escape)
{
	size_t n = s->n;
	while (n && (s->p[n - 1] == ' ' || s->p[n - 1] == '\t'))
		n--;
	if (n == 0 || s->p[n - 1] != escape || (n > 1 && s->p[n - 2] == escape))
		return false;
	s->n = n - 1;
	return true;
}

int dockerfile_lines_next(struct dockerfile_lines *l, struct buf *to, unsigned *ret_line, struct error *err)
{
	struct str raw;
	bool begun = false, more = true;
	while (more && physical(l, &raw)) {
		struct str s = without_newline(raw), words = left(s);
		if (words.n == 0 || words.p[0] == '#')
			continue;
		if (!begun) {
			s = words;
			*ret_line = l->line;
			begun = true;
		}
		more = continued(&s, l->escape);
		if (buf_len(to) + s.n > DOCKERFILE_ONE)
			return error_set(err, -E2BIG, 400, "an instruction of more than %d bytes", DOCKERFILE_ONE);
		buf_add_str(to, s);
	}
	if (to->failed)
		return error_errno(err, -ENOMEM, "lines");
	return begun;
}

bool dockerfile_lines_until(struct dockerfile_lines *l, struct str name, bool tabs, struct buf *to)
{
	struct str raw;
	while (physical(l, &raw)) {
		struct str s = without_newline(raw);
		while (tabs && s.n && s.p[0] == '\t')
			s = str_from(s, 1);
		if (str_eq(s, name))
			return true;
		buf_add_str(to, raw);
	}
	return false;
}
