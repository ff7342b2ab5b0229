/* Flags and arguments of an instruction, in all forms. */
#include "base/cleanup.h"
#include "image/dockerfile_impl.h"
#include "image/dockerfile_mount.h"
#include "image/words.h"
#include "io/json.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum { FLAGS_MAX = 64 };

/* What a flag is here. */
enum flag_state {
	FLAG_VALUE,
	FLAG_LIST,    /* may be given several times */
	FLAG_BOOL,    /* alone, or =true, =false */
	FLAG_DEFAULT, /* one value only, which is what happens anyway */
	FLAG_REFUSED,
};

static const struct known_flag {
	enum dockerfile_kind kind;
	const char *name;
	enum flag_state state;
	const char *value; /* FLAG_DEFAULT */
} known[] = {
	{DF_FROM, "platform", FLAG_VALUE, NULL},
	{DF_RUN, "mount", FLAG_LIST, NULL},
	{DF_RUN, "device", FLAG_REFUSED, NULL},
	{DF_RUN, "network", FLAG_DEFAULT, "default"},
	{DF_RUN, "security", FLAG_DEFAULT, "sandbox"},
	{DF_COPY, "from", FLAG_VALUE, NULL},
	{DF_COPY, "chown", FLAG_VALUE, NULL},
	{DF_COPY, "chmod", FLAG_VALUE, NULL},
	{DF_COPY, "link", FLAG_BOOL, NULL},
	{DF_COPY, "parents", FLAG_BOOL, NULL},
	{DF_COPY, "exclude", FLAG_LIST, NULL},
	{DF_ADD, "chown", FLAG_VALUE, NULL},
	{DF_ADD, "chmod", FLAG_VALUE, NULL},
	{DF_ADD, "link", FLAG_BOOL, NULL},
	{DF_ADD, "exclude", FLAG_LIST, NULL},
	{DF_ADD, "unpack", FLAG_BOOL, NULL},
	{DF_ADD, "checksum", FLAG_REFUSED, NULL},
	{DF_ADD, "keep-git-dir", FLAG_REFUSED, NULL},
	{DF_HEALTHCHECK, "interval", FLAG_VALUE, NULL},
	{DF_HEALTHCHECK, "timeout", FLAG_VALUE, NULL},
	{DF_HEALTHCHECK, "start-period", FLAG_VALUE, NULL},
	{DF_HEALTHCHECK, "start-interval", FLAG_VALUE, NULL},
	{DF_HEALTHCHECK, "retries", FLAG_VALUE, NULL},
};

static void *allocate(struct parser *p, size_t size)
{
	struct dockerfile_memory *m = p->d->memory;
	if ((m->n & (m->n + 1)) == 0) {
		/* Full at 2^k - 1: twice as much. */
		void **more = reallocarray(m->pieces, 2 * (m->n + 1), sizeof(*more));
		if (!more)
			return NULL;
		m->pieces = more;
	}
	void *piece = calloc(1, MAX(size, 1U));
	if (piece)
		m->pieces[m->n++] = piece;
	return piece;
}

void dockerfile_done(struct dockerfile *d)
{
	for (size_t i = 0; d->memory && i < d->memory->n; i++)
		free(d->memory->pieces[i]);
	if (d->memory)
		free(d->memory->pieces);
	free(d->memory);
	*d = (struct dockerfile){0};
}

int parser_copy(struct parser *p, struct str s, struct str *ret)
{
	char *copy = allocate(p, s.n + 1);
	if (!copy)
		return -ENOMEM;
	if (s.n)
		memcpy(copy, s.p, s.n);
	*ret = str_n(copy, s.n);
	return 0;
}

/* Arrays have room for the next power of two; the pieces that they leave behind are freed with the file. */
void *parser_grow(struct parser *p, void **array, size_t *n, size_t size)
{
	if ((*n & (*n - 1)) == 0) {
		void *more = allocate(p, MAX(*n * 2, 1U) * size);
		if (!more)
			return NULL;
		if (*n)
			memcpy(more, *array, *n * size);
		*array = more;
	}
	return (char *)*array + (*n)++ * size;
}

static int no_memory(struct parser *p)
{
	return error_errno(p->err, -ENOMEM, "instruction");
}

static int add_argument(struct parser *p, struct dockerfile_instruction *i, struct str s)
{
	if (i->n_args == DOCKERFILE_WORDS)
		return error_set(p->err, -E2BIG, 400, "more than %d words", DOCKERFILE_WORDS);
	struct str *to = parser_grow(p, (void **)&i->args, &i->n_args, sizeof(*to));
	return to && parser_copy(p, s, to) == 0 ? 0 : no_memory(p);
}

static int add_pair(struct parser *p, struct dockerfile_instruction *i, struct str key, struct str value, bool set)
{
	if (i->n_pairs == DOCKERFILE_WORDS)
		return error_set(p->err, -E2BIG, 400, "more than %d names", DOCKERFILE_WORDS);
	if (key.n == 0)
		return error_set(p->err, -EINVAL, 400, "%s names can not be blank", dockerfile_kind_name(i->kind));
	struct dockerfile_pair *to = parser_grow(p, (void **)&i->pairs, &i->n_pairs, sizeof(*to));
	if (!to || parser_copy(p, key, &to->key) < 0 || parser_copy(p, value, &to->value) < 0)
		return no_memory(p);
	to->set = set;
	return 0;
}

/* The text of a flag, quotes and backslashes taken off; *rest behind it. */
static void flag_text(struct str *rest, struct buf *to)
{
	char quote = 0;
	size_t i = 0;
	for (; i < rest->n; i++) {
		char c = rest->p[i];
		if (!quote && words_space(c))
			break;
		if (!quote && (c == '\'' || c == '"')) {
			quote = c;
		} else if (quote && c == quote) {
			quote = 0;
		} else {
			if (c == '\\' && i + 1 < rest->n)
				c = rest->p[++i];
			buf_add(to, &c, 1);
		}
	}
	*rest = str_from(*rest, i);
}

static int refused(struct parser *p, const struct dockerfile_instruction *i, struct str name)
{
	return error_set(p->err, -ENOTSUP, 501, "%s --%.*s is not supported", dockerfile_kind_name(i->kind), STR_FMT(name));
}

static int check_flag(struct parser *p, const struct dockerfile_instruction *i, struct str name, bool has_value, struct str value)
{
	const struct known_flag *k = NULL;
	for (size_t n = 0; n < ARRAY_SIZE(known); n++)
		if (known[n].kind == i->kind && str_is(name, known[n].name))
			k = &known[n];
	if (!k)
		return error_set(p->err, -EINVAL, 400, "unknown flag --%.*s for %s", STR_FMT(str_n(name.p, MIN(name.n, 40))), dockerfile_kind_name(i->kind));
	if (k->state == FLAG_REFUSED)
		return refused(p, i, name);
	if (k->state != FLAG_LIST && dockerfile_flag(i, k->name))
		return error_set(p->err, -EINVAL, 400, "duplicate flag --%s", k->name);
	if (k->state == FLAG_BOOL)
		return !has_value || str_is(value, "true") || str_is(value, "false") ? 0 :
			error_set(p->err, -EINVAL, 400, "--%s must be true or false", k->name);
	if (!has_value || value.n == 0)
		return error_set(p->err, -EINVAL, 400, "missing a value on flag --%s", k->name);
	if (k->state == FLAG_DEFAULT && !str_is(value, k->value))
		return error_set(p->err, -ENOTSUP, 501, "%s --%s=%.*s is not supported", dockerfile_kind_name(i->kind), k->name, STR_FMT(str_n(value.p, MIN(value.n, 60))));
	return 0;
}

static int add_flag(struct parser *p, struct dockerfile_instruction *i, struct str text)
{
	struct str name = text, value = STR("");
	bool has_value = str_cut(text, '=', &name, &value);
	int r = check_flag(p, i, name, has_value, value);
	if (r < 0)
		return r;
	if (i->n_flags == FLAGS_MAX)
		return error_set(p->err, -E2BIG, 400, "more than %d flags", FLAGS_MAX);
	if (str_is(value, "false") && (str_is(name, "link") || str_is(name, "parents")))
		return 0; /* as if it was not there */
	struct dockerfile_flag *to = parser_grow(p, (void **)&i->flags, &i->n_flags, sizeof(*to));
	return to && parser_copy(p, name, &to->name) == 0 && parser_copy(p, value, &to->value) == 0 ? 0 : no_memory(p);
}

int parser_flags(struct parser *p, struct dockerfile_instruction *i, struct str *rest)
{
	for (;;) {
		while (rest->n && words_space(rest->p[0]))
			*rest = str_from(*rest, 1);
		if (!str_starts(*rest, STR("--")))
			return 0;
		cleanup_buf struct buf text = BUF_INIT;
		flag_text(rest, &text);
		if (text.failed)
			return no_memory(p);
		if (buf_len(&text) == 2)
			break; /* a lone -- ends them */
		int r = add_flag(p, i, str_from(buf_str(&text), 2));
		if (r < 0)
			return r;
	}
	while (rest->n && words_space(rest->p[0]))
		*rest = str_from(*rest, 1);
	return 0;
}

/* An array of strings: 1; no JSON array: 0; an array of other things is an error. */
static int take_json(struct parser *p, struct dockerfile_instruction *i, struct str rest)
{
	if (rest.n == 0 || rest.p[0] != '[')
		return 0;
	cleanup_json json_t *array = json_parse(rest, DOCKERFILE_ONE, "array", NULL);
	if (!array)
		return 0;
	size_t n;
	json_t *one;
	json_array_foreach(array, n, one)
	{
		if (!json_is_string(one))
			return error_set(p->err, -EINVAL, 400, "an array in JSON syntax must have strings only");
		int r = add_argument(p, i, json_str(one));
		if (r < 0)
			return r;
	}
	i->json = true;
	return 1;
}

static int take_words(struct parser *p, struct dockerfile_instruction *i, struct str rest)
{
	size_t at = 0;
	while (at < rest.n) {
		size_t from = at;
		while (at < rest.n && !words_space(rest.p[at]))
			at++;
		int r = at > from ? add_argument(p, i, str_n(rest.p + from, at - from)) : 0;
		if (r < 0)
			return r;
		at++;
	}
	return 0;
}

/* "NAME some text", the old form. */
static int take_old_pair(struct parser *p, struct dockerfile_instruction *i, struct str rest)
{
	size_t n = 0;
	while (n < rest.n && !words_space(rest.p[n]))
		n++;
	struct str value = str_from(rest, n);
	while (value.n && words_space(value.p[0]))
		value = str_from(value, 1);
	if (value.n == 0)
		return error_set(p->err, -EINVAL, 400, "%s must have a name and a value", dockerfile_kind_name(i->kind));
	return add_pair(p, i, str_n(rest.p, n), value, true);
}

static int take_pairs(struct parser *p, struct dockerfile_instruction *i, struct str rest, bool names)
{
	struct str all = rest, word, key, value;
	for (bool first = true; words_next(&rest, p->d->escape, &word); first = false) {
		int r;
		if (str_cut(word, '=', &key, &value))
			r = add_pair(p, i, key, value, true);
		else if (names)
			r = add_pair(p, i, word, STR(""), false);
		else if (first)
			return take_old_pair(p, i, all);
		else
			r = error_set(p->err, -EINVAL, 400, "no = in \"%.*s\": it must be NAME=value", STR_FMT(str_n(word.p, MIN(word.n, 60))));
		if (r < 0)
			return r;
	}
	return 0;
}

static int take_healthcheck(struct parser *p, struct dockerfile_instruction *i, struct str rest)
{
	size_t n = 0;
	while (n < rest.n && !words_space(rest.p[n]))
		n++;
	struct str what = str_n(rest.p, n);
	rest = str_from(rest, n);
	while (rest.n && words_space(rest.p[0]))
		rest = str_from(rest, 1);
	if (str_eq_nocase(what, STR("NONE")) && rest.n == 0) {
		i->none = true;
		return 0;
	}
	if (!str_eq_nocase(what, STR("CMD")) || rest.n == 0)
		return error_set(p->err, -EINVAL, 400, "HEALTHCHECK is followed by NONE or by CMD and a command");
	int r = take_json(p, i, rest);
	return r == 0 ? add_argument(p, i, rest) : MIN(r, 0);
}

int parser_arguments(struct parser *p, struct dockerfile_instruction *i, enum dockerfile_form form, struct str rest)
{
	int r;
	switch (form) {
	case FORM_TEXT:
		return rest.n ? add_argument(p, i, rest) : 0;
	case FORM_WORDS:
		return take_words(p, i, rest);
	case FORM_JSON_TEXT:
		r = take_json(p, i, rest);
		return r != 0 ? MIN(r, 0) : rest.n ? add_argument(p, i, rest) : 0;
	case FORM_JSON_WORDS:
		r = take_json(p, i, rest);
		return r != 0 ? MIN(r, 0) : take_words(p, i, rest);
	case FORM_PAIRS:
		return take_pairs(p, i, rest, false);
	case FORM_NAMES:
		return take_pairs(p, i, rest, true);
	case FORM_HEALTHCHECK:
		return take_healthcheck(p, i, rest);
	}
	return 0;
}

bool dockerfile_is_remote(struct str s)
{
	static const char *const begins[] = {"http://", "https://", "ftp://", "git://", "ssh://", "git@"};
	for (size_t i = 0; i < ARRAY_SIZE(begins); i++) {
		size_t n = strlen(begins[i]);
		if (s.n >= n && str_eq_nocase(str_n(s.p, n), str_of(begins[i])))
			return true;
	}
	return false;
}

bool dockerfile_heredoc_word(struct str word, char escape, struct buf *name, bool *ret_tabs, bool *ret_expand)
{
	size_t n = 0;
	while (n < word.n && isdigit((unsigned char)word.p[n]))
		n++;
	struct str rest = str_from(word, n);
	if (!str_starts(rest, STR("<<")))
		return false;
	rest = str_from(rest, 2);
	bool tabs = rest.n && rest.p[0] == '-';
	if (tabs)
		rest = str_from(rest, 1);
	if (rest.n == 0 || memchr(rest.p, '<', rest.n))
		return false;
	/* Quotes off; a $ stands for itself. */
	bool plain = true;
	for (size_t i = 0; i < rest.n; i++) {
		char c = rest.p[i];
		if (c == '"' || c == '\'') {
			plain = false;
			continue;
		}
		if (c == escape && i + 1 < rest.n) {
			plain = false;
			c = rest.p[++i];
		}
		buf_add(name, &c, 1);
	}
	*ret_tabs = tabs;
	*ret_expand = plain;
	return buf_len(name) > 0;
}

void dockerfile_heredoc_text(const struct dockerfile_heredoc *h, struct buf *to)
{
	struct str rest = h->text;
	if (!h->tabs) {
		buf_add_str(to, rest);
		return;
	}
	while (rest.n) {
		ptrdiff_t end = str_chr(rest, '\n');
		struct str line = str_n(rest.p, end < 0 ? rest.n : (size_t)end + 1);
		rest = str_from(rest, line.n);
		while (line.n && line.p[0] == '\t')
			line = str_from(line, 1);
		buf_add_str(to, line);
	}
}

const struct dockerfile_heredoc *dockerfile_heredoc_find(const struct dockerfile_instruction *i, struct str name)
{
	for (size_t k = 0; k < i->n_heredocs; k++)
		if (str_eq(i->heredocs[k].name, name))
			return &i->heredocs[k];
	return NULL;
}

static int check_sources(struct parser *p, const struct dockerfile_instruction *i)
{
	for (size_t k = 0; k + 1 < i->n_args; k++)
		if (i->kind == DF_ADD && dockerfile_is_remote(i->args[k]))
			return error_set(p->err, -ENOTSUP, 501, "ADD of a URL or a git repository is not supported: fetch it with RUN, or put the file into the context");
	if (dockerfile_flag(i, "parents") && dockerfile_flag(i, "from"))
		return refused(p, i, STR("parents with --from"));
	if (dockerfile_flag(i, "exclude") && dockerfile_flag(i, "from"))
		return refused(p, i, STR("exclude with --from"));
	return 0;
}

int parser_check(struct parser *p, const struct dockerfile_instruction *i)
{
	if (i->kind == DF_SHELL && !i->json)
		return error_set(p->err, -EINVAL, 400, "SHELL requires its arguments as an array in JSON syntax");
	if (i->kind == DF_COPY || i->kind == DF_ADD)
		return check_sources(p, i);
	for (size_t k = 0; i->kind == DF_RUN && k < i->n_flags; k++) {
		struct dockerfile_mount mount;
		int r = str_is(i->flags[k].name, "mount") ? dockerfile_mount_parse(i->flags[k].value, &mount, p->err) : 0;
		if (r < 0)
			return r;
	}
	for (size_t k = 0; i->kind == DF_VOLUME && k < i->n_args; k++)
		if (str_trim(i->args[k]).n == 0)
			return error_set(p->err, -EINVAL, 400, "VOLUME can not be an empty string");
	if (i->kind != DF_ONBUILD)
		return 0;
	struct dockerfile d;
	int r = dockerfile_parse_triggers(&d, i->args[0], p->d->escape, "trigger", p->err);
	dockerfile_done(&d);
	return r;
}
