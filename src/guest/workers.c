#include "guest/workers.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* One request that is out, or waits. */
struct job {
	struct job *next, *prev;
	struct file_workers *workers;
	int conn;         /* ours; the worker gets a copy */
	struct buf bytes; /* while it waits: head, then what was read beyond it */
	uint32_t n_head;
	size_t held;
};

struct file_workers {
	struct envd *envd;
	struct job *waiting, *waiting_last, *running;
	unsigned n_waiting, n_running;
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
	buf_done(&j->bytes);
	envd_release(j->workers->envd, j->held);
	free(j);
}

void file_workers_free(struct file_workers *f)
{
	if (!f)
		return;
	for (struct job *j = f->waiting, *next; j; j = next) {
		next = j->next;
		job_free(j);
	}
	for (struct job *j = f->running, *next; j; j = next) {
		next = j->next;
		job_free(j);
	}
	free(f);
}

static void start_next(struct file_workers *f);

static void take_out(struct job *j)
{
	struct file_workers *f = j->workers;
	*(j->prev ? &j->prev->next : &f->running) = j->next;
	if (j->next)
		j->next->prev = j->prev;
	f->n_running--;
}

static void on_pid(struct spawn *s, pid_t pid, void *arg)
{
}

static void on_done(struct spawn *s, const struct spawn_result *r, void *arg)
{
	struct job *j = arg;
	struct file_workers *f = j->workers;
	take_out(j);
	/* A worker that died, or was never there, leaves an answer that may be cut: so is the connection. */
	if (r->code == 0 && r->keep_alive)
		http_server_adopt(f->envd->http, steal_fd(&j->conn), r->rest);
	job_free(j);
	start_next(f);
}

static const struct spawn_ops ops = {.pid = on_pid, .done = on_done};

static void add_string(struct buf *to, const char *s)
{
	buf_add_c(to, s ? s : "");
	buf_add(to, "", 1);
}

/* Sends one to a new worker; frees it on failure. */
static void start(struct file_workers *f, struct job *j)
{
	const struct guest_identity *id = f->envd->identity;
	struct spawn_head head = {.kind = SPAWN_FILES, .n_head = j->n_head};
	cleanup_buf struct buf body = BUF_INIT;
	add_string(&body, id->token);
	add_string(&body, id->user);
	add_string(&body, id->workdir);
	buf_add_str(&body, buf_str(&j->bytes));
	int copy = fcntl(j->conn, F_DUPFD_CLOEXEC, 3);
	if (copy < 0 || !spawn_new(f->envd->spawner, &head, &body, &copy, 1, &ops, j)) {
		job_free(j);
		return;
	}
	buf_done(&j->bytes);
	j->next = f->running;
	j->prev = NULL;
	if (f->running)
		f->running->prev = j;
	f->running = j;
	f->n_running++;
}

static void start_next(struct file_workers *f)
{
	while (f->waiting && f->n_running < WORKERS_MAX) {
		struct job *j = f->waiting;
		f->waiting = j->next;
		if (!f->waiting)
			f->waiting_last = NULL;
		f->n_waiting--;
		start(f, j);
	}
}

void file_workers_serve(struct file_workers *f, struct http_req *r)
{
	if (f->n_waiting >= WORKERS_MAX_WAITING) {
		http_respond_error(r, 503, "too many file requests are waiting");
		return;
	}
	struct job *j = malloc(sizeof(*j));
	if (!j) {
		http_respond_error(r, 503, "no memory");
		return;
	}
	*j = (struct job){.workers = f, .conn = -1, .n_head = (uint32_t)r->head_bytes.n};
	buf_add_str(&j->bytes, r->head_bytes);
	j->conn = j->bytes.failed ? -ENOMEM : http_detach(r, &j->bytes);
	if (j->conn < 0 || !envd_hold(f->envd, buf_len(&j->bytes))) {
		/* Once detached, there is nobody left who could answer. */
		if (j->conn < 0)
			http_respond_error(r, 503, "the request cannot be served now");
		job_free(j);
		return;
	}
	j->held = buf_len(&j->bytes);
	if (f->waiting_last)
		f->waiting_last->next = j;
	else
		f->waiting = j;
	f->waiting_last = j;
	f->n_waiting++;
	start_next(f);
}
