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
	/* The next one is being made meanwhile. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_create_takes_a_ready_sandbox, setup_served, teardown),
		cmocka_unit_test_setup_teardown(pools_never_cause_a_refusal, setup_served, teardown),
		cmocka_unit_test_setup_teardown(what_fits_in_no_case_ends_nobody, setup_served, teardown),
		cmocka_unit_test_setup_teardown(a_resume_takes_the_room_of_a_ready_one, setup_served, teardown),
		cmocka_unit_test_setup_teardown(without_one_it_is_started_cold, setup_served, teardown),
	};
	return node_world_run(tests);
}
