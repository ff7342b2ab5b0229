#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/workq.h"
#include "node/service.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/*
 * The logs of sandboxes. While one runs, node follows what its init says: one question waits there for the next entry. When a sandbox ends, or is paused with its disk only, its journal
 * becomes a file in node/logs, "<id>.log" or "<id>.saved": it is read from there, for 24 hours, or goes on from there.
 */

enum {
	PAGE = 57344,
	PAGES_MAX = 2 * JOURNAL_INIT_MAX / PAGE,
	TAKEN_MAX = 64 * 1024,            /* of one init between two samples; then it is not asked until the next, */
	DROPPED_OVER = 4 * 1024 * 1024,   /* and what still comes is not looked at beyond this */
	PAGES_UNTIL_ASKED = 16,           /* half of what init sends unasked: it never has to wait */
	ALL_MAX = 64 * 1024 * 1024,       /* of all init's entries in memory; beyond, */
	EACH_WHEN_MUCH = 32 * 1024,       /* only so much of each is kept */
	FILES_MAX_BYTES = 256 * 1024 * 1024, /* of ended sandboxes; beyond, the oldest go before their time */
	FILES_MAX = 20000,
};

static void take_page(struct live *l, const struct msg_log_page *m)
{
	struct node *n = l->node;
	struct journal *j = &l->log.journal;
	size_t before = j->init;
	journal_add_page(j, m->entries, node_realtime(n), n->logs_bytes > ALL_MAX ? EACH_WHEN_MUCH : JOURNAL_INIT_MAX);
	n->logs_bytes += j->init - before;
	l->log.taken += m->entries.n;
	if (m->next > l->log.asked)
		l->log.asked = m->next;
}

static void followed(const struct msg_log_page *m, void *arg)
{
	struct live *l = arg;
	if (!m) {
		/* That init is gone, or could not: the next one counts anew. */
		l->log.asked = 0;
		l->log.following = false;
		return;
	}
	if (l->log.taken > DROPPED_OVER)
		return; /* nobody asked for so much */
	take_page(l, m);
	if (++l->log.pages < PAGES_UNTIL_ASKED)
		return;
	l->log.following = false;
	logs_follow(l);
}

/* PID 1 of one that is paused with its memory runs, and has something to say to a node that is new. */
void logs_follow(struct live *l)
{
	if (l->log.following || l->log.taken > TAKEN_MAX || !l->box || !(sandbox_runs(&l->s) || (l->s.state == SANDBOX_PAUSED && l->s.memory_kept)))
		return;
	l->log.pages = 0;
	l->log.following = box_follow_log(l->box, l->log.asked, followed, l) == 0;
}

void logs_tick(struct live *l)
{
	l->log.taken = 0;
	logs_follow(l);
}

/* --- what happened to it --- */

static void note_end(struct live *l, int64_t at)
{
	const struct sandbox *s = &l->s;
	bool usual = strcmp(s->reason, "killed") == 0 || strcmp(s->reason, "timeout") == 0;
	const struct journal_field fields[] = {{"reason", str_of(s->reason)}, {"detail", str_of(s->detail)}, {0}};
	journal_add(&l->log.journal, at, usual ? "info" : "error", "ended", fields);
	logs_save(l, false);
}

void logs_note(struct live *l, enum sandbox_state before)
{
	struct journal *j = &l->log.journal;
	const struct sandbox *s = &l->s;
	int64_t at = node_realtime(l->node);
	const struct journal_field created[] = {{"template", str_of(s->alias[0] ? s->alias : s->template_id)}, {"launch", str_of(s->launch)}, {0}};
	const struct journal_field paused[] = {{"memory", s->memory_kept ? STR("kept") : STR("not kept")}, {0}};
	const struct journal_field resumed[] = {{"from", str_of(s->resumed_from)}, {0}};
	if (s->state == SANDBOX_GONE)
		note_end(l, s->ended_at ? s->ended_at : at);
	else if (s->state == SANDBOX_PAUSED)
		journal_add(j, at, "info", "paused", paused);
	else if (s->state == SANDBOX_RUNNING && before == SANDBOX_CREATING)
		journal_add(j, at, "info", "created", created);
	else if (s->state == SANDBOX_RUNNING && before == SANDBOX_PAUSED)
		journal_add(j, at, "info", "resumed", resumed);
	else if (s->state == SANDBOX_RUNNING && before == SANDBOX_PAUSING)
		journal_add(j, at, "warn", "could not be paused", NULL);
	else if (s->state == SANDBOX_RUNNING && before == SANDBOX_SNAPSHOTTING)
		journal_add(j, at, "info", "snapshot, fork or rollback done", NULL);
	/* Nothing runs of it any more, and node may be started anew before it is resumed. */
	if (s->state == SANDBOX_PAUSED && !s->memory_kept)
		logs_save(l, true);
	logs_follow(l);
}

void logs_note_disk(struct live *l, bool waits)
{
	journal_add(&l->log.journal, node_realtime(l->node), waits ? "warn" : "info", waits ? "frozen: the server's disk is nearly full" : "goes on: the server's disk has room again", NULL);
}

/* --- files --- */

static void file_name(char to[PATH_MAX], const struct node *n, const char *id, bool saved)
{
	snprintf(to, PATH_MAX, "%s/logs/%s.%s", n->directory, id, saved ? "saved" : "log");
}

struct log_save {
	struct log_save *next;
	struct node *node;
	char path[PATH_MAX], other[PATH_MAX];
	struct buf text;
	bool done;
};

static void save_work(void *arg)
{
	struct log_save *s = arg;
	int r = file_replace(AT_FDCWD, s->path, buf_str(&s->text), 0600);
	if (r < 0)
		log_warn("log %s is lost: %s", s->path, strerror(-r));
	unlink(s->other);
	s->done = true;
}

static void save_free(void *arg)
{
	struct log_save *s = arg;
	struct log_save **at = &s->node->saves;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	buf_done(&s->text);
	free(s);
}

void logs_done(struct node *n)
{
	workq_free(n->scribe);
	while (n->saves) {
		if (!n->saves->done)
			save_work(n->saves);
		save_free(n->saves);
	}
}

void logs_save(struct live *l, bool saved)
{
	struct node *n = l->node;
	struct log_save *s = malloc(sizeof(*s));
	if (!s)
		return;
	*s = (struct log_save){.node = n, .next = n->saves};
	n->saves = s;
	file_name(s->path, n, l->s.id, saved);
	file_name(s->other, n, l->s.id, !saved);
	if (journal_write(&l->log.journal, &s->text) < 0 || workq_push(n->scribe, n->loop, save_work, save_free, s) < 0) {
		log_warn("log %s is lost: no memory", s->path);
		save_free(s);
	}
}

void logs_load(struct live *l)
{
	cleanup_buf struct buf text = BUF_INIT;
	char path[PATH_MAX];
	file_name(path, l->node, l->s.id, true);
	if (file_read(AT_FDCWD, path, JOURNAL_FILE_MAX, &text) == 0)
		journal_load(&l->log.journal, buf_str(&text));
	l->node->logs_bytes += l->log.journal.init;
	l->told = l->s.state;
}

void logs_free(struct live *l)
{
	if (l->box && l->log.following)
		box_follow_log(l->box, 0, NULL, NULL);
	l->node->logs_bytes -= l->log.journal.init;
	journal_done(&l->log.journal);
}

/* --- reading --- */

static void answer_from(struct request *r, const struct journal *j, uint64_t after, int64_t since)
{
	cleanup_buf struct buf text = BUF_INIT;
	struct msg_log_page page = {0};
	struct error err = {0};
	int e = journal_read(j, after, since, PAGE, &text, &page.next);
	page.entries = buf_str(&text);
	page.more = e > 0;
	if (e >= 0) {
		request_answer(r, MSG_ID_log_page, &page, -1);
		return;
	}
	error_errno(&err, e, "log");
	request_fail(r, &err);
}

struct reading {
	struct request *request;
	struct node *node;
	char id[SANDBOX_ID + 1];
	uint64_t after;
	int64_t since;
	unsigned pages; /* of init's */
	char path[PATH_MAX];
	struct buf text;
	int result;
};

static void not_found(struct request *r, const char *id)
{
	struct error err = {0};
	error_set(&err, -ENOENT, 404, "sandbox %s not found", id);
	request_fail(r, &err);
}

/* The newest of it was read. */
static void log_read(const struct msg_log_page *m, void *arg)
{
	struct reading *o = arg;
	struct live *l = live_find(o->node, str_of(o->id));
	if (l && m)
		take_page(l, m);
	/* More of it than was followed. */
	if (l && m && m->more && ++o->pages < PAGES_MAX && l->box && box_log(l->box, l->log.asked, log_read, o) == 0)
		return;
	if (l)
		answer_from(o->request, &l->log.journal, o->after, o->since);
	else
		not_found(o->request, o->id);
	free(o);
}

static void read_work(void *arg)
{
	struct reading *o = arg;
	o->result = file_read(AT_FDCWD, o->path, JOURNAL_FILE_MAX, &o->text);
}

static void file_was_read(void *arg)
{
	struct reading *o = arg;
	struct journal j = {0};
	if (o->result == 0) {
		journal_load(&j, buf_str(&o->text));
		answer_from(o->request, &j, o->after, o->since);
		journal_done(&j);
	} else if (o->result == -ENOENT) {
		not_found(o->request, o->id);
	} else {
		struct error err = {0};
		error_errno(&err, o->result, "log");
		request_fail(o->request, &err);
	}
	buf_done(&o->text);
	free(o);
}

void live_logs(struct node *n, struct request *r, const struct msg_logs *m)
{
	struct error err = {0};
	struct live *l = live_find(n, m->sandbox);
	struct reading *o = calloc(1, sizeof(*o));
	if (!o || !sandbox_id_valid(m->sandbox)) {
		free(o);
		error_set(&err, o ? -EINVAL : -ENOMEM, o ? 404 : 503, "log of sandbox %.*s", STR_FMT(m->sandbox));
		request_fail(r, &err);
		return;
	}
	*o = (struct reading){.request = r, .node = n, .after = m->after, .since = m->since};
	sandbox_copy(o->id, sizeof(o->id), m->sandbox);
	file_name(o->path, n, o->id, false);
	if (l && l->s.state != SANDBOX_CREATING) {
		/* What it says waits in the channel perhaps; a first page asks, unless it is frozen for long. */
		if (!m->after && l->box && sandbox_runs(&l->s) && !l->disk.told && box_log(l->box, l->log.asked, log_read, o) == 0)
			return;
		answer_from(r, &l->log.journal, m->after, m->since);
		free(o);
	} else if (l || workq_push(n->scribe, n->loop, read_work, file_was_read, o) < 0) {
		not_found(r, o->id);
		free(o);
	}
}

/* --- what is kept --- */

struct file {
	int64_t time;
	uint64_t size;
	char name[48];
};

static int newest_first(const void *a, const void *b)
{
	const struct file *x = a, *y = b;
	return x->time < y->time ? 1 : x->time > y->time ? -1 : 0;
}

static size_t list_files(DIR *d, struct file **ret)
{
	struct file *all = NULL;
	size_t n = 0, cap = 0;
	for (struct dirent *e; (e = readdir(d));) {
		struct stat st;
		struct str name = str_of(e->d_name);
		if (name.n >= sizeof(all->name) || !str_ends(name, STR(".log")) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (n == cap) {
			struct file *more = realloc(all, (cap = cap ? cap * 2 : 64) * sizeof(*all));
			if (!more)
				break;
			all = more;
		}
		all[n] = (struct file){.time = st.st_mtim.tv_sec, .size = (uint64_t)st.st_size};
		memcpy(all[n++].name, name.p, name.n + 1);
	}
	*ret = all;
	return n;
}

static void prune_work(void *arg)
{
	const struct node *node = arg;
	int64_t before = __atomic_load_n(&node->logs_before, __ATOMIC_RELAXED);
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/logs", node->directory);
	DIR *d = opendir(path);
	cleanup_free struct file *all = NULL;
	size_t n = d ? list_files(d, &all) : 0;
	uint64_t sum = 0;
	if (n)
		qsort(all, n, sizeof(*all), newest_first);
	for (size_t i = 0; i < n; i++) {
		sum += all[i].size;
		if (all[i].time < before || sum > FILES_MAX_BYTES || i >= FILES_MAX)
			unlinkat(dirfd(d), all[i].name, 0);
	}
	if (d)
		closedir(d);
}

void logs_prune(struct node *n)
{
	__atomic_store_n(&n->logs_before, node_realtime(n) / NS_PER_S - ENDS_KEPT_S, __ATOMIC_RELAXED);
	/* When the queue is full it is done the next time. */
	workq_push(n->scribe, n->loop, prune_work, NULL, n);
}

void logs_sweep(struct node *n)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/logs", n->directory);
	DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		struct str name = str_of(e->d_name), id, end;
		if (str_cut(name, '.', &id, &end) && str_is(end, "saved") && !live_find(n, id))
			unlinkat(dirfd(d), e->d_name, 0);
	}
	if (d)
		closedir(d);
}

int logs_init(struct node *n, struct error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/logs", n->directory);
	int r = make_dirs(path, 0700);
	n->scribe = r == 0 ? workq_new(1, 65536) : NULL;
	return n->scribe ? 0 : error_errno(err, r < 0 ? r : -ENOMEM, "%s", path);
}
