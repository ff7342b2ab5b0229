#include "config/instance.h"

#include <stdio.h>

void instance_of(const struct options *o, struct instance *ret)
{
	uint32_t hash = 2166136261u; /* FNV-1a, folded to 16 bits */
	for (const char *p = o->state_dir; *p; p++)
		hash = (hash ^ (unsigned char)*p) * 16777619u;
	unsigned tag = (hash ^ hash >> 16) & 0xffff;
	snprintf(ret->tag, sizeof(ret->tag), "%04x", tag);
	ret->link_group = 0xCABE0000u | tag;
	snprintf(ret->table, sizeof(ret->table), "cubicle_%s", ret->tag);
	snprintf(ret->cgroup, sizeof(ret->cgroup), "%.100s-%s", o->cgroup_parent, ret->tag);
}
