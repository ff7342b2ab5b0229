/* One request to the control plane, inside src/api: who asks, what for, and how it is answered. */
#ifndef CUBICLE_API_REQUEST_H
#define CUBICLE_API_REQUEST_H

#include "api/api.h"
#include "api/clients.h"
#include "api/decode.h"
#include "api/keys.h"
#include "api/out.h"
#include "api/quota.h"
#include "api/routes.h"
#include "api/template_uploads.h"
#include "io/json.h"

#define API_CLIENT_ID "6532622b"   /* constant, but needed by the clients' schema (e2b.md A.4) */
#define API_ENVD_VERSION "0.6.13"  /* what clients take features from (e2b.md 0.6) */

enum { API_BODY_MAX = 1024 * 1024 };

struct api {
	struct api_config config;
	struct store *store; /* front.db */
	struct keys *keys;
	struct teams *teams;
	struct quota *quota;
	char first_hash[65]; /* of the key that serve made, once that is known: it stays as a tombstone */
	struct api_request *reloads, **last_reload; /* waiting for certificates, the oldest first */
	struct loop_timer *timer; /* writes down when keys were used */
	struct clients_seen clients;
	struct request_counts *counts;
	struct uploads uploads;
	unsigned char upload_key[32]; /* signs links to upload to; of this process */
};

/* Who takes a request's body as it comes, set by the handler of a route without ROUTE_BODY: that runs when the head is there. As in io/http_server.h. */
struct api_stream {
	size_t (*body)(struct api_request *r, const char *p, size_t n);
	void (*end)(struct api_request *r);
};

struct api_request {
	struct api *api;
	struct http_req *http; /* NULL once the client is gone */
	struct route_match match;
	struct buf path;       /* what match.params point into */
	struct str team; /* its ref (api/teams.h), as sandboxes have it */
	struct str secret; /* the key of the caller, a view into http->head; empty on the admin socket */
	struct buf body_bytes;
	json_t *body;          /* routes with ROUTE_BODY: an object, or NULL when the body was empty */
	struct buf headers;    /* more lines for the answer */
	struct node_call *call; /* waits for the node */
	void *work;            /* the handler's, freed with free() at the end */
	void (*release)(void *work); /* before that; or NULL */
	const struct api_stream *stream; /* who takes the body; or NULL */
	bool working;          /* on the work queue, or in api.reloads: must not be freed */
	struct api_request *next_reload;
	bool dispatched, answered;
	bool repeatable;       /* asked again it does not happen twice */
	int64_t began;         /* CLOCK_MONOTONIC */
	char id[65];           /* request id */
	char sandbox[33];      /* for the log and for answers that come later; empty = none */
};

/* Each ends the request: nothing may touch it afterwards. */
void api_answer(struct api_request *r, int status, const struct buf *json);
/* The same for what is no JSON. */
void api_answer_text(struct api_request *r, const char *content_type, const struct buf *text);
void api_answer_empty(struct api_request *r);
/* 202 without a body, as clients need it: Content-Length: 0 (e2b.md 0.5). */
void api_answer_accepted(struct api_request *r);
void api_fail(struct api_request *r, const struct error *err);
void api_failf(struct api_request *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The node's refusal; what it does not know (any more) is told in the clients' words. */
void api_fail_call(struct api_request *r, const struct error *err);

/* A call of the request has ended. False = answered: the node refused, in its words. */
bool api_called(struct api_request *r, const struct node_answer *a);
/* What a call that brings nothing ended with: 204, or its error; for the request as arg. */
void api_done_empty(const struct node_answer *a, void *arg);
/* The same of one that is about no sandbox: the node's refusal goes through as it is. */
void api_done_plain(const struct node_answer *a, void *arg);

/* Gives a call to the node its request, or fails with *err when there is none. */
void api_wait(struct api_request *r, struct node_call *call, const struct error *err);

/* Runs work(r) on the work queue, then done(r) on the loop, also when the client left meanwhile: done() answers as always. */
void api_work(struct api_request *r, void (*work)(void *r), void (*done)(struct api_request *r));

/*
 * The sandbox that the first parameter names, seen by the request's team. Its id goes to r->sandbox. NULL = answered: 400, 404, or 503 before the
 * index knows anything. One that is being created or killed is not found unless `hidden`.
 */
const struct index_sandbox *api_sandbox(struct api_request *r, bool hidden);
/* 404 in words that clients understand (e2b.md A.3), with lastTermination where that is known. */
void api_sandbox_not_found(struct api_request *r);
/* decode_query() of the request's own; false = answered. */
bool api_query(struct api_request *r, query_pair_fn *fn, void *arg);
/* False = answered with 503: nothing is known of sandboxes and templates yet. */
bool api_index_ready(struct api_request *r);

#endif
