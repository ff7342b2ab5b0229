#include "base/cleanup.h"
#include "base/log.h"
#include "node/ready_impl.h"
#include "node/snapshots.h"

/* Bounds that somebody sets: recorded, then in force, then answered. */

struct setting {
	struct node *node;
	struct request *request;
	struct pool_record record;
};

static void set_recorded(const struct error *err, void *arg)
{
	struct setting *s = arg;
	const struct pool_record *c = &s->record;
	if (err) {
		request_fail(s->request, err);
	} else {
		struct pool_info info;
		struct ready_pool *p = ready_use_pool(s->node, c->template_id);
		sizing_bounds(p, true, c->min, c->size, c->max);
		ready_describe(p, &info);
		struct msg_pools_page page = {.pools = str_n(&info, sizeof(info))};
		log_write(LOG_INFO, &(struct log_ids){.request = str_of(s->request->text)}, "ready pool of template %s: %u, %u to %u", c->template_id, c->size, c->min, c->max);
		request_answer(s->request, MSG_ID_pools_page, &page, -1);
	}
	s->node->ready->setting--;
	free(s);
}

static void unset_recorded(const struct error *err, void *arg)
{
	struct setting *s = arg;
	struct ready_pool *p = ready_pool_of(s->node, str_of(s->record.template_id));
	if (!err && p && p->set)
		ready_use_defaults(p);
	if (err)
		request_fail(s->request, err);
	else
		request_answer(s->request, MSG_ID_ok, NULL, -1);
	free(s);
}

static struct setting *setting_new(struct node *n, struct request *r, const char *template_id, struct error *err)
{
	struct setting *s = calloc(1, sizeof(*s));
	if (!s) {
		error_errno(err, -ENOMEM, "pool");
		return NULL;
	}
	*s = (struct setting){.node = n, .request = r};
	sandbox_copy(s->record.template_id, sizeof(s->record.template_id), str_of(template_id));
	return s;
}

static unsigned count_set(const struct node *n)
{
	unsigned count = n->ready->setting;
	for (const struct ready_pool *p = n->ready->pools; p; p = p->next)
		count += p->set;
	return count;
}

static int check_bounds(const struct msg_set_pool *m, struct error *err)
{
	if (m->min > POOL_SIZE_MAX || m->size > POOL_SIZE_MAX || m->max > POOL_SIZE_MAX)
		return error_set(err, -EINVAL, 400, "min, size, max: 0 to %d", POOL_SIZE_MAX);
	if (m->min > m->size || m->size > m->max)
		return error_set(err, -EINVAL, 400, "min must not be over size, nor size over max");
	return 0;
}

/* The template whose pool is to be set. */
static const struct template *template_for(struct node *n, const struct msg_set_pool *m, struct error *err)
{
	const struct template *t = templates_find(n->templates, m->template);
	const struct ready_pool *p = t ? ready_pool_of(n, str_of(t->id)) : NULL;
	if (check_bounds(m, err) < 0)
		return NULL;
	if (snapshot_find(n, m->template))
		error_set(err, -EINVAL, 400, "'%.*s' is a snapshot: only templates have ready pools", STR_FMT(m->template));
	else if (!t)
		error_set(err, -ENOENT, 404, "template '%.*s' not found", STR_FMT(m->template));
	else if (t->n_services == 0)
		error_set(err, -EINVAL, 400, "template '%.*s' has no services: there is nothing to be ready", STR_FMT(m->template));
	else if (!(p && p->set) && count_set(n) >= POOLS_MAX)
		error_set(err, -EINVAL, 400, "%d ready pools are set already, which is the most", POOLS_MAX);
	return err->code ? NULL : t;
}

void ready_set(struct node *n, struct request *r, const struct msg_set_pool *m)
{
	struct error err = {0};
	const struct template *t = template_for(n, m, &err);
	struct setting *s = t ? setting_new(n, r, t->id, &err) : NULL;
	if (!s) {
		request_fail(r, &err);
		return;
	}
	s->record.min = (uint32_t)m->min;
	s->record.size = (uint32_t)m->size;
	s->record.max = (uint32_t)m->max;
	n->ready->setting++;
	records_put_pool(n->records, &s->record, set_recorded, s);
}

void ready_unset(struct node *n, struct request *r, const struct msg_unset_pool *m)
{
	struct error err = {0};
	/* One of a template that is gone is still known by its id. */
	const struct template *t = templates_find(n->templates, m->template);
	struct ready_pool *p = ready_pool_of(n, t ? str_of(t->id) : m->template);
	struct setting *s = NULL;
	if (p && p->set)
		s = setting_new(n, r, p->template_id, &err);
	else
		error_set(&err, -ENOENT, 404, "the ready pool of template '%.*s' is not set", STR_FMT(m->template));
	if (!s) {
		request_fail(r, &err);
		return;
	}
	records_forget_pool(n->records, s->record.template_id, unset_recorded, s);
}
