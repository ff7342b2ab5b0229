/* The keys "services", "ready", "probe" and "env" of a template's description (node/templates.h), for templates.c. */
#ifndef CUBICLE_NODE_TEMPLATE_SERVICES_H
#define CUBICLE_NODE_TEMPLATE_SERVICES_H

#include "node/templates.h"

#include <jansson.h>

/* Read the value of the key; false when it has not the right form. What it says is checked by services_wrong(). */
bool services_take(struct template *t, const json_t *j);
bool ready_take(struct template *t, const json_t *j);
bool probe_take(struct template *t, const json_t *j);
/* Variables, of the template or of a service. */
bool env_take(struct template *t, const json_t *j, struct template_env *ret);
/* NULL, or what is wrong with them. */
const char *services_wrong(const struct template *t);
/* Appends the keys, each with a comma before it, or nothing when there are none. */
void services_serialize(const struct template *t, struct buf *to);

#endif
