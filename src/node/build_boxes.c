#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/random.h"
#include "node/builder_impl.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/*
 * Sandboxes of a build: what its steps run in, and the one that proves that the result can be started. They are in no list, record or event, and survive nothing: they end with
 * their builder, and a node that starts anew sweeps them. What one has written becomes a layer when it is sealed: its disk is kept as it is.
 */

enum {
	PROBE_PATIENCE_S = 600,
	PROBE_LINES = 1000, /* of what its programs write, in the build's log */
	PROBE_PAGES = 16,   /* half of what init sends unasked */
	OTHERS_MB = 1024, /* of disk, at least, whatever the template will have */
};

enum box_stage { BOX_WAITS, BOX_STARTS, BOX_RUNS, BOX_SEALS, BOX_ENDS };

struct build_box {
	struct build_box *next;
	struct builder *builder;
	uint64_t number;
	enum box_stage stage;
	struct sandbox s;
	struct box *box;
	struct disk_entry disk;
	struct room_wait room;
	struct loop_timer *timer; /* of a probe */
	unsigned lines, pages;    /* ... of its log: that may come, that came */
	uint64_t request;         /* not answered yet; 0 = none */
	struct layer_record layer; /* being sealed */
	bool admitted, probe, keyed;
};

static struct msg_list layers_of(const struct build_box *x)
{
	struct msg_start start;
	return sandbox_start(&x->s, &start) < 0 ? (struct msg_list){STR("")} : start.layers;
}

static struct build_box *find(struct builder *b, uint64_t number)
{
	for (struct build_box *x = b->boxes; x; x = x->next)
		if (x->number == number && !x->probe)
			return x;
	return NULL;
}

static void box_free(struct build_box *x)
{
	struct builder *b = x->builder;
	struct node *n = b->node;
	struct build_box **at = &b->boxes;
	while (*at != x)
		at = &(*at)->next;
	*at = x->next;
	b->n_boxes--;
	if (b->probe == x)
		b->probe = NULL;
	disk_account_remove(n->disk, &x->disk);
	ready_forget_room(n, &x->room);
	if (x->admitted) {
		admission_give(&n->admission, x->s.memory_mb);
		admission_give_disk(&n->admission, x->s.disk_mb);
	}
	images_leave_all(&n->images, layers_of(x));
	loop_timer_free(x->timer);
	sandbox_done(&x->s);
	free(x);
	builder_let(b);
}

static void refuse(struct build_box *x, const struct error *err)
{
	if (x->request)
		builder_refuse(x->builder, x->request, err);
	x->request = 0;
}

/* Its processes are killed; released() follows. */
static void end(struct build_box *x)
{
	if (x->stage == BOX_ENDS)
		return;
	bool none = x->stage == BOX_WAITS;
	x->stage = BOX_ENDS;
	disk_account_remove(x->builder->node->disk, &x->disk);
	if (none)
		box_free(x);
	else if (x->box)
		box_kill(x->box);
}

/* What it is told */

static void probe_failed(struct build_box *x, const char *why)
{
	struct builder *b = x->builder;
	char reason[640];
	snprintf(reason, sizeof(reason), "a sandbox of the template did not become ready: %s", why);
	builder_hold(b);
	end(x);
	builder_fail(b, reason, "finalize");
	builder_let(b);
}

static void probe_passed(struct build_box *x)
{
	struct builder *b = x->builder;
	builder_hold(b);
	end(x);
	builder_succeed(b);
	builder_let(b);
}

static void on_probe_log(const struct msg_log_page *m, void *arg)
{
	struct build_box *x = arg;
	if (!m || x->stage != BOX_RUNS)
		return;
	build_start_log(x->builder, m->entries, &x->lines);
	if (!x->lines)
		box_follow_log(x->box, m->next, NULL, NULL);
	else if (++x->pages % PROBE_PAGES == 0)
		box_follow_log(x->box, m->next, on_probe_log, x);
}

static void on_started(struct box *box, const struct box_handle *h, const struct error *err, void *arg)
{
	struct build_box *x = arg;
	struct builder *b = x->builder;
	struct node *n = b->node;
	if (err) {
		x->box = NULL;
		builder_hold(b);
		if (x->probe && x->stage != BOX_ENDS)
			builder_fail(b, err->message, "finalize");
		refuse(x, err);
		box_free(x);
		builder_let(b);
		return;
	}
	if (x->stage != BOX_STARTS)
		return;
	x->stage = BOX_RUNS;
	FAULT(build_box_started);
	if (disk_account_add(n->disk, &x->disk, x->box, NULL, false) < 0)
		abort(); /* unwatched it could fill the host */
	if (!n->disk_awake || disk_account_zone(n->disk) != DISK_CALM)
		loop_timer_in(n->disk_timer, 0);
	if (x->probe) {
		x->lines = PROBE_LINES;
		if (!b->result->n_services)
			probe_passed(x);
		else
			box_follow_log(x->box, 0, on_probe_log, x);
		return;
	}
	struct msg_box_started m = {.box = x->number};
	builder_answer(b, x->request, MSG_ID_box_started, &m, -1);
	x->request = 0;
}

static void on_prepared(struct box *box, bool ready, const char *why, void *arg)
{
	struct build_box *x = arg;
	if (!x->probe || x->stage != BOX_RUNS)
		return;
	if (ready)
		probe_passed(x);
	else if (why)
		probe_failed(x, why);
}

static void on_died(struct box *box, const struct box_death *d, void *arg)
{
	struct build_box *x = arg;
	struct error err;
	if (x->probe && x->stage != BOX_ENDS) {
		probe_failed(x, *d->detail ? d->detail : d->reason);
		return;
	}
	error_set(&err, -ECONNRESET, 500, "the sandbox of the build ended: %s%s%s", d->reason, *d->detail ? ": " : "", d->detail);
	if (x->stage != BOX_SEALS)
		refuse(x, &err);
	if (x->stage == BOX_STARTS || x->stage == BOX_RUNS)
		end(x);
}

/* Nothing of it is left but, when it was sealed, its disk. */
static void on_released(struct box *box, void *arg)
{
	struct build_box *x = arg;
	x->box = NULL;
	if (x->stage == BOX_SEALS)
		return; /* the record is on its way */
	if (x->request)
		builder_answer(x->builder, x->request, MSG_ID_ok, NULL, -1);
	x->request = 0;
	box_free(x);
}

static const struct box_ops build_box_ops = {on_started, on_died, on_released, on_prepared};

/* Start */

int build_check_layers(const struct builder *b, struct msg_list layers, size_t most, struct error *err)
{
	struct str rest = layers.raw, file;
	size_t n = 0;
	for (; msg_list_next(&rest, &file); n++)
		if (!builder_uses(b, file))
			return error_set(err, -EPERM, 400, "the build has no layer %.*s", (int)MIN(file.n, 160u), file.p);
	if (n < 1 || n > most)
		return error_set(err, -EINVAL, 400, "layers: 1 to %zu", most);
	return 0;
}

static struct build_box *box_new(struct builder *b, bool probe)
{
	struct build_box *x = calloc(1, sizeof(*x));
	if (!x)
		abort(); /* see records.c */
	*x = (struct build_box){.next = b->boxes, .builder = b, .number = ++b->last_box, .probe = probe};
	b->boxes = x;
	b->n_boxes++;
	builder_hold(b);
	return x;
}

static void start_failed(struct build_box *x, const struct error *err)
{
	struct builder *b = x->builder;
	bool fails = x->probe && !b->ending;
	builder_hold(b);
	refuse(x, err);
	box_free(x);
	if (fails)
		builder_fail(b, err->message, "finalize");
	builder_let(b);
}

static void launch(void *arg)
{
	struct build_box *x = arg;
	struct node *n = x->builder->node;
	struct error err = {0};
	if (admission_take(&n->admission, x->s.memory_mb, x->s.disk_mb, &err) < 0) {
		if (!ready_make_room(n, &x->room, x->s.memory_mb, x->s.disk_mb, launch, x))
			start_failed(x, &err);
		return;
	}
	x->admitted = true;
	x->box = x->probe ? node_start_unassigned(n, &x->s, &build_box_ops, x, &err) : node_start_box(n, &x->s, NULL, &build_box_ops, x, &err);
	if (!x->box)
		start_failed(x, &err);
	else
		x->stage = BOX_STARTS;
}

static int describe(struct build_box *x, const struct msg_start_box *m, struct error *err)
{
	struct node *n = x->builder->node;
	const struct build_record *r = &x->builder->build->r;
	const struct options *o = n->options;
	struct sandbox *s = &x->s;
	cleanup_buf struct buf envs = BUF_INIT;
	*s = (struct sandbox){.state = SANDBOX_CREATING, .end_at = SANDBOX_NEVER, .deadline = SANDBOX_NEVER, .shutdown_at = SANDBOX_NEVER, .shutdown = SANDBOX_NEVER, .public_traffic = true};
	memcpy(s->boot_id, n->host->boot_id, sizeof(s->boot_id));
	live_new_identity(n, s);
	memset(s->envd_token, 0, sizeof(s->envd_token));
	if (m->token.n < 16 || !sandbox_copy(s->envd_token, sizeof(s->envd_token), m->token))
		return error_set(err, -EINVAL, 400, "token: 16 to %d characters", SANDBOX_TOKEN);
	if (!m->user.n || m->user.n > 32 || memchr(m->user.p, '\0', m->user.n))
		return error_set(err, -EINVAL, 400, "user: 1 to 32 characters");
	memcpy(s->template_id, r->template_id, sizeof(r->template_id));
	s->cpu_count = r->cpu_count ? r->cpu_count : (uint32_t)o->sandbox_cpu;
	s->memory_mb = r->memory_mb ? r->memory_mb : (uint32_t)o->sandbox_memory;
	s->disk_mb = MAX(r->disk_mb ? r->disk_mb : (uint32_t)o->sandbox_disk, (uint32_t)OTHERS_MB);
	uint64_t none = 0;
	int e = live_merge_envs(s, (struct msg_map){STR("")}, &none, (struct msg_map){STR("")}, &envs, err);
	struct msg_start start = {.layers = m->layers, .user = m->user, .workdir = STR(""), .envs = {buf_str(&envs)}, .services = {STR("")}};
	/* What it writes is read by this machine's kernel afterwards, so it must have been written by that: in namespaces, whatever the server's sandboxes run in. */
	msg_set(&start, start, isolation, STR("namespace"));
	return e < 0 ? e : msg_encode(MSG_ID_start, &start, 0, &s->start, err);
}

void build_box_start(struct builder *b, uint64_t request, const struct msg_start_box *m)
{
	struct error err = {0};
	if (b->n_boxes >= BUILDER_BOXES_MOST)
		error_set(&err, -EAGAIN, 400, "at most %d sandboxes", BUILDER_BOXES_MOST);
	else
		build_check_layers(b, m->layers, BOX_MAX_LAYERS, &err);
	if (err.code) {
		builder_refuse(b, request, &err);
		return;
	}
	struct build_box *x = box_new(b, false);
	x->request = request;
	if (describe(x, m, &err) < 0) {
		builder_refuse(b, request, &err);
		box_free(x);
		return;
	}
	images_use_all(&b->node->images, layers_of(x));
	launch(x);
}

static void on_probe_patience(struct loop_timer *t, void *arg)
{
	struct build_box *x = arg;
	char why[64];
	snprintf(why, sizeof(why), "ready command failed: not within %d s", PROBE_PATIENCE_S);
	probe_failed(x, why);
}

void build_box_probe(struct builder *b)
{
	struct error err = {0};
	struct node *n = b->node;
	struct build_box *x = b->probe = box_new(b, true);
	x->timer = loop_timer_new(n->loop, on_probe_patience, x);
	if (!x->timer || loop_timer_in(x->timer, PROBE_PATIENCE_S * NS_PER_S) < 0)
		abort();
	if (live_fill_ready(n, &x->s, b->result, &err) < 0) {
		start_failed(x, &err);
		return;
	}
	images_use_all(&n->images, layers_of(x));
	launch(x);
}

/* Ports */

struct box_opening {
	struct builder *builder;
	uint64_t request;
	unsigned port;
	char generation[SANDBOX_GENERATION + 1];
};

static void opened(int fd_or_error, void *arg)
{
	struct box_opening *o = arg;
	cleanup_fd int fd = fd_or_error;
	struct error err;
	struct msg_stream m = {.generation = str_of(o->generation)};
	if (fd >= 0) {
		fd_set_nonblock(fd, false); /* a builder waits */
		builder_answer(o->builder, o->request, MSG_ID_stream, &m, fd);
	} else {
		error_set(&err, fd, 502, "port %u: %s", o->port, strerror(-fd));
		builder_refuse(o->builder, o->request, &err);
	}
	o->builder->n_opening--;
	builder_let(o->builder);
	free(o);
}

void build_box_open(struct builder *b, uint64_t request, const struct msg_open_box *m)
{
	struct error err = {0};
	struct build_box *x = find(b, m->box);
	struct box_opening *o = NULL;
	if (!x || x->stage != BOX_RUNS)
		error_set(&err, -ENOENT, 404, "the build has no such sandbox");
	else if (m->port < 1 || m->port > 65535)
		error_set(&err, -EINVAL, 400, "port: 1 to 65535");
	else if (b->n_opening >= BUILDER_OPENING_MOST)
		error_set(&err, -EAGAIN, 400, "at most %d ports are opened at once", BUILDER_OPENING_MOST);
	else if (!(o = calloc(1, sizeof(*o))))
		error_errno(&err, -ENOMEM, "open");
	if (o) {
		*o = (struct box_opening){.builder = b, .request = request, .port = (unsigned)m->port};
		memcpy(o->generation, x->s.generation, sizeof(o->generation));
		int r = box_open(x->box, (uint16_t)m->port, opened, o);
		if (r < 0) {
			free(o);
			error_set(&err, r, 503, "port %llu: %s", (unsigned long long)m->port, strerror(-r));
		} else {
			b->n_opening++;
			builder_hold(b);
		}
	}
	if (err.code)
		builder_refuse(b, request, &err);
}

/* The end, with and without a layer */

static void sealed(const struct error *err, void *arg)
{
	struct build_box *x = arg;
	struct builder *b = x->builder;
	struct msg_layer m = {0};
	if (err) {
		refuse(x, err);
	} else {
		FAULT(build_layer_recorded);
		msg_set(&m, layer, file, str_of(x->layer.file));
		msg_set(&m, layer, size, x->layer.size);
		msg_set(&m, layer, found, false);
		builder_answer(b, x->request, MSG_ID_layer, &m, -1);
		x->request = 0;
	}
	builder_hold(b);
	if (x->keyed)
		layers_give(b, str_of(x->layer.key));
	x->stage = BOX_ENDS;
	if (!x->box)
		box_free(x);
	builder_let(b);
}

static void saved(const struct error *err, void *arg)
{
	struct build_box *x = arg;
	struct builder *b = x->builder;
	struct node *n = b->node;
	char path[PATH_MAX];
	struct stat st;
	if (err) {
		sealed(err, x);
		return;
	}
	FAULT(build_box_sealed);
	snprintf(path, sizeof(path), "%s/%s", n->directory, x->layer.file);
	x->layer.size = lstat(path, &st) == 0 ? MAX((uint64_t)st.st_blocks * 512, UINT64_C(1)) : 1;
	x->layer.used_at = node_realtime(n);
	builder_made(b, str_of(x->layer.file), x->layer.size);
	if (x->keyed)
		layers_made(n, &x->layer, sealed, x);
	else
		sealed(NULL, x);
}

void build_box_seal(struct builder *b, uint64_t request, const struct msg_seal_box *m)
{
	struct error err = {0};
	char name[21];
	struct build_box *x = find(b, m->box);
	bool keyed = msg_has(m, seal_box, key) && m->key.n;
	if (!x || x->stage != BOX_RUNS)
		error_set(&err, -ENOENT, 404, "the build has no such sandbox");
	/* A key of blobs says what is in them. */
	else if (keyed && (memchr(m->key.p, '\0', m->key.n) || str_starts(m->key, STR("oci:"))))
		error_set(&err, -EINVAL, 400, "key: not of a sandbox's layer");
	if (!err.code) {
		random_text(name, 20, "abcdefghijklmnopqrstuvwxyz0123456789");
		snprintf(x->layer.file, sizeof(x->layer.file), "images/b%s.img", name);
		if (keyed)
			layers_key(b, m->key, x->layer.key);
		x->keyed = keyed;
		x->request = request;
		x->stage = BOX_SEALS;
		disk_account_remove(b->node->disk, &x->disk);
		int r = box_save(x->box, x->layer.file, saved, x);
		if (r == 0)
			return;
		x->request = 0;
		error_set(&err, r, 500, "the sandbox cannot be sealed: %s", strerror(-r));
		x->stage = BOX_RUNS;
		end(x);
	}
	builder_refuse(b, request, &err);
}

void build_box_end(struct builder *b, uint64_t request, const struct msg_end_box *m)
{
	struct error err;
	struct build_box *x = find(b, m->box);
	if (!x || x->stage == BOX_SEALS || x->stage == BOX_ENDS) {
		error_set(&err, -ENOENT, 404, "the build has no such sandbox");
		builder_refuse(b, request, &err);
		return;
	}
	if (x->request) {
		error_set(&err, -ECANCELED, 409, "the sandbox is ended");
		refuse(x, &err);
	}
	if (x->stage == BOX_WAITS)
		builder_answer(b, request, MSG_ID_ok, NULL, -1);
	else
		x->request = request;
	end(x);
}

void build_boxes_end(struct builder *b)
{
	for (struct build_box *x = b->boxes, *next; x; x = next) {
		next = x->next;
		if (x->stage != BOX_SEALS)
			end(x);
	}
}

bool builders_ended_for_disk(struct node *n, struct disk_entry *e, const char *detail)
{
	map_foreach(&n->builds->by_id, s)
	{
		struct builder *b = ((struct build *)s->value)->builder;
		for (struct build_box *x = b ? b->boxes : NULL; x; x = x->next)
			if (&x->disk == e) {
				char reason[320];
				snprintf(reason, sizeof(reason), "a sandbox of the build was ended: %s", detail);
				builder_fail(b, reason, b->build->r.step);
				return true;
			}
	}
	return false;
}

void build_boxes_forget(struct builder *b)
{
	while (b->boxes) {
		struct build_box *x = b->boxes;
		b->boxes = x->next;
		disk_account_remove(b->node->disk, &x->disk);
		loop_timer_free(x->timer);
		sandbox_done(&x->s);
		free(x);
	}
}
