/* The namespaces' column of the table in sandbox/box/runtime.h. */
#include "sandbox/namespace/namespace_slot.h"
#include "sandbox/box/box.h"
#include "sandbox/space.h"
#include "base/cleanup.h"
#include "sys/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

enum { CREATE_TRIES = 3 };

static int check(const struct box_spec *spec, struct error *err)
{
	return 0;
}

/* 1: no parked slot is to be had. */
static int claim_parked(struct box *b)
{
	struct host *h = b->backend->host;
	for (int i = 0; i < CREATE_TRIES; i++) {
		struct slot *s = pool_take(b->backend->pool, &b->order.claim.spec);
		if (!s)
			return 1;
		int r = slot_claim(h, s, &b->order.claim, &b->error);
		bool lost = r < 0 && process_ended(s->pidfd);
		if (r == 0 || !lost) {
			b->slot = s;
			b->warm = true;
			return r;
		}
		backend_discard(b->backend, s);
	}
	return 1;
}

static int make_cold(struct box *b)
{
	struct host *h = b->backend->host;
	int r = box_take_slot(b);
	if (r == 0)
		r = slot_prepare(h, b->slot, &b->error);
	return r < 0 ? r : slot_claim(h, b->slot, &b->order.claim, &b->error);
}

static int start(struct box *b)
{
	int r = claim_parked(b);
	if (r == 1) {
		b->error = (struct error){0};
		r = make_cold(b);
	}
	return r;
}

static int start_at_once(struct box *b)
{
	struct error err = {0};
	struct backend *backend = b->backend;
	const struct slot_claim *c = &b->order.claim;
	struct slot *s = slot_is_usual(backend->host, c) ? pool_take_dressed(backend->pool, &c->spec) : NULL;
	if (!s)
		return 1;
	if (slot_claim_dressed(backend->host, s, c, &err) < 0) {
		backend_discard(backend, s);
		return 1;
	}
	b->slot = s;
	b->warm = true;
	return 0;
}

static int adopt(struct box *b)
{
	return slot_adopt(b->backend->host, b->slot, str_of(b->id), &b->reach, &b->error);
}

static int watch(struct box *b, struct error *err)
{
	return 0;
}

static void unwatch(struct box *b)
{
}

static void say_end(const struct box *b, char *to, size_t size)
{
	int code, status;
	if (slot_status(b->slot, &code, &status) < 0)
		snprintf(to, size, "its first process ended while the node was away or is not the node's child: no exit status");
	else if (code == CLD_EXITED)
		snprintf(to, size, "its first process exited with status %d", status);
	else
		snprintf(to, size, "its first process was killed by signal %d (%s)", status, strsignal(status));
}

static int space(const struct box *b, struct box_space *ret)
{
	cleanup_fd int image = box_open_image(b);
	return image < 0 ? image : space_read(b->slot->disk.loop, b->slot->disk.root, image, ret);
}

static int brake(const struct box *b, uint64_t most)
{
	return space_brake(b->slot->disk.loop, b->slot->disk.root, most);
}

static int connect_to(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	return opener_connect(b->backend->opener, b->slot->net.netns, b->slot->net.guest_address, port, done, arg);
}

static void slow_work(void *arg)
{
	struct slow_job *j = arg;
	struct fstrim_range all = {.len = UINT64_MAX};
	if (j->trim)
		ioctl(j->root, FITRIM, &all);
	else
		syncfs(j->root);
}

static void slow_done(void *arg)
{
	struct slow_job *j = arg;
	if (j->box)
		j->box->slow = NULL;
	close(j->root);
	free(j);
}

static void tidy(struct box *b, bool trim)
{
	if (b->slow)
		return;
	struct slow_job *j = calloc(1, sizeof(*j));
	if (!j)
		return;
	*j = (struct slow_job){.box = b, .root = fcntl(b->slot->disk.root, F_DUPFD_CLOEXEC, 3), .trim = trim};
	if (j->root < 0 || workq_push(b->backend->slow, b->backend->loop, slow_work, slow_done, j) < 0) {
		if (j->root >= 0)
			close(j->root);
		free(j);
		return;
	}
	b->slow = j;
}

/* The kernel is ours: what asks does that itself, on its worker. */
static void write_out(struct box *b, runtime_done_fn *done, void *arg)
{
	done(NULL, arg);
}

static void hold(struct box *b, bool on, runtime_done_fn *done, void *arg)
{
	if (done)
		done(NULL, arg);
}

const struct runtime namespace_runtime = {
	.isolation = "namespace", .check = check, .start = start, .start_at_once = start_at_once, .adopt = adopt, .watch = watch, .unwatch = unwatch, .attach = box_attach_spawner, .say_end = say_end,
	.space = space, .brake = brake, .open = connect_to, .tidy = tidy, .write_out = write_out, .hold = hold,
};
