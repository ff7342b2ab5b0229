/* One call of filesystem.Filesystem, for the sources filesystem*.c only. */
#ifndef CUBICLE_GUEST_FILESYSTEM_CALL_H
#define CUBICLE_GUEST_FILESYSTEM_CALL_H

#include "guest/files_call.h"
#include "io/json.h"

#include <sys/types.h>

enum {
	WATCHERS_MAX = 4096,                  /* polled ones of a sandbox */
	WATCHER_MAX_BYTES = 16 * 1024 * 1024, /* of events, as JSON, that wait in one */
};

/* A call with its parsed message. */
struct filesystem_call {
	struct files_call *call;
	json_t *message;
	int64_t deadline;  /* CLOCK_MONOTONIC, 0 = none */
	struct buf answer; /* of a unary method, sent when it returns 0 */
	pid_t watcher;     /* made by this call: killed when its answer cannot be sent */
};

/* The path in a field, resolved; absent and null are the empty string (protobuf JSON mapping). */
int filesystem_path(struct filesystem_call *q, const char *field, struct buf *ret);

/* filesystem_watch.c: a stream, answered here until the client leaves, the deadline, or an error. */
int filesystem_watch_dir(struct filesystem_call *q);
/* filesystem_watcher.c */
int filesystem_create_watcher(struct filesystem_call *q);
int filesystem_get_watcher_events(struct filesystem_call *q);
int filesystem_remove_watcher(struct filesystem_call *q);

#endif
