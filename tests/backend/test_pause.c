/* Pauses: a disk written out under frozen processes, and a disk kept without them. */
#include "backend/world.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "sandbox/box/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define IMAGE "saved/ione-0123456789abcdef.img"

struct outcome {
	bool done;
	int result;
	struct error error; /* code 0: none */
};

static void on_flushed(int r, void *arg)
{
	struct outcome *o = arg;
	o->done = true;
	o->result = r;
}

static void on_saved(const struct error *err, void *arg)
{
	struct outcome *o = arg;
	o->done = true;
	if (err)
		o->error = *err;
}

static void image_path(struct world *w, const char *image, char to[160])
{
	snprintf(to, 160, "%s/node/%s", w->dir, image);
}

static nlink_t names_of(struct world *w, const char *image)
{
	char path[160];
	struct stat st;
	image_path(w, image, path);
	return stat(path, &st) < 0 ? 0 : st.st_nlink;
}

static bool is_mounted(struct world *w, const char *image)
{
	char path[160];
	image_path(w, image, path);
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return flock(fd, LOCK_EX | LOCK_NB) < 0;
}

static void freeze_and_flush(struct world *w, struct patient *p)
{
	struct outcome o = {0};
	assert_int_equal(box_freeze(p->box, true), 0);
	assert_int_equal(box_flush(p->box, true, on_flushed, &o), 0);
	assert_int_equal(box_flush(p->box, true, on_flushed, &o), -EBUSY);
	wait_for(w, &o.done, "the flush");
	assert_int_equal(o.result, 0);
}

static void save(struct world *w, struct patient *p, const char *image)
{
	struct outcome o = {0};
	freeze_and_flush(w, p);
	assert_int_equal(box_save(p->box, image, on_saved, &o), 0);
	assert_int_equal(box_save(p->box, image, on_saved, &o), -EBUSY);
	box_kill(p->box); /* changes nothing */
	wait_for(w, &p->released, "a sandbox to be saved");
	assert_true(o.done);
	if (o.error.code)
		fail_msg("%s", o.error.message);
	assert_false(p->died);
}

static void boot(struct world *w, struct patient *p, const char *id, const char *image)
{
	struct box_spec spec = world_spec(w, id);
	*p = (struct patient){0};
	spec.disk = image;
	patient_create(w, p, &spec);
	wait_for(w, &p->started, "a boot from a disk");
	if (p->failed)
		fail_msg("%s", p->error.message);
}

static void remove_image(struct world *w, const char *image)
{
	char path[160];
	image_path(w, image, path);
	assert_int_equal(unlink(path), 0);
}

/* The sum of a file on the image, as a machine that lost its power would have it: the journal is replayed on a copy. */
static void expect_on_image(struct world *w, const struct patient *p, const char *file, const char *content)
{
	char command[512], line[256] = "";
	unsigned slot;
	assert_int_equal(sscanf(strstr(p->handle.text, "slot="), "slot=%u", &slot), 1);
	snprintf(command, sizeof(command),
		"cp --sparse=always %s/node/disks/s%u.img %s/copy.img && e2fsck -p %s/copy.img >/dev/null; [ $? -le 1 ] && debugfs -R 'cat /upper%s' %s/copy.img 2>/dev/null",
		w->dir, slot, w->dir, w->dir, file, w->dir);
	FILE *f = popen(command, "r");
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof(line), f));
	pclose(f);
	assert_string_equal(line, content);
	snprintf(command, sizeof(command), "%s/copy.img", w->dir);
	unlink(command);
}

static void on_stats(const struct box_stats *s, void *arg)
{
	*(uint64_t *)arg = s ? s->cpu_usec + 1 : 1;
}

/* Microseconds of processor time. */
static uint64_t cpu_of(struct world *w, struct patient *p)
{
	uint64_t used = 0;
	assert_int_equal(box_stats(p->box, on_stats, &used), 0);
	for (int i = 0; i < 1000 && !used; i++)
		turn(w, 10);
	assert_true(used > 1);
	return used;
}

static void a_frozen_sandbox_is_on_its_image_and_goes_on(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf first = BUF_INIT, second = BUF_INIT, third = BUF_INIT;
	world_init(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ione");
	expect_inside(&w, &p, "echo not synced by anybody >/root/file; (i=0; while :; do i=$((i+1)); echo $i >/tmp/next; mv /tmp/next /tmp/count; done) >/dev/null 2>&1 & echo", "\n");
	turn(&w, 300);
	freeze_and_flush(&w, &p);
	expect_on_image(&w, &p, "/root/file", "not synced by anybody\n");
	/* The control channel answers: PID 1 is not frozen. Nothing else moves. */
	cleanup_fd int fd = world_open(&w, &p, 49983);
	assert_true(fd >= 0);
	uint64_t used = cpu_of(&w, &p);
	turn(&w, 300);
	assert_true(cpu_of(&w, &p) - used < 150000);
	assert_int_equal(box_freeze(p.box, false), 0);
	assert_int_equal(inside(&w, &p, "root", "cat /tmp/count", &first), 0);
	turn(&w, 300);
	assert_int_equal(inside(&w, &p, "root", "cat /tmp/count", &second), 0);
	assert_string_not_equal(buf_cstr(&first), buf_cstr(&second));
	/* Killed in the middle of a flush: nobody is told of the flush any more. */
	static struct outcome o;
	o = (struct outcome){0};
	assert_int_equal(box_freeze(p.box, true), 0);
	assert_int_equal(box_flush(p.box, true, on_flushed, &o), 0);
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

static void only_the_disk_is_kept_and_started_again(void **state)
{
	struct world w;
	struct patient p;
	cleanup_buf struct buf before = BUF_INIT, boot_id = BUF_INIT, other = BUF_INIT;
	char path[160];
	world_init(&w);
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ione");
	assert_int_equal(inside(&w, &p, "root", "cat /proc/sys/kernel/random/boot_id", &boot_id), 0);
	expect_inside(&w, &p, "echo kept >/root/file; chmod 640 /root/file; rm -r /etc/hostname /bin/vi 2>/dev/null; mkdir -p /a/b; ln -s /root/file /a/b/link; dd if=/dev/zero of=/root/big bs=1M count=30 2>/dev/null;"
		" sleep 1000 >/dev/null 2>&1 & echo $(id -u)", "0\n");
	save(&w, &p, IMAGE);
	assert_int_equal(names_of(&w, IMAGE), 1);
	assert_false(is_mounted(&w, IMAGE));

	for (int life = 0; life < 3; life++) {
		boot(&w, &p, "ione", IMAGE);
		assert_int_equal(names_of(&w, IMAGE), 2);
		assert_true(is_mounted(&w, IMAGE));
		remove_image(&w, IMAGE);
		expect_inside(&w, &p, "cat /a/b/link; stat -c %a:%u /root/file; stat -c %s /root/big; pidof sleep || echo none; ls /bin/vi 2>/dev/null || echo gone; hostname", "kept\n640:0\n31457280\nnone\ngone\nione\n");
		buf_clear(&other);
		assert_int_equal(inside(&w, &p, "root", "cat /proc/sys/kernel/random/boot_id", &other), 0);
		assert_string_not_equal(buf_cstr(&boot_id), buf_cstr(&other));
		save(&w, &p, IMAGE);
	}

	/* A boot that fails leaves the image as it was. */
	struct box_spec spec = world_spec(&w, "ione");
	spec.disk = IMAGE;
	spec.layers[0] = "/nonexistent.erofs";
	p = (struct patient){0};
	patient_create(&w, &p, &spec);
	wait_for(&w, &p.started, "a boot that fails");
	assert_true(p.failed);
	for (int i = 0; i < 1200 && names_of(&w, IMAGE) > 1; i++)
		turn(&w, 50);
	assert_int_equal(names_of(&w, IMAGE), 1);
	spec = world_spec(&w, "ione");
	spec.disk = "saved/../disks/s0.img";
	p = (struct patient){0};
	patient_create(&w, &p, &spec);
	wait_for(&w, &p.started, "a boot that fails");
	assert_true(p.failed);
	boot(&w, &p, "ione", IMAGE);
	expect_inside(&w, &p, "cat /root/file", "kept\n");
	/* Killed before anybody took its saved name away: the image is there still. */
	patient_kill(&w, &p);
	for (int i = 0; i < 1200 && names_of(&w, IMAGE) > 1; i++)
		turn(&w, 50);
	assert_int_equal(names_of(&w, IMAGE), 1);
	image_path(&w, IMAGE, path);
	assert_int_equal(unlink(path), 0);
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

static void a_dead_sandbox_leaves_its_disk(void **state)
{
	struct world w;
	struct patient p;
	struct outcome o = {0};
	world_init(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ione");
	expect_inside(&w, &p, "echo kept >/root/file", "");
	int pid;
	assert_int_equal(sscanf(strstr(p.handle.text, "pid="), "pid=%d", &pid), 1);
	freeze_and_flush(&w, &p);
	kill(pid, SIGKILL);
	wait_for(&w, &p.died, "the end of PID 1");
	assert_int_equal(box_save(p.box, IMAGE, on_saved, &o), 0);
	wait_for(&w, &p.released, "a sandbox to be saved");
	assert_int_equal(o.error.code, 0);
	boot(&w, &p, "ione", IMAGE);
	expect_inside(&w, &p, "cat /root/file", "kept\n");
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

/* Adoptions that fail, answered by a save. */
struct saver {
	struct patient patient;
	struct outcome outcome;
	const char *image;
};

static void saver_started(struct box *b, const struct box_handle *h, const struct error *err, void *arg)
{
	struct saver *s = arg;
	patient_ops.started(b, h, err, &s->patient);
	if (err)
		assert_int_equal(box_save(b, s->image, on_saved, &s->outcome), 0);
}

static void saver_released(struct box *b, void *arg)
{
	struct saver *s = arg;
	patient_ops.released(b, &s->patient);
}

static const struct box_ops saver_ops = {saver_started, NULL, saver_released};

static void adopt_and_save(struct world *w, struct saver *s, const char *handle)
{
	struct error err = {0};
	s->image = IMAGE;
	if (!box_adopt(w->backend, STR("ione"), handle, &any_network, &saver_ops, s, &err))
		fail_msg("%s", err.message);
	wait_for(w, &s->patient.released, "a dead sandbox to be saved");
	assert_true(s->patient.failed && s->outcome.done);
}

/* A handle of the same parts under another boot. */
static void of_another_boot(const char *handle, char to[512])
{
	snprintf(to, 512, "%.*sboot=00000000-0000-0000-0000-000000000000", (int)(strstr(handle, "boot=") - handle), handle);
}

static void sandboxes_that_a_node_finds_dead_leave_their_disks(void **state)
{
	struct world w;
	struct saver s = {0};
	struct patient p;
	int pipes[2];
	struct box_handle h;
	world_init(&w);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid_t node = fork();
	if (node == 0) {
		world_start(&w);
		world_ready(&w);
		patient_run(&w, &p, "ione");
		expect_inside(&w, &p, "echo kept >/root/file", "");
		if (write(pipes[1], &p.handle, sizeof(p.handle)) == sizeof(p.handle))
			pause();
		_exit(1);
	}
	assert_int_equal(fd_read_full(pipes[0], &h, sizeof(h)), sizeof(h));
	kill(node, SIGKILL);
	waitpid(node, NULL, 0);
	close(pipes[0]), close(pipes[1]);
	int pid;
	assert_int_equal(sscanf(strstr(h.text, "pid="), "pid=%d", &pid), 1);
	kill(pid, SIGKILL);

	world_start(&w);
	adopt_and_save(&w, &s, h.text);
	if (s.outcome.error.code)
		fail_msg("%s", s.outcome.error.message);
	world_ready(&w);
	boot(&w, &p, "ione", IMAGE);
	expect_inside(&w, &p, "cat /root/file", "kept\n");
	patient_kill(&w, &p);
	world_stop(&w);

	/* Saved by a node that was ended before it could say so. */
	world_start(&w);
	s = (struct saver){0};
	adopt_and_save(&w, &s, h.text);
	assert_int_equal(s.outcome.error.code, 0);
	world_ready(&w);
	remove_image(&w, IMAGE);
	world_stop(&w);

	/* And one of which nothing is left. */
	world_start(&w);
	s = (struct saver){0};
	adopt_and_save(&w, &s, h.text);
	assert_int_equal(s.outcome.error.code, -ENOENT);
	world_stop(&w);
	world_done(&w);
}

static void copy_image(struct world *w, const char *from, const char *to)
{
	char path[2][160];
	struct stat st;
	image_path(w, from, path[0]);
	image_path(w, to, path[1]);
	cleanup_fd int in = open(path[0], O_RDONLY | O_CLOEXEC), out = open(path[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(in >= 0 && out >= 0 && fstat(in, &st) == 0);
	assert_int_equal(copy_sparse(in, out, st.st_size, false, NULL), 0);
}

static void after_a_reboot_the_disk_is_repaired_or_refused(void **state)
{
	struct world w;
	struct saver s = {0};
	struct patient p;
	struct box_handle h;
	char disk[32], lost[512], path[160];
	unsigned slot;
	world_init(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ione");
	h = p.handle;
	assert_int_equal(sscanf(strstr(h.text, "slot="), "slot=%u", &slot), 1);
	snprintf(disk, sizeof(disk), "disks/s%u.img", slot);
	expect_inside(&w, &p, "echo kept >/root/file", "");
	freeze_and_flush(&w, &p);
	/* What a power cut would leave: a file system that nobody has unmounted. */
	copy_image(&w, disk, "copy.img");
	patient_kill(&w, &p);
	world_stop(&w);
	copy_image(&w, "copy.img", disk);
	of_another_boot(h.text, lost);

	world_start(&w);
	adopt_and_save(&w, &s, lost);
	assert_string_equal(s.patient.death.reason, "host_lost");
	if (s.outcome.error.code)
		fail_msg("%s", s.outcome.error.message);
	struct stat st;
	image_path(&w, IMAGE, path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_uid, 0);
	world_ready(&w);
	boot(&w, &p, "ione", IMAGE);
	expect_inside(&w, &p, "cat /root/file", "kept\n");
	patient_kill(&w, &p);
	remove_image(&w, IMAGE);
	world_stop(&w);

	/* One that is no file system any more. */
	image_path(&w, disk, path);
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 64 << 20), 0);
	world_start(&w);
	s = (struct saver){0};
	adopt_and_save(&w, &s, lost);
	assert_int_equal(s.outcome.error.code, -EUCLEAN);
	assert_int_equal(names_of(&w, IMAGE), 0);
	world_stop(&w);
	world_done(&w);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_frozen_sandbox_is_on_its_image_and_goes_on),
		cmocka_unit_test(only_the_disk_is_kept_and_started_again),
		cmocka_unit_test(a_dead_sandbox_leaves_its_disk),
		cmocka_unit_test(sandboxes_that_a_node_finds_dead_leave_their_disks),
		cmocka_unit_test(after_a_reboot_the_disk_is_repaired_or_refused),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
