/*
 * How far long work is, for people and programs. On a terminal: one line at the bottom of standard error that is drawn again, messages above it. Elsewhere: a line when
 * something new begins, without escape codes. With --json: a line of JSON for each on standard output.
 */
#ifndef CUBICLE_CLI_PROGRESS_H
#define CUBICLE_CLI_PROGRESS_H

#include "base/buf.h"

#include <stdint.h>

enum progress_mode {
	PROGRESS_PLAIN,
	PROGRESS_TERMINAL,
	PROGRESS_JSON,
};

struct progress {
	enum progress_mode mode;
	int64_t start;       /* of the work, monotonic */
	int64_t drawn;       /* when the line was drawn last */
	char phase[64];      /* shown last */
	int percent;
	unsigned turn;
	bool visible;        /* the line stands on the terminal */
};

/* Begins: the clock runs from now on. json: as the command was called. */
void progress_init(struct progress *p, bool json);

/*
 * The work is in this phase ("uploading") and so far: percent of all, -1 = not known; done and total bytes of the phase (total 0 = not known, both 0 = not shown). May be called as often as one
 * likes. Text of strangers may stand in phase.
 */
void progress_show(struct progress *p, const char *phase, int percent, uint64_t done, uint64_t total);

/* A message of the work, above the line; control characters are replaced. Not for PROGRESS_JSON, which has objects of its own. */
void progress_print(struct progress *p, struct str text);

/* Takes the line away: before other output, and at the end. */
void progress_clear(struct progress *p);

/*
 * Appends the line for a terminal of that many columns, never wider than columns - 1: the bar gives way first, then the text is cut, between characters (wide ones
 * count two). 0 or -ENOMEM. Pure, for progress_show() and the tests.
 */
int progress_line(struct buf *to, int columns, unsigned turn, const char *phase, int percent, uint64_t done, uint64_t total, int64_t seconds);

#endif
