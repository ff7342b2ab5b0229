#include "egress/egress.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/clock.h"
#include "base/log.h"
#include "config/options.h"
#include "egress/confine.h"
#include "egress/server.h"
#include "io/chan.h"

#include <signal.h>

enum { SERVE_FD = 3, OPTIONS_FD = 4 };

static const char resolv_conf[] = "/etc/resolv.conf";

/* How long names are served on without a node, and how long a new one may take to give the sockets of its sandboxes again. */
static const int64_t node_patience = 60 * NS_PER_S, adoption_patience = 30 * NS_PER_S;

struct egress {
	struct loop *loop;
	struct chan *serve, *node;
	struct upstreams upstreams;
	struct forwarder *forwarder;
	struct dns_server *server;
	struct loop_timer *reaper;
};

static void serve_slot(struct egress *e, struct chan_message *m)
{
	const struct msg_dns_serve *s = &m->body->dns_serve;
	int udp = steal_fd(&m->fds[0]), tcp = steal_fd(&m->fds[1]);
	int r = dns_server_add(e->server, s->slot, udp, tcp, s->allow);
	if (r < 0)
		log_error("no name service in slot %llu: %s", (unsigned long long)s->slot, strerror(-r));
}

static void on_node_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct egress *e = arg;
	const struct msg_dns_policy *p = &m->body->dns_policy;
	switch (m->header.type) {
	case MSG_ID_dns_serve:
		serve_slot(e, m);
		break;
	case MSG_ID_dns_policy:
		dns_server_policy(e->server, p->slot, p->allow, msg_has(p, dns_policy, sandbox) ? p->sandbox : STR(""));
		break;
	case MSG_ID_dns_stop:
		dns_server_remove(e->server, m->body->dns_stop.slot);
		break;
	default: /* hello and node's messages to others: nothing to do */
		break;
	}
}

/* Node is gone or starts anew. Sandboxes outlive it, so their names do too. */
static void lose_node(struct egress *e, int64_t patience)
{
	chan_free(e->node);
	e->node = NULL;
	dns_server_orphan(e->server);
	loop_timer_in(e->reaper, patience);
}

static void on_reap(struct loop_timer *t, void *arg)
{
	struct egress *e = arg;
	dns_server_reap(e->server);
}

static void on_node_closed(struct chan *c, const struct error *err, void *arg)
{
	struct egress *e = arg;
	log_info("the channel to node is closed: %s", err->message);
	e->node = NULL;
	lose_node(e, node_patience);
}

static const struct chan_ops node_ops = {on_node_message, on_node_closed};

static void on_serve_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct egress *e = arg;
	if (m->header.type == MSG_ID_stop)
		loop_stop(e->loop);
	if (m->header.type != MSG_ID_peer)
		return;
	if (!str_is(m->body->peer.role, "node")) {
		log_warn("a channel to '%.*s' is of no use here", STR_FMT(m->body->peer.role));
		return;
	}
	lose_node(e, adoption_patience);
	e->node = chan_new(e->loop, steal_fd(&m->fds[0]), MSG_FROM_NODE, 0, &node_ops, e);
	if (!e->node)
		log_error("channel to node: %s", strerror(errno));
}

static void on_serve_closed(struct chan *c, const struct error *err, void *arg)
{
	struct egress *e = arg;
	e->serve = NULL;
	loop_stop(e->loop);
}

static const struct chan_ops serve_ops = {on_serve_message, on_serve_closed};

static void set_up_log(const struct options *o)
{
	enum log_level level = LOG_INFO;
	log_level_parse(str_of(o->log_level), &level);
	log_setup("egress", 2, level);
}

static int start(struct egress *e, const struct options *o, struct error *err)
{
	unsigned descriptors = fd_raise_limit();
	int r = upstreams_init(&e->upstreams, o->dns_upstream, resolv_conf, err);
	if (r < 0)
		return r;
	e->loop = loop_new();
	/* A half for upstream sockets, an eighth for connections of sandboxes; the rest holds two sockets a slot. */
	e->forwarder = e->loop ? forwarder_new(e->loop, &e->upstreams, descriptors / 2) : NULL;
	e->server = e->forwarder ? dns_server_new(e->loop, e->forwarder, descriptors / 8) : NULL;
	e->reaper = e->server ? loop_timer_new(e->loop, on_reap, e) : NULL;
	e->serve = e->reaper ? chan_new(e->loop, SERVE_FD, MSG_FROM_SERVE, 0, &serve_ops, e) : NULL;
	if (!e->serve)
		return error_errno(err, errno ? -errno : -ENOMEM, "starting egress");
	if (descriptors * 3 / 8 < 2 * o->max_sandboxes)
		log_warn("the limit of open files (%u) is too low for the name service of %lld sandboxes", descriptors, (long long)o->max_sandboxes);
	if (!e->upstreams.n)
		log_warn("no resolver is known (dns.upstream is empty, and %s names none): sandboxes get SERVFAIL", resolv_conf);
	r = confine(o->user_egress, err);
	if (r < 0)
		return r;
	struct msg_ready ready = {0};
	return chan_send(e->serve, MSG_ID_ready, &ready, 0, NULL, 0, err);
}

static void finish(struct egress *e)
{
	chan_free(e->node);
	chan_free(e->serve);
	loop_timer_free(e->reaper);
	dns_server_free(e->server);
	forwarder_free(e->forwarder);
	loop_free(e->loop);
}

int egress_main(int argc, char **argv)
{
	struct egress e = {0};
	struct options o;
	struct error err = {0};
	log_setup("egress", 2, LOG_INFO);
	signal(SIGPIPE, SIG_IGN);
	int r = options_init(&o);
	if (r == 0)
		r = options_read_file(&o, "/proc/self/fd/4", true, &err);
	if (r == 0) {
		set_up_log(&o);
		close(OPTIONS_FD);
		r = start(&e, &o, &err);
	}
	if (r == 0)
		r = loop_run(e.loop);
	if (r < 0)
		log_error("egress: %s", err.code ? err.message : strerror(-r));
	finish(&e);
	options_done(&o);
	return r < 0 ? 1 : 0;
}
