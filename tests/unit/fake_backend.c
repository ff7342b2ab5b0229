#include "fake_backend.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "io/loop.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

struct fake *fake;

struct backend {
	struct loop *loop;
	struct box *boxes;
};

struct box {
	struct backend *backend;
	struct box *next;
	struct fake_box *m; /* NULL: nothing of it is left on the machine */
	const struct box_ops *ops;
	void *arg;
	bool starting, killing, adopting, saving, failing, prepared;
	box_assigned_fn *assigned; /* an assignment under way */
	void *assigned_arg;
	char image[64];
	void (*flushed)(int r, void *arg);
	void *flushed_arg;
	void (*saved)(const struct error *err, void *arg);
	void *saved_arg;
	box_copied_fn *copied;
	void *copied_arg;
	char copy[512];
	box_network_fn *network_done; /* a change under way */
	void *network_arg;
	struct box_network network;
};

static struct backend *running;

static void crash_at(enum fake_crash point)
{
	if (fake->crash == point)
		_exit(FAKE_CRASHED);
}

static void detach(struct box *b)
{
	for (struct box **at = &b->backend->boxes; *at; at = &(*at)->next)
		if (*at == b) {
			*at = b->next;
			break;
		}
	free(b);
}

struct fake_box *fake_find(const char *id)
{
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (*id && strcmp(fake->machine[i].id, id) == 0)
			return &fake->machine[i];
	return NULL;
}

static struct fake_box *find_serial(struct str id, unsigned serial)
{
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (str_is(id, fake->machine[i].id) && fake->machine[i].serial == serial)
			return &fake->machine[i];
	return NULL;
}

unsigned fake_alive(void)
{
	unsigned n = 0;
	for (size_t i = 0; i < FAKE_BOXES; i++)
		n += fake->machine[i].id[0] && fake->machine[i].alive;
	return n;
}

static void machine_remove(struct fake_box *m)
{
	if (!m)
		return;
	*m = (struct fake_box){0};
	fake->live--;
}

void fake_reset(void)
{
	if (!fake)
		fake = mmap(NULL, sizeof(*fake), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(fake != MAP_FAILED);
	memset(fake, 0, sizeof(*fake));
}

int backend_new(struct loop *l, const struct backend_config *c, struct backend **ret, struct error *err)
{
	*ret = running = calloc(1, sizeof(**ret));
	running->loop = l;
	snprintf(fake->dir, sizeof(fake->dir), "%s", c->state_dir);
	fake->live = 0; /* counted anew: a node may have been ended between a box and its count */
	for (size_t i = 0; i < FAKE_BOXES; i++) {
		fake->machine[i].known = false;
		fake->live += fake->machine[i].id[0] != 0;
	}
	return 0;
}

/* Sweeps, as the real one does. */
void backend_ready(struct backend *b)
{
	fake->readies++;
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].id[0] && !fake->machine[i].known)
			machine_remove(&fake->machine[i]);
}

struct drain {
	void (*done)(void *arg);
	void *arg;
};

static void drained(void *arg)
{
	struct drain *d = arg;
	d->done(d->arg);
	free(d);
}

void backend_drain(struct backend *b, void (*done)(void *arg), void *arg)
{
	struct drain *d = malloc(sizeof(*d));
	*d = (struct drain){done, arg};
	fake->drains++;
	loop_post(b->loop, drained, d);
}

void backend_free(struct backend *b)
{
	if (!b)
		return;
	while (b->boxes)
		detach(b->boxes);
	free(b);
	running = NULL;
}

void backend_figures(const struct backend *b, struct backend_figures *ret)
{
	*ret = (struct backend_figures){.parked = 3, .wanted = 8};
}

const char *backend_isolation(const struct backend *b, struct str wanted, struct error *err)
{
	if (!str_is(wanted, "microvm"))
		return "namespace";
	if (fake->machines)
		return "microvm";
	error_set(err, -EOPNOTSUPP, 400, "isolation: no microVMs on this server");
	return NULL;
}

static struct box *box_make(struct backend *b, struct fake_box *m, const struct box_ops *ops, void *arg)
{
	struct box *x = calloc(1, sizeof(*x));
	*x = (struct box){.backend = b, .next = b->boxes, .m = m, .ops = ops, .arg = arg};
	b->boxes = x;
	if (m)
		m->known = true;
	return x;
}

static struct box_handle handle_of(const struct box *b)
{
	struct box_handle h = {0};
	if (b->m->serial)
		snprintf(h.text, sizeof(h.text), "fake=%s+%u", b->m->id, b->m->serial);
	else
		snprintf(h.text, sizeof(h.text), "fake=%s", b->m->id);
	return h;
}

static void prepare(struct box *b, bool on)
{
	if (b->starting || b->killing || !b->m->unassigned || b->prepared == on)
		return;
	b->prepared = on;
	b->ops->prepared(b, on, NULL, b->arg);
}

unsigned fake_prepare(bool on)
{
	unsigned n = 0;
	for (struct box *b = running->boxes, *next; b; b = next) {
		next = b->next;
		if (!b->starting && !b->killing && b->m && b->m->unassigned) {
			n++;
			prepare(b, on);
		}
	}
	return n;
}

static void finish_start(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	b->starting = false;
	if (b->killing)
		return;
	if (fake->start == FAKE_FAIL) {
		error_set(&err, -EIO, 500, "the fake refuses to start");
		b->ops->started(b, NULL, &err, b->arg);
		machine_remove(b->m);
		detach(b);
		return;
	}
	b->m->alive = true;
	crash_at(CRASH_STARTED);
	struct box_handle h = handle_of(b);
	b->ops->started(b, &h, NULL, b->arg);
	if (b->m->unassigned && fake->prepare == FAKE_AUTO)
		prepare(b, true);
}

static bool saved_is(const char *image, struct str id)
{
	char path[512];
	cleanup_buf struct buf text = BUF_INIT;
	snprintf(path, sizeof(path), "%s/%s", fake->dir, image);
	return file_read(AT_FDCWD, path, 64, &text) == 0 && str_eq(buf_str(&text), id);
}

static void env_text(struct msg_map map, char *to, size_t size)
{
	struct str rest = map.raw, key, value;
	size_t n = 0;
	while (msg_map_next(&rest, &key, &value) && n < size)
		n += (size_t)snprintf(to + n, size - n, "%.*s=%.*s\n", STR_FMT(key), STR_FMT(value));
}

static void list_text(struct msg_list list, char *to, size_t size)
{
	struct str rest = list.raw, item;
	size_t n = 0;
	to[0] = 0;
	while (msg_list_next(&rest, &item) && n < size)
		n += (size_t)snprintf(to + n, size - n, "%s%.*s", n ? " " : "", STR_FMT(item));
}

static bool list_has(struct msg_list list, const char *what)
{
	struct str rest = list.raw, item;
	while (msg_list_next(&rest, &item))
		if (str_is(item, what))
			return true;
	return false;
}

static void set_network(struct fake_box *m, const struct box_network *p)
{
	list_text(p->allow_out, m->allow, sizeof(m->allow));
	list_text(p->deny_out, m->deny, sizeof(m->deny));
	m->internet = p->internet;
}

struct box *box_create(struct backend *b, const struct box_spec *spec, const struct box_ops *ops, void *arg, struct error *err)
{
	fake->creates++;
	crash_at(CRASH_IN_CREATE);
	struct fake_box *m = fake->machine;
	while (m < fake->machine + FAKE_BOXES && m->id[0])
		m++;
	if (fake->full || m == fake->machine + FAKE_BOXES) {
		error_set(err, -EAGAIN, 503, "no slot is free");
		return NULL;
	}
	if (spec->disk && !saved_is(spec->disk, spec->id)) {
		error_set(err, -ENOENT, 500, "the saved disk is not there");
		return NULL;
	}
	unsigned serial = 0;
	while (find_serial(spec->id, serial))
		serial++;
	m->serial = serial;
	snprintf(m->id, sizeof(m->id), "%.*s", STR_FMT(spec->id));
	for (size_t i = 0, n = 0; i < spec->n_layers && n < sizeof(m->layers); i++)
		n += (size_t)snprintf(m->layers + n, sizeof(m->layers) - n, "%s ", spec->layers[i] + strlen(fake->dir) + 1);
	snprintf(m->from, sizeof(m->from), "%s", spec->disk ? spec->disk : "");
	snprintf(m->token, sizeof(m->token), "%.*s", STR_FMT(spec->token));
	snprintf(m->user, sizeof(m->user), "%.*s", STR_FMT(spec->user));
	snprintf(m->layer, sizeof(m->layer), "%s", spec->layers[0]);
	env_text(spec->envs, m->envs, sizeof(m->envs));
	set_network(m, &(struct box_network){spec->allow_out, spec->deny_out, spec->internet});
	m->memory_mb = spec->memory_mb;
	m->unassigned = spec->unassigned;
	m->brake = BOX_NO_BRAKE;
	m->space.total = (uint64_t)spec->disk_mb << 20;
	if (++fake->live > fake->most_live)
		fake->most_live = fake->live;
	struct box *x = box_make(b, m, ops, arg);
	x->starting = true;
	if (fake->start != FAKE_MANUAL)
		loop_post(b->loop, finish_start, x);
	return x;
}

static void finish_adopt(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	b->adopting = false;
	if (fake->silent || b->killing)
		return;
	if (!b->m || !b->m->alive) {
		error_set(&err, -ESRCH, 500, "no process");
		b->failing = true;
		b->ops->started(b, NULL, &err, b->arg);
		b->failing = false;
		if (b->saving)
			return;
		machine_remove(b->m);
		detach(b);
		return;
	}
	struct box_handle h = handle_of(b);
	b->ops->started(b, &h, NULL, b->arg);
}

struct box *box_adopt(struct backend *b, struct str id, const char *handle, const struct box_network *network, const struct box_ops *ops, void *arg,
	struct error *err)
{
	fake->adopts++;
	const char *plus = strchr(handle, '+');
	struct str name = str_n(handle + 5, plus ? (size_t)(plus - handle - 5) : strlen(handle + 5));
	if (strncmp(handle, "fake=", 5) != 0 || !str_eq(id, name)) {
		error_set(err, -EINVAL, 500, "the handle is not understood");
		return NULL;
	}
	struct box *x = box_make(b, find_serial(id, plus ? (unsigned)atoi(plus + 1) : 0), ops, arg);
	if (x->m)
		set_network(x->m, network);
	x->adopting = true;
	loop_post(b->loop, finish_adopt, x);
	return x;
}

static void finish_copy(struct box *b, bool killed)
{
	struct error err = {0};
	struct box_copied c = {.size = 4096, .paused = 1000};
	box_copied_fn *done = b->copied;
	if (!done)
		return;
	b->copied = NULL;
	if (killed)
		error_set(&err, -ECANCELED, 404, "the sandbox ended while its disk was copied");
	else if (fake->copy == FAKE_FAIL)
		error_set(&err, -ENOSPC, 507, "the fake's disk has no room");
	else if (file_replace(AT_FDCWD, b->copy, str_of(b->m->id), 0600) < 0)
		error_set(&err, -EIO, 500, "%s", b->copy);
	if (!err.code)
		crash_at(CRASH_COPIED);
	done(err.code ? NULL : &c, err.code ? &err : NULL, b->copied_arg);
}

static void finish_kill(void *arg)
{
	struct box *b = arg;
	finish_copy(b, true);
	machine_remove(b->m);
	crash_at(CRASH_KILLED);
	b->ops->released(b, b->arg);
	detach(b);
}

static void finish_save(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	char path[512];
	if (b->m)
		b->m->alive = false, b->m->disk = true;
	crash_at(CRASH_SAVE_KILLED);
	snprintf(path, sizeof(path), "%s/%s", fake->dir, b->image);
	if (fake->save == FAKE_FAIL)
		error_set(&err, -EUCLEAN, 500, "the fake cannot keep its disk");
	else if (b->m && file_replace(AT_FDCWD, path, str_of(b->m->id), 0600) < 0)
		error_set(&err, -EIO, 500, "%s", path);
	else if (!b->m && access(path, F_OK) < 0)
		error_set(&err, -ENOENT, 500, "its disk is not there");
	machine_remove(b->m);
	b->m = NULL;
	crash_at(CRASH_SAVED);
	b->saved(err.code ? &err : NULL, b->saved_arg);
	b->ops->released(b, b->arg);
	detach(b);
}

int box_save(struct box *b, const char *image, void (*done)(const struct error *err, void *arg), void *arg)
{
	if (b->killing || (b->adopting && !b->failing))
		return -EBUSY;
	crash_at(CRASH_IN_SAVE);
	fake->saves++;
	b->killing = b->saving = true;
	b->saved = done;
	b->saved_arg = arg;
	snprintf(b->image, sizeof(b->image), "%s", image);
	if (b->m)
		b->m->alive = false, b->m->disk = true;
	if (fake->save != FAKE_MANUAL)
		loop_post(b->backend->loop, finish_save, b);
	return 0;
}

struct copying {
	struct backend *backend;
	struct box *box;
};

static void copy_later(void *arg)
{
	struct copying *k = arg;
	for (struct box *b = k->backend->boxes; b; b = b->next)
		if (b == k->box) {
			finish_copy(b, false);
			break;
		}
	free(k);
}

int box_copy(struct box *b, const char *path, box_copied_fn *done, void *arg)
{
	char half[520];
	fake->copies++;
	if (b->copied)
		return -EBUSY;
	if (b->killing || !b->m || !b->m->alive)
		return -EAGAIN;
	snprintf(half, sizeof(half), "%s.new", path);
	if (fake->crash == CRASH_IN_COPY && file_replace(AT_FDCWD, half, STR("half"), 0600) == 0)
		crash_at(CRASH_IN_COPY);
	b->copied = done;
	b->copied_arg = arg;
	snprintf(b->copy, sizeof(b->copy), "%s", path);
	if (fake->copy != FAKE_MANUAL) {
		struct copying *k = malloc(sizeof(*k));
		*k = (struct copying){b->backend, b};
		loop_post(b->backend->loop, copy_later, k);
	}
	return 0;
}

unsigned fake_step_copies(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes, *next; b; b = next) {
		next = b->next;
		if (b->copied) {
			n++;
			finish_copy(b, false);
		}
	}
	return n;
}

void backend_drop_image(struct backend *b, const char *path)
{
	if (unlink(path) == 0)
		fake->drops++;
}

void box_hand_over(struct box *b, const struct box_ops *ops, void *arg)
{
	b->ops = ops;
	b->arg = arg;
}

struct flushing {
	struct backend *backend;
	struct box *box;
};

static void finish_flush(struct box *b)
{
	void (*done)(int r, void *arg) = b->flushed;
	if (!done)
		return;
	b->flushed = NULL;
	b->m->syncs++;
	done(fake->flush_result, b->flushed_arg);
}

static void flush_later(void *arg)
{
	struct flushing *f = arg;
	for (struct box *b = f->backend->boxes; b; b = b->next)
		if (b == f->box) {
			finish_flush(b);
			break;
		}
	free(f);
}

int box_flush(struct box *b, bool room, void (*done)(int r, void *arg), void *arg)
{
	crash_at(CRASH_IN_FLUSH);
	if (b->flushed || !b->m)
		return -EBUSY;
	b->flushed = done;
	b->flushed_arg = arg;
	b->m->flush_room = room;
	if (fake->flush != FAKE_MANUAL) {
		struct flushing *f = malloc(sizeof(*f));
		*f = (struct flushing){b->backend, b};
		loop_post(b->backend->loop, flush_later, f);
	}
	return 0;
}

unsigned fake_step_flushes(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes, *next; b; b = next) {
		next = b->next;
		if (b->flushed) {
			n++;
			finish_flush(b);
		}
	}
	return n;
}

unsigned fake_step_saves(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes, *next; b; b = next) {
		next = b->next;
		if (b->saving) {
			n++;
			finish_save(b);
		}
	}
	return n;
}

void box_kill(struct box *b)
{
	if (b->killing)
		return;
	fake->kills++;
	crash_at(CRASH_IN_KILL);
	b->killing = true;
	if (b->m)
		b->m->alive = false;
	if (fake->kill != FAKE_MANUAL)
		loop_post(b->backend->loop, finish_kill, b);
}

unsigned fake_step_starts(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes, *next; b; b = next) {
		next = b->next;
		if (b->starting) {
			n++;
			finish_start(b);
		}
	}
	return n;
}

unsigned fake_step_kills(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes, *next; b; b = next) {
		next = b->next;
		if (b->killing && !b->saving) {
			n++;
			finish_kill(b);
		}
	}
	return n;
}

void fake_die(const char *id, const char *reason, const char *detail)
{
	struct fake_box *m = fake_find(id);
	m->alive = false;
	snprintf(m->evidence.reason, sizeof(m->evidence.reason), "%s", reason);
	snprintf(m->evidence.detail, sizeof(m->evidence.detail), "%s", detail);
	for (struct box *b = running ? running->boxes : NULL; b; b = b->next)
		if (b->m == m && !b->killing) {
			b->ops->died(b, &m->evidence, b->arg);
			return;
		}
}

int box_freeze(struct box *b, bool on)
{
	if (fake->freeze_result && on)
		return fake->freeze_result;
	if (b->m)
		b->m->frozen = on;
	return 0;
}

void box_evidence(struct box *b, struct box_death *ret)
{
	if (b->m)
		*ret = b->m->evidence;
}

struct reading {
	struct box *box;
	box_stats_fn *done;
	void *arg;
};

/* Not told when the box is gone first. */
static void finish_reading(void *arg)
{
	struct reading *o = arg;
	for (struct box *b = running ? running->boxes : NULL; b; b = b->next)
		if (b == o->box && b->m && !b->killing) {
			b->m->stats.memory_limit = (uint64_t)b->m->memory_mb << 20;
			fake->readings++;
			o->done(&b->m->stats, o->arg);
			break;
		}
	free(o);
}

int box_stats(struct box *b, box_stats_fn *done, void *arg)
{
	struct reading *o = malloc(sizeof(*o));
	*o = (struct reading){b, done, arg};
	return loop_post(b->backend->loop, finish_reading, o);
}

int64_t box_disk_bytes(const struct box *b)
{
	return (int64_t)b->m->space.backed;
}

void box_trim(struct box *b)
{
	b->m->trims++;
}

int box_space(const struct box *b, struct box_space *ret)
{
	*ret = b->m->space;
	return 0;
}

int box_dirty(const struct box *b, uint64_t *ret)
{
	return -ENOENT;
}

int box_brake(struct box *b, uint64_t most)
{
	b->m->brake = most;
	return 0;
}

void box_sync(struct box *b)
{
	b->m->syncs++;
}

struct opening {
	void (*done)(int fd_or_error, void *arg);
	void *arg;
};

static void finish_open(void *arg)
{
	struct opening *o = arg;
	int pair[2], r = fake->open_result;
	if (r == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0) {
		ssize_t w = write(pair[1], "hello", 5);
		(void)w;
		close(pair[1]);
		r = pair[0];
	}
	o->done(r, o->arg);
	free(o);
}

int box_open(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	if (fake->open_refused)
		return fake->open_refused;
	struct opening *o = malloc(sizeof(*o));
	*o = (struct opening){done, arg};
	return loop_post(b->backend->loop, finish_open, o);
}

struct logging {
	struct box *box;
	box_log_fn *done;
	void *arg;
};

static void finish_log(void *arg)
{
	struct logging *o = arg;
	for (struct box *b = running ? running->boxes : NULL; b; b = b->next)
		if (b == o->box && b->m)
			o->done(&(struct msg_log_page){.entries = str_of(b->m->log), .next = 1}, o->arg);
	free(o);
}

int box_follow_log(struct box *b, uint64_t after, box_log_fn *done, void *arg)
{
	return 0; /* nothing comes by itself */
}

int box_log(struct box *b, uint64_t after, box_log_fn *done, void *arg)
{
	struct logging *o = malloc(sizeof(*o));
	*o = (struct logging){b, done, arg};
	return loop_post(b->backend->loop, finish_log, o);
}

static void finish_network(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	box_network_fn *done = b->network_done;
	b->network_done = NULL;
	if (fake->network_fails)
		error_set(&err, -EIO, 500, "nftables");
	else if (b->m)
		set_network(b->m, &b->network);
	if (b->m && !b->killing)
		done(fake->network_fails ? &err : NULL, b->network_arg);
}

int box_network(struct box *b, const struct box_network *policy, box_network_fn *done, void *arg, struct error *err)
{
	if (b->network_done)
		return error_set(err, -EBUSY, 409, "busy");
	if (list_has(policy->allow_out, "bad"))
		return error_set(err, -EINVAL, 400, "allowOut: bad");
	b->network_done = done;
	b->network_arg = arg;
	b->network = *policy; /* the node keeps the lists until done() */
	return fake->network_waits ? 0 : loop_post(b->backend->loop, finish_network, b);
}

unsigned fake_step_networks(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes; b; b = b->next) {
		if (!b->network_done)
			continue;
		loop_post(b->backend->loop, finish_network, b);
		n++;
	}
	return n;
}

static void finish_assign(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	box_assigned_fn *done = b->assigned;
	b->assigned = NULL;
	if (!done || b->killing || !b->m || !b->m->alive)
		return;
	if (fake->assign == FAKE_FAIL || !b->prepared)
		error_set(&err, -EIO, 500, "the fake is not assigned");
	done(err.code ? &err : NULL, b->assigned_arg);
}

int box_assign(struct box *b, const struct box_assignment *a, box_assigned_fn *done, void *arg)
{
	fake->assigns++;
	crash_at(CRASH_IN_ASSIGN);
	if (b->killing || !b->m || !b->m->alive || !b->m->unassigned)
		return -EAGAIN;
	b->m->unassigned = false;
	snprintf(b->m->token, sizeof(b->m->token), "%.*s", STR_FMT(a->token));
	env_text(a->envs, b->m->envs, sizeof(b->m->envs));
	b->assigned = done;
	b->assigned_arg = arg;
	return fake->assign == FAKE_MANUAL ? 0 : loop_post(b->backend->loop, finish_assign, b);
}

unsigned fake_step_assigns(void)
{
	unsigned n = 0;
	for (struct box *b = running->boxes; b; b = b->next)
		if (b->assigned && !b->killing) {
			n++;
			loop_post(b->backend->loop, finish_assign, b);
		}
	return n;
}

const char *box_launch(const struct box *b)
{
	return "warm";
}

/* There are no mounts: any directory will do. */
int backend_open_layers(struct backend *b, const char *const *paths, size_t n, int *fds, void (*done)(const struct error *err, void *arg), void *arg)
{
	for (size_t i = 0; i < n; i++) {
		assert(access(paths[i], R_OK) == 0);
		fds[i] = open(fake->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	done(NULL, arg);
	return 0;
}
