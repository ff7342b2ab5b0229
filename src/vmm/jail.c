#include "vmm/jail.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static bool jailed;

static int set_limits(uint64_t file_size, struct error *err)
{
	const struct {
		__rlimit_resource_t resource;
		rlim_t most;
	} limits[] = {{RLIMIT_CORE, 0}, {RLIMIT_NOFILE, JAIL_FILES}, {RLIMIT_FSIZE, file_size}, {RLIMIT_MSGQUEUE, 0}, {RLIMIT_LOCKS, 0}};
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		struct rlimit l;
		if (getrlimit(limits[i].resource, &l) < 0)
			return error_errno(err, -errno, "jail: limits");
		/* More than there was is not this root's to give. */
		l.rlim_cur = l.rlim_max = MIN(limits[i].most, l.rlim_max);
		if (setrlimit(limits[i].resource, &l) < 0)
			return error_errno(err, -errno, "jail: limits");
	}
	return 0;
}

/* A file system of its own with nothing in it; the place where it is mounted first is of no account, it only has to exist. */
static int empty_root(struct error *err)
{
	static const char *const places[] = {"/tmp", "/run", "/usr", "/proc"};
	int r = -ENOENT;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return error_errno(err, -errno, "jail: mount namespace");
	for (size_t i = 0; r < 0 && i < ARRAY_SIZE(places); i++)
		r = mount("none", places[i], "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,nr_inodes=1,mode=0555") < 0 || chdir(places[i]) < 0 ? -errno : 0;
	if (r < 0)
		return error_errno(err, r, "jail: an empty directory");
	/* "." twice: the old root is stacked over the new one and can be detached without a place of its own. */
	if (syscall(SYS_pivot_root, ".", ".") == 0)
		r = umount2(".", MNT_DETACH);
	else if (errno == EINVAL) /* a machine whose root is its initramfs: that cannot be left, only be covered */
		r = mount(".", "/", NULL, MS_MOVE, NULL) < 0 ? -1 : chroot(".");
	else
		r = -1;
	return r < 0 || chdir("/") < 0 ? error_errno(err, -errno, "jail: leaving the host's tree") : 0;
}

static int become_user(uid_t uid, struct error *err)
{
	for (unsigned long cap = 0; cap <= 63; cap++)
		if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return error_errno(err, -errno, "jail: dropping capability %lu", cap);
	/* A user namespace in which setgroups is off has no groups to drop. */
	if (setgroups(0, NULL) < 0 && errno != EPERM)
		return error_errno(err, -errno, "jail: groups");
	if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		return error_errno(err, -errno, "jail: becoming %u", uid);
	/* The permitted and effective sets went with uid 0, the inheritable one did not. */
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	if (syscall(SYS_capset, &head, none) < 0)
		return error_errno(err, -errno, "jail: capabilities");
	if (setuid(0) == 0)
		return error_set(err, -EPERM, 500, "jail: the way back to root is open");
	return 0;
}

int jail_enter(uint32_t uid, uint64_t file_size, struct error *err)
{
	umask(0077);
	int r = set_limits(file_size, err);
	if (r == 0)
		r = empty_root(err);
	if (r == 0)
		r = become_user(uid, err);
	if (r < 0)
		return r;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return error_errno(err, -errno, "jail: no_new_privs");
	jailed = true;
	return 0;
}

void jail_thread(enum jail_role role)
{
	if (!jailed)
		return;
	struct sock_filter program[JAIL_PROGRAM_MAX];
	struct sock_fprog f = {.len = (unsigned short)jail_program(role, program), .filter = program};
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) == 0)
		return;
	log_error("jail: filter of system calls: %s", strerror(errno));
	abort();
}
