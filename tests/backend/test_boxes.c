/* The life of sandboxes: many at once, the pool, death, adoption, and what is left over. */
#include "backend/world.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "config/instance.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void prepare(struct world *w)
{
	world_init(w);
}

static unsigned long handle_number(const struct box_handle *h, const char *key)
{
	char text[32];
	snprintf(text, sizeof(text), " %s=", key);
	const char *at = strstr(h->text, text);
	assert_non_null(at);
	return strtoul(at + strlen(text), NULL, 10);
}

static void fifty_sandboxes_leave_nothing(void **state)
{
	enum { N = 50 };
	static struct patient p[N];
	static char names[N][16];
	struct world w;
	cleanup_buf struct buf before = BUF_INIT, during = BUF_INIT;
	prepare(&w);
	world_set(&w, "pool.min", "4");
	world_set(&w, "pool.max", "16");
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "ibox%d", i);
		struct box_spec spec = world_spec(&w, names[i]);
		patient_create(&w, &p[i], &spec);
	}
	for (int i = 0; i < N; i++) {
		wait_for(&w, &p[i].started, "one of fifty");
		if (p[i].failed)
			fail_msg("%s: %s", names[i], p[i].error.message);
	}
	for (int i = 0; i < N; i += 10) {
		char want[32];
		snprintf(want, sizeof(want), "ibox%d\n", i);
		expect_inside(&w, &p[i], "hostname", want);
	}
	inventory(&w, &during);
	assert_true(buf_len(&during) > buf_len(&before) + N * 40);
	for (int i = 0; i < N; i++)
		box_kill(p[i].box);
	for (int i = 0; i < N; i++)
		wait_for(&w, &p[i].released, "one of fifty to be released");
	world_stop(&w);
	world_set(&w, "pool.min", "0");
	/* The directories stay with the state directory; everything in them goes. */
	expect_inventory(&w, &before);
	world_done(&w);
}

static unsigned count_descriptors(void)
{
	unsigned n = 0;
	cleanup_dir DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	return n;
}

static void a_sandbox_costs_the_node_few_descriptors(void **state)
{
	enum {
		N = 10,
		PER_SANDBOX = 7, /* pidfd, control channel, disk, network namespace and its netfilter socket, two for DNS */
	};
	struct world w;
	static struct patient p[N];
	prepare(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p[0], "izero");
	unsigned before = count_descriptors();
	for (int i = 1; i < N; i++)
		patient_run(&w, &p[i], "iother");
	for (int i = 0; i < 200 && count_descriptors() > before + PER_SANDBOX * (N - 1); i++)
		turn(&w, 50); /* what the last create left open is closed behind it */
	assert_in_range(count_descriptors(), before + 1, before + PER_SANDBOX * (N - 1));
	for (int i = 0; i < N; i++)
		patient_kill(&w, &p[i]);
	for (int i = 0; i < 1200 && count_descriptors() > before; i++)
		turn(&w, 50); /* cleaners are on it */
	assert_in_range(count_descriptors(), 1, before);
	world_stop(&w);
	world_done(&w);
}

/* Waits until so many slots are parked: their inits are the processes with our first ids. */
static unsigned parked(struct world *w, pid_t *ret_one)
{
	unsigned n = 0;
	cleanup_dir DIR *d = opendir("/proc");
	for (struct dirent *e; (e = readdir(d));) {
		char path[300];
		cleanup_buf struct buf stat = BUF_INIT;
		if (!is_ours(w, e->d_name))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/status", e->d_name);
		if (file_read(AT_FDCWD, path, 8192, &stat) < 0)
			continue;
		const char *ns = strstr(buf_cstr(&stat), "NSpid:");
		unsigned outer, inner;
		if (ns && sscanf(ns, "NSpid: %u %u", &outer, &inner) == 2 && inner == 1) {
			*ret_one = (pid_t)outer;
			n++;
		}
	}
	return n;
}

static void wait_parked(struct world *w, unsigned wanted)
{
	pid_t one;
	for (int i = 0; i < 2400; i++) {
		if (parked(w, &one) >= wanted) {
			turn(w, 200); /* the last one may still be on its way */
			return;
		}
		turn(w, 50);
	}
	fail_msg("the pool never had %u slots", wanted);
}

static void the_pool_makes_creates_warm_and_never_hands_out_the_dead(void **state)
{
	struct world w;
	struct patient p[3];
	pid_t one;
	prepare(&w);
	world_set(&w, "pool.max", "2");
	world_set(&w, "pool.min", "2");
	world_start(&w);
	world_ready(&w);
	/* A parked init is seen a moment before its slot is in the pool; on a loaded machine that moment is long. */
	bool warm = false;
	for (int i = 0; i < 100 && !warm; i++) {
		wait_parked(&w, 2);
		patient_run(&w, &p[0], "iwarm");
		warm = strcmp(box_launch(p[0].box), "warm") == 0;
		patient_kill(&w, &p[0]);
	}
	assert_true(warm);
	wait_parked(&w, 2);
	for (int i = 0; i < 2; i++) {
		assert_true(parked(&w, &one) > 0);
		kill(one, SIGKILL);
		usleep(50000);
	}
	patient_run(&w, &p[1], "iafter");
	expect_inside(&w, &p[1], "hostname", "iafter\n");
	patient_kill(&w, &p[1]);
	world_stop(&w);
	assert_int_equal(parked(&w, &one), 0);
	world_done(&w);
}

static void killed_while_it_starts(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf before = BUF_INIT;
	prepare(&w);
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	for (int delay = 0; delay < 24; delay += 2) {
		struct box_spec spec = world_spec(&w, "ishort");
		patient_create(&w, &p, &spec);
		turn(&w, delay);
		if (p.box)
			box_kill(p.box);
		if (p.box)
			box_kill(p.box);
		wait_for(&w, &p.released, "a cancelled sandbox to be released");
	}
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

static void a_bad_layer_is_an_error(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf before = BUF_INIT;
	prepare(&w);
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	struct box_spec spec = world_spec(&w, "ibad");
	spec.layers[0] = "/tmp/no-such-layer";
	patient_create(&w, &p, &spec);
	wait_for(&w, &p.started, "an answer");
	assert_true(p.failed);
	assert_non_null(strstr(p.error.message, "no-such-layer"));
	spec.layers[0] = "/bin/busybox";
	patient_create(&w, &p, &spec);
	wait_for(&w, &p.started, "an answer");
	assert_true(p.failed);
	patient_run(&w, &p, "igood");
	patient_kill(&w, &p);
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

static void the_end_of_pid_1_is_told_with_its_cause(void **state)
{
	struct world w;
	struct patient p;
	prepare(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "icrash");
	kill((pid_t)handle_number(&p.handle, "pid"), SIGKILL);
	wait_for(&w, &p.died, "news of the death");
	assert_string_equal(p.death.reason, "crashed");
	assert_non_null(strstr(p.death.detail, "signal 9"));
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

struct reading {
	struct box_stats stats;
	bool done, ok;
};

static void was_read(const struct box_stats *s, void *arg)
{
	struct reading *r = arg;
	r->done = true;
	r->ok = s != NULL;
	if (s)
		r->stats = *s;
}

static void read_stats(struct world *w, struct patient *p, struct box_stats *ret)
{
	struct reading r = {0};
	assert_int_equal(box_stats(p->box, was_read, &r), 0);
	wait_for(w, &r.done, "statistics");
	assert_true(r.ok);
	*ret = r.stats;
}

static void memory_and_processes_are_limited_and_the_agent_lives_on(void **state)
{
	struct world w;
	struct patient p;
	struct box_stats s;
	cleanup_buf struct buf out = BUF_INIT;
	prepare(&w);
	world_set(&w, "sandbox.pids", "40");
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ilimit");
	/* dd holds one block of 300 MB, the limit is 128. */
	assert_int_equal(inside(&w, &p, "user", "dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null; exit $?", &out), 137);
	read_stats(&w, &p, &s);
	assert_true(s.oom_kills >= 1);
	assert_int_equal(s.memory_limit, 128 << 20);
	expect_inside(&w, &p, "echo alive", "alive\n");
	assert_int_equal(inside(&w, &p, "user", "i=0; while [ $i -lt 100 ]; do sleep 30 >/dev/null 2>&1 & i=$((i+1)); done; exit 0", &out), 2);
	read_stats(&w, &p, &s);
	assert_in_range(s.pids, 20, 40);
	assert_false(p.died);
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

static void a_killed_spawner_is_replaced(void **state)
{
	struct world w;
	struct patient p;
	prepare(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ispawn");
	/* Root inside may kill it: it is a process of its own. */
	cleanup_buf struct buf out = BUF_INIT;
	inside(&w, &p, "root", "kill -9 $(pidof cubicle-spawn)", &out);
	expect_inside(&w, &p, "echo again", "again\n");
	struct box_stats s;
	read_stats(&w, &p, &s);
	assert_true(s.pids >= 1); /* the new one was attached to the work group too */
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

static void freezing_stops_work_and_a_frozen_sandbox_can_be_killed(void **state)
{
	struct world w;
	struct patient p;
	prepare(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ifreeze");
	expect_inside(&w, &p, "(while :; do echo x >> /tmp/ticks; usleep 5000; done) >/dev/null 2>&1 & sleep 0.2; echo ok", "ok\n");
	assert_int_equal(box_freeze(p.box, true), 0);
	struct box_stats a, b = {0};
	/* On a loaded machine it takes a while until the last of them stands still; then only PID 1 can run. */
	for (int i = 0; i < 100; i++) {
		a = b;
		read_stats(&w, &p, &b);
		if (i && b.cpu_usec - a.cpu_usec < 20000)
			break;
		turn(&w, 300);
	}
	assert_true(b.cpu_usec - a.cpu_usec < 20000);
	assert_int_equal(box_freeze(p.box, false), 0);
	expect_inside(&w, &p, "echo thawed", "thawed\n");
	assert_int_equal(box_freeze(p.box, true), 0);
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

static void disks_have_their_size_and_give_space_back(void **state)
{
	struct world w;
	struct patient p;
	struct box_space space;
	prepare(&w);
	world_start(&w);
	world_ready(&w);
	struct box_spec spec = world_spec(&w, "idisk");
	spec.disk_mb = 128;
	spec.memory_mb = 96;
	patient_create(&w, &p, &spec);
	wait_for(&w, &p.started, "a sandbox with another disk");
	assert_false(p.failed);
	assert_int_equal(box_space(p.box, &space), 0);
	assert_in_range(space.total, 90 << 20, 128 << 20);
	expect_inside(&w, &p, "df -k /dev/shm | tail -n1 | tr -s ' ' | cut -d' ' -f2", "98304\n");
	cleanup_buf struct buf out = BUF_INIT;
	assert_int_equal(inside(&w, &p, "root", "dd if=/dev/zero of=/big bs=1M count=300 2>/dev/null", &out), 1);
	expect_inside(&w, &p, "sync; rm /big; echo room > /small; cat /small", "room\n");
	box_sync(p.box);
	turn(&w, 300);
	int64_t full = box_disk_bytes(p.box);
	assert_true(full > 60 << 20);
	box_trim(p.box);
	for (int i = 0; i < 100 && box_disk_bytes(p.box) > 20 << 20; i++)
		turn(&w, 50);
	assert_in_range(box_disk_bytes(p.box), 1, 20 << 20);
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

/* A node in a process of its own; it runs a sandbox, writes the handle to a file and waits to be killed. */
static pid_t node_that_will_die(struct world *w, int pipe_end, unsigned pool)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct patient p[2];
	char text[8];
	snprintf(text, sizeof(text), "%u", pool);
	world_set(w, "pool.max", text);
	world_set(w, "pool.min", text);
	world_start(w);
	world_ready(w);
	if (pool)
		wait_parked(w, pool);
	patient_run(w, &p[0], "ikept");
	patient_run(w, &p[1], "ilost");
	expect_inside(w, &p[0], "echo before > /root/file; sleep 1000 >/dev/null 2>&1 & echo ok", "ok\n");
	fd_write_all(pipe_end, &p[0].handle, sizeof(p[0].handle));
	for (;;)
		turn(w, 1000);
}

static void adoption_after_the_node_was_killed(void **state)
{
	struct world w;
	struct patient p = {0};
	struct box_handle h;
	struct error err = {0};
	int pipes[2];
	cleanup_buf struct buf before = BUF_INIT;
	prepare(&w);
	inventory(&w, &before);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid_t node = node_that_will_die(&w, pipes[1], 2);
	assert_int_equal(fd_read_full(pipes[0], &h, sizeof(h)), sizeof(h));
	kill(node, SIGKILL);
	waitpid(node, NULL, 0);
	close(pipes[0]), close(pipes[1]);

	world_start(&w);
	p.box = box_adopt(w.backend, STR("ikept"), h.text, &any_network, &patient_ops, &p, &err);
	assert_non_null(p.box);
	wait_for(&w, &p.started, "the adoption");
	if (p.failed)
		fail_msg("%s", p.error.message);
	world_ready(&w);
	assert_string_equal(p.handle.text, h.text);
	expect_inside(&w, &p, "cat /root/file; pidof sleep >/dev/null && echo runs; hostname", "before\nruns\nikept\n");
	/* The disk is the same file system: what is written through the regained descriptor's file system is what the sandbox sees. */
	struct box_space a, b;
	assert_int_equal(box_space(p.box, &a), 0);
	expect_inside(&w, &p, "dd if=/dev/zero of=/root/more bs=1M count=20 2>/dev/null; sync; echo", "\n");
	assert_int_equal(box_space(p.box, &b), 0);
	assert_true(b.used >= a.used + (15 << 20));
	patient_kill(&w, &p);

	/* The one nobody adopted and the parked ones went in the sweep. */
	struct patient q;
	patient_run(&w, &q, "inew");
	patient_kill(&w, &q);
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

static void adoption_tells_what_cannot_be_adopted(void **state)
{
	struct world w;
	struct patient p, q = {0};
	struct error err = {0};
	prepare(&w);
	world_start(&w);
	assert_null(box_adopt(w.backend, STR("ix"), "namespace-9 pid=2", &any_network, &patient_ops, &q, &err));
	assert_null(box_adopt(w.backend, STR("ix"), "", &any_network, &patient_ops, &q, &err));

	char text[512];
	snprintf(text, sizeof(text), "namespace-1 pid=77 start=1 slot=3 loop=1 internet=1 warm=0 boot=00000000-0000-0000-0000-000000000000");
	assert_non_null(box_adopt(w.backend, STR("ilost"), text, &any_network, &patient_ops, &q, &err));
	wait_for(&w, &q.started, "an answer");
	assert_true(q.failed);
	assert_string_equal(q.death.reason, "host_lost");

	world_ready(&w);
	patient_run(&w, &p, "ione");
	char boot[64];
	snprintf(boot, sizeof(boot), "%s", strstr(p.handle.text, "boot="));
	snprintf(text, sizeof(text), "namespace-1 pid=%d start=1 slot=9 loop=1 internet=1 warm=0 %s", getpid(), boot);
	q = (struct patient){0};
	assert_non_null(box_adopt(w.backend, STR("ilost"), text, &any_network, &patient_ops, &q, &err));
	wait_for(&w, &q.started, "an answer");
	assert_true(q.failed);
	assert_string_equal(q.death.reason, "crashed");
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

/* A process of ours in the agent's memory group that wants nearly all there is: two of them want too much, and each alone counts less than PID 1 will. */
static pid_t hog(struct world *w, unsigned long slot)
{
	char procs[300];
	struct instance i;
	instance_of(&w->options, &i);
	snprintf(procs, sizeof(procs), "/sys/fs/cgroup/memory/%s/s%lu/agent/cgroup.procs", i.cgroup, slot);
	if (access(procs, W_OK) < 0)
		snprintf(procs, sizeof(procs), "/sys/fs/cgroup/%s/s%lu/agent/cgroup.procs", i.cgroup, slot);
	pid_t pid = fork();
	if (pid == 0) {
		if (file_write_value(AT_FDCWD, procs, STR("0")) < 0)
			_exit(1);
		char *p = malloc(100 << 20);
		for (size_t at = 0; at < 100 << 20; at += 4096)
			((volatile char *)p)[at] = 1;
		pause();
	}
	return pid;
}

static void an_agent_out_of_memory_is_told_as_such(void **state)
{
	struct world w;
	struct patient p;
	prepare(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ioom");
	/* The kernel is told to take PID 1 first. */
	char path[64];
	snprintf(path, sizeof(path), "/proc/%lu/oom_score_adj", handle_number(&p.handle, "pid"));
	assert_int_equal(file_write_value(AT_FDCWD, path, STR("1000")), 0);
	pid_t hogs[] = {hog(&w, handle_number(&p.handle, "slot")), hog(&w, handle_number(&p.handle, "slot"))};
	wait_for(&w, &p.died, "the death");
	for (size_t i = 0; i < ARRAY_SIZE(hogs); i++) {
		kill(hogs[i], SIGKILL);
		waitpid(hogs[i], NULL, 0);
	}
	assert_string_equal(p.death.reason, "oom_killed");
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fifty_sandboxes_leave_nothing),
		cmocka_unit_test(a_sandbox_costs_the_node_few_descriptors),
		cmocka_unit_test(the_pool_makes_creates_warm_and_never_hands_out_the_dead),
		cmocka_unit_test(killed_while_it_starts),
		cmocka_unit_test(a_bad_layer_is_an_error),
		cmocka_unit_test(the_end_of_pid_1_is_told_with_its_cause),
		cmocka_unit_test(memory_and_processes_are_limited_and_the_agent_lives_on),
		cmocka_unit_test(a_killed_spawner_is_replaced),
		cmocka_unit_test(freezing_stops_work_and_a_frozen_sandbox_can_be_killed),
		cmocka_unit_test(disks_have_their_size_and_give_space_back),
		cmocka_unit_test(adoption_after_the_node_was_killed),
		cmocka_unit_test(adoption_tells_what_cannot_be_adopted),
		cmocka_unit_test(an_agent_out_of_memory_is_told_as_such),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
