#include "io/tls_server.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "io/x509.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <stdint.h>

enum { TICKET_KEYS = 80 };
#define TICKET_KEY_LIFE (12 * 3600 * NS_PER_S)
#define TICKET_LIFE_S (2 * 3600)

/* Forward secrecy and authenticated encryption: what every client of the last ten years has. */
static const char ciphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL";
static const char groups[] = "X25519:P-256:P-384";

static int bad(struct error *err, const char *what)
{
	return error_set(err, -EINVAL, 400, "%s: %s", what, x509_openssl_reason());
}

int tls_pair(struct buf *to, struct str chain, struct str key, struct error *err)
{
	ERR_clear_error();
	if (chain.n > X509_PEM_MAX || key.n > X509_PEM_MAX)
		return error_set(err, -EINVAL, 400, "more than %d bytes", X509_PEM_MAX);
	cleanup_key EVP_PKEY *k = x509_read_key(key);
	if (!k)
		return error_set(err, -EINVAL, 400, "there is no readable private key without a passphrase (%s)", x509_openssl_reason());
	int r = x509_write_key(k, to);
	BIO *b = BIO_new_mem_buf(chain.p, (int)chain.n);
	int n = 0;
	for (X509 *x; r == 0 && b && n <= TLS_MAX_CHAIN && (x = PEM_read_bio_X509(b, NULL, NULL, NULL)); n++) {
		r = x509_write(x, to);
		X509_free(x);
	}
	BIO_free(b);
	if (r < 0 || !b)
		return error_errno(err, -ENOMEM, "certificate");
	if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE && n <= TLS_MAX_CHAIN)
		return bad(err, "a certificate is broken");
	ERR_clear_error();
	if (n == 0)
		return error_set(err, -EINVAL, 400, "there is no certificate");
	return n > TLS_MAX_CHAIN ? error_set(err, -EINVAL, 400, "more than %d certificates in a chain", TLS_MAX_CHAIN) : 0;
}

/* One PEM block: a key begins a pair, certificates follow. */
static int take_block(struct tls_server *s, const char *name, const unsigned char *data, long n, struct error *err)
{
	struct tls_pair *p = s->n_pairs ? &s->pairs[s->n_pairs - 1] : NULL;
	if (strcmp(name, PEM_STRING_PKCS8INF) == 0) {
		if (s->n_pairs == TLS_MAX_PAIRS)
			return error_set(err, -EINVAL, 400, "more than %d certificates", TLS_MAX_PAIRS);
		EVP_PKEY *key = d2i_AutoPrivateKey(NULL, &data, n);
		if (!key)
			return bad(err, "a private key is broken");
		s->pairs[s->n_pairs++].key = key;
		return 0;
	}
	if (strcmp(name, PEM_STRING_X509) != 0 || !p)
		return error_set(err, -EINVAL, 400, "'%.40s' where a private key or a certificate is expected", name);
	cleanup_x509 X509 *x = d2i_X509(NULL, &data, n);
	if (!x)
		return bad(err, "a certificate is broken");
	if (!p->leaf) {
		p->leaf = steal_pointer(&x);
	} else if (sk_X509_num(p->issuers) >= TLS_MAX_CHAIN) {
		return error_set(err, -EINVAL, 400, "more than %d certificates in a chain", TLS_MAX_CHAIN);
	} else if (!p->issuers && !(p->issuers = sk_X509_new_null())) {
		return error_errno(err, -ENOMEM, "certificate");
	} else if (!sk_X509_push(p->issuers, x)) {
		return error_errno(err, -ENOMEM, "certificate");
	} else {
		x = NULL;
	}
	return 0;
}

static int read_pairs(struct tls_server *s, struct str pem, struct error *err)
{
	char *name = NULL, *header = NULL;
	unsigned char *data = NULL;
	long n = 0;
	int r = 0;
	if (pem.n > TLS_MAX_PEM)
		return error_set(err, -EINVAL, 400, "certificates and keys of more than %d bytes", TLS_MAX_PEM);
	BIO *b = BIO_new_mem_buf(pem.p, (int)pem.n);
	if (!b)
		return error_errno(err, -ENOMEM, "certificates");
	while (r == 0 && PEM_read_bio(b, &name, &header, &data, &n)) {
		r = take_block(s, name, data, n, err);
		OPENSSL_cleanse(data, (size_t)n);
		OPENSSL_free(name);
		OPENSSL_free(header);
		OPENSSL_free(data);
	}
	BIO_free(b);
	if (r == 0 && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
		r = bad(err, "the certificates are broken");
	ERR_clear_error();
	return r;
}

/* What OpenSSL would find out with the first client: that the two belong together, and that the strength is enough for it. */
static int check_pair(struct tls_server *s, const struct tls_pair *p, struct error *err)
{
	cleanup_buf struct buf names = BUF_INIT;
	if (!p->leaf)
		return error_set(err, -EINVAL, 400, "there is no certificate for a private key");
	x509_names(p->leaf, &names);
	if (!buf_len(&names))
		buf_add_c(&names, "without names");
	if (X509_check_private_key(p->leaf, p->key) != 1) {
		ERR_clear_error();
		return error_set(err, -EINVAL, 400, "the private key does not belong to the certificate (%s)", buf_cstr(&names));
	}
	if (SSL_CTX_use_cert_and_key(s->ctx, p->leaf, p->key, p->issuers, 1) != 1)
		return error_set(err, -EINVAL, 400, "the certificate (%s) cannot be used: %s", buf_cstr(&names), x509_openssl_reason());
	return 0;
}

/* The pair for the name that the client asks for. */
static int on_certificate(SSL *ssl, void *arg)
{
	struct tls_server *s = arg;
	char host[256];
	const char *asked = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
	struct str name = str_of(asked);
	while (name.n && name.p[name.n - 1] == '.')
		name.n--;
	if (!name.n || name.n >= sizeof(host))
		return 1;
	memcpy(host, name.p, name.n);
	host[name.n] = '\0';
	for (size_t i = 0; i < s->n_pairs; i++) {
		const struct tls_pair *p = &s->pairs[i];
		if (x509_covers(p->leaf, host))
			return i == 0 || SSL_use_cert_and_key(ssl, p->leaf, p->key, p->issuers, 1) == 1;
	}
	return 1;
}

static int on_alpn(SSL *ssl, const unsigned char **ret, unsigned char *ret_n, const unsigned char *offered, unsigned n, void *arg)
{
	static const unsigned char spoken[] = "\x08http/1.1\x08http/1.0";
	unsigned char *chosen;
	if (SSL_select_next_proto(&chosen, ret_n, spoken, sizeof(spoken) - 1, offered, n) != OPENSSL_NPN_NEGOTIATED)
		return SSL_TLSEXT_ERR_ALERT_FATAL;
	*ret = chosen;
	return SSL_TLSEXT_ERR_OK;
}

/* Older tickets are then of no use, and their clients do a whole handshake. */
static bool renew_ticket_key(struct tls_server *s)
{
	unsigned char keys[TICKET_KEYS];
	s->ticket_key_since = clock_boottime();
	bool ok = SSL_CTX_get_tlsext_ticket_keys(s->ctx, NULL, 0) == TICKET_KEYS && RAND_bytes(keys, sizeof(keys)) == 1 &&
		SSL_CTX_set_tlsext_ticket_keys(s->ctx, keys, sizeof(keys)) == 1;
	OPENSSL_cleanse(keys, sizeof(keys));
	return ok;
}

static bool set_up(struct tls_server *s)
{
	s->ctx = SSL_CTX_new(TLS_server_method());
	if (!s->ctx)
		return false;
	SSL_CTX_set_options(s->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
	/* Chains are sent as they are given: to look for more of them would cost every handshake. */
	SSL_CTX_set_mode(s->ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_NO_AUTO_CHAIN);
	SSL_CTX_set_session_cache_mode(s->ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_timeout(s->ctx, TICKET_LIFE_S);
	SSL_CTX_set_num_tickets(s->ctx, 1);
	SSL_CTX_set_alpn_select_cb(s->ctx, on_alpn, NULL);
	SSL_CTX_set_cert_cb(s->ctx, on_certificate, s);
	return SSL_CTX_set_min_proto_version(s->ctx, TLS1_2_VERSION) && SSL_CTX_set_cipher_list(s->ctx, ciphers) &&
		SSL_CTX_set1_groups_list(s->ctx, groups) && renew_ticket_key(s);
}

int tls_server_new(struct str pem, struct tls_server **ret, struct error *err)
{
	/* The machine's openssl.cnf is for other programs. */
	OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
	ERR_clear_error();
	struct tls_server *s = calloc(1, sizeof(*s));
	if (!s)
		return error_errno(err, -ENOMEM, "TLS");
	s->refs = 1;
	s->received = malloc(TLS_RECEIVE);
	s->gathered = malloc(TLS_SEND);
	int r = 0;
	if (!s->received || !s->gathered)
		r = error_errno(err, -ENOMEM, "TLS");
	else if (!set_up(s))
		r = error_set(err, -EIO, 500, "TLS: %s", x509_openssl_reason());
	if (r == 0)
		r = read_pairs(s, pem, err);
	if (r == 0 && s->n_pairs == 0)
		r = error_set(err, -EINVAL, 400, "there is no certificate");
	/* The first one last: it stays the context's own. */
	for (size_t i = s->n_pairs; r == 0 && i-- > 0;)
		r = check_pair(s, &s->pairs[i], err);
	if (r < 0) {
		tls_server_unref(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct tls_server *tls_server_ref(struct tls_server *s)
{
	s->refs++;
	return s;
}

void tls_server_unref(struct tls_server *s)
{
	if (!s || --s->refs)
		return;
	for (size_t i = 0; i < s->n_pairs; i++) {
		EVP_PKEY_free(s->pairs[i].key);
		X509_free(s->pairs[i].leaf);
		sk_X509_pop_free(s->pairs[i].issuers, X509_free);
	}
	SSL_CTX_free(s->ctx);
	free(s->received);
	free(s->gathered);
	free(s);
}

size_t tls_server_pairs(const struct tls_server *s)
{
	return s->n_pairs;
}

int64_t tls_server_expires(const struct tls_server *s)
{
	int64_t first = INT64_MAX;
	for (size_t i = 0; i < s->n_pairs; i++)
		first = MIN(first, x509_not_after(s->pairs[i].leaf));
	return first;
}

int tls_server_names(const struct tls_server *s, size_t pair, struct buf *to)
{
	return x509_names(s->pairs[pair].leaf, to);
}

char *tls_server_fingerprint(const struct tls_server *s, size_t pair, char to[65])
{
	return x509_fingerprint(s->pairs[pair].leaf, to);
}

SSL *tls_server_ssl(struct tls_server *s)
{
	if (clock_boottime() - s->ticket_key_since > TICKET_KEY_LIFE)
		renew_ticket_key(s);
	SSL *ssl = SSL_new(s->ctx);
	if (ssl)
		SSL_set_accept_state(ssl);
	return ssl;
}
