#include "image/glob.h"

#include <errno.h>

/* The character at s (its bytes as one number) and how many bytes it has. */
static uint32_t character(struct str s, size_t *ret_n)
{
	unsigned char c = (unsigned char)s.p[0];
	size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
	if (n > s.n || !str_is_utf8(str_n(s.p, n)))
		n = 1;
	uint32_t value = 0;
	for (size_t i = 0; i < n; i++)
		value = value << 8 | (unsigned char)s.p[i];
	*ret_n = n;
	return value;
}

/* One character of a class, perhaps behind a backslash. -1 when there is none. */
static int class_character(struct str *s, uint32_t *ret)
{
	size_t n;
	if (s->n && s->p[0] == '\\')
		*s = str_from(*s, 1);
	else if (s->n && (s->p[0] == '-' || s->p[0] == ']'))
		return -1;
	if (s->n == 0)
		return -1;
	*ret = character(*s, &n);
	*s = str_from(*s, n);
	return 0;
}

/* Behind the [: whether c is in it; *s goes behind the ]. -1: no class. */
static int in_class(struct str *s, uint32_t c)
{
	bool in = false, negated = s->n && s->p[0] == '^', any = false;
	if (negated)
		*s = str_from(*s, 1);
	while (!(any && s->n && s->p[0] == ']')) {
		uint32_t low, high;
		if (class_character(s, &low) < 0)
			return -1;
		high = low;
		if (s->n && s->p[0] == '-') {
			*s = str_from(*s, 1);
			if (class_character(s, &high) < 0)
				return -1;
		}
		in = in || (low <= c && c <= high);
		any = true;
	}
	*s = str_from(*s, 1);
	return in != negated;
}

/* One element of the pattern, no star, against the character at the start of the path: bytes of the path it takes, 0 = it does not fit. *p goes behind it. */
static size_t one(struct str *p, struct str path)
{
	size_t n, m;
	uint32_t c = character(path, &n);
	char first = p->p[0];
	*p = str_from(*p, 1);
	switch (first) {
	case '?':
		return c == '/' ? 0 : n;
	case '[':
		return in_class(p, c) == 1 && c != '/' ? n : 0;
	case '\\':
		if (p->n == 0)
			return 0;
		break;
	default:
		p->p--;
		p->n++;
	}
	uint32_t want = character(*p, &m);
	*p = str_from(*p, m);
	return want == c ? n : 0;
}

/* A place to go on from when what follows a star does not fit. */
struct retry {
	struct str pattern, path; /* behind the star; what it has not taken yet */
	bool set;
};

static bool again(struct retry *r, bool deep, struct str *pattern, struct str *path)
{
	size_t n;
	if (!r->set || r->path.n == 0 || (!deep && r->path.p[0] == '/'))
		return false;
	if (deep) {
		/* `**` takes whole directories. */
		ptrdiff_t slash = str_chr(r->path, '/');
		if (slash < 0)
			return false;
		n = (size_t)slash + 1;
	} else {
		character(r->path, &n);
	}
	r->path = str_from(r->path, n);
	*pattern = r->pattern;
	*path = r->path;
	return true;
}

bool glob_match(struct str p, struct str path, enum glob_kind kind)
{
	struct retry shallow = {0}, deep = {0};
	for (unsigned work = 0; work < GLOB_WORK; work++) {
		if (p.n == 0 && path.n == 0)
			return true;
		if (p.n && p.p[0] == '*') {
			bool two = kind == GLOB_DOUBLE_STAR && p.n > 1 && p.p[1] == '*';
			p = str_from(p, two ? 2 : 1);
			if (two && p.n && p.p[0] == '/')
				p = str_from(p, 1);
			if (two && p.n == 0)
				return true;
			if (two)
				shallow.set = false;
			*(two ? &deep : &shallow) = (struct retry){p, path, true};
			continue;
		}
		size_t n = p.n && path.n ? one(&p, path) : 0;
		if (n)
			path = str_from(path, n);
		else if (!again(&shallow, false, &p, &path)) {
			shallow.set = false;
			if (!again(&deep, true, &p, &path))
				return false;
		}
	}
	return false;
}

bool glob_is_pattern(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (memchr("*?[\\", s.p[i], 4))
			return true;
	return false;
}

int glob_check(struct str s)
{
	if (s.n > GLOB_MAX)
		return -E2BIG;
	while (s.n) {
		char c = s.p[0];
		s = str_from(s, 1);
		if (c == '\\') {
			if (s.n == 0)
				return -EINVAL;
			s = str_from(s, 1);
		} else if (c == '[' && in_class(&s, 0) < 0) {
			return -EINVAL;
		}
	}
	return 0;
}
