#include "node/snapshots.h"
#include "base/cleanup.h"
#include "base/fault.h"

/*
 * A rollback, in place: the sandbox keeps its id, tokens, deadline and policy, and gets a second box, on the layers of the snapshot. When that runs, the two are exchanged, in
 * memory and then in the record, and the first is killed. Until the record is written both run, so a crash finds the one that is recorded, and the other is swept; when
 * anything fails before, the first runs on.
 */

static const struct box_ops other_ops;

static struct msg_list layers_in(const struct buf *start)
{
	struct msg_start m;
	return start_decode(start, &m) < 0 ? (struct msg_list){STR("")} : m.layers;
}

#define EXCHANGE(a, b)                                                                                       \
	do {                                                                                                 \
		__typeof__(a) before_ = (a);                                                                 \
		(a) = (b);                                                                                   \
		(b) = before_;                                                                               \
	} while (0)

/* The box that the sandbox has, for the other one; the same again undoes it. */
static void exchange(struct shot *x)
{
	struct live *l = x->live;
	char generation[sizeof(x->generation)], launch[sizeof(x->launch)];
	disk_account_remove(l->node->disk, &l->disk);
	EXCHANGE(l->box, x->box);
	EXCHANGE(l->s.handle, x->handle);
	EXCHANGE(l->s.start, x->start);
	memcpy(generation, l->s.generation, sizeof(generation));
	memcpy(l->s.generation, x->generation, sizeof(generation));
	memcpy(x->generation, generation, sizeof(generation));
	memcpy(launch, l->s.launch, sizeof(launch));
	memcpy(l->s.launch, x->launch, sizeof(launch));
	memcpy(x->launch, launch, sizeof(launch));
	box_hand_over(l->box, &live_box_ops, l);
	box_hand_over(x->box, &other_ops, x);
	live_watch(l, false);
	x->exchanged = !x->exchanged;
}

/* Nothing is under way of it any more. */
static void finish(struct shot *x)
{
	struct live *l = x->live;
	if (x->box || x->recording)
		return;
	/* What the sandbox had, or was to have. */
	images_leave_all(&x->node->images, layers_in(&x->start));
	if (x->request && !x->err.code)
		error_set(&x->err, -ENOENT, 404, "sandbox %s not found", l ? l->s.id : "");
	struct error err = x->err;
	shot_done(x, 0, NULL, &err);
}

/* The other box is no more. */
static void other_gone(struct shot *x)
{
	struct live *l = x->live;
	x->box = NULL;
	l->others--;
	finish(x);
	if (l->s.state == SANDBOX_KILLING && l->box_released)
		live_finish(l); /* which waited for this */
}

static void give_up(struct shot *x, const struct error *err)
{
	if (!x->err.code)
		x->err = *err;
	if (x->box)
		box_kill(x->box); /* released() follows */
	else
		finish(x);
}

static void recorded(const struct error *err, void *arg)
{
	struct shot *x = arg;
	struct live *l = x->live;
	struct msg_sandbox m;
	x->recording = false;
	if (!l || l->s.state != SANDBOX_SNAPSHOTTING) {
		finish(x);
		return;
	}
	if (err && !x->box) {
		live_end(l, "crashed", err->message); /* the first one has ended meanwhile */
		finish(x);
		return;
	}
	if (err) {
		exchange(x);
		records_put(x->node->records, &l->s, SANDBOX_RUNNING, STORE_NORMAL, NULL, NULL);
		give_up(x, err);
		return;
	}
	FAULT(rollback_recorded);
	live_log(LOG_INFO, l, "rolled back to %s", x->record.id);
	node_event(x->node, &l->s);
	sandbox_message(x->node, &l->s, &m);
	shot_answer(x, MSG_ID_sandbox, &m, NULL);
	if (x->box)
		box_kill(x->box);
	shot_over(x);
	if (!x->box)
		finish(x);
}

static void on_started(struct box *b, const struct box_handle *h, const struct error *err, void *arg)
{
	struct shot *x = arg;
	struct live *l = x->live;
	if (err) {
		if (!x->err.code)
			x->err = *err;
		other_gone(x);
		return;
	}
	if (x->err.code || l->s.state != SANDBOX_SNAPSHOTTING)
		return; /* it is being killed */
	FAULT(rollback_started);
	x->handle = *h;
	sandbox_copy(x->launch, sizeof(x->launch), str_of(live_launch_of(&l->s, b)));
	sandbox_new_generation(x->generation);
	exchange(x);
	x->recording = true;
	records_put(x->node->records, &l->s, SANDBOX_RUNNING, STORE_FULL, recorded, x);
}

static void on_died(struct box *b, const struct box_death *d, void *arg)
{
	struct shot *x = arg;
	if (!x->exchanged && !x->err.code)
		error_set(&x->err, -ECONNRESET, 500, "the sandbox ended while it was rolled back: %s", *d->detail ? d->detail : d->reason);
	box_kill(b);
}

static void on_released(struct box *b, void *arg)
{
	other_gone(arg);
}

static const struct box_ops other_ops = {on_started, on_died, on_released, NULL};

/* How the sandbox is started now, but on the layers of the snapshot. */
static int new_start(struct shot *x, struct error *err)
{
	struct msg_start start;
	cleanup_buf struct buf layers = BUF_INIT;
	if (sandbox_start(&x->live->s, &start) < 0)
		return error_set(err, -EPROTO, 500, "the record of how to start the sandbox is damaged");
	int r = snapshot_layers(&x->record, &layers, err);
	if (r < 0)
		return r;
	start.layers.raw = buf_str(&layers);
	return msg_encode(MSG_ID_start, &start, 0, &x->start, err);
}

void rollback_begin(struct shot *x)
{
	struct live *l = x->live;
	struct error err = {0};
	if (l->network) {
		/* It is put in force in the box that goes. */
		error_set(&err, -EBUSY, 409, "the network policy of sandbox %s is being changed, try again", l->s.id);
		give_up(x, &err);
		return;
	}
	if (new_start(x, &err) < 0) {
		buf_clear(&x->start);
		give_up(x, &err);
		return;
	}
	images_use_all(&x->node->images, layers_in(&x->start));
	struct sandbox next = l->s; /* shares what it holds */
	next.start = x->start;
	x->box = node_start_box(x->node, &next, NULL, &other_ops, x, &err);
	if (x->box)
		l->others++;
	else
		give_up(x, &err);
}

void rollback_end(struct shot *x)
{
	struct error err;
	error_set(&err, -ENOENT, 404, "sandbox %s not found", x->live->s.id);
	if (!x->err.code)
		x->err = err;
	if (x->box)
		box_kill(x->box);
}
