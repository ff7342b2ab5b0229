/* The control plane on real sockets, with a node played by hand: everything on one loop in the test's own thread. */
#ifndef CUBICLE_TESTS_API_WORLD_H
#define CUBICLE_TESTS_API_WORLD_H

#include "../unit/unit.h"

#include "api/api.h"
#include "io/chan.h"
#include "io/json.h"
#include "node/pool_info.h"

enum { WORLD_SANDBOXES = 256, WORLD_SNAPSHOTS = 16, WORLD_WAITING = 32, WORLD_POOLS = 4 };

struct fake_sandbox {
	char id[33];
	bool alive;
	int64_t started_at, end_at;
	uint64_t state;
	char envd_token[33], traffic_token[33], team[65], template_id[33];
	struct buf metadata, allow_out, deny_out;
	int internet; /* -1 = not given */
	const char *reason; /* with which it is being killed; NULL = none is told */
	unsigned generation;
	bool auto_pause, auto_resume, auto_pause_memory, memory_kept;
	const char *resumed_from; /* NULL = never */
	char origin[33];
	char name[256], fingerprint[65]; /* of its create; empty = none */
	int64_t shutdown_after; /* 0 = nothing was said */
};

struct fake_snapshot {
	char id[33], team[65], sandbox[33], name[257];
	int64_t created_at;
	bool alive;
};

struct world {
	struct loop *loop;
	struct workq *workq;
	struct options options;
	struct sandbox_index *index;
	struct node_client *client;
	struct api *api;
	struct http_server *servers[2]; /* public, admin */
	char directory[64];
	char key[64]; /* a valid key */
	/* the node */
	struct chan *node;
	struct fake_sandbox sandboxes[WORLD_SANDBOXES];
	size_t n_sandboxes;
	uint64_t sequence;
	const char *log;      /* what the node answers to each question for a log; NULL = nothing */
	bool log_endless;     /* and says that there is more */
	int64_t metrics;      /* samples that each sandbox has */
	unsigned metrics_asked;
	unsigned log_reads;   /* such questions */
	struct error refuse;  /* the next call is refused with it */
	bool silent;          /* the next call gets no answer */
	bool answer_first;    /* the answer leaves before the event */
	uint64_t silent_request;
	bool hold;            /* creates are done, but answered only by world_release() */
	bool unborn;          /* with `hold`: nor are they told of before */
	uint64_t held[WORLD_SANDBOXES]; /* request of each sandbox's create */
	struct {
		uint64_t request;
		size_t sandbox;
	} joined[WORLD_WAITING]; /* creates of a name that is being made */
	size_t n_joined;
	struct pool_info pools[WORLD_POOLS];
	size_t n_pools;
	struct fake_snapshot snapshots[WORLD_SNAPSHOTS];
	size_t n_snapshots;
	bool slow;            /* pauses stay under way until world_settle(); pauses and resumes meanwhile wait for it */
	struct {
		uint64_t request;
		char id[33];
		bool resume;
	} waiting[WORLD_WAITING];
	size_t n_waiting;
	unsigned forks_fail;  /* so many children of the next fork come to nothing */
	unsigned calls, reloads;
	struct msg_resume last_resume; /* without its views */
	struct msg_fork last_fork;
	bool last_pause_memory;
	struct msg_timeout last_timeout;
	struct buf last_envs;
	int64_t last_create_timeout;
	char last_request_id[65];
	char last_template[256]; /* of the last create */
	struct template_node *templates; /* template_node.h */
};

struct reply {
	int status; /* 0 = the connection ended without an answer */
	struct buf bytes;
	struct http_head *head;
	struct str body;
	json_t *json;
};

struct world *world_new(void);
void world_free(struct world *w);
/* Opens the channel to the node and takes its snapshot; without it the server is "starting". */
void world_connect_node(struct world *w);
void world_lose_node(struct world *w);
/* Ends a sandbox as the node would. */
void world_end(struct world *w, const char *id, const char *reason, const char *detail, int64_t at);
/* An event with the sandbox's present state. */
void world_event(struct world *w, struct fake_sandbox *s);
/* Ends the pauses that are under way; then what waited for that. */
void world_settle(struct world *w);
/* Answers held creates, the newest first. */
void world_release(struct world *w);
/* Held creates come to nothing. */
void world_fail_held(struct world *w, int status);
struct fake_sandbox *world_find(struct world *w, const char *id);
/* Turns the loop until nothing is due. */
void world_turn(struct world *w);

/* Opens a connection: the client's end. */
int world_open(struct world *w, bool admin);
/* Sends bytes and turns the loop until a whole answer came. */
struct reply world_send(struct world *w, int fd, struct str bytes);
/* One request on a connection of its own. `headers` are lines with CRLF, or NULL for the valid key; body NULL = none. */
struct reply world_ask(struct world *w, const char *method, const char *target, const char *headers, const char *body);
struct reply world_admin(struct world *w, const char *method, const char *target, const char *body);
void reply_done(struct reply *r);
#define cleanup_reply __attribute__((__cleanup__(reply_done)))
/* A member of the answer's object as text; "" when it is absent or no string. */
const char *reply_text(const struct reply *r, const char *key);
struct str reply_header(const struct reply *r, const char *name);

#endif
