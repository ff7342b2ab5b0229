/* Watches as a client asks for them, and their events as JSON (e2b.md B.7), for the sources
 * filesystem_watch*.c only. */
#ifndef CUBICLE_GUEST_FILESYSTEM_WATCH_H
#define CUBICLE_GUEST_FILESYSTEM_WATCH_H

#include "guest/filesystem_call.h"
#include "guest/user.h"
#include "guest/watch.h"

struct watch_request {
	struct watch *watch;
	struct buf path; /* cleaned; of the entries */
	bool entries;
	/* For the entries; read anew by watch_request_read(). */
	struct user_names names;
	bool has_names;
};

/* What the message of WatchDir and CreateWatcher asks for. */
struct watch_options {
	struct buf path; /* resolved; to be freed in any case */
	bool recursive, entries, network_mounts;
};

/* Reads the message. 0, -ENOMEM, or a recorded refusal. */
int watch_request_parse(struct filesystem_call *q, struct watch_options *ret);

/* Reads the message and begins to watch. Refusals are recorded. */
int watch_request_open(struct filesystem_call *q, struct watch_request *ret);
void watch_request_done(struct watch_request *w);

/* watch_read() of it. */
int watch_request_read(struct watch_request *w, watch_fn *tell, void *arg);

/* One event: {"name":…,"type":…,"entry":…}. An entry that cannot be had is left out. */
void watch_event_add(struct watch_request *w, struct buf *to, enum watch_op op, struct str name);

#endif
