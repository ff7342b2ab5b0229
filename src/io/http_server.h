/*
 * An HTTP/1.1 server connection on a loop: keep-alive, pipelining (one request at a time), Expect: 100-continue, strict framing,
 * streaming bodies both ways with back-pressure. Used by the guest's envd and by the front.
 *
 * The life of a request: on_request() is called with the parsed head; the owner sets r->ops and r->arg (or answers at once).
 * Body bytes come through ops->body, then ops->end; the answer is http_respond(), or http_start() + http_send()* + http_finish().
 * A request is over when both its answer is finished and its body was read (unread rest: up to 256 KiB is drained, else the
 * connection closes after the answer). ops->closed is the last call for a request, always made exactly once, also after a
 * finished answer; after it the pointer is dead. Callbacks that the server makes are never nested in a call into it.
 *
 * Expect: 100-continue is answered as soon as on_request() returns with a body() callback set and no answer begun.
 */
#ifndef CUBICLE_IO_HTTP_SERVER_H
#define CUBICLE_IO_HTTP_SERVER_H

#include "io/http.h"
#include "io/loop.h"
#include "io/transport.h"

struct http_server;
struct http_conn;

struct http_req;
struct http_req_ops {
	/* Decoded body bytes (raw bytes after http_upgrade()). Returns how many were taken; fewer than n stops reading until http_req_resume(). */
	size_t (*body)(struct http_req *r, const char *p, size_t n);
	/* The body is complete (after an upgrade: the peer closed its sending half). */
	void (*end)(struct http_req *r);
	/* Queued output fell under the low-water mark after http_send() reported more than the high-water mark. */
	void (*writable)(struct http_req *r);
	/* The peer closed its sending half while its answer is still due: nearly always it is gone (what nginx and Go take it for). May be NULL: the
	 * answer goes on until a write fails. Told at most once, not after http_upgrade(). */
	void (*hangup)(struct http_req *r);
	/* The request is over: `complete` tells whether the whole answer was handed to the kernel. Free what hangs on it. */
	void (*closed)(struct http_req *r, bool complete);
};

enum { HTTP_HIGH_WATER = 256 * 1024, HTTP_LOW_WATER = 64 * 1024 };

struct http_req {
	struct http_conn *conn;
	const struct http_head *head;   /* valid until closed */
	struct str head_bytes;          /* the head as received */
	const struct http_req_ops *ops; /* set by the owner in on_request; NULL = the body is drained, nothing is told */
	void *arg;                      /* the owner's */
	bool own_continue;              /* set by the owner in on_request: it answers Expect: 100-continue itself, with http_interim() or at once finally */
	bool closes;                    /* set by the owner after http_upgrade(): the request is over when its answer is finished, whatever the peer still sends */
	char id[24];                    /* request id for logs, set by the server */
};

struct http_server_config {
	void (*on_request)(struct http_req *r, void *arg);
	/* Answers a head that did not parse (status from the parser); NULL = a JSON body {code,message}. */
	void (*on_bad_request)(struct buf *body, const char **content_type, int status, void *arg);
	void *arg;
	int64_t idle_timeout_ns; /* between requests; 0 = 620 s */
	int64_t handshake_timeout_ns; /* from accepting to a transport that is ready; 0 = 15 s */
	int64_t head_timeout_ns; /* from the first byte of a head to its end (slowloris); 0 = 30 s */
	size_t high_water, low_water; /* bytes of output queued for one connection; 0 = HTTP_HIGH_WATER, HTTP_LOW_WATER */
	unsigned max_connections; /* accepted at once; beyond, one without a request for a second makes room, or accepting pauses; 0 = 10000 */
	/* Appends further complete header lines to every answer to a request; NULL = none. */
	void (*add_headers)(const struct http_head *h, struct buf *to);
	const char *server_name;  /* value of the Server header; NULL = none */
};

/* The config is copied. Listening descriptors are added with http_server_listen(). NULL without memory. */
struct http_server *http_server_new(struct loop *l, const struct http_server_config *config);
/* Accepts on a listening, non-blocking socket (not owned). Several loops may share one (EPOLLEXCLUSIVE). 0 or -errno. */
int http_server_listen(struct http_server *s, int listen_fd);
/* The same with a transport for each accepted connection (io/tls.h). */
int http_server_listen_with(struct http_server *s, int listen_fd, transport_accept_fn *accept, void *arg);
/* Takes an already connected socket (owned from here), with bytes that were read from it before. 0 or -errno (closed then). */
int http_server_adopt(struct http_server *s, int fd, struct str already_read);
/* A clean end: accepts no more, closes idle connections, and the others after the answer they are at. */
void http_server_drain(struct http_server *s);
/* Closes all connections (requests get closed()). Not from inside a callback of the server. Takes NULL. */
void http_server_free(struct http_server *s);
/* Connections open now. */
unsigned http_server_connections(const struct http_server *s);

/* Whole answer. `headers` are complete lines ("Name: value\r\n"...), may be NULL. Content-Length and Date are added; HEAD, 204 and 304 send no body
 * (204 carries no Content-Length). Content-Type is added when not NULL. */
void http_respond(struct http_req *r, int status, const char *content_type, const char *headers, struct str body);
/* {"code":status,"message":…} (e2b.md A.3). */
void http_respond_error(struct http_req *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Streaming answer: HTTP_BODY_CHUNKED (becomes until-close for HTTP/1.0), HTTP_BODY_LENGTH with `length`, or HTTP_BODY_NONE. `reason` may be NULL. The framing headers,
 * Date (unless `headers` has one) and Connection are added. The head leaves with the first bytes, at the latest at the end of this turn. To HEAD, 204 and 304
 * no body is sent, whatever is given to http_send(); HTTP_BODY_NONE then adds no Content-Length, so `headers` may carry the one that GET would get. */
void http_start(struct http_req *r, int status, const char *reason, const char *headers, enum http_framing framing, uint64_t length);
/* Queues bytes (sent as one chunk when chunked), flushed at the latest at the end of this turn. Returns the bytes now queued. */
size_t http_send(struct http_req *r, const void *p, size_t n);
/* Complete header lines to follow a chunked answer when it is finished; dropped where it is not chunked. */
void http_trailers(struct http_req *r, struct str lines);
/* Those that followed the request's body, from end() on. */
struct str http_req_trailers(const struct http_req *r);
/* Ends the answer. With HTTP_BODY_LENGTH a short body cuts the connection. */
void http_finish(struct http_req *r);
/* Cuts the connection now, without a terminating chunk (e2b.md F.101). closed(false) follows within this turn. */
void http_abort(struct http_req *r);
/* Reads on after body() took less than it was given. */
void http_req_resume(struct http_req *r);
/* Sends an interim answer (100, 102, 103...). `headers` as above. */
void http_interim(struct http_req *r, int status, const char *headers);
/* Answers 101 (or 200 for CONNECT) with headers and turns the connection into raw bytes both ways: body()/http_send(). http_finish() shuts the sending half down.
 * `Connection: Upgrade` is added to a 101. The request's own body must be complete, else the connection is cut. end() is told for it (unless the upgrade happens
 * inside on_request()), and again when the peer closes its half. The request is over when both halves are closed. */
void http_upgrade(struct http_req *r, int status, const char *reason, const char *headers);

/* Stops reading: what comes of this request waits in the kernel until http_detach() or an answer. Returns the bytes that were read beyond the head (valid
 * until one of the two). Only inside on_request(), before any answer; body() and end() are not called then. */
struct str http_hold(struct http_req *r);
/*
 * Hands the whole connection to the caller: its descriptor (owned from now, blocking mode unchanged: non-blocking) and the bytes read beyond the head
 * are appended to *ret_rest. Only after http_hold(), before any answer, inside on_request() or outside of the server's callbacks. The request is over and its
 * pointer dead (closed is not called); give the connection
 * back with http_server_adopt(). -EBUSY when it cannot be given away (any more, or because it has a transport): then it is answered or closed as ever.
 */
int http_detach(struct http_req *r, struct buf *ret_rest);

/* Peer credentials and address of the connection's socket. */
int http_conn_fd(const struct http_conn *c);
/* The connection has a transport: nobody between could read or change it. */
bool http_conn_is_secure(const struct http_conn *c);

#endif
