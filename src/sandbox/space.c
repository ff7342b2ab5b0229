#include "sandbox/space.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>

/* linux/ext4.h is not exported everywhere: fs/ext4/ext4.h, EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH. */
#define SHUTDOWN _IOR('X', 125, uint32_t)
enum { SHUTDOWN_NOLOGFLUSH = 2 };

enum { RESERVED_MAX = 4096 }; /* clusters that the kernel reserves by itself, at most (ext4_calculate_resv_clusters) */

static void attribute(char to[64], unsigned loop, const char *name)
{
	snprintf(to, 64, "/sys/fs/ext4/loop%u/%s", loop, name);
}

int space_read(unsigned loop, int mount, int image, struct box_space *ret)
{
	char path[64];
	struct statfs fs;
	struct stat st;
	uint64_t pending;
	cleanup_buf struct buf text = BUF_INIT;
	if (fstatfs(mount, &fs) < 0 || fstat(image, &st) < 0)
		return -errno;
	attribute(path, loop, "delayed_allocation_blocks");
	int r = file_read(AT_FDCWD, path, 64, &text);
	if (r < 0)
		return r;
	struct str line = buf_str(&text), rest;
	str_cut(line, '\n', &line, &rest);
	r = str_to_u64(line, &pending);
	if (r < 0)
		return r;
	uint64_t block = (uint64_t)fs.f_bsize;
	*ret = (struct box_space){
		.total = (uint64_t)fs.f_blocks * block,
		.used = (uint64_t)(fs.f_blocks - fs.f_bfree) * block,
		.pending = pending * block,
		.backed = (uint64_t)st.st_blocks * 512,
	};
	return 0;
}

int space_brake(unsigned loop, int mount, uint64_t most)
{
	char path[64], value[32];
	struct statfs fs;
	if (fstatfs(mount, &fs) < 0)
		return -errno;
	/* A number of blocks that stay free, whatever was taken since `most` was thought of. The kernel's own check is without pending blocks, as f_bfree is. */
	uint64_t total = (uint64_t)fs.f_blocks, usual = MIN(total / 50, RESERVED_MAX), used = most / (uint64_t)fs.f_bsize;
	uint64_t reserved = used < total ? MAX(usual, total - used) : usual;
	int n = snprintf(value, sizeof(value), "%llu", (unsigned long long)reserved);
	attribute(path, loop, "reserved_clusters");
	return file_write_value(AT_FDCWD, path, str_n(value, (size_t)n));
}

int space_shutdown(int mount)
{
	uint32_t how = SHUTDOWN_NOLOGFLUSH;
	return ioctl(mount, SHUTDOWN, &how) < 0 ? -errno : 0;
}
