/* Connections of virtio sockets, one by one. */
#include "vsock_host.h"
#include "base/cleanup.h"
#include "base/random.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { MIB = 1 << 20 };

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

static void the_guest_reads_its_cid(void **state)
{
	struct vsock_guest *g = *state;
	assert_int_equal(driver_get(&g->d, 0x100), VSOCK_GUEST);
	assert_int_equal(driver_get(&g->d, 0x104), 0);
	assert_int_equal(driver_offered(&g->d) & 3, 3);
}

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
		running(the_guest_reads_its_cid),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
