#include "cli/output.h"
#include "base/cleanup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *t, const char *const *titles)
{
	*t = (struct table){0};
	while (titles[t->columns] && t->columns < TABLE_MAX_COLUMNS)
		t->columns++;
	for (size_t i = 0; i < t->columns; i++)
		table_add(t, str_of(titles[i]));
}

void table_done(struct table *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->cells[i]);
	free(t->cells);
	*t = (struct table){0};
}

void print_safe(struct buf *to, struct str s)
{
	bool utf8 = str_is_utf8(s);
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		/* C1 controls are 0xc2 0x80..0x9f in UTF-8. */
		bool c1 = c == 0xc2 && i + 1 < s.n && (unsigned char)s.p[i + 1] < 0xa0;
		if (c < 0x20 || c == 0x7f || c1 || (c >= 0x80 && !utf8)) {
			buf_add_c(to, "?");
			i += c1;
		} else {
			buf_add(to, s.p + i, 1);
		}
	}
}

void table_add(struct table *t, struct str text)
{
	cleanup_buf struct buf safe = BUF_INIT;
	print_safe(&safe, text);
	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 32;
		void *more = realloc(t->cells, cap * sizeof(*t->cells));
		if (!more) {
			t->failed = true;
			return;
		}
		t->cells = more;
		t->cap = cap;
	}
	char *cell = str_dup(buf_str(&safe));
	if (!cell)
		t->failed = true;
	else
		t->cells[t->n++] = cell;
}

void table_addf(struct table *t, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	table_add(t, str_of(text));
}

static size_t width(const char *s)
{
	size_t n = 0;
	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

void table_print(const struct table *t)
{
	size_t widths[TABLE_MAX_COLUMNS] = {0};
	for (size_t i = 0; i < t->n; i++)
		widths[i % t->columns] = MAX(widths[i % t->columns], width(t->cells[i]));
	for (size_t i = 0; i < t->n; i++) {
		bool last = i % t->columns == t->columns - 1;
		int pad = last ? 0 : (int)(widths[i % t->columns] - width(t->cells[i])) + 2;
		printf("%s%*s%s", t->cells[i], pad, "", last ? "\n" : "");
	}
	if (t->failed)
		fputs("cubicle: out of memory: the table is not complete\n", stderr);
}

void print_json(const json_t *j)
{
	json_dumpf(j, stdout, isatty(1) ? JSON_INDENT(2) | JSON_ENCODE_ANY : JSON_COMPACT | JSON_ENCODE_ANY);
	putchar('\n');
}

const char *duration_text(char to[24], int64_t seconds)
{
	if (seconds == INT64_MAX)
		return "never";
	if (seconds < 0)
		seconds = 0;
	if (seconds < 120)
		snprintf(to, 24, "%lld s", (long long)seconds);
	else if (seconds < 120 * 60)
		snprintf(to, 24, "%lld min", (long long)seconds / 60);
	else if (seconds < 48 * 3600)
		snprintf(to, 24, "%lld h", (long long)seconds / 3600);
	else
		snprintf(to, 24, "%lld d", (long long)seconds / 86400);
	return to;
}

const char *size_text(char to[24], uint64_t bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
	double v = (double)bytes;
	size_t u = 0;
	while (v >= 1000 && u + 1 < ARRAY_SIZE(units)) {
		v /= 1000;
		u++;
	}
	snprintf(to, 24, u && v < 10 ? "%.1f %s" : "%.0f %s", v, units[u]);
	return to;
}
