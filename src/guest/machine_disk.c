#include "guest/machine_disk.h"
#include "base/clock.h"
#include "base/log.h"
#include "guest/machine.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { QUIET_SECONDS = 30 };

struct machine_disk {
	struct chores *chores;
	struct loop_timer *timer; /* dead man's */
	const void *holder; /* who asked for the quiet that lasts, or NULL */
	bool expired; /* it ended without being asked to, and nobody has been told */
};

static int work_sync(const void *arg)
{
	machine_wait_still();
	return syncfs(machine_get()->disk) < 0 ? -errno : 0;
}

static int work_freeze(const void *arg)
{
	return ioctl(machine_get()->disk, FIFREEZE, 0) < 0 ? -errno : 0;
}

static int work_thaw(const void *arg)
{
	/* EINVAL: it is not frozen. */
	return ioctl(machine_get()->disk, FITHAW, 0) < 0 && errno != EINVAL ? -errno : 0;
}

static int work_trim(const void *arg)
{
	struct fstrim_range all = {.len = UINT64_MAX};
	int disk = machine_get()->disk;
	/* Of what was deleted, the blocks are free after the journal's next commit, and the next trim has them. A sync now would take room of a host that has little. */
	return ioctl(disk, FITRIM, &all) < 0 ? -errno : 0;
}

static int add(struct machine_disk *d, chore_work *work, chore_done *done, void *owner, uint64_t request)
{
	const struct machine *m = machine_get();
	/* The directory of the cgroup: a sync looks whether it stands still. */
	struct chore_order o = {.work = work, .keep = {m->disk, m->work}, .done = done, .owner = owner, .request = request};
	return chores_add(d->chores, &o);
}

/* What cannot be begun now is tried again by the timer. */
static int thaw(struct machine_disk *d, chore_done *done, void *owner, uint64_t request)
{
	int r = add(d, work_thaw, done, owner, request);
	if (r < 0)
		loop_timer_in(d->timer, NS_PER_S);
	else
		loop_timer_stop(d->timer);
	return r;
}

static void thawed(int result, void *owner, uint64_t request)
{
	struct machine_disk *d = owner;
	if (result < 0 && !d->holder)
		loop_timer_in(d->timer, NS_PER_S);
}

static void go_on_unasked(struct machine_disk *d, const char *why)
{
	log_warn("the disk %s: it goes on", why);
	d->holder = NULL;
	d->expired = true;
	thaw(d, thawed, d, 0);
}

static void on_quiet_too_long(struct loop_timer *t, void *arg)
{
	go_on_unasked(arg, "was quiet for too long");
}

struct machine_disk *machine_disk_new(struct loop *l)
{
	struct machine_disk *d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	d->chores = chores_new(l);
	d->timer = loop_timer_new(l, on_quiet_too_long, d);
	if (d->chores && d->timer)
		return d;
	machine_disk_free(d);
	return NULL;
}

void machine_disk_free(struct machine_disk *d)
{
	if (!d)
		return;
	chores_free(d->chores);
	loop_timer_free(d->timer);
	free(d);
}

int machine_disk_sync(struct machine_disk *d, chore_done *done, void *owner, uint64_t request)
{
	return add(d, work_sync, done, owner, request);
}

int machine_disk_quiesce(struct machine_disk *d, bool on, chore_done *done, void *owner, uint64_t request)
{
	if (on) {
		/* Before it is frozen: after that nothing may fail. */
		int r = loop_timer_in(d->timer, QUIET_SECONDS * NS_PER_S);
		if (r == 0)
			r = add(d, work_freeze, done, owner, request);
		d->expired = false;
		d->holder = owner;
		return r;
	}
	d->holder = NULL;
	if (d->expired) {
		d->expired = false;
		return -ETIMEDOUT;
	}
	return thaw(d, done, owner, request);
}

int machine_disk_trim(struct machine_disk *d, chore_done *done, void *owner, uint64_t request)
{
	return add(d, work_trim, done, owner, request);
}

void machine_disk_forget(struct machine_disk *d, const void *owner)
{
	if (!d)
		return;
	chores_forget(d->chores, owner);
	if (d->holder == owner)
		go_on_unasked(d, "was to be quiet for a node that is gone");
}
