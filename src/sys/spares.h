/*
 * Room on a sandbox's writable disk that nobody inside can fill: empty directories beside upper and work, each of which is an inode and a block. The overlay makes directories at each
 * mount: a disk that is full to the last of either could not be mounted as somebody's root again, and so what is on it would be lost with the memory of its sandbox.
 */
#ifndef CUBICLE_SYS_SPARES_H
#define CUBICLE_SYS_SPARES_H

/* `mount`: the file system's root; a detached mount will do. As far as there is room. */
void spares_set_aside(int mount);
/* The same unless they are there. */
void spares_renew(int mount);
/* Gives them up when there is little room left, and waits until that can be used. */
void spares_spend(int mount);

#endif
