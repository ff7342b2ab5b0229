#include "forward/connection.h"
#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/un.h>

enum { READ_SIZE = 32 * 1024, READS_PER_EVENT = 4 };

/* Where to */

static int resolve(struct destination *d, const char *host, const char *port, struct error *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
	int r = getaddrinfo(host, port, &hints, &list);
	if (r != 0)
		return error_set(err, -ENOENT, 503, "the server's name cannot be resolved: %s", gai_strerror(r));
	memcpy(&d->address, list->ai_addr, list->ai_addrlen);
	d->size = list->ai_addrlen;
	freeaddrinfo(list);
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&d->address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&d->address;
	d->loopback = d->address.ss_family == AF_INET ? (ntohl(v4->sin_addr.s_addr) >> 24) == 127 : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
	return 0;
}

static int make_context(struct destination *d, const char *ca, struct error *err)
{
	d->ctx = SSL_CTX_new(TLS_client_method());
	if (!d->ctx)
		return error_errno(err, -ENOMEM, "TLS");
	SSL_CTX_set_min_proto_version(d->ctx, TLS1_2_VERSION);
	SSL_CTX_set_mode(d->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_verify(d->ctx, SSL_VERIFY_PEER, NULL);
	int ok = ca ? SSL_CTX_load_verify_file(d->ctx, ca) : SSL_CTX_set_default_verify_paths(d->ctx);
	ERR_clear_error();
	return ok ? 0 : error_set(err, -EINVAL, 500, "the certificates of authorities cannot be read%s%s", ca ? ": " : "", ca ? ca : "");
}

int destination_init(struct destination *d, const char *url, const char *socket, const char *ca, struct error *err)
{
	*d = (struct destination){.loopback = true};
	if (socket) {
		struct sockaddr_un *un = (struct sockaddr_un *)&d->address;
		if (strlen(socket) >= sizeof(un->sun_path))
			return error_set(err, -EINVAL, 400, "the path of the server's socket is too long");
		un->sun_family = AF_UNIX;
		strcpy(un->sun_path, socket);
		d->size = sizeof(*un);
		snprintf(d->authority, sizeof(d->authority), "localhost");
		return 0;
	}
	bool tls = !strncasecmp(url, "https://", 8);
	if (!tls && strncasecmp(url, "http://", 7) != 0)
		return error_set(err, -EINVAL, 400, "the server's address must begin with http:// or https://");
	struct str authority = str_of(url + (tls ? 8 : 7)), host = authority, port = str_n("", 0), rest;
	str_cut(authority, '/', &authority, &rest);
	host = authority;
	ptrdiff_t bracket = authority.n && authority.p[0] == '[' ? str_chr(authority, ']') : -1;
	if (bracket > 0) {
		host = str_n(authority.p + 1, (size_t)bracket - 1);
		port = str_from(authority, (size_t)bracket + 1);
		port = port.n && port.p[0] == ':' ? str_from(port, 1) : port;
	} else {
		str_cut(authority, ':', &host, &port);
	}
	if (!host.n || host.n >= sizeof(d->host) || authority.n >= sizeof(d->authority) || str_chr(authority, '@') >= 0)
		return error_set(err, -EINVAL, 400, "the server's address has no host that can be used");
	char service[12];
	uint64_t number = tls ? 443 : 80;
	if (port.n && (str_to_u64(port, &number) < 0 || !number || number > 65535))
		return error_set(err, -EINVAL, 400, "the server's address has no valid port");
	snprintf(service, sizeof(service), "%u", (unsigned)number);
	snprintf(d->host, sizeof(d->host), "%.*s", STR_FMT(host));
	snprintf(d->authority, sizeof(d->authority), "%.*s", STR_FMT(authority));
	int r = resolve(d, d->host, service, err);
	return r == 0 && tls ? make_context(d, ca, err) : r;
}

void destination_done(struct destination *d)
{
	SSL_CTX_free(d->ctx);
	d->ctx = NULL;
}

/* Connections */

enum state { CONNECTING, HANDSHAKE, OPEN, ENDED };

struct connection {
	struct loop_fd *w;
	const struct connection_ops *ops;
	void *arg;
	SSL *ssl;
	int fd;
	enum state state;
	struct buf in, out;
	bool reading, throttled, shut_wanted, shut, want_write, freed, busy;
	bool over, told; /* the peer has ended; its owner knows */
	int why;
};

static void set_interest(struct connection *c)
{
	uint32_t events = 0;
	if (c->state == ENDED)
		events = 0;
	else if (c->state == CONNECTING)
		events = EPOLLOUT;
	else {
		if ((c->reading && !c->over) || c->state == HANDSHAKE)
			events |= EPOLLIN;
		if (c->want_write || (c->state == OPEN && buf_len(&c->out)))
			events |= EPOLLOUT;
	}
	loop_fd_set(c->w, events);
}

static void destroy(struct connection *c)
{
	loop_fd_del(c->w);
	SSL_free(c->ssl);
	if (c->fd >= 0)
		close(c->fd);
	buf_done(&c->in);
	buf_done(&c->out);
	free(c);
}

void connection_free(struct connection *c)
{
	if (!c)
		return;
	c->freed = true;
	if (!c->busy)
		destroy(c);
}

static void end(struct connection *c, int why)
{
	if (c->state == ENDED)
		return;
	c->state = ENDED;
	set_interest(c);
	c->ops->ended(c, why, c->arg);
}

/* What an SSL call that did not succeed means: -EAGAIN, 0 (a regular end), or -errno. */
static int ssl_result(struct connection *c, int returned)
{
	int why = SSL_get_error(c->ssl, returned), saved = errno;
	if (why == SSL_ERROR_WANT_WRITE)
		c->want_write = true;
	if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
		return -EAGAIN;
	ERR_clear_error();
	if (why == SSL_ERROR_ZERO_RETURN)
		return 0;
	return why == SSL_ERROR_SYSCALL && saved ? -saved : -EPROTO;
}

/* Bytes (> 0), 0 at a regular end, or -errno. */
static ssize_t read_some(struct connection *c, char *to, size_t n)
{
	size_t got;
	if (!c->ssl) {
		ssize_t r = recv(c->fd, to, n, MSG_DONTWAIT);
		return r < 0 ? -errno : r;
	}
	ERR_clear_error();
	errno = 0;
	if (SSL_read_ex(c->ssl, to, n, &got))
		return (ssize_t)got;
	int r = ssl_result(c, 0);
	/* An end that was not announced may be a cut. */
	return r == -EPROTO ? -ECONNRESET : r;
}

static ssize_t write_some(struct connection *c, struct str s)
{
	size_t done;
	if (!c->ssl) {
		ssize_t r = send(c->fd, s.p, s.n, MSG_DONTWAIT | MSG_NOSIGNAL);
		return r < 0 ? -errno : r;
	}
	ERR_clear_error();
	errno = 0;
	if (SSL_write_ex(c->ssl, s.p, s.n, &done))
		return (ssize_t)done;
	int r = ssl_result(c, 0);
	return r == 0 ? -EPIPE : r;
}

/* Sends what it can. False: the connection has ended. */
static bool flush(struct connection *c)
{
	c->want_write = false;
	while (c->state == OPEN && buf_len(&c->out)) {
		ssize_t n = write_some(c, buf_str(&c->out));
		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			break;
		if (n < 0) {
			/* What it had said before can still be read. */
			buf_clear(&c->out);
			c->shut = true;
			break;
		}
		buf_consume(&c->out, (size_t)n);
	}
	if (c->state == OPEN && c->shut_wanted && !c->shut && !buf_len(&c->out)) {
		c->shut = true;
		if (c->ssl)
			SSL_shutdown(c->ssl);
		else
			shutdown(c->fd, SHUT_WR);
		ERR_clear_error();
	}
	return c->state == OPEN;
}

static void take_bytes(struct connection *c)
{
	int why = 1;
	bool some = false;
	for (int i = 0; i < READS_PER_EVENT && why > 0; i++) {
		char *to = buf_reserve(&c->in, READ_SIZE);
		ssize_t n = to ? read_some(c, to, READ_SIZE) : -ENOMEM;
		if (n == -EINTR)
			continue;
		if (n > 0) {
			buf_commit(&c->in, (size_t)n);
			some = true;
		} else {
			why = (int)n;
			break;
		}
	}
	if (some)
		c->ops->readable(c, c->arg);
	if (why <= 0 && why != -EAGAIN) {
		c->over = true;
		c->why = why;
	}
}

/* Once what came before it is taken. After a regular end the other direction goes on. */
static void tell_end(struct connection *c)
{
	c->told = true;
	c->reading = false;
	if (c->why < 0)
		end(c, c->why);
	else
		c->ops->ended(c, 0, c->arg);
}

static void step_handshake(struct connection *c)
{
	c->want_write = false;
	ERR_clear_error();
	errno = 0;
	int ok = SSL_connect(c->ssl);
	if (ok == 1) {
		c->state = OPEN;
		return;
	}
	int r = ssl_result(c, ok);
	if (r != -EAGAIN)
		end(c, r == 0 ? -ECONNRESET : r);
}

static void step_connecting(struct connection *c)
{
	int error = 0;
	socklen_t size = sizeof(error);
	getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	if (error) {
		end(c, -error);
		return;
	}
	c->state = c->ssl ? HANDSHAKE : OPEN;
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct connection *c = arg;
	c->busy = true;
	if (c->state == CONNECTING)
		step_connecting(c);
	if (c->state == HANDSHAKE)
		step_handshake(c);
	if (c->state == OPEN && flush(c) && c->throttled && buf_len(&c->out) < CONNECTION_LOW) {
		c->throttled = false;
		c->ops->drained(c, c->arg);
	}
	if (c->state == OPEN && !c->freed && c->reading && !c->over && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		take_bytes(c);
	/* TLS may hold more than the socket tells of. */
	while (c->state == OPEN && !c->freed && c->reading && !c->over && c->ssl && SSL_pending(c->ssl))
		take_bytes(c);
	if (c->state == OPEN && !c->freed && c->reading && c->over)
		tell_end(c);
	c->busy = false;
	if (c->freed)
		destroy(c);
	else
		set_interest(c);
}

struct connection *connection_new(struct loop *l, const struct destination *d, const struct connection_ops *ops, void *arg)
{
	struct connection *c = calloc(1, sizeof(*c));
	const int one = 1, idle = 60;
	if (!c)
		return NULL;
	*c = (struct connection){.ops = ops, .arg = arg, .reading = true, .fd = socket(d->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
	if (c->fd < 0)
		goto failed;
	if (d->ctx) {
		c->ssl = SSL_new(d->ctx);
		if (!c->ssl || !SSL_set_fd(c->ssl, c->fd))
			goto failed;
		/* An address has its own place in a certificate, and none in SNI. */
		X509_VERIFY_PARAM *param = SSL_get0_param(c->ssl);
		if (X509_VERIFY_PARAM_set1_ip_asc(param, d->host) != 1 && (!SSL_set1_host(c->ssl, d->host) || !SSL_set_tlsext_host_name(c->ssl, d->host)))
			goto failed;
	}
	if (d->address.ss_family != AF_UNIX) {
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
		setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	}
	/* A refusal at once shows at the first event, too. */
	if (connect(c->fd, (const struct sockaddr *)&d->address, d->size) < 0 && errno != EINPROGRESS && errno != EAGAIN && errno != ECONNREFUSED)
		goto failed;
	c->w = loop_fd_add(l, c->fd, EPOLLOUT, on_event, c);
	if (c->w)
		return c;
failed:
	ERR_clear_error();
	destroy(c);
	return NULL;
}

struct buf *connection_in(struct connection *c)
{
	return &c->in;
}

void connection_set_reading(struct connection *c, bool on)
{
	if (c->reading == on || c->told)
		return;
	c->reading = on;
	/* What TLS holds already, and an end, is told at the next event: a writable socket is one. */
	if (on && (c->over || (c->ssl && SSL_pending(c->ssl))))
		c->want_write = true;
	if (!c->busy)
		set_interest(c);
}

size_t connection_send(struct connection *c, struct str bytes)
{
	if (c->state == ENDED || c->shut || buf_add_str(&c->out, bytes) < 0)
		return 0;
	if (c->state == OPEN && !c->busy)
		flush(c);
	if (buf_len(&c->out) > CONNECTION_HIGH)
		c->throttled = true;
	if (!c->busy)
		set_interest(c);
	return buf_len(&c->out);
}

size_t connection_queued(const struct connection *c)
{
	return buf_len(&c->out);
}

void connection_shutdown(struct connection *c)
{
	c->shut_wanted = true;
	if (c->state == OPEN && !c->busy) {
		flush(c);
		set_interest(c);
	}
}
