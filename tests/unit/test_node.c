#include "node_world.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The node's service with a fake backend and a fake machine; the test is the front. */

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

/* Time */

static int64_t end_at(void)
{
	assert_true(got.sandbox.state == SANDBOX_RUNNING);
	return got.sandbox.end_at;
}

static void deadlines_follow_the_table(void **state)
{
	subscribe();
	const char *id = create();
	int64_t created = end_at();
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 60), MSG_ID_sandbox);
	assert_int_equal(end_at(), created); /* never shortens, to the nanosecond */
	assert_int_equal(timeout_of(id, TIMEOUT_REFRESH, 60), MSG_ID_sandbox);
	assert_int_equal(end_at(), created);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 0), MSG_ID_sandbox);
	assert_int_equal(end_at(), created);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 600), MSG_ID_sandbox);
	assert_true(end_at() >= created + 299 * NS_PER_S);
	int64_t longer = end_at();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE end_at > started_at + 590000000000"), 1);
	assert_int_equal(last_event(id)->end_at, longer);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
	assert_true(end_at() < created);
	int64_t shorter = end_at();
	expect_error(timeout_of(id, TIMEOUT_SET, -2), 400, "timeout");
	expect_error(timeout_of(id, TIMEOUT_CONNECT, INT64_MIN), 400, "timeout");
	expect_error(timeout_of(id, TIMEOUT_SET, INT64_MAX), 400, "timeout.max");
	expect_error(timeout_of(id, (enum timeout_mode)9, 10), 400, "mode");
	assert_int_equal(timeout_of(id, TIMEOUT_REFRESH, 1), MSG_ID_sandbox);
	assert_int_equal(end_at(), shorter);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, -1), MSG_ID_sandbox);
	assert_int_equal(end_at(), INT64_MAX);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 600), MSG_ID_sandbox);
	assert_int_equal(end_at(), INT64_MAX);
	machine.boot_shift = 100LL * 86400 * NS_PER_S;
	node_expire(node);
	settle();
	assert_int_equal(last_event(id)->state, SANDBOX_RUNNING);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 0), MSG_ID_sandbox);
	settle();
	assert_int_equal(last_event(id)->state, SANDBOX_GONE);
	assert_string_equal(last_event(id)->reason, "timeout");
}

static void the_deadline_needs_no_front(void **state)
{
	struct msg_create m = want();
	char early[33], late[33];
	m.timeout = 1000;
	memcpy(early, create_with(&m), sizeof(early));
	m.timeout = 2000;
	memcpy(late, create_with(&m), sizeof(late));
	close(steal_fd(&front));
	machine.boot_shift = 500 * NS_PER_S;
	node_expire(node);
	assert_int_equal(fake_alive(), 2);
	machine.boot_shift = 1500 * NS_PER_S;
	node_expire(node);
	for (int i = 0; i < 5000 && fake_alive() == 2; i++)
		loop_turn(loop, 10);
	assert_int_equal(fake_alive(), 1);
	assert_non_null(fake_find(late));
	open_front();
	settle();
	subscribe();
	assert_string_equal(last_event(early)->reason, "timeout");
	assert_int_equal(last_event(late)->state, SANDBOX_RUNNING);
}

/* The timer itself, with the real clock. */
static void a_deadline_fires_by_itself(void **state)
{
	struct msg_create m = want();
	m.timeout = 1;
	create_with(&m);
	subscribe();
	for (int i = 0; i < 5000 && fake->live; i++)
		loop_turn(loop, 10);
	settle();
	assert_string_equal(last_event(last_id)->reason, "timeout");
}

static void a_step_of_the_wall_clock_moves_what_is_shown_only(void **state)
{
	subscribe();
	char id[33], never[33];
	memcpy(id, create(), sizeof(id));
	int64_t before = end_at(), deadline = live_find(node, str_of(id))->s.deadline;
	struct msg_create m = want();
	m.timeout = -1;
	memcpy(never, create_with(&m), sizeof(never));
	machine.wall_shift = 3600 * NS_PER_S;
	node_clock_stepped(node);
	node_expire(node);
	settle();
	assert_int_equal(fake_alive(), 2);
	int64_t moved = last_event(id)->end_at - before;
	assert_true(moved > 3599 * NS_PER_S && moved < 3601 * NS_PER_S);
	assert_int_equal(last_event(never)->end_at, INT64_MAX);
	assert_int_equal(live_find(node, str_of(id))->s.deadline, deadline);
	machine.wall_shift = -3600 * NS_PER_S;
	node_clock_stepped(node);
	settle();
	moved = last_event(id)->end_at - before;
	assert_true(moved < -3599 * NS_PER_S && moved > -3601 * NS_PER_S);
	/* A step while no node runs is made good at the next start. */
	machine.wall_shift = 0;
	restart();
	subscribe();
	moved = last_event(id)->end_at - before;
	assert_true(moved > -NS_PER_S && moved < NS_PER_S);
	assert_int_equal(fake_alive(), 2);
	machine.boot_shift = 301 * NS_PER_S;
	node_expire(node);
	settle();
	assert_string_equal(last_event(id)->reason, "timeout");
	assert_int_equal(fake_alive(), 1);
}

/* Admission */

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

/* Restarts */

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

static bool log_says(const char *id, const char *text)
{
	struct msg_logs m = {.sandbox = str_of(id)};
	if (answer(send_front(MSG_ID_logs, &m)) != MSG_ID_log_page)
		return false;
	cleanup_buf struct buf page = BUF_INIT;
	buf_add_str(&page, got.log_page.entries);
	return strstr(buf_cstr(&page), text);
}

static void a_log_tells_why_it_ended_and_outlives_the_node(void **state)
{
	char id[33];
	snprintf(id, sizeof(id), "%s", create());
	struct fake_box *box = fake_find(id);
	snprintf(box->log, sizeof(box->log), "{\"n\":1,\"t\":5,\"message\":\"inside\"}\nrubbish\n");
	assert_true(log_says(id, "\"message\":\"created\""));
	assert_true(log_says(id, "-5 {\"message\":\"inside\"}\n"));
	assert_false(log_says(id, "rubbish"));
	fake_die(id, "oom_killed", "evidence");
	settle();
	assert_true(log_says(id, "\"reason\":\"oom_killed\",\"detail\":\"evidence\""));
	restart();
	assert_true(log_says(id, "\"reason\":\"oom_killed\",\"detail\":\"evidence\""));
	assert_true(log_says(id, "inside"));
	struct msg_logs unknown = {.sandbox = STR("iaaaaaaaaaaaaaaaaaaaa")}, forged = {.sandbox = STR("../node.db")};
	expect_error(answer(send_front(MSG_ID_logs, &unknown)), 404, "not found");
	expect_error(answer(send_front(MSG_ID_logs, &forged)), 404, "");
	/* After a day it goes. */
	machine.wall_shift += 25LL * 3600 * NS_PER_S;
	logs_prune(node);
	expect_error(answer(send_front(MSG_ID_logs, &(struct msg_logs){.sandbox = str_of(id)})), 404, "not found");
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

static void a_restarted_node_finds_its_sandboxes(void **state)
{
	struct msg_create m = want();
	m.public_traffic = false;
	char id[33], dead[33], envd[65], traffic[65], generation[33];
	memcpy(dead, create(), sizeof(dead));
	memcpy(id, create_with(&m), sizeof(id));
	sandbox_copy(envd, sizeof(envd), got.sandbox.envd_token);
	sandbox_copy(traffic, sizeof(traffic), got.sandbox.traffic_token);
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	int64_t ends = end_at();
	leave();
	fake_die(dead, "oom_killed", "while no node ran");
	fake_find(id)->frozen = true;
	fake_find(id)->brake = 0;
	start();
	assert_int_equal(fake->adopts, 2);
	assert_int_equal(fake->readies, 2);
	subscribe();
	assert_int_equal(n_events, 2);
	assert_int_equal(last_event(id)->state, SANDBOX_RUNNING);
	assert_string_equal(last_event(dead)->reason, "oom_killed");
	assert_string_equal(last_event(dead)->detail, "while no node ran");
	assert_false(fake_find(id)->frozen);
	assert_true(fake_find(id)->brake == BOX_NO_BRAKE);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 1), MSG_ID_sandbox);
	assert_str(got.sandbox.envd_token, envd);
	assert_str(got.sandbox.traffic_token, traffic);
	assert_str(got.sandbox.generation, generation);
	assert_str(got.sandbox.team, "team-1");
	struct str rest = got.sandbox.metadata.raw, key, value;
	assert_true(msg_map_next(&rest, &key, &value));
	assert_str(value, "v");
	assert_int_equal(end_at(), ends);
	assert_int_equal(node->admission.sandboxes, 1);
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	assert_int_equal(fake->live, 0);
}

static void a_deadline_that_passed_meanwhile_ends_it_at_once(void **state)
{
	create();
	leave();
	machine.boot_shift = 400 * NS_PER_S;
	start();
	node_expire(node);
	for (int i = 0; i < 5000 && fake->live; i++)
		loop_turn(loop, 10);
	settle();
	subscribe();
	assert_string_equal(last_event(last_id)->reason, "timeout");
}

static void after_a_reboot_all_is_host_lost(void **state)
{
	char a[33];
	memcpy(a, create(), sizeof(a));
	create();
	leave();
	host.boot_id[0] = '9';
	fake_reset();
	start();
	assert_int_equal(fake->adopts, 0);
	subscribe();
	assert_int_equal(n_events, 2);
	assert_string_equal(events[0].reason, "host_lost");
	assert_string_equal(events[1].reason, "host_lost");
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	expect_error(answer(send_kill(a)), 404, "not found");
}

static void a_silent_init_does_not_hold_up_the_node(void **state)
{
	create();
	char other[33];
	memcpy(other, last_id, sizeof(other));
	leave();
	fake->silent = true;
	struct error err = {0};
	loop = loop_new();
	struct node_config c = {loop, &options, &host, dir, "/bin/false"};
	assert_int_equal(node_new(&c, &node, &err), 0);
	node->adopt_patience = 50 * NS_PER_MS;
	ready = false;
	assert_int_equal(node_start(node, on_flag, &ready, &err), 0);
	turn_until(&ready);
	open_front();
	settle();
	subscribe();
	assert_string_equal(last_event(other)->reason, "crashed");
	assert_int_equal(fake->live, 0);
}

static void records_nobody_understands_are_resolved(void **state)
{
	static const char *const versions[RECORDS_VERSION] = {""};
	char path[128];
	create();
	create();
	create();
	leave();
	struct store *s = NULL;
	snprintf(path, sizeof(path), "%s/node.db", dir);
	assert_int_equal(store_open(path, 0, versions, RECORDS_VERSION, &s, NULL), 0);
	assert_int_equal(store_exec(s, "UPDATE sandboxes SET handle = 'from the future' WHERE rowid = 1", NULL), 0);
	assert_int_equal(store_exec(s, "UPDATE sandboxes SET state = 99 WHERE rowid = 2", NULL), 0);
	store_free(s);
	start();
	subscribe();
	unsigned crashed = 0;
	for (size_t i = 0; i < n_events; i++)
		crashed += strcmp(events[i].reason, "crashed") == 0;
	assert_int_equal(crashed, 2);
	assert_int_equal(fake_alive(), 1); /* the rest was swept */
}

/* A node in a child process that ends without a word at the given point. */
static void crash(enum fake_crash point, void (*doing)(void))
{
	leave();
	fake->crash = point;
	pid_t pid = fork();
	if (pid == 0) {
		start();
		doing();
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	fake->crash = CRASH_NOWHERE;
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), FAKE_CRASHED);
	start();
	settle();
}

static void do_create(void)
{
	struct msg_create m = want();
	answer(send_front(MSG_ID_create, &m));
}

static void do_kill(void)
{
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			answer(send_kill(fake->machine[i].id));
}

/* Whatever the moment: what runs is recorded, what is recorded runs, each can be killed. */
static void check_consistent(unsigned alive)
{
	subscribe();
	assert_int_equal(fake_alive(), alive);
	assert_int_equal(fake->live, alive);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), alive);
	assert_int_equal(node->live.count, alive);
	assert_int_equal(node->admission.sandboxes, alive);
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			assert_int_equal(last_event(fake->machine[i].id)->state, SANDBOX_RUNNING);
}

static void a_crash_in_any_step_leaves_nothing_stuck(void **state)
{
	crash(CRASH_IN_CREATE, do_create);
	check_consistent(0);
	crash(CRASH_STARTED, do_create);
	check_consistent(0); /* nobody was told of it; the sweep took it */
	create();
	crash(CRASH_IN_KILL, do_kill);
	check_consistent(0); /* the kill was intended, so it is done */
	assert_string_equal(last_event(last_id)->reason, "killed");
	create();
	crash(CRASH_KILLED, do_kill);
	check_consistent(0);
	assert_string_equal(last_event(last_id)->reason, "killed");
	create();
	check_consistent(1);
	assert_int_equal(answer(send_kill(last_id)), MSG_ID_ok);
	check_consistent(0);
}

static void churn(void)
{
	for (;;) {
		struct msg_create m = want();
		for (int i = 0; i < 8; i++)
			send_front(MSG_ID_create, &m);
		settle();
		for (size_t i = 0; i < FAKE_BOXES; i++)
			if (fake->machine[i].alive && i % 3)
				send_kill(fake->machine[i].id);
		for (int i = 0; i < 3; i++)
			loop_turn(loop, 1);
	}
}

static void kill_minus_nine_at_any_moment_is_survived(void **state)
{
	/* At least 20 times, and until something was under way when it was killed. */
	for (unsigned i = 0; i < 20 || (i < 500 && (fake->creates <= 20 || fake->kills <= 5)); i++) {
		leave();
		pid_t pid = fork();
		if (pid == 0) {
			start();
			churn();
		}
		usleep(10000 + i % 20 * 4700);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		start();
		settle();
		check_consistent(fake_alive());
	}
	assert_true(fake->creates > 20 && fake->kills > 5);
}

/* Stop */

static void stop_lets_sandboxes_run_and_waits_for_what_is_in_flight(void **state)
{
	create();
	struct msg_create m = want();
	fake->start = FAKE_MANUAL;
	uint64_t request = send_front(MSG_ID_create, &m);
	settle();
	stopped = false;
	node_stop(node, on_flag, &stopped);
	settle();
	assert_false(stopped);
	assert_int_equal(fake->drains, 0);
	refuse_create(m, 503, "stopping");
	assert_int_equal(fake_step_starts(), 1);
	assert_int_equal(answer(request), MSG_ID_sandbox);
	settle();
	assert_true(stopped);
	assert_int_equal(fake->drains, 1);
	fake->start = FAKE_AUTO;
	restart();
	check_consistent(2);
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
		T(deadlines_follow_the_table),
		T(the_deadline_needs_no_front),
		T(a_deadline_fires_by_itself),
		T(a_step_of_the_wall_clock_moves_what_is_shown_only),
		T(two_hundred_at_once_never_pass_the_limits),
		T(a_machine_short_of_memory_stops_admission),
		T(pressure_alone_stops_nobody),
		T(a_full_disk_stops_admission),
		T(a_snapshot_has_everything_and_can_be_asked_for_again),
		T(a_snapshot_waits_for_a_slow_reader),
		T(templates_are_read_again_on_demand),
		T(a_template_is_described),
		T(a_front_that_breaks_the_rules_is_cut_off),
		T(a_new_front_replaces_the_old_one),
		T(a_port_is_opened_by_descriptor),
		T(running_sandboxes_are_sampled),
		T(many_are_sampled_one_after_the_other),
		T(a_log_tells_why_it_ended_and_outlives_the_node),
		T(a_restarted_node_finds_its_sandboxes),
		T(a_deadline_that_passed_meanwhile_ends_it_at_once),
		T(after_a_reboot_all_is_host_lost),
		T(a_silent_init_does_not_hold_up_the_node),
		T(records_nobody_understands_are_resolved),
		T(a_crash_in_any_step_leaves_nothing_stuck),
		T(kill_minus_nine_at_any_moment_is_survived),
		T(stop_lets_sandboxes_run_and_waits_for_what_is_in_flight),
	};
	return node_world_run(tests);
}
