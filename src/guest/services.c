#include "guest/services.h"
#include "base/clock.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "guest/logs.h"
#include "guest/program.h"
#include "guest/ready.h"
#include "guest/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum service_state {
	SERVICE_WAITING,  /* the timer is armed, or nothing was started yet */
	SERVICE_STARTING, /* asked of the spawner */
	SERVICE_RUNNING,  /* it executes */
	SERVICE_ENDED,    /* it ran once, as it should */
	SERVICE_FAILED,   /* it should have run once, and cannot be started */
};

struct service {
	struct services *all;
	struct str name, user, arguments /* a list */; /* views into all->list */
	struct str workdir, envs;                      /* views into all->options */
	bool once;
	enum service_state state;
	uint16_t port; /* 0 = none */
	int listener;  /* -1 = none */
	/* Its output: both ends stay open here, so that the pipe outlives every start and never ends. */
	int output[2];
	struct loop_fd *output_watch;
	struct buf kept;
	struct buf line;       /* not ended yet */
	int64_t minute;        /* when the lines began to be counted, CLOCK_BOOTTIME */
	unsigned lines, left_out;
	struct loop_timer *timer;
	pid_t pid; /* 0 = none */
	bool reaped; /* ... while it was being started */
	struct exit_info exit;
	int64_t started_at; /* CLOCK_BOOTTIME */
	unsigned failures;  /* ends that came too soon, in a row */
	uint64_t starts;
	char last_end[256]; /* "" = none yet */
};

struct services {
	struct envd *envd;
	struct buf list, options;
	struct service services[SERVICES_MAX];
	size_t n;
};

static void start(struct service *s);

static void tell(const struct service *s, enum log_level level, struct str message, const char *what, struct str value)
{
	const struct log_field fields[] = {{"service", s->name}, {what, value}, {0}};
	logs_add(s->all->envd->logs, level, "service", message, fields);
}

/* Ends, and the next start */

static void start_later(struct service *s)
{
	int64_t pause = 0;
	if (s->failures)
		pause = MIN((int64_t)SERVICE_FIRST_PAUSE_MS << MIN(s->failures - 1, 16u), (int64_t)SERVICE_MAX_PAUSE_MS);
	s->failures++;
	s->state = SERVICE_WAITING;
	loop_timer_in(s->timer, pause * NS_PER_MS);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	start(arg);
}

static void ended(struct service *s)
{
	pid_t pid = s->pid;
	s->pid = 0;
	s->reaped = false;
	if (clock_boottime() - s->started_at >= SERVICE_STEADY_MS * NS_PER_MS)
		s->failures = 0;
	exit_info_text(&s->exit, s->last_end);
	tell(s, s->once ? LOG_INFO : LOG_WARN, STR("ended"), "status", str_of(s->last_end));
	if (s->once) {
		s->state = SERVICE_ENDED;
		ready_service_ended(s->all->envd->ready);
		return;
	}
	/* What it has started itself would otherwise live on beside what its successor starts. */
	tree_signal(s->all->envd->proc, pid, true, false, SIGKILL);
	start_later(s);
	ready_services_changed(s->all->envd->ready);
}

/* There may be room later; a program that cannot be executed now will not be later, either. */
static void start_failed(struct service *s, enum connect_code code, struct str why)
{
	snprintf(s->last_end, sizeof(s->last_end), "%.*s", (int)MIN(why.n, sizeof(s->last_end) - 1), why.p);
	tell(s, LOG_WARN, STR("could not be started"), "reason", str_of(s->last_end));
	s->pid = 0;
	s->reaped = false;
	if (!s->once || code == CONNECT_RESOURCE_EXHAUSTED) {
		start_later(s);
		return;
	}
	s->state = SERVICE_FAILED;
	ready_never(s->all->envd->ready);
}

bool services_reaped(struct services *all, pid_t pid, struct exit_info exit)
{
	for (size_t i = 0; all && i < all->n; i++) {
		struct service *s = &all->services[i];
		if (s->pid != pid || s->reaped)
			continue;
		s->exit = exit;
		if (s->state == SERVICE_RUNNING)
			ended(s);
		else
			s->reaped = true; /* on_started() goes on */
		return true;
	}
	return false;
}

/* Starts */

static void on_pid(struct spawn *p, pid_t pid, void *arg)
{
	struct service *s = arg;
	s->pid = pid;
}

static void on_started(struct spawn *p, const struct spawn_result *r, void *arg)
{
	struct service *s = arg;
	if (r->code) {
		start_failed(s, r->code, r->message);
		return;
	}
	s->state = SERVICE_RUNNING;
	s->started_at = clock_boottime();
	s->starts++;
	char pid[16];
	snprintf(pid, sizeof(pid), "%d", s->pid);
	tell(s, LOG_INFO, STR("started"), "pid", str_of(pid));
	if (s->reaped) {
		ended(s);
		return;
	}
	envd_offer_to_oom_killer(s->all->envd, s->pid);
	ready_services_changed(s->all->envd->ready);
}

static const struct spawn_ops spawn_ops = {.pid = on_pid, .done = on_started};

/* As it was at first, whatever the last one did to the description that all of them share: a shutdown(2) ends listening, and flags stay. */
static int renew_listener(const struct service *s)
{
	if (listen(s->listener, SERVICE_BACKLOG) < 0)
		return -errno;
	return fd_set_nonblock(s->listener, false);
}

static int open_descriptors(const struct service *s, int fds[4])
{
	const int from[] = {s->all->envd->null, s->output[1], s->output[1], s->listener};
	int n = s->listener >= 0 ? 4 : 3;
	int r = s->listener >= 0 ? renew_listener(s) : 0;
	for (int i = 0; i < n && r == 0; i++)
		if ((fds[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 3)) < 0)
			r = -errno;
	if (r == 0)
		return n;
	for (int i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	return r;
}

static void start(struct service *s)
{
	struct spawn_head head = {.kind = SPAWN_COMMAND, .flags = SPAWN_SESSION | (s->listener >= 0 ? SPAWN_LISTEN : 0)};
	cleanup_buf struct buf body = BUF_INIT;
	int fds[4] = {-1, -1, -1, -1};
	const struct program program = {s->user, s->workdir, s->envs, s->arguments};
	program_request(s->all->envd->identity, &program, &head, &body);
	int r = open_descriptors(s, fds);
	s->state = SERVICE_STARTING;
	if (r >= 0 && !spawn_new(s->all->envd->spawner, &head, &body, fds, (size_t)r, &spawn_ops, s))
		r = -errno;
	if (r < 0)
		start_failed(s, CONNECT_RESOURCE_EXHAUSTED, str_of(strerror(-r)));
}

void services_start(struct services *all)
{
	for (size_t i = 0; all && i < all->n; i++)
		start(&all->services[i]);
}

bool services_run(const struct services *all)
{
	for (size_t i = 0; all && i < all->n; i++)
		if (all->services[i].state != SERVICE_RUNNING && all->services[i].state != SERVICE_ENDED)
			return false;
	return true;
}

void services_context(const struct services *all, struct str *ret_workdir, struct str *ret_envs)
{
	*ret_workdir = all ? all->services[0].workdir : STR("");
	*ret_envs = all ? all->services[0].envs : STR("");
}

void services_last_words(const struct services *all, struct buf *to)
{
	enum { WORDS = 240 };
	const struct service *s = all ? &all->services[0] : NULL;
	for (size_t i = 0; all && i < all->n; i++)
		if (all->services[i].state != SERVICE_RUNNING) {
			s = &all->services[i];
			break;
		}
	if (!s)
		return;
	struct str said = buf_str(&s->kept);
	if (*s->last_end)
		buf_addf(to, "; service '%.*s': %.200s", STR_FMT(s->name), s->last_end);
	while (said.n && strchr("\r\n", said.p[said.n - 1]))
		said.n--;
	if (said.n > WORDS)
		said = str_from(said, said.n - WORDS);
	if (said.n)
		buf_addf(to, "; '%.*s' said last: %.*s", STR_FMT(s->name), STR_FMT(said));
}

/* Output */

/* A loud one must not push everything else out of the log. */
static void log_line(struct service *s, struct str line)
{
	int64_t now = clock_boottime();
	if (now - s->minute >= 60 * NS_PER_S) {
		char text[64];
		snprintf(text, sizeof(text), "%u lines were left out", s->left_out);
		if (s->left_out)
			tell(s, LOG_WARN, str_of(text), NULL, STR(""));
		s->minute = now;
		s->lines = s->left_out = 0;
	}
	if (s->lines >= SERVICE_LINES)
		s->left_out++;
	else if (line.n)
		tell(s, LOG_INFO, line, NULL, STR(""));
	s->lines += line.n > 0;
}

/* Whole lines go to the log; one that is longer than it takes is cut there. */
static void log_output(struct service *s, struct str bytes)
{
	struct str rest = bytes, line, after;
	while (str_cut(rest, '\n', &line, &after)) {
		buf_add(&s->line, line.p, MIN(line.n, LOGS_MAX_TEXT - MIN(buf_len(&s->line), (size_t)LOGS_MAX_TEXT)));
		log_line(s, buf_str(&s->line));
		buf_done(&s->line);
		rest = after;
	}
	buf_add(&s->line, rest.p, MIN(rest.n, LOGS_MAX_TEXT - MIN(buf_len(&s->line), (size_t)LOGS_MAX_TEXT)));
}

static void on_output(struct loop_fd *w, uint32_t events, void *arg)
{
	static char chunk[SERVICE_OUTPUT];
	struct service *s = arg;
	ssize_t n = read(s->output[0], chunk, sizeof(chunk));
	if (n <= 0)
		return;
	size_t all = buf_len(&s->kept) + (size_t)n;
	if (all > SERVICE_OUTPUT)
		buf_consume(&s->kept, MIN(all - SERVICE_OUTPUT, buf_len(&s->kept)));
	buf_add(&s->kept, chunk, (size_t)n);
	if (s->kept.failed)
		buf_done(&s->kept);
	log_output(s, str_n(chunk, (size_t)n));
}

void services_json(const struct services *all, struct buf *to)
{
	static const char *const states[] = {
		[SERVICE_WAITING] = "waiting", [SERVICE_STARTING] = "starting", [SERVICE_RUNNING] = "running", [SERVICE_ENDED] = "ended", [SERVICE_FAILED] = "ended"};
	buf_add_c(to, "[");
	for (size_t i = 0; all && i < all->n; i++) {
		const struct service *s = &all->services[i];
		buf_add_c(to, i ? ",{\"name\":" : "{\"name\":");
		json_quote(to, s->name);
		buf_add_c(to, ",\"user\":");
		json_quote(to, s->user);
		if (s->port)
			buf_addf(to, ",\"port\":%u", s->port);
		buf_addf(to, ",\"state\":\"%s\"", states[s->state]);
		if (s->state == SERVICE_RUNNING)
			buf_addf(to, ",\"pid\":%d", s->pid);
		buf_addf(to, ",\"starts\":%llu", (unsigned long long)s->starts);
		if (*s->last_end) {
			buf_add_c(to, ",\"lastEnd\":");
			json_quote(to, str_of(s->last_end));
		}
		buf_add_c(to, ",\"output\":");
		json_quote(to, buf_str(&s->kept));
		buf_add_c(to, "}");
	}
	buf_add_c(to, "]");
}

/* Making them */

static int listen_on(uint16_t port)
{
	const int one = 1;
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY)};
	cleanup_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* Who connects before the program could ask for it would else have Nagle's algorithm, and 40 ms of delay in each small answer, for the life of the connection. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0 || listen(fd, SERVICE_BACKLOG) < 0)
		return -errno;
	return steal_fd(&fd);
}

/* The parts of one, as views. */
static int read_one(struct service *s, struct str item)
{
	struct str port, program;
	uint64_t number = 0;
	if (!msg_list_next(&item, &s->name) || !msg_list_next(&item, &s->user) || !msg_list_next(&item, &port))
		return -EINVAL;
	s->arguments = item;
	if (port.n && (str_to_u64(port, &number) < 0 || number < 1 || number > UINT16_MAX))
		return -EINVAL;
	s->port = (uint16_t)number;
	if (!msg_list_next(&item, &program) || !program.n)
		return -EINVAL;
	for (struct str rest = s->arguments, a; rest.n;)
		if (!msg_list_next(&rest, &a) || memchr(a.p, '\0', a.n))
			return -EINVAL;
	return memchr(s->user.p, '\0', s->user.n) ? -EINVAL : 0;
}

/* A list that is shorter says nothing of the last ones. */
static int read_options(struct service *s, struct str item)
{
	struct str once;
	if (!msg_list_next(&item, &s->workdir) || !msg_list_next(&item, &once) || !msg_list_next(&item, &s->envs) || memchr(s->workdir.p, '\0', s->workdir.n))
		return -EINVAL;
	s->once = str_is(once, "once");
	return 0;
}

static int make_one(struct service *s, struct error *err)
{
	struct loop *l = s->all->envd->loop;
	if (s->port && (s->listener = listen_on(s->port)) < 0)
		return error_errno(err, s->listener, "service %.*s: port %u", STR_FMT(s->name), s->port);
	if (pipe2(s->output, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "service %.*s", STR_FMT(s->name));
	/* Only our end of the pipe: the program's must wait like any. */
	fd_set_nonblock(s->output[0], true);
	s->timer = loop_timer_new(l, on_timer, s);
	s->output_watch = loop_fd_add(l, s->output[0], EPOLLIN, on_output, s);
	return s->timer && s->output_watch ? 0 : error_errno(err, -ENOMEM, "service %.*s", STR_FMT(s->name));
}

int services_new(struct envd *e, struct msg_list list, struct msg_list options, struct services **ret, struct error *err)
{
	*ret = NULL;
	if (!list.raw.n)
		return 0;
	struct services *all = calloc(1, sizeof(*all));
	if (!all || buf_add_str(&all->list, list.raw) < 0 || buf_add_str(&all->options, options.raw) < 0) {
		services_free(all);
		return error_errno(err, -ENOMEM, "services");
	}
	all->envd = e;
	struct str rest = buf_str(&all->list), more = buf_str(&all->options), item, option;
	int r = 0;
	while (r == 0 && msg_list_next(&rest, &item)) {
		if (all->n == SERVICES_MAX) {
			r = error_set(err, -E2BIG, 500, "more than %d services", SERVICES_MAX);
			break;
		}
		struct service *s = &all->services[all->n++];
		*s = (struct service){.all = all, .listener = -1, .output = {-1, -1}, .workdir = STR(""), .envs = STR("")};
		r = read_one(s, item);
		if (r == 0 && msg_list_next(&more, &option))
			r = read_options(s, option);
		r = r < 0 ? error_set(err, r, 500, "service %zu of the claim is malformed", all->n) : make_one(s, err);
	}
	if (r < 0)
		services_free(all);
	else
		*ret = all;
	return r;
}

void services_free(struct services *all)
{
	if (!all)
		return;
	for (size_t i = 0; i < all->n; i++) {
		struct service *s = &all->services[i];
		const int fds[] = {s->listener, s->output[0], s->output[1]};
		loop_timer_free(s->timer);
		loop_fd_del(s->output_watch);
		for (size_t j = 0; j < ARRAY_SIZE(fds); j++)
			if (fds[j] >= 0)
				close(fds[j]);
		buf_done(&s->kept);
		buf_done(&s->line);
	}
	buf_done(&all->list);
	buf_done(&all->options);
	free(all);
}
