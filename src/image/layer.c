#include "image/layer.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/random.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
	MAX_OUTPUT = 256 * 1024, /* of the programs, kept for the error */
	SHOWN_OUTPUT = 200,      /* of it in the message */
	MAX_ENVIRONMENT = 64,
	TICK_MS = 500,
};

#define WORK_PREFIX ".build-"
#define LOG_NAME "failed.log"
#define WORK_MOUNT "/mnt" /* exists on every Linux (FHS); covered in our own mount namespace only */

struct work {
	int dir, fd;   /* the directory given, and our own in it (locked while we work) */
	char name[32]; /* of our own */
};

static bool have_program(const char *name)
{
	static const char *const places[] = {"/usr/bin", "/usr/sbin", "/bin", "/sbin"};
	char path[64];
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		snprintf(path, sizeof(path), "%s/%s", places[i], name);
		if (access(path, X_OK) == 0)
			return true;
	}
	return false;
}

static int check_programs(struct error *err)
{
	static const char *const needed[][2] = {{"mmdebstrap", "mmdebstrap"}, {"mkfs.erofs", "erofs-utils"}, {"mkfs.ext4", "e2fsprogs"},
		{"apt-get", "apt"}, {"tar", "tar"}};
	if (geteuid() != 0)
		return error_set(err, -EPERM, 403, "making a template from packages needs root");
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
		if (!have_program(needed[i][0]))
			return error_set(err, -ENOENT, 500, "the program %s is missing: apt-get install %s", needed[i][0], needed[i][1]);
	if (access("/usr/share/keyrings/debian-archive-keyring.gpg", R_OK) < 0)
		return error_set(err, -ENOENT, 500, "Debian's keys are missing: apt-get install debian-archive-keyring");
	return 0;
}

/* Removes what earlier runs left that were killed: their lock is free. */
static void sweep(int dir)
{
	cleanup_fd int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_dir DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
	if (!d)
		return;
	copy = -1;
	for (struct dirent *e; (e = readdir(d));) {
		if (strncmp(e->d_name, WORK_PREFIX, strlen(WORK_PREFIX)) != 0)
			continue;
		cleanup_fd int fd = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			remove_tree(dir, e->d_name);
	}
}

static int check_space(int dir, const char *path, struct error *err)
{
	struct statvfs v;
	if (fstatvfs(dir, &v) < 0)
		return error_errno(err, -errno, "%s", path);
	uint64_t free_mb = v.f_bavail * v.f_frsize >> 20;
	if (free_mb < LAYER_NEEDED_MB)
		return error_set(err, -ENOSPC, 507, "%s has %llu MiB free, the work needs %d: free some space, or choose another --state.dir", path,
			(unsigned long long)free_mb, LAYER_NEEDED_MB);
	return 0;
}

static int work_open(struct work *w, const char *path, struct error *err)
{
	char random[9];
	*w = (struct work){.dir = -1, .fd = -1};
	int r = make_dirs(path, 0700);
	if (r < 0)
		return error_errno(err, r, "%s", path);
	w->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (w->dir < 0)
		return error_errno(err, -errno, "%s", path);
	sweep(w->dir);
	r = check_space(w->dir, path, err);
	if (r < 0)
		return r;
	random_text(random, 8, "abcdefghijklmnopqrstuvwxyz");
	snprintf(w->name, sizeof(w->name), WORK_PREFIX "%s", random);
	if (mkdirat(w->dir, w->name, 0755) < 0 || (w->fd = openat(w->dir, w->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
		fchmod(w->fd, 0755) < 0 || flock(w->fd, LOCK_EX | LOCK_NB) < 0)
		return error_errno(err, -errno, "%s/%s", path, w->name);
	return 0;
}

static void work_close(struct work *w)
{
	if (w->fd >= 0)
		remove_tree(w->dir, w->name);
	cleanup_fd_p(&w->fd);
	cleanup_fd_p(&w->dir);
}

/* What the script's programs see of our environment: how this machine reaches mirrors and registries. */
static bool is_passed(const char *entry)
{
	static const char *const names[] = {"http_proxy=", "https_proxy=", "no_proxy=", "HTTP_PROXY=", "HTTPS_PROXY=", "NO_PROXY=", "SSL_CERT_FILE=", "SSL_CERT_DIR=",
		"REQUESTS_CA_BUNDLE=", "CURL_CA_BUNDLE=", "NODE_EXTRA_CA_CERTS=", "SOURCE_DATE_EPOCH=", "PIP_", "npm_config_", "NPM_CONFIG_"};
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strncmp(entry, names[i], strlen(names[i])) == 0)
			return true;
	return false;
}

static void make_environment(char *env[MAX_ENVIRONMENT])
{
	static char *const own[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"};
	size_t n = 0;
	for (; n < ARRAY_SIZE(own); n++)
		env[n] = own[n];
	for (char *const *e = environ; *e && n < MAX_ENVIRONMENT - 1; e++)
		if (is_passed(*e))
			env[n++] = *e;
	env[n] = NULL;
}

/* PID 1 of the namespaces: mounts, then the script. */
static void child(const struct layer_build *b, const struct work *w, const char *script, int output)
{
	char *env[MAX_ENVIRONMENT];
	char *argv[] = {"sh", "-c", (char *)script, "cubicle-template", (char *)(b->mirror ? b->mirror : ""), b->recipe->files ? "files" : "", NULL};
	char path[PATH_MAX];
	sigset_t none;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setsid();
	umask(022);
	make_environment(env);
	/* By its path: a descriptor opened outside belongs to a mount that cannot be bound here. */
	snprintf(path, sizeof(path), "%s/%s", b->directory, w->name);
	int null = open("/dev/null", O_RDONLY);
	if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
		_exit(127);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount(path, WORK_MOUNT, NULL, MS_BIND, NULL) < 0 ||
		mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 || chdir(WORK_MOUNT) < 0) {
		dprintf(2, "E: mounts: %s\n", strerror(errno));
		_exit(127);
	}
	fd_close_all_except(3, NULL, 0);
	execve("/bin/sh", argv, env);
	_exit(127);
}

struct run {
	const struct layer_build *b;
	struct buf line, output;
	char phase[64], failed[16]; /* the last phase begun, and what could not be fetched */
	int percent;
};

static void take_phase(struct run *run, struct str line)
{
	struct str percent, phase;
	uint64_t value;
	if (!str_cut(line, ' ', &percent, &phase) || str_to_u64(percent, &value) < 0)
		return;
	run->percent = (int)MIN(value, 100u);
	snprintf(run->phase, sizeof(run->phase), "%.*s", STR_FMT(phase));
	run->b->progress(run->phase, run->percent, run->b->arg);
}

static void take_line(struct run *run, struct str line)
{
	if (str_starts(line, STR(RECIPE_PHASE))) {
		take_phase(run, str_from(line, strlen(RECIPE_PHASE)));
		return;
	}
	if (str_starts(line, STR(RECIPE_FAILED))) {
		snprintf(run->failed, sizeof(run->failed), "%.*s", STR_FMT(str_from(line, strlen(RECIPE_FAILED))));
		return;
	}
	buf_add_str(&run->output, line);
	buf_add_c(&run->output, "\n");
	if (buf_len(&run->output) > MAX_OUTPUT)
		buf_consume(&run->output, buf_len(&run->output) - MAX_OUTPUT / 2);
}

static void take_output(struct run *run, const char *p, size_t n)
{
	struct str line, rest;
	buf_add(&run->line, p, n);
	while (str_cut(buf_str(&run->line), '\n', &line, &rest)) {
		size_t whole = line.n + 1;
		take_line(run, line);
		buf_consume(&run->line, whole);
	}
	if (buf_len(&run->line) > MAX_OUTPUT)
		buf_clear(&run->line);
}

/* Until the output ends (every process of the namespace is gone then) or a signal asks to stop: 0 or -EINTR. */
static int follow(struct run *run, int output, int signals)
{
	struct pollfd fds[2] = {{.fd = output, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
	char bytes[8192];
	for (;;) {
		int n = poll(fds, 2, TICK_MS);
		if (n == 0 && run->percent)
			run->b->progress(run->phase, run->percent, run->b->arg);
		if (fds[1].revents & POLLIN)
			return -EINTR;
		if (!(fds[0].revents & (POLLIN | POLLHUP)))
			continue;
		ssize_t got = read(output, bytes, sizeof(bytes));
		if (got > 0)
			take_output(run, bytes, (size_t)got);
		else if (got == 0 || errno != EINTR)
			return 0;
	}
}

static bool mentions(struct str text, const char *const *words)
{
	for (; *words; words++)
		if (memmem(text.p, text.n, *words, strlen(*words)))
			return true;
	return false;
}

/* The last lines of the output. */
static struct str tail_of(struct str output)
{
	struct str tail = str_from(output, output.n > SHOWN_OUTPUT ? output.n - SHOWN_OUTPUT : 0), line;
	if (output.n > SHOWN_OUTPUT)
		str_cut(tail, '\n', &line, &tail);
	while (tail.n && tail.p[tail.n - 1] == '\n')
		tail.n--;
	return tail;
}

/* A registry's client failed: which, and whether it answered. */
static int explain_registry(const struct run *run, struct str output, struct error *err)
{
	static const char *const changed[] = {"DO NOT MATCH THE HASHES", "EINTEGRITY", NULL};
	bool python = strcmp(run->failed, "python") == 0;
	const char *what = python ? "Python packages" : "npm packages";
	if (mentions(output, changed))
		return error_set(err, -EBADMSG, 502, "%s: the registry gave other files than those whose digests the recipe knows", what);
	return error_set(err, -ENETUNREACH, 502, "%s: the registry was not reached, or has not all of them: check the network and the proxy, or name a registry near you by the variable %s:\n%.*s", what,
		python ? "PIP_INDEX_URL" : "npm_config_registry", STR_FMT(tail_of(output)));
}

static int explain(const struct run *run, const struct layer_build *b, const struct work *w, struct error *err)
{
	static const char *const network[] = {"Could not resolve", "Temporary failure resolving", "Could not connect", "Unable to connect", "Connection failed",
		"Connection timed out", "Network is unreachable", "Could not handshake", "connection timed out", NULL};
	static const char *const missing[] = {"does not have a Release file", "404  Not Found", "Failed to fetch", "Unable to locate package", NULL};
	static const char *const full[] = {"No space left on device", NULL};
	struct str output = buf_str((struct buf *)&run->output);
	const char *where = b->mirror ? b->mirror : "this machine's package sources";
	file_replace(w->dir, LOG_NAME, output, 0600);
	if (mentions(output, full))
		return error_set(err, -ENOSPC, 507, "the disk of %s filled up: the work needs %d MiB free", b->directory, LAYER_NEEDED_MB);
	if (*run->failed && strcmp(run->failed, "packages") != 0)
		return explain_registry(run, output, err);
	if (mentions(output, network))
		return error_set(err, -ENETUNREACH, 502,
			"no package mirror was reached (%s): check the network and the proxy of apt, or name a mirror near you: cubicle template make-default --mirror URL", where);
	if (mentions(output, missing))
		return error_set(err, -ENETUNREACH, 502,
			"%s answered without the packages of Debian bookworm: name a complete mirror: cubicle template make-default --mirror URL", where);
	return error_set(err, -EIO, 500, "making the %s failed while %s (all output: %s/" LOG_NAME "):\n%.*s", b->recipe->name,
		*run->phase ? run->phase : "starting", b->directory, STR_FMT(tail_of(output)));
}

static int run_script(const struct layer_build *b, const struct work *w, struct error *err)
{
	int pipes[2], status, r;
	cleanup_buf struct buf script = BUF_INIT;
	buf_add_c(&script, recipe_prelude);
	buf_add_c(&script, b->recipe->script);
	if (!buf_cstr(&script))
		return error_errno(err, -ENOMEM, "recipe");
	sigset_t set, old;
	sigemptyset(&set);
	for (const int *s = (const int[]){SIGINT, SIGTERM, SIGHUP, 0}; *s; s++)
		sigaddset(&set, *s);
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int output = pipes[0], input = pipes[1];
	sigprocmask(SIG_BLOCK, &set, &old);
	cleanup_fd int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	fflush(NULL);
	pid_t pid = signals < 0 ? -1 : (pid_t)syscall(SYS_clone, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		child(b, w, buf_cstr(&script), input);
	r = -errno;
	if (pid > 0) {
		struct run run = {.b = b};
		close(steal_fd(&input));
		r = follow(&run, output, signals);
		if (r < 0)
			kill(pid, SIGKILL); /* PID 1 of its namespace: everything in it goes */
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (r < 0)
			error_set(err, r, 499, "interrupted: nothing was changed");
		else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			r = explain(&run, b, w, err);
		buf_done(&run.line);
		buf_done(&run.output);
	} else {
		error_errno(err, r, "namespaces for the build");
	}
	/* The signal that ended the work has been answered. */
	struct signalfd_siginfo taken;
	while (signals >= 0 && read(signals, &taken, sizeof(taken)) > 0)
		;
	sigprocmask(SIG_SETMASK, &old, NULL);
	return r;
}

/* Digest of the file, and its bytes on their way to the disk. */
static int seal_image(const struct work *w, struct layer_image *ret, struct error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned digest_n = 0;
	char hex[2 * EVP_MAX_MD_SIZE + 1];
	cleanup_fd int fd = openat(w->fd, "image", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	cleanup_free char *bytes = malloc(1 << 20);
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	int r = fd < 0 ? -errno : !bytes || !md || !EVP_DigestInit_ex(md, EVP_sha256(), NULL) ? -ENOMEM : 0;
	ret->size = 0;
	while (r == 0) {
		ssize_t n = fd_read_full(fd, bytes, 1 << 20);
		if (n <= 0) {
			r = (int)n;
			break;
		}
		ret->size += (uint64_t)n;
		EVP_DigestUpdate(md, bytes, (size_t)n);
	}
	if (r == 0 && !EVP_DigestFinal_ex(md, digest, &digest_n))
		r = -EIO;
	EVP_MD_CTX_free(md);
	if (r < 0)
		return error_errno(err, r, "reading the image");
	snprintf(ret->name, sizeof(ret->name), "%s.erofs", hex_encode(hex, digest, digest_n));
	if (fchmod(fd, 0400) < 0 || fsync(fd) < 0 || renameat(w->fd, "image", w->dir, ret->name) < 0 || fsync(w->dir) < 0)
		return error_errno(err, -errno, "keeping the image");
	return 0;
}

static int copy_file(const char *from, int dir, const char *name)
{
	cleanup_fd int in = open(from, O_RDONLY | O_CLOEXEC), out = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	cleanup_free char *bytes = malloc(1 << 16);
	ssize_t n;
	if (in < 0 || out < 0 || !bytes)
		return in < 0 || out < 0 ? -errno : -ENOMEM;
	while ((n = fd_read_full(in, bytes, 1 << 16)) > 0) {
		int r = fd_write_all(out, bytes, (size_t)n);
		if (r < 0)
			return r;
	}
	return (int)n;
}

/* What the script reads, under fixed names in its directory: the images below are one link more, on the same file system. */
static int provide(const struct layer_build *b, const struct work *w, struct error *err)
{
	char name[32], path[PATH_MAX];
	int r = recipe_find_files(b->recipe, path, err);
	if (r == 0 && *path) {
		r = copy_file(path, w->fd, "files");
		if (r < 0)
			error_errno(err, r, "%s", path);
	}
	for (size_t i = 0; r == 0 && i < b->n_lower; i++) {
		snprintf(name, sizeof(name), "lower%zu", i);
		if (linkat(AT_FDCWD, b->lower[i], w->fd, name, 0) < 0)
			r = error_errno(err, -errno, "layer %s", b->lower[i]);
	}
	return r;
}

int layer_build(const struct layer_build *b, struct layer_image *ret, struct error *err)
{
	struct work w;
	int r = b->n_lower > LAYER_MAX_LOWER ? error_set(err, -EINVAL, 400, "too many layers") : check_programs(err);
	if (r < 0)
		return r;
	r = work_open(&w, b->directory, err);
	if (r == 0)
		r = provide(b, &w, err);
	if (r == 0)
		r = run_script(b, &w, err);
	if (r == 0)
		r = seal_image(&w, ret, err);
	if (r == 0)
		unlinkat(w.dir, LOG_NAME, 0); /* of an earlier run */
	work_close(&w);
	return r;
}
