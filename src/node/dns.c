#include "base/cleanup.h"
#include "base/log.h"
#include "node/service.h"

/* The DNS sockets of all slots: a new egress gets them again. The descriptors belong to the backend until it says stop. */

struct dns_slot {
	unsigned slot;
	int udp, tcp;
	bool allow;
	char sandbox[SANDBOX_ID + 1];
};

static void tell_serve(struct peer *p, const struct dns_slot *d)
{
	struct error err = {0};
	int fds[2] = {d->udp, d->tcp};
	struct msg_dns_serve m = {.slot = d->slot, .allow = d->allow};
	if (p->chan && chan_send(p->chan, MSG_ID_dns_serve, &m, 0, fds, 2, &err) < 0)
		log_error("dns of slot %u: %s", d->slot, err.message);
}

static void tell_policy(struct peer *p, const struct dns_slot *d)
{
	struct msg_dns_policy m = {.slot = d->slot, .allow = d->allow};
	if (*d->sandbox)
		msg_set(&m, dns_policy, sandbox, str_of(d->sandbox));
	if (p->chan)
		chan_send(p->chan, MSG_ID_dns_policy, &m, 0, NULL, 0, NULL);
}

void node_dns_serve(unsigned slot, int udp, int tcp, bool allow, struct str sandbox, void *arg)
{
	struct node *n = arg;
	struct dns_slot *d = map_get(&n->dns, MAP_KEY(slot));
	/* The same sockets again: only the policy or the name is new (a slot was claimed). */
	bool known = d && d->udp == udp && d->tcp == tcp;
	if (!d) {
		d = calloc(1, sizeof(*d));
		if (!d || map_put(&n->dns, MAP_KEY(slot), d, NULL) < 0) {
			free(d);
			log_error("dns of slot %u: no memory", slot);
			return;
		}
	}
	*d = (struct dns_slot){.slot = slot, .udp = udp, .tcp = tcp, .allow = allow};
	sandbox_copy(d->sandbox, sizeof(d->sandbox), sandbox);
	if (!n->egress)
		return;
	if (!known)
		tell_serve(n->egress, d);
	if (known || *d->sandbox)
		tell_policy(n->egress, d);
}

void node_dns_stop(unsigned slot, void *arg)
{
	struct node *n = arg;
	struct dns_slot *d = map_del(&n->dns, MAP_KEY(slot));
	struct msg_dns_stop m = {.slot = slot};
	if (d && n->egress && n->egress->chan)
		chan_send(n->egress->chan, MSG_ID_dns_stop, &m, 0, NULL, 0, NULL);
	free(d);
}

void node_dns_resend(struct node *n)
{
	map_foreach(&n->dns, s)
	{
		tell_serve(n->egress, s->value);
		tell_policy(n->egress, s->value);
	}
}

void node_dns_free(struct node *n)
{
	map_foreach(&n->dns, s) free(s->value);
	map_done(&n->dns);
}
