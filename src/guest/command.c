#include "guest/command.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "guest/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct command {
	int status;
	const char *user, *cwd, *workdir;
	char **argv, **envp;
	uint32_t n_envs;
	struct guest_user account;
};

static char *take(char **at)
{
	char *s = *at;
	*at += strlen(s) + 1;
	return s;
}

/* Signals as a program expects them from its parent: everything default, nothing blocked. */
static void reset_signals(void)
{
	/* By the call itself: libc's does not touch 32 and 33, its own, which whoever was started by its posix_spawn() (make, for one) inherits as ignored. */
	static const unsigned long default_action[4]; /* struct kernel_sigaction: all zero is SIG_DFL */
	for (int i = 1; i < NSIG; i++)
		syscall(SYS_rt_sigaction, i, default_action, NULL, sizeof(unsigned long));
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static void find_account(struct command *c)
{
	int r = guest_user_find(str_of(c->user), &c->account);
	if (r == -ENOENT)
		spawn_fail(c->status, CONNECT_UNAUTHENTICATED, "invalid username: '%s'", c->user);
	if (r < 0)
		spawn_fail(c->status, CONNECT_INTERNAL, "looking up user '%s': %s", c->user, strerror(-r));
}

/* Where sd_listen_fds(3) looks for it. */
static void set_listener(struct command *c, int fd)
{
	enum { AT = 3 };
	if (c->status == AT && (c->status = fcntl(AT, F_DUPFD_CLOEXEC, AT + 1)) < 0)
		_exit(127);
	if (fd == AT ? fd_set_cloexec(AT, false) < 0 : dup2(fd, AT) < 0)
		spawn_fail(c->status, CONNECT_INTERNAL, "setting up the listening socket: %s", strerror(errno));
}

static void set_descriptors(struct command *c, uint32_t flags, const int *fds)
{
	bool pty = flags & SPAWN_PTY;
	if (pty) {
		/* As grantpt() does; the group comes from the gid option of devpts. */
		if (fchown(fds[0], c->account.uid, (gid_t)-1) < 0 || setsid() < 0 ||
			ioctl(fds[0], TIOCSCTTY, 0) < 0)
			spawn_fail(
				c->status, CONNECT_INTERNAL, "setting up the terminal: %s", strerror(errno));
	} else if (flags & SPAWN_SESSION) {
		setsid();
	} else {
		setpgid(0, 0);
	}
	for (int i = 0; i < 3; i++)
		if (dup2(fds[pty ? 0 : i], i) < 0)
			spawn_fail(c->status, CONNECT_INTERNAL, "setting up descriptor %d: %s", i,
				strerror(errno));
	if (flags & SPAWN_LISTEN)
		set_listener(c, fds[3]);
}

static void set_credentials(struct command *c)
{
	const struct guest_user *u = &c->account;
	if (setgroups(u->n_groups, u->groups) < 0 || setresgid(u->gid, u->gid, u->gid) < 0 ||
		setresuid(u->uid, u->uid, u->uid) < 0)
		spawn_fail(c->status, CONNECT_INTERNAL, "becoming user '%s' (%u:%u): %s", u->name, u->uid,
			u->gid, strerror(errno));
}

/* "~", "~/x", relative and absolute paths (B.3: relative to the user's home). */
static void expand(struct command *c, const char *path, char *to, size_t size)
{
	const char *home = c->account.home;
	int n;
	if (path[0] == '~' && (path[1] == '\0' || path[1] == '/'))
		n = snprintf(to, size, "%s%s", home, path + 1);
	else if (path[0] == '~')
		spawn_fail(c->status, CONNECT_INVALID_ARGUMENT,
			"cwd '%.200s': cannot expand the home directory of another user", path);
	else if (path[0] == '/')
		n = snprintf(to, size, "%s", path);
	else
		n = snprintf(to, size, "%s/%s", home, path);
	if (n < 0 || (size_t)n >= size)
		spawn_fail(c->status, CONNECT_INVALID_ARGUMENT, "cwd '%.200s...' is longer than %zu bytes",
			path, size - 1);
}

static void enter_directory(struct command *c)
{
	static char path[PATH_MAX];
	const char *wanted = *c->cwd ? c->cwd : *c->workdir ? c->workdir : c->account.home;
	expand(c, wanted, path, sizeof(path));
	if (chdir(path) == 0)
		return;
	int e = errno;
	/* Accounts without a home (nobody) start at the root, as login(1) has it; a directory that was asked
	 * for must be there. */
	if (!*c->cwd && !*c->workdir && chdir("/") == 0)
		return;
	if (e == ENOENT)
		spawn_fail(c->status, CONNECT_INVALID_ARGUMENT, "cwd '%s' does not exist", path);
	if (e == ENOTDIR)
		spawn_fail(c->status, CONNECT_INVALID_ARGUMENT, "cwd '%s' is not a directory", path);
	spawn_fail(c->status, CONNECT_INVALID_ARGUMENT, "cwd '%s' cannot be entered by user '%s': %s", path,
		c->account.name, strerror(e));
}

static void put_env(char **envp, size_t *n, char *entry)
{
	size_t name = strcspn(entry, "=") + 1;
	for (size_t i = 0; i < *n; i++)
		if (strncmp(envp[i], entry, name) == 0) {
			envp[i] = entry;
			return;
		}
	envp[(*n)++] = entry;
}

/* Nothing is inherited; later entries win (B.6). */
static void build_environment(struct command *c, uint32_t flags, char **at)
{
	static char home[1100], user[300], logname[300];
	static char path[] = "PATH=" DEFAULT_PATH;
	snprintf(home, sizeof(home), "HOME=%s", c->account.home);
	snprintf(user, sizeof(user), "USER=%s", c->account.name);
	snprintf(logname, sizeof(logname), "LOGNAME=%s", c->account.name);
	char *own[] = {path, home, user, logname};
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		put_env(c->envp, &n, own[i]);
	for (uint32_t i = 0; i < c->n_envs; i++)
		put_env(c->envp, &n, take(at));
	if (flags & SPAWN_LISTEN) {
		static char listen_fds[] = "LISTEN_FDS=1", listen_pid[32];
		snprintf(listen_pid, sizeof(listen_pid), "LISTEN_PID=%d", getpid());
		put_env(c->envp, &n, listen_fds);
		put_env(c->envp, &n, listen_pid);
	}
	c->envp[n] = NULL;
}

/* What ENOENT means here: small images have neither a shell nor a loader for what was built elsewhere. */
static const char *say_missing(const char *what)
{
	if (strcmp(what, "/bin/bash") == 0 && access(what, F_OK) < 0)
		return ": this template has no bash, with which clients run commands and terminals; run a program that it has, or make the template with bash";
	if (strchr(what, '/') && access(what, F_OK) == 0)
		return ": the interpreter or dynamic loader that it needs is not in this template";
	return strchr(what, '/') ? ": this template has no such program" : ": no such program in PATH";
}

static _Noreturn void execute(struct command *c)
{
	const char *what = c->argv[0];
	/* The search takes PATH from the command's own environment. */
	environ = c->envp;
	reset_signals();
	execvp(what, c->argv);
	int e = errno;
	signal(SIGPIPE, SIG_IGN);
	if (e == E2BIG)
		spawn_fail(c->status, CONNECT_INVALID_ARGUMENT,
			"the arguments and variables of '%.200s' are longer than the kernel allows", what);
	if (e == ENOMEM || e == EAGAIN)
		spawn_fail(c->status, CONNECT_RESOURCE_EXHAUSTED, "cannot start '%.1000s': %s", what,
			strerror(e));
	spawn_fail(c->status, CONNECT_INVALID_ARGUMENT, "cannot start '%.1000s': %s%s", what, strerror(e), e == ENOENT ? say_missing(what) : "");
}

void command_run(const struct spawn_head *head, char *body, int status, const int *fds)
{
	struct command c = {.status = status, .n_envs = head->n_envs};
	char *at = body;
	c.user = take(&at);
	c.cwd = take(&at);
	c.workdir = take(&at);
	c.argv = calloc(head->n_args + 1, sizeof(*c.argv));
	c.envp = calloc(head->n_envs + 7, sizeof(*c.envp));
	if (!c.argv || !c.envp)
		spawn_fail(
			status, CONNECT_RESOURCE_EXHAUSTED, "cannot start a process: %s", strerror(ENOMEM));
	for (uint32_t i = 0; i < head->n_args; i++)
		c.argv[i] = take(&at);
	find_account(&c);
	set_descriptors(&c, head->flags, fds);
	umask(022);
	build_environment(&c, head->flags, &at);
	set_credentials(&c);
	enter_directory(&c);
	execute(&c);
}
