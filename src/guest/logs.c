#include "guest/logs.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>

struct entry {
	struct entry *next;
	uint64_t number;
	int64_t time;
	size_t n;
	char line[];
};

struct logs {
	struct entry *first, *last;
	size_t bytes;
	uint64_t number; /* of the newest */
	void (*added)(void *arg);
	void *arg;
};

struct logs *logs_new(void)
{
	return calloc(1, sizeof(struct logs));
}

static void drop_first(struct logs *l)
{
	struct entry *e = l->first;
	l->first = e->next;
	if (!l->first)
		l->last = NULL;
	l->bytes -= sizeof(*e) + e->n;
	free(e);
}

void logs_free(struct logs *l)
{
	while (l && l->first)
		drop_first(l);
	free(l);
}

/* At most LOGS_MAX_TEXT bytes, not cut inside a character. */
static struct str bounded(struct str s)
{
	if (s.n <= LOGS_MAX_TEXT)
		return s;
	s.n = LOGS_MAX_TEXT;
	while (s.n && ((unsigned char)s.p[s.n] & 0xc0) == 0x80)
		s.n--;
	return s;
}

static const char *level_name(enum log_level level)
{
	static const char *const names[] = {[LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"};
	return names[level];
}

static void format(struct buf *to, const struct entry *e, enum log_level level, const char *logger, struct str message, const struct log_field *fields)
{
	buf_addf(to, "{\"n\":%llu,\"t\":%lld,\"level\":\"%s\",\"logger\":\"%s\",\"message\":", (unsigned long long)e->number, (long long)e->time, level_name(level), logger);
	json_quote(to, bounded(message));
	buf_add_c(to, ",\"fields\":{");
	for (const struct log_field *f = fields; f && f->name; f++) {
		buf_addf(to, "%s\"%s\":", f == fields ? "" : ",", f->name);
		json_quote(to, bounded(f->value));
	}
	buf_add_c(to, "}}\n");
}

void logs_add(struct logs *l, enum log_level level, const char *logger, struct str message, const struct log_field *fields)
{
	if (!l)
		return;
	cleanup_buf struct buf line = BUF_INIT;
	struct entry head = {.number = l->number + 1, .time = clock_realtime()};
	format(&line, &head, level, logger, message, fields);
	struct entry *e = line.failed ? NULL : malloc(sizeof(*e) + buf_len(&line));
	if (!e)
		return;
	*e = head;
	e->n = buf_len(&line);
	memcpy(e->line, buf_str(&line).p, e->n);
	l->number = e->number;
	*(l->last ? &l->last->next : &l->first) = e;
	l->last = e;
	l->bytes += sizeof(*e) + e->n;
	while (l->bytes > LOGS_MAX_BYTES)
		drop_first(l);
	if (l->added)
		l->added(l->arg);
}

void logs_watch(struct logs *l, void (*fn)(void *arg), void *arg)
{
	if (!l)
		return;
	l->added = fn;
	l->arg = arg;
}

int logs_read(const struct logs *l, uint64_t after, int64_t since, size_t max_bytes, struct buf *to, uint64_t *ret_next)
{
	*ret_next = after;
	for (const struct entry *e = l->first; e; e = e->next) {
		if (e->number <= after || e->time < since)
			continue;
		if (buf_len(to) + e->n > max_bytes)
			return to->failed ? -ENOMEM : 1;
		buf_add(to, e->line, e->n);
		*ret_next = e->number;
	}
	return to->failed ? -ENOMEM : 0;
}
