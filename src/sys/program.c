#include "sys/program.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

enum { OUTPUT_MAX = 1 << 20 };

static int find(const char *name, char *ret, size_t size)
{
	static const char *const directories[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"};
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
		snprintf(ret, size, "%s/%s", directories[i], name);
		if (access(ret, X_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

static int spawn(const char *path, const char *const *argv, int in, int out, pid_t *ret)
{
	static char *const environment[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	sigemptyset(&none);
	sigfillset(&all);
	int r = posix_spawn_file_actions_init(&files);
	if (r)
		return -r;
	r = posix_spawnattr_init(&attributes);
	if (r) {
		posix_spawn_file_actions_destroy(&files);
		return -r;
	}
	/* The caller's loop may block signals or ignore some. */
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawn_file_actions_adddup2(&files, in, 0);
	posix_spawn_file_actions_adddup2(&files, out, 1);
	posix_spawn_file_actions_adddup2(&files, out, 2);
	r = posix_spawn(ret, path, &files, &attributes, (char *const *)(uintptr_t)argv, environment);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	return -r;
}

static int await(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int program_run_on(const char *const *argv, int in, struct buf *ret_output, struct error *err)
{
	char path[PATH_MAX];
	if (find(argv[0], path, sizeof(path)) < 0)
		return error_set(err, -ENOENT, 500, "%s is not installed", argv[0]);
	/* A file in memory instead of a pipe: neither side can block the other. */
	cleanup_fd int out = memfd_create("output", MFD_CLOEXEC);
	if (out < 0)
		return error_errno(err, -errno, "%s", argv[0]);
	pid_t pid;
	int r = spawn(path, argv, in, out, &pid);
	if (r == 0)
		r = await(pid);
	if (r < 0)
		return error_errno(err, r, "%s", argv[0]);
	if (ret_output) {
		char *to = lseek(out, 0, SEEK_SET) < 0 ? NULL : buf_reserve(ret_output, OUTPUT_MAX);
		ssize_t got = to ? fd_read_full(out, to, OUTPUT_MAX) : -ENOMEM;
		if (got < 0)
			return error_errno(err, (int)got, "%s", argv[0]);
		buf_commit(ret_output, (size_t)got);
	}
	return r;
}

int program_run(const char *const *argv, struct str input, struct buf *ret_output, struct error *err)
{
	cleanup_fd int in = memfd_create("input", MFD_CLOEXEC);
	if (in < 0)
		return error_errno(err, -errno, "%s", argv[0]);
	int r = fd_write_all(in, input.p, input.n);
	if (r == 0 && lseek(in, 0, SEEK_SET) < 0)
		r = -errno;
	return r < 0 ? error_errno(err, r, "%s", argv[0]) : program_run_on(argv, in, ret_output, err);
}

int program_copy(const char *path, const char *name, struct error *err)
{
	cleanup_buf struct buf image = BUF_INIT;
	char self[40];
	int r = file_read(AT_FDCWD, path, 64 << 20, &image);
	if (r < 0)
		return error_errno(err, r, "%s at %s", name, path);
	cleanup_fd int copy = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
	if (copy < 0 && errno == EINVAL) /* before Linux 6.3 */
		copy = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (copy < 0)
		return error_errno(err, -errno, "memory for %s", name);
	r = fd_write_all(copy, buf_str(&image).p, buf_len(&image));
	if (r == 0 && (fchmod(copy, 0711) < 0 || fcntl(copy, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0))
		r = -errno;
	/* What is open for writing cannot be executed. */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", copy);
	int fd = r < 0 ? r : open(self, O_PATH | O_CLOEXEC);
	if (r == 0 && fd < 0)
		r = -errno;
	return r < 0 ? error_errno(err, r, "copying %s", name) : fd;
}

int program_of_ours(const char *name, const char *built, char to[PATH_MAX], struct error *err)
{
	const char *const places[] = {".", "../libexec/cubicle", "../lib/cubicle", built};
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return error_errno(err, -errno, "/proc/self/exe");
	self[n] = 0;
	*strrchr(self, '/') = 0;
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		if (snprintf(to, PATH_MAX, "%s/%s/%s", self, places[i], name) < PATH_MAX && access(to, X_OK) == 0)
			return 0;
	}
	return error_set(err, -ENOENT, 500, "%s is not installed beside %s", name, self);
}
