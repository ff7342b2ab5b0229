#include "base/fd.h"
#include "base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int fd_write_all(int fd, const void *p, size_t n)
{
	const char *at = p;
	while (n) {
		ssize_t r = write(fd, at, n);
		if (r < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		at += r;
		n -= (size_t)r;
	}
	return 0;
}

ssize_t fd_read_full(int fd, void *p, size_t n)
{
	size_t got = 0;
	while (got < n) {
		ssize_t r = read(fd, (char *)p + got, n - got);
		if (r < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (r == 0)
			break;
		got += (size_t)r;
	}
	return (ssize_t)got;
}

int file_read(int dirfd, const char *path, size_t max, struct buf *to)
{
	cleanup_fd int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	size_t total = 0;
	for (;;) {
		char *at = buf_reserve(to, 4096);
		if (!at)
			return -ENOMEM;
		ssize_t r = read(fd, at, 4096);
		if (r < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (r == 0)
			return 0;
		total += (size_t)r;
		if (total > max)
			return -EFBIG;
		buf_commit(to, (size_t)r);
	}
}

int file_write_value(int dirfd, const char *path, struct str value)
{
	cleanup_fd int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t r;
	do
		r = write(fd, value.p, value.n);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	return (size_t)r == value.n ? 0 : -EIO;
}

int file_replace(int dirfd, const char *path, struct str bytes, mode_t mode)
{
	char suffix[9], temporary[PATH_MAX];
	random_text(suffix, 8, "abcdefghijklmnopqrstuvwxyz0123456789");
	if (snprintf(temporary, sizeof(temporary), "%s.%s.tmp", path, suffix) >= (int)sizeof(temporary))
		return -ENAMETOOLONG;
	cleanup_fd int fd = openat(dirfd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	int r = fd_write_all(fd, bytes.p, bytes.n);
	if (r == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0 || renameat(dirfd, temporary, dirfd, path) < 0))
		r = -errno;
	if (r < 0) {
		unlinkat(dirfd, temporary, 0);
		return r;
	}
	char *slash = strrchr(temporary, '/');
	if (slash)
		slash[slash == temporary] = '\0';
	cleanup_fd int dir = openat(dirfd, slash ? temporary : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir < 0 || fsync(dir) < 0 ? -errno : 0;
}

int file_publish(int fd, const char *path)
{
	char self[32], parent[PATH_MAX];
	const char *slash = strrchr(path, '/');
	if (!slash || (size_t)snprintf(parent, sizeof(parent), "%.*s", MAX((int)(slash - path), 1), path) >= sizeof(parent))
		return -EINVAL;
	cleanup_fd int dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, self, dir, slash + 1, AT_SYMLINK_FOLLOW) < 0 || fsync(dir) < 0)
		return -errno;
	return 0;
}

int make_dirs(const char *path, mode_t mode)
{
	char copy[PATH_MAX];
	size_t n = strlen(path);
	if (n >= sizeof(copy))
		return -ENAMETOOLONG;
	memcpy(copy, path, n + 1);
	for (char *at = copy + 1; *at; at++) {
		if (*at != '/')
			continue;
		*at = '\0';
		if (mkdir(copy, mode) < 0 && errno != EEXIST)
			return -errno;
		*at = '/';
	}
	return mkdir(copy, mode) < 0 && errno != EEXIST ? -errno : 0;
}

static int change_flag(int fd, int get, int set, int flag, bool on)
{
	int flags = fcntl(fd, get);
	if (flags < 0 || fcntl(fd, set, on ? flags | flag : flags & ~flag) < 0)
		return -errno;
	return 0;
}

int fd_set_nonblock(int fd, bool on)
{
	return change_flag(fd, F_GETFL, F_SETFL, O_NONBLOCK, on);
}

int fd_set_cloexec(int fd, bool on)
{
	return change_flag(fd, F_GETFD, F_SETFD, FD_CLOEXEC, on);
}

void fd_close_all_except(int from, const int *keep, size_t n)
{
	unsigned next = (unsigned)from;
	for (size_t i = 0; i < n; i++) {
		if (keep[i] < from)
			continue;
		if ((unsigned)keep[i] > next)
			syscall(SYS_close_range, next, (unsigned)keep[i] - 1, 0);
		next = (unsigned)keep[i] + 1;
	}
	syscall(SYS_close_range, next, ~0u, 0);
}

static int remove_at(int dirfd, const char *name, dev_t device)
{
	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	struct stat st;
	cleanup_dir DIR *dir = NULL;
	if (fstat(fd, &st) < 0 || st.st_dev != device || !(dir = fdopendir(fd))) {
		int r = st.st_dev != device ? -EXDEV : -errno;
		close(fd);
		return r;
	}
	int first = 0;
	for (struct dirent *e; (e = readdir(dir));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		int r = remove_at(fd, e->d_name, device);
		if (r < 0 && first == 0)
			first = r;
	}
	if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT && first == 0)
		first = -errno;
	return first;
}

int remove_tree(int dirfd, const char *name)
{
	struct stat st;
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	return remove_at(dirfd, name, st.st_dev);
}

unsigned fd_raise_limit(void)
{
	const rlim_t most = 1 << 20;
	struct rlimit l = {0};
	getrlimit(RLIMIT_NOFILE, &l);
	if (l.rlim_max < most && setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, most}) == 0)
		return (unsigned)most;
	l.rlim_cur = MIN(l.rlim_max, most);
	setrlimit(RLIMIT_NOFILE, &l);
	return (unsigned)l.rlim_cur;
}
