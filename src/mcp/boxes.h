/* The sandboxes of a session. From any thread; the lock is held for moments only, never while somebody waits for the server. */
#ifndef CUBICLE_MCP_BOXES_H
#define CUBICLE_MCP_BOXES_H

#include "base/error.h"
#include "base/str.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct box_entry {
	char id[32];
	char *token, *template; /* token: of envd, or NULL; owned */
	_Atomic int64_t ends;           /* ns, CLOCK_BOOTTIME: its client's deadline; the server's is a lease that ends before */
	atomic_bool gone;       /* destroyed, or found missing */
	atomic_bool paused;
	unsigned refs;          /* private */
	struct box_entry *next; /* private */
};

struct boxes {
	pthread_mutex_t lock;
	struct box_entry *first; /* the newest */
	bool closing;
};

void boxes_init(struct boxes *b);
/* None may be left. */
void boxes_done(struct boxes *b);

/* A new one, the one that calls without an id mean from now on. 0, -ESHUTDOWN: the session ends, the caller has to end the sandbox; -ENOMEM likewise. */
int boxes_add(struct boxes *b, struct str id, struct str token, struct str template, int64_t ends);
/* The one of that id (empty: the newest), held until boxes_release(). NULL with *err. */
struct box_entry *boxes_capture(struct boxes *b, struct str id, struct error *err);
void boxes_release(struct boxes *b, struct box_entry *e);
/* It is not the session's any more, the caller ends it: true for one caller only. */
bool boxes_take(struct boxes *b, struct box_entry *e);
/* From now on nothing is added. */
void boxes_close(struct boxes *b);
/* All that are there, held: the number, at most `most`. */
unsigned boxes_list(struct boxes *b, struct box_entry **ret, unsigned most);

#endif
