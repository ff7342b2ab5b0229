/* One outgoing connection on a loop, plain or TLS (OpenSSL 3, the peer's certificate and name are checked), that never waits. */
#ifndef CUBICLE_FORWARD_CONNECTION_H
#define CUBICLE_FORWARD_CONNECTION_H

#include "base/buf.h"
#include "base/error.h"
#include "io/loop.h"

#include <openssl/ssl.h>
#include <sys/socket.h>

/* Where to connect; made once, never changes. */
struct destination {
	struct sockaddr_storage address; /* AF_INET, AF_INET6, or AF_UNIX */
	socklen_t size;
	bool loopback;   /* what is sent there does not leave the machine */
	SSL_CTX *ctx;    /* NULL = plain */
	char host[256];  /* for SNI and the certificate, without brackets and port */
	char authority[270]; /* as URLs and Host have it */
};

/* From "http://…" or "https://…" (no path), or a Unix socket when `socket` is not NULL. `ca`: PEM file of authorities instead of the machine's, or NULL. Resolves the name:
 * blocks. 0, or -EINVAL, -ENOENT, -EIO with *err. */
int destination_init(struct destination *d, const char *url, const char *socket, const char *ca, struct error *err);
void destination_done(struct destination *d);

struct connection;

struct connection_ops {
	void (*readable)(struct connection *c, void *arg); /* bytes were added to connection_in() */
	void (*drained)(struct connection *c, void *arg);  /* what was queued over CONNECTION_HIGH fell under CONNECTION_LOW */
	/* The peer ended: 0 regularly, else -errno (also when it could not be reached). Told once, after what came before it. */
	void (*ended)(struct connection *c, int why, void *arg);
};

enum { CONNECTION_HIGH = 256 * 1024, CONNECTION_LOW = 64 * 1024 };

/* Begins to connect; what is sent meanwhile waits. NULL without memory or descriptors. */
struct connection *connection_new(struct loop *l, const struct destination *d, const struct connection_ops *ops, void *arg);
/* Closes at once; nothing is told any more. Takes NULL. */
void connection_free(struct connection *c);
/* What was received and not consumed (buf_consume()). */
struct buf *connection_in(struct connection *c);
/* Off: the peer has to wait. */
void connection_set_reading(struct connection *c, bool on);
/* Returns the bytes queued now. */
size_t connection_send(struct connection *c, struct str bytes);
size_t connection_queued(const struct connection *c);
/* Nothing more will be sent: the peer is told when the queue is empty. */
void connection_shutdown(struct connection *c);

#endif
