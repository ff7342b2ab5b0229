#include "image/dockerfile_build.h"
#include "base/cleanup.h"
#include "image/copy.h"
#include "image/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAME "Dockerfile" /* in messages */
#define USUAL_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum { SHOWN = 300, MAX_PASSWD = 4 * 1024 * 1024, FIRST_PERCENT = 10, LAST_PERCENT = 85 };

static int no_memory(struct error *err)
{
	return error_errno(err, -ENOMEM, NAME);
}

void df_tell(struct buf *to, struct str s)
{
	buf_addf(to, "%zu:", s.n);
	buf_add_str(to, s);
}

int df_expand(struct df_stage *s, struct str text, struct buf *to, struct error *err)
{
	struct dockerfile_scope scope = {.env = &s->files->config.env, .args = &s->args};
	struct words w = {.escape = s->w->file.escape, .get = dockerfile_scope_get, .data = &scope};
	int r = words_expand(&w, text, to, err);
	if (r == 0 && !buf_cstr(to))
		r = no_memory(err);
	return r;
}

int df_absolute(struct df_stage *s, struct str path, struct buf *to, struct error *err)
{
	const char *from = s->files->config.workdir;
	bool dir = path.n == 0 || str_ends(path, STR("/")) || str_is(path, ".") || str_ends(path, STR("/."));
	path_join(to, *from ? str_of(from) : STR("/"), path);
	if (dir && buf_len(to) > 1)
		buf_add_c(to, "/");
	return buf_cstr(to) ? 0 : no_memory(err);
}

int df_want_dir(struct df_stage *s, const char *path, struct error *err)
{
	for (size_t i = 0; i < s->n_pending; i++)
		if (strcmp(s->pending[i], path) == 0)
			return 0;
	if (strcmp(path, "/") == 0)
		return 0;
	if (s->n_pending == DF_PENDING)
		return error_set(err, -E2BIG, 400, "more than %d directories", DF_PENDING);
	s->pending[s->n_pending] = strdup(path);
	return s->pending[s->n_pending++] ? 0 : no_memory(err);
}

struct making {
	struct df_stage *stage;
	int (*make)(struct box *box, void *arg, struct error *err); /* NULL: only the directories */
	void *arg;
};

/* 1 when it made one. */
static int make_dir(struct box *box, const char *path, struct error *err)
{
	struct envd_stat st;
	int r = envd_stat(&box->envd, path, &st, err);
	if (r < 0 || (st.exists && st.is_dir))
		return r;
	if (st.exists)
		return error_set(err, -ENOTDIR, 400, "%s is there, and no directory", path);
	r = envd_make_dir(&box->envd, path, "root", err);
	return r < 0 ? error_wrap(err, r, "%s", path) : 1;
}

static int make(struct box *box, void *arg, struct error *err)
{
	struct making *m = arg;
	int changed = 0, r = 0;
	for (size_t i = 0; i < m->stage->n_pending && r >= 0; i++) {
		r = make_dir(box, m->stage->pending[i], err);
		changed |= r > 0;
	}
	if (r < 0)
		return r;
	r = m->make ? m->make(box, m->arg, err) : BUILD_NOTHING;
	return r == BUILD_NOTHING && changed ? 0 : r;
}

static void forget_dirs(struct df_stage *s)
{
	while (s->n_pending)
		free(s->pending[--s->n_pending]);
}

int df_layer(struct df_stage *s, struct str what, int (*do_it)(struct box *box, void *arg, struct error *err), void *arg, struct error *err)
{
	struct build *b = s->w->b;
	struct making m = {s, do_it, arg};
	cleanup_buf struct buf whole = BUF_INIT;
	bool cached = false;
	for (size_t i = 0; i < s->n_pending; i++) {
		buf_add_c(&whole, "dir ");
		df_tell(&whole, str_of(s->pending[i]));
	}
	buf_add_str(&whole, what);
	if (whole.failed)
		return no_memory(err);
	int r = build_layer(b, &s->files->stack, buf_str(&whole), b->force, make, &m, &cached, err);
	if (r < 0)
		return r;
	if (cached)
		build_log(b, 1, "CACHED");
	forget_dirs(s);
	return 0;
}

/* ---- RUN ---- */

struct running {
	const char *const *argv;
	const char *user, *cwd;
	const struct env *env;
	const char *shown;
	struct df_mounts *mounts; /* NULL: none */
};

/* The number of a user's own group in /etc/passwd, or -1. */
static int64_t own_group(struct str passwd, uid_t uid)
{
	for (struct str rest = passwd; rest.n;) {
		struct str line = rest, tail = STR(""), fields[4] = {{0}};
		str_cut(rest, '\n', &line, &tail);
		rest = tail;
		for (size_t i = 0; i < 4; i++) {
			fields[i] = line;
			if (!str_cut(line, ':', &fields[i], &line))
				line = STR("");
		}
		uint64_t u, g;
		if (str_to_u64(fields[2], &u) == 0 && u == uid && str_to_u64(fields[3], &g) == 0)
			return (int64_t)g;
	}
	return -1;
}

/* USER a:b runs as a; b must be what a has anyway, since commands are started with a user's own groups. *ret is the caller's. */
static int plain_user(struct box *box, const char *user, char **ret, struct error *err)
{
	cleanup_buf struct buf passwd = BUF_INIT, group = BUF_INIT;
	const char *colon = strchr(user, ':');
	struct str name = colon ? str_n(user, (size_t)(colon - user)) : str_of(user);
	uid_t uid;
	gid_t gid;
	int r = 0;
	*ret = str_dup(name.n ? name : STR("root"));
	if (!*ret)
		return no_memory(err);
	if (!colon || !colon[1])
		return 0;
	r = envd_read_file(&box->envd, "/etc/passwd", MAX_PASSWD, &passwd, err);
	if (r == 0 || r == -ENOENT)
		r = envd_read_file(&box->envd, "/etc/group", MAX_PASSWD, &group, err);
	if (r < 0 && r != -ENOENT)
		return r;
	r = copy_owner(str_of(user), false, buf_str(&passwd), buf_str(&group), &uid, &gid, err);
	if (r < 0)
		return error_wrap(err, r, "USER %s", user);
	int64_t own = own_group(buf_str(&passwd), uid);
	if (own >= 0 ? own == (int64_t)gid : gid == 0)
		return 0;
	return error_set(err, -ENOTSUP, 501, "USER %s is not supported: commands run with the user's own group", user);
}

static int make_run(struct box *box, void *arg, struct error *err)
{
	const struct running *run = arg;
	cleanup_free char *user = NULL;
	int r = plain_user(box, run->user, &user, err);
	if (r == 0 && run->mounts)
		r = df_mounts_place(run->mounts, box, err);
	if (r == 0)
		r = build_command(box, run->argv, user, run->cwd, run->env, run->shown, err);
	return r == 0 && run->mounts ? df_mounts_take_away(run->mounts, box, err) : r;
}

/* The text that the shell gets: of heredocs either the only one itself, or all of them behind the command, for the shell to read. */
static int run_text(const struct dockerfile_instruction *i, char escape, struct buf *to, struct error *err)
{
	cleanup_buf struct buf name = BUF_INIT;
	bool tabs, expand;
	struct str line = str_trim(i->args[0]);
	bool alone = i->n_heredocs == 1 && !memchr(line.p, ' ', line.n) && dockerfile_heredoc_word(line, escape, &name, &tabs, &expand);
	if (alone && str_starts(i->heredocs[0].text, STR("#!")))
		return error_set(err, -ENOTSUP, 501, "a heredoc that begins with #! is not supported: put it into a file by COPY and run that");
	if (alone) {
		dockerfile_heredoc_text(&i->heredocs[0], to);
		return to->failed ? no_memory(err) : 0;
	}
	buf_add_str(to, i->args[0]);
	for (size_t k = 0; k < i->n_heredocs; k++) {
		buf_add_c(to, "\n");
		buf_add_str(to, i->heredocs[k].text);
		buf_add_str(to, i->heredocs[k].name);
	}
	if (i->n_heredocs)
		buf_add_c(to, "\n");
	return to->failed ? no_memory(err) : 0;
}

/* Variables of a RUN: ARGs, then what ENV says. */
static int run_env(struct df_stage *s, struct env *to, struct error *err)
{
	struct dockerfile_given *g = &s->w->given;
	int r = 0;
	for (size_t i = 0; i < g->vars.n && r == 0; i++) {
		if (!dockerfile_is_proxy(str_of(g->vars.vars[i].name)))
			continue;
		g->used[i] = true;
		r = env_set(to, str_of(g->vars.vars[i].name), str_of(g->vars.vars[i].value));
	}
	if (r == 0)
		r = env_merge(to, &s->args);
	if (r == 0)
		r = env_merge(to, &s->files->config.env);
	return r < 0 ? error_set(err, r, 400, "the variables are more than %d or longer than %d bytes", ENV_MOST, ENV_BYTES) : 0;
}

/* What a RUN follows from besides the files before it. */
static void tell_run(struct buf *what, const struct running *run)
{
	buf_add_c(what, "run ");
	for (const char *const *a = run->argv; *a; a++)
		df_tell(what, str_of(*a));
	buf_add_c(what, " as ");
	df_tell(what, str_of(run->user));
	df_tell(what, str_of(run->cwd));
	for (size_t i = 0; i < run->env->n; i++) {
		if (dockerfile_is_proxy(str_of(run->env->vars[i].name)))
			continue;
		df_tell(what, str_of(run->env->vars[i].name));
		df_tell(what, str_of(run->env->vars[i].value));
	}
}

static int do_run(struct df_stage *s, const struct dockerfile_instruction *i, const char *const *argv, const char *shown, struct error *err)
{
	struct env env = {0};
	cleanup_buf struct buf what = BUF_INIT;
	const struct build_config *c = &s->files->config;
	struct running run = {argv, c->user, *c->workdir ? c->workdir : "/", &env, shown, NULL};
	int r = run_env(s, &env, err);
	if (r == 0)
		r = df_mounts_open(s, i, &run.mounts, &what, err);
	if (r == 0) {
		tell_run(&what, &run);
		r = what.failed ? no_memory(err) : df_layer(s, buf_str(&what), make_run, &run, err);
	}
	df_mounts_free(run.mounts);
	env_done(&env);
	return r;
}

static int run(struct df_stage *s, const struct dockerfile_instruction *i, const char *shown, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	const char *usual[] = {"/bin/sh", "-c", NULL};
	char **shell = s->files->config.shell;
	const char *const *before = shell && shell[0] ? (const char *const *)shell : usual;
	size_t n = 0, k;
	while (!i->json && before[n])
		n++;
	cleanup_free const char **argv = calloc(n + i->n_args + 1, sizeof(*argv));
	if (!argv)
		return no_memory(err);
	for (k = 0; k < n; k++)
		argv[k] = before[k];
	if (i->json) {
		/* The parser ends each with a NUL. */
		for (k = 0; k < i->n_args; k++)
			argv[k] = i->args[k].p;
	} else {
		int r = run_text(i, s->w->file.escape, &text, err);
		if (r < 0)
			return r;
		argv[n] = buf_cstr(&text);
	}
	return argv[0] && *argv[0] ? do_run(s, i, argv, shown, err) : error_set(err, -EINVAL, 400, "RUN without a command");
}

/* ---- stages ---- */

static void files_free(struct df_files *f)
{
	if (f)
		build_config_done(&f->config);
	free(f);
}

static struct df_files *files_new(void)
{
	struct df_files *f = calloc(1, sizeof(*f));
	if (f && build_config_init(&f->config) < 0) {
		free(f);
		return NULL;
	}
	return f;
}

static int copy_list(char ***to, char *const *from)
{
	return build_config_list(to, (const char *const *)from);
}

static int files_copy(const struct df_files *from, struct df_files **ret, struct error *err)
{
	struct df_files *f = files_new();
	const struct build_config *c = &from->config;
	if (!f)
		return no_memory(err);
	f->stack = from->stack;
	memcpy(f->config.digest, c->digest, sizeof(c->digest));
	if (env_merge(&f->config.env, &c->env) < 0 || build_config_text(&f->config.user, c->user) < 0 || build_config_text(&f->config.workdir, c->workdir) < 0 ||
		build_config_text(&f->config.stop_signal, c->stop_signal) < 0 || copy_list(&f->config.entrypoint, c->entrypoint) < 0 ||
		copy_list(&f->config.cmd, c->cmd) < 0 || copy_list(&f->config.shell, c->shell) < 0 || copy_list(&f->config.on_build, c->on_build) < 0 ||
		copy_list(&f->config.exposed_ports, c->exposed_ports) < 0 || copy_list(&f->config.labels, c->labels) < 0) {
		files_free(f);
		return no_memory(err);
	}
	*ret = f;
	return 0;
}

int df_image(struct df_work *w, const char *reference, struct df_files **ret, struct error *err)
{
	for (size_t i = 0; i < w->n_images; i++) {
		if (strcmp(w->images[i].reference, reference) == 0) {
			*ret = w->images[i].files;
			return 0;
		}
	}
	struct df_image *more = reallocarray(w->images, w->n_images + 1, sizeof(*more));
	if (!more)
		return no_memory(err);
	w->images = more;
	struct df_image one = {strdup(reference), files_new()};
	int r = one.reference && one.files ? build_from_image(w->b, reference, spec_login(w->b->spec, str_of(reference)), &one.files->stack, &one.files->config, err) : no_memory(err);
	if (r < 0) {
		free(one.reference);
		files_free(one.files);
		return r;
	}
	w->images[w->n_images++] = one;
	*ret = one.files;
	return 0;
}

static int begin_files(struct df_stage *s, struct error *err)
{
	struct df_work *w = s->w;
	const struct dockerfile_base *base = &w->plan.bases[s->number];
	struct df_files *from = NULL;
	if (base->kind == DF_BASE_STAGE)
		return files_copy(w->stages[base->stage], &s->files, err);
	if (base->kind == DF_BASE_IMAGE) {
		int r = df_image(w, base->image, &from, err);
		return r == 0 ? files_copy(from, &s->files, err) : r;
	}
	s->files = files_new();
	if (!s->files)
		return no_memory(err);
	int r = build_from_scratch(w->b, &s->files->stack, err);
	if (r == 0 && env_set(&s->files->config.env, STR("PATH"), STR(USUAL_PATH)) < 0)
		r = no_memory(err);
	return r;
}

static int do_instruction(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	struct build *b = s->w->b;
	char shown[SHOWN + 1];
	size_t all = MAX(s->w->plan.steps, s->w->step + 1);
	snprintf(shown, sizeof(shown), "%.*s", (int)MIN(i->text.n, (size_t)SHOWN), i->text.p);
	snprintf(b->step, sizeof(b->step), "%zu", ++s->w->step);
	build_progress(b, "BUILDING_EXT4", FIRST_PERCENT + (unsigned)((LAST_PERCENT - FIRST_PERCENT) * (s->w->step - 1) / all));
	build_log(b, 1, "[%zu/%zu] %s", s->w->step, all, shown);
	const char *name = dockerfile_kind_name(i->kind);
	int r = i->kind == DF_RUN ? run(s, i, shown + MIN(strlen(shown), strlen(name) + 1), err) : i->kind == DF_COPY || i->kind == DF_ADD ? df_copy(s, i, err) : df_configure(s, i, err);
	return r < 0 ? error_wrap(err, r, "%s", name) : 0;
}

/* What the base's ONBUILD asks for. */
static int do_triggers(struct df_stage *s, struct error *err)
{
	cleanup_dockerfile struct dockerfile d = {0};
	cleanup_buf struct buf text = BUF_INIT;
	char ***list = &s->files->config.on_build;
	if (!*list || !**list)
		return 0;
	for (size_t i = 0; (*list)[i]; i++)
		buf_addf(&text, "%s\n", (*list)[i]);
	if (build_config_list(list, NULL) < 0 || text.failed)
		return no_memory(err);
	int r = dockerfile_parse_triggers(&d, buf_str(&text), '\\', "the base", err);
	for (size_t i = 0; i < d.n && r == 0; i++) {
		r = do_instruction(s, &d.all[i], err);
		if (r < 0)
			error_wrap(err, r, "ONBUILD of the base");
	}
	return r;
}

static int do_stage(struct df_stage *s, struct error *err)
{
	struct df_work *w = s->w;
	const struct dockerfile_stage *stage = &w->file.stages[s->number];
	snprintf(w->b->step, sizeof(w->b->step), "base");
	build_log(w->b, 1, "FROM %.*s%s%.*s", STR_FMT(str_n(stage->base.p, MIN(stage->base.n, SHOWN))), stage->name.n ? " AS " : "", STR_FMT(stage->name));
	int r = begin_files(s, err);
	if (r == 0)
		r = do_triggers(s, err);
	if (r < 0)
		return error_wrap(err, r, NAME ":%u: FROM", stage->line);
	for (size_t i = stage->from; i < stage->to; i++) {
		r = do_instruction(s, &w->file.all[i], err);
		if (r < 0)
			return error_wrap(err, r, NAME ":%u", w->file.all[i].line);
	}
	return s->n_pending ? df_layer(s, STR(""), NULL, NULL, err) : 0;
}

static int build_stage(struct df_work *w, size_t number, struct error *err)
{
	struct df_stage s = {.w = w, .number = number};
	int r = do_stage(&s, err);
	if (r == 0)
		w->stages[number] = steal_pointer(&s.files);
	files_free(s.files);
	forget_dirs(&s);
	env_done(&s.args);
	return r;
}

/* ---- the whole ---- */

static int take_given(struct df_work *w, struct error *err)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)w->b->spec->build_args, key, value)
	{
		int r = env_set(&w->given.vars, str_of(key), str_n(json_string_value(value), json_string_length(value)));
		if (r < 0)
			return error_set(err, r, 400, "build argument \"%.60s\": %s", key, r == -E2BIG ? "they are too many or too long" : "no name of a variable, or a value with a NUL");
	}
	return 0;
}

static void warn_unused(struct df_work *w)
{
	for (size_t i = 0; i < w->given.vars.n; i++)
		if (!w->given.used[i] && !dockerfile_is_proxy(str_of(w->given.vars.vars[i].name)))
			build_log(w->b, 2, "nothing asked for the build argument %s", w->given.vars.vars[i].name);
}

static int build_all_stages(struct df_work *w, struct error *err)
{
	struct build *b = w->b;
	int r = take_given(w, err);
	if (r == 0)
		r = dockerfile_parse(&w->file, str_of(b->spec->dockerfile), NAME, err);
	if (r == 0)
		r = dockerfile_plan(&w->plan, &w->file, &w->given, str_of(b->spec->target), b->sources->architecture, b->sources->variant ? b->sources->variant : "", NAME, err);
	if (r < 0)
		return r;
	w->stages = calloc(w->file.n_stages, sizeof(*w->stages));
	if (!w->stages)
		return no_memory(err);
	for (size_t i = 0; i <= w->plan.target && r == 0; i++)
		if (w->plan.bases[i].needed)
			r = build_stage(w, i, err);
	if (r == 0)
		warn_unused(w);
	return r;
}

static void work_done(struct df_work *w)
{
	for (size_t i = 0; w->stages && i < w->file.n_stages; i++)
		files_free(w->stages[i]);
	free(w->stages);
	for (size_t i = 0; i < w->n_images; i++) {
		free(w->images[i].reference);
		files_free(w->images[i].files);
	}
	free(w->images);
	if (w->context >= 0)
		close(w->context);
	context_index_done(&w->index);
	if (w->plan.file)
		dockerfile_plan_done(&w->plan);
	env_done(&w->given.vars);
	dockerfile_done(&w->file);
}

/* CMD ["bash"] of a base: what a terminal is for, and what ends at once without one. */
static bool is_bare_shell(const struct build_config *c)
{
	static const char *const shells[] = {"sh", "ash", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "irb"};
	if ((c->entrypoint && c->entrypoint[0]) || !c->cmd || !c->cmd[0] || c->cmd[1])
		return false;
	const char *slash = strrchr(c->cmd[0], '/'), *name = slash ? slash + 1 : c->cmd[0];
	for (size_t i = 0; i < ARRAY_SIZE(shells); i++)
		if (strcmp(name, shells[i]) == 0)
			return true;
	return false;
}

int dockerfile_build(struct build *b, struct build_result *ret, struct error *err)
{
	struct df_work *w = calloc(1, sizeof(*w));
	if (!w)
		return no_memory(err);
	w->b = b;
	w->context = -1;
	int r = build_all_stages(w, err);
	if (r == 0) {
		struct df_files *last = w->stages[w->plan.target];
		build_config_done(&ret->config);
		ret->stack = last->stack;
		ret->config = last->config;
		ret->service = !is_bare_shell(&ret->config);
		free(last);
		w->stages[w->plan.target] = NULL;
	}
	work_done(w);
	free(w);
	return r;
}
