#include "network/reach.h"
#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

/* Texts */

/* Digits of a prefix length, without leading zeros. */
static bool parse_bits(struct str text, unsigned most, unsigned *ret)
{
	uint64_t n;
	if (text.n > 3 || (text.n > 1 && text.p[0] == '0') || str_to_u64(text, &n) < 0 || n > most)
		return false;
	*ret = (unsigned)n;
	return true;
}

static bool parse_address(int family, struct str text, void *to)
{
	char copy[INET6_ADDRSTRLEN];
	if (!text.n || text.n >= sizeof(copy) || memchr(text.p, 0, text.n))
		return false;
	memcpy(copy, text.p, text.n);
	copy[text.n] = 0;
	return inet_pton(family, copy, to) == 1;
}

static bool parse_ipv6(struct str address, struct str bits, bool has_bits)
{
	struct in6_addr a;
	unsigned n;
	return parse_address(AF_INET6, address, &a) && (!has_bits || parse_bits(bits, 128, &n));
}

static bool is_letter_or_digit(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_label(struct str s)
{
	if (!s.n || s.n > 63 || s.p[0] == '-' || s.p[s.n - 1] == '-')
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (!is_letter_or_digit(s.p[i]) && s.p[i] != '-' && s.p[i] != '_')
			return false;
	return true;
}

/* At least two labels, the last of which is no number: 999.1.1.1 is a wrong address, no name. */
static bool is_name(struct str s)
{
	struct str label, tail;
	unsigned labels = 1;
	if (str_starts(s, STR("*.")))
		s = str_from(s, 2);
	if (str_ends(s, STR(".")))
		s.n--;
	for (; str_cut(s, '.', &label, &tail); s = tail, labels++)
		if (!is_label(label))
			return false;
	for (size_t i = 0; labels > 1 && is_label(s) && i < s.n; i++)
		if (s.p[i] < '0' || s.p[i] > '9')
			return true;
	return false;
}

enum reach_kind reach_parse(struct str text, struct ipv4_range *ret)
{
	struct str address = text, bits = {0};
	struct in_addr a;
	unsigned n = 32;
	if (text.n > REACH_TEXT_MAX)
		return REACH_BAD;
	bool has_bits = str_cut(text, '/', &address, &bits);
	if (parse_address(AF_INET, address, &a)) {
		if (has_bits && !parse_bits(bits, 32, &n))
			return REACH_BAD;
		*ret = (struct ipv4_range){n ? ntohl(a.s_addr) & (UINT32_MAX << (32 - n)) : 0, n};
		return REACH_IPV4;
	}
	if (parse_ipv6(address, bits, has_bits))
		return REACH_IPV6;
	return !has_bits && is_name(text) ? REACH_NAME : REACH_BAD;
}

static bool within(struct ipv4_range inner, struct ipv4_range outer)
{
	return inner.bits >= outer.bits && ipv4_range_overlap(inner, outer);
}

/* The private range that it is part of, or NULL. */
static const struct ipv4_range *private_of(struct ipv4_range r)
{
	for (size_t i = 0; i < network_private_count; i++)
		if (within(r, network_private[i]))
			return &network_private[i];
	return NULL;
}

int reach_parse_private(const char *text, struct ipv4_range *ret, struct error *err)
{
	/* This host, its loopback, multicast: nobody is there that a sandbox could talk to by its link. */
	static const struct ipv4_range never[] = {{0, 8}, {0x7f000000, 8}, {0xe0000000, 3}};
	struct str rest = str_trim(str_of(text));
	int n = 0;
	while (rest.n) {
		struct str item = rest, tail = {0};
		struct ipv4_range r;
		if (str_cut(rest, ',', &item, &tail))
			rest = tail;
		else
			rest = (struct str){0};
		item = str_trim(item);
		bool good = reach_parse(item, &r) == REACH_IPV4 && private_of(r);
		for (size_t i = 0; good && i < ARRAY_SIZE(never); i++)
			good = !within(r, never[i]);
		if (!good)
			return error_set(err, -EINVAL, 400, "'%.*s' is no part of a private IPv4 range", STR_FMT(item));
		if (n == PRIVATE_MAX)
			return error_set(err, -EINVAL, 400, "more than %d ranges", PRIVATE_MAX);
		ret[n++] = r;
	}
	return n;
}

/* Sets of addresses */

static int add(struct reach_ranges *r, uint32_t first, uint32_t last)
{
	if (r->n == r->room) {
		size_t room = r->room ? r->room * 2 : 16;
		struct nft_range *list = reallocarray(r->list, room, sizeof(*list));
		if (!list)
			return -ENOMEM;
		r->list = list;
		r->room = room;
	}
	r->list[r->n++] = (struct nft_range){first, last};
	return 0;
}

static int add_range(struct reach_ranges *r, struct ipv4_range a)
{
	return add(r, a.base, ipv4_range_last(a));
}

static int by_first(const void *a, const void *b)
{
	const struct nft_range *x = a, *y = b;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorts, and joins what overlaps or touches. */
static void settle(struct reach_ranges *r)
{
	size_t n = 0;
	if (!r->n)
		return;
	qsort(r->list, r->n, sizeof(r->list[0]), by_first);
	for (size_t i = 1; i < r->n; i++) {
		struct nft_range *at = &r->list[n], next = r->list[i];
		if (at->last == UINT32_MAX || next.first <= at->last + 1)
			at->last = MAX(at->last, next.last);
		else
			r->list[++n] = next;
	}
	r->n = n + 1;
}

/* *to = a without b; both settled. */
static int subtract(struct reach_ranges *to, const struct reach_ranges *a, const struct reach_ranges *b)
{
	size_t k = 0;
	for (size_t i = 0; i < a->n; i++) {
		uint32_t first = a->list[i].first, last = a->list[i].last;
		bool left = true;
		while (k < b->n && b->list[k].last < first)
			k++;
		for (size_t j = k; left && j < b->n && b->list[j].first <= last; j++) {
			if (b->list[j].first > first && add(to, first, b->list[j].first - 1) < 0)
				return -ENOMEM;
			left = b->list[j].last < last;
			if (left)
				first = b->list[j].last + 1;
		}
		if (left && add(to, first, last) < 0)
			return -ENOMEM;
	}
	return 0;
}

static bool covers_all(const struct reach_ranges *r)
{
	return r->n == 1 && r->list[0].first == 0 && r->list[0].last == UINT32_MAX;
}

bool reach_ranges_hold(const struct reach_ranges *r, uint32_t address)
{
	size_t low = 0, high = r->n;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		if (r->list[mid].last < address)
			low = mid + 1;
		else
			high = mid;
	}
	return low < r->n && r->list[low].first <= address;
}

bool reach_ranges_eq(const struct reach_ranges *a, const struct reach_ranges *b)
{
	return a->n == b->n && (!a->n || memcmp(a->list, b->list, a->n * sizeof(a->list[0])) == 0);
}

static void free_ranges(struct reach_ranges *r)
{
	free(r->list);
	*r = (struct reach_ranges){0};
}
#define cleanup_ranges __attribute__((__cleanup__(free_ranges)))

/* Lists */

static int bad_entry(struct error *err, const char *list, struct str entry, const char *what)
{
	return error_set(err, -EINVAL, 400, "%s: invalid %s %.*s", list, what, STR_FMT(entry));
}

/* An address of a private range: only what the server lets sandboxes reach. */
static int check_private(const struct reach_limits *l, struct ipv4_range r, struct str entry, struct error *err)
{
	if (within(r, l->pool))
		return error_set(err, -EINVAL, 400, "allowOut: %.*s is an address of the sandboxes themselves, which do not reach each other", STR_FMT(entry));
	for (size_t i = 0; i < l->n_open; i++)
		if (within(r, l->open[i]))
			return 0;
	return error_set(err, -EINVAL, 400, "allowOut: %.*s is in no private network that this server lets sandboxes reach (option network.private)", STR_FMT(entry));
}

/* `open`: the private entries. `wide`: the rest. */
static int take_allow(struct msg_list allow, const struct reach_limits *l, struct reach_ranges *open, struct reach_ranges *wide, struct error *err)
{
	struct str rest = allow.raw, entry;
	struct ipv4_range r;
	for (size_t n = 0; msg_list_next(&rest, &entry); n++) {
		if (n == REACH_ENTRIES_MAX)
			return error_set(err, -EINVAL, 400, "allowOut: more than %d entries", REACH_ENTRIES_MAX);
		if (reach_parse(entry, &r) != REACH_IPV4)
			return bad_entry(err, "allowOut", entry, "allowed address");
		bool is_private = private_of(r) || within(r, l->pool);
		int e = is_private ? check_private(l, r, entry, err) : 0;
		if (e == 0 && (e = add_range(is_private ? open : wide, r)) < 0)
			error_errno(err, e, "allowOut");
		if (e < 0)
			return e;
	}
	settle(open);
	settle(wide);
	return 0;
}

static int take_deny(struct msg_list deny, struct reach_ranges *to, struct error *err)
{
	struct str rest = deny.raw, entry;
	struct ipv4_range r;
	for (size_t n = 0; msg_list_next(&rest, &entry); n++) {
		enum reach_kind kind = reach_parse(entry, &r);
		if (n == REACH_ENTRIES_MAX)
			return error_set(err, -EINVAL, 400, "denyOut: more than %d entries", REACH_ENTRIES_MAX);
		if (kind != REACH_IPV4 && kind != REACH_IPV6)
			return bad_entry(err, "denyOut", entry, "denied CIDR");
		if (kind == REACH_IPV4 && add_range(to, r) < 0)
			return error_errno(err, -ENOMEM, "denyOut");
	}
	return 0;
}

static int closed_ranges(const struct reach_limits *l, struct reach_ranges *to)
{
	int r = add_range(to, l->pool);
	for (size_t i = 0; r == 0 && i < network_private_count; i++)
		r = add_range(to, network_private[i]);
	settle(to);
	return r;
}

static int compile(struct reach *to, const struct reach_limits *l, const struct reach_ranges *open, const struct reach_ranges *wide)
{
	cleanup_ranges struct reach_ranges closed = {0}, pool = {0};
	int r = closed_ranges(l, &closed);
	if (r == 0)
		r = add_range(&pool, l->pool);
	if (r == 0)
		r = subtract(&to->opened, open, &pool);
	if (r == 0)
		r = subtract(&to->allow, wide, &closed);
	for (size_t i = 0; r == 0 && i < to->opened.n; i++)
		r = add(&to->allow, to->opened.list[i].first, to->opened.list[i].last);
	settle(&to->allow);
	return r;
}

int reach_init(struct reach *ret, const struct reach_limits *limits, struct msg_list allow, struct msg_list deny, bool internet, struct error *err)
{
	cleanup_ranges struct reach_ranges open = {0}, wide = {0};
	struct reach to = {0};
	int r = take_allow(allow, limits, &open, &wide, err);
	if (r == 0)
		r = take_deny(deny, &to.deny, err);
	if (r == 0 && ((!internet && add(&to.deny, 0, UINT32_MAX) < 0) || compile(&to, limits, &open, &wide) < 0))
		r = error_errno(err, -ENOMEM, "network policy");
	if (r < 0) {
		reach_done(&to);
		return r;
	}
	settle(&to.deny);
	to.names = !covers_all(&to.deny) || covers_all(&wide);
	*ret = to;
	return 0;
}

void reach_done(struct reach *r)
{
	free_ranges(&r->allow);
	free_ranges(&r->deny);
	free_ranges(&r->opened);
}

bool reach_is_default(const struct reach *r)
{
	return !r->allow.n && !r->deny.n;
}

bool reach_allows(const struct reach *r, const struct reach_limits *limits, uint32_t address)
{
	struct ipv4_range one = {address, 32};
	if (reach_ranges_hold(&r->allow, address))
		return true;
	return !reach_ranges_hold(&r->deny, address) && !private_of(one) && !within(one, limits->pool);
}
