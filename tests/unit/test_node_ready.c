#include "node_world.h"

#include "node/ready_impl.h"

#include <fcntl.h>

#include <stdio.h>
#include <sys/wait.h>

/* Ready pools, with a fake backend and a fake machine. */

#define SERVED "k3served890123456789"

static struct pool_info pools[64];
static size_t n_pools;

static void write_served(const char *id, const char *alias, const char *build, unsigned memory_mb, bool services)
{
	char path[160], text[1024];
	snprintf(path, sizeof(path), "%s/templates/%s.json", dir, id);
	snprintf(text, sizeof(text),
		"{\"id\":\"%s\",\"alias\":\"%s\",\"createdAt\":\"2026-01-02T03:04:05Z\",\"buildId\":\"%s\",\"memoryMB\":%u,\"diskMB\":1024,"
		"\"layers\":[{\"file\":\"images/aa.erofs\",\"size\":12}],\"user\":\"user\"%s}", id, alias, build, memory_mb,
		services ? ",\"services\":[{\"name\":\"web\",\"command\":[\"/usr/bin/web\"],\"port\":8080,\"user\":\"root\"}]" : "");
	assert_int_equal(file_replace(AT_FDCWD, path, str_of(text), 0600), 0);
}

#define BUILD_1 "0f8fad5b-d9cb-469f-a165-708677289501"
#define BUILD_2 "0f8fad5b-d9cb-469f-a165-708677289502"

/* What the front would be told. */
static const struct pool_info *list(const char *id)
{
	struct msg_pools m = {0};
	assert_int_equal(answer(send_front(MSG_ID_pools, &m)), MSG_ID_pools_page);
	assert_int_equal(got.pools_page.pools.n % sizeof(pools[0]), 0);
	n_pools = got.pools_page.pools.n / sizeof(pools[0]);
	memcpy(pools, got.pools_page.pools.p, got.pools_page.pools.n);
	for (size_t i = 0; i < n_pools; i++)
		if (strcmp(pools[i].template_id, id) == 0)
			return &pools[i];
	return NULL;
}

static unsigned in_state(enum member_state state)
{
	unsigned n = 0;
	for (const struct member *m = node->ready->first; m; m = m->next)
		n += m->state == state;
	return n;
}

/* Until so many of all pools are ready, and none is on its way. */
static void wait_ready(unsigned n)
{
	for (int i = 0; i < 5000; i++) {
		uint64_t id;
		if (in_state(MEMBER_READY) == n && !in_state(MEMBER_STARTING) && !in_state(MEMBER_ENDING))
			return;
		loop_turn(loop, 5);
		while (receive(&id))
			;
	}
	fail_msg("%u ready, %u starting, %u ending; wanted %u", in_state(MEMBER_READY), in_state(MEMBER_STARTING), in_state(MEMBER_ENDING), n);
}

static struct msg_create want_served(void)
{
	struct msg_create m = want();
	m.template = STR(SERVED);
	return m;
}

static void set_size(unsigned min, unsigned size, unsigned max)
{
	sizing_bounds(ready_pool_of(node, STR(SERVED)), true, min, size, max);
}

static int setup_served(void **state)
{
	setup(state);
	leave();
	write_served(SERVED, "served", BUILD_1, 256, true);
	fake_reset();
	start();
	return 0;
}

static void a_create_takes_a_ready_sandbox(void **state)
{
	wait_ready(1);
	char member[33];
	memcpy(member, node->ready->first->s.id, sizeof(node->ready->first->s.id));
	assert_true(fake_find(member)->unassigned);
	assert_int_equal(fake->creates, 1);
	/* Nobody hears of it: no record, no event, no metrics, no name. */
	subscribe();
	assert_int_equal(n_events, 0);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	expect_error(answer(send_kill(member)), 404, "not found");
	int64_t before = clock_realtime();
	ready_pool_of(node, STR(SERVED))->not_before = INT64_MAX / 2;
	struct msg_create m = want_served();
	create_with(&m);
	assert_string_equal(last_id, member);
	assert_str(got.sandbox.launch, "warm");
	assert_true(got.sandbox.started_at >= before);
	assert_true(got.sandbox.end_at - got.sandbox.started_at <= 310 * NS_PER_S);
	assert_int_equal(fake->creates, 1);
	const struct fake_box *b = fake_find(member);
	char line[64];
	snprintf(line, sizeof(line), "E2B_SANDBOX_ID=%s\n", member);
	assert_non_null(strstr(b->envs, line));
	assert_non_null(strstr(b->envs, "A=1\n"));
	assert_null(strstr(b->envs, "forged"));
	assert_int_equal(strlen(b->token), 64);
	assert_str(got.sandbox.envd_token, b->token);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2 AND handle <> '' AND launch = 'warm'"), 1);
	assert_int_equal(node->admission.sandboxes, 1);
	assert_int_equal(last_event(member)->state, SANDBOX_RUNNING);
	/* The next one is made behind it. */
	ready_pool_of(node, STR(SERVED))->not_before = 0;
	ready_look(node);
	wait_ready(1);
	assert_int_equal(node->admission.sandboxes, 2);
	const struct pool_info *p = list(SERVED);
	assert_int_equal(p->hits, 1);
	assert_int_equal(p->misses, 0);
	assert_int_equal(p->ready, 1);
	assert_int_equal(p->memory_mb, 256);
	/* It is a sandbox like any other: it lives through a restart, and ends. */
	restart();
	assert_int_equal(fake_find(member)->alive, true);
	assert_int_equal(answer(send_kill(member)), MSG_ID_ok);
	settle();
	assert_int_equal(fake_find(member), NULL);
}

static void without_one_it_is_started_cold(void **state)
{
	wait_ready(1);
	struct msg_create m = want_served();
	fake->prepare = FAKE_MANUAL;
	create_with(&m);
	assert_str(got.sandbox.launch, "warm");
	create_with(&m);
	assert_str(got.sandbox.launch, "cold");
	assert_false(fake_find(last_id)->unassigned);
	const struct pool_info *p = list(SERVED);
	assert_int_equal(p->hits, 1);
	assert_int_equal(p->misses, 1);
	/* Without services a parked slot is enough. */
	create();
	assert_str(got.sandbox.launch, "warm");
	assert_null(list(TEMPLATE));
}

static void pools_never_cause_a_refusal(void **state)
{
	static const struct pool_info *p;
	options.max_sandboxes = 6;
	set_size(20, 20, 20);
	/* With room for one more sandbox beside them. */
	wait_ready(5);
	for (int i = 0; i < 6; i++)
		create();
	assert_int_equal(in_state(MEMBER_READY), 0);
	p = list(SERVED);
	assert_int_equal(p->evicted, 5);
	assert_int_equal(p->block, POOL_NO_ROOM);
	refuse_create(want(), 503, "most sandboxes");
	assert_int_equal(node->admission.sandboxes, 6);
}

static void what_fits_in_no_case_ends_nobody(void **state)
{
	wait_ready(1);
	machine.memory.total = 300 * MIB;
	write_served("k3large78901234567890" + 1, "large", BUILD_1, 4096, false);
	struct msg_reload_templates reload = {0};
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &reload)), MSG_ID_ok);
	struct msg_create m = want();
	m.template = STR("large");
	node->admission.looked = 0;
	refuse_create(m, 503, "promised");
	assert_int_equal(in_state(MEMBER_READY), 1);
}

static void a_resume_takes_the_room_of_a_ready_one(void **state)
{
	char id[33];
	memcpy(id, create(), sizeof(id));
	struct msg_pause pause = {.sandbox = str_of(id), .memory = false};
	assert_int_equal(answer(send_front(MSG_ID_pause, &pause)), MSG_ID_ok);
	options.max_sandboxes = 3;
	set_size(20, 20, 20);
	wait_ready(2);
	create();
	assert_int_equal(in_state(MEMBER_READY), 2);
	struct msg_resume resume = {.sandbox = str_of(id), .mode = RESUME_CONNECT, .timeout = 60, .memory = true};
	assert_int_equal(answer(send_front(MSG_ID_resume, &resume)), MSG_ID_sandbox);
	assert_int_equal(in_state(MEMBER_READY), 1);
	assert_int_equal(node->admission.sandboxes, 3);
}

static void one_that_is_of_no_use_is_replaced(void **state)
{
	char id[33];
	wait_ready(1);
	memcpy(id, node->ready->first->s.id, sizeof(node->ready->first->s.id));
	fake_die(id, "crashed", "its PID 1 ended");
	wait_ready(1);
	assert_null(fake_find(id));
	memcpy(id, node->ready->first->s.id, sizeof(node->ready->first->s.id));
	/* A service of it ends. */
	fake_prepare(false);
	assert_int_equal(in_state(MEMBER_READY), 0);
	ready_pool_of(node, STR(SERVED))->not_before = 0;
	wait_ready(1);
	assert_null(fake_find(id));
	assert_int_equal(list(SERVED)->failed, 2);
	/* It is old. */
	memcpy(id, node->ready->first->s.id, sizeof(node->ready->first->s.id));
	machine.boot_shift += 3601 * NS_PER_S;
	ready_tick(node);
	wait_ready(1);
	assert_null(fake_find(id));
	assert_int_equal(list(SERVED)->failed, 2);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes") + rows("SELECT count(*) FROM ends"), 0);
	assert_int_equal(node->admission.sandboxes, 1);
}

static void of_a_replaced_template_none_is_left(void **state)
{
	char id[33];
	struct msg_reload_templates reload = {0};
	wait_ready(1);
	memcpy(id, node->ready->first->s.id, sizeof(node->ready->first->s.id));
	write_served(SERVED, "served", BUILD_2, 512, true);
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &reload)), MSG_ID_ok);
	assert_int_equal(in_state(MEMBER_READY), 0);
	wait_ready(1);
	assert_null(fake_find(id));
	assert_int_equal(list(SERVED)->memory_mb, 512);
	write_served(SERVED, "served", BUILD_2, 512, false);
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &reload)), MSG_ID_ok);
	wait_ready(0);
	assert_null(list(SERVED));
	assert_int_equal(fake_alive(), 0);
	assert_int_equal(node->admission.sandboxes, 0);
}

static void what_is_not_assigned_is_killed_and_the_next_one_taken(void **state)
{
	struct msg_create m = want_served();
	set_size(5, 5, 5);
	wait_ready(5);
	fake->assign = FAKE_FAIL;
	create_with(&m);
	/* After three it is started cold, under a name of its own. */
	assert_str(got.sandbox.launch, "cold");
	fake->assign = FAKE_AUTO;
	ready_pool_of(node, STR(SERVED))->not_before = INT64_MAX / 2;
	assert_int_equal(fake->assigns, 3);
	settle();
	assert_int_equal(in_state(MEMBER_READY), 2);
	const struct pool_info *p = list(SERVED);
	assert_int_equal(p->failed, 3);
	assert_int_equal(p->misses, 1);
	assert_int_equal(fake_alive(), 3);
	/* One dies while it is being assigned. */
	fake->assign = FAKE_MANUAL;
	uint64_t request = send_front(MSG_ID_create, &m);
	settle();
	assert_int_equal(in_state(MEMBER_CLAIMED), 1);
	fake->assign = FAKE_AUTO;
	for (const struct member *x = node->ready->first; x; x = x->next)
		if (x->state == MEMBER_CLAIMED) {
			fake_die(x->s.id, "oom_killed", "");
			break;
		}
	assert_int_equal(answer(request), MSG_ID_sandbox);
	assert_str(got.sandbox.launch, "warm");
	settle();
	assert_int_equal(fake_alive(), 2);
	assert_int_equal(node->admission.sandboxes, 2);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2"), 2);
}

static void of_200_creates_at_once_each_has_its_own(void **state)
{
	struct msg_create m = want_served();
	char ids[200][33];
	uint64_t requests[200];
	unsigned warm = 0;
	set_size(20, 20, 20);
	wait_ready(20);
	for (int i = 0; i < 200; i++)
		requests[i] = send_front(MSG_ID_create, &m), loop_turn(loop, 0);
	unsigned answered = 0;
	for (int i = 0; i < 5000 && answered < 200; i++) {
		uint64_t request;
		loop_turn(loop, 5);
		for (unsigned type; (type = receive(&request));) {
			if (!request || request < requests[0])
				continue;
			assert_int_equal(type, MSG_ID_sandbox);
			sandbox_copy(ids[answered], sizeof(ids[0]), got.sandbox.id);
			warm += str_is(got.sandbox.launch, "warm");
			for (unsigned j = 0; j < answered; j++)
				assert_string_not_equal(ids[j], ids[answered]);
			answered++;
		}
	}
	assert_int_equal(answered, 200);
	assert_true(warm >= 20);
	for (unsigned i = 0; i < answered; i++)
		assert_true(fake_find(ids[i])->alive && !fake_find(ids[i])->unassigned);
}

static void a_stop_leaves_none(void **state)
{
	set_size(3, 3, 3);
	wait_ready(3);
	fake->prepare = FAKE_MANUAL;
	set_size(4, 4, 4);
	for (int i = 0; i < 200 && !in_state(MEMBER_STARTING); i++)
		loop_turn(loop, 5);
	stopped = false;
	node_stop(node, on_flag, &stopped);
	turn_until(&stopped);
	assert_int_equal(fake_alive(), 0);
	assert_null(node->ready->first);
}

static struct msg_set_pool bounds(unsigned min, unsigned size, unsigned max)
{
	return (struct msg_set_pool){.template = STR("served"), .min = min, .size = size, .max = max};
}

static void bounds_are_checked_and_kept(void **state)
{
	struct msg_set_pool m = bounds(2, 1, 3);
	struct msg_unset_pool u = {.template = STR("served")};
	expect_error(answer(send_front(MSG_ID_set_pool, &m)), 400, "min");
	m = bounds(0, 1001, 1001);
	expect_error(answer(send_front(MSG_ID_set_pool, &m)), 400, "1000");
	m.template = STR("base");
	m.size = m.max = 1;
	expect_error(answer(send_front(MSG_ID_set_pool, &m)), 400, "no services");
	m.template = STR("nothing");
	expect_error(answer(send_front(MSG_ID_set_pool, &m)), 404, "not found");
	expect_error(answer(send_front(MSG_ID_unset_pool, &u)), 404, "not set");
	m = bounds(3, 3, 4);
	assert_int_equal(answer(send_front(MSG_ID_set_pool, &m)), MSG_ID_pools_page);
	assert_int_equal(rows("SELECT count(*) FROM pools WHERE min = 3 AND size = 3 AND max = 4"), 1);
	wait_ready(3);
	restart();
	wait_ready(3);
	assert_true(list(SERVED)->set);
	assert_int_equal(answer(send_front(MSG_ID_unset_pool, &u)), MSG_ID_ok);
	assert_false(list(SERVED)->set);
	assert_int_equal(rows("SELECT count(*) FROM pools"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_create_takes_a_ready_sandbox, setup_served, teardown),
		cmocka_unit_test_setup_teardown(pools_never_cause_a_refusal, setup_served, teardown),
		cmocka_unit_test_setup_teardown(what_fits_in_no_case_ends_nobody, setup_served, teardown),
		cmocka_unit_test_setup_teardown(a_resume_takes_the_room_of_a_ready_one, setup_served, teardown),
		cmocka_unit_test_setup_teardown(one_that_is_of_no_use_is_replaced, setup_served, teardown),
		cmocka_unit_test_setup_teardown(of_a_replaced_template_none_is_left, setup_served, teardown),
		cmocka_unit_test_setup_teardown(what_is_not_assigned_is_killed_and_the_next_one_taken, setup_served, teardown),
		cmocka_unit_test_setup_teardown(of_200_creates_at_once_each_has_its_own, setup_served, teardown),
		cmocka_unit_test_setup_teardown(a_stop_leaves_none, setup_served, teardown),
		cmocka_unit_test_setup_teardown(bounds_are_checked_and_kept, setup_served, teardown),
		cmocka_unit_test_setup_teardown(without_one_it_is_started_cold, setup_served, teardown),
	};
	return node_world_run(tests);
}
