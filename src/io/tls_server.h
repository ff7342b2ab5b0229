/* What tls_server.c (certificates) and tls.c (connections) share. Not for others. */
#ifndef CUBICLE_IO_TLS_SERVER_H
#define CUBICLE_IO_TLS_SERVER_H

#include "io/tls.h"

#include <openssl/ssl.h>

enum {
	TLS_RECEIVE = 32 * 1024, /* ciphertext read at once */
	TLS_SEND = 64 * 1024,    /* plaintext encrypted at once */
};

struct tls_pair {
	EVP_PKEY *key;
	X509 *leaf;
	STACK_OF(X509) *issuers;
};

struct tls_server {
	unsigned refs;
	SSL_CTX *ctx;
	struct tls_pair pairs[TLS_MAX_PAIRS];
	size_t n_pairs;
	int64_t ticket_key_since; /* CLOCK_BOOTTIME */
	char *received, *gathered; /* TLS_RECEIVE and TLS_SEND bytes that every connection uses during one call */
};

/* A new connection's SSL. NULL without memory. */
SSL *tls_server_ssl(struct tls_server *s);

#endif
