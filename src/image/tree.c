#include "image/tree_impl.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

enum { BLOCK_BYTES = 256 * 1024 };

struct block {
	struct block *next;
	size_t used, size;
	max_align_t data[];
};

const struct tree_limits tree_limits_usual = {
	.entries = 2000000,
	.memory = UINT64_C(768) << 20,
	.file = UINT64_C(1) << 42,
	.path = 4095,
	.depth = 1000,
	.xattrs = EROFS_XATTRS_MAX,
	.extents = 100000,
};

void *tree_alloc(struct tree *t, size_t n, int *ret_error)
{
	n = (n + 15) / 16 * 16;
	struct block *b = t->blocks;
	if (!b || b->size - b->used < n) {
		size_t size = MAX(n, (size_t)BLOCK_BYTES);
		*ret_error = t->held + size > t->limits.memory ? -EDQUOT : -ENOMEM;
		b = t->held + size > t->limits.memory ? NULL : calloc(1, sizeof(*b) + size);
		if (!b)
			return NULL;
		t->held += size;
		b->size = size;
		b->next = t->blocks;
		t->blocks = b;
	}
	void *p = (char *)b->data + b->used;
	b->used += n;
	return p;
}

void tree_quote(struct str path, char *to, size_t size)
{
	bool cut = path.n >= size;
	size_t n = cut ? size - 4 : path.n;
	bool text = str_is_utf8(path);
	/* Not in the middle of a character. */
	while (cut && text && n > 0 && ((unsigned char)path.p[n] & 0xc0) == 0x80)
		n--;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)path.p[i];
		to[i] = c < 0x20 || c == 0x7f || (c >= 0x80 && !text) ? '?' : path.p[i];
	}
	strcpy(to + n, cut ? "..." : "");
	if (path.n == 0)
		strcpy(to, "/");
}

int tree_fail(const struct tree *t, int r, const char *name, struct error *err)
{
	switch (r) {
	case -EDQUOT:
		return error_set(err, r, 413, "%s: the image would be larger than its limit of %" PRIu64 " bytes", name, t->limits.image);
	case -E2BIG:
		return error_set(err, -EDQUOT, 413, "%s: its extended attributes are larger than %u bytes", name, t->limits.xattrs);
	case -ENOSPC:
		return error_set(err, r, 507, "%s: there is no space left for the image", name);
	default:
		return error_errno(err, r, "%s: writing the image", name);
	}
}

/* tree_alloc() has failed. */
static int no_memory(const struct tree *t, int r, struct error *err)
{
	return r == -EDQUOT ? error_set(err, r, 413, "%s: the image's names take more than %" PRIu64 " bytes of memory", t->name, t->limits.memory) :
			      error_errno(err, r, "the tree of an image");
}

/* Names */

static uint32_t hash_of(const struct tree *t, const struct dir *d, struct str name)
{
	return (uint32_t)map_hash(t->k0, t->k1 + d->id, name);
}

static struct node *look_up(const struct tree *t, const struct dir *d, struct str name)
{
	uint32_t hash = hash_of(t, d, name);
	for (struct node *n = t->buckets[hash & (t->n_buckets - 1)]; n; n = n->chain)
		if (n->hash == hash && n->parent == d && str_eq(node_name(n), name))
			return n;
	return NULL;
}

static int grow(struct tree *t)
{
	size_t n = t->n_buckets * 2;
	if (t->held + n * sizeof(*t->buckets) > t->limits.memory)
		return -EDQUOT;
	struct node **fresh = calloc(n, sizeof(*fresh));
	if (!fresh)
		return -ENOMEM;
	for (size_t i = 0; i < t->n_buckets; i++)
		for (struct node *node = t->buckets[i], *next; node; node = next) {
			next = node->chain;
			node->chain = fresh[node->hash & (n - 1)];
			fresh[node->hash & (n - 1)] = node;
		}
	free(t->buckets);
	t->held += (n - t->n_buckets) * sizeof(*t->buckets);
	t->buckets = fresh;
	t->n_buckets = n;
	return 0;
}

/* The node of that name, made (as one that is gone) when there is none. NULL with *err. */
static struct node *name_node(struct tree *t, struct dir *d, struct str name, struct error *err)
{
	struct node *n = look_up(t, d, name);
	if (n)
		return n;
	int r = 0;
	if (t->entries >= t->limits.entries) {
		error_set(err, -EDQUOT, 413, "%s: more than %" PRIu64 " files and directories", t->name, t->limits.entries);
		return NULL;
	}
	if ((t->entries >= t->n_buckets && (r = grow(t)) < 0) || !(n = tree_alloc(t, sizeof(*n) + name.n, &r))) {
		no_memory(t, r, err);
		return NULL;
	}
	t->entries++;
	n->hash = hash_of(t, d, name);
	n->parent = d;
	n->layer = t->layer;
	n->name_n = (uint8_t)name.n;
	memcpy(n->name, name.p, name.n);
	n->next = d->children;
	d->children = n;
	n->chain = t->buckets[n->hash & (t->n_buckets - 1)];
	t->buckets[n->hash & (t->n_buckets - 1)] = n;
	return n;
}

/* What is said of a directory that nothing says anything of. */
static void imply(struct dir *d)
{
	const struct dir *parent = d->parent;
	bool tmp = d->node && str_is(node_name(d->node), "tmp") &&
		   (!parent->node || (str_is(node_name(parent->node), "var") && !parent->parent->node));
	d->attr = (struct erofs_attr){.mode = S_IFDIR | (tmp ? 01777 : 0755)};
	d->implied = true;
}

static struct dir *new_dir(struct tree *t, struct dir *parent, struct node *node, struct error *err)
{
	int r;
	struct dir *d = tree_alloc(t, sizeof(*d), &r);
	if (!d) {
		no_memory(t, r, err);
		return NULL;
	}
	d->id = ++t->ids;
	d->parent = parent ? parent : d;
	d->node = node;
	d->layer = t->layer;
	imply(d);
	return d;
}

/* What the node stood for is gone. Each node is walked over once in its life: a directory that is dropped is never looked at again. */
static void drop(struct node *n)
{
	if (n->kind == NODE_DIRECTORY)
		for (struct node *c = n->dir->children; c; c = c->next)
			drop(c);
	else if (n->kind == NODE_OTHER)
		n->inode->links--;
	n->kind = NODE_GONE;
}

/* Only what this layer has stays below the directory. */
static void hide_below(struct tree *t, struct dir *d)
{
	if (d->cleaned == t->layer + 1)
		return;
	d->cleaned = (uint16_t)(t->layer + 1);
	for (struct node *c = d->children; c; c = c->next) {
		if (c->layer < t->layer) {
			drop(c);
		} else if (c->kind == NODE_DIRECTORY) {
			hide_below(t, c->dir);
			if (c->dir->layer < t->layer)
				imply(c->dir);
		}
	}
}

/* The node's directory; whatever else it was hides what is below the image. NULL with *err. */
static struct dir *make_dir(struct tree *t, struct node *n, struct error *err)
{
	if (n->kind != NODE_DIRECTORY) {
		struct dir *d = new_dir(t, n->parent, n, err);
		if (!d)
			return NULL;
		d->opaque = d->fresh = n->kind != NODE_GONE;
		drop(n);
		n->kind = NODE_DIRECTORY;
		n->dir = d;
	}
	n->layer = t->layer;
	return n->dir;
}

/* Paths */

/* Splits into t->parts, without "." and with ".." taken as the names say. */
static int split(struct tree *t, struct str path, struct error *err)
{
	tree_quote(path, t->name, sizeof(t->name));
	if (path.n > t->limits.path)
		return error_set(err, -EDQUOT, 413, "%s: a path of %zu bytes, the limit is %u", t->name, path.n, t->limits.path);
	if (str_chr(path, '\0') >= 0)
		return error_set(err, -EINVAL, 400, "%s: a NUL in its path", t->name);
	t->n_parts = 0;
	for (struct str part, rest = path; rest.n > 0;) {
		if (!str_cut(rest, '/', &part, &rest)) {
			part = rest;
			rest = str_n("", 0);
		}
		if (part.n == 0 || str_is(part, "."))
			continue;
		if (str_is(part, "..")) {
			if (t->n_parts == 0)
				return error_set(err, -EINVAL, 400, "%s: it leads out of the image", t->name);
			t->n_parts--;
			continue;
		}
		if (part.n > EROFS_NAME_MAX)
			return error_set(err, -EDQUOT, 413, "%s: a name of %zu bytes, the limit is %d", t->name, part.n, EROFS_NAME_MAX);
		if (t->n_parts > t->limits.depth)
			return error_set(err, -EDQUOT, 413, "%s: more than %u directories deep", t->name, t->limits.depth);
		t->parts[t->n_parts++] = part;
	}
	return 0;
}

/* The directory that the last part is in, made when there is none. NULL with *err. */
static struct dir *parent_dir(struct tree *t, struct error *err)
{
	struct dir *d = t->root;
	for (size_t i = 0; d && i + 1 < t->n_parts; i++) {
		struct node *n = name_node(t, d, t->parts[i], err);
		d = n ? make_dir(t, n, err) : NULL;
	}
	return d;
}

/* The node of the path at hand, below the root; NULL with *err. */
static struct node *path_node(struct tree *t, struct error *err)
{
	struct dir *d = parent_dir(t, err);
	return d ? name_node(t, d, t->parts[t->n_parts - 1], err) : NULL;
}

/* The directory of the path at hand, made when there is none. NULL with *err. */
static struct dir *path_dir(struct tree *t, struct error *err)
{
	if (t->n_parts == 0)
		return t->root;
	struct node *n = path_node(t, err);
	return n ? make_dir(t, n, err) : NULL;
}

/* Life */

int tree_new(int fd, const struct tree_limits *limits, unsigned flags, struct tree **ret)
{
	struct tree *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->limits = *limits;
	t->flags = flags;
	t->n_buckets = 1024;
	t->buckets = calloc(t->n_buckets, sizeof(*t->buckets));
	t->parts = calloc((size_t)limits->depth + 2, sizeof(*t->parts));
	random_bytes(&t->k0, sizeof(t->k0));
	random_bytes(&t->k1, sizeof(t->k1));
	if (!t->buckets || !t->parts || erofs_new(fd, limits->image, &t->image) < 0 || !(t->root = new_dir(t, NULL, NULL, NULL))) {
		tree_free(t);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

void tree_free(struct tree *t)
{
	if (!t)
		return;
	for (struct block *b = t->blocks, *next; b; b = next) {
		next = b->next;
		free(b);
	}
	erofs_free(t->image);
	map_done(&t->identities);
	buf_done(&t->scratch);
	free(t->buckets);
	free(t->parts);
	free(t);
}

void tree_next_layer(struct tree *t)
{
	t->layer++;
}

/* Whiteouts */

static int white_out(struct tree *t, struct dir *d, struct str name, struct error *err)
{
	struct node *n = name_node(t, d, name, err);
	if (!n)
		return err->code;
	bool ours = n->layer == t->layer;
	if (n->kind == NODE_DIRECTORY && ours) {
		n->dir->opaque = n->dir->fresh = true;
		hide_below(t, n->dir);
	} else if (n->kind == NODE_GONE || !ours) {
		drop(n);
		n->kind = NODE_WHITEOUT;
		n->layer = t->layer;
	}
	return 0;
}

/* Whether the path at hand is one of OCI's marks, or within one: it is done then. 1, 0 or -errno. */
static int special_name(struct tree *t, struct error *err)
{
	static const struct str prefix = STR(".wh."), reserved = STR(".wh..wh.");
	if (!(t->flags & TREE_OCI))
		return 0;
	for (size_t i = 0; i + 1 < t->n_parts; i++)
		if (str_starts(t->parts[i], prefix))
			return 1;
	if (t->n_parts == 0 || !str_starts(t->parts[t->n_parts - 1], prefix))
		return 0;
	struct str name = t->parts[t->n_parts - 1], hidden = str_from(name, prefix.n);
	struct dir *d;
	if (str_is(name, ".wh..wh..opq")) {
		t->n_parts--;
		d = path_dir(t, err);
		if (!d)
			return err->code;
		d->opaque = true;
		hide_below(t, d);
		return 1;
	}
	if (str_starts(name, reserved)) /* what aufs kept for itself */
		return 1;
	if (hidden.n == 0 || str_is(hidden, ".") || str_is(hidden, ".."))
		return error_set(err, -EINVAL, 400, "%s: it removes no name of its directory", t->name);
	d = parent_dir(t, err);
	int r = d ? white_out(t, d, hidden, err) : err->code;
	return r < 0 ? r : 1;
}

/* Attributes */

static bool xattr_kept(const struct tree *t, mode_t mode, struct str name)
{
	if (!(t->flags & TREE_OCI))
		return true;
	if (str_is(name, "security.capability"))
		return S_ISREG(mode);
	return str_starts(name, STR("user.")) && !str_starts(name, STR("user.overlay.")) && name.n > 5 && (S_ISREG(mode) || S_ISDIR(mode));
}

/* xattrs of *ret are valid until the next entry. */
static int attr_of(struct tree *t, const struct tree_entry *entry, struct erofs_attr *ret, struct error *err)
{
	if (entry->uid > UINT16_MAX || entry->gid > UINT16_MAX)
		return error_set(err, -EINVAL, 400, "%s: its %s %" PRIu64 " is over 65535", t->name, entry->uid > UINT16_MAX ? "owner" : "group",
			entry->uid > UINT16_MAX ? entry->uid : entry->gid);
	buf_clear(&t->scratch);
	uint64_t total = 0;
	for (size_t i = 0; i < entry->n_xattrs; i++) {
		const struct tree_xattr *x = &entry->xattrs[i];
		if (!xattr_kept(t, entry->mode, x->name))
			continue;
		total += x->name.n + x->value.n;
		int r = total > t->limits.xattrs ? -E2BIG : erofs_xattr_add(&t->scratch, x->name, x->value);
		if (r < 0)
			return tree_fail(t, r, t->name, err);
	}
	*ret = (struct erofs_attr){
		.mode = S_ISLNK(entry->mode) ? S_IFLNK | 0777 : entry->mode, /* as Linux has them */
		.uid = (uint32_t)entry->uid,
		.gid = (uint32_t)entry->gid,
		.mtime = entry->mtime,
		.mtime_ns = entry->mtime_ns < 1000000000 ? entry->mtime_ns : 0,
		.major = entry->major,
		.minor = entry->minor,
		.xattrs = buf_str(&t->scratch),
	};
	return 0;
}

/* Entries */

/* A new inode for the node. NULL with *err. */
static struct inode *set_inode(struct tree *t, struct node *n, mode_t mode, struct error *err)
{
	int r;
	struct inode *i = tree_alloc(t, sizeof(*i), &r);
	if (!i) {
		no_memory(t, r, err);
		return NULL;
	}
	*i = (struct inode){.links = 1, .written = 1, .mode = mode & S_IFMT};
	drop(n);
	n->kind = NODE_OTHER;
	n->layer = t->layer;
	n->inode = i;
	return i;
}

int tree_describe(struct tree *t, struct dir *d, const struct tree_entry *entry, struct error *err)
{
	struct erofs_attr attr;
	int r = attr_of(t, entry, &attr, err);
	if (r < 0)
		return r;
	struct str *xattrs = &attr.xattrs;
	if (xattrs->n) {
		void *copy = tree_alloc(t, xattrs->n, &r);
		if (!copy)
			return no_memory(t, r, err);
		xattrs->p = memcpy(copy, xattrs->p, xattrs->n);
	}
	d->attr = attr;
	d->layer = t->layer;
	d->implied = false;
	return 0;
}

/* The inode that the entry is written as: a new one at its path, or the one that is fetched. NULL with *err. */
static struct inode *entry_inode(struct tree *t, const struct tree_entry *entry, struct error *err)
{
	if (t->fetching)
		return t->fetching;
	struct node *n = path_node(t, err);
	return n ? set_inode(t, n, entry->mode, err) : NULL;
}

/* 1: the entry is done with. */
static int begin(struct tree *t, const struct tree_entry *entry, struct error *err)
{
	int r = split(t, entry->path, err);
	if (r == 0 && !t->fetching)
		r = special_name(t, err);
	if (r == 0 && t->n_parts == 0 && !S_ISDIR(entry->mode))
		r = error_set(err, -EINVAL, 400, "%s: the root is no directory", t->name);
	return r;
}

static int add(struct tree *t, const struct tree_entry *entry, struct error *err)
{
	struct erofs_attr attr;
	struct str target = S_ISLNK(entry->mode) ? entry->target : STR("");
	int r = begin(t, entry, err);
	if (r != 0)
		return MIN(r, 0);
	if (S_ISDIR(entry->mode)) {
		struct dir *d = path_dir(t, err);
		return d ? tree_describe(t, d, entry, err) : err->code;
	}
	if ((t->flags & TREE_OCI) && (S_ISCHR(entry->mode) || S_ISBLK(entry->mode)))
		return 0;
	if (S_ISLNK(entry->mode) && (target.n == 0 || target.n > 4095))
		return error_set(err, target.n ? -EDQUOT : -EINVAL, target.n ? 413 : 400, "%s: a link to a path of %zu bytes, the limit is 4095", t->name, target.n);
	if (str_chr(target, '\0') >= 0)
		return error_set(err, -EINVAL, 400, "%s: a NUL in its target", t->name);
	if ((r = attr_of(t, entry, &attr, err)) < 0)
		return r;
	struct inode *i = entry_inode(t, entry, err);
	if (!i)
		return err->code;
	r = erofs_special(t->image, &attr, target, &i->number);
	return r < 0 ? tree_fail(t, r, t->name, err) : 0;
}

static int link_to(struct tree *t, struct str path, struct str target, struct error *err)
{
	int r = split(t, path, err);
	if (r == 0)
		r = special_name(t, err);
	if (r != 0)
		return MIN(r, 0);
	if (t->n_parts == 0)
		return error_set(err, -EINVAL, 400, "%s: the root is no directory", t->name);
	/* The target first: its parts are not kept. */
	struct node *n = NULL;
	struct dir *d = t->root;
	char name[sizeof(t->name)];
	memcpy(name, t->name, sizeof(name));
	if ((r = split(t, target, err)) < 0)
		return error_wrap(err, r, "%s: a link to", name);
	for (size_t i = 0; d && i < t->n_parts; i++) {
		n = look_up(t, d, t->parts[i]);
		d = n && n->kind == NODE_DIRECTORY ? n->dir : NULL;
		if (!d && i + 1 < t->n_parts)
			n = NULL;
	}
	if (d)
		return error_set(err, -EINVAL, 400, "%s: a hard link to the directory %s", name, t->name);
	if (!n || n->kind != NODE_OTHER)
		return error_set(err, -EXDEV, 409, "%s: a hard link to %s, which is not in this layer", name, t->name);
	struct inode *i = n->inode;
	if ((r = split(t, path, err)) < 0)
		return r;
	n = path_node(t, err);
	if (!n)
		return err->code;
	i->links++;
	drop(n);
	n->kind = NODE_OTHER;
	n->layer = t->layer;
	n->inode = i;
	return 0;
}

static int file(struct tree *t, const struct tree_entry *entry, struct error *err)
{
	struct erofs_attr attr;
	int r = begin(t, entry, err);
	if (r != 0)
		return r;
	if (entry->size > t->limits.file)
		return error_set(err, -EDQUOT, 413, "%s: a file of %" PRIu64 " bytes, the limit is %" PRIu64, t->name, entry->size, t->limits.file);
	if (entry->extents && entry->n_extents > t->limits.extents)
		return error_set(err, -EDQUOT, 413, "%s: a sparse file of %zu pieces, the limit is %u", t->name, entry->n_extents, t->limits.extents);
	if ((r = attr_of(t, entry, &attr, err)) < 0)
		return r;
	if (!(t->file = entry_inode(t, entry, err)))
		return err->code;
	r = erofs_file_begin(t->image, &attr, entry->size, entry->extents, entry->n_extents);
	return r < 0 ? tree_fail(t, r, t->name, err) : 0;
}

/* The functions above need an error to fill. */
#define WITH_ERROR(call)                                                                                     \
	do {                                                                                                 \
		struct error own = {0};                                                                      \
		int r_ = (call);                                                                             \
		if (r_ < 0 && err)                                                                           \
			*err = own;                                                                          \
		return r_;                                                                                   \
	} while (0)

int tree_add(struct tree *t, const struct tree_entry *entry, struct error *err)
{
	WITH_ERROR(add(t, entry, &own));
}

int tree_link(struct tree *t, struct str path, struct str target, struct error *err)
{
	WITH_ERROR(link_to(t, path, target, &own));
}

int tree_file(struct tree *t, const struct tree_entry *entry, struct error *err)
{
	WITH_ERROR(file(t, entry, &own));
}

int tree_file_data(struct tree *t, uint64_t offset, const void *p, size_t n, struct error *err)
{
	int r = erofs_file_write(t->image, offset, p, n);
	return r < 0 ? tree_fail(t, r, t->name, err) : 0;
}

int tree_file_end(struct tree *t, struct error *err)
{
	int r = erofs_file_end(t->image, &t->file->number);
	return r < 0 ? tree_fail(t, r, t->name, err) : 0;
}

static int later(struct tree *t, struct str path, mode_t type, uint64_t identity, struct error *err)
{
	const uint64_t key[2] = {t->layer, identity};
	int r = split(t, path, err);
	if (r < 0)
		return r;
	if (t->n_parts == 0)
		return error_set(err, -EINVAL, 400, "%s: the root is no directory", t->name);
	struct node *n = path_node(t, err);
	if (!n)
		return err->code;
	struct inode *same = identity ? map_get(&t->identities, MAP_KEY(key)) : NULL;
	if (!same) {
		same = set_inode(t, n, type, err);
		if (!same)
			return err->code;
		return identity && map_put(&t->identities, MAP_KEY(key), same, NULL) < 0 ? no_memory(t, -ENOMEM, err) : 0;
	}
	same->links++;
	drop(n);
	n->kind = NODE_OTHER;
	n->layer = t->layer;
	n->inode = same;
	return 0;
}

int tree_later(struct tree *t, struct str path, mode_t type, uint64_t identity, struct error *err)
{
	WITH_ERROR(later(t, path, type, identity, &own));
}

static int whiteout(struct tree *t, struct str path, struct error *err)
{
	int r = split(t, path, err);
	if (r == 0 && t->n_parts == 0)
		r = error_set(err, -EINVAL, 400, "%s: the root cannot be removed", t->name);
	struct dir *d = r == 0 ? parent_dir(t, err) : NULL;
	return d ? white_out(t, d, t->parts[t->n_parts - 1], err) : err->code;
}

static int directory(struct tree *t, struct str path, bool opaque, struct error *err)
{
	struct dir *d = split(t, path, err) == 0 ? path_dir(t, err) : NULL;
	if (d && opaque) {
		d->opaque = true;
		hide_below(t, d);
	}
	return d ? 0 : err->code;
}

int tree_whiteout(struct tree *t, struct str path, struct error *err)
{
	WITH_ERROR(whiteout(t, path, &own));
}

int tree_opaque(struct tree *t, struct str path, struct error *err)
{
	WITH_ERROR(directory(t, path, true, &own));
}

int tree_imply(struct tree *t, struct str path, struct error *err)
{
	WITH_ERROR(directory(t, path, false, &own));
}
