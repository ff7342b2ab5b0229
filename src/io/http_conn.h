/* What http_server.c (the life of a connection), http_read.c and http_answer.c share. Not for others. */
#ifndef CUBICLE_IO_HTTP_CONN_H
#define CUBICLE_IO_HTTP_CONN_H

#include "io/http_server.h"
#include "io/transport.h"

enum {
	HTTP_SCRATCH = 64 * 1024,
	HTTP_MAX_DRAIN = 256 * 1024, /* bytes of a body that nobody wants; a longer rest closes the connection */
};

enum conn_phase {
	CONN_HEAD,    /* between requests, or reading a head */
	CONN_REQUEST, /* a request is with its owner */
	CONN_LINGER,  /* the last answer is leaving; what still comes is thrown away, so that no RST overtakes it */
	CONN_DEAD,    /* closed; the memory waits in the work list */
};

enum answer_state { ANSWER_NONE, ANSWER_OPEN, ANSWER_DONE };

struct http_conn {
	struct http_server *server;
	struct http_conn *prev, *next;
	struct http_conn *next_work;
	bool queued; /* in the server's work list */

	int fd;
	struct transport *transport; /* NULL: the socket itself */
	struct loop_fd *w;
	struct loop_timer *timer;
	int64_t progress; /* when the socket last took or gave bytes in this request */
	int64_t deadline, armed; /* CLOCK_BOOTTIME; 0 = none. The timer may be armed for an earlier time than the deadline. */

	enum conn_phase phase;
	struct http_conn *waits_before, *waits_after; /* CONN_HEAD: in the server's list of those, the longest waiting first */
	int64_t waits_since;
	bool broken;      /* to be closed in this turn, closed(false) */
	bool reset;       /* ... with a RST, where a FIN would look like a regular end */
	bool eof;         /* the peer closed its half */
	bool half_closed; /* EPOLLRDHUP was seen: no longer asked for */
	bool hung_up;     /* EPOLLHUP without an error: only reading makes sense */
	bool last;        /* close after this answer */
	bool blocked;     /* the socket took less than it was given: wait for EPOLLOUT */
	bool shut;        /* our half is closed */
	bool end_queued;  /* the transport was told to announce that */
	bool reread;      /* the transport has more to read: in this connection's next turn */

	struct buf in;   /* received, not yet parsed */
	size_t scanned;  /* bytes of `in` that held no end of a head */
	struct buf out;  /* to be sent */

	/* The request. head_bytes owns what the views of *head point into. */
	struct buf head_bytes;
	struct http_head *head;
	struct http_req req;
	struct http_body body;
	struct buf trailers, out_trailers; /* lines of the peer's, and of the owner's */
	struct buf held;   /* decoded body bytes that body() did not take */
	uint64_t drained;  /* body bytes thrown away */
	bool paused;       /* body() took less than it was given */
	bool on_hold;      /* http_hold(): nothing is read before the answer */
	bool end_told, hangup_told;
	bool raw;          /* after an upgrade */
	bool continued;    /* 100 was sent */
	bool detached, in_on_request;

	enum answer_state answer;
	enum http_framing out_framing;
	uint64_t out_left; /* of HTTP_BODY_LENGTH */
	bool no_body;      /* HEAD, 204, 304: bytes given are not sent */
	bool throttled;    /* http_send() reported more than the high-water mark */
};

/* http_server.c */

/* Settles the connection at the end of this turn. */
void http_conn_schedule(struct http_conn *c);
/* The last call for a request; what belongs to it goes. The phase is CONN_LINGER then. */
void http_conn_end_request(struct http_conn *c, bool complete);
/* Takes no more requests; what still comes is thrown away. */
void http_conn_linger(struct http_conn *c);
/* HTTP_SCRATCH bytes for one read, shared by all connections. */
char *http_conn_scratch(const struct http_conn *c);
/* Queued bytes beyond which the owner is told to wait. */
size_t http_conn_high_water(const struct http_conn *c);
/* Value of the Date header, and of Server (or NULL). */
const char *http_conn_date(struct http_conn *c);
const char *http_conn_server_name(const struct http_conn *c);

/* What the owner adds to every answer. */
void http_conn_add_headers(struct http_conn *c);

/* http_read.c */

/* Body bytes go nowhere. */
bool http_conn_discards(const struct http_conn *c);
/* Whether bytes of this request are wanted from the peer now. */
bool http_conn_wants_body(const struct http_conn *c);
/* Bytes from the peer, in order. What is not for this request, or not taken, is kept in c->in. */
void http_conn_deliver(struct http_conn *c, struct str data);
/* Hands over what was held back or came early, and tells the end. */
void http_conn_deliver_pending(struct http_conn *c);
void http_conn_on_readable(struct http_conn *c);
/* The peer has closed its half. */
void http_conn_on_half_closed(struct http_conn *c);

/* http_answer.c */

/* Bytes of output that the socket has not taken. */
size_t http_conn_queued(const struct http_conn *c);
/* Sends what is queued as far as the socket takes it. */
void http_conn_flush(struct http_conn *c);
/* Queues an answer to a head or body that did not parse. content_type NULL = our own JSON, with the body as message (empty: the status's reason). */
void http_conn_refuse(struct http_conn *c, int status, const char *content_type, struct str body);

#endif
