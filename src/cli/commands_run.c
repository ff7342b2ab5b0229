#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/exec.h"
#include "cli/signals.h"
#include "io/json.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	/* `run` without --timeout: the sandbox's deadline is moved while the command runs, so it ends soon after a cubicle that was killed. */
	LEASE_S = 300,
	LEASE_RENEW_S = 60,
};

struct lease {
	struct client *cl;
	char path[80];
	int64_t next; /* monotonic */
};

static void renew(void *arg)
{
	struct lease *l = arg;
	if (clock_monotonic() < l->next)
		return;
	l->next = clock_monotonic() + LEASE_RENEW_S * NS_PER_S;
	cleanup_json json_t *body = json_pack("{s:i}", "timeout", LEASE_S);
	struct error ignored; /* the next one may succeed; the sandbox's end is told by the stream */
	client_call(l->cl, "POST", l->path, body, NULL, NULL, &ignored);
}

static struct exec_request request_of(const struct cli *c)
{
	return (struct exec_request){
		.argv = (const char *const *)c->rest,
		.cli = c,
		.user = cli_flag(c, "user")->text,
		.cwd = cli_flag(c, "cwd")->text,
	};
}

/* The command's exit code, or what to exit with after saying why there is none. */
static int finish(const struct cli *c, int r, const struct error *err)
{
	if (err->code && r != 128 + SIGPIPE)
		cli_fail(c, err);
	return r < 0 ? EXIT_CUBICLE : r;
}

static int create(struct client *cl, const struct cli *c, struct target *ret, struct error *err)
{
	const struct cli_value *timeout = cli_flag(c, "timeout");
	cleanup_json json_t *body = json_pack("{s:s,s:I}", "templateID", c->words[0], "timeout", timeout->set ? (json_int_t)timeout->number : LEASE_S), *made = NULL;
	if (!body)
		return error_set(err, -EINVAL, 400, "the template's name is no UTF-8");
	if (cli_flag(c, "no-internet")->set)
		json_object_set_new(body, "allow_internet_access", json_false());
	int r = client_call(cl, "POST", "/v2/sandboxes", body, &made, NULL, err);
	if (r < 0)
		return r;
	struct str id = json_str(json_object_get(made, "sandboxID")), token = json_str(json_object_get(made, "envdAccessToken"));
	if (!id.n || id.n > 31)
		return error_set(err, -EPROTO, 502, "%s did not say the new sandbox's id", cl->url);
	snprintf(ret->id, sizeof(ret->id), "%.*s", STR_FMT(id));
	ret->token = token.n ? str_dup(token) : NULL;
	return 0;
}

int cmd_run(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_target struct target t = {.token = NULL};
	/* From here on a signal waits, so that no sandbox is left behind. */
	cleanup_fd int signals = signals_block(true);
	if (client_open(&cl, c, &err) < 0 || create(&cl, c, &t, &err) < 0)
		return cli_fail(c, &err);
	struct lease lease = {.cl = &cl, .next = clock_monotonic() + LEASE_RENEW_S * NS_PER_S};
	snprintf(lease.path, sizeof(lease.path), "/sandboxes/%s/timeout", t.id);
	struct exec_request q = request_of(c);
	q.tty = cli_flag(c, "tty")->set;
	q.stdin_closed = cli_flag(c, "no-stdin")->set;
	if (!cli_flag(c, "timeout")->set) {
		q.tick = renew;
		q.tick_arg = &lease;
	}
	int by_signal, code = exec_run(&cl, &t, &q, &by_signal, &err);
	code = finish(c, code, &err);
	char path[80];
	snprintf(path, sizeof(path), "/sandboxes/%s", t.id);
	struct error end = {0};
	int r = client_call(&cl, "DELETE", path, NULL, NULL, NULL, &end);
	if (r < 0 && r != -ENOENT) {
		error_wrap(&end, r, "sandbox %s was not ended", t.id);
		cli_fail(c, &end);
	}
	return by_signal && by_signal != SIGPIPE ? 128 + by_signal : code;
}

int cmd_sandbox_exec(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_target struct target t = {.token = NULL};
	if (client_open(&cl, c, &err) < 0 || client_target(&cl, c->words[0], &t, &err) < 0)
		return cli_fail(c, &err);
	struct exec_request q = request_of(c);
	q.tty = cli_flag(c, "tty")->set;
	q.stdin_closed = cli_flag(c, "no-stdin")->set;
	q.timeout_s = cli_flag(c, "timeout")->number;
	int by_signal;
	return finish(c, exec_run(&cl, &t, &q, &by_signal, &err), &err);
}

int cmd_sandbox_shell(struct cli *c)
{
	static const char *const bash[] = {"/bin/bash", "-i", "-l", NULL}, *const sh[] = {"/bin/sh", "-i", "-l", NULL};
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_target struct target t = {.token = NULL};
	if (!isatty(0)) {
		error_set(&err, -ENOTTY, 400, "sandbox shell needs a terminal; for a script use `cubicle sandbox exec %s -- COMMAND`", c->words[0]);
		return cli_fail(c, &err);
	}
	if (client_open(&cl, c, &err) < 0 || client_target(&cl, c->words[0], &t, &err) < 0)
		return cli_fail(c, &err);
	struct exec_request q = request_of(c);
	q.argv = bash;
	q.tty = true;
	int by_signal, r = exec_run(&cl, &t, &q, &by_signal, &err);
	if (r == EXIT_NOT_STARTED) { /* an image without bash */
		err = (struct error){0};
		q.argv = sh;
		r = exec_run(&cl, &t, &q, &by_signal, &err);
	}
	return finish(c, r, &err);
}
