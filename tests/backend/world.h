/* A namespace backend with a small template (busybox), driven on its own loop; what tests of it share. Root only. */
#ifndef CUBICLE_TESTS_BACKEND_WORLD_H
#define CUBICLE_TESTS_BACKEND_WORLD_H

#include "unit/unit.h"

#include "base/buf.h"
#include "io/loop.h"
#include "sandbox/backend.h"

struct world {
	char dir[64];      /* state directory, removed at the end */
	uint32_t uid_base; /* ids of this world's sandboxes: WORLD_IDS of them, its alone */
	char template[96]; /* EROFS image */
	struct options options;
	const struct machines *machines; /* NULL = as the machine has it */
	struct loop *loop;
	struct backend *backend;
};

enum { WORLD_IDS = 256 * 65536 };

struct patient {
	struct box *box;
	struct box_handle handle;
	struct error error;
	struct box_death death;
	bool started, failed, died, released;
	bool prepared;  /* its services are ready */
	bool unready;   /* ... and were not, once */
	bool programs;  /* they ran before it was told to be started */
	char why[480];  /* they cannot become ready */
	bool assigned;  /* box_assign() has ended, with the error in `assignment` */
	struct error assignment;
};

/* False (and says why) where the tests cannot run: no root, no busybox. */
bool world_possible(void);
/* The directory and the template; then world_start(). Directory, names and ids are those of this process, so that tests beside each other do not meet. */
void world_init(struct world *w);
void world_set(struct world *w, const char *option, const char *value);
void world_start(struct world *w);
void world_ready(struct world *w);
/* Drains and frees the backend. */
void world_stop(struct world *w);
/* Removes the directory. */
void world_done(struct world *w);

/* A spec of the template with the options' default sizes. */
struct box_spec world_spec(struct world *w, const char *id);
void patient_create(struct world *w, struct patient *p, const struct box_spec *spec);
/* Turns the loop until *flag, at most some seconds; then the test fails with `what`. */
void wait_for(struct world *w, const bool *flag, const char *what);
/* Turns the loop for so many ms. */
void turn(struct world *w, int ms);
/* Adds a service to the list of a spec: `command` is cut at its spaces. */
void world_add_service(struct buf *list, const char *name, const char *user, const char *port, const char *command);
/* box_assign() with these variables and token ("" = open), and its end. */
extern box_assigned_fn patient_assigned;
void patient_assign(struct world *w, struct patient *p, const struct buf *envs, const char *token);
/* create and wait until it runs. */
void patient_run(struct world *w, struct patient *p, const char *id);
void patient_kill(struct world *w, struct patient *p);
extern const struct box_ops patient_ops;
extern const struct box_network any_network; /* everything but the private ranges */

/* A connection (blocking) to the port inside, or -errno. */
int world_open(struct world *w, struct patient *p, uint16_t port);
/* Runs `sh -c script` inside as `user` through envd: its standard output in *out (NUL-terminated by buf_cstr), its exit code; -1: killed by a signal. */
int inside(struct world *w, struct patient *p, const char *user, const char *script, struct buf *out);
/* The same, its output compared: fails with the script when the code is not 0 or the output differs. */
void expect_inside(struct world *w, struct patient *p, const char *script, const char *output);
void expect_inside_as(struct world *w, struct patient *p, const char *user, const char *script, const char *output);

/* The process with this pid (text) is one of a sandbox of this world. */
bool is_ours(struct world *w, const char *pid);
/* What exists of ours on the machine: processes outside our pid namespace's view, cgroups, loop devices, links, mounts, files; as text, to be compared. */
void inventory(struct world *w, struct buf *to);
/* Waits (the kernel lets go of things late) until the inventory is `before` again; fails with both. */
void expect_inventory(struct world *w, const struct buf *before);

#endif
