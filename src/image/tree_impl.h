/* Shared by tree.c (entries) and tree_finish.c (the end). */
#ifndef CUBICLE_IMAGE_TREE_IMPL_H
#define CUBICLE_IMAGE_TREE_IMPL_H

#include "base/cleanup.h"
#include "base/map.h"
#include "image/tree.h"

enum node_kind {
	NODE_GONE, /* a name that was there; what it had is dropped */
	NODE_WHITEOUT,
	NODE_DIRECTORY,
	NODE_OTHER,
};

/* What one or more names that are no directory stand for. */
struct inode {
	uint64_t number; /* in the image; 0: to be fetched at the end */
	uint32_t links;  /* names in the tree */
	uint32_t written; /* as the image has it */
	mode_t mode;
};

struct node {
	struct node *next;  /* in its directory, in order of appearance; sorted once the tree is settled */
	struct node *chain; /* in its bucket */
	struct dir *parent;
	union {
		struct dir *dir;
		struct inode *inode;
	};
	uint32_t hash;
	uint16_t layer; /* the last one that had it, or something below it */
	uint8_t kind, name_n;
	char name[];
};

struct dir {
	uint64_t id;       /* names are found by it: a directory that was dropped takes its names along */
	struct dir *parent; /* of the root: itself */
	struct node *node; /* NULL for the root */
	struct node *children;
	struct erofs_attr attr;
	uint16_t layer;    /* that said the attributes */
	uint16_t cleaned;  /* 1 + the layer that hid what was below */
	bool implied;      /* nothing was said about it */
	bool guessed;      /* nor by what is below */
	bool opaque;
	bool fresh;        /* in the place of what is below, not the same directory: it takes nothing over from there */
	struct erofs_place place;
};

struct tree {
	struct tree_limits limits;
	unsigned flags;
	struct erofs *image;
	uint16_t layer;
	uint64_t entries, held, ids;
	struct dir *root;
	struct node **buckets;
	size_t n_buckets;
	uint64_t k0, k1;
	struct block *blocks; /* memory */
	struct str *parts;    /* of the path at hand */
	size_t n_parts;
	struct buf scratch;   /* attributes of the entry at hand */
	char name[160];       /* of the file at hand, for errors */
	struct inode *file;   /* that is being written */
	struct inode *fetching;
	struct map identities; /* of tree_later() */
};

/* Memory of the tree, within its limit; NULL: *ret_error is why. Zeroed. */
void *tree_alloc(struct tree *t, size_t n, int *ret_error);
/* Fills err for an error of the image's writer or of memory. `name` as from tree_quote(). */
int tree_fail(const struct tree *t, int r, const char *name, struct error *err);

/* What the entry says of a directory; t->name is set. */
int tree_describe(struct tree *t, struct dir *d, const struct tree_entry *entry, struct error *err);

static inline struct str node_name(const struct node *n)
{
	return str_n(n->name, n->name_n);
}

#endif
