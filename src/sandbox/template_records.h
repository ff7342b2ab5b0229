/* The durable records of templates: of teams' templates, their builds and tags, of layers that builds have left, and of files that were sent for builds. In node.db, beside
 * sandbox/records.h, whose rules hold: writes in the order they were asked for, fn(arg) from the loop after the commit. Everything given is copied. */
#ifndef CUBICLE_SANDBOX_TEMPLATE_RECORDS_H
#define CUBICLE_SANDBOX_TEMPLATE_RECORDS_H

#include "sandbox/records.h"

struct template_record {
	char id[TEMPLATE_ID + 1], team[65];
	char name[129];      /* "" = none; of a team's names each is there once */
	char kind[9];        /* "e2b", "cube", "image" */
	char reference[513]; /* of kind image */
	char source[8193];   /* what was asked for (MSG make_template); "" = nothing was said */
	bool public;
	uint32_t cpu_count, memory_mb, disk_mb; /* of the newest build; 0 = the server's default */
	int64_t created_at, updated_at; /* ns, CLOCK_REALTIME */
};

/* Recorded: never renumbered. */
enum build_status { BUILD_WAITING = 1, BUILD_BUILDING = 2, BUILD_READY = 3, BUILD_ERROR = 4 };

struct build_record {
	char id[37], template_id[TEMPLATE_ID + 1];
	char kind[9];        /* whose API made it, which need not be the template's: its clients are told in their words */
	enum build_status status;
	char phase[33], reason[1025], step[33];
	char digest[129];    /* of the image it was made from; "" = not known */
	uint32_t cpu_count, memory_mb, disk_mb;
	int64_t created_at, finished_at; /* ns, CLOCK_REALTIME; finished_at 0 = not yet */
	struct buf tags;     /* raw list: what it gets when it is ready */
	struct buf description; /* of one that is ready and has a tag: JSON (node/templates.h), else empty */
};

struct tag_record {
	char template_id[TEMPLATE_ID + 1], tag[129], build[37];
	int64_t created_at;
};

struct layer_record {
	char key[201];
	char file[161];      /* relative to node/ */
	uint64_t size;
	int64_t used_at;     /* ns, CLOCK_REALTIME */
};

struct file_record {
	char team[65], hash[65];
	char file[65];       /* relative to node/ */
	uint64_t size;
	int64_t used_at;
};

void build_record_done(struct build_record *b);
/* 0 or -ENOMEM. */
int build_record_clone(struct build_record *to, const struct build_record *from);

void records_put_template(struct records *r, const struct template_record *t, records_fn *fn, void *arg);
/* With its builds and tags. */
void records_forget_template(struct records *r, const char *id, records_fn *fn, void *arg);
/* `tagged`: every tag of b->tags means this build from b->finished_at on, in the same transaction. */
void records_put_build(struct records *r, const struct build_record *b, bool tagged, records_fn *fn, void *arg);
/* With the tags that mean it. */
void records_forget_build(struct records *r, const char *id, records_fn *fn, void *arg);
void records_put_tags(struct records *r, const char *template_id, struct msg_list tags, const char *build, int64_t at, records_fn *fn, void *arg);
void records_forget_tags(struct records *r, const char *template_id, struct msg_list tags, records_fn *fn, void *arg);
/* FULL for a new one; that it was used again need not survive a power cut. */
void records_put_layer(struct records *r, const struct layer_record *l, enum store_sync sync, records_fn *fn, void *arg);
void records_forget_layer(struct records *r, const char *key, records_fn *fn, void *arg);
void records_put_file(struct records *r, const struct file_record *f, enum store_sync sync, records_fn *fn, void *arg);
void records_forget_file(struct records *r, const char *team, const char *hash, records_fn *fn, void *arg);

/* Start-up; they block. 0 or -errno. Builds come in the order in which they were made; *b is moved to fn. */
int records_load_templates(struct records *r, void (*fn)(const struct template_record *t, void *arg), void *arg, struct error *err);
int records_load_builds(struct records *r, void (*fn)(struct build_record *b, void *arg), void *arg, struct error *err);
int records_load_tags(struct records *r, void (*fn)(const struct tag_record *t, void *arg), void *arg, struct error *err);
int records_load_layers(struct records *r, void (*fn)(const struct layer_record *l, void *arg), void *arg, struct error *err);
int records_load_files(struct records *r, void (*fn)(const struct file_record *f, void *arg), void *arg, struct error *err);

#endif
