#include "mcp/boxes.h"
#include "base/cleanup.h"

#include <stdio.h>

void boxes_init(struct boxes *b)
{
	*b = (struct boxes){.first = NULL};
	pthread_mutex_init(&b->lock, NULL);
}

static void box_free(struct box_entry *e)
{
	free(e->token);
	free(e->template);
	free(e);
}

void boxes_done(struct boxes *b)
{
	struct box_entry *e;
	while ((e = b->first)) {
		b->first = e->next;
		box_free(e);
	}
	pthread_mutex_destroy(&b->lock);
}

int boxes_add(struct boxes *b, struct str id, struct str token, struct str template, int64_t ends)
{
	struct box_entry *e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	snprintf(e->id, sizeof(e->id), "%.*s", STR_FMT(id));
	e->token = token.n ? str_dup(token) : NULL;
	e->template = str_dup(template);
	e->ends = ends;
	e->refs = 1;
	int r = (token.n && !e->token) || !e->template ? -ENOMEM : 0;
	pthread_mutex_lock(&b->lock);
	if (r == 0 && b->closing)
		r = -ESHUTDOWN;
	if (r == 0) {
		e->next = b->first;
		b->first = e;
	}
	pthread_mutex_unlock(&b->lock);
	if (r < 0)
		box_free(e);
	return r;
}

struct box_entry *boxes_capture(struct boxes *b, struct str id, struct error *err)
{
	pthread_mutex_lock(&b->lock);
	struct box_entry *e = b->first;
	while (e && id.n && !str_is(id, e->id))
		e = e->next;
	if (e)
		e->refs++;
	pthread_mutex_unlock(&b->lock);
	if (!e && id.n)
		error_set(err, -ENOENT, 404, "this session has no sandbox of that id, or it is gone");
	else if (!e)
		error_set(err, -ENOENT, 404, "there is no sandbox: call sandbox_create first");
	return e;
}

void boxes_release(struct boxes *b, struct box_entry *e)
{
	pthread_mutex_lock(&b->lock);
	bool last = --e->refs == 0;
	pthread_mutex_unlock(&b->lock);
	if (last)
		box_free(e);
}

bool boxes_take(struct boxes *b, struct box_entry *e)
{
	bool found = false;
	pthread_mutex_lock(&b->lock);
	struct box_entry **p = &b->first;
	while (*p && *p != e)
		p = &(*p)->next;
	found = *p != NULL;
	if (found) {
		*p = e->next;
		e->refs--; /* the caller holds another one */
	}
	pthread_mutex_unlock(&b->lock);
	if (found)
		atomic_store(&e->gone, true);
	return found;
}

void boxes_close(struct boxes *b)
{
	pthread_mutex_lock(&b->lock);
	b->closing = true;
	pthread_mutex_unlock(&b->lock);
}

unsigned boxes_list(struct boxes *b, struct box_entry **ret, unsigned most)
{
	unsigned n = 0;
	pthread_mutex_lock(&b->lock);
	for (struct box_entry *e = b->first; e && n < most; e = e->next) {
		e->refs++;
		ret[n++] = e;
	}
	pthread_mutex_unlock(&b->lock);
	return n;
}
