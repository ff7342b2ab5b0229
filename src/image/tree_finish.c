#include "image/tree_impl.h"

#include <stdio.h>
#include <sys/stat.h>

struct finish {
	struct tree *t;
	const struct tree_finish *how;
	struct buf path;     /* of the directory at hand, with a slash at the end unless it is the root */
	struct node **nodes; /* a stack of sorted children */
	size_t n, cap;
	struct erofs_name *names;
	size_t names_cap;
	uint64_t whiteout; /* the inode of all of them; 0: none yet */
	uint32_t whiteouts;
	struct tree_result result;
	struct error *err;
};

static int no_memory(const struct finish *f)
{
	return error_errno(f->err, -ENOMEM, "the tree of an image");
}

static int compare(struct str a, struct str b)
{
	int r = memcmp(a.p, b.p, MIN(a.n, b.n));
	return r ? r : (a.n > b.n) - (a.n < b.n);
}

static int compare_nodes(const void *a, const void *b)
{
	return compare(node_name(*(struct node *const *)a), node_name(*(struct node *const *)b));
}

static int push(struct finish *f, struct node *n)
{
	if (f->n == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 256;
		struct node **grown = realloc(f->nodes, cap * sizeof(*grown));
		if (!grown)
			return no_memory(f);
		f->nodes = grown;
		f->cap = cap;
	}
	f->nodes[f->n++] = n;
	return 0;
}

/* Settling: which names stay, in order, with their contents */

/* f->path with the node's name at its end; the caller cuts it off again. */
static int add_name(struct finish *f, const struct node *n)
{
	return buf_add(&f->path, n->name, n->name_n) < 0 ? no_memory(f) : 0;
}

static void cut_path(struct finish *f, size_t n)
{
	f->path.end = f->path.start + n;
}

static int settle_whiteout(struct finish *f, struct node *n, bool covered)
{
	int r = 1;
	if (covered || f->how->lowest)
		r = 0;
	else if (f->how->below) {
		size_t before = buf_len(&f->path);
		r = add_name(f, n);
		if (r == 0 && (r = f->how->below(buf_str(&f->path), NULL, f->how->arg)) < 0)
			error_errno(f->err, r, "looking into the layers below");
		cut_path(f, before);
	}
	if (r == 0)
		n->kind = NODE_GONE;
	else if (r > 0)
		f->whiteouts++;
	return MIN(r, 0);
}

static int settle_other(struct finish *f, struct node *n)
{
	struct inode *i = n->inode;
	int r = 0;
	if (!i->number) {
		size_t before = buf_len(&f->path);
		f->t->fetching = i;
		r = add_name(f, n);
		if (r == 0)
			r = f->how->fetch(f->t, n->layer, buf_str(&f->path), f->how->arg, f->err);
		f->t->fetching = NULL;
		cut_path(f, before);
	}
	if (r == 0 && i->links != i->written) {
		i->written = i->links;
		r = erofs_set_links(f->t->image, i->number, i->links);
		if (r < 0)
			tree_fail(f->t, r, "/", f->err);
	}
	return r;
}

/* Nothing of this image said anything of the directory at f->path. */
static int settle_implied(struct finish *f, struct dir *d)
{
	struct tree_entry entry;
	int r = f->how->below ? f->how->below(buf_str(&f->path), &entry, f->how->arg) : 0;
	d->guessed = !f->how->below;
	f->result.guessed = f->result.guessed || d->guessed;
	if (r <= 0)
		return r < 0 ? error_errno(f->err, r, "looking into the layers below") : 0;
	tree_quote(buf_str(&f->path), f->t->name, sizeof(f->t->name));
	return S_ISDIR(entry.mode) ? tree_describe(f->t, d, &entry, f->err) : 0;
}

static int settle(struct finish *f, struct dir *d, bool covered);

static int settle_node(struct finish *f, struct node *n, bool covered)
{
	if (n->kind == NODE_WHITEOUT)
		return settle_whiteout(f, n, covered);
	if (n->kind == NODE_OTHER)
		return settle_other(f, n);
	size_t before = buf_len(&f->path);
	int r = add_name(f, n);
	if (r == 0 && n->dir->implied && !n->dir->fresh && !covered)
		r = settle_implied(f, n->dir);
	if (r == 0)
		r = buf_add_c(&f->path, "/") < 0 ? no_memory(f) : settle(f, n->dir, covered);
	cut_path(f, before);
	return r;
}

/* covered: nothing below the image shows here, because of a directory above. */
static int settle(struct finish *f, struct dir *d, bool covered)
{
	size_t base = f->n;
	int r = 0;
	covered = covered || f->how->lowest;
	if (covered)
		d->opaque = false;
	covered = covered || d->opaque;
	for (struct node *c = d->children; r == 0 && c; c = c->next)
		if (c->kind != NODE_GONE)
			r = push(f, c);
	if (r < 0)
		return r;
	size_t n = f->n - base;
	if (n > 1)
		qsort(f->nodes + base, n, sizeof(*f->nodes), compare_nodes);
	struct node **tail = &d->children;
	for (size_t i = base; r == 0 && i < base + n; i++) {
		struct node *c = f->nodes[i];
		r = settle_node(f, c, covered);
		if (c->kind == NODE_GONE)
			continue;
		f->result.entries++;
		*tail = c;
		tail = &c->next;
	}
	*tail = NULL;
	f->n = base;
	return r;
}

/* Directories into the image */

static struct erofs_name name_of(const struct finish *f, const struct node *n)
{
	struct erofs_name name = {.name = node_name(n)};
	if (n->kind == NODE_DIRECTORY) {
		name.inode = n->dir->place.inode;
		name.mode = S_IFDIR;
	} else {
		name.inode = n->kind == NODE_WHITEOUT ? f->whiteout : n->inode->number;
		name.mode = n->kind == NODE_WHITEOUT ? S_IFCHR : n->inode->mode;
	}
	return name;
}

/* The names of a directory with its own two, in f->names. */
static int list(struct finish *f, const struct dir *d, size_t *ret_n, uint32_t *ret_links)
{
	struct erofs_name own[] = {{STR("."), d->place.inode, S_IFDIR}, {STR(".."), d->parent->place.inode, S_IFDIR}};
	size_t n = 0, next = 0, all = ARRAY_SIZE(own);
	uint32_t links = 2;
	for (const struct node *c = d->children; c; c = c->next) {
		all++;
		links += c->kind == NODE_DIRECTORY;
	}
	if (all > f->names_cap) {
		struct erofs_name *grown = realloc(f->names, all * 2 * sizeof(*grown));
		if (!grown)
			return no_memory(f);
		f->names = grown;
		f->names_cap = all * 2;
	}
	for (const struct node *c = d->children; c; c = c->next) {
		while (next < ARRAY_SIZE(own) && compare(own[next].name, node_name(c)) < 0)
			f->names[n++] = own[next++];
		f->names[n++] = name_of(f, c);
	}
	while (next < ARRAY_SIZE(own))
		f->names[n++] = own[next++];
	*ret_n = n;
	*ret_links = links;
	return 0;
}

/* Places (write = false) or writes a directory and all below it. */
static int put(struct finish *f, struct dir *d, bool write)
{
	struct tree *t = f->t;
	struct erofs_attr attr = d->attr;
	cleanup_buf struct buf xattrs = BUF_INIT;
	size_t n = 0;
	uint32_t links = 2;
	int r = list(f, d, &n, &links);
	if (r < 0)
		return r;
	if (d->opaque || d->guessed) {
		buf_add_str(&xattrs, attr.xattrs);
		if (d->opaque)
			r = erofs_xattr_add(&xattrs, STR("trusted.overlay.opaque"), STR("y"));
		if (r == 0 && d->guessed)
			r = erofs_xattr_add(&xattrs, STR(TREE_IMPLIED), STR("y"));
		attr.xattrs = buf_str(&xattrs);
	}
	if (r == 0)
		r = write ? erofs_directory_write(t->image, &attr, links, f->names, n, &d->place) :
			    erofs_directory_place(t->image, &attr, f->names, n, d == t->root, &d->place);
	if (r < 0) {
		char name[160];
		tree_quote(d->node ? node_name(d->node) : STR(""), name, sizeof(name));
		return tree_fail(t, r, name, f->err);
	}
	for (struct node *c = d->children; r == 0 && c; c = c->next)
		if (c->kind == NODE_DIRECTORY)
			r = put(f, c->dir, write);
	return r;
}

static int make_whiteout(struct finish *f)
{
	if (!f->whiteouts)
		return 0;
	const struct erofs_attr attr = {.mode = S_IFCHR};
	int r = erofs_special(f->t->image, &attr, STR(""), &f->whiteout);
	if (r == 0 && f->whiteouts > 1)
		r = erofs_set_links(f->t->image, f->whiteout, f->whiteouts);
	return r < 0 ? tree_fail(f->t, r, "/", f->err) : 0;
}

int tree_finish(struct tree *t, const struct tree_finish *how, struct tree_result *ret, struct error *err)
{
	struct error own = {0};
	struct finish f = {.t = t, .how = how, .err = err ? err : &own};
	int r = 0;
	/* Overlayfs does not look for its marks at the root of a layer. */
	if (t->root->opaque && !how->lowest)
		r = error_set(f.err, -EXDEV, 409, "/: all of the layers below is hidden, by .wh..wh..opq");
	if (r == 0)
		r = settle(&f, t->root, false);
	if (r == 0)
		r = make_whiteout(&f);
	if (r == 0)
		r = put(&f, t->root, false);
	if (r == 0)
		r = put(&f, t->root, true);
	if (r == 0 && (r = erofs_finish(t->image, &f.result.size)) < 0)
		tree_fail(t, r, "/", f.err);
	buf_done(&f.path);
	free(f.nodes);
	free(f.names);
	if (r == 0)
		*ret = f.result;
	return r;
}
