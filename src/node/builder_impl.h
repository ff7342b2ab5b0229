/* What the files of the builders share: builders.c (the process and its end), builder_messages.c (what it asks for), build_boxes.c (its sandboxes), image_makers.c (unpackers
 * and mergers). */
#ifndef CUBICLE_NODE_BUILDER_IMPL_H
#define CUBICLE_NODE_BUILDER_IMPL_H

#include "node/builders.h"
#include "node/layers.h"

enum {
	BUILDER_FILES_MOST = 256, /* of new_file, not unpacked yet */
	BUILDER_BOXES_MOST = 4,
	BUILDER_MAKERS_MOST = 8,  /* images being made */
	BUILDER_OPENING_MOST = 64,
	BUILDER_KEYS_MOST = 2048, /* that it may make layers of at once */
	BUILDER_WAITS_MOST = 64,  /* layers of others' that it waits for */
	BUILDER_UNREAD_MOST = 16384, /* bytes of answers: descriptors wait with them */
	OTHERS_PATIENCE_S = 60,   /* so long a builder waits for a layer that one of another team makes */
	BUILDER_MB = 2048,        /* address space, MiB */
	MAKER_MB = 4096,
	TICK_S = 1,
};

struct build_box;
struct image_maker;

/* A file of node's without a name, which the builder writes. */
struct builder_file {
	struct builder_file *next;
	uint64_t number;
	int fd; /* for reading; the only other one that it was ever open by is the builder's */
	uint64_t promised;
};

/* A layer that it may build on: it has made or found it, or its base has it. In use until the builder is gone. */
struct builder_layer {
	struct builder_layer *next;
	char file[161];
	uint64_t made; /* bytes, of one that it has made; counts for build.disk */
};

struct builder_grant {
	struct builder_grant *next;
	char key[LAYER_KEY + 1];
};

struct builder {
	struct node *node;
	struct build *build;
	struct chan *chan;        /* NULL: not yet, or not any more */
	struct jailed process;    /* pid 0: not yet, or not any more */
	struct loop_fd *watch;    /* its end */
	struct loop_timer *timer;
	int64_t deadline;         /* boottime */
	unsigned holds;           /* work under way that comes back here */
	struct builder_file *files;
	unsigned n_files;
	uint64_t last_file, last_box;
	struct builder_layer *layers;
	struct builder_grant *grants;
	struct build_box *boxes;
	unsigned n_boxes, n_opening;
	unsigned n_keys, n_waits; /* layers.c: locks and grants, waits */
	bool asked;               /* layers.c, who waits for whom */
	bool impatient;           /* ... it has waited for another team in vain, and does so no more */
	struct image_maker *makers;
	unsigned n_makers;
	bool told;                /* the build has its end */
	bool ending;
	bool finishing;           /* build_done was taken: a probe may be under way */
	struct template *result;  /* with that */
	char digest[129];
	uint64_t done_request;
	struct build_box *probe;
	struct buf auth;          /* what registry.auth held at its start: of that it is told what it asks for by name */
	unsigned logins;
};

/* builders.c */
/* Answers a request of the builder, if it is there still. */
void builder_answer(struct builder *b, uint64_t request, enum msg_id type, const void *m, int fd);
void builder_refuse(struct builder *b, uint64_t request, const struct error *err);
/* Work that comes back; builder_let() may free it. */
void builder_hold(struct builder *b);
void builder_let(struct builder *b);
/* It may build on this layer, which stays until it is gone. */
void builder_use(struct builder *b, struct str file);
void builder_made(struct builder *b, struct str file, uint64_t bytes);
bool builder_uses(const struct builder *b, struct str file);
int builder_grant(struct builder *b, struct str key);
bool builder_has_grant(const struct builder *b, struct str key);
void builder_drop_grant(struct builder *b, struct str key);
/* Bytes of disk that it has: files, layers that it has made, images being made. */
uint64_t builder_disk(const struct builder *b);
/* So many more? 0, or -ENOSPC (507) or -EDQUOT (413) with *err. */
int builder_room(const struct builder *b, uint64_t bytes, struct error *err);
/* The result is final: a probe has passed, or none was asked for. */
void builder_succeed(struct builder *b);
/* The build fails, and the builder ends. */
void builder_fail(struct builder *b, const char *reason, const char *step);
/* builder_messages.c */
void builder_message(struct builder *b, struct chan_message *m);
struct builder_file *builder_file(struct builder *b, uint64_t number);
void builder_file_free(struct builder *b, struct builder_file *f);

/* build_boxes.c */
void build_box_start(struct builder *b, uint64_t request, const struct msg_start_box *m);
void build_box_open(struct builder *b, uint64_t request, const struct msg_open_box *m);
void build_box_seal(struct builder *b, uint64_t request, const struct msg_seal_box *m);
void build_box_end(struct builder *b, uint64_t request, const struct msg_end_box *m);
/* One sandbox of the result, until its services are ready: then builder_succeed(), or builder_fail(). */
void build_box_probe(struct builder *b);
/* build_start_log.c: lines of a log of init's go to the build's, *left at most. */
void build_start_log(struct builder *b, struct str entries, unsigned *left);
/* All of them; builder_let() follows for each. */
void build_boxes_end(struct builder *b);
/* The loop does not run any more. */
void build_boxes_forget(struct builder *b);
/* Layers of a message: 400 unless the builder may use each. */
int build_check_layers(const struct builder *b, struct msg_list layers, size_t most, struct error *err);

/* image_makers.c */
void image_unpack(struct builder *b, uint64_t request, const struct msg_unpack_layer *m);
void image_merge(struct builder *b, uint64_t request, const struct msg_merge_layers *m);
void image_makers_end(struct builder *b);
void image_makers_forget(struct builder *b);
uint64_t image_makers_bytes(const struct builder *b);

#endif
