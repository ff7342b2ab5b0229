/* Processes that clients started (process.Process, e2b.md B.6): their life, output, input and watchers. */
#ifndef CUBICLE_GUEST_PROCESS_H
#define CUBICLE_GUEST_PROCESS_H

#include "base/map.h"
#include "guest/rpc.h"

#include <signal.h>

enum process_state {
	PROCESS_STARTING, /* asked of the spawner; nothing was told to anybody */
	PROCESS_RUNNING,  /* the start event was sent */
	PROCESS_EXITED,   /* the leader was reaped; output is held open by others, or not all of it was delivered */
	PROCESS_ENDED,    /* the end event was sent; what it said is kept for PROCESS_KEPT */
};

enum { PROCESS_MAX_TAG = 4096, PROCESS_MAX_ENDED = 4096, PROCESS_KEPT_S = 30 };

struct process;

/* A pipe from the process, or its terminal. */
struct output {
	struct process *process;
	struct loop_fd *watch; /* NULL = closed */
	const char *kind;      /* "stdout", "stderr", "pty" */
	int fd;
	size_t left; /* while draining: what may still be read */
};

/* Input that waits for room in the pipe. */
struct input {
	struct input *next;
	struct buf bytes;
	size_t held;     /* in envd->held */
	bool begun;      /* some of it was written */
	struct rpc *rpc; /* to be answered when it is written; NULL = nobody waits */
	struct loop_timer *timer; /* of the rpc's own deadline */
};

/* A stream that gets the events. */
struct watcher {
	struct watcher *prev, *next;
	struct process *process;
	struct rpc *rpc;
	struct loop_timer *keepalive, *deadline;
	int64_t interval, last_event;
	bool full; /* the client is slow */
};

/* A SendSignal that is answered once the process was reaped. */
struct kill_wait {
	struct kill_wait *next;
	struct process *process;
	struct rpc *rpc;
	struct loop_timer *timer;
};

struct exit_info {
	int code; /* si_code: CLD_EXITED, CLD_KILLED, CLD_DUMPED */
	int status;
	bool oom; /* by the look of it (judge_memory()) */
};

struct process {
	struct processes *all;
	struct process *prev, *next; /* live ones in the order of their start, or ended ones in the order of their end */
	enum process_state state;
	struct spawn *spawn; /* while starting */
	pid_t pid;           /* 0 until known */
	char *tag;           /* NULL = none */
	char *title;         /* the command line, for the log, until it has started; NULL = no memory */
	char *config;        /* JSON of the request's config, for List; NULL once ended */
	size_t held;         /* of config, in envd->held */
	struct output outputs[2];
	size_t n_outputs;
	int in; /* -1 = closed or never there */
	int terminal; /* the master, also outputs[0].fd; -1 = no pty */
	struct loop_fd *in_watch;
	struct input *in_first, **in_last;
	bool close_in;  /* after what is queued */
	bool reaped, told_end;
	bool impatient; /* signalled by a client, or past its deadline: its end does not wait for others that hold its pipes */
	bool group_lost; /* the number of its process group may belong to somebody else now */
	struct exit_info exit;
	uint64_t oom_kills; /* of the cgroup when it started */
	struct watcher *watchers;
	struct watcher *starter; /* the stream of its Start; NULL once that is gone */
	struct loop_timer *deadline;
	int64_t timeout_ns;
	int64_t due; /* of its deadline, CLOCK_BOOTTIME; 0 = none, or passed */
	struct kill_wait *kills;
	int64_t ended_at; /* CLOCK_BOOTTIME */
};

struct processes {
	struct envd *envd;
	struct process *live, *live_last, *ended, *ended_last;
	size_t n_live, n_ended;
	struct map by_pid; /* live and ended; the newest of a number */
	struct loop_timer *reaper; /* of ended ones */
	int64_t still_since;       /* CLOCK_BOOTTIME; 0 = they run */
	struct buf scratch;        /* the event being written */
};

struct process_request {
	struct spawn_head head;
	struct buf body;
	size_t args_at, args_end; /* of the command line in the body, its words ended by NUL */
	struct str tag, config;
	bool has_stdin, pty;
	uint16_t cols, rows;
	int64_t timeout_ns;
};

struct processes *processes_new(struct envd *e);
/* Forgets them (the processes live on). Takes NULL. */
void processes_free(struct processes *all);

/* Starts one; the events go to *c, and errors too. */
void process_start(struct processes *all, struct rpc *c, struct process_request *q);
/* By pid or by tag: NULL when unknown. Ended ones only with `ended`. */
struct process *process_by_pid(struct processes *all, uint32_t pid, bool ended);
struct process *process_by_tag(struct processes *all, struct str tag, bool ended);
/* SIGTERM or SIGKILL to the leader, or to the leader and all its descendants and its group; answers *c. */
void process_signal(struct process *p, struct rpc *c, int sig, bool descendants);
/* They are frozen, or not any more: their deadlines stand still, too. */
void processes_stand_still(struct processes *all, bool on);
/* A child of PID 1 was reaped: true when it is one of these. */
bool process_reaped(struct processes *all, pid_t pid, struct exit_info exit);

/* process_io.c */

/* Output may be read, or not, as its watchers have room. */
void process_flow(struct process *p);
/* Reads on until nothing is left of what has been written by now, then closes. */
void process_drain(struct process *p);
void output_close(struct output *o);
/* Queues input (the buffer is taken) and answers *c (may be NULL) when it is written. 0, or -EPIPE when there is no standard input. */
int process_input(struct process *p, struct rpc *c, struct buf *bytes);
/* Closes standard input after what is queued. */
void process_close_input(struct process *p);
/* Answers all that waits to write with this error, and closes. */
void process_drop_input(struct process *p, enum connect_code code, const char *message);
/* The client of waiting input has gone (c->state is the process while it waits). */
void process_input_orphan(struct process *p, struct rpc *c);

/* process.c, for the others */

/* Checks whether the end can be told. */
void process_check_end(struct process *p);
/* After a watcher made room, or left: output is read again, and the end may be due. */
void process_go_on(struct process *p);

/* process_watch.c */

/* Makes the call a watcher of the process, without an event. NULL without memory. */
struct watcher *watcher_new(struct process *p, struct rpc *c);
/* The call is on its own again, unanswered. */
void watcher_free(struct watcher *w);
/* Adds a stream: start event, then live events; for an ended one start and end. */
void process_watch(struct process *p, struct rpc *c);
/* One event, as a whole envelope, to all watchers. */
void process_send(struct process *p, struct str envelope);
/* Appends the envelope of the event. */
void process_start_event(const struct process *p, struct buf *to);
void process_end_event(const struct process *p, struct buf *to);
/* "exit status 3", "signal: killed (core dumped)". Returns to. */
enum { PROCESS_STATUS_SIZE = 96 };
const char *exit_info_text(const struct exit_info *x, char to[PROCESS_STATUS_SIZE]);
/* The last event, and the end of all streams. */
void process_end_watchers(struct process *p, struct str event);

/* process_rpc.c: the methods; the name after "/process.Process/". NULL when there is none. */
const struct rpc_method *process_method(struct str name);

#endif
