/* Admission: what has been promised on this machine, one account per resource, never exceeded. On the loop's thread, so every take is atomic. */
#ifndef CUBICLE_NODE_ADMISSION_H
#define CUBICLE_NODE_ADMISSION_H

#include "node/disk_account.h"

struct admission {
	const struct options *options;
	const struct host *host;
	struct disk_account *disk;
	uint64_t sandboxes, memory_mb, disk_mb; /* promised */
	struct host_memory memory;              /* the last look */
	int64_t looked;                         /* boottime of it; 0 = never */
};

/* Promises the resources of one more sandbox (disk_mb 0: of one that is paused, whose disk is promised already): 0, or -EAGAIN (503: try again later), -ENOSPC (507, names the disk). */
int admission_take(struct admission *a, uint32_t memory_mb, uint32_t disk_mb, struct error *err);
/* The same without a question, for a sandbox that runs already (re-adoption). */
void admission_take_over(struct admission *a, uint32_t memory_mb, uint32_t disk_mb);
/* Of one of which only the disk is kept. */
void admission_take_over_disk(struct admission *a, uint32_t disk_mb);
/* A sandbox and its memory; its disk. */
void admission_give(struct admission *a, uint32_t memory_mb);
void admission_give_disk(struct admission *a, uint32_t disk_mb);

#endif
