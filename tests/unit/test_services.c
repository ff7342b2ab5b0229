/* Services before anything runs: what a claim may say, the sockets, and what is asked of the spawner, which the test plays. */
#include "unit.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "guest/ready.h"
#include "guest/services.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>

int guest_confine(struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err)
{
	return 0;
}

struct world {
	struct loop *loop;
	struct spawner *spawner;
	int socket; /* the played spawner's end */
	struct guest_identity identity;
	struct guest_cgroup cgroup;
	struct envd envd;
};

static void on_died(void *arg)
{
}

static const struct spawner_ops ops = {.died = on_died};

static int set_up(void **state)
{
	static struct world w;
	int ends[2];
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	w = (struct world){.loop = loop_new(), .cgroup = {-1, -1, -1, -1, -1, false}};
	w.spawner = spawner_new(w.loop, &ops, &w);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
	w.socket = ends[1];
	assert_int_equal(spawner_set(w.spawner, ends[0]), 0);
	assert_int_equal(envd_init(&w.envd, w.loop, w.spawner, &w.identity, &w.cgroup, NULL), 0);
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;
	envd_done(&w->envd);
	spawner_free(w->spawner);
	close(w->socket);
	buf_done(&w->identity.envs);
	loop_free(w->loop);
	return 0;
}

/* Parts up to a NULL, as one item of the list. */
static void add(struct buf *list, const char *const *parts)
{
	cleanup_buf struct buf item = BUF_INIT;
	for (; *parts; parts++)
		msg_list_add(&item, str_of(*parts));
	assert_int_equal(msg_list_add(list, buf_str(&item)), 0);
}

static int make_with(struct world *w, const struct buf *list, const struct buf *options, struct error *err)
{
	services_free(steal_pointer(&w->envd.services));
	return services_new(&w->envd, (struct msg_list){buf_str(list)}, (struct msg_list){buf_str(options)}, &w->envd.services, err);
}

static int make(struct world *w, const struct buf *list, struct error *err)
{
	return make_with(w, list, &BUF_INIT, err);
}

static void what_is_no_service_is_refused(void **state)
{
	struct world *w = *state;
	static const char *const cases[][6] = {
		{NULL}, {"a", NULL}, {"a", "root", NULL}, {"a", "root", "", NULL}, {"a", "root", "", "", NULL}, {"a", "root", "0", "/x", NULL},
		{"a", "root", "65536", "/x", NULL}, {"a", "root", "x", "/x", NULL}, {"a", "root", "-1", "/x", NULL},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_buf struct buf list = BUF_INIT;
		struct error err = {0};
		add(&list, cases[i]);
		if (make(w, &list, &err) != -EINVAL || !*err.message || w->envd.services)
			fail_msg("case %zu: %s", i, err.message);
	}
	/* Cut inside, and with NULs. */
	cleanup_buf struct buf cut = BUF_INIT, nul = BUF_INIT, item = BUF_INIT;
	msg_list_add(&cut, STR("\3\0\0\0ab"));
	assert_int_equal(make(w, &cut, NULL), -EINVAL);
	msg_list_add(&item, STR("a"));
	msg_list_add(&item, STR("root"));
	msg_list_add(&item, STR(""));
	msg_list_add(&item, STR("/x\0y"));
	msg_list_add(&nul, buf_str(&item));
	assert_int_equal(make(w, &nul, NULL), -EINVAL);
	cleanup_buf struct buf many = BUF_INIT, none = BUF_INIT;
	for (int i = 0; i <= SERVICES_MAX; i++)
		add(&many, (const char *const[]){"a", "root", "", "/x", NULL});
	assert_int_equal(make(w, &many, NULL), -E2BIG);
	assert_int_equal(make(w, &none, NULL), 0);
	assert_null(w->envd.services);
}

static int listener(struct sockaddr_in *address)
{
	socklen_t size = sizeof(*address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	*address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)address, size), 0);
	assert_int_equal(listen(fd, 1), 0);
	getsockname(fd, (struct sockaddr *)address, &size);
	return fd;
}

static void the_port_is_open_before_anything_runs(void **state)
{
	struct world *w = *state;
	struct sockaddr_in address;
	struct error err = {0};
	char port[8];
	cleanup_buf struct buf list = BUF_INIT;
	int taken = listener(&address);
	snprintf(port, sizeof(port), "%u", ntohs(address.sin_port));
	add(&list, (const char *const[]){"web", "root", port, "/x", NULL});
	assert_int_equal(make(w, &list, &err), -EADDRINUSE);
	assert_non_null(strstr(err.message, port));
	close(taken);
	assert_int_equal(make(w, &list, &err), 0);
	cleanup_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	struct spawn_head head;
	assert_int_equal(recv(w->socket, &head, sizeof(head), MSG_DONTWAIT), -1); /* nothing was asked of the spawner yet */
}

static void it_is_started_with_what_the_claim_said(void **state)
{
	struct world *w = *state;
	cleanup_buf struct buf list = BUF_INIT, expected = BUF_INIT;
	add(&list, (const char *const[]){"one", "user", "", "/bin/one", "", "b c", NULL});
	assert_int_equal(make(w, &list, NULL), 0);
	msg_map_add(&w->identity.envs, STR("A"), STR("1"));
	msg_map_add(&w->identity.envs, STR("B=C"), STR("2"));  /* what no environment can hold is left out */
	msg_map_add(&w->identity.envs, STR("D"), STR("3\0" "4"));
	services_start(w->envd.services);
	struct {
		struct spawn_head head;
		char body[512];
	} got;
	ssize_t n = recv(w->socket, &got, sizeof(got), MSG_DONTWAIT);
	assert_true(n > (ssize_t)sizeof(got.head));
	assert_int_equal(got.head.kind, SPAWN_COMMAND);
	assert_int_equal(got.head.flags, SPAWN_SESSION);
	assert_int_equal(got.head.n_args, 3);
	assert_int_equal(got.head.n_envs, 1);
	static const char body[] = "user\0\0\0/bin/one\0\0b c\0A=1";
	assert_int_equal(got.head.length, sizeof(body));
	assert_memory_equal(got.body, body, sizeof(body));
}

/* A request that the played spawner has received. */
struct asked {
	int status; /* the writing end of its pipe */
	char program[64];
};

static bool take(struct world *w, struct asked *ret)
{
	struct {
		struct spawn_head head;
		char body[512];
	} got = {0};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * SPAWN_MAX_FDS)];
	} control;
	struct iovec iov = {&got, sizeof(got) - 1};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int fds[SPAWN_MAX_FDS];
	if (recvmsg(w->socket, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return false;
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	assert_non_null(c);
	size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	memcpy(fds, CMSG_DATA(c), n * sizeof(int));
	for (size_t i = 1; i < n; i++)
		close(fds[i]);
	ret->status = fds[0];
	/* Behind user, cwd and default workdir. */
	const char *at = got.body;
	for (int i = 0; i < 3; i++)
		at += strlen(at) + 1;
	snprintf(ret->program, sizeof(ret->program), "%s", at);
	return true;
}

static struct asked next(struct world *w, const char *program)
{
	struct asked a;
	for (int i = 0; !take(w, &a); i++) {
		if (i == 3000)
			fail_msg("nobody asked for %s", program);
		loop_turn(w->loop, 10);
	}
	assert_string_equal(a.program, program);
	return a;
}

static void turns(struct world *w)
{
	for (int i = 0; i < 5; i++)
		loop_turn(w->loop, 5);
}

/* A process that ends with this status, or waits when it is negative. */
static pid_t play(struct world *w, struct asked a, int status)
{
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fd_close_all_except(3, NULL, 0);
		setsid();
		while (status < 0)
			pause();
		_exit(status);
	}
	const struct spawn_record r = {.kind = SPAWN_PID, .value = pid};
	assert_int_equal(write(a.status, &r, sizeof(r)), sizeof(r));
	close(a.status);
	turns(w);
	return pid;
}

struct told {
	int ready, not_ready;
	char why[600];
};

static void note(bool ready, struct str why, void *arg)
{
	struct told *t = arg;
	*(ready ? &t->ready : &t->not_ready) += 1;
	assert_true(why.n < sizeof(t->why));
	snprintf(t->why, sizeof(t->why), "%.*s", STR_FMT(why));
}

static void wait_told(struct world *w, const int *n, int expected)
{
	for (int i = 0; *n < expected && i < 3000; i++)
		loop_turn(w->loop, 10);
	assert_int_equal(*n, expected);
}

static void make_ready(struct world *w, struct told *t, const char *command)
{
	static char user[] = "user";
	cleanup_buf struct buf list = BUF_INIT, words = BUF_INIT;
	add(&list, (const char *const[]){"one", "user", "", "/bin/one", NULL});
	add(&list, (const char *const[]){"two", "user", "", "/bin/two", NULL});
	assert_int_equal(make(w, &list, NULL), 0);
	if (command)
		msg_list_add(&words, str_of(command));
	w->identity.user = user;
	struct ready_config config = {.command = {buf_str(&words)}};
	assert_int_equal(ready_new(&w->envd, &config, note, t, &w->envd.ready, NULL), 0);
	services_start(w->envd.services);
	ready_services_changed(w->envd.ready);
}

static void options_are_read(void **state)
{
	struct world *w = *state;
	cleanup_buf struct buf list = BUF_INIT, options = BUF_INIT, envs = BUF_INIT, item = BUF_INIT, cut = BUF_INIT, nul = BUF_INIT;
	msg_map_add(&w->identity.envs, STR("T"), STR("template"));
	msg_map_add(&w->identity.envs, STR("X"), STR("template"));
	msg_map_add(&w->identity.envs, STR("C"), STR("create"));
	w->identity.template_envs = 2;
	msg_map_add(&envs, STR("X"), STR("service"));
	msg_map_add(&envs, STR("C"), STR("service"));
	add(&list, (const char *const[]){"one", "user", "", "/bin/one", NULL});
	msg_list_add(&item, STR("/srv"));
	msg_list_add(&item, STR("once"));
	msg_list_add(&item, buf_str(&envs));
	msg_list_add(&options, buf_str(&item));
	assert_int_equal(make_with(w, &list, &options, NULL), 0);
	services_start(w->envd.services);
	struct {
		struct spawn_head head;
		char body[512];
	} got;
	assert_true(recv(w->socket, &got, sizeof(got), MSG_DONTWAIT) > (ssize_t)sizeof(got.head));
	static const char body[] = "user\0/srv\0\0/bin/one\0T=template\0X=template\0X=service\0C=service\0C=create";
	assert_int_equal(got.head.n_envs, 5);
	assert_int_equal(got.head.length, sizeof(body));
	assert_memory_equal(got.body, body, sizeof(body));
	add(&cut, (const char *const[]){"/srv", NULL});
	assert_int_equal(make_with(w, &list, &cut, NULL), -EINVAL);
	buf_clear(&item);
	msg_list_add(&item, STR("/s\0rv"));
	msg_list_add(&item, STR(""));
	msg_list_add(&item, STR(""));
	msg_list_add(&nul, buf_str(&item));
	assert_int_equal(make_with(w, &list, &nul, NULL), -EINVAL);
}

/* One service that runs once, and who waits for it. */
static void make_once(struct world *w, struct told *t, const char *command)
{
	static char user[] = "user";
	cleanup_buf struct buf list = BUF_INIT, options = BUF_INIT, words = BUF_INIT;
	add(&list, (const char *const[]){"start", "user", "", "/bin/one", NULL});
	add(&options, (const char *const[]){"", "once", "", NULL});
	assert_int_equal(make_with(w, &list, &options, NULL), 0);
	if (command)
		msg_list_add(&words, str_of(command));
	w->identity.user = user;
	struct ready_config config = {.command = {buf_str(&words)}, .once = true};
	assert_int_equal(ready_new(&w->envd, &config, note, t, &w->envd.ready, NULL), 0);
	services_start(w->envd.services);
	ready_services_changed(w->envd.ready);
}

static void one_that_runs_once_is_left_at_its_end(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	struct asked none;
	make_once(w, &t, "/bin/check");
	play(w, next(w, "/bin/one"), 3);
	play(w, next(w, "/bin/check"), 1);
	play(w, next(w, "/bin/check"), 0);
	wait_told(w, &t.ready, 1);
	turns(w);
	assert_false(take(w, &none));
	assert_true(services_run(w->envd.services));
	cleanup_buf struct buf text = BUF_INIT;
	services_json(w->envd.services, &text);
	assert_non_null(strstr(buf_cstr(&text), "\"state\":\"ended\""));
}

static void fail_start(struct asked a, enum connect_code code, const char *why)
{
	struct spawn_record r = {.kind = SPAWN_PID, .value = 1234567};
	assert_int_equal(write(a.status, &r, sizeof(r)), sizeof(r));
	r = (struct spawn_record){.kind = SPAWN_FAILED, .value = (int)code, .length = (uint32_t)strlen(why)};
	assert_int_equal(write(a.status, &r, sizeof(r)), sizeof(r));
	assert_int_equal(write(a.status, why, strlen(why)), strlen(why));
	close(a.status);
}

static void one_that_cannot_run_once_is_not_waited_for(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	struct asked none;
	make_once(w, &t, NULL);
	/* There may be room later. */
	fail_start(next(w, "/bin/one"), CONNECT_RESOURCE_EXHAUSTED, "no room");
	fail_start(next(w, "/bin/one"), CONNECT_INVALID_ARGUMENT, "cannot start '/bin/one': No such file or directory");
	wait_told(w, &t.not_ready, 1);
	assert_non_null(strstr(t.why, "service 'start': cannot start '/bin/one': No such file"));
	turns(w);
	assert_false(take(w, &none));
	assert_int_equal(t.ready, 0);
	assert_false(services_run(w->envd.services));
}

static void it_is_told_once(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	make_once(w, &t, NULL);
	pid_t one = play(w, next(w, "/bin/one"), -1);
	wait_told(w, &t.ready, 1);
	kill(one, SIGKILL);
	for (int i = 0; kill(one, 0) == 0 && i < 3000; i++)
		loop_turn(w->loop, 10);
	assert_int_equal(t.ready + t.not_ready, 1);
}

/* The other end of a probe: what it says to one connection. */
static void answer_probe(struct world *w, int fd, const char *answer)
{
	int conn = -1;
	char request[512] = "";
	for (int i = 0; conn < 0 && i < 3000; i++) {
		conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		loop_turn(w->loop, 10);
	}
	assert_true(conn >= 0);
	for (int i = 0; answer && !strstr(request, "\r\n\r\n") && i < 3000; i++) {
		ssize_t n = recv(conn, request, sizeof(request) - 1, MSG_DONTWAIT | MSG_PEEK);
		request[n > 0 ? n : 0] = '\0';
		loop_turn(w->loop, 10);
	}
	if (answer) {
		assert_true(strncmp(request, "GET /health?a=1 HTTP/1.1\r\nHost: localhost:", 42) == 0);
		recv(conn, request, sizeof(request), MSG_DONTWAIT);
		/* In pieces. */
		assert_int_equal(send(conn, answer, MIN(strlen(answer), (size_t)5), MSG_NOSIGNAL), MIN(strlen(answer), (size_t)5));
		turns(w);
		if (strlen(answer) > 5)
			assert_int_equal(send(conn, answer + 5, strlen(answer) - 5, MSG_NOSIGNAL), strlen(answer) - 5);
	}
	turns(w);
	close(conn);
}

static void make_probed(struct world *w, struct told *t, uint16_t port, const char *path, const char *command)
{
	static char user[] = "user";
	cleanup_buf struct buf list = BUF_INIT, words = BUF_INIT;
	add(&list, (const char *const[]){"one", "user", "", "/bin/one", NULL});
	assert_int_equal(make(w, &list, NULL), 0);
	if (command)
		msg_list_add(&words, str_of(command));
	w->identity.user = user;
	struct ready_config config = {.command = {buf_str(&words)}, .probe_port = port, .probe_path = path};
	assert_int_equal(ready_new(&w->envd, &config, note, t, &w->envd.ready, NULL), 0);
	services_start(w->envd.services);
	ready_services_changed(w->envd.ready);
}

static void ready_is_what_answers_the_probe(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	struct sockaddr_in address;
	int fd = listener(&address);
	fd_set_nonblock(fd, true);
	make_probed(w, &t, ntohs(address.sin_port), "/health?a=1", "/bin/check");
	pid_t one = play(w, next(w, "/bin/one"), -1);
	static const char *const bad[] = {"HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP/1.0 301 Moved\r\n\r\n", "SSH-2.0-x and more\r\n", "HTTP/1.1 20", "\xff\xff", ""};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		answer_probe(w, fd, bad[i]);
	assert_int_equal(t.ready, 0);
	answer_probe(w, fd, "HTTP/1.1 204 No Content\r\n\r\n");
	play(w, next(w, "/bin/check"), 1);
	/* It is not asked again for the command's next try. */
	play(w, next(w, "/bin/check"), 0);
	wait_told(w, &t.ready, 1);
	kill(one, SIGKILL);
	wait_told(w, &t.not_ready, 1);
	one = play(w, next(w, "/bin/one"), -1);
	answer_probe(w, fd, "HTTP/1.1 200 OK\r\n\r\n");
	play(w, next(w, "/bin/check"), 0);
	wait_told(w, &t.ready, 2);
	kill(one, SIGKILL);
	close(fd);
}

static void ready_is_what_takes_a_connection(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	/* Bound, so that nobody else has the port, but not listening yet. */
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
	getsockname(fd, (struct sockaddr *)&address, &size);
	make_probed(w, &t, ntohs(address.sin_port), NULL, NULL);
	pid_t one = play(w, next(w, "/bin/one"), -1);
	for (int i = 0; i < 20; i++)
		loop_turn(w->loop, 10);
	assert_int_equal(t.ready, 0);
	/* Frozen, nothing is asked. */
	ready_stand_still(w->envd.ready, true);
	assert_int_equal(listen(fd, 4), 0);
	for (int i = 0; i < 70; i++)
		loop_turn(w->loop, 10);
	assert_int_equal(accept4(fd, NULL, NULL, SOCK_CLOEXEC), -1);
	assert_int_equal(t.ready, 0);
	ready_stand_still(w->envd.ready, false);
	wait_told(w, &t.ready, 1);
	kill(one, SIGKILL);
	close(fd);
}

static void ready_is_what_executes(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	make_ready(w, &t, NULL);
	pid_t one = play(w, next(w, "/bin/one"), -1);
	assert_int_equal(t.ready, 0);
	pid_t two = play(w, next(w, "/bin/two"), -1);
	assert_int_equal(t.ready, 1);
	kill(one, SIGKILL);
	wait_told(w, &t.not_ready, 1);
	one = play(w, next(w, "/bin/one"), -1);
	assert_int_equal(t.ready, 2);
	assert_true(ready_end(w->envd.ready));
	/* Nobody wants to know any more. */
	kill(one, SIGKILL);
	next(w, "/bin/one");
	kill(two, SIGKILL);
	assert_int_equal(t.not_ready, 1);
}

static void ready_is_what_the_command_says(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	struct asked none;
	make_ready(w, &t, "/bin/check");
	pid_t one = play(w, next(w, "/bin/one"), -1);
	struct asked last = next(w, "/bin/two"); /* and not the command: not all of them run */
	assert_false(take(w, &none));
	pid_t two = play(w, last, -1);
	play(w, next(w, "/bin/check"), 7);
	play(w, next(w, "/bin/check"), 1);
	assert_int_equal(t.ready, 0);
	/* A service ends under it: what it says after that does not count, and it is killed. */
	pid_t check = play(w, next(w, "/bin/check"), -1);
	kill(one, SIGKILL);
	struct asked again = next(w, "/bin/one");
	turns(w);
	assert_int_equal(kill(check, 0), -1);
	assert_int_equal(t.ready, 0);
	one = play(w, again, -1);
	play(w, next(w, "/bin/check"), 0);
	wait_told(w, &t.ready, 1);
	assert_int_equal(t.not_ready, 0);
	assert_true(ready_end(w->envd.ready));
	kill(one, SIGKILL);
	kill(two, SIGKILL);
}

static void an_end_takes_what_is_being_started(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	make_ready(w, &t, "/bin/check");
	pid_t one = play(w, next(w, "/bin/one"), -1), two = play(w, next(w, "/bin/two"), -1);
	struct asked check = next(w, "/bin/check");
	assert_false(ready_end(w->envd.ready));
	pid_t pid = play(w, check, -1);
	for (int i = 0; kill(pid, 0) == 0 && i < 3000; i++)
		loop_turn(w->loop, 10);
	assert_int_equal(kill(pid, 0), -1);
	assert_int_equal(t.ready, 0);
	kill(one, SIGKILL);
	kill(two, SIGKILL);
}

static void frozen_nothing_is_tried(void **state)
{
	struct world *w = *state;
	struct told t = {0};
	struct asked none;
	make_ready(w, &t, "/bin/check");
	pid_t one = play(w, next(w, "/bin/one"), -1);
	struct asked last = next(w, "/bin/two");
	ready_stand_still(w->envd.ready, true);
	pid_t two = play(w, last, -1);
	turns(w);
	assert_false(take(w, &none));
	ready_stand_still(w->envd.ready, false);
	play(w, next(w, "/bin/check"), 0);
	wait_told(w, &t.ready, 1);
	kill(one, SIGKILL);
	kill(two, SIGKILL);
}

static void a_damaged_ready_command_is_refused(void **state)
{
	struct world *w = *state;
	struct error err = {0};
	cleanup_buf struct buf nul = BUF_INIT;
	msg_list_add(&nul, STR("/x\0y"));
	const struct ready_config cut = {.command = {STR("\3\0\0\0ab")}}, with_nul = {.command = {buf_str(&nul)}};
	assert_int_equal(ready_new(&w->envd, &cut, note, NULL, &w->envd.ready, &err), -EINVAL);
	assert_int_equal(ready_new(&w->envd, &with_nul, note, NULL, &w->envd.ready, &err), -EINVAL);
	assert_null(w->envd.ready);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_no_service_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_port_is_open_before_anything_runs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(it_is_started_with_what_the_claim_said, set_up, tear_down),
		cmocka_unit_test_setup_teardown(options_are_read, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_that_runs_once_is_left_at_its_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_that_cannot_run_once_is_not_waited_for, set_up, tear_down),
		cmocka_unit_test_setup_teardown(it_is_told_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(ready_is_what_answers_the_probe, set_up, tear_down),
		cmocka_unit_test_setup_teardown(ready_is_what_takes_a_connection, set_up, tear_down),
		cmocka_unit_test_setup_teardown(ready_is_what_executes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(ready_is_what_the_command_says, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_end_takes_what_is_being_started, set_up, tear_down),
		cmocka_unit_test_setup_teardown(frozen_nothing_is_tried, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_damaged_ready_command_is_refused, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
