/* Private to the ingress: one request on its way into a sandbox, and its answer back. ingress.c has the request's side, answer.c the answer's. */
#ifndef CUBICLE_INGRESS_EXCHANGE_H
#define CUBICLE_INGRESS_EXCHANGE_H

#include "ingress/gate.h"
#include "ingress/ingress.h"
#include "ingress/upstream.h"

/*
 * A client that closed its half is nearly always gone. The service sees that half closed too, as it would without us: many stop their work then. Bytes sent to the
 * client find out whether it is gone; while the sandbox is silent nothing does, so it is given up.
 */
#define HANGUP_PATIENCE (5 * NS_PER_S)

enum exchange_state {
	WAKING,  /* waits for the sandbox to be resumed, until wake_deadline */
	OPENING, /* the node makes a connection, or the timer waits to ask it again */
	WAITING, /* the request is on its way, no final head has come */
	BODY,    /* the answer streams */
	TUNNEL,  /* raw bytes both ways */
	DONE,    /* answered or cut: only closed() is to come */
};

struct exchange {
	struct ingress *ingress;
	struct exchange *prev, *next; /* in target->exchanges */
	struct target *target;        /* WAKING, and DONE from there: NULL */
	struct http_req *req;
	struct upstream *up; /* WAKING, OPENING, DONE: NULL */
	struct node_call *call;
	struct tools_call *tools_call; /* of a request to the MCP server, which has no sandbox */
	struct gate_waiter waiter;
	int64_t wake_deadline; /* CLOCK_BOOTTIME; 0 = it never waited */
	struct loop_timer *timer;
	enum exchange_state state;
	uint16_t port;
	char id[ROUTE_ID_MAX + 1];
	unsigned tries, interim, wakes;
	bool sent_body;     /* bytes of the request's body went out: it cannot be sent again */
	bool request_done;  /* its end as well */
	bool retried, fresh_only;
	bool tools;         /* it is for the MCP server */
	bool upgrade, head_request, continued, hung_up;
	bool peer_done;     /* TUNNEL: the sandbox closed its half */
	bool keep_alive;    /* of the answer */
	struct http_body body; /* of the answer */
	struct buf trailers;   /* likewise */
};

struct ingress {
	struct ingress_config config;
	struct pool *pool;
	struct gates *gates;
	struct index_listener listener;
};

/* Reads the answer: what happens on x->up. */
extern const struct upstream_ops answer_ops;

/* Sends the request: on a pooled connection, or on one that the node makes. */
void exchange_begin(struct exchange *x);
/* Nothing waits for anything any more; x->up stays. */
void exchange_release(struct exchange *x);
void exchange_set_timer(struct exchange *x, int64_t ns);
/* Nothing of an answer has gone out: say what is wrong (502). Else the client sees a cut and no regular end. */
void exchange_fail(struct exchange *x, const char *message, bool name_port);

#endif
