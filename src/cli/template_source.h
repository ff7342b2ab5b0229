/* What `template create` makes a template of: each flag that names a source, and what it becomes in the body that starts the build. */
#ifndef CUBICLE_CLI_TEMPLATE_SOURCE_H
#define CUBICLE_CLI_TEMPLATE_SOURCE_H

#include "cli/build_follow.h"
#include "cli/pack.h"

struct template_source {
	json_t *body;          /* of the start of the build (build_run()); owned */
	struct packed files;   /* to be sent before it; none: fd -1 */
	char snapshot[64];     /* made for this build, "" = none */
};

void template_source_done(struct template_source *s);
#define cleanup_template_source __attribute__((__cleanup__(template_source_done)))

/* Which of the flags --image, --template, --sandbox, --snapshot, --rootfs, --oci-layout, --docker-archive and --packages is given: exactly one must be, with
 * those that go with it. A number for template_source_open(), or -EINVAL with *err. */
int template_source_choose(const struct cli *c, struct error *err);

/* Does what stands before a build: packs, makes a snapshot, runs mmdebstrap. 0 or -errno with *err. */
int template_source_open(struct template_source *s, int choice, struct build *b, struct error *err);

/* Adds a file to be sent as the source: type "oci-archive", "docker-archive" or "rootfs"; `name` chooses an image in an archive, NULL = there is one. 0 or -ENOMEM with *err. */
int template_source_files(struct template_source *s, const char *type, const char *name, struct error *err);

#endif
