#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "node/service.h"

#include <stdio.h>

/*
 * A pause (docs/lifecycle.md): the intent is recorded, the processes are frozen, their disk is written out, the result is recorded, everybody is told. Without memory the processes
 * are ended in between, and the image is moved where only its record speaks of it. When a step fails that can be undone, the sandbox runs on.
 */

enum { TRY_AGAIN_S = 5 }; /* a pause at the deadline that failed */

void live_name_image(const struct sandbox *s, char to[64])
{
	/* Of this life of it: a boot from the disk leaves the name behind for a moment, and the next pause must not find it. */
	snprintf(to, 64, "saved/%s-%.16s.img", s->id, s->generation);
}

void live_hold_disk(struct live *l)
{
	int64_t bytes = l->s.memory_kept && l->box ? box_disk_bytes(l->box) : saved_size(l->node, l->s.image);
	live_unhold_disk(l);
	l->held = bytes > 0 ? (uint64_t)bytes : 0;
	disk_account_hold(l->node->disk, (int64_t)l->held);
}

void live_unhold_disk(struct live *l)
{
	disk_account_hold(l->node->disk, -(int64_t)l->held);
	l->held = 0;
}

void live_fail_waiting(struct live *l)
{
	struct error err;
	error_set(&err, -ENOENT, 404, "sandbox %s not found", l->s.id);
	requests_answer(&l->pauses, &err);
	live_fail_resumes(l, &err);
}

void live_settled(struct live *l)
{
	if (l->s.state == SANDBOX_RUNNING) {
		if (!l->deadline.heap)
			live_restore_deadline(l, 0); /* it may have come meanwhile */
		live_answer_resumes(l);
		live_network_go_on(l);
		if (l->pauses)
			live_begin_pause(l, !l->disk_only);
	} else if (l->s.state == SANDBOX_PAUSED && !l->resuming && l->resumes && (l->s.memory_kept || !l->box)) {
		live_begin_resume(l);
	}
	node_stop_check(l->node);
}

/* It could not be paused: it runs on, with what it had. */
static void undo(struct live *l, const struct error *err)
{
	struct node *n = l->node;
	int r = live_thaw(l);
	live_log(LOG_ERROR, l, "cannot be paused: %s", err->message);
	if (r < 0) {
		live_end(l, "crashed", "it cannot be thawed");
		return;
	}
	sandbox_set_state(&l->s, SANDBOX_RUNNING);
	l->s.memory_kept = false;
	l->s.image[0] = 0;
	live_watch(l, true);
	live_restore_deadline(l, TRY_AGAIN_S * NS_PER_S);
	records_put(n->records, &l->s, SANDBOX_RUNNING, STORE_NORMAL, NULL, NULL);
	node_event(n, &l->s);
	requests_answer(&l->pauses, err);
	live_settled(l);
}

static void undo_errno(struct live *l, int r, const char *what)
{
	struct error err;
	error_set(&err, r, r == -ENOSPC ? 507 : 500, "sandbox %s cannot be paused: %s: %s", l->s.id, what, strerror(-r));
	undo(l, &err);
}

static void is_paused(struct live *l, const struct error *err)
{
	struct node *n = l->node;
	sandbox_set_state(&l->s, SANDBOX_PAUSED);
	l->saving = false;
	l->s.end_at = l->paused_at;
	l->s.deadline = SANDBOX_NEVER;
	live_hold_disk(l);
	live_log(LOG_INFO, l, "paused%s", l->s.memory_kept ? "" : ", only its disk is kept");
	node_event(n, &l->s);
	requests_answer(&l->pauses, err);
	live_settled(l);
}

/* A copy that shares what it holds, for a record of what comes. */
static struct sandbox as_paused(const struct live *l)
{
	struct sandbox s = l->s;
	s.end_at = l->paused_at;
	s.deadline = SANDBOX_NEVER;
	return s;
}

/* With memory */

/* Nothing else has taken it over while something was under way. */
static bool goes_on(const struct live *l)
{
	return l->s.state == SANDBOX_PAUSING && !l->saving;
}

static void kept_recorded(const struct error *err, void *arg)
{
	struct live *l = arg;
	if (!goes_on(l))
		return;
	if (err) {
		undo(l, err);
		return;
	}
	FAULT(pause_recorded);
	is_paused(l, NULL);
}

static void flushed(int r, void *arg)
{
	struct live *l = arg;
	if (!goes_on(l))
		return;
	if (r < 0) {
		undo_errno(l, r, "its disk cannot be written out");
		return;
	}
	FAULT(pause_synced);
	if (!l->s.memory_kept) {
		live_keep_disk(l);
		return;
	}
	l->paused_at = node_realtime(l->node);
	struct sandbox result = as_paused(l);
	records_put(l->node->records, &result, SANDBOX_PAUSED, STORE_FULL, kept_recorded, l);
}

/* What another kernel has in its memory and not on its disk is counted by nobody before it is written. */
static bool memory_is_all(const struct live *l)
{
	return l->disk.space.foreign && l->s.memory_kept;
}

static bool has_room(const struct live *l)
{
	return !l->disk.space.foreign || l->s.memory_kept || disk_account_zone(l->node->disk) < DISK_FULL;
}

static void intended(const struct error *err, void *arg)
{
	struct live *l = arg;
	if (!goes_on(l))
		return;
	if (err) {
		undo(l, err);
		return;
	}
	FAULT(pause_intended);
	int r = box_freeze(l->box, true);
	FAULT(pause_frozen);
	if (r == 0 && !has_room(l)) {
		undo_errno(l, -ENOSPC, "the server's disk is full, and what its kernel has not written yet needs room");
		return;
	}
	if (r == 0)
		r = box_flush(l->box, disk_account_zone(l->node->disk) == DISK_CALM || !memory_is_all(l), flushed, l);
	if (r < 0)
		undo_errno(l, r, "freezing");
}

void live_begin_pause(struct live *l, bool memory)
{
	struct node *n = l->node;
	sandbox_set_state(&l->s, SANDBOX_PAUSING);
	deadlines_remove(&n->deadlines, &l->deadline);
	disk_account_leave(n->disk, &l->disk); /* frozen already, it gets no moment in which it takes more of a full disk */
	l->s.memory_kept = memory;
	l->s.image[0] = 0;
	l->paused_at = 0;
	l->disk_only = false;
	if (!memory)
		live_name_image(&l->s, l->s.image);
	live_log(LOG_INFO, l, "pausing%s", memory ? "" : ", only its disk is kept");
	node_event(n, &l->s);
	records_put(n->records, &l->s, SANDBOX_PAUSING, STORE_NORMAL, intended, l);
}

/* The disk only */

/* The image is safe whether or not this could be recorded: a node that starts anew finds it by its name. */
static void saved_recorded(const struct error *err, void *arg)
{
	struct live *l = arg;
	if (l->s.state != SANDBOX_PAUSING)
		return;
	FAULT(pause_recorded);
	live_give_memory(l);
	is_paused(l, err);
}

static void saved(const struct error *err, void *arg)
{
	struct live *l = arg;
	struct node *n = l->node;
	if (l->s.state != SANDBOX_PAUSING)
		return;
	if (err) {
		bool lost = strcmp(l->s.boot_id, n->host->boot_id) != 0;
		live_log(LOG_ERROR, l, "its disk cannot be kept: %s", err->message);
		live_end(l, lost ? "host_lost" : "crashed", err->message);
		return;
	}
	FAULT(pause_moved);
	l->s.memory_kept = false;
	l->s.handle.text[0] = 0;
	if (!l->paused_at)
		l->paused_at = node_realtime(n);
	struct sandbox result = as_paused(l);
	records_put(n->records, &result, SANDBOX_PAUSED, STORE_FULL, saved_recorded, l);
}

void live_keep_disk(struct live *l)
{
	struct node *n = l->node;
	if (l->saving)
		return;
	if (l->s.state == SANDBOX_PAUSED) {
		/* The record stays as it is, or is put right again: a node that starts anew finds it frozen, or dead, and then does this. */
		if (l->recording)
			records_put(n->records, &l->s, SANDBOX_PAUSED, STORE_NORMAL, NULL, NULL);
		l->resuming = l->recording = false;
		l->paused_at = l->s.end_at;
		live_unhold_disk(l);
		sandbox_set_state(&l->s, SANDBOX_PAUSING);
		node_event(n, &l->s);
	}
	live_name_image(&l->s, l->s.image);
	l->saving = true;
	int r = box_save(l->box, l->s.image, saved, l);
	if (r < 0)
		live_end(l, "crashed", "its disk cannot be kept: no memory");
}

/* Requests */

void live_pause(struct node *n, struct request *r, const struct msg_pause *m)
{
	struct error err = {0};
	struct live *l = live_find(n, m->sandbox);
	if (!l || l->s.state == SANDBOX_CREATING || l->s.state == SANDBOX_KILLING)
		error_set(&err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
	else if (l->s.state == SANDBOX_PAUSED && !l->resuming)
		error_set(&err, -EALREADY, 409, "Error pausing sandbox - sandbox '%s' is already paused", l->s.id);
	else if (!m->memory && !buf_len(&l->s.start))
		error_set(&err, -EOPNOTSUPP, 400, "memory: false: sandbox %s was made by an older version, it can only be paused with its memory", l->s.id);
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	bool joins = l->s.state != SANDBOX_RUNNING;
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text), .sandbox = str_of(l->s.id)}, "pause%s", joins ? " waits, or joins one under way" : "");
	if (!l->pauses)
		l->disk_only = !m->memory;
	request_queue(&l->pauses, r);
	if (!joins)
		live_begin_pause(l, m->memory);
}
