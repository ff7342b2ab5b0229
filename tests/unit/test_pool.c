#include "unit.h"

#include "network/pool.h"

#include <errno.h>

static struct ipv4_range range(const char *text)
{
	struct ipv4_range r;
	assert_int_equal(ipv4_range_parse(text, &r, NULL), 0);
	return r;
}

static void assert_range(struct ipv4_range r, const char *text)
{
	char got[IPV4_TEXT];
	assert_string_equal(ipv4_range_format(got, r), text);
}

static void ranges_are_parsed_strictly(void **state)
{
	static const char *const bad[] = {"", "/", "10.0.0.0", "10.0.0.0/", "/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8 ", " 10.0.0.0/8", "10.0.0/8",
		"10.0.0.0.0/8", "256.0.0.0/8", "10.0.0.1/8", "10.0.0.0/8/8", "0x0a.0.0.0/8", "::/0", "1000000000000000000.0.0.0/8"};
	struct ipv4_range r;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error err = {0};
		assert_int_equal(ipv4_range_parse(bad[i], &r, &err), -EINVAL);
		assert_int_equal(err.status, 400);
	}
	assert_range(range("100.96.0.0/16"), "100.96.0.0/16");
	assert_range(range("0.0.0.0/0"), "0.0.0.0/0");
	assert_range(range("255.255.255.255/32"), "255.255.255.255/32");
	assert_int_equal(ipv4_range_last(range("10.0.0.0/8")), 0x0affffff);
	assert_int_equal(ipv4_range_last(range("0.0.0.0/0")), UINT32_MAX);
}

static void overlap_is_containment_either_way(void **state)
{
	assert_true(ipv4_range_overlap(range("10.0.0.0/8"), range("10.1.2.0/24")));
	assert_true(ipv4_range_overlap(range("10.1.2.0/24"), range("10.0.0.0/8")));
	assert_true(ipv4_range_overlap(range("0.0.0.0/0"), range("255.255.255.255/32")));
	assert_false(ipv4_range_overlap(range("10.0.0.0/9"), range("10.128.0.0/9")));
}

static void a_free_range_is_kept(void **state)
{
	struct ipv4_range used[] = {range("10.0.0.0/8"), range("100.97.0.0/16")}, got;
	assert_int_equal(pool_choose(range("100.96.0.0/16"), true, used, 2, &got, NULL), 0);
	assert_range(got, "100.96.0.0/16");
}

static void a_default_that_is_taken_moves_on(void **state)
{
	struct ipv4_range used[] = {range("100.96.3.0/24"), range("100.97.0.0/16"), range("100.98.1.1/32")}, got;
	assert_int_equal(pool_choose(range("100.96.0.0/16"), false, used, 3, &got, NULL), 0);
	assert_range(got, "100.99.0.0/16");
	struct ipv4_range upper[] = {range("100.96.0.0/11")};
	assert_int_equal(pool_choose(range("100.96.0.0/16"), false, upper, 1, &got, NULL), 0);
	assert_range(got, "100.64.0.0/16");
	struct ipv4_range carriers[] = {range("100.64.0.0/10"), range("198.18.0.0/16")};
	assert_int_equal(pool_choose(range("100.96.0.0/16"), false, carriers, 2, &got, NULL), 0);
	assert_range(got, "198.19.0.0/16");
	struct ipv4_range most[] = {range("100.64.0.0/10"), range("198.18.0.0/15"), range("172.16.0.0/12"), range("10.0.0.0/9")};
	assert_int_equal(pool_choose(range("100.96.0.0/16"), false, most, 4, &got, NULL), 0);
	assert_range(got, "10.128.0.0/16");
}

static void nothing_free_is_an_error(void **state)
{
	struct ipv4_range used[] = {range("100.64.0.0/10"), range("198.18.0.0/15"), range("172.16.0.0/12"), range("10.0.0.0/8")}, got;
	struct error err = {0};
	assert_int_equal(pool_choose(range("100.96.0.0/16"), false, used, 4, &got, &err), -EADDRNOTAVAIL);
	assert_non_null(strstr(err.message, "network.pool"));
}

static void a_configured_overlap_is_refused_by_name(void **state)
{
	struct ipv4_range used[] = {range("192.168.0.0/16"), range("10.8.0.0/24")}, got;
	struct error err = {0};
	assert_int_equal(pool_choose(range("10.8.0.0/16"), true, used, 2, &got, &err), -EADDRINUSE);
	assert_int_equal(err.status, 400);
	assert_non_null(strstr(err.message, "10.8.0.0/24"));
}

/* The order and the gaps matter to the interval sets made of them. */
static void private_ranges_are_sorted_and_apart(void **state)
{
	for (size_t i = 0; i < network_private_count; i++) {
		assert_int_equal(network_private[i].base & ~ipv4_range_last(network_private[i]), 0);
		if (i)
			assert_true(network_private[i].base > ipv4_range_last(network_private[i - 1]) + 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges_are_parsed_strictly),
		cmocka_unit_test(overlap_is_containment_either_way),
		cmocka_unit_test(a_free_range_is_kept),
		cmocka_unit_test(a_default_that_is_taken_moves_on),
		cmocka_unit_test(nothing_free_is_an_error),
		cmocka_unit_test(a_configured_overlap_is_refused_by_name),
		cmocka_unit_test(private_ranges_are_sorted_and_apart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
