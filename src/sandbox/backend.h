/*
 * What a backend does for one sandbox (a "box"): src/sandbox/box, and what differs in namespaces (src/sandbox/namespace) and in microVMs (src/sandbox/microvm).
 * All calls and callbacks run on the node's loop thread; the backend takes its blocking work to its own workers.
 */
#ifndef CUBICLE_SANDBOX_BACKEND_H
#define CUBICLE_SANDBOX_BACKEND_H

#include "base/error.h"
#include "base/str.h"
#include "config/options.h"
#include "io/messages.h"

#include <sys/types.h>

struct loop;
struct box;
struct backend;
struct machines;

enum { BOX_MAX_LAYERS = 20 }; /* a template's 12 at most, and those of snapshots; more would not find their place in an overlay option of Linux 6.1 (sys/mounts.h) */

/* What to start. Views and pointers need to live only during the call. */
struct box_spec {
	struct str id;                     /* sandbox id */
	struct str template_id;
	const char *layers[BOX_MAX_LAYERS]; /* paths of images, lowest first: EROFS, or (name ends in .img) the writable disk of another sandbox, whose upper it is */
	size_t n_layers;
	const char *disk;                  /* a saved image (as of box_save()) that becomes its writable disk; the file keeps that name, too, until the asker removes it. NULL = a new disk */
	struct msg_list allow_out, deny_out; /* network policy beside `internet`; empty = nothing */
	uint32_t cpu_count, memory_mb, disk_mb, pids;
	struct msg_map envs;               /* user and system variables, complete */
	uint64_t template_envs;            /* so many of them, the first, are the template's */
	struct str token;                  /* envd access token; empty = open */
	struct str user, workdir;          /* defaults; workdir may be empty */
	bool internet;
	struct str isolation;              /* "namespace", "microvm", or "auto" and empty: what the server does by default */
	bool nested_userns, no_setuid;     /* template options */
	struct msg_list services;          /* what init keeps running, as the claim has it (io/messages.h); empty: nothing */
	struct msg_list service_options;   /* what they have beside that, likewise; empty: nothing */
	struct msg_list ready;             /* the template's ready command, likewise; empty: there is none */
	uint16_t probe_port;               /* what answers there is ready; 0 = nothing is asked */
	struct str probe_path;             /* with an HTTP GET of this; empty: a connection is enough */
	bool wait_ready;                   /* started() is held back until they are ready, if box_ops has programs(); not for an unassigned one, which has prepared() */
	bool unassigned;                   /* of a ready pool: it has a small share of the processors until box_assign(), and prepared() is called */
};

/* What it may reach: lists as of MSG network (io/messages.h), and allow_internet_access. Views. */
struct box_network {
	struct msg_list allow_out, deny_out;
	bool internet;
};

/* What must be known to find the box again after a restart of the node; stored in the sandbox's record as one line of text. */
struct box_handle {
	char text[512]; /* "pid=… start=… slot=… loop=… boot=…", private to the backend, versioned */
};

/* How a box ended, from evidence. */
struct box_death {
	char reason[16];  /* "oom_killed", "crashed", "host_lost"; intents (killed, timeout, disk_full) are the caller's */
	char detail[256];
};

struct box_stats {
	uint64_t cpu_usec, memory_used, memory_limit, memory_cache, pids, oom_kills;
};

/* The disk of a box, in bytes. */
struct box_space {
	uint64_t total;   /* size of the file system inside */
	uint64_t used;    /* promised to files inside, pending ones too */
	uint64_t pending; /* accepted by write(2), no block chosen yet: comes to the host at the next write-back */
	uint64_t backed;  /* held on the host by the image */
	bool foreign;     /* of another kernel: what is in use inside is not known (`used` is what is held), nothing is pending, since what it has written has its room on the
			     host at once, and no brake holds */
};
#define BOX_NO_BRAKE UINT64_MAX

struct box_ops {
	/* The create is over: err NULL = envd answers and the handle is filled; else the box is gone already (freed after the call). */
	void (*started)(struct box *b, const struct box_handle *h, const struct error *err, void *arg);
	/* PID 1 ended without box_kill(). Resources are still there: call box_kill() to release them. */
	void (*died)(struct box *b, const struct box_death *d, void *arg);
	/* All processes are dead; disk, cgroups and network go behind it. The box is freed after the call. */
	void (*released)(struct box *b, void *arg);
	/* Of an unassigned one, after started(): its services are ready now, or not any more; why (not to be trusted; else NULL): they cannot become ready. NULL: nobody wants to know. */
	void (*prepared)(struct box *b, bool ready, const char *why, void *arg);
	/* Of one that is waited for (box_spec.wait_ready), before started(): its programs run from now on, so its disk is to be watched. NULL: started() is not held back. */
	void (*programs)(struct box *b, void *arg);
};

struct backend_config {
	const struct options *options; /* outlives the backend */
	const char *state_dir;         /* the node's own directory, root-only */
	const char *init_path;         /* cubicle-init */
	const char *monitor_path;      /* cubicle-vmm; need not exist where there are no microVMs */
	const struct machines *machines; /* what microVMs are made of (microvm/machines.h), for tests; copied. NULL = it is found out */
	/* Egress learns of DNS sockets through these (the node sends dns_serve / dns_policy / dns_stop). May be called before an egress is connected. */
	void (*dns_serve)(unsigned slot, int udp, int tcp, bool allow, struct str sandbox, void *arg);
	void (*dns_stop)(unsigned slot, void *arg);
	void *arg;
};

/* Starts workers and the pool filler. Sweeps what an earlier run left that no `keep` handle names (cgroups, disks, sockets, loop devices): call box_adopt()
 * for every recorded box *before* backend_ready(). */
int backend_new(struct loop *l, const struct backend_config *c, struct backend **ret, struct error *err);
/* Adoption is over: sweep, fill the pool. */
void backend_ready(struct backend *b);
/* Drains parked slots; running boxes live on. done() on the loop when nothing parked is left. Then free. */
void backend_drain(struct backend *b, void (*done)(void *arg), void *arg);
void backend_free(struct backend *b);
/* What comes of a wish for isolation (as in box_spec): "namespace" or "microvm". NULL with *err (400): this server cannot, and why. */
const char *backend_isolation(const struct backend *b, struct str wanted, struct error *err);
/* The same of a box. */
const char *box_isolation(const struct box *b);

/* Its pool: slots that wait, and how many should. */
struct backend_figures {
	uint64_t parked, wanted;
};
void backend_figures(const struct backend *b, struct backend_figures *ret);

/* Starts a box: from a parked slot when there is one, else cold. NULL with *err (503 when no slot number or uid range is free, 400 for a network policy that this server refuses). */
struct box *box_create(struct backend *b, const struct box_spec *spec, const struct box_ops *ops, void *arg, struct error *err);
/* What an unassigned box becomes. Views, during the call. */
struct box_assignment {
	struct msg_map envs;    /* complete */
	uint64_t template_envs; /* as in box_spec */
	struct str token;       /* empty = open */
};
/* It is somebody's from now on: what is started in it has these variables and envd this token before done() follows, and it has the share of the processors that others have. err NULL: it is done
 * and its services are ready; else it is of no use any more: box_kill(). Not called when the box ends first. 0, -EAGAIN when it does not run or is no unassigned one, or -errno. */
typedef void box_assigned_fn(const struct error *err, void *arg);
int box_assign(struct box *b, const struct box_assignment *a, box_assigned_fn *done, void *arg);
/* Finds a box again after a restart. started() follows when init answered with the same id, with err set when the box is dead (then released() is not called;
 * *err->message and death say why). `network` is put in force again. NULL with *err when the handle is not understood. */
struct box *box_adopt(struct backend *b, struct str id, const char *handle, const struct box_network *network, const struct box_ops *ops, void *arg, struct error *err);
/* From here on others are told of it. In any state. */
void box_hand_over(struct box *b, const struct box_ops *ops, void *arg);
/* Kills every process, then releases everything; released() follows when all are dead. Idempotent, in any state (a create in flight is cancelled). */
void box_kill(struct box *b);
/* Freezes or thaws all processes of the work cgroup (disk pressure; pause later). Blocking time under 1 ms. 0 or -errno. */
int box_freeze(struct box *b, bool on);
/* For one that is frozen: waits until its processes stand still (one that cannot, in the kernel, is waited for a second), then writes all of its disk to the image and the image to
 * its device. Without `room` on the host a microVM keeps in its memory what is not in the image yet. done(0 or -errno) follows, unless the box is gone before. 0, -EBUSY when it does not
 * run or is being flushed, or -errno. */
int box_flush(struct box *b, bool room, void (*done)(int r, void *arg), void *arg);
/* Ends every process, unmounts the disk and moves its image to `image` ("saved/NAME", or "images/NAME.img": a layer; relative to state_dir), complete, checked where it has to be, and durable. Also for a box that died, and in
 * started() of an adoption that found it dead; when it stands there already (an earlier node was ended meanwhile), that is it. done() follows, err NULL when it is there,
 * then released(); box_kill() changes nothing about that. 0, -EBUSY when it is being killed, or -errno. */
int box_save(struct box *b, const char *image, void (*done)(const struct error *err, void *arg), void *arg);
/* Evidence of how it ended, for use after died() or adoption of a dead one. */
void box_evidence(struct box *b, struct box_death *ret);
/* Reads its cgroups, on a worker: done() follows, with NULL when they could not be read; it does not follow when the box is gone first. 0, -EBUSY (it does not run, or is
 * being read already), -EAGAIN (too many wait), or -errno. */
typedef void box_stats_fn(const struct box_stats *s, void *arg);
int box_stats(struct box *b, box_stats_fn *done, void *arg);
/* Bytes of host disk its image holds now, and a trim (FITRIM) of it on a worker. */
int64_t box_disk_bytes(const struct box *b);
void box_trim(struct box *b);
/* What the node's space account works with (sandbox/space.h does it for an ext4 image on a loop device). space: 0 or -errno. Under 50 us. */
int box_space(const struct box *b, struct box_space *ret);
/* Bytes in memory that its processes have written to files and that are not on the disk yet, whether a block was chosen or not (fallocate inside chooses them
 * before). 0, -ENOENT where nobody accounts memory, or -errno. */
int box_dirty(const struct box *b, uint64_t *ret);
/* box_space.used may grow to `most`; what is over gets ENOSPC from write(2), before it is dirty. BOX_NO_BRAKE = no limit but the disk's size.
 * Stays in force when the node ends. 0 or -errno; under 50 us. */
int box_brake(struct box *b, uint64_t most);
/* Starts writing back what is dirty inside (syncfs on a worker, one at a time per box; a second call while one runs does nothing). */
void box_sync(struct box *b);
/* What a copy of a disk cost. */
struct box_copied {
	uint64_t size;  /* bytes of host disk that the copy holds */
	int64_t paused; /* ns in which what writes to files inside had to wait */
};
/* c NULL: there is no copy, *err says why: 507 no room, -ECANCELED the box was killed meanwhile. */
typedef void box_copied_fn(const struct box_copied *c, const struct error *err, void *arg);
/* Copies its disk, as it is with all that was written so far, to the file `path`, which another box may name as a layer: complete and durable there, or absent (a file
 * path + ".new" may be left behind by a crash). Programs inside go on, but what they write meanwhile waits. One at a time per box. done() follows, perhaps after
 * released(), unless this fails: -EAGAIN when it does not run, -EBUSY when one is under way, or -errno. */
int box_copy(struct box *b, const char *path, box_copied_fn *done, void *arg);
/* The image at the path is not named by anybody any more: forgets the mount of it, then removes the file. On a worker; boxes that still end keep what they use. */
void backend_drop_image(struct backend *b, const char *path);
/* The root directories of layers at these paths, ids as they are on them, for reading: n descriptors into `fds`, the asker's; each keeps its layer mounted. On a worker: done() follows,
 * with err when there is none of them. fds stays until then. 0, or -errno. */
int backend_open_layers(struct backend *b, const char *const *paths, size_t n, int *fds, void (*done)(const struct error *err, void *arg), void *arg);
/* A connected non-blocking socket to the port inside; see network/slot.h opener_connect() for results. -ENOTCONN: of a microVM whose monitor cannot be reached just now. */
int box_open(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg);
/* What happened inside (guest/logs.h): a page of the log, as init tells it, not to be trusted; m NULL: the box ended first, or could not. The views live during the call. */
typedef void box_log_fn(const struct msg_log_page *m, void *arg);
/* done() follows unless this fails: -EAGAIN when it does not run, -EBUSY when too many wait already, or -errno. */
int box_log(struct box *b, uint64_t after, box_log_fn *done, void *arg);
/* From now on done() is told each page as entries come, at most some 30: then call it again, which replaces the call before. m NULL: no more come. done NULL: nobody wants to
 * know any more. */
int box_follow_log(struct box *b, uint64_t after, box_log_fn *done, void *arg);
/* Replaces what it may reach, live: done() follows with err NULL, or with what went wrong: what is in force then is never wider than before. Not called when the box ends
 * first. 0, or what was wrong at once with *err: 400, -EBUSY while one is under way, -EAGAIN when it does not run. */
typedef void box_network_fn(const struct error *err, void *arg);
int box_network(struct box *b, const struct box_network *policy, box_network_fn *done, void *arg, struct error *err);
const char *box_launch(const struct box *b); /* "warm" or "cold" */

#endif
