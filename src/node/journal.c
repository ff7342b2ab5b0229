#include "node/journal.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

struct journal_entry {
	struct journal_entry *next;
	uint64_t number;
	int64_t time;
	size_t n;
	char line[]; /* begins with '+' or '-' */
};

static bool is_own(const struct journal_entry *e)
{
	return e->line[0] == '+';
}

static size_t cost(const struct journal_entry *e)
{
	return sizeof(*e) + e->n;
}

/* Takes out the oldest entry of one kind. */
static void drop_oldest(struct journal *j, bool own)
{
	struct journal_entry *before = NULL, *e = j->first;
	while (e && is_own(e) != own) {
		before = e;
		e = e->next;
	}
	if (!e)
		return;
	*(before ? &before->next : &j->first) = e->next;
	if (j->last == e)
		j->last = before;
	*(own ? &j->own : &j->init) -= cost(e);
	free(e);
}

/* `line` without its newline. */
static void append(struct journal *j, int64_t time, struct str line, size_t most)
{
	struct journal_entry *e = malloc(sizeof(*e) + line.n + 1);
	if (!e)
		return;
	*e = (struct journal_entry){.number = ++j->number, .time = time, .n = line.n + 1};
	memcpy(e->line, line.p, line.n);
	e->line[line.n] = '\n';
	*(j->last ? &j->last->next : &j->first) = e;
	j->last = e;
	bool own = is_own(e);
	size_t *sum = own ? &j->own : &j->init;
	*sum += cost(e);
	while (*sum > most)
		drop_oldest(j, own);
}

void journal_add(struct journal *j, int64_t time, const char *level, const char *message, const struct journal_field *fields)
{
	cleanup_buf struct buf line = BUF_INIT;
	bool more = false;
	buf_addf(&line, "+%lld {\"level\":\"%s\",\"logger\":\"" JOURNAL_LOGGER "\",\"message\":", (long long)time, level);
	json_quote(&line, str_of(message));
	buf_add_c(&line, ",\"fields\":{");
	for (const struct journal_field *f = fields; f && f->name; f++) {
		if (!f->value.n)
			continue;
		buf_addf(&line, "%s\"%s\":", more ? "," : "", f->name);
		json_quote(&line, f->value);
		more = true;
	}
	buf_add_c(&line, "}}");
	if (!line.failed)
		append(j, time, buf_str(&line), JOURNAL_OWN_MAX);
}

static bool is_plain(struct str line)
{
	for (size_t i = 0; i < line.n; i++)
		if ((unsigned char)line.p[i] < ' ' || line.p[i] == 0x7f)
			return false;
	return line.n && line.n <= JOURNAL_LINE_MAX;
}

/* Takes `<name><digits>,` off the beginning. */
static bool take_number(struct str *rest, const char *name, uint64_t *ret)
{
	struct str number;
	if (!str_starts(*rest, str_of(name)))
		return false;
	*rest = str_from(*rest, strlen(name));
	return str_cut(*rest, ',', &number, rest) && str_to_u64(number, ret) == 0;
}

static void add_line(struct journal *j, struct str line, int64_t now, size_t most)
{
	struct str rest = line;
	uint64_t number, at;
	if (!is_plain(line) || line.n > JOURNAL_LINE_MAX - 32 || !take_number(&rest, "{\"n\":", &number) || !take_number(&rest, "\"t\":", &at) || at > INT64_MAX)
		return;
	int64_t time = MIN((int64_t)at, now);
	if (number <= j->init_number && time <= j->init_time)
		return;
	j->init_number = number;
	j->init_time = MAX(time, j->init_time);
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text, "-%lld {", (long long)time);
	buf_add_str(&text, rest);
	if (!text.failed)
		append(j, time, buf_str(&text), most);
}

void journal_add_page(struct journal *j, struct str page, int64_t now, size_t most)
{
	for (struct str line; str_cut(page, '\n', &line, &page);)
		add_line(j, line, now, most);
}

int journal_read(const struct journal *j, uint64_t after, int64_t since, size_t max_bytes, struct buf *to, uint64_t *ret_next)
{
	*ret_next = after;
	for (const struct journal_entry *e = j->first; e; e = e->next) {
		if (e->number <= after || e->time < since)
			continue;
		if (buf_len(to) + e->n > max_bytes)
			return to->failed ? -ENOMEM : 1;
		buf_add(to, e->line, e->n);
		*ret_next = e->number;
	}
	return to->failed ? -ENOMEM : 0;
}

int journal_write(const struct journal *j, struct buf *to)
{
	for (const struct journal_entry *e = j->first; e; e = e->next)
		buf_add(to, e->line, e->n);
	return to->failed ? -ENOMEM : 0;
}

void journal_load(struct journal *j, struct str text)
{
	for (struct str line; str_cut(text, '\n', &line, &text);) {
		struct str time, json;
		int64_t at;
		if (!is_plain(line) || (line.p[0] != '+' && line.p[0] != '-') || !str_cut(str_from(line, 1), ' ', &time, &json) || str_to_i64(time, &at) < 0 || at < 0)
			continue;
		bool own = line.p[0] == '+';
		append(j, at, line, own ? JOURNAL_OWN_MAX : JOURNAL_INIT_MAX);
		if (!own)
			j->init_time = MAX(j->init_time, at);
	}
}

void journal_done(struct journal *j)
{
	while (j->first) {
		struct journal_entry *e = j->first;
		j->first = e->next;
		free(e);
	}
	*j = (struct journal){0};
}
