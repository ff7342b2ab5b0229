/*
 * The node without its process: everything between the message channels and a backend. Runs on one loop.
 * Inside the room the files share struct node; others use only the functions at the top.
 */
#ifndef CUBICLE_NODE_SERVICE_H
#define CUBICLE_NODE_SERVICE_H

#include "base/log.h"
#include "base/map.h"
#include "io/chan.h"
#include "node/admission.h"
#include "node/deadlines.h"
#include "node/figures.h"
#include "node/images.h"
#include "node/journal.h"
#include "node/metrics.h"
#include "node/ready_pools.h"
#include "node/templates.h"
#include "sandbox/records.h"
#include "sys/jail.h"

struct node;

struct node_config {
	struct loop *loop;
	const struct options *options; /* outlives the node */
	const struct host *host;       /* outlives the node */
	const char *directory;         /* state.dir/node, exists */
	const char *init_path;         /* cubicle-init */
	const char *monitor_path;      /* cubicle-vmm */
	uid_t build_uid;               /* of processes that make templates */
	gid_t build_gid;
	/* How those are started (jail_start()); tests have something else. */
	int (*start)(const struct jail *j, struct jailed *ret, void *arg, struct error *err);
	void *start_arg;
};

/* ... and in the node. Blocks: called by a worker. 0 or -errno with *err. */
struct builder_starter {
	int (*start)(const struct jail *j, struct jailed *ret, void *arg, struct error *err);
	void *arg;
};

/* Opens the records and makes the backend. Nothing runs yet. 0, or -errno with *err. */
int node_new(const struct node_config *c, struct node **ret, struct error *err);
/* Adopts or resolves every recorded sandbox, then lets the backend fill its pool and calls ready(arg). 0 or -errno. */
int node_start(struct node *n, void (*ready)(void *arg), void *arg, struct error *err);
/* A channel to "front" or "egress"; the one before is closed. fd is owned from here. Served from `ready` on. */
void node_peer(struct node *n, struct str role, int fd);
/* Finishes what is in flight, drains the parked slots, calls done(arg). Running sandboxes live on. */
void node_stop(struct node *n, void (*done)(void *arg), void *arg);
/* Writes what waits to be written, leaves the sandboxes alone. Takes NULL. */
void node_free(struct node *n);

/* What the timers call, for tests with a clock of their own: end what is past its deadline; move what is shown after a step of the wall clock; look at the disk; read what
 * the sandboxes use. */
void node_expire(struct node *n);
void node_clock_stepped(struct node *n);
void node_disk_tick(struct node *n);
void node_sample(struct node *n);

/* ---- inside the room ---- */

enum {
	RETRY_AFTER_S = 5,          /* said with every 503 */
	ENDS_KEPT_S = 24 * 3600,    /* lastTermination, design.md §6 */
	ENDS_MOST = 100000,
	ENVS_MAX = 32768,           /* of the claim, io/messages.h */
};

/* A peer process. Requests in flight hold a reference, so an answer finds out that nobody waits any more. */
struct peer {
	struct node *node;
	struct chan *chan; /* NULL after the end */
	unsigned refs;
	struct snapshot *snapshot; /* being sent; NULL */
	bool subscribed;
};

struct live;

void peer_unref(struct peer *p);

/* A request that is not answered yet. */
struct request {
	struct request *next;
	struct peer *peer;
	uint64_t id;
	char text[65]; /* the client's request id, for the logs */
};

/* NULL without memory. */
struct request *request_new(struct peer *p, uint64_t id, struct str text);
/* At the end of a list. */
void request_queue(struct request **list, struct request *r);
/* Answers all of a list: `ok`, or the error. */
void requests_answer(struct request **list, const struct error *err);
/* Answers with what the sandbox is; resumed: as one that this request has woken (resumed_from is said only then). */
void request_answer_sandbox(struct request *r, struct live *l, bool resumed);
/* Answers and frees. The message may be NULL for `ok`. */
void request_answer(struct request *r, enum msg_id type, const void *m, int fd);
void request_fail(struct request *r, const struct error *err);
/* Without an answer. */
void request_free(struct request *r);

/* Somebody who waits for a paused sandbox to run, with what he asked for. */
struct resume_wait {
	struct resume_wait *next;
	struct request *request;
	enum resume_mode mode;
	int64_t timeout;
	bool memory, has_auto_pause, auto_pause;
};

/* What a resume will have changed when it is recorded. */
struct resumption {
	char generation[SANDBOX_GENERATION + 1];
	int64_t started_at, end_at, deadline;
	bool auto_pause, disk;
	struct box_handle handle; /* from the disk */
};

struct live {
	struct sandbox s;
	struct node *node;
	struct box *box;          /* NULL before start, after release, and while only the disk of a paused one is kept */
	struct request *create;   /* wait for running: the create, and others by its name */
	struct member *member;    /* being created: the ready sandbox that it has taken, until that is assigned to it */
	unsigned claims;          /* of ready sandboxes */
	struct room_wait room;    /* refused, until a ready sandbox has given way */
	struct request *kills;    /* wait for gone */
	struct network_change *network; /* changes of its network policy: the first is under way (network.c) */
	struct shot *shot;        /* snapshot, fork or rollback under way (snapshots.h) */
	struct shot *shots;       /* wait for that */
	struct shot *fork;        /* being made by that fork, as the child fork_at */
	unsigned fork_at;
	unsigned others;          /* boxes it has beside `box`, in a rollback */
	struct request *pauses;   /* wait for paused; the first of them decides whether memory is kept */
	struct resume_wait *resumes; /* wait for running */
	struct resumption next;   /* while resuming */
	struct error boot_error;  /* the boot from the disk has failed; code 0 = not */
	int64_t paused_at;        /* realtime; shown as end_at of a paused one */
	uint64_t held;            /* bytes of host disk it holds while paused */
	struct deadline deadline; /* in node.deadlines while it runs */
	struct deadline shutdown; /* in node.shutdowns from running to killing */
	int64_t shutdown_after;   /* seconds from when it runs; 0 = the record has the moment, or none */
	struct disk_entry disk;
	enum sandbox_state told;  /* of the last event */
	struct {
		struct journal journal;
		uint64_t asked;       /* init's number of the entry to go on behind */
		size_t taken;         /* bytes since the last sample */
		unsigned pages;       /* since init was asked */
		bool following;       /* it tells what comes */
	} log;
	struct metrics_history history;
	struct {
		struct deadline next;     /* in node.samplings while it runs */
		int64_t looked;           /* boottime of cpu_usec; 0 = the next reading is the base line */
		uint64_t cpu_usec, oom_kills;
	} sampling;
	struct loop_timer *retry; /* of the last record, while the store fails */
	struct loop_timer *patience; /* with its init, at adoption */
	char request[65];         /* the create's, for the logs */
	bool in_flight;           /* being created: ready pools wait */
	bool adopting;            /* recorded by an earlier node, not yet found */
	bool unresolved;          /* `ready` waits for it */
	bool admitted;            /* a sandbox and its memory */
	bool disk_admitted;
	bool disk_only;           /* the pause that waits or is under way keeps no memory */
	bool saving;              /* pausing: its processes are ended, its image is being moved, that is being recorded */
	bool resuming;            /* paused: on its way to running */
	bool recording;           /* resuming: the record is being written */
	bool image_gone;          /* being killed: its saved image is removed */
	bool intent_recorded;     /* of the kill */
	bool box_released;
};

struct dns_slot;
struct removal;
struct builds;
struct file_writer;

struct node {
	struct loop *loop;
	const struct options *options;
	const struct host *host;
	const char *directory;
	struct backend *backend;
	struct records *records;
	struct templates *templates;
	struct admission admission;
	struct ready *ready;      /* ready pools (ready_impl.h) */
	struct disk_account *disk;
	struct deadlines deadlines;
	struct deadlines shutdowns; /* shutdown.c */
	struct deadlines samplings; /* when each running sandbox is sampled next */
	struct map live;          /* id → struct live */
	struct map names;         /* team, NUL, Idempotency-Key → struct live (idempotency.c) */
	struct map snapshots;     /* id → struct snapshot_record */
	struct shot *shots;       /* all of them */
	uint64_t copying;         /* bytes that copies under way may take */
	struct images images;
	struct builds *builds;    /* templates of teams (builds.h) */
	struct layers_of_builds {
		struct map by_key;  /* struct layer_record, owned (layers.h) */
		struct map by_file; /* the same */
		struct map locks;   /* key → struct layer_lock */
	} layers;
	struct {
		struct map by_name; /* team, NUL, hash → struct file_record, owned */
		struct file_writer *writers;
		unsigned n_writers;
		uint64_t last_writer;
	} uploads;
	struct builder_starter starter;
	uid_t build_uid;
	gid_t build_gid;
	struct map dns;           /* slot number → struct dns_slot */
	struct peer *front, *egress;
	int waiting_front, waiting_egress; /* channels that came before ready; -1 */
	struct loop_timer *deadline_timer, *sampling_timer, *disk_timer, *prune_timer, *stop_timer;
	bool disk_awake;          /* disk_timer is set */
	struct loop_fd *step_source;
	int step_fd;              /* timerfd that is cancelled by a step of the wall clock */
	int64_t clock_offset;     /* realtime - boottime, as what is shown was computed with */
	struct node_figures figures; /* counters only */
	struct workq *scribe;     /* one thread: files of logs */
	struct log_save *saves;   /* not done yet */
	int64_t logs_before;      /* s, realtime: logs of older ends are pruned; atomic */
	size_t logs_bytes;        /* of what inits said, in memory */
	uint64_t sequence;        /* of the last sandbox event */
	unsigned char key[SANDBOX_KEY];
	unsigned unresolved;      /* sandboxes that `ready` waits for, and 1 while the records are read */
	struct workq *chores;     /* one thread: the ballast file */
	struct workq *removers;   /* one thread: saved images that nobody needs any more */
	struct removal *removals;
	struct {
		uint64_t wanted, setting; /* bytes; `setting` is the thread's while busy */
		int result;
		bool busy;
	} ballast;
	int64_t adopt_patience;   /* ns, for the init of a recorded sandbox to answer */
	bool serving, stopping, draining, leaving;
	void (*serves)(void *arg);
	void *serves_arg;
	void (*stopped)(void *arg);
	void *stopped_arg;
};

/* The host's clocks. */
static inline int64_t node_realtime(const struct node *n)
{
	return n->host->realtime(n->host->arg);
}

static inline int64_t node_boottime(const struct node *n)
{
	return n->host->boottime(n->host->arg);
}

/* lifecycle.c */
void live_create(struct node *n, struct request *r, const struct msg_create *m);
void live_kill(struct node *n, struct request *r, const struct msg_kill *m);
/* A box of what the sandbox's record says, with a new disk or (`disk`: a path) a saved one; live_box_ops follow. NULL with *err. */
struct box *live_start_box(struct live *l, const char *disk, struct error *err);
/* The same with a record that is not (yet) that of a sandbox, and with callbacks of one's own. */
struct box *node_start_box(struct node *n, const struct sandbox *s, const char *disk, const struct box_ops *ops, void *arg, struct error *err);
/* The same for a ready pool: it is assigned to a sandbox later. */
struct box *node_start_unassigned(struct node *n, const struct sandbox *s, const struct box_ops *ops, void *arg, struct error *err);
/* Starts what live_new() has made, from a ready sandbox or anew, if there is room; the answer goes to `create` or `fork`. It may be gone already when this returns. */
void live_launch(struct live *l);
/* What the ready sandbox has become that it has taken: `handle` of its box, which is the sandbox's own now, as is the room that was admitted for it. */
void live_claimed(struct live *l, struct box *b, const struct box_handle *h);
/* That came to nothing. */
void live_unclaimed(struct live *l);
/* The create is refused: answers, and frees it. */
void live_refused(struct live *l, const struct error *err);
/* A new id, generation and tokens. */
void live_new_identity(struct node *n, struct sandbox *s);
/* Gets another id (NULL: a new one), and what follows from it; nobody knows of it yet. */
void live_take_identity(struct live *l, const char *id);
/* What a ready sandbox of that template is started from. 0 or -errno with *err. */
int live_fill_ready(struct node *n, struct sandbox *s, const struct template *t, struct error *err);
/* "warm": nothing had to be started for the box of what s->start says. */
const char *live_launch_of(const struct sandbox *s, const struct box *b);
/*
 * The variables it is started with: inherited, given, and ours, which win: what comes last counts. *n_first: how many of those inherited, the first, are the template's;
 * then how many of them are left. 0, or -errno with *err.
 */
int live_merge_envs(const struct sandbox *s, struct msg_map inherited, uint64_t *n_first, struct msg_map given, struct buf *to, struct error *err);
/* The layers that its record names. */
struct msg_list live_layers(const struct live *l);
/* Takes the sandbox down for a reason; joins a kill that is under way. */
void live_end(struct live *l, const char *reason, const char *detail);
struct live *live_find(struct node *n, struct str id);
/* A live object in the map; NULL without memory, else it has taken over what *s owns. */
struct live *live_new(struct node *n, struct sandbox *s);
/* Out of the map, and freed. */
void live_free(struct live *l);
/* It may run on, as far as the host's disk is concerned: on a full one the account thaws it (live_watch(), adopted), when that may be. 0 or -errno. */
int live_thaw(struct live *l);
/* Running now: the disk account watches it, its deadline counts. */
void live_watch(struct live *l, bool adopted);
/* The box is gone: the result is recorded, then everybody is told. */
void live_finish(struct live *l);
void live_image_gone(struct live *l);
/* log_write() with the ids of the sandbox and of the request that made it. */
#define live_log(level, l, ...)                                                                              \
	log_write(level, &(struct log_ids){.request = str_of((l)->request), .sandbox = str_of((l)->s.id)}, __VA_ARGS__)
extern const struct box_ops live_box_ops;
/* When stopping: goes on as soon as nothing is in flight. */
void node_stop_check(struct node *n);

/* Counted off the account: its memory; all of it. */
void live_give_memory(struct live *l);
void live_give_all(struct live *l);

/* snapshots.c */
/* It is being ended: what waits is told, what is under way is ended. */
void live_end_shots(struct live *l);
/* It is freed: what is under way goes on without it. */
void live_forget_shot(struct live *l);
/* fork.c: the child runs (err NULL), or does not. */
void live_forked(struct live *l, const struct error *err);

/* pause.c */
void live_pause(struct node *n, struct request *r, const struct msg_pause *m);
/* From running to pausing. */
void live_begin_pause(struct live *l, bool memory);
/* Its processes are ended, or have ended: from here on only its disk is kept. From pausing or paused, and in started() of an adoption that found it dead. */
void live_keep_disk(struct live *l);
/* The image of a sandbox that is paused in this life of it, relative to node/. */
void live_name_image(const struct sandbox *s, char to[64]);
/* What a paused sandbox holds of the host's disk counts for the disk account from here, or does not any more. */
void live_hold_disk(struct live *l);
void live_unhold_disk(struct live *l);
/* Who waits for a pause or a resume is told that there is none, because the sandbox ends. */
void live_fail_waiting(struct live *l);
/* A transition is over, the state is running or paused: what waits for that goes on. */
void live_settled(struct live *l);

/* resume.c */
void live_resume(struct node *n, struct request *r, const struct msg_resume *m);
/* From paused, for those who wait. */
void live_begin_resume(struct live *l);
/* All who wait for it to run get the error. */
void live_fail_resumes(struct live *l, const struct error *err);
/* It runs, after a transition that was no resume: those who wait for that are answered. */
void live_answer_resumes(struct live *l);
/* The box of a boot from the disk: runs, or could not; died; is released. */
void live_booted(struct live *l, const struct box_handle *h, const struct error *err);
void live_boot_died(struct live *l, const struct box_death *d);
void live_boot_released(struct live *l);

/* saved.c: the images of sandboxes that are paused without memory, node/saved. */
/* Makes the directory. 0 or -errno. */
int saved_open(struct node *n, struct error *err);
/* Bytes that it holds on the host; -ENOENT: there is none. */
int64_t saved_size(const struct node *n, const char *image);
/* Removes it behind us. l: of a sandbox that ends; live_image_gone() follows. */
void saved_remove(struct node *n, const char *image, struct live *l);
/* Removes what no record names. */
void saved_sweep(struct node *n);
void saved_free(struct node *n);

/* timeouts.c */
void live_timeout(struct node *n, struct request *r, const struct msg_timeout *m);
/* Deadline and what is shown of it: now + seconds, -1 = never. 0 or -ENOMEM (nothing changed). */
int live_set_deadline(struct live *l, int64_t seconds);
/* The same without setting anything. */
void live_deadline_of(const struct node *n, int64_t seconds, int64_t *ret_deadline, int64_t *ret_end_at);
/* connect and refreshes: moves the deadline of a running one when that is later. False: it stays. */
bool live_extend(struct live *l, int64_t seconds);
/* It runs again, with the deadline of before; tried at the earliest in so many ns. */
void live_restore_deadline(struct live *l, int64_t not_before);
/* -1 to timeout.max, else 400. */
int check_seconds(const struct node *n, int64_t seconds, struct error *err);
/* Of a new sandbox: the same without 0. */
int check_new_timeout(const struct node *n, int64_t seconds, struct error *err);
void node_arm_deadlines(struct node *n);
/* It is running from now on: when it started, and what counts from there. 0 or -ENOMEM. */
int live_start_clocks(struct live *l);
/* What is shown of a deadline, when the wall clock has been set since it was computed. */
void show_deadline(const struct node *n, int64_t deadline, int64_t *shown);

/* shutdown.c */
/* 400 out of its bounds. */
int check_shutdown(const struct msg_create *m, struct error *err);
/* It runs now: its moment counts, one of its own (shutdown_after) or an inherited one. 0 or -ENOMEM. */
int live_set_shutdown(struct live *l);
/* Everything that was recorded is found: the moments of all count. */
void node_restore_shutdowns(struct node *n);
/* The wall clock stepped. True: what is shown has moved. */
bool live_shutdown_stepped(struct live *l, int64_t step);
void node_expire_shutdowns(struct node *n);

/* network.c */
void live_network(struct node *n, struct request *r, const struct msg_network *m);
/* Its box is gone: who waits for a change is told. Or is not (the node ends). */
void live_network_ended(struct live *l);
void live_network_drop(struct live *l);
/* What waited for a snapshot or a rollback. */
void live_network_go_on(struct live *l);

/* sampling.c */
int sampling_init(struct node *n);
void sampling_done(struct node *n);
/* It runs (again): it is sampled from now on, until it does not run any more. May be called at every change. */
void sampling_note(struct live *l, bool adopted);
void sampling_free(struct live *l);
void live_metrics(struct node *n, struct request *r, const struct msg_metrics *m);

/* figures.c */
void live_figures(struct node *n, struct request *r);
/* It became what it is, from `before`. */
void figures_note(struct live *l, enum sandbox_state before);

/* logs.c */
int logs_init(struct node *n, struct error *err);
/* Writes what waits to be written; the loop does not run any more. */
void logs_done(struct node *n);
/* It became what it is, from `before`. */
void logs_note(struct live *l, enum sandbox_state before);
/* It waits for room on the server's disk, or goes on. */
void logs_note_disk(struct live *l, bool waits);
/* Asks its init for the next entry, unless that is done already or too much came lately; logs_tick(): at every sample, more may come again. */
void logs_follow(struct live *l);
void logs_tick(struct live *l);
/* Writes the journal to its file: of one that ended, or is paused without memory (saved). */
void logs_save(struct live *l, bool saved);
/* One from an earlier node, as it is recorded: what that left in a file. */
void logs_load(struct live *l);
void logs_free(struct live *l);
/* Start: files of paused ones that are not there any more go. */
void logs_sweep(struct node *n);
/* Files of more than 24 hours ago go, and the oldest of too many. */
void logs_prune(struct node *n);
void live_logs(struct node *n, struct request *r, const struct msg_logs *m);

/* adopt.c */
int node_adopt(struct node *n, struct error *err);
/* The backend found it (err NULL), or found it dead. */
void live_adopted(struct live *l, const struct box_handle *h, const struct error *err);
/* `ready` need not wait for it any more. */
void live_resolved(struct live *l);
/* Nothing is left to wait for (service.c): the backend fills its pool, the peers are served. */
void node_adopted(struct node *n);

/* events.c */
void sandbox_message(const struct node *n, const struct sandbox *s, struct msg_sandbox *ret);
/* Tells the front of a change: numbered. */
void node_event(struct node *n, const struct sandbox *s);
void node_template_event(const struct template *t, bool gone, void *arg);
struct snapshot_record;
void node_snapshot_event(struct node *n, const struct snapshot_record *s, bool gone);
/* Starts a (new) snapshot for the peer. */
void node_subscribe(struct peer *p);
void snapshot_continue(struct peer *p);
void snapshot_free(struct peer *p);

/* dns.c */
void node_dns_serve(unsigned slot, int udp, int tcp, bool allow, struct str sandbox, void *arg);
void node_dns_stop(unsigned slot, void *arg);
/* A new egress learns of every slot. */
void node_dns_resend(struct node *n);
void node_dns_free(struct node *n);

/* ballast.c: disk_account_ops.ballast; arg is the node. */
void node_ballast(uint64_t bytes, void *arg);
/* A node that leaves holds no space. No change may be under way. */
void node_ballast_drop(struct node *n);

#endif
