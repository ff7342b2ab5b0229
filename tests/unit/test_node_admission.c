/* What the node takes on, and when it refuses. */
#include "node_world.h"

static unsigned burst(unsigned n, unsigned *refused, const char *why)
{
	struct msg_create m = want();
	unsigned served = 0;
	uint64_t first = last_request + 1;
	for (unsigned i = 0; i < n; i++)
		send_front(MSG_ID_create, &m);
	*refused = 0;
	for (int i = 0; i < 5000 && served + *refused < n; i++) {
		uint64_t request;
		loop_turn(loop, 10);
		for (unsigned type; (type = receive(&request));)
			if (request >= first && type == MSG_ID_sandbox)
				served++;
			else if (request >= first) {
				expect_error(type, 503, why);
				(*refused)++;
			}
	}
	return served;
}

static void two_hundred_at_once_never_pass_the_limits(void **state)
{
	unsigned refused;
	options.max_sandboxes = 50;
	assert_int_equal(burst(200, &refused, "most sandboxes"), 50);
	assert_int_equal(refused, 150);
	assert_int_equal(fake->most_live, 50);
	options.max_sandboxes = 1000;
	/* 256 MiB each, 50 are there: room for 64 in all. */
	machine.memory.total = 64 * 256 * MIB / 4;
	machine.memory.available = machine.memory.total;
	machine.boot_shift = NS_PER_S; /* past the last look */
	assert_int_equal(burst(200, &refused, "memory"), 14);
	assert_int_equal(fake->most_live, 64);
	assert_int_equal(node->admission.memory_mb, 64 * 256);
	/* What ends gives its share back. */
	assert_int_equal(answer(send_kill(fake->machine[3].id)), MSG_ID_ok);
	assert_int_equal(burst(3, &refused, "memory"), 1);
}

static void memory_is(uint64_t available_mib, double pressure)
{
	machine.memory.available = available_mib * MIB;
	machine.memory.pressure = pressure;
	machine.boot_shift += NS_PER_S; /* past the last look */
}

static void a_machine_short_of_memory_stops_admission(void **state)
{
	struct msg_create m = want();
	memory_is(100, 0);
	refuse_create(m, 503, "short of memory");
	memory_is(2000, 50);
	refuse_create(m, 503, "50 % pressure");
	memory_is(2000, 10);
	create();
}

/* Sandboxes that thrash at their own limits are in the kernel's figure, too. */
static void pressure_alone_stops_nobody(void **state)
{
	memory_is(12000, 90);
	create();
}

static void a_full_disk_stops_admission(void **state)
{
	struct msg_create m = want();
	machine.disk.free = machine.disk.total / 100 * 9;
	refuse_create(m, 507, "disk");
	machine.disk.free = machine.disk.total / 100 * 50;
	options.disk_overcommit = 1;
	machine.disk.total = 10000 * MIB;
	machine.disk.free = 1000 * MIB + 1500 * MIB;
	create();
	refuse_create(m, 507, "promised");
	options.disk_overcommit = 20;
	create();
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(two_hundred_at_once_never_pass_the_limits),
		T(a_machine_short_of_memory_stops_admission),
		T(pressure_alone_stops_nobody),
		T(a_full_disk_stops_admission),
	};
	return node_world_run(tests);
}
