#include "sys/process.h"
#include "base/buf.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int process_boot_id(char ret[BOOT_ID_SIZE])
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &text);
	if (r < 0)
		return r;
	if (buf_len(&text) < BOOT_ID_SIZE - 1)
		return -EIO;
	memcpy(ret, buf_str(&text).p, BOOT_ID_SIZE - 1);
	ret[BOOT_ID_SIZE - 1] = '\0';
	return 0;
}

int process_start_time(pid_t pid, uint64_t *ret)
{
	char path[40];
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, path, 4096, &text);
	if (r < 0)
		return r == -ENOENT ? -ESRCH : r;
	/* The command name may hold anything, also ") ": the fields begin after the last parenthesis. */
	const char *all = buf_cstr(&text), *at = all ? strrchr(all, ')') : NULL;
	if (!at)
		return -EIO;
	struct str rest = str_from(str_of(at), 2), field;
	for (int i = 3; i <= 22; i++) {
		struct str tail;
		if (!str_cut(rest, ' ', &field, &tail))
			return -EIO;
		rest = tail;
	}
	return str_to_u64(field, ret);
}

int process_namespace(pid_t pid, const char *name)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int process_pidfd(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	return fd < 0 ? -errno : fd;
}

int process_signal(int pidfd, int signal)
{
	return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) < 0 ? -errno : 0;
}

int process_ended(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	return poll(&p, 1, 0) > 0;
}
