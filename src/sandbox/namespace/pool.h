/*
 * Parked slots, and the thread that prepares them: between pool.min and pool.max, sized by how fast they were taken lately. Thread-safe, but for
 * slot_pool_new() and slot_pool_free().
 */
#ifndef CUBICLE_SANDBOX_NAMESPACE_POOL_H
#define CUBICLE_SANDBOX_NAMESPACE_POOL_H

#include "base/error.h"

#include <stdbool.h>

struct box_spec;
struct host;
struct numbers;
struct slot;
struct pool;
struct backend_figures;

/* discard() takes a slot that is not wanted any more, from any thread; its number comes back by numbers_give(). */
int slot_pool_new(struct host *h, struct numbers *numbers, void (*discard)(struct slot *s, void *arg), void *arg, struct pool **ret, struct error *err);
void slot_pool_free(struct pool *p);

/* The filler starts. 0 or -errno. */
int pool_open(struct pool *p);
/* A parked slot whose init is alive, or NULL. With the spec's root already, or without one. */
struct slot *pool_take(struct pool *p, const struct box_spec *spec);
/* One that has the root already, or NULL; does not wait. */
struct slot *pool_take_dressed(struct pool *p, const struct box_spec *spec);
/* This layer goes: slots that have it in their root are discarded soon. */
void pool_forget_layer(struct pool *p, const char *layer);
/* Slots that wait, and how many should. */
void pool_figures(struct pool *p, struct backend_figures *ret);
/* Stops the filler and discards what is parked. */
void pool_close(struct pool *p);

#endif
