/* The node's service with a fake backend and a fake machine; the test is the front. */
#include "node_world.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Create */

static void create_is_answered_when_it_runs_and_is_recorded(void **state)
{
	const char *id = create();
	assert_true(sandbox_id_valid(str_of(id)));
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2 AND handle <> ''"), 1);
	assert_str(got.sandbox.template_id, TEMPLATE);
	assert_str(got.sandbox.alias, "base");
	assert_str(got.sandbox.team, "team-1");
	assert_str(got.sandbox.launch, "warm");
	assert_int_equal(got.sandbox.memory_mb, 256);
	assert_int_equal(got.sandbox.cpu_count, 2);
	assert_int_equal(got.sandbox.envd_token.n, 64);
	assert_int_equal(got.sandbox.generation.n, 32);
	assert_false(msg_has(&got.sandbox, sandbox, traffic_token));
	assert_false(msg_has(&got.sandbox, sandbox, internet));
	assert_true(got.sandbox.end_at - got.sandbox.started_at <= 310 * NS_PER_S);
	const struct fake_box *m = fake_find(id);
	char line[64];
	snprintf(line, sizeof(line), "E2B_SANDBOX_ID=%s\n", id);
	assert_non_null(strstr(m->envs, line));
	assert_non_null(strstr(m->envs, "A=1\n"));
	assert_non_null(strstr(m->envs, "E2B_SANDBOX=true\n"));
	assert_non_null(strstr(m->envs, "E2B_TEMPLATE_ID=" TEMPLATE "\n"));
	assert_null(strstr(m->envs, "forged"));
	assert_str(got.sandbox.envd_token, m->token);
	assert_string_equal(m->user, "user");
	assert_true(m->internet);
	assert_non_null(strstr(m->layer, "/images/aa.erofs"));
}

static void tokens_follow_the_settings_and_differ(void **state)
{
	struct msg_create m = want();
	m.secure = false;
	m.public_traffic = false;
	msg_set(&m, create, internet, false);
	create_with(&m);
	char traffic[65];
	assert_false(msg_has(&got.sandbox, sandbox, envd_token));
	assert_true(sandbox_copy(traffic, sizeof(traffic), got.sandbox.traffic_token));
	assert_int_equal(strlen(traffic), 64);
	assert_true(msg_has(&got.sandbox, sandbox, internet) && !got.sandbox.internet);
	assert_false(fake_find(last_id)->internet);
	m.secure = true;
	create_with(&m);
	assert_true(got.sandbox.envd_token.n == 64 && !str_eq(got.sandbox.envd_token, got.sandbox.traffic_token));
	assert_false(str_is(got.sandbox.traffic_token, traffic));
}

static struct msg_list entries(struct buf *to, const char *const *list)
{
	buf_clear(to);
	for (; *list; list++)
		msg_list_add(to, str_of(*list));
	return (struct msg_list){buf_str(to)};
}

static uint64_t send_network(const char *id, const char *allow, const char *deny, int internet)
{
	cleanup_buf struct buf a = BUF_INIT, d = BUF_INIT;
	struct msg_network m = {.sandbox = str_of(id), .allow_out = entries(&a, (const char *const[]){allow, NULL}), .deny_out = entries(&d, (const char *const[]){deny, NULL})};
	if (internet >= 0)
		msg_set(&m, network, internet, internet);
	return send_front(MSG_ID_network, &m);
}

static void a_network_policy_is_kept(void **state)
{
	cleanup_buf struct buf allow = BUF_INIT, deny = BUF_INIT;
	struct msg_create m = want();
	msg_set(&m, create, allow_out, entries(&allow, (const char *const[]){"1.1.1.1", "2.2.2.0/24", NULL}));
	msg_set(&m, create, deny_out, entries(&deny, (const char *const[]){"0.0.0.0/0", NULL}));
	const char *id = create_with(&m);
	struct fake_box *box = fake_find(id);
	assert_string_equal(box->allow, "1.1.1.1 2.2.2.0/24");
	assert_string_equal(box->deny, "0.0.0.0/0");
	assert_true(box->internet && msg_has(&got.sandbox, sandbox, allow_out) && !msg_has(&got.sandbox, sandbox, internet));
	/* A restart puts it in force again, whatever is there (case 139). */
	strcpy(box->deny, "9.9.9.9");
	restart();
	assert_string_equal(fake_find(id)->deny, "0.0.0.0/0");
	/* Replaced whole: what is not given is cleared, as is what was said of the internet. */
	subscribe();
	assert_int_equal(answer(send_network(id, NULL, "3.3.3.3", 0)), MSG_ID_ok);
	assert_true(last_event(id));
	assert_string_equal(fake_find(id)->allow, "");
	assert_string_equal(fake_find(id)->deny, "3.3.3.3");
	assert_false(fake_find(id)->internet);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE internet = 0 AND length(allow_out) = 0 AND length(deny_out) > 0"), 1);
	restart();
	assert_string_equal(fake_find(id)->deny, "3.3.3.3");
	assert_false(fake_find(id)->internet);
	assert_int_equal(answer(send_network(id, "4.4.4.4", NULL, -1)), MSG_ID_ok);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE internet IS NULL"), 1);
	/* What the backend refuses, or cannot do, changes nothing. */
	expect_error(answer(send_network(id, "bad", NULL, -1)), 400, "allowOut");
	fake->network_fails = true;
	expect_error(answer(send_network(id, NULL, NULL, 0)), 500, "nftables");
	fake->network_fails = false;
	assert_string_equal(fake_find(id)->allow, "4.4.4.4");
	restart();
	assert_string_equal(fake_find(id)->allow, "4.4.4.4");
	expect_error(answer(send_network("inobody", NULL, NULL, -1)), 404, "not found");
}

/* The two records do not undo each other, whichever comes first. */
static void a_network_policy_changes_while_a_pause_begins(void **state)
{
	const char *id = create();
	struct msg_pause p = {.sandbox = str_of(id), .memory = true};
	fake->network_waits = true;
	uint64_t change = send_network(id, NULL, "7.7.7.7", -1), pause;
	settle();
	fake->network_waits = false;
	pause = send_front(MSG_ID_pause, &p);
	fake_step_networks();
	assert_int_equal(answer(change), MSG_ID_ok);
	assert_int_equal(answer(pause), MSG_ID_ok);
	settle();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 4 AND length(deny_out) > 0"), 1);
	assert_string_equal(fake_find(id)->deny, "7.7.7.7");
	expect_error(answer(send_network(id, NULL, NULL, -1)), 409, "not running");
	restart();
	assert_string_equal(fake_find(id)->deny, "7.7.7.7");
}

static void changes_of_a_network_policy_wait_for_each_other(void **state)
{
	const char *id = create();
	uint64_t requests[4];
	fake->network_waits = true;
	for (int i = 0; i < 4; i++)
		requests[i] = send_network(id, (const char *const[]){"1.1.1.1", "2.2.2.2", "bad", "4.4.4.4"}[i], NULL, -1);
	settle();
	fake->network_waits = false;
	assert_int_equal(fake_step_networks(), 1);
	/* Answers are read in the order asked. */
	assert_int_equal(answer(requests[0]), MSG_ID_ok);
	assert_int_equal(answer(requests[1]), MSG_ID_ok);
	expect_error(answer(requests[2]), 400, "bad");
	assert_int_equal(answer(requests[3]), MSG_ID_ok);
	assert_string_equal(fake_find(id)->allow, "4.4.4.4");
	/* A kill in between: who waits is told. */
	fake->network_waits = true;
	requests[0] = send_network(id, "5.5.5.5", NULL, -1);
	requests[1] = send_network(id, "6.6.6.6", NULL, -1);
	settle();
	uint64_t kill = send_kill(id);
	expect_error(answer(requests[0]), 404, "not found");
	expect_error(answer(requests[1]), 404, "not found");
	assert_int_equal(answer(kill), MSG_ID_ok);
	expect_error(answer(send_network(id, NULL, NULL, -1)), 404, "not found");
}

static void wrong_creates_are_refused(void **state)
{
	struct msg_create m = want();
	m.template = STR("nothing");
	refuse_create(m, 404, "template 'nothing' not found");
	for (const int64_t *t = (const int64_t[]){0, -2, -3600, INT64_MIN, 0x7fff}; *t != 0x7fff; t++) {
		m = want();
		m.timeout = *t;
		refuse_create(m, 400, "Timeout must be greater than 0");
	}
	m = want();
	m.timeout = options.timeout_max + 1;
	refuse_create(m, 400, "timeout");
	m = want();
	m.team = STR("");
	refuse_create(m, 400, "team");
	for (int i = 0; i < 4; i++) {
		static const struct str bad[][2] = {{STR(""), STR("x")}, {STR("A=B"), STR("x")}, {STR("A\0B"), STR("x")}, {STR("A"), STR("x\0y")}};
		m = want();
		msg_map_add(&envs, bad[i][0], bad[i][1]);
		m.envs.raw = buf_str(&envs);
		refuse_create(m, 400, "envVars");
	}
	static char big[32700];
	memset(big, 'x', sizeof(big));
	m = want();
	buf_clear(&envs);
	msg_map_add(&envs, STR("BIG"), str_n(big, sizeof(big)));
	m.envs.raw = buf_str(&envs);
	refuse_create(m, 400, "envVars");
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	assert_int_equal(node->live.count, 0);
	assert_int_equal(node->admission.sandboxes, 0);
	create();
}

static void a_create_that_fails_leaves_nothing(void **state)
{
	struct msg_create m = want();
	fake->start = FAKE_FAIL;
	expect_error(answer(send_front(MSG_ID_create, &m)), 500, "refuses to start");
	fake->start = FAKE_AUTO;
	fake->full = true;
	expect_error(answer(send_front(MSG_ID_create, &m)), 503, "no slot");
	fake->full = false;
	settle();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	assert_int_equal(rows("SELECT count(*) FROM ends"), 0);
	assert_int_equal(node->admission.sandboxes, 0);
	assert_int_equal(node->admission.memory_mb, 0);
	assert_int_equal(node->live.count, 0);
	assert_int_equal(n_events, 0); /* nobody heard of them */
}

static void a_box_that_dies_while_it_is_made_fails_the_create(void **state)
{
	struct msg_create m = want();
	fake->start = FAKE_MANUAL;
	uint64_t request = send_front(MSG_ID_create, &m);
	settle();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 1"), 1);
	assert_int_equal(fake_step_starts(), 1);
	fake_die(fake->machine[0].id, "oom_killed", "limit 256 MiB");
	expect_error(answer(request), 500, "oom_killed");
	settle();
	assert_int_equal(fake_alive(), 0);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	assert_int_equal(node->admission.sandboxes, 0);
}

/* Kill */

static void kill_is_answered_after_the_end_and_then_it_is_unknown(void **state)
{
	subscribe();
	create();
	char id[33];
	memcpy(id, last_id, sizeof(id));
	fake->kill = FAKE_MANUAL;
	uint64_t first = send_kill(id);
	settle();
	/* The intent is there before anything is dead. */
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 6 AND reason = 'killed'"), 1);
	uint64_t second = send_kill(id);
	settle();
	expect_error(timeout_of(id, TIMEOUT_CONNECT, 60), 409, "is being killed");
	expect_error(timeout_of(id, TIMEOUT_SET, 60), 409, "is being killed");
	assert_int_equal(fake->kills, 1);
	assert_int_equal(fake_step_kills(), 1);
	/* Both were waiting, and both are told; which comes first does not matter. */
	unsigned oks = 0;
	for (int i = 0; i < 2000 && oks < 2; i++) {
		uint64_t request;
		loop_turn(loop, 5);
		for (unsigned type; (type = receive(&request));)
			if (request == first || request == second) {
				assert_int_equal(type, MSG_ID_ok);
				assert_int_equal(rows("SELECT count(*) FROM ends WHERE reason = 'killed'"), 1);
				oks++;
			}
	}
	assert_int_equal(oks, 2);
	assert_int_equal(n_events, 3);
	assert_int_equal(events[0].state, SANDBOX_RUNNING);
	assert_int_equal(events[1].state, SANDBOX_KILLING);
	assert_int_equal(events[2].state, SANDBOX_GONE);
	assert_string_equal(events[2].reason, "killed");
	assert_true(events[2].ended_at > 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(events[i].sequence, (uint64_t)i + 1);
	expect_error(answer(send_kill(id)), 404, "not found");
	assert_null(strstr(storage, "template"));
	expect_error(timeout_of(id, TIMEOUT_SET, 5), 404, "not found");
	expect_error(answer(send_kill("nonsense")), 404, "sandbox nonsense not found");
	assert_int_equal(node->admission.sandboxes, 0);
}

static void a_kill_goes_on_when_the_front_is_gone(void **state)
{
	char id[33];
	memcpy(id, create(), sizeof(id));
	fake->kill = FAKE_MANUAL;
	send_kill(id);
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 5);
	close(steal_fd(&front));
	front_is_gone();
	assert_int_equal(fake_step_kills(), 1);
	open_front();
	settle();
	subscribe();
	assert_int_equal(last_event(id)->state, SANDBOX_GONE);
	assert_string_equal(last_event(id)->reason, "killed");
}

static void how_it_died_is_kept(void **state)
{
	char oom[33], crash[33];
	memcpy(oom, create(), sizeof(oom));
	memcpy(crash, create(), sizeof(crash));
	subscribe();
	fake_die(oom, "oom_killed", "limit 256 MiB");
	fake_die(crash, "", "");
	settle();
	assert_string_equal(last_event(oom)->reason, "oom_killed");
	assert_string_equal(last_event(oom)->detail, "limit 256 MiB");
	assert_string_equal(last_event(crash)->reason, "crashed");
	assert_int_equal(fake->live, 0); /* released too */
	restart();
	subscribe();
	assert_string_equal(last_event(oom)->reason, "oom_killed");
	assert_string_equal(last_event(oom)->detail, "limit 256 MiB");
	/* A day later they are forgotten. */
	machine.wall_shift = 24 * 3600 * NS_PER_S + NS_PER_S;
	restart();
	settle();
	subscribe();
	assert_int_equal(n_events, 0);
}

static void an_intent_outranks_the_evidence(void **state)
{
	char id[33];
	memcpy(id, create(), sizeof(id));
	subscribe();
	fake->kill = FAKE_MANUAL;
	uint64_t request = send_kill(id);
	settle();
	fake_die(id, "oom_killed", "");
	fake_step_kills();
	assert_int_equal(answer(request), MSG_ID_ok);
	assert_string_equal(last_event(id)->reason, "killed");
}

/* While the store refuses, nothing is lost: the processes die, the client is told the truth, and the record follows. */
static void a_full_disk_does_not_keep_a_sandbox_alive(void **state)
{
	char id[33];
	memcpy(id, create(), sizeof(id));
	subscribe();
	struct rlimit before, none = {0, 0};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	none.rlim_max = before.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	assert_int_equal(answer(send_kill(id)), MSG_ID_error);
	assert_true(got.error.status >= 500);
	assert_int_equal(fake->live, 0);
	struct msg_create m = want();
	assert_int_equal(answer(send_front(MSG_ID_create, &m)), MSG_ID_error);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	for (int i = 0; i < 3000 && last_event(id)->state != SANDBOX_GONE; i++) {
		uint64_t request;
		loop_turn(loop, 5);
		while (receive(&request))
			;
	}
	assert_string_equal(last_event(id)->reason, "killed");
	settle();
	assert_int_equal(node->live.count, 0);
	assert_int_equal(node->admission.sandboxes, 0);
	create();
}

/* Events and snapshots */

static void a_snapshot_has_everything_and_can_be_asked_for_again(void **state)
{
	char a[33], b[33];
	memcpy(a, create(), sizeof(a));
	memcpy(b, create(), sizeof(b));
	assert_int_equal(answer(send_kill(a)), MSG_ID_ok);
	assert_int_equal(n_events, 0); /* no events before the subscription */
	for (int i = 0; i < 3; i++) {
		subscribe();
		assert_int_equal(n_templates, 1);
		assert_int_equal(n_events, 2);
		assert_int_equal(last_event(a)->state, SANDBOX_GONE);
		assert_int_equal(last_event(b)->state, SANDBOX_RUNNING);
		if (i == 1)
			restart();
	}
}

static void a_snapshot_waits_for_a_slow_reader(void **state)
{
	static char big[20000];
	memset(big, 'm', sizeof(big));
	struct msg_create m = want();
	buf_clear(&metadata);
	msg_map_add(&metadata, STR("big"), str_n(big, sizeof(big)));
	m.metadata.raw = buf_str(&metadata);
	for (int i = 0; i < 300; i++)
		create_with(&m);
	char killed[33];
	memcpy(killed, last_id, sizeof(killed));
	struct msg_subscribe s = {0};
	assert_int_equal(msg_send_fd(front, MSG_ID_subscribe, &s, 0, NULL, 0, NULL), 0);
	for (int i = 0; i < 50; i++)
		loop_turn(loop, 1);
	/* Nobody reads: what is queued stays small, and what happens meanwhile is not lost. */
	assert_true(chan_queued(node->front->chan) < 4 * MIB);
	send_kill(killed);
	for (int i = 0; i < 20; i++)
		loop_turn(loop, 1);
	synced = false;
	for (int i = 0; i < 20000 && !synced; i++) {
		uint64_t request;
		receive(&request);
		loop_turn(loop, 0);
	}
	assert_true(synced);
	settle();
	unsigned running = 0;
	for (size_t i = 0; i < FAKE_BOXES; i++)
		running += fake->machine[i].alive && last_event(fake->machine[i].id)->state == SANDBOX_RUNNING;
	assert_int_equal(running, 299);
	assert_int_equal(last_event(killed)->state, SANDBOX_GONE);
}

static void templates_are_read_again_on_demand(void **state)
{
	subscribe();
	struct msg_reload_templates m = {0};
	write_template("zzzzzzzzzzzzzzzzzzzz", "other");
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &m)), MSG_ID_ok);
	assert_int_equal(n_templates, 2);
	struct msg_create c = want();
	c.template = STR("other");
	create_with(&c);
	char path[160];
	snprintf(path, sizeof(path), "%s/templates/zzzzzzzzzzzzzzzzzzzz.json", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &m)), MSG_ID_ok);
	assert_int_equal(n_templates_gone, 1);
	refuse_create(c, 404, "template 'other' not found");
	assert_int_equal(fake_alive(), 1);
}

static void a_template_is_described(void **state)
{
	struct msg_describe_template m = {.team = STR("default"), .template = STR("base")};
	assert_int_equal(answer(send_front(MSG_ID_describe_template, &m)), MSG_ID_template_description);
	cleanup_free char *text = str_dup(got.template_description.description);
	assert_non_null(strstr(text, "\"memoryMB\": 256"));
	assert_non_null(strstr(text, "images/aa.erofs"));
	assert_null(strstr(text, "alias"));
	m.template = STR("none");
	expect_error(answer(send_front(MSG_ID_describe_template, &m)), 404, "there is no template 'none'");
}

static void a_front_that_breaks_the_rules_is_cut_off(void **state)
{
	create();
	assert_int_equal(send(front, "garbage", 7, 0), 7);
	front_is_gone();
	open_front();
	/* A message that only another may send. */
	struct msg_ready m = {0};
	assert_int_equal(msg_send_fd(front, MSG_ID_ready, &m, 1, NULL, 0, NULL), 0);
	front_is_gone();
	open_front();
	create();
	assert_int_equal(fake_alive(), 2);
}

static void a_new_front_replaces_the_old_one(void **state)
{
	struct msg_create m = want();
	fake->start = FAKE_MANUAL;
	send_front(MSG_ID_create, &m);
	settle();
	int old = steal_fd(&front);
	open_front();
	char byte;
	ssize_t n = -1;
	for (int i = 0; i < 5000 && n < 0; i++) {
		loop_turn(loop, 10);
		n = recv(old, &byte, 1, MSG_DONTWAIT);
	}
	assert_int_equal(n, 0);
	close(old);
	subscribe();
	assert_int_equal(n_events, 0);
	/* The create that nobody waits for any more goes on; the new front hears of it. */
	assert_int_equal(fake_step_starts(), 1);
	settle();
	assert_int_equal(n_events, 1);
	assert_int_equal(events[0].state, SANDBOX_RUNNING);
}

/* Reaching a port */

static unsigned open_port(const char *id, uint64_t port)
{
	struct msg_open m = {.sandbox = str_of(id), .port = port};
	return answer(send_front(MSG_ID_open, &m));
}

static void a_port_is_opened_by_descriptor(void **state)
{
	const char *id = create();
	char generation[33], bytes[8] = "";
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	assert_int_equal(open_port(id, 8080), MSG_ID_stream);
	assert_str(got.stream.generation, generation);
	assert_int_equal(read(got_fd, bytes, sizeof(bytes)), 5);
	assert_string_equal(bytes, "hello");
	expect_error(open_port(id, 0), 400, "port");
	expect_error(open_port(id, 65536), 400, "port");
	expect_error(open_port("i00000000000000000000", 80), 404, "sandbox i00000000000000000000 not found");
	fake->open_result = -ECONNREFUSED;
	expect_error(open_port(id, 80), 502, "80");
	assert_int_equal(got.error.code, -ECONNREFUSED);
	fake->open_result = -ETIMEDOUT;
	expect_error(open_port(id, 80), 502, "80");
	fake->open_result = 0;
	fake->open_refused = -EAGAIN;
	expect_error(open_port(id, 80), 503, "too many connections");
	fake->open_refused = -ENOTCONN;
	expect_error(open_port(id, 80), 502, "monitor cannot be reached");
	assert_int_equal(got.error.code, -ECONNREFUSED);
	fake->open_refused = 0;
	fake->kill = FAKE_MANUAL;
	send_kill(id);
	settle();
	expect_error(open_port(id, 80), 404, "not found");
	fake_step_kills();
	settle();
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(create_is_answered_when_it_runs_and_is_recorded),
		T(tokens_follow_the_settings_and_differ),
		T(a_network_policy_is_kept),
		T(a_network_policy_changes_while_a_pause_begins),
		T(changes_of_a_network_policy_wait_for_each_other),
		T(wrong_creates_are_refused),
		T(a_create_that_fails_leaves_nothing),
		T(a_box_that_dies_while_it_is_made_fails_the_create),
		T(kill_is_answered_after_the_end_and_then_it_is_unknown),
		T(a_kill_goes_on_when_the_front_is_gone),
		T(how_it_died_is_kept),
		T(an_intent_outranks_the_evidence),
		T(a_full_disk_does_not_keep_a_sandbox_alive),
		T(a_snapshot_has_everything_and_can_be_asked_for_again),
		T(a_snapshot_waits_for_a_slow_reader),
		T(templates_are_read_again_on_demand),
		T(a_template_is_described),
		T(a_front_that_breaks_the_rules_is_cut_off),
		T(a_new_front_replaces_the_old_one),
		T(a_port_is_opened_by_descriptor),
	};
	return node_world_run(tests);
}
