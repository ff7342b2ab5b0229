/*
 * Calls from the front to the node, and the subscription that feeds the index. Everything runs on the front's one loop.
 *
 * A call either fails at once (NULL and *err) or calls done() exactly once, later, from the loop; node_call_cancel() takes that back.
 * When the channel is lost every call in flight ends with 503 and retry_after; a node that does not answer in NODE_CALL_SECONDS gives 504.
 */
#ifndef CUBICLE_API_NODE_CLIENT_H
#define CUBICLE_API_NODE_CLIENT_H

#include "api/index.h"
#include "base/error.h"
#include "io/loop.h"

enum {
	NODE_CALL_SECONDS = 55, /* clients give up after 60 s (e2b.md A.2) */
	NODE_BUILD_SECONDS = 3900, /* node_await_build(): the node ends a build after an hour */
	NODE_RETRY_AFTER = 1,   /* seconds to wait while the node is away */
};

struct node_client;
struct node_call;

/* What a call ended with. */
struct node_answer {
	const struct error *err;   /* NULL = it worked; else status, message and retry_after are for the client */
	const union msg_any *body; /* `sandbox` of create, timeout, resume, rollback, `snapshot`, `forked`, `stream` of open; the index holds the new state already. NULL with err */
	int fd;                    /* open: the connected non-blocking socket; write_file: the empty file; owned by the callback. Else -1 */
};
typedef void node_done_fn(const struct node_answer *a, void *arg);

/* NULL without memory. The index is not owned. */
struct node_client *node_client_new(struct loop *l, struct sandbox_index *ix);
/* Calls in flight end without done(), and unwatched. Takes NULL. */
void node_client_free(struct node_client *nc);

/* A fresh channel (owned from here) to a node: the old one, if any, is dropped and its calls fail with 503; then subscribes anew. 0 or -errno. */
int node_client_attach(struct node_client *nc, int fd);
/* How long a call may wait for its answer, to be set before the first; NODE_CALL_SECONDS unless a test is in a hurry. */
void node_client_set_patience(struct node_client *nc, int64_t ns);
bool node_client_connected(const struct node_client *nc);

/* Views in *m need to live only during the call. */
struct node_call *node_create(struct node_client *nc, const struct msg_create *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_kill(struct node_client *nc, const struct msg_kill *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_timeout(struct node_client *nc, const struct msg_timeout *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_pause(struct node_client *nc, const struct msg_pause *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_resume(struct node_client *nc, const struct msg_resume *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_network(struct node_client *nc, const struct msg_network *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_snapshot(struct node_client *nc, const struct msg_make_snapshot *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_delete_snapshot(struct node_client *nc, const struct msg_delete_snapshot *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_fork(struct node_client *nc, const struct msg_fork *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_rollback(struct node_client *nc, const struct msg_rollback *m, node_done_fn *done, void *arg, struct error *err);
/* A connection to a port inside the sandbox. Errors: 502 with code -ECONNREFUSED (nothing listens) or -ETIMEDOUT; 404 no such sandbox. */
struct node_call *node_open(struct node_client *nc, struct str sandbox, uint16_t port, node_done_fn *done, void *arg, struct error *err);
/* A page of the log of a running sandbox: the answer's body is `log_page`, whose entries are what its init said. */
struct node_call *node_logs(struct node_client *nc, const struct msg_logs *m, node_done_fn *done, void *arg, struct error *err);
/* What sandboxes used: the answer's body is `metrics_page`. */
struct node_call *node_metrics(struct node_client *nc, const struct msg_metrics *m, node_done_fn *done, void *arg, struct error *err);
/* The node's figures about itself: the answer's body is `figures_page`. */
struct node_call *node_figures(struct node_client *nc, node_done_fn *done, void *arg, struct error *err);
/* What a ready build of a template is: the answer's body is `template_description`. */
struct node_call *node_describe_template(struct node_client *nc, const struct msg_describe_template *m, node_done_fn *done, void *arg, struct error *err);
/* Ready pools: the answer's body is `pools_page`, of node_set_pool() with that pool alone. */
struct node_call *node_pools(struct node_client *nc, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_set_pool(struct node_client *nc, const struct msg_set_pool *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_unset_pool(struct node_client *nc, const struct msg_unset_pool *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_reload_templates(struct node_client *nc, node_done_fn *done, void *arg, struct error *err);

/* Templates and their builds (io/messages.h): the answer's body is `build_made`, `build_page`, `builds_page`, `file_found`, `file_writer`, `images_page`, or none. `spec` is not owned. */
struct node_call *node_make_template(struct node_client *nc, const struct msg_make_template *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_start_build(struct node_client *nc, const struct msg_start_build *m, int spec, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_build_status(struct node_client *nc, const struct msg_build_status *m, node_done_fn *done, void *arg, struct error *err);
/* Waits until the build ends, which may take an hour. */
struct node_call *node_await_build(struct node_client *nc, const struct msg_await_build *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_builds(struct node_client *nc, const struct msg_builds *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_tag_template(struct node_client *nc, const struct msg_tag_template *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_untag_template(struct node_client *nc, const struct msg_untag_template *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_change_template(struct node_client *nc, const struct msg_change_template *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_delete_template(struct node_client *nc, const struct msg_delete_template *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_find_file(struct node_client *nc, const struct msg_find_file *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_write_file(struct node_client *nc, const struct msg_write_file *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_keep_file(struct node_client *nc, const struct msg_keep_file *m, node_done_fn *done, void *arg, struct error *err);
struct node_call *node_collect_images(struct node_client *nc, const struct msg_collect_images *m, node_done_fn *done, void *arg, struct error *err);

/* ended(arg) is called once when the call is over, however it ends and also after node_call_cancel(); before done(). One at a time; NULL takes it off. */
void node_call_watch(struct node_call *c, void (*ended)(void *arg), void *arg);

/* done() will not be called; what the node does about it goes on, a descriptor that arrives is closed. Takes NULL. Not from within its own done(). */
void node_call_cancel(struct node_call *c);

#endif
