#include "guest/process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "guest/logs.h"
#include "guest/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

/* Lists */

static void list_remove(struct process **first, struct process **last, struct process *p)
{
	*(p->prev ? &p->prev->next : first) = p->next;
	*(p->next ? &p->next->prev : last) = p->prev;
	p->prev = p->next = NULL;
}

static void list_append(struct process **first, struct process **last, struct process *p)
{
	p->prev = *last;
	p->next = NULL;
	*(*last ? &(*last)->next : first) = p;
	*last = p;
}

static void drop_config(struct process *p)
{
	free(steal_pointer(&p->config));
	envd_release(p->all->envd, p->held);
	p->held = 0;
}

static void close_all(struct process *p)
{
	for (size_t i = 0; i < p->n_outputs; i++)
		output_close(&p->outputs[i]);
	process_drop_input(p, CONNECT_NOT_FOUND, "the process has ended");
	if (p->terminal >= 0)
		close(steal_fd(&p->terminal));
	loop_timer_free(steal_pointer(&p->deadline));
	p->due = 0;
	drop_config(p);
}

static void process_free(struct process *p)
{
	struct processes *all = p->all;
	if (p->pid && map_get(&all->by_pid, MAP_KEY(p->pid)) == p)
		map_del(&all->by_pid, MAP_KEY(p->pid));
	close_all(p);
	free(p->tag);
	free(p->title);
	free(p);
}

static void forget_ended(struct processes *all)
{
	struct process *p = all->ended;
	list_remove(&all->ended, &all->ended_last, p);
	all->n_ended--;
	process_free(p);
}

static void on_reaper(struct loop_timer *t, void *arg)
{
	struct processes *all = arg;
	int64_t now = clock_boottime();
	while (all->ended && all->ended->ended_at + PROCESS_KEPT_S * NS_PER_S <= now)
		forget_ended(all);
	if (all->ended)
		loop_timer_at(t, all->ended->ended_at + PROCESS_KEPT_S * NS_PER_S);
	else
		malloc_trim(0); /* nothing has happened for a while: an idle sandbox should hold little */
}

struct processes *processes_new(struct envd *e)
{
	struct processes *all = malloc(sizeof(*all));
	if (!all)
		return NULL;
	*all = (struct processes){.envd = e, .reaper = loop_timer_new(e->loop, on_reaper, all)};
	if (all->reaper)
		return all;
	free(all);
	return NULL;
}

void processes_free(struct processes *all)
{
	if (!all)
		return;
	while (all->ended)
		forget_ended(all);
	while (all->live) {
		struct process *p = all->live;
		list_remove(&all->live, &all->live_last, p);
		process_free(p);
	}
	loop_timer_free(all->reaper);
	map_done(&all->by_pid);
	buf_done(&all->scratch);
	free(all);
}

struct process *process_by_pid(struct processes *all, uint32_t pid, bool ended)
{
	pid_t key = (pid_t)pid;
	struct process *p = pid <= INT32_MAX ? map_get(&all->by_pid, MAP_KEY(key)) : NULL;
	return p && p->state != PROCESS_STARTING && (ended || p->state != PROCESS_ENDED) ? p : NULL;
}

struct process *process_by_tag(struct processes *all, struct str tag, bool ended)
{
	for (struct process *p = all->live_last; p; p = p->prev)
		if (p->tag && str_is(tag, p->tag))
			return p;
	for (struct process *p = ended ? all->ended_last : NULL; p; p = p->prev)
		if (p->tag && str_is(tag, p->tag))
			return p;
	return NULL;
}

/* The log */

static void log_start(struct process *p)
{
	char pid[16];
	snprintf(pid, sizeof(pid), "%d", p->pid);
	cleanup_free char *title = steal_pointer(&p->title);
	const struct log_field fields[] = {{"pid", str_of(pid)}, {"command", str_of(title ? title : "")}, {0}};
	logs_add(p->all->envd->logs, LOG_INFO, "process", STR("started"), fields);
}

static void log_end(const struct process *p)
{
	char pid[16], status[PROCESS_STATUS_SIZE];
	snprintf(pid, sizeof(pid), "%d", p->pid);
	exit_info_text(&p->exit, status);
	const struct log_field fields[] = {{"pid", str_of(pid)}, {"status", str_of(status)}, {0}};
	logs_add(p->all->envd->logs, p->exit.oom ? LOG_ERROR : LOG_INFO, "process", STR("ended"), fields);
}

/* The end */

static void answer_kills(struct process *p)
{
	while (p->kills) {
		struct kill_wait *k = p->kills;
		p->kills = k->next;
		k->rpc->ops = NULL;
		rpc_reply(k->rpc, STR("{}"));
		loop_timer_free(k->timer);
		free(k);
	}
}

void process_check_end(struct process *p)
{
	if (!p->reaped || (p->state != PROCESS_RUNNING && p->state != PROCESS_EXITED))
		return;
	p->state = PROCESS_EXITED;
	for (size_t i = 0; i < p->n_outputs; i++)
		if (p->outputs[i].fd >= 0)
			return;
	struct processes *all = p->all;
	cleanup_buf struct buf out = BUF_INIT;
	/* First: who learns of the end may kill the sandbox next. */
	log_end(p);
	process_end_event(p, &out);
	process_end_watchers(p, buf_str(&out));
	p->state = PROCESS_ENDED;
	close_all(p);
	p->ended_at = clock_boottime();
	list_remove(&all->live, &all->live_last, p);
	all->n_live--;
	list_append(&all->ended, &all->ended_last, p);
	if (all->n_ended++ == 0)
		loop_timer_in(all->reaper, PROCESS_KEPT_S * NS_PER_S);
	if (all->n_ended > PROCESS_MAX_ENDED)
		forget_ended(all);
}

void process_go_on(struct process *p)
{
	process_flow(p);
	if (p->reaped && p->impatient)
		process_drain(p);
	process_check_end(p);
}

/*
 * The kernel tells nobody whom it killed for lack of memory. A command that was killed, or whose shell
 * reports that of a child, in whose time the cgroup counted such a kill, and that no client has signalled,
 * was most likely it.
 */
static void judge_memory(struct process *p)
{
	uint64_t now;
	bool killed =
		p->exit.code == CLD_EXITED ? p->exit.status == 128 + SIGKILL : p->exit.status == SIGKILL;
	p->exit.oom = killed && !p->impatient && guest_cgroup_oom_kills(p->all->envd->cgroup, &now) &&
		      now > p->oom_kills;
}

bool process_reaped(struct processes *all, pid_t pid, struct exit_info exit)
{
	struct process *p = map_get(&all->by_pid, MAP_KEY(pid));
	if (!p || p->reaped)
		return false;
	p->reaped = true;
	p->exit = exit;
	judge_memory(p);
	answer_kills(p);
	if (p->state == PROCESS_STARTING)
		return true; /* on_spawned() goes on */
	if (p->impatient)
		process_drain(p);
	process_check_end(p);
	return true;
}

/* Signals */

static void kill_group(struct process *p, int sig)
{
	if (p->pid && !p->group_lost)
		kill(-p->pid, sig);
}

static void on_deadline(struct loop_timer *t, void *arg)
{
	struct process *p = arg;
	char text[128];
	snprintf(text, sizeof(text), "the command ran longer than its timeout of %lld ms and was killed",
		(long long)(p->timeout_ns / NS_PER_MS));
	p->due = 0;
	p->impatient = true;
	kill_group(p, SIGKILL);
	if (p->starter) {
		struct rpc *c = p->starter->rpc;
		watcher_free(p->starter);
		rpc_fail(c, CONNECT_DEADLINE_EXCEEDED, "%s", text);
	}
	process_go_on(p);
}

void processes_stand_still(struct processes *all, bool on)
{
	int64_t now = clock_boottime(), passed = now - all->still_since;
	if (on == (all->still_since != 0))
		return;
	all->still_since = on ? now : 0;
	for (struct process *p = all->live; p; p = p->next) {
		if (!p->due)
			continue;
		if (on)
			loop_timer_stop(p->deadline);
		else if (loop_timer_at(p->deadline, p->due += passed) < 0)
			on_deadline(p->deadline, p);
	}
}

static void kill_gone(struct rpc *c)
{
	struct kill_wait *k = c->state;
	for (struct kill_wait **at = &k->process->kills; *at; at = &(*at)->next)
		if (*at == k) {
			*at = k->next;
			break;
		}
	loop_timer_free(k->timer);
	free(k);
}

static void kill_writable(struct rpc *c)
{
}

static const struct rpc_ops kill_ops = {.gone = kill_gone, .writable = kill_writable};

static void on_kill_timer(struct loop_timer *t, void *arg)
{
	struct rpc *c = arg;
	kill_gone(c);
	c->ops = NULL;
	rpc_reply(c, STR("{}"));
}

/* The answer comes when the process is reaped: the next command may look whether it is gone. Bounded by a
 * second. */
static void wait_for_reaping(struct process *p, struct rpc *c)
{
	struct kill_wait *k = malloc(sizeof(*k));
	struct loop_timer *t = k ? loop_timer_new(p->all->envd->loop, on_kill_timer, c) : NULL;
	if (!t || loop_timer_in(t, NS_PER_S) < 0) {
		loop_timer_free(t);
		free(k);
		rpc_reply(c, STR("{}"));
		return;
	}
	*k = (struct kill_wait){.next = p->kills, .process = p, .rpc = c, .timer = t};
	p->kills = k;
	c->state = k;
	c->ops = &kill_ops;
}

void process_signal(struct process *p, struct rpc *c, int sig, bool descendants)
{
	if (p->state == PROCESS_STARTING) {
		rpc_fail(c, CONNECT_FAILED_PRECONDITION, "the process is still being started");
		return;
	}
	if (descendants)
		tree_signal(p->all->envd->proc, p->pid, p->reaped, p->group_lost, sig);
	else if (!p->reaped)
		kill(p->pid, sig); /* nobody else can reap it, so the number is still its own */
	p->impatient = true;
	if (!p->reaped && sig == SIGKILL) {
		wait_for_reaping(p, c);
		return;
	}
	rpc_reply(c, STR("{}"));
	if (p->reaped)
		process_go_on(p);
}

/* Starting */

static void on_pid(struct spawn *s, pid_t pid, void *arg)
{
	struct process *p = arg;
	struct process *old = NULL;
	p->pid = pid;
	if (map_put(&p->all->by_pid, MAP_KEY(p->pid), p, (void **)&old) < 0) {
		/* Without its entry nobody would see its end. */
		kill(pid, SIGKILL);
		p->exit = (struct exit_info){.code = CLD_KILLED, .status = SIGKILL};
		p->reaped = p->impatient = p->group_lost = true;
	}
	/* An older one of this number is reaped; what is left of its group must not be mistaken for this
	 * one's. */
	if (old)
		old->group_lost = true;
}

static void start_failed(struct process *p, const struct spawn_result *r)
{
	struct processes *all = p->all;
	while (p->watchers) {
		struct rpc *c = p->watchers->rpc;
		watcher_free(p->watchers);
		rpc_fail(c, r->code, "%.*s", STR_FMT(r->message));
	}
	list_remove(&all->live, &all->live_last, p);
	all->n_live--;
	process_free(p);
}

static void on_spawned(struct spawn *s, const struct spawn_result *r, void *arg)
{
	struct process *p = arg;
	p->spawn = NULL;
	if (r->code) {
		start_failed(p, r);
		return;
	}
	cleanup_buf struct buf out = BUF_INIT;
	p->state = PROCESS_RUNNING;
	if (!p->reaped)
		envd_offer_to_oom_killer(p->all->envd, p->pid);
	process_start_event(p, &out);
	process_send(p, buf_str(&out));
	log_start(p);
	/* Its deadline passed while it was being started. */
	if (p->impatient)
		kill_group(p, SIGKILL);
	process_go_on(p);
}

static const struct spawn_ops spawn_ops = {.pid = on_pid, .done = on_spawned};

static int open_pty(struct process *p, const struct process_request *q, int fds[3])
{
	struct envd *e = p->all->envd;
	cleanup_fd int master = openat(e->pts, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	int unlock = 0;
	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
		return -errno;
	struct winsize size = {.ws_row = q->rows, .ws_col = q->cols};
	if (ioctl(master, TIOCSWINSZ, &size) < 0)
		return -errno;
	fds[0] = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fds[0] < 0)
		return -errno;
	p->terminal = steal_fd(&master);
	p->in = p->terminal;
	p->outputs[0] = (struct output){.process = p, .kind = "pty", .fd = p->terminal};
	p->n_outputs = 1;
	return 1;
}

/* One pipe; ours does not block, the child's does. */
static int open_pipe(int *ret_ours, int *ret_theirs, bool we_write)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	*ret_ours = ends[we_write];
	*ret_theirs = ends[!we_write];
	return fd_set_nonblock(*ret_ours, true);
}

static int open_pipes(struct process *p, const struct process_request *q, int fds[3])
{
	int r = 0;
	if (q->has_stdin)
		r = open_pipe(&p->in, &fds[0], true);
	else if ((fds[0] = fcntl(p->all->envd->null, F_DUPFD_CLOEXEC, 3)) < 0)
		r = -errno;
	static const char *const kinds[] = {"stdout", "stderr"};
	for (size_t i = 0; i < 2 && r == 0; i++) {
		p->outputs[i] = (struct output){.process = p, .kind = kinds[i], .fd = -1};
		r = open_pipe(&p->outputs[i].fd, &fds[1 + i], false);
		p->n_outputs = i + 1;
	}
	return r < 0 ? r : 3;
}

/* The words with blanks between them, for the log. NULL without memory. */
static char *command_line(const struct process_request *q)
{
	struct str words = str_n(buf_str(&q->body).p + q->args_at, MIN(q->args_end - q->args_at, (size_t)LOGS_MAX_TEXT));
	char *text = str_dup(words);
	for (size_t i = 0; text && i < words.n; i++)
		if (!text[i])
			text[i] = i + 1 < words.n ? ' ' : '\0';
	return text;
}

static struct process *process_new(struct processes *all, struct process_request *q)
{
	struct process *p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct process){.all = all, .in = -1, .terminal = -1, .timeout_ns = q->timeout_ns};
	p->tag = q->tag.n ? str_dup(q->tag) : NULL;
	p->config = str_dup(q->config);
	p->title = command_line(q);
	if (!p->config || (q->tag.n && !p->tag) || !envd_hold(all->envd, q->config.n)) {
		free(p->tag);
		free(p->title);
		free(p->config);
		free(p);
		return NULL;
	}
	p->held = q->config.n;
	guest_cgroup_oom_kills(all->envd->cgroup, &p->oom_kills);
	if (!q->timeout_ns)
		return p;
	p->due = clock_boottime() + q->timeout_ns;
	p->deadline = loop_timer_new(all->envd->loop, on_deadline, p);
	if (!p->deadline || loop_timer_at(p->deadline, p->due) < 0) {
		process_free(p);
		return NULL;
	}
	return p;
}

void process_start(struct processes *all, struct rpc *c, struct process_request *q)
{
	int fds[3] = {-1, -1, -1}, r = -ENOMEM;
	struct process *p = process_new(all, q);
	struct watcher *w = p ? watcher_new(p, c) : NULL;
	if (!w)
		goto fail;
	r = q->pty ? open_pty(p, q, fds) : open_pipes(p, q, fds);
	if (r < 0)
		goto fail;
	p->spawn = spawn_new(all->envd->spawner, &q->head, &q->body, fds, (size_t)r, &spawn_ops, p);
	fds[0] = fds[1] = fds[2] = -1;
	r = -errno;
	if (!p->spawn)
		goto fail;
	p->starter = w;
	list_append(&all->live, &all->live_last, p);
	all->n_live++;
	return;
fail:
	for (size_t i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	if (w)
		watcher_free(w);
	if (p)
		process_free(p);
	rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED,
		r == -EAGAIN ? "too many processes are being started" : "cannot start a process: %s",
		strerror(-r));
}
