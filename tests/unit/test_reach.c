/* The sets of addresses against a model that looks at each address by itself. */
#include "unit.h"

#include "base/cleanup.h"
#include "network/reach.h"

#include <errno.h>
#include <stdio.h>

static struct ipv4_range open_ranges[PRIVATE_MAX];
static struct reach_limits limits;

static int set_up(void **state)
{
	struct error err = {0};
	assert_int_equal(ipv4_range_parse("10.77.0.0/16", &limits.pool, &err), 0);
	limits.open = open_ranges;
	limits.n_open = (size_t)reach_parse_private(" 10.0.0.0/8, 192.168.0.0/16,169.254.169.254 ", open_ranges, &err);
	assert_int_equal(limits.n_open, 3);
	return 0;
}

static struct msg_list list_of(struct buf *to, const char *text)
{
	struct str rest = str_of(text), item;
	while (str_cut(rest, ' ', &item, &rest))
		msg_list_add(to, item);
	if (rest.n)
		msg_list_add(to, rest);
	return (struct msg_list){buf_str(to)};
}

static int compile(const char *allow, const char *deny, bool internet, struct reach *ret, struct error *err)
{
	cleanup_buf struct buf a = BUF_INIT, d = BUF_INIT;
	return reach_init(ret, &limits, list_of(&a, allow), list_of(&d, deny), internet, err);
}

static void entries_are_told_apart(void **state)
{
	static const struct {
		const char *text;
		enum reach_kind kind;
		uint32_t base;
		unsigned bits;
	} rows[] = {
		{"1.2.3.4", REACH_IPV4, 0x01020304, 32},
		{"1.2.3.4/32", REACH_IPV4, 0x01020304, 32},
		{"1.2.3.4/8", REACH_IPV4, 0x01000000, 8},
		{"0.0.0.0/0", REACH_IPV4, 0, 0},
		{"255.255.255.255", REACH_IPV4, UINT32_MAX, 32},
		{"255.255.255.255/0", REACH_IPV4, 0, 0},
		{"240.0.0.0/4", REACH_IPV4, 0xf0000000, 4},
		{"::/0", REACH_IPV6, 0, 0},
		{"2001:db8::1", REACH_IPV6, 0, 0},
		{"::ffff:1.2.3.4/128", REACH_IPV6, 0, 0},
		{"example.com", REACH_NAME, 0, 0},
		{"*.example.com", REACH_NAME, 0, 0},
		{"a-b.Example.COM.", REACH_NAME, 0, 0},
		{"1.2.3.4.in-addr.arpa", REACH_NAME, 0, 0},
		{"xn--nxasmq6b.example", REACH_NAME, 0, 0},
		{"", REACH_BAD, 0, 0},
		{"1.2.3.4/33", REACH_BAD, 0, 0},
		{"1.2.3.4/-1", REACH_BAD, 0, 0},
		{"1.2.3.4/+8", REACH_BAD, 0, 0},
		{"1.2.3.4/08", REACH_BAD, 0, 0},
		{"1.2.3.4/", REACH_BAD, 0, 0},
		{"/8", REACH_BAD, 0, 0},
		{"1.2.3.4/8/8", REACH_BAD, 0, 0},
		{" 1.2.3.4", REACH_BAD, 0, 0},
		{"1.2.3.4 ", REACH_BAD, 0, 0},
		{"01.2.3.4", REACH_BAD, 0, 0},
		{"1.2.3", REACH_BAD, 0, 0},
		{"1.2.3.4-1.2.3.9", REACH_BAD, 0, 0},
		{"999.999.999.999", REACH_BAD, 0, 0},
		{"::/129", REACH_BAD, 0, 0},
		{":::", REACH_BAD, 0, 0},
		{"localhost", REACH_BAD, 0, 0},
		{"*", REACH_BAD, 0, 0},
		{"*.com", REACH_BAD, 0, 0},
		{"a..com", REACH_BAD, 0, 0},
		{".example.com", REACH_BAD, 0, 0},
		{"a.*.com", REACH_BAD, 0, 0},
		{"-a.com", REACH_BAD, 0, 0},
		{"example.com/8", REACH_BAD, 0, 0},
		{"http://example.com", REACH_BAD, 0, 0},
		{"ex\xc3\xa4mple.com", REACH_BAD, 0, 0},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct ipv4_range r = {0};
		if (reach_parse(str_of(rows[i].text), &r) != rows[i].kind || r.base != rows[i].base || r.bits != rows[i].bits)
			fail_msg("'%s': %u, %08x/%u", rows[i].text, reach_parse(str_of(rows[i].text), &r), r.base, r.bits);
	}
	struct ipv4_range r;
	assert_int_equal(reach_parse(STR("1.2.3.4\0"), &r), REACH_BAD);
	char label[300];
	memset(label, 'a', sizeof(label));
	memcpy(label + 63, ".com", 4);
	assert_int_equal(reach_parse(str_n(label, 67), &r), REACH_NAME);
	memcpy(label + 63, "a.com", 5);
	assert_int_equal(reach_parse(str_n(label, 68), &r), REACH_BAD);
	assert_int_equal(reach_parse(str_n(label, 300), &r), REACH_BAD);
}

static void what_the_administrator_opens_is_checked(void **state)
{
	static const char *const bad[] = {"8.8.8.8", "0.0.0.0/0", "127.0.0.1", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255", "0.0.0.0/8", "10.0.0.0/7", "10.0.0.0/8,", ",", "x", "::1",
		"10.0.0.0/8 192.168.0.0/16"};
	struct ipv4_range ranges[PRIVATE_MAX];
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct error err = {0};
		/* A trailing comma is none too many. */
		if (!strcmp(bad[i], "10.0.0.0/8,"))
			continue;
		if (reach_parse_private(bad[i], ranges, &err) != -EINVAL || err.status != 400)
			fail_msg("'%s' is taken", bad[i]);
	}
	assert_int_equal(reach_parse_private("", ranges, NULL), 0);
	assert_int_equal(reach_parse_private("169.254.0.0/16", ranges, NULL), 1);
	assert_int_equal(ranges[0].base, 0xa9fe0000);
	char many[PRIVATE_MAX * 10 + 20] = "";
	for (int i = 0; i <= PRIVATE_MAX; i++)
		strcat(many, i ? ",10.0.0.1" : "10.0.0.1");
	assert_int_equal(reach_parse_private(many, ranges, NULL), -EINVAL);
}

static void wrong_lists_name_the_entry(void **state)
{
	static const struct {
		const char *allow, *deny, *words;
	} rows[] = {
		{"1.2.3.4 1.2.3.4/33", "", "allowOut: invalid allowed address 1.2.3.4/33"},
		{"example.com", "", "allowOut: invalid allowed address example.com"},
		{"::1", "", "allowOut: invalid allowed address ::1"},
		{"", "0.0.0.0/0 nonsense", "denyOut: invalid denied CIDR nonsense"},
		{"", "*.example.com", "denyOut: invalid denied CIDR *.example.com"},
		{"172.16.5.0/24", "", "allowOut: 172.16.5.0/24 is in no private network"},
		{"127.0.0.1", "", "allowOut: 127.0.0.1 is in no private network"},
		{"169.254.0.0/16", "", "allowOut: 169.254.0.0/16 is in no private network"},
		{"10.77.1.1", "", "allowOut: 10.77.1.1 is an address of the sandboxes"},
		{"10.77.0.0/16", "", "allowOut: 10.77.0.0/16 is an address of the sandboxes"},
		{"255.255.255.255", "", "allowOut: 255.255.255.255 is in no private network"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct reach r;
		struct error err = {0};
		assert_int_equal(compile(rows[i].allow, rows[i].deny, true, &r, &err), -EINVAL);
		assert_int_equal(err.status, 400);
		if (!strstr(err.message, rows[i].words))
			fail_msg("%s", err.message);
	}
}

static void ranges_end_where_they_end(void **state)
{
	static const struct {
		const char *allow, *deny;
		bool internet;
		size_t n_allow, n_deny, n_opened;
		bool names;
	} rows[] = {
		{"", "", true, 0, 0, 0, true},
		{"", "", false, 0, 1, 0, false},
		{"", "0.0.0.0/0", true, 0, 1, 0, false},
		{"", "0.0.0.0/1 128.0.0.0/1", true, 0, 1, 0, false},
		{"", "0.0.0.0/1 128.0.0.0/2 192.0.0.0/2 1.1.1.1", true, 0, 1, 0, false},
		{"", "0.0.0.0/1 128.0.0.0/2", true, 0, 1, 0, true},
		{"", "::/0", true, 0, 0, 0, true},
		{"1.1.1.1", "0.0.0.0/0", true, 1, 1, 0, false},
		{"1.1.1.1 1.1.1.0 1.1.1.2/31", "", true, 1, 0, 0, true},
		{"10.1.0.0/16", "0.0.0.0/0", true, 1, 1, 1, false},
		{"10.0.0.0/8", "", true, 2, 0, 2, true}, /* around the sandboxes */
		{"0.0.0.0/0", "0.0.0.0/0", true, 9, 1, 0, true},
		{"0.0.0.0/0 10.1.0.0/16", "", false, 10, 1, 1, true},
		{"9.0.0.0/8 10.0.0.0/9 11.0.0.0/8", "", true, 3, 0, 2, true}, /* 9.0.0.0-10.76.255.255, 10.78.0.0-10.127.255.255, 11.0.0.0/8 */
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct reach r;
		struct error err = {0};
		if (compile(rows[i].allow, rows[i].deny, rows[i].internet, &r, &err) < 0)
			fail_msg("%s", err.message);
		if (r.allow.n != rows[i].n_allow || r.deny.n != rows[i].n_deny || r.opened.n != rows[i].n_opened || r.names != rows[i].names)
			fail_msg("row %zu: %zu %zu %zu %d", i, r.allow.n, r.deny.n, r.opened.n, r.names);
		assert_int_equal(reach_is_default(&r), !*rows[i].allow && (!*rows[i].deny || strchr(rows[i].deny, ':')) && rows[i].internet);
		reach_done(&r);
	}
}

/* The model: an address is reached when an entry of allow that may name it does; else not when it is denied, private or a sandbox's. */
struct model {
	struct ipv4_range allow[8], deny[8];
	size_t n_allow, n_deny;
	bool internet;
};

static bool in(uint32_t a, struct ipv4_range r)
{
	return a >= r.base && a <= ipv4_range_last(r);
}

static bool is_private(uint32_t first, uint32_t last)
{
	for (size_t i = 0; i < network_private_count; i++)
		if (in(first, network_private[i]) && in(last, network_private[i]))
			return true;
	return false;
}

static bool model_allows(const struct model *m, uint32_t a)
{
	bool pool = in(a, limits.pool), closed = pool || is_private(a, a);
	for (size_t i = 0; i < m->n_allow; i++) {
		bool named = is_private(m->allow[i].base, ipv4_range_last(m->allow[i]));
		if (in(a, m->allow[i]) && !pool && (named || !closed))
			return true;
	}
	for (size_t i = 0; i < m->n_deny; i++)
		if (in(a, m->deny[i]))
			return false;
	return m->internet && !closed;
}

static uint32_t seed = 20261129;

static uint32_t random32(void)
{
	seed = seed * 1664525 + 1013904223;
	return seed >> 16 | seed << 16;
}

static struct ipv4_range random_range(void)
{
	static const uint32_t near[] = {0x0a000000, 0x0a4d0000, 0xc0a80000, 0xa9fea9fe, 0x08080808, 0, 0xffffffff, 0xe0000000, 0x64400000};
	unsigned bits = random32() % 33;
	uint32_t base = random32() % 3 ? near[random32() % ARRAY_SIZE(near)] ^ (random32() & 0x00030003) : random32();
	return (struct ipv4_range){bits ? base & (UINT32_MAX << (32 - bits)) : 0, bits};
}

static void check_edges(const struct model *m, const struct reach *r, const char *what)
{
	const struct ipv4_range *lists[] = {m->allow, m->deny, network_private, open_ranges, &limits.pool};
	const size_t counts[] = {m->n_allow, m->n_deny, network_private_count, limits.n_open, 1};
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		for (size_t k = 0; k < counts[i]; k++) {
			const uint32_t edges[] = {lists[i][k].base, lists[i][k].base - 1, lists[i][k].base + 1, ipv4_range_last(lists[i][k]), ipv4_range_last(lists[i][k]) + 1};
			for (size_t e = 0; e < ARRAY_SIZE(edges); e++)
				if (reach_allows(r, &limits, edges[e]) != model_allows(m, edges[e]))
					fail_msg("%s: %08x", what, edges[e]);
		}
	for (int i = 0; i < 50; i++) {
		uint32_t a = random32();
		if (reach_allows(r, &limits, a) != model_allows(m, a))
			fail_msg("%s: %08x", what, a);
	}
}

static void check_order(const struct reach_ranges *r)
{
	for (size_t i = 0; i < r->n; i++) {
		assert_true(r->list[i].first <= r->list[i].last);
		if (i)
			assert_true(r->list[i - 1].last != UINT32_MAX && r->list[i].first > r->list[i - 1].last + 1);
	}
}

static void sets_agree_with_the_model(void **state)
{
	unsigned taken = 0;
	for (int round = 0; round < 4000; round++) {
		struct model m = {.internet = random32() % 4};
		char allow[256] = "", deny[256] = "", text[IPV4_TEXT], what[600];
		struct reach r;
		m.n_allow = random32() % ARRAY_SIZE(m.allow);
		m.n_deny = random32() % ARRAY_SIZE(m.deny);
		for (size_t i = 0; i < m.n_allow; i++)
			sprintf(allow + strlen(allow), "%s%s", i ? " " : "", ipv4_range_format(text, m.allow[i] = random_range()));
		for (size_t i = 0; i < m.n_deny; i++)
			sprintf(deny + strlen(deny), "%s%s", i ? " " : "", ipv4_range_format(text, m.deny[i] = random_range()));
		snprintf(what, sizeof(what), "allow '%s' deny '%s' internet %d", allow, deny, m.internet);
		if (compile(allow, deny, m.internet, &r, NULL) < 0)
			continue; /* names what may not be named: the table above */
		taken++;
		check_order(&r.allow);
		check_order(&r.deny);
		check_order(&r.opened);
		check_edges(&m, &r, what);
		/* What the host lets pass is the private part of it, nothing else. */
		for (size_t i = 0; i < r.opened.n; i++) {
			assert_true(is_private(r.opened.list[i].first, r.opened.list[i].first) && reach_ranges_hold(&r.allow, r.opened.list[i].first));
			assert_true(reach_ranges_hold(&r.allow, r.opened.list[i].last));
		}
		reach_done(&r);
	}
	assert_true(taken > 500);
}

static void lists_have_an_end(void **state)
{
	cleanup_buf struct buf entries = BUF_INIT;
	struct reach r;
	struct error err = {0};
	for (int i = 0; i < REACH_ENTRIES_MAX; i++)
		msg_list_add(&entries, STR("1.1.1.1"));
	assert_int_equal(reach_init(&r, &limits, (struct msg_list){buf_str(&entries)}, (struct msg_list){buf_str(&entries)}, true, &err), 0);
	reach_done(&r);
	msg_list_add(&entries, STR("1.1.1.1"));
	assert_int_equal(reach_init(&r, &limits, (struct msg_list){buf_str(&entries)}, (struct msg_list){{0}}, true, &err), -EINVAL);
	assert_int_equal(reach_init(&r, &limits, (struct msg_list){{0}}, (struct msg_list){buf_str(&entries)}, true, &err), -EINVAL);
	assert_int_equal(err.status, 400);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_told_apart),
		cmocka_unit_test(what_the_administrator_opens_is_checked),
		cmocka_unit_test(wrong_lists_name_the_entry),
		cmocka_unit_test(ranges_end_where_they_end),
		cmocka_unit_test(sets_agree_with_the_model),
		cmocka_unit_test(lists_have_an_end),
	};
	return cmocka_run_group_tests(tests, set_up, NULL);
}
