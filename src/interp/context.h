/*
 * Contexts (e2b.md C.1): a language, a directory, and the kernel that keeps the state. A context outlives its
 * kernel: one that died or was restarted is replaced under the same id. Executions of one context run one
 * after the other, in the order they came.
 */
#ifndef CUBICLE_INTERP_CONTEXT_H
#define CUBICLE_INTERP_CONTEXT_H

#include "interp/fetch.h"
#include "interp/kernel.h"

enum { CONTEXTS_MAX = 64, CONTEXT_QUEUE_MAX = 256 };

struct execution;
struct context;

/* All of them, and what they share. */
struct contexts {
	struct kernel_host host;
	struct kernelspecs specs;
	struct fetch_target envd;
	struct context *first;
	size_t n;
};

enum context_state {
	CONTEXT_STARTING, /* its kernel is not ready yet */
	CONTEXT_READY,
	CONTEXT_FAILED, /* no kernel: the last one could not be started, or ended without having run anything.
			   The next use tries again */
};

struct context {
	struct context *next;
	struct contexts *all;
	char id[WIRE_ID_SIZE];
	char language[LANGUAGE_SIZE]; /* as asked for, normalised */
	const struct kernelspec *spec;
	char *cwd;
	bool is_default; /* of its kernelspec */
	bool gone;       /* deleted: freed at the end of the turn */
	enum context_state state;
	bool was_ready;     /* once, with any kernel */
	bool has_env;       /* this kernel knows the sandbox's variables */
	bool lost;          /* some of what this kernel published */
	bool exits;         /* this kernel said that it is about to end */
	bool used;          /* this kernel has run something */
	const char *notice; /* what the next execution is told first; NULL */
	struct kernel *kernel;
	struct context_waiter *waiters;
	struct execution *current, *queue, **queue_end;
	size_t queued;
};

/* Somebody who waits until the context's kernel is ready. Embedded in what waits, which outlives it or takes
 * itself out. */
struct context_waiter {
	struct context_waiter *next;
	struct context *context;                                       /* NULL: does not wait */
	void (*fn)(struct context_waiter *w, const struct error *err); /* err is NULL when it is ready */
};

/* A new context whose kernel is being started; with cwd NULL in the user's home. NULL with *err set. */
struct context *context_new(struct contexts *all, const char *language, const char *cwd, struct error *err);
/* By id ("default" is the default context of Python, if there is one). NULL if there is none. */
struct context *context_find(struct contexts *all, struct str id);
/* The default context of a normalised language, made when there is none. NULL with *err set. */
struct context *context_default(struct contexts *all, const char *language, struct error *err);
/* Ends it and what it runs. */
void context_delete(struct context *c);
/* Ends all. */
void contexts_done(struct contexts *all);

/* A fresh kernel in place of what there is; an execution that is under way ends with ContextRestarting.
 * `notice` (static; NULL: none) is what the next one is told. */
void context_restart(struct context *c, const char *notice);

/* w->fn is called once, perhaps at once, when the context is ready or failed; a failed one is started again.
 * The context may be gone afterwards. */
void context_wait(struct context *c, struct context_waiter *w);
void context_unwait(struct context_waiter *w);

/* Puts an execution into the queue. It must not be full (context_queue_full). */
void context_enqueue(struct context *c, struct execution *x);
bool context_queue_full(const struct context *c);
/* Takes one out that has not begun. */
void context_dequeue(struct context *c, struct execution *x);
/* The current execution needs the kernel no longer: the next one begins. */
void context_release(struct context *c);

/* The language to make code in: of the kernel. */
const char *context_env_language(const struct context *c);

#endif
