#include "base/clock.h"
#include "node/ready_impl.h"

/* Ready sandboxes give way: who finds no room has one ended, waits until it is gone, and asks again. */

enum { HOLD_OFF_S = 10 }; /* before a pool that gave way is filled again */

static bool is_free(const struct member *m)
{
	return m->state == MEMBER_STARTING || m->state == MEMBER_READY;
}

/* The newest of the pool that was used least lately; one that is being started before those that are ready. */
static struct member *victim(const struct node *n)
{
	struct member *found = NULL;
	for (struct member *m = n->ready->last; m; m = m->prev) {
		if (!is_free(m) || !m->pool)
			continue;
		bool first = found && m->pool == found->pool && m->state == MEMBER_STARTING && found->state == MEMBER_READY;
		if (!found || m->pool->used < found->pool->used || first)
			found = m;
	}
	return found;
}

static unsigned ending(const struct node *n)
{
	unsigned count = 0;
	for (const struct member *m = n->ready->first; m; m = m->next)
		count += m->state == MEMBER_ENDING;
	return count;
}

/* Refused not for what the machine is short of just now, but because it would be too much even without any ready sandbox: then ending them helps nobody. */
static bool is_hopeless(const struct node *n, uint32_t memory_mb, uint32_t disk_mb)
{
	struct admission without = n->admission, empty = n->admission;
	for (const struct member *m = n->ready->first; m; m = m->next)
		if (m->admitted) {
			admission_give(&without, m->s.memory_mb);
			admission_give_disk(&without, m->s.disk_mb);
		}
	empty.sandboxes = empty.memory_mb = empty.disk_mb = 0;
	struct error err = {0};
	return admission_take(&without, memory_mb, disk_mb, &err) < 0 && admission_take(&empty, 0, 0, &err) == 0;
}

bool ready_make_room(struct node *n, struct room_wait *w, uint32_t memory_mb, uint32_t disk_mb, void (*go)(void *arg), void *arg)
{
	struct ready *y = n->ready;
	if (!y->first || is_hopeless(n, memory_mb, disk_mb))
		return false;
	/* One ends for each who waits. */
	if (ending(n) <= y->waiting) {
		struct member *m = victim(n);
		if (!m)
			return false;
		m->pool->evicted++;
		n->figures.ready_evicted++;
		m->pool->not_before = ready_now(n) + HOLD_OFF_S * NS_PER_S;
		member_end(m, "its room is wanted");
	}
	*w = (struct room_wait){.go = go, .arg = arg, .waits = true};
	struct room_wait **at = &y->rooms;
	while (*at)
		at = &(*at)->next;
	*at = w;
	y->waiting++;
	return true;
}

void ready_forget_room(struct node *n, struct room_wait *w)
{
	if (!w->waits)
		return;
	struct room_wait **at = &n->ready->rooms;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	w->waits = false;
	n->ready->waiting--;
}

void ready_room_freed(struct node *n)
{
	struct room_wait *w = n->ready->rooms;
	n->admission.looked = 0; /* there is more memory now */
	if (!w)
		return;
	ready_forget_room(n, w);
	w->go(w->arg);
}
