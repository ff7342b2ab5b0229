/*
 * nftables transactions over netlink (no nft process): the few objects and expressions that a sandbox's own policy needs.
 * A transaction: nft_begin, any of the rest, nft_commit. Names are static text of at most 31 bytes.
 * Closing a socket after a transaction waits until all CPUs have left what it replaced (some ms, more under load): whoever is waited for keeps his open.
 */
#ifndef CUBICLE_SYS_NFT_H
#define CUBICLE_SYS_NFT_H

#include "sys/netlink.h"

/* IPv4 addresses first..last, both included, host byte order. */
struct nft_range {
	uint32_t first, last;
};

/* `n` is open on NETLINK_NETFILTER, in the namespace meant, with an empty batch. */
void nft_begin(struct netlink *n);
int nft_commit(struct netlink *n, struct error *err);

/* An inet table. */
void nft_table(struct netlink *n, const char *table);
/* Whether the inet table is there: 1, 0 or -errno. A call of its own, outside of a transaction. */
int nft_table_exists(struct netlink *n, const char *table);
/* A base chain at a netfilter hook (NF_INET_LOCAL_OUT ...) with policy accept; hook < 0: a chain to jump to. */
void nft_chain(struct netlink *n, const char *table, const char *chain, int hook, int priority);
/* A chain of type nat, likewise. */
void nft_nat_chain(struct netlink *n, const char *table, const char *chain, int hook, int priority);
/* A named set of IPv4 ranges; `id` is unique in the transaction. */
void nft_set(struct netlink *n, const char *table, const char *set, uint32_t id);
/* Adds ranges, which must not overlap each other: one message for each NFT_RANGES_MAX of them. id 0: a set made by an earlier transaction. */
enum { NFT_RANGES_MAX = 64 };
void nft_set_add(struct netlink *n, const char *table, const char *set, uint32_t id, const struct nft_range *ranges, size_t count);
/* Takes all its elements away. */
void nft_set_flush(struct netlink *n, const char *table, const char *set);
/* The same for a set of pairs (a source address, a range of destinations; `type ipv4_addr . ipv4_addr`, `flags interval`): adds, or removes what is there. */
void nft_pairs_add(struct netlink *n, const char *table, const char *set, uint32_t source, const struct nft_range *ranges, size_t count);
void nft_pairs_remove(struct netlink *n, const char *table, const char *set, uint32_t source, const struct nft_range *ranges, size_t count);

/* A rule at the end of the chain: nft_rule, matches, one verdict, nft_rule_end. */
struct nft_rule {
	struct netlink *n;
	struct nlmsghdr *m;
	struct nlattr *expressions;
};
struct nft_rule nft_rule(struct netlink *n, const char *table, const char *chain);
void nft_rule_end(struct nft_rule *r);
/* meta key (NFT_META_...) equal or not to a value in host order of 1 or 4 bytes. */
void nft_match_meta(struct nft_rule *r, uint32_t key, bool equal, uint32_t value, unsigned bytes);
/* Bytes of a header (NFT_PAYLOAD_...) masked, then equal or not to a value; at most 4 bytes, value and mask in host order. */
void nft_match_payload(struct nft_rule *r, uint32_t base, uint32_t offset, unsigned bytes, uint32_t mask, bool equal, uint32_t value);
/* The IPv4 address at this offset of the network header is in the set. */
void nft_match_set(struct nft_rule *r, uint32_t offset, const char *set, uint32_t id);
enum { NFT_IPV4_SOURCE = 12, NFT_IPV4_DESTINATION = 16 };
/* verdict: NF_ACCEPT, NF_DROP, or NFT_GOTO with a chain. */
void nft_verdict(struct nft_rule *r, int verdict, const char *chain);
/* The source becomes the address of the link that the packet leaves by (a chain of type nat at NF_INET_POST_ROUTING). */
void nft_masquerade(struct nft_rule *r);
/* TCP reset, or ICMP with the code (NFT_REJECT_ICMPX_...). */
void nft_reject_tcp(struct nft_rule *r);
void nft_reject_icmp(struct nft_rule *r, uint8_t code);

#endif
