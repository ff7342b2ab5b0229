#include "guest/machine.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#include <fcntl.h>
#include <linux/random.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>

enum {
	STILL_MS = 1000,
	LAST_SYNC_MS = 10000,
	OOM_SCORE_SPAWNER = 400, /* as node sets it in a namespace (sandbox/box/slot.c) */
};

static struct machine machine;
static bool own;

void machine_set(const struct machine *m)
{
	machine = *m;
	own = true;
}

const struct machine *machine_get(void)
{
	return own ? &machine : NULL;
}

int machine_join_work(void)
{
	if (!own)
		return 0;
	int r = file_write_value(machine.work, "cgroup.procs", STR("0"));
	_Static_assert(OOM_SCORE_SPAWNER == 400, "as text below");
	return r < 0 ? r : file_write_value(AT_FDCWD, "/proc/self/oom_score_adj", STR("400"));
}

int machine_freeze(bool on)
{
	return own ? file_write_value(machine.work, "cgroup.freeze", on ? STR("1") : STR("0")) : 0;
}

static bool holds_line(int fd, const char *line)
{
	char text[256];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	text[n < 0 ? 0 : n] = '\0';
	return strstr(text, line);
}

void machine_wait_still(void)
{
	if (!own)
		return;
	cleanup_fd int freeze = openat(machine.work, "cgroup.freeze", O_RDONLY | O_CLOEXEC);
	cleanup_fd int events = openat(machine.work, "cgroup.events", O_RDONLY | O_CLOEXEC);
	if (freeze < 0 || events < 0 || !holds_line(freeze, "1"))
		return;
	int64_t now = clock_monotonic(), end = now + STILL_MS * NS_PER_MS;
	/* The kernel tells a change of the file as POLLPRI, once it has been read. */
	struct pollfd p = {.fd = events, .events = POLLPRI};
	for (; !holds_line(events, "frozen 1") && now < end; now = clock_monotonic())
		poll(&p, 1, (int)((end - now) / NS_PER_MS) + 1);
}

int machine_set_clock(int64_t realtime_ns)
{
	if (!own || realtime_ns <= 0)
		return 0;
	struct timespec t = {.tv_sec = realtime_ns / NS_PER_S, .tv_nsec = realtime_ns % NS_PER_S};
	return clock_settime(CLOCK_REALTIME, &t) < 0 ? -errno : 0;
}

void machine_reseed(struct str own_bytes)
{
	cleanup_fd int fd = own ? open("/dev/urandom", O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	/* Not credited: they are as good as node's generator, which the kernel cannot know. */
	fd_write_all(fd, own_bytes.p, own_bytes.n);
	ioctl(fd, RNDRESEEDCRNG);
}

/* In a process of its own: a disk that does not answer must not keep the machine on. */
static void write_disk(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		syncfs(machine.disk);
		_exit(0);
	}
	cleanup_fd int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (fd >= 0)
		poll(&p, 1, LAST_SYNC_MS);
}

void machine_end(int status)
{
	if (!own)
		_exit(status);
	write_disk();
	/* Else the last line is lost. */
	tcdrain(2);
	reboot(RB_POWER_OFF);
	_exit(status);
}
