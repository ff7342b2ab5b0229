/* Numbers of slots, and when the first may be made. Thread-safe, but for numbers_new() and numbers_free(). */
#ifndef CUBICLE_SANDBOX_BOX_NUMBERS_H
#define CUBICLE_SANDBOX_BOX_NUMBERS_H

#include <stdbool.h>

struct numbers;

/* 0..capacity-1. NULL without memory. The second takes NULL. */
struct numbers *numbers_new(unsigned capacity);
void numbers_free(struct numbers *n);

/* A free number: >= 0, or -EAGAIN. */
int numbers_take(struct numbers *n);
/* A certain number, for re-adoption: 0, -EBUSY, -ERANGE. */
int numbers_reserve(struct numbers *n, unsigned number);
void numbers_give(struct numbers *n, unsigned number);
bool numbers_used(struct numbers *n, unsigned number);

/* Waits until the leftovers of an earlier run are gone, which numbers_open() says: no slot may be made before. Whoever waits is let go also by numbers_close(), at the end. */
void numbers_wait_open(struct numbers *n);
void numbers_open(struct numbers *n);
void numbers_close(struct numbers *n);

#endif
