#include "unit.h"
#include "vsock_guest.h"
#include "base/cleanup.h"
#include "base/random.h"

#include <fcntl.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { MIB = 1 << 20 };

static struct vsock_guest guest;

static int set_up(void **state)
{
	vsock_guest_init(&guest, -1, NULL, NULL);
	*state = &guest;
	return 0;
}

static int set_up_running(void **state)
{
	set_up(state);
	vsock_guest_start(&guest);
	assert_true(vsock_guest_up(&guest)->open);
	return 0;
}

static int tear_down(void **state)
{
	vsock_guest_done(*state);
	return 0;
}

/* Our end of a stream that the device was given the other end of. */
static int connect_host(struct vsock_guest *g, uint32_t port)
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(vsock_connect(g->device, pair[1], port), 0);
	return pair[0];
}

static struct guest_conn *latest(struct vsock_guest *g)
{
	return g->conn[g->n - 1];
}

static struct guest_conn *opened(struct vsock_guest *g, unsigned before)
{
	vsock_guest_until(g, g->n > before && latest(g)->open);
	return latest(g);
}

/* Everything until the end, or until n bytes are there. */
static void read_host(struct vsock_guest *g, int fd, struct buf *to, size_t n)
{
	char some[65536];
	while (buf_len(to) < n) {
		ssize_t r = recv(fd, some, sizeof(some), MSG_DONTWAIT);
		if (r == 0)
			return;
		if (r < 0) {
			assert_int_equal(errno, EAGAIN);
			vsock_guest_turn(g, 5);
			continue;
		}
		buf_add(to, some, (size_t)r);
	}
}

static void expect_end(struct vsock_guest *g, int fd)
{
	cleanup_buf struct buf rest = BUF_INIT;
	read_host(g, fd, &rest, SIZE_MAX);
	assert_int_equal(buf_len(&rest), 0);
}

static void expect_text(struct vsock_guest *g, int fd, const char *text)
{
	cleanup_buf struct buf got = BUF_INIT;
	read_host(g, fd, &got, strlen(text));
	assert_str(buf_str(&got), text);
}

static void write_host(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void streams_carry_bytes_both_ways(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_fd int fd = connect_host(g, VSOCK_PORT_OPEN);
	struct guest_conn *c = opened(g, 1);
	assert_int_equal(c->port, VSOCK_PORT_OPEN);
	assert_int_equal(c->type, VIRTIO_VSOCK_TYPE_STREAM);
	write_host(fd, "to the guest");
	vsock_guest_until(g, buf_len(&c->got) == 12);
	assert_str(buf_str(&c->got), "to the guest");
	assert_int_equal(vsock_guest_send(g, c, "to the host", 11, 0), 11);
	expect_text(g, fd, "to the host");
}

/* Megabytes each way at once, the guest with little room. */
static void small_credit_carries_megabytes(void **state)
{
	struct vsock_guest *g = *state;
	enum { BYTES = 3 * MIB };
	cleanup_free char *data = malloc(BYTES);
	cleanup_buf struct buf back = BUF_INIT;
	random_bytes(data, BYTES);
	g->alloc = 5000;
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	size_t out = 0, in = 0;
	while (out < BYTES || in < BYTES || buf_len(&c->got) < BYTES || buf_len(&back) < BYTES) {
		char some[10000];
		ssize_t r = send(fd, data + out, MIN(BYTES - out, 30000u), MSG_DONTWAIT | MSG_NOSIGNAL);
		out += r > 0 ? (size_t)r : 0;
		in += vsock_guest_send(g, c, data + in, MIN(BYTES - in, 7000u), 0);
		r = recv(fd, some, sizeof(some), MSG_DONTWAIT);
		buf_add(&back, some, r > 0 ? (size_t)r : 0);
		vsock_guest_turn(g, 0);
	}
	assert_memory_equal(buf_str(&c->got).p, data, BYTES);
	assert_memory_equal(buf_str(&back).p, data, BYTES);
}

static void without_credit_the_guest_is_asked_once_and_nothing_is_sent(void **state)
{
	struct vsock_guest *g = *state;
	g->alloc = 1000;
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	c->hold = true;
	char data[3000] = {0};
	assert_int_equal(send(fd, data, sizeof(data), 0), sizeof(data));
	vsock_guest_until(g, c->credit_requests);
	for (int i = 0; i < 20; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(c->credit_requests, 1);
	assert_int_equal(c->received, 1000);
	c->hold = false;
	vsock_guest_take(g, c);
	vsock_guest_until(g, c->received == 3000);
}

/* Sends until nothing more is taken: the host's socket is full, and the device's buffer. */
static size_t fill(struct vsock_guest *g, struct guest_conn *c, const char *data)
{
	size_t sent = 0, n;
	while ((n = vsock_guest_send(g, c, data, GUEST_PACKET_MAX, 0)) > 0) {
		sent += n;
		for (int i = 0; i < 5; i++)
			vsock_guest_turn(g, 0);
	}
	return sent;
}

/* What the host does not read is kept up to what the guest was told; then only this connection stands still. */
static void a_slow_host_stalls_its_own_connection_only(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_free char *data = calloc(1, MIB);
	cleanup_fd int slow = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	cleanup_fd int quick = connect_host(g, 2);
	struct guest_conn *other = opened(g, 2);
	size_t sent = fill(g, c, data);
	assert_int_equal(c->host_alloc - vsock_guest_credit(c), c->host_alloc);
	vsock_guest_send(g, other, "hello", 5, 0);
	expect_text(g, quick, "hello");
	cleanup_buf struct buf got = BUF_INIT;
	read_host(g, slow, &got, sent);
	assert_int_equal(buf_len(&got), sent);
	vsock_guest_until(g, vsock_guest_credit(c) > 0);
	/* A guest that sends more than it was told loses the connection. */
	vsock_guest_until(g, vsock_guest_credit(c) >= c->host_alloc / 2);
	while (!c->gone) {
		c->host_forwarded = c->sent;
		vsock_guest_send(g, c, data, MIB, 0);
		vsock_guest_turn(g, 0);
	}
	vsock_guest_send(g, other, "still here", 10, 0);
	expect_text(g, quick, "still here");
}

static void half_closes_go_both_ways(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	write_host(fd, "last words");
	shutdown(fd, SHUT_WR);
	vsock_guest_until(g, c->shut);
	assert_int_equal(c->shut, VIRTIO_VSOCK_SHUTDOWN_SEND);
	assert_str(buf_str(&c->got), "last words");
	vsock_guest_send(g, c, "an answer", 9, 0);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND);
	expect_text(g, fd, "an answer");
	expect_end(g, fd);
	vsock_guest_until(g, c->shut == (VIRTIO_VSOCK_SHUTDOWN_SEND | VIRTIO_VSOCK_SHUTDOWN_RCV));
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_RST, 0);

	cleanup_fd int second = connect_host(g, 2);
	c = opened(g, 2);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND);
	expect_end(g, second);
	write_host(second, "goes on");
	vsock_guest_until(g, buf_len(&c->got) == 7);
	assert_false(c->gone);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_RCV);
	vsock_guest_until(g, c->gone);
	assert_int_equal(send(second, "x", 1, MSG_NOSIGNAL), -1);
	assert_int_equal(errno, EPIPE);
	assert_int_equal(g->strays, 0);

	/* The guest reads no more, but still writes. */
	cleanup_fd int third = connect_host(g, 2);
	c = opened(g, 3);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_RCV);
	assert_int_equal(send(third, "x", 1, MSG_NOSIGNAL), -1);
	assert_int_equal(errno, EPIPE);
	vsock_guest_send(g, c, "still", 5, 0);
	expect_text(g, third, "still");
	vsock_guest_until(g, c->shut == VIRTIO_VSOCK_SHUTDOWN_SEND);
	assert_false(c->gone);
}

/* close(2) inside: bytes that are under way still arrive, then RST answers. */
static void a_close_inside_delivers_what_was_sent(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_free char *data = calloc(1, MIB);
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	size_t sent = fill(g, c, data);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND | VIRTIO_VSOCK_SHUTDOWN_RCV);
	for (int i = 0; i < 10; i++)
		vsock_guest_turn(g, 0);
	assert_false(c->gone);
	cleanup_buf struct buf got = BUF_INIT;
	read_host(g, fd, &got, SIZE_MAX);
	assert_int_equal(buf_len(&got), sent);
	vsock_guest_until(g, c->gone);
}

static void a_reset_inside_closes_after_what_was_sent(void **state)
{
	struct vsock_guest *g = *state;
	cleanup_free char *data = calloc(1, MIB);
	cleanup_fd int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	size_t sent = fill(g, c, data);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_RST, 0);
	cleanup_buf struct buf got = BUF_INIT;
	read_host(g, fd, &got, SIZE_MAX);
	assert_int_equal(buf_len(&got), sent);
}

static void a_close_outside_shuts_both_directions(void **state)
{
	struct vsock_guest *g = *state;
	int fd = connect_host(g, 2);
	struct guest_conn *c = opened(g, 1);
	write_host(fd, "and off");
	close(fd);
	vsock_guest_until(g, c->shut == (VIRTIO_VSOCK_SHUTDOWN_SEND | VIRTIO_VSOCK_SHUTDOWN_RCV));
	assert_str(buf_str(&c->got), "and off");
	/* What is still sent is dropped without harm, and leaves credit. */
	char data[1000] = {0};
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(vsock_guest_send(g, c, data, sizeof(data), 0), sizeof(data));
		vsock_guest_turn(g, 0);
	}
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_RST, 0);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0);
	vsock_guest_until(g, c->gone);
}

static void a_refused_port_closes_the_socket(void **state)
{
	struct vsock_guest *g = *state;
	g->refuses = true;
	cleanup_fd int fd = connect_host(g, 7777);
	expect_end(g, fd);
	assert_int_equal(latest(g)->port, 7777);
}

static void a_host_that_gives_up_before_the_answer_is_forgotten(void **state)
{
	struct vsock_guest *g = *state;
	/* Before the guest is up: it never hears of it. */
	close(connect_host(g, 2));
	cleanup_fd int stays = connect_host(g, 3);
	vsock_guest_start(g);
	for (int i = 0; i < 5; i++)
		vsock_guest_turn(g, 0);
	vsock_guest_up(g);
	struct guest_conn *c = opened(g, 1);
	assert_int_equal(c->port, 3);
	/* What had been said before the close is not lost. */
	int fd = connect_host(g, 4);
	write_host(fd, "fire and forget");
	close(fd);
	c = opened(g, 2);
	vsock_guest_until(g, c->shut == (VIRTIO_VSOCK_SHUTDOWN_SEND | VIRTIO_VSOCK_SHUTDOWN_RCV));
	assert_str(buf_str(&c->got), "fire and forget");
}

static void other_connections_of_the_guest_are_refused(void **state)
{
	struct vsock_guest *g = *state;
	struct guest_conn first = {.host_port = 80, .port = 5000, .type = VIRTIO_VSOCK_TYPE_STREAM}, second = {.host_port = VSOCK_PORT_CONTROL, .port = 5001, .type = VIRTIO_VSOCK_TYPE_STREAM},
			  third = {.host_port = VSOCK_PORT_CONTROL, .port = 5002, .type = VIRTIO_VSOCK_TYPE_SEQPACKET}, fourth = {.host_port = 3, .port = 5003, .type = 77};
	struct guest_conn *all[] = {&first, &second, &third, &fourth};
	for (unsigned i = 0; i < ARRAY_SIZE(all); i++) {
		vsock_guest_say(g, all[i], VIRTIO_VSOCK_OP_REQUEST, 0);
		vsock_guest_until(g, g->strays == i + 1);
		assert_int_equal(g->stray.op, VIRTIO_VSOCK_OP_RST);
		assert_int_equal(g->stray.src_port, all[i]->host_port);
		assert_int_equal(g->stray.dst_port, all[i]->port);
		assert_int_equal(g->stray.type, all[i]->type);
	}
	/* RST is never answered, nor what comes from or goes to somebody else. */
	struct virtio_vsock_hdr h = vsock_guest_header(g, &first, VIRTIO_VSOCK_OP_RST), from_other = h, to_other = h;
	vsock_guest_raw(g, &h, NULL, 0);
	from_other.op = to_other.op = VIRTIO_VSOCK_OP_REQUEST;
	from_other.src_cid = 4;
	to_other.dst_cid = 1;
	vsock_guest_raw(g, &from_other, NULL, 0);
	vsock_guest_raw(g, &to_other, NULL, 0);
	for (int i = 0; i < 5; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(g->strays, 4);
}

/* Up */

static int ups;

static void on_up(void *arg)
{
	ups++;
	assert_ptr_equal(arg, &guest);
}

static void connections_wait_until_the_guest_is_up(void **state)
{
	struct vsock_guest *g = &guest;
	ups = 0;
	vsock_guest_init(g, -1, on_up, g);
	int fd[20];
	for (int i = 0; i < 10; i++)
		fd[i] = connect_host(g, 2);
	vsock_guest_start(g);
	for (int i = 10; i < 20; i++)
		fd[i] = connect_host(g, 2);
	for (int i = 0; i < 10; i++)
		vsock_guest_turn(g, 0);
	assert_int_equal(g->n, 0);
	struct guest_conn *own = vsock_guest_up(g);
	assert_true(own->open);
	assert_int_equal(ups, 1);
	vsock_guest_until(g, g->n == 21);
	for (unsigned i = 1; i < 21; i++)
		for (unsigned k = 1; k < i; k++)
			assert_int_not_equal(g->conn[i]->host_port, g->conn[k]->host_port);
	/* What the guest says on its connection is thrown away, without an end to its credit. */
	char data[10000] = {0};
	for (int i = 0; i < 100; i++) {
		assert_int_equal(vsock_guest_send(g, own, data, sizeof(data), 0), sizeof(data));
		vsock_guest_turn(g, 0);
	}
	/* When it goes, and comes again, nothing happens. */
	vsock_guest_say(g, own, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND | VIRTIO_VSOCK_SHUTDOWN_RCV);
	vsock_guest_until(g, own->gone);
	assert_true(vsock_guest_up(g)->open);
	assert_int_equal(ups, 1);
	write_host(fd[5], "x");
	unsigned with = 0;
	while (!with) {
		vsock_guest_turn(g, 5);
		for (unsigned i = 0; i < g->n; i++)
			with += buf_len(&g->conn[i]->got) == 1;
	}
	for (int i = 0; i < 20; i++)
		close(fd[i]);
	vsock_guest_done(g);
}

/* Control: messages */

static int listen_control(struct sockaddr_un *a)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t size = sizeof(*a);
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	/* The kernel picks an abstract name. */
	assert_int_equal(bind(fd, (struct sockaddr *)a, sizeof(sa_family_t)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)a, &size), 0);
	assert_int_equal(listen(fd, 64), 0);
	return fd;
}

static int connect_control(const struct sockaddr_un *a)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)a, sizeof(sa_family_t) + 6), 0);
	return fd;
}

static ssize_t receive_message(struct vsock_guest *g, int fd, char *to, size_t n)
{
	ssize_t r;
	while ((r = recv(fd, to, n, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
		vsock_guest_turn(g, 5);
	return r;
}

static void control_messages_keep_their_bounds(void **state)
{
	struct vsock_guest *g = &guest;
	static const size_t lengths[] = {1, 4052, 4053, 10, 65536, 2, 30000};
	struct sockaddr_un address;
	cleanup_free char *data = malloc(65537), *got = malloc(70000);
	random_bytes(data, 65537);
	vsock_guest_init(g, listen_control(&address), NULL, NULL);
	cleanup_fd int early = connect_control(&address);
	assert_int_equal(send(early, data, 1, 0), 1);
	vsock_guest_start(g);
	vsock_guest_up(g);
	struct guest_conn *c = opened(g, 1);
	assert_int_equal(c->type, VIRTIO_VSOCK_TYPE_SEQPACKET);
	assert_int_equal(c->port, VSOCK_PORT_CONTROL);
	for (size_t i = 1; i < ARRAY_SIZE(lengths); i++) {
		assert_int_equal(send(early, data, lengths[i], 0), lengths[i]);
		vsock_guest_until(g, c->messages == i + 1);
	}
	struct str all = buf_str(&c->got);
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		assert_int_equal(c->message[i], lengths[i]);
		assert_memory_equal(all.p, data, lengths[i]);
		all = str_from(all, lengths[i]);
	}
	/* And back: all before the first is read, the longer ones in pieces. An empty one would be an end, and is left out. */
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
		for (size_t at = 0; at < lengths[i];) {
			size_t piece = MIN(lengths[i] - at, 20000u);
			size_t n = vsock_guest_send(g, c, data + at, piece, at + piece == lengths[i] ? VIRTIO_VSOCK_SEQ_EOM | VIRTIO_VSOCK_SEQ_EOR : 0);
			at += n;
			vsock_guest_turn(g, 0);
		}
	vsock_guest_send(g, c, "", 0, VIRTIO_VSOCK_SEQ_EOM);
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		assert_int_equal(receive_message(g, early, got, 70000), lengths[i]);
		assert_memory_equal(got, data, lengths[i]);
	}
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND | VIRTIO_VSOCK_SHUTDOWN_RCV);
	assert_int_equal(receive_message(g, early, got, 70000), 0);
	vsock_guest_until(g, c->gone);
	vsock_guest_done(g);
}

static void messages_that_the_host_does_not_read_wait_whole(void **state)
{
	struct vsock_guest *g = &guest;
	struct sockaddr_un address;
	cleanup_free char *data = calloc(1, 65536), *got = malloc(70000);
	vsock_guest_init(g, listen_control(&address), NULL, NULL);
	vsock_guest_start(g);
	vsock_guest_up(g);
	cleanup_fd int fd = connect_control(&address);
	struct guest_conn *c = opened(g, 1);
	static const size_t lengths[] = {40000, 1, 65536, 3};
	size_t sent = 0, n = 1;
	for (; n > 0; sent += n) {
		size_t length = lengths[sent % 4];
		if (vsock_guest_credit(c) < length)
			break;
		n = vsock_guest_send(g, c, data, length, VIRTIO_VSOCK_SEQ_EOM) ? 1 : 0;
		vsock_guest_turn(g, 0);
	}
	assert_true(sent > 4);
	for (size_t i = 0; i < sent; i++)
		assert_int_equal(receive_message(g, fd, got, 70000), lengths[i % 4]);
	vsock_guest_until(g, vsock_guest_credit(c) > 100000);
	vsock_guest_done(g);
}

static void a_message_that_is_too_long_resets_its_connection(void **state)
{
	struct vsock_guest *g = &guest;
	struct sockaddr_un address;
	cleanup_free char *data = calloc(1, 65537);
	vsock_guest_init(g, listen_control(&address), NULL, NULL);
	vsock_guest_start(g);
	vsock_guest_up(g);
	cleanup_fd int first = connect_control(&address);
	struct guest_conn *c = opened(g, 1);
	vsock_guest_send(g, c, data, 65536, 0);
	vsock_guest_send(g, c, data, 1, VIRTIO_VSOCK_SEQ_EOM);
	expect_end(g, first);
	vsock_guest_until(g, c->gone);
	cleanup_fd int second = connect_control(&address);
	c = opened(g, 2);
	assert_int_equal(send(second, data, 65537, 0), 65537);
	vsock_guest_until(g, c->gone);
	assert_int_equal(c->received, 0);
	vsock_guest_done(g);
}

/* Many, and hostile */

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

/* Save and restore */

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

static void the_guest_reads_its_cid(void **state)
{
	struct vsock_guest *g = *state;
	assert_int_equal(driver_get(&g->d, 0x100), VSOCK_GUEST);
	assert_int_equal(driver_get(&g->d, 0x104), 0);
	assert_int_equal(driver_offered(&g->d) & 3, 3);
}

#define running(f) cmocka_unit_test_setup_teardown(f, set_up_running, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		running(streams_carry_bytes_both_ways),
		running(small_credit_carries_megabytes),
		running(without_credit_the_guest_is_asked_once_and_nothing_is_sent),
		running(a_slow_host_stalls_its_own_connection_only),
		running(half_closes_go_both_ways),
		running(a_close_inside_delivers_what_was_sent),
		running(a_reset_inside_closes_after_what_was_sent),
		running(a_close_outside_shuts_both_directions),
		running(a_refused_port_closes_the_socket),
		cmocka_unit_test_setup_teardown(a_host_that_gives_up_before_the_answer_is_forgotten, set_up, tear_down),
		running(other_connections_of_the_guest_are_refused),
		cmocka_unit_test(connections_wait_until_the_guest_is_up),
		cmocka_unit_test(control_messages_keep_their_bounds),
		cmocka_unit_test(messages_that_the_host_does_not_read_wait_whole),
		cmocka_unit_test(a_message_that_is_too_long_resets_its_connection),
		running(two_hundred_connections_at_once),
		running(what_many_slow_hosts_have_it_keep_is_bounded),
		running(there_is_an_end_to_connections_and_dead_ones_make_room),
		running(one_busy_connection_does_not_starve_the_others),
		running(a_flood_of_nonsense_is_taken_only_as_fast_as_answers_go),
		running(broken_packets_end_only_their_own_connection),
		running(a_broken_queue_closes_all_and_a_reset_mends_it),
		running(a_restored_guest_is_told_and_new_connections_work),
		running(a_guest_without_event_buffers_is_told_when_it_gives_one),
		running(damaged_state_is_refused),
		running(nothing_moves_while_it_is_paused),
		running(the_guest_reads_its_cid),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
