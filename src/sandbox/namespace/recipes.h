/*
 * What sandboxes were made of lately: the pool gives most of its parked slots the root of the favourite ahead, so that a create of it mounts nothing.
 * Not thread-safe: for the pool, under its lock.
 */
#ifndef CUBICLE_SANDBOX_NAMESPACE_RECIPES_H
#define CUBICLE_SANDBOX_NAMESPACE_RECIPES_H

#include "sandbox/backend.h"

struct recipe {
	size_t n; /* 0: a free place */
	char *layers[BOX_MAX_LAYERS];
	double demand; /* creates, each counting less with every window that passes */
	unsigned asked;
};

struct recipes {
	struct recipe list[8];
	struct recipe *favourite; /* NULL: nothing was asked for twice */
};

/* One more create of these layers. Forgets what is wanted least when there are too many. */
void recipes_ask(struct recipes *r, const char *const *layers, size_t n);
/* A window has passed. */
void recipes_decay(struct recipes *r);
/* Its layers are not there any more. */
void recipes_forget_favourite(struct recipes *r);
/* This layer goes: what is made of it is not asked for any more. */
void recipes_forget_layer(struct recipes *r, const char *layer);
/* How many of `wanted` parked slots should stay without a root, for what is not the favourite. */
unsigned recipes_bare(const struct recipes *r, unsigned wanted);
void recipes_done(struct recipes *r);

#endif
