/* The lists of a network policy: lines, those that begin with '-' are denied. */
#include "fuzz.h"

#include "network/reach.h"

#include <errno.h>

static void check_ranges(const struct reach_ranges *r)
{
	for (size_t i = 0; i < r->n; i++) {
		hold(r->list[i].first <= r->list[i].last);
		hold(!i || (r->list[i - 1].last != UINT32_MAX && r->list[i].first > r->list[i - 1].last + 1));
		hold(reach_ranges_hold(r, r->list[i].first) && reach_ranges_hold(r, r->list[i].last));
		hold(!r->list[i].first || !reach_ranges_hold(r, r->list[i].first - 1));
	}
}

void fuzz_one(struct str input)
{
	cleanup_buf struct buf allow = BUF_INIT, deny = BUF_INIT;
	const struct ipv4_range open[] = {{0x0a000000, 8}, {0xc0a80000, 16}};
	const struct reach_limits limits = {{0x0a4d0000, 16}, open, 2};
	struct str rest = input, line;
	for (bool more = true; more;) {
		struct str tail = {0};
		struct ipv4_range range = {0};
		more = str_cut(rest, '\n', &line, &tail);
		if (!more)
			line = rest;
		rest = tail;
		bool denied = str_starts(line, STR("-"));
		line = str_from(line, denied);
		enum reach_kind kind = reach_parse(line, &range);
		hold(kind != REACH_IPV4 || range.bits == 32 || (range.bits < 32 && !(range.base & (UINT32_MAX >> range.bits))));
		hold(kind != REACH_NAME || line.n <= REACH_TEXT_MAX);
		msg_list_add(denied ? &deny : &allow, line);
	}
	struct reach r;
	struct error err = {0};
	int e = reach_init(&r, &limits, (struct msg_list){buf_str(&allow)}, (struct msg_list){buf_str(&deny)}, input.n % 2, &err);
	hold(e == 0 || (e == -EINVAL && err.status == 400 && *err.message));
	if (e < 0)
		return;
	check_ranges(&r.allow);
	check_ranges(&r.deny);
	check_ranges(&r.opened);
	/* Never the sandboxes' own addresses, nor what nobody may open. */
	const uint32_t closed[] = {0x0a4d0001, 0x0a4dffff, 0x7f000001, 0xa9fea9fe, 0xe0000001, 0, UINT32_MAX};
	for (size_t i = 0; i < ARRAY_SIZE(closed); i++)
		hold(!reach_allows(&r, &limits, closed[i]) && !reach_ranges_hold(&r.opened, closed[i]));
	reach_done(&r);
}
