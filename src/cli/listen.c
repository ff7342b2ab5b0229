#include "cli/listen.h"
#include "base/cleanup.h"
#include "base/str.h"

#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { BACKLOG = 4096, IN_USE_PATIENCE_MS = 3000 };

/* Splits "host:port" at the last colon, without the brackets of an IPv6 host. */
static int split(const char *address, char *host, size_t host_size, const char **ret_port)
{
	const char *colon = strrchr(address, ':');
	if (!colon || !colon[1])
		return -EINVAL;
	struct str h = str_n(address, (size_t)(colon - address));
	if (h.n >= 2 && h.p[0] == '[' && h.p[h.n - 1] == ']')
		h = str_n(h.p + 1, h.n - 2);
	if (h.n >= host_size)
		return -EINVAL;
	memcpy(host, h.p, h.n);
	host[h.n] = '\0';
	*ret_port = colon + 1;
	return 0;
}

static int bind_and_listen(const struct addrinfo *a)
{
	cleanup_fd int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int one = 1;
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
		return -errno;
	return steal_fd(&fd);
}

int listen_tcp(const char *option, const char *address, struct error *err)
{
	char host[256];
	const char *port;
	if (split(address, host, sizeof(host), &port) < 0)
		return error_set(err, -EINVAL, 500, "%s: '%s' is not address:port", option, address);
	struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *list = NULL;
	int r = getaddrinfo(*host ? host : NULL, port, &hints, &list);
	if (r != 0)
		return error_set(err, -EINVAL, 500, "%s: '%s': %s", option, address, gai_strerror(r));
	int fd = bind_and_listen(list);
	for (int waited = 0; fd == -EADDRINUSE && waited < IN_USE_PATIENCE_MS; waited += 50) {
		usleep(50000);
		fd = bind_and_listen(list);
	}
	freeaddrinfo(list);
	return fd < 0 ? error_errno(err, fd, "%s %s", option, address) : fd;
}

int listen_unix(const char *path, mode_t mode, struct error *err)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(a.sun_path))
		return error_set(err, -ENAMETOOLONG, 500, "%s: longer than %zu bytes (choose a shorter state.dir)", path, sizeof(a.sun_path) - 1);
	memcpy(a.sun_path, path, strlen(path) + 1);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	unlink(path);
	mode_t before = umask(0777 & ~mode);
	int r = fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || chmod(path, mode) < 0 || listen(fd, BACKLOG) < 0 ? -errno : 0;
	umask(before);
	return r < 0 ? error_errno(err, r, "%s", path) : steal_fd(&fd);
}

void notify_systemd(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	if (!path || !*path || strlen(path) >= sizeof(a.sun_path))
		return;
	memcpy(a.sun_path, path, strlen(path));
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	if (a.sun_path[0] == '@')
		a.sun_path[0] = '\0';
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, length);
}
