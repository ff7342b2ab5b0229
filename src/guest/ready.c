#include "guest/ready.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/logs.h"
#include "guest/probe.h"
#include "guest/program.h"
#include "guest/services.h"
#include "guest/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { WHY_MAX = 480 /* of `prepared` it takes 512; an error tells less */ };

enum ready_state {
	READY_WAITING,  /* for the services, for the end of a pause, or for the thaw */
	READY_PROBING,  /* the port was asked */
	READY_STARTING, /* a try was asked of the spawner */
	READY_TRYING,   /* the command executes */
	READY_TOLD,     /* fn() knows that they are ready */
	READY_OVER,
};

struct ready {
	struct envd *envd;
	struct buf command; /* empty = none */
	struct probe *probe; /* NULL = none */
	bool answered;       /* ... since the services execute */
	bool once;
	struct loop_timer *deadline; /* with `once` */
	ready_fn *fn;
	void *arg;
	enum ready_state state;
	struct loop_timer *timer; /* of the pause or of the try */
	int64_t due;              /* of the try, CLOCK_BOOTTIME */
	int64_t still_since;      /* 0 = nothing is frozen */
	pid_t pid;                /* 0 = none */
	bool reaped;              /* ... while it was being started */
	bool spoilt;              /* whatever the try ends with, it does not count */
	struct exit_info exit;
	unsigned failures;        /* in a row */
	uint64_t tries;
	char last[PROCESS_STATUS_SIZE]; /* how the last try ended: said once */
};

static void tell(const struct ready *r, enum log_level level, struct str message, const char *what, const char *value)
{
	const struct log_field fields[] = {{what, str_of(value)}, {0}};
	logs_add(r->envd->logs, level, "ready", message, fields);
}

static void become_ready(struct ready *r)
{
	char tries[24];
	snprintf(tries, sizeof(tries), "%llu", (unsigned long long)r->tries);
	tell(r, LOG_INFO, STR("the services are ready"), "tries", tries);
	r->state = READY_TOLD;
	r->failures = 0;
	r->last[0] = '\0';
	r->fn(true, STR(""), r->arg);
	if (r->once)
		ready_end(r);
}

/* Its descendants, too: what it has left behind would be there beside the next try. */
static void kill_try(struct ready *r, pid_t pid, bool reaped)
{
	r->spoilt = true;
	if (pid)
		tree_signal(r->envd->proc, pid, reaped, false, SIGKILL);
}

static void try_failed(struct ready *r, struct str why)
{
	char text[sizeof(r->last)];
	int64_t most = r->state == READY_PROBING ? READY_PROBE_PAUSE_MS : READY_MAX_PAUSE_MS;
	int64_t pause = MIN((int64_t)READY_FIRST_PAUSE_MS << MIN(r->failures, 16u), most);
	snprintf(text, sizeof(text), "%.*s", (int)MIN(why.n, sizeof(text) - 1), why.p);
	if (strcmp(text, r->last) != 0)
		tell(r, LOG_INFO, STR("not ready yet"), "status", text);
	memcpy(r->last, text, sizeof(text));
	r->failures++;
	r->state = READY_WAITING;
	loop_timer_in(r->timer, pause * NS_PER_MS);
}

static void try_ended(struct ready *r)
{
	pid_t pid = r->pid;
	bool late = r->spoilt, good = !late && r->exit.code == CLD_EXITED && r->exit.status == 0 && services_run(r->envd->services);
	char text[PROCESS_STATUS_SIZE];
	r->pid = 0;
	r->reaped = false;
	loop_timer_stop(r->timer);
	kill_try(r, pid, true);
	if (r->state == READY_OVER)
		return;
	if (good)
		become_ready(r);
	else
		try_failed(r, late ? STR("took too long, or a service changed meanwhile") : str_of(exit_info_text(&r->exit, text)));
}

bool ready_reaped(struct ready *r, pid_t pid, struct exit_info exit)
{
	if (!r || !r->pid || r->pid != pid || r->reaped)
		return false;
	r->exit = exit;
	r->reaped = true;
	if (r->state != READY_STARTING)
		try_ended(r);
	return true; /* else on_started() goes on */
}

static void on_pid(struct spawn *p, pid_t pid, void *arg)
{
	struct ready *r = arg;
	r->pid = pid;
	if (r->spoilt)
		kill_try(r, pid, false);
}

static void on_started(struct spawn *p, const struct spawn_result *result, void *arg)
{
	struct ready *r = arg;
	if (result->code && r->state != READY_OVER) {
		r->pid = 0;
		r->reaped = false;
		try_failed(r, result->message);
		return;
	}
	if (r->state == READY_STARTING)
		r->state = READY_TRYING;
	if (r->reaped)
		try_ended(r);
	else if (r->pid)
		envd_offer_to_oom_killer(r->envd, r->pid);
}

static const struct spawn_ops spawn_ops = {.pid = on_pid, .done = on_started};

static int open_descriptors(const struct envd *e, int fds[3])
{
	for (int i = 0; i < 3; i++)
		if ((fds[i] = fcntl(e->null, F_DUPFD_CLOEXEC, 3)) < 0) {
			int r = -errno;
			while (i > 0)
				close(fds[--i]);
			return r;
		}
	return 0;
}

static void begin_try(struct ready *r)
{
	struct spawn_head head = {.kind = SPAWN_COMMAND, .flags = SPAWN_SESSION};
	cleanup_buf struct buf body = BUF_INIT;
	int fds[3];
	struct program program = {.user = str_of(r->envd->identity->user), .arguments = buf_str(&r->command)};
	services_context(r->envd->services, &program.workdir, &program.envs);
	program_request(r->envd->identity, &program, &head, &body);
	r->state = READY_STARTING;
	r->spoilt = false;
	r->tries++;
	r->due = clock_boottime() + READY_TRY_MS * NS_PER_MS;
	loop_timer_at(r->timer, r->due);
	int e = open_descriptors(r->envd, fds);
	if (e == 0 && !spawn_new(r->envd->spawner, &head, &body, fds, ARRAY_SIZE(fds), &spawn_ops, r))
		e = -errno;
	if (e < 0)
		try_failed(r, str_of(strerror(-e)));
}

/* The services execute. */
static void go_on(struct ready *r)
{
	bool probe = r->probe && !r->answered;
	if (!probe && !buf_len(&r->command)) {
		become_ready(r);
	} else if (!r->still_since && probe) {
		r->state = READY_PROBING;
		loop_timer_stop(r->timer);
		probe_ask(r->probe);
	} else if (!r->still_since) {
		begin_try(r);
	}
}

static void on_probed(bool ok, struct str why, void *arg)
{
	struct ready *r = arg;
	if (!ok) {
		try_failed(r, why);
		return;
	}
	r->answered = true;
	r->failures = 0;
	r->state = READY_WAITING;
	go_on(r);
}

/* What was asked counts no more. */
static void stop_probe(struct ready *r)
{
	if (r->state != READY_PROBING)
		return;
	probe_stop(r->probe);
	r->state = READY_WAITING;
}

static bool is_under_way(const struct ready *r)
{
	return r->state == READY_STARTING || r->state == READY_TRYING;
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct ready *r = arg;
	if (is_under_way(r))
		kill_try(r, r->pid, false);
	else if (r->state == READY_WAITING && services_run(r->envd->services))
		go_on(r);
}

void ready_services_changed(struct ready *r)
{
	bool run = r && services_run(r->envd->services);
	if (!r || r->state == READY_OVER)
		return;
	stop_probe(r);
	r->answered = false;
	if (is_under_way(r)) {
		kill_try(r, r->pid, false);
	} else if (run && r->state == READY_WAITING) {
		go_on(r);
	} else if (!run && r->state == READY_TOLD) {
		r->state = READY_WAITING;
		r->fn(false, STR(""), r->arg);
	}
}

void ready_service_ended(struct ready *r)
{
	if (r && r->state == READY_WAITING && services_run(r->envd->services))
		go_on(r);
}

/* Who waits for it waits no longer; a pool ends it. */
static void fail(struct ready *r, const char *what)
{
	cleanup_buf struct buf why = BUF_INIT;
	buf_add_c(&why, what);
	if (*r->last)
		buf_addf(&why, ": %s", r->last);
	services_last_words(r->envd->services, &why);
	tell(r, LOG_WARN, str_of(what), "status", r->last);
	ready_end(r);
	r->fn(false, str_n(buf_str(&why).p, MIN(buf_len(&why), (size_t)WHY_MAX)), r->arg);
}

static void on_deadline(struct loop_timer *t, void *arg)
{
	char text[64];
	snprintf(text, sizeof(text), "the sandbox was not ready within %d s", READY_WAIT_MS / 1000);
	fail(arg, text);
}

void ready_never(struct ready *r)
{
	if (r && r->state != READY_OVER)
		fail(r, "the sandbox cannot become ready");
}

void ready_stand_still(struct ready *r, bool on)
{
	if (!r || on == (r->still_since != 0))
		return;
	int64_t now = clock_boottime(), passed = now - r->still_since;
	r->still_since = on ? now : 0;
	stop_probe(r);
	if (is_under_way(r) && on)
		loop_timer_stop(r->timer);
	else if (is_under_way(r))
		loop_timer_at(r->timer, r->due += passed);
	else if (!on)
		on_timer(r->timer, r);
}

bool ready_end(struct ready *r)
{
	if (!r)
		return true;
	bool was_ready = r->state == READY_TOLD;
	loop_timer_stop(r->timer);
	if (r->deadline)
		loop_timer_stop(r->deadline);
	stop_probe(r);
	if (is_under_way(r))
		kill_try(r, r->pid, false);
	r->state = READY_OVER;
	return was_ready;
}

static bool good_command(struct str rest)
{
	struct str a;
	while (rest.n)
		if (!msg_list_next(&rest, &a) || memchr(a.p, '\0', a.n))
			return false;
	return true;
}

int ready_new(struct envd *e, const struct ready_config *config, ready_fn *fn, void *arg, struct ready **ret, struct error *err)
{
	if (!good_command(config->command.raw))
		return error_set(err, -EINVAL, 500, "the ready command of the claim is malformed");
	struct ready *r = calloc(1, sizeof(*r));
	if (!r)
		return error_errno(err, -ENOMEM, "ready command");
	*r = (struct ready){.envd = e, .fn = fn, .arg = arg, .once = config->once, .timer = loop_timer_new(e->loop, on_timer, r)};
	if (config->probe_port)
		r->probe = probe_new(e->loop, config->probe_port, config->probe_path, on_probed, r);
	if (config->once)
		r->deadline = loop_timer_new(e->loop, on_deadline, r);
	if (!r->timer || (config->probe_port && !r->probe) || (config->once && (!r->deadline || loop_timer_in(r->deadline, READY_WAIT_MS * NS_PER_MS) < 0)) ||
		buf_add_str(&r->command, config->command.raw) < 0) {
		ready_free(r);
		return error_errno(err, -ENOMEM, "ready command");
	}
	*ret = r;
	return 0;
}

void ready_free(struct ready *r)
{
	if (!r)
		return;
	loop_timer_free(r->timer);
	loop_timer_free(r->deadline);
	probe_free(r->probe);
	buf_done(&r->command);
	free(r);
}
