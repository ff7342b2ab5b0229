#include "guest/workers.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* One request that is out, or waits. */
struct job {
	struct job *next, *prev;
	struct file_workers *workers;
	struct http_req *req; /* until its worker exists: so it can still be answered here. NULL also when the
				 client went */
	int conn;             /* then: ours; the worker has a copy. -1 before */
	bool running;
	bool watch; /* a stream that may stay for long: it neither waits for workers nor counts as one */
};

struct file_workers {
	struct envd *envd;
	struct job *waiting, *waiting_last, *running;
	unsigned n_waiting, n_running, n_watching;
};

struct file_workers *file_workers_new(struct envd *e)
{
	struct file_workers *f = malloc(sizeof(*f));
	if (f)
		*f = (struct file_workers){.envd = e};
	return f;
}

static void job_free(struct job *j)
{
	if (j->conn >= 0)
		close(j->conn);
	free(j);
}

static void forget_all(struct job *j)
{
	for (struct job *next; j; j = next) {
		next = j->next;
		job_free(j);
	}
}

void file_workers_free(struct file_workers *f)
{
	if (!f)
		return;
	forget_all(f->waiting);
	forget_all(f->running);
	free(f);
}

static void start_next(struct file_workers *f);

static unsigned *count_of(struct job *j)
{
	struct file_workers *f = j->workers;
	return !j->running ? &f->n_waiting : j->watch ? &f->n_watching : &f->n_running;
}

/* Out of the list it is in. */
static void take_out(struct job *j)
{
	struct file_workers *f = j->workers;
	*(j->prev ? &j->prev->next : j->running ? &f->running : &f->waiting) = j->next;
	if (j->next)
		j->next->prev = j->prev;
	else if (!j->running)
		f->waiting_last = j->prev;
	*count_of(j) -= 1;
}

static void put_waiting(struct job *j)
{
	struct file_workers *f = j->workers;
	j->running = false;
	j->next = NULL;
	j->prev = f->waiting_last;
	*(f->waiting_last ? &f->waiting_last->next : &f->waiting) = j;
	f->waiting_last = j;
	f->n_waiting++;
}

static void put_running(struct job *j)
{
	struct file_workers *f = j->workers;
	j->running = true;
	j->prev = NULL;
	j->next = f->running;
	if (f->running)
		f->running->prev = j;
	f->running = j;
	*count_of(j) += 1;
}

/* The client is gone before a worker had its connection. */
static void on_closed(struct http_req *r, bool complete)
{
	struct job *j = r->arg;
	if (!j)
		return;
	j->req = NULL;
	if (j->running)
		return; /* its worker finds that out */
	take_out(j);
	job_free(j);
}

static const struct http_req_ops req_ops = {.closed = on_closed};

/* The error of a stream is a message of it (e2b.md B.5). */
static void refuse_watch(struct http_req *r, enum connect_code code, struct str message)
{
	cleanup_buf struct buf out = BUF_INIT;
	connect_end(&out, code, message);
	http_respond(r, 200, "application/connect+json", NULL, buf_str(&out));
}

/* An answer from here: there is no worker. */
static void refuse(struct job *j, enum connect_code code, struct str message)
{
	if (!j->req)
		return;
	j->req->arg = NULL;
	if (j->watch)
		refuse_watch(j->req, code, message);
	else
		http_respond_error(j->req, connect_code_status(code), "%.*s", STR_FMT(message));
}

static void on_pid(struct spawn *s, pid_t pid, void *arg)
{
	struct job *j = arg;
	cleanup_buf struct buf rest = BUF_INIT; /* the worker has it */
	if (!j->req)
		return;
	int fd = http_detach(j->req, &rest);
	if (fd < 0)
		return;
	j->req = NULL;
	j->conn = fd;
}

static void on_done(struct spawn *s, const struct spawn_result *r, void *arg)
{
	struct job *j = arg;
	struct file_workers *f = j->workers;
	take_out(j);
	/* A worker that died leaves an answer that may be cut: so is the connection. */
	if (r->code == 0 && r->keep_alive && j->conn >= 0)
		http_server_adopt(f->envd->http, steal_fd(&j->conn), r->rest);
	if (r->code)
		refuse(j, r->code, r->message);
	job_free(j);
	start_next(f);
}

static const struct spawn_ops ops = {.pid = on_pid, .done = on_done};

static void add_string(struct buf *to, const char *s)
{
	buf_add_c(to, s ? s : "");
	buf_add(to, "", 1);
}

/* Sends one to a new worker; answers and frees it on failure. */
static void start(struct file_workers *f, struct job *j)
{
	const struct guest_identity *id = f->envd->identity;
	struct spawn_head head = {.kind = SPAWN_FILES, .n_head = (uint32_t)j->req->head_bytes.n};
	cleanup_buf struct buf body = BUF_INIT;
	add_string(&body, id->user);
	add_string(&body, id->workdir);
	buf_add_str(&body, j->req->head_bytes);
	buf_add_str(&body, http_hold(j->req));
	int copy = fcntl(http_conn_fd(j->req->conn), F_DUPFD_CLOEXEC, 3);
	if (copy < 0 || !spawn_new(f->envd->spawner, &head, &body, &copy, 1, &ops, j)) {
		refuse(j, CONNECT_RESOURCE_EXHAUSTED, STR("the request cannot be served now"));
		job_free(j);
		return;
	}
	put_running(j);
}

static void start_next(struct file_workers *f)
{
	while (f->waiting && f->n_running < WORKERS_MAX) {
		struct job *j = f->waiting;
		take_out(j);
		start(f, j);
	}
}

void file_workers_serve(struct file_workers *f, struct http_req *r)
{
	bool watch = str_is(r->head->path, "/filesystem.Filesystem/WatchDir");
	if (watch && f->n_watching >= WATCHES_MAX) {
		refuse_watch(
			r, CONNECT_RESOURCE_EXHAUSTED, STR("too many directories are being watched already"));
		return;
	}
	struct job *j = watch || f->n_waiting < WORKERS_MAX_WAITING ? malloc(sizeof(*j)) : NULL;
	if (!j) {
		http_respond_error(r, 503, "too many file requests are waiting");
		return;
	}
	*j = (struct job){.workers = f, .req = r, .conn = -1, .watch = watch};
	r->ops = &req_ops;
	r->arg = j;
	http_hold(r);
	if (watch) {
		start(f, j);
		return;
	}
	put_waiting(j);
	start_next(f);
}
