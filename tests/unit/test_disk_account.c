#include "unit.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "node/disk_account.h"

#include <errno.h>
#include <fcntl.h>

/* The space account against a simulated host: writers that dirty memory at full speed, a disk that is slower, processes outside. */

#define MIB (UINT64_C(1) << 20)

enum { BOXES = 40 };

struct box {
	struct disk_entry entry;
	struct box_space space;
	uint64_t most;       /* what the brake lets it use */
	uint64_t rate;       /* bytes a second it wants to write */
	uint64_t past_brake; /* bytes a second that no brake stops (inode tables) ... */
	uint64_t into;       /* bytes a second that it writes into blocks which fallocate got: no brake stops them either, but they are written back as all data is ... */
	uint64_t dirty;      /* ... and until then they are dirty */
	uint64_t fixed;      /* ... and that no trim gives back */
	uint64_t flight;     /* has its room on the host, and still counts as dirty */
	uint64_t journal;    /* bytes that its journal has not yet had from the host */
	bool freezes;        /* false: one long write(2) that the freezer does not interrupt */
	bool frozen, killed, refused;
	bool waits;          /* as it was told */
	unsigned trims, syncs, waited;
};

static struct {
	int64_t now, due;    /* due: the next look */
	uint64_t total, free;
	uint64_t writeback;  /* bytes a second */
	unsigned late;       /* ms that a look may come late; most are punctual */
	unsigned chance;
	uint64_t outside;    /* bytes a second that a process beside the sandboxes takes */
	uint64_t ballast;
	uint64_t lowest;     /* of free */
	bool lost;           /* data was accepted that found no room */
	struct box boxes[BOXES];
	size_t n;
} sim;

static struct options options;

static int64_t now(void *arg)
{
	return sim.now;
}

static int disk(struct host_disk *ret, void *arg)
{
	*ret = (struct host_disk){sim.total, sim.free, 0};
	for (size_t i = 0; i < sim.n; i++)
		ret->dirty += sim.boxes[i].space.pending + sim.boxes[i].dirty;
	return 0;
}

static const struct host host = {.boottime = now, .realtime = now, .disk = disk};

int box_space(const struct box *b, struct box_space *ret)
{
	*ret = b->space;
	return 0;
}

int box_dirty(const struct box *b, uint64_t *ret)
{
	*ret = b->space.pending + b->dirty + b->flight;
	return 0;
}

int box_brake(struct box *b, uint64_t most)
{
	b->most = most;
	return 0;
}

int box_freeze(struct box *b, bool on)
{
	b->frozen = on;
	return 0;
}

void box_sync(struct box *b)
{
	b->syncs++;
}

/* What was deleted inside comes back to the host. */
void box_trim(struct box *b)
{
	uint64_t keep = b->space.foreign ? b->fixed : b->space.used - b->space.pending + b->fixed;
	b->trims++;
	if (b->space.backed > keep) {
		sim.free += b->space.backed - keep;
		b->space.backed = keep;
	}
}

static struct disk_account *account;

static void on_kill(struct disk_entry *e, const char *detail, void *arg)
{
	struct box *b = container_of(e, struct box, entry);
	assert_non_null(strstr(detail, "disk"));
	b->killed = true;
	disk_account_remove(account, e);
	sim.free += b->space.backed;
	b->space = (struct box_space){0};
}

static void on_ballast(uint64_t bytes, void *arg)
{
	assert_true(sim.free + sim.ballast >= bytes);
	sim.free = sim.free + sim.ballast - bytes;
	sim.ballast = bytes;
}

static void on_waits(struct disk_entry *e, bool on, void *arg)
{
	struct box *b = e->owner;
	assert_true(b == container_of(e, struct box, entry) && b->waits != on && b->frozen == on);
	b->waits = on;
	b->waited++;
}

static const struct disk_account_ops ops = {on_kill, on_waits, on_ballast};

static uint64_t take(uint64_t want)
{
	uint64_t got = MIN(want, sim.free);
	sim.free -= got;
	sim.lowest = MIN(sim.lowest, sim.free);
	return got;
}

/* One millisecond of the world. */
static void step_foreign(struct box *b)
{
	uint64_t want = b->frozen ? 0 : b->rate / 1000, got = take(want);
	/* What finds no room is an error inside: of what the host has accepted nothing is lost. */
	b->refused |= got < want;
	b->space.backed += got;
	b->space.used = b->space.backed;
	b->fixed += got;
	b->flight = b->flight - b->flight / 16 + got;
}

static void step_box(struct box *b)
{
	if (b->space.foreign) {
		step_foreign(b);
		return;
	}
	uint64_t want = b->frozen && b->freezes ? 0 : b->rate / 1000, most = MIN(b->most, b->space.total), room = most > b->space.used ? most - b->space.used : 0;
	uint64_t accepted = MIN(want, room);
	b->refused |= accepted < want;
	b->space.used += accepted;
	b->space.pending += accepted;
	uint64_t creeping = b->frozen && b->freezes ? 0 : b->past_brake / 1000;
	uint64_t back = MIN(b->space.pending, sim.writeback / 1000 / sim.n), got = take(back + creeping);
	b->dirty += b->frozen && b->freezes ? 0 : b->into / 1000;
	uint64_t of_dirty = MIN(b->dirty, sim.writeback / 1000 / sim.n - back), got_dirty = take(of_dirty);
	sim.lost |= got_dirty < of_dirty;
	b->dirty -= of_dirty;
	b->space.backed += got_dirty;
	b->flight = b->flight - b->flight / 16 + back + got_dirty;
	uint64_t log = take(MIN(b->journal, back / 4));
	b->journal -= log;
	b->fixed += log;
	b->space.backed += log;
	/* The host refuses what the file system inside has promised: this is the loss. */
	sim.lost |= got < back + creeping;
	b->space.pending -= back;
	b->space.backed += got;
	b->fixed += MIN(creeping, got);
}

static int64_t lateness(void)
{
	sim.chance = sim.chance * 1103515245 + 12345;
	return sim.late && (sim.chance >> 16) % 4 == 0 ? (sim.chance >> 20) % sim.late * NS_PER_MS : 0;
}

static void run(unsigned ms)
{
	for (unsigned i = 0; i < ms; i++, sim.now += NS_PER_MS) {
		if (sim.now >= sim.due) {
			int64_t wait = disk_account_tick(account);
			sim.due = wait == INT64_MAX ? INT64_MAX : sim.now + wait + lateness();
		}
		take(sim.outside / 1000);
		for (size_t k = 0; k < sim.n; k++)
			if (!sim.boxes[k].killed)
				step_box(&sim.boxes[k]);
	}
}

static void world(uint64_t total_mib, uint64_t free_mib, size_t n)
{
	memset(&sim, 0, sizeof(sim));
	sim.now = 1000 * NS_PER_S;
	sim.total = total_mib * MIB;
	sim.free = sim.lowest = free_mib * MIB;
	sim.writeback = 300 * MIB;
	sim.n = n;
	account = disk_account_new(&options, &host, &ops, NULL);
	for (size_t i = 0; i < n; i++) {
		struct box *b = &sim.boxes[i];
		b->space.total = 10240 * MIB;
		b->freezes = true;
		b->most = 0;
		b->frozen = true;
		assert_int_equal(disk_account_add(account, &b->entry, b, b, true), 0);
	}
}

static int setup(void **state)
{
	return options_init(&options);
}

static int teardown(void **state)
{
	disk_account_free(account);
	options_done(&options);
	return 0;
}

static void marks_are_wide_enough_on_small_disks(void **state)
{
	struct disk_marks m = disk_marks(&options, 100000 * MIB);
	assert_int_equal(m.reserve / MIB, 10000);
	assert_int_equal(m.red / MIB, 5000);
	m = disk_marks(&options, 1000 * MIB);
	assert_int_equal(m.reserve / MIB, 250);
	m = disk_marks(&options, 3000 * MIB);
	assert_int_equal(m.reserve / MIB, 512);
}

static void with_room_nobody_is_limited(void **state)
{
	world(200000, 150000, 3);
	/* What a node before had braked and frozen is free after the first look. */
	disk_account_tick(account);
	for (size_t i = 0; i < 3; i++)
		assert_true(sim.boxes[i].most == BOX_NO_BRAKE && !sim.boxes[i].frozen);
	sim.boxes[0].rate = 1000 * MIB;
	run(5000);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
	assert_true(sim.boxes[0].most == BOX_NO_BRAKE && !sim.boxes[0].refused);
	assert_int_equal(sim.ballast / MIB, 1024);
}

/* The proof that matters: whatever sandboxes do, what was accepted finds room. */
static void writers_at_memory_speed_never_fill_the_host(void **state)
{
	static const unsigned totals[] = {700, 2000, 8000, 40000};
	for (size_t i = 0; i < ARRAY_SIZE(totals); i++) {
		world(totals[i], totals[i] - 100, 3);
		sim.boxes[0].rate = sim.boxes[1].rate = 2000 * MIB;
		sim.boxes[2].rate = MIB / 10;
		for (unsigned round = 0; round < 100 + totals[i] / 40; round++) {
			run(300);
			assert_false(sim.lost);
		}
		assert_true(sim.boxes[0].refused && sim.boxes[1].refused);
		assert_true(sim.lowest > disk_marks(&options, sim.total).red / 2);
		for (int k = 0; k < 3; k++)
			assert_false(sim.boxes[k].killed);
		disk_account_free(steal_pointer(&account));
	}
}

static void who_writes_little_is_not_refused_with_the_others(void **state)
{
	world(3000, 2900, 3);
	sim.boxes[0].rate = sim.boxes[1].rate = 500 * MIB;
	sim.boxes[2].rate = MIB;
	run(40000);
	assert_false(sim.lost);
	assert_true(sim.boxes[0].refused && sim.boxes[1].refused);
	assert_false(sim.boxes[2].refused);
	assert_true(sim.boxes[2].space.used > 30 * MIB);
}

/* Machines with fast memory, a fast disk, a loop that gets no processor for a while; data that counts as dirty when it has its room already; journals that fill. */
static void who_writes_little_is_not_refused_on_fast_or_late_machines(void **state)
{
	static const unsigned rates[] = {300, 1000, 2500}, disks[] = {200, 1000, 3000}, delays[] = {0, 100, 300};
	for (unsigned i = 0; i < 27; i++) {
		unsigned rate = rates[i % 3], disk_rate = disks[i / 3 % 3], late = delays[i / 9];
		world(3000, 2900, 3);
		sim.writeback = disk_rate * MIB;
		sim.late = late;
		for (int k = 0; k < 3; k++)
			sim.boxes[k].journal = 16 * MIB;
		sim.boxes[0].rate = sim.boxes[1].rate = rate * MIB;
		sim.boxes[2].rate = MIB / 2;
		for (unsigned ms = 0; ms < 60000 && !(sim.boxes[0].refused && sim.boxes[1].refused); ms += 10)
			run(10);
		run(8000);
		if (sim.lost || !sim.boxes[0].refused || !sim.boxes[1].refused || sim.boxes[2].refused)
			fail_msg("writers of %u MiB/s, a disk of %u MiB/s, looks %u ms late: lost %d, refused %d %d %d", rate, disk_rate, late, sim.lost,
				sim.boxes[0].refused, sim.boxes[1].refused, sim.boxes[2].refused);
		for (int k = 0; k < 3; k++)
			assert_false(sim.boxes[k].killed);
		disk_account_free(steal_pointer(&account));
	}
}

/* The brake is there before the reserve is reached, for looks that come late; who writes at a likely speed does not feel it. */
static void nobody_is_refused_above_the_reserve(void **state)
{
	for (unsigned writers = 2; writers <= 8; writers *= 2) {
		world(20000, 19000, BOXES);
		sim.writeback = 1000 * MIB * BOXES; /* a fortieth for each */
		run(1000);
		for (unsigned k = 0; k < writers; k++)
			sim.boxes[k].rate = 2000 / writers * MIB;
		sim.boxes[BOXES - 1].rate = MIB / 2;
		for (unsigned ms = 0; ms < 600000 && disk_account_zone(account) == DISK_CALM; ms++) {
			run(1);
			if (disk_account_zone(account) == DISK_CALM)
				for (unsigned k = 0; k < BOXES; k++)
					assert_false(sim.boxes[k].refused);
		}
		assert_int_equal(disk_account_zone(account), DISK_TIGHT);
		disk_account_free(steal_pointer(&account));
	}
}

static void many_writers_share_what_is_left(void **state)
{
	world(20000, 19000, BOXES);
	for (size_t i = 0; i < BOXES; i++)
		sim.boxes[i].rate = (i + 1) * 20 * MIB;
	run(60000);
	assert_false(sim.lost);
	assert_true(sim.lowest > disk_marks(&options, sim.total).red / 2);
	for (size_t i = 0; i < BOXES; i++)
		assert_false(sim.boxes[i].killed);
}

static void a_writer_outside_is_outrun(void **state)
{
	/* Up to nearly three times what the disk writes back. */
	for (uint64_t speed = 100; speed <= 800; speed *= 2) {
		world(4000, 3800, 3);
		sim.boxes[0].rate = sim.boxes[1].rate = 1000 * MIB;
		sim.outside = speed * MIB;
		run(60000);
		if (sim.lost)
			fail_msg("lost at %llu MiB/s", (unsigned long long)speed);
		assert_int_equal(sim.free, 0); /* it did take everything */
		assert_int_equal(sim.ballast, 0);
		for (int k = 0; k < 3; k++)
			assert_int_equal(sim.boxes[k].space.pending, 0);
		disk_account_free(steal_pointer(&account));
	}
}

static void a_writer_outside_is_outrun_by_what_passes_the_brake(void **state)
{
	for (uint64_t speed = 100; speed <= 400; speed *= 2) {
		world(4000, 3800, 3);
		for (int k = 0; k < 2; k++) {
			sim.boxes[k].space.used = 3000 * MIB;
			sim.boxes[k].into = 1000 * MIB;
		}
		sim.outside = speed * MIB;
		run(30000);
		if (sim.lost)
			fail_msg("lost at %llu MiB/s", (unsigned long long)speed);
		assert_int_equal(sim.free, 0);
		for (int k = 0; k < 3; k++)
			assert_true(sim.boxes[k].dirty == 0 && !sim.boxes[k].killed);
		disk_account_free(steal_pointer(&account));
	}
}

static void what_no_brake_stops_is_frozen(void **state)
{
	world(2000, 1500, 3);
	sim.boxes[0].past_brake = 50 * MIB;
	sim.boxes[1].rate = MIB / 10;
	run(40000);
	assert_false(sim.lost);
	assert_true(sim.boxes[0].frozen);
	assert_false(sim.boxes[0].killed);
	assert_false(sim.boxes[1].frozen);
	/* Room comes back, and so does it. */
	sim.free += 1000 * MIB;
	run(2000);
	assert_false(sim.boxes[0].frozen);
	assert_true(sim.boxes[0].most > sim.boxes[0].space.used + 100 * MIB);
}

/* Frozen it cannot delete anything: it is not left in the others' way for ever. */
static void what_stays_frozen_is_ended(void **state)
{
	world(2000, 1500, 3);
	sim.boxes[0].past_brake = 50 * MIB;
	sim.boxes[1].rate = MIB / 10;
	run(80000);
	assert_false(sim.lost);
	assert_true(sim.boxes[0].killed);
	assert_false(sim.boxes[1].killed || sim.boxes[2].killed || sim.boxes[1].frozen || sim.boxes[2].frozen);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
}

/* A microVM: whatever waits in the host's memory has its room already, and it is not asked to bring more. */
static void another_kernel_is_frozen_and_goes_on(void **state)
{
	world(2000, 1500, 3);
	sim.boxes[0].space.foreign = true;
	sim.boxes[0].rate = 50 * MIB;
	sim.boxes[0].flight = 400 * MIB;
	run(5000);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
	assert_false(sim.boxes[0].frozen || sim.boxes[0].waits);
	run(35000);
	assert_true(sim.boxes[0].frozen && sim.boxes[0].waits);
	assert_int_equal(sim.boxes[0].waited, 1);
	assert_false(sim.boxes[0].killed || sim.boxes[0].refused || sim.boxes[1].frozen);
	assert_true(sim.free > 128 * MIB);
	assert_int_equal(sim.boxes[0].syncs, 0);
	/* Room comes back, and so does it; its clients hear of both. */
	sim.free += 1000 * MIB;
	run(1000);
	assert_false(sim.boxes[0].frozen || sim.boxes[0].waits);
	assert_int_equal(sim.boxes[0].waited, 2);
	/* One that only waits, because somebody outside took everything, is not ended. */
	sim.boxes[0].rate = 0;
	sim.outside = 400 * MIB;
	run(60000);
	assert_int_equal(disk_account_zone(account), DISK_FULL);
	assert_true(sim.boxes[0].frozen && sim.boxes[0].waits && !sim.boxes[0].killed);
	sim.outside = 0;
	sim.free = 1500 * MIB;
	run(1000);
	assert_false(sim.boxes[0].frozen || sim.boxes[0].waits || sim.boxes[1].waits);
}

/* Nobody knows what it has deleted: it is asked now and then, while there is little, and while it can answer. */
static void another_kernel_is_asked_for_what_it_deleted(void **state)
{
	world(2000, 1500, 2);
	struct box *b = &sim.boxes[0];
	b->space.foreign = true;
	b->space.used = b->space.backed = 800 * MIB;
	run(5000);
	assert_int_equal(b->trims, 0);
	b->fixed = 800 * MIB; /* it has deleted nothing */
	sim.free = 400 * MIB;
	run(31000);
	assert_int_equal(disk_account_zone(account), DISK_TIGHT);
	assert_in_range(b->trims, 2, 5);
	b->fixed = 100 * MIB;
	run(11000);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
	/* Frozen it cannot. */
	sim.free = 50 * MIB;
	run(100);
	assert_true(b->frozen);
	unsigned before = b->trims;
	run(30000);
	assert_int_equal(b->trims, before);
}

static void what_no_freezer_stops_is_ended(void **state)
{
	world(2000, 1500, 3);
	sim.boxes[0].past_brake = 50 * MIB;
	sim.boxes[0].freezes = false;
	sim.boxes[1].rate = MIB / 10;
	run(120000);
	assert_false(sim.lost);
	assert_true(sim.boxes[0].killed);
	assert_false(sim.boxes[1].killed || sim.boxes[2].killed);
	assert_false(sim.boxes[1].frozen || sim.boxes[2].frozen);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
}

/* Touching metadata is enough to break on a full host: everybody waits, nobody is ended, and all go on. */
static void on_a_full_host_everybody_waits(void **state)
{
	for (uint64_t speed = 50; speed <= 1600; speed *= 2) {
		world(3000, 2500, 3);
		run(1000);
		for (int k = 0; k < 3; k++)
			sim.boxes[k].past_brake = MIB / 4;
		sim.outside = speed * MIB;
		run(60000);
		assert_int_equal(sim.free, 0);
		assert_false(sim.lost);
		for (int k = 0; k < 3; k++)
			assert_true(sim.boxes[k].frozen && !sim.boxes[k].killed);
		sim.outside = 0;
		sim.free = 2000 * MIB;
		run(1000);
		assert_int_equal(disk_account_zone(account), DISK_CALM);
		for (int k = 0; k < 3; k++)
			assert_false(sim.boxes[k].frozen);
		disk_account_free(steal_pointer(&account));
	}
}

static void deleted_data_comes_back_by_trim(void **state)
{
	world(2000, 1900, 2);
	sim.boxes[0].rate = 500 * MIB;
	run(20000);
	assert_true(disk_account_zone(account) != DISK_CALM);
	sim.boxes[0].rate = 0;
	run(5000);
	sim.boxes[0].space.used = 10 * MIB;
	run(10000);
	assert_true(sim.boxes[0].trims > 0);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
	assert_true(sim.boxes[0].most > sim.boxes[0].space.used + 100 * MIB);
}

/* Not with the next look that finds the quota used up, nor only when the trim is done. */
static void who_deletes_can_write_at_once(void **state)
{
	world(2000, 1900, 2);
	sim.boxes[0].rate = sim.boxes[1].rate = 500 * MIB;
	run(20000);
	assert_int_equal(disk_account_zone(account), DISK_TIGHT);
	struct box *b = &sim.boxes[0];
	b->rate = 0;
	run(1000);
	b->fixed = b->space.backed; /* the trim gives nothing back yet */
	b->space.used -= 300 * MIB;
	run(1000);
	b->refused = false;
	b->rate = 100 * MIB;
	run(5);
	assert_false(b->refused);
	run(60000);
	assert_false(sim.lost);
	assert_true(sim.lowest > disk_marks(&options, sim.total).red);
}

static void fallocate_inside_shuts_nobody_out(void **state)
{
	world(20000, 19000, 3);
	sim.boxes[0].space.used = sim.boxes[1].space.used = 10000 * MIB;
	sim.boxes[2].rate = 10 * MIB;
	run(5000);
	assert_int_equal(disk_account_zone(account), DISK_CALM);
	assert_false(sim.boxes[2].refused);
	/* Writing there passes every brake. */
	sim.boxes[0].past_brake = sim.boxes[1].past_brake = 200 * MIB;
	run(60000);
	assert_false(sim.lost);
	assert_true(sim.boxes[0].frozen && sim.boxes[1].frozen);
	assert_false(sim.boxes[2].frozen || sim.boxes[2].killed);
}

static void preallocated_disks_are_left_alone(void **state)
{
	world(2000, 100, 1);
	struct box *b = &sim.boxes[0];
	b->space = (struct box_space){.total = 1000 * MIB, .used = 900 * MIB, .pending = 20 * MIB, .backed = 1001 * MIB};
	run(3000);
	assert_true(b->most == BOX_NO_BRAKE);
	assert_false(b->frozen || b->killed);
	assert_int_equal(b->trims, 0);
}

static void admission_looks_at_free_space_and_promises(void **state)
{
	struct error err = {0};
	world(100000, 60000, 0);
	assert_int_equal(disk_account_admit(account, 0, 10240, &err), 0);
	options.disk_overcommit = 1;
	assert_int_equal(disk_account_admit(account, 45000, 5000, &err), 0);
	assert_int_equal(disk_account_admit(account, 45000, 5001, &err), -ENOSPC);
	assert_int_equal(err.status, 507);
	options.disk_overcommit = 2;
	assert_int_equal(disk_account_admit(account, 45000, 5001, &err), 0);
	options.disk_guarantee = true;
	assert_int_equal(disk_account_admit(account, 45000, 5001, &err), -ENOSPC);
	sim.free = 9999 * MIB;
	assert_int_equal(disk_account_admit(account, 0, 1, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "disk.reserve"));
}

static void nothing_to_watch_needs_no_timer(void **state)
{
	world(100000, 60000, 1);
	assert_true(disk_account_tick(account) < INT64_MAX);
	disk_account_remove(account, &sim.boxes[0].entry);
	disk_account_remove(account, &sim.boxes[0].entry);
	assert_true(disk_account_tick(account) == INT64_MAX);
}

int main(void)
{
	log_setup("test", open("/dev/null", O_WRONLY | O_CLOEXEC), LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(marks_are_wide_enough_on_small_disks),
		T(with_room_nobody_is_limited),
		T(writers_at_memory_speed_never_fill_the_host),
		T(who_writes_little_is_not_refused_with_the_others),
		T(who_writes_little_is_not_refused_on_fast_or_late_machines),
		T(nobody_is_refused_above_the_reserve),
		T(many_writers_share_what_is_left),
		T(a_writer_outside_is_outrun),
		T(a_writer_outside_is_outrun_by_what_passes_the_brake),
		T(what_no_brake_stops_is_frozen),
		T(what_stays_frozen_is_ended),
		T(another_kernel_is_frozen_and_goes_on),
		T(another_kernel_is_asked_for_what_it_deleted),
		T(what_no_freezer_stops_is_ended),
		T(on_a_full_host_everybody_waits),
		T(deleted_data_comes_back_by_trim),
		T(who_deletes_can_write_at_once),
		T(fallocate_inside_shuts_nobody_out),
		T(preallocated_disks_are_left_alone),
		T(admission_looks_at_free_space_and_promises),
		T(nothing_to_watch_needs_no_timer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
