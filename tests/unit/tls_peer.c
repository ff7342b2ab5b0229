#include "unit.h"

#include "tls_peer.h"

#include "base/cleanup.h"
#include "io/x509.h"

#include <openssl/err.h>
#include <sys/socket.h>

void pair_for(const char *name, struct buf *to, struct buf *ret_ca)
{
	struct error err = {0};
	cleanup_key EVP_PKEY *ca_key = x509_make_key(&err), *key = x509_make_key(&err);
	cleanup_x509 X509 *ca = x509_make_ca(name, ca_key, 100, &err);
	cleanup_x509 X509 *leaf = x509_make_leaf(name, key, ca, ca_key, 10, &err);
	cleanup_buf struct buf key_pem = BUF_INIT, chain = BUF_INIT;
	assert_non_null(leaf);
	x509_write_key(key, &key_pem);
	x509_write(leaf, &chain);
	assert_int_equal(tls_pair(to, buf_str(&chain), buf_str(&key_pem), &err), 0);
	if (ret_ca)
		x509_write(ca, ret_ca);
}

struct tls_server *server_for(const char *name)
{
	cleanup_buf struct buf pairs = BUF_INIT;
	struct tls_server *s = NULL;
	struct error err = {0};
	pair_for(name, &pairs, NULL);
	assert_int_equal(tls_server_new(buf_str(&pairs), &s, &err), 0);
	return s;
}

void peer_init(struct peer *p, int fd)
{
	*p = (struct peer){.fd = fd, .ctx = SSL_CTX_new(TLS_client_method())};
	p->ssl = SSL_new(p->ctx);
	assert_non_null(p->ssl);
	SSL_set_bio(p->ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
	BIO_set_mem_eof_return(SSL_get_rbio(p->ssl), -1);
	SSL_set_connect_state(p->ssl);
}

void peer_done(struct peer *p)
{
	SSL_free(p->ssl);
	SSL_CTX_free(p->ctx);
	if (p->fd >= 0)
		close(p->fd);
}

size_t peer_unsent(const struct peer *p)
{
	return BIO_ctrl_pending(SSL_get_wbio(p->ssl));
}

static void send_some(struct peer *p)
{
	BIO *out = SSL_get_wbio(p->ssl);
	char *bytes;
	size_t n = (size_t)BIO_get_mem_data(out, &bytes);
	ssize_t r = n ? send(p->fd, bytes, p->step ? MIN(n, p->step) : n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
	char away[4096];
	for (size_t left = r > 0 ? (size_t)r : 0; left;)
		left -= (size_t)BIO_read(out, away, (int)MIN(left, sizeof(away)));
}

static void receive_some(struct peer *p)
{
	static char bytes[65536];
	ssize_t r = recv(p->fd, bytes, p->step ? MIN(p->step, sizeof(bytes)) : sizeof(bytes), MSG_DONTWAIT);
	if (r > 0)
		assert_int_equal(BIO_write(SSL_get_rbio(p->ssl), bytes, (int)r), r);
	if (r == 0 || (r < 0 && errno != EAGAIN)) {
		p->eof = true;
		BIO_set_mem_eof_return(SSL_get_rbio(p->ssl), 0);
	}
}

void peer_move(struct peer *p)
{
	send_some(p);
	receive_some(p);
}

int peer_shake(struct peer *p)
{
	ERR_clear_error();
	int r = SSL_do_handshake(p->ssl), why = SSL_get_error(p->ssl, r);
	p->reason = ERR_GET_REASON(ERR_peek_last_error());
	peer_move(p);
	if (r == 1)
		return peer_unsent(p) ? 0 : 1;
	return why == SSL_ERROR_WANT_READ ? 0 : -1;
}

void peer_write(struct peer *p, const void *bytes, size_t n)
{
	size_t k;
	for (size_t done = 0; done < n; done += k)
		assert_int_equal(SSL_write_ex(p->ssl, (const char *)bytes + done, n - done, &k), 1);
	send_some(p);
}

int peer_read(struct peer *p, struct buf *to)
{
	static char bytes[16384];
	size_t k;
	peer_move(p);
	ERR_clear_error();
	while (SSL_read_ex(p->ssl, bytes, sizeof(bytes), &k))
		buf_add(to, bytes, k);
	int why = SSL_get_error(p->ssl, 0);
	return why == SSL_ERROR_WANT_READ ? 1 : why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}
