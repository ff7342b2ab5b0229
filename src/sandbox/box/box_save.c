#include "sandbox/box/box.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

enum { STILL_TRIES = 1000 }; /* of a ms each */

/* A flush on a worker. It has descriptors of its own: the box may be killed meanwhile. */
struct flush {
	struct box *box; /* NULL: it is gone */
	struct host *host;
	char name[16];
	int root, image, result;
	void (*done)(int r, void *arg);
	void *arg;
};

static void flush_work(void *arg)
{
	struct flush *f = arg;
	/* The kernel freezes a process when it next leaves it. */
	for (int i = 0; i < STILL_TRIES && cgroups_frozen(f->host->cgroups, f->name, CGROUP_WORK) == 0; i++)
		usleep(1000);
	if ((f->root >= 0 && syncfs(f->root) < 0) || fsync(f->image) < 0)
		f->result = -errno;
}

static void flush_free(struct flush *f)
{
	if (f->root >= 0)
		close(f->root);
	if (f->image >= 0)
		close(f->image);
	free(f);
}

static void flush_done(void *arg)
{
	struct flush *f = arg;
	if (f->box) {
		f->box->flush = NULL;
		f->done(f->result, f->arg);
	}
	flush_free(f);
}

void box_forget_flush(struct box *b)
{
	if (b->flush)
		b->flush->box = NULL;
	b->flush = NULL;
}

static void written_out(const struct error *err, void *arg)
{
	struct flush *f = arg;
	if (!f->box || (err && err->code == -ECANCELED)) {
		if (f->box)
			f->box->flush = NULL;
		flush_free(f);
		return;
	}
	int r = workq_push(f->box->backend->slow, f->box->backend->loop, flush_work, flush_done, f);
	if (r < 0) {
		f->result = r;
		flush_done(f);
	}
}

int box_flush(struct box *b, bool room, void (*done)(int r, void *arg), void *arg)
{
	if ((b->state != BOX_RUNNING && b->state != BOX_DEAD) || b->flush)
		return -EBUSY;
	struct flush *f = malloc(sizeof(*f));
	if (!f)
		return -ENOMEM;
	*f = (struct flush){.box = b, .host = b->backend->host, .done = done, .arg = arg, .image = -1};
	snprintf(f->name, sizeof(f->name), "%s", b->slot->name);
	f->root = b->slot->disk.root < 0 ? -1 : fcntl(b->slot->disk.root, F_DUPFD_CLOEXEC, 3);
	f->image = box_open_image(b);
	int r = f->image < 0 ? f->image : f->root < 0 && b->slot->disk.root >= 0 ? -EMFILE : 0;
	if (r < 0) {
		flush_free(f);
		return r;
	}
	b->flush = f;
	if (b->state == BOX_RUNNING && room)
		b->runtime->write_out(b, written_out, f);
	else
		written_out(NULL, f);
	return 0;
}

static void held_for_save(const struct error *err, void *arg)
{
	if (err && err->code == -ECANCELED)
		return; /* it ends already */
	/* Without an answer its disk is as if the power had gone, and is checked. */
	box_release(arg);
}

int box_save(struct box *b, const char *image, void (*done)(const struct error *err, void *arg), void *arg)
{
	bool found_dead = b->state == BOX_MAKING && b->reported;
	if (b->save.image || b->state == BOX_RELEASING || (b->state != BOX_RUNNING && b->state != BOX_DEAD && !found_dead) || !b->slot)
		return -EBUSY;
	b->save.image = strdup(image);
	if (!b->save.image)
		return -ENOMEM;
	b->save.done = done;
	b->save.arg = arg;
	if (found_dead)
		b->reported = false; /* box_fail() releases it */
	else if (b->state == BOX_RUNNING)
		b->runtime->hold(b, true, held_for_save, b);
	else
		box_release(b);
	return 0;
}
