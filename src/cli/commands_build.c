/* `cubicle template build`: a template of a Dockerfile. */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/build_follow.h"
#include "cli/build_login.h"
#include "cli/context.h"
#include "image/dockerfile_plan.h"
#include "io/json.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define CONTEXT_MOST (UINT64_C(16) << 30) /* bytes; what a server takes may be less */

struct dockerfile_job {
	const struct cli *cli;
	const char *dir; /* of the context */
	char file[PATH_MAX]; /* Dockerfile; "-" = standard input */
	char name[257];  /* of the template */
	struct buf text;
	struct dockerfile parsed;
	struct dockerfile_given given;
	struct dockerfile_plan plan;
	struct ignore ignore;
	struct packed context;
};

static void job_done(struct dockerfile_job *j)
{
	if (j->plan.file)
		dockerfile_plan_done(&j->plan);
	dockerfile_done(&j->parsed);
	env_done(&j->given.vars);
	ignore_done(&j->ignore);
	buf_done(&j->text);
	packed_done(&j->context);
}
#define cleanup_job __attribute__((__cleanup__(job_done)))

/* --tag, else what the directory is called. */
static int choose_name(struct dockerfile_job *j, struct error *err)
{
	const struct cli_value *tag = cli_flag(j->cli, "tag");
	cleanup_free char *real = tag->set ? NULL : realpath(j->dir, NULL);
	if (!tag->set && !real)
		return error_errno(err, -errno, "%s", j->dir);
	const char *name = tag->set ? tag->text : strrchr(real, '/') + 1;
	if (!*name || strlen(name) >= sizeof(j->name))
		return error_set(err, -EINVAL, 400, "how is the template called? Give --tag NAME");
	for (size_t i = 0; i <= strlen(name); i++)
		j->name[i] = tag->set ? name[i] : (char)tolower((unsigned char)name[i]);
	return 0;
}

static int read_all(int fd, size_t max, struct buf *to)
{
	char piece[16384];
	ssize_t n;
	while ((n = fd_read_full(fd, piece, sizeof(piece))) > 0) {
		if (buf_len(to) + (size_t)n > max)
			return -EFBIG;
		buf_add(to, piece, (size_t)n);
	}
	return n < 0 ? (int)n : to->failed ? -ENOMEM : 0;
}

static int read_dockerfile(struct dockerfile_job *j, struct error *err)
{
	const struct cli_value *file = cli_flag(j->cli, "file");
	int n = file->set ? snprintf(j->file, sizeof(j->file), "%s", file->text) : snprintf(j->file, sizeof(j->file), "%s/Dockerfile", j->dir);
	if (n < 0 || (size_t)n >= sizeof(j->file))
		return error_set(err, -ENAMETOOLONG, 400, "the path of the Dockerfile is too long");
	bool standard = strcmp(j->file, "-") == 0;
	int r = standard ? read_all(STDIN_FILENO, DOCKERFILE_MAX, &j->text) : file_read(AT_FDCWD, j->file, DOCKERFILE_MAX, &j->text);
	if (r == -EFBIG)
		return error_set(err, r, 400, "%s is longer than %d bytes", j->file, DOCKERFILE_MAX);
	return r < 0 ? error_errno(err, r, "%s", standard ? "standard input" : j->file) : 0;
}

/* The file of its own beside the Dockerfile, else that of the context. */
static int read_ignore(struct dockerfile_job *j, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT, text = BUF_INIT;
	buf_addf(&path, "%s.dockerignore", j->file);
	int r = strcmp(j->file, "-") == 0 ? -ENOENT : buf_cstr(&path) ? file_read(AT_FDCWD, buf_cstr(&path), IGNORE_MAX, &text) : -ENOMEM;
	if (r == -ENOENT) {
		buf_clear(&path);
		buf_addf(&path, "%s/.dockerignore", j->dir);
		r = buf_cstr(&path) ? file_read(AT_FDCWD, buf_cstr(&path), IGNORE_MAX, &text) : -ENOMEM;
	}
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return error_errno(err, r, "%s", buf_cstr(&path) ? buf_cstr(&path) : ".dockerignore");
	r = ignore_parse(&j->ignore, buf_str(&text), err);
	return r < 0 ? error_wrap(err, r, "%s", buf_cstr(&path)) : 0;
}

static int take_arguments(struct dockerfile_job *j, struct error *err)
{
	for (size_t i = 0; i < j->cli->n_pairs; i++) {
		const struct cli_pair *p = &j->cli->pairs[i];
		int r = env_set(&j->given.vars, p->key, p->value);
		if (r < 0)
			return error_set(err, r, 400, "--build-arg %.*s: %s", STR_FMT(p->key), r == -E2BIG ? "they are too many or too long" : "no name of a variable");
	}
	return 0;
}

/* Mistakes are told before anything is packed or sent. */
static int read_job(struct dockerfile_job *j, struct error *err)
{
	const struct cli_value *target = cli_flag(j->cli, "target");
	int r = choose_name(j, err);
	if (r == 0)
		r = read_dockerfile(j, err);
	if (r == 0)
		r = take_arguments(j, err);
	if (r == 0)
		r = dockerfile_parse(&j->parsed, buf_str(&j->text), j->file, err);
	if (r == 0)
		r = dockerfile_plan(&j->plan, &j->parsed, &j->given, target->set ? str_of(target->text) : STR(""), NULL, NULL, j->file, err);
	return r == 0 ? read_ignore(j, err) : r;
}

/* ---- the build ---- */

static int make_body(const struct dockerfile_job *j, json_t **ret, struct error *err)
{
	static const char *const texts[][2] = {{"start-cmd", "startCmd"}, {"ready-cmd", "readyCmd"}, {"probe-path", "probePath"}};
	cleanup_json json_t *body = json_object();
	json_t *dockerfile = json_pack("{s:o}", "text", json_stringn(buf_str(&j->text).p, buf_len(&j->text))), *args = json_object();
	if (!dockerfile || !args) {
		json_decref(dockerfile);
		json_decref(args);
		return error_set(err, -EINVAL, 400, "%s is no UTF-8", j->file);
	}
	json_object_set_new(body, "dockerfile", dockerfile);
	json_object_set_new(dockerfile, "args", args);
	for (size_t i = 0; i < j->given.vars.n; i++)
		if (json_object_set_new(args, j->given.vars.vars[i].name, json_string(j->given.vars.vars[i].value)) < 0)
			return error_set(err, -EINVAL, 400, "--build-arg %s is no UTF-8", j->given.vars.vars[i].name);
	if (cli_flag(j->cli, "target")->set)
		json_object_set_new(dockerfile, "target", json_string(cli_flag(j->cli, "target")->text));
	json_object_set_new(dockerfile, "context", json_string(j->context.hash));
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		const struct cli_value *v = cli_flag(j->cli, texts[i][0]);
		if (v->set && json_object_set_new(body, texts[i][1], json_string(v->text)) < 0)
			return error_set(err, -EINVAL, 400, "--%s is no UTF-8", texts[i][0]);
	}
	if (cli_flag(j->cli, "probe-port")->set)
		json_object_set_new(body, "probePort", json_integer(cli_flag(j->cli, "probe-port")->number));
	if (cli_flag(j->cli, "e2b")->set)
		json_object_set_new(body, "kind", json_string("e2b"));
	int r = build_logins(&j->parsed, &j->plan, dockerfile, err);
	if (r == 0)
		*ret = steal_pointer(&body);
	return r;
}

static int choose_progress(struct build *b, struct error *err)
{
	const struct cli_value *v = cli_flag(b->cli, "progress");
	if (!v->set)
		return 0;
	if (strcmp(v->text, "plain") != 0 && strcmp(v->text, "tty") != 0)
		return error_set(err, -EINVAL, 400, "--progress is plain or tty, not '%s'", v->text);
	if (b->progress.mode != PROGRESS_JSON)
		b->progress.mode = strcmp(v->text, "plain") == 0 ? PROGRESS_PLAIN : PROGRESS_TERMINAL;
	return 0;
}

static int fail(struct build *b, const struct error *err)
{
	progress_clear(&b->progress);
	int code = cli_fail(b->cli, err);
	return err->code == -EINTR ? EXIT_INTERRUPTED : code;
}

int cmd_template_build(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_build struct build b = {.signals = -1};
	cleanup_job struct dockerfile_job j = {.cli = c, .dir = c->words[0], .context = PACKED_NONE};
	cleanup_json json_t *body = NULL;
	if (read_job(&j, &err) < 0 || client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	build_init(&b, &cl, c, j.name);
	if (choose_progress(&b, &err) < 0)
		return fail(&b, &err);
	if (context_pack(j.dir, &j.ignore, CONTEXT_MOST, &b.progress, &j.context, &err) < 0)
		return fail(&b, &err);
	if (make_body(&j, &body, &err) < 0 || build_make(&b, &err) < 0)
		return fail(&b, &err);
	if (build_upload(&b, j.context.fd, j.context.size, j.context.hash, &err) < 0)
		return fail(&b, &err);
	packed_done(&j.context);
	return build_run(&b, body);
}
