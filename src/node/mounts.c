#include "node/mounts.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <mntent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

/* Kernel interfaces, and where programs, their libraries and settings lie. */
static const char *const system_paths[] = {"/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"};

/* `inner` is `outer` or lies below it. */
static bool within(const char *inner, const char *outer)
{
	size_t n = strlen(outer);
	return strncmp(inner, outer, n) == 0 && (inner[n] == 0 || inner[n] == '/' || (n && outer[n - 1] == '/'));
}

static bool needed_for(const char *point, const char *const *paths, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (within(point, paths[i]) || within(paths[i], point))
			return true;
	return false;
}

bool mounts_needed(const char *point, const char *const *paths, size_t n)
{
	return needed_for(point, system_paths, ARRAY_SIZE(system_paths)) || needed_for(point, paths, n);
}

/* The mount points, later ones first; NULL-terminated, owned. */
static char **list_points(void)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	char **points = calloc(1, sizeof(*points));
	size_t n = 0;
	for (struct mntent *m; f && points && (m = getmntent(f));) {
		char **more = realloc(points, (n + 2) * sizeof(*points)), *copy = strdup(m->mnt_dir);
		if (!more || !copy) {
			free(copy);
			points = more ? more : points;
			break;
		}
		points = more;
		memmove(points + 1, points, (n + 1) * sizeof(*points));
		points[0] = copy;
		n++;
	}
	if (f)
		endmntent(f);
	return points;
}

int mounts_own(const char *const *paths, size_t n, struct error *err)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		return error_errno(err, -errno, "mount namespace of the node");
	char **points = list_points();
	if (!points)
		return error_errno(err, -ENOMEM, "mount namespace of the node");
	for (char **at = points; *at; at++) {
		/* One that is hidden below another may be gone with it already. */
		if (!mounts_needed(*at, paths, n) && umount2(*at, MNT_DETACH | UMOUNT_NOFOLLOW) < 0 && errno != EINVAL && errno != ENOENT)
			log_debug("%s stays in view: %s", *at, strerror(errno));
		free(*at);
	}
	free(points);
	return 0;
}
