/* What keeps two servers on one machine apart: names derived from the state directory. */
#ifndef CUBICLE_CONFIG_INSTANCE_H
#define CUBICLE_CONFIG_INSTANCE_H

#include "config/options.h"

struct instance {
	char tag[5];         /* 4 hex digits of a hash of state.dir */
	uint32_t link_group; /* 0xCABE0000 | tag: interface group of all our links */
	char table[24];      /* nftables table: "cubicle_<tag>" */
	char cgroup[128];    /* top-level cgroup: "<cgroup.parent>-<tag>" */
};

void instance_of(const struct options *o, struct instance *ret);

#endif
