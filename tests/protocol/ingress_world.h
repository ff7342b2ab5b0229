/* Clients and sandboxes around an ingress, both played byte for byte; the node is played on its real channel. One loop, no threads. */
#ifndef CUBICLE_TESTS_INGRESS_WORLD_H
#define CUBICLE_TESTS_INGRESS_WORLD_H

#include "../unit/unit.h"

#include "ingress/ingress.h"
#include "ingress/page.h"
#include "io/chan.h"

#include <errno.h>
#include <stdio.h>

enum { LIMIT = 4, CLOSED_PORT = 7, LATE_PORT = 8, GONE_PORT = 9, SILENT_PORT = 10, BUSY_PORT = 11, FOREIGN_PORT = 12, FULL_PORT = 13 };

struct ingress_world {
	struct loop *loop;
	struct sandbox_index *index;
	struct node_client *client;
	struct ingress *ingress;
	struct http_server *server;
	struct chan *node;       /* the node's end */
	const char *generation;  /* of connections that it gives */
	unsigned limit;          /* ingress.connections, for start() */
	int64_t patience;        /* wake_patience, for start() */
	int apps[128], n_apps;   /* the sandboxes' ends of connections, in the order of their opening */
	unsigned opens, resumes; /* asked of the node */
	uint64_t last_resume;    /* its request id */
	bool pausing;            /* opens are refused: the node has begun to pause and not said so yet */
	uint64_t sequence;
};

extern struct ingress_world t;

/* The world before its events; what start() takes from t may be set before. */
void start(void);
void stop(void);
void turns(int n);

/* What the node says of a sandbox; `event`: after the first, complete list. isecret has a token of envd; those that begin with "iauto" may be resumed by traffic. */
void say_sandbox(const char *id, enum sandbox_state state, const char *generation, const char *token, bool event);
/* The node's answer to the newest resume: the sandbox runs as that generation, or an error. */
void grant_resume(const char *id, const char *generation);
void refuse_resume(int code, unsigned status, const char *message, unsigned retry_after);

int connect_client(void);
/* Sends, and lets the loop work. */
void say(int fd, const char *text);
enum end { OPEN, ENDED, RESET };
/* Appends what is there; how the stream stands. */
enum end take(int fd, struct buf *to);
/* All that arrives on fd now, NUL-terminated; until the next call. */
const char *heard(int fd);
/* Turns the loop until the descriptor has something to say. */
void await(int fd);
/* What follows the head. */
const char *body_of(const char *answer);

#endif
