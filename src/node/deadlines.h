/* The deadlines of all sandboxes: a heap by CLOCK_BOOTTIME. */
#ifndef CUBICLE_NODE_DEADLINES_H
#define CUBICLE_NODE_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

/* Part of the object that has a deadline; zero = not in the heap. */
struct deadline {
	int64_t at;  /* ns */
	size_t heap; /* position + 1 */
};

struct deadlines {
	struct deadline **heap;
	size_t n, cap;
};

/* Sets or moves it; INT64_MAX takes it out. 0, or -ENOMEM (only for one that is not in; nothing changed). */
int deadlines_set(struct deadlines *d, struct deadline *x, int64_t at);
void deadlines_remove(struct deadlines *d, struct deadline *x);
/* Time of the earliest, INT64_MAX when there is none. */
int64_t deadlines_next(const struct deadlines *d);
/* Takes out and returns one that is due (at <= now), the earliest first; NULL when none is. */
struct deadline *deadlines_due(struct deadlines *d, int64_t now);
void deadlines_done(struct deadlines *d);

#endif
