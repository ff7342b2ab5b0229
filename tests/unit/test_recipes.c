#include "unit.h"

#include "sandbox/namespace/recipes.h"

#include <stdio.h>

static const char *const base[] = {"base.erofs"}, *const other[] = {"base.erofs", "other.erofs"};

static void ask(struct recipes *r, const char *const *layers, size_t n, int times)
{
	while (times--)
		recipes_ask(r, layers, n);
}

static void what_is_asked_for_once_is_no_favourite(void **state)
{
	struct recipes r = {0};
	for (int i = 0; i < 100; i++) {
		char name[16];
		snprintf(name, sizeof(name), "image%d", i);
		recipes_ask(&r, (const char *const[]){name}, 1);
	}
	assert_null(r.favourite);
	assert_int_equal(recipes_bare(&r, 16), 16);
	recipes_done(&r);
}

static void the_favourite_gets_most_slots_and_leaves_some(void **state)
{
	struct recipes r = {0};
	ask(&r, base, 1, 2);
	assert_non_null(r.favourite);
	assert_string_equal(r.favourite->layers[0], "base.erofs");
	assert_int_equal(recipes_bare(&r, 16), 2);
	assert_int_equal(recipes_bare(&r, 0), 0);
	ask(&r, other, 2, 2);
	assert_int_equal(recipes_bare(&r, 16), 2 + 8);
	recipes_done(&r);
}

static void a_new_favourite_must_be_wanted_much_more(void **state)
{
	struct recipes r = {0};
	ask(&r, base, 1, 4);
	ask(&r, other, 2, 8);
	assert_int_equal(r.favourite->n, 1);
	ask(&r, other, 2, 1);
	assert_int_equal(r.favourite->n, 2);
	recipes_done(&r);
}

static void demand_fades_but_a_quiet_favourite_stays(void **state)
{
	struct recipes r = {0};
	ask(&r, base, 1, 2);
	ask(&r, other, 2, 2);
	for (int i = 0; i < 1000; i++)
		recipes_decay(&r);
	assert_int_equal(r.favourite->n, 1);
	assert_int_equal(recipes_bare(&r, 16), 2);
	ask(&r, other, 2, 2);
	assert_int_equal(r.favourite->n, 2);
	recipes_forget_favourite(&r);
	assert_null(r.favourite);
	recipes_done(&r);
}

static void many_recipes_push_out_the_least_wanted(void **state)
{
	struct recipes r = {0};
	ask(&r, base, 1, 5);
	for (int i = 0; i < 50; i++) {
		char name[16];
		snprintf(name, sizeof(name), "image%d", i);
		ask(&r, (const char *const[]){name}, 1, 3);
	}
	assert_string_equal(r.favourite->layers[0], "base.erofs");
	recipes_done(&r);
}

static void a_layer_that_goes_takes_its_recipes_along(void **state)
{
	struct recipes r = {0};
	ask(&r, other, 2, 5);
	ask(&r, base, 1, 1);
	assert_string_equal(r.favourite->layers[1], "other.erofs");
	recipes_forget_layer(&r, "other.erofs");
	assert_null(r.favourite);
	assert_int_equal(recipes_bare(&r, 16), 16);
	ask(&r, base, 1, 1); /* is known still */
	assert_string_equal(r.favourite->layers[0], "base.erofs");
	recipes_forget_layer(&r, "other.erofs");
	assert_non_null(r.favourite);
	recipes_done(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_asked_for_once_is_no_favourite),
		cmocka_unit_test(the_favourite_gets_most_slots_and_leaves_some),
		cmocka_unit_test(a_new_favourite_must_be_wanted_much_more),
		cmocka_unit_test(demand_fades_but_a_quiet_favourite_stays),
		cmocka_unit_test(many_recipes_push_out_the_least_wanted),
		cmocka_unit_test(a_layer_that_goes_takes_its_recipes_along),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
