#include "interp/probe.h"

#include "base/fd.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

static int ask(int fd, uint16_t port)
{
	static const char request[] = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		return -errno;
	return fd_write_all(fd, request, sizeof(request) - 1);
}

/* As much as fits of what it says, to the end of its answer. */
static ssize_t hear(int fd, char *to, size_t size)
{
	size_t n = 0;
	while (n < size) {
		ssize_t got = read(fd, to + n, size - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		n += (size_t)got;
	}
	return (ssize_t)n;
}

int probe_health(uint16_t port, unsigned seconds, struct error *err)
{
	static const struct str good = STR("HTTP/1.1 200 ");
	char text[1024];
	const struct timeval patience = {.tv_sec = (time_t)seconds};
	cleanup_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_errno(err, -errno, "socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	int r = ask(fd, port);
	ssize_t n = r < 0 ? r : hear(fd, text, sizeof(text));
	if (n < 0)
		return error_errno(err, (int)n, "port %u", port);
	struct str answer = str_n(text, (size_t)n), head, body;
	if (str_starts(answer, good))
		return 0;
	if (!str_cut(answer, '\r', &head, &body))
		head = answer;
	return error_set(err, -EAGAIN, 503, "port %u answered '%.*s'", port, (int)(head.n < 200 ? head.n : 200), head.p);
}
