#include "guest/control.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/chores.h"
#include "guest/logs.h"
#include "guest/machine.h"
#include "guest/machine_disk.h"
#include "guest/names.h"
#include "io/chan.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

enum {
	MAX_NODES = 4,
	LOG_PAGE = 57344, /* of `log_page` */
	LOG_BURST = 32,   /* pages for one question */
};

/* Root inside may kill spawners as fast as it likes; each new one costs node an attach. */
#define FORK_INTERVAL (250 * NS_PER_MS)
#define RETRY_INTERVAL NS_PER_S

struct node {
	struct node *next;
	struct control *control;
	struct chan *chan;
	int fd; /* the channel's own */
	struct msg_log_read read; /* waits for entries while `pages` is not 0 */
	uint64_t read_request;
	unsigned pages; /* that may still follow */
};

struct control {
	struct loop *loop;
	struct guest_identity *identity;
	struct logs *logs;
	int listen_fd;
	struct loop_fd *watch;
	struct node *nodes; /* the newest first */
	size_t n_nodes;
	/* A spawner that waits to be attached. */
	struct spawner *spawner;
	int pending;       /* its socket; -1 = none */
	int64_t forked_at; /* CLOCK_BOOTTIME */
	struct loop_timer *retry;
	const struct control_ops *ops; /* NULL = nobody asks */
	void *ops_arg;
	/* Of a machine of its own; else NULL. */
	struct machine_disk *disk;
	struct chores *names; /* of later claims */
	bool still; /* ... whose spawner would stand still, too, as soon as it is one */
};

static void fork_spawner(struct control *c)
{
	int ends[2];
	if (!c->spawner || !c->nodes)
		return;
	if (c->pending >= 0)
		close(steal_fd(&c->pending));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return;
	pid_t pid = fork();
	if (pid == 0) {
		close(ends[0]);
		spawner_begin(c->nodes->fd, ends[1]);
	}
	close(ends[1]);
	if (pid < 0) {
		log_warn("a new spawner cannot be forked: %s", strerror(errno));
		close(ends[0]);
		return;
	}
	c->pending = ends[0];
}

static void on_retry(struct loop_timer *t, void *arg)
{
	struct control *c = arg;
	int64_t now = clock_boottime();
	if (!c->spawner)
		return;
	if (c->still && c->disk) {
		loop_timer_in(t, RETRY_INTERVAL);
		return;
	}
	if (c->forked_at && now < c->forked_at + FORK_INTERVAL) {
		loop_timer_at(t, c->forked_at + FORK_INTERVAL);
		return;
	}
	if (c->nodes)
		c->forked_at = now;
	fork_spawner(c);
	loop_timer_in(t, RETRY_INTERVAL);
}

void control_replace_spawner(struct control *c, struct spawner *s)
{
	log_warn("the spawner died; a new one is made");
	c->spawner = s;
	on_retry(c->retry, c);
}

static void on_attached(struct control *c)
{
	struct spawner *s = steal_pointer(&c->spawner);
	if (!s || c->pending < 0)
		return;
	loop_timer_stop(c->retry);
	int r = spawner_set(s, steal_fd(&c->pending));
	if (r < 0)
		control_replace_spawner(c, s);
}

/* A later claim (resume): what commands and clients see from now on. */
static int replace_identity(struct guest_identity *id, const struct msg_claim *m)
{
	struct guest_identity n = {
		.sandbox = str_dup(m->sandbox),
		.template = str_dup(m->template),
		.token = msg_has(m, claim, token) ? str_dup(m->token) : NULL,
		.user = str_dup(m->user),
		.workdir = msg_has(m, claim, workdir) ? str_dup(m->workdir) : NULL,
		.template_envs = m->template_envs,
	};
	buf_add_str(&n.envs, m->envs.raw);
	guest_user_settle(&n.user);
	bool good = n.sandbox && n.template && n.user && !n.envs.failed &&
		    (n.token || !msg_has(m, claim, token)) && (n.workdir || !msg_has(m, claim, workdir));
	struct guest_identity *old = good ? id : &n;
	free(old->sandbox);
	free(old->template);
	free(old->token);
	free(old->user);
	free(old->workdir);
	buf_done(&old->envs);
	if (good) {
		n.services = id->services;
		n.service_options = id->service_options;
		n.ready = id->ready;
		n.probe_port = id->probe_port;
		n.probe_path = id->probe_path;
		*id = n;
	}
	return good ? 0 : -ENOMEM;
}

static void answer_claim(int r, void *owner, uint64_t request)
{
	struct node *n = owner;
	struct error err = {0};
	if (r < 0) {
		error_errno(&err, r, "claim");
		chan_send_error(n->chan, request, &err);
		return;
	}
	chan_send(n->chan, MSG_ID_claimed, &(struct msg_claimed){0}, request, NULL, 0, NULL);
}

static int work_names(const void *arg)
{
	return names_write(arg);
}

/* The machine was restored from a memory that others may be restored from, too. */
static int settle_machine(struct node *n, const struct msg_claim *m, uint64_t request)
{
	machine_reseed(m->boot_id);
	int r = machine_set_clock(m->realtime);
	struct names names;
	names_of(m, &names);
	/* By a child: PID 1 touches no file of the sandbox while others wait for it. */
	struct chore_order o = {.work = work_names, .arg = &names, .size = sizeof(names), .keep = {-1, -1}, .done = answer_claim, .owner = n, .request = request};
	return r < 0 ? r : chores_add(n->control->names, &o);
}

static void on_claim(struct node *n, const struct chan_message *m)
{
	struct control *c = n->control;
	int r = replace_identity(c->identity, &m->body->claim);
	if (r == 0 && c->names && (r = settle_machine(n, &m->body->claim, m->header.request)) == 0)
		return;
	answer_claim(r, n, m->header.request);
}

static void answer_disk(int r, void *owner, uint64_t request)
{
	struct node *n = owner;
	struct error err = {0};
	if (r == 0) {
		chan_send(n->chan, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
		return;
	}
	error_errno(&err, r, "disk");
	chan_send_error(n->chan, request, &err);
}

static void on_disk(struct node *n, const struct chan_message *m)
{
	struct machine_disk *d = n->control->disk;
	uint64_t request = m->header.request;
	int r = -EOPNOTSUPP; /* a namespace's disk is the host's to care for */
	if (d && m->header.type == MSG_ID_sync)
		r = machine_disk_sync(d, answer_disk, n, request);
	else if (d && m->header.type == MSG_ID_quiesce)
		r = machine_disk_quiesce(d, m->body->quiesce.on, answer_disk, n, request);
	else if (d)
		r = machine_disk_trim(d, answer_disk, n, request);
	if (r < 0)
		answer_disk(r, n, request);
}

/* Nobody's until now. What is started from here on is its owner's. */
static int become_assigned(struct guest_identity *id, const struct msg_assign *m)
{
	bool has_token = msg_has(m, assign, token);
	cleanup_free char *token = has_token ? str_dup(m->token) : NULL;
	struct buf envs = BUF_INIT;
	if (!id->unassigned)
		return -EALREADY;
	if (buf_add_str(&envs, m->envs.raw) < 0 || (has_token && !token)) {
		buf_done(&envs);
		return -ENOMEM;
	}
	free(id->token);
	buf_done(&id->envs);
	id->token = steal_pointer(&token);
	id->envs = envs;
	id->template_envs = m->template_envs;
	id->unassigned = false;
	return 0;
}

static void on_assign(struct node *n, const struct chan_message *m)
{
	struct control *c = n->control;
	struct error err = {0};
	int r = become_assigned(c->identity, &m->body->assign);
	if (r < 0) {
		error_errno(&err, r, "assign");
		chan_send_error(n->chan, m->header.request, &err);
		return;
	}
	struct msg_assigned answer = {.ready = c->ops && c->ops->assigned(c->ops_arg)};
	chan_send(n->chan, MSG_ID_assigned, &answer, m->header.request, NULL, 0, NULL);
}

static void on_hello(struct node *n, const struct chan_message *m)
{
	struct msg_init_state s = {
		.claimed = true, .version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION};
	msg_set(&s, init_state, still, true);
	msg_set(&s, init_state, sandbox, str_of(n->control->identity->sandbox));
	chan_send(n->chan, MSG_ID_init_state, &s, m->header.request, NULL, 0, NULL);
}

/* False: there is nothing to tell to a question that waits. */
static bool answer_log_read(struct node *n, struct msg_log_read *m, uint64_t request)
{
	cleanup_buf struct buf entries = BUF_INIT;
	uint64_t next;
	struct error err = {0};
	int r = logs_read(n->control->logs, m->after, m->since, LOG_PAGE, &entries, &next);
	if (r == 0 && !buf_len(&entries) && m->wait)
		return false;
	struct msg_log_page page = {.entries = buf_str(&entries), .next = next, .more = r > 0};
	if (r < 0) {
		error_errno(&err, r, "log");
		chan_send_error(n->chan, request, &err);
		return false;
	}
	m->after = next;
	chan_send(n->chan, MSG_ID_log_page, &page, request, NULL, 0, NULL);
	return true;
}

static void tell_entries(struct node *n)
{
	while (n->pages && answer_log_read(n, &n->read, n->read_request))
		n->pages--;
}

/* What waits is answered with a page whenever there is something, LOG_BURST times: then node must ask again, which is what holds a flood back. The newest counts. */
static void on_log_read(struct node *n, const struct chan_message *m)
{
	if (!m->body->log_read.wait) {
		struct msg_log_read read = m->body->log_read;
		answer_log_read(n, &read, m->header.request);
		return;
	}
	n->read = m->body->log_read;
	n->read_request = m->header.request;
	n->pages = LOG_BURST;
	tell_entries(n);
}

/* At once, before whoever asked for a command learns of its end: node may be told to kill the sandbox next. */
static void on_log_added(void *arg)
{
	struct control *c = arg;
	for (struct node *n = c->nodes; n; n = n->next)
		tell_entries(n);
}

static void on_message(struct chan *chan, struct chan_message *m, void *arg)
{
	struct node *n = arg;
	switch (m->header.type) {
	case MSG_ID_hello:
		on_hello(n, m);
		break;
	case MSG_ID_claim:
		on_claim(n, m);
		break;
	case MSG_ID_attached:
		on_attached(n->control);
		break;
	case MSG_ID_log_read:
		on_log_read(n, m);
		break;
	case MSG_ID_still:
		n->control->still = m->body->still.on;
		if (n->control->ops)
			n->control->ops->still(m->body->still.on, n->control->ops_arg);
		break;
	case MSG_ID_assign:
		on_assign(n, m);
		break;
	case MSG_ID_sync:
	case MSG_ID_quiesce:
	case MSG_ID_trim:
		on_disk(n, m);
		break;
	case MSG_ID_ping:
		chan_send(chan, MSG_ID_pong, &(struct msg_pong){0}, m->header.request, NULL, 0, NULL);
		break;
	default:
		break; /* ok and error: nothing was asked */
	}
}

int control_set_machine(struct control *c, struct machine_disk *disk)
{
	c->names = chores_new(c->loop);
	c->disk = disk;
	return c->names ? 0 : -ENOMEM;
}

void control_set_ops(struct control *c, const struct control_ops *ops, void *arg)
{
	c->ops = ops;
	c->ops_arg = arg;
}

static void forget(struct node *n)
{
	struct control *c = n->control;
	for (struct node **at = &c->nodes; *at; at = &(*at)->next)
		if (*at == n) {
			*at = n->next;
			c->n_nodes--;
			break;
		}
	machine_disk_forget(c->disk, n);
	chores_forget(c->names, n);
	free(n);
}

/* A claimed sandbox lives on without a node. */
static void on_closed(struct chan *chan, const struct error *err, void *arg)
{
	forget(arg);
}

static const struct chan_ops chan_ops = {.message = on_message, .closed = on_closed};

int control_adopt(struct control *c, int fd)
{
	struct node *n = malloc(sizeof(*n));
	if (!n) {
		close(fd);
		return -ENOMEM;
	}
	*n = (struct node){.next = c->nodes, .control = c, .fd = fd};
	n->chan = chan_new(c->loop, fd, MSG_TO_INIT, CHAN_NO_FDS, &chan_ops, n);
	if (!n->chan) {
		int r = -errno;
		free(n);
		return r;
	}
	c->nodes = n;
	c->n_nodes++;
	if (c->spawner)
		on_retry(c->retry, c);
	return 0;
}

static void on_connection(struct loop_fd *w, uint32_t events, void *arg)
{
	struct control *c = arg;
	int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	/* Only root of the machine reaches this socket; the bound is for its mistakes. */
	if (c->n_nodes >= MAX_NODES)
		close(fd);
	else
		control_adopt(c, fd);
}

struct control *control_new(struct loop *l, int listen_fd, struct guest_identity *id, struct logs *logs)
{
	struct control *c = malloc(sizeof(*c));
	if (!c || fd_set_nonblock(listen_fd, true) < 0) {
		free(c);
		return NULL;
	}
	*c = (struct control){.loop = l, .identity = id, .logs = logs, .listen_fd = listen_fd, .pending = -1};
	c->retry = loop_timer_new(l, on_retry, c);
	c->watch = c->retry ? loop_fd_add(l, listen_fd, EPOLLIN, on_connection, c) : NULL;
	if (c->watch) {
		logs_watch(logs, on_log_added, c);
		return c;
	}
	loop_timer_free(c->retry);
	free(c);
	return NULL;
}

void control_free(struct control *c)
{
	if (!c)
		return;
	logs_watch(c->logs, NULL, NULL);
	while (c->nodes) {
		chan_free(c->nodes->chan);
		forget(c->nodes);
	}
	if (c->pending >= 0)
		close(c->pending);
	chores_free(c->names);
	loop_timer_free(c->retry);
	loop_fd_del(c->watch);
	close(c->listen_fd);
	free(c);
}

void control_tell_claimed(struct control *c, uint64_t request)
{
	for (struct node *n = c->nodes; n; n = n->next)
		chan_send(n->chan, MSG_ID_claimed, &(struct msg_claimed){0}, request, NULL, 0, NULL);
}

void control_tell_prepared(struct control *c, bool ready, struct str why)
{
	struct msg_prepared m = {.ready = ready};
	if (why.n)
		msg_set(&m, prepared, why, why);
	for (struct node *n = c->nodes; n; n = n->next)
		chan_send(n->chan, MSG_ID_prepared, &m, 0, NULL, 0, NULL);
}
