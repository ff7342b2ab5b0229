#include "io/inner_port.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

static socklen_t address_of(unsigned address, uint32_t link_address, uint16_t port, struct sockaddr_storage *ret)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	if (address == 1) {
		memcpy(ret, &v6, sizeof(v6));
		return sizeof(v6);
	}
	v4.sin_addr.s_addr = htonl(address == 0 ? INADDR_LOOPBACK : link_address);
	memcpy(ret, &v4, sizeof(v4));
	return sizeof(v4);
}

/* A connect to a port of the ephemeral range that nobody listens on may be given that port as its own, and then meets itself. */
static bool met_itself(int fd)
{
	struct sockaddr_storage own = {0}, peer = {0};
	socklen_t own_n = sizeof(own), peer_n = sizeof(peer);
	return getsockname(fd, (struct sockaddr *)&own, &own_n) == 0 && getpeername(fd, (struct sockaddr *)&peer, &peer_n) == 0 && own_n == peer_n &&
		memcmp(&own, &peer, own_n) == 0;
}

int inner_port_state(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	if (poll(&p, 1, 0) <= 0)
		return 0;
	int error = 0;
	socklen_t n = sizeof(error);
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
		return -errno;
	if (error)
		return -error;
	return met_itself(fd) ? -ECONNREFUSED : 1;
}

int inner_port_begin(unsigned address, uint32_t link_address, uint16_t port, int *ret_fd)
{
	struct sockaddr_storage at = {0};
	socklen_t n = address_of(address, link_address, port, &at);
	*ret_fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*ret_fd < 0)
		return -errno;
	if (connect(*ret_fd, (struct sockaddr *)&at, n) < 0 && errno != EINPROGRESS)
		return -errno;
	return inner_port_state(*ret_fd);
}
