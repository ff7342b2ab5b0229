#include "image/dockerfile_plan.h"
#include "base/cleanup.h"
#include "image/dockerfile_mount.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int env_failed(int r, struct str name, struct error *err)
{
	if (r == -EINVAL)
		return error_set(err, r, 400, "\"%.*s\" is no name of a variable, or its value has a NUL", STR_FMT(str_n(name.p, MIN(name.n, 60))));
	if (r == -E2BIG)
		return error_set(err, r, 400, "the variables are more than %d or longer than %d bytes", ENV_MOST, ENV_BYTES);
	return error_errno(err, r, "variables");
}

bool dockerfile_scope_get(void *data, struct str name, struct str *ret)
{
	const struct dockerfile_scope *s = data;
	const char *value = s->env ? env_get(s->env, name) : NULL;
	if (!value)
		value = env_get(s->args, name);
	if (value)
		*ret = str_of(value);
	return value != NULL;
}

/* The value that was given for it, or NULL. */
static const char *given_value(struct dockerfile_given *given, struct str name)
{
	for (size_t i = 0; i < given->vars.n; i++) {
		if (str_is(name, given->vars.vars[i].name)) {
			given->used[i] = true;
			return given->vars.vars[i].value;
		}
	}
	return NULL;
}

bool dockerfile_is_proxy(struct str name)
{
	static const char *const names[] = {"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"};
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_eq_nocase(name, str_of(names[i])))
			return true;
	return false;
}

static int arg(const struct dockerfile_plan *p, struct dockerfile_given *given, struct dockerfile_scope *s, const struct dockerfile_pair *pair, bool global, struct error *err)
{
	struct words w = {.escape = p->file->escape, .get = dockerfile_scope_get, .data = s};
	cleanup_buf struct buf key = BUF_INIT, value = BUF_INIT;
	int r = words_expand(&w, pair->key, &key, err);
	if (r == 0 && pair->set)
		r = words_expand(&w, pair->value, &value, err);
	if (r < 0)
		return r;
	struct str name = buf_str(&key);
	const char *text = given_value(given, name);
	if (!text && pair->set)
		text = buf_cstr(&value);
	if (!text && !global)
		text = env_get(&p->globals, name);
	if (!text)
		text = env_get(&p->platform, name);
	r = text ? env_set(s->args, name, str_of(text)) : 0;
	return r < 0 ? env_failed(r, name, err) : 0;
}

int dockerfile_scope_arg(const struct dockerfile_plan *p, struct dockerfile_given *given, struct dockerfile_scope *s, const struct dockerfile_instruction *i, struct error *err)
{
	int r = 0;
	for (size_t k = 0; k < i->n_pairs && r == 0; k++)
		r = arg(p, given, s, &i->pairs[k], false, err);
	return r;
}

static int set_platform(struct dockerfile_plan *p, const char *architecture, const char *variant, struct error *err)
{
	static const char *const sides[] = {"TARGET", "BUILD"};
	char platform[64];
	snprintf(platform, sizeof(platform), "linux/%s%s%s", architecture, *variant ? "/" : "", variant);
	int r = 0;
	for (size_t i = 0; i < 2 && r == 0; i++) {
		const char *const vars[][2] = {{"PLATFORM", platform}, {"OS", "linux"}, {"ARCH", architecture}, {"VARIANT", variant}};
		for (size_t k = 0; k < ARRAY_SIZE(vars) && r == 0; k++) {
			char name[32];
			snprintf(name, sizeof(name), "%s%s", sides[i], vars[k][0]);
			r = env_set(&p->platform, str_of(name), str_of(vars[k][1]));
		}
	}
	return r < 0 ? env_failed(r, STR("TARGETPLATFORM"), err) : 0;
}

/* "linux/amd64", "amd64", and with the variant. */
static bool is_platform(struct str given, const char *architecture, const char *variant)
{
	char text[64];
	if (str_starts(given, STR("linux/")))
		given = str_from(given, 6);
	snprintf(text, sizeof(text), "%s/%s", architecture, variant);
	return str_is(given, architecture) || (*variant && str_is(given, text)) || (str_is(given, "x86_64") && strcmp(architecture, "amd64") == 0) ||
	       (str_is(given, "aarch64") && strcmp(architecture, "arm64") == 0);
}

static int check_platform(struct str given, const char *architecture, const char *variant, struct error *err)
{
	if (given.n == 0 || !architecture || is_platform(given, architecture, variant))
		return 0;
	return error_set(err, -ENOTSUP, 501, "platform %.*s is not supported: sandboxes are linux/%s", STR_FMT(str_n(given.p, MIN(given.n, 60))), architecture);
}

static int plan_stage(struct dockerfile_plan *p, size_t n, const char *architecture, const char *variant, struct error *err)
{
	const struct dockerfile_stage *s = &p->file->stages[n];
	struct dockerfile_base *b = &p->bases[n];
	struct dockerfile_scope scope = {.env = &p->platform, .args = &p->globals};
	struct words w = {.escape = p->file->escape, .must_be_set = true, .get = dockerfile_scope_get, .data = &scope};
	cleanup_buf struct buf base = BUF_INIT, platform = BUF_INIT;
	int r = words_expand(&w, s->base, &base, err);
	if (r == 0)
		r = words_expand(&w, s->platform, &platform, err);
	if (r == 0)
		r = check_platform(buf_str(&platform), architecture, variant, err);
	if (r < 0)
		return error_wrap(err, r, "FROM %.*s", STR_FMT(str_n(s->base.p, MIN(s->base.n, 100))));
	struct str name = buf_str(&base);
	if (name.n == 0)
		return error_set(err, -EINVAL, 400, "FROM %.*s: nothing is left of the base's name", STR_FMT(str_n(s->base.p, MIN(s->base.n, 100))));
	for (size_t k = n; k > 0; k--) {
		if (p->file->stages[k - 1].name.n && str_eq_nocase(p->file->stages[k - 1].name, name)) {
			b->kind = DF_BASE_STAGE;
			b->stage = k - 1;
			return 0;
		}
	}
	b->kind = str_is(name, "scratch") ? DF_BASE_SCRATCH : DF_BASE_IMAGE;
	b->image = str_dup(name);
	return b->image ? 0 : error_errno(err, -ENOMEM, "stages");
}

int dockerfile_copy_from(const struct dockerfile *d, struct str from, size_t stage, enum dockerfile_base_kind *ret_kind, size_t *ret_stage, struct error *err)
{
	int found = dockerfile_find_stage(d, from, stage);
	uint64_t number;
	*ret_kind = found >= 0 ? DF_BASE_STAGE : str_is(from, "scratch") ? DF_BASE_SCRATCH : DF_BASE_IMAGE;
	*ret_stage = found >= 0 ? (size_t)found : 0;
	if (found >= 0)
		return 0;
	if (str_to_u64(from, &number) == 0)
		return error_set(err, -EINVAL, 400, "--from=%.*s: there is no earlier stage of that number", STR_FMT(str_n(from.p, MIN(from.n, 20))));
	for (size_t i = stage; i < d->n_stages; i++)
		if (d->stages[i].name.n && str_eq_nocase(d->stages[i].name, from))
			return error_set(err, -EINVAL, 400, "--from=%.*s: that stage is not an earlier one", STR_FMT(from));
	return 0;
}

struct str dockerfile_flag_from(const struct dockerfile_flag *f)
{
	struct dockerfile_mount mount;
	if (str_is(f->name, "from"))
		return f->value;
	return str_is(f->name, "mount") && dockerfile_mount_parse(f->value, &mount, NULL) == 0 ? mount.from : STR("");
}

/* What an instruction of a needed stage takes files from. */
static int need_sources(struct dockerfile_plan *p, const struct dockerfile_instruction *i, size_t stage, struct error *err)
{
	for (size_t k = 0; k < i->n_flags; k++) {
		struct str from = dockerfile_flag_from(&i->flags[k]);
		enum dockerfile_base_kind kind;
		size_t other;
		int r = from.n ? dockerfile_copy_from(p->file, from, stage, &kind, &other, err) : 0;
		if (r < 0)
			return r;
		if (from.n && kind == DF_BASE_STAGE)
			p->bases[other].needed = true;
	}
	return 0;
}

/* The stage and all that it follows from; they come before it. */
static int need(struct dockerfile_plan *p, size_t n, struct error *err, unsigned *ret_line)
{
	const struct dockerfile *d = p->file;
	p->bases[n].needed = true;
	for (size_t s = n + 1; s > 0; s--) {
		const struct dockerfile_stage *stage = &d->stages[s - 1];
		if (!p->bases[s - 1].needed)
			continue;
		if (p->bases[s - 1].kind == DF_BASE_STAGE)
			p->bases[p->bases[s - 1].stage].needed = true;
		p->steps += stage->to - stage->from;
		for (size_t i = stage->from; i < stage->to; i++) {
			*ret_line = d->all[i].line;
			int r = need_sources(p, &d->all[i], s - 1, err);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

static int find_target(struct dockerfile_plan *p, struct str target, struct error *err)
{
	int found = target.n ? dockerfile_find_stage(p->file, target, p->file->n_stages) : (int)p->file->n_stages - 1;
	if (found < 0)
		return error_set(err, -EINVAL, 400, "there is no stage \"%.*s\"", STR_FMT(str_n(target.p, MIN(target.n, 60))));
	p->target = (size_t)found;
	return 0;
}

int dockerfile_plan(struct dockerfile_plan *p, const struct dockerfile *d, struct dockerfile_given *given, struct str target, const char *architecture,
	const char *variant, const char *name, struct error *err)
{
	unsigned line = 0;
	*p = (struct dockerfile_plan){.file = d, .bases = calloc(d->n_stages, sizeof(*p->bases))};
	if (!p->bases)
		return error_errno(err, -ENOMEM, "stages");
	struct dockerfile_scope scope = {.env = &p->platform, .args = &p->globals};
	int r = set_platform(p, architecture ? architecture : "any", architecture ? variant : "", err);
	for (size_t i = 0; r == 0 && i < d->globals; i++) {
		line = d->all[i].line;
		for (size_t k = 0; k < d->all[i].n_pairs && r == 0; k++)
			r = arg(p, given, &scope, &d->all[i].pairs[k], true, err);
	}
	for (size_t i = 0; r == 0 && i < d->n_stages; i++) {
		line = d->stages[i].line;
		r = plan_stage(p, i, architecture, variant, err);
	}
	if (r < 0)
		return line ? error_wrap(err, r, "%s:%u", name, line) : r;
	r = find_target(p, target, err);
	if (r < 0)
		return error_wrap(err, r, "%s", name);
	r = need(p, p->target, err, &line);
	return r < 0 ? error_wrap(err, r, "%s:%u", name, line) : 0;
}

void dockerfile_plan_done(struct dockerfile_plan *p)
{
	for (size_t i = 0; p->bases && i < p->file->n_stages; i++)
		free(p->bases[i].image);
	free(p->bases);
	env_done(&p->platform);
	env_done(&p->globals);
	*p = (struct dockerfile_plan){0};
}
