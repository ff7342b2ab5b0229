/*
 * A slot: everything of one sandbox that can be made before it is known whose it will be. Here is what is the same for both kinds; sandbox/namespace/namespace_slot.h and
 * sandbox/microvm/machine_slot.h make and adopt them. All of this blocks; on a worker that has entered the host.
 */
#ifndef CUBICLE_SANDBOX_BOX_SLOT_H
#define CUBICLE_SANDBOX_BOX_SLOT_H

#include "network/slot.h"
#include "sandbox/backend.h"
#include "sandbox/box/disk.h"
#include "sys/cgroup.h"

struct host;
struct newborn;

/* What is said to a microVM's monitor goes through a socket beside init's. */
#define SLOT_MONITOR_SUFFIX ".vm"

/* Mounted images, by the numbers of layers.h. n = 0: none. */
struct slot_root {
	size_t n;
	unsigned layers[BOX_MAX_LAYERS];
};

/* Detached mounts that have served. Closing one waits for the kernel's other CPUs: to be done when nobody waits for us. */
struct slot_rest {
	size_t n;
	int fds[BOX_MAX_LAYERS + 1];
};
void slot_rest_close(struct slot_rest *r);

struct slot {
	struct slot *next;   /* for the pool's list */
	unsigned number;
	char name[16];       /* "s<number>": its cgroups, the control socket of its init */
	char monitor_name[20]; /* of a microVM: its monitor's socket */
	pid_t pid;           /* PID 1, as the host sees it; 0: none */
	uint64_t start;      /* its start time */
	int pidfd;
	int mnt;             /* its mount namespace, while it is being killed: see slot_hold_mounts() */
	int conn;            /* blocking, until the loop takes it; -1 */
	bool has_net, has_cgroups, has_socket;
	bool knows_still;    /* its init is told when it is frozen */
	int monitor;         /* of a microVM: connection to its monitor, until the loop takes it; -1 */
	int console;         /* what the guest has written to its console, a memory file; -1 = not known */
	int log;             /* what the monitor has logged, likewise */
	struct net_slot net;
	struct disk disk;
	struct cgroup_limits limits; /* of the work group, as set */
	struct slot_root root;       /* what its init has entered already, while parked */
	struct slot_rest rest;
};

/* An empty slot, owning nothing yet. NULL without memory. */
struct slot *slot_new(unsigned number);

struct slot_claim {
	struct box_spec spec; /* views live as long as the claim */
	const struct reach *reach; /* its network policy; likewise */
	char hostname[65], boot_id[37], machine_id[33];
};

/* Its groups, with these limits; work's are s->limits. On failure: slot_release(). */
int slot_make_cgroups(struct host *h, struct slot *s, const struct cgroup_limits *agent, const struct cgroup_limits *work, struct error *err);
/* A newborn (`r`: what its clone returned) becomes PID 1 of the slot, joins the group, in `work` as one to be killed before anything of the host's, and begins. Its pipe is closed. 0 or -errno. */
int slot_begin(struct host *h, struct slot *s, struct newborn *n, int r, enum cgroup_part group, struct error *err);
/* Sends the claim; the answer is not waited for. m: has what only this kind of slot says. */
int slot_send_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct msg_claim *m, struct error *err);
/* Its share of the processors beside other sandboxes; 0: little. 0 or -errno. */
int slot_weigh(struct host *h, const struct slot *s, uint32_t cpu_count, struct error *err);
/* Is the process s->pid the one that began at s->start, and alive? Then s->pidfd is of it: 0. -ESRCH: no. */
int slot_find_process(struct slot *s, struct error *err);

/* Of an adopted one whose process lives: its network again (network/slot.h), with this policy. 0 or -errno. */
typedef int slot_adopt_network_fn(struct network *n, unsigned number, int netns, struct net_slot *ret, struct error *err);
int slot_adopt_network(struct host *h, struct slot *s, slot_adopt_network_fn *adopt, const struct reach *reach, struct error *err);

/* Moves a spawner into the work group. `pid` is what the kernel says of the sender of its message. */
int slot_attach_spawner(struct host *h, struct slot *s, pid_t pid, struct error *err);

/* Before the kill: else its last process takes the mounts down as it dies, which writes back what is dirty, and who waits for the death waits for that. */
void slot_hold_mounts(struct slot *s);
/* How long a worker waits for the end of what is killed; what takes longer is left to the loop (box.c, backend.c), which has a worker try again. */
enum { SLOT_DIES_MS = 500, SLOT_DIES_AGAIN_MS = 5000 };
/* Kills every process and waits for their end, so long: 0, or -ETIMEDOUT when it did not come. */
int slot_kill(struct host *h, struct slot *s, int patience_ms);
/* After slot_kill() came to an end: unmounts the disk and moves its image to <dir>/<image> (saved.h). check: it was mounted by this kernel, so it is checked when that left it unclean. */
int slot_save(struct host *h, struct slot *s, const char *image, bool check, struct error *err);
/* slot_kill(), then gives everything back; frees the slot. 0; on failure the slot is as it was. */
int slot_release(struct host *h, struct slot *s, int patience_ms);
/* Closes descriptors, leaves the sandbox running, frees the slot. */
void slot_leave(struct slot *s);

/* The wait status of PID 1 (it stays a zombie for slot_release): 0, -ECHILD when it is not our child. */
int slot_status(const struct slot *s, int *ret_code, int *ret_status);

#endif
