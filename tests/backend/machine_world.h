/* A world whose sandboxes are microVMs with tests/backend/fake_monitor.c in the monitor's place: no KVM is needed. */
#ifndef CUBICLE_TESTS_BACKEND_MACHINE_WORLD_H
#define CUBICLE_TESTS_BACKEND_MACHINE_WORLD_H

#include "backend/world.h"
#include "sandbox/microvm/machines.h"

enum { MACHINE_BOOT_SECONDS = 4, MACHINE_ANSWER_SECONDS = 2 };

struct machine_world {
	struct world w;
	struct machines machines;
	struct buf before; /* inventory */
	size_t fds;        /* open in this process, before the backend is */
};

/* Begins it, ready for creates. */
void machine_world_begin(struct machine_world *m);
/* Without the backend. */
void machine_world_init(struct machine_world *m);
/* Stops it; fails when anything is left: processes, cgroups, links, files, descriptors. */
void machine_world_end(struct machine_world *m);
size_t open_descriptors(void);

/* A create, and its end: it must run. */
void machine_run(struct machine_world *m, struct patient *p, const char *id);
void machine_create(struct machine_world *m, struct patient *p, const char *id);
/* A descriptor of what it says on its console; the sandbox may be gone before. */
int machine_console(struct patient *p);
/* How often it has said that line. Closes nothing. */
int said(int console, const char *line);
/* Turns the loop until it has said it so often. */
void wait_said(struct machine_world *m, int console, const char *line, int times);
bool is_frozen(struct patient *p);
/* The monitor, as the handle has it. */
unsigned long monitor_pid(const struct patient *p);

#endif
