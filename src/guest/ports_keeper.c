#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/ports.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define RESTART_INTERVAL (200 * NS_PER_MS)

struct ports_keeper {
	int listen_fd;
	uint32_t own_address;
	int pidfd; /* of the process */
	struct loop *loop;
	struct loop_fd *watch;
	struct loop_timer *timer;
};

static _Noreturn void serve(const struct ports_keeper *k)
{
	fd_close_all_except(3, &k->listen_fd, 1);
	prctl(PR_SET_NAME, "cubicle-ports");
	struct loop *l = loop_new();
	if (l && ports_new(l, k->listen_fd, k->own_address))
		loop_run(l);
	_exit(1);
}

static int start(struct ports_keeper *k)
{
	pid_t pid = fork();
	if (pid == 0)
		serve(k);
	k->pidfd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	return k->pidfd < 0 ? -errno : 0;
}

struct ports_keeper *ports_keeper_new(int listen_fd, uint32_t own_address)
{
	struct ports_keeper *k = malloc(sizeof(*k));
	if (!k) {
		close(listen_fd);
		return NULL;
	}
	*k = (struct ports_keeper){.listen_fd = listen_fd, .own_address = own_address, .pidfd = -1};
	if (start(k) == 0)
		return k;
	close(listen_fd);
	free(k);
	return NULL;
}

/* PID 1 reaps it like everything else. Those that come meanwhile wait in the socket's queue. */
static void on_end(struct loop_fd *w, uint32_t events, void *arg)
{
	struct ports_keeper *k = arg;
	loop_fd_del(steal_pointer(&k->watch));
	close(steal_fd(&k->pidfd));
	loop_timer_in(k->timer, RESTART_INTERVAL);
}

static int watch(struct ports_keeper *k)
{
	k->watch = loop_fd_add(k->loop, k->pidfd, EPOLLIN, on_end, k);
	return k->watch ? 0 : -errno;
}

static void on_restart(struct loop_timer *t, void *arg)
{
	struct ports_keeper *k = arg;
	log_warn("the process that passes connections on has ended; a new one is made");
	int r = k->pidfd < 0 ? start(k) : 0;
	if (r == 0)
		r = watch(k);
	if (r < 0)
		loop_timer_in(t, RESTART_INTERVAL);
}

int ports_keeper_watch(struct ports_keeper *k, struct loop *l)
{
	k->loop = l;
	k->timer = loop_timer_new(l, on_restart, k);
	return k->timer ? watch(k) : -ENOMEM;
}
