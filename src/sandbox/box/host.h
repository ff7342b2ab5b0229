/*
 * What all workers of the namespace backend share: the machine's cgroups, loop devices, network, disks, layers, and two mount namespaces of our own.
 *
 * stage: a slave copy of the host's tree where layers are attached; nobody else sees them, and they vanish with the node.
 * birth: an almost empty tree that new sandboxes are cloned in, so that no host mount is copied, exposed or kept busy by them.
 */
#ifndef CUBICLE_SANDBOX_BOX_HOST_H
#define CUBICLE_SANDBOX_BOX_HOST_H

#include "config/instance.h"
#include "network/slot.h"
#include "sandbox/backend.h"
#include "sys/cgroup.h"
#include "sys/loopdev.h"

enum { UID_RANGE = 65536 };

struct layers;
struct machines;
struct masters;

struct host {
	const struct options *options;
	struct instance instance;
	char *dir;             /* the node's own directory */
	int control, disks, saved, images; /* descriptors of <dir>/control, <dir>/disks, <dir>/saved and <dir>/images: of one mount, so that files move between them */
	int init;              /* of our copy of cubicle-init, root:root 0711 */
	int null;              /* /dev/null */
	int stage, birth, net; /* mount namespaces; the host's network namespace */
	struct cgroups *cgroups;
	struct loopdevs *loops;
	struct network *network;
	struct layers *layers;
	struct machines *machines;
	bool parks;                       /* what most sandboxes are made of is parked: false where they are microVMs */
	struct masters *masters;
	struct buf filter, filter_nested; /* struct sock_filter[] */
	struct buf drop_caps;             /* msg_list of numbers */
	char boot_id[37];
	unsigned capacity;                /* slot numbers: 0..capacity-1 */
};

int host_new(const struct backend_config *c, struct host **ret, struct error *err);
/* Takes NULL. clean: also takes top cgroup and network chains away (nothing of ours is left running). */
void host_free(struct host *h, bool clean);

/* Makes the calling thread one that may do the backend's work: own file-system context in the stage namespace, capabilities kept across a change of its user
 * id. Cheap after the first time. Only for threads that do nothing else. 0 or -errno. */
int host_enter(struct host *h, struct error *err);

/* The first id of a slot's range. */
static inline uid_t host_uid(const struct host *h, unsigned number)
{
	return (uid_t)h->options->uid_base + number * UID_RANGE;
}

/* File-system ids of the calling thread: what it makes belongs to that id. 0 takes the thread's own back. */
void host_fsid(uid_t id);

#endif
