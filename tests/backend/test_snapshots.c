/* Copies of disks as layers of other sandboxes: what travels, what the source notices, and what is left when it goes wrong. */
#include "backend/world.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

struct copying {
	struct box_copied copied;
	struct error err;
	bool done;
};

static void on_copied(const struct box_copied *c, const struct error *err, void *arg)
{
	struct copying *k = arg;
	k->done = true;
	if (c)
		k->copied = *c;
	else
		k->err = *err;
}

static const char *image(struct world *w, char to[128], const char *name)
{
	snprintf(to, 128, "%s/node/snapshots", w->dir);
	mkdir(to, 0700);
	snprintf(to, 128, "%s/node/snapshots/%s.img", w->dir, name);
	return to;
}

static void copy(struct world *w, struct patient *p, const char *path)
{
	struct copying k = {0};
	struct stat st;
	assert_int_equal(box_copy(p->box, path, on_copied, &k), 0);
	wait_for(w, &k.done, "a copy");
	if (k.err.code)
		fail_msg("%s", k.err.message);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(k.copied.size, st.st_blocks * 512);
	assert_true(k.copied.paused > 0);
}

static void run_from(struct world *w, struct patient *p, const char *id, const char *one, const char *two)
{
	struct box_spec spec = world_spec(w, id);
	spec.layers[spec.n_layers++] = one;
	if (two)
		spec.layers[spec.n_layers++] = two;
	patient_create(w, p, &spec);
	wait_for(w, &p->started, "a sandbox to start");
	if (p->failed)
		fail_msg("%s", p->error.message);
}

#define LOOK                                                                                                                               \
	"cat /opt/new; ls /opt/gone 2>/dev/null; ls /opt/replaced; cat /opt/elsewhere/deep/one /opt/elsewhere/two; ls -d /opt/moved 2>/dev/null;"   \
	"stat -c '%a %s' /etc/blob; stat -c '%h' /opt/link1; cat /opt/link2; stat -c '%u:%g %a' /home/user/mine; stat -c %a /opt/busybox-s;"            \
	"probe xattr /opt/new; readlink /opt/sym; stat -c %F /opt/fifo; stat -c '%s %b' /opt/sparse; ls /dev/shm/shared /run/mine 2>/dev/null; hostname"

static void what_was_written_travels(void **state)
{
	struct world w;
	struct patient parent, child, other, grandchild;
	char first[128], second[128];
	cleanup_buf struct buf before = BUF_INIT;
	world_init(&w);
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &parent, "iparent");
	expect_inside(&w, &parent,
		"umask 022; echo new > /opt/new; probe xattr /opt/new tagged; rm /opt/gone; rm -r /opt/replaced; mkdir /opt/replaced; echo young > /opt/replaced/young;"
		"mv /opt/moved /opt/elsewhere; md5sum /etc/blob > /opt/sum; chmod 600 /etc/blob; echo linked > /opt/link1; ln /opt/link1 /opt/link2;"
		"touch /home/user/mine; chown 1000:1000 /home/user/mine; cp /bin/busybox /opt/busybox-s; chmod 4755 /opt/busybox-s; ln -s nowhere /opt/sym; mkfifo /opt/fifo;"
		"truncate -s 50M /opt/sparse; echo x > /dev/shm/shared; echo x > /run/mine",
		"");
	copy(&w, &parent, image(&w, first, "first"));
	expect_inside(&w, &parent, "echo later > /opt/new; cat /dev/shm/shared", "x\n");

	/* Other ids, another slot. What lies in memory stays behind: /dev/shm, /run. */
	run_from(&w, &child, "ichild", first, NULL);
	expect_inside(&w, &child, LOOK "; md5sum -c -s /opt/sum && echo same",
		"new\nyoung\none\ntwo\n600 1000000\n2\nlinked\n1000:1000 644\n4755\ntagged\nnowhere\nfifo\n52428800 0\nichild\nsame\n");
	expect_inside_as(&w, &child, "user", "/opt/busybox-s su root -c 'id -u'; echo more >> /home/user/mine; cat /home/user/mine", "0\nmore\n");
	expect_inside(&w, &child, "echo changed > /opt/link1; rm /opt/new; rm -r /opt/elsewhere/deep; mkdir /opt/elsewhere/deep; mv /opt/elsewhere /opt/third; echo back > /opt/gone", "");

	/* The two do not see each other. */
	run_from(&w, &other, "iother", first, NULL);
	expect_inside(&w, &other, "cat /opt/new /opt/link1; ls /opt/elsewhere/deep; ls /opt/gone 2>/dev/null; sum=$(cat /etc/machine-id); [ $sum ] && echo id", "new\nlinked\none\nid\n");
	expect_inside(&w, &parent, "cat /opt/new /opt/link1; ls /opt/elsewhere/deep", "later\nlinked\none\n");

	copy(&w, &child, image(&w, second, "second"));
	patient_kill(&w, &child);
	patient_kill(&w, &parent);
	run_from(&w, &grandchild, "igrandchild", first, second);
	expect_inside(&w, &grandchild,
		"ls /opt; ls -A /opt/third /opt/third/deep /opt/replaced; cat /opt/third/two /opt/link1 /opt/gone; stat -c %a /etc/blob; md5sum -c -s /opt/sum && echo same",
		"busybox-s\nfifo\ngone\nlink1\nlink2\nreplaced\nsparse\nsum\nsym\nthird\n/opt/replaced:\nyoung\n\n/opt/third:\ndeep\ntwo\n\n/opt/third/deep:\ntwo\nchanged\nback\n600\nsame\n");
	backend_drop_image(w.backend, first);
	backend_drop_image(w.backend, second);
	expect_inside(&w, &grandchild, "cat /opt/link1; md5sum -c -s /opt/sum && echo same", "changed\nsame\n");
	patient_kill(&w, &grandchild);
	patient_kill(&w, &other);
	for (int i = 0; i < 600 && (access(first, F_OK) == 0 || access(second, F_OK) == 0); i++)
		turn(&w, 50);
	assert_int_equal(access(first, F_OK), -1);
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

static void ten_at_once_of_one_copy(void **state)
{
	enum { N = 10 };
	static struct patient p[N];
	static char names[N][16];
	struct world w;
	struct patient parent;
	char path[128];
	cleanup_buf struct buf before = BUF_INIT;
	world_init(&w);
	world_set(&w, "pool.min", "2");
	world_set(&w, "pool.max", "8");
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &parent, "iparent");
	expect_inside(&w, &parent, "echo seed > /opt/seed", "");
	copy(&w, &parent, image(&w, path, "many"));
	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "ifork%d", i);
		struct box_spec spec = world_spec(&w, names[i]);
		spec.layers[spec.n_layers++] = path;
		patient_create(&w, &p[i], &spec);
	}
	for (int i = 0; i < N; i++) {
		wait_for(&w, &p[i].started, "one of ten");
		if (p[i].failed)
			fail_msg("%s: %s", names[i], p[i].error.message);
	}
	for (int i = 0; i < N; i++) {
		char want[32];
		snprintf(want, sizeof(want), "seed\n%.15s\n", names[i]);
		expect_inside(&w, &p[i], "cat /opt/seed; hostname; hostname > /opt/seed", want);
	}
	for (int i = 0; i < N; i++)
		box_kill(p[i].box);
	for (int i = 0; i < N; i++)
		wait_for(&w, &p[i].released, "one of ten to be released");
	/* Parked slots were made of it by now: they go too. */
	backend_drop_image(w.backend, path);
	patient_kill(&w, &parent);
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

/* A program that is in the middle of a write which never ends must not keep the disk from being frozen, nor anybody else from writing. */
static void nobody_inside_holds_a_copy_up(void **state)
{
	struct world w;
	struct patient p;
	char path[128];
	world_init(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "istuck");
	expect_inside(&w, &p, "for i in 1 2 3; do probe stuck /root/$i & done; sleep 0.2; echo ok", "stuck\nstuck\nstuck\nok\n");
	copy(&w, &p, image(&w, path, "one"));
	copy(&w, &p, image(&w, path, "two"));
	expect_inside(&w, &p, "echo still > /root/writes; cat /root/writes; pidof probe | wc -w", "still\n3\n");
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
}

static void a_kill_ends_the_copy(void **state)
{
	struct world w;
	struct patient p;
	struct copying k = {0};
	char path[128];
	cleanup_buf struct buf before = BUF_INIT;
	world_init(&w);
	inventory(&w, &before);
	world_start(&w);
	world_ready(&w);
	for (int i = 0; i < 4; i++) {
		k = (struct copying){0};
		patient_run(&w, &p, "ikilled");
		expect_inside(&w, &p, "dd if=/dev/urandom of=/root/big bs=1M count=100 2>/dev/null; (while :; do echo x >> /root/log; done) >/dev/null 2>&1 & echo ok", "ok\n");
		assert_int_equal(box_copy(p.box, image(&w, path, "killed"), on_copied, &k), 0);
		assert_int_equal(box_copy(p.box, path, on_copied, &k), -EBUSY);
		turn(&w, i * 60);
		patient_kill(&w, &p);
		wait_for(&w, &k.done, "the end of the copy");
		assert_true(k.err.code == -ECANCELED || (i && !k.err.code));
		assert_int_equal(access(path, F_OK), k.err.code ? -1 : 0);
		unlink(path);
		strcat(path, ".new");
		assert_int_equal(access(path, F_OK), -1);
	}
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

/* Case 32. */
static void a_full_host_is_an_error_and_the_source_goes_on(void **state)
{
	struct world w;
	struct patient p;
	struct copying k = {0};
	char path[128], node[96], file[192];
	world_init(&w);
	snprintf(node, sizeof(node), "%s/node", w.dir);
	snprintf(file, sizeof(file), "mount -o loop %s/host %s", w.dir, node);
	char make[512];
	snprintf(make, sizeof(make), "truncate -s 100M %s/host && mkfs.ext4 -q %s/host && mkdir %s && %s", w.dir, w.dir, node, file);
	assert_int_equal(system(make), 0);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ifull");
	expect_inside(&w, &p, "dd if=/dev/urandom of=/root/big bs=1M count=55 2>/dev/null; md5sum /root/big > /root/sum", "");
	assert_int_equal(box_copy(p.box, image(&w, path, "full"), on_copied, &k), 0);
	wait_for(&w, &k.done, "the copy to fail");
	assert_int_equal(k.err.code, -ENOSPC);
	assert_int_equal(k.err.status, 507);
	assert_non_null(strstr(k.err.message, "disk"));
	assert_int_equal(access(path, F_OK), -1);
	strcat(path, ".new");
	assert_int_equal(access(path, F_OK), -1);
	expect_inside(&w, &p, "echo more > /root/more; sync; md5sum -c -s /root/sum && cat /root/more", "more\n");
	expect_inside(&w, &p, "rm /root/big", "");
	/* With room it works: what was deleted is not copied. */
	copy(&w, &p, image(&w, path, "fits"));
	patient_kill(&w, &p);
	world_stop(&w);
	int r = -1;
	for (int i = 0; i < 600 && (r = umount(node)) < 0; i++)
		usleep(50000);
	assert_int_equal(r, 0);
	world_done(&w);
}

/* The host's free space, in MiB. */
static unsigned long long free_mb(const char *at)
{
	struct statvfs fs;
	assert_int_equal(statvfs(at, &fs), 0);
	return (unsigned long long)fs.f_bfree * fs.f_frsize >> 20;
}

static void a_host_that_can_share_blocks_is_let(void **state)
{
	struct world w;
	struct patient p, child;
	char path[128], node[96], make[512];
	world_init(&w);
	snprintf(node, sizeof(node), "%s/node", w.dir);
	snprintf(make, sizeof(make), "command -v mkfs.xfs >/dev/null && truncate -s 400M %s/host && mkfs.xfs -q %s/host && mkdir %s && mount -o loop %s/host %s", w.dir, w.dir, node,
		w.dir, node);
	if (system(make)) {
		fprintf(stderr, "no XFS here: not tested\n");
		world_done(&w);
		return;
	}
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "ishare");
	expect_inside(&w, &p, "dd if=/dev/urandom of=/root/big bs=1M count=60 2>/dev/null; md5sum /root/big > /root/sum; sync", "");
	unsigned long long before = free_mb(node);
	copy(&w, &p, image(&w, path, "shared"));
	assert_true(free_mb(node) + 30 > before);
	expect_inside(&w, &p, "echo x > /root/big; sync; rm /root/big", "");
	run_from(&w, &child, "ichild", path, NULL);
	expect_inside(&w, &child, "md5sum -c -s /root/sum && echo same", "same\n");
	patient_kill(&w, &child);
	patient_kill(&w, &p);
	world_stop(&w);
	int r = -1;
	for (int i = 0; i < 600 && (r = umount(node)) < 0; i++)
		usleep(50000);
	assert_int_equal(r, 0);
	world_done(&w);
}

/* A node that runs two sandboxes whose programs write without end, and ends. Their disks are left frozen, as in the middle of a copy. */
static pid_t node_that_will_die(struct world *w, int pipe_end)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct patient p[2];
	world_start(w);
	world_ready(w);
	patient_run(w, &p[0], "ikept");
	patient_run(w, &p[1], "ikilled");
	for (int i = 0; i < 2; i++) {
		expect_inside(w, &p[i], "(while :; do echo x >> /root/log; sleep 0.01; done) >/dev/null 2>&1 & echo ok", "ok\n");
		fd_write_all(pipe_end, &p[i].handle, sizeof(p[i].handle));
	}
	for (;;)
		turn(w, 1000);
}

static void freeze_disk(const char *handle)
{
	char path[64], device[32];
	const char *at = strstr(handle, " loop=");
	assert_non_null(at);
	snprintf(device, sizeof(device), "/dev/loop%lu", strtoul(at + 6, NULL, 10));
	snprintf(path, sizeof(path), "/tmp/cubicle-frozen-%d", getpid());
	mkdir(path, 0700);
	assert_int_equal(mount(device, path, "ext4", MS_NODEV, "errors=continue,nobarrier,noinit_itable"), 0);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(ioctl(fd, FIFREEZE, 0), 0);
	close(fd);
	assert_int_equal(umount2(path, MNT_DETACH), 0);
	rmdir(path);
}

static void a_disk_left_frozen_is_thawed(void **state)
{
	struct world w;
	struct patient p[2] = {{0}};
	struct box_handle h[2];
	struct error err = {0};
	int pipes[2];
	cleanup_buf struct buf before = BUF_INIT;
	world_init(&w);
	inventory(&w, &before);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid_t node = node_that_will_die(&w, pipes[1]);
	assert_int_equal(fd_read_full(pipes[0], h, sizeof(h)), sizeof(h));
	kill(node, SIGKILL);
	waitpid(node, NULL, 0);
	close(pipes[0]), close(pipes[1]);
	freeze_disk(h[0].text);
	freeze_disk(h[1].text);
	usleep(100000); /* their writers wait now */

	world_start(&w);
	p[0].box = box_adopt(w.backend, STR("ikept"), h[0].text, &any_network, &patient_ops, &p[0], &err);
	p[1].box = box_adopt(w.backend, STR("ikilled"), h[1].text, &any_network, &patient_ops, &p[1], &err);
	assert_true(p[0].box && p[1].box);
	box_kill(p[1].box);
	wait_for(&w, &p[0].started, "the adoption");
	if (p[0].failed)
		fail_msg("%s", p[0].error.message);
	wait_for(&w, &p[1].released, "the kill");
	world_ready(&w);
	expect_inside(&w, &p[0], "echo goes on > /root/file; cat /root/file", "goes on\n");
	patient_kill(&w, &p[0]);
	world_stop(&w);
	expect_inventory(&w, &before);
	world_done(&w);
}

int main(void)
{
	if (!world_possible())
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_travels),
		cmocka_unit_test(ten_at_once_of_one_copy),
		cmocka_unit_test(nobody_inside_holds_a_copy_up),
		cmocka_unit_test(a_kill_ends_the_copy),
		cmocka_unit_test(a_full_host_is_an_error_and_the_source_goes_on),
		cmocka_unit_test(a_host_that_can_share_blocks_is_let),
		cmocka_unit_test(a_disk_left_frozen_is_thawed),
	};
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
