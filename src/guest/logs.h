/*
 * What happened in the sandbox, newest kept: started and ended commands, what services write. A ring of bounded size in the memory of PID 1; node reads it over
 * the control channel (`log_read`), for `GET /sandboxes/{id}/logs` (e2b.md A.5.4).
 */
#ifndef CUBICLE_GUEST_LOGS_H
#define CUBICLE_GUEST_LOGS_H

#include "base/buf.h"
#include "base/log.h"

#include <stddef.h>
#include <stdint.h>

enum {
	LOGS_MAX_BYTES = 256 * 1024, /* of all entries; the oldest go */
	LOGS_MAX_TEXT = 2048,        /* of a message or of a field's value; what is longer is cut */
};

struct logs;

struct log_field {
	const char *name; /* plain letters */
	struct str value;
};

/* Empty. NULL without memory. */
struct logs *logs_new(void);
/* Takes NULL. */
void logs_free(struct logs *l);

/* Adds an entry with the time of now. `logger` names who tells: plain letters and dashes. fields end with one without name; NULL = none. Bytes that are no UTF-8 are
 * replaced. Without memory, or with l NULL, nothing is added. */
void logs_add(struct logs *l, enum log_level level, const char *logger, struct str message, const struct log_field *fields);

/* fn(arg) follows each logs_add(), until it is set to NULL. l may be NULL. */
void logs_watch(struct logs *l, void (*fn)(void *arg), void *arg);

/*
 * Appends entries with a sequence number over `after` and a time (ns, CLOCK_REALTIME) of at least `since`, oldest first, as lines of JSON, {"n","t","level","logger","message","fields"}
 * (n: sequence number, t: ns), as many as fit into max_bytes. *ret_next: the number to go on after. 1 = there are more, 0 = these were all, -ENOMEM.
 */
int logs_read(const struct logs *l, uint64_t after, int64_t since, size_t max_bytes, struct buf *to, uint64_t *ret_next);

#endif
