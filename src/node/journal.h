/*
 * The log of one sandbox as node keeps it: what happened to it, told by node, and what its init said of the inside (guest/logs.h), which is not trusted. Bounded; the oldest go.
 * Each entry has a number and a line: '+' (node's own) or '-' (init's), its time (ns, CLOCK_REALTIME) in decimal, a space, one JSON object {"level","logger","message","fields",...}, a
 * newline. So it crosses to the front (log_page), which parses the JSON, and so it lies in a file.
 */
#ifndef CUBICLE_NODE_JOURNAL_H
#define CUBICLE_NODE_JOURNAL_H

#include "base/buf.h"

#include <stdint.h>

enum {
	JOURNAL_OWN_MAX = 32 * 1024,    /* bytes of node's own entries, about 150 */
	JOURNAL_INIT_MAX = 256 * 1024,  /* of init's */
	JOURNAL_LINE_MAX = 32 * 1024, /* with what stands before the JSON */
	JOURNAL_FILE_MAX = 512 * 1024,
};

/* The logger of node's own entries; init's that claim it are not kept. */
#define JOURNAL_LOGGER "lifecycle"

struct journal_entry;

/* All zero is empty. */
struct journal {
	struct journal_entry *first, *last;
	uint64_t number;         /* of the newest */
	size_t own, init;        /* bytes */
	uint64_t init_number;    /* init's own number of its newest entry that was taken, and its time: what comes again is passed over */
	int64_t init_time;
};

struct journal_field {
	const char *name;
	struct str value;
};

/* Adds an entry of node's own. Fields end with one without a name; empty values are left out. Without memory nothing is added. */
void journal_add(struct journal *j, int64_t time, const char *level, const char *message, const struct journal_field *fields);
/* Adds what is new of a page of init's: lines of JSON that begin with {"n":<number>,"t":<time>, and hold no control characters; others are dropped. A time after `now` becomes now. The newest
 * `most` bytes are kept. */
void journal_add_page(struct journal *j, struct str page, int64_t now, size_t most);
/* Appends the lines of entries with a number over `after` and a time of at least `since`, as many as fit into max_bytes. *ret_next: the number to go on after. 1 = there are
 * more, 0 = these were all, -ENOMEM. */
int journal_read(const struct journal *j, uint64_t after, int64_t since, size_t max_bytes, struct buf *to, uint64_t *ret_next);
/* All lines. 0 or -ENOMEM. */
int journal_write(const struct journal *j, struct buf *to);
/* Adds the lines of a file; what is no such line is passed over. */
void journal_load(struct journal *j, struct str text);
void journal_done(struct journal *j);

#endif
