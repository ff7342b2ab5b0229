#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "node/service.h"

/* After a restart: every recorded sandbox is found again or brought to its end. What a crash can leave is exactly what the records can say. */

void live_resolved(struct live *l)
{
	struct node *n = l->node;
	loop_timer_free(steal_pointer(&l->patience));
	if (!l->unresolved)
		return;
	l->unresolved = false;
	if (--n->unresolved == 0 && !n->leaving)
		node_adopted(n);
}

/* Nothing runs of it any more. A kill that was under way keeps its reason. */
static void already_dead(struct live *l, const char *reason, const char *detail)
{
	if (l->s.state != SANDBOX_KILLING)
		sandbox_set_reason(&l->s, reason, detail);
	l->adopting = false;
	l->intent_recorded = true;
	l->box = NULL;
	live_finish(l);
}

/* Frozen by the node before, as a rule; not when that was ended on the way from it to running. */
static void adopted_paused(struct live *l, const struct box_handle *h)
{
	int r = box_freeze(l->box, true);
	if (r < 0)
		live_log(LOG_ERROR, l, "cannot be frozen: %s", strerror(-r));
	l->s.handle = *h;
	live_hold_disk(l);
	live_log(LOG_INFO, l, "adopted, paused");
	live_resolved(l);
}

/* A transition that the node before did not finish, and of which nothing is left but that it may be frozen. */
static void go_back(struct live *l)
{
	int r = live_thaw(l);
	if (r < 0)
		live_log(LOG_ERROR, l, "cannot be thawed: %s", strerror(-r));
	live_log(LOG_INFO, l, "runs again: the node ended while it was %s", sandbox_state_name(l->s.state));
	sandbox_set_state(&l->s, SANDBOX_RUNNING);
	l->s.memory_kept = false;
	l->s.image[0] = 0;
}

void live_adopted(struct live *l, const struct box_handle *h, const struct error *err)
{
	struct node *n = l->node;
	if (err && (l->s.state == SANDBOX_PAUSED || l->s.state == SANDBOX_PAUSING)) {
		live_log(LOG_WARN, l, "its memory is lost: %s", err->message);
		l->adopting = false;
		live_keep_disk(l);
		live_resolved(l);
		return;
	}
	if (err) {
		struct box_death d = {0};
		box_evidence(l->box, &d);
		already_dead(l, *d.reason ? d.reason : "crashed", *d.detail ? d.detail : err->message);
		return;
	}
	l->adopting = false;
	if (l->s.state == SANDBOX_KILLING)
		return; /* released() follows */
	if (l->s.state == SANDBOX_PAUSED) {
		adopted_paused(l, h);
		return;
	}
	if (l->s.state != SANDBOX_RUNNING)
		go_back(l);
	show_deadline(n, l->s.deadline, &l->s.end_at); /* the wall clock may have been set while no node ran */
	if (deadlines_set(&n->deadlines, &l->deadline, l->s.deadline) < 0)
		abort();
	l->s.handle = *h;
	records_put(n->records, &l->s, l->s.state, STORE_NORMAL, NULL, NULL);
	live_watch(l, true);
	live_log(LOG_INFO, l, "adopted");
	live_resolved(l);
}

static void out_of_patience(struct loop_timer *t, void *arg)
{
	struct live *l = arg;
	live_end(l, "crashed", "its init did not answer a restarted node");
	live_resolved(l);
}

/* Paused without memory, or about to be recorded so: the image is saved already. False: it is none of that. */
static bool adopt_image(struct live *l)
{
	struct node *n = l->node;
	struct sandbox *s = &l->s;
	char image[sizeof(s->image)];
	bool kept = s->state == SANDBOX_PAUSED && !s->memory_kept;
	live_name_image(s, image);
	if (saved_size(n, image) < 0) {
		if (kept)
			already_dead(l, "host_lost", "its saved disk is missing");
		return kept;
	}
	memcpy(s->image, image, sizeof(image));
	if (!kept) {
		if (s->state == SANDBOX_PAUSING) {
			sandbox_set_state(s, SANDBOX_PAUSED);
			s->end_at = node_realtime(n);
		}
		s->deadline = SANDBOX_NEVER;
		s->memory_kept = false;
		s->handle.text[0] = 0;
		live_give_memory(l);
		records_put(n->records, s, SANDBOX_PAUSED, STORE_FULL, NULL, NULL);
	}
	live_hold_disk(l);
	live_log(LOG_INFO, l, "adopted, paused with its disk only");
	live_resolved(l);
	return true;
}

static void adopt_one(struct live *l)
{
	struct node *n = l->node;
	struct error err = {0};
	const struct sandbox *s = &l->s;
	if ((s->state == SANDBOX_PAUSED || s->state == SANDBOX_PAUSING) && adopt_image(l))
		return;
	/* Of one that was paused with its memory the disk is complete. */
	if (strcmp(s->boot_id, n->host->boot_id) != 0 && s->state != SANDBOX_PAUSED) {
		already_dead(l, "host_lost", "the machine was restarted");
		return;
	}
	/* A create whose answer never went out, or a kill of one: what there may be of it the backend sweeps, because no handle names it. */
	if (!*s->handle.text) {
		already_dead(l, "crashed", "the node ended while the sandbox was made");
		return;
	}
	l->adopting = true;
	struct box_network network = {{buf_str(&s->allow_out)}, {buf_str(&s->deny_out)}, !s->has_internet || s->internet};
	l->box = box_adopt(n->backend, str_of(s->id), s->handle.text, &network, &live_box_ops, l, &err);
	if (!l->box) {
		already_dead(l, "crashed", err.message);
		return;
	}
	if (s->state == SANDBOX_KILLING) {
		l->intent_recorded = true;
		live_log(LOG_INFO, l, "going on with its kill");
		box_kill(l->box);
		live_resolved(l);
		return;
	}
	l->patience = loop_timer_new(n->loop, out_of_patience, l);
	if (!l->patience)
		abort();
	loop_timer_in(l->patience, n->adopt_patience);
}

struct recorded {
	struct node *node;
	struct live **list;
	size_t n, cap;
	int result;
};

static void collect(struct sandbox *s, void *arg)
{
	struct recorded *r = arg;
	struct node *n = r->node;
	if (s->state < SANDBOX_CREATING || s->state > SANDBOX_KILLING) {
		log_error("record of sandbox %s: state %d is unknown; it is ended", s->id, (int)s->state);
		s->state = SANDBOX_RUNNING;
		s->handle.text[0] = 0;
	}
	if (r->n == r->cap) {
		size_t cap = r->cap ? r->cap * 2 : 64;
		struct live **list = realloc(r->list, cap * sizeof(*list));
		if (list) {
			r->list = list;
			r->cap = cap;
		}
	}
	/* Of a create that nobody was told of nothing is left, and its name may be another's already. */
	if (s->state == SANDBOX_CREATING)
		s->idempotency[0] = 0;
	struct live *l = r->n < r->cap ? live_new(n, s) : NULL;
	if (!l) {
		sandbox_done(s);
		r->result = -ENOMEM;
		return;
	}
	sandbox_derive_tokens(&l->s, n->key);
	logs_load(l);
	bool disk_only = l->s.state == SANDBOX_PAUSED && !l->s.memory_kept;
	if (disk_only)
		admission_take_over_disk(&n->admission, l->s.disk_mb);
	else
		admission_take_over(&n->admission, l->s.memory_mb, l->s.disk_mb);
	l->admitted = !disk_only;
	l->disk_admitted = true;
	l->unresolved = true;
	n->unresolved++;
	r->list[r->n++] = l;
}

int node_adopt(struct node *n, struct error *err)
{
	struct recorded all = {.node = n};
	n->unresolved = 1;
	int r = records_load(n->records, collect, &all, err);
	if (r == 0 && all.result < 0)
		r = error_errno(err, all.result, "records");
	if (r < 0) {
		free(all.list);
		return r;
	}
	log_info("%zu recorded sandboxes", all.n);
	for (size_t i = 0; i < all.n; i++)
		adopt_one(all.list[i]);
	free(all.list);
	if (--n->unresolved == 0)
		node_adopted(n);
	return 0;
}
