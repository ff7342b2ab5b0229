/* The disks of microVMs: written out under frozen ones, kept without them, copied beside them; with inits inside that answer late, wrongly, or not at all. */
#include "backend/machine_world.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define IMAGE "saved/m-0123456789abcdef.img"

enum { QUICK_MS = 1500, NO_ANSWER_MS = MACHINE_ANSWER_SECONDS * 1000 - 100 };

struct outcome {
	int times;
	bool done;
	int result;
	struct box_copied copied;
	struct error error; /* code 0: none */
};

static int64_t now_ms(void)
{
	return clock_monotonic() / NS_PER_MS;
}

static void on_flushed(int r, void *arg)
{
	struct outcome *o = arg;
	o->done = true;
	o->times++;
	o->result = r;
}

static void on_saved(const struct error *err, void *arg)
{
	struct outcome *o = arg;
	o->done = true;
	o->times++;
	if (err)
		o->error = *err;
}

static void on_copied(const struct box_copied *c, const struct error *err, void *arg)
{
	struct outcome *o = arg;
	o->done = true;
	o->times++;
	if (c)
		o->copied = *c;
	else
		o->error = *err;
}

static const char *copy_path(struct machine_world *m, const char *suffix)
{
	static char path[160];
	snprintf(path, sizeof(path), "%s/node/snapshots", m->w.dir);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/node/snapshots/one.img%s", m->w.dir, suffix);
	return path;
}

static bool copy_is_there(struct machine_world *m)
{
	assert_int_equal(access(copy_path(m, ".new"), F_OK), -1);
	return access(copy_path(m, ""), F_OK) == 0;
}

static void expect_image(struct machine_world *m, const char *name)
{
	char path[160];
	struct stat st;
	snprintf(path, sizeof(path), "%s/node/%s", m->w.dir, name);
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 256 << 20);
	assert_int_equal(st.st_uid, 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0); /* no monitor has it any more */
}

static void remove_image(struct machine_world *m, const char *name)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/node/%s", m->w.dir, name);
	assert_int_equal(unlink(path), 0);
}

/* --- freeze, flush --- */

static void flush(struct machine_world *m, struct patient *p)
{
	struct outcome o = {0};
	assert_int_equal(box_freeze(p->box, true), 0);
	assert_int_equal(box_flush(p->box, true, on_flushed, &o), 0);
	assert_int_equal(box_flush(p->box, true, on_flushed, &o), -EBUSY);
	wait_for(&m->w, &o.done, "the flush");
	assert_int_equal(o.result, 0);
	assert_int_equal(o.times, 1);
}

static void a_frozen_one_is_written_out(void **state)
{
	static const struct {
		const char *id;
		bool slow;
	} all[] = {{"m-frozen", false}, {"m-frozen-late", false}, {"m-frozen-syncerr", false}, {"m-frozen-syncmute", true}, {"m-frozen-wrongid", true}, {"m-frozen-ctldeaf", true}, {"m-closectl", false}};
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		machine_run(&m, &p, all[i].id);
		turn(&m.w, 50);
		int console = machine_console(&p);
		int64_t start = now_ms();
		flush(&m, &p);
		int64_t took = now_ms() - start;
		if (took < (all[i].slow ? NO_ANSWER_MS : 0) || took > (all[i].slow ? 10000 : QUICK_MS))
			fail_msg("%s: %lld ms", all[i].id, (long long)took);
		assert_true(is_frozen(&p));
		if (strstr(all[i].id, "frozen") && !strstr(all[i].id, "deaf"))
			assert_true(said(console, "still") == 1 && said(console, "sync") == 1);
		assert_int_equal(box_freeze(p.box, false), 0);
		assert_false(is_frozen(&p));
		close(console);
		patient_kill(&m.w, &p);
	}
	machine_world_end(&m);
}

/* Where the host has no room, what is dirty inside stays there. */
static void without_room_it_is_not_asked_to_write(void **state)
{
	struct machine_world m;
	struct patient p;
	struct outcome o = {0};
	machine_world_begin(&m);
	machine_run(&m, &p, "m-room");
	int console = machine_console(&p);
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, false, on_flushed, &o), 0);
	wait_for(&m.w, &o.done, "the flush");
	assert_int_equal(o.result, 0);
	assert_true(is_frozen(&p));
	assert_int_equal(box_freeze(p.box, false), 0);
	wait_said(&m, console, "moves", 1);
	assert_int_equal(said(console, "sync"), 0);
	close(console);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void the_end_of_one_that_is_written_out(void **state)
{
	struct machine_world m;
	struct patient p;
	struct outcome o = {0};
	machine_world_begin(&m);
	/* It dies of it. */
	machine_run(&m, &p, "m-sync12");
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, true, on_flushed, &o), 0);
	wait_for(&m.w, &p.died, "its death");
	patient_kill(&m.w, &p);
	assert_true(o.times <= 1);
	/* It is killed meanwhile. */
	machine_run(&m, &p, "m-syncmute");
	o = (struct outcome){0};
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, true, on_flushed, &o), 0);
	turn(&m.w, 50);
	int64_t start = now_ms();
	patient_kill(&m.w, &p);
	assert_true(now_ms() - start < QUICK_MS);
	turn(&m.w, 50);
	assert_int_equal(o.times, 0);
	/* It is thawed meanwhile: it stays so. */
	machine_run(&m, &p, "m-late");
	o = (struct outcome){0};
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, true, on_flushed, &o), 0);
	assert_int_equal(box_freeze(p.box, false), 0);
	wait_for(&m.w, &o.done, "the flush");
	assert_false(is_frozen(&p));
	patient_kill(&m.w, &p);
	/* The backend ends meanwhile: it is found again. */
	machine_run(&m, &p, "m-syncmute");
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, true, on_flushed, &o), 0);
	turn(&m.w, 50);
	world_stop(&m.w);
	world_start(&m.w);
	world_ready(&m.w);
	machine_world_end(&m);
}

/* --- save --- */

static void save(struct machine_world *m, struct patient *p, bool slow)
{
	struct outcome o = {0};
	int64_t start = now_ms();
	assert_int_equal(box_save(p->box, IMAGE, on_saved, &o), 0);
	assert_false(o.done);
	assert_int_equal(box_save(p->box, IMAGE, on_saved, &o), -EBUSY);
	wait_for(&m->w, &p->released, "a microVM to be saved");
	int64_t took = now_ms() - start;
	if (o.error.code)
		fail_msg("%s", o.error.message);
	assert_int_equal(o.times, 1);
	if (took < (slow ? NO_ANSWER_MS : 0) || took > (slow ? 10000 : QUICK_MS))
		fail_msg("it took %lld ms", (long long)took);
	expect_image(m, IMAGE);
}

static void boot_from_it(struct machine_world *m)
{
	struct patient p;
	struct box_spec spec = world_spec(&m->w, "m-again");
	spec.disk = IMAGE;
	patient_create(&m->w, &p, &spec);
	wait_for(&m->w, &p.started, "a boot from a disk");
	if (p.failed)
		fail_msg("%s", p.error.message);
	patient_kill(&m->w, &p);
	remove_image(m, IMAGE);
}

static void a_disk_is_kept(void **state)
{
	static const struct {
		const char *id;
		bool slow;
	} all[] = {{"m-kept", false}, {"m-kept-late", false}, {"m-kept-onerr", false}, {"m-kept-onmute", true}, {"m-kept-on12", false}, {"m-closectl", false}};
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		machine_run(&m, &p, all[i].id);
		turn(&m.w, 50);
		cleanup_fd int console = machine_console(&p);
		save(&m, &p, all[i].slow);
		if (strstr(all[i].id, "kept"))
			assert_int_equal(said(console, "on"), 1);
		boot_from_it(&m);
		close(steal_fd(&console));
	}
	/* As a pause that keeps nothing else does it: it is frozen, and asked all the same. */
	machine_run(&m, &p, "m-frozen");
	int console = machine_console(&p);
	flush(&m, &p);
	save(&m, &p, false);
	assert_int_equal(said(console, "on"), 1);
	close(console);
	boot_from_it(&m);
	machine_world_end(&m);
}

static void the_disk_of_a_dead_one_is_kept(void **state)
{
	struct machine_world m;
	struct patient p;
	machine_world_begin(&m);
	machine_run(&m, &p, "m-dead");
	kill((pid_t)monitor_pid(&p), SIGKILL);
	wait_for(&m.w, &p.died, "its death");
	save(&m, &p, false);
	boot_from_it(&m);
	machine_world_end(&m);
}

static void killed_while_its_disk_is_to_be_kept(void **state)
{
	struct machine_world m;
	struct patient p;
	struct outcome o = {0};
	machine_world_begin(&m);
	/* It changes nothing, but that it is not waited for. */
	machine_run(&m, &p, "m-onmute");
	assert_int_equal(box_save(p.box, IMAGE, on_saved, &o), 0);
	turn(&m.w, 50);
	int64_t start = now_ms();
	box_kill(p.box);
	box_kill(p.box);
	wait_for(&m.w, &p.released, "a microVM to be saved");
	assert_true(now_ms() - start < QUICK_MS);
	assert_int_equal(o.times, 1);
	assert_int_equal(o.error.code, 0);
	boot_from_it(&m);
	/* Its monitor is killed. */
	machine_run(&m, &p, "m-onmute");
	o = (struct outcome){0};
	assert_int_equal(box_save(p.box, IMAGE, on_saved, &o), 0);
	turn(&m.w, 50);
	kill((pid_t)monitor_pid(&p), SIGKILL);
	wait_for(&m.w, &p.released, "a microVM to be saved");
	assert_int_equal(o.times, 1);
	assert_int_equal(o.error.code, 0);
	assert_false(p.died);
	boot_from_it(&m);
	/* While it is being written out, too; and its channel ends. */
	machine_run(&m, &p, "m-syncmute-onmute");
	struct outcome f = {0};
	o = (struct outcome){0};
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, true, on_flushed, &f), 0);
	assert_int_equal(box_save(p.box, IMAGE, on_saved, &o), 0);
	turn(&m.w, 50);
	kill((pid_t)monitor_pid(&p), SIGKILL);
	start = now_ms();
	wait_for(&m.w, &p.released, "a microVM to be saved");
	assert_true(now_ms() - start < QUICK_MS);
	assert_int_equal(o.times, 1);
	assert_true(f.times <= 1);
	boot_from_it(&m);
	machine_world_end(&m);
}

/* --- copy --- */

static void copy(struct machine_world *m, struct patient *p, struct outcome *o)
{
	*o = (struct outcome){0};
	assert_int_equal(box_copy(p->box, copy_path(m, ""), on_copied, o), 0);
	assert_false(o->done); /* not before box_copy() returns */
	wait_for(&m->w, &o->done, "a copy");
	turn(&m->w, 20);
	assert_int_equal(o->times, 1);
}

static void a_disk_is_copied(void **state)
{
	struct machine_world m;
	struct patient p;
	struct outcome o;
	machine_world_begin(&m);
	machine_run(&m, &p, "m-copied");
	int console = machine_console(&p);
	copy(&m, &p, &o);
	if (o.error.code)
		fail_msg("%s", o.error.message);
	assert_true(copy_is_there(&m));
	assert_true(o.copied.size > 0 && o.copied.paused > 0);
	assert_int_equal(said(console, "on"), 1);
	assert_int_equal(said(console, "off"), 1);
	unlink(copy_path(&m, ""));
	/* A frozen one. */
	assert_int_equal(box_freeze(p.box, true), 0);
	int64_t start = now_ms();
	copy(&m, &p, &o);
	assert_true(now_ms() - start < QUICK_MS);
	assert_true(copy_is_there(&m));
	assert_true(is_frozen(&p));
	assert_int_equal(box_freeze(p.box, false), 0);
	unlink(copy_path(&m, ""));
	/* One at a time. */
	o = (struct outcome){0};
	assert_int_equal(box_copy(p.box, copy_path(&m, ""), on_copied, &o), 0);
	assert_int_equal(box_copy(p.box, copy_path(&m, ""), on_copied, &o), -EBUSY);
	wait_for(&m.w, &o.done, "a copy");
	close(console);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

static void what_did_not_stand_still_is_no_copy(void **state)
{
	static const struct {
		const char *id;
		int code;
	} all[] = {{"m-onerr", -EIO}, {"m-onmute", -ETIMEDOUT}, {"m-offerr", -EIO}, {"m-offmute", -ETIMEDOUT}, {"m-wrongid", -ETIMEDOUT}, {"m-closectl", -EPIPE}};
	struct machine_world m;
	struct patient p;
	struct outcome o;
	machine_world_begin(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		machine_run(&m, &p, all[i].id);
		turn(&m.w, 50);
		int console = machine_console(&p);
		copy(&m, &p, &o);
		if (o.error.code != all[i].code)
			fail_msg("%s: %d %s", all[i].id, o.error.code, o.error.message);
		assert_false(copy_is_there(&m));
		/* It may stand still yet, late: not for long. */
		if (all[i].code == -ETIMEDOUT)
			wait_said(&m, console, "off", 1);
		/* What runs goes on. */
		assert_false(p.died);
		close(console);
		patient_kill(&m.w, &p);
	}
	machine_world_end(&m);
}

static void the_end_of_one_that_is_copied(void **state)
{
	static const char *const all[] = {"m-onmute", "m-offmute", "m-on12", "m-off12"};
	struct machine_world m;
	struct patient p;
	struct outcome o;
	machine_world_begin(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all) * 2; i++) {
		const char *id = all[i / 2];
		bool mute = strstr(id, "mute");
		machine_run(&m, &p, id);
		int console = machine_console(&p);
		o = (struct outcome){0};
		assert_int_equal(box_copy(p.box, copy_path(&m, ""), on_copied, &o), 0);
		if (mute)
			wait_said(&m, console, strstr(id, "off") ? "off" : "on", 1);
		int64_t start = now_ms();
		if (mute && i % 2)
			kill((pid_t)monitor_pid(&p), SIGKILL);
		else if (mute)
			box_kill(p.box);
		wait_for(&m.w, &o.done, "the end of a copy");
		assert_true(now_ms() - start < QUICK_MS);
		if (!p.released && (!mute || i % 2))
			wait_for(&m.w, &p.died, "its death");
		if (p.box)
			patient_kill(&m.w, &p);
		assert_int_equal(o.times, 1);
		assert_true(o.error.code < 0);
		if (mute && !(i % 2))
			assert_true(o.error.code == -ECANCELED && o.error.status == 404);
		assert_false(copy_is_there(&m));
		close(console);
	}
	machine_world_end(&m);
}

static void frozen_while_it_is_copied(void **state)
{
	struct machine_world m;
	struct patient p;
	struct outcome o = {0};
	machine_world_begin(&m);
	machine_run(&m, &p, "m-late");
	int console = machine_console(&p);
	assert_int_equal(box_copy(p.box, copy_path(&m, ""), on_copied, &o), 0);
	wait_said(&m, console, "on", 1);
	/* At once, whatever it was asked: it takes disk space that is not there. */
	assert_int_equal(box_freeze(p.box, true), 0);
	for (int i = 0; i < 20 && !is_frozen(&p); i++)
		turn(&m.w, 10);
	assert_true(is_frozen(&p));
	wait_for(&m.w, &o.done, "the end of a copy");
	assert_int_equal(o.error.code, -ETIMEDOUT);
	assert_false(copy_is_there(&m));
	turn(&m.w, MACHINE_ANSWER_SECONDS * 1000 + 500);
	assert_int_equal(o.times, 1);
	assert_true(is_frozen(&p));
	assert_int_equal(said(console, "off"), 0); /* not thawed to be told so */
	assert_int_equal(box_freeze(p.box, false), 0);
	wait_said(&m, console, "off", 1);
	copy(&m, &p, &o);
	assert_int_equal(o.error.code, 0);
	close(console);
	patient_kill(&m.w, &p);
	machine_world_end(&m);
}

/* The backend ends while it waits for an answer. */
static void a_copy_does_not_outlive_the_backend(void **state)
{
	static const char *const all[] = {"m-onmute", "m-offmute"};
	struct machine_world m;
	struct patient p;
	struct outcome o = {0};
	machine_world_init(&m);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		world_start(&m.w);
		world_ready(&m.w);
		machine_run(&m, &p, all[i]);
		int console = machine_console(&p);
		assert_int_equal(box_copy(p.box, copy_path(&m, ""), on_copied, &o), 0);
		wait_said(&m, console, i ? "off" : "on", 1);
		close(console);
		world_stop(&m.w);
		assert_int_equal(o.times, 0);
		assert_false(copy_is_there(&m));
	}
	world_start(&m.w);
	world_ready(&m.w);
	machine_world_end(&m);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_frozen_one_is_written_out),
		cmocka_unit_test(without_room_it_is_not_asked_to_write),
		cmocka_unit_test(the_end_of_one_that_is_written_out),
		cmocka_unit_test(a_disk_is_kept),
		cmocka_unit_test(the_disk_of_a_dead_one_is_kept),
		cmocka_unit_test(killed_while_its_disk_is_to_be_kept),
		cmocka_unit_test(a_disk_is_copied),
		cmocka_unit_test(what_did_not_stand_still_is_no_copy),
		cmocka_unit_test(the_end_of_one_that_is_copied),
		cmocka_unit_test(frozen_while_it_is_copied),
		cmocka_unit_test(a_copy_does_not_outlive_the_backend),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
