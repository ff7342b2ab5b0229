#include "node/layers.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/random.h"
#include "base/sha256.h"
#include "io/workq.h"
#include "node/builds.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* Files that teams have sent for their builds: contexts, what COPY copies, archives. A team finds only its own. */

static const char directory[] = "files";

/* One that is being sent: a file without a name, until all of it is there. */
struct file_writer {
	struct file_writer *next;
	uint64_t number;
	int fd;
	char team[65], hash[65];
	uint64_t size;
};

static int put_name(struct buf *to, struct str team, struct str hash)
{
	buf_add_str(to, team);
	buf_add(to, "", 1);
	return buf_add_str(to, hash);
}

static struct file_record *find(struct node *n, struct str team, struct str hash)
{
	cleanup_buf struct buf name = BUF_INIT;
	if (put_name(&name, team, hash) < 0)
		abort(); /* see records.c: without memory the node starts anew */
	return map_get(&n->uploads.by_name, buf_str(&name));
}

static void add(struct node *n, const struct file_record *f)
{
	cleanup_buf struct buf name = BUF_INIT;
	struct file_record *copy = malloc(sizeof(*copy));
	void *old = NULL;
	if (!copy || put_name(&name, str_of(f->team), str_of(f->hash)) < 0)
		abort();
	*copy = *f;
	if (map_put(&n->uploads.by_name, buf_str(&name), copy, &old) < 0)
		abort();
	free(old);
}

static void remove_file(struct node *n, const char *file)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", n->directory, file);
	unlink(path);
}

void upload_drop(struct node *n, struct file_record *f)
{
	cleanup_buf struct buf name = BUF_INIT;
	if (put_name(&name, str_of(f->team), str_of(f->hash)) < 0)
		abort();
	records_forget_file(n->records, f->team, f->hash, NULL, NULL);
	remove_file(n, f->file);
	free(map_del(&n->uploads.by_name, buf_str(&name)));
}

static void loaded(const struct file_record *f, void *arg)
{
	struct node *n = arg;
	char path[PATH_MAX];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", n->directory, f->file);
	if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size)
		add(n, f);
	else
		records_forget_file(n->records, f->team, f->hash, NULL, NULL);
}

int uploads_load(struct node *n, struct error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", n->directory, directory);
	int r = make_dirs(path, 0700);
	return r < 0 ? error_errno(err, r, "%s", path) : records_load_files(n->records, loaded, n, err);
}

void uploads_sweep(struct node *n)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", n->directory, directory);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		bool named = e->d_name[0] == '.';
		snprintf(path, sizeof(path), "%s/%.200s", directory, e->d_name);
		map_foreach(&n->uploads.by_name, s) named |= strcmp(((const struct file_record *)s->value)->file, path) == 0;
		if (!named)
			unlinkat(dirfd(d), e->d_name, 0);
	}
}

/* Requests */

static bool is_hash(struct str s)
{
	if (s.n != 64)
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (!s.p[i] || !strchr("0123456789abcdef", s.p[i]))
			return false;
	return true;
}

static int check(struct str team, struct str hash, struct error *err)
{
	if (!team.n || memchr(team.p, '\0', team.n))
		return error_set(err, -EINVAL, 400, "team: 1 to 64 bytes are needed");
	return is_hash(hash) ? 0 : error_set(err, -EINVAL, 400, "Invalid files hash");
}

static void touch(struct node *n, struct file_record *f)
{
	if (layers_used(n, &f->used_at))
		records_put_file(n->records, f, STORE_NORMAL, NULL, NULL);
}

void upload_find(struct node *n, struct request *r, const struct msg_find_file *m)
{
	struct error err = {0};
	if (check(m->team, m->hash, &err) < 0) {
		request_fail(r, &err);
		return;
	}
	struct file_record *f = find(n, m->team, m->hash);
	if (f)
		touch(n, f);
	struct msg_file_found found = {.found = f != NULL};
	request_answer(r, MSG_ID_file_found, &found, -1);
}

static unsigned writers_of(const struct node *n, struct str team)
{
	unsigned count = 0;
	for (const struct file_writer *w = n->uploads.writers; w; w = w->next)
		count += str_is(team, w->team);
	return count;
}

void upload_write(struct node *n, struct request *r, const struct msg_write_file *m)
{
	struct error err = {0};
	char path[PATH_MAX];
	uint64_t most = (uint64_t)n->options->build_upload_max << 20;
	struct file_writer *w = NULL;
	if (n->stopping)
		error_set(&err, -EAGAIN, 503, "the server is stopping");
	else if (check(m->team, m->hash, &err) < 0)
		;
	else if (m->size > most)
		error_set(&err, -EFBIG, 413, "the file is larger than %lld MiB (build.upload_max)", (long long)n->options->build_upload_max);
	else if (n->uploads.n_writers >= FILE_WRITERS_MOST)
		error_set(&err, -EAGAIN, 503, "too many files are being sent");
	/* A slow client does not keep the others from sending theirs. */
	else if (writers_of(n, m->team) >= FILE_WRITERS_OF_TEAM)
		error_set(&err, -EAGAIN, 503, "the team is sending %d files already", FILE_WRITERS_OF_TEAM);
	else if (disk_account_room(n->disk, n->copying + m->size, &err) == 0 && !(w = calloc(1, sizeof(*w))))
		error_errno(&err, -ENOMEM, "file");
	if (w) {
		snprintf(path, sizeof(path), "%s/%s", n->directory, directory);
		w->fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		if (w->fd < 0)
			error_errno(&err, -errno, "file");
	}
	if (err.code) {
		free(w);
		request_fail(r, &err);
		return;
	}
	w->number = ++n->uploads.last_writer;
	w->size = m->size;
	sandbox_copy(w->team, sizeof(w->team), m->team);
	sandbox_copy(w->hash, sizeof(w->hash), m->hash);
	w->next = n->uploads.writers;
	n->uploads.writers = w;
	n->uploads.n_writers++;
	struct msg_file_writer writer = {.writer = w->number};
	/* How much comes is not always said, and others write meanwhile: who writes looks again. */
	msg_set(&writer, file_writer, reserve, disk_account_reserve(n->disk));
	request_answer(r, MSG_ID_file_writer, &writer, w->fd);
}

static struct file_writer *take_writer(struct node *n, uint64_t number)
{
	for (struct file_writer **at = &n->uploads.writers; *at; at = &(*at)->next)
		if ((*at)->number == number) {
			struct file_writer *w = *at;
			*at = w->next;
			n->uploads.n_writers--;
			return w;
		}
	return NULL;
}

static void writer_free(struct file_writer *w)
{
	close(w->fd);
	free(w);
}

void uploads_forget_writers(struct node *n)
{
	while (n->uploads.writers)
		writer_free(take_writer(n, n->uploads.writers->number));
}

/* All of it is there: durable, then it gets its name, then a record. */
struct keeping {
	struct node *node;
	struct request *request;
	struct file_writer *writer;
	struct file_record record;
	char path[PATH_MAX];
	int result;
};

static void keep_work(void *arg)
{
	struct keeping *k = arg;
	struct stat st;
	if (fstat(k->writer->fd, &st) < 0 || fsync(k->writer->fd) < 0) {
		k->result = -errno;
		return;
	}
	if (k->writer->size && (uint64_t)st.st_size != k->writer->size) {
		k->result = -EMSGSIZE;
		return;
	}
	k->record.size = (uint64_t)st.st_size;
	k->result = file_publish(k->writer->fd, k->path);
}

static void kept(const struct error *err, void *arg)
{
	struct keeping *k = arg;
	struct node *n = k->node;
	if (err) {
		remove_file(n, k->record.file);
		request_fail(k->request, err);
	} else {
		FAULT(upload_recorded);
		struct file_record *old = find(n, str_of(k->record.team), str_of(k->record.hash));
		if (old)
			remove_file(n, old->file);
		add(n, &k->record);
		request_answer(k->request, MSG_ID_ok, NULL, -1);
	}
	n->builds->busy--;
	free(k);
	node_stop_check(n);
}

static void keep_done(void *arg)
{
	struct keeping *k = arg;
	struct node *n = k->node;
	struct error err = {0};
	writer_free(k->writer);
	if (k->result == -EMSGSIZE)
		error_set(&err, k->result, 400, "the file has another size than was said");
	else if (k->result == -ENOSPC)
		error_set(&err, k->result, 507, "the server's disk is full");
	else if (k->result < 0)
		error_errno(&err, k->result, "file");
	if (err.code) {
		request_fail(k->request, &err);
		n->builds->busy--;
		free(k);
		node_stop_check(n);
		return;
	}
	FAULT(upload_kept);
	records_put_file(n->records, &k->record, STORE_FULL, kept, k);
}

void upload_keep(struct node *n, struct request *r, const struct msg_keep_file *m)
{
	struct error err;
	struct file_writer *w = take_writer(n, m->writer);
	struct keeping *k = NULL;
	unsigned char digest[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1], tail[9];
	if (!w || !str_is(m->team, w->team) || !str_is(m->hash, w->hash)) {
		error_set(&err, -ENOENT, 404, "there is no such file to be kept");
		if (w)
			writer_free(w);
		request_fail(r, &err);
		return;
	}
	if (!m->whole) {
		writer_free(w);
		request_answer(r, MSG_ID_ok, NULL, -1);
		return;
	}
	k = calloc(1, sizeof(*k));
	if (!k)
		abort();
	*k = (struct keeping){.node = n, .request = r, .writer = w, .record = {.used_at = node_realtime(n)}};
	memcpy(k->record.team, w->team, sizeof(w->team));
	memcpy(k->record.hash, w->hash, sizeof(w->hash));
	/* A name that no team can choose, and that no other file has had. */
	sha256(str_of(w->team), digest);
	hex_encode(hex, digest, sizeof(digest));
	random_text(tail, 8, "abcdefghijklmnopqrstuvwxyz0123456789");
	snprintf(k->record.file, sizeof(k->record.file), "%s/%.16s-%.24s-%s", directory, hex, w->hash, tail);
	snprintf(k->path, sizeof(k->path), "%s/%s", n->directory, k->record.file);
	n->builds->busy++;
	if (workq_push(n->builds->writer, n->loop, keep_work, keep_done, k) < 0)
		abort();
}

int upload_open(struct node *n, const char *team, struct str hash, uint64_t *ret_size)
{
	char path[PATH_MAX];
	struct file_record *f = is_hash(hash) ? find(n, str_of(team), hash) : NULL;
	if (!f)
		return -ENOENT;
	snprintf(path, sizeof(path), "%s/%s", n->directory, f->file);
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	touch(n, f);
	*ret_size = f->size;
	return fd;
}

void uploads_done(struct node *n)
{
	uploads_forget_writers(n);
	map_foreach(&n->uploads.by_name, s) free(s->value);
	map_done(&n->uploads.by_name);
}
