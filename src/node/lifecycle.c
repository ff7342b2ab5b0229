#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "node/idempotency.h"
#include "node/snapshots.h"

#include <stdio.h>

/* A sandbox from create to gone. Every step is: record the intent, act, record the result, tell. */

struct live *live_find(struct node *n, struct str id)
{
	return map_get(&n->live, id);
}

/* Its create or fork is over, one way or the other. */
static void live_landed(struct live *l)
{
	if (l->in_flight)
		ready_creating(l->node, false);
	l->in_flight = false;
}

struct live *live_new(struct node *n, struct sandbox *s)
{
	struct live *l = calloc(1, sizeof(*l));
	if (!l || map_put(&n->live, str_of(s->id), l, NULL) < 0) {
		free(l);
		return NULL;
	}
	l->node = n;
	l->s = *s;
	if (idempotency_take(l) < 0) {
		map_del(&n->live, str_of(s->id));
		free(l);
		return NULL;
	}
	images_use_all(&n->images, live_layers(l));
	return l;
}

struct msg_list live_layers(const struct live *l)
{
	struct msg_start start;
	return sandbox_start(&l->s, &start) < 0 ? (struct msg_list){STR("")} : start.layers;
}

void live_free(struct live *l)
{
	struct node *n = l->node;
	map_del(&n->live, str_of(l->s.id));
	idempotency_give(l);
	live_forget_shot(l);
	images_leave_all(&n->images, live_layers(l));
	live_landed(l);
	ready_forget(l);
	ready_forget_room(n, &l->room);
	deadlines_remove(&n->deadlines, &l->deadline);
	deadlines_remove(&n->shutdowns, &l->shutdown);
	disk_account_remove(n->disk, &l->disk);
	live_give_all(l);
	live_unhold_disk(l);
	sampling_free(l);
	logs_free(l);
	loop_timer_free(l->retry);
	live_network_ended(l);
	sandbox_done(&l->s);
	live_resolved(l);
	free(l);
	node_stop_check(n);
}

void live_give_memory(struct live *l)
{
	if (l->admitted)
		admission_give(&l->node->admission, l->s.memory_mb);
	l->admitted = false;
}

void live_give_all(struct live *l)
{
	live_give_memory(l);
	if (l->disk_admitted)
		admission_give_disk(&l->node->admission, l->s.disk_mb);
	l->disk_admitted = false;
}

/* Create */

static int check_text(struct str s, const char *what, struct error *err)
{
	return s.n && !memchr(s.p, 0, s.n) ? 0 : error_set(err, -EINVAL, 400, "%s: must not be empty or hold NUL bytes", what);
}

static int check_create(const struct node *n, const struct msg_create *m, struct error *err)
{
	int r = check_new_timeout(n, m->timeout, err);
	if (r == 0)
		r = check_shutdown(m, err);
	return r < 0 ? r : check_text(m->team, "team", err);
}

static bool is_ours(struct str key)
{
	return str_is(key, "E2B_SANDBOX") || str_is(key, "E2B_SANDBOX_ID") || str_is(key, "E2B_TEMPLATE_ID");
}

/* Each variable once: it may be long. */
static bool has_key(struct msg_map map, struct str wanted)
{
	struct str rest = map.raw, key, value;
	while (msg_map_next(&rest, &key, &value))
		if (str_eq(key, wanted))
			return true;
	return false;
}

int live_merge_envs(const struct sandbox *s, struct msg_map inherited, uint64_t *n_first, struct msg_map given, struct buf *to, struct error *err)
{
	struct str rest = inherited.raw, key, value;
	uint64_t kept = 0;
	for (uint64_t i = 0; msg_map_next(&rest, &key, &value); i++) {
		if (is_ours(key) || has_key(given, key))
			continue;
		msg_map_add(to, key, value);
		kept += i < *n_first;
	}
	*n_first = kept;
	rest = given.raw;
	while (msg_map_next(&rest, &key, &value)) {
		if (!key.n || memchr(key.p, '=', key.n) || memchr(key.p, 0, key.n) || memchr(value.p, 0, value.n))
			return error_set(err, -EINVAL, 400, "envVars: a name is empty or holds '=', or NUL bytes are in it");
		if (is_ours(key))
			continue;
		msg_map_add(to, key, value);
	}
	msg_map_add(to, STR("E2B_SANDBOX"), STR("true"));
	msg_map_add(to, STR("E2B_SANDBOX_ID"), str_of(s->id));
	msg_map_add(to, STR("E2B_TEMPLATE_ID"), str_of(s->template_id));
	if (to->failed)
		return error_errno(err, -ENOMEM, "envVars");
	if (buf_len(to) > ENVS_MAX)
		return error_set(err, -EINVAL, 400, "envVars: longer than %d bytes in all", ENVS_MAX);
	return 0;
}

void live_new_identity(struct node *n, struct sandbox *s)
{
	do
		sandbox_new_id(s->id);
	while (map_get(&n->live, str_of(s->id)));
	sandbox_new_generation(s->generation);
	sandbox_derive_tokens(s, n->key);
}

void live_take_identity(struct live *l, const char *id)
{
	struct node *n = l->node;
	struct sandbox *s = &l->s;
	struct msg_start start;
	struct error err;
	cleanup_buf struct buf envs = BUF_INIT, all = BUF_INIT;
	map_del(&n->live, str_of(s->id));
	live_new_identity(n, s);
	if (id)
		memcpy(s->id, id, sizeof(s->id));
	sandbox_derive_tokens(s, n->key);
	int r = sandbox_start(s, &start);
	if (r == 0)
		r = live_merge_envs(s, start.envs, &start.template_envs, (struct msg_map){STR("")}, &envs, &err);
	start.envs.raw = buf_str(&envs);
	if (r == 0)
		r = msg_encode(MSG_ID_start, &start, 0, &all, &err);
	if (r < 0 || map_put(&n->live, str_of(s->id), l, NULL) < 0)
		abort(); /* no memory: see records.c */
	buf_done(&s->start);
	s->start = all;
	all = BUF_INIT;
}

/* What is needed of the template, now and whenever it is started again: the template may be gone by then. */
static int start_of_template(const struct node *n, struct sandbox *s, const struct template *t, struct msg_map envs, struct error *err)
{
	cleanup_buf struct buf all = BUF_INIT, layers = BUF_INIT, services = BUF_INIT, ready = BUF_INIT, options = BUF_INIT;
	uint64_t template_envs = UINT64_MAX;
	const char *isolation = backend_isolation(n->backend, str_of(t->isolation), err);
	if (!isolation)
		return -EOPNOTSUPP;
	int r = live_merge_envs(s, template_env(t, t->env), &template_envs, envs, &all, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < t->n_layers; i++)
		msg_list_add(&layers, str_of(t->layers[i].file));
	if (layers.failed || template_encode_services(t, &services) < 0 || template_encode_ready(t, &ready) < 0 || template_encode_service_options(t, &options) < 0)
		return error_errno(err, -ENOMEM, "create");
	struct msg_start m = {
		.layers = {buf_str(&layers)}, .user = str_of(t->user), .workdir = str_of(t->workdir), .envs = {buf_str(&all)},
		.services = {buf_str(&services)}, .nested_userns = t->nested_userns, .no_setuid = t->no_setuid,
	};
	if (buf_len(&ready))
		msg_set(&m, start, ready, (struct msg_list){buf_str(&ready)});
	if (buf_len(&options))
		msg_set(&m, start, service_options, (struct msg_list){buf_str(&options)});
	if (template_envs)
		msg_set(&m, start, template_envs, template_envs);
	if (t->probe.port)
		msg_set(&m, start, probe_port, t->probe.port);
	if (*t->probe.path)
		msg_set(&m, start, probe_path, str_of(t->probe.path));
	if (t->wait_ready)
		msg_set(&m, start, wait_ready, true);
	msg_set(&m, start, isolation, str_of(isolation));
	return msg_encode(MSG_ID_start, &m, 0, &s->start, err);
}

static int from_template(struct node *n, struct sandbox *s, const struct template *t, struct msg_map envs, struct error *err)
{
	const struct options *o = n->options;
	s->cpu_count = t->cpu_count ? t->cpu_count : (uint32_t)o->sandbox_cpu;
	s->memory_mb = t->memory_mb ? t->memory_mb : (uint32_t)o->sandbox_memory;
	s->disk_mb = t->disk_mb ? t->disk_mb : (uint32_t)o->sandbox_disk;
	sandbox_copy(s->template_id, sizeof(s->template_id), str_of(t->id));
	sandbox_copy(s->alias, sizeof(s->alias), str_of(t->alias));
	sandbox_copy(s->build, sizeof(s->build), str_of(t->build_id));
	return start_of_template(n, s, t, envs, err);
}

/* As what the snapshot was made of was started, on its disk; its variables are there, too, but for those given anew. */
static int from_snapshot(struct node *n, struct sandbox *s, const struct snapshot_record *from, struct msg_map envs, struct error *err)
{
	struct msg_start m;
	cleanup_buf struct buf all = BUF_INIT, layers = BUF_INIT;
	const struct template *t = templates_find(n->templates, str_of(from->template_id));
	if (start_decode(&from->start, &m) < 0)
		return error_set(err, -EPROTO, 500, "the record of snapshot %s is damaged", from->id);
	s->cpu_count = from->cpu_count;
	s->memory_mb = from->memory_mb;
	s->disk_mb = from->disk_mb;
	memcpy(s->template_id, from->template_id, sizeof(s->template_id));
	sandbox_copy(s->alias, sizeof(s->alias), str_of(t ? t->alias : ""));
	sandbox_copy(s->origin, sizeof(s->origin), str_of(from->id));
	int r = live_merge_envs(s, m.envs, &m.template_envs, envs, &all, err);
	if (r == 0)
		r = snapshot_layers(from, &layers, err);
	if (r < 0)
		return r;
	m.envs.raw = buf_str(&all);
	m.layers.raw = buf_str(&layers);
	return msg_encode(MSG_ID_start, &m, 0, &s->start, err);
}

int live_fill_ready(struct node *n, struct sandbox *s, const struct template *t, struct error *err)
{
	*s = (struct sandbox){.state = SANDBOX_CREATING, .end_at = SANDBOX_NEVER, .deadline = SANDBOX_NEVER, .secure = true, .public_traffic = true};
	memcpy(s->boot_id, n->host->boot_id, sizeof(s->boot_id));
	live_new_identity(n, s);
	return from_template(n, s, t, (struct msg_map){STR("")}, err);
}

static int fill_sandbox(struct node *n, const struct msg_create *m, struct sandbox *s, struct error *err)
{
	const struct snapshot_record *from = snapshot_find(n, m->template);
	const struct template *t = from ? NULL : templates_find(n->templates, m->template);
	*s = (struct sandbox){
		.state = SANDBOX_CREATING, .started_at = node_realtime(n), .end_at = SANDBOX_NEVER, .deadline = SANDBOX_NEVER,
		.shutdown_at = SANDBOX_NEVER, .shutdown = SANDBOX_NEVER,
		.secure = m->secure, .public_traffic = m->public_traffic, .has_internet = msg_has(m, create, internet), .internet = m->internet,
		.auto_pause = m->auto_pause, .auto_resume = m->auto_resume, .auto_pause_memory = m->auto_pause_memory, .timeout = m->timeout,
	};
	if (from ? !str_is(m->team, from->team) : !t || (*t->team && !t->public && !str_is(m->team, t->team)))
		return error_set(err, -ENOENT, 404, "template '%.*s' not found", STR_FMT(m->template));
	memcpy(s->boot_id, n->host->boot_id, sizeof(s->boot_id));
	if (!sandbox_copy(s->team, sizeof(s->team), m->team))
		return error_set(err, -EINVAL, 400, "team: too long");
	if (idempotency_fill(s, m, err) < 0)
		return -EINVAL;
	live_new_identity(n, s);
	if (buf_add_str(&s->metadata, m->metadata.raw) < 0 || buf_add_str(&s->allow_out, m->allow_out.raw) < 0 || buf_add_str(&s->deny_out, m->deny_out.raw) < 0)
		return error_errno(err, -ENOMEM, "create");
	return from ? from_snapshot(n, s, from, m->envs, err) : from_template(n, s, t, m->envs, err);
}

/* It runs (err NULL), or could not be made. */
static void answer_create(struct live *l, const struct error *err)
{
	struct request *next = steal_pointer(&l->create);
	live_landed(l);
	if (l->fork)
		live_forked(l, err);
	for (struct request *r; (r = next);) {
		next = r->next;
		if (err)
			request_fail(r, err);
		else
			request_answer_sandbox(r, l, false);
	}
}

/* The create came to nothing, and nothing of it is left: the record goes too, then the client is told. */
struct failure {
	struct live *live;
	struct error err;
};

static void create_forgotten(const struct error *err, void *arg)
{
	struct failure *f = arg;
	struct live *l = f->live;
	if (err)
		live_log(LOG_WARN, l, "its record stays until the next start of the node: %s", err->message);
	sandbox_set_state(&l->s, SANDBOX_GONE);
	answer_create(l, &f->err);
	live_free(l);
	free(f);
}

static void create_failed(struct live *l, const struct error *err)
{
	live_log(LOG_WARN, l, "create failed: %s", err->message);
	l->node->figures.creates_failed++;
	struct failure *f = calloc(1, sizeof(*f));
	if (!f)
		abort(); /* see records.c: without memory the node starts anew */
	*f = (struct failure){l, *err};
	records_forget(l->node->records, &l->s, create_forgotten, f);
}

/* Paths of the layers in one block of memory, which is returned; NULL with *err. */
static char *layer_paths(const struct node *n, struct msg_list layers, struct box_spec *spec, struct error *err)
{
	cleanup_buf struct buf all = BUF_INIT;
	size_t at[BOX_MAX_LAYERS];
	struct str rest = layers.raw, file;
	while (msg_list_next(&rest, &file)) {
		if (spec->n_layers == BOX_MAX_LAYERS) {
			error_set(err, -E2BIG, 500, "the sandbox has more than %d layers", BOX_MAX_LAYERS);
			return NULL;
		}
		at[spec->n_layers++] = buf_len(&all);
		buf_addf(&all, "%s/%.*s", n->directory, STR_FMT(file));
		buf_add(&all, "", 1);
	}
	char *paths = all.failed ? NULL : malloc(buf_len(&all) + 1);
	if (!paths) {
		error_errno(err, -ENOMEM, "layers");
		return NULL;
	}
	memcpy(paths, buf_str(&all).p, buf_len(&all));
	for (size_t i = 0; i < spec->n_layers; i++)
		spec->layers[i] = paths + at[i];
	return paths;
}

static struct box *start_box(struct node *n, const struct sandbox *s, const char *disk, bool unassigned, const struct box_ops *ops, void *arg, struct error *err)
{
	struct msg_start start;
	if (sandbox_start(s, &start) < 0) {
		error_set(err, -EPROTO, 500, "the record of how to start the sandbox is damaged");
		return NULL;
	}
	struct box_spec spec = {
		.id = str_of(s->id), .template_id = str_of(s->template_id), .cpu_count = s->cpu_count, .memory_mb = s->memory_mb, .disk_mb = s->disk_mb,
		.pids = (uint32_t)n->options->sandbox_pids, .envs = start.envs, .token = str_of(s->envd_token), .user = start.user, .workdir = start.workdir,
		.internet = !s->has_internet || s->internet, .allow_out = {buf_str(&s->allow_out)}, .deny_out = {buf_str(&s->deny_out)},
		.nested_userns = start.nested_userns, .no_setuid = start.no_setuid, .services = start.services, .ready = start.ready, .disk = disk,
		.service_options = start.service_options, .template_envs = start.template_envs, .probe_port = (uint16_t)start.probe_port, .probe_path = start.probe_path,
		.wait_ready = start.wait_ready, .unassigned = unassigned, .isolation = msg_has(&start, start, isolation) ? start.isolation : STR("namespace"),
	};
	cleanup_free char *paths = layer_paths(n, start.layers, &spec, err);
	return paths ? box_create(n->backend, &spec, ops, arg, err) : NULL;
}

struct box *node_start_box(struct node *n, const struct sandbox *s, const char *disk, const struct box_ops *ops, void *arg, struct error *err)
{
	return start_box(n, s, disk, false, ops, arg, err);
}

struct box *node_start_unassigned(struct node *n, const struct sandbox *s, const struct box_ops *ops, void *arg, struct error *err)
{
	return start_box(n, s, NULL, true, ops, arg, err);
}

struct box *live_start_box(struct live *l, const char *disk, struct error *err)
{
	return node_start_box(l->node, &l->s, disk, &live_box_ops, l, err);
}

static void log_create(const struct live *l, const char *how)
{
	live_log(LOG_INFO, l, "create from template %s (%s)%s%s%s", l->s.template_id, l->s.alias, *l->s.origin ? ", of " : "", l->s.origin, how);
}

void live_refused(struct live *l, const struct error *err)
{
	live_log(LOG_INFO, l, "create refused: %s", err->message);
	if (l->create)
		l->node->figures.creates_refused++;
	answer_create(l, err);
	live_free(l);
}

/* Nothing of it was started before. */
static void launch_cold(void *arg)
{
	struct live *l = arg;
	struct node *n = l->node;
	struct error err = {0};
	if (admission_take(&n->admission, l->s.memory_mb, l->s.disk_mb, &err) < 0) {
		if (!ready_make_room(n, &l->room, l->s.memory_mb, l->s.disk_mb, launch_cold, l))
			live_refused(l, &err);
		return;
	}
	l->admitted = l->disk_admitted = true;
	log_create(l, "");
	/* Nobody waits for the intent: what a crash leaves of a create that no record names is swept like one whose record says creating. When the store is
	 * broken, the record that the answer waits for fails too. */
	records_put(n->records, &l->s, SANDBOX_CREATING, STORE_NORMAL, NULL, NULL);
	l->box = live_start_box(l, NULL, &err);
	if (!l->box)
		create_failed(l, &err);
}

enum { CLAIMS_MOST = 3 }; /* of ready sandboxes, then it is started cold */

void live_launch(struct live *l)
{
	if (!l->in_flight)
		ready_creating(l->node, true);
	l->in_flight = true;
	if (l->claims < CLAIMS_MOST && ready_claim(l))
		return;
	ready_missed(l);
	/* What it has tried may still be ending under that name. */
	if (l->claims)
		live_take_identity(l, NULL);
	launch_cold(l);
}

void live_unclaimed(struct live *l)
{
	live_launch(l);
}

/* Checked, and in the map; NULL with *err set. */
static struct live *prepare_create(struct node *n, const struct msg_create *m, struct error *err)
{
	struct sandbox s = {0};
	struct live *l = NULL;
	if (n->stopping)
		error_set(err, -EAGAIN, 503, "the server is stopping");
	else if (check_create(n, m, err) == 0 && fill_sandbox(n, m, &s, err) == 0 && !(l = live_new(n, &s)))
		error_errno(err, -ENOMEM, "create");
	if (!l)
		sandbox_done(&s);
	return l;
}

void live_create(struct node *n, struct request *r, const struct msg_create *m)
{
	struct error err = {0};
	if (idempotency_repeat(n, r, m))
		return;
	struct live *l = prepare_create(n, m, &err);
	if (!l) {
		n->figures.creates_refused++;
		log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text)}, "create refused: %s", err.message);
		request_fail(r, &err);
		return;
	}
	memcpy(l->request, r->text, sizeof(l->request));
	l->create = r;
	l->shutdown_after = m->shutdown_after;
	live_launch(l);
}

/* From when its programs run on. */
static void watch_disk(struct live *l, bool adopted)
{
	struct node *n = l->node;
	if (!l->disk.at && disk_account_add(n->disk, &l->disk, l->box, l, adopted) < 0)
		abort(); /* unwatched it could fill the host */
	/* The account sleeps while there is nothing to watch. While it is calm and awake a new one changes nothing: how soon it looks again allows for writers
	 * as fast as memory, and a look at all for each create would make creates slower the more sandboxes there are. */
	if (adopted || !n->disk_awake || disk_account_zone(n->disk) != DISK_CALM)
		loop_timer_in(n->disk_timer, 0);
}

int live_thaw(struct live *l)
{
	return disk_account_zone(l->node->disk) < DISK_FULL ? box_freeze(l->box, false) : 0;
}

void live_watch(struct live *l, bool adopted)
{
	watch_disk(l, adopted);
	node_arm_deadlines(l->node);
	sampling_note(l, adopted);
}

static void running_recorded(const struct error *err, void *arg)
{
	struct live *l = arg;
	if (l->s.state != SANDBOX_CREATING)
		return; /* it died, or was killed, in between; that has its own way */
	if (err) {
		answer_create(l, err);
		live_end(l, "crashed", err->message);
		return;
	}
	if (l->claims)
		FAULT(claim_recorded);
	sandbox_set_state(&l->s, SANDBOX_RUNNING);
	live_watch(l, false);
	live_log(LOG_INFO, l, "running (%s)", l->s.launch);
	node_event(l->node, &l->s);
	answer_create(l, NULL);
	node_stop_check(l->node);
}

/* Its box runs. */
static void created(struct live *l, const struct box_handle *h, const char *launch)
{
	l->s.handle = *h;
	if (live_start_clocks(l) < 0) {
		live_end(l, "crashed", "no memory for its deadline");
		return;
	}
	sandbox_copy(l->s.launch, sizeof(l->s.launch), str_of(launch));
	records_put(l->node->records, &l->s, SANDBOX_RUNNING, STORE_NORMAL, running_recorded, l);
}

void live_claimed(struct live *l, struct box *b, const struct box_handle *h)
{
	l->box = b;
	l->admitted = l->disk_admitted = true;
	log_create(l, ", from a ready one");
	created(l, h, "warm");
}

const char *live_launch_of(const struct sandbox *s, const struct box *b)
{
	struct msg_start start;
	return sandbox_start(s, &start) == 0 && start.services.raw.n ? "cold" : box_launch(b);
}

/* What the box tells */

static void on_created(struct live *l, const struct box_handle *h, const struct error *err)
{
	if (err) {
		l->box = NULL;
		if (l->s.state == SANDBOX_CREATING)
			create_failed(l, err);
		else
			live_finish(l); /* the kill came first */
		return;
	}
	if (l->s.state != SANDBOX_CREATING)
		return;
	created(l, h, live_launch_of(&l->s, l->box));
}

/* Kill */

static void ended(const struct error *err, void *arg);

static void try_again(struct loop_timer *t, void *arg)
{
	struct live *l = arg;
	records_end(l->node->records, &l->s, ended, l);
}

static void ended(const struct error *err, void *arg)
{
	struct live *l = arg;
	struct node *n = l->node;
	if (err) {
		/* The processes are dead; only the record is missing. Who waits is told so, the rest is tried until it works. */
		live_log(LOG_ERROR, l, "its end cannot be recorded, trying again: %s", err->message);
		requests_answer(&l->kills, err);
		if (!l->retry)
			l->retry = loop_timer_new(n->loop, try_again, l);
		if (!l->retry)
			abort();
		loop_timer_in(l->retry, NS_PER_S);
		return;
	}
	sandbox_set_state(&l->s, SANDBOX_GONE);
	live_log(LOG_INFO, l, "gone: %s%s%s", l->s.reason, *l->s.detail ? ": " : "", l->s.detail);
	node_event(n, &l->s);
	if (l->create || l->fork) {
		struct error why;
		error_set(&why, -ECONNRESET, 500, "the sandbox ended while it was made: %s%s%s", l->s.reason, *l->s.detail ? ": " : "", l->s.detail);
		answer_create(l, &why);
	}
	requests_answer(&l->kills, NULL);
	live_free(l);
}

void live_finish(struct live *l)
{
	struct node *n = l->node;
	l->box_released = true;
	if (l->s.state == SANDBOX_KILLING && !l->intent_recorded)
		return; /* the record of the intent is on its way; kill_recorded() comes back here */
	if (l->others)
		return; /* of a rollback; it comes back here */
	live_give_memory(l);
	if (*l->s.image && !l->image_gone) {
		saved_remove(n, l->s.image, l);
		return;
	}
	live_give_all(l);
	l->s.ended_at = node_realtime(n);
	records_end(n->records, &l->s, ended, l);
}

void live_image_gone(struct live *l)
{
	l->image_gone = true;
	FAULT(kill_image_gone);
	live_finish(l);
}

static void kill_recorded(const struct error *err, void *arg)
{
	struct live *l = arg;
	l->intent_recorded = true;
	/* A full disk must not keep us from killing: that is what frees it. */
	if (err)
		live_log(LOG_ERROR, l, "the intent to end it cannot be recorded: %s", err->message);
	FAULT(kill_intended);
	if (l->box && !l->box_released)
		box_kill(l->box);
	else
		live_finish(l);
}

void live_end(struct live *l, const char *reason, const char *detail)
{
	struct node *n = l->node;
	if (l->s.state == SANDBOX_KILLING || l->s.state == SANDBOX_GONE)
		return;
	sandbox_set_state(&l->s, SANDBOX_KILLING);
	sandbox_set_reason(&l->s, reason, detail);
	deadlines_remove(&n->deadlines, &l->deadline);
	deadlines_remove(&n->shutdowns, &l->shutdown);
	disk_account_remove(n->disk, &l->disk);
	live_unhold_disk(l);
	ready_forget_room(n, &l->room);
	live_fail_waiting(l);
	live_end_shots(l);
	live_log(LOG_INFO, l, "ending: %s%s%s", l->s.reason, *detail ? ": " : "", detail);
	node_event(n, &l->s);
	/* Without fsync: if the power fails now the sandbox is gone anyway, and what a client is told waits for the record of the end, which has one. */
	records_put(n->records, &l->s, SANDBOX_KILLING, STORE_NORMAL, kill_recorded, l);
}

void live_kill(struct node *n, struct request *r, const struct msg_kill *m)
{
	struct live *l = live_find(n, m->sandbox);
	if (!l || l->s.state == SANDBOX_CREATING) {
		struct error err;
		error_set(&err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
		request_fail(r, &err);
		return;
	}
	request_queue(&l->kills, r);
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text), .sandbox = str_of(l->s.id)}, "kill%s",
		l->s.state == SANDBOX_KILLING ? " joins one under way" : "");
	live_end(l, "killed", "");
}

/* Box callbacks */

static void on_started(struct box *b, const struct box_handle *h, const struct error *err, void *arg)
{
	struct live *l = arg;
	if (err)
		disk_account_remove(l->node->disk, &l->disk); /* the box is no more */
	if (l->adopting)
		live_adopted(l, h, err);
	else if (l->s.state == SANDBOX_PAUSED)
		live_booted(l, h, err);
	else
		on_created(l, h, err);
}

static void on_died(struct box *b, const struct box_death *d, void *arg)
{
	struct live *l = arg;
	if (l->s.state == SANDBOX_PAUSED && !l->s.memory_kept) {
		live_boot_died(l, d);
	} else if (l->s.state == SANDBOX_PAUSED || l->s.state == SANDBOX_PAUSING) {
		live_log(LOG_WARN, l, "its memory is lost while it is %s: %s", sandbox_state_name(l->s.state), d->detail);
		live_keep_disk(l);
	} else {
		live_end(l, *d->reason ? d->reason : "crashed", d->detail);
	}
}

static void on_released(struct box *b, void *arg)
{
	struct live *l = arg;
	disk_account_remove(l->node->disk, &l->disk);
	l->box = NULL;
	live_network_ended(l);
	if (l->s.state == SANDBOX_PAUSED && l->resuming)
		live_boot_released(l);
	else if (l->s.state == SANDBOX_PAUSED || l->s.state == SANDBOX_PAUSING)
		live_settled(l); /* its disk is kept */
	else
		live_finish(l);
}

static void on_programs(struct box *b, void *arg)
{
	struct live *l = arg;
	if (l->s.state == SANDBOX_CREATING || l->s.state == SANDBOX_PAUSED)
		watch_disk(l, false);
}

const struct box_ops live_box_ops = {.started = on_started, .died = on_died, .released = on_released, .programs = on_programs};
