/*
 * Templates of teams, their builds and tags (docs/architecture.md, "Templates"). All of them are in memory, from the records; a change is recorded before anybody is told.
 *
 *     waiting ──► building ──► ready
 *        │           └───────► error
 *        └─────────────────────► error   (it was never started)
 *
 * A build that is building has a builder (builders.h), or waits in the queue for one. What is ready is a struct template in the registry (templates.h) as long as a tag means it.
 * Inside the room of node: builds.c (which there are), build_life.c (one from its request to its end), build_tags.c (what names mean, deleting), build_pages.c (what is told of them), build_log.c.
 */
#ifndef CUBICLE_NODE_BUILDS_H
#define CUBICLE_NODE_BUILDS_H

#include "node/service.h"
#include "sandbox/template_records.h"

#include <limits.h>

enum {
	BUILDS_KEPT = 100,            /* of a template: the oldest without a tag go */
	BUILDS_OF_TEAM = 100,         /* that are building or wait for their turn */
	TEMPLATES_OF_TEAM = 4096,
	BUILD_TAGS_MOST = 32,         /* of a request */
	TEMPLATE_TAGS_MOST = 64,
	BUILD_LOG_MOST = 10 << 20,    /* bytes */
	IMAGE_WAITS_S = 15,           /* a build of an image that nobody has started in this time is given to the next who asks for it */
	BUILD_WAITS_S = 24 * 3600,    /* then one that nobody has started is an error */
};

struct builder;
struct layer_use;

struct build_log_entry {
	uint32_t at, n;
	uint8_t level;
};

/* Lines of JSON: timestamp, level, message, step. */
struct build_log {
	struct buf text;
	struct build_log_entry *entries;
	size_t n, cap;
	bool cut; /* it has been longer */
};

struct team_template;

struct build {
	struct build *older;      /* of the same template */
	struct team_template *of; /* NULL: that is deleted while its end is under way */
	struct node *node;
	struct build_record r;
	unsigned progress;        /* percent */
	unsigned holds;           /* its builder, records and files under way: not freed before they are done */
	bool recording;           /* its newest state is on its way into the records */
	struct build_log log;     /* of one that is building, and until its file is complete */
	bool logging;             /* it is in memory */
	size_t logged;            /* bytes of it that are in its file */
	bool log_busy;            /* the writer has a piece of it */
	bool log_over;            /* no more comes */
	struct builder *builder;  /* NULL: none (yet) */
	struct request *waiting;  /* await_build */
	struct build *next_queued;
	bool queued, force, ending;
	int spec;                 /* what to build, until its builder has it; -1 */
	struct buf base;          /* description of what it is made on; empty: nothing */
	struct buf base_layers;   /* raw list of its layers: in use from start_build to the end */
	char base_isolation[10], isolation[10]; /* that of what it is made on; the one that was asked for, "" = none */
	bool base_nested, base_no_setuid; /* what that is allowed and denied */
	char request[65];
};

struct template_tag {
	char name[TEMPLATE_TAG + 1];
	struct build *build;
	int64_t created_at;
};

struct team_template {
	struct template_record r;
	struct build *builds;     /* the newest first */
	struct template_tag *tags;
	size_t n_tags;
	bool going;               /* being deleted: nobody finds it */
};

struct builds {
	struct map templates;     /* id → struct team_template, owned */
	struct map by_id;         /* build id → struct build, owned */
	struct map names;         /* team, NUL, name → struct team_template */
	struct map references;    /* team, NUL, reference → struct team_template of kind image */
	struct build *queue, **queue_end;
	unsigned running;
	char last_team[65];       /* whose build was started last */
	unsigned busy;            /* jobs of the writer, deletions, ends: under way */
	struct workq *writer;     /* one thread: files of logs, and those that were sent */
	struct workq *reader;     /* one thread: logs that somebody asks for; they keep no writer waiting */
	struct workq *makers;     /* starts builders and what makes images, hashes and publishes */
};

/* At start: reads the records; what was building has failed. 0 or -errno. */
int builds_load(struct node *n, struct error *err);
/* Adoption is over: logs and other files that nothing names go. */
void builds_sweep(struct node *n);
/* The node stops: what is building fails. */
void builds_stop(struct node *n);
/* After that: nothing of them is under way. */
bool builds_stopped(const struct node *n);
/* Waits for jobs of the workers; the loop does not run any more. */
void builds_drain(struct node *n);
void builds_free(struct node *n);
/* Now and then: builds that were never started. */
void builds_tick(struct node *n);

/* Requests of the front. */
void team_build_make(struct node *n, struct request *r, const struct msg_make_template *m);
void team_build_start(struct node *n, struct request *r, const struct msg_start_build *m, int spec); /* owns spec */
void team_build_status(struct node *n, struct request *r, const struct msg_build_status *m);
void team_build_await(struct node *n, struct request *r, const struct msg_await_build *m);
void team_build_list(struct node *n, struct request *r, const struct msg_builds *m);
void team_build_tag(struct node *n, struct request *r, const struct msg_tag_template *m);
void team_build_untag(struct node *n, struct request *r, const struct msg_untag_template *m);
void team_build_change(struct node *n, struct request *r, const struct msg_change_template *m);
void team_build_delete(struct node *n, struct request *r, const struct msg_delete_template *m);

/* Sends all templates of teams to the front that has subscribed; and one that has changed to whoever has. */
void builds_tell(struct peer *p);
void team_build_tell(struct node *n, const struct team_template *t, bool gone);

/* What a builder says (builders.c). */
void team_build_log_line(struct build *b, unsigned level, const char *step, struct str message);
void team_build_set_progress(struct build *b, struct str phase, unsigned percent);
/* The end: *t has passed every check, its layers are durable; or why there is none. The build may be freed when this returns. */
void team_build_succeeded(struct build *b, const struct template *t, struct str digest);
void team_build_failed(struct build *b, const char *reason, const char *step);
/* Its builder is gone: the next one in the queue gets its turn. */
void team_build_left(struct build *b);

/* ---- between the files ---- */

/* Something under way needs it; that is done: of a deleted template it is freed with the last. */
void team_build_hold(struct build *b);
void team_build_let(struct build *b);

/* A template, and a build of one, that nobody knows yet; the build takes what the record holds. They abort without memory, as the records do. */
struct team_template *team_template_new(struct node *n, const struct template_record *r);
struct build *team_build_new(struct node *n, struct team_template *t, const struct build_record *r);
/* It stands on nothing any more; it waits for no turn. */
void team_build_leave_base(struct build *b);
void team_build_leave_queue(struct build *b);
/* Of many builds of a template the oldest goes that nothing is known by. */
void team_build_prune(struct team_template *t);

const char *team_build_status_name(enum build_status s);
/* NULL: there is none of that team. */
struct team_template *team_build_find_template(const struct node *n, struct str team, struct str id);
/* By names or references of struct builds. */
struct team_template *team_build_find_by(const struct map *m, const char *team, const char *name);
struct build *team_build_find(const struct node *n, struct str team, struct str id);
struct template_tag *team_build_find_tag(const struct team_template *t, struct str name);
/* The build that the default tag means, else the newest that is ready, else the newest. NULL: there are none. */
const struct build *team_build_main(const struct team_template *t);
/* It has this tag from now on, in memory; what had it before and has none any more is retired. */
void team_build_set_tag(struct team_template *t, struct str name, struct build *b, int64_t at);
void team_build_drop_tag(struct team_template *t, struct str name);
bool team_build_has_tag(const struct team_template *t, const struct build *b);
/* The default tag means something else: ready sandboxes of the template end. */
void team_build_default_changed(struct node *n, const struct team_template *t);
/* Fills in what it is called, for the registry. */
void team_build_identity(const struct build *b, struct template *ret);
/* It is known by that name, and nobody else of its team; empty: by none. */
void team_build_set_name(struct node *n, struct team_template *t, const char *name);
/* Away with a build that has no tag, and is not under way. */
void team_build_forget(struct build *b);
/* Ends a build that is under way, without a word to anybody but who waits for it. */
void team_build_abandon(struct build *b, const char *reason);
void team_template_free(struct node *n, struct team_template *t);
/* Tags of a message: 400 for bad ones; none are "default". Appended as a raw list. */
int team_build_take_tags(struct msg_list tags, struct buf *to, struct error *err);
/* Answers with a build_made. */
void team_build_answer_made(struct request *r, const struct build *b, struct msg_list tags, bool made);

/* build_log.c */
void team_build_log_begin(struct build *b);
/* No more comes: memory is given back when the file is complete. */
void team_build_log_end(struct build *b);
void team_build_log_free(struct build *b);
/* Parses what is in a file. 0 or -ENOMEM. */
int team_build_log_read(struct build_log *log, struct str text);
void team_build_log_done(struct build_log *log);
/* A page of entries, appended to `to`: as build_status has it. The number of the next one is returned. */
uint64_t team_build_log_page(const struct build_log *log, const struct msg_build_status *m, struct buf *to);
/* The path of its file. */
void team_build_log_path(const struct node *n, const char *build, char to[PATH_MAX]);

#endif
