/* One running kernel: its process, the channels to it, and its life from start to end. */
#ifndef CUBICLE_INTERP_KERNEL_H
#define CUBICLE_INTERP_KERNEL_H

#include "interp/channel.h"
#include "interp/launch.h"

/* What all kernels share. */
struct kernel_host {
	struct loop *loop;
	void *zmq;
	const char *run_dir;
	struct launch_user user;
	int64_t start_time; /* ns that a kernel may take until it is ready */
	unsigned alive;     /* kernels whose process is not reaped yet */
};

enum kernel_channel { KERNEL_SHELL, KERNEL_CONTROL, KERNEL_IOPUB, KERNEL_CHANNELS };

struct kernel_ops {
	/* It answers, and what it publishes arrives. */
	void (*ready)(void *arg);
	/* It ended without being asked, or never became ready. The last call; free it. */
	void (*ended)(const struct error *why, void *arg);
	/* A signed message. `f` holds it: take a reference to keep the views. */
	void (*message)(enum kernel_channel from, const struct wire_message *m, struct frames *f, void *arg);
};

struct kernel;

/* Starts one. No callback comes from inside. NULL with *err set. host, spec and ops must outlive it. */
struct kernel *kernel_new(struct kernel_host *host, const struct kernelspec *spec, const char *cwd,
	const struct kernel_ops *ops, void *arg, struct error *err);
/* Kills it, if it lives. May be called from its callbacks, of which none comes afterwards. Takes NULL. */
void kernel_free(struct kernel *k);

/* Sends a request on the shell channel; its msg_id into ret_id[WIRE_ID_SIZE]. 0 or -errno. */
int kernel_request(struct kernel *k, const char *type, struct str content, char *ret_id);

/* Connects anew to what it publishes, because some of that was lost: a connection that brought a message over
 * CHANNEL_MAX_FRAME is gone for good. `ready` (or `ended`) follows, nothing else before. */
void kernel_resubscribe(struct kernel *k);

/* Interrupts what it is doing, as its kernelspec wants it. */
void kernel_interrupt(struct kernel *k);

/*
 * Back-pressure. Nothing in the protocol slows a kernel down: what its publisher cannot send, it drops. So
 * while its output cannot be passed on, nothing more is read from it, and its process is stopped (SIGSTOP);
 * what it had under way waits in the sockets.
 */
void kernel_hold(struct kernel *k, bool on);

#endif
