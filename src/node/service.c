#include "node/builders.h"
#include "node/layers.h"
#include "node/snapshots.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/workq.h"

#include <limits.h>
#include <stdio.h>
#include <sys/timerfd.h>

enum {
	STOP_PATIENCE_S = 8, /* for what is in flight; serve waits longer */
	PRUNE_EVERY_S = 600,
	ADOPT_PATIENCE_S = 10,
};

/* Requests and answers */

void peer_unref(struct peer *p)
{
	if (--p->refs)
		return;
	snapshot_free(p);
	free(p);
}

struct request *request_new(struct peer *p, uint64_t id, struct str text)
{
	struct request *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->peer = p;
	r->id = id;
	p->refs++;
	sandbox_copy(r->text, sizeof(r->text), text);
	return r;
}

void request_free(struct request *r)
{
	peer_unref(r->peer);
	free(r);
}

void request_answer(struct request *r, enum msg_id type, const void *m, int fd)
{
	static const struct msg_ok nothing;
	struct error err = {0};
	struct chan *c = r->peer->chan;
	if (c && chan_send(c, type, m ? m : &nothing, r->id, &fd, fd >= 0, &err) < 0 && err.code == -EMSGSIZE)
		chan_send_error(c, r->id, &err);
	request_free(r);
}

void request_fail(struct request *r, const struct error *err)
{
	struct msg_error m = {.code = err->code, .status = (uint64_t)(err->status ? err->status : 500), .message = str_of(err->message)};
	if (m.status == 503)
		msg_set(&m, error, retry_after, RETRY_AFTER_S);
	if (r->peer->chan)
		chan_send(r->peer->chan, MSG_ID_error, &m, r->id, NULL, 0, NULL);
	request_free(r);
}

void request_queue(struct request **list, struct request *r)
{
	while (*list)
		list = &(*list)->next;
	*list = r;
}

void requests_answer(struct request **list, const struct error *err)
{
	while (*list) {
		struct request *r = *list;
		*list = r->next;
		if (err)
			request_fail(r, err);
		else
			request_answer(r, MSG_ID_ok, NULL, -1);
	}
}

void request_answer_sandbox(struct request *r, struct live *l, bool resumed)
{
	struct msg_sandbox m;
	sandbox_message(l->node, &l->s, &m);
	if (!resumed)
		m.present &= ~(UINT64_C(1) << MSG_TAG_sandbox_resumed_from);
	request_answer(r, MSG_ID_sandbox, &m, -1);
}

/* Reaching a port */

struct opening {
	struct request *request;
	struct node *node;
	char id[SANDBOX_ID + 1], generation[SANDBOX_GENERATION + 1];
	unsigned port;
};

static void opened(int fd_or_error, void *arg)
{
	struct opening *o = arg;
	cleanup_fd int fd = fd_or_error;
	const struct live *l = live_find(o->node, str_of(o->id));
	struct error err = {0};
	struct msg_stream m = {.generation = str_of(o->generation)};
	if (!l || !sandbox_runs(&l->s) || strcmp(l->s.generation, o->generation) != 0)
		error_set(&err, -ENOENT, 404, "sandbox %s not found", o->id);
	else if (fd < 0)
		error_set(&err, fd, 502, "port %u: %s", o->port, strerror(-fd));
	if (err.code)
		request_fail(o->request, &err);
	else
		request_answer(o->request, MSG_ID_stream, &m, fd);
	free(o);
}

static void node_open(struct node *n, struct request *r, const struct msg_open *m)
{
	struct error err = {0};
	struct live *l = live_find(n, m->sandbox);
	if (m->port < 1 || m->port > 65535)
		error_set(&err, -EINVAL, 400, "port: 1 to 65535");
	else if (!l || !sandbox_runs(&l->s))
		error_set(&err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
	struct opening *o = err.code ? NULL : calloc(1, sizeof(*o));
	if (o) {
		*o = (struct opening){.request = r, .node = n, .port = (unsigned)m->port};
		memcpy(o->id, l->s.id, sizeof(o->id));
		memcpy(o->generation, l->s.generation, sizeof(o->generation));
		int e = box_open(l->box, (uint16_t)m->port, opened, o);
		if (e == 0)
			return;
		free(o);
		if (e == -ENOTCONN) /* as of a port that is closed for a moment: the ingress asks again */
			error_set(&err, -ECONNREFUSED, 502, "port %llu: the microVM's monitor cannot be reached for the moment", (unsigned long long)m->port);
		else
			error_set(&err, e, 503, "port %llu: too many connections are being made", (unsigned long long)m->port);
	} else if (!err.code) {
		error_errno(&err, -ENOMEM, "open");
	}
	request_fail(r, &err);
}

/* Channels */

static void template_changed(const struct template *t, bool gone, void *arg)
{
	node_template_event(t, gone, arg);
	ready_template(arg, t, gone);
}

static void reload_templates(struct node *n, struct request *r)
{
	struct error err = {0};
	if (images_reload_templates(&n->images, n->templates, template_changed, n, &err) < 0)
		request_fail(r, &err);
	else
		request_answer(r, MSG_ID_ok, NULL, -1);
}

static void describe_template(struct node *n, struct request *r, const struct msg_describe_template *m)
{
	struct error err = {0};
	cleanup_buf struct buf text = BUF_INIT;
	const struct template *t = templates_find(n->templates, m->template);
	if (!t || (*t->team && !str_is(m->team, t->team) && !t->public)) {
		error_set(&err, -ENOENT, 404, "there is no template '%.*s'", STR_FMT(m->template));
		request_fail(r, &err);
		return;
	}
	if (template_serialize_build(t, &text) < 0) {
		error_errno(&err, -ENOMEM, "template");
		request_fail(r, &err);
		return;
	}
	struct msg_template_description answer = {.description = buf_str(&text)};
	request_answer(r, MSG_ID_template_description, &answer, -1);
}

static void not_served(struct request *r, uint16_t type)
{
	struct error err = {0};
	error_set(&err, -ENOSYS, 501, "%s is not implemented by this node", msg_type(type)->name);
	request_fail(r, &err);
}

/* Most requests of the front have a field for the client's request id. */
static struct str request_text(const struct chan_message *m)
{
	for (const struct msg_field *f = msg_type(m->header.type)->fields; f->name; f++)
		if (f->kind == MSG_STR && !f->required && strcmp(f->name, "request") == 0 && m->body->present >> f->tag & 1)
			return *(const struct str *)(const void *)((const char *)m->body + f->offset);
	return STR("");
}

static void dispatch_builds(struct node *n, struct request *r, struct chan_message *m)
{
	if (m->header.type == MSG_ID_make_template)
		team_build_make(n, r, &m->body->make_template);
	else if (m->header.type == MSG_ID_start_build)
		team_build_start(n, r, &m->body->start_build, steal_fd(&m->fds[0]));
	else if (m->header.type == MSG_ID_build_status)
		team_build_status(n, r, &m->body->build_status);
	else if (m->header.type == MSG_ID_await_build)
		team_build_await(n, r, &m->body->await_build);
	else if (m->header.type == MSG_ID_builds)
		team_build_list(n, r, &m->body->builds);
	else if (m->header.type == MSG_ID_tag_template)
		team_build_tag(n, r, &m->body->tag_template);
	else if (m->header.type == MSG_ID_untag_template)
		team_build_untag(n, r, &m->body->untag_template);
	else if (m->header.type == MSG_ID_change_template)
		team_build_change(n, r, &m->body->change_template);
	else if (m->header.type == MSG_ID_delete_template)
		team_build_delete(n, r, &m->body->delete_template);
	else if (m->header.type == MSG_ID_find_file)
		upload_find(n, r, &m->body->find_file);
	else if (m->header.type == MSG_ID_write_file)
		upload_write(n, r, &m->body->write_file);
	else if (m->header.type == MSG_ID_keep_file)
		upload_keep(n, r, &m->body->keep_file);
	else if (m->header.type == MSG_ID_collect_images)
		layers_collect(n, r, &m->body->collect_images);
	else if (m->header.type != MSG_ID_hello && m->header.request)
		not_served(r, m->header.type);
	else
		request_free(r); /* hello, and answers to nothing that was asked */
}

static void dispatch(struct node *n, struct request *r, struct chan_message *m)
{
	if (m->header.type == MSG_ID_create)
		live_create(n, r, &m->body->create);
	else if (m->header.type == MSG_ID_kill)
		live_kill(n, r, &m->body->kill);
	else if (m->header.type == MSG_ID_timeout)
		live_timeout(n, r, &m->body->timeout);
	else if (m->header.type == MSG_ID_pause)
		live_pause(n, r, &m->body->pause);
	else if (m->header.type == MSG_ID_resume)
		live_resume(n, r, &m->body->resume);
	else if (m->header.type == MSG_ID_open)
		node_open(n, r, &m->body->open);
	else if (m->header.type == MSG_ID_network)
		live_network(n, r, &m->body->network);
	else if (m->header.type == MSG_ID_logs)
		live_logs(n, r, &m->body->logs);
	else if (m->header.type == MSG_ID_figures)
		live_figures(n, r);
	else if (m->header.type == MSG_ID_metrics)
		live_metrics(n, r, &m->body->metrics);
	else if (m->header.type == MSG_ID_make_snapshot)
		live_snapshot(n, r, &m->body->make_snapshot);
	else if (m->header.type == MSG_ID_delete_snapshot)
		snapshot_delete(n, r, &m->body->delete_snapshot);
	else if (m->header.type == MSG_ID_fork)
		live_fork(n, r, &m->body->fork);
	else if (m->header.type == MSG_ID_rollback)
		live_rollback(n, r, &m->body->rollback);
	else if (m->header.type == MSG_ID_set_pool)
		ready_set(n, r, &m->body->set_pool);
	else if (m->header.type == MSG_ID_unset_pool)
		ready_unset(n, r, &m->body->unset_pool);
	else if (m->header.type == MSG_ID_pools)
		ready_list(n, r);
	else if (m->header.type == MSG_ID_reload_templates)
		reload_templates(n, r);
	else if (m->header.type == MSG_ID_describe_template)
		describe_template(n, r, &m->body->describe_template);
	else
		dispatch_builds(n, r, m);
}

static void front_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct peer *p = arg;
	if (m->header.type == MSG_ID_subscribe) {
		node_subscribe(p);
		return;
	}
	struct request *r = request_new(p, m->header.request, request_text(m));
	if (!r) {
		struct error err;
		error_errno(&err, -ENOMEM, "request");
		chan_send_error(c, m->header.request, &err);
		return;
	}
	dispatch(p->node, r, m);
}

static void peer_closed(struct chan *c, const struct error *err, void *arg)
{
	struct peer *p = arg;
	struct node *n = p->node;
	if (err->code != -EPIPE)
		log_warn("channel to %s: %s", p == n->front ? "front" : "egress", err->message);
	p->chan = NULL;
	if (n->front == p) {
		n->front = NULL;
		uploads_forget_writers(n);
	}
	if (n->egress == p)
		n->egress = NULL;
	peer_unref(p);
}

static void front_drained(struct chan *c, void *arg)
{
	snapshot_continue(arg);
}

static void egress_message(struct chan *c, struct chan_message *m, void *arg)
{
}

static const struct chan_ops front_ops = {front_message, peer_closed, front_drained};
static const struct chan_ops egress_ops = {egress_message, peer_closed, NULL};

static void peer_drop(struct peer **which)
{
	struct peer *old = steal_pointer(which);
	if (!old)
		return;
	chan_free(steal_pointer(&old->chan));
	peer_unref(old);
}

static void peer_replace(struct node *n, struct peer **which, int fd, uint32_t accept, unsigned flags, const struct chan_ops *ops)
{
	peer_drop(which);
	struct peer *p = calloc(1, sizeof(*p));
	if (!p) {
		close(fd);
		return;
	}
	*p = (struct peer){.node = n, .refs = 1};
	p->chan = chan_new(n->loop, fd, accept, flags, ops, p);
	if (!p->chan) {
		free(p);
		return;
	}
	*which = p;
}

static void serve_front(struct node *n, int fd)
{
	peer_replace(n, &n->front, fd, MSG_FROM_FRONT, 0, &front_ops);
}

static void serve_egress(struct node *n, int fd)
{
	peer_replace(n, &n->egress, fd, MSG_FROM_EGRESS, CHAN_NO_FDS, &egress_ops);
	if (n->egress)
		node_dns_resend(n);
}

static void keep_waiting(int *which, int fd)
{
	if (*which >= 0)
		close(*which);
	*which = fd;
}

void node_peer(struct node *n, struct str role, int fd)
{
	if (str_is(role, "front")) {
		if (n->serving)
			serve_front(n, fd);
		else
			keep_waiting(&n->waiting_front, fd);
	} else if (str_is(role, "egress")) {
		if (n->serving)
			serve_egress(n, fd);
		else
			keep_waiting(&n->waiting_egress, fd);
	} else {
		log_warn("a channel to '%.*s' is not known here", STR_FMT(role));
		close(fd);
	}
}

/* Timers */

static void on_deadline(struct loop_timer *t, void *arg)
{
	node_expire(arg);
}

void node_disk_tick(struct node *n)
{
	int64_t wait = disk_account_tick(n->disk);
	n->disk_awake = wait != INT64_MAX && !n->leaving;
	if (n->disk_awake)
		loop_timer_in(n->disk_timer, wait);
}

static void on_disk(struct loop_timer *t, void *arg)
{
	node_disk_tick(arg);
}

static void on_prune(struct loop_timer *t, void *arg)
{
	struct node *n = arg;
	records_prune(n->records, node_realtime(n) - ENDS_KEPT_S * NS_PER_S, ENDS_MOST);
	logs_prune(n);
	builds_tick(n);
	layers_tick(n);
	loop_timer_in(t, PRUNE_EVERY_S * NS_PER_S);
}

/* A timer far away on CLOCK_REALTIME that any step cancels (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET). */
static int arm_step(struct node *n)
{
	struct itimerspec far = {.it_value.tv_sec = INT32_MAX * 4LL};
	return timerfd_settime(n->step_fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, NULL) < 0 ? -errno : 0;
}

static void on_step(struct loop_fd *w, uint32_t events, void *arg)
{
	struct node *n = arg;
	uint64_t times;
	ssize_t r = read(n->step_fd, &times, sizeof(times));
	(void)r; /* ECANCELED is the message */
	/* Armed before the clocks are read: a step in between is told again. */
	arm_step(n);
	node_clock_stepped(n);
}

/* Life of the node */

static void kill_for_disk(struct disk_entry *e, const char *detail, void *arg)
{
	if (!ready_ended_for_disk(arg, e, detail) && !builders_ended_for_disk(arg, e, detail))
		live_end(container_of(e, struct live, disk), "disk_full", detail);
}

static void waits_for_disk(struct disk_entry *e, bool on, void *arg)
{
	struct live *l = e->owner;
	if (!l)
		return;
	live_log(on ? LOG_WARN : LOG_INFO, l, on ? "frozen: the server's disk is nearly full" : "goes on: the server's disk has room again");
	logs_note_disk(l, on);
}

static const struct disk_account_ops disk_ops = {kill_for_disk, waits_for_disk, node_ballast};

static int make_timers(struct node *n, struct error *err)
{
	n->deadline_timer = loop_timer_new(n->loop, on_deadline, n);
	n->disk_timer = loop_timer_new(n->loop, on_disk, n);
	n->prune_timer = loop_timer_new(n->loop, on_prune, n);
	n->step_fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (!n->deadline_timer || !n->disk_timer || !n->prune_timer || n->step_fd < 0)
		return error_errno(err, n->step_fd < 0 ? -errno : -ENOMEM, "timers");
	n->step_source = loop_fd_add(n->loop, n->step_fd, EPOLLIN, on_step, n);
	int r = n->step_source ? arm_step(n) : -errno;
	return r < 0 ? error_errno(err, r, "timer for steps of the wall clock") : 0;
}

static void ignore_template(const struct template *t, bool gone, void *arg)
{
}

static int node_init(struct node *n, const struct node_config *c, struct error *err)
{
	char path[PATH_MAX];
	n->templates = templates_new();
	n->chores = workq_new(1, 16);
	n->removers = workq_new(1, 65536);
	n->disk = disk_account_new(c->options, c->host, &disk_ops, n);
	if (!n->templates || !n->chores || !n->removers || !n->disk)
		return error_errno(err, -ENOMEM, "node");
	n->admission = (struct admission){.options = c->options, .host = c->host, .disk = n->disk};
	n->clock_offset = c->host->realtime(c->host->arg) - c->host->boottime(c->host->arg);
	snprintf(path, sizeof(path), "%s/node.db", c->directory);
	int r = make_timers(n, err);
	if (r == 0 && (r = sampling_init(n)) < 0)
		error_errno(err, r, "sampling");
	if (r == 0)
		r = logs_init(n, err);
	if (r == 0)
		r = saved_open(n, err);
	if (r == 0)
		r = records_open(path, c->loop, &n->records, err);
	if (r == 0)
		r = records_key(n->records, n->key, err);
	if (r == 0)
		r = templates_load(n->templates, c->directory, ignore_template, NULL, err);
	n->images = (struct images){.directory = c->directory, .templates = n->templates};
	if (r == 0)
		r = layers_load(n, err);
	if (r == 0)
		r = builds_load(n, err);
	if (r == 0)
		r = snapshots_load(n, err);
	if (r == 0)
		r = ready_init(n, err);
	if (r < 0)
		return r;
	struct backend_config backend = {
		.options = c->options, .state_dir = c->directory, .init_path = c->init_path, .monitor_path = c->monitor_path,
		.dns_serve = node_dns_serve, .dns_stop = node_dns_stop, .arg = n,
	};
	return backend_new(c->loop, &backend, &n->backend, err);
}

static int start_in_jail(const struct jail *j, struct jailed *ret, void *arg, struct error *err)
{
	return jail_start(j, ret, err);
}

int node_new(const struct node_config *c, struct node **ret, struct error *err)
{
	struct node *n = calloc(1, sizeof(*n));
	if (!n)
		return error_errno(err, -ENOMEM, "node");
	*n = (struct node){.loop = c->loop, .options = c->options, .host = c->host, .directory = c->directory,
		.starter = {c->start ? c->start : start_in_jail, c->start_arg}, .build_uid = c->build_uid, .build_gid = c->build_gid, .waiting_front = -1, .waiting_egress = -1, .step_fd = -1, .adopt_patience = ADOPT_PATIENCE_S * NS_PER_S};
	int r = node_init(n, c, err);
	if (r < 0) {
		node_free(n);
		return r;
	}
	*ret = n;
	return 0;
}

void node_adopted(struct node *n)
{
	logs_sweep(n);
	saved_sweep(n);
	builds_sweep(n);
	layers_sweep(n);
	/* Everybody who uses an image is known now. */
	n->images.backend = n->backend;
	images_sweep(&n->images);
	backend_ready(n->backend);
	n->serving = true;
	if (n->waiting_egress >= 0)
		serve_egress(n, steal_fd(&n->waiting_egress));
	if (n->waiting_front >= 0)
		serve_front(n, steal_fd(&n->waiting_front));
	node_restore_shutdowns(n);
	node_arm_deadlines(n);
	on_prune(n->prune_timer, n);
	ready_start(n);
	n->serves(n->serves_arg);
}

int node_start(struct node *n, void (*ready)(void *arg), void *arg, struct error *err)
{
	n->serves = ready;
	n->serves_arg = arg;
	return node_adopt(n, err);
}

/* Stop */

static void on_drained(void *arg)
{
	struct node *n = arg;
	n->stopped(n->stopped_arg);
}

static void drain(struct node *n)
{
	if (n->draining)
		return;
	n->draining = true;
	loop_timer_free(steal_pointer(&n->stop_timer));
	backend_drain(n->backend, on_drained, n);
}

static void on_stop_patience(struct loop_timer *t, void *arg)
{
	log_warn("stopping although creates or kills are in flight; the next start resolves them");
	drain(arg);
}

void node_stop_check(struct node *n)
{
	if (!n->stopping || n->draining || n->leaving || !ready_stopped(n) || !builds_stopped(n))
		return;
	map_foreach(&n->live, slot)
	{
		const struct live *l = slot->value;
		if (l->s.state != SANDBOX_RUNNING && (l->s.state != SANDBOX_PAUSED || l->resuming))
			return;
	}
	drain(n);
}

void node_stop(struct node *n, void (*done)(void *arg), void *arg)
{
	if (n->stopping)
		return;
	n->stopping = true;
	n->stopped = done;
	n->stopped_arg = arg;
	n->stop_timer = loop_timer_new(n->loop, on_stop_patience, n);
	if (n->stop_timer)
		loop_timer_in(n->stop_timer, STOP_PATIENCE_S * NS_PER_S);
	ready_stop(n);
	builds_stop(n);
	node_stop_check(n);
}

static void forget_requests(struct request **list)
{
	while (*list) {
		struct request *r = *list;
		*list = r->next;
		request_free(r);
	}
}

static void forget_waiting(struct live *l)
{
	forget_requests(&l->create);
	forget_requests(&l->kills);
	forget_requests(&l->pauses);
	while (l->resumes) {
		struct resume_wait *w = l->resumes;
		l->resumes = w->next;
		request_free(w->request);
		free(w);
	}
}

void node_free(struct node *n)
{
	if (!n)
		return;
	n->leaving = true;
	n->images.backend = NULL;
	peer_drop(&n->front);
	peer_drop(&n->egress);
	saved_free(n);
	builds_drain(n);
	records_free(n->records);
	while (n->live.count)
		map_foreach(&n->live, slot)
		{
			struct live *l = slot->value;
			live_network_drop(l);
			forget_waiting(l);
			live_free(l);
			break;
		}
	ready_done(n);
	builds_free(n);
	layers_done(n);
	snapshots_done(n);
	backend_free(n->backend);
	images_done(&n->images);
	workq_free(n->chores);
	logs_done(n);
	node_ballast_drop(n);
	disk_account_free(n->disk);
	templates_free(n->templates);
	deadlines_done(&n->deadlines);
	deadlines_done(&n->shutdowns);
	sampling_done(n);
	node_dns_free(n);
	map_done(&n->live);
	map_done(&n->names);
	loop_timer_free(n->deadline_timer);
	loop_timer_free(n->disk_timer);
	loop_timer_free(n->prune_timer);
	loop_timer_free(n->stop_timer);
	loop_fd_del(n->step_source);
	for (int *fd = (int[]){n->step_fd, n->waiting_front, n->waiting_egress}, *end = fd + 3; fd < end; fd++)
		if (*fd >= 0)
			close(*fd);
	free(n);
}
