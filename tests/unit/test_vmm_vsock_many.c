/* Many connections of virtio sockets at once, and guests that break the rules. */
#include "vsock_host.h"
#include "base/cleanup.h"
#include "base/random.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <sys/socket.h>

enum { MIB = 1 << 20 };

static void two_hundred_connections_at_once(void **state)
{
	struct vsock_guest *g = *state;
	enum { N = 200 };
	int fd[N];
	for (int i = 0; i < N; i++)
		fd[i] = connect_host(g, 1000 + (uint32_t)i);
	vsock_guest_until(g, g->n == N + 1);
	cleanup_free char *data = malloc(50000);
	random_bytes(data, 50000);
	for (int i = 0; i < N; i++)
		assert_int_equal(send(fd[i], data, 50000, 0), 50000);
	for (unsigned i = 1; i < g->n; i++)
		vsock_guest_send(g, g->conn[i], data, 50000, 0);
	for (unsigned i = 1; i < g->n; i++) {
		struct guest_conn *c = g->conn[i];
		vsock_guest_until(g, buf_len(&c->got) == 50000);
		assert_memory_equal(buf_str(&c->got).p, data, 50000);
		cleanup_buf struct buf got = BUF_INIT;
		read_host(g, fd[c->port - 1000], &got, 50000);
		assert_memory_equal(buf_str(&got).p, data, 50000);
	}
	for (int i = 0; i < N; i++)
		close(fd[i]);
}

static void what_many_slow_hosts_have_it_keep_is_bounded(void **state)
{
	struct vsock_guest *g = *state;
	enum { N = 900 };
	int fd[N];
	size_t allowed = 0;
	for (int i = 0; i < N; i++)
		fd[i] = connect_host(g, 2);
	vsock_guest_until(g, g->n == N + 1 && latest(g)->open);
	for (unsigned i = 1; i < g->n; i++) {
		assert_true(g->conn[i]->host_alloc >= 16 << 10);
		allowed += g->conn[i]->host_alloc;
	}
	assert_in_range(allowed, 16 * MIB, 32 * MIB);
	/* The one with the least carries as much as any. */
	enum { BYTES = 2 * MIB };
	struct guest_conn *c = latest(g);
	cleanup_free char *data = malloc(BYTES);
	cleanup_buf struct buf got = BUF_INIT;
	random_bytes(data, BYTES);
	for (size_t sent = 0; sent < BYTES;) {
		sent += vsock_guest_send(g, c, data + sent, MIN((size_t)8192, BYTES - sent), 0);
		vsock_guest_turn(g, 0);
		read_host(g, fd[N - 1], &got, MIN(sent, buf_len(&got) + 1));
	}
	read_host(g, fd[N - 1], &got, BYTES);
	assert_memory_equal(buf_str(&got).p, data, BYTES);
	for (int i = 0; i < N; i++)
		close(fd[i]);
}

static void there_is_an_end_to_connections_and_dead_ones_make_room(void **state)
{
	struct vsock_guest *g = *state;
	int fd[1100], pair[2], n = 0, r = 0;
	while (n < 1100 && r == 0) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
		r = vsock_connect(g->device, pair[1], 2);
		fd[n++] = pair[0];
	}
	assert_int_equal(r, -EAGAIN);
	assert_in_range(n, 900, 1024);
	expect_end(g, fd[--n]);
	close(fd[n]);
	vsock_guest_until(g, g->n == (unsigned)n + 1 && latest(g)->open);
	/* The guest never says that it has seen the end of these two. */
	close(fd[0]);
	close(fd[1]);
	vsock_guest_until(g, g->conn[1]->shut == 3 && g->conn[2]->shut == 3);
	g->conn[1]->gone = g->conn[2]->gone = true;
	fd[0] = connect_host(g, 2);
	fd[1] = connect_host(g, 2);
	vsock_guest_until(g, g->n == (unsigned)n + 3);
	for (int i = 0; i < n; i++)
		close(fd[i]);
}

static void one_busy_connection_does_not_starve_the_others(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_free char *data = calloc(1, MIB);
	cleanup_fd int busy = connect_host(g, 2);
	struct guest_conn *b = opened(g, 1);
	cleanup_fd int small = connect_host(g, 2);
	struct guest_conn *s = opened(g, 2);
	b->hold = true;
	g->starves = true;
	while (send(busy, data, 10000, MSG_DONTWAIT) > 0)
		;
	vsock_guest_turn(g, 0);
	write_host(small, "me too");
	vsock_guest_turn(g, 0);
	/* All buffers are full of the busy one's; of the next ones half are for the other. */
	size_t before = b->received;
	vsock_guest_feed(g);
	vsock_guest_until(g, s->received == 6);
	assert_in_range(b->received - before, 0, (GUEST_QUEUE + 2) * GUEST_BUFFER);
}

static struct virtio_vsock_hdr junk(const struct vsock_guest *g, uint32_t host_port, uint16_t op)
{
	return (struct virtio_vsock_hdr){.src_cid = VSOCK_GUEST, .dst_cid = VSOCK_HOST, .src_port = 9, .dst_port = host_port, .type = VIRTIO_VSOCK_TYPE_STREAM, .op = op, .buf_alloc = 1};
}

/* Answers to nonsense wait for buffers; when too many wait, the guest's packets do, too. */
static void a_flood_of_nonsense_is_taken_only_as_fast_as_answers_go(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	g->starves = true;
	unsigned answered = 0;
	for (unsigned i = 0; i < 2000; i++) {
		struct virtio_vsock_hdr h = junk(g, 10 + i, i % 3 == 0 ? VIRTIO_VSOCK_OP_REQUEST : i % 3 == 1 ? VIRTIO_VSOCK_OP_RW : VIRTIO_VSOCK_OP_CREDIT_REQUEST);
		memcpy(driver_at(&g->d, g->tx, sizeof(h)), &h, sizeof(h));
		if (i >= GUEST_QUEUE && !driver_used(&g->d, GUEST_TX, NULL, NULL))
			break;
		driver_add(&g->d, GUEST_TX, &(struct part){g->tx, sizeof(h), false}, 1);
		vsock_guest_kick(g, GUEST_TX);
		vsock_guest_turn(g, 0);
		answered = i;
	}
	assert_in_range(answered, 256, 600);
	/* Connections and answers take turns. */
	write_host(fd, "in between");
	vsock_guest_turn(g, 0);
	vsock_guest_feed(g);
	vsock_guest_until(g, c->received == 10);
	assert_in_range(c->strays_before, 0, GUEST_QUEUE + 4);
	vsock_guest_until(g, g->strays > answered - GUEST_QUEUE);
	for (int i = 0; i < 20; i++)
		vsock_guest_turn(g, 0);
	while (driver_used(&g->d, GUEST_TX, NULL, NULL))
		;
	/* Floods that have no answers, or one for many, are swallowed. */
	g->starves = true;
	for (unsigned i = 0; i < 3000; i++)
		vsock_guest_say(g, c, VIRTIO_VSOCK_OP_CREDIT_REQUEST, 0);
	for (unsigned i = 0; i < 3000; i++) {
		struct virtio_vsock_hdr h = junk(g, 4000 + i, VIRTIO_VSOCK_OP_RST);
		vsock_guest_raw(g, &h, NULL, 0);
	}
	vsock_guest_feed(g);
	write_host(fd, "alive");
	vsock_guest_until(g, c->received == 15);
}

static void broken_packets_end_only_their_own_connection(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_fd int witness = connect_host(g, 2);
	struct guest_conn *w = opened(g, 1);
	static const struct {
		uint16_t op, type;
		uint32_t len, flags;
	} bad[] = {
		{VIRTIO_VSOCK_OP_RW, VIRTIO_VSOCK_TYPE_STREAM, 1000, 0},
		{VIRTIO_VSOCK_OP_RW, VIRTIO_VSOCK_TYPE_STREAM, UINT32_MAX, 0},
		{VIRTIO_VSOCK_OP_RW, VIRTIO_VSOCK_TYPE_SEQPACKET, 4, 0},
		{VIRTIO_VSOCK_OP_REQUEST, VIRTIO_VSOCK_TYPE_STREAM, 0, 0},
		{VIRTIO_VSOCK_OP_RESPONSE, VIRTIO_VSOCK_TYPE_STREAM, 0, 0},
		{VIRTIO_VSOCK_OP_INVALID, VIRTIO_VSOCK_TYPE_STREAM, 0, 0},
		{99, VIRTIO_VSOCK_TYPE_STREAM, 0, 0},
		{VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, 0, 0},
	};
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		cleanup_fd int fd = connect_host(g, 2);
		struct guest_conn *c = opened(g, i + 2);
		struct virtio_vsock_hdr h = vsock_guest_header(g, c, bad[i].op);
		h.type = bad[i].type;
		h.len = bad[i].len;
		h.flags = bad[i].flags;
		vsock_guest_raw(g, &h, "four", 4);
		expect_end(g, fd);
		vsock_guest_until(g, c->gone);
	}
	/* Data after SHUTDOWN; less than a header; a lie about what was forwarded. */
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 2 + ARRAY_SIZE(bad));
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND);
	vsock_guest_send(g, c, "too late", 8, 0);
	vsock_guest_until(g, c->gone);
	driver_add(&g->d, GUEST_TX, &(struct part){g->tx, 43, false}, 1);
	vsock_guest_kick(g, GUEST_TX);
	driver_wait(&g->d, g->loop, GUEST_TX, NULL, NULL);
	cleanup_fd int liar = connect_host(g, 2);
	c = opened(g, 3 + ARRAY_SIZE(bad));
	c->hold = true;
	c->taken = 5;
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0);
	write_host(liar, "stuck");
	for (int i = 0; i < 10; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(c->received, 0);
	vsock_guest_send(g, w, "fine", 4, 0);
	expect_text(g, witness, "fine");
}

static void a_broken_queue_closes_all_and_a_reset_mends_it(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_fd int fd = connect_host(g, 2);
	opened(g, 1);
	driver_offer(&g->d, GUEST_TX, 5000);
	vsock_guest_kick(g, GUEST_TX);
	expect_end(g, fd);
	assert_true(driver_get(&g->d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
	cleanup_fd int waits = connect_host(g, 2);
	vsock_guest_start(g);
	vsock_guest_up(g);
	struct guest_conn *c = opened(g, 1);
	vsock_guest_send(g, c, "again", 5, 0);
	expect_text(g, waits, "again");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		running(two_hundred_connections_at_once),
		running(what_many_slow_hosts_have_it_keep_is_bounded),
		running(there_is_an_end_to_connections_and_dead_ones_make_room),
		running(one_busy_connection_does_not_starve_the_others),
		running(a_flood_of_nonsense_is_taken_only_as_fast_as_answers_go),
		running(broken_packets_end_only_their_own_connection),
		running(a_broken_queue_closes_all_and_a_reset_mends_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
