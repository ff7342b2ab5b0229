/* sys/jail.h: what a program in it sees and may do, told by itself. Needs root, and its own executable as what is started. */
#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/jail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UID = 61234, GID = 61235, MEMORY = 256 << 20, FILE_SIZE = 1 << 20 };

static char stage[] = "/tmp/cubicle-test-jail-XXXXXX";

/* ---- inside ---- */

struct report {
	uid_t uid, euid;
	gid_t gid;
	int groups, pid, no_new_privs, dumpable, fds, interfaces;
	uint64_t caps, bounding;
	char root[512];   /* names in / */
	char hostname[32];
	int proc, node_db, resolv, dev_null, write_root, write_usr, mount, userns_mount, setuid, ptrace, unix_connect, mknod, chroot;
	uint64_t limit_memory, limit_file, limit_core, limit_threads;
	int big_file;
};

static void list(const char *path, char *to, size_t size)
{
	DIR *d = opendir(path);
	*to = '\0';
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.')
			snprintf(to + strlen(to), size - strlen(to), "%s ", e->d_name);
	if (d)
		closedir(d);
}

static int opens(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -errno : 0;
}

static int result(int r)
{
	return r < 0 ? -errno : 0;
}

static uint64_t limit(int what)
{
	struct rlimit l = {0};
	getrlimit(what, &l);
	return l.rlim_max;
}

static int inside(void)
{
	struct report r = {.uid = getuid(), .euid = geteuid(), .gid = getgid(), .groups = getgroups(0, NULL), .pid = getpid()};
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[2] = {{0}};
	signal(SIGXFSZ, SIG_IGN);
	syscall(SYS_capget, &head, caps);
	r.caps = caps[0].permitted | (uint64_t)caps[1].permitted << 32;
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
		r.bounding |= (uint64_t)prctl(PR_CAPBSET_READ, cap) << cap;
	r.no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
	for (int fd = 0; fd < 256; fd++)
		r.fds += fcntl(fd, F_GETFD) >= 0;
	struct if_nameindex *names = if_nameindex();
	for (int i = 0; names && names[i].if_index; i++)
		r.interfaces++;
	list("/", r.root, sizeof(r.root));
	gethostname(r.hostname, sizeof(r.hostname));
	r.proc = opens("/proc/self/status", O_RDONLY);
	r.node_db = opens(stage, O_RDONLY);
	r.resolv = opens("/etc/resolv.conf", O_RDONLY);
	r.dev_null = opens("/dev/null", O_RDWR);
	r.write_root = opens("/file", O_WRONLY | O_CREAT);
	r.write_usr = opens("/usr/lib/file", O_WRONLY | O_CREAT);
	r.mount = result(mount("tmpfs", "/etc", "tmpfs", 0, NULL));
	r.setuid = result((int)syscall(SYS_setresuid, 0, 0, 0));
	r.chroot = result(chroot("/usr"));
	r.mknod = result(mknod("/null", S_IFCHR | 0600, 0x103));
	/* A user namespace of its own gives it nothing over these mounts. */
	if (unshare(CLONE_NEWUSER) == 0)
		r.userns_mount = result(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
	else
		r.userns_mount = -errno;
	r.limit_memory = limit(RLIMIT_AS);
	r.limit_file = limit(RLIMIT_FSIZE);
	r.limit_core = limit(RLIMIT_CORE);
	r.limit_threads = limit(RLIMIT_NPROC);
	r.big_file = result((int)pwrite(4, "x", 1, FILE_SIZE));
	return write(3, &r, sizeof(r)) == sizeof(r) ? 0 : 1;
}

/* ---- outside ---- */

static struct report run(unsigned flags)
{
	static const char *const argv[] = {"test_jail", "inside", NULL};
	struct report r = {0};
	struct error err = {0};
	struct jailed p;
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	int file = open(stage, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	int fds[] = {pair[1], file};
	struct jail j = {.argv = argv, .fds = fds, .n_fds = 2, .flags = flags, .uid = UID, .gid = GID, .stage = stage, .memory = MEMORY, .file_size = FILE_SIZE, .nice = 5};
	if (jail_start(&j, &p, &err) < 0)
		fail_msg("%s", err.message);
	close(pair[1]);
	close(file);
	struct pollfd poll_it = {.fd = pair[0], .events = POLLIN};
	assert_int_equal(poll(&poll_it, 1, 60000), 1);
	assert_int_equal(recv(pair[0], &r, sizeof(r), 0), sizeof(r));
	cleanup_buf struct buf score = BUF_INIT;
	char path[40];
	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)p.pid);
	assert_int_equal(file_read(AT_FDCWD, path, 16, &score), 0);
	assert_string_equal(buf_cstr(&score), "450\n");
	assert_int_equal(jail_end(&p), 0);
	close(pair[0]);
	return r;
}

static void common(const struct report *r)
{
	assert_int_equal(r->pid, 1);
	assert_int_equal(r->no_new_privs, 1);
	assert_string_equal(r->hostname, "build");
	assert_int_equal(r->fds, 5); /* and no other */
	assert_int_equal(r->proc, -ENOENT);
	assert_int_equal(r->node_db, -ENOENT);
	assert_true(r->write_root < 0);
	assert_true(r->write_usr < 0);
	assert_int_equal(r->limit_memory, MEMORY);
	assert_int_equal(r->limit_file, FILE_SIZE);
	assert_int_equal(r->limit_core, 0);
	assert_int_equal(r->big_file, -EFBIG);
}

static void unprivileged(const struct report *r)
{
	assert_int_equal(r->limit_threads, 1024);
	common(r);
	assert_int_equal(r->uid, UID);
	assert_int_equal(r->euid, UID);
	assert_int_equal(r->gid, GID);
	assert_int_equal(r->groups, 0);
	assert_int_equal(r->caps, 0);
	assert_int_equal(r->bounding, 0);
	assert_int_equal(r->mount, -EPERM);
	assert_true(r->setuid < 0);
	assert_int_equal(r->chroot, -EPERM);
	assert_true(r->mknod < 0);
	assert_true(r->userns_mount < 0);
}

static void what_unpacks_sees_libraries_only(void **state)
{
	struct report r = run(0);
	unprivileged(&r);
	assert_int_equal(r.interfaces, 1); /* lo, of its own */
	assert_int_equal(r.resolv, -ENOENT);
	assert_int_equal(r.dev_null, -ENOENT);
	assert_null(strstr(r.root, "home"));
	assert_null(strstr(r.root, "tmp"));
	assert_null(strstr(r.root, "root"));
	assert_null(strstr(r.root, "var"));
	assert_null(strstr(r.root, "bin"));
}

static void what_pulls_has_the_network_and_its_settings(void **state)
{
	struct report r = run(JAIL_NET);
	unprivileged(&r);
	assert_int_equal(r.resolv, 0);
	assert_int_equal(r.dev_null, 0);
	assert_null(strstr(r.root, "home"));
	assert_null(strstr(r.root, "var"));
}

static void what_merges_keeps_two_capabilities(void **state)
{
	struct report r = run(JAIL_MERGE);
	common(&r);
	assert_int_equal(r.uid, 0);
	assert_int_equal(r.caps, UINT64_C(1) << CAP_SYS_ADMIN | UINT64_C(1) << CAP_DAC_READ_SEARCH);
	assert_int_equal(r.bounding, r.caps);
	assert_int_equal(r.interfaces, 1);
}

static void what_cannot_start_says_why(void **state)
{
	static const char *const argv[] = {"test_jail", "inside", NULL};
	struct error err = {0};
	struct jailed p;
	struct jail j = {.argv = argv, .uid = UID, .gid = GID, .stage = "/nowhere", .memory = MEMORY, .file_size = FILE_SIZE};
	assert_true(jail_start(&j, &p, &err) < 0);
	assert_non_null(strstr(err.message, "root: No such file"));
	/* Nothing is left of it. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "inside") == 0)
		return inside();
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0) {
		fprintf(stderr, "skipped: needs root and a mount namespace\n");
		return 77;
	}
	umask(077); /* node's */
	if (!mkdtemp(stage))
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_unpacks_sees_libraries_only), cmocka_unit_test(what_pulls_has_the_network_and_its_settings), cmocka_unit_test(what_merges_keeps_two_capabilities),
		cmocka_unit_test(what_cannot_start_says_why),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(stage);
	return r;
}
