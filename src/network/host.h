/* The host's side of the sandboxes' network: what its networks use already, the claim on a range, the static chains, forwarding. */
#ifndef CUBICLE_NETWORK_HOST_H
#define CUBICLE_NETWORK_HOST_H

#include "base/buf.h"
#include "config/instance.h"
#include "network/pool.h"

/* What the routing tables say. */
struct host_survey {
	struct ipv4_range *used; /* owned: routes and addresses that are not ours */
	size_t count, room;
	unsigned links;          /* of our group */
	bool claimed;            /* our claim from an earlier run is there: */
	struct ipv4_range claim;
	unsigned uplink;         /* interface of the default route, 0 = none */
};

int host_survey(const struct instance *i, struct host_survey *ret, struct error *err);
void host_survey_done(struct host_survey *s);

/* Held while a range is chosen and claimed, so that two servers that start at once choose different ones: a descriptor to close, or -errno. */
int host_lock(struct error *err);
/* The claim is a route of type unreachable for the whole range; more specific routes of the links win over it. */
int host_claim(const struct instance *i, struct ipv4_range pool, bool on, struct error *err);

/* Replaces our table by the static chains in one transaction; `opened`: elements of the set of that name (source . destinations), may be empty. *notes gets a line for each protection this kernel cannot give. */
int host_chains_install(const struct instance *i, struct ipv4_range pool, struct str opened, struct buf *notes, struct error *err);
void host_chains_remove(const struct instance *i);
/* A firewall made with iptables (Docker, ufw) may drop what it forwards unless told: tells it, or takes that back. */
int host_iptables(const struct instance *i, bool on, struct buf *notes, struct error *err);
/* net.ipv4.ip_forward: 1 = was off and is on now, 0 = was on, or -errno. */
int host_forwarding_on(struct error *err);

#endif
