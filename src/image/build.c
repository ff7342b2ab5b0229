#include "image/build.h"
#include "base/clock.h"
#include "base/cleanup.h"
#include "image/describe.h"
#include "image/path.h"
#include "image/provision.h"
#include "image/steps.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { READY_PERIOD_S = 2, READY_PATIENCE_S = 600, MAX_DESCRIPTION = 32768 };

/* What it is made on. */
static int make_base(struct build *b, struct build_result *to, struct error *err)
{
	const struct build_spec *s = b->spec;
	switch (s->from) {
	case SPEC_FROM_IMAGE:
		build_log(b, 1, "FROM %s", s->image);
		return build_from_image(b, s->image, s->has_registry ? &s->registry : NULL, &to->stack, &to->config, err);
	case SPEC_FROM_SOURCE:
		build_log(b, 1, "FROM an uploaded %s", s->source == SOURCE_OCI_ARCHIVE ? "OCI archive" : s->source == SOURCE_DOCKER_ARCHIVE ? "Docker archive" : "root file system");
		return build_from_archive(b, s->source, s->source_hash, s->source_name, &to->stack, &to->config, err);
	case SPEC_FROM_BASE:
		build_log(b, 1, "FROM the template");
		return build_from_base(b, &to->stack, &to->config, err);
	case SPEC_FROM_DOCKERFILE:
		return dockerfile_build(b, to, err);
	}
	return -EINVAL;
}

/* E2B's: the account that its clients expect, then the steps. What of them commands have is in to->config afterwards. */
static int make_steps(struct build *b, struct build_result *to, struct error *err)
{
	cleanup_steps struct steps steps = {0};
	const char *user = to->config.user;
	int r = 0;
	if (b->spec->kind == SPEC_E2B && b->spec->from != SPEC_FROM_BASE) {
		r = provision(b, &to->stack, &user, err);
		/* Not the image's: E2B's clients expect the home. */
		if (r == 0 && build_config_text(&to->config.workdir, "") < 0)
			r = error_errno(err, -ENOMEM, "steps");
	}
	if (r < 0)
		return r;
	if (steps_init(&steps, b, &to->stack, &to->config, *user ? user : "root") < 0)
		return error_errno(err, -ENOMEM, "steps");
	if (build_config_text(&steps.workdir, to->config.workdir) < 0)
		return error_errno(err, -ENOMEM, "steps");
	r = steps_run(&steps, b->spec->steps, b->spec->n_steps, err);
	if (r == 0)
		r = steps_settle(&steps, err);
	if (r == 0 && (env_merge(&to->config.env, &steps.env) < 0 || build_config_text(&to->config.user, steps.user) < 0 ||
			build_config_text(&to->config.workdir, steps.workdir) < 0))
		r = error_errno(err, -ENOMEM, "steps");
	return r;
}

static int take_overrides(struct build *b, struct build_result *to, struct error *err)
{
	const struct build_spec *s = b->spec;
	for (const char **e = s->env; *e; e++)
		if (env_set_pair(&to->config.env, str_of(*e)) < 0)
			return error_set(err, -E2BIG, 400, "env: the environment is larger than %d bytes or %d variables", ENV_BYTES, ENV_MOST);
	int r = 0;
	if (s->user)
		r = build_config_text(&to->config.user, s->user);
	if (r == 0 && s->workdir)
		r = build_config_text(&to->config.workdir, s->workdir);
	if (r == 0 && s->has_command)
		r = build_config_list(&to->config.entrypoint, s->command);
	/* A command of the caller's own does not get the image's arguments. */
	if (r == 0 && (s->has_command || s->has_args))
		r = build_config_list(&to->config.cmd, s->args);
	return r < 0 ? error_errno(err, r, "the template") : 0;
}

/* What runs shell commands, and the name of the user, need a look into the files. */
static int look_inside(struct build *b, struct build_result *to, const char **ret_shell, struct error *err)
{
	struct box box = {0};
	struct account account;
	bool has_passwd = false;
	const char *given = to->config.user;
	struct str name = str_of(given), group;
	str_cut(name, ':', &name, &group);
	bool root = !name.n || str_is(name, "root") || str_is(name, "0");
	/* The account that steps begin with, and those that they name, were made. */
	bool made = b->spec->kind == SPEC_E2B && !b->spec->user && !(name.n && name.p[0] >= '0' && name.p[0] <= '9');
	bool shell = b->spec->start_command || b->spec->ready_command;
	*ret_shell = "/bin/sh";
	if (made && !shell)
		return 0;
	if (root && !shell)
		return build_config_text(&to->config.user, "root") < 0 ? error_errno(err, -ENOMEM, "user") : 0;
	int r = build_open_box(b, &to->stack, &box, err);
	if (r == 0 && shell)
		r = provision_shell(&box.envd, ret_shell, err);
	if (r == 0 && !root && !made)
		r = account_find(&box.envd, name, &account, &has_passwd, err);
	build_end_box(&box);
	if (r < 0)
		return r;
	if (shell && !**ret_shell)
		return error_set(err, -ENOENT, 400, "startCmd: the image has neither /bin/bash nor /bin/sh");
	if (made)
		return 0;
	/* A number needs no entry (guest/guest.h): it stays as the image has it, with its group. */
	if (!root && !account.exists && strspn(name.p, "0123456789") >= name.n && strlen(given) <= 32)
		return 0;
	if (!root && !account.exists && has_passwd && b->spec->user)
		return error_set(err, -ENOENT, 400, "user: the image has no user '%.*s'", (int)MIN(name.n, (size_t)64), name.p);
	if (!root && !account.exists)
		build_log(b, 2, "The image has no user '%.*s' in /etc/passwd: root is the user of its sandboxes", STR_FMT(name));
	return build_config_text(&to->config.user, root || !account.exists ? "root" : account.name) < 0 ? error_errno(err, -ENOMEM, "user") : 0;
}

/* A ready command without anything that starts: it has to pass once. */
static int await_ready(struct build *b, struct build_result *to, const char *shell, struct error *err)
{
	struct box box = {0};
	cleanup_buf struct buf line = BUF_INIT;
	struct error why = {0};
	const char *command = b->spec->ready_command, *cwd = *to->config.workdir ? to->config.workdir : NULL;
	int64_t end = clock_boottime() + (int64_t)READY_PATIENCE_S * 1000000000;
	int r = steps_shell_line(&to->config.env, command, &line) < 0 ? error_errno(err, -ENOMEM, "readyCmd") : build_open_box(b, &to->stack, &box, err);
	if (r < 0)
		return r;
	const char *const argv[] = {shell, "-l", "-c", buf_cstr(&line), NULL};
	while ((r = build_command(&box, argv, to->config.user, cwd, &to->config.env, command, &why)) == -ECANCELED && clock_boottime() < end) {
		struct timespec pause = {.tv_sec = READY_PERIOD_S};
		nanosleep(&pause, NULL);
	}
	build_end_box(&box);
	return r < 0 ? error_set(err, r, why.status, "ready command failed: %s", why.message) : 0;
}

/* ---- the PATH of an image ---- */

#define PATH_FILE "zz-image-path.sh"

/* Is there anything in it that a login shell does not look through anyway? */
static bool path_is_usual(struct str path)
{
	static const char *const usual[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", ""};
	while (path.n) {
		struct str part;
		bool known = false;
		if (!str_cut(path, ':', &part, &path)) {
			part = path;
			path = STR("");
		}
		for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
			known |= str_is(part, usual[i]);
		if (!known)
			return false;
	}
	return true;
}

static int make_path_file(struct box *box, void *arg, struct error *err)
{
	cleanup_buf struct buf line = BUF_INIT, there = BUF_INIT;
	struct error ignored = {0};
	struct envd_stat st;
	buf_add_c(&line, "export PATH=");
	shell_quote(&line, str_of(arg));
	if (buf_add_c(&line, "\n") < 0)
		return error_errno(err, -ENOMEM, "PATH");
	int r = envd_stat(&box->envd, "/etc/profile", &st, err);
	if (r < 0)
		return r;
	if (!st.exists || (envd_read_file(&box->envd, "/etc/profile.d/" PATH_FILE, ENV_BYTES, &there, &ignored) == 0 && str_eq(buf_str(&there), buf_str(&line))))
		return BUILD_NOTHING;
	const struct envd_file file = {PATH_FILE, S_IFREG | 0644, 0, 0, buf_str(&line)};
	return envd_place(&box->envd, "/etc/profile.d", &file, 1, err);
}

/* Clients run commands in login shells, whose /etc/profile sets a PATH of its own: what an image has its programs found by (/usr/local/go/bin) would be lost. */
static int keep_path(struct build *b, struct build_result *to, struct error *err)
{
	const char *path = env_get(&to->config.env, STR("PATH"));
	cleanup_buf struct buf key = BUF_INIT;
	if (!path || path_is_usual(str_of(path)))
		return 0;
	if (buf_addf(&key, "path of login shells\n%s", path) < 0)
		return error_errno(err, -ENOMEM, "PATH");
	return build_layer(b, &to->stack, buf_str(&key), false, make_path_file, (void *)(uintptr_t)path, NULL, err);
}

/* ENTRYPOINT and CMD name programs as a shell would: by PATH, or from the working directory. *ret_path is the caller's; NULL: there is no such program. */
static int find_program(struct build *b, struct build_result *to, const char *name, char **ret_path, struct error *err)
{
	const char *path = env_get(&to->config.env, STR("PATH")), *workdir = *to->config.workdir ? to->config.workdir : "/";
	struct str rest = strchr(name, '/') ? str_of(workdir) : str_of(path && *path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), dir;
	struct box box = {0};
	int r = build_open_box(b, &to->stack, &box, err);
	*ret_path = NULL;
	while (r == 0 && rest.n && !*ret_path) {
		cleanup_buf struct buf whole = BUF_INIT;
		struct envd_stat st;
		dir = rest;
		rest = STR("");
		str_cut(dir, ':', &dir, &rest);
		path_join(&whole, dir.n ? dir : str_of(workdir), str_of(name));
		if (!buf_cstr(&whole) || buf_str(&whole).p[0] != '/')
			continue;
		r = envd_stat(&box.envd, buf_cstr(&whole), &st, err);
		if (r == 0 && st.exists && !st.is_dir && !(*ret_path = str_dup(buf_str(&whole))))
			r = error_errno(err, -ENOMEM, "ENTRYPOINT");
	}
	build_end_box(&box);
	return r;
}

static int finish(struct build *b, struct build_result *to, struct error *err)
{
	const struct build_spec *s = b->spec;
	cleanup_json json_t *description = NULL;
	struct describe d = {.stack = &to->stack, .config = &to->config, .start_command = s->start_command, .ready_command = s->ready_command,
		.env_for_all = s->kind != SPEC_E2B || s->from == SPEC_FROM_DOCKERFILE, .probe_port = s->probe_port, .probe_path = s->probe_path};
	size_t n = 0;
	const char *argv[128];
	bool probe = false;
	cleanup_free char *program = NULL;
	build_progress(b, "CREATING_TEMPLATE", 92);
	int r = take_overrides(b, to, err);
	if (r == 0)
		r = look_inside(b, to, &d.shell, err);
	if (r == 0 && d.env_for_all)
		r = keep_path(b, to, err);
	if (r < 0)
		return r;
	if (!s->start_command && (to->service || s->probe_port || s->has_command)) {
		for (char **a = to->config.entrypoint; a && *a && n < ARRAY_SIZE(argv) - 1; a++)
			argv[n++] = *a;
		for (char **a = to->config.cmd; a && *a && n < ARRAY_SIZE(argv) - 1; a++)
			argv[n++] = *a;
		argv[n] = NULL;
		if (n && *argv[0] != '/' && (r = find_program(b, to, argv[0], &program, err)) < 0)
			return r;
		if (n && *argv[0] != '/' && !program)
			build_log(b, 2, "There is no program '%.200s' in the image, which ENTRYPOINT or CMD names: nothing is started", argv[0]);
		if (program)
			argv[0] = program;
		d.start = n && *argv[0] == '/' ? argv : NULL;
	}
	if (s->probe_port && !d.start && !d.start_command && !json_object_get(b->base, "services"))
		return error_set(err, -EINVAL, 400, "probePort: the image has no ENTRYPOINT or CMD that would serve it; give a command");
	r = describe(b, &d, &description, &probe, err);
	if (r == 0 && s->ready_command && !json_object_get(description, "services") && !describe_only_waits(s->ready_command))
		r = await_ready(b, to, d.shell, err);
	if (r == 0)
		r = build_squeeze(b, &to->stack, err);
	if (r < 0)
		return r;
	json_decref(steal_pointer(&description));
	r = describe(b, &d, &description, &probe, err);
	cleanup_free char *text = r == 0 ? json_dumps(description, JSON_COMPACT) : NULL;
	if (r < 0 || !text)
		return r < 0 ? r : error_errno(err, -ENOMEM, "the description");
	if (strlen(text) > MAX_DESCRIPTION)
		return error_set(err, -E2BIG, 400, "environment and commands of the template are too large: %zu bytes, %d at most", strlen(text), MAX_DESCRIPTION);
	if (d.start_command || d.start)
		build_log(b, 1, "Starting a sandbox to see that it gets ready");
	build_progress(b, "REGISTERING", 96);
	return ask_build_done(b->ask, str_of(text), to->config.digest, probe, err);
}

static int make(struct build *b, struct error *err)
{
	struct build_result result = {0};
	if (build_config_init(&result.config) < 0)
		return error_errno(err, -ENOMEM, "the build");
	snprintf(b->step, sizeof(b->step), "base");
	int r = make_base(b, &result, err);
	if (r == 0 && (b->spec->n_steps || b->spec->kind == SPEC_E2B))
		r = make_steps(b, &result, err);
	if (r == 0) {
		snprintf(b->step, sizeof(b->step), "finalize");
		r = finish(b, &result, err);
	}
	build_config_done(&result.config);
	return r;
}

int build_all(struct build *b, struct error *err)
{
	struct error why = {0}, ignored = {0};
	int r = make(b, &why);
	if (r == 0)
		return 0;
	if (r == -EPIPE && ask_build_failed(b->ask, str_of(why.message), b->step, &ignored) < 0)
		return error_set(err, r, why.status, "%s", why.message);
	return r == -EPIPE ? 0 : ask_build_failed(b->ask, str_of(why.message), b->step, err);
}
