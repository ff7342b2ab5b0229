/*
 * The one way out to servers that strangers name: HTTP requests (libcurl) that reach public addresses over verified TLS, and nothing else but what the operator has
 * named (image/registries.h). Each name is resolved once; its addresses are judged (image/address.h), pinned, and looked at again when a connection is made to one.
 * Redirects are followed here, each hop judged anew; credentials go to the host:port they were given for and to no other. No proxy, no cookies, nothing of the
 * environment. Several requests may be under way in one thread. Errors name hosts, never paths, queries (signed URLs) or headers.
 */
#ifndef CUBICLE_IMAGE_OUTBOUND_H
#define CUBICLE_IMAGE_OUTBOUND_H

#include "base/buf.h"
#include "base/error.h"
#include "image/reference.h"
#include "image/registries.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	OUTBOUND_HOPS = 8,             /* redirects of one request */
	OUTBOUND_URL_MAX = 8192,
	OUTBOUND_HEADERS_MAX = 65536,  /* bytes of one answer's head */
	OUTBOUND_CHALLENGE_MAX = 8192, /* bytes of all WWW-Authenticate of one answer */
	OUTBOUND_ERROR_MAX = 65536,    /* bytes of a body that is no success */
};

struct outbound_rules {
	const struct registries *registries;
	const char *own_range;        /* IPv4 range that is never a registry, "100.96.0.0/16" */
	struct str ca_pem;            /* believed besides the system's; may be empty */
	unsigned patience_s;          /* this long slower than OUTBOUND_SLOWEST, connecting included, ends a request; 0: 30 */
	unsigned total_s;             /* a request that collects its answer takes no longer; 0: 120 */
	bool (*cancelled)(void *arg); /* NULL: never */
	void *arg;
};

/* pem holds a certificate, or is empty: 0, else -EINVAL with *err. */
int outbound_check_ca(struct str pem, struct error *err);

struct outbound;

/* rules and what it names stay until outbound_free(). 0; -EINVAL the PEM, -ENOMEM, -errno with *err. */
int outbound_new(struct outbound **ret, const struct outbound_rules *rules, struct error *err);
void outbound_free(struct outbound *o);

/* What is asked. headers and body are kept by the caller until outbound_end(). */
struct outbound_request {
	const char *url;           /* absolute, http or https, without user and password */
	bool post;                 /* with body, else GET; never redirected */
	struct str body;
	const char *const *headers; /* "Name: value", NULL at the end; sent to every hop: nothing secret. May be NULL */
	const char *authorization;  /* value of Authorization; NULL: none */
	bool unverified;            /* an endpoint of registry.insecure need not prove who it is */
	bool stay;                  /* a redirect is an error */
	size_t max;                 /* bytes of a success' body that are collected; more is -EFBIG */
	/* Given the body of a success (200, 206) piece by piece instead; < 0 ends the request with that. answer's head is complete. May be NULL. */
	int (*data)(void *arg, const void *p, size_t n, struct error *err);
	/* The head of a success has come; < 0 ends the request with that. May be NULL. */
	int (*head)(void *arg, struct error *err);
	void *arg;
};

struct outbound_answer {
	int status;                    /* 0 until a head has come */
	bool elsewhere;                /* another host:port than was asked has answered */
	bool trusted;                  /* every hop was TLS, verified */
	char content_type[128];        /* without parameters, lower case; "" when absent */
	char digest[REFERENCE_DIGEST_MAX]; /* Docker-Content-Digest when it is one */
	int64_t length;                /* Content-Length, -1 unknown */
	int64_t from, to, whole;       /* Content-Range: first and last byte, size (-1 unknown); from is -1 without the header */
	int retry_after;               /* seconds, 0 none; at most 3600 */
	struct buf challenges;         /* values of WWW-Authenticate, a line each */
	struct buf body;               /* collected; at most OUTBOUND_ERROR_MAX of what is no success */
};

struct outbound_transfer;

/* Begins; name resolution may block. The transfer is the caller's until outbound_end(). 0 or the error of what may not even begin. */
int outbound_begin(struct outbound *o, const struct outbound_request *q, struct outbound_transfer **ret, struct error *err);
const struct outbound_answer *outbound_answer(const struct outbound_transfer *t);

/* Moves all transfers on, waiting at most `ms` for something to do. 0; -ECANCELED with *err. */
int outbound_run(struct outbound *o, int ms, struct error *err);

/* 1: it goes on; 0: answered, whatever the status; < 0: failed, *err: -EACCES (400) not allowed to go there, -EPROTO TLS, -ECONNREFUSED, -EHOSTUNREACH (also an
 * unknown name), -ETIMEDOUT, -ECONNRESET (also a body that ended early), -EFBIG, -ELOOP redirects, -EIO. Those with status 502 and 504 may pass by themselves. */
int outbound_state(const struct outbound_transfer *t, struct error *err);

/* Ends it in whatever state; NULL is nothing. */
void outbound_end(struct outbound_transfer *t);

/* The whole of it: the transfer, answered, to *ret; or the error. */
int outbound_ask(struct outbound *o, const struct outbound_request *q, struct outbound_transfer **ret, struct error *err);

/* host[:port] of a URL, for messages ("?" when it is none). Returns `to`. */
char *outbound_host(const char *url, char to[REFERENCE_REGISTRY_MAX]);

#endif
