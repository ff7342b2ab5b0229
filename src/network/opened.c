/* Which private addresses the host's chains let single sandboxes reach, beside the rest of what they drop. Kept here too, for when the chains must be made anew. */
#include "network/network.h"
#include "base/cleanup.h"
#include "network/host.h"
#include "sys/nft.h"

#include <stdlib.h>

void opened_free(struct network *n)
{
	map_foreach(&n->opened, s)
	{
		struct reach_ranges *r = s->value;
		free(r->list);
		free(r);
	}
	map_done(&n->opened);
	if (n->filter)
		mnl_socket_close(n->filter);
}

/* As elements of the set `opened`, for nft. */
static int write_elements(const struct network *n, struct buf *to)
{
	map_foreach(&n->opened, s)
	{
		const struct reach_ranges *r = s->value;
		unsigned number;
		char source[IPV4_TEXT], first[IPV4_TEXT], last[IPV4_TEXT];
		memcpy(&number, s->key, sizeof(number));
		ipv4_format(source, network_guest_address(n, number));
		for (size_t i = 0; i < r->n; i++)
			buf_addf(to, "%s%s . %s-%s", buf_len(to) ? ", " : "", source, ipv4_format(first, r->list[i].first), ipv4_format(last, r->list[i].last));
	}
	return to->failed ? -ENOMEM : 0;
}

static int install(struct network *n, struct buf *notes, struct error *err)
{
	cleanup_buf struct buf elements = BUF_INIT;
	int r = write_elements(n, &elements);
	return r < 0 ? error_errno(err, r, "nftables") : host_chains_install(&n->instance, n->pool, buf_str(&elements), notes, err);
}

int network_install_chains(struct network *n, struct buf *notes, struct error *err)
{
	pthread_mutex_lock(&n->chains);
	int r = install(n, notes, err);
	pthread_mutex_unlock(&n->chains);
	return r;
}

static struct reach_ranges *copy_of(const struct reach_ranges *r)
{
	struct reach_ranges *copy = calloc(1, sizeof(*copy));
	if (!copy)
		return NULL;
	copy->list = reallocarray(NULL, r->n, sizeof(*r->list));
	if (!copy->list) {
		free(copy);
		return NULL;
	}
	memcpy(copy->list, r->list, r->n * sizeof(*r->list));
	copy->n = copy->room = r->n;
	return copy;
}

static int change(struct network *n, uint32_t source, const struct reach_ranges *old, const struct reach_ranges *new, struct error *err)
{
	struct netlink nl = NETLINK_INIT;
	int r = n->filter ? 0 : netlink_open(&nl, NETLINK_NETFILTER);
	if (r < 0)
		return error_errno(err, r, "nftables");
	n->filter = n->filter ? n->filter : nl.socket;
	netlink_use(&nl, n->filter);
	nft_begin(&nl);
	if (old)
		nft_pairs_remove(&nl, n->instance.table, "opened", source, old->list, old->n);
	nft_pairs_add(&nl, n->instance.table, "opened", source, new->list, new->n);
	return nft_commit(&nl, err);
}

static int replace(struct network *n, unsigned number, const struct reach_ranges *new, struct error *err)
{
	static const struct reach_ranges none;
	struct reach_ranges *old = map_get(&n->opened, MAP_KEY(number)), *copy = NULL;
	if (reach_ranges_eq(old ? old : &none, new))
		return 0;
	if (new->n && (!(copy = copy_of(new)) || map_put(&n->opened, MAP_KEY(number), copy, NULL) < 0)) {
		if (copy)
			free(copy->list);
		free(copy);
		return error_errno(err, -ENOMEM, "network policy");
	}
	if (!new->n)
		map_del(&n->opened, MAP_KEY(number));
	/* Somebody may just have flushed the chains, or written to the set: all is made anew then, from what is known here. */
	int r = change(n, network_guest_address(n, number), old, new, NULL);
	if (r < 0)
		r = install(n, &n->notes, err);
	if (old)
		free(old->list);
	free(old);
	return r;
}

int network_open_ranges(struct network *n, unsigned number, const struct reach_ranges *ranges, struct error *err)
{
	pthread_mutex_lock(&n->chains);
	int r = replace(n, number, ranges, err);
	pthread_mutex_unlock(&n->chains);
	return r;
}
