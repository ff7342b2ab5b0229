/* A hostile guest and a host that does what it likes; whatever happened, after a reset connections work. */
#include "steps.h"
#include "../unit/vsock_guest.h"

#include "base/log.h"
#include "base/random.h"

#include <linux/virtio_ring.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { HOSTS = 6, STEPS_MAX = 400, LAST_PORT = 4242 };

struct hosts {
	int fd[HOSTS];
	struct sockaddr_un control;
	socklen_t control_size;
};

static int listen_control(struct hosts *h)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	h->control = (struct sockaddr_un){.sun_family = AF_UNIX};
	h->control_size = sizeof(h->control);
	hold(bind(fd, (struct sockaddr *)&h->control, sizeof(sa_family_t)) == 0 && getsockname(fd, (struct sockaddr *)&h->control, &h->control_size) == 0 && listen(fd, 16) == 0);
	return fd;
}

static void connect_host(struct vsock_guest *g, int *fd, bool control, const struct hosts *h, uint32_t port)
{
	int pair[2];
	cleanup_fd_p(fd);
	if (control) {
		*fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(*fd, (const struct sockaddr *)&h->control, h->control_size) < 0)
			cleanup_fd_p(fd), *fd = -1;
		return;
	}
	hold(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	*fd = pair[0];
	vsock_connect(g->device, pair[1], port);
}

/* The host port that some packet to the guest came from: what a guest knows. */
static uint32_t known_port(struct vsock_guest *g, unsigned buffer)
{
	struct virtio_vsock_hdr h;
	memcpy(&h, driver_at(&g->d, g->rx[buffer % GUEST_QUEUE], sizeof(h)), sizeof(h));
	return h.src_port;
}

static void packet(struct vsock_guest *g, struct str *in)
{
	unsigned what = (unsigned)step_number(in, 2), buffer = what >> 8;
	struct virtio_vsock_hdr h;
	memcpy(&h, driver_at(&g->d, g->rx[buffer % GUEST_QUEUE], sizeof(h)), sizeof(h));
	/* An answer to what came; or to nothing in particular. */
	h = (struct virtio_vsock_hdr){.src_cid = VSOCK_GUEST, .dst_cid = VSOCK_HOST, .src_port = h.dst_port, .dst_port = known_port(g, buffer), .type = h.type, .op = what & 15, .buf_alloc = 4000};
	if (what & 16)
		h.dst_port = VSOCK_PORT_CONTROL;
	if (what & 32)
		h.type = (uint16_t)step_number(in, 1) % 4;
	if (what & 64) {
		h.flags = (uint32_t)step_number(in, 1);
		h.fwd_cnt = (uint32_t)step_number(in, 2);
		h.buf_alloc = (uint32_t)step_number(in, 4);
	}
	struct str data = step_bytes(in);
	h.len = what & 128 ? (uint32_t)step_number(in, 3) : (uint32_t)data.n;
	size_t n = what & 128 && h.len <= GUEST_PACKET_MAX ? h.len : data.n;
	memcpy(driver_at(&g->d, g->tx, sizeof(h)), &h, sizeof(h));
	memcpy(driver_at(&g->d, g->tx + sizeof(h), data.n), data.p, data.n);
	driver_add(&g->d, GUEST_TX, &(struct part){g->tx, (uint32_t)(sizeof(h) + n), false}, 1);
	driver_notify(&g->d, GUEST_TX);
}

static void guest_memory(struct vsock_guest *g, struct str *in)
{
	uint64_t at = step_number(in, 2) * 8;
	struct str s = step_bytes(in);
	memcpy(driver_at(&g->d, at, s.n), s.p, s.n);
}

static void save_and_load(struct vsock_guest *g, struct str *in)
{
	cleanup_buf struct buf saved = BUF_INIT;
	struct error err = {0};
	virtio_save(g->device, &saved);
	size_t at = step_number(in, 1) % buf_len(&saved);
	buf_str(&saved);
	saved.data[saved.start + at] ^= (char)step_number(in, 1);
	if (virtio_load(g->device, buf_str(&saved), &err) == 0)
		vsock_restored(g->device);
}

static void step(struct vsock_guest *g, struct hosts *h, struct str *in)
{
	unsigned what = (unsigned)step_number(in, 1), i = (what >> 4) % HOSTS;
	char some[8192];
	struct str s;
	switch (what % 16) {
	case 0:
	case 1:
	case 2:
	case 3:
		packet(g, in);
		break;
	case 4:
		guest_memory(g, in);
		break;
	case 5:
		driver_descriptor(&g->d, i % 3, (uint16_t)(step_number(in, 1) % GUEST_QUEUE), step_number(in, 2) * 16, (uint32_t)step_number(in, 3), (uint16_t)step_number(in, 1), (uint16_t)step_number(in, 1));
		break;
	case 6:
		driver_offer(&g->d, i % 3, (uint16_t)(step_number(in, 1) % (GUEST_QUEUE + 2)));
		driver_notify(&g->d, i % 3);
		break;
	case 7:
	case 8:
		/* A buffer for packets, or events, once more. */
		for (unsigned n = (unsigned)step_number(in, 1) % 16 + 1; n; n--)
			driver_offer(&g->d, what % 16 == 7 ? GUEST_RX : GUEST_EVENT, (uint16_t)(n + i));
		driver_notify(&g->d, GUEST_RX);
		break;
	case 9:
	case 10:
		connect_host(g, &h->fd[i], what % 16 == 9, h, 2);
		break;
	case 11:
	case 12:
		s = what % 16 == 11 ? step_bytes(in) : str_n(g->memory.region[0].host, (size_t)step_number(in, 2) + 10);
		if (h->fd[i] >= 0)
			send(h->fd[i], s.p, s.n, MSG_NOSIGNAL | MSG_DONTWAIT);
		break;
	case 13:
		if (h->fd[i] >= 0)
			while (recv(h->fd[i], some, sizeof(some), MSG_DONTWAIT) > 0)
				;
		break;
	case 14:
		if (h->fd[i] >= 0 && what & 0x80)
			shutdown(h->fd[i], i % 2 ? SHUT_WR : SHUT_RD);
		else {
			cleanup_fd_p(&h->fd[i]);
			h->fd[i] = -1;
		}
		break;
	default:
		if (i == 0)
			vsock_restored(g->device);
		else if (i == 1)
			save_and_load(g, in);
		else if (i == 2)
			vsock_guest_start(g);
		else if (i == 3) {
			g->device->ops->quiesce(g->device);
			loop_turn(g->loop, 0);
			g->device->ops->resume(g->device);
		}
		break;
	}
	if (what & 1)
		loop_turn(g->loop, 0);
}

static void expect_work(struct vsock_guest *g, struct hosts *h)
{
	int fd = -1;
	char got[4] = "";
	vsock_guest_start(g);
	vsock_guest_up(g);
	connect_host(g, &fd, false, h, LAST_PORT);
	struct guest_conn *c = NULL;
	while (!c) {
		vsock_guest_turn(g, 20);
		for (unsigned i = 0; i < g->n && !c; i++)
			c = g->conn[i]->port == LAST_PORT && g->conn[i]->open ? g->conn[i] : NULL;
	}
	hold(send(fd, "ping", 4, MSG_NOSIGNAL) == 4);
	vsock_guest_until(g, buf_len(&c->got) == 4);
	hold(vsock_guest_send(g, c, "pong", 4, 0) == 4);
	while (recv(fd, got, 4, MSG_DONTWAIT) != 4)
		vsock_guest_turn(g, 20);
	hold(memcmp(got, "pong", 4) == 0);
	close(fd);
}

void fuzz_one(struct str input)
{
	struct vsock_guest g;
	struct hosts h;
	log_setup("fuzz", 2, LOG_ERROR);
	memset(h.fd, 0xff, sizeof(h.fd));
	vsock_guest_init(&g, listen_control(&h), NULL, NULL);
	vsock_guest_start(&g);
	for (int i = 0; i < STEPS_MAX && input.n; i++)
		step(&g, &h, &input);
	loop_turn(g.loop, 0);
	expect_work(&g, &h);
	vsock_guest_done(&g);
	for (int i = 0; i < HOSTS; i++)
		cleanup_fd_p(&h.fd[i]);
}
