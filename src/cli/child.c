#include "cli/child.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { IN, OUT, ERR, N_PIPES };

struct pipes {
	int ours[N_PIPES], theirs[N_PIPES];
};

static void pipes_done(struct pipes *p)
{
	for (int i = 0; i < N_PIPES; i++) {
		if (p->ours[i] >= 0)
			close(p->ours[i]);
		if (p->theirs[i] >= 0)
			close(p->theirs[i]);
	}
}

static int pipes_init(struct pipes *p, const struct child *c)
{
	*p = (struct pipes){{-1, -1, -1}, {-1, -1, -1}};
	const bool wanted[N_PIPES] = {true, c->output < 0, c->line != NULL};
	for (int i = 0; i < N_PIPES; i++) {
		int ends[2];
		if (!wanted[i])
			continue;
		if (pipe2(ends, O_CLOEXEC) < 0)
			return -errno;
		p->ours[i] = ends[i == IN];
		p->theirs[i] = ends[i != IN];
	}
	/* All of it fits: nobody waits for a reader. */
	return c->input.n ? fd_write_all(p->ours[IN], c->input.p, c->input.n) : 0;
}

static int start(const struct child *c, struct pipes *p, pid_t *ret)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none;
	int r = posix_spawn_file_actions_init(&actions);
	if (r)
		return -r;
	posix_spawnattr_init(&attributes);
	/* We may have signals blocked that end it. */
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawn_file_actions_adddup2(&actions, p->theirs[IN], 0);
	posix_spawn_file_actions_adddup2(&actions, c->output >= 0 ? c->output : p->theirs[OUT], 1);
	if (c->line)
		posix_spawn_file_actions_adddup2(&actions, p->theirs[ERR], 2);
	posix_spawn_file_actions_addclosefrom_np(&actions, 3);
	r = posix_spawnp(ret, c->argv[0], &actions, &attributes, (char *const *)c->argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	for (int i = 0; i < N_PIPES; i++)
		if (p->theirs[i] >= 0)
			close(steal_fd(&p->theirs[i]));
	if (p->ours[IN] >= 0)
		close(steal_fd(&p->ours[IN]));
	return -r;
}

static void tell_lines(const struct child *c, struct buf *text, bool end)
{
	struct str line, rest;
	while (str_cut(buf_str(text), '\n', &line, &rest)) {
		c->line(line, c->arg);
		buf_consume(text, line.n + 1);
	}
	if (end && buf_len(text))
		c->line(buf_str(text), c->arg);
}

/* One read; false at its end. */
static bool take(const struct child *c, int i, int fd, struct buf *errors)
{
	char piece[4096];
	ssize_t n = read(fd, piece, sizeof(piece));
	if (n <= 0)
		return n < 0 && errno == EINTR;
	if (i == ERR) {
		buf_add(errors, piece, (size_t)n);
		tell_lines(c, errors, false);
		/* A line without an end is told in pieces. */
		if (buf_len(errors) > sizeof(piece))
			tell_lines(c, errors, true), buf_clear(errors);
	} else if (c->to_output && buf_len(c->to_output) < CHILD_OUTPUT_MAX) {
		buf_add(c->to_output, piece, (size_t)n);
	}
	return true;
}

static void read_all(const struct child *c, struct pipes *p)
{
	cleanup_buf struct buf errors = BUF_INIT;
	while (p->ours[OUT] >= 0 || p->ours[ERR] >= 0) {
		struct pollfd fds[N_PIPES] = {{.fd = -1}, {p->ours[OUT], POLLIN, 0}, {p->ours[ERR], POLLIN, 0}};
		if (poll(fds, N_PIPES, -1) < 0 && errno != EINTR)
			break;
		for (int i = OUT; i < N_PIPES; i++)
			if (fds[i].revents && !take(c, i, p->ours[i], &errors))
				close(steal_fd(&p->ours[i]));
	}
	if (c->line)
		tell_lines(c, &errors, true);
}

int child_run(const struct child *c, struct error *err)
{
	struct pipes p;
	pid_t pid;
	int status, r = pipes_init(&p, c);
	if (r == 0)
		r = start(c, &p, &pid);
	if (r < 0) {
		pipes_done(&p);
		if (r == -ENOENT)
			return error_set(err, r, 500, "the program %s is missing", c->argv[0]);
		return error_errno(err, r, "%s", c->argv[0]);
	}
	read_all(c, &p);
	pipes_done(&p);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return error_errno(err, -errno, "%s", c->argv[0]);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
