#include "image/dockerfile.h"
#include "base/cleanup.h"
#include "image/dockerfile_impl.h"
#include "image/dockerfile_lines.h"
#include "image/words.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct kind {
	const char *name;
	enum dockerfile_form form;
	unsigned min, max; /* words */
} kinds[] = {
	[DF_ADD] = {"ADD", FORM_JSON_WORDS, 2, DOCKERFILE_WORDS},
	[DF_ARG] = {"ARG", FORM_NAMES, 1, DOCKERFILE_WORDS},
	[DF_CMD] = {"CMD", FORM_JSON_TEXT, 0, DOCKERFILE_WORDS},
	[DF_COPY] = {"COPY", FORM_JSON_WORDS, 2, DOCKERFILE_WORDS},
	[DF_ENTRYPOINT] = {"ENTRYPOINT", FORM_JSON_TEXT, 0, DOCKERFILE_WORDS},
	[DF_ENV] = {"ENV", FORM_PAIRS, 1, DOCKERFILE_WORDS},
	[DF_EXPOSE] = {"EXPOSE", FORM_WORDS, 1, DOCKERFILE_WORDS},
	[DF_FROM] = {"FROM", FORM_WORDS, 1, 3},
	[DF_HEALTHCHECK] = {"HEALTHCHECK", FORM_HEALTHCHECK, 0, DOCKERFILE_WORDS},
	[DF_LABEL] = {"LABEL", FORM_PAIRS, 1, DOCKERFILE_WORDS},
	[DF_MAINTAINER] = {"MAINTAINER", FORM_TEXT, 1, 1},
	[DF_ONBUILD] = {"ONBUILD", FORM_TEXT, 1, 1},
	[DF_RUN] = {"RUN", FORM_JSON_TEXT, 1, DOCKERFILE_WORDS},
	[DF_SHELL] = {"SHELL", FORM_JSON_TEXT, 1, DOCKERFILE_WORDS},
	[DF_STOPSIGNAL] = {"STOPSIGNAL", FORM_TEXT, 1, 1},
	[DF_USER] = {"USER", FORM_TEXT, 1, 1},
	[DF_VOLUME] = {"VOLUME", FORM_JSON_WORDS, 1, DOCKERFILE_WORDS},
	[DF_WORKDIR] = {"WORKDIR", FORM_TEXT, 1, 1},
};

const char *dockerfile_kind_name(enum dockerfile_kind kind)
{
	return kinds[kind].name;
}

/* Letters that must be put in, taken out or changed, in any case; at most 3 matter. */
static unsigned distance(struct str a, struct str b)
{
	unsigned row[24];
	if (a.n > 20 || b.n > 20)
		return 99;
	for (unsigned j = 0; j <= b.n; j++)
		row[j] = j;
	for (unsigned i = 1; i <= a.n; i++) {
		unsigned corner = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= b.n; j++) {
			unsigned same = corner + (toupper((unsigned char)a.p[i - 1]) != b.p[j - 1]);
			corner = row[j];
			row[j] = MIN(same, MIN(row[j], row[j - 1]) + 1);
		}
	}
	return row[b.n];
}

static int unknown(struct str word, struct error *err)
{
	unsigned best = 99;
	const char *name = NULL;
	for (size_t i = 0; i < DF_KINDS; i++) {
		unsigned d = distance(word, str_of(kinds[i].name));
		if (d < best) {
			best = d;
			name = kinds[i].name;
		}
	}
	struct str shown = str_n(word.p, MIN(word.n, 40));
	if (best <= 2 && best < word.n)
		return error_set(err, -EINVAL, 400, "unknown instruction \"%.*s\" (did you mean %s?)", STR_FMT(shown), name);
	return error_set(err, -EINVAL, 400, "unknown instruction \"%.*s\"", STR_FMT(shown));
}

static int find_kind(struct str word, enum dockerfile_kind *ret, struct error *err)
{
	for (size_t i = 0; i < DF_KINDS; i++) {
		if (str_eq_nocase(word, str_of(kinds[i].name))) {
			*ret = (enum dockerfile_kind)i;
			return 0;
		}
	}
	return unknown(word, err);
}

/* Bodies of the heredocs that the line names. */
static int take_heredocs(struct parser *p, struct dockerfile_instruction *i, struct str line)
{
	struct str rest = line, word;
	while (words_next(&rest, p->d->escape, &word)) {
		cleanup_buf struct buf name = BUF_INIT, text = BUF_INIT;
		struct dockerfile_heredoc h = {0};
		if (!dockerfile_heredoc_word(word, p->d->escape, &name, &h.tabs, &h.expand))
			continue;
		if (!p->lines)
			return error_set(p->err, -ENOTSUP, 501, "heredocs in ONBUILD are not supported");
		if (i->n_heredocs == DOCKERFILE_HEREDOCS)
			return error_set(p->err, -E2BIG, 400, "more than %d heredocs", DOCKERFILE_HEREDOCS);
		if (!dockerfile_lines_until(p->lines, buf_str(&name), h.tabs, &text))
			return error_set(p->err, -EINVAL, 400, "unterminated heredoc: no line %.*s", STR_FMT(str_n(buf_str(&name).p, MIN(buf_len(&name), 60))));
		struct dockerfile_heredoc *to = parser_grow(p, (void **)&i->heredocs, &i->n_heredocs, sizeof(h));
		if (!to || name.failed || text.failed || parser_copy(p, buf_str(&name), &h.name) < 0 || parser_copy(p, buf_str(&text), &h.text) < 0)
			return error_errno(p->err, -ENOMEM, "heredoc");
		*to = h;
	}
	return 0;
}

static int count_words(const struct dockerfile_instruction *i, struct error *err)
{
	const struct kind *k = &kinds[i->kind];
	size_t n = k->form == FORM_PAIRS || k->form == FORM_NAMES ? i->n_pairs : i->n_args;
	if (n < k->min && (i->kind == DF_COPY || i->kind == DF_ADD))
		return error_set(err, -EINVAL, 400, "%s needs a source and a destination", k->name);
	if (n < k->min)
		return error_set(err, -EINVAL, 400, "%s requires %s argument", k->name, k->max == 1 ? "exactly one" : "at least one");
	if (i->kind == DF_FROM && n == 2)
		return error_set(err, -EINVAL, 400, "FROM requires either one or three arguments");
	if (n > k->max)
		return error_set(err, k->max < DOCKERFILE_WORDS ? -EINVAL : -E2BIG, 400, "%s has more than %u arguments", k->name, k->max);
	return 0;
}

/* One instruction, whole in `line`. */
static int parse_instruction(struct parser *p, struct str line, struct dockerfile_instruction *i)
{
	size_t n = 0;
	while (line.n && words_space(line.p[line.n - 1]))
		line.n--;
	while (n < line.n && !words_space(line.p[n]))
		n++;
	struct str rest = str_from(line, n);
	int r = find_kind(str_n(line.p, n), &i->kind, p->err);
	if (r == 0 && memchr(line.p, 0, line.n))
		r = error_set(p->err, -EINVAL, 400, "a NUL byte");
	if (r == 0 && (r = parser_copy(p, line, &i->text)) < 0)
		error_errno(p->err, r, "instruction");
	if (r == 0)
		r = parser_flags(p, i, &rest);
	if (r == 0)
		r = parser_arguments(p, i, kinds[i->kind].form, rest);
	if (r == 0)
		r = count_words(i, p->err);
	if (r == 0 && !i->json && (i->kind == DF_RUN || i->kind == DF_COPY || i->kind == DF_ADD))
		r = take_heredocs(p, i, rest);
	return r == 0 ? parser_check(p, i) : r;
}

static bool stage_name_valid(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (!isalpha(c) && (i == 0 || (!isdigit(c) && !strchr("-_.", c))))
			return false;
	}
	return s.n > 0 && s.n <= 128;
}

static int begin_stage(struct parser *p, const struct dockerfile_instruction *i)
{
	struct dockerfile *d = p->d;
	struct dockerfile_stage s = {.line = i->line, .base = i->args[0], .from = d->n, .to = d->n};
	if (i->n_args == 3 && !str_eq_nocase(i->args[1], STR("AS")))
		return error_set(p->err, -EINVAL, 400, "FROM: the second word must be AS, not \"%.*s\"", STR_FMT(str_n(i->args[1].p, MIN(i->args[1].n, 40))));
	if (i->n_args == 3 && !stage_name_valid(i->args[2]))
		return error_set(p->err, -EINVAL, 400, "invalid name for build stage: \"%.*s\": it begins with a letter and has letters, digits, - _ . only",
			STR_FMT(str_n(i->args[2].p, MIN(i->args[2].n, 60))));
	if (i->n_args == 3)
		s.name = i->args[2];
	if (dockerfile_flag(i, "platform"))
		s.platform = dockerfile_flag(i, "platform")->value;
	if (d->n_stages == DOCKERFILE_STAGES)
		return error_set(p->err, -E2BIG, 400, "more than %d stages", DOCKERFILE_STAGES);
	struct dockerfile_stage *to = parser_grow(p, (void **)&d->stages, &d->n_stages, sizeof(s));
	if (!to)
		return error_errno(p->err, -ENOMEM, "stages");
	*to = s;
	return 0;
}

/* Into the list, and where it belongs. */
static int add(struct parser *p, const struct dockerfile_instruction *i)
{
	struct dockerfile *d = p->d;
	if (d->n == DOCKERFILE_INSTRUCTIONS)
		return error_set(p->err, -E2BIG, 400, "more than %d instructions", DOCKERFILE_INSTRUCTIONS);
	struct dockerfile_instruction *to = parser_grow(p, (void **)&d->all, &d->n, sizeof(*i));
	if (!to)
		return error_errno(p->err, -ENOMEM, "instructions");
	*to = *i;
	if (p->triggers) {
		if (i->kind == DF_FROM || i->kind == DF_ONBUILD || i->kind == DF_MAINTAINER)
			return error_set(p->err, -EINVAL, 400, "%s isn't allowed as an ONBUILD trigger", dockerfile_kind_name(i->kind));
	} else if (i->kind == DF_FROM) {
		return begin_stage(p, i);
	} else if (d->n_stages) {
		d->stages[d->n_stages - 1].to = d->n;
	} else if (i->kind == DF_ARG) {
		d->globals = d->n;
	} else {
		return error_set(p->err, -EINVAL, 400, "%s before the first FROM: only ARG may stand there", dockerfile_kind_name(i->kind));
	}
	return 0;
}

static int start(struct dockerfile *d, size_t length, struct error *err)
{
	*d = (struct dockerfile){.escape = '\\'};
	if (length > DOCKERFILE_MAX)
		return error_set(err, -E2BIG, 400, "longer than %d bytes", DOCKERFILE_MAX);
	d->memory = calloc(1, sizeof(*d->memory));
	return d->memory ? 0 : error_errno(err, -ENOMEM, "Dockerfile");
}

int dockerfile_parse(struct dockerfile *d, struct str text, const char *name, struct error *err)
{
	struct dockerfile_lines lines;
	struct parser p = {.d = d, .lines = &lines, .err = err};
	int r = start(d, text.n, err);
	if (r < 0)
		return error_wrap(err, r, "%s", name);
	r = dockerfile_lines_start(&lines, text, err);
	if (r < 0)
		return error_wrap(err, r, "%s:%u", name, lines.line);
	d->escape = lines.escape;
	for (;;) {
		cleanup_buf struct buf line = BUF_INIT;
		struct dockerfile_instruction i = {0};
		i.line = lines.line + 1;
		r = dockerfile_lines_next(&lines, &line, &i.line, err);
		if (r == 0)
			break;
		if (r > 0)
			r = parse_instruction(&p, buf_str(&line), &i);
		if (r == 0)
			r = add(&p, &i);
		if (r < 0)
			return error_wrap(err, r, "%s:%u", name, i.line);
	}
	return d->n_stages ? 0 : error_set(err, -EINVAL, 400, "%s: it has no FROM", name);
}

int dockerfile_parse_triggers(struct dockerfile *d, struct str text, char escape, const char *name, struct error *err)
{
	struct parser p = {.d = d, .triggers = true, .err = err};
	int r = start(d, text.n, err);
	if (r < 0)
		return r;
	d->escape = escape;
	while (text.n) {
		struct dockerfile_instruction i = {0};
		struct str line = text, rest = STR("");
		str_cut(text, '\n', &line, &rest);
		text = rest;
		if (str_trim(line).n == 0)
			continue;
		r = parse_instruction(&p, str_trim(line), &i);
		if (r == 0)
			r = add(&p, &i);
		if (r < 0)
			return error_wrap(err, r, "%s: ONBUILD %.*s", name, STR_FMT(str_n(line.p, MIN(line.n, 80))));
	}
	return 0;
}

const struct dockerfile_flag *dockerfile_flag(const struct dockerfile_instruction *i, const char *name)
{
	for (size_t k = 0; k < i->n_flags; k++)
		if (str_is(i->flags[k].name, name))
			return &i->flags[k];
	return NULL;
}

int dockerfile_find_stage(const struct dockerfile *d, struct str name, size_t before)
{
	uint64_t number;
	for (size_t i = MIN(before, d->n_stages); i > 0; i--)
		if (d->stages[i - 1].name.n && str_eq_nocase(d->stages[i - 1].name, name))
			return (int)i - 1;
	if (str_to_u64(name, &number) == 0 && number < before && number < d->n_stages)
		return (int)number;
	return -1;
}
