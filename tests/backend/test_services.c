/* Services of a template in a real sandbox: reachable from the first moment, in the sandbox's limits, and there again whatever ends them. */
#include "backend/world.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

enum { PORT = 8080 };

/* A sandbox with the probe as a service on PORT, as `user`. */
static void run(struct world *w, struct patient *p, const char *user)
{
	cleanup_buf struct buf services = BUF_INIT, envs = BUF_INIT;
	struct box_spec spec = world_spec(w, "iserve");
	world_add_service(&services, "probe", user, "8080", "/bin/probe serve");
	msg_map_add(&envs, STR("A"), STR("of-the-create"));
	spec.services = (struct msg_list){buf_str(&services)};
	spec.envs = (struct msg_map){buf_str(&envs)};
	patient_create(w, p, &spec);
	wait_for(w, &p->started, "a sandbox to start");
	if (p->failed)
		fail_msg("%s", p->error.message);
}

static int open_port(struct world *w, struct patient *p)
{
	int fd = world_open(w, p, PORT);
	if (fd < 0)
		fail_msg("port %d: %s", PORT, strerror(-fd));
	return fd;
}

/* Says `word` on the connection, closes it after the answer: what came. */
static const char *say(struct world *w, int fd, const char *word)
{
	static char text[256];
	size_t n = 0;
	ssize_t got = 1;
	assert_int_equal(fd_write_all(fd, word, strlen(word)), 0);
	for (int rounds = 0; got > 0 && n < sizeof(text) - 1;) {
		struct pollfd q = {.fd = fd, .events = POLLIN};
		loop_turn(w->loop, 0); /* node attaches a new spawner */
		if (poll(&q, 1, 20) > 0)
			got = read(fd, text + n, sizeof(text) - 1 - n);
		else if (rounds++ > 1500)
			fail_msg("the service is silent");
		else
			continue;
		n += got > 0 ? (size_t)got : 0;
	}
	text[n] = '\0';
	close(fd);
	return text;
}

static int pid_of(const char *answer)
{
	int pid = atoi(answer);
	if (pid < 2)
		fail_msg("the service said «%s»", answer);
	return pid;
}

static void start(struct world *w)
{
	world_init(w);
	world_set(w, "sandbox.pids", "40");
	world_start(w);
	world_ready(w);
}

static void stop(struct world *w, struct patient *p)
{
	patient_kill(w, p);
	world_stop(w);
	world_done(w);
}

static void it_is_there_when_the_create_is_answered(void **state)
{
	struct world w;
	struct patient p;
	char script[160], expected[80];
	start(&w);
	run(&w, &p, "user");
	/* Connected at once: it may not have begun to run. */
	int pid = pid_of(say(&w, open_port(&w, &p), "who"));
	snprintf(expected, sizeof(expected), "%d 1000 of-the-create /home/user\n", pid);
	assert_string_equal(say(&w, open_port(&w, &p), "who"), expected);
	/* From inside too; among the commands, with a command's score. */
	snprintf(script, sizeof(script), "echo who | nc 127.0.0.1 %d; cat /proc/%d/oom_score_adj; grep -c /work$ /proc/%d/cgroup | grep -c ^0", PORT, pid, pid);
	snprintf(expected, sizeof(expected), "%d 1000 of-the-create /home/user\n500\n0\n", pid);
	cleanup_buf struct buf out = BUF_INIT;
	inside(&w, &p, "root", script, &out);
	assert_string_equal(buf_cstr(&out), expected);
	stop(&w, &p);
}

static void a_hundred_kills_in_a_row_close_no_port(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf out = BUF_INIT;
	start(&w);
	run(&w, &p, "root");
	int first = pid_of(say(&w, open_port(&w, &p), "who"));
	expect_inside(&w, &p, "(i=0; while [ $i -lt 100 ]; do kill -9 $(pidof probe); i=$((i+1)); usleep 10000; done; touch /over) >/dev/null 2>&1 & echo", "\n");
	for (int i = 0; i < 50; i++) {
		close(open_port(&w, &p));
		turn(&w, 20);
	}
	expect_inside(&w, &p, "while ! test -e /over; do usleep 10000; done; echo over", "over\n");
	/* One that is about to die may take a connection with it. */
	const char *answer = "";
	for (int i = 0; i < 50 && !*answer; i++)
		answer = say(&w, open_port(&w, &p), "who");
	assert_int_not_equal(pid_of(answer), first);
	/* Each start had its pause: 0, 100, 200, 400, 800 ms, so a second of kills met only a few. */
	inside(&w, &p, "user", "wget -qO- http://127.0.0.1:49983/services", &out);
	const char *starts = strstr(buf_cstr(&out), "\"starts\":");
	assert_non_null(starts);
	assert_in_range(atoi(starts + 9), 2, 20);
	stop(&w, &p);
}

static void it_comes_back_after_a_fork_bomb(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	run(&w, &p, "root");
	int first = pid_of(say(&w, open_port(&w, &p), "who"));
	expect_inside_as(&w, &p, "user", "probe bomb 3 >/dev/null 2>&1 & echo", "\n");
	/* Its place is taken at once. */
	assert_string_equal(say(&w, open_port(&w, &p), "die"), "");
	assert_int_not_equal(pid_of(say(&w, open_port(&w, &p), "who")), first);
	stop(&w, &p);
}

static void it_comes_back_when_memory_runs_out(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf out = BUF_INIT;
	start(&w);
	run(&w, &p, "root");
	int first = pid_of(say(&w, open_port(&w, &p), "who"));
	/* The limit is 128 MB. A command takes more, then the service itself. */
	assert_int_equal(inside(&w, &p, "user", "dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null; exit $?", &out), 137);
	pid_of(say(&w, open_port(&w, &p), "who"));
	assert_string_equal(say(&w, open_port(&w, &p), "eat"), "");
	assert_int_not_equal(pid_of(say(&w, open_port(&w, &p), "who")), first);
	stop(&w, &p);
}

static void it_outlives_the_node(void **state)
{
	struct world w;
	struct patient p, q = {0};
	struct error err = {0};
	start(&w);
	run(&w, &p, "root");
	int pid = pid_of(say(&w, open_port(&w, &p), "who"));
	world_stop(&w);
	world_start(&w);
	q.box = box_adopt(w.backend, STR("iserve"), p.handle.text, &any_network, &patient_ops, &q, &err);
	assert_non_null(q.box);
	wait_for(&w, &q.started, "the adoption");
	if (q.failed)
		fail_msg("%s", q.error.message);
	world_ready(&w);
	assert_int_equal(pid_of(say(&w, open_port(&w, &q), "who")), pid);
	assert_string_equal(say(&w, open_port(&w, &q), "die"), "");
	assert_int_not_equal(pid_of(say(&w, open_port(&w, &q), "who")), pid);
	stop(&w, &q);
}

static void frozen_and_thawed_it_serves_who_waited(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	run(&w, &p, "root");
	int pid = pid_of(say(&w, open_port(&w, &p), "who"));
	assert_int_equal(box_freeze(p.box, true), 0);
	int fd = open_port(&w, &p);
	turn(&w, 200);
	char byte;
	assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(box_freeze(p.box, false), 0);
	assert_int_equal(pid_of(say(&w, fd, "who")), pid);
	stop(&w, &p);
}

/* Asks for a sandbox that is waited for, with a shell script as its start command, and this shell script as its ready command. */
static void await_start(struct world *w, struct patient *p, const char *start, const char *ready, uint16_t probe)
{
	cleanup_buf struct buf services = BUF_INIT, options = BUF_INIT, item = BUF_INIT, command = BUF_INIT;
	struct box_spec spec = world_spec(w, "iwait");
	const char *const parts[] = {"start", "root", "", "/bin/sh", "-c", start}, *const words[] = {"/bin/sh", "-c", ready};
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
		msg_list_add(&item, str_of(parts[i]));
	msg_list_add(&services, buf_str(&item));
	buf_clear(&item);
	msg_list_add(&item, STR("/tmp"));
	msg_list_add(&item, STR("once"));
	msg_list_add(&item, STR(""));
	msg_list_add(&options, buf_str(&item));
	for (size_t i = 0; ready && i < ARRAY_SIZE(words); i++)
		msg_list_add(&command, str_of(words[i]));
	spec.services = (struct msg_list){buf_str(&services)};
	spec.service_options = (struct msg_list){buf_str(&options)};
	spec.ready = (struct msg_list){buf_str(&command)};
	spec.probe_port = probe;
	spec.probe_path = probe ? STR("/health") : STR("");
	spec.wait_ready = true;
	patient_create(w, p, &spec);
}

static void a_create_waits_for_what_was_started(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	/* In the directory of the start command, and in the background of one that has ended. */
	await_start(&w, &p, "sleep 1000 & (sleep 0.3; echo up > new; mv new up) & exit 1", "pwd > where; test -e up", 0);
	wait_for(&w, &p.started, "a sandbox to start");
	if (p.failed)
		fail_msg("%s", p.error.message);
	expect_inside(&w, &p, "cat /tmp/up /tmp/where; pidof sleep > /dev/null && echo there", "up\n/tmp\nthere\n");
	stop(&w, &p);
}

static void a_create_waits_for_the_probe(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	await_start(&w, &p, "n=0; while :; do n=$((n+1)); test $n -gt 2 && s='200 OK' || s='503 Not yet'; echo $n > /tmp/n; printf \"HTTP/1.1 $s\\r\\n\\r\\n\" | nc -l -p 8081 > /dev/null; done", NULL, 8081);
	wait_for(&w, &p.started, "a sandbox to start");
	if (p.failed)
		fail_msg("%s", p.error.message);
	expect_inside(&w, &p, "test $(cat /tmp/n) -ge 3 && echo yes", "yes\n");
	stop(&w, &p);
}

/* With a start command that is not there. */
static void start_nothing(struct world *w, struct patient *p, bool unassigned)
{
	cleanup_buf struct buf services = BUF_INIT, options = BUF_INIT, item = BUF_INIT;
	struct box_spec spec = world_spec(w, "iwait");
	world_add_service(&services, "start", "root", "", "/bin/bash -l -c something");
	msg_list_add(&item, STR(""));
	msg_list_add(&item, STR("once"));
	msg_list_add(&item, STR(""));
	msg_list_add(&options, buf_str(&item));
	spec.services = (struct msg_list){buf_str(&services)};
	spec.service_options = (struct msg_list){buf_str(&options)};
	spec.wait_ready = true;
	spec.unassigned = unassigned;
	patient_create(w, p, &spec);
}

static void a_pool_learns_that_it_will_never_be_ready(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	start_nothing(&w, &p, true);
	wait_for(&w, &p.unready, "the start command to fail");
	assert_true(p.started && !p.failed && !p.prepared);
	assert_non_null(strstr(p.why, "service 'start': cannot start '/bin/bash'"));
	stop(&w, &p);
}

static void what_cannot_be_started_fails_the_create(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	start_nothing(&w, &p, false);
	wait_for(&w, &p.failed, "a create to fail");
	assert_int_equal(p.error.status, 504);
	assert_non_null(strstr(p.error.message, "service 'start': cannot start '/bin/bash'"));
	world_stop(&w);
	world_done(&w);
}

static void who_waits_can_be_killed(void **state)
{
	struct world w;
	struct patient p;
	start(&w);
	await_start(&w, &p, "sleep 1000", "false", 0);
	wait_for(&w, &p.programs, "the programs to run");
	turn(&w, 300);
	assert_false(p.started || p.failed);
	/* Its disk is looked at, and it can be frozen, like that of any. */
	struct box_space space;
	assert_int_equal(box_space(p.box, &space), 0);
	assert_true(space.total > 0);
	assert_int_equal(box_freeze(p.box, true), 0);
	turn(&w, 100);
	assert_int_equal(box_freeze(p.box, false), 0);
	box_kill(p.box);
	wait_for(&w, &p.released, "a sandbox to end");
	world_stop(&w);
	world_done(&w);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_there_when_the_create_is_answered),
		cmocka_unit_test(a_hundred_kills_in_a_row_close_no_port),
		cmocka_unit_test(it_comes_back_after_a_fork_bomb),
		cmocka_unit_test(it_comes_back_when_memory_runs_out),
		cmocka_unit_test(it_outlives_the_node),
		cmocka_unit_test(frozen_and_thawed_it_serves_who_waited),
		cmocka_unit_test(a_create_waits_for_what_was_started),
		cmocka_unit_test(a_create_waits_for_the_probe),
		cmocka_unit_test(what_cannot_be_started_fails_the_create),
		cmocka_unit_test(a_pool_learns_that_it_will_never_be_ready),
		cmocka_unit_test(who_waits_can_be_killed),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
