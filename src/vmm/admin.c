#include "vmm/admin.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "io/chan.h"
#include "vmm/state.h"

#include <sys/socket.h>
#include <sys/stat.h>

struct admin {
	struct loop *loop;
	struct machine *machine;
	struct loop_fd *watch;
	struct chan *chan; /* NULL = nobody is connected */
	int listening;
};

static void answer(struct chan *c, uint64_t request, int r, const struct error *err)
{
	struct msg_ok ok = {0};
	if (r < 0)
		chan_send_error(c, request, err);
	else
		chan_send(c, MSG_ID_ok, &ok, request, NULL, 0, NULL);
}

/* The descriptor leaves the message whether the connection comes about or not. */
static int open_port(struct admin *a, struct chan_message *m, struct error *err)
{
	uint64_t port = m->body->vm_open.port;
	if (port > UINT32_MAX)
		return error_set(err, -EINVAL, 400, "no port has the number %llu", (unsigned long long)port);
	int r = vsock_connect(a->machine->vsock, steal_fd(&m->fds[0]), (uint32_t)port);
	return r < 0 ? error_errno(err, r, "port %llu", (unsigned long long)port) : 0;
}

static int check_empty(int fd, struct error *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "saving");
	return S_ISREG(st.st_mode) && st.st_size == 0 ? 0 : error_set(err, -EINVAL, 400, "a state is saved into two empty regular files");
}

static int save(struct admin *a, struct chan_message *m, struct error *err)
{
	int r = check_empty(m->fds[0], err);
	if (r == 0)
		r = check_empty(m->fds[1], err);
	return r < 0 ? r : state_save(a->machine, m->fds[0], m->fds[1], err);
}

static int set_balloon(struct admin *a, const struct chan_message *m, struct error *err)
{
	uint64_t pages = m->body->vm_balloon.pages;
	if (pages > memory_size(&a->machine->memory) / 4096)
		return error_set(err, -EINVAL, 400, "the guest does not have %llu pages", (unsigned long long)pages);
	balloon_set_target(a->machine->balloon, (uint32_t)pages);
	return 0;
}

static void tell_state(struct admin *a, struct chan *c, uint64_t request)
{
	const struct machine *m = a->machine;
	struct msg_vm_state state = {.running = m->running, .up = m->up, .balloon = balloon_actual(m->balloon)};
	chan_send(c, MSG_ID_vm_state, &state, request, NULL, 0, NULL);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct admin *a = arg;
	struct error err = {0};
	int r = 0;
	switch (m->header.type) {
	case MSG_ID_vm_open:
		r = open_port(a, m, &err);
		break;
	case MSG_ID_vm_pause:
		machine_pause(a->machine);
		break;
	case MSG_ID_vm_resume:
		machine_resume(a->machine);
		break;
	case MSG_ID_vm_save:
		r = save(a, m, &err);
		break;
	case MSG_ID_vm_balloon:
		r = set_balloon(a, m, &err);
		break;
	case MSG_ID_vm_status:
		tell_state(a, c, m->header.request);
		return;
	default:
		r = error_set(&err, -EOPNOTSUPP, 400, "a monitor has no use for that message");
	}
	answer(c, m->header.request, r, &err);
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	struct admin *a = arg;
	if (err->code == -EPROTO)
		log_warn("admin connection: %s", err->message);
	if (a->chan == c)
		a->chan = NULL;
}

static const struct chan_ops chan_ops = {.message = on_message, .closed = on_closed};

static void on_connection(struct loop_fd *w, uint32_t events, void *arg)
{
	struct admin *a = arg;
	int fd = accept4(a->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	struct chan *c = chan_new(a->loop, fd, MSG_TO_VMM, 0, &chan_ops, a);
	if (!c) {
		log_warn("admin connection: %s", strerror(errno));
		return;
	}
	/* Whoever had the old one is gone, or has lost its place. */
	chan_free(a->chan);
	a->chan = c;
}

struct admin *admin_new(struct loop *l, int listening, struct machine *m, struct error *err)
{
	struct admin *a = calloc(1, sizeof(*a));
	if (!a) {
		error_errno(err, -ENOMEM, "admin socket");
		return NULL;
	}
	*a = (struct admin){.loop = l, .machine = m, .listening = listening};
	a->watch = loop_fd_add(l, listening, EPOLLIN, on_connection, a);
	if (!a->watch) {
		error_errno(err, -errno, "admin socket");
		admin_free(a);
		return NULL;
	}
	return a;
}

void admin_free(struct admin *a)
{
	if (!a)
		return;
	chan_free(a->chan);
	loop_fd_del(a->watch);
	free(a);
}
