/* What the node asks the machine: clocks, memory, the disk of the state directory. Behind function pointers, so that tests are their own machine. */
#ifndef CUBICLE_NODE_HOST_H
#define CUBICLE_NODE_HOST_H

#include "base/error.h"

#include <stdint.h>

struct host_memory {
	uint64_t total, available; /* bytes */
	double pressure;           /* percent of the last 10 s in which everything waited for memory (PSI full avg10), also at limits of cgroups; 0 = not told */
};

struct host_disk {
	uint64_t total, free; /* bytes; free: for processes without privilege */
	uint64_t dirty;       /* bytes in memory, of all file systems, that are not written back yet */
};

struct host {
	int64_t (*boottime)(void *arg);
	int64_t (*realtime)(void *arg);
	int (*memory)(struct host_memory *ret, void *arg); /* 0 or -errno */
	int (*disk)(struct host_disk *ret, void *arg);     /* 0 or -errno */
	char boot_id[37];
	void *arg;
};

/* The real machine; state_dir must live as long. 0 or -errno. */
int host_init(struct host *h, const char *state_dir, struct error *err);

#endif
