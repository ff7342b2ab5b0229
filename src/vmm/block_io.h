/* A request to a disk, once it is checked, and how it is carried out: by threads that know nothing of the device (block.c). */
#ifndef CUBICLE_VMM_BLOCK_IO_H
#define CUBICLE_VMM_BLOCK_IO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct block_request {
	struct block_request *next;
	int file;
	uint32_t type;         /* VIRTIO_BLK_T_IN, _OUT, _FLUSH, _DISCARD, _WRITE_ZEROES */
	bool write_through;    /* of _OUT: on the disk when it is done */
	bool unmap;            /* of _WRITE_ZEROES: may make a hole */
	uint64_t offset, bytes;
	uint16_t head;         /* of its chain */
	uint32_t room;         /* bytes that the chain has before the status */
	unsigned char *status; /* where the guest wants to read how it went */
	int error;             /* how it went: 0 or -errno */
	unsigned n;
	struct iovec iov[];    /* of _IN and _OUT: `bytes` of the guest's memory, used up as it goes */
};

/* Carries it out and sets `error`. May take as long as a disk does. */
void block_io(struct block_request *r);
/* A read whose bytes are in the host's memory, at once: true when it is done. False: nothing is known, block_io() has to do it. */
bool block_io_cached(struct block_request *r);

#endif
