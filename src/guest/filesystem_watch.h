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

/* Reads the message of WatchDir and CreateWatcher and begins to watch. Refusals are recorded. */
int watch_request_open(struct filesystem_call *q, struct watch_request *ret);
void watch_request_done(struct watch_request *w);

/* watch_read() of it. */
int watch_request_read(struct watch_request *w, watch_fn *tell, void *arg);

/* One event: {"name":…,"type":…,"entry":…}. An entry that cannot be had is left out. */
void watch_event_add(struct watch_request *w, struct buf *to, enum watch_op op, struct str name);

#endif
