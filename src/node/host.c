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

static int memory(struct host_memory *ret, void *arg)
{
	cleanup_buf struct buf info = BUF_INIT, psi = BUF_INIT;
	unsigned long long total, available;
	int r = file_read(AT_FDCWD, "/proc/meminfo", 65536, &info);
	if (r < 0)
		return r;
	const char *text = buf_cstr(&info), *at = text ? strstr(text, "MemAvailable:") : NULL;
	if (!at || sscanf(text, "MemTotal: %llu", &total) != 1 || sscanf(at, "MemAvailable: %llu", &available) != 1)
		return -EIO;
	*ret = (struct host_memory){.total = total * 1024, .available = available * 1024};
	if (file_read(AT_FDCWD, "/proc/pressure/memory", 4096, &psi) == 0 && (text = buf_cstr(&psi)) && (at = strstr(text, "full avg10=")))
		ret->pressure = strtod(at + 11, NULL);
	return 0;
}

static int disk(struct host_disk *ret, void *arg)
{
	struct statvfs st;
	if (statvfs(arg, &st) < 0)
		return -errno;
	*ret = (struct host_disk){(uint64_t)st.f_blocks * st.f_frsize, (uint64_t)st.f_bavail * st.f_frsize};
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
