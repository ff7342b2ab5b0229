/*
 * Who uses which image: layers of templates (node/images), copies of disks (node/snapshots). A sandbox in any state uses the layers that its record names, a snapshot
 * those it was made on and its own, and something under way what it will make a sandbox of. Counted in memory, from the records at start; a name is relative to node/.
 *
 * A copy goes when nobody uses it. A layer of templates goes when, besides, no template names it.
 */
#ifndef CUBICLE_NODE_IMAGES_H
#define CUBICLE_NODE_IMAGES_H

#include "base/map.h"
#include "io/messages.h"
#include "node/templates.h"

struct backend;

struct images {
	struct map users;         /* name → number */
	const char *directory;    /* state.dir/node */
	const struct templates *templates;
	struct backend *backend;  /* NULL: nothing is removed (yet, or any more) */
};

/* One more, one less user of one name, and of each name that `layers` has. Without memory the node ends: it starts anew from its records. */
void images_use(struct images *m, struct str name);
void images_leave(struct images *m, struct str name);
void images_use_all(struct images *m, struct msg_list layers);
void images_leave_all(struct images *m, struct msg_list layers);
/* Users of one name. */
unsigned images_users(const struct images *m, struct str name);

/* Reads the templates again (templates_load()), and removes the layers that only templates named which are gone. */
int images_reload_templates(struct images *m, struct templates *t, void (*changed)(const struct template *t, bool gone, void *arg), void *arg, struct error *err);
/* At start, when all users are known: removes what nobody uses. Layers of templates only while nobody makes a template. */
void images_sweep(struct images *m);
void images_done(struct images *m);

#endif
