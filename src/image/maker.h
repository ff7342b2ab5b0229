/* What the processes that make images (image/unpack.h, image/merge.h) have in common. */
#ifndef CUBICLE_IMAGE_MAKER_H
#define CUBICLE_IMAGE_MAKER_H

#include "io/messages.h"

#include <stdbool.h>

/* Limits of the process: image_max bytes to a file, memory bytes of address space, seconds of processor time, no core. Not dumpable, no new privileges. 0 or -errno with *err. */
int maker_limit(uint64_t image_max, uint64_t memory, uint64_t seconds, struct error *err);

/* The filter of system calls, for all threads: memory without execution, reading and writing what is open, messages; with `files` also opening for reading and looking at
 * files and their attributes. 0 or -errno with *err. */
int maker_filter(bool files, struct error *err);

/* Receives the first message, which must be of that type, into storage of MSG_MAX bytes. 0 or -errno with *err. */
int maker_receive(int channel, enum msg_id type, char *storage, union msg_any *ret, struct error *err);

/* Tells the error. Returns 1, the process' exit status. */
int maker_fail(int channel, const struct error *err);

#endif
