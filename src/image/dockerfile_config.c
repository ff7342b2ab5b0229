/* Instructions of a Dockerfile that change what the image says of itself. */
#include "base/cleanup.h"
#include "image/dockerfile_build.h"
#include "image/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LIST_MOST = 1024 };

static int no_memory(struct error *err)
{
	return error_errno(err, -ENOMEM, "Dockerfile");
}

static size_t length(char *const *list)
{
	size_t n = 0;
	while (list && list[n])
		n++;
	return n;
}

/* The list with one more. */
static int append(char ***list, struct str text, struct error *err)
{
	size_t n = length(*list);
	if (n >= LIST_MOST)
		return error_set(err, -E2BIG, 400, "more than %d of them", LIST_MOST);
	char **more = reallocarray(*list, n + 2, sizeof(*more));
	if (!more)
		return no_memory(err);
	*list = more;
	more[n] = str_dup(text);
	more[n + 1] = NULL;
	return more[n] ? 0 : no_memory(err);
}

static void clear(char ***list)
{
	for (size_t i = 0; *list && (*list)[i]; i++)
		free((*list)[i]);
	free(*list);
	*list = NULL;
}

static int set_text(char **to, struct str text, struct error *err)
{
	char *copy = str_dup(text);
	if (!copy)
		return no_memory(err);
	free(*to);
	*to = copy;
	return 0;
}

static int env(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	/* All of one instruction see what was before it. */
	struct env made = {0};
	int r = 0;
	for (size_t k = 0; k < i->n_pairs && r == 0; k++) {
		cleanup_buf struct buf key = BUF_INIT, value = BUF_INIT;
		r = df_expand(s, i->pairs[k].key, &key, err);
		if (r == 0)
			r = df_expand(s, i->pairs[k].value, &value, err);
		int e = r == 0 ? env_set(&made, buf_str(&key), buf_str(&value)) : 0;
		if (e < 0)
			r = error_set(err, e, 400, e == -E2BIG ? "the variables are more than %d or longer than %d bytes" : "no name of a variable", ENV_MOST, ENV_BYTES);
	}
	int e = r == 0 ? env_merge(&s->files->config.env, &made) : 0;
	env_done(&made);
	return e < 0 ? error_set(err, e, 400, "the variables are more than %d or longer than %d bytes", ENV_MOST, ENV_BYTES) : r;
}

static int label(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	char ***labels = &s->files->config.labels;
	for (size_t k = 0; k < i->n_pairs; k++) {
		cleanup_buf struct buf key = BUF_INIT, value = BUF_INIT;
		int r = df_expand(s, i->pairs[k].key, &key, err);
		if (r == 0)
			r = df_expand(s, i->pairs[k].value, &value, err);
		if (r < 0)
			return r;
		size_t n = 0, all = length(*labels);
		while (n + 1 < all && !str_is(buf_str(&key), (*labels)[n]))
			n += 2;
		if (n + 1 < all)
			r = set_text(&(*labels)[n + 1], buf_str(&value), err);
		else if ((r = append(labels, buf_str(&key), err)) == 0)
			r = append(labels, buf_str(&value), err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* CMD and ENTRYPOINT: the array, or the text for the shell. */
static int command(struct df_stage *s, const struct dockerfile_instruction *i, char ***to, struct error *err)
{
	static const char *const usual[] = {"/bin/sh", "-c", NULL};
	char **made = NULL;
	char *const *shell = length(s->files->config.shell) ? s->files->config.shell : (char *const *)usual;
	int r = 0;
	for (size_t k = 0; !i->json && i->n_args && shell[k] && r == 0; k++)
		r = append(&made, str_of(shell[k]), err);
	for (size_t k = 0; k < i->n_args && r == 0; k++)
		r = append(&made, i->args[k], err);
	if (r < 0) {
		clear(&made);
		return r;
	}
	clear(to);
	*to = made;
	return 0;
}

static bool is_port(struct str s)
{
	struct str first = s, last = s;
	uint64_t a, b;
	str_cut(s, '-', &first, &last);
	return str_to_u64(first, &a) == 0 && str_to_u64(last, &b) == 0 && a >= 1 && a <= b && b <= 65535;
}

static int expose_one(struct df_stage *s, struct str text, struct error *err)
{
	char whole[64];
	struct str port = text, protocol = STR("tcp");
	str_cut(text, '/', &port, &protocol);
	if (!is_port(port) || (!str_eq_nocase(protocol, STR("tcp")) && !str_eq_nocase(protocol, STR("udp")) && !str_eq_nocase(protocol, STR("sctp"))))
		return error_set(err, -EINVAL, 400, "\"%.*s\" is no port", STR_FMT(str_n(text.p, MIN(text.n, 60))));
	snprintf(whole, sizeof(whole), "%.*s/%.*s", STR_FMT(port), STR_FMT(protocol));
	char **ports = s->files->config.exposed_ports;
	for (size_t i = 0; ports && ports[i]; i++)
		if (strcmp(ports[i], whole) == 0)
			return 0;
	return append(&s->files->config.exposed_ports, str_of(whole), err);
}

static int expose(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	struct dockerfile_scope scope = {.env = &s->files->config.env, .args = &s->args};
	struct words w = {.escape = s->w->file.escape, .get = dockerfile_scope_get, .data = &scope};
	for (size_t k = 0; k < i->n_args; k++) {
		cleanup_buf struct buf words = BUF_INIT;
		size_t n = 0;
		int r = words_expand_list(&w, i->args[k], &words, &n, err);
		for (struct str rest = buf_str(&words); r == 0 && n > 0; n--) {
			struct str one = str_of(rest.p);
			rest = str_from(rest, one.n + 1);
			r = expose_one(s, one, err);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int workdir(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT, path = BUF_INIT;
	const char *now = s->files->config.workdir;
	int r = df_expand(s, i->args[0], &text, err);
	if (r < 0)
		return r;
	if (buf_len(&text) == 0)
		return error_set(err, -EINVAL, 400, "nothing is left of the path");
	path_join(&path, *now ? str_of(now) : STR("/"), buf_str(&text));
	if (!buf_cstr(&path))
		return no_memory(err);
	r = set_text(&s->files->config.workdir, buf_str(&path), err);
	return r == 0 ? df_want_dir(s, buf_cstr(&path), err) : r;
}

static int volume(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	for (size_t k = 0; k < i->n_args; k++) {
		cleanup_buf struct buf text = BUF_INIT, path = BUF_INIT;
		int r = df_expand(s, i->args[k], &text, err);
		if (r < 0)
			return r;
		path_join(&path, STR("/"), buf_str(&text));
		if (!buf_cstr(&path))
			return no_memory(err);
		r = df_want_dir(s, buf_cstr(&path), err);
		if (r < 0)
			return r;
		build_log(s->w->b, 1, "VOLUME %s: a directory of the sandbox's own disk, like any other", buf_cstr(&path));
	}
	return 0;
}

static int one_text(struct df_stage *s, const struct dockerfile_instruction *i, char **to, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = df_expand(s, i->args[0], &text, err);
	if (r == 0 && buf_len(&text) == 0)
		r = error_set(err, -EINVAL, 400, "nothing is left of its argument");
	return r == 0 ? set_text(to, buf_str(&text), err) : r;
}

static int shell(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	char **made = NULL;
	int r = 0;
	for (size_t k = 0; k < i->n_args && r == 0; k++)
		r = append(&made, i->args[k], err);
	if (r < 0) {
		clear(&made);
		return r;
	}
	clear(&s->files->config.shell);
	s->files->config.shell = made;
	return 0;
}

static int maintainer(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	int r = append(&s->files->config.labels, STR("maintainer"), err);
	build_log(s->w->b, 2, "MAINTAINER is deprecated: it becomes the label maintainer");
	return r == 0 ? append(&s->files->config.labels, i->args[0], err) : r;
}

int df_configure(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	struct build_config *c = &s->files->config;
	struct dockerfile_scope scope = {.env = &c->env, .args = &s->args};
	switch (i->kind) {
	case DF_ARG:
		return dockerfile_scope_arg(&s->w->plan, &s->w->given, &scope, i, err);
	case DF_CMD:
		s->cmd_set = true;
		return command(s, i, &c->cmd, err);
	case DF_ENTRYPOINT:
		/* A command that came with the base belongs to the base's entry point. */
		if (!s->cmd_set)
			clear(&c->cmd);
		return command(s, i, &c->entrypoint, err);
	case DF_ENV:
		return env(s, i, err);
	case DF_EXPOSE:
		return expose(s, i, err);
	case DF_HEALTHCHECK:
		if (!i->none)
			build_log(s->w->b, 2, "HEALTHCHECK is not used: --ready-cmd says when a sandbox is ready");
		return 0;
	case DF_LABEL:
		return label(s, i, err);
	case DF_MAINTAINER:
		return maintainer(s, i, err);
	case DF_ONBUILD:
		return append(&c->on_build, i->args[0], err);
	case DF_SHELL:
		return shell(s, i, err);
	case DF_STOPSIGNAL:
		return one_text(s, i, &c->stop_signal, err);
	case DF_USER:
		return one_text(s, i, &c->user, err);
	case DF_VOLUME:
		return volume(s, i, err);
	case DF_WORKDIR:
		return workdir(s, i, err);
	case DF_ADD:
	case DF_COPY:
	case DF_FROM:
	case DF_RUN:
	case DF_KINDS:
		break;
	}
	return error_set(err, -EINVAL, 500, "no instruction of that kind");
}
