#include "network/policy.h"
#include "network/slot.h"
#include "base/cleanup.h"
#include "sys/nft.h"

#include <netinet/in.h> /* before the kernel's headers, which then leave its part out */
#include <netinet/ip_icmp.h>

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>

#define TABLE "cubicle"

enum { LOOPBACK = 1 }; /* ifindex of lo in every namespace */
enum { SET_ALLOW = 1, SET_DENY, SET_PRIVATE };

static void private_set(struct netlink *n, struct ipv4_range pool)
{
	struct nft_range ranges[NFT_RANGES_MAX];
	size_t count = 0;
	bool covered = false;
	for (size_t i = 0; i < network_private_count; i++) {
		struct ipv4_range p = network_private[i];
		ranges[count++] = (struct nft_range){p.base, ipv4_range_last(p)};
		covered |= ipv4_range_overlap(p, pool);
	}
	if (!covered)
		ranges[count++] = (struct nft_range){pool.base, ipv4_range_last(pool)};
	nft_set(n, TABLE, "private4", SET_PRIVATE);
	nft_set_add(n, TABLE, "private4", SET_PRIVATE, ranges, count);
}

static void verdict_rule(struct nft_rule r, int verdict, const char *chain)
{
	nft_verdict(&r, verdict, chain);
	nft_rule_end(&r);
}

/* Loopback passes; anything but IPv4 does not; nor does any address of ours but the one given (IP_FREEBIND needs no privilege). */
static void common_rules(struct netlink *n, const char *chain, uint32_t interface_key, uint32_t own_offset, uint32_t guest_address)
{
	struct nft_rule r = nft_rule(n, TABLE, chain);
	nft_match_meta(&r, interface_key, true, LOOPBACK, 4);
	verdict_rule(r, NF_ACCEPT, NULL);
	r = nft_rule(n, TABLE, chain);
	nft_match_meta(&r, NFT_META_NFPROTO, false, NFPROTO_IPV4, 1);
	verdict_rule(r, NF_DROP, NULL);
	r = nft_rule(n, TABLE, chain);
	nft_match_payload(&r, NFT_PAYLOAD_NETWORK_HEADER, own_offset, 4, UINT32_MAX, false, guest_address);
	verdict_rule(r, NF_DROP, NULL);
}

static void set_rule(struct netlink *n, const char *chain, uint32_t peer_offset, const char *set, uint32_t id, int verdict, const char *target)
{
	struct nft_rule r = nft_rule(n, TABLE, chain);
	nft_match_set(&r, peer_offset, set, id);
	verdict_rule(r, verdict, target);
}

/* What passes the link `index` by this direction. */
static void link_rule(struct netlink *n, const char *chain, uint32_t interface_key, int index, int verdict, const char *target)
{
	struct nft_rule r = nft_rule(n, TABLE, chain);
	nft_match_meta(&r, interface_key, true, (uint32_t)index, 4);
	verdict_rule(r, verdict, target);
}

static void refuse_destinations(struct netlink *n, const char *chain)
{
	set_rule(n, chain, NFT_IPV4_DESTINATION, "allow4", SET_ALLOW, NF_ACCEPT, NULL);
	set_rule(n, chain, NFT_IPV4_DESTINATION, "deny4", SET_DENY, NFT_GOTO, "refuse");
	set_rule(n, chain, NFT_IPV4_DESTINATION, "private4", SET_PRIVATE, NFT_GOTO, "refuse");
}

static void output_chain(struct netlink *n, uint32_t guest_address, int tap)
{
	nft_chain(n, TABLE, "output", NF_INET_LOCAL_OUT, 0);
	if (tap) /* answers of our DNS, and refusals */
		link_rule(n, "output", NFT_META_OIF, tap, NF_ACCEPT, NULL);
	common_rules(n, "output", NFT_META_OIF, NFT_IPV4_SOURCE, guest_address);
	refuse_destinations(n, "output");
}

static void refuse_chain(struct netlink *n)
{
	nft_chain(n, TABLE, "refuse", -1, 0);
	struct nft_rule r = nft_rule(n, TABLE, "refuse");
	nft_match_meta(&r, NFT_META_L4PROTO, true, IPPROTO_TCP, 1);
	nft_reject_tcp(&r);
	nft_rule_end(&r);
	r = nft_rule(n, TABLE, "refuse");
	nft_reject_icmp(&r, NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
	nft_rule_end(&r);
}

/* Errors about what was sent come from any router on the path, also from one with a private address: path MTU discovery needs them. */
static void accept_icmp(struct netlink *n, const char *chain, unsigned type)
{
	struct nft_rule r = nft_rule(n, TABLE, chain);
	nft_match_meta(&r, NFT_META_L4PROTO, true, IPPROTO_ICMP, 1);
	nft_match_payload(&r, NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, 0xff, true, type);
	verdict_rule(r, NF_ACCEPT, NULL);
}

/* The host lets in only what answers (its chains track connections); this is the second wall: nobody that may not be talked to talks, and no connection begins. */
static void refuse_sources(struct netlink *n, const char *chain)
{
	accept_icmp(n, chain, ICMP_DEST_UNREACH);
	accept_icmp(n, chain, ICMP_TIME_EXCEEDED);
	struct nft_rule r = nft_rule(n, TABLE, chain);
	nft_match_meta(&r, NFT_META_L4PROTO, true, IPPROTO_TCP, 1);
	nft_match_payload(&r, NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, 0x12, true, 0x02); /* SYN without ACK */
	verdict_rule(r, NF_DROP, NULL);
	set_rule(n, chain, NFT_IPV4_SOURCE, "allow4", SET_ALLOW, NF_ACCEPT, NULL);
	set_rule(n, chain, NFT_IPV4_SOURCE, "deny4", SET_DENY, NF_DROP, NULL);
	set_rule(n, chain, NFT_IPV4_SOURCE, "private4", SET_PRIVATE, NF_DROP, NULL);
}

/* A machine may ask our DNS, and nothing else of the namespace. */
static void tap_input(struct netlink *n, int tap)
{
	static const uint8_t protocols[] = {IPPROTO_UDP, IPPROTO_TCP};
	for (size_t i = 0; i < ARRAY_SIZE(protocols); i++) {
		struct nft_rule r = nft_rule(n, TABLE, "input");
		nft_match_meta(&r, NFT_META_IIF, true, (uint32_t)tap, 4);
		nft_match_payload(&r, NFT_PAYLOAD_NETWORK_HEADER, NFT_IPV4_DESTINATION, 4, UINT32_MAX, true, MACHINE_GATEWAY);
		nft_match_meta(&r, NFT_META_L4PROTO, true, protocols[i], 1);
		nft_match_payload(&r, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, 0xffff, true, 53);
		verdict_rule(r, NF_ACCEPT, NULL);
	}
	link_rule(n, "input", NFT_META_IIF, tap, NF_DROP, NULL);
}

static void input_chain(struct netlink *n, uint32_t guest_address, int tap)
{
	nft_chain(n, TABLE, "input", NF_INET_LOCAL_IN, 0);
	if (tap)
		tap_input(n, tap);
	common_rules(n, "input", NFT_META_IIF, NFT_IPV4_DESTINATION, guest_address);
	refuse_sources(n, "input");
}

static void drop_unless_address(struct netlink *n, const char *chain, uint32_t offset, uint32_t address)
{
	struct nft_rule r = nft_rule(n, TABLE, chain);
	nft_match_payload(&r, NFT_PAYLOAD_NETWORK_HEADER, offset, 4, UINT32_MAX, false, address);
	verdict_rule(r, NF_DROP, NULL);
}

/* What a machine sends and gets: judged like what a process in the namespace sends and gets, by addresses as they are before translation on the way out, and after it on the way in. */
static void forward_chain(struct netlink *n, int tap)
{
	nft_chain(n, TABLE, "outward", -1, 0);
	link_rule(n, "outward", NFT_META_OIF, tap, NF_DROP, NULL);
	drop_unless_address(n, "outward", NFT_IPV4_SOURCE, MACHINE_ADDRESS);
	refuse_destinations(n, "outward");
	nft_chain(n, TABLE, "inward", -1, 0);
	drop_unless_address(n, "inward", NFT_IPV4_DESTINATION, MACHINE_ADDRESS);
	refuse_sources(n, "inward");
	nft_chain(n, TABLE, "forward", NF_INET_FORWARD, 0);
	struct nft_rule r = nft_rule(n, TABLE, "forward");
	nft_match_meta(&r, NFT_META_NFPROTO, false, NFPROTO_IPV4, 1);
	verdict_rule(r, NF_DROP, NULL);
	link_rule(n, "forward", NFT_META_IIF, tap, NFT_GOTO, "outward");
	link_rule(n, "forward", NFT_META_OIF, tap, NFT_GOTO, "inward");
	r = nft_rule(n, TABLE, "forward");
	verdict_rule(r, NF_DROP, NULL);
}

/* Under the slot's address, by which the host knows it. */
static void translate(struct netlink *n)
{
	nft_nat_chain(n, TABLE, "translate", NF_INET_POST_ROUTING, 100);
	struct nft_rule r = nft_rule(n, TABLE, "translate");
	nft_match_meta(&r, NFT_META_NFPROTO, true, NFPROTO_IPV4, 1);
	nft_match_payload(&r, NFT_PAYLOAD_NETWORK_HEADER, NFT_IPV4_SOURCE, 4, UINT32_MAX, true, MACHINE_ADDRESS);
	nft_masquerade(&r);
	nft_rule_end(&r);
}

int policy_install(struct mnl_socket *filter, struct ipv4_range pool, uint32_t guest_address, int tap, struct error *err)
{
	struct netlink n = NETLINK_INIT;
	netlink_use(&n, filter);
	nft_begin(&n);
	nft_table(&n, TABLE);
	nft_set(&n, TABLE, "allow4", SET_ALLOW);
	nft_set(&n, TABLE, "deny4", SET_DENY);
	private_set(&n, pool);
	refuse_chain(&n);
	output_chain(&n, guest_address, tap);
	input_chain(&n, guest_address, tap);
	if (tap) {
		forward_chain(&n, tap);
		translate(&n);
	}
	return nft_commit(&n, err);
}

int policy_apply(struct mnl_socket *filter, const struct reach *what, struct error *err)
{
	struct netlink n = NETLINK_INIT;
	netlink_use(&n, filter);
	nft_begin(&n);
	nft_set_flush(&n, TABLE, "allow4");
	nft_set_flush(&n, TABLE, "deny4");
	nft_set_add(&n, TABLE, "allow4", 0, what->allow.list, what->allow.n);
	nft_set_add(&n, TABLE, "deny4", 0, what->deny.list, what->deny.n);
	return nft_commit(&n, err);
}
