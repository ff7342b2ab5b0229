/* A node with a fake backend, on a fake machine, in a directory of its own; the test is its front. What tests of the node share. */
#ifndef CUBICLE_TESTS_NODE_WORLD_H
#define CUBICLE_TESTS_NODE_WORLD_H

#include "unit.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "fake_backend.h"
#include "node/service.h"

#define TEMPLATE "k3abcdefghij0123456a"
#define MIB (UINT64_C(1) << 20)

extern char dir[];

struct machine {
	int64_t boot_shift, wall_shift;
	int64_t still; /* both clocks stand here; 0 = they run */
	struct host_memory memory;
	struct host_disk disk;
};
extern struct machine machine;

extern struct options options;
extern struct host host;
extern struct loop *loop;
extern struct node *node;
extern int front;            /* our end of the channel */
extern uint64_t last_request;
extern bool ready, stopped;
extern char storage[MSG_MAX];
extern union msg_any got;    /* the last message received; its views are into storage and live until the next */
extern int got_fd;

/* Sandbox events in order of arrival. */
struct event {
	char id[33], reason[33], detail[257];
	enum sandbox_state state;
	uint64_t sequence;
	int64_t end_at, ended_at;
};
extern struct event events[4096];
extern size_t n_events, n_templates, n_templates_gone, n_snapshots, n_snapshots_gone;
extern bool synced;
/* How processes that make templates are started; NULL: as always. */
extern int (*world_start)(const struct jail *j, struct jailed *ret, void *arg, struct error *err);
extern uint64_t ballast;     /* in place of ballast.c, which would take real space */
extern char last_id[33];     /* of the last create */
extern struct buf metadata, envs;

/* cmocka's fixtures: an empty directory with a template "base", and a node on it. */
int setup(void **state);
int teardown(void **state);
/* All tests of a group, in a directory of their own; the result of main(). */
#define node_world_run(tests) (node_world_begin() ? 1 : node_world_end(cmocka_run_group_tests(tests, NULL, NULL)))
int node_world_begin(void);
int node_world_end(int result);

void on_flag(void *arg);
void turn_until(bool *flag);
void open_front(void);
/* A node on what is in the directory; away with it; both. */
void start(void);
void leave(void);
void restart(void);
/* The next message that came, without waiting: its type, 0 when there is none. */
unsigned receive(uint64_t *ret_request);
/* The answer to a request; events on the way are noted. */
unsigned answer(uint64_t request);
/* Lets the node work until nothing more happens. */
void settle(void);
/* The node has seen that the front's channel ended. */
void front_is_gone(void);
uint64_t send_front(enum msg_id type, const void *m);
struct msg_create want(void);
const char *create_with(struct msg_create *m);
const char *create(void);
void expect_error(unsigned type, unsigned status, const char *text);
void refuse_create(struct msg_create m, unsigned status, const char *text);
uint64_t send_kill(const char *id);
unsigned timeout_of(const char *id, enum timeout_mode mode, int64_t seconds);
/* Of the running sandbox that was answered last. */
int64_t end_at(void);
void subscribe(void);
/* The last event about an id. */
const struct event *last_event(const char *id);
int64_t rows(const char *sql);
void write_template(const char *id, const char *alias);

#endif
