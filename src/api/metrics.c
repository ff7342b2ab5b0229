#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "node/metrics.h"

#include <errno.h>

/* GET /sandboxes/{id}/metrics and GET /sandboxes/metrics (e2b.md A.5.4). */

enum { SAMPLES_MAX = METRICS_FINE + METRICS_COARSE };

/* Also the room for the answer of several. */
struct metrics_work {
	int64_t start, end; /* ns, both inclusive */
	bool has_ids;
	char text[4096]; /* sandbox_ids as given */
	size_t n; /* bytes of the text, or samples */
	struct metrics_sample samples[SAMPLES_MAX];
};

/* {timestamp, ...} without the brackets. */
static void out_sample(struct out *o, const struct metrics_sample *s)
{
	out_time(o, "timestamp", s->at);
	out_int(o, "timestampUnix", s->at / NS_PER_S);
	out_int(o, "cpuCount", s->cpu_count);
	out_hundredths(o, "cpuUsedPct", s->cpu_percent);
	out_int(o, "memUsed", (int64_t)s->mem_used);
	out_int(o, "memTotal", (int64_t)s->mem_total);
	out_int(o, "memCache", (int64_t)s->mem_cache);
	out_int(o, "diskUsed", (int64_t)s->disk_used);
	out_int(o, "diskTotal", (int64_t)s->disk_total);
}

static struct metrics_work *work_new(struct api_request *r)
{
	struct metrics_work *w = r->work = calloc(1, sizeof(*w));
	if (!w)
		api_failf(r, 503, "the server is out of memory");
	else
		w->end = INT64_MAX;
	return w;
}

/* --- one sandbox --- */

static int parse_seconds(const char *name, struct str value, int64_t *ret, struct error *err)
{
	int64_t s;
	if (str_to_i64(value, &s) < 0 || s < 0 || s >= INT64_MAX / NS_PER_S)
		return error_set(err, -EINVAL, 400, "%s must be a time in seconds since 1970", name);
	*ret = s * NS_PER_S;
	return 0;
}

static int parse_range(struct str name, struct str value, void *arg, struct error *err)
{
	struct metrics_work *w = arg;
	if (str_is(name, "start"))
		return parse_seconds("start", value, &w->start, err);
	return str_is(name, "end") ? parse_seconds("end", value, &w->end, err) : 0;
}

static void answer_one(struct api_request *r)
{
	const struct metrics_work *w = r->work;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < w->n; i++) {
		out_open(&o, NULL, '{');
		out_sample(&o, &w->samples[i]);
		out_close(&o, '}');
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

static void page_read(const struct node_answer *a, void *arg);

static void read_page(struct api_request *r)
{
	struct metrics_work *w = r->work;
	struct error err = {0};
	struct msg_metrics m = {0};
	msg_set(&m, metrics, sandbox, str_of(r->sandbox));
	msg_set(&m, metrics, start, w->n ? w->samples[w->n - 1].at + 1 : w->start);
	msg_set(&m, metrics, end, w->end);
	api_wait(r, node_metrics(r->api->config.node, &m, page_read, r, &err), &err);
}

static void page_read(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct metrics_work *w = r->work;
	r->call = NULL;
	if (a->err) {
		api_fail_call(r, a->err);
		return;
	}
	struct str page = a->body->metrics_page.samples;
	size_t n = MIN(page.n / sizeof(w->samples[0]), SAMPLES_MAX - w->n);
	if (n)
		memcpy(&w->samples[w->n], page.p, n * sizeof(w->samples[0]));
	w->n += n;
	if (n && a->body->metrics_page.more && w->n < SAMPLES_MAX)
		read_page(r);
	else
		answer_one(r);
}

void handle_metrics(struct api_request *r)
{
	struct error err = {0};
	struct metrics_work *w = work_new(r);
	if (!w)
		return;
	int e = decode_query(r->http->head->query, parse_range, w, &err);
	if (e == 0 && w->start > w->end)
		e = error_set(&err, -EINVAL, 400, "start must not be after end");
	if (e < 0)
		api_fail(r, &err);
	else if (api_sandbox(r, false))
		read_page(r);
}

/* --- several --- */

static int parse_ids(struct str name, struct str value, void *arg, struct error *err)
{
	struct metrics_work *w = arg;
	if (!str_is(name, "sandbox_ids"))
		return 0;
	if (w->n + value.n + 1 > sizeof(w->text))
		return error_set(err, -E2BIG, 400, "sandbox_ids: at most %d sandboxes", METRICS_BATCH);
	/* Given several times it is one list. */
	if (w->has_ids)
		w->text[w->n++] = ',';
	memcpy(w->text + w->n, value.p, value.n);
	w->n += value.n;
	w->has_ids = true;
	return 0;
}

static void several_read(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct metrics_newest x;
	if (!api_called(r, a))
		return;
	out_open(&o, NULL, '{');
	out_open(&o, "sandboxes", '{');
	for (struct str rest = a->body->metrics_page.samples; rest.n >= sizeof(x); rest = str_from(rest, sizeof(x))) {
		memcpy(&x, rest.p, sizeof(x));
		x.id[sizeof(x.id) - 1] = 0;
		out_open(&o, x.id, '{');
		out_sample(&o, &x.sample);
		out_close(&o, '}');
	}
	out_close(&o, '}');
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

/* Those of the list that the team may see; others are just not there. The number of those asked for, or -EINVAL. */
static int choose(struct api_request *r, struct str list, struct buf *to, struct error *err)
{
	int asked = 0;
	struct str rest = list, item, id;
	for (bool more = list.n > 0; more;) {
		more = str_cut(rest, ',', &item, &rest);
		if (!more)
			item = rest;
		if (++asked > METRICS_BATCH)
			return error_set(err, -E2BIG, 400, "sandbox_ids: at most %d sandboxes", METRICS_BATCH);
		if (decode_sandbox_id(item, &id, err) < 0)
			return err->code;
		const struct index_sandbox *s = index_find(r->api->config.index, id);
		if (s && str_eq(s->team, r->team) && (index_is_running(s) || index_is_paused(s)))
			msg_list_add(to, s->id);
	}
	return to->failed ? error_errno(err, -ENOMEM, "metrics") : asked;
}

void handle_metrics_of_several(struct api_request *r)
{
	struct error err = {0};
	cleanup_buf struct buf ids = BUF_INIT;
	struct metrics_work *w = work_new(r);
	if (!w)
		return;
	if (!api_query(r, parse_ids, w))
		return;
	if (!w->n) {
		api_failf(r, 400, "sandbox_ids is missing: ids of sandboxes, separated by commas");
		return;
	}
	if (!api_index_ready(r))
		return;
	if (choose(r, str_n(w->text, w->n), &ids, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_metrics m = {0};
	msg_set(&m, metrics, sandboxes, (struct msg_list){buf_str(&ids)});
	api_wait(r, node_metrics(r->api->config.node, &m, several_read, r, &err), &err);
}
