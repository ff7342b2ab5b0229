#include "io/http_conn.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/random.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

enum {
	ACCEPTS_PER_EVENT = 64,
};
#define LINGER_TIME (5 * NS_PER_S)
#define HANDSHAKE_TIME (15 * NS_PER_S)
#define ACCEPT_RETRY (100 * NS_PER_MS)
/* A connection without a whole head for this long makes room for another one when the server is full. */
#define PATIENCE_WHEN_FULL (1 * NS_PER_S)

struct listener {
	struct listener *next;
	struct http_server *server;
	struct loop_fd *w;
	int fd;
	transport_accept_fn *accept; /* NULL: none */
	void *arg;
};

struct http_server {
	struct loop *loop;
	struct http_server_config config;
	struct listener *listeners;
	struct loop_timer *accept_timer; /* armed while accepting waits for descriptors */
	bool accept_paused, draining, dead;
	struct http_conn *conns;
	unsigned n_conns;
	struct http_conn *waiting, *waiting_last; /* in CONN_HEAD */
	struct http_conn *work; /* to be settled at the end of this turn */
	bool work_deferred;
	char *scratch;
	uint64_t next_id;
	char id_prefix[9];
	int64_t date_second;
	char date[40];
};

static void settle(struct http_conn *c);
static void destroy(struct http_conn *c, bool close_fd);

/* Accepting */

static void set_accepting(struct http_server *s, bool on)
{
	s->accept_paused = !on;
	for (struct listener *l = s->listeners; l; l = l->next)
		loop_fd_set(l->w, on ? EPOLLIN | EPOLLEXCLUSIVE : 0);
}

static void resume_accepting(struct http_server *s)
{
	if (s->accept_paused && !s->draining && s->n_conns < s->config.max_connections) {
		loop_timer_stop(s->accept_timer);
		set_accepting(s, true);
	}
}

static void pause_accepting(struct http_server *s)
{
	set_accepting(s, false);
	loop_timer_in(s->accept_timer, ACCEPT_RETRY);
}

/* Whoever only holds connections must not keep others out: the one that has shown no request for longest goes. False when none has waited long enough. */
static bool can_make_room(const struct http_server *s)
{
	return s->waiting && clock_boottime() - s->waiting->waits_since >= PATIENCE_WHEN_FULL;
}

static bool make_room(struct http_server *s)
{
	if (!can_make_room(s))
		return false;
	destroy(s->waiting, true);
	return true;
}

static void on_accept_timer(struct loop_timer *t, void *arg)
{
	struct http_server *s = arg;
	if (s->n_conns >= s->config.max_connections)
		make_room(s);
	resume_accepting(s);
	if (s->accept_paused && !s->draining)
		loop_timer_in(t, ACCEPT_RETRY);
}

/* Connections */

static void begin_waiting(struct http_conn *c)
{
	struct http_server *s = c->server;
	c->phase = CONN_HEAD;
	c->waits_since = clock_boottime();
	c->waits_after = NULL;
	c->waits_before = s->waiting_last;
	*(s->waiting_last ? &s->waiting_last->waits_after : &s->waiting) = c;
	s->waiting_last = c;
}

static void end_waiting(struct http_conn *c, enum conn_phase next)
{
	struct http_server *s = c->server;
	if (c->phase == CONN_HEAD) {
		*(c->waits_before ? &c->waits_before->waits_after : &s->waiting) = c->waits_after;
		*(c->waits_after ? &c->waits_after->waits_before : &s->waiting_last) = c->waits_before;
	}
	c->phase = next;
}

static void set_deadline(struct http_conn *c, int64_t at)
{
	c->deadline = at;
	/* A timer that fires too early arms itself again: cheaper than moving it with every byte. */
	if (at && (!c->armed || c->armed > at)) {
		c->armed = at;
		if (loop_timer_at(c->timer, at) < 0)
			c->broken = true;
	}
}

/* Runs what was scheduled. Settling may schedule more, of which each connection gets one turn per pass. */
static void on_deferred(void *arg)
{
	struct http_server *s = arg;
	s->work_deferred = false;
	struct http_conn *work = s->work;
	s->work = NULL;
	while (work) {
		struct http_conn *c = work;
		work = c->next_work;
		c->queued = false;
		if (c->phase == CONN_DEAD)
			free(c);
		else
			settle(c);
	}
	if (s->dead && !s->work_deferred)
		free(s);
}

void http_conn_schedule(struct http_conn *c)
{
	struct http_server *s = c->server;
	if (c->queued || c->phase == CONN_DEAD)
		return;
	c->queued = true;
	c->next_work = s->work;
	s->work = c;
	if (s->work_deferred)
		return;
	if (loop_defer(s->loop, on_deferred, s) == 0) {
		s->work_deferred = true;
	} else {
		s->work = c->next_work;
		c->queued = false;
		c->broken = true;
		set_deadline(c, 1);
	}
}

bool http_conn_is_secure(const struct http_conn *c)
{
	return c->transport;
}

int http_conn_fd(const struct http_conn *c)
{
	return c->fd;
}

char *http_conn_scratch(const struct http_conn *c)
{
	return c->server->scratch;
}

size_t http_conn_high_water(const struct http_conn *c)
{
	return c->server->config.high_water;
}

const char *http_conn_server_name(const struct http_conn *c)
{
	return c->server->config.server_name;
}

void http_conn_add_headers(struct http_conn *c)
{
	if (c->server->config.add_headers)
		c->server->config.add_headers(c->head, &c->out);
}

const char *http_conn_date(struct http_conn *c)
{
	struct http_server *s = c->server;
	int64_t now = clock_realtime() / NS_PER_S;
	if (now != s->date_second) {
		time_t t = (time_t)now;
		struct tm tm;
		gmtime_r(&t, &tm);
		static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
		snprintf(s->date, sizeof(s->date), "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * tm.tm_wday, tm.tm_mday,
			months + 3 * tm.tm_mon, tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
		s->date_second = now;
	}
	return s->date;
}

static void free_request(struct http_conn *c)
{
	free(steal_pointer(&c->head));
	buf_done(&c->head_bytes);
	buf_done(&c->held);
	buf_done(&c->trailers);
	buf_done(&c->out_trailers);
}

void http_conn_end_request(struct http_conn *c, bool complete)
{
	if (c->phase != CONN_REQUEST)
		return;
	c->phase = CONN_LINGER; /* whatever follows sets the phase; until then no call of the owner has an effect */
	if (!c->detached && c->req.ops && c->req.ops->closed)
		c->req.ops->closed(&c->req, complete);
	free_request(c);
	c->req = (struct http_req){0};
	c->drained = 0;
	c->paused = c->on_hold = c->end_told = c->hangup_told = c->continued = false;
	c->answer = ANSWER_NONE;
	c->no_body = c->throttled = false;
	if (buf_len(&c->out) == 0)
		buf_done(&c->out);
}

/* A last word before the socket is closed; what it does not take at once is lost. */
static void take_leave(struct http_conn *c)
{
	if (c->transport && !c->broken && !c->reset) {
		c->transport->ops->end(c->transport);
		http_conn_flush(c);
	}
}

static void destroy(struct http_conn *c, bool close_fd)
{
	struct http_server *s = c->server;
	if (c->phase != CONN_REQUEST)
		take_leave(c); /* else what was cut would look complete */
	http_conn_end_request(c, false);
	if (c->transport)
		c->transport->ops->free(steal_pointer(&c->transport));
	loop_fd_del(c->w);
	loop_timer_free(c->timer);
	if (c->reset)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
	if (close_fd)
		close(c->fd);
	free_request(c);
	buf_done(&c->in);
	buf_done(&c->out);
	if (c->prev)
		c->prev->next = c->next;
	else
		s->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	s->n_conns--;
	end_waiting(c, CONN_DEAD);
	resume_accepting(s);
	if (!c->queued)
		free(c);
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct http_conn *c = arg;
	if (events & EPOLLERR)
		c->broken = true;
	if (events & EPOLLOUT) {
		c->blocked = false;
		http_conn_flush(c);
	}
	if (events & EPOLLHUP)
		c->hung_up = true;
	if (!c->broken && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)))
		http_conn_on_readable(c);
	if (!c->broken && (events & EPOLLRDHUP))
		http_conn_on_half_closed(c);
	/* Both halves closed though ours is open: nobody is there to take the answer (told by Unix sockets; TCP tells by a reset). */
	if (c->hung_up && !c->shut && c->phase == CONN_REQUEST && !http_conn_wants_body(c))
		c->broken = true;
	settle(c);
}

/* Heads */

static void refuse_head(struct http_conn *c, int status)
{
	const struct http_server_config *config = &c->server->config;
	cleanup_buf struct buf body = BUF_INIT;
	const char *type = NULL;
	if (config->on_bad_request)
		config->on_bad_request(&body, &type, status, config->arg);
	http_conn_refuse(c, status, type, buf_str(&body));
	end_waiting(c, CONN_LINGER);
}

static void begin_request(struct http_conn *c, size_t head_bytes)
{
	struct http_server *s = c->server;
	/* The head's views stay valid because its buffer is put aside whole; bytes behind it are few. */
	c->head_bytes = c->in;
	c->in = BUF_INIT;
	c->scanned = 0;
	end_waiting(c, CONN_REQUEST);
	c->last = s->draining;
	c->raw = false;
	c->progress = clock_boottime();
	struct str bytes = buf_str(&c->head_bytes);
	c->req = (struct http_req){.conn = c, .head = c->head, .head_bytes = str_n(bytes.p, head_bytes)};
	snprintf(c->req.id, sizeof(c->req.id), "%s%llx", s->id_prefix, (unsigned long long)s->next_id++);
	http_body_init(&c->body, c->head->framing, c->head->length);
	c->body.trailers = &c->trailers;
	c->in_on_request = true;
	s->config.on_request(&c->req, s->config.arg);
	c->in_on_request = false;
	if (c->detached || c->broken)
		return;
	if (c->head->expect_continue && !c->req.own_continue && !c->on_hold && !c->body.done && !http_conn_discards(c))
		http_interim(&c->req, 100, NULL);
	http_conn_deliver(c, str_from(bytes, head_bytes));
}

/* True when a request has begun, or the phase has changed otherwise. */
static bool parse_head(struct http_conn *c)
{
	struct str in = buf_str(&c->in);
	if (in.n == 0 || (c->scanned && in.n < HTTP_MAX_HEAD && !memchr(in.p + c->scanned, '\n', in.n - c->scanned)))
		return false;
	if (!c->head && !(c->head = malloc(sizeof(*c->head)))) {
		c->broken = true;
		return true;
	}
	int status = 0;
	ssize_t n = http_parse_request(in, c->head, &status);
	if (n == 0) {
		c->scanned = in.n;
		return false;
	}
	if (n < 0)
		refuse_head(c, status);
	else
		begin_request(c, (size_t)n);
	return true;
}

/* Settling: what follows from the state, in a loop until nothing does. */

void http_conn_linger(struct http_conn *c)
{
	http_conn_end_request(c, true);
	end_waiting(c, CONN_LINGER);
	c->deadline = 0;
}

/* Closes our half once everything has left. False when that has to wait for the socket. */
static bool shut_half(struct http_conn *c)
{
	if (c->shut)
		return true;
	if (c->transport && !c->end_queued) {
		c->end_queued = true;
		c->transport->ops->end(c->transport);
		http_conn_flush(c);
	}
	if (http_conn_queued(c))
		return false;
	shutdown(c->fd, SHUT_WR);
	c->shut = true;
	return true;
}

/* The answer is with the kernel: what becomes of the connection. True when the phase changed. */
static bool after_answer(struct http_conn *c)
{
	if (c->raw) {
		if (!shut_half(c) || (!c->req.closes && (!c->eof || buf_len(&c->in) || buf_len(&c->held))))
			return false;
		http_conn_linger(c);
		return true;
	}
	if (c->last) {
		http_conn_linger(c);
		return true;
	}
	if (c->body.done) {
		http_conn_end_request(c, true);
		begin_waiting(c);
		c->deadline = 0;
		return true;
	}
	if (c->drained > HTTP_MAX_DRAIN || c->body.left > HTTP_MAX_DRAIN) {
		http_conn_linger(c);
		return true;
	}
	return false;
}

static bool settle_request(struct http_conn *c)
{
	http_conn_deliver_pending(c);
	if (c->broken || c->phase != CONN_REQUEST)
		return true;
	if (!c->blocked)
		http_conn_flush(c);
	if (c->throttled && http_conn_queued(c) < c->server->config.low_water && c->answer == ANSWER_OPEN && !c->broken) {
		c->throttled = false;
		if (c->req.ops && c->req.ops->writable)
			c->req.ops->writable(&c->req);
	}
	if (c->broken)
		return true;
	return c->answer == ANSWER_DONE && !http_conn_queued(c) && after_answer(c);
}

/* False when the connection is gone. */
static bool settle_linger(struct http_conn *c)
{
	if (!c->blocked)
		http_conn_flush(c);
	if (c->broken || c->eof || c->hung_up) {
		if (c->broken || http_conn_queued(c) == 0) {
			destroy(c, true);
			return false;
		}
	}
	if (buf_len(&c->out) == 0)
		shut_half(c);
	return true;
}

static void update_deadline(struct http_conn *c)
{
	const struct http_server_config *config = &c->server->config;
	int64_t now = clock_boottime();
	if (c->phase == CONN_LINGER) {
		if (!c->deadline)
			set_deadline(c, now + LINGER_TIME);
	} else if (c->phase == CONN_HEAD) {
		/* From the beginning of a handshake, and from the first byte of a head, on the deadline stands. */
		if (c->transport && !c->transport->ops->ready(c->transport)) {
			if (!c->deadline)
				set_deadline(c, now + config->handshake_timeout_ns);
		} else if (!buf_len(&c->in))
			set_deadline(c, now + config->idle_timeout_ns);
		else if (!c->deadline || c->deadline > now + config->head_timeout_ns)
			set_deadline(c, now + config->head_timeout_ns);
	} else if (!c->raw && (http_conn_queued(c) || http_conn_wants_body(c))) {
		set_deadline(c, c->progress + config->idle_timeout_ns);
	} else {
		c->deadline = 0;
	}
}

static void update_interest(struct http_conn *c)
{
	uint32_t events = 0;
	bool reads = !c->eof && (c->phase == CONN_HEAD || c->phase == CONN_LINGER || http_conn_wants_body(c));
	if (c->transport && c->transport->ops->queued(c->transport) > TRANSPORT_MAX_QUEUED)
		reads = false;
	if (reads)
		events |= EPOLLIN | EPOLLRDHUP;
	else if (!c->half_closed && !c->eof && !c->hung_up)
		events |= EPOLLRDHUP;
	if (c->half_closed)
		events &= ~(uint32_t)EPOLLRDHUP;
	if (c->blocked)
		events |= EPOLLOUT;
	if (reads && c->transport && c->transport->ops->pending(c->transport)) {
		c->reread = true;
		http_conn_schedule(c);
	}
	if (loop_fd_set(c->w, events) < 0) {
		c->broken = true;
		http_conn_schedule(c);
	}
}

static void give_away(struct http_conn *c)
{
	http_conn_end_request(c, true);
	destroy(c, false);
}

static void settle(struct http_conn *c)
{
	if (c->phase == CONN_DEAD)
		return;
	if (c->reread && !c->broken) {
		c->reread = false;
		http_conn_on_readable(c);
	}
	for (bool again = true; again;) {
		again = false;
		if (c->detached) {
			give_away(c);
			return;
		}
		if (c->broken) {
			destroy(c, true);
			return;
		}
		if (c->phase == CONN_REQUEST) {
			again = settle_request(c);
		} else if (c->phase == CONN_LINGER) {
			if (!settle_linger(c))
				return;
		} else if (c->server->draining && !buf_len(&c->in)) {
			http_conn_linger(c);
			again = true;
		} else {
			again = parse_head(c);
			if (!again && c->eof) {
				destroy(c, true);
				return;
			}
		}
	}
	update_deadline(c);
	update_interest(c);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct http_conn *c = arg;
	c->armed = 0;
	if (!c->deadline)
		return;
	if (clock_boottime() < c->deadline) {
		set_deadline(c, c->deadline);
		return;
	}
	if (c->phase == CONN_HEAD && buf_len(&c->in)) {
		refuse_head(c, 408);
		c->deadline = 0;
	} else {
		c->broken = true;
	}
	settle(c);
}

static int conn_new(struct http_server *s, int fd, const struct listener *l, struct str already_read)
{
	struct http_conn *c = calloc(1, sizeof(*c));
	if (!c)
		goto fail;
	*c = (struct http_conn){.server = s, .fd = fd, .next = s->conns};
	if (l && l->accept && !(c->transport = l->accept(fd, l->arg)))
		goto fail;
	c->timer = loop_timer_new(s->loop, on_timer, c);
	c->w = c->timer ? loop_fd_add(s->loop, fd, EPOLLIN | EPOLLRDHUP, on_event, c) : NULL;
	if (!c->w || buf_add_str(&c->in, already_read) < 0)
		goto fail;
	if (s->conns)
		s->conns->prev = c;
	s->conns = c;
	s->n_conns++;
	begin_waiting(c);
	http_conn_schedule(c);
	return 0;
fail:
	if (c) {
		if (c->transport)
			c->transport->ops->free(c->transport);
		loop_fd_del(c->w);
		loop_timer_free(c->timer);
		free(c);
	}
	close(fd);
	return -ENOMEM;
}

static void on_acceptable(struct loop_fd *w, uint32_t events, void *arg)
{
	struct listener *l = arg;
	struct http_server *s = l->server;
	for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
		bool full = s->n_conns >= s->config.max_connections;
		if (full && !can_make_room(s)) {
			pause_accepting(s);
			return;
		}
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			if (full)
				make_room(s);
			conn_new(s, fd, l, STR(""));
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			/* The connection stays in the backlog: without a pause this would spin. */
			if (i == 0 && make_room(s))
				continue;
			pause_accepting(s);
			return;
		}
		if (errno == EAGAIN)
			return;
	}
}

/* Options that a socket takes over from its listener, so that accepting needs no further system call. They fail on other than TCP, which is fine. */
static void set_options(int fd)
{
	const int one = 1, idle = 60, interval = 20, count = 6;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

struct http_server *http_server_new(struct loop *l, const struct http_server_config *config)
{
	struct http_server *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->loop = l;
	s->config = *config;
	if (!s->config.high_water)
		s->config.high_water = HTTP_HIGH_WATER;
	if (!s->config.low_water)
		s->config.low_water = HTTP_LOW_WATER;
	if (!s->config.idle_timeout_ns)
		s->config.idle_timeout_ns = 620 * NS_PER_S;
	if (!s->config.head_timeout_ns)
		s->config.head_timeout_ns = 30 * NS_PER_S;
	if (!s->config.handshake_timeout_ns)
		s->config.handshake_timeout_ns = HANDSHAKE_TIME;
	if (!s->config.max_connections)
		s->config.max_connections = 10000;
	random_text(s->id_prefix, 8, "0123456789abcdefghijklmnopqrstuvwxyz");
	s->scratch = malloc(HTTP_SCRATCH);
	s->accept_timer = loop_timer_new(l, on_accept_timer, s);
	if (!s->scratch || !s->accept_timer) {
		http_server_free(s);
		return NULL;
	}
	return s;
}

int http_server_listen(struct http_server *s, int listen_fd)
{
	return http_server_listen_with(s, listen_fd, NULL, NULL);
}

int http_server_listen_with(struct http_server *s, int listen_fd, transport_accept_fn *accept, void *arg)
{
	struct listener *l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	set_options(listen_fd);
	*l = (struct listener){.server = s, .fd = listen_fd, .accept = accept, .arg = arg, .next = s->listeners};
	l->w = loop_fd_add(s->loop, listen_fd, EPOLLIN | EPOLLEXCLUSIVE, on_acceptable, l);
	if (!l->w) {
		int r = -errno;
		free(l);
		return r;
	}
	s->listeners = l;
	return 0;
}

int http_server_adopt(struct http_server *s, int fd, struct str already_read)
{
	int r = fd_set_nonblock(fd, true);
	if (r < 0) {
		close(fd);
		return r;
	}
	set_options(fd);
	return conn_new(s, fd, NULL, already_read);
}

void http_server_drain(struct http_server *s)
{
	s->draining = true;
	set_accepting(s, false);
	for (struct http_conn *c = s->conns; c; c = c->next) {
		c->last = true;
		http_conn_schedule(c);
	}
}

void http_server_free(struct http_server *s)
{
	if (!s)
		return;
	s->draining = true; /* a freed slot must not start accepting again */
	while (s->conns)
		destroy(s->conns, true);
	while (s->listeners) {
		struct listener *l = s->listeners;
		s->listeners = l->next;
		loop_fd_del(l->w);
		free(l);
	}
	loop_timer_free(s->accept_timer);
	free(s->scratch);
	s->dead = true;
	if (!s->work_deferred)
		free(s);
}

unsigned http_server_connections(const struct http_server *s)
{
	return s->n_conns;
}

void http_req_resume(struct http_req *r)
{
	r->conn->paused = false;
	r->conn->progress = clock_boottime();
	http_conn_schedule(r->conn);
}

struct str http_hold(struct http_req *r)
{
	struct http_conn *c = r->conn;
	c->on_hold = true;
	return str_from(buf_str(&c->head_bytes), r->head_bytes.n);
}

int http_detach(struct http_req *r, struct buf *ret_rest)
{
	struct http_conn *c = r->conn;
	if (!c->on_hold || c->phase != CONN_REQUEST || c->answer != ANSWER_NONE || c->detached || c->broken || c->transport)
		return -EBUSY;
	struct str rest = str_from(buf_str(&c->head_bytes), r->head_bytes.n);
	if (buf_len(&c->out) || buf_add_str(ret_rest, rest) < 0)
		return -EBUSY;
	int fd = c->fd;
	loop_fd_set(c->w, 0);
	c->detached = true;
	if (!c->in_on_request)
		give_away(c);
	return fd;
}
