/*
 * One execution: the sandbox's variables if the kernel does not know them yet, the request's own variables,
 * the code with its events, and the variables put back. What ends it is the kernel's answer, its end, or a
 * client that leaves: then the kernel is interrupted, and if that does not help, replaced.
 */
#ifndef CUBICLE_INTERP_EXECUTION_H
#define CUBICLE_INTERP_EXECUTION_H

#include "interp/context.h"
#include "interp/output.h"
#include "interp/patience.h"
#include "io/http_server.h"
#include "io/json.h"

enum execution_phase {
	EXECUTION_QUEUED,  /* in the context's queue */
	EXECUTION_FETCH,   /* asks envd for the sandbox's variables */
	EXECUTION_GLOBAL,  /* they are being set */
	EXECUTION_SWAP,    /* those of the request are being set */
	EXECUTION_CODE,    /* the user's code runs */
	EXECUTION_RESTORE, /* what the request's replaced is put back */
	EXECUTION_OVER,    /* freed at the end of the turn */
};

/* Something to tell after the code: the last state of a display that was updated, a page, an error that only
 * the reply had. */
struct execution_late {
	struct execution_late *next;
	struct str display; /* raw id; empty: it is not replaced */
	struct frames *frames;
	struct str content;
	bool is_error;
};

/* Its fields are of execution.c, but for the link. */
struct execution {
	struct execution *next; /* in the context's queue */
	struct context *context;
	struct execution **owner; /* cleared when the request is not needed any more */
	enum execution_phase phase;
	struct output output;
	struct buf code, token;
	json_t *env_vars, *globals;
	struct fetch *fetch;
	char id[WIRE_ID_SIZE]; /* of the request to the kernel that is under way */
	bool gone;             /* the client left, or was answered */
	bool begun;            /* the kernel has begun with the code */
	bool replied, idle, failed;
	struct execution_late *late;
	size_t n_late;
	struct loop_timer *keepalive;
	struct patience patience;
	unsigned interrupts; /* tries so far */
};

/* What a client asked for. */
struct execution_request {
	struct http_req *req;
	struct str code;  /* copied */
	json_t *env_vars; /* an object; NULL: none. Checked by env_check(). A reference is taken */
	struct str token; /* for envd; copied */
};

/* Answers with the head and queues it; c->queue must not be full. *ret is set to the execution, and to NULL
 * when it needs the request no longer. 0 or -ENOMEM, then nothing was answered. */
int execution_start(struct context *c, const struct execution_request *r, struct execution **ret);

/* The client left, or the answer was finished: its request is not touched any more. */
void execution_leave(struct execution *x);
/* The request's queue has room. */
void execution_writable(struct execution *x);

/* From the context: its turn has come; a message of the kernel; its kernel is gone (or will not come), and it
 * is no longer the context's. */
void execution_begin(struct execution *x);
void execution_message(
	struct execution *x, enum kernel_channel from, const struct wire_message *m, struct frames *f);
void execution_lost(struct execution *x, const char *name, const char *why);

#endif
