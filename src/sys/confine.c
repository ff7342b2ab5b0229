#include "sys/confine.h"

#include "base/cleanup.h"
#include "sys/caps.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Descriptors: two for each exchange of the front, so this is what bounds it; the kernel's own ceiling may be lower. */
enum { MAX_FILES = 262144 };

static int set_limits(struct error *err)
{
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return error_errno(err, -errno, "RLIMIT_NOFILE");
	if (files.rlim_max < MAX_FILES && setrlimit(RLIMIT_NOFILE, &(struct rlimit){MAX_FILES, MAX_FILES}) == 0)
		files.rlim_max = MAX_FILES;
	files.rlim_cur = MIN(files.rlim_max, (rlim_t)MAX_FILES);
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		return error_errno(err, -errno, "RLIMIT_NOFILE");
	/* A core would hold keys. */
	if (setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) < 0)
		return error_errno(err, -errno, "RLIMIT_CORE");
	return 0;
}

/* A mount namespace in which only the directory is left. The old root is detached whole, so no mount of a sandbox stays referenced. */
static int leave_the_tree(const char *directory, struct error *err)
{
	if (unshare(CLONE_NEWNS) < 0)
		return error_errno(err, -errno, "mount namespace");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return error_errno(err, -errno, "making mounts private");
	if (mount(directory, directory, NULL, MS_BIND, NULL) < 0)
		return error_errno(err, -errno, "binding %s", directory);
	if (mount(NULL, directory, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return error_errno(err, -errno, "remounting %s", directory);
	/* "." twice: the old root is stacked over the new one and can be detached without a place of its own. */
	if (chdir(directory) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return error_errno(err, -errno, "leaving the host's tree for %s", directory);
	return 0;
}

static int drop_bounding_set(struct error *err)
{
	for (unsigned long cap = 0; cap <= 63; cap++)
		if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return error_errno(err, -errno, "dropping capability %lu", cap);
	return 0;
}

static int become_user(const char *name, uid_t uid, gid_t gid, struct error *err)
{
	if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
		return error_errno(err, -errno, "becoming %s", name);
	/* The permitted and effective sets went with uid 0; the inheritable one did not. */
	int r = caps_keep_only(0);
	if (r < 0)
		return error_errno(err, r, "capabilities");
	if (setuid(0) == 0)
		return error_set(err, -EPERM, 500, "the way back to root is open");
	return 0;
}

int confine_process(const char *option, const char *user, const char *directory, struct error *err)
{
	errno = 0;
	const struct passwd *p = getpwnam(user);
	if (!p || p->pw_uid == 0)
		return error_set(err, -ENOENT, 500, "%s: '%s' is no user without privileges", option, user);
	uid_t uid = p->pw_uid;
	gid_t gid = p->pw_gid;
	umask(0077);
	int r = set_limits(err);
	if (r == 0)
		r = leave_the_tree(directory, err);
	if (r == 0)
		r = drop_bounding_set(err);
	if (r == 0)
		r = become_user(user, uid, gid, err);
	if (r < 0)
		return r;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return error_errno(err, -errno, "no_new_privs");
	return 0;
}

int confine_syscalls(const int *allowed, size_t n, struct error *err)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	if (!filter)
		return error_errno(err, -ENOMEM, "system-call filter");
	int r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
		if (r == -EDOM || r == -EFAULT)
			r = 0; /* a call that this architecture does not have */
	}
	if (r == 0)
		r = seccomp_load(filter);
	seccomp_release(filter);
	return r < 0 ? error_errno(err, r, "system-call filter") : 0;
}
