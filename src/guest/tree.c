#include "guest/tree.h"
#include "base/fd.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_ROUNDS = 16 };

struct member {
	pid_t pid, parent, group, session;
	bool chosen, signalled;
};

struct tree {
	struct member *members;
	size_t n, cap;
};

/* pid, state, ppid, pgrp, session of /proc/PID/stat; the name in parentheses may hold anything. */
static bool read_member(int proc, const char *name, struct member *ret)
{
	char path[64], text[512];
	snprintf(path, sizeof(path), "%.20s/stat", name);
	cleanup_fd int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return false;
	text[n] = '\0';
	const char *rest = strrchr(text, ')');
	char state;
	int parent, group, session;
	if (!rest || sscanf(rest + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4 || state == 'Z' ||
		state == 'X')
		return false;
	*ret = (struct member){.pid = atoi(name), .parent = parent, .group = group, .session = session};
	return true;
}

static int scan(int proc, struct tree *t)
{
	int fd = openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return -1;
	t->n = 0;
	for (struct dirent *e; (e = readdir(d));) {
		struct member m;
		if (e->d_name[0] < '1' || e->d_name[0] > '9' || !read_member(proc, e->d_name, &m))
			continue;
		if (t->n == t->cap) {
			size_t cap = t->cap ? 2 * t->cap : 64;
			struct member *grown = reallocarray(t->members, cap, sizeof(*grown));
			if (!grown)
				return -1;
			t->members = grown;
			t->cap = cap;
		}
		t->members[t->n++] = m;
	}
	return 0;
}

static bool is_chosen(const struct tree *t, pid_t pid)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->members[i].pid == pid)
			return t->members[i].chosen;
	return false;
}

/* Marks whom it is for: transitive over parents. */
static void choose(struct tree *t, pid_t leader, bool reaped, bool group_lost)
{
	for (bool more = true; more;) {
		more = false;
		for (size_t i = 0; i < t->n; i++) {
			struct member *m = &t->members[i];
			if (m->chosen || m->pid == 1)
				continue;
			bool own = (!reaped && m->pid == leader) || (!group_lost && (m->group == leader || m->session == leader));
			if (own || is_chosen(t, m->parent))
				m->chosen = more = true;
		}
	}
}

static bool was_signalled(const pid_t *done, size_t n, pid_t pid)
{
	for (size_t i = 0; i < n; i++)
		if (done[i] == pid)
			return true;
	return false;
}

void tree_signal(int proc, pid_t leader, bool reaped, bool group_lost, int sig)
{
	struct tree t = {0};
	pid_t *done = NULL;
	size_t n_done = 0;
	for (int round = 0; round < MAX_ROUNDS && scan(proc, &t) == 0; round++) {
		bool found = false;
		choose(&t, leader, reaped, group_lost);
		pid_t *grown = reallocarray(done, n_done + t.n + 1, sizeof(*done));
		if (!grown)
			break;
		done = grown;
		for (size_t i = 0; i < t.n; i++) {
			if (!t.members[i].chosen || was_signalled(done, n_done, t.members[i].pid))
				continue;
			kill(t.members[i].pid, sig);
			done[n_done++] = t.members[i].pid;
			found = true;
		}
		if (!found)
			break;
	}
	free(done);
	free(t.members);
}
