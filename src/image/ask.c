#include "image/ask.h"
#include "base/cleanup.h"
#include "io/chan.h"

#include <errno.h>
#include <string.h>

enum { LOG_LINE_MOST = 4096 };

int ask_init(struct ask *a, int fd)
{
	*a = (struct ask){.fd = fd, .storage = malloc(MSG_MAX)};
	return a->storage ? 0 : -ENOMEM;
}

void ask_done(struct ask *a)
{
	free(a->storage);
	a->storage = NULL;
}

/* The next message for us. Descriptors are in *ret_fd (-1: none). */
static int receive(struct ask *a, struct msg_header *h, union msg_any *m, int *ret_fd, struct error *err)
{
	int fds[MSG_MAX_FDS];
	size_t n = 0;
	int r = msg_receive_fd(a->fd, a->storage, h, m, fds, &n, err);
	if (r < 0)
		return r;
	for (size_t i = 1; i < n; i++)
		close(fds[i]);
	*ret_fd = n ? fds[0] : -1;
	return 0;
}

int ask_begin(struct ask *a, struct msg_build_begin *ret, int *ret_fd, struct error *err)
{
	struct msg_header h;
	union msg_any m;
	cleanup_fd int fd = -1;
	int r = receive(a, &h, &m, &fd, err);
	if (r < 0)
		return r;
	if (h.type != MSG_ID_build_begin)
		return error_set(err, -EPROTO, 500, "the first message is no build_begin");
	*ret = m.build_begin;
	*ret_fd = steal_fd(&fd);
	return 0;
}

static int error_of(const struct msg_error *m, struct error *err)
{
	int code = m->code < 0 && m->code > -4096 ? (int)m->code : -EIO;
	int r = error_set(err, code, (int)m->status, "%.*s", STR_FMT(m->message));
	if (err && msg_has(m, error, retry_after))
		err->retry_after = (int)MIN(m->retry_after, (uint64_t)3600);
	return r;
}

static int take_layer(const struct msg_layer *m, struct ask_layer *ret, struct error *err)
{
	struct ask_layer l = {.size = m->size, .found = m->found, .guessed = m->guessed};
	if (msg_has(m, layer, file)) {
		if (m->file.n >= sizeof(l.file) || memchr(m->file.p, '\0', m->file.n))
			return error_set(err, -EPROTO, 500, "a layer's name is no name");
		memcpy(l.file, m->file.p, m->file.n);
	}
	*ret = l;
	return 0;
}

/* An answer to something else: only layers are asked for without waiting. */
static int keep(struct ask *a, const struct msg_header *h, const union msg_any *m)
{
	for (size_t i = 0; i < ASK_PENDING; i++) {
		struct ask_answer *k = &a->kept[i];
		if (k->request)
			continue;
		*k = (struct ask_answer){.request = h->request};
		if (h->type == MSG_ID_layer)
			return take_layer(&m->layer, &k->layer, &k->err);
		if (h->type == MSG_ID_error)
			return error_of(&m->error, &k->err) < 0 ? 0 : -EPROTO;
		return -EPROTO;
	}
	return -EPROTO;
}

/* Waits for the answer of that request: `type`, or its error. */
static int await(struct ask *a, uint64_t request, enum msg_id type, union msg_any *ret, int *ret_fd, struct error *err)
{
	for (;;) {
		struct msg_header h;
		cleanup_fd int fd = -1;
		int r = receive(a, &h, ret, &fd, err);
		if (r < 0)
			return r;
		if (h.request != request) {
			r = keep(a, &h, ret);
			if (r < 0)
				return error_set(err, -EPROTO, 500, "an answer to nothing that was asked");
			continue;
		}
		if (h.type == MSG_ID_error)
			return error_of(&ret->error, err);
		if (h.type != type)
			return error_set(err, -EPROTO, 500, "%s was answered by %s", msg_type(type)->name, msg_type(h.type)->name);
		if (ret_fd)
			*ret_fd = steal_fd(&fd);
		return 0;
	}
}

static int send_request(struct ask *a, enum msg_id type, const void *m, struct error *err)
{
	return msg_send_fd(a->fd, type, m, ++a->last, NULL, 0, err);
}

static int call(struct ask *a, enum msg_id type, const void *m, enum msg_id answer, union msg_any *ret, int *ret_fd, struct error *err)
{
	int r = send_request(a, type, m, err);
	return r < 0 ? r : await(a, a->last, answer, ret, ret_fd, err);
}

static int call_layer(struct ask *a, enum msg_id type, const void *m, struct ask_layer *ret, struct error *err)
{
	union msg_any answer;
	int r = call(a, type, m, MSG_ID_layer, &answer, NULL, err);
	return r < 0 ? r : take_layer(&answer.layer, ret, err);
}

static int call_ok(struct ask *a, enum msg_id type, const void *m, struct error *err)
{
	union msg_any answer;
	return call(a, type, m, MSG_ID_ok, &answer, NULL, err);
}

/* Bytes of a well-formed UTF-8 sequence at the front, 0 = none. */
static size_t sequence(struct str s)
{
	for (size_t n = 1; n <= 4 && n <= s.n; n++)
		if (str_is_utf8(str_n(s.p, n)))
			return n;
	return 0;
}

static void add_clean(struct buf *to, struct str line)
{
	while (line.n && buf_len(to) < LOG_LINE_MOST) {
		size_t n = sequence(line);
		unsigned char c = (unsigned char)*line.p;
		if (n == 0)
			buf_add_c(to, "\xef\xbf\xbd");
		else if (n > 1 || c == '\t' || c == '\n' || c == 27 || (c >= 32 && c != 127))
			buf_add(to, line.p, n);
		line = str_from(line, n ? n : 1);
	}
}

void ask_log(struct ask *a, int level, const char *step, struct str line)
{
	cleanup_buf struct buf text = BUF_INIT;
	add_clean(&text, line);
	struct msg_build_log m = {.level = (uint64_t)level, .message = buf_str(&text)};
	if (step && *step)
		msg_set(&m, build_log, step, str_of(step));
	msg_send_fd(a->fd, MSG_ID_build_log, &m, 0, NULL, 0, NULL);
}

void ask_progress(struct ask *a, const char *phase, unsigned percent)
{
	struct msg_build_progress m = {.phase = str_of(phase), .progress = percent};
	msg_send_fd(a->fd, MSG_ID_build_progress, &m, 0, NULL, 0, NULL);
}

int ask_find_layer(struct ask *a, const char *key, bool make, struct ask_layer *ret, struct error *err)
{
	struct msg_find_layer m = {.key = str_of(key), .make = make};
	return call_layer(a, MSG_ID_find_layer, &m, ret, err);
}

int ask_drop_layer(struct ask *a, const char *key, struct error *err)
{
	struct msg_drop_layer m = {.key = str_of(key)};
	return call_ok(a, MSG_ID_drop_layer, &m, err);
}

int ask_new_file(struct ask *a, uint64_t size, uint64_t *ret_number, int *ret_fd, struct error *err)
{
	struct msg_new_file m = {.size = size};
	union msg_any answer;
	int r = call(a, MSG_ID_new_file, &m, MSG_ID_file_writer, &answer, ret_fd, err);
	if (r == 0)
		*ret_number = answer.file_writer.writer;
	return r;
}

int ask_unpack_layer(struct ask *a, const struct msg_unpack_layer *m, uint64_t *ret_request, struct error *err)
{
	int r = send_request(a, MSG_ID_unpack_layer, m, err);
	if (r == 0)
		*ret_request = a->last;
	return r;
}

int ask_wait_layer(struct ask *a, uint64_t request, struct ask_layer *ret, struct error *err)
{
	for (size_t i = 0; i < ASK_PENDING; i++) {
		struct ask_answer *k = &a->kept[i];
		if (k->request != request)
			continue;
		k->request = 0;
		if (k->err.code < 0)
			return error_set(err, k->err.code, k->err.status, "%s", k->err.message);
		*ret = k->layer;
		return 0;
	}
	union msg_any answer;
	int r = await(a, request, MSG_ID_layer, &answer, NULL, err);
	return r < 0 ? r : take_layer(&answer.layer, ret, err);
}

int ask_merge_layers(struct ask *a, struct msg_list layers, struct msg_list below, struct ask_layer *ret, struct error *err)
{
	struct msg_merge_layers m = {.layers = layers};
	msg_set(&m, merge_layers, below, below);
	return call_layer(a, MSG_ID_merge_layers, &m, ret, err);
}

int ask_start_box(struct ask *a, struct msg_list layers, const char *user, const char *token, uint64_t *ret_box, struct error *err)
{
	struct msg_start_box m = {.layers = layers, .user = str_of(user), .token = str_of(token)};
	union msg_any answer;
	int r = call(a, MSG_ID_start_box, &m, MSG_ID_box_started, &answer, NULL, err);
	if (r == 0)
		*ret_box = answer.box_started.box;
	return r;
}

int ask_open_box(struct ask *a, uint64_t box, unsigned port, struct error *err)
{
	struct msg_open_box m = {.box = box, .port = port};
	union msg_any answer;
	int fd = -1;
	int r = call(a, MSG_ID_open_box, &m, MSG_ID_stream, &answer, &fd, err);
	return r < 0 ? r : fd;
}

int ask_seal_box(struct ask *a, uint64_t box, const char *key, struct ask_layer *ret, struct error *err)
{
	struct msg_seal_box m = {.box = box};
	if (key)
		msg_set(&m, seal_box, key, str_of(key));
	return call_layer(a, MSG_ID_seal_box, &m, ret, err);
}

int ask_end_box(struct ask *a, uint64_t box, struct error *err)
{
	struct msg_end_box m = {.box = box};
	return call_ok(a, MSG_ID_end_box, &m, err);
}

static int take_secret(bool present, struct str from, char **to)
{
	*to = present ? str_dup(from) : NULL;
	return present && !*to ? -ENOMEM : 0;
}

int ask_registry_login(struct ask *a, struct str registry, struct str repository, char **ret_username, char **ret_password, char **ret_identity_token, struct error *err)
{
	struct msg_registry_login m = {.registry = registry, .repository = repository};
	union msg_any answer;
	int r = call(a, MSG_ID_registry_login, &m, MSG_ID_registry_access, &answer, NULL, err);
	if (r < 0)
		return r;
	const struct msg_registry_access *l = &answer.registry_access;
	if (take_secret(msg_has(l, registry_access, username), l->username, ret_username) < 0 ||
		take_secret(msg_has(l, registry_access, password), l->password, ret_password) < 0 ||
		take_secret(msg_has(l, registry_access, identity_token), l->identity_token, ret_identity_token) < 0)
		r = error_errno(err, -ENOMEM, "registry.auth");
	explicit_bzero(a->storage, MSG_MAX);
	return r;
}

int ask_open_file(struct ask *a, const char *hash, uint64_t *ret_size, struct error *err)
{
	struct msg_open_file m = {.hash = str_of(hash)};
	union msg_any answer;
	int fd = -1;
	int r = call(a, MSG_ID_open_file, &m, MSG_ID_file_reader, &answer, &fd, err);
	if (r < 0)
		return r;
	if (ret_size)
		*ret_size = answer.file_reader.size;
	return fd;
}

int ask_build_done(struct ask *a, struct str description, const char *digest, bool probe, struct error *err)
{
	struct msg_build_done m = {.description = description};
	if (digest && *digest)
		msg_set(&m, build_done, digest, str_of(digest));
	if (probe)
		msg_set(&m, build_done, probe, true);
	return call_ok(a, MSG_ID_build_done, &m, err);
}

int ask_build_failed(struct ask *a, struct str message, const char *step, struct error *err)
{
	struct msg_build_failed m = {.message = str_n(message.p, MIN(message.n, (size_t)1024))};
	if (step && *step)
		msg_set(&m, build_failed, step, str_of(step));
	return call_ok(a, MSG_ID_build_failed, &m, err);
}
