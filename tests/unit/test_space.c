#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "sandbox/space.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* The brake against the kernel's own ext4: it rests on what the kernel does, so that is what is tested. Needs root and a loop device. */

#define MIB (UINT64_C(1) << 20)

static char dir[] = "/tmp/cubicle-test-space-XXXXXX";
static int mount_fd = -1, image = -1;
static unsigned loop_number;

static bool make_image(void)
{
	char command[256];
	snprintf(command, sizeof(command), "truncate -s 256M %s/image && mkfs.ext4 -q -F -O ^resize_inode -J size=16 -b 4096 -m 0 %s/image", dir, dir);
	return system(command) == 0;
}

static bool attach(void)
{
	char line[64] = "", command[256];
	snprintf(command, sizeof(command), "losetup -f --show -b 4096 --direct-io=on %s/image", dir);
	FILE *p = popen(command, "r");
	if (!p)
		return false;
	bool read = fgets(line, sizeof(line), p);
	bool ended = pclose(p) == 0;
	return read && ended && sscanf(line, "/dev/loop%u", &loop_number) == 1;
}

/* A fresh disk, mounted where nobody else sees it; false where this is not possible. */
static bool prepare(void)
{
	char path[128], device[32], detach[64];
	snprintf(path, sizeof(path), "%s/mnt", dir);
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || make_dirs(path, 0700) < 0)
		return false;
	if (!make_image() || !attach())
		return false;
	snprintf(device, sizeof(device), "/dev/loop%u", loop_number);
	snprintf(detach, sizeof(detach), "losetup -d %s", device);
	bool mounted = mount(device, path, "ext4", 0, "errors=continue") == 0;
	/* It goes with its last user. */
	if (system(detach) != 0 || !mounted)
		return false;
	mount_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(path, sizeof(path), "%s/image", dir);
	image = open(path, O_RDONLY | O_CLOEXEC);
	return mount_fd >= 0 && image >= 0;
}

/* Appends to a file inside: bytes accepted, *ret_errno what stopped it (0 = all went). */
static uint64_t write_inside(const char *name, uint64_t bytes, int *ret_errno)
{
	static char block[MIB];
	cleanup_fd int fd = openat(mount_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	uint64_t done = 0;
	memset(block, 'x', sizeof(block));
	*ret_errno = fd < 0 ? errno : 0;
	while (fd >= 0 && done < bytes) {
		ssize_t n = write(fd, block, MIN(bytes - done, sizeof(block)));
		if (n < 0) {
			*ret_errno = errno;
			break;
		}
		done += (uint64_t)n;
	}
	return done;
}

static void the_brake_refuses_before_anything_is_dirty(void **state)
{
	struct box_space before, after;
	int e;
	assert_int_equal(space_read(loop_number, mount_fd, image, &before), 0);
	assert_true(before.total > 200 * MIB && before.used < MIB && before.backed < 32 * MIB);
	assert_int_equal(write_inside("a", 8 * MIB, &e), 8 * MIB);
	assert_int_equal(space_read(loop_number, mount_fd, image, &after), 0);
	assert_true(after.used >= before.used + 8 * MIB);
	assert_true(after.pending + after.backed - before.backed >= 8 * MIB);
	assert_int_equal(space_brake(loop_number, mount_fd, after.used + 4 * MIB), 0);
	uint64_t accepted = write_inside("b", 64 * MIB, &e);
	assert_int_equal(e, ENOSPC);
	assert_in_range(accepted, 3 * MIB, 4 * MIB);
	/* What was accepted keeps its room. */
	assert_int_equal(syncfs(mount_fd), 0);
	assert_int_equal(space_read(loop_number, mount_fd, image, &after), 0);
	assert_int_equal(after.pending, 0);
	assert_true(after.backed >= 8 * MIB + accepted);
	assert_int_equal(space_brake(loop_number, mount_fd, 0), 0);
	assert_int_equal(write_inside("c", MIB, &e), 0);
	assert_int_equal(e, ENOSPC);
	/* Overwriting needs no new room, and a delete works. */
	cleanup_fd int fd = openat(mount_fd, "a", O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "y", 1, 0), 1);
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(unlinkat(mount_fd, "b", 0), 0);
	assert_int_equal(space_brake(loop_number, mount_fd, BOX_NO_BRAKE), 0);
	assert_int_equal(write_inside("c", 32 * MIB, &e), 32 * MIB);
	assert_int_equal(syncfs(mount_fd), 0);
}

static void a_shut_down_disk_writes_nothing_more(void **state)
{
	struct box_space before, after;
	int e;
	assert_int_equal(space_read(loop_number, mount_fd, image, &before), 0);
	assert_int_equal(write_inside("d", 64 * MIB, &e), 64 * MIB);
	assert_int_equal(space_shutdown(mount_fd), 0);
	write_inside("e", MIB, &e);
	assert_int_equal(e, EIO);
	syncfs(mount_fd);
	struct stat st;
	assert_int_equal(fstat(image, &st), 0);
	after.backed = (uint64_t)st.st_blocks * 512;
	assert_true(after.backed < before.backed + 32 * MIB);
}

int main(void)
{
	if (!mkdtemp(dir))
		return 1;
	if (!prepare()) {
		fprintf(stderr, "skipped: needs root, a loop device and mkfs.ext4\n");
		remove_tree(AT_FDCWD, dir);
		return 77;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_brake_refuses_before_anything_is_dirty),
		cmocka_unit_test(a_shut_down_disk_writes_nothing_more),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	char path[64];
	close(mount_fd);
	close(image);
	snprintf(path, sizeof(path), "%s/mnt", dir);
	umount2(path, MNT_DETACH);
	remove_tree(AT_FDCWD, dir);
	return r;
}
