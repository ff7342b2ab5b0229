/* Virtio sockets across a pause, a save and a restore. */
#include "vsock_host.h"
#include "base/cleanup.h"

static unsigned events(struct vsock_guest *g, bool give_back)
{
	unsigned n = 0;
	uint16_t head;
	uint32_t written;
	while (driver_used(&g->d, GUEST_EVENT, &head, &written)) {
		struct virtio_vsock_event e;
		memcpy(&e, driver_at(&g->d, g->event[head], sizeof(e)), sizeof(e));
		assert_int_equal(written, sizeof(e));
		assert_int_equal(e.id, VIRTIO_VSOCK_EVENT_TRANSPORT_RESET);
		n++;
		if (!give_back)
			continue;
		uint64_t address = g->event[head];
		g->event[driver_add(&g->d, GUEST_EVENT, &(struct part){address, sizeof(e), true}, 1)] = address;
		vsock_guest_kick(g, GUEST_EVENT);
	}
	return n;
}

static void a_restored_guest_is_told_and_new_connections_work(void **state)
{
	struct vsock_guest *g = *state;
	struct error err = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	cleanup_fd int old = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	uint32_t old_port = c->host_port;
	g->device->ops->quiesce(g->device);
	virtio_save(g->device, &saved);
	virtio_free(g->device);
	expect_end(g, old);
	g->device = vsock_new(g->loop, &g->memory, &(struct vsock_config){.control = -1, .up = on_up, .arg = g}, &err);
	g->d.device = g->device;
	cleanup_fd int early = connect_host(g, 2);
	assert_int_equal(virtio_load(g->device, buf_str(&saved), &err), 0);
	vsock_restored(g->device);
	cleanup_fd int fd = connect_host(g, 2);
	/* Until the guest has heard of the reset, which would take them along, no connections are made. */
	for (int i = 0; i < 10; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(g->n, 2);
	c->gone = true;
	assert_int_equal(events(g, true), 1);
	vsock_guest_until(g, g->n == 4 && latest(g)->open);
	c = latest(g);
	assert_int_not_equal(c->host_port, old_port);
	write_host(fd, "new");
	vsock_guest_until(g, buf_len(&c->got) == 3 || buf_len(&g->conn[2]->got) == 3);
	assert_int_equal(events(g, true), 0);
	/* The old one is unknown to it. */
	struct guest_conn gone = {.host_port = old_port, .port = 2, .type = VIRTIO_VSOCK_TYPE_STREAM};
	vsock_guest_send(g, &gone, "", 0, 0);
	vsock_guest_until(g, g->strays == 1);
	assert_int_equal(g->stray.op, VIRTIO_VSOCK_OP_RST);
	/* And the same for one that goes on itself. */
	vsock_restored(g->device);
	expect_end(g, fd);
	assert_int_equal(events(g, true), 1);
	cleanup_fd int last = connect_host(g, 2);
	struct guest_conn *l = opened(g, 4);
	vsock_guest_send(g, l, "last", 4, 0);
	expect_text(g, last, "last");
}

static void a_guest_without_event_buffers_is_told_when_it_gives_one(void **state)
{
	struct vsock_guest *g = *state;
	unsigned told = 0;
	for (int i = 0; i < 8; i++) {
		vsock_restored(g->device);
		told += events(g, false);
	}
	assert_int_equal(told, 8);
	vsock_restored(g->device);
	cleanup_fd int fd = connect_host(g, 2);
	for (int i = 0; i < 5; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(events(g, false), 0);
	assert_int_equal(g->n, 1);
	for (int i = 0; i < 2; i++) {
		uint64_t address = g->event[i];
		g->event[driver_add(&g->d, GUEST_EVENT, &(struct part){address, sizeof(struct virtio_vsock_event), true}, 1)] = address;
		vsock_guest_kick(g, GUEST_EVENT);
	}
	assert_int_equal(events(g, true), 1);
	opened(g, 1);
}

static void damaged_state_is_refused(void **state)
{
	struct vsock_guest *g = *state;
	struct error err = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	virtio_save(g->device, &saved);
	struct str s = buf_str(&saved);
	assert_int_equal(virtio_load(g->device, str_n(s.p, s.n - 1), &err), -EINVAL);
	buf_add(&saved, "x", 1);
	assert_int_equal(virtio_load(g->device, buf_str(&saved), &err), -EINVAL);
	s = str_n(buf_str(&saved).p, buf_len(&saved) - 1);
	((char *)(uintptr_t)s.p)[s.n - 1] = 7;
	assert_int_equal(virtio_load(g->device, s, &err), -EINVAL);
	((char *)(uintptr_t)s.p)[s.n - 1] = 1;
	assert_int_equal(virtio_load(g->device, s, &err), 0);
}

static void nothing_moves_while_it_is_paused(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	g->device->ops->quiesce(g->device);
	write_host(fd, "later");
	cleanup_fd int other = connect_host(g, 2);
	for (int i = 0; i < 10; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(buf_len(&c->got), 0);
	assert_int_equal(g->n, 2);
	g->device->ops->resume(g->device);
	vsock_guest_until(g, buf_len(&c->got) == 5 && g->n == 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		running(a_restored_guest_is_told_and_new_connections_work),
		running(a_guest_without_event_buffers_is_told_when_it_gives_one),
		running(damaged_state_is_refused),
		running(nothing_moves_while_it_is_paused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
