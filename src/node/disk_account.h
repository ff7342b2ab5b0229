/*
 * The space account (design: docs/architecture.md, "Space"): the file system under the sandboxes' sparse images must never be full.
 *
 * What counts is free space minus what the kernel has accepted inside the sandboxes and not yet brought to the host (their exposure). Four zones of it:
 *
 *   calm   above the reserve. Creates are taken. Where much is pending for the room there is, who has much of it is frozen until it is written back, so that a
 *          process outside cannot take the room first. The next look comes before writers at memory speed could have crossed the reserve; near the reserve a
 *          brake (box_brake()) holds even if it comes late: each look deals out what is above the red mark anew, the half of it to those who write much.
 *   tight  below the reserve. Creates get 507. What is left above the red mark is not dealt out anew any more: each has what it had left, and its equal part of
 *          what comes back, and is braked there. So all sandboxes together cannot pass the red mark, however fast they write and however late the next look
 *          comes, and who writes little can still write when the others are refused. What is pending is written back at once, which makes exposure small;
 *          each has its own part of what may be pending. Disks that hold deleted data are trimmed.
 *   red    below the red mark. Nothing new is allocated inside (but by those who had something left, while only dirty data that may have its room makes it
 *          red). A sandbox that still takes space (metadata, blocks allocated before) is frozen, and after 30 s in which no room came back ended with
 *          `disk_full`: frozen it cannot delete anything.
 *   full   free space itself is below half the red mark: somebody outside takes it. Everything is frozen and written back, with the ballast file released for
 *          that, because also a sandbox that only touches metadata breaks on a full host. Who takes space even so, or has pending what finds no room any
 *          more, ends with `disk_full`; the others go on when space comes back.
 *
 * Against processes outside any sandbox this is a race that the marks are made to win at the speed of a page cache; nothing but preallocation
 * (disk.guarantee) or a file system of its own helps against one that takes everything in one call (fallocate).
 */
#ifndef CUBICLE_NODE_DISK_ACCOUNT_H
#define CUBICLE_NODE_DISK_ACCOUNT_H

#include "config/options.h"
#include "node/host.h"
#include "sandbox/backend.h"

struct disk_account;

enum disk_zone { DISK_CALM, DISK_TIGHT, DISK_RED, DISK_FULL };

/* Part of the object that owns the box. */
struct disk_entry {
	struct box *box;
	void *owner;             /* who is told that it waits; NULL: nobody */
	struct box_space space;  /* of the last look */
	uint64_t exposure;       /* bytes that may still come to the host */
	uint64_t taken;          /* held on the host and certain to come: space.backed + pending of the last look */
	uint64_t growth;         /* decaying sum of what it took */
	uint64_t quota;          /* bytes it may still take of what was dealt out */
	uint64_t closed_at;      /* `taken` at the first look after the brake closed in the red zone; 0 = none yet */
	uint64_t frozen_at;      /* backed + exposure when it was frozen; 0 = it is not */
	int64_t stubborn_at;     /* boottime since when it is */
	int64_t trimmed;         /* boottime of the last trim */
	size_t at;               /* position + 1 in the account */
	bool seen, braked, closed, frozen, stubborn;
	bool told;               /* that it waits */
	bool unsure;             /* whether it is frozen: as the node before has left it */
};

struct disk_marks {
	uint64_t reserve, red, full, ballast; /* bytes */
};

/* Marks of a file system: the reserve is the option's share, but at least 512 MiB or a quarter of a small file system, because writers are as fast there. */
struct disk_marks disk_marks(const struct options *o, uint64_t total);

struct disk_account_ops {
	/* The account's last resort: end this sandbox with `disk_full`. */
	void (*kill)(struct disk_entry *e, const char *detail, void *arg);
	/* It is frozen until there is room again, or goes on. */
	void (*waits)(struct disk_entry *e, bool on, void *arg);
	/* Holds or releases the ballast file of that size (0 = release). The account goes on without waiting. */
	void (*ballast)(uint64_t bytes, void *arg);
};

/* NULL without memory. options and host outlive it. */
struct disk_account *disk_account_new(const struct options *o, const struct host *h, const struct disk_account_ops *ops, void *arg);
/* Takes NULL. */
void disk_account_free(struct disk_account *d);

/* A running box is watched from the next look on, which also undoes what a node before has braked and frozen (`adopted`). 0 or -ENOMEM. */
int disk_account_add(struct disk_account *d, struct disk_entry *e, struct box *b, void *owner, bool adopted);
/* The box is another object's now: all that is known of it goes along. `from` is not there any more. */
void disk_account_move(struct disk_account *d, struct disk_entry *from, struct disk_entry *to, void *owner);
/* It is thawed. Takes an entry that is not there, too. */
void disk_account_remove(struct disk_account *d, struct disk_entry *e);
/* Likewise, and it stays frozen when it is: for who freezes it himself. */
void disk_account_leave(struct disk_account *d, struct disk_entry *e);

/* Bytes that images hold which are not watched (of paused sandboxes), more (or less, below 0) than before: promises to them are kept already. */
void disk_account_hold(struct disk_account *d, int64_t bytes);

/* Looks and acts. Ns until it wants to be called again; INT64_MAX when nothing is watched. */
int64_t disk_account_tick(struct disk_account *d);
enum disk_zone disk_account_zone(const struct disk_account *d);

/* May a file of so many bytes be written beside the sandboxes? 0, or -ENOSPC (507) with *err naming the disk. Looks at the free space now. */
int disk_account_room(struct disk_account *d, uint64_t bytes, struct error *err);
/* Free bytes that whoever writes beside the sandboxes leaves. 0 when the disk cannot be looked at. */
uint64_t disk_account_reserve(struct disk_account *d);
/* May `mb` more be promised, when `promised` MiB are? 0, or -ENOSPC (507) with *err naming the disk. Looks at the free space now. */
int disk_account_admit(struct disk_account *d, uint64_t promised, uint64_t mb, struct error *err);

#endif
