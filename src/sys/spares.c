#include "sys/spares.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
	LITTLE_LEFT = 64, /* blocks, inodes */
	SPARES = 8,       /* what the overlay makes anew at each mount, what its preparation takes for a moment, and some more */
};

static const char *spare(char to[16], int i)
{
	snprintf(to, 16, "spare/%d", i);
	return to;
}

void spares_set_aside(int mount)
{
	char name[16];
	if (mkdirat(mount, "spare", 0700) < 0 && errno != EEXIST)
		return;
	for (int i = 0; i < SPARES; i++)
		if (mkdirat(mount, spare(name, i), 0700) < 0 && errno != EEXIST)
			return;
}

void spares_renew(int mount)
{
	/* The last one is there unless they were spent. */
	char last[16];
	if (faccessat(mount, spare(last, SPARES - 1), F_OK, 0) < 0)
		spares_set_aside(mount);
}

/* Only where it is needed: what is freed can be used after a commit, which takes time. */
void spares_spend(int mount)
{
	struct statvfs fs;
	char name[16];
	if (fstatvfs(mount, &fs) < 0 || (fs.f_bavail > LITTLE_LEFT && fs.f_ffree > LITTLE_LEFT))
		return;
	cleanup_fd int root = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < SPARES; i++)
		unlinkat(mount, spare(name, i), AT_REMOVEDIR);
	if (root >= 0)
		syncfs(root);
}
