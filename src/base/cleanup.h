/* Ownership helpers: locals release themselves; ownership leaves a function only through steal_*(). */
#ifndef CUBICLE_BASE_CLEANUP_H
#define CUBICLE_BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>
#include <errno.h>
#include <dirent.h>

/* Frees *p. For the attribute below; p points at the local. */
static inline void cleanup_free_p(void *p)
{
	free(*(void **)p);
}

/* Closes *fd when it is open (>= 0); errno is kept. */
static inline void cleanup_fd_p(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;
		close(*fd);
		errno = saved;
	}
}

static inline void cleanup_dir_p(DIR **d)
{
	if (*d)
		closedir(*d);
}

#define cleanup_free __attribute__((__cleanup__(cleanup_free_p)))
#define cleanup_fd __attribute__((__cleanup__(cleanup_fd_p)))
#define cleanup_dir __attribute__((__cleanup__(cleanup_dir_p)))

#define steal_pointer(pp)                                                                                    \
	({                                                                                                   \
		__typeof__(*(pp)) stolen_ = *(pp);                                                           \
		*(pp) = NULL;                                                                                \
		stolen_;                                                                                     \
	})

static inline int steal_fd(int *fd)
{
	int r = *fd;
	*fd = -1;
	return r;
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

#endif
