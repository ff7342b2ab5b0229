/* Boxes of a ready pool: nobody's until their services are ready and somebody takes them. */
#include "backend/world.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "config/instance.h"
#include "sys/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>

enum { READY_TRY_S = 25 }; /* guest/ready.h */

/* NULL-terminated. */
static void add_all(struct buf *list, const char *const *words)
{
	for (; *words; words++)
		assert_int_equal(msg_list_add(list, str_of(*words)), 0);
}

/* Unassigned, with the probe as a service on port 8080 and `script` as the ready command (NULL: none). */
static void run_secured(struct world *w, struct patient *p, const char *script, const char *token)
{
	cleanup_buf struct buf services = BUF_INIT, envs = BUF_INIT, ready = BUF_INIT;
	struct box_spec spec = world_spec(w, "iassign");
	world_add_service(&services, "probe", "user", "8080", "/bin/probe serve");
	msg_map_add(&envs, STR("A"), STR("of-nobody"));
	msg_map_add(&envs, STR("B"), STR("of-nobody"));
	if (script)
		add_all(&ready, (const char *const[]){"/bin/sh", "-c", script, NULL});
	spec.services.raw = buf_str(&services);
	spec.ready.raw = buf_str(&ready);
	spec.envs.raw = buf_str(&envs);
	spec.token = str_of(token);
	spec.unassigned = true;
	patient_create(w, p, &spec);
	wait_for(w, &p->started, "a sandbox to start");
	if (p->failed)
		fail_msg("%s", p->error.message);
}

static void run(struct world *w, struct patient *p, const char *script)
{
	run_secured(w, p, script, "");
}

static void start(struct world *w, const char *pool)
{
	world_init(w);
	world_set(w, "pool.min", pool);
	world_set(w, "pool.max", pool);
	world_start(w);
	world_ready(w);
}

static void stop(struct world *w, struct patient *p)
{
	patient_kill(w, p);
	world_stop(w);
	world_done(w);
}

/* What it counts for among the sandboxes; 0 where the machine's cgroups have no weights. */
static unsigned weight(struct world *w, const struct patient *p)
{
	struct instance i;
	struct cgroup_layout l;
	char path[640];
	cleanup_buf struct buf mounts = BUF_INIT, text = BUF_INIT;
	const char *slot = strstr(p->handle.text, "slot="), *v1 = NULL;
	instance_of(&w->options, &i);
	assert_non_null(slot);
	assert_int_equal(file_read(AT_FDCWD, "/proc/self/mounts", 4 << 20, &mounts), 0);
	assert_int_equal(cgroup_layout_parse(buf_str(&mounts), &l), 0);
	for (size_t k = 0; k < l.n_v1; k++)
		if (l.v1[k].cpu)
			v1 = l.v1[k].path;
	snprintf(path, sizeof(path), "%s/%s/s%d/%s", v1 ? v1 : l.v2, i.cgroup, atoi(slot + 5), v1 ? "cpu.shares" : "cpu.weight");
	return file_read(AT_FDCWD, path, 64, &text) < 0 ? 0 : (unsigned)atoi(buf_cstr(&text));
}

/* PID 1, as the host sees it. */
static pid_t pid_of(const struct patient *p)
{
	const char *pid = strstr(p->handle.text, "pid=");
	assert_non_null(pid);
	return (pid_t)atoi(pid + 4);
}

/* Says a request to envd: its answer. */
static void ask(struct world *w, struct patient *p, const char *request, struct buf *answer)
{
	int fd = world_open(w, p, 49983);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, request, strlen(request)), 0);
	for (int rounds = 0;;) {
		char bytes[4096];
		struct pollfd q = {.fd = fd, .events = POLLIN};
		loop_turn(w->loop, 0);
		if (poll(&q, 1, 20) > 0) {
			ssize_t n = read(fd, bytes, sizeof(bytes));
			if (n <= 0)
				break;
			buf_add(answer, bytes, (size_t)n);
		} else if (rounds++ > 1500) {
			fail_msg("envd is silent");
		}
	}
	close(fd);
}

static void it_becomes_somebodys(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT, answer = BUF_INIT;
	start(&w, "0");
	run_secured(&w, &p, NULL, "of-nobody");
	wait_for(&w, &p.prepared, "the services");
	unsigned least = weight(&w, &p);
	ask(&w, &p, "GET /envs HTTP/1.1\r\nHost: x\r\nX-Access-Token: of-nobody\r\nConnection: close\r\n\r\n", &answer);
	assert_non_null(strstr(buf_cstr(&answer), "{\"A\":\"of-nobody\",\"B\":\"of-nobody\"}"));
	msg_map_add(&envs, STR("A"), STR("of-somebody"));
	patient_assign(&w, &p, &envs, "of-somebody");
	assert_string_equal(p.assignment.message, "");
	/* The old token is no one's any more, the new one is wanted at once, and nothing of the old variables is there. */
	buf_clear(&answer);
	ask(&w, &p, "GET /envs HTTP/1.1\r\nHost: x\r\nX-Access-Token: of-nobody\r\nConnection: close\r\n\r\n", &answer);
	assert_non_null(strstr(buf_cstr(&answer), "HTTP/1.1 401"));
	buf_clear(&answer);
	ask(&w, &p, "GET /envs HTTP/1.1\r\nHost: x\r\nX-Access-Token: of-somebody\r\nConnection: close\r\n\r\n", &answer);
	assert_non_null(strstr(buf_cstr(&answer), "\r\n\r\n{\"A\":\"of-somebody\"}"));
	assert_true(least == 0 || weight(&w, &p) >= least * 8);
	stop(&w, &p);
}

static void what_is_started_then_has_the_new_variables(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT;
	start(&w, "2");
	run(&w, &p, "test \"$A $(id -u) $PWD\" = 'of-nobody 1000 /home/user'");
	wait_for(&w, &p.prepared, "the ready command");
	msg_map_add(&envs, STR("A"), STR("of-somebody"));
	patient_assign(&w, &p, &envs, "");
	assert_string_equal(p.assignment.message, "");
	expect_inside(&w, &p, "echo $A$B", "of-somebody\n");
	/* Of a service, its next start. */
	expect_inside(&w, &p, "echo who | nc 127.0.0.1 8080 | cut -d' ' -f2-", "1000 of-nobody /home/user\n");
	expect_inside(&w, &p, "echo die | nc 127.0.0.1 8080; echo who | nc 127.0.0.1 8080 | cut -d' ' -f2-", "1000 of-somebody /home/user\n");
	/* It has its owner. */
	const struct box_assignment again = {.token = STR("x")};
	assert_int_equal(box_assign(p.box, &again, NULL, NULL), -EAGAIN);
	stop(&w, &p);
}

static void it_is_ready_when_the_command_says_so(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT;
	start(&w, "0");
	/* Twice it fails, once it leaves something behind that must not outlive its try, once it is killed. */
	run(&w, &p, "n=$(cat n 2>/dev/null); echo x$n > n; case x$n in x) exit 1;; xx) sleep 1000 & exit 3;; xxx) kill -9 $$;; esac");
	wait_for(&w, &p.prepared, "the ready command");
	expect_inside(&w, &p, "cat /home/user/n; pidof sleep || true", "xxxx\n");
	/* Once it has said so it is not asked again. */
	turn(&w, 300);
	expect_inside(&w, &p, "cat /home/user/n", "xxxx\n");
	patient_assign(&w, &p, &envs, "");
	assert_int_equal(p.assignment.code, 0);
	stop(&w, &p);
}

static void it_is_never_ready(void **state)
{
	static const char *const scripts[] = {"false", "sleep 1000", "kill -STOP $$", "exec /nothing"};
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT;
	start(&w, "0");
	for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
		run(&w, &p, scripts[i]);
		turn(&w, 200);
		assert_false(p.prepared);
		patient_assign(&w, &p, &envs, "");
		assert_int_equal(p.assignment.code, -EAGAIN);
		/* Nobody asks any more, and what asked is gone; the sandbox itself is whole. */
		expect_inside(&w, &p, "while pidof sleep >/dev/null; do usleep 10000; done; echo who | nc 127.0.0.1 8080 | cut -d' ' -f2", "1000\n");
		patient_kill(&w, &p);
	}
	world_stop(&w);
	world_done(&w);
}

static void set_flag(struct world *w, struct patient *p, const char *name)
{
	char script[64];
	snprintf(script, sizeof(script), "touch %s", name);
	expect_inside(w, p, script, "");
}

static void a_service_that_ends_makes_it_not_ready(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT;
	start(&w, "0");
	run(&w, &p, "test ! -e /tmp/broken");
	for (int i = 0; i < 3; i++) {
		wait_for(&w, &p.prepared, "the services");
		set_flag(&w, &p, "/tmp/broken");
		p.unready = false;
		expect_inside(&w, &p, "kill -9 $(pidof probe)", "");
		wait_for(&w, &p.unready, "the loss of a service");
		assert_false(p.prepared);
		expect_inside(&w, &p, "rm /tmp/broken", "");
	}
	wait_for(&w, &p.prepared, "the services");
	set_flag(&w, &p, "/tmp/broken");
	p.unready = false;
	expect_inside(&w, &p, "kill -9 $(pidof probe)", "");
	wait_for(&w, &p.unready, "the loss of a service");
	patient_assign(&w, &p, &envs, "");
	assert_int_equal(p.assignment.code, -EAGAIN);
	stop(&w, &p);
}

static void whatever_root_inside_kills_it_gets_there(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT, out = BUF_INIT;
	start(&w, "0");
	run(&w, &p, "usleep 100000");
	/* Services, tries, the process that starts them, over and over; each spawner needs node. */
	assert_int_equal(inside(&w, &p, "root", "i=0; while [ $i -lt 60 ]; do kill -9 -1 2>/dev/null; usleep 20000; i=$((i+1)); done; echo over", &out), 0);
	assert_string_equal(buf_cstr(&out), "over\n");
	p.prepared = false;
	inside(&w, &p, "root", "kill -9 $(pidof probe)", &out);
	wait_for(&w, &p.prepared, "the services");
	msg_map_add(&envs, STR("A"), STR("of-somebody"));
	patient_assign(&w, &p, &envs, "");
	assert_int_equal(p.assignment.code, 0);
	expect_inside(&w, &p, "echo $A", "of-somebody\n");
	assert_false(p.died);
	stop(&w, &p);
}

static void it_dies_before_it_is_somebodys(void **state)
{
	struct world w;
	struct patient p;
	const struct box_assignment a = {.token = STR("x")};
	start(&w, "0");
	run(&w, &p, NULL);
	wait_for(&w, &p.prepared, "the services");
	/* While it is being assigned: that has failed, if anything is said of it. */
	assert_int_equal(kill(pid_of(&p), SIGSTOP), 0);
	assert_int_equal(box_assign(p.box, &a, patient_assigned, &p), 0);
	assert_int_equal(kill(pid_of(&p), SIGKILL), 0);
	wait_for(&w, &p.died, "its death to be noticed");
	assert_true(!p.assigned || p.assignment.code == -EPROTO);
	assert_int_equal(box_assign(p.box, &a, patient_assigned, &p), -EAGAIN);
	patient_kill(&w, &p);
	/* Killed by us: nobody waits for it any more. */
	run(&w, &p, NULL);
	wait_for(&w, &p.prepared, "the services");
	assert_int_equal(kill(pid_of(&p), SIGSTOP), 0);
	assert_int_equal(box_assign(p.box, &a, patient_assigned, &p), 0);
	stop(&w, &p);
	assert_false(p.assigned);
}

static void an_init_that_is_silent_is_not_waited_for(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT;
	start(&w, "0");
	run(&w, &p, NULL);
	wait_for(&w, &p.prepared, "the services");
	assert_int_equal(kill(pid_of(&p), SIGSTOP), 0);
	patient_assign(&w, &p, &envs, "");
	assert_int_equal(p.assignment.code, -ETIMEDOUT);
	assert_false(p.died);
	stop(&w, &p);
}

static void frozen_no_time_passes_for_the_command(void **state)
{
	struct world w;
	struct patient p;
	start(&w, "0");
	run(&w, &p, "touch /tmp/begun; while ! test -e /tmp/go; do usleep 10000; done; echo x >> /tmp/ends");
	expect_inside(&w, &p, "while ! test -e /tmp/begun; do usleep 10000; done", "");
	assert_int_equal(box_freeze(p.box, true), 0);
	turn(&w, (READY_TRY_S + 1) * 1000);
	assert_int_equal(box_freeze(p.box, false), 0);
	set_flag(&w, &p, "/tmp/go");
	wait_for(&w, &p.prepared, "the ready command");
	expect_inside(&w, &p, "cat /tmp/ends", "x\n");
	stop(&w, &p);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_becomes_somebodys),
		cmocka_unit_test(what_is_started_then_has_the_new_variables),
		cmocka_unit_test(it_is_ready_when_the_command_says_so),
		cmocka_unit_test(it_is_never_ready),
		cmocka_unit_test(a_service_that_ends_makes_it_not_ready),
		cmocka_unit_test(whatever_root_inside_kills_it_gets_there),
		cmocka_unit_test(it_dies_before_it_is_somebodys),
		cmocka_unit_test(an_init_that_is_silent_is_not_waited_for),
		cmocka_unit_test(frozen_no_time_passes_for_the_command),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
