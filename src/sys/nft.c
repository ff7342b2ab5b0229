#include "sys/nft.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>

/* Data type numbers that `nft list` shows sets by; the kernel only keeps them. */
enum { TYPE_IPADDR = 7 };

static struct nlmsghdr *add(struct netlink *n, unsigned type, unsigned family, unsigned resource, unsigned flags, const char *what)
{
	struct nlmsghdr *m = netlink_add(n, type, flags, what);
	struct nfgenmsg *g = mnl_nlmsg_put_extra_header(m, sizeof(*g));
	g->nfgen_family = (uint8_t)family;
	g->version = NFNETLINK_V0;
	g->res_id = htons((uint16_t)resource);
	return m;
}

static struct nlmsghdr *add_nft(struct netlink *n, unsigned type, unsigned flags, const char *what)
{
	return add(n, NFNL_SUBSYS_NFTABLES << 8 | type, NFPROTO_INET, 0, flags, what);
}

void nft_begin(struct netlink *n)
{
	add(n, NFNL_MSG_BATCH_BEGIN, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, NETLINK_NO_ACK, "nftables");
}

int nft_commit(struct netlink *n, struct error *err)
{
	add(n, NFNL_MSG_BATCH_END, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, NETLINK_NO_ACK, "nftables");
	return netlink_run(n, err);
}

void nft_table(struct netlink *n, const char *table)
{
	mnl_attr_put_strz(add_nft(n, NFT_MSG_NEWTABLE, NLM_F_CREATE, "nftables table"), NFTA_TABLE_NAME, table);
}

static int seen(const struct nlmsghdr *m, void *arg)
{
	return 0;
}

int nft_table_exists(struct netlink *n, const char *table)
{
	mnl_attr_put_strz(add_nft(n, NFT_MSG_GETTABLE, 0, "nftables table"), NFTA_TABLE_NAME, table);
	int r = netlink_ask(n, seen, NULL, NULL);
	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

static void add_chain(struct netlink *n, const char *table, const char *chain, const char *type, int hook, int priority)
{
	struct nlmsghdr *m = add_nft(n, NFT_MSG_NEWCHAIN, NLM_F_CREATE, "nftables chain");
	mnl_attr_put_strz(m, NFTA_CHAIN_TABLE, table);
	mnl_attr_put_strz(m, NFTA_CHAIN_NAME, chain);
	if (hook < 0)
		return;
	struct nlattr *nest = mnl_attr_nest_start(m, NFTA_CHAIN_HOOK);
	mnl_attr_put_u32(m, NFTA_HOOK_HOOKNUM, htonl((uint32_t)hook));
	mnl_attr_put_u32(m, NFTA_HOOK_PRIORITY, htonl((uint32_t)priority));
	mnl_attr_nest_end(m, nest);
	mnl_attr_put_u32(m, NFTA_CHAIN_POLICY, htonl(NF_ACCEPT));
	mnl_attr_put_strz(m, NFTA_CHAIN_TYPE, type);
}

void nft_chain(struct netlink *n, const char *table, const char *chain, int hook, int priority)
{
	add_chain(n, table, chain, "filter", hook, priority);
}

void nft_nat_chain(struct netlink *n, const char *table, const char *chain, int hook, int priority)
{
	add_chain(n, table, chain, "nat", hook, priority);
}

void nft_set(struct netlink *n, const char *table, const char *set, uint32_t id)
{
	struct nlmsghdr *m = add_nft(n, NFT_MSG_NEWSET, NLM_F_CREATE, "nftables set");
	mnl_attr_put_strz(m, NFTA_SET_TABLE, table);
	mnl_attr_put_strz(m, NFTA_SET_NAME, set);
	mnl_attr_put_u32(m, NFTA_SET_FLAGS, htonl(NFT_SET_INTERVAL));
	mnl_attr_put_u32(m, NFTA_SET_KEY_TYPE, htonl(TYPE_IPADDR));
	mnl_attr_put_u32(m, NFTA_SET_KEY_LEN, htonl(4));
	mnl_attr_put_u32(m, NFTA_SET_ID, htonl(id));
}

static void put_element(struct nlmsghdr *m, uint32_t address, bool end)
{
	struct nlattr *element = mnl_attr_nest_start(m, NFTA_LIST_ELEM);
	if (end)
		mnl_attr_put_u32(m, NFTA_SET_ELEM_FLAGS, htonl(NFT_SET_ELEM_INTERVAL_END));
	struct nlattr *key = mnl_attr_nest_start(m, NFTA_SET_ELEM_KEY);
	mnl_attr_put_u32(m, NFTA_DATA_VALUE, htonl(address));
	mnl_attr_nest_end(m, key);
	mnl_attr_nest_end(m, element);
}

/* A message about elements of a set; *ret_list is the nest they go into. */
static struct nlmsghdr *begin_elements(struct netlink *n, unsigned type, const char *table, const char *set, uint32_t id, struct nlattr **ret_list)
{
	struct nlmsghdr *m = add_nft(n, type, type == NFT_MSG_NEWSETELEM ? NLM_F_CREATE : 0, "nftables elements");
	mnl_attr_put_strz(m, NFTA_SET_ELEM_LIST_TABLE, table);
	mnl_attr_put_strz(m, NFTA_SET_ELEM_LIST_SET, set);
	if (id)
		mnl_attr_put_u32(m, NFTA_SET_ELEM_LIST_SET_ID, htonl(id));
	*ret_list = mnl_attr_nest_start(m, NFTA_SET_ELEM_LIST_ELEMENTS);
	return m;
}

void nft_set_add(struct netlink *n, const char *table, const char *set, uint32_t id, const struct nft_range *ranges, size_t count)
{
	for (size_t i = 0; i < count;) {
		struct nlattr *list;
		struct nlmsghdr *m = begin_elements(n, NFT_MSG_NEWSETELEM, table, set, id, &list);
		for (size_t end = i + NFT_RANGES_MAX; i < count && i < end; i++) {
			put_element(m, ranges[i].first, false);
			/* A range that runs to the last address is open: there is no address one past it. */
			if (ranges[i].last != UINT32_MAX)
				put_element(m, ranges[i].last + 1, true);
		}
		mnl_attr_nest_end(m, list);
	}
}

void nft_set_flush(struct netlink *n, const char *table, const char *set)
{
	struct nlmsghdr *m = add_nft(n, NFT_MSG_DELSETELEM, 0, "flushing a set");
	mnl_attr_put_strz(m, NFTA_SET_ELEM_LIST_TABLE, table);
	mnl_attr_put_strz(m, NFTA_SET_ELEM_LIST_SET, set);
}

static void put_pair(struct nlmsghdr *m, uint16_t type, uint32_t source, uint32_t destination)
{
	const uint32_t words[] = {htonl(source), htonl(destination)};
	struct nlattr *key = mnl_attr_nest_start(m, type);
	mnl_attr_put(m, NFTA_DATA_VALUE, sizeof(words), words);
	mnl_attr_nest_end(m, key);
}

static void pairs(struct netlink *n, unsigned type, const char *table, const char *set, uint32_t source, const struct nft_range *ranges, size_t count)
{
	for (size_t i = 0; i < count;) {
		struct nlattr *list;
		struct nlmsghdr *m = begin_elements(n, type, table, set, 0, &list);
		for (size_t end = i + NFT_RANGES_MAX; i < count && i < end; i++) {
			struct nlattr *element = mnl_attr_nest_start(m, NFTA_LIST_ELEM);
			put_pair(m, NFTA_SET_ELEM_KEY, source, ranges[i].first);
			put_pair(m, NFTA_SET_ELEM_KEY_END, source, ranges[i].last);
			mnl_attr_nest_end(m, element);
		}
		mnl_attr_nest_end(m, list);
	}
}

void nft_pairs_add(struct netlink *n, const char *table, const char *set, uint32_t source, const struct nft_range *ranges, size_t count)
{
	pairs(n, NFT_MSG_NEWSETELEM, table, set, source, ranges, count);
}

void nft_pairs_remove(struct netlink *n, const char *table, const char *set, uint32_t source, const struct nft_range *ranges, size_t count)
{
	pairs(n, NFT_MSG_DELSETELEM, table, set, source, ranges, count);
}

struct nft_rule nft_rule(struct netlink *n, const char *table, const char *chain)
{
	struct nlmsghdr *m = add_nft(n, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, "nftables rule");
	mnl_attr_put_strz(m, NFTA_RULE_TABLE, table);
	mnl_attr_put_strz(m, NFTA_RULE_CHAIN, chain);
	return (struct nft_rule){n, m, mnl_attr_nest_start(m, NFTA_RULE_EXPRESSIONS)};
}

void nft_rule_end(struct nft_rule *r)
{
	mnl_attr_nest_end(r->m, r->expressions);
}

struct expression {
	struct nlattr *element, *data;
};

static struct expression begin(struct nft_rule *r, const char *name)
{
	struct expression e = {.element = mnl_attr_nest_start(r->m, NFTA_LIST_ELEM)};
	mnl_attr_put_strz(r->m, NFTA_EXPR_NAME, name);
	e.data = mnl_attr_nest_start(r->m, NFTA_EXPR_DATA);
	return e;
}

static void end(struct nft_rule *r, struct expression e)
{
	mnl_attr_nest_end(r->m, e.data);
	mnl_attr_nest_end(r->m, e.element);
}

static void put_data(struct nft_rule *r, uint16_t type, const void *p, size_t bytes)
{
	struct nlattr *nest = mnl_attr_nest_start(r->m, type);
	mnl_attr_put(r->m, NFTA_DATA_VALUE, bytes, p);
	mnl_attr_nest_end(r->m, nest);
}

static void compare(struct nft_rule *r, bool equal, const void *p, size_t bytes)
{
	struct expression e = begin(r, "cmp");
	mnl_attr_put_u32(r->m, NFTA_CMP_SREG, htonl(NFT_REG32_00));
	mnl_attr_put_u32(r->m, NFTA_CMP_OP, htonl(equal ? NFT_CMP_EQ : NFT_CMP_NEQ));
	put_data(r, NFTA_CMP_DATA, p, bytes);
	end(r, e);
}

void nft_match_meta(struct nft_rule *r, uint32_t key, bool equal, uint32_t value, unsigned bytes)
{
	assert(bytes == 1 || bytes == 4);
	struct expression e = begin(r, "meta");
	mnl_attr_put_u32(r->m, NFTA_META_DREG, htonl(NFT_REG32_00));
	mnl_attr_put_u32(r->m, NFTA_META_KEY, htonl(key));
	end(r, e);
	uint8_t small = (uint8_t)value;
	compare(r, equal, bytes == 1 ? (const void *)&small : &value, bytes);
}

static void load_payload(struct nft_rule *r, uint32_t base, uint32_t offset, unsigned bytes)
{
	struct expression e = begin(r, "payload");
	mnl_attr_put_u32(r->m, NFTA_PAYLOAD_DREG, htonl(NFT_REG32_00));
	mnl_attr_put_u32(r->m, NFTA_PAYLOAD_BASE, htonl(base));
	mnl_attr_put_u32(r->m, NFTA_PAYLOAD_OFFSET, htonl(offset));
	mnl_attr_put_u32(r->m, NFTA_PAYLOAD_LEN, htonl(bytes));
	end(r, e);
}

void nft_match_payload(struct nft_rule *r, uint32_t base, uint32_t offset, unsigned bytes, uint32_t mask, bool equal, uint32_t value)
{
	assert(bytes >= 1 && bytes <= 4);
	uint32_t wire_mask = htonl(mask << 8 * (4 - bytes)), wire_value = htonl(value << 8 * (4 - bytes)), zero = 0;
	load_payload(r, base, offset, bytes);
	struct expression e = begin(r, "bitwise");
	mnl_attr_put_u32(r->m, NFTA_BITWISE_SREG, htonl(NFT_REG32_00));
	mnl_attr_put_u32(r->m, NFTA_BITWISE_DREG, htonl(NFT_REG32_00));
	mnl_attr_put_u32(r->m, NFTA_BITWISE_LEN, htonl(bytes));
	put_data(r, NFTA_BITWISE_MASK, &wire_mask, bytes);
	put_data(r, NFTA_BITWISE_XOR, &zero, bytes);
	end(r, e);
	compare(r, equal, &wire_value, bytes);
}

void nft_match_set(struct nft_rule *r, uint32_t offset, const char *set, uint32_t id)
{
	load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offset, 4);
	struct expression e = begin(r, "lookup");
	mnl_attr_put_strz(r->m, NFTA_LOOKUP_SET, set);
	mnl_attr_put_u32(r->m, NFTA_LOOKUP_SET_ID, htonl(id));
	mnl_attr_put_u32(r->m, NFTA_LOOKUP_SREG, htonl(NFT_REG32_00));
	end(r, e);
}

void nft_verdict(struct nft_rule *r, int verdict, const char *chain)
{
	struct expression e = begin(r, "immediate");
	mnl_attr_put_u32(r->m, NFTA_IMMEDIATE_DREG, htonl(NFT_REG_VERDICT));
	struct nlattr *data = mnl_attr_nest_start(r->m, NFTA_IMMEDIATE_DATA);
	struct nlattr *nest = mnl_attr_nest_start(r->m, NFTA_DATA_VERDICT);
	mnl_attr_put_u32(r->m, NFTA_VERDICT_CODE, htonl((uint32_t)verdict));
	if (chain)
		mnl_attr_put_strz(r->m, NFTA_VERDICT_CHAIN, chain);
	mnl_attr_nest_end(r->m, nest);
	mnl_attr_nest_end(r->m, data);
	end(r, e);
}

void nft_masquerade(struct nft_rule *r)
{
	struct expression e = begin(r, "masq");
	end(r, e);
}

static void reject(struct nft_rule *r, uint32_t type, uint8_t code)
{
	struct expression e = begin(r, "reject");
	mnl_attr_put_u32(r->m, NFTA_REJECT_TYPE, htonl(type));
	mnl_attr_put_u8(r->m, NFTA_REJECT_ICMP_CODE, code);
	end(r, e);
}

void nft_reject_tcp(struct nft_rule *r)
{
	reject(r, NFT_REJECT_TCP_RST, 0);
}

void nft_reject_icmp(struct nft_rule *r, uint8_t code)
{
	reject(r, NFT_REJECT_ICMPX_UNREACH, code);
}
