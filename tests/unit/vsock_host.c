#include "vsock_host.h"
#include "base/cleanup.h"

#include <sys/socket.h>

struct vsock_guest guest;
int ups;

void on_up(void *arg)
{
	ups++;
	assert_ptr_equal(arg, &guest);
}

int set_up(void **state)
{
	vsock_guest_init(&guest, -1, NULL, NULL);
	*state = &guest;
	return 0;
}

int set_up_running(void **state)
{
	set_up(state);
	vsock_guest_start(&guest);
	assert_true(vsock_guest_up(&guest)->open);
	return 0;
}

int tear_down(void **state)
{
	vsock_guest_done(*state);
	return 0;
}

int connect_host(struct vsock_guest *g, uint32_t port)
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(vsock_connect(g->device, pair[1], port), 0);
	return pair[0];
}

struct guest_conn *latest(struct vsock_guest *g)
{
	return g->conn[g->n - 1];
}

struct guest_conn *opened(struct vsock_guest *g, unsigned before)
{
	vsock_guest_until(g, g->n > before && latest(g)->open);
	return latest(g);
}

void read_host(struct vsock_guest *g, int fd, struct buf *to, size_t n)
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

void expect_end(struct vsock_guest *g, int fd)
{
	cleanup_buf struct buf rest = BUF_INIT;
	read_host(g, fd, &rest, SIZE_MAX);
	assert_int_equal(buf_len(&rest), 0);
}

void expect_text(struct vsock_guest *g, int fd, const char *text)
{
	cleanup_buf struct buf got = BUF_INIT;
	read_host(g, fd, &got, strlen(text));
	assert_str(buf_str(&got), text);
}

void write_host(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}
