#include "image/challenge.h"

#include <errno.h>

/* RFC 9110 §5.6.2 */
static bool is_token(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Also what a token68 may hold. */
static bool is_token68(char c)
{
	return is_token(c) || c == '/' || c == '=';
}

static void skip(struct str *s, const char *what)
{
	while (s->n && s->p[0] && strchr(what, s->p[0]))
		*s = str_from(*s, 1);
}

static struct str take(struct str *s, bool (*is)(char c))
{
	size_t n = 0;
	while (n < s->n && is(s->p[n]))
		n++;
	struct str word = str_n(s->p, n);
	*s = str_from(*s, n);
	return word;
}

/* A token or a quoted string (§5.6.4), to `to`; to is NULL: passed over. */
static int take_value(struct str *s, char *to, size_t size)
{
	size_t n = 0;
	if (!s->n || s->p[0] != '"') {
		struct str word = take(s, is_token68);
		if (!word.n)
			return -EINVAL;
		if (to && word.n >= size)
			return -E2BIG;
		if (to) {
			memcpy(to, word.p, word.n);
			to[word.n] = 0;
		}
		return 0;
	}
	size_t i = 1;
	for (; i < s->n && s->p[i] != '"'; i++) {
		if (s->p[i] == '\\' && ++i == s->n)
			return -EINVAL;
		unsigned char c = (unsigned char)s->p[i];
		if (c < ' ' || c == 0x7f)
			return -EINVAL;
		if (to && n + 1 >= size)
			return -E2BIG;
		if (to)
			to[n++] = (char)c;
	}
	if (i >= s->n)
		return -EINVAL;
	if (to)
		to[n] = 0;
	*s = str_from(*s, i + 1);
	return 0;
}

static int take_param(struct str *s, struct str name, struct challenge *c)
{
	if (c && str_eq_nocase(name, STR("realm")))
		return take_value(s, c->realm, sizeof(c->realm));
	if (c && str_eq_nocase(name, STR("service")))
		return take_value(s, c->service, sizeof(c->service));
	if (c && str_eq_nocase(name, STR("scope")))
		return take_value(s, c->scope, sizeof(c->scope));
	return take_value(s, NULL, 0);
}

/* The parameters behind a scheme, up to the next scheme or the end. A word without '=' behind it begins the next challenge. */
static int take_params(struct str *s, struct challenge *c)
{
	for (bool first = true;; first = false) {
		struct str before = *s;
		skip(s, " \t,");
		struct str name = take(s, is_token);
		if (!name.n)
			return s->n ? -EINVAL : 0;
		skip(s, " \t");
		if (!s->n || s->p[0] != '=') {
			*s = before;
			/* "Negotiate YII=": a token68 comes alone, right behind its scheme. */
			if (first && before.n && before.p[0] == ' ') {
				skip(s, " ");
				struct str word = take(s, is_token68);
				skip(s, " \t");
				if (word.n && (!s->n || s->p[0] == ','))
					return 0;
				*s = before;
			}
			return 0;
		}
		*s = str_from(*s, 1);
		skip(s, " \t");
		if (first && (!s->n || s->p[0] == ',' || s->p[0] == '=')) { /* the padding of a token68 */
			skip(s, "=");
			return 0;
		}
		int r = take_param(s, name, c);
		if (r < 0)
			return r;
	}
}

static int parse_line(struct str s, struct challenge *ret, unsigned *count)
{
	for (;;) {
		skip(&s, " \t,");
		if (!s.n)
			return 0;
		struct str scheme = take(&s, is_token);
		if (!scheme.n || (s.n && s.p[0] != ' ' && s.p[0] != '\t' && s.p[0] != ','))
			return -EINVAL;
		if (++*count > CHALLENGES_MAX)
			return -E2BIG;
		bool bearer = str_eq_nocase(scheme, STR("Bearer")) && !ret->bearer;
		struct challenge c = {0};
		int r = take_params(&s, bearer ? &c : NULL);
		if (r < 0)
			return r;
		ret->basic = ret->basic || str_eq_nocase(scheme, STR("Basic"));
		if (bearer && *c.realm) {
			c.bearer = true;
			c.basic = ret->basic;
			*ret = c;
		}
	}
}

int challenge_parse(struct str lines, struct challenge *ret)
{
	struct challenge c = {0};
	struct str line;
	unsigned count = 0;
	for (bool more = true; more;) {
		struct str tail = {0};
		more = str_cut(lines, '\n', &line, &tail);
		if (!more)
			line = lines;
		lines = tail;
		int r = parse_line(line, &c, &count);
		if (r < 0)
			return r;
	}
	*ret = c;
	return 0;
}
