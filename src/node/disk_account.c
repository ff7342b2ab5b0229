#include "node/disk_account.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>

#define MIB (UINT64_C(1) << 20)

enum {
	LOOK_MIN_MS = 20,
	LOOK_CALM_MS = 5000,
	LOOK_TIGHT_MS = 250,   /* nothing moves */
	TRIM_EVERY_MS = 1000,
	TRIM_FOREIGN_MS = 10000, /* nobody knows whether there is anything to give back */
	STUBBORN_MOST_MS = 30000,
	KILL_EVERY_MS = 1000,  /* the space of the last one must have time to come back */
	GROWTH_SHARE = 8,      /* an eighth of the old sum goes with each look */
	BUSY_SHARE = 10,       /* a look costs at most a tenth of the time */
	/* What is pending counts this often against free space: while it is written back, a process outside may take three times as much. */
	PENDING_WEIGHT = 4,
	BURSTS = 16,           /* while it is calm, at most so many sandboxes are expected to begin to write much at once */
};

static const uint64_t fastest = 4096 * MIB; /* a second: what writers can dirty at most */
static const uint64_t sync_above = 4 * MIB, thaw_below = MIB, stale_above = 64 * MIB, moves = MIB, creep = 8 * MIB, redeal = 16 * MIB;
/* So much above the red mark can be crossed before a look that comes late. fallocate inside, which costs nothing, is not limited before. */
static const uint64_t near_red = 1024 * MIB;

struct disk_account {
	const struct options *options;
	const struct host *host;
	const struct disk_account_ops *ops;
	void *arg;
	struct disk_entry **entries;
	size_t n, cap;
	enum disk_zone zone;
	uint64_t exposure, backed;  /* of all, at the last look */
	uint64_t held;              /* by images that are not watched */
	uint64_t ballast;           /* bytes asked for; 0 = released */
	int64_t last_kill, pace;
	bool blind;                 /* the last look at the host failed: said once */
};

struct disk_marks disk_marks(const struct options *o, uint64_t total)
{
	struct disk_marks m = {.reserve = MAX(total / 100 * (uint64_t)o->disk_reserve, MIN(512 * MIB, total / 4))};
	m.red = m.reserve / 2;
	m.full = m.red / 2;
	m.ballast = MIN(m.full, 1024 * MIB);
	return m;
}

struct disk_account *disk_account_new(const struct options *o, const struct host *h, const struct disk_account_ops *ops, void *arg)
{
	struct disk_account *d = calloc(1, sizeof(*d));
	if (d)
		*d = (struct disk_account){.options = o, .host = h, .ops = ops, .arg = arg};
	return d;
}

void disk_account_free(struct disk_account *d)
{
	if (!d)
		return;
	free(d->entries);
	free(d);
}

enum disk_zone disk_account_zone(const struct disk_account *d)
{
	return d->zone;
}

static void log_entry(enum log_level level, struct disk_entry *e, const char *what, int r)
{
	if (r < 0)
		log_write(level, NULL, "disk account: %s: %s", what, strerror(-r));
}

static void set_frozen(struct disk_entry *e, bool on)
{
	if (e->frozen == on && !e->unsure)
		return;
	int r = box_freeze(e->box, on);
	log_entry(LOG_WARN, e, on ? "freeze" : "thaw", r);
	if (r < 0)
		return;
	e->frozen = on;
	e->unsure = false;
}

/* more: bytes beyond what it used at the last look; what it took since then is in them. */
static void set_brake(struct disk_entry *e, uint64_t more)
{
	if (more == BOX_NO_BRAKE && !e->braked)
		return;
	int r = box_brake(e->box, more == BOX_NO_BRAKE ? more : e->space.used + more);
	log_entry(LOG_WARN, e, "brake", r);
	if (r == 0)
		e->braked = more != BOX_NO_BRAKE;
}

int disk_account_add(struct disk_account *d, struct disk_entry *e, struct box *b, void *owner, bool adopted)
{
	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 64;
		struct disk_entry **entries = realloc(d->entries, cap * sizeof(struct disk_entry *));
		if (!entries)
			return -ENOMEM;
		d->entries = entries;
		d->cap = cap;
	}
	/* An adopted box may still be braked and frozen by the node before; the next look decides whether that still holds. */
	*e = (struct disk_entry){.box = b, .owner = owner, .at = d->n + 1, .braked = adopted, .unsure = adopted};
	d->entries[d->n++] = e;
	return 0;
}

void disk_account_move(struct disk_account *d, struct disk_entry *from, struct disk_entry *to, void *owner)
{
	*to = *from;
	to->owner = owner;
	to->told = false;
	if (from->at)
		d->entries[from->at - 1] = to;
	from->at = 0;
}

void disk_account_remove(struct disk_account *d, struct disk_entry *e)
{
	/* A frozen process gets its SIGKILL only when it is thawed (cgroup v1). */
	if (e->at && (e->frozen || e->unsure))
		set_frozen(e, false);
	disk_account_leave(d, e);
}

void disk_account_leave(struct disk_account *d, struct disk_entry *e)
{
	if (!e->at)
		return;
	struct disk_entry *last = d->entries[--d->n];
	d->entries[e->at - 1] = last;
	last->at = e->at;
	d->backed -= MIN(d->backed, e->space.backed);
	e->at = 0;
}

/* A preallocated image takes nothing more from the host. */
static bool guaranteed(const struct disk_entry *e)
{
	return e->space.backed >= e->space.total && e->space.total;
}

/* Written into blocks that fallocate got inside: no brake stops it, and it is not pending. What was only allocated costs nothing until it is dirty: else anybody could
 * shut the others out with fallocate. all_dirty: of the whole machine, which is cheaper to ask. */
static uint64_t dirty_of(const struct disk_entry *e, uint64_t all_dirty)
{
	uint64_t dirty;
	if (all_dirty <= sync_above)
		return 0;
	if (box_dirty(e->box, &dirty) == 0)
		return dirty;
	return e->space.used > e->space.backed ? MIN(e->space.used - e->space.backed, all_dirty) : 0;
}

/* What it had when the freezer had it: what is dirty may still come, more may not. */
static void remember_frozen(struct disk_entry *e)
{
	uint64_t holds = e->space.backed + e->exposure;
	if (!e->frozen || !e->frozen_at || holds < e->frozen_at)
		e->frozen_at = e->frozen ? holds : 0;
}

/* One long write(2), which the freezer does not interrupt. */
static bool takes_frozen(const struct disk_entry *e)
{
	return e->frozen_at && e->space.backed + e->exposure > e->frozen_at + creep;
}

static void look_at(struct disk_entry *e, uint64_t all_dirty)
{
	struct box_space now;
	int r = box_space(e->box, &now);
	if (r < 0) {
		log_entry(LOG_DEBUG, e, "space", r);
		return;
	}
	e->space = now;
	e->exposure = guaranteed(e) || now.foreign ? 0 : MAX(now.pending, dirty_of(e, all_dirty));
	uint64_t taken = now.backed + (guaranteed(e) ? 0 : now.pending), more = e->seen && taken > e->taken ? taken - e->taken : 0;
	e->growth = e->growth - e->growth / GROWTH_SHARE + more;
	e->quota -= MIN(e->quota, more);
	e->taken = taken;
	remember_frozen(e);
	e->seen = true;
}

/* Free space that would be left if a process outside took three times what is pending while that is written back. */
static int64_t weigh(const struct disk_account *d, uint64_t free_bytes)
{
	return (int64_t)free_bytes - (int64_t)d->exposure * PENDING_WEIGHT;
}

static bool grows(const struct disk_entry *e)
{
	return e->growth > moves;
}

static enum disk_zone zone_of(enum disk_zone before, uint64_t free_bytes, int64_t left, const struct disk_marks *m)
{
	/* A zone is left only well above its mark, so that freezing and braking do not flutter. */
	uint64_t full = before == DISK_FULL ? m->full + m->full / 2 : m->full;
	int64_t red = (int64_t)(before >= DISK_RED ? m->red + m->red / 4 : m->red);
	int64_t reserve = (int64_t)(before != DISK_CALM ? m->reserve + m->reserve / 8 : m->reserve);
	return free_bytes < full ? DISK_FULL : left < red ? DISK_RED : left < reserve ? DISK_TIGHT : DISK_CALM;
}

/* Holds blocks of deleted data on the host, more than that, as far as it is known. */
static bool is_stale(const struct disk_entry *e, uint64_t bytes)
{
	return e->space.backed > e->space.used && e->space.backed - e->space.used > bytes && !guaranteed(e);
}

static void give_back(struct disk_account *d, struct disk_entry *e, uint64_t stale, int64_t now)
{
	bool foreign = e->space.foreign;
	/* A frozen one cannot; it is asked when it goes on. */
	if (foreign ? e->space.backed > stale && !e->frozen && !guaranteed(e) : is_stale(e, stale)) {
		if (now - e->trimmed > (foreign ? TRIM_FOREIGN_MS : TRIM_EVERY_MS) * NS_PER_MS) {
			e->trimmed = now;
			box_trim(e->box);
		}
	}
	/* To ask another kernel to write back would only have it take more. */
	if (foreign)
		return;
	/* Metadata in memory is not counted in `pending`: near the end everybody is written back. */
	if (e->exposure > sync_above || d->zone == DISK_FULL || (d->zone == DISK_RED && (e->exposure || grows(e))))
		box_sync(e->box);
}

/* Too much is pending for the room there is: who has much of it waits, without an error, until it is written. */
static bool must_wait(const struct disk_entry *e, bool crowded)
{
	return crowded && e->exposure > (e->frozen ? thaw_below : sync_above);
}

/* Takes space although nothing new may be allocated inside: counted from the first look after its brake closed. A journal's first round is not meant. */
static bool is_stubborn(const struct disk_account *d, struct disk_entry *e)
{
	if (d->zone < DISK_RED || guaranteed(e)) {
		e->closed_at = 0;
		return false;
	}
	if (!e->closed)
		e->closed_at = 0;
	else if (!e->closed_at || e->taken < e->closed_at)
		e->closed_at = e->taken;
	return e->stubborn || (e->closed_at && e->taken > e->closed_at + creep);
}

static uint64_t above(int64_t room, uint64_t mark)
{
	return room > (int64_t)mark ? (uint64_t)room - mark : 0;
}

/* Who writes much may have half of it, who begins to has his part of the other half. All have less than there is, so that also a look that comes late finds the red
 * mark not crossed. */
static void deal_calm(struct disk_account *d, uint64_t pool)
{
	uint64_t growing = 0;
	for (size_t i = 0; i < d->n; i++)
		growing += grows(d->entries[i]);
	for (size_t i = 0; i < d->n; i++) {
		struct disk_entry *e = d->entries[i];
		e->quota = pool / 2 / MIN(d->n, (size_t)BURSTS) + (grows(e) ? pool / 2 / growing : 0);
	}
}

/* What all have may not be more than there is; what came back is dealt out in equal parts, without taking from those who have something left. */
static void deal_tight(struct disk_account *d, uint64_t pool, uint64_t most)
{
	uint64_t out = 0;
	for (size_t i = 0; i < d->n; i++)
		out += d->entries[i]->quota;
	for (size_t i = 0; i < d->n; i++) {
		struct disk_entry *e = d->entries[i];
		if (out > most)
			e->quota = (uint64_t)((double)e->quota / (double)out * (double)most);
		else if (d->zone == DISK_TIGHT && pool > out + out / 4 + redeal)
			e->quota += (pool - out) / d->n;
	}
}

/* Deals out what is above the red mark, less a quarter for metadata and journals, which no brake stops. sure: free space without what is pending; `left` also
 * counts what is dirty, which can have its room already. */
static void deal(struct disk_account *d, int64_t left, int64_t sure, const struct disk_marks *m)
{
	uint64_t pool = above(left, m->red);
	pool -= pool / 4;
	if (d->zone == DISK_CALM)
		deal_calm(d, pool);
	else
		deal_tight(d, pool, above(sure, m->red));
}

/* What the brake leaves to one now. What all may have pending at once finds room whatever happens outside; each has its own part of that, however much the others have. */
static uint64_t share_of(const struct disk_account *d, const struct disk_entry *e, int64_t sure, uint64_t free_bytes, const struct disk_marks *m)
{
	if (guaranteed(e) || (d->zone == DISK_CALM && above(sure, m->red) > near_red))
		return BOX_NO_BRAKE;
	if (d->zone == DISK_CALM)
		return e->quota;
	if (d->zone == DISK_FULL || sure < (int64_t)m->red)
		return 0;
	uint64_t most = above((int64_t)free_bytes, m->red) / PENDING_WEIGHT / d->n;
	/* Who has deleted something has not to wait until the trim brings it back; what that takes at most is in the quarter that is not dealt out. */
	uint64_t quota = is_stale(e, stale_above) ? MAX(e->quota, above(sure, m->red) / 4 / d->n) : e->quota;
	return MIN(quota, most > e->exposure ? most - e->exposure : 0);
}

/* Not for the moments in which it waits for what is pending. */
static void tell(struct disk_account *d, struct disk_entry *e, bool waits)
{
	if (e->told != waits)
		d->ops->waits(e, waits, d->arg);
	e->told = waits;
}

static void act(struct disk_account *d, uint64_t free_bytes, int64_t sure, const struct disk_marks *m, int64_t now)
{
	int64_t weighted = weigh(d, free_bytes);
	bool crowded = weighted < (int64_t)(d->zone == DISK_CALM ? m->reserve : m->red);
	for (size_t i = 0; i < d->n; i++) {
		struct disk_entry *e = d->entries[i];
		bool was = e->stubborn;
		e->stubborn = is_stubborn(d, e);
		if (e->stubborn && !was)
			e->stubborn_at = now;
		uint64_t share = share_of(d, e, sure, free_bytes, m);
		e->closed = share == 0 && d->zone >= DISK_RED;
		set_brake(e, share);
		bool lasts = e->stubborn || (d->zone == DISK_FULL && !guaranteed(e));
		set_frozen(e, lasts || must_wait(e, crowded));
		tell(d, e, e->frozen && (lasts || e->told));
		if (crowded || d->zone != DISK_CALM)
			give_back(d, e, d->zone >= DISK_RED ? sync_above : stale_above, now);
	}
}

/* Takes space although it is frozen, on a full host; or has been in the way of the others for so long that nobody can wait for its deletes. */
static bool must_end(const struct disk_entry *e, bool full, int64_t now)
{
	return e->stubborn && ((full && takes_frozen(e)) || now - e->stubborn_at > STUBBORN_MOST_MS * NS_PER_MS);
}

/* Who must end; else, when what is pending on a full host has no room any more, who has most of it: its dirty data goes with it. */
static struct disk_entry *worst_of(const struct disk_account *d, uint64_t free_bytes, bool full, int64_t now)
{
	struct disk_entry *worst = NULL;
	for (size_t i = 0; i < d->n; i++) {
		struct disk_entry *e = d->entries[i];
		if (must_end(e, full, now) && (!worst || e->space.backed > worst->space.backed))
			worst = e;
	}
	if (worst || !full || d->exposure <= free_bytes + d->ballast)
		return worst;
	for (size_t i = 0; i < d->n; i++) {
		struct disk_entry *e = d->entries[i];
		if (e->exposure > moves && (!worst || e->exposure > worst->exposure))
			worst = e;
	}
	return worst;
}

/* full: the host was full at the last look, too. */
static void kill_worst(struct disk_account *d, uint64_t free_bytes, bool full, int64_t now)
{
	struct disk_entry *worst = worst_of(d, free_bytes, full, now);
	if (!worst || (d->last_kill && now - d->last_kill < KILL_EVERY_MS * NS_PER_MS))
		return;
	char detail[160];
	snprintf(detail, sizeof(detail), "the machine's disk is full (%llu MiB free) and this sandbox takes most of the rest (it held %llu MiB)",
		(unsigned long long)(free_bytes / MIB), (unsigned long long)(worst->space.backed / MIB));
	d->last_kill = now;
	d->ops->kill(worst, detail, d->arg);
}

static void keep_ballast(struct disk_account *d, int64_t left, const struct disk_marks *m)
{
	uint64_t want = d->ballast;
	if (d->zone == DISK_FULL)
		want = 0;
	else if (d->zone == DISK_CALM && left > (int64_t)(m->reserve + 2 * m->ballast))
		want = m->ballast;
	if (want == d->ballast)
		return;
	d->ballast = want;
	d->ops->ballast(want, d->arg);
}

static int64_t next_look(struct disk_account *d, int64_t weighted, const struct disk_marks *m, bool moving, int64_t cost)
{
	int64_t ns = LOOK_MIN_MS * NS_PER_MS;
	if (d->zone == DISK_CALM) {
		uint64_t margin = weighted > (int64_t)m->reserve ? (uint64_t)weighted - m->reserve : 0;
		ns = MAX(ns, (int64_t)MIN(margin / (PENDING_WEIGHT * fastest / 1000), (uint64_t)LOOK_CALM_MS) * NS_PER_MS);
	} else if (!moving) {
		ns = MIN(MAX(d->pace * 2, ns), LOOK_TIGHT_MS * NS_PER_MS);
	}
	d->pace = MAX(ns, cost * BUSY_SHARE);
	return d->pace;
}

static void enter(struct disk_account *d, enum disk_zone zone, const struct host_disk *disk)
{
	static const char *const names[] = {"calm", "tight", "red", "full"};
	if (zone != d->zone)
		log_write(zone == DISK_CALM ? LOG_INFO : LOG_WARN, NULL,
			"disk account: %s -> %s: %llu MiB free, %llu MiB still to come from %zu sandboxes", names[d->zone], names[zone],
			(unsigned long long)(disk->free / MIB), (unsigned long long)(d->exposure / MIB), d->n);
	d->zone = zone;
}

int64_t disk_account_tick(struct disk_account *d)
{
	struct host_disk disk;
	int64_t now = d->host->boottime(d->host->arg);
	int r = d->host->disk(&disk, d->host->arg);
	if (r < 0) {
		if (!d->blind)
			log_error("disk account: free space: %s", strerror(-r));
		d->blind = true;
		return LOOK_TIGHT_MS * NS_PER_MS;
	}
	d->blind = false;
	struct disk_marks m = disk_marks(d->options, disk.total);
	d->exposure = d->backed = 0;
	uint64_t pending = 0;
	bool moving = false;
	for (size_t i = 0; i < d->n; i++) {
		struct disk_entry *e = d->entries[i];
		look_at(e, disk.dirty);
		d->exposure += e->exposure;
		d->backed += e->space.backed;
		pending += guaranteed(e) ? 0 : e->space.pending;
		moving |= grows(e) || e->exposure;
	}
	int64_t left = (int64_t)disk.free - (int64_t)d->exposure, sure = (int64_t)disk.free - (int64_t)pending;
	enum disk_zone before = d->zone;
	enter(d, zone_of(before, disk.free, left, &m), &disk);
	deal(d, left, sure, &m);
	act(d, disk.free, sure, &m, now);
	if (d->zone >= DISK_RED)
		kill_worst(d, disk.free, d->zone == DISK_FULL && before == DISK_FULL, now);
	keep_ballast(d, left, &m);
	int64_t wait = next_look(d, weigh(d, disk.free), &m, moving || before != d->zone, d->host->boottime(d->host->arg) - now);
	return d->n || d->zone != DISK_CALM ? wait : INT64_MAX;
}

void disk_account_hold(struct disk_account *d, int64_t bytes)
{
	d->held += (uint64_t)bytes;
}

int disk_account_room(struct disk_account *d, uint64_t bytes, struct error *err)
{
	struct host_disk disk;
	int r = d->host->disk(&disk, d->host->arg);
	if (r < 0)
		return error_errno(err, r, "free space of the server's disk");
	struct disk_marks m = disk_marks(d->options, disk.total);
	if (disk.free < m.reserve + d->exposure + bytes)
		return error_set(err, -ENOSPC, 507, "the server's disk has no room for %llu MiB more: %llu MiB are free, %llu are kept in reserve (disk.reserve)",
			(unsigned long long)(bytes / MIB), (unsigned long long)(disk.free / MIB), (unsigned long long)(m.reserve / MIB));
	return 0;
}

uint64_t disk_account_reserve(struct disk_account *d)
{
	struct host_disk disk;
	return d->host->disk(&disk, d->host->arg) < 0 ? 0 : disk_marks(d->options, disk.total).reserve;
}

int disk_account_admit(struct disk_account *d, uint64_t promised, uint64_t mb, struct error *err)
{
	struct host_disk disk;
	int r = d->host->disk(&disk, d->host->arg);
	if (r < 0)
		return error_errno(err, r, "free space of the server's disk");
	struct disk_marks m = disk_marks(d->options, disk.total);
	if (disk.free < m.reserve + d->exposure)
		return error_set(err, -ENOSPC, 507, "the server's disk is nearly full: %llu MiB are free, %llu are kept in reserve (disk.reserve)",
			(unsigned long long)(disk.free / MIB), (unsigned long long)(m.reserve / MIB));
	uint64_t room = disk.free - d->exposure - m.reserve + d->backed + d->held;
	double factor = d->options->disk_guarantee ? 1 : d->options->disk_overcommit;
	if ((double)(promised + mb) * (double)MIB > (double)room * factor)
		return error_set(err, -ENOSPC, 507, "the server's disk is promised to other sandboxes: %llu MiB of %.0f, %llu more were asked for",
			(unsigned long long)promised, (double)room * factor / (double)MIB, (unsigned long long)mb);
	return 0;
}
