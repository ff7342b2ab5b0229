/*
 * The processes that make templates: `cubicle builder`, one for each build, and for each image that it has made `cubicle unpack` or `cubicle merge` (docs/architecture.md,
 * "Templates"). What they say is hostile: they get nothing but what was made for, found for, or given to their own build. Inside the room of node.
 */
#ifndef CUBICLE_NODE_BUILDERS_H
#define CUBICLE_NODE_BUILDERS_H

#include "node/builds.h"
#include "sys/jail.h"

/* A builder for this build, whose spec it takes. Whatever happens then, build_left() is called when nothing of it is left, and before it build_succeeded() or
 * build_failed(). 0, or -errno with *err. */
int builder_start(struct build *b, struct error *err);
/* Ends it: the build fails for that reason. */
void builder_end(struct builder *b, const char *reason);
/* The node is being freed: processes end by themselves. Takes NULL. */
void builder_forget(struct builder *b);
/* The space account ends one of its sandboxes: true when the entry is one of those. */
bool builders_ended_for_disk(struct node *n, struct disk_entry *e, const char *detail);

#endif
