#include "guest/watch.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { BUCKETS = 4096, LIMBO_MS = 1000 };

/* A directory that is watched. */
struct node {
	int wd; /* -1 = gone */
	struct node *parent, *children, *next, *prev;
	struct node *hash_next;
	bool missed; /* something in it could not be told */
	uint32_t cookie; /* in limbo: of its IN_MOVED_FROM */
	int64_t since;
	char name[]; /* in its parent */
};

/* A name that a scan told, whose own event may still be in the queue. */
struct seen {
	struct seen *next;
	int wd;
	char name[];
};

struct watch {
	int fd;
	bool recursive, network;
	char *path;
	dev_t dev;
	ino_t ino;
	bool missed; /* of any node, ever */
	bool lost; /* a directory could not be entered, because the watched one is not at its path */
	struct node *root;
	struct node *limbo; /* parent of directories that were moved, nobody knows yet where to */
	size_t count;
	size_t n_seen;
	struct node *chain[WATCH_MAX_LEVELS]; /* scratch of chain_of(): too much for the stack of a scan */
	struct node *nodes[BUCKETS];
	struct seen *seen[BUCKETS];
	/* Of the call under way; NULL while the first directories are watched: nothing is told of them. */
	watch_fn *tell;
	void *arg;
};

enum connect_code watch_failure(int r, const char **ret_text)
{
	switch (r) {
	case -EMFILE:
		*ret_text = "the sandbox's limit of inotify instances is reached "
			    "(fs.inotify.max_user_instances of the host, which counts per sandbox)";
		return CONNECT_RESOURCE_EXHAUSTED;
	case -ENOSPC:
		*ret_text = "the sandbox's limit of inotify watches is reached (fs.inotify.max_user_watches "
			    "of the host, which counts per sandbox)";
		return CONNECT_RESOURCE_EXHAUSTED;
	case -E2BIG:
		*ret_text = "the tree is too deep, or has too many directories, to be watched";
		return CONNECT_RESOURCE_EXHAUSTED;
	case -ENOMEM:
		*ret_text = "no memory for the watch";
		return CONNECT_RESOURCE_EXHAUSTED;
	case -EOVERFLOW:
		*ret_text = "events were lost, because they came faster than they were read: list the "
			    "directory and watch it again";
		return CONNECT_DATA_LOSS;
	case -ESTALE:
		*ret_text = "the watched directory was moved, new directories in it cannot be followed";
		return CONNECT_FAILED_PRECONDITION;
	default:
		*ret_text = strerror(-r);
		return CONNECT_INTERNAL;
	}
}

/* ---- the tree ---- */

static struct node **bucket(struct watch *w, int wd)
{
	return &w->nodes[(unsigned)wd % BUCKETS];
}

static struct node *node_find(struct watch *w, int wd)
{
	struct node *n = *bucket(w, wd);
	while (n && n->wd != wd)
		n = n->hash_next;
	return n;
}

/* The newest first: an older one of the same name is one that was removed. */
static void attach(struct node *n, struct node *parent)
{
	n->parent = parent;
	n->prev = NULL;
	n->next = parent->children;
	if (n->next)
		n->next->prev = n;
	parent->children = n;
}

static void detach(struct node *n)
{
	*(n->prev ? &n->prev->next : &n->parent->children) = n->next;
	if (n->next)
		n->next->prev = n->prev;
}

static struct node *node_new(int wd, const char *name)
{
	size_t size = strlen(name) + 1;
	struct node *n = malloc(sizeof(*n) + size);
	if (!n)
		return NULL;
	*n = (struct node){.wd = wd};
	memcpy(n->name, name, size);
	return n;
}

static void unhash(struct watch *w, struct node *n)
{
	if (n->wd < 0)
		return;
	struct node **at = bucket(w, n->wd);
	while (*at != n)
		at = &(*at)->hash_next;
	*at = n->hash_next;
	n->wd = -1;
	w->count--;
}

static void hash(struct watch *w, struct node *n)
{
	n->hash_next = *bucket(w, n->wd);
	*bucket(w, n->wd) = n;
	w->count++;
}

/* Ends the watch on a directory and on all under it. */
static void node_drop(struct watch *w, struct node *n)
{
	while (n->children)
		node_drop(w, n->children);
	if (n->wd >= 0)
		inotify_rm_watch(w->fd, n->wd);
	unhash(w, n);
	if (n->parent)
		detach(n);
	free(n);
}

/* Moves a directory to its new place. Names are part of the node, so it becomes another one. */
static int node_move(struct watch *w, struct node *n, struct node *parent, const char *name)
{
	struct node *moved = node_new(n->wd, name);
	if (!moved)
		return -ENOMEM;
	moved->missed = n->missed;
	moved->children = n->children;
	for (struct node *c = moved->children; c; c = c->next)
		c->parent = moved;
	unhash(w, n);
	detach(n);
	free(n);
	hash(w, moved);
	attach(moved, parent);
	return 0;
}

static void miss(struct watch *w, struct node *n)
{
	n->missed = w->missed = true;
}

static bool has_missed(const struct watch *w, const struct node *n)
{
	if (!w->missed || n->missed)
		return w->missed;
	for (const struct node *c = n->children; c; c = c->next)
		if (has_missed(w, c))
			return true;
	return false;
}

static bool is_above(const struct node *n, const struct node *of)
{
	for (; of; of = of->parent)
		if (of == n)
			return true;
	return false;
}

/* The directories from the watched one to this, into w->chain: how many, -ENOENT in limbo, -E2BIG. */
static int chain_of(struct watch *w, struct node *n)
{
	struct node **to = w->chain;
	int count = 0;
	for (; n != w->root; n = n->parent) {
		if (n == w->limbo)
			return -ENOENT;
		if (count == WATCH_MAX_LEVELS)
			return -E2BIG;
		to[count++] = n;
	}
	for (int i = 0; i < count / 2; i++) {
		struct node *other = to[i];
		to[i] = to[count - 1 - i];
		to[count - 1 - i] = other;
	}
	return count;
}

static int tell(struct watch *w, struct node *n, const char *name, enum watch_op op)
{
	cleanup_buf struct buf path = BUF_INIT;
	int count = chain_of(w, n);
	if (count < 0)
		return count;
	for (int i = 0; i < count; i++) {
		buf_add_c(&path, w->chain[i]->name);
		if (i + 1 < count || *name)
			buf_add_c(&path, "/");
	}
	buf_add_c(&path, count == 0 && !*name ? "." : name);
	if (path.failed)
		return -ENOMEM;
	w->tell(op, buf_str(&path), w->arg);
	return 0;
}

/* ---- names told by scans ---- */

static struct seen **seen_at(struct watch *w, int wd, const char *name)
{
	unsigned h = (unsigned)wd;
	for (const char *c = name; *c; c++)
		h = h * 31 + (unsigned char)*c;
	return &w->seen[h % BUCKETS];
}

static int seen_add(struct watch *w, int wd, const char *name)
{
	size_t size = strlen(name) + 1;
	struct seen *s = malloc(sizeof(*s) + size), **at = seen_at(w, wd, name);
	if (!s)
		return -ENOMEM;
	s->next = *at;
	s->wd = wd;
	memcpy(s->name, name, size);
	*at = s;
	w->n_seen++;
	return 0;
}

static bool seen_take(struct watch *w, int wd, const char *name)
{
	if (w->n_seen == 0)
		return false;
	for (struct seen **at = seen_at(w, wd, name); *at; at = &(*at)->next) {
		struct seen *s = *at;
		if (s->wd != wd || strcmp(s->name, name) != 0)
			continue;
		*at = s->next;
		free(s);
		w->n_seen--;
		return true;
	}
	return false;
}

static void seen_clear(struct watch *w)
{
	for (size_t i = 0; w->n_seen && i < BUCKETS; i++) {
		while (w->seen[i]) {
			struct seen *s = w->seen[i];
			w->seen[i] = s->next;
			free(s);
			w->n_seen--;
		}
	}
}

/* ---- watching directories ---- */

static bool is_network(const struct statfs *s)
{
	switch ((unsigned)s->f_type) {
	case NFS_SUPER_MAGIC:
	case SMB_SUPER_MAGIC:
	case CIFS_SUPER_MAGIC:
	case SMB2_SUPER_MAGIC:
	case FUSE_SUPER_MAGIC:
		return true;
	default:
		return false;
	}
}

/* Whether a mount under the watched directory is entered. */
static bool is_entered(const struct watch *w, int fd)
{
	struct statfs s;
	if (fstatfs(fd, &s) < 0)
		return false;
	switch ((unsigned)s.f_type) {
	case PROC_SUPER_MAGIC:
	case SYSFS_MAGIC:
	case CGROUP_SUPER_MAGIC:
	case CGROUP2_SUPER_MAGIC:
		return false; /* they tell inotify nothing, and are endless */
	default:
		return w->network || !is_network(&s);
	}
}

/* The watch descriptor; -ENOENT and the like when the directory is just left out. */
static int arm(struct watch *w, int fd, bool self)
{
	uint32_t mask =
		IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_ONLYDIR;
	if (self)
		mask |= IN_DELETE_SELF | IN_MOVE_SELF;
	/* By way of the working directory: exactly what was opened, and without /proc. */
	if (fchdir(fd) < 0)
		return -errno;
	int wd = inotify_add_watch(w->fd, ".", mask);
	return wd < 0 ? -errno : wd;
}

static int open_directory(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0)
		return fd;
	return errno == EMFILE || errno == ENFILE ? -E2BIG : -errno;
}

/* What ends the watch; anything else leaves one directory out: it vanished, was replaced, may not be read. */
static bool is_fatal(int r)
{
	return r == -ENOSPC || r == -ENOMEM || r == -E2BIG;
}

static int scan(struct watch *w, struct node *n, int fd, dev_t dev, unsigned level);

/* Watches one directory under a watched one, and what is under it. Owns fd. */
static int add(struct watch *w, struct node *parent, int fd, const char *name, dev_t dev, unsigned level)
{
	cleanup_fd int owned = fd;
	struct stat st;
	if (level > WATCH_MAX_LEVELS || w->count >= WATCH_MAX_DIRECTORIES)
		return -E2BIG;
	if (fstat(fd, &st) < 0 || (st.st_dev != dev && !is_entered(w, fd)))
		return 0;
	int wd = arm(w, fd, false);
	if (wd < 0)
		return is_fatal(wd) ? wd : 0;
	struct node *n = node_find(w, wd);
	/* Known, and in its place, or mounted inside itself. */
	if (n && (is_above(n, parent) || (n->parent == parent && strcmp(n->name, name) == 0)))
		return n == w->root ? (arm(w, fd, true), 0) : 0;
	if (n) {
		/* It was moved here, maybe from outside of the tree, where nothing was told of it, or it is mounted twice:
		 * as good as new. What is in the queue of it is older than what the scan will find. */
		node_drop(w, n);
		if ((wd = arm(w, fd, false)) < 0)
			return is_fatal(wd) ? wd : 0;
	}
	n = node_new(wd, name);
	if (!n) {
		inotify_rm_watch(w->fd, wd);
		return -ENOMEM;
	}
	hash(w, n);
	attach(n, parent);
	return scan(w, n, steal_fd(&owned), st.st_dev, level);
}

/* What is in a directory that appeared: its events had nobody to go to. */
static int tell_found(struct watch *w, struct node *n, int fd, const struct dirent *e)
{
	struct stat st;
	int r = seen_add(w, n->wd, e->d_name);
	if (r == 0)
		r = tell(w, n, e->d_name, WATCH_CREATE);
	if (r == 0 && (e->d_type == DT_REG || e->d_type == DT_UNKNOWN) &&
		fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
		st.st_size > 0)
		r = tell(w, n, e->d_name, WATCH_WRITE);
	return r;
}

/* Owns fd. */
static int scan(struct watch *w, struct node *n, int fd, dev_t dev, unsigned level)
{
	cleanup_dir DIR *dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	for (const struct dirent *e; (e = readdir(dir));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		int r = w->tell ? tell_found(w, n, fd, e) : 0;
		if (r < 0)
			return r;
		if (e->d_type != DT_DIR && e->d_type != DT_UNKNOWN)
			continue;
		int child = open_directory(fd, e->d_name);
		r = child < 0 ? child : add(w, n, child, e->d_name, dev, level + 1);
		if (is_fatal(r))
			return r;
	}
	return 0;
}

/*
 * Opens a watched directory by its path, because a descriptor (or a working directory) that is kept would
 * keep the kernel from telling that the directory was removed. The inode tells whether it is still the one.
 */
static int open_root(struct watch *w)
{
	struct stat st;
	cleanup_fd int fd = open(w->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != w->dev || st.st_ino != w->ino) {
		w->lost = true;
		return -ENOENT;
	}
	return steal_fd(&fd);
}

/* Opens a directory of the tree by its path now. -ENOENT when another is there: that it moved is still in the queue, and so what is said
 * of it until then cannot be followed. */
static int open_node(struct watch *w, struct node *n, struct stat *ret_st)
{
	int count = chain_of(w, n);
	if (count < 0)
		return count;
	cleanup_fd int fd = open_root(w);
	for (int i = 0; i < count && fd >= 0; i++) {
		int next = open_directory(fd, w->chain[i]->name);
		close(fd);
		fd = next;
	}
	bool here = fd >= 0 && fstat(fd, ret_st) == 0 && (n == w->root || arm(w, fd, false) == n->wd);
	if (here)
		return steal_fd(&fd);
	miss(w, n);
	return fd < 0 ? fd : -ENOENT;
}

/*
 * A directory appeared in a watched one. `expected`, or NULL: which of those in limbo it is by its cookie; it may have been taken for
 * another of its name, so what is there now is looked at, unless that moved on already.
 */
static int add_later(struct watch *w, struct node *parent, const char *name, struct node *expected)
{
	struct stat st;
	const bool lost = w->lost;
	cleanup_fd int fd = open_node(w, parent, &st);
	cleanup_fd int child = fd < 0 ? fd : open_directory(fd, name);
	if (is_fatal(child))
		return child;
	if (expected && (child < 0 || (arm(w, child, false) == expected->wd && !has_missed(w, expected)))) {
		w->lost = lost;
		return node_move(w, expected, parent, name);
	}
	int r = child < 0 ? 0 : add(w, parent, steal_fd(&child), name, st.st_dev, (unsigned)chain_of(w, parent) + 1);
	return is_fatal(r) ? r : 0;
}

static int add_root(struct watch *w)
{
	struct stat st;
	struct statfs fs;
	cleanup_fd int fd = open(w->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return -errno;
	if (is_network(&fs) && !w->network)
		return -EREMOTE;
	w->dev = st.st_dev;
	w->ino = st.st_ino;
	int wd = arm(w, fd, true);
	if (wd < 0)
		return wd;
	w->root->wd = wd;
	hash(w, w->root);
	return w->recursive ? scan(w, w->root, steal_fd(&fd), st.st_dev, 0) : 0;
}

static void go_home(void)
{
	if (chdir("/") < 0)
		abort(); /* there is always a root */
}

int watch_new(const char *path, bool recursive, bool network_mounts, struct watch **ret)
{
	struct watch *w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->recursive = recursive;
	w->network = network_mounts;
	w->path = strdup(path);
	w->root = node_new(-1, "");
	w->limbo = node_new(-1, "");
	w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	int r = w->fd < 0 ? -errno : !w->path || !w->root || !w->limbo ? -ENOMEM : add_root(w);
	go_home();
	if (r < 0)
		watch_free(w);
	else
		*ret = w;
	return MIN(r, 0);
}

void watch_free(struct watch *w)
{
	if (!w)
		return;
	/* All its watches go with it, at once. */
	if (w->fd >= 0)
		close(steal_fd(&w->fd));
	if (w->root)
		node_drop(w, w->root);
	if (w->limbo)
		node_drop(w, w->limbo);
	seen_clear(w);
	free(w->path);
	free(w);
}

int watch_fd(const struct watch *w)
{
	return w->fd;
}

/* ---- events ---- */

static struct node *child_named(struct node *n, const char *name)
{
	struct node *c = n->children;
	while (c && strcmp(c->name, name) != 0)
		c = c->next;
	return c;
}

/* Keeps the tree as the directories are. */
static int follow(struct watch *w, struct node *n, const struct inotify_event *e, const char *name)
{
	if (e->mask & IN_MOVED_FROM) {
		struct node *c = child_named(n, name);
		if (!c)
			return 0;
		detach(c);
		attach(c, w->limbo);
		c->cookie = e->cookie;
		c->since = clock_monotonic();
		return 0;
	}
	if (e->mask & IN_MOVED_TO) {
		struct node *c = w->limbo->children;
		while (c && (c->cookie != e->cookie || is_above(c, n)))
			c = c->next;
		return add_later(w, n, name, c);
	}
	return e->mask & IN_CREATE ? add_later(w, n, name, NULL) : 0;
}

static int tell_event(struct watch *w, struct node *n, const struct inotify_event *e, const char *name)
{
	static const struct {
		uint32_t mask;
		enum watch_op op;
	} OPS[] = {
		{IN_CREATE | IN_MOVED_TO, WATCH_CREATE},
		{IN_MOVED_FROM | IN_MOVE_SELF, WATCH_RENAME},
		{IN_ATTRIB, WATCH_CHMOD},
		{IN_MODIFY, WATCH_WRITE},
		{IN_DELETE | IN_DELETE_SELF | IN_UNMOUNT, WATCH_REMOVE},
	};
	for (size_t i = 0; i < ARRAY_SIZE(OPS); i++) {
		if (!(e->mask & OPS[i].mask))
			continue;
		/* Told when its directory was found, before this event was read. */
		bool told = OPS[i].op != WATCH_CHMOD && OPS[i].op != WATCH_WRITE && seen_take(w, n->wd, name);
		if (told && OPS[i].op == WATCH_CREATE)
			continue;
		int r = tell(w, n, name, OPS[i].op);
		if (r < 0)
			return r;
	}
	return 0;
}

static int on_event(struct watch *w, const struct inotify_event *e, const char *name)
{
	if (e->mask & IN_Q_OVERFLOW)
		return -EOVERFLOW;
	struct node *n = node_find(w, e->wd);
	if (!n)
		return 0;
	if (e->mask & IN_IGNORED) {
		unhash(w, n);
		if (n != w->root)
			node_drop(w, n);
		return 0;
	}
	/* What a directory under the watched one is told of itself, its parent is told with its name. */
	if (!*name && n != w->root)
		return 0;
	int r = tell_event(w, n, e, name);
	if (r == 0 && w->recursive && *name && (e->mask & IN_ISDIR))
		r = follow(w, n, e, name);
	if (r != -ENOENT)
		return r;
	/* It left the tree, or is on its way to another place in it. */
	miss(w, n);
	return 0;
}

/* The queue is empty: nothing can explain any more what is still unexplained. */
static int settle(struct watch *w)
{
	int64_t before = clock_monotonic() - LIMBO_MS * NS_PER_MS;
	seen_clear(w);
	for (struct node *c = w->limbo->children, *next; c; c = next) {
		next = c->next;
		if (c->since < before)
			node_drop(w, c);
	}
	bool lost = w->lost && w->root->wd >= 0;
	w->lost = false;
	return lost ? -ESTALE : 0;
}

int watch_take(struct watch *w, const void *bytes, size_t n, watch_fn *fn, void *arg)
{
	struct inotify_event e;
	const char *at = bytes, *end = at + n;
	int r = 0;
	w->tell = fn;
	w->arg = arg;
	while (r == 0 && at < end) {
		if ((size_t)(end - at) < sizeof(e))
			return -EIO;
		memcpy(&e, at, sizeof(e));
		at += sizeof(e);
		/* Names are filled up with NUL. */
		if ((size_t)(end - at) < e.len || (e.len && at[e.len - 1]))
			return -EIO;
		r = on_event(w, &e, e.len ? at : "");
		at += e.len;
	}
	go_home();
	return r < 0 ? r : 1;
}

int watch_read(struct watch *w, watch_fn *fn, void *arg)
{
	char bytes[16 * 1024];
	ssize_t n = read(w->fd, bytes, sizeof(bytes));
	if (n < 0)
		return errno == EAGAIN ? settle(w) : errno == EINTR ? 1 : -errno;
	return watch_take(w, bytes, (size_t)n, fn, arg);
}
