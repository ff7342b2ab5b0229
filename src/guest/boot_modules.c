#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "guest/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { WAIT_SECONDS = 30 };

static int is_module(const struct dirent *e)
{
	return str_ends(str_of(e->d_name), STR(".ko"));
}

void boot_modules(void)
{
	struct dirent **names;
	int n = scandir("/modules", &names, is_module, alphasort);
	if (n < 0 && errno != ENOENT)
		log_warn("/modules: %s", strerror(errno));
	for (int i = 0; i < n; i++) {
		char path[300];
		snprintf(path, sizeof(path), "/modules/%s", names[i]->d_name);
		cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
		/* EEXIST: it is built in, or there. ENODEV: for a processor or device that is not. */
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST && errno != ENODEV))
			log_warn("module %s: %s", names[i]->d_name, strerror(errno));
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

int boot_events_open(void)
{
	cleanup_fd int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	struct sockaddr_nl at = {.nl_family = AF_NETLINK, .nl_groups = 1};
	return fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ? -errno : steal_fd(&fd);
}

/* What they tell is looked up: all that counts is that something came. */
static void drain(int events)
{
	char text[4096];
	while (recv(events, text, sizeof(text), 0) >= 0 || errno == ENOBUFS || errno == EINTR)
		;
}

int boot_events_wait(int events, bool (*is_there)(const void *arg), const void *arg)
{
	int64_t now = clock_monotonic(), end = now + WAIT_SECONDS * NS_PER_S;
	struct pollfd p = {.fd = events, .events = POLLIN};
	for (; !is_there(arg); now = clock_monotonic()) {
		if (now >= end)
			return -ETIMEDOUT;
		poll(&p, 1, (int)((end - now) / NS_PER_MS) + 1);
		drain(events);
	}
	return 0;
}
