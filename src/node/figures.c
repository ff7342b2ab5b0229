#include "base/cleanup.h"
#include "io/workq.h"
#include "node/processes.h"
#include "node/service.h"

#include <errno.h>

#define MIB (UINT64_C(1) << 20)

/* Collecting them: what the loop knows, then what a worker reads of our processes. */

struct collecting {
	struct request *request;
	struct node *node;
	struct node_figures f;
};

/* Also what is asked of the kernel about the machine: microseconds. */
static void fill(struct node *n, struct node_figures *f)
{
	const struct options *o = n->options;
	struct host_memory memory;
	struct host_disk disk;
	struct backend_figures backend = {0};
	map_foreach(&n->live, slot)
	{
		const struct live *l = slot->value;
		struct metrics_sample s;
		f->creating += l->s.state == SANDBOX_CREATING;
		f->running += l->s.state == SANDBOX_RUNNING;
		f->pausing += l->s.state == SANDBOX_PAUSING;
		f->paused += l->s.state == SANDBOX_PAUSED;
		f->snapshotting += l->s.state == SANDBOX_SNAPSHOTTING;
		f->killing += l->s.state == SANDBOX_KILLING;
		f->history_bytes += metrics_bytes(&l->history);
		if (l->s.state != SANDBOX_RUNNING || !metrics_newest(&l->history, &s))
			continue;
		f->memory_used += s.mem_used;
		f->memory_cache += s.mem_cache;
		f->disk_used += s.disk_used;
	}
	f->sandboxes_most = (uint64_t)o->max_sandboxes;
	f->memory_promised = n->admission.memory_mb * MIB;
	f->disk_promised = n->admission.disk_mb * MIB;
	if (n->host->memory(&memory, n->host->arg) == 0) {
		f->memory_available = memory.available;
		f->memory_promisable = (uint64_t)((double)memory.total * o->overcommit_memory);
	}
	if (n->host->disk(&disk, n->host->arg) == 0) {
		f->disk_total = disk.total;
		f->disk_free = disk.free;
	}
	f->disk_zone = (uint64_t)disk_account_zone(n->disk);
	backend_figures(n->backend, &backend);
	f->pool_parked = backend.parked;
	f->pool_wanted = backend.wanted;
	ready_figures(n, f);
}

static void read_processes(void *arg)
{
	struct collecting *c = arg;
	processes_read(&c->f);
}

static void answer(void *arg)
{
	struct collecting *c = arg;
	struct msg_figures_page m = {.values = str_n(&c->f, sizeof(c->f))};
	request_answer(c->request, MSG_ID_figures_page, &m, -1);
	free(c);
}

void live_figures(struct node *n, struct request *r)
{
	struct collecting *c = malloc(sizeof(*c));
	if (!c) {
		struct error err;
		error_errno(&err, -ENOMEM, "figures");
		request_fail(r, &err);
		return;
	}
	/* Counters as they are, then the rest. */
	*c = (struct collecting){r, n, n->figures};
	fill(n, &c->f);
	if (workq_push(n->chores, n->loop, read_processes, answer, c) < 0)
		answer(c);
}

/* Counting what happens to sandboxes. */

static void count_end(struct node_figures *f, const struct sandbox *s)
{
	const struct {
		const char *reason;
		uint64_t *count;
	} ends[] = {{"killed", &f->ends_killed}, {"timeout", &f->ends_timeout}, {"oom_killed", &f->ends_oom_killed}, {"disk_full", &f->ends_disk_full},
		{"host_lost", &f->ends_host_lost}};
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
		if (strcmp(s->reason, ends[i].reason) == 0) {
			++*ends[i].count;
			return;
		}
	f->ends_crashed++;
}

void figures_note(struct live *l, enum sandbox_state before)
{
	struct node_figures *f = &l->node->figures;
	enum sandbox_state now = l->s.state;
	if (now == SANDBOX_GONE)
		count_end(f, &l->s);
	else if (now == SANDBOX_PAUSED)
		f->pauses++;
	else if (now == SANDBOX_RUNNING && before == SANDBOX_PAUSED)
		f->resumes++;
	else if (now == SANDBOX_RUNNING && before == SANDBOX_CREATING)
		++*(strcmp(l->s.launch, "warm") == 0 ? &f->created_warm : &f->created_cold);
}
