#include "node/builds.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/json.h"
#include "io/workq.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

/*
 * What a build says. While it runs it is in memory, and follows into its file node/builds/<id>.log, written by a thread of its own; when the file is complete the memory is
 * given back, and who asks is answered from the file.
 */

enum {
	LINE_MOST = 32 * 1024, /* of JSON; a page has room for it */
	TEXT_MOST = 5 * 1024,  /* what a message that is longer as JSON is cut to */
	PAGE_MOST = 49152,
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void team_build_log_path(const struct node *n, const char *build, char to[PATH_MAX])
{
	snprintf(to, PATH_MAX, "%s/builds/%s.log", n->directory, build);
}

static int add_entry(struct build_log *log, size_t at, size_t n, unsigned level)
{
	if (log->n == log->cap) {
		size_t cap = log->cap ? 2 * log->cap : 64;
		struct build_log_entry *more = realloc(log->entries, cap * sizeof(*more));
		if (!more)
			return -ENOMEM;
		log->entries = more;
		log->cap = cap;
	}
	log->entries[log->n++] = (struct build_log_entry){(uint32_t)at, (uint32_t)n, (uint8_t)level};
	return 0;
}

void team_build_log_done(struct build_log *log)
{
	buf_done(&log->text);
	free(log->entries);
	*log = (struct build_log){.text = BUF_INIT};
}

static void put_line(struct buf *to, int64_t at, unsigned level, const char *step, struct str message)
{
	char time[RFC3339_SIZE];
	buf_addf(to, "{\"timestamp\":\"%s\",\"level\":\"%s\",\"message\":", rfc3339_format(time, at), level_names[level]);
	json_quote(to, message);
	if (*step) {
		buf_add_c(to, ",\"step\":");
		json_quote(to, str_of(step));
	}
	buf_add_c(to, "}\n");
}

/* Its first bytes, with no letter cut in two. */
static struct str cut(struct str s, size_t n)
{
	if (s.n <= n)
		return s;
	while (n && ((unsigned char)s.p[n] & 0xc0) == 0x80)
		n--;
	return str_n(s.p, n);
}

struct log_piece {
	struct build *build;
	struct node *node;
	size_t n;
	int result;
	char path[PATH_MAX];
	char text[];
};

static void piece_work(void *arg)
{
	struct log_piece *x = arg;
	cleanup_fd int fd = open(x->path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	x->result = fd < 0 ? -errno : fd_write_all(fd, x->text, x->n);
}

static void write_on(struct build *b);

static void piece_done(void *arg)
{
	struct log_piece *x = arg;
	struct build *b = x->build;
	if (x->result < 0)
		log_error("log of build %s: %s", b->r.id, strerror(-x->result));
	b->log_busy = false;
	b->logged += x->n;
	free(x);
	write_on(b);
	team_build_let(b);
}

/* What has come since goes to the file; at the end, and when nothing is left, the memory goes. */
static void write_on(struct build *b)
{
	size_t left = buf_len(&b->log.text) - b->logged;
	if (b->log_busy || !b->logging)
		return;
	if (!left) {
		if (b->log_over)
			team_build_log_free(b);
		return;
	}
	struct log_piece *x = malloc(sizeof(*x) + left);
	if (!x)
		return; /* with the next line */
	*x = (struct log_piece){.build = b, .node = b->node, .n = left};
	memcpy(x->text, buf_str(&b->log.text).p + b->logged, left);
	team_build_log_path(b->node, b->r.id, x->path);
	if (workq_push(b->node->builds->writer, b->node->loop, piece_work, piece_done, x) < 0) {
		free(x);
		return;
	}
	b->log_busy = true;
	team_build_hold(b);
}

void team_build_log_begin(struct build *b)
{
	team_build_log_free(b);
	b->logging = true;
}

void team_build_log_end(struct build *b)
{
	b->log_over = true;
	write_on(b);
}

void team_build_log_free(struct build *b)
{
	team_build_log_done(&b->log);
	b->logging = b->log_over = false;
	b->logged = 0;
}

void team_build_log_line(struct build *b, unsigned level, const char *step, struct str message)
{
	struct build_log *log = &b->log;
	int64_t at = node_realtime(b->node);
	size_t before = buf_len(&log->text);
	if (!b->logging || log->cut)
		return;
	level = MIN(level, 3u);
	if (before > BUILD_LOG_MOST - LINE_MOST) {
		log->cut = true;
		level = 2;
		step = "";
		message = STR("the log is too long: nothing more of it is kept");
	}
	cleanup_buf struct buf line = BUF_INIT;
	put_line(&line, at, level, step, message);
	if (buf_len(&line) > LINE_MOST) {
		buf_clear(&line);
		put_line(&line, at, level, step, cut(message, TEXT_MOST));
	}
	if (line.failed || buf_add_str(&log->text, buf_str(&line)) < 0 || add_entry(log, before, buf_len(&log->text) - before - 1, level) < 0)
		abort(); /* see records.c: without memory the node starts anew */
	write_on(b);
}

static unsigned level_of(struct str line)
{
	struct str rest = line, word;
	for (int i = 0; i < 7; i++)
		if (!str_cut(rest, '"', &word, &rest))
			return 1;
	str_cut(rest, '"', &word, &rest);
	for (unsigned i = 0; i < ARRAY_SIZE(level_names); i++)
		if (str_is(word, level_names[i]))
			return i;
	return 1;
}

int team_build_log_read(struct build_log *log, struct str text)
{
	struct str rest = text, line;
	if (buf_add_str(&log->text, text) < 0)
		return -ENOMEM;
	while (str_cut(rest, '\n', &line, &rest))
		if (add_entry(log, (size_t)(line.p - text.p), line.n, level_of(line)) < 0)
			return -ENOMEM;
	return 0;
}

uint64_t team_build_log_page(const struct build_log *log, const struct msg_build_status *m, struct buf *to)
{
	unsigned level = msg_has(m, build_status, level) ? (unsigned)MIN(m->level, 3u) : 0, taken = 0;
	bool backward = m->backward;
	uint64_t passed = 0;
	size_t i = 0;
	/* Without a level every entry counts. */
	if (level == 0) {
		passed = MIN(m->after, (uint64_t)log->n);
		i = (size_t)passed;
	}
	for (; i < log->n && taken < m->limit; i++) {
		const struct build_log_entry *e = &log->entries[backward ? log->n - 1 - i : i];
		if (e->level < level)
			continue;
		if (passed < m->after) {
			passed++;
			continue;
		}
		if (buf_len(to) + e->n + 1 > PAGE_MOST)
			break;
		buf_add_str(to, str_n(buf_str(&log->text).p + e->at, e->n));
		buf_add_c(to, "\n");
		taken++;
	}
	return passed + taken;
}
