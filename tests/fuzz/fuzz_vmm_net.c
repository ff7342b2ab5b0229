/* A hostile guest at a tap, for which a socket stands; whatever happened, after a reset packets pass. */
#include "steps.h"
#include "../unit/vmm_driver.h"

#include "base/log.h"
#include "vmm/devices.h"

#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <sys/socket.h>

enum { RX, TX, QUEUE = 32, ROOM = 2000, STEPS_MAX = 400, LAST = 100 };

struct world {
	struct loop *loop;
	struct guest_memory memory;
	struct driver d;
	int wire;
	uint64_t buffer;
};

static void start(struct world *w, unsigned what)
{
	driver_start(&w->d, (what & 1 ? 1ull << VIRTIO_NET_F_MRG_RXBUF : 0) | (what & 2 ? 1ull << VIRTIO_RING_F_EVENT_IDX : 0), QUEUE);
	w->buffer = driver_alloc(&w->d, QUEUE * ROOM);
}

static void offer(struct world *w, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		driver_add(&w->d, RX, &(struct part){w->buffer + i % QUEUE * ROOM, ROOM, true}, 1);
	driver_notify(&w->d, RX);
}

static void save_and_load(struct world *w, struct str *in)
{
	cleanup_buf struct buf saved = BUF_INIT;
	struct error err = {0};
	virtio_save(w->d.device, &saved);
	saved.data[saved.start + step_number(in, 1) % buf_len(&saved)] ^= (char)step_number(in, 1);
	virtio_load(w->d.device, buf_str(&saved), &err);
}

static void drain(struct world *w)
{
	static char some[70000];
	ssize_t r;
	while ((r = recv(w->wire, some, sizeof(some), MSG_DONTWAIT)) > 0)
		/* No offloads were agreed upon: none are asked of the kernel. */
		hold(r >= 12 + 14 && r <= 12 + 14 + 4 + 65535 && some[0] == 0 && some[1] == 0);
}

static void step(struct world *w, struct str *in)
{
	unsigned what = (unsigned)step_number(in, 1), arg = what >> 4;
	uint64_t at;
	struct str s;
	switch (what % 12) {
	case 0:
	case 1:
		s = step_bytes(in);
		send(w->wire, s.p, s.n, MSG_DONTWAIT);
		break;
	case 2:
		send(w->wire, w->memory.region[0].host, step_number(in, 2) + 10, MSG_DONTWAIT);
		break;
	case 3:
		drain(w);
		break;
	case 4:
		at = step_number(in, 2);
		s = step_bytes(in);
		memcpy(driver_at(&w->d, at, s.n), s.p, s.n);
		break;
	case 5:
		driver_descriptor(&w->d, arg % 2, (uint16_t)(step_number(in, 1) % QUEUE), step_number(in, 2), (uint32_t)step_number(in, 3), (uint16_t)step_number(in, 1) & 7,
			(uint16_t)step_number(in, 1));
		break;
	case 6:
		driver_offer(&w->d, arg % 2, (uint16_t)(step_number(in, 1) % (QUEUE + 2)));
		driver_notify(&w->d, arg % 2);
		break;
	case 7:
		offer(w, arg + 1);
		break;
	case 8:
	case 9:
		driver_add(&w->d, TX, (struct part[]){{w->buffer, 12, false}, {w->buffer + 12, (uint32_t)step_number(in, 2) + 1, false}}, 2);
		driver_notify(&w->d, TX);
		break;
	case 10:
		start(w, arg);
		break;
	default:
		if (arg & 1)
			save_and_load(w, in);
		else {
			w->d.device->ops->quiesce(w->d.device);
			loop_turn(w->loop, 0);
			w->d.device->ops->resume(w->d.device);
		}
		break;
	}
	if (what & 1)
		loop_turn(w->loop, 0);
}

/* Buffers are given until a packet of ours comes through, behind all that still waits. */
static void expect_work(struct world *w)
{
	char p[LAST] = {0};
	unsigned given = 0;
	uint32_t n = 0;
	bool sent = false;
	start(w, 3);
	drain(w);
	while (n != LAST) {
		sent = sent || send(w->wire, p, sizeof(p), MSG_DONTWAIT) > 0;
		for (; given < QUEUE; given++)
			offer(w, 1);
		loop_turn(w->loop, 0);
		while (n != LAST && driver_used(&w->d, RX, NULL, &n))
			given--;
	}
	memset(driver_at(&w->d, w->buffer, LAST), 0, LAST);
	driver_add(&w->d, TX, &(struct part){w->buffer, LAST, false}, 1);
	driver_notify(&w->d, TX);
	driver_wait(&w->d, w->loop, TX, NULL, NULL);
	hold(recv(w->wire, p, sizeof(p), MSG_DONTWAIT) == LAST);
}

void fuzz_one(struct str input)
{
	int pair[2];
	struct world w = {.loop = loop_new()};
	struct error err = {0};
	log_setup("fuzz", 2, LOG_ERROR);
	hold(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	w.wire = pair[0];
	driver_memory(&w.memory, 1 << 17);
	struct virtio_device *device = net_new(w.loop, &w.memory, &(struct net_config){.tap = pair[1], .mtu = 1500}, &err);
	driver_init(&w.d, device, &w.memory);
	start(&w, (unsigned)step_number(&input, 1));
	for (int i = 0; i < STEPS_MAX && input.n; i++)
		step(&w, &input);
	loop_turn(w.loop, 0);
	expect_work(&w);
	virtio_free(device);
	loop_free(w.loop);
	driver_memory_done(&w.memory);
	close(w.wire);
}
