/*
 * Who uses which image: layers of templates and builds (node/images), copies of disks (node/snapshots). A sandbox in any state uses the layers that its record names, a snapshot
 * those it was made on and its own, and something under way what it will make a sandbox of. Counted in memory, from the records at start; a name is relative to node/.
 *
 * A copy goes when nobody uses it and no template is made on it. A layer goes when, besides, it is none that builds find again (layers.h).
 */
#ifndef CUBICLE_NODE_IMAGES_H
#define CUBICLE_NODE_IMAGES_H

#include "base/map.h"
#include "io/messages.h"
#include "node/templates.h"

struct backend;
struct layers_of_builds;

struct images {
	struct map users;         /* name → number */
	const char *directory;    /* state.dir/node */
	const struct templates *templates;
	const struct layers_of_builds *layers;
	struct backend *backend;  /* NULL: nothing is removed (yet, or any more) */
};

/* One more, one less user of one name, and of each name that `layers` has. Without memory the node ends: it starts anew from its records. */
void images_use(struct images *m, struct str name);
void images_leave(struct images *m, struct str name);
void images_use_all(struct images *m, struct msg_list layers);
void images_leave_all(struct images *m, struct msg_list layers);
/* Somebody has let go of it in another way: it goes if that was the last reason to keep it. `unnamed`: of several that a template named. */
void images_unused(struct images *m, struct str name);
void images_unnamed(struct images *m, struct msg_list layers);
/* It has users, or a template names it. */
bool images_in_use(const struct images *m, struct str name);
/* Users of one name. */
unsigned images_users(const struct images *m, struct str name);

/* Reads the templates again (templates_load()), and removes the layers that only templates named which are gone. */
int images_reload_templates(struct images *m, struct templates *t, void (*changed)(const struct template *t, bool gone, void *arg), void *arg, struct error *err);
/* At start, when all users are known: removes what nobody uses. Layers of templates only while nobody makes a template. */
void images_sweep(struct images *m);
void images_done(struct images *m);

#endif
