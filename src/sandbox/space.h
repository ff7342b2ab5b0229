/*
 * The space of one sandbox's disk: an ext4 file system in a sparse image on loop<n>, mounted, `mount` a descriptor on the mount and `image` one of the file.
 *
 * A full host under sparse images destroys file systems, because the kernel has accepted data that has no room. The brake makes the file system inside
 * refuse new data in time: ext4's reserved_clusters (sysfs) counts clusters that only metadata in need may take, it may be changed while mounted, and
 * every delayed allocation is checked against it. So write(2) fails with ENOSPC at once, also in the middle of a long write, and what was accepted before
 * keeps its blocks.
 */
#ifndef CUBICLE_SANDBOX_SPACE_H
#define CUBICLE_SANDBOX_SPACE_H

#include "sandbox/backend.h"

/* 0 or -errno. */
int space_read(unsigned loop, int mount, int image, struct box_space *ret);
/* See box_brake(). 0 or -errno. */
int space_brake(unsigned loop, int mount, uint64_t most);
/* Ends the file system at once: nothing that is dirty is written any more, every access fails (EXT4_IOC_SHUTDOWN). For a disk that is thrown away: its unmount
 * then writes nothing, and needs no room on a full host. 0 or -errno. */
int space_shutdown(int mount);

#endif
