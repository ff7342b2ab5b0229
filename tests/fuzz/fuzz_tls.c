/*
 * What a peer may send to a TLS port: the input's bytes arrive in pieces at a connection's transport, which is read, asked and written to as the HTTP server does it. The first
 * byte chooses the size of the pieces and what is done besides. Nothing may wait, spin or grow, and after an end there is no more.
 */
#include "fuzz.h"

#include "base/fd.h"
#include "io/tls.h"
#include "io/x509.h"

#include <sys/socket.h>

static struct tls_server *server;

static void make_server(void)
{
	cleanup_buf struct buf chain = BUF_INIT, key_pem = BUF_INIT, pairs = BUF_INIT;
	cleanup_key EVP_PKEY *key = x509_make_key(NULL);
	cleanup_x509 X509 *x = key ? x509_make_ca("fuzz.test", key, 100, NULL) : NULL;
	hold(x && x509_write(x, &chain) == 0 && x509_write_key(key, &key_pem) == 0);
	hold(tls_pair(&pairs, buf_str(&chain), buf_str(&key_pem), NULL) == 0);
	hold(tls_server_new(buf_str(&pairs), &server, NULL) == 0);
}

/* Reads as long as there is something: false when the peer is done with. */
static bool read_all(struct transport *t)
{
	char p[3000];
	for (int i = 0; i < 1000; i++) {
		ssize_t r = t->ops->read(t, p, sizeof(p));
		hold(r <= (ssize_t)sizeof(p));
		hold(t->ops->queued(t) <= TRANSPORT_MAX_QUEUED);
		if (r == -EAGAIN && !t->ops->pending(t))
			return true;
		if (r <= 0) {
			/* Final: the same again. */
			hold(r != -EAGAIN && t->ops->read(t, p, sizeof(p)) == r);
			return false;
		}
	}
	hold(false);
	return false;
}

/* Names of certificates and of `cert make` come from files and options: never a crash, whatever they hold. */
static void read_names(struct str input)
{
	cleanup_buf struct buf pairs = BUF_INIT;
	struct tls_server *s = NULL;
	x509_domain_valid(input);
	tls_pair(&pairs, input, input, NULL);
	if (tls_server_new(input, &s, NULL) == 0)
		tls_server_unref(s);
}

void fuzz_one(struct str input)
{
	int fds[2];
	if (!server)
		make_server();
	if (input.n == 0)
		return;
	unsigned mode = (unsigned char)input.p[0];
	input = str_from(input, 1);
	if (mode & 32)
		read_names(input);
	hold(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
	struct transport *t = tls_accept(fds[1], &server);
	hold(t && !t->ops->ready(t));
	size_t piece = mode & 1 ? 1 : mode & 2 ? 7 : mode & 4 ? 100 : input.n;
	bool open = true;
	while (input.n && open) {
		size_t n = MIN(piece, input.n);
		if (send(fds[0], input.p, n, MSG_NOSIGNAL) != (ssize_t)n)
			break;
		input = str_from(input, n);
		if (mode & 8)
			t->ops->at_end(t);
		open = read_all(t);
	}
	if (mode & 16 && open) {
		shutdown(fds[0], SHUT_WR);
		hold(!read_all(t));
	}
	/* Without the other's key no input completes a handshake. */
	hold(!t->ops->ready(t));
	t->ops->end(t);
	hold(t->ops->queued(t) <= TRANSPORT_MAX_QUEUED);
	t->ops->free(t);
	close(fds[0]);
	close(fds[1]);
}
