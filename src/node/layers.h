/*
 * Layers that builds have left (node/images, by the key of what each follows from), and files that were sent for builds (node/files): found again by later builds, and thrown away
 * when nothing stands on them and nobody has asked for them for a while (option image.keep, `cubicle template gc`). Inside the room of node.
 *
 * A key that a builder is going to make is locked for it; others that ask for it wait, and are answered anew when it is there, or the lock is given up. A lock is there only as
 * long as somebody holds it or waits for it.
 */
#ifndef CUBICLE_NODE_LAYERS_H
#define CUBICLE_NODE_LAYERS_H

#include "node/service.h"
#include "sandbox/template_records.h"

struct builder;

enum {
	LAYER_KEY = 200,          /* as it is kept */
	BUILDER_KEY = 128,        /* as a builder says it */
	FILE_WRITERS_MOST = 64,   /* at once */
	FILE_WRITERS_OF_TEAM = 16,
	USED_GRAIN_S = 60,        /* when something was asked for last is recorded to this */
};

/* At start. 0 or -errno. */
int layers_load(struct node *n, struct error *err);
/* Adoption is over: what nobody names goes. */
void layers_sweep(struct node *n);
void layers_done(struct node *n);
/* Now and then: what is old goes. */
void layers_tick(struct node *n);

/* The file is one of these layers. */
bool layers_keep(const struct layers_of_builds *l, struct str file);

/* How a key of the builder's is kept: what follows from blobs is everybody's, everything else of its team only. */
void layers_key(const struct builder *b, struct str key, char to[LAYER_KEY + 1]);
/* find_layer of a builder, with such a key: answers, perhaps later. */
void layers_find(struct builder *b, uint64_t request, struct str key, bool make);
/* The same for node itself, which makes the layer when there is none: go(arg, true) when the request is answered, go(arg, false) when it is to be made, or (the builder is ending) not
 * any more. */
typedef void layers_go_fn(void *arg, bool answered);
void layers_find_for(struct builder *b, uint64_t request, struct str key, layers_go_fn *go, void *arg);
/* Whether a layer's name says that it has directories which it only implies (image/unpack.h). */
bool layers_implied(const char *file);
/* Now and then: what a builder of another team makes is waited for a while only, for that team says how fast its registry is. Then both make it. */
void layers_go_on(struct builder *b);
/* Somebody has asked for it now: true when that is to be recorded. */
bool layers_used(const struct node *n, int64_t *used_at);
/* The builder may make that layer. */
bool layers_granted(const struct builder *b, struct str key);
/* It is there: durable and in the builder's use. Recorded, then done(arg) is called; who waits is answered. */
void layers_made(struct node *n, const struct layer_record *l, records_fn *done, void *arg);
/* The builder does not make it; nothing that it has locked. */
void layers_give(struct builder *b, struct str key);
void layers_leave(struct builder *b);

/* Requests of the front. */
void layers_collect(struct node *n, struct request *r, const struct msg_collect_images *m);
void upload_find(struct node *n, struct request *r, const struct msg_find_file *m);
void upload_write(struct node *n, struct request *r, const struct msg_write_file *m);
void upload_keep(struct node *n, struct request *r, const struct msg_keep_file *m);
/* The front that had them is gone. */
void uploads_forget_writers(struct node *n);
/* What a team has sent by that name, for reading: a descriptor or -ENOENT. */
int upload_open(struct node *n, const char *team, struct str hash, uint64_t *ret_size);

/* ---- between the files: layers.c, layer_locks.c, layers_collect.c, uploads.c ---- */

int uploads_load(struct node *n, struct error *err);
void uploads_sweep(struct node *n);
void uploads_done(struct node *n);
/* Removes one, with its file. */
void upload_drop(struct node *n, struct file_record *f);
void layer_drop(struct node *n, struct layer_record *l, records_fn *fn, void *arg);
/* Those that wait for the key are answered as if they asked now. */
void layers_released(struct node *n, struct str key);

#endif
