#include "sandbox/box/sweep.h"
#include "sandbox/box/host.h"
#include "sandbox/box/slot_control.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

enum { REMOVE_TRIES = 5000 };

struct sweeping {
	struct host *host;
	bool (*keep)(unsigned number, void *arg);
	void *arg;
	unsigned removed;
};

/* "s12", "s12.img": 12; anything else is not ours: false. */
static bool number_of(const char *name, const char *suffix, unsigned *ret)
{
	struct str s = str_of(name);
	size_t n = strlen(suffix);
	uint64_t number;
	if (s.n < 2 + n || s.p[0] != 's' || !str_is(str_from(s, s.n - n), suffix))
		return false;
	if (str_to_u64(str_n(s.p + 1, s.n - n - 1), &number) < 0 || number > 65535)
		return false;
	*ret = (unsigned)number;
	return true;
}

static bool is_left(struct sweeping *w, const char *name, const char *suffix)
{
	unsigned number;
	return number_of(name, suffix, &number) && !w->keep(number, w->arg);
}

static void kill_group(const char *name, void *arg)
{
	struct sweeping *w = arg;
	if (is_left(w, name, ""))
		cgroups_kill(w->host->cgroups, name);
}

static void remove_group(const char *name, void *arg)
{
	struct sweeping *w = arg;
	if (!is_left(w, name, ""))
		return;
	int r = -EBUSY;
	for (int i = 0; i < REMOVE_TRIES && r == -EBUSY; i++) {
		r = cgroups_remove(w->host->cgroups, name);
		if (r == -EBUSY)
			usleep(1000);
	}
	if (r < 0)
		log_error("cgroup %s of an earlier run stays: %s", name, strerror(-r));
	w->removed++;
}

static void remove_files(struct sweeping *w, int dirfd, const char *suffix)
{
	/* A description of its own: readdir moves the offset. */
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		return;
	}
	for (struct dirent *e; (e = readdir(d));)
		if (is_left(w, e->d_name, suffix))
			unlinkat(dirfd, e->d_name, 0);
}

/* Devices bound to images of ours that nothing has mounted any more go by themselves (autoclear); this is for those that somebody else made stay. */
static void unbind_loops(struct sweeping *w)
{
	char ours[512];
	int n = snprintf(ours, sizeof(ours), "%.490s/disks/", w->host->dir);
	cleanup_dir DIR *d = opendir("/sys/block");
	for (struct dirent *e; d && (e = readdir(d));) {
		uint64_t loop;
		char backing[600];
		if (!str_starts(str_of(e->d_name), STR("loop")) || str_to_u64(str_of(e->d_name + 4), &loop) < 0 ||
			loopdev_backing((unsigned)loop, backing, sizeof(backing)) < 0 || strncmp(backing, ours, (size_t)n) != 0)
			continue;
		char *name = backing + n, *deleted = strstr(name, " (deleted)");
		if (deleted)
			*deleted = '\0';
		if (is_left(w, name, ".img"))
			loopdev_detach((unsigned)loop);
	}
}

void sweep(struct host *h, bool (*keep)(unsigned number, void *arg), void *arg)
{
	struct sweeping w = {.host = h, .keep = keep, .arg = arg};
	/* All are told to die before the first is waited for. */
	cgroups_each(h->cgroups, kill_group, &w);
	cgroups_each(h->cgroups, remove_group, &w);
	unbind_loops(&w);
	remove_files(&w, h->disks, ".img");
	remove_files(&w, h->control, "");
	remove_files(&w, h->control, SLOT_MONITOR_SUFFIX);
	if (w.removed)
		log_info("swept what an earlier run left");
}
