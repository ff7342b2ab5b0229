/* A guest whole: memory, processors, devices, and what connects them. Everything here is called on the loop's thread. */
#ifndef CUBICLE_VMM_MACHINE_H
#define CUBICLE_VMM_MACHINE_H

#include "vmm/cpuid.h"
#include "vmm/devices.h"
#include "vmm/layout.h"
#include "vmm/serial.h"
#include "vmm/vcpu.h"

enum {
	MACHINE_DISKS_MAX = LAYOUT_DEVICES_MAX - 4,
};

/* Descriptors are -1 when absent. machine_new() takes those of devices over and sets them to -1; the rest stays the caller's. */
struct machine_config {
	unsigned vcpus;
	uint64_t memory; /* bytes */
	bool log_dirty;
	int kvm;
	int memory_file; /* the memory is a private view of it */
	int console, control;
	struct net_config net; /* tap -1: none */
	struct block_config disk[MACHINE_DISKS_MAX];
	size_t n_disks;
	void (*thread_begins)(void *arg, unsigned i); /* in processor i's thread, first; may be NULL */
	/* The guest is at its end; the machine stands. With VCPU_RESET: `panicked` as the console had it. */
	void (*ended)(void *arg, enum vcpu_end why, bool panicked, const char *what);
	void *arg;
};

struct machine {
	struct loop *loop;
	struct kvm kvm;
	struct guest_memory memory;
	struct cpuid cpuid;
	struct vcpus *vcpus;
	struct serial *serial;
	struct virtio_device *device[LAYOUT_DEVICES_MAX], *vsock, *balloon;
	unsigned n_devices;
	int generation; /* eventfd: the generation id is another one */
	bool running, up, over;
	void (*thread_begins)(void *arg, unsigned i);
	void (*ended)(void *arg, enum vcpu_end why, bool panicked, const char *what);
	void *arg;
};

struct kernel_files;

/* A machine with devices and processors that have no state yet. NULL with *err. */
struct machine *machine_new(struct loop *l, struct machine_config *c, struct error *err);
void machine_free(struct machine *m);

/* Loads a kernel; the first processor stands at its entry. The alternative is state_restore() (state.h). 0 or -errno. */
int machine_boot(struct machine *m, const struct kernel_files *f, struct error *err);
/* Tells the guest's kernel that it is another copy now: a new generation id, and an interrupt that says so when there was one before. */
void machine_new_generation(struct machine *m, bool interrupt);

/* Makes the threads; the machine stands until machine_resume(). 0 or -errno. */
int machine_start(struct machine *m, struct error *err);
/* The processors stand and the devices have nothing under way: the state may be saved. Nothing happens when it is so already. */
void machine_pause(struct machine *m);
void machine_resume(struct machine *m);

#endif
