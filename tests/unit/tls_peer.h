/* A TLS client over a non-blocking socket whose bytes the test moves by hand, and certificates to meet it with. */
#ifndef CUBICLE_TESTS_TLS_PEER_H
#define CUBICLE_TESTS_TLS_PEER_H

#include "base/buf.h"
#include "io/tls.h"

#include <openssl/ssl.h>

struct peer {
	SSL_CTX *ctx;
	SSL *ssl;
	int fd; /* owned */
	bool eof;     /* the server's end of the socket came */
	int reason;   /* SSL_R_..., why the handshake failed */
	size_t step;  /* most bytes moved by one call each way; 0 = all */
};

/* A certificate for `name` by an authority of its own, as pairs for tls_server_new(); *ret_ca (PEM) when not NULL. Asserts. */
void pair_for(const char *name, struct buf *to, struct buf *ret_ca);
struct tls_server *server_for(const char *name);

/* fd is the client's end of a connection. */
void peer_init(struct peer *p, int fd);
void peer_done(struct peer *p);
/* Moves bytes between SSL and socket, both ways, as many as `step` says. */
void peer_move(struct peer *p);
/* peer_move() and one turn of SSL_do_handshake: 1 done, 0 going on, -1 failed. */
int peer_shake(struct peer *p);
/* Encrypts; what the socket does not take is kept for peer_move(). */
void peer_write(struct peer *p, const void *bytes, size_t n);
/* Appends what has come. 1 more may come, 0 the server announced its end (close_notify), -1 failed or cut. */
int peer_read(struct peer *p, struct buf *to);
/* Bytes that wait to be taken by the socket. */
size_t peer_unsent(const struct peer *p);

#endif
