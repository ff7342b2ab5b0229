/* The monitor's cage. The filters are tried in children, which they kill. */
#include "unit.h"

#include "base/cleanup.h"
#include "vmm/jail.h"
#include "vmm/serial.h"
#include "vmm/vsock_mux.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { UID = 70000, FILE_SIZE = 1 << 20 };

/* Not _exit(): a sanitizer's does more than that. */
static _Noreturn void leave(int status)
{
	for (;;)
		syscall(SYS_exit_group, status);
}

/* How a child ends that has the role's filter and calls fn: its exit status, or -signal. */
static int end_of(enum jail_role role, int (*fn)(void))
{
	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct sock_filter program[JAIL_PROGRAM_MAX];
		struct sock_fprog f = {.len = (unsigned short)jail_program(role, program), .filter = program};
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) < 0)
			leave(99);
		leave(fn());
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int do_nothing(void)
{
	return 7;
}

static int do_common(void)
{
	struct timespec t;
	void *p = malloc(1 << 22);
	memset(p, 1, 1 << 22);
	free(p);
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? 1 : 7;
}

static int do_open(void)
{
	return open("/dev/null", O_RDONLY) < 0 ? 1 : 7;
}

static int do_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? 1 : 7;
}

static int do_fork(void)
{
	return fork() < 0 ? 1 : 7;
}

static int do_exec(void)
{
	execl("/bin/true", "true", NULL);
	return 7;
}

static int do_ptrace(void)
{
	return (int)syscall(SYS_ptrace, 0, 0, 0, 0) < 0 ? 1 : 7;
}

static int do_map_code(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? 1 : 7;
}

static int do_make_code(void)
{
	static char page[8192] __attribute__((aligned(4096)));
	return mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) < 0 ? 1 : 7;
}

static int do_run(void)
{
	return ioctl(0, KVM_RUN, 0) < 0 ? 7 : 1; /* tried, on what is no processor */
}

/* The kernel takes 32 bits of the request, so the filter must not be fooled by more. */
static int do_other_ioctl_with_high_bits(void)
{
	return (int)syscall(SYS_ioctl, 0, (uint64_t)KVM_RUN << 32 | KVM_SET_REGS, 0) < 0 ? 7 : 1;
}

static int do_set_registers(void)
{
	return ioctl(0, KVM_SET_REGS, 0) < 0 ? 7 : 1;
}

static int do_get_registers(void)
{
	return ioctl(0, KVM_GET_REGS, 0) < 0 ? 7 : 1;
}

static int do_tiocsti(void)
{
	return ioctl(0, TIOCSTI, "x") < 0 ? 7 : 1;
}

static int do_foreign_abi(void)
{
	return (int)syscall(0x40000000 | SYS_getpid) < 0 ? 7 : 1;
}

static int do_allocate(void)
{
	return fallocate(0, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0 ? 7 : 7;
}

static int do_accept(void)
{
	return accept4(0, NULL, NULL, SOCK_CLOEXEC) < 0 ? 7 : 7;
}

static void test_filters(void **state)
{
	static const struct {
		const char *name;
		int (*fn)(void);
		int end[JAIL_ROLES]; /* main, vcpu, worker */
	} cases[] = {
		{"nothing", do_nothing, {7, 7, 7}},
		{"memory and time", do_common, {7, 7, 7}},
		{"open", do_open, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"socket", do_socket, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"fork", do_fork, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"exec", do_exec, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"ptrace", do_ptrace, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"code, mapped", do_map_code, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"code, made", do_make_code, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"KVM_RUN", do_run, {-SIGSYS, 7, -SIGSYS}},
		{"ioctl with high bits", do_other_ioctl_with_high_bits, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"KVM_SET_REGS", do_set_registers, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"KVM_GET_REGS", do_get_registers, {7, -SIGSYS, -SIGSYS}},
		{"TIOCSTI", do_tiocsti, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"x32", do_foreign_abi, {-SIGSYS, -SIGSYS, -SIGSYS}},
		{"fallocate", do_allocate, {-SIGSYS, -SIGSYS, 7}},
		{"accept", do_accept, {7, -SIGSYS, -SIGSYS}},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		for (int role = 0; role < JAIL_ROLES; role++) {
			int end = end_of((enum jail_role)role, cases[i].fn);
			if (end != cases[i].end[role])
				fail_msg("%s in role %d ended with %d, not %d", cases[i].name, role, end, cases[i].end[role]);
		}
}

enum { PROCESSORS = 16 }; /* more than the C library has arenas before it asks how many processors there are */

struct console {
	pthread_barrier_t all;
	pthread_mutex_t lock;
	struct serial *serial;
};

/* Fills the console's log more than once, as a processor's thread. */
static void *write_console(void *arg)
{
	struct console *c = arg;
	struct sock_filter program[JAIL_PROGRAM_MAX];
	struct sock_fprog f = {.len = (unsigned short)jail_program(JAIL_VCPU, program), .filter = program};
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) < 0)
		leave(99);
	pthread_mutex_lock(&c->lock);
	for (unsigned i = 0; i < 2 * SERIAL_LOG_MAX; i++)
		serial_write(c->serial, 0, i % 80 ? 'x' : '\n');
	pthread_mutex_unlock(&c->lock);
	pthread_barrier_wait(&c->all);
	for (;;)
		sched_yield();
}

static int fill_consoles(void)
{
	struct console c = {.lock = PTHREAD_MUTEX_INITIALIZER, .serial = serial_new(memfd_create("console", MFD_CLOEXEC), -1, NULL)};
	pthread_t thread;
	if (!c.serial || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return 98;
	pthread_barrier_init(&c.all, NULL, PROCESSORS + 1);
	for (unsigned i = 0; i < PROCESSORS; i++)
		if (pthread_create(&thread, NULL, write_console, &c) != 0)
			return 97;
	pthread_barrier_wait(&c.all);
	return 7;
}

/* In a child that is in the jail: 0, or the number of the line that was wrong. */
#define check(x)                                                                                             \
	do {                                                                                                 \
		if (!(x))                                                                                    \
			return __LINE__ % 250 + 1;                                                           \
	} while (0)

static int inside(void)
{
	char text[4096];
	struct stat st;
	struct rlimit l;
	int before = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	struct error err = {0};
	check(before >= 0);
	int r = jail_enter(UID, FILE_SIZE, &err);
	if (r < 0) {
		fprintf(stderr, "%s\n", err.message);
		return 250;
	}
	check(getuid() == UID && geteuid() == UID && getgid() == UID && getegid() == UID);
	ssize_t n = pread(before, text, sizeof(text) - 1, 0);
	check(n > 0);
	text[n] = '\0';
	static const char *const lines[] = {"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n",
		"CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n"};
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		check(strstr(text, lines[i]));
	check(prctl(PR_GET_DUMPABLE) == 0);
	check(getrlimit(RLIMIT_CORE, &l) == 0 && l.rlim_max == 0);
	check(getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_max >= VSOCK_CONNECTIONS + 256 && l.rlim_max <= JAIL_FILES);
	check(getrlimit(RLIMIT_FSIZE, &l) == 0 && l.rlim_max == FILE_SIZE);
	/* Nothing is here, and nothing can be made. */
	check(stat("/proc", &st) < 0 && errno == ENOENT);
	check(stat("/etc", &st) < 0 && errno == ENOENT);
	check(stat("/..", &st) == 0 && st.st_nlink == 2);
	check(mkdir("/x", 0700) < 0);
	check(open("/x", O_CREAT | O_RDWR, 0600) < 0);
	check(chroot("/") < 0 && errno == EPERM);
	check(unshare(CLONE_NEWNS) < 0);
	check(setuid(0) < 0);
	/* Now a filter does something. */
	jail_thread(JAIL_VCPU);
	return 7;
}

static int run_child(int (*fn)(void))
{
	int status;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		leave(fn());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_many_processors_write_the_console(void **state)
{
	assert_int_equal(run_child(fill_consoles), 7);
}

static void test_jail(void **state)
{
	if (getuid() != 0) {
		print_message("SKIPPED: the jail is entered by root\n");
		skip();
	}
	int status = run_child(inside);
	if (status == 250) {
		print_message("SKIPPED: this root may not make a mount namespace\n");
		skip();
	}
	assert_int_equal(status, 7);
}

/* As node does it: root of a user namespace only. */
static int in_namespace(void)
{
	int go[2], done[2], status;
	char byte = 0, map[64];
	if (pipe(go) < 0 || pipe(done) < 0)
		return 1;
	pid_t pid = fork();
	if (pid == 0) {
		if (unshare(CLONE_NEWUSER) < 0)
			_exit(250);
		if (write(go[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1)
			_exit(1);
		if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
			_exit(2);
		leave(inside());
	}
	close(go[1]);
	if (read(go[0], &byte, 1) == 1) {
		for (size_t i = 0; i < 2; i++) {
			snprintf(map, sizeof(map), "/proc/%d/%cid_map", pid, "ug"[i]);
			int fd = open(map, O_WRONLY | O_CLOEXEC);
			static const char range[] = "0 1000000 65536\n70000 1070000 1\n";
			if (fd < 0 || write(fd, range, sizeof(range) - 1) < 0)
				return 250;
			close(fd);
		}
		if (write(done[1], &byte, 1) != 1)
			return 3;
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_jail_in_user_namespace(void **state)
{
	if (getuid() != 0) {
		print_message("SKIPPED: the jail is entered by root\n");
		skip();
	}
	int status = run_child(in_namespace);
	if (status == 250) {
		print_message("SKIPPED: no user namespace\n");
		skip();
	}
	assert_int_equal(status, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_filters),
		cmocka_unit_test(test_many_processors_write_the_console),
		cmocka_unit_test(test_jail),
		cmocka_unit_test(test_jail_in_user_namespace),
	};
	return cmocka_run_group_tests_name("vmm jail", tests, NULL, NULL);
}
