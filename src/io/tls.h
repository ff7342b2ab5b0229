/*
 * TLS 1.2 and 1.3 for accepted connections (OpenSSL 3), as a transport of the HTTP server.
 *
 * A tls_server is a set of certificates with everything set up; it never changes. To change certificates, make another one and accept with that: connections keep
 * a reference to the one they began with. One loop's thread uses a tls_server and its connections.
 *
 * What is offered: ECDHE with AEAD ciphers only, ALPN http/1.1 (and http/1.0; a client that insists on something else is told no_application_protocol), tickets
 * under a key that lives in this process alone and is replaced twice a day. Renegotiation and early data are refused.
 */
#ifndef CUBICLE_IO_TLS_H
#define CUBICLE_IO_TLS_H

#include "base/error.h"
#include "io/transport.h"

#include <stdint.h>

enum {
	TLS_MAX_PAIRS = 64,
	TLS_MAX_CHAIN = 16,
	TLS_MAX_PEM = 1024 * 1024,          /* of all certificates and keys */
	TLS_MAX_HANDSHAKE = 128 * 1024,     /* bytes of a peer until its handshake is done */
};

struct tls_server;

/*
 * Appends one pair in the form tls_server_new() takes: the first private key of `key`, then the certificates of `chain` (leaf first, then its issuers). Both are PEM; other
 * blocks in them are passed over, so they may be one and the same file. 0, or -EINVAL, -ENOMEM with *err.
 */
int tls_pair(struct buf *to, struct str chain, struct str key, struct error *err);

/*
 * From pairs: PEM of a private key, then of its chain, and so on. The first pair serves clients that name no host, or one that no certificate has. 0 with
 * one reference, or -EINVAL, -ENOMEM with *err.
 */
int tls_server_new(struct str pairs, struct tls_server **ret, struct error *err);
struct tls_server *tls_server_ref(struct tls_server *s);
/* Takes NULL. */
void tls_server_unref(struct tls_server *s);

/* How many pairs, the earliest end of their leaves (seconds since 1970), and the names of one's leaf, separated by spaces, appended to `to`. */
size_t tls_server_pairs(const struct tls_server *s);
int64_t tls_server_expires(const struct tls_server *s);
int tls_server_names(const struct tls_server *s, size_t pair, struct buf *to);
/* SHA-256 of one's leaf (DER) in lower-case hex. Returns to. */
char *tls_server_fingerprint(const struct tls_server *s, size_t pair, char to[65]);

/* A transport_accept_fn for an accepted, non-blocking socket; arg is a struct tls_server **, read at each call. */
struct transport *tls_accept(int fd, void *arg);

#endif
