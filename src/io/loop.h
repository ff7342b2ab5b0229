/*
 * One epoll loop: descriptors, timers, child processes, work posted from other threads.
 *
 * Everything of a loop is called from the thread that runs it, except loop_post(), which any thread may call.
 * A source that is freed while events of the same turn are in flight is skipped and its memory goes at the end of the turn.
 */
#ifndef CUBICLE_IO_LOOP_H
#define CUBICLE_IO_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct loop;
struct loop_fd;
struct loop_timer;

/* NULL without memory or descriptors. */
struct loop *loop_new(void);
/* Frees the loop and its remaining sources (not their descriptors). Takes NULL. */
void loop_free(struct loop *l);

/* Runs until loop_stop(): 0 or -errno. */
int loop_run(struct loop *l);
/* One turn: waits at most timeout_ms (-1 = for ever), runs what is due. 0 or -errno. For tests. */
int loop_turn(struct loop *l, int timeout_ms);
void loop_stop(struct loop *l);

/* Watches fd (not owned) for EPOLLIN/EPOLLOUT/... level-triggered; EPOLLET as asked. NULL with errno set. */
typedef void loop_fd_fn(struct loop_fd *w, uint32_t events, void *arg);
struct loop_fd *loop_fd_add(struct loop *l, int fd, uint32_t events, loop_fd_fn *fn, void *arg);
/* Changes the interest set; 0 parks the source (hang-ups are not reported either). 0 or -errno. */
int loop_fd_set(struct loop_fd *w, uint32_t events);
/* Stops watching. Call before closing the descriptor. Takes NULL. */
void loop_fd_del(struct loop_fd *w);
int loop_fd_get(const struct loop_fd *w);

/* A timer on CLOCK_BOOTTIME; made unarmed. NULL without memory. */
typedef void loop_timer_fn(struct loop_timer *t, void *arg);
struct loop_timer *loop_timer_new(struct loop *l, loop_timer_fn *fn, void *arg);
/* Arms (or re-arms) for an absolute CLOCK_BOOTTIME time in ns; fires once. 0 or -ENOMEM. */
int loop_timer_at(struct loop_timer *t, int64_t boottime_ns);
/* Arms for now + ns. */
int loop_timer_in(struct loop_timer *t, int64_t ns);
void loop_timer_stop(struct loop_timer *t);
void loop_timer_free(struct loop_timer *t);

/* Runs fn(arg) in the loop's thread, in the order of posting. From any thread. 0 or -ENOMEM. */
typedef void loop_post_fn(void *arg);
int loop_post(struct loop *l, loop_post_fn *fn, void *arg);

/* Calls fn(arg) at the end of the current turn (before the next wait). Loop thread only. 0 or -ENOMEM. */
int loop_defer(struct loop *l, loop_post_fn *fn, void *arg);

#endif
