#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "image/docker_config.h"
#include "io/workq.h"
#include "node/builder_impl.h"
#include "sys/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* A builder, from its start to the end of its process, and of everything that was made for it. */

static void wipe(struct buf *secret)
{
	if (secret->data)
		explicit_bzero(secret->data, secret->cap);
	buf_done(secret);
}

/* Holds */

static void builder_free(struct builder *b)
{
	struct node *n = b->node;
	struct build *build = b->build;
	for (struct builder_layer *l = b->layers, *next; l; l = next) {
		next = l->next;
		images_leave(&n->images, str_of(l->file));
		free(l);
	}
	for (struct builder_grant *g = b->grants, *next; g; g = next) {
		next = g->next;
		free(g);
	}
	while (b->files)
		builder_file_free(b, b->files);
	loop_timer_free(b->timer);
	chan_free(b->chan);
	free(b->result);
	wipe(&b->auth);
	free(b);
	team_build_left(build);
}

void builder_hold(struct builder *b)
{
	b->holds++;
}

void builder_let(struct builder *b)
{
	if (--b->holds == 0)
		builder_free(b);
}

/* What it may use */

bool builder_uses(const struct builder *b, struct str file)
{
	for (const struct builder_layer *l = b->layers; l; l = l->next)
		if (str_is(file, l->file))
			return true;
	return false;
}

void builder_made(struct builder *b, struct str file, uint64_t bytes)
{
	struct builder_layer *l = builder_uses(b, file) ? NULL : calloc(1, sizeof(*l));
	if (builder_uses(b, file))
		return;
	if (!l)
		abort(); /* see records.c: without memory the node starts anew */
	l->next = b->layers;
	l->made = bytes;
	sandbox_copy(l->file, sizeof(l->file), file);
	b->layers = l;
	images_use(&b->node->images, file);
}

void builder_use(struct builder *b, struct str file)
{
	builder_made(b, file, 0);
}

int builder_grant(struct builder *b, struct str key)
{
	if (builder_has_grant(b, key))
		return 0;
	struct builder_grant *g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	b->n_keys++;
	sandbox_copy(g->key, sizeof(g->key), key);
	g->next = b->grants;
	b->grants = g;
	return 0;
}

bool builder_has_grant(const struct builder *b, struct str key)
{
	for (const struct builder_grant *g = b->grants; g; g = g->next)
		if (str_is(key, g->key))
			return true;
	return false;
}

void builder_drop_grant(struct builder *b, struct str key)
{
	for (struct builder_grant **at = &b->grants; *at; at = &(*at)->next)
		if (str_is(key, (*at)->key)) {
			struct builder_grant *g = *at;
			*at = g->next;
			b->n_keys--;
			free(g);
			return;
		}
}

uint64_t builder_disk(const struct builder *b)
{
	uint64_t bytes = image_makers_bytes(b);
	for (const struct builder_layer *l = b->layers; l; l = l->next)
		bytes += l->made;
	for (const struct builder_file *f = b->files; f; f = f->next) {
		struct stat st;
		uint64_t has = fstat(f->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
		bytes += MAX(has, f->promised);
	}
	return bytes;
}

int builder_room(const struct builder *b, uint64_t bytes, struct error *err)
{
	const struct node *n = b->node;
	uint64_t most = (uint64_t)n->options->build_disk << 20, has = builder_disk(b);
	if (bytes > most || has > most - bytes)
		return error_set(err, -EDQUOT, 413, "the build needs more than %lld MiB of disk (build.disk): it has %llu MiB, and %llu more were asked for",
			(long long)n->options->build_disk, (unsigned long long)(has >> 20), (unsigned long long)(bytes >> 20));
	return disk_account_room(n->disk, n->copying + bytes, err);
}

/* Answers */

void builder_answer(struct builder *b, uint64_t request, enum msg_id type, const void *m, int fd)
{
	static const struct msg_ok nothing;
	struct error err = {0};
	if (b->chan && !b->ending && chan_send(b->chan, type, m ? m : &nothing, request, &fd, fd >= 0, &err) < 0 && err.code == -EMSGSIZE)
		chan_send_error(b->chan, request, &err);
}

void builder_refuse(struct builder *b, uint64_t request, const struct error *err)
{
	if (b->chan && !b->ending)
		chan_send_error(b->chan, request, err);
}

/* The end */

static void end_process(struct builder *b)
{
	if (b->process.pid)
		process_signal(b->process.pidfd, SIGKILL);
}

/* Everything that it has is ended; it is freed with the last of it. */
static void leave(struct builder *b)
{
	if (b->ending)
		return;
	builder_hold(b);
	b->ending = true;
	layers_leave(b);
	loop_timer_stop(b->timer);
	end_process(b);
	build_boxes_end(b);
	image_makers_end(b);
	while (b->files)
		builder_file_free(b, b->files);
	builder_let(b);
}

void builder_fail(struct builder *b, const char *reason, const char *step)
{
	builder_hold(b);
	if (!b->told) {
		b->told = true;
		team_build_failed(b->build, reason, step);
	}
	leave(b);
	builder_let(b);
}

void builder_succeed(struct builder *b)
{
	builder_hold(b);
	if (!b->told) {
		b->told = true;
		builder_answer(b, b->done_request, MSG_ID_ok, NULL, -1);
		team_build_succeeded(b->build, b->result, str_of(b->digest));
	}
	/* Its process ends by itself; what it has been given is over. */
	leave(b);
	builder_let(b);
}

void builder_end(struct builder *b, const char *reason)
{
	builder_fail(b, reason, b->build->r.step);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct builder *b = arg;
	builder_hold(b);
	if (!b->ending)
		builder_message(b, m);
	builder_let(b);
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	struct builder *b = arg;
	b->chan = NULL;
	if (b->ending)
		return;
	if (err->code == -EPROTO)
		builder_fail(b, "the builder said what nobody understands", b->build->r.step);
	else if (!b->process.pid && !b->finishing)
		builder_fail(b, "the builder ended unexpectedly", b->build->r.step);
	/* else its process tells why */
}

static const struct chan_ops builder_ops = {on_message, on_closed, NULL};

static void on_end(struct loop_fd *w, uint32_t events, void *arg)
{
	struct builder *b = arg;
	char reason[128];
	builder_hold(b);
	chan_take(b->chan);
	loop_fd_del(steal_pointer(&b->watch));
	int status = jail_end(&b->process);
	if (status == 128 + SIGKILL)
		snprintf(reason, sizeof(reason), "the builder was killed");
	else if (status > 128)
		snprintf(reason, sizeof(reason), "the builder crashed (signal %d)", status - 128);
	else
		snprintf(reason, sizeof(reason), "the builder ended unexpectedly (status %d)", status);
	if (!b->ending && !b->finishing)
		builder_fail(b, reason, b->build->r.step);
	builder_let(b);
	builder_let(b); /* the process */
}

static void on_tick(struct loop_timer *t, void *arg)
{
	struct builder *b = arg;
	struct node *n = b->node;
	struct error err = {0};
	int64_t at = node_boottime(n);
	char reason[96];
	if (at >= b->deadline) {
		snprintf(reason, sizeof(reason), "the build took longer than %lld seconds (build.timeout)", (long long)n->options->build_timeout);
		builder_fail(b, reason, b->build->r.step);
	} else if (builder_room(b, 0, &err) < 0) {
		builder_fail(b, err.message, b->build->r.step);
	} else {
		loop_timer_in(t, TICK_S * NS_PER_S);
		layers_go_on(b);
	}
}

/* Start */

struct starting {
	struct builder *builder;
	struct builder_starter starter;
	struct jail jail;
	char stage[PATH_MAX];
	struct buf options, ca, auth;
	char ca_path[PATH_MAX], auth_path[PATH_MAX];
	int channel; /* its end */
	struct jailed process;
	struct error err;
	int ours;    /* end of the channel */
};

static int sealed_file(const char *name, struct str bytes)
{
	cleanup_fd int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : fd_write_all(fd, bytes.p, bytes.n);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		r = -errno;
	return r < 0 ? r : steal_fd(&fd);
}

/* A file that an option names; "" is none. */
static bool read_file(const char *option, const char *path, size_t max, struct buf *to, struct error *err)
{
	int r = *path ? file_read(AT_FDCWD, path, max, to) : 0;
	if (r < 0) {
		/* The team reads why its build failed: where the operator's files are is none of its business. */
		log_error("%s: %s: %s", option, path, strerror(-r));
		error_errno(err, r, "the server's option %s", option);
	}
	return r == 0;
}

static void start_work(void *arg)
{
	static const char *const argv[] = {"cubicle", "builder", NULL};
	struct starting *s = arg;
	if (!read_file("registry.ca", s->ca_path, SOURCE_CA_MAX, &s->ca, &s->err) || !read_file("registry.auth", s->auth_path, DOCKER_CONFIG_MAX, &s->auth, &s->err))
		return;
	cleanup_fd int options = sealed_file("cubicle-options", buf_str(&s->options));
	cleanup_fd int ca = sealed_file("cubicle-ca", buf_str(&s->ca));
	if (options < 0 || ca < 0) {
		error_errno(&s->err, options < 0 ? options : ca, "memory file");
		return;
	}
	/* docs/architecture.md, "Templates": 3 the channel, 4 the options, 5 registry.ca */
	int fds[] = {s->channel, options, ca};
	s->jail.argv = argv;
	s->jail.fds = fds;
	s->jail.n_fds = ARRAY_SIZE(fds);
	s->starter.start(&s->jail, &s->process, s->starter.arg, &s->err);
}

static void starting_free(struct starting *s)
{
	if (s->channel >= 0)
		close(s->channel);
	if (s->ours >= 0)
		close(s->ours);
	buf_done(&s->options);
	buf_done(&s->ca);
	wipe(&s->auth);
	free(s);
}

static void begin(struct builder *b)
{
	struct build *build = b->build;
	const struct options *o = b->node->options;
	struct error err = {0};
	struct msg_build_begin m = {
		.template = str_of(build->r.template_id), .build = str_of(build->r.id), .force = build->force, .team = str_of(build->of ? build->of->r.team : ""),
		.cpu_count = build->r.cpu_count ? build->r.cpu_count : (uint64_t)o->sandbox_cpu, .memory_mb = build->r.memory_mb ? build->r.memory_mb : (uint64_t)o->sandbox_memory,
		.disk_mb = build->r.disk_mb ? build->r.disk_mb : (uint64_t)o->sandbox_disk,
	};
	if (buf_len(&build->base))
		msg_set(&m, build_begin, base, buf_str(&build->base));
	int r = chan_send(b->chan, MSG_ID_build_begin, &m, 0, &build->spec, 1, &err);
	close(steal_fd(&build->spec));
	if (r < 0)
		builder_fail(b, err.message, "base");
}

static void start_done(void *arg)
{
	struct starting *s = arg;
	struct builder *b = s->builder;
	struct node *n = b->node;
	if (s->err.code) {
		log_error("builder: %s", s->err.message);
		builder_fail(b, s->err.message, "base");
		starting_free(s);
		builder_let(b); /* there is no process */
		return;
	}
	FAULT(builder_started);
	b->process = s->process;
	b->auth = s->auth;
	s->auth = BUF_INIT;
	b->watch = loop_fd_add(n->loop, b->process.pidfd, EPOLLIN, on_end, b);
	b->chan = chan_new(n->loop, steal_fd(&s->ours), MSG_FROM_BUILDER, CHAN_NO_FDS, &builder_ops, b);
	if (!b->watch || !b->chan)
		abort(); /* without memory or descriptors the node starts anew */
	starting_free(s);
	if (b->ending) {
		end_process(b);
		return;
	}
	loop_timer_in(b->timer, TICK_S * NS_PER_S);
	begin(b);
}

int builder_start(struct build *build, struct error *err)
{
	struct node *n = build->node;
	struct builder *b = calloc(1, sizeof(*b));
	struct starting *s = calloc(1, sizeof(*s));
	int pair[2] = {-1, -1};
	if (!b || !s)
		abort();
	*s = (struct starting){.builder = b, .starter = n->starter, .channel = -1, .ours = -1};
	*b = (struct builder){.node = n, .build = build, .holds = 1, .timer = loop_timer_new(n->loop, on_tick, b)};
	b->deadline = node_boottime(n) + n->options->build_timeout * NS_PER_S;
	int r = b->timer ? 0 : -ENOMEM;
	if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		r = -errno;
	s->channel = pair[0];
	s->ours = pair[1];
	if (r == 0)
		r = options_serialize(n->options, &s->options);
	snprintf(s->stage, sizeof(s->stage), "%s/builds", n->directory);
	snprintf(s->ca_path, sizeof(s->ca_path), "%s", n->options->registry_ca);
	snprintf(s->auth_path, sizeof(s->auth_path), "%s", n->options->registry_auth);
	s->jail = (struct jail){.flags = JAIL_NET, .uid = n->build_uid, .gid = n->build_gid, .stage = s->stage, .memory = (uint64_t)BUILDER_MB << 20,
		.file_size = (uint64_t)n->options->build_disk << 20, .nice = 5};
	struct str rest = buf_str(&build->base_layers), file;
	while (r == 0 && msg_list_next(&rest, &file))
		builder_use(b, file);
	if (r == 0)
		r = workq_push(n->builds->makers, n->loop, start_work, start_done, s);
	if (r < 0) {
		starting_free(s);
		for (struct builder_layer *l = b->layers, *next; l; l = next) {
			next = l->next;
			images_leave(&n->images, str_of(l->file));
			free(l);
		}
		loop_timer_free(b->timer);
		free(b);
		return error_errno(err, r, "builder");
	}
	build->builder = b;
	return 0;
}

void builder_forget(struct builder *b)
{
	if (!b)
		return;
	/* Its boxes are left to the sweep of the next start; the process ends with the channel. */
	end_process(b);
	if (b->watch)
		loop_fd_del(steal_pointer(&b->watch));
	if (b->process.pid)
		jail_end(&b->process);
	chan_free(steal_pointer(&b->chan));
	while (b->files)
		builder_file_free(b, b->files);
	for (struct builder_layer *l = b->layers, *next; l; l = next) {
		next = l->next;
		free(l);
	}
	for (struct builder_grant *g = b->grants, *next; g; g = next) {
		next = g->next;
		free(g);
	}
	build_boxes_forget(b);
	image_makers_forget(b);
	loop_timer_free(b->timer);
	free(b->result);
	wipe(&b->auth);
	free(b);
}
