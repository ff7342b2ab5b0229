/* MicroVMs as node sees them: creates, ends, ports, adoption, and monitors that do what they should not. */
#include "backend/machine_world.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "config/instance.h"
#include "vmm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define BUT_NOT_LONG 2500 /* ms; much less than what is waited for if it goes wrong */

static int64_t now_ms(void)
{
	return clock_monotonic() / NS_PER_MS;
}

static void read_proc(unsigned long pid, const char *file, struct buf *to)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%lu/%s", pid, file);
	buf_clear(to);
	assert_int_equal(file_read(AT_FDCWD, path, 65536, to), 0);
}

/* argv has this word. */
static bool has_argument(unsigned long pid, const char *word)
{
	cleanup_buf struct buf line = BUF_INIT;
	read_proc(pid, "cmdline", &line);
	struct str rest = buf_str(&line), one;
	while (str_cut(rest, '\0', &one, &rest))
		if (str_is(one, word))
			return true;
	return false;
}

static void a_machine_is_made_and_leaves_nothing(void **state)
{
	struct machine_world m;
	struct patient p;
	char link[128];
	unsigned inner, outer;
	cleanup_buf struct buf text = BUF_INIT;
	machine_world_begin(&m);
	struct box_spec spec = world_spec(&m.w, "m-one");
	spec.memory_mb = 129;
	spec.cpu_count = 3;
	for (spec.n_layers = 0; spec.n_layers < BOX_MAX_LAYERS; spec.n_layers++)
		spec.layers[spec.n_layers] = m.w.template;
	patient_create(&m.w, &p, &spec);
	wait_for(&m.w, &p.started, "a microVM");
	if (p.failed)
		fail_msg("%s", p.error.message);
	assert_int_equal(strncmp(p.handle.text, "microvm-1 ", 10), 0);
	assert_string_equal(box_launch(p.box), "cold");
	assert_true(has_argument(monitor_pid(&p), "name=m-one"));
	assert_true(has_argument(monitor_pid(&p), "memory=128"));
	assert_true(has_argument(monitor_pid(&p), "vcpus=3"));
	read_proc(monitor_pid(&p), "oom_score_adj", &text);
	assert_str(buf_str(&text), "400\n");
	read_proc(monitor_pid(&p), "uid_map", &text);
	assert_int_equal(sscanf(buf_cstr(&text), "%u %u", &inner, &outer), 2);
	assert_true(inner == 0 && outer >= m.w.uid_base && outer - m.w.uid_base < WORLD_IDS);
	read_proc(monitor_pid(&p), "cgroup", &text);
	assert_non_null(strstr(buf_cstr(&text), "/work"));
	/* Nothing of ours has come along: as many descriptors as it was given, and its own. */
	for (int fd = 0; fd < 3; fd++) {
		char path[64], to[64] = "";
		snprintf(path, sizeof(path), "/proc/%lu/fd/%d", monitor_pid(&p), fd);
		assert_true(readlink(path, to, sizeof(to) - 1) > 0);
		assert_int_equal(strncmp(to, fd < 2 ? "/dev/null" : "/memfd:log", 9), 0);
	}
	snprintf(link, sizeof(link), "%s/node/control/s0.vm", m.w.dir);
	assert_int_equal(access(link, F_OK), 0);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void sizes_that_no_machine_has_are_refused_by_name(void **state)
{
	struct machine_world m;
	struct patient p = {0};
	struct error err = {0};
	machine_world_begin(&m);
	struct box_spec spec = world_spec(&m.w, "m-size");
	spec.cpu_count = 65;
	assert_null(box_create(m.w.backend, &spec, &patient_ops, &p, &err));
	assert_int_equal(err.status, 400);
	assert_non_null(strstr(err.message, "cpuCount"));
	spec = world_spec(&m.w, "m-size");
	spec.memory_mb = 63;
	assert_null(box_create(m.w.backend, &spec, &patient_ops, &p, &err));
	assert_int_equal(err.status, 400);
	assert_non_null(strstr(err.message, "memoryMB"));
	/* In namespaces there is no such limit. */
	spec = world_spec(&m.w, "m-size");
	spec.cpu_count = 65;
	spec.isolation = STR("namespace");
	patient_create(&m.w, &p, &spec);
	wait_for(&m.w, &p.started, "a sandbox in namespaces");
	assert_false(p.failed);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

/* The monitor has as much beside the guest's memory as its page tables may need. */
static void a_large_machine_has_room_for_its_tables(void **state)
{
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	struct box_spec spec = world_spec(&m.w, "m-large");
	spec.memory_mb = 65536;
	patient_create(&m.w, &p, &spec);
	wait_for(&m.w, &p.started, "a microVM");
	assert_false(p.failed);
	char path[300];
	struct instance i;
	cleanup_buf struct buf text = BUF_INIT;
	instance_of(&m.w.options, &i);
	snprintf(path, sizeof(path), "/sys/fs/cgroup/memory/%s/s0/work/memory.limit_in_bytes", i.cgroup);
	if (access(path, R_OK) < 0)
		snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/s0/work/memory.max", i.cgroup);
	assert_int_equal(file_read(AT_FDCWD, path, 64, &text), 0);
	uint64_t limit = strtoull(buf_cstr(&text), NULL, 10) >> 20;
	assert_in_range(limit, 65536 + 64 + 2 * 65536 / 512, 65536 + 1024);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void a_boot_that_fails_tells_why(void **state)
{
	static const struct {
		const char *id;
		int code;
		const char *says;
	} all[] = {
		{"m-quick", -ESRCH, "last words ?[2J of the guest"},
		{"m-boot0", -ESRCH, "last words"},
		{"m-boot11", -ESRCH, "last words"},
		{"m-boot12", -ESRCH, "last words"},
		{"m-mute", -ETIMEDOUT, "within 4 s: the kernel boots"},
		{"m-half", -ETIMEDOUT, "the kernel boots"},
		{"m-bootclose", -EPROTO, "the kernel boots"},
		{"m-bootnoise", -EPROTO, "message"},
		{"m-bootwrong", -EPROTO, "claimed instead of init_state"},
		{"m-booterr", -EPROTO, "disk"},
	};
	struct machine_world m;
	machine_world_begin(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct patient p;
		machine_create(&m, &p, all[i].id);
		wait_for(&m.w, &p.started, "an answer to a create");
		if (!p.failed || !strstr(p.error.message, all[i].says) || p.error.code != all[i].code)
			fail_msg("%s: %d %s", all[i].id, p.error.code, p.failed ? p.error.message : "the create succeeded");
		assert_int_equal(p.error.status, all[i].code == -ETIMEDOUT ? 504 : 500);
	}
	machine_world_end(&m);
}

static void a_boot_ends_soon_after_its_kill(void **state)
{
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	for (int wait = 0; wait < 300; wait += 100) {
		machine_create(&m, &p, "m-mute");
		turn(&m.w, wait);
		int64_t start = now_ms();
		patient_kill(&m.w, &p);
		assert_true(now_ms() - start < BUT_NOT_LONG);
		assert_false(p.started);
	}
	/* Claimed, and never answers that. */
	machine_create(&m, &p, "m-noclaim");
	turn(&m.w, 500);
	assert_false(p.started);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

/* As many as boot at once do not come to an end: those behind them are told in time, or can be killed. */
static void boots_that_hang_hold_nobody_up_for_long(void **state)
{
	enum { HUNG = 16 };
	struct machine_world m;
	struct patient hung[HUNG], killed, waits;
	machine_world_begin(&m);
	int64_t start = now_ms();
	for (size_t i = 0; i < HUNG; i++)
		machine_create(&m, &hung[i], "m-mute");
	machine_create(&m, &killed, "m-behind");
	machine_create(&m, &waits, "m-behind");
	turn(&m.w, 300);
	int64_t kill = now_ms();
	box_kill(killed.box);
	assert_false(killed.released); /* not before box_kill() returns */
	wait_for(&m.w, &killed.released, "the end of a create that waits");
	assert_true(now_ms() - kill < 1000);
	wait_for(&m.w, &waits.started, "an answer to a create that waits");
	assert_true(now_ms() - start < (MACHINE_BOOT_SECONDS + 2) * 1000);
	assert_true(waits.failed);
	assert_true(waits.error.status == 503 || waits.error.status == 504);
	for (size_t i = 0; i < HUNG; i++) {
		wait_for(&m.w, &hung[i].started, "the end of a boot");
		assert_int_equal(hung[i].error.status, 504);
	}
	/* And after that it is as before. */
	machine_run(&m, &waits, "m-after");
	patient_kill(&m.w, &waits);
	machine_world_end(&m);
}

static void the_end_of_a_machine_is_told_with_its_cause(void **state)
{
	static const struct {
		const char *id, *detail;
	} all[] = {
		{"m-die0", "it was powered off: last words"}, {"m-die10", "it was reset from inside"}, {"m-die11", "its kernel panicked: last words ?[2J of the guest"},
		{"m-die12", "its monitor gave up"}, {"m-die13", "its monitor could not start it"},
	};
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		machine_run(&m, &p, all[i].id);
		wait_for(&m.w, &p.died, "its end");
		assert_string_equal(p.death.reason, "crashed");
		if (!strstr(p.death.detail, all[i].detail))
			fail_msg("%s: %s", all[i].id, p.death.detail);
		patient_kill(&m.w, &p);
	}
	machine_run(&m, &p, "m-killed");
	kill((pid_t)monitor_pid(&p), SIGKILL);
	wait_for(&m.w, &p.died, "its end");
	assert_non_null(strstr(p.death.detail, "signal 9"));
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

/* --- ports --- */

struct opened {
	int result;
	bool done;
};

static void on_open(int fd_or_error, void *arg)
{
	struct opened *o = arg;
	assert_false(o->done);
	o->result = fd_or_error;
	o->done = true;
}

static void ports_are_opened(void **state)
{
	static const struct {
		uint16_t port;
		int result;
	} all[] = {{1, -ECONNREFUSED}, {2, -ETIMEDOUT}, {3, -ECONNREFUSED}, {4, -ETIMEDOUT}, {5, -ECONNREFUSED}};
	struct machine_world m;
	struct patient p;
	char bytes[16];
	machine_world_begin(&m);
	machine_run(&m, &p, "m-ports");
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		assert_int_equal(world_open(&m.w, &p, all[i].port), all[i].result);
	int fd = world_open(&m.w, &p, 8080);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, "ping", 4), 0);
	assert_int_equal(fd_read_full(fd, bytes, 4), 4);
	assert_memory_equal(bytes, "ping", 4);
	close(fd);
	/* envd's: nobody answers before what is asked of it. */
	fd = world_open(&m.w, &p, VSOCK_PORT_ENVD);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, "ping", 4), 0);
	assert_int_equal(fd_read_full(fd, bytes, 4), 4);
	assert_memory_equal(bytes, "ping", 4);
	close(fd);
	/* What comes right behind the answer is the port's. */
	fd = world_open(&m.w, &p, 6);
	assert_int_equal(fd_read_full(fd, bytes, 5), 5);
	assert_memory_equal(bytes, "hello", 5);
	close(fd);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void many_ports_at_once_and_its_end_meanwhile(void **state)
{
	enum { MANY = 100 };
	struct machine_world m;
	struct patient p;
	struct opened o[MANY] = {0};
	machine_world_begin(&m);
	machine_run(&m, &p, "m-many");
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(box_open(p.box, 8080, on_open, &o[i]), 0);
	for (size_t i = 0; i < MANY; i++) {
		wait_for(&m.w, &o[i].done, "a connection");
		assert_true(o[i].result >= 0);
		close(o[i].result);
	}
	memset(o, 0, sizeof(o));
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(box_open(p.box, 2, on_open, &o[i]), 0);
	turn(&m.w, 50);
	patient_kill(&m.w, &p);
	for (size_t i = 0; i < MANY; i++) {
		wait_for(&m.w, &o[i].done, "the end of a connection");
		assert_int_equal(o[i].result, -ECONNREFUSED);
	}
	/* And the end of the backend. */
	memset(o, 0, sizeof(o));
	machine_run(&m, &p, "m-left");
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(box_open(p.box, 2, on_open, &o[i]), 0);
	world_stop(&m.w);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(o[i].result, -ECANCELED);
	world_start(&m.w);
	world_ready(&m.w); /* sweeps it */
	machine_world_end(&m);
}

/* One that stands still, or does not read, may not have node collect descriptors for it; nor take the place of others. */
static void a_deaf_monitor_costs_few_descriptors(void **state)
{
	enum { TRIES = 5000 };
	static struct opened o[TRIES];
	struct machine_world m;
	struct patient p, other;
	struct rlimit limit;
	int r = 0;
	size_t n = 0;
	machine_world_begin(&m);
	getrlimit(RLIMIT_NOFILE, &limit);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){MIN(limit.rlim_max, (rlim_t)65536), limit.rlim_max});
	machine_run(&m, &p, "m-admdeaf");
	machine_run(&m, &other, "m-other");
	size_t before = open_descriptors();
	for (int i = 0; i < TRIES; i++) {
		struct opened direct = {0};
		if (box_open(p.box, VSOCK_PORT_ENVD, on_open, &direct) < 0)
			break;
		wait_for(&m.w, &direct.done, "a connection");
		close(direct.result);
	}
	assert_true(open_descriptors() - before < 1500);
	patient_kill(&m.w, &p);
	machine_run(&m, &p, "m-admdeaf");
	before = open_descriptors();
	memset(o, 0, sizeof(o));
	for (; n < TRIES; n++)
		if ((r = box_open(p.box, 80, on_open, &o[n])) < 0)
			break;
	assert_int_equal(r, -EAGAIN);
	assert_true(open_descriptors() - before < 1500);
	int fd = world_open(&m.w, &other, 80);
	assert_true(fd >= 0);
	close(fd);
	for (size_t i = 0; i < n; i++) {
		wait_for(&m.w, &o[i].done, "the end of a connection");
		assert_int_equal(o[i].result, -ETIMEDOUT);
	}
	/* Nor the next time. */
	for (size_t i = 0; i < 20; i++) {
		memset(o, 0, sizeof(o));
		for (n = 0; n < TRIES && box_open(p.box, 80, on_open, &o[n]) == 0; n++)
			;
		assert_true(open_descriptors() - before < 1500);
		if (n == 0)
			break;
		for (size_t k = 0; k < n; k++)
			wait_for(&m.w, &o[k].done, "the end of a connection");
	}
	patient_kill(&m.w, &p);
	patient_kill(&m.w, &other);
	setrlimit(RLIMIT_NOFILE, &limit);
	machine_world_end(&m);
}

/* --- adoption --- */

static void adopt(struct machine_world *m, struct patient *p, const char *id, const char *handle)
{
	struct error err = {0};
	*p = (struct patient){0};
	p->box = box_adopt(m->w.backend, str_of(id), handle, &any_network, &patient_ops, p, &err);
	if (!p->box)
		fail_msg("%s", err.message);
	wait_for(&m->w, &p->started, "an adoption");
}

static void restart(struct machine_world *m)
{
	world_stop(&m->w);
	world_start(&m->w);
}

static void expect_echo(struct machine_world *m, struct patient *p)
{
	int fd = world_open(&m->w, p, 8080);
	char byte;
	if (fd < 0)
		fail_msg("its port: %s", strerror(-fd));
	assert_int_equal(fd_write_all(fd, "x", 1), 0);
	assert_int_equal(fd_read_full(fd, &byte, 1), 1);
	close(fd);
}

/* What is logged from here on, for as long as it is open. */
static int begin_log(void)
{
	int fd = memfd_create("log", MFD_CLOEXEC);
	assert_true(fd >= 0);
	log_setup("test", fd, LOG_WARN);
	return fd;
}

static int logged(int fd, const char *text)
{
	cleanup_buf struct buf all = BUF_INIT;
	int times = 0;
	buf_add(&all, "", 0);
	lseek(fd, 0, SEEK_SET);
	for (char bytes[4096];;) {
		ssize_t n = read(fd, bytes, sizeof(bytes));
		if (n <= 0)
			break;
		buf_add(&all, bytes, (size_t)n);
	}
	for (const char *at = buf_cstr(&all); (at = strstr(at, text)); at++)
		times++;
	return times;
}

static void end_log(int fd)
{
	log_setup("test", 2, LOG_WARN);
	close(fd);
}

/* Its ports are not closed until node starts again. */
static void a_broken_connection_to_a_monitor_is_made_anew(void **state)
{
	struct machine_world m;
	struct patient p;
	struct opened o[3] = {0};
	machine_world_begin(&m);
	machine_run(&m, &p, "m-onceadm");
	int console = machine_console(&p), log = begin_log();
	size_t before = open_descriptors();
	int64_t start = now_ms();
	assert_int_equal(box_open(p.box, 8080, on_open, &o[0]), 0);
	for (size_t i = 1; i < ARRAY_SIZE(o); i++) {
		int r = box_open(p.box, 8080, on_open, &o[i]);
		if (r == -ENOTCONN) /* it broke before that was asked */
			o[i] = (struct opened){.done = true, .result = -ECONNREFUSED};
		else
			assert_int_equal(r, 0);
	}
	/* The first was taken over; what lay unread in the connection is lost with it, and told at once. */
	for (size_t i = 0; i < ARRAY_SIZE(o); i++)
		wait_for(&m.w, &o[i].done, "the end of a connection");
	assert_true(o[0].result >= 0);
	close(o[0].result);
	assert_int_equal(o[1].result, -ECONNREFUSED);
	assert_int_equal(o[2].result, -ECONNREFUSED);
	assert_true(now_ms() - start < BUT_NOT_LONG);
	wait_said(&m, console, "admin", 1);
	assert_true(now_ms() - start < BUT_NOT_LONG);
	for (int i = 0; i < 3; i++)
		expect_echo(&m, &p);
	assert_int_equal(open_descriptors(), before);
	assert_int_equal(said(console, "admin"), 1);
	assert_int_equal(logged(log, "m-onceadm"), 1);
	assert_int_equal(logged(log, "made anew"), 1);
	/* An end is no break of that. */
	kill((pid_t)monitor_pid(&p), SIGKILL);
	wait_for(&m.w, &p.died, "its end");
	turn(&m.w, 300);
	assert_int_equal(logged(log, "connection to its monitor"), 1);
	end_log(log);
	close(console);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void one_that_breaks_it_each_time_makes_nobody_busy(void **state)
{
	/* After 50 ms, then twice as long each time: 5 within 3 s. */
	enum { WATCHED_MS = 3000, LEAST = 3, MOST = 8 };
	struct machine_world m;
	struct patient p, deaf, good;
	struct opened o = {0};
	machine_world_begin(&m);
	machine_run(&m, &good, "m-good");
	int log = begin_log();
	machine_run(&m, &p, "m-dropadm");
	machine_run(&m, &deaf, "m-dropadm-closelisteners");
	int console = machine_console(&p);
	size_t before = open_descriptors();
	turn(&m.w, WATCHED_MS);
	assert_in_range(said(console, "admin"), LEAST, MOST);
	assert_true(open_descriptors() <= before);
	assert_int_equal(box_open(p.box, 8080, on_open, &o), -ENOTCONN);
	assert_int_equal(box_open(deaf.box, 8080, on_open, &o), -ENOTCONN);
	expect_echo(&m, &good);
	assert_int_equal(logged(log, "\"m-dropadm\""), 1);
	assert_int_equal(logged(log, "\"m-dropadm-closelisteners\""), 1);
	assert_int_equal(logged(log, "cannot be made anew"), 1);
	end_log(log);
	/* It can be asked for all else, kept, and ended. */
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_freeze(p.box, false), 0);
	struct box_handle h = p.handle, g = good.handle;
	int64_t start = now_ms();
	patient_kill(&m.w, &deaf);
	assert_true(now_ms() - start < BUT_NOT_LONG);
	restart(&m);
	adopt(&m, &p, "m-dropadm", h.text);
	adopt(&m, &good, "m-good", g.text);
	assert_false(p.failed || good.failed);
	world_ready(&m.w);
	turn(&m.w, 300);
	expect_echo(&m, &good);
	start = now_ms();
	patient_kill(&m.w, &p);
	assert_true(now_ms() - start < BUT_NOT_LONG);
	patient_kill(&m.w, &good);
	close(console);
	machine_world_end(&m);
}

static void a_machine_is_adopted(void **state)
{
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	machine_run(&m, &p, "m-kept");
	struct box_handle h = p.handle;
	restart(&m);
	adopt(&m, &p, "m-kept", h.text);
	if (p.failed)
		fail_msg("%s", p.error.message);
	world_ready(&m.w);
	assert_string_equal(p.handle.text, h.text);
	expect_echo(&m, &p);
	/* Whatever the option says then, and where there are no microVMs any more. */
	world_stop(&m.w);
	world_set(&m.w, "isolation", "namespace");
	snprintf(m.machines.why, sizeof(m.machines.why), "none any more");
	world_start(&m.w);
	adopt(&m, &p, "m-kept", h.text);
	if (p.failed)
		fail_msg("%s", p.error.message);
	world_ready(&m.w);
	assert_string_equal(box_isolation(p.box), "microvm");
	expect_echo(&m, &p);
	struct patient q = {0};
	struct error err = {0};
	struct box_spec spec = world_spec(&m.w, "m-new");
	spec.isolation = STR("microvm");
	assert_null(box_create(m.w.backend, &spec, &patient_ops, &q, &err));
	assert_non_null(strstr(err.message, "none any more"));
	assert_int_equal(box_freeze(p.box, true), 0);
	patient_kill(&m.w, &p);
	m.machines.why[0] = '\0';
	machine_world_end(&m);
}

static void a_frozen_machine_is_adopted_again_and_again(void **state)
{
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	machine_run(&m, &p, "m-frozen");
	struct box_handle h = p.handle;
	assert_int_equal(box_freeze(p.box, true), 0);
	for (int i = 0; i < 12; i++) {
		restart(&m);
		adopt(&m, &p, "m-frozen", h.text);
		if (p.failed)
			fail_msg("%d: %s", i, p.error.message);
		world_ready(&m.w);
		assert_int_equal(box_freeze(p.box, true), 0);
	}
	assert_int_equal(box_freeze(p.box, false), 0);
	expect_echo(&m, &p);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void what_cannot_be_adopted_is_told(void **state)
{
	struct machine_world m;
	struct patient p;
	char text[512];
	machine_world_begin(&m);
	machine_run(&m, &p, "m-dead");
	struct box_handle h = p.handle;
	world_stop(&m.w);
	kill((pid_t)monitor_pid(&p), SIGKILL);
	while (waitpid((pid_t)monitor_pid(&p), NULL, 0) < 0 && errno == EINTR)
		;
	world_start(&m.w);
	adopt(&m, &p, "m-dead", h.text);
	assert_true(p.failed);
	assert_int_equal(p.error.code, -ESRCH);
	assert_string_equal(p.death.reason, "crashed");
	assert_non_null(strstr(p.death.detail, "while the node was away"));
	world_ready(&m.w);

	/* Of another boot. */
	machine_run(&m, &p, "m-lost");
	h = p.handle;
	restart(&m);
	snprintf(text, sizeof(text), "%s", h.text);
	memcpy(strstr(text, "boot=") + 5, "00000000", 8);
	adopt(&m, &p, "m-lost", text);
	assert_true(p.failed);
	assert_string_equal(p.death.reason, "host_lost");
	world_ready(&m.w);

	/* One that does not listen any more. */
	machine_run(&m, &p, "m-closelisteners");
	h = p.handle;
	turn(&m.w, 200);
	restart(&m);
	adopt(&m, &p, "m-closelisteners", h.text);
	assert_true(p.failed);
	world_ready(&m.w);
	machine_world_end(&m);
}

/* In a process of its own, killed while a machine boots, and with one that runs and that nobody adopts. */
static pid_t node_that_will_die(struct machine_world *m, int pipe_end)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct patient p[3];
	world_start(&m->w);
	world_ready(&m->w);
	machine_run(m, &p[0], "m-kept");
	machine_run(m, &p[1], "m-lost");
	machine_create(m, &p[2], "m-mute");
	turn(&m->w, 500);
	fd_write_all(pipe_end, &p[0].handle, sizeof(p[0].handle));
	for (;;)
		turn(&m->w, 1000);
}

static void what_a_killed_node_left_is_found_or_swept(void **state)
{
	struct machine_world m;
	struct patient p;
	struct box_handle h;
	int pipes[2];
	machine_world_init(&m);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid_t node = node_that_will_die(&m, pipes[1]);
	assert_int_equal(fd_read_full(pipes[0], &h, sizeof(h)), sizeof(h));
	kill(node, SIGKILL);
	waitpid(node, NULL, 0);
	close(pipes[0]), close(pipes[1]);
	world_start(&m.w);
	adopt(&m, &p, "m-kept", h.text);
	if (p.failed)
		fail_msg("%s", p.error.message);
	world_ready(&m.w);
	expect_echo(&m, &p);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

/* Nobody could ever find it again: it is not left to run until the next start. */
static void a_boot_does_not_outlive_the_backend(void **state)
{
	struct machine_world m;
	struct patient p;
	cleanup_buf struct buf now = BUF_INIT;
	machine_world_begin(&m);
	machine_create(&m, &p, "m-mute");
	turn(&m.w, 300);
	int64_t start = now_ms();
	world_stop(&m.w);
	assert_true(now_ms() - start < BUT_NOT_LONG);
	assert_false(p.started);
	sleep(1);
	inventory(&m.w, &now);
	char *processes = strstr(buf_cstr(&now), "processes\n") + 10;
	for (char *line = strtok(processes, "\n"); line; line = strtok(NULL, "\n")) {
		cleanup_buf struct buf stat = BUF_INIT;
		if (strstr(buf_cstr(&m.before), line)) /* somebody else's */
			continue;
		read_proc(strtoul(line, NULL, 10), "stat", &stat);
		assert_non_null(strstr(buf_cstr(&stat), ") Z ")); /* ours, and not reaped: the backend is gone */
		waitpid((pid_t)strtoul(line, NULL, 10), NULL, 0);
	}
	world_start(&m.w);
	world_ready(&m.w);
	machine_world_end(&m);
}

/* A process of its beside the first. */
static pid_t child_of(struct patient *p)
{
	char path[64];
	cleanup_buf struct buf text = BUF_INIT;
	snprintf(path, sizeof(path), "task/%lu/children", monitor_pid(p));
	read_proc(monitor_pid(p), path, &text);
	pid_t pid = (pid_t)strtol(buf_cstr(&text), NULL, 10);
	assert_true(pid > 0);
	return pid;
}

/* Killed, and not gone: here because somebody traces what the kernel has to wait for. More of them than there are who end sandboxes. */
static void those_that_do_not_die_keep_nobody_from_ending(void **state)
{
	enum { LINGER = 5 };
	struct machine_world m;
	struct patient slow[LINGER], good[3];
	pid_t traced[LINGER];
	machine_world_begin(&m);
	int log = begin_log();
	for (size_t i = 0; i < LINGER; i++) {
		machine_run(&m, &slow[i], "m-lingers");
		traced[i] = child_of(&slow[i]);
		if (ptrace(PTRACE_SEIZE, traced[i], NULL, NULL) < 0)
			fail_msg("ptrace: %s", strerror(errno));
	}
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		machine_run(&m, &good[i], "m-good");
	for (size_t i = 0; i < LINGER; i++)
		box_kill(slow[i].box);
	/* Also while they are tried again. */
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		turn(&m.w, 3000);
		int64_t start = now_ms();
		patient_kill(&m.w, &good[i]);
		assert_true(now_ms() - start < BUT_NOT_LONG);
	}
	for (size_t i = 0; i < LINGER; i++)
		assert_false(slow[i].released);
	assert_in_range(logged(log, "do not die"), LINGER, 2 * LINGER);
	for (size_t i = 0; i < LINGER; i++) {
		int64_t start = now_ms();
		while (waitpid(traced[i], NULL, __WALL) < 0 && errno == EINTR)
			;
		wait_for(&m.w, &slow[i].released, "the end of one that lingered");
		assert_true(now_ms() - start < BUT_NOT_LONG);
	}
	end_log(log);
	machine_world_end(&m);
}

/* --- what else is asked of it --- */

static void on_network(const struct error *err, void *arg)
{
	struct opened *o = arg;
	o->done = true;
	o->result = err ? err->code : 0;
}

static void on_log(const struct msg_log_page *page, void *arg)
{
	struct opened *o = arg;
	o->done = true;
	o->result = page ? (int)page->next : -1;
}

static void on_stats(const struct box_stats *s, void *arg)
{
	struct opened *o = arg;
	o->done = true;
	o->result = s && s->memory_used && s->pids ? 0 : -1;
}

static void what_is_asked_of_one_that_runs(void **state)
{
	struct machine_world m;
	struct patient p;
	struct opened o = {0};
	struct box_space space;
	cleanup_buf struct buf envs = BUF_INIT;
	machine_world_begin(&m);
	struct box_spec spec = world_spec(&m.w, "m-asked");
	spec.unassigned = true;
	patient_create(&m.w, &p, &spec);
	wait_for(&m.w, &p.started, "a microVM");
	assert_false(p.failed);
	int console = machine_console(&p);
	patient_assign(&m.w, &p, &envs, "token");
	assert_int_equal(p.assignment.code, 0);
	assert_int_equal(box_stats(p.box, on_stats, &o), 0);
	wait_for(&m.w, &o.done, "statistics");
	assert_int_equal(o.result, 0);
	assert_int_equal(box_space(p.box, &space), 0);
	assert_int_equal(space.total, 256 << 20);
	assert_true(space.backed > 0 && space.used == space.backed && space.foreign && space.pending == 0);
	assert_int_equal(box_brake(p.box, 1), 0);
	o = (struct opened){0};
	assert_int_equal(box_log(p.box, 0, on_log, &o), 0);
	wait_for(&m.w, &o.done, "its log");
	assert_int_equal(o.result, 1);
	o = (struct opened){0};
	const struct box_network nothing = {.internet = false};
	struct error err = {0};
	assert_int_equal(box_network(p.box, &nothing, on_network, &o, &err), 0);
	wait_for(&m.w, &o.done, "its policy");
	assert_int_equal(o.result, 0);
	box_trim(p.box);
	box_sync(p.box); /* one is enough */
	wait_said(&m, console, "trim", 1);
	turn(&m.w, 100);
	assert_int_equal(said(console, "sync"), 0);
	box_sync(p.box);
	wait_said(&m, console, "sync", 1);
	close(console);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

/* --- what they should not do --- */

static void assign_ends(struct machine_world *m, const char *id, int code)
{
	struct patient p;
	cleanup_buf struct buf envs = BUF_INIT;
	const struct box_assignment a = {.envs = {buf_str(&envs)}};
	struct box_spec spec = world_spec(&m->w, id);
	spec.unassigned = true;
	patient_create(&m->w, &p, &spec);
	wait_for(&m->w, &p.started, "a microVM");
	assert_int_equal(box_assign(p.box, &a, patient_assigned, &p), 0);
	for (int i = 0; i < 1500 && !p.assigned && !p.died; i++)
		turn(&m->w, 10);
	assert_true(p.died || p.assigned);
	assert_true(!p.assigned || p.assignment.code == code);
	patient_kill(&m->w, &p);
}

static void assignments_that_fail(void **state)
{
	struct machine_world m;
	machine_world_begin(&m);
	assign_ends(&m, "m-assign12", -EPROTO);
	assign_ends(&m, "m-wrongid", -ETIMEDOUT);
	machine_world_end(&m);
}

static void hostile_monitors_are_borne(void **state)
{
	static const char *const all[] = {"m-noise", "m-flood", "m-flood-ctldeaf", "m-flood-admdeaf", "m-closectl", "m-closeadm", "m-admnoise", "m-ctldeaf-admdeaf", "m-twice", "m-wrongid"};
	struct machine_world m;
	struct patient p, good;
	machine_world_begin(&m);
	machine_run(&m, &good, "m-good");
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct opened o[3] = {0};
		machine_run(&m, &p, all[i]);
		turn(&m.w, 300);
		assert_false(p.died);
		for (size_t k = 0; k < ARRAY_SIZE(o); k++)
			box_open(p.box, 80, on_open, &o[k]);
		box_sync(p.box);
		turn(&m.w, 200);
		expect_echo(&m, &good);
		assert_int_equal(box_freeze(p.box, true), 0);
		assert_int_equal(box_freeze(p.box, false), 0);
		int64_t start = now_ms();
		patient_kill(&m.w, &p);
		assert_true(now_ms() - start < BUT_NOT_LONG);
		turn(&m.w, 10);
		for (size_t k = 0; k < ARRAY_SIZE(o); k++)
			if (o[k].done && o[k].result >= 0)
				close(o[k].result);
	}
	patient_kill(&m.w, &good);
	machine_world_end(&m);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_machine_is_made_and_leaves_nothing),
		cmocka_unit_test(sizes_that_no_machine_has_are_refused_by_name),
		cmocka_unit_test(a_large_machine_has_room_for_its_tables),
		cmocka_unit_test(a_boot_that_fails_tells_why),
		cmocka_unit_test(a_boot_ends_soon_after_its_kill),
		cmocka_unit_test(boots_that_hang_hold_nobody_up_for_long),
		cmocka_unit_test(the_end_of_a_machine_is_told_with_its_cause),
		cmocka_unit_test(ports_are_opened),
		cmocka_unit_test(many_ports_at_once_and_its_end_meanwhile),
		cmocka_unit_test(a_deaf_monitor_costs_few_descriptors),
		cmocka_unit_test(a_broken_connection_to_a_monitor_is_made_anew),
		cmocka_unit_test(one_that_breaks_it_each_time_makes_nobody_busy),
		cmocka_unit_test(a_machine_is_adopted),
		cmocka_unit_test(a_frozen_machine_is_adopted_again_and_again),
		cmocka_unit_test(what_cannot_be_adopted_is_told),
		cmocka_unit_test(what_a_killed_node_left_is_found_or_swept),
		cmocka_unit_test(a_boot_does_not_outlive_the_backend),
		cmocka_unit_test(those_that_do_not_die_keep_nobody_from_ending),
		cmocka_unit_test(what_is_asked_of_one_that_runs),
		cmocka_unit_test(assignments_that_fail),
		cmocka_unit_test(hostile_monitors_are_borne),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
