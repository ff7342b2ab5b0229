#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/workq.h"
#include "node/service.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static const char directory[] = "saved/";

struct removal {
	struct removal *next;
	struct node *node;
	struct live *live; /* NULL: nobody waits */
	char path[PATH_MAX];
	int result;
};

int saved_open(struct node *n, struct error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", n->directory, directory);
	int r = make_dirs(path, 0700);
	return r < 0 ? error_errno(err, r, "%s", path) : 0;
}

int64_t saved_size(const struct node *n, const char *image)
{
	char path[PATH_MAX];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", n->directory, image);
	return *image && lstat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_blocks * 512 : -ENOENT;
}

static void remove_work(void *arg)
{
	struct removal *x = arg;
	x->result = unlink(x->path) < 0 && errno != ENOENT ? -errno : 0;
}

static void drop(struct removal *x)
{
	for (struct removal **at = &x->node->removals; *at; at = &(*at)->next)
		if (*at == x) {
			*at = x->next;
			break;
		}
	free(x);
}

static void remove_done(void *arg)
{
	struct removal *x = arg;
	struct live *l = x->live;
	if (x->result < 0)
		log_error("%s stays until the next start of the node: %s", x->path, strerror(-x->result));
	drop(x);
	if (l)
		live_image_gone(l);
}

void saved_remove(struct node *n, const char *image, struct live *l)
{
	struct removal *x = malloc(sizeof(*x));
	if (!x)
		abort(); /* see records.c: without memory the node starts anew, and sweeps */
	*x = (struct removal){.next = n->removals, .node = n, .live = l};
	snprintf(x->path, sizeof(x->path), "%s/%s", n->directory, image);
	n->removals = x;
	if (workq_push(n->removers, n->loop, remove_work, remove_done, x) < 0)
		abort();
}

/* The name of a file begins with the id of the sandbox whose it is. */
static bool is_wanted(const struct node *n, const char *name)
{
	char mine[64];
	struct str id = str_n(name, MIN(strlen(name), (size_t)SANDBOX_ID));
	const struct live *l = map_get(&n->live, id);
	if (!l || (l->s.state != SANDBOX_PAUSED && l->s.state != SANDBOX_PAUSING && l->s.state != SANDBOX_KILLING))
		return false;
	live_name_image(&l->s, mine);
	return strcmp(mine + strlen(directory), name) == 0;
}

void saved_sweep(struct node *n)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", n->directory, directory);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.' && !is_wanted(n, e->d_name))
			unlinkat(dirfd(d), e->d_name, 0);
}

void saved_free(struct node *n)
{
	workq_free(n->removers);
	while (n->removals)
		drop(n->removals);
}
