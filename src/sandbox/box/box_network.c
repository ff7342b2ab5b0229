#include "sandbox/box/box.h"
#include "base/cleanup.h"

#include <errno.h>

/* Has what it needs of the box: that may end meanwhile. */
struct network_job {
	struct box *box; /* NULL: it is gone */
	struct backend *backend;
	box_network_fn *done;
	void *arg;
	struct net_slot slot; /* borrowed */
	bool borrowed;
	struct reach reach;
	int result;
	struct error error;
};

static void give_back(struct network_job *j)
{
	if (j->borrowed)
		network_slot_done(&j->slot);
	j->borrowed = false;
}

static void job_free(struct network_job *j)
{
	give_back(j);
	reach_done(&j->reach);
	free(j);
}

void network_job_leave(struct network_job *j)
{
	j->box = NULL;
}

static void apply_work(void *arg)
{
	struct network_job *j = arg;
	j->result = host_enter(j->backend->host, &j->error);
	if (j->result == 0)
		j->result = network_slot_apply(j->backend->host->network, &j->slot, &j->reach, &j->error);
	give_back(j); /* here: that may wait, when the box is gone already */
}

/* In force: names are answered, or refused, by it too. */
static void take_over(struct box *b, struct reach *r)
{
	struct backend *backend = b->backend;
	reach_done(&b->reach);
	b->reach = *r;
	*r = (struct reach){0};
	if (b->state == BOX_RUNNING)
		backend->config.dns_serve(b->number, b->slot->net.dns_udp, b->slot->net.dns_tcp, b->reach.names, str_of(b->id), backend->config.arg);
}

static void apply_done(void *arg)
{
	struct network_job *j = arg;
	struct backend *backend = j->backend;
	struct box *b = j->box;
	if (b) {
		b->network = NULL;
		if (j->result == 0)
			take_over(b, &j->reach);
		j->done(j->result < 0 ? &j->error : NULL, j->arg);
	}
	job_free(j);
	backend_let_drain(backend);
}

int box_network(struct box *b, const struct box_network *policy, box_network_fn *done, void *arg, struct error *err)
{
	struct backend *backend = b->backend;
	const struct reach_limits limits = network_limits(backend->host->network);
	if (b->state != BOX_RUNNING)
		return error_set(err, -EAGAIN, 409, "the sandbox is not running");
	if (b->network)
		return error_set(err, -EBUSY, 409, "the network policy is being changed already");
	struct network_job *j = calloc(1, sizeof(*j));
	if (!j)
		return error_errno(err, -ENOMEM, "network policy");
	*j = (struct network_job){.box = b, .backend = backend, .done = done, .arg = arg};
	int r = reach_init(&j->reach, &limits, policy->allow_out, policy->deny_out, policy->internet, err);
	if (r == 0 && (r = network_slot_borrow(&b->slot->net, &j->slot)) < 0)
		error_errno(err, r, "network policy");
	if (r == 0) {
		j->borrowed = true;
		backend_hold_drain(backend);
		r = workq_push(backend->workers, backend->loop, apply_work, apply_done, j);
		if (r < 0) {
			backend_let_drain(backend);
			error_set(err, r, 503, "network policy: %s", strerror(-r));
		}
	}
	if (r < 0)
		job_free(j);
	else
		b->network = j;
	return r;
}
