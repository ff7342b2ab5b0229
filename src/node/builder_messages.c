#include "base/cleanup.h"
#include "base/fd.h"
#include "image/docker_config.h"
#include "node/builder_impl.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* What a builder asks for. Nothing that it says is believed. */

enum {
	LOGINS_MOST = 64,
	LOGIN_NAME_MOST = 4096, /* messages.h, registry_access */
	LOGIN_SECRET_MOST = 16384,
};

struct builder_file *builder_file(struct builder *b, uint64_t number)
{
	for (struct builder_file *f = b->files; f; f = f->next)
		if (f->number == number)
			return f;
	return NULL;
}

void builder_file_free(struct builder *b, struct builder_file *f)
{
	struct builder_file **at = &b->files;
	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	b->n_files--;
	close(f->fd);
	free(f);
}

static void new_file(struct builder *b, uint64_t request, const struct msg_new_file *m)
{
	struct error err = {0};
	char path[PATH_MAX];
	struct builder_file *f = NULL;
	cleanup_fd int fd = -1;
	if (b->n_files >= BUILDER_FILES_MOST)
		error_set(&err, -EMFILE, 400, "at most %d files", BUILDER_FILES_MOST);
	else if (builder_room(b, m->size, &err) == 0 && !(f = calloc(1, sizeof(*f))))
		error_errno(&err, -ENOMEM, "file");
	if (f) {
		f->fd = -1;
		snprintf(path, sizeof(path), "%s/images", b->node->directory);
		fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		/* Ours is for reading only: when the builder has closed its own nobody can write any more. */
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (fd >= 0)
			f->fd = open(path, O_RDONLY | O_CLOEXEC);
		if (f->fd < 0)
			error_errno(&err, -errno, "file");
	}
	if (err.code) {
		free(f);
		builder_refuse(b, request, &err);
		return;
	}
	f->number = ++b->last_file;
	f->promised = m->size;
	f->next = b->files;
	b->files = f;
	b->n_files++;
	struct msg_file_writer writer = {.writer = f->number};
	builder_answer(b, request, MSG_ID_file_writer, &writer, fd);
}

static void find_layer(struct builder *b, uint64_t request, const struct msg_find_layer *m)
{
	struct error err;
	char key[LAYER_KEY + 1];
	if (m->key.n && !memchr(m->key.p, '\0', m->key.n)) {
		layers_key(b, m->key, key);
		layers_find(b, request, str_of(key), m->make);
		return;
	}
	error_set(&err, -EINVAL, 400, "key: 1 to %d bytes without NUL are needed", BUILDER_KEY);
	builder_refuse(b, request, &err);
}

static void drop_layer(struct builder *b, uint64_t request, const struct msg_drop_layer *m)
{
	char key[LAYER_KEY + 1];
	layers_key(b, m->key, key);
	layers_give(b, str_of(key));
	builder_answer(b, request, MSG_ID_ok, NULL, -1);
}

static void open_file(struct builder *b, uint64_t request, const struct msg_open_file *m)
{
	struct error err;
	struct msg_file_reader reader = {0};
	cleanup_fd int fd = b->build->of ? upload_open(b->node, b->build->of->r.team, m->hash, &reader.size) : -ENOENT;
	if (fd >= 0) {
		builder_answer(b, request, MSG_ID_file_reader, &reader, fd);
		return;
	}
	error_set(&err, fd, 404, "the file %.*s was not sent", STR_FMT(m->hash));
	builder_refuse(b, request, &err);
}

static bool is_text(struct str s)
{
	return !memchr(s.p, '\0', s.n);
}

/* The operator's credentials, for a pull that nobody gave credentials for. The file is read each time: it may change. */
static void login(struct builder *b, uint64_t request, const struct msg_registry_login *m)
{
	struct error err = {0};
	struct source_credentials c = {0};
	struct msg_registry_access answer = {0};
	int r = 0;
	if (b->logins++ >= LOGINS_MOST)
		r = error_set(&err, -E2BIG, 400, "the build wants credentials of more than %d images", LOGINS_MOST);
	else if (buf_len(&b->auth) && is_text(m->registry) && is_text(m->repository))
		r = docker_config_find(buf_str(&b->auth), m->registry, m->repository, &c, &err);
	if (r > 0 && ((c.username && strlen(c.username) > LOGIN_NAME_MOST) || (c.password && strlen(c.password) > LOGIN_SECRET_MOST) || (c.identity_token && strlen(c.identity_token) > LOGIN_SECRET_MOST))) {
		source_credentials_done(&c);
		r = error_set(&err, -E2BIG, 400, "registry.auth: the credentials of %.*s are too long", STR_FMT(m->registry));
	}
	if (r < 0) {
		builder_refuse(b, request, &err);
		return;
	}
	if (c.username)
		msg_set(&answer, registry_access, username, str_of(c.username));
	if (c.password)
		msg_set(&answer, registry_access, password, str_of(c.password));
	if (c.identity_token)
		msg_set(&answer, registry_access, identity_token, str_of(c.identity_token));
	builder_answer(b, request, MSG_ID_registry_access, &answer, -1);
	source_credentials_done(&c);
}

/* The result */

/* Does what it is made on allow so much? A build adds no privileges of its own. */
static bool base_allows(const struct build *build, const struct template *t)
{
	return !t->nested_userns || build->base_nested;
}

static int check_result(const struct builder *b, struct template *t, struct error *err)
{
	const struct node *n = b->node;
	for (size_t i = 0; i < t->n_layers; i++) {
		char path[PATH_MAX];
		struct stat st;
		if (!builder_uses(b, str_of(t->layers[i].file)))
			return error_set(err, -EPERM, 400, "the build has no layer %s", t->layers[i].file);
		for (size_t j = 0; j < i; j++)
			if (strcmp(t->layers[i].file, t->layers[j].file) == 0)
				return error_set(err, -EINVAL, 400, "layer %s is named twice", t->layers[i].file);
		snprintf(path, sizeof(path), "%s/%s", n->directory, t->layers[i].file);
		if (lstat(path, &st) < 0)
			return error_errno(err, -errno, "layer %s", t->layers[i].file);
		t->layers[i].size = MAX((uint64_t)st.st_blocks * 512, UINT64_C(1));
	}
	if (strcmp(t->isolation, b->build->base_isolation) != 0)
		return error_set(err, -EPERM, 400, "isolation: another than that of what it is made on");
	if (!base_allows(b->build, t))
		return error_set(err, -EPERM, 400, "nested_userns: what it is made on has it not");
	return template_check_layers(n->directory, t, "template", err);
}

static void build_done(struct builder *b, uint64_t request, const struct msg_build_done *m)
{
	struct error err = {0};
	const struct build_record *r = &b->build->r;
	struct template *id = calloc(1, sizeof(*id)), *t = calloc(1, sizeof(*t));
	if (!id || !t)
		abort();
	if (!b->build->of)
		error_set(&err, -ENOENT, 404, "the template was deleted");
	else
		team_build_identity(b->build, id);
	if (!err.code && template_parse_build(m->description, "description", id, t, &err) == 0)
		check_result(b, t, &err);
	if (!err.code && (m->digest.n && !is_text(m->digest)))
		error_set(&err, -EINVAL, 400, "digest: without NUL");
	free(id);
	if (err.code) {
		free(t);
		builder_refuse(b, request, &err);
		return;
	}
	/* What was asked for counts; else what the server gives then. */
	t->cpu_count = r->cpu_count;
	t->memory_mb = r->memory_mb;
	t->disk_mb = r->disk_mb;
	t->no_setuid |= b->build->base_no_setuid;
	if (*b->build->isolation)
		memcpy(t->isolation, b->build->isolation, sizeof(t->isolation));
	b->result = t;
	b->finishing = true;
	b->done_request = request;
	if (msg_has(m, build_done, digest))
		sandbox_copy(b->digest, sizeof(b->digest), m->digest);
	if (m->probe)
		build_box_probe(b);
	else
		builder_succeed(b);
}

static void build_failed(struct builder *b, uint64_t request, const struct msg_build_failed *m)
{
	char reason[1025], step[33] = "";
	snprintf(reason, sizeof(reason), "%.*s", STR_FMT(m->message));
	if (msg_has(m, build_failed, step))
		sandbox_copy(step, sizeof(step), m->step);
	builder_answer(b, request, MSG_ID_ok, NULL, -1);
	builder_fail(b, *reason ? reason : "the build failed", step);
}

static void log_line(struct builder *b, const struct msg_build_log *m)
{
	char step[33] = "";
	if (msg_has(m, build_log, step))
		sandbox_copy(step, sizeof(step), m->step);
	/* For what the builder itself cannot say: that it was killed. */
	if (*step)
		memcpy(b->build->r.step, step, sizeof(step));
	team_build_log_line(b->build, (unsigned)MIN(m->level, UINT64_C(3)), step, m->message);
}

static void not_served(struct builder *b, uint64_t request, uint16_t type)
{
	struct error err;
	error_set(&err, -ENOSYS, 501, "%s is nothing that a builder may ask for", msg_type(type)->name);
	builder_refuse(b, request, &err);
}

void builder_message(struct builder *b, struct chan_message *m)
{
	uint64_t request = m->header.request;
	/* Said last, it is the last. */
	if (b->finishing)
		return;
	/* A builder has few requests under way. What it does not read holds memory and descriptors here. */
	if (b->chan && chan_queued(b->chan) > BUILDER_UNREAD_MOST) {
		builder_fail(b, "the builder does not read its answers", b->build->r.step);
		return;
	}
	switch (m->header.type) {
	case MSG_ID_build_log:
		log_line(b, &m->body->build_log);
		break;
	case MSG_ID_build_progress:
		team_build_set_progress(b->build, m->body->build_progress.phase, (unsigned)MIN(m->body->build_progress.progress, UINT64_C(99)));
		break;
	case MSG_ID_find_layer:
		find_layer(b, request, &m->body->find_layer);
		break;
	case MSG_ID_drop_layer:
		drop_layer(b, request, &m->body->drop_layer);
		break;
	case MSG_ID_new_file:
		new_file(b, request, &m->body->new_file);
		break;
	case MSG_ID_unpack_layer:
		image_unpack(b, request, &m->body->unpack_layer);
		break;
	case MSG_ID_merge_layers:
		image_merge(b, request, &m->body->merge_layers);
		break;
	case MSG_ID_start_box:
		build_box_start(b, request, &m->body->start_box);
		break;
	case MSG_ID_open_box:
		build_box_open(b, request, &m->body->open_box);
		break;
	case MSG_ID_seal_box:
		build_box_seal(b, request, &m->body->seal_box);
		break;
	case MSG_ID_end_box:
		build_box_end(b, request, &m->body->end_box);
		break;
	case MSG_ID_open_file:
		open_file(b, request, &m->body->open_file);
		break;
	case MSG_ID_registry_login:
		login(b, request, &m->body->registry_login);
		break;
	case MSG_ID_build_done:
		build_done(b, request, &m->body->build_done);
		break;
	case MSG_ID_build_failed:
		build_failed(b, request, &m->body->build_failed);
		break;
	case MSG_ID_hello:
	case MSG_ID_ok:
	case MSG_ID_error:
		break;
	default:
		not_served(b, request, m->header.type);
	}
}
