#include "image/ignore.h"
#include "base/cleanup.h"
#include "image/glob.h"
#include "image/path.h"
#include "image/words.h"

#include <errno.h>

/* Also without carriage returns. */
static struct str trim(struct str s)
{
	while (s.n && words_space(s.p[0]))
		s = str_from(s, 1);
	while (s.n && words_space(s.p[s.n - 1]))
		s.n--;
	return s;
}

static int append(struct ignore *ig, struct str pattern, bool keep)
{
	struct ignore_rule *rules = reallocarray(ig->rules, ig->n + 1, sizeof(*rules));
	if (!rules)
		return -ENOMEM;
	ig->rules = rules;
	char *copy = str_dup(pattern);
	if (!copy)
		return -ENOMEM;
	ig->rules[ig->n++] = (struct ignore_rule){copy, keep};
	ig->keeps = ig->keeps || keep;
	return 0;
}

int ignore_add(struct ignore *ig, struct str line, struct error *err)
{
	cleanup_buf struct buf clean = BUF_INIT;
	struct str s = trim(line);
	bool keep = s.n && s.p[0] == '!';
	if (keep)
		s = trim(str_from(s, 1));
	if (s.n == 0 && keep)
		return error_set(err, -EINVAL, 400, "illegal exclusion pattern: \"!\"");
	if (ig->n == IGNORE_RULES)
		return error_set(err, -E2BIG, 400, "more than %d patterns", IGNORE_RULES);
	if (memchr(s.p, 0, s.n) || glob_check(s) < 0)
		return error_set(err, -EINVAL, 400, "bad pattern \"%.*s\"", STR_FMT(str_n(s.p, MIN(s.n, 100))));
	path_clean(&clean, s);
	struct str pattern = buf_str(&clean);
	if (pattern.n > 1 && pattern.p[0] == '/')
		pattern = str_from(pattern, 1);
	int r = clean.failed ? -ENOMEM : append(ig, pattern, keep);
	return r < 0 ? error_errno(err, r, "patterns") : 0;
}

int ignore_parse(struct ignore *ig, struct str text, struct error *err)
{
	if (text.n > IGNORE_MAX)
		return error_set(err, -E2BIG, 400, "longer than %d bytes", IGNORE_MAX);
	if (str_starts(text, STR("\xef\xbb\xbf")))
		text = str_from(text, 3);
	for (unsigned line = 1; text.n; line++) {
		struct str one = text, rest = STR("");
		str_cut(text, '\n', &one, &rest);
		text = rest;
		if ((one.n && one.p[0] == '#') || trim(one).n == 0)
			continue;
		int r = ignore_add(ig, one, err);
		if (r < 0)
			return error_wrap(err, r, "line %u", line);
	}
	return 0;
}

void ignore_done(struct ignore *ig)
{
	for (size_t i = 0; i < ig->n; i++)
		free(ig->rules[i].pattern);
	free(ig->rules);
	*ig = (struct ignore){0};
}

/* The path or a directory above it. */
static bool fits(const struct ignore_rule *rule, struct str path)
{
	struct str pattern = str_of(rule->pattern);
	for (size_t n = 1; n <= path.n; n++)
		if ((n == path.n || path.p[n] == '/') && glob_match(pattern, str_n(path.p, n), GLOB_DOUBLE_STAR))
			return true;
	return false;
}

bool ignore_match(const struct ignore *ig, struct str path)
{
	for (size_t i = ig->n; i > 0; i--)
		if (fits(&ig->rules[i - 1], path))
			return !ig->rules[i - 1].keep;
	return false;
}
