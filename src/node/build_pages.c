#include "node/builds.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "io/workq.h"

#include <fcntl.h>
#include <stdio.h>

/* What is told of templates and builds. */

enum { ERROR_MOST = 500 };

static void set_text(struct str *field, uint64_t *present, unsigned tag, const char *text)
{
	if (!*text)
		return;
	*field = str_of(text);
	*present |= UINT64_C(1) << tag;
}

/* tag → "build created_at" */
static int put_tags(const struct team_template *t, struct buf *to)
{
	for (size_t i = 0; i < t->n_tags; i++) {
		char value[80];
		int n = snprintf(value, sizeof(value), "%s %lld", t->tags[i].build->r.id, (long long)t->tags[i].created_at);
		msg_map_add(to, str_of(t->tags[i].name), str_n(value, (size_t)n));
	}
	return to->failed ? -ENOMEM : 0;
}

static void send_template(struct peer *p, const struct team_template *t, bool gone)
{
	const struct node *n = p->node;
	const struct options *o = n->options;
	const struct build *shown = team_build_main(t);
	const struct template *ready = shown ? templates_find_build(n->templates, str_of(shown->r.id)) : NULL;
	cleanup_buf struct buf tags = BUF_INIT;
	uint64_t builds = 0;
	uint32_t cpu = ready ? ready->cpu_count : t->r.cpu_count, memory = ready ? ready->memory_mb : t->r.memory_mb, disk = ready ? ready->disk_mb : t->r.disk_mb;
	for (const struct build *b = t->builds; b; b = b->older)
		builds++;
	struct msg_template m = {
		.id = str_of(t->r.id), .created_at = t->r.created_at, .build_id = str_of(shown ? shown->r.id : ""), .size = ready ? template_size(ready) : 0,
		.cpu_count = cpu ? cpu : (uint64_t)o->sandbox_cpu, .memory_mb = memory ? memory : (uint64_t)o->sandbox_memory, .disk_mb = disk ? disk : (uint64_t)o->sandbox_disk,
	};
	set_text(&m.alias, &m.present, MSG_TAG_template_alias, t->r.name);
	msg_set(&m, template, team, str_of(t->r.team));
	msg_set(&m, template, public, t->r.public);
	msg_set(&m, template, kind, str_of(t->r.kind));
	if (put_tags(t, &tags) == 0)
		msg_set(&m, template, tags, (struct msg_map){buf_str(&tags)});
	msg_set(&m, template, updated_at, t->r.updated_at);
	msg_set(&m, template, build_count, builds);
	if (t->builds) {
		struct str reason = str_of(t->builds->r.reason);
		msg_set(&m, template, status, str_of(team_build_status_name(t->builds->r.status)));
		/* No letter is cut in two. */
		for (reason.n = MIN(reason.n, (size_t)ERROR_MOST); reason.n && ((unsigned char)reason.p[reason.n] & 0xc0) == 0x80;)
			reason.n--;
		if (reason.n)
			msg_set(&m, template, last_error, reason);
	}
	set_text(&m.reference, &m.present, MSG_TAG_template_reference, t->r.reference);
	set_text(&m.source, &m.present, MSG_TAG_template_source, t->r.source);
	if (gone)
		msg_set(&m, template, gone, true);
	if (p->chan)
		chan_send(p->chan, MSG_ID_template, &m, 0, NULL, 0, NULL);
}

void team_build_tell(struct node *n, const struct team_template *t, bool gone)
{
	if (n->front && n->front->subscribed)
		send_template(n->front, t, gone);
}

void builds_tell(struct peer *p)
{
	map_foreach(&p->node->builds->templates, s)
	{
		const struct team_template *t = s->value;
		if (t->builds && !(t->builds->recording && !t->builds->older && t->builds->r.status == BUILD_WAITING))
			send_template(p, t, false);
	}
}

/* A page of a build */

static void answer_page(struct request *r, const struct build *b, const struct build_log *log, const struct msg_build_status *m)
{
	cleanup_buf struct buf entries = BUF_INIT;
	uint64_t next = team_build_log_page(log, m, &entries);
	struct msg_build_page page = {
		.template = str_of(b->of->r.id), .build = str_of(b->r.id), .status = str_of(team_build_status_name(b->r.status)), .kind = str_of(b->r.kind), .phase = str_of(b->r.phase),
		.progress = b->r.status == BUILD_READY ? 100 : b->progress, .entries = buf_str(&entries), .next = next, .created_at = b->r.created_at,
	};
	/* Until the end is recorded it is none. */
	if (b->recording && (b->r.status == BUILD_READY || b->r.status == BUILD_ERROR))
		page.status = STR("building");
	else if (b->r.status == BUILD_ERROR) {
		msg_set(&page, build_page, reason, str_of(b->r.reason));
		set_text(&page.step, &page.present, MSG_TAG_build_page_step, b->r.step);
	}
	if (b->r.finished_at)
		msg_set(&page, build_page, finished_at, b->r.finished_at);
	request_answer(r, MSG_ID_build_page, &page, -1);
}

/* From the file of one that has ended. */
struct log_reading {
	struct node *node;
	struct request *request;
	struct msg_build_status m; /* its views are not used */
	char team[65], build[37], path[PATH_MAX];
	struct build_log log;
	int result;
};

static void read_work(void *arg)
{
	struct log_reading *x = arg;
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, x->path, BUILD_LOG_MOST + 65536, &text);
	x->result = r == -ENOENT ? 0 : r < 0 ? r : team_build_log_read(&x->log, buf_str(&text));
}

static void read_done(void *arg)
{
	struct log_reading *x = arg;
	struct node *n = x->node;
	struct error err = {0};
	const struct build *b = team_build_find(n, str_of(x->team), str_of(x->build));
	if (!b)
		error_set(&err, -ENOENT, 404, "build '%s' not found", x->build);
	else if (x->result < 0)
		error_errno(&err, x->result, "log of build %s", x->build);
	if (err.code)
		request_fail(x->request, &err);
	else
		answer_page(x->request, b, &x->log, &x->m);
	team_build_log_done(&x->log);
	free(x);
	n->builds->busy--;
	node_stop_check(n);
}

void team_build_status(struct node *n, struct request *r, const struct msg_build_status *m)
{
	struct error err = {0};
	const struct build *b = team_build_find(n, m->team, m->build);
	if (!b || (msg_has(m, build_status, template) && !str_is(m->template, b->of->r.id)))
		error_set(&err, -ENOENT, 404, "build '%.*s' not found", STR_FMT(m->build));
	else if (m->limit < 1 || m->limit > 100)
		error_set(&err, -EINVAL, 400, "limit: 1 to 100");
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	if (b->logging || b->r.status == BUILD_WAITING) {
		answer_page(r, b, &b->log, m);
		return;
	}
	struct log_reading *x = calloc(1, sizeof(*x));
	if (!x)
		abort();
	x->node = n;
	x->request = r;
	x->m = *m;
	sandbox_copy(x->team, sizeof(x->team), m->team);
	memcpy(x->build, b->r.id, sizeof(x->build));
	team_build_log_path(n, b->r.id, x->path);
	n->builds->busy++;
	if (workq_push(n->builds->reader, n->loop, read_work, read_done, x) < 0) {
		n->builds->busy--;
		error_set(&err, -EAGAIN, 503, "too many logs are being read");
		request_fail(r, &err);
		free(x);
	}
}

/* The builds of a template */

enum { LIST_MOST = 100, LIST_BYTES = 49152 };

static int put_build(const struct build *b, struct buf *to)
{
	const struct options *o = b->node->options;
	cleanup_buf struct buf item = BUF_INIT, tags = BUF_INIT;
	char text[24];
	msg_list_add(&item, str_of(b->r.id));
	msg_list_add(&item, str_of(team_build_status_name(b->r.status)));
	snprintf(text, sizeof(text), "%lld", (long long)b->r.created_at);
	msg_list_add(&item, str_of(text));
	snprintf(text, sizeof(text), "%lld", (long long)b->r.finished_at);
	msg_list_add(&item, b->r.finished_at ? str_of(text) : STR(""));
	const int64_t sizes[] = {b->r.cpu_count ? b->r.cpu_count : o->sandbox_cpu, b->r.memory_mb ? b->r.memory_mb : o->sandbox_memory, b->r.disk_mb ? b->r.disk_mb : o->sandbox_disk};
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		snprintf(text, sizeof(text), "%lld", (long long)sizes[i]);
		msg_list_add(&item, str_of(text));
	}
	for (size_t i = 0; i < b->of->n_tags; i++)
		if (b->of->tags[i].build == b)
			buf_addf(&tags, "%s%s", buf_len(&tags) ? "," : "", b->of->tags[i].name);
	msg_list_add(&item, buf_str(&tags));
	msg_list_add(&item, str_of(b->r.status == BUILD_ERROR ? b->r.reason : ""));
	return item.failed ? -ENOMEM : msg_list_add(to, buf_str(&item));
}

void team_build_list(struct node *n, struct request *r, const struct msg_builds *m)
{
	struct error err = {0};
	cleanup_buf struct buf list = BUF_INIT;
	const struct team_template *t = team_build_find_template(n, m->team, m->template);
	const struct build *b = t ? t->builds : NULL;
	if (!t)
		error_set(&err, -ENOENT, 404, "template '%.*s' not found", STR_FMT(m->template));
	else if (m->limit < 1 || m->limit > LIST_MOST)
		error_set(&err, -EINVAL, 400, "limit: 1 to %d", LIST_MOST);
	while (!err.code && msg_has(m, builds, after) && b && !str_is(m->after, b->r.id))
		b = b->older;
	if (b && msg_has(m, builds, after))
		b = b->older;
	for (uint64_t i = 0; !err.code && b && i < m->limit; i++, b = b->older) {
		size_t before = buf_len(&list);
		if (put_build(b, &list) < 0)
			error_errno(&err, -ENOMEM, "builds");
		if (buf_len(&list) > LIST_BYTES - 16384 && before < buf_len(&list) && b->older) {
			b = b->older;
			break;
		}
	}
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	struct msg_builds_page page = {.builds = {buf_str(&list)}, .more = b != NULL};
	request_answer(r, MSG_ID_builds_page, &page, -1);
}
