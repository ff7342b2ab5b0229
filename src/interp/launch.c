#include "interp/launch.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define HEX "0123456789abcdef"

/*
 * Ports for kernels lie under the range that connections take theirs from: whoever connects to a port of that
 * range where nobody listens yet may meet himself there, and the kernel finds its port taken.
 */
enum { FIRST_PORT = 20000, LAST_PORT = 31999, PORT_TRIES = 200, MAX_GROUPS = 256 };

int launch_user_init(struct launch_user *u, const char *name, struct error *err)
{
	struct passwd *p = name ? getpwnam(name) : getpwuid(geteuid());
	if (!p && name)
		return error_set(err, -ENOENT, 500, "there is no user %s", name);
	*u = (struct launch_user){.uid = p ? p->pw_uid : geteuid(), .gid = p ? p->pw_gid : getegid()};
	u->become = u->uid != geteuid();
	getrlimit(RLIMIT_NOFILE, &u->files);
	u->name = strdup(p ? p->pw_name : "user");
	u->home = strdup(p ? p->pw_dir : "/");
	u->shell = strdup(p && *p->pw_shell ? p->pw_shell : "/bin/sh");
	u->n_groups = MAX_GROUPS;
	u->groups = calloc(MAX_GROUPS, sizeof(*u->groups));
	if (!u->name || !u->home || !u->shell || !u->groups) {
		launch_user_done(u);
		return error_errno(err, -ENOMEM, "user");
	}
	if (getgrouplist(u->name, u->gid, u->groups, &u->n_groups) < 0)
		u->n_groups = MAX_GROUPS; /* more than fit: these will do */
	return 0;
}

void launch_user_done(struct launch_user *u)
{
	free(u->name);
	free(u->home);
	free(u->shell);
	free(u->groups);
	*u = (struct launch_user){0};
}

/* Where it is spoken to */

static int bind_port(int port)
{
	cleanup_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return -errno;
	return steal_fd(&fd);
}

/* Free ports: held together, so that they differ, and given back for the kernel to take. Who takes one
 * meanwhile makes the kernel fail, which is then tried again. */
static int choose_ports(int ports[LAUNCH_PORTS])
{
	int held[LAUNCH_PORTS], n = 0, r = -EADDRINUSE;
	for (int tries = 0; n < LAUNCH_PORTS && tries < PORT_TRIES; tries++) {
		uint32_t random;
		random_bytes(&random, sizeof(random));
		ports[n] = FIRST_PORT + (int)(random % (LAST_PORT - FIRST_PORT + 1));
		r = held[n] = bind_port(ports[n]);
		if (r >= 0)
			n++;
		else if (r != -EADDRINUSE)
			break;
	}
	for (int i = 0; i < n; i++)
		close(held[i]);
	return n == LAUNCH_PORTS ? 0 : r;
}

bool launch_lost_port(const struct launch *n)
{
	for (int i = 0; !n->ipc && i < LAUNCH_PORTS; i++) {
		cleanup_fd int fd = bind_port(n->ports[i]);
		if (fd == -EADDRINUSE)
			return true;
	}
	return false;
}

void launch_endpoint(const struct launch *n, enum launch_port port, char ret[LAUNCH_ENDPOINT])
{
	if (n->ipc)
		snprintf(ret, LAUNCH_ENDPOINT, "ipc://%s/%s/s-%d", n->run_dir, n->name, n->ports[port]);
	else
		snprintf(ret, LAUNCH_ENDPOINT, "tcp://127.0.0.1:%d", n->ports[port]);
}

static int write_connection_file(
	const struct launch *n, int dir, const struct kernelspec *spec, const struct launch_user *user)
{
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text,
		"{\"shell_port\":%d,\"iopub_port\":%d,\"stdin_port\":%d,\"control_port\":%d,\"hb_port\":%d,"
		"\"signature_scheme\":\"hmac-sha256\",\"key\":\"%s\",\"kernel_name\":\"%s\",",
		n->ports[PORT_SHELL], n->ports[PORT_IOPUB], n->ports[PORT_STDIN], n->ports[PORT_CONTROL],
		n->ports[PORT_HEARTBEAT], n->key, spec->name);
	if (n->ipc)
		buf_addf(&text, "\"transport\":\"ipc\",\"ip\":\"%s/%s/s\"}", n->run_dir, n->name);
	else
		buf_addf(&text, "\"transport\":\"tcp\",\"ip\":\"127.0.0.1\"}");
	if (text.failed)
		return -ENOMEM;
	cleanup_fd int fd =
		openat(dir, "connection.json", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int r = fd_write_all(fd, buf_str(&text).p, buf_len(&text));
	return r < 0 ? r : user->become && fchown(fd, user->uid, user->gid) < 0 ? -errno : 0;
}

static int make_directory(
	const struct launch *n, const struct kernelspec *spec, const struct launch_user *user)
{
	cleanup_free char *path = NULL;
	if (asprintf(&path, "%s/%s", n->run_dir, n->name) < 0)
		return -ENOMEM;
	if (mkdir(path, 0700) < 0)
		return -errno;
	cleanup_fd int dir = open(path, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r = dir < 0 ? -errno : write_connection_file(n, dir, spec, user);
	/* The kernel makes its sockets here. It comes last: from now on its user can change what is in it. */
	return r < 0 ? r : user->become && fchown(dir, user->uid, user->gid) < 0 ? -errno : 0;
}

/* What it is started with */

struct words {
	char **list;
	size_t n, cap;
	bool failed;
};

static void words_add(struct words *w, char *owned)
{
	if (w->n + 1 >= w->cap) {
		size_t cap = w->cap ? 2 * w->cap : 64;
		char **list = reallocarray(w->list, cap, sizeof(*list));
		if (!list) {
			free(owned);
			w->failed = true;
			return;
		}
		w->list = list;
		w->cap = cap;
	}
	if (!owned)
		w->failed = true;
	w->list[w->n] = owned;
	w->n += owned != NULL;
	w->list[w->n] = NULL;
}

static void words_done(struct words *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->list[i]);
	free(w->list);
}

/* Sets NAME=VALUE, in place of an earlier one. */
static void words_set(struct words *w, char *owned)
{
	size_t name = owned ? strcspn(owned, "=") + 1 : 0;
	for (size_t i = 0; owned && i < w->n; i++) {
		if (strncmp(w->list[i], owned, name) == 0) {
			free(w->list[i]);
			w->list[i] = owned;
			return;
		}
	}
	words_add(w, owned);
}

static void words_setf(struct words *w, const char *name, const char *value)
{
	char *s;
	words_set(w, asprintf(&s, "%s=%s", name, value) < 0 ? NULL : s);
}

static void make_environment(struct words *env, const struct kernelspec *spec, const struct launch_user *user)
{
	words_setf(env, "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "LISTEN_", 7) != 0)
			words_set(env, strdup(*e));
	words_setf(env, "HOME", user->home);
	words_setf(env, "USER", user->name);
	words_setf(env, "LOGNAME", user->name);
	words_setf(env, "SHELL", user->shell);
	for (char **e = spec->env; *e; e++)
		words_set(env, strdup(*e));
}

/* A word of argv with its place-holders filled in. */
static char *fill_in(const char *word, const char *file, const char *resources)
{
	cleanup_buf struct buf b = BUF_INIT;
	for (struct str s = str_of(word); s.n;) {
		if (str_starts(s, STR("{connection_file}"))) {
			buf_add_c(&b, file);
			s = str_from(s, 17);
		} else if (str_starts(s, STR("{resource_dir}"))) {
			buf_add_c(&b, resources);
			s = str_from(s, 14);
		} else {
			buf_add(&b, s.p, 1);
			s = str_from(s, 1);
		}
	}
	const char *text = buf_cstr(&b);
	return text ? strdup(text) : NULL;
}

static void make_argv(struct words *argv, const struct launch *n, const struct kernelspec *spec)
{
	cleanup_free char *file = NULL;
	if (asprintf(&file, "%s/%s/connection.json", n->run_dir, n->name) < 0) {
		argv->failed = true;
		return;
	}
	for (char **w = spec->argv; *w; w++)
		words_add(argv, fill_in(*w, file, spec->dir));
}

/* The new process, until it is the kernel. Async-signal-safe: the parent has threads. */

struct start {
	const struct launch_user *user;
	const char *cwd, *oom_score;
	char **argv, **env;
	int output, why;
};

static _Noreturn void give_up(const struct start *s, const char *what)
{
	const char *reason = strerrordesc_np(errno);
	if (write(s->why, what, strlen(what)) > 0 && write(s->why, ": ", 2) > 0 &&
		write(s->why, reason, strlen(reason)) > 0)
		_exit(127);
	_exit(126);
}

static _Noreturn void become_kernel(const struct start *s)
{
	struct sigaction usual = {.sa_handler = SIG_DFL};
	sigset_t none;
	for (int i = 1; i < NSIG; i++)
		sigaction(i, &usual, NULL);
	int null = open("/dev/null", O_RDONLY);
	int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (score >= 0 && write(score, s->oom_score, strlen(s->oom_score)) < 0)
		errno = 0; /* a kernel that is not the first to go is still a kernel */
	if (null < 0 || dup2(null, 0) < 0 || dup2(s->output, 1) < 0 || dup2(s->output, 2) < 0)
		give_up(s, "its descriptors");
	fd_close_all_except(3, &s->why, 1);
	setrlimit(RLIMIT_NOFILE, &s->user->files);
	if (setsid() < 0)
		give_up(s, "its session");
	if (s->user->become && (setgroups((size_t)s->user->n_groups, s->user->groups) < 0 ||
				       setresgid(s->user->gid, s->user->gid, s->user->gid) < 0 ||
				       setresuid(s->user->uid, s->user->uid, s->user->uid) < 0))
		give_up(s, "its user");
	/* Set after the change of user, which clears it. Who executed us may be gone already; then the next
	 * service sweeps this one away. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	umask(022);
	if (chdir(s->cwd) < 0)
		give_up(s, s->cwd);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvpe(s->argv[0], s->argv, s->env);
	give_up(s, s->argv[0]);
}

/* The kernel shall be what an empty memory takes first, rather than this service. */
static void make_oom_score(char *to, size_t size)
{
	cleanup_buf struct buf b = BUF_INIT;
	const char *text = file_read(AT_FDCWD, "/proc/self/oom_score_adj", 64, &b) < 0 ? NULL : buf_cstr(&b);
	int own = text ? atoi(text) : 0;
	snprintf(to, size, "%d", MIN(own + 100, 1000));
}

/* Start time of a process in clock ticks, and its process group; -1 when it is gone. */
static long long start_time(pid_t pid, pid_t *ret_group)
{
	char path[40];
	cleanup_buf struct buf b = BUF_INIT;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	const char *text = file_read(AT_FDCWD, path, 4096, &b) < 0 ? NULL : buf_cstr(&b);
	const char *after = text ? strrchr(text, ')') : NULL;
	long long started;
	int group;
	if (!after ||
		sscanf(after,
			") %*c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
			&group, &started) != 2)
		return -1;
	*ret_group = group;
	return started;
}

/* For the next service, should this one die: which process group was ours. */
static int write_record(const struct launch *n)
{
	cleanup_free char *path = NULL;
	char text[64];
	pid_t group;
	snprintf(text, sizeof(text), "%d %lld\n", (int)n->pid, start_time(n->pid, &group));
	if (asprintf(&path, "%s/%s.pid", n->run_dir, n->name) < 0)
		return -ENOMEM;
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

static int start_process(struct launch *n, struct start *s, struct error *err)
{
	int output[2], why[2];
	if (pipe2(output, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int output_in = output[0], output_out = output[1];
	if (pipe2(why, O_CLOEXEC | O_NONBLOCK) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int why_in = why[0], why_out = why[1];
	fd_set_nonblock(output_in, true);
	s->output = output_out;
	s->why = why_out;
	pid_t pid = fork();
	if (pid < 0)
		return error_errno(err, -errno, "fork");
	if (pid == 0)
		become_kernel(s);
	n->pid = pid;
	n->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	n->output = steal_fd(&output_in);
	n->why = steal_fd(&why_in);
	int r = n->pidfd < 0 ? -errno : write_record(n);
	return r < 0 ? error_errno(err, r, "the record of the kernel's process") : 0;
}

static int prepare(struct launch *n, const struct kernelspec *spec, const struct launch_user *user,
	struct words *argv, struct words *env, struct error *err)
{
	random_text(n->name, 16, HEX);
	random_text(n->key, LAUNCH_KEY, HEX);
	n->ipc = spec->ipc;
	for (int i = 0; i < LAUNCH_PORTS; i++)
		n->ports[i] = i + 1;
	int r = n->ipc ? 0 : choose_ports(n->ports);
	if (r < 0)
		return error_errno(err, r, "ports for the kernel");
	make_argv(argv, n, spec);
	make_environment(env, spec, user);
	if (argv->failed || env->failed)
		return error_errno(err, -ENOMEM, "words");
	r = make_directory(n, spec, user);
	return r < 0 ? error_errno(err, r, "%s/%s", n->run_dir, n->name) : 0;
}

int launch_start(struct launch *n, const char *run_dir, const struct kernelspec *spec,
	const struct launch_user *user, const char *cwd, struct error *err)
{
	struct words argv = {0}, env = {0};
	char oom_score[16];
	*n = LAUNCH_NONE;
	n->run_dir = run_dir;
	make_oom_score(oom_score, sizeof(oom_score));
	int r = prepare(n, spec, user, &argv, &env, err);
	if (r == 0) {
		struct start s = {user, cwd, oom_score, argv.list, env.list, -1, -1};
		r = start_process(n, &s, err);
	}
	words_done(&argv);
	words_done(&env);
	if (r < 0) {
		launch_kill(n);
		launch_reap(n);
	}
	return r;
}

/* Its end */

void launch_kill(const struct launch *n)
{
	if (n->pid <= 0)
		return;
	/* Before it has a group of its own there is only itself. */
	kill(n->pid, SIGKILL);
	kill(-n->pid, SIGKILL);
}

static void close_p(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int launch_reap(struct launch *n)
{
	int status = 0;
	if (n->pid > 0) {
		/* The group keeps its number while its leader is not reaped. */
		kill(-n->pid, SIGKILL);
		while (waitpid(n->pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	n->pid = 0;
	close_p(&n->pidfd);
	close_p(&n->output);
	close_p(&n->why);
	cleanup_fd int run = open(n->run_dir, O_DIRECTORY | O_CLOEXEC);
	char record[32];
	snprintf(record, sizeof(record), "%s.pid", n->name);
	if (run >= 0 && n->name[0]) {
		remove_tree(run, n->name);
		unlinkat(run, record, 0);
	}
	return status;
}

static void kill_group(pid_t leader, long long since)
{
	cleanup_dir DIR *proc = opendir("/proc");
	struct dirent *e;
	pid_t group;
	long long started = start_time(leader, &group);
	/* A leader with another start time is somebody else, and so is then the group of that number. */
	if (started >= 0 && started != since)
		return;
	while (proc && (e = readdir(proc))) {
		pid_t pid = atoi(e->d_name);
		if (pid <= 0)
			continue;
		started = start_time(pid, &group);
		if (started >= since && group == leader)
			kill(pid, SIGKILL);
	}
}

int launch_sweep(const char *run_dir)
{
	int r = make_dirs(run_dir, 0711);
	if (r < 0)
		return r;
	cleanup_dir DIR *d = opendir(run_dir);
	if (!d)
		return -errno;
	struct dirent *e;
	while ((e = readdir(d))) {
		cleanup_buf struct buf b = BUF_INIT;
		const char *dot = strrchr(e->d_name, '.'), *text;
		int pid;
		long long since;
		if (e->d_name[0] == '.')
			continue;
		if (dot && strcmp(dot, ".pid") == 0 && file_read(dirfd(d), e->d_name, 64, &b) == 0 &&
			(text = buf_cstr(&b)) && sscanf(text, "%d %lld", &pid, &since) == 2 && pid > 1 &&
			since >= 0)
			kill_group(pid, since);
		remove_tree(dirfd(d), e->d_name);
	}
	return 0;
}
