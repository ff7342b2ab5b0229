/* Figures of running sandboxes. */
#include "node_world.h"

#include <stdio.h>

static size_t samples_of(const char *id)
{
	struct msg_metrics m = {0};
	msg_set(&m, metrics, sandbox, str_of(id));
	msg_set(&m, metrics, start, 0);
	msg_set(&m, metrics, end, INT64_MAX);
	assert_int_equal(answer(send_front(MSG_ID_metrics, &m)), MSG_ID_metrics_page);
	assert_int_equal(got.metrics_page.samples.n % sizeof(struct metrics_sample), 0);
	return got.metrics_page.samples.n / sizeof(struct metrics_sample);
}

/* Moves the clock on and lets the node do what is due. */
static void pass(int64_t ms)
{
	machine.boot_shift += ms * NS_PER_MS;
	machine.wall_shift += ms * NS_PER_MS;
	for (int i = 0; i < 8; i++)
		node_sample(node);
	settle();
}

static void running_sandboxes_are_sampled(void **state)
{
	char id[33];
	struct metrics_sample s;
	machine.still = clock_boottime();
	snprintf(id, sizeof(id), "%s", create());
	struct fake_box *box = fake_find(id);
	box->stats = (struct box_stats){.cpu_usec = 5000000, .memory_used = 3 * MIB, .memory_cache = MIB};
	assert_int_equal(samples_of(id), 0);
	pass(600); /* the base line */
	assert_int_equal(samples_of(id), 0);
	/* Half of two processors for a second. */
	box->stats.cpu_usec += 1000000;
	pass(1000);
	assert_int_equal(samples_of(id), 1);
	memcpy(&s, got.metrics_page.samples.p, sizeof(s));
	assert_int_equal(s.mem_used, 3 * MIB);
	assert_int_equal(s.mem_cache, MIB);
	assert_int_equal(s.mem_total, 256 * MIB);
	assert_int_equal(s.disk_total, 1024 * MIB);
	assert_int_equal(s.cpu_count, 2);
	assert_int_equal(s.cpu_percent, 5000);
	/* A quarter of an hour later the newest are there, five seconds apart. */
	for (int i = 0; i < 20; i++)
		pass(5000);
	assert_int_equal(samples_of(id), 21);
	/* Several at once: who is not there is absent. */
	cleanup_buf struct buf ids = BUF_INIT;
	msg_list_add(&ids, STR("inope"));
	msg_list_add(&ids, str_of(id));
	struct msg_metrics m = {0};
	struct metrics_newest newest;
	msg_set(&m, metrics, sandboxes, (struct msg_list){buf_str(&ids)});
	assert_int_equal(answer(send_front(MSG_ID_metrics, &m)), MSG_ID_metrics_page);
	assert_int_equal(got.metrics_page.samples.n, sizeof(newest));
	memcpy(&newest, got.metrics_page.samples.p, sizeof(newest));
	assert_string_equal(newest.id, id);
	/* A dead one is not read any more. */
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	unsigned readings = fake->readings;
	pass(5000);
	assert_int_equal(fake->readings, readings);
	struct msg_metrics gone = {0};
	msg_set(&gone, metrics, sandbox, str_of(id));
	expect_error(answer(send_front(MSG_ID_metrics, &gone)), 404, "not found");
}

/* Whatever many there are, each is read every five seconds, and no turn of the loop reads them all. */
static void many_are_sampled_one_after_the_other(void **state)
{
	enum { MANY = 200 };
	options.max_sandboxes = MANY;
	machine.still = clock_boottime();
	for (int i = 0; i < MANY; i++)
		create();
	pass(600);
	assert_int_equal(fake->readings, MANY);
	pass(1100);
	assert_int_equal(fake->readings, 2 * MANY);
	pass(5000);
	assert_int_equal(fake->readings, 3 * MANY);
	map_foreach(&node->live, slot)
		assert_int_equal(((struct live *)slot->value)->history.fine.n, 2);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(running_sandboxes_are_sampled),
		T(many_are_sampled_one_after_the_other),
	};
	return node_world_run(tests);
}
