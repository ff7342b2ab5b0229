#include "node/host.h"
#include "base/clock.h"
#include "base/fd.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>

static int64_t boottime(void *arg)
{
	return clock_boottime();
}

static int64_t realtime(void *arg)
{
	return clock_realtime();
}

/* A line of /proc/meminfo in bytes: 0 or -EIO. */
static int meminfo(const char *text, const char *name, uint64_t *ret)
{
	const char *at = text ? strstr(text, name) : NULL;
	unsigned long long kib;
	if (!at || sscanf(at + strlen(name), " %llu", &kib) != 1)
		return -EIO;
	*ret = kib * 1024;
	return 0;
}

static int memory(struct host_memory *ret, void *arg)
{
	cleanup_buf struct buf info = BUF_INIT, psi = BUF_INIT;
	struct host_memory m = {0};
	int r = file_read(AT_FDCWD, "/proc/meminfo", 65536, &info);
	if (r == 0)
		r = meminfo(buf_cstr(&info), "MemTotal:", &m.total);
	if (r == 0)
		r = meminfo(buf_cstr(&info), "MemAvailable:", &m.available);
	if (r < 0)
		return r;
	const char *full = "full avg10=", *at;
	if (file_read(AT_FDCWD, "/proc/pressure/memory", 4096, &psi) == 0 && buf_cstr(&psi) && (at = strstr(buf_cstr(&psi), full)))
		m.pressure = strtod(at + strlen(full), NULL);
	*ret = m;
	return 0;
}

static int disk(struct host_disk *ret, void *arg)
{
	struct statvfs st;
	uint64_t dirty = 0, writeback = 0;
	cleanup_buf struct buf info = BUF_INIT;
	if (statvfs(arg, &st) < 0)
		return -errno;
	int r = file_read(AT_FDCWD, "/proc/meminfo", 65536, &info);
	if (r == 0)
		r = meminfo(buf_cstr(&info), "Dirty:", &dirty);
	if (r == 0)
		r = meminfo(buf_cstr(&info), "Writeback:", &writeback);
	if (r < 0)
		return r;
	*ret = (struct host_disk){(uint64_t)st.f_blocks * st.f_frsize, (uint64_t)st.f_bavail * st.f_frsize, dirty + writeback};
	return 0;
}

int host_init(struct host *h, const char *state_dir, struct error *err)
{
	cleanup_buf struct buf id = BUF_INIT;
	int r = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &id);
	if (r < 0 || buf_len(&id) < 36)
		return error_errno(err, r < 0 ? r : -EIO, "boot id");
	*h = (struct host){boottime, realtime, memory, disk, .arg = (void *)(uintptr_t)state_dir};
	memcpy(h->boot_id, buf_str(&id).p, 36);
	return 0;
}
