/*
 * `cubicle builder`: the process that makes one template, started by node in a jail (sys/jail.h) for each build. It speaks to registries, reads what users have uploaded, and has what
 * runs run in sandboxes of the build; files it gets as descriptors, and everything that it tells is checked by node.
 *
 * Descriptors at start: 3 the channel to node (SEQPACKET, io/messages.h, "node and a builder"), 4 the options (options_serialize), 5, if there is one, the file of registry.ca.
 * The first message is build_begin; it ends with build_done or build_failed, or when the channel closes.
 *
 * Layers are found by what they follow from: `oci:HEX` are blobs of an image (unpack_layer), `step:HEX` what was done in a box, by the hash of everything that it depends
 * on: what is below, the instruction, its files, user, directory and environment.
 */
#ifndef CUBICLE_IMAGE_BUILDER_H
#define CUBICLE_IMAGE_BUILDER_H

#include "base/error.h"
#include "config/options.h"

enum { BUILDER_CHANNEL_FD = 3, BUILDER_OPTIONS_FD = 4, BUILDER_CA_FD = 5 };

/* The process; returns its exit status. */
int builder_main(int argc, char **argv);

/* The build that stands behind a channel, in the process as it is. 0 or -errno with *err when node could not be told how it ended. */
int builder_run(int channel, const struct options *o, struct str ca_pem, struct error *err);

/* builder_confine.c: no debugger, no core, no new privileges, an allow-list of system calls. */
int builder_confine(struct error *err);

#endif
