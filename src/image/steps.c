#include "image/steps.h"
#include "base/cleanup.h"
#include "image/copy.h"
#include "image/provision.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { STEPPED_FROM = 60, STEPPED_TO = 90 /* percent of the build */, SHOWN = 200 };

/* Something that the next box does before it does what it is for. */
struct pending {
	bool account;   /* else a directory */
	bool sudo;
	char *what;     /* name or absolute path */
	char *user;     /* whom the directory is for */
};

int steps_init(struct steps *s, struct build *b, struct stack *stack, const struct build_config *from, const char *user)
{
	*s = (struct steps){.b = b, .stack = stack, .user = strdup(user), .workdir = strdup("")};
	return s->user && s->workdir ? env_merge(&s->env, &from->env) : -ENOMEM;
}

static void forget_pending(struct steps *s)
{
	for (size_t i = 0; i < s->n_pending; i++) {
		free(s->pending[i].what);
		free(s->pending[i].user);
	}
	free(s->pending);
	s->pending = NULL;
	s->n_pending = 0;
}

void steps_done(struct steps *s)
{
	forget_pending(s);
	env_done(&s->env);
	free(s->user);
	free(s->workdir);
}

static int add_pending(struct steps *s, bool account, bool sudo, const char *what, const char *user)
{
	struct pending *more = realloc(s->pending, (s->n_pending + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	s->pending = more;
	more[s->n_pending] = (struct pending){.account = account, .sudo = sudo, .what = strdup(what), .user = strdup(user)};
	s->n_pending++;
	return more[s->n_pending - 1].what && more[s->n_pending - 1].user ? 0 : -ENOMEM;
}

/* What tells a layer apart: each part with its length, so that no two lists look alike. */
static void add_key(struct buf *to, const char *part)
{
	buf_addf(to, "%zu:%s\n", strlen(part), part);
}

static void pending_key(const struct steps *s, struct buf *to)
{
	for (size_t i = 0; i < s->n_pending; i++) {
		add_key(to, s->pending[i].account ? s->pending[i].sudo ? "account with sudo" : "account" : "directory");
		add_key(to, s->pending[i].what);
		add_key(to, s->pending[i].user);
	}
}

/* 0, or BUILD_NOTHING when there was nothing to do. */
static int do_pending(const struct steps *s, struct box *box, struct error *err)
{
	int changed = BUILD_NOTHING;
	for (size_t i = 0; i < s->n_pending; i++) {
		const struct pending *p = &s->pending[i];
		struct account made;
		struct envd_stat st = {0};
		int r = p->account ? account_make(&box->envd, p->what, p->sudo, ACCOUNT_REQUIRED, &made, err) : envd_stat(&box->envd, p->what, &st, err);
		if (r == 0 && !p->account && st.exists && !st.is_dir)
			return error_set(err, -ENOTDIR, 400, "'%.200s' is no directory", p->what);
		if (r == 0 && !p->account)
			r = st.exists ? BUILD_NOTHING : envd_make_dir(&box->envd, p->what, p->user, err);
		if (r < 0)
			return r;
		if (r == 0)
			changed = 0;
	}
	return changed;
}

static int make_pending(struct box *box, void *arg, struct error *err)
{
	return do_pending(arg, box, err);
}

int steps_settle(struct steps *s, struct error *err)
{
	cleanup_buf struct buf key = BUF_INIT;
	if (!s->n_pending)
		return 0;
	pending_key(s, &key);
	if (key.failed)
		return error_errno(err, -ENOMEM, "step %s", s->b->step);
	int r = build_layer(s->b, s->stack, buf_str(&key), s->force, make_pending, s, NULL, err);
	if (r == 0)
		forget_pending(s);
	return r;
}

/* ---- RUN ---- */

struct doing {
	struct steps *s;
	const struct spec_step *step;
	const char *title; /* for the log */
};

static int make_run(struct box *box, void *arg, struct error *err)
{
	const struct doing *d = arg;
	struct steps *s = d->s;
	cleanup_buf struct buf line = BUF_INIT;
	const char *shell, *user = d->step->n_args == 2 && *d->step->args[1] ? d->step->args[1] : s->user;
	build_log(s->b, 1, "%s", d->title);
	int r = do_pending(s, box, err);
	if (r >= 0)
		r = provision_shell(&box->envd, &shell, err);
	if (r < 0)
		return r;
	if (!*shell)
		return error_set(err, -ENOENT, 400, "failed to run command '%.120s': the image has neither /bin/bash nor /bin/sh", d->step->args[0]);
	if (steps_shell_line(&s->env, d->step->args[0], &line) < 0)
		return error_errno(err, -ENOMEM, "RUN");
	const char *const argv[] = {shell, "-l", "-c", buf_cstr(&line), NULL};
	return build_command(box, argv, user, *s->workdir ? s->workdir : NULL, &s->env, d->step->args[0], err);
}

/* ---- COPY ---- */

static int parse_mode(const char *text, long *ret)
{
	long mode = 0;
	if (!*text) {
		*ret = -1;
		return 0;
	}
	for (; *text; text++) {
		if (*text < '0' || *text > '7' || mode > 07777)
			return -EINVAL;
		mode = mode * 8 + (*text - '0');
	}
	*ret = mode;
	return mode > 07777 ? -EINVAL : 0;
}

static int home_of(const struct box *box, const char *user, char *to, size_t size, struct error *err)
{
	struct account a;
	int r = account_find(&box->envd, str_of(user), &a, NULL, err);
	if (r < 0)
		return r;
	if (!a.exists && strcmp(user, "root") != 0)
		return error_set(err, -ENOENT, 400, "unauthenticated: invalid username: '%.64s'", user);
	snprintf(to, size, "%s", a.exists && a.home[0] == '/' ? a.home : "/root");
	return 0;
}

static int make_copy(struct box *box, void *arg, struct error *err)
{
	const struct doing *d = arg;
	struct steps *s = d->s;
	const char *const *args = d->step->args;
	size_t n = d->step->n_args;
	cleanup_buf struct buf source = BUF_INIT, dest = BUF_INIT;
	char home[256] = "";
	struct copy_done done = {0};
	build_log(s->b, 1, "%s", d->title);
	struct copy c = {.mode = -1, .owner = n > 2 && *args[2] ? args[2] : s->user, .user_is_group = n > 2 && *args[2]};
	if (n > 3 && parse_mode(args[3], &c.mode) < 0)
		return error_set(err, -EINVAL, 400, "COPY: the mode '%.32s' is not octal", args[3]);
	int r = do_pending(s, box, err);
	if (r >= 0)
		r = copy_strip_glob(str_of(args[0]), &source, err);
	if (r == 0 && !*s->workdir && args[1][0] != '/')
		r = home_of(box, s->user, home, sizeof(home), err);
	if (r == 0 && steps_join(*s->workdir ? s->workdir : home, str_of(args[1]), &dest) < 0)
		r = error_errno(err, -ENOMEM, "COPY");
	cleanup_fd int fd = r < 0 ? -1 : ask_open_file(s->b->ask, d->step->files, NULL, err);
	if (r == 0 && fd == -ENOENT)
		r = error_set(err, -ENOENT, 400, "COPY %.200s: its files were not uploaded", args[0]);
	if (r < 0 || fd < 0)
		return r < 0 ? r : fd;
	const char *const sources[] = {buf_cstr(&source), NULL};
	c.fd = fd;
	c.sources = sources;
	c.dest = buf_cstr(&dest);
	r = copy_into(&box->envd, &c, &done, err);
	if (r == 0)
		build_log(s->b, 0, "%llu files and directories, %.1f MB", (unsigned long long)done.entries, (double)done.bytes / 1e6);
	return r;
}

/* ---- the others change what is known, not the files ---- */

static int set_text(char **to, const char *text)
{
	char *copy = strdup(text);
	if (!copy)
		return -ENOMEM;
	free(*to);
	*to = copy;
	return 0;
}

static int do_env(struct steps *s, const struct spec_step *step, struct error *err)
{
	for (size_t i = 0; i + 1 < step->n_args; i += 2) {
		cleanup_buf struct buf value = BUF_INIT;
		int r = steps_expand(str_of(step->args[i + 1]), &s->env, &value, err);
		if (r < 0)
			return error_wrap(err, r, "ENV %.64s", step->args[i]);
		r = env_set(&s->env, str_of(step->args[i]), buf_str(&value));
		if (r == -E2BIG)
			return error_set(err, r, 400, "ENV: the environment is larger than %d bytes or %d variables", ENV_BYTES, ENV_MOST);
		if (r < 0)
			return error_set(err, r, 400, "ENV: '%.64s' is no name of a variable", step->args[i]);
	}
	return 0;
}

static int do_workdir(struct steps *s, const struct spec_step *step, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT;
	/* From the workdir of before, or the root. */
	if (steps_join(s->workdir, str_of(step->args[0]), &path) < 0)
		return error_errno(err, -ENOMEM, "WORKDIR");
	char *text = path.data + path.start;
	size_t n = strlen(text);
	if (n >= 1024)
		return error_set(err, -ENAMETOOLONG, 400, "WORKDIR: the path is longer than 1023 bytes");
	if (n > 1 && text[n - 1] == '/')
		text[n - 1] = '\0';
	s->workdir_set = true;
	return add_pending(s, false, false, text, s->user) < 0 || set_text(&s->workdir, text) < 0 ? error_errno(err, -ENOMEM, "WORKDIR") : 0;
}

static int do_user(struct steps *s, const struct spec_step *step, struct error *err)
{
	bool sudo = step->n_args == 2 && !strcmp(step->args[1], "true");
	const char *name = step->args[0];
	if (strlen(name) > 32)
		return error_set(err, -EINVAL, 400, "USER: the name is longer than 32 bytes");
	if (strcmp(name, "root") != 0 && add_pending(s, true, sudo, name, "") < 0)
		return error_errno(err, -ENOMEM, "USER");
	return set_text(&s->user, name) < 0 ? error_errno(err, -ENOMEM, "USER") : 0;
}

/* ---- all of them ---- */

/* "[2/5] RUN pip install x": the first line of it. */
static void title(const struct spec_step *step, size_t number, size_t n, struct buf *to)
{
	buf_addf(to, "[%zu/%zu] %s", number, n, spec_step_name(step->type));
	size_t shown = step->type == SPEC_RUN ? 1 : step->type == SPEC_COPY ? 2 : step->n_args;
	for (size_t i = 0; i < shown && buf_len(to) < SHOWN; i++) {
		/* Values of variables may be secrets. */
		if (step->type == SPEC_ENV && i % 2)
			continue;
		struct str arg = str_of(step->args[i]), head, tail;
		bool more = str_cut(arg, '\n', &head, &tail);
		arg = more ? head : arg;
		bool cut = more || arg.n > SHOWN;
		buf_addf(to, " %.*s%s", (int)MIN(arg.n, (size_t)SHOWN), arg.p, cut ? " …" : "");
	}
}

static int do_layer(struct steps *s, const struct spec_step *step, const char *name, struct error *err)
{
	cleanup_buf struct buf key = BUF_INIT;
	struct doing doing = {.s = s, .step = step, .title = name};
	bool cached;
	pending_key(s, &key);
	add_key(&key, spec_step_name(step->type));
	add_key(&key, s->user);
	add_key(&key, s->workdir);
	for (size_t i = 0; i < s->env.n && step->type == SPEC_RUN; i++) {
		add_key(&key, s->env.vars[i].name);
		add_key(&key, s->env.vars[i].value);
	}
	add_key(&key, "");
	for (size_t i = 0; i < step->n_args; i++)
		add_key(&key, step->args[i]);
	if (step->files)
		add_key(&key, step->files);
	if (key.failed)
		return error_errno(err, -ENOMEM, "%s", spec_step_name(step->type));
	int r = build_layer(s->b, s->stack, buf_str(&key), s->force, step->type == SPEC_RUN ? make_run : make_copy, &doing, &cached, err);
	if (r < 0)
		return r;
	if (cached)
		build_log(s->b, 1, "CACHED %s", name);
	forget_pending(s);
	return 0;
}

static int do_step(struct steps *s, const struct spec_step *step, const char *name, struct error *err)
{
	s->force |= step->force;
	switch (step->type) {
	case SPEC_COPY:
	case SPEC_RUN:
		return do_layer(s, step, name, err);
	case SPEC_ENV:
		build_log(s->b, 1, "%s", name);
		return do_env(s, step, err);
	case SPEC_WORKDIR:
		build_log(s->b, 1, "%s", name);
		return do_workdir(s, step, err);
	case SPEC_USER:
		build_log(s->b, 1, "%s", name);
		return do_user(s, step, err);
	}
	return -EINVAL;
}

int steps_run(struct steps *s, const struct spec_step *steps, size_t n, struct error *err)
{
	for (size_t i = 0; i < n; i++) {
		cleanup_buf struct buf name = BUF_INIT;
		snprintf(s->b->step, sizeof(s->b->step), "%zu", i + 1);
		title(&steps[i], i + 1, n, &name);
		int r = buf_cstr(&name) ? do_step(s, &steps[i], buf_cstr(&name), err) : error_errno(err, -ENOMEM, "step %zu", i + 1);
		if (r < 0)
			return r;
		build_progress(s->b, "BUILDING_EXT4", STEPPED_FROM + (unsigned)((STEPPED_TO - STEPPED_FROM) * (i + 1) / n));
	}
	return 0;
}
