/*
 * cubicle-init as PID 1 of a microVM, from the kernel's start of it until it can park (docs/microvm.md). The initramfs holds the program as /init, and modules of the kernel in /modules. Parts:
 * boot_cmdline.c what the kernel's command line says, boot_modules.c modules, boot_disks.c layers and the writable disk, boot_root.c the root, boot_kernel.c kernel settings and
 * cgroups, boot_net.c the network.
 */
#ifndef CUBICLE_GUEST_BOOT_H
#define CUBICLE_GUEST_BOOT_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ports_keeper;
struct loop;

enum { BOOT_MAX_LAYERS = 25 }; /* with the writable disk: /dev/vda to /dev/vdz */

/* cubicle.layers=N cubicle.net=ADDRESS/PREFIX,GATEWAY cubicle.mtu=N cubicle.pids=N */
struct boot_config {
	unsigned layers;
	uint32_t address, gateway; /* host byte order; address 0 = no network */
	unsigned prefix, mtu;      /* mtu 0 = the device's own */
	unsigned pids;             /* most processes and threads of commands; 0 = what the kernel can have */
};
/* Words of others are passed over. 0 or -EINVAL. */
int boot_cmdline_parse(struct str text, struct boot_config *ret, struct error *err);

/* Inserts every /modules/NAME.ko, by name. What a kernel does not take is logged: another part will miss it, or not. */
void boot_modules(void);

/* The kernel's events of devices, to wait for one: descriptor or -errno. To be open before the modules are there. */
int boot_events_open(void);
/* Until is_there() says so, 30 s at most: 0 or -ETIMEDOUT. */
int boot_events_wait(int events, bool (*is_there)(const void *arg), const void *arg);

struct boot_disks {
	int layers[BOOT_MAX_LAYERS]; /* detached mounts, lowest first */
	size_t n_layers;
	int writable;                /* likewise */
	int root;                    /* its root directory */
};
int boot_disks_mount(const struct boot_config *c, int events, struct boot_disks *ret, struct error *err);
/* Once the disk is in use: room that a full one needs to be mounted again. */
void boot_disks_spare(const struct boot_disks *d);

/* Whatever else is wrong: somebody's files are not what is to be freed. */
bool boot_root_is_initramfs(void);
/* The overlay of them becomes the root, with the kernel's file systems in it; what the initramfs holds is freed. */
int boot_root_switch(const struct boot_disks *d, struct error *err);

/* Limits, sysctls, cgroups, of which work has so many processes at most: agent, which this process is in then, and work, whose directory is returned. */
int boot_kernel_settle(unsigned pids, struct error *err);

int boot_net(const struct boot_config *c, int events, struct error *err);

/*
 * All of it. Returns with the control socket (vsock, listening) and a process that passes connections on (guest/ports.h), of which *ret_ports is to be kept alive; machine_get() is
 * there. On failure says why on the console and switches the machine off.
 */
int boot_machine(struct ports_keeper **ret_ports);
/* Where the counters of the cgroup of commands are. */
extern const char boot_work_cgroup[];

#endif
