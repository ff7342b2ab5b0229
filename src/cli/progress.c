#include "cli/progress.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/output.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>

enum {
	DRAW_EVERY_MS = 100,
	BAR_MAX = 24,
	BAR_MIN = 8,
	DEFAULT_COLUMNS = 80,
};

void progress_init(struct progress *p, bool json)
{
	const char *term = getenv("TERM");
	bool terminal = isatty(2) && (!term || strcmp(term, "dumb") != 0);
	*p = (struct progress){.mode = json ? PROGRESS_JSON : terminal ? PROGRESS_TERMINAL : PROGRESS_PLAIN, .start = clock_monotonic(), .percent = -1};
}

/* The character at s: its bytes, and in *ret_columns what it takes on a terminal. Not UTF-8: one byte, one column. */
static size_t character(struct str s, locale_t utf8, int *ret_columns)
{
	mbstate_t state = {0};
	wchar_t c;
	*ret_columns = 1;
	size_t n = utf8 ? mbrtowc(&c, s.p, s.n, &state) : 1;
	if (n == 0 || n > s.n)
		return 1;
	if (utf8) {
		int w = wcwidth(c);
		*ret_columns = w < 0 ? 1 : w;
	}
	return n;
}

/* Appends what fits of s into that many columns; returns the columns it took. */
static int add_cut(struct buf *to, struct str s, int columns)
{
	/* The texts are UTF-8 whatever the terminal's locale says. */
	locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = utf8 ? uselocale(utf8) : (locale_t)0;
	int used = 0;
	while (s.n) {
		int width;
		size_t n = character(s, utf8, &width);
		if (used + width > columns)
			break;
		buf_add(to, s.p, n);
		used += width;
		s = str_from(s, n);
	}
	if (utf8) {
		uselocale(before);
		freelocale(utf8);
	}
	return used;
}

static void add_bar(struct buf *to, int cells, int percent, unsigned turn)
{
	buf_add_c(to, "[");
	/* Unknown: something that moves. */
	int full = percent < 0 ? 0 : cells * percent / 100, at = (int)(turn % (unsigned)cells);
	for (int i = 0; i < cells; i++)
		buf_add_c(to, percent < 0 ? (i == at ? "=" : " ") : i < full ? "=" : i == full ? ">" : " ");
	buf_add_c(to, "] ");
}

int progress_line(struct buf *to, int columns, unsigned turn, const char *phase, int percent, uint64_t done, uint64_t total, int64_t seconds)
{
	cleanup_buf struct buf text = BUF_INIT;
	char a[24], b[24];
	int room = columns - 1;
	percent = MIN(percent, 100);
	if (percent >= 0)
		buf_addf(&text, "%3d %% ", percent);
	buf_addf(&text, "%4lld s  ", (long long)seconds);
	print_safe(&text, str_of(phase));
	if (total)
		buf_addf(&text, "  %s of %s", size_text(a, done), size_text(b, total));
	else if (done)
		buf_addf(&text, "  %s", size_text(a, done));
	cleanup_buf struct buf measured = BUF_INIT;
	int width = add_cut(&measured, buf_str(&text), 1 << 20);
	int cells = MIN(room - width - 3, (int)BAR_MAX);
	if (cells >= BAR_MIN)
		add_bar(to, cells, percent, turn);
	else if (room <= 0)
		return 0;
	add_cut(to, buf_str(&text), room);
	return to->failed || text.failed ? -ENOMEM : 0;
}

static int terminal_columns(void)
{
	struct winsize w;
	return ioctl(2, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : DEFAULT_COLUMNS;
}

void progress_clear(struct progress *p)
{
	if (p->visible) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
	p->visible = false;
	p->drawn = 0;
}

static void draw(struct progress *p, uint64_t done, uint64_t total, int64_t seconds)
{
	cleanup_buf struct buf line = BUF_INIT;
	if (progress_line(&line, terminal_columns(), p->turn++, p->phase, p->percent, done, total, seconds) == 0 && buf_cstr(&line))
		fprintf(stderr, "\r%s\033[K", buf_cstr(&line));
	fflush(stderr);
	p->visible = true;
}

static void say_json(const struct progress *p, uint64_t done, uint64_t total, int64_t seconds)
{
	cleanup_buf struct buf line = BUF_INIT;
	buf_add_c(&line, "{\"phase\":");
	json_quote(&line, str_of(p->phase));
	if (p->percent >= 0)
		buf_addf(&line, ",\"percent\":%d", p->percent);
	if (done || total)
		buf_addf(&line, ",\"bytes\":%llu", (unsigned long long)done);
	if (total)
		buf_addf(&line, ",\"total\":%llu", (unsigned long long)total);
	buf_addf(&line, ",\"seconds\":%lld}\n", (long long)seconds);
	fputs(buf_cstr(&line) ? buf_cstr(&line) : "", stdout);
	fflush(stdout);
}

void progress_show(struct progress *p, const char *phase, int percent, uint64_t done, uint64_t total)
{
	char text[sizeof(p->phase)];
	int64_t now = clock_monotonic(), seconds = (now - p->start) / NS_PER_S;
	snprintf(text, sizeof(text), "%s", phase);
	bool new = strcmp(text, p->phase) != 0;
	/* Programs are told each tenth, too. */
	bool further = percent / 10 != p->percent / 10 && percent >= 0;
	memcpy(p->phase, text, sizeof(text));
	if (p->mode == PROGRESS_TERMINAL) {
		p->percent = percent;
		if (!new && now - p->drawn < DRAW_EVERY_MS * NS_PER_MS)
			return;
		p->drawn = now;
		draw(p, done, total, seconds);
	} else if (p->mode == PROGRESS_JSON && (new || further)) {
		p->percent = percent;
		say_json(p, done, total, seconds);
	} else if (p->mode == PROGRESS_PLAIN && new) {
		cleanup_buf struct buf safe = BUF_INIT;
		print_safe(&safe, str_of(p->phase));
		if (*p->phase)
			fprintf(stderr, "%4lld s  %s\n", (long long)seconds, buf_cstr(&safe) ? buf_cstr(&safe) : "");
	}
}

void progress_print(struct progress *p, struct str text)
{
	cleanup_buf struct buf safe = BUF_INIT;
	print_safe(&safe, text);
	progress_clear(p);
	fprintf(stderr, "%s\n", buf_cstr(&safe) ? buf_cstr(&safe) : "");
}
