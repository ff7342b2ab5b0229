#include "build_world.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "image/builder.h"
#include "io/chan.h"
#include "io/connect.h"
#include "io/http.h"
#include "io/json.h"
#include "io/url.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Of every world: a conversation may outlive its world by a moment, after its answer. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- files ---- */

const struct world_file *world_find(const struct world *w, const char *path)
{
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	for (size_t i = 0; i < w->n_files; i++)
		if (strlen(w->files[i].path) == n && !strncmp(w->files[i].path, path, n))
			return &w->files[i];
	return NULL;
}

void world_put(struct world *w, char type, const char *path, unsigned mode, unsigned uid, unsigned gid, const char *text)
{
	struct world_file *f = (struct world_file *)(uintptr_t)world_find(w, path);
	if (!f) {
		assert_true(w->n_files < WORLD_FILES);
		f = &w->files[w->n_files++];
	}
	*f = (struct world_file){.type = type, .mode = mode, .uid = uid, .gid = gid};
	snprintf(f->path, sizeof(f->path), "%s", path);
	if (type == 'l' || type == 'h')
		snprintf(f->link, sizeof(f->link), "%s", text);
	else
		snprintf(f->text, sizeof(f->text), "%s", text);
	f->size = strlen(text);
}

static void make_parents(struct world *w, const char *path, unsigned uid)
{
	char up[256];
	snprintf(up, sizeof(up), "%s", path);
	for (char *at = up + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		if (!world_find(w, up))
			world_put(w, 'd', up, 0755, uid, uid, "");
		*at = '/';
	}
}

/* ---- tar ---- */

void world_upload(struct world *w, const char *hash, const char *const *entries)
{
	int fd = memfd_create("upload", MFD_CLOEXEC);
	assert_true(fd >= 0);
	struct archive *a = archive_write_new();
	archive_write_add_filter_gzip(a);
	archive_write_set_format_pax(a);
	assert_int_equal(archive_write_open_fd(a, fd), ARCHIVE_OK);
	for (; *entries; entries++) {
		char name[256];
		struct archive_entry *e = archive_entry_new();
		snprintf(name, sizeof(name), "%s", *entries);
		char *text = strchr(name, '='), *link = strstr(name, "->"), *hard = strstr(name, "=>");
		if (hard) {
			*hard = '\0';
			archive_entry_copy_hardlink(e, hard + 2);
			archive_entry_set_size(e, 0);
			text = NULL;
		} else if (link) {
			*link = '\0';
			archive_entry_set_filetype(e, AE_IFLNK);
			archive_entry_copy_symlink(e, link + 2);
			text = NULL;
		} else if (text) {
			*text++ = '\0';
			archive_entry_set_filetype(e, AE_IFREG);
			archive_entry_set_size(e, (la_int64_t)strlen(text));
		} else {
			archive_entry_set_filetype(e, AE_IFDIR);
		}
		archive_entry_set_perm(e, text || hard ? 0640 : 0700);
		archive_entry_set_uid(e, 501);
		archive_entry_set_gid(e, 20);
		archive_entry_copy_pathname(e, name);
		assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
		if (text)
			assert_int_equal(archive_write_data(a, text, strlen(text)), strlen(text));
		archive_entry_free(e);
	}
	assert_int_equal(archive_write_close(a), ARCHIVE_OK);
	archive_write_free(a);
	snprintf(w->uploads[w->n_uploads].hash, 65, "%s", hash);
	w->uploads[w->n_uploads++].fd = fd;
}

static void place(struct world *w, const char *root, struct str body)
{
	struct archive *a = archive_read_new();
	struct archive_entry *e;
	archive_read_support_format_tar(a);
	assert_int_equal(archive_read_open_memory(a, body.p, body.n), ARCHIVE_OK);
	while (archive_read_next_header(a, &e) == ARCHIVE_OK) {
		char path[600], text[4096] = "", target[600];
		const char *name = archive_entry_pathname(e);
		while (name[0] == '.' && name[1] == '/')
			name += 2;
		if (!strcmp(name, "."))
			name = "";
		snprintf(path, sizeof(path), "%s%s%s", root, root[strlen(root) - 1] == '/' || !*name ? "" : "/", name);
		size_t n = strlen(path);
		if (n > 1 && path[n - 1] == '/')
			path[n - 1] = '\0';
		make_parents(w, path, 0);
		if (archive_entry_filetype(e) == AE_IFREG && archive_entry_size(e) < (la_int64_t)sizeof(text))
			archive_read_data(a, text, sizeof(text) - 1);
		char type = archive_entry_hardlink(e) ? 'h' : archive_entry_filetype(e) == AE_IFDIR ? 'd' : archive_entry_filetype(e) == AE_IFLNK ? 'l' : 'f';
		if (type == 'h')
			snprintf(target, sizeof(target), "%s/%s", root, archive_entry_hardlink(e));
		world_put(w, type, path, archive_entry_perm(e), (unsigned)archive_entry_uid(e), (unsigned)archive_entry_gid(e),
			type == 'h' ? target : type == 'l' ? archive_entry_symlink(e) : text);
	}
	archive_read_free(a);
}

static la_ssize_t to_buf(struct archive *a, void *arg, const void *p, size_t n)
{
	buf_add(arg, p, n);
	return (la_ssize_t)n;
}

static void pack(struct world *w, const char *root, struct buf *to)
{
	struct archive *a = archive_write_new();
	archive_write_set_format_pax(a);
	archive_write_set_bytes_per_block(a, 0);
	archive_write_open(a, to, NULL, to_buf, NULL);
	const struct world_file *top = world_find(w, root);
	size_t n = strlen(root);
	for (size_t i = 0; i < w->n_files; i++) {
		const struct world_file *f = &w->files[i];
		char name[600];
		if (f != top && (top->type != 'd' || strncmp(f->path, root, n) != 0 || f->path[n] != '/'))
			continue;
		snprintf(name, sizeof(name), "%s%s", top->type == 'd' ? "./" : "", f == top ? top->type == 'd' ? "" : strrchr(root, '/') + 1 : f->path + n + 1);
		struct archive_entry *e = archive_entry_new();
		archive_entry_copy_pathname(e, name);
		archive_entry_set_filetype(e, f->type == 'd' ? AE_IFDIR : f->type == 'l' ? AE_IFLNK : AE_IFREG);
		if (f->type == 'l')
			archive_entry_copy_symlink(e, f->link);
		archive_entry_set_perm(e, f->mode);
		archive_entry_set_uid(e, f->uid);
		archive_entry_set_gid(e, f->gid);
		archive_entry_set_size(e, f->type == 'f' ? (la_int64_t)f->size : 0);
		archive_write_header(a, e);
		if (f->type == 'f')
			archive_write_data(a, f->text, f->size);
		archive_entry_free(e);
	}
	archive_write_close(a);
	archive_write_free(a);
}

/* ---- envd ---- */

struct conversation {
	struct world *w;
	int fd;
};

static void answer(int fd, int status, const char *type, struct str body)
{
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status, http_reason(status), type, body.n);
	buf_add_str(&text, body);
	for (struct str rest = buf_str(&text); rest.n;) {
		ssize_t n = send(fd, rest.p, rest.n, MSG_NOSIGNAL);
		if (n <= 0)
			return;
		rest = str_from(rest, (size_t)n);
	}
}

static void answer_json(int fd, int status, json_t *j)
{
	char *text = json_dumps(j, JSON_COMPACT);
	answer(fd, status, "application/json", str_of(text));
	free(text);
	json_decref(j);
}

static void serve_start(struct world *w, int fd, const char *user, struct str body)
{
	unsigned flags;
	struct str message;
	struct error err = {0};
	char refusal[256] = "";
	cleanup_buf struct buf out = BUF_INIT, stream = BUF_INIT, coded = BUF_INIT;
	assert_true(connect_parse_envelope(body, 1 << 20, &flags, &message) > 0);
	cleanup_json json_t *j = json_parse(message, 1 << 20, "start", &err);
	const json_t *p = json_object_get(j, "process"), *args = json_object_get(p, "args");
	const char *command = json_string_value(json_array_get(args, json_array_size(args) - 1)), *cwd = json_string_value(json_object_get(p, "cwd")), *key;
	json_t *v;
	buf_addf(&w->commands, "%s %s: %s", user, cwd ? cwd : "-", command);
	json_object_foreach(json_object_get(p, "envs"), key, v)
		buf_addf(&w->commands, " [%s=%s]", key, json_string_value(v));
	buf_add_c(&w->commands, "\n");
	int code = w->run ? w->run(w, user, command, &out, refusal, sizeof(refusal)) : 0;
	if (code < 0) {
		connect_end(&stream, CONNECT_UNAUTHENTICATED, str_of(refusal));
	} else {
		cleanup_buf struct buf event = BUF_INIT;
		connect_envelope(&stream, 0, STR("{\"event\":{\"start\":{\"pid\":42}}}"));
		base64_encode(&coded, buf_str(&out));
		buf_addf(&event, "{\"event\":{\"data\":{\"stdout\":\"%.*s\"}}}", STR_FMT(buf_str(&coded)));
		connect_envelope(&stream, 0, buf_str(&event));
		buf_clear(&event);
		buf_addf(&event, "{\"event\":{\"end\":{\"exitCode\":%d,\"exited\":true,\"status\":\"exit status %d\"}}}", code, code);
		connect_envelope(&stream, 0, buf_str(&event));
		connect_end(&stream, 0, STR(""));
	}
	answer(fd, 200, "application/connect+json", buf_str(&stream));
}

static void serve(struct world *w, int fd, const struct http_head *h, struct str body)
{
	cleanup_buf struct buf path = BUF_INIT, user = BUF_INIT;
	struct str basic = http_value(h, "Authorization");
	struct error err = {0};
	if (str_starts(basic, STR("Basic ")))
		base64_decode(&user, str_from(basic, 6));
	if (buf_len(&user))
		user.end--; /* the colon */
	const char *who = buf_len(&user) ? buf_cstr(&user) : "-";
	url_query_get(h->query, "path", &path);
	const char *at = buf_cstr(&path);
	assert_true(str_is(http_value(h, "X-Access-Token"), "token") || http_value(h, "X-Access-Token").n == 64);
	if (str_is(h->path, "/process.Process/Start")) {
		serve_start(w, fd, who, body);
	} else if (str_starts(h->path, STR("/filesystem.Filesystem/"))) {
		cleanup_json json_t *j = json_parse(body, 1 << 20, "request", &err);
		const char *p = json_string_value(json_object_get(j, "path"));
		const struct world_file *f = world_find(w, p);
		if (str_ends(h->path, STR("MakeDir"))) {
			if (!f) {
				make_parents(w, p, !strcmp(who, "root") ? 0 : 1000);
				world_put(w, 'd', p, 0755, !strcmp(who, "root") ? 0 : 1000, !strcmp(who, "root") ? 0 : 1000, "");
			}
			answer_json(fd, f ? 409 : 200, json_pack("{s:s}", "code", "already_exists"));
		} else if (!f) {
			answer_json(fd, 404, json_pack("{s:s}", "code", "not_found"));
		} else {
			answer_json(fd, 200, json_pack("{s:{s:s}}", "entry", "type", f->type == 'd' ? "FILE_TYPE_DIRECTORY" : "FILE_TYPE_FILE"));
		}
	} else if (str_is(h->path, "/files") || (str_is(h->path, "/archive") && str_is(h->method, "GET"))) {
		cleanup_buf struct buf tar = BUF_INIT;
		const struct world_file *f = world_find(w, at);
		if (!f)
			answer_json(fd, 404, json_pack("{s:i, s:s}", "code", 404, "message", "does not exist"));
		else if (str_is(h->path, "/files"))
			answer(fd, 200, "text/plain", str_n(f->text, f->size));
		else {
			pack(w, f->path, &tar);
			answer(fd, 200, "application/x-tar", buf_str(&tar));
		}
	} else {
		assert_true(str_is(h->path, "/archive") && str_is(h->method, "PUT"));
		place(w, at, body);
		answer_json(fd, 200, json_pack("{s:i}", "members", 1));
	}
}

static void *converse(void *arg)
{
	struct conversation *c = arg;
	struct http_head *h = malloc(sizeof(*h));
	cleanup_buf struct buf in = BUF_INIT, body = BUF_INIT, first = BUF_INIT;
	struct http_body b = {0};
	ssize_t head = 0;
	int status;
	for (;;) {
		char *to = buf_reserve(&in, 65536);
		ssize_t n = recv(c->fd, to, 65536, 0);
		if (n <= 0)
			break;
		buf_commit(&in, (size_t)n);
		if (!head) {
			head = http_parse_request(buf_str(&in), h, &status);
			assert_true(head >= 0);
			if (!head)
				continue;
			/* What the head's views point to stays where it is. */
			buf_add(&first, buf_str(&in).p, (size_t)head);
			http_parse_request(buf_str(&first), h, &status);
			http_body_init(&b, h->framing, h->length);
			buf_consume(&in, (size_t)head);
		}
		struct str rest = buf_str(&in), piece;
		size_t before = rest.n;
		do {
			assert_int_equal(http_body_next(&b, &rest, &piece), 0);
			buf_add_str(&body, piece);
		} while (piece.n);
		buf_consume(&in, before - rest.n);
		if (b.done || h->framing == HTTP_BODY_NONE)
			break;
	}
	if (head) {
		pthread_mutex_lock(&lock);
		serve(c->w, c->fd, h, buf_str(&body));
		pthread_mutex_unlock(&lock);
	}
	close(c->fd);
	free(h);
	free(c);
	return NULL;
}

int world_connect(void *arg, unsigned port, struct error *err)
{
	int pair[2];
	pthread_t t;
	struct conversation *c = malloc(sizeof(*c));
	assert_int_equal(port, 49983);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	*c = (struct conversation){arg, pair[1]};
	assert_int_equal(pthread_create(&t, NULL, converse, c), 0);
	pthread_detach(t);
	return pair[0];
}

/* ---- node ---- */

static void tell(struct world *w, enum msg_id type, const void *m, uint64_t request, int fd)
{
	struct error err = {0};
	msg_send_fd(w->node, type, m, request, fd >= 0 ? &fd : NULL, fd >= 0, &err);
}

static void tell_error(struct world *w, uint64_t request, int code, const char *message)
{
	struct msg_error m = {.code = code, .status = 400, .message = str_of(message)};
	tell(w, MSG_ID_error, &m, request, -1);
}

static void tell_layer(struct world *w, uint64_t request, const char *file, bool found)
{
	struct msg_layer m = {0};
	if (file) {
		msg_set(&m, layer, file, str_of(file));
		msg_set(&m, layer, size, 4096);
		msg_set(&m, layer, found, found);
	}
	tell(w, MSG_ID_layer, &m, request, -1);
}

static size_t layer_of(struct world *w, struct str key)
{
	for (size_t i = 0; i < w->n_layers; i++)
		if (str_is(key, w->layers[i].key))
			return i;
	assert_true(w->n_layers < WORLD_LAYERS);
	snprintf(w->layers[w->n_layers].key, sizeof(w->layers[0].key), "%.*s", STR_FMT(key));
	return w->n_layers++;
}

static void handle_box(struct world *w, const struct msg_header *h, const union msg_any *m)
{
	struct str rest = m->start_box.layers.raw, item;
	while (msg_list_next(&rest, &item))
		buf_addf(&w->box_layers, "%.*s ", STR_FMT(item));
	buf_add_c(&w->box_layers, "\n");
	w->boxes++;
	w->open_boxes++;
	struct msg_box_started started = {.box = w->boxes};
	tell(w, MSG_ID_box_started, &started, h->request, -1);
}

static void handle_layer(struct world *w, const struct msg_header *h, const union msg_any *m)
{
	char file[ASK_FILE_NAME];
	if (h->type == MSG_ID_find_layer) {
		size_t i = layer_of(w, m->find_layer.key);
		assert_false(w->layers[i].held);
		w->layers[i].held = m->find_layer.make && !w->layers[i].file[0];
		tell_layer(w, h->request, w->layers[i].file[0] ? w->layers[i].file : NULL, true);
	} else if (h->type == MSG_ID_drop_layer) {
		w->layers[layer_of(w, m->drop_layer.key)].held = false;
		w->dropped++;
		struct msg_ok ok = {0};
		tell(w, MSG_ID_ok, &ok, h->request, -1);
	} else if (h->type == MSG_ID_unpack_layer) {
		size_t i = layer_of(w, m->unpack_layer.key);
		assert_true(w->layers[i].held);
		w->layers[i].held = false;
		if (w->unpack_error == 'x') {
			w->unpack_error = 0;
			tell_error(w, h->request, -EXDEV, "a hard link leads below");
			return;
		}
		w->unpacked++;
		snprintf(w->layers[i].file, sizeof(w->layers[i].file), "images/o%u.erofs", ++w->next);
		tell_layer(w, h->request, w->layers[i].file, false);
	} else if (h->type == MSG_ID_seal_box) {
		w->sealed++;
		w->open_boxes--;
		snprintf(file, sizeof(file), "images/b%u.img", ++w->next);
		if (msg_has(&m->seal_box, seal_box, key)) {
			size_t i = layer_of(w, m->seal_box.key);
			w->layers[i].held = false;
			snprintf(w->layers[i].file, sizeof(w->layers[i].file), "%s", file);
		}
		tell_layer(w, h->request, file, false);
	} else {
		w->merged++;
		snprintf(file, sizeof(file), "images/m%u.erofs", ++w->next);
		tell_layer(w, h->request, file, false);
	}
}

static void handle(struct world *w, const struct msg_header *h, const union msg_any *m)
{
	struct error err = {0};
	struct msg_ok ok = {0};
	switch (h->type) {
	case MSG_ID_build_log:
		buf_addf(&w->log, "%.*s %u %.*s\n", STR_FMT(m->build_log.step), (unsigned)m->build_log.level, STR_FMT(m->build_log.message));
		return;
	case MSG_ID_build_progress:
		w->fell |= m->build_progress.progress < w->progress;
		w->progress = (unsigned)m->build_progress.progress;
		return;
	case MSG_ID_start_box:
		handle_box(w, h, m);
		return;
	case MSG_ID_open_box: {
		struct msg_stream s = {.generation = STR("g")};
		cleanup_fd int fd = world_connect(w, (unsigned)m->open_box.port, &err);
		tell(w, MSG_ID_stream, &s, h->request, fd);
		return;
	}
	case MSG_ID_end_box:
		w->open_boxes--;
		tell(w, MSG_ID_ok, &ok, h->request, -1);
		return;
	case MSG_ID_new_file: {
		struct msg_file_writer f = {.writer = ++w->next};
		cleanup_fd int fd = memfd_create("blob", MFD_CLOEXEC);
		tell(w, MSG_ID_file_writer, &f, h->request, fd);
		return;
	}
	case MSG_ID_open_file:
		for (size_t i = 0; i < w->n_uploads; i++)
			if (str_is(m->open_file.hash, w->uploads[i].hash)) {
				struct msg_file_reader f = {.size = 1};
				tell(w, MSG_ID_file_reader, &f, h->request, w->uploads[i].fd);
				return;
			}
		tell_error(w, h->request, -ENOENT, "not there");
		return;
	case MSG_ID_build_done:
		w->description = str_dup(m->build_done.description);
		w->digest = str_dup(m->build_done.digest);
		w->probe = m->build_done.probe;
		w->done = true;
		tell(w, MSG_ID_ok, &ok, h->request, -1);
		return;
	case MSG_ID_build_failed:
		w->message = str_dup(m->build_failed.message);
		w->step = str_dup(m->build_failed.step);
		tell(w, MSG_ID_ok, &ok, h->request, -1);
		return;
	default:
		handle_layer(w, h, m);
	}
}

static void *node_thread(void *arg)
{
	struct world *w = arg;
	char *storage = malloc(MSG_MAX);
	for (;;) {
		struct msg_header h;
		union msg_any m;
		struct error err = {0};
		int fds[MSG_MAX_FDS];
		size_t n = 0;
		if (msg_receive_fd(w->node, storage, &h, &m, fds, &n, &err) < 0)
			break;
		pthread_mutex_lock(&lock);
		handle(w, &h, &m);
		pthread_mutex_unlock(&lock);
	}
	free(storage);
	return NULL;
}

void world_start(struct world *w)
{
	*w = (struct world){.node = -1, .builder = -1};
	world_put(w, 'd', "/", 0755, 0, 0, "");
	world_put(w, 'd', "/etc", 0755, 0, 0, "");
	world_put(w, 'd', "/bin", 0755, 0, 0, "");
	world_put(w, 'f', "/bin/bash", 0755, 0, 0, "");
	world_put(w, 'f', "/etc/passwd", 0644, 0, 0, "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:/bin/sh\n");
	world_put(w, 'f', "/etc/group", 0644, 0, 0, "root:x:0:\nwww-data:x:33:\nstaff:x:50:\n");
}

void world_again(struct world *w)
{
	buf_done(&w->log);
	buf_done(&w->commands);
	buf_done(&w->box_layers);
	free(w->description);
	free(w->digest);
	free(w->message);
	free(w->step);
	w->description = w->digest = w->message = w->step = NULL;
	w->boxes = w->sealed = w->unpacked = w->merged = w->dropped = w->progress = 0;
	w->done = w->probe = w->fell = false;
	world_fetched = 0;
}

int world_build(struct world *w, const char *spec, const char *base, bool force, struct error *err)
{
	int pair[2];
	struct options o;
	world_again(w);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	w->node = pair[0];
	w->builder = pair[1];
	cleanup_fd int fd = memfd_create("spec", MFD_CLOEXEC);
	assert_int_equal(write(fd, spec, strlen(spec)), strlen(spec));
	struct msg_build_begin m = {.template = STR("t"), .build = STR("b"), .force = force, .team = STR("default"), .cpu_count = 2, .memory_mb = 512, .disk_mb = 1024};
	if (base)
		msg_set(&m, build_begin, base, str_of(base));
	tell(w, MSG_ID_build_begin, &m, 0, fd);
	assert_int_equal(pthread_create(&w->thread, NULL, node_thread, w), 0);
	assert_int_equal(options_init(&o), 0);
	int r = builder_run(w->builder, &o, STR(""), err);
	options_done(&o);
	close(w->builder);
	pthread_join(w->thread, NULL);
	close(w->node);
	for (size_t i = 0; i < w->n_layers; i++)
		assert_false(w->layers[i].held);
	assert_int_equal(w->open_boxes, 0);
	assert_false(w->fell);
	assert_true(w->done != (w->message != NULL));
	return r;
}

void world_stop(struct world *w)
{
	world_again(w);
	for (size_t i = 0; i < w->n_uploads; i++)
		close(w->uploads[i].fd);
}
