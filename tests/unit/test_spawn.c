#include "unit.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

/* PID 1's side, with a spawner that the test plays. */
struct world {
	struct loop *loop;
	struct spawner *spawner;
	int socket; /* the played spawner's end */
	unsigned deaths;
};

struct started {
	bool done;
	unsigned pids;
	enum connect_code code;
	char message[200];
};

static void on_pid(struct spawn *s, pid_t pid, void *arg)
{
	((struct started *)arg)->pids++;
}

static void on_done(struct spawn *s, const struct spawn_result *r, void *arg)
{
	struct started *x = arg;
	assert_false(x->done);
	x->done = true;
	x->code = r->code;
	snprintf(x->message, sizeof(x->message), "%.*s", STR_FMT(r->message));
}

static const struct spawn_ops spawn_ops = {.pid = on_pid, .done = on_done};

static void on_died(void *arg)
{
	((struct world *)arg)->deaths++;
}

static const struct spawner_ops ops = {.died = on_died};

static void new_spawner(struct world *w)
{
	int ends[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
	w->socket = ends[1];
	assert_int_equal(spawner_set(w->spawner, ends[0]), 0);
}

static int set_up(void **state)
{
	static struct world w;
	w = (struct world){.loop = loop_new(), .socket = -1};
	w.spawner = spawner_new(w.loop, &ops, &w);
	assert_non_null(w.spawner);
	new_spawner(&w);
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;
	spawner_free(w->spawner);
	loop_free(w->loop);
	if (w->socket >= 0)
		close(w->socket);
	return 0;
}

static void ask(struct world *w, struct started *x, enum spawn_kind kind)
{
	struct spawn_head head = {.kind = kind};
	struct buf body = BUF_INIT;
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	buf_add(&body, "body", 5);
	*x = (struct started){0};
	assert_non_null(spawn_new(w->spawner, &head, &body, &fd, 1, &spawn_ops, x));
}

/* The next request's status pipe, or -1 when x is through before one comes. */
static int take(struct world *w, const struct started *x)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 2)];
	} control;
	struct spawn_head head;
	char body[16];
	int fds[2];
	while (!x->done) {
		struct iovec iov[2] = {{&head, sizeof(head)}, {body, sizeof(body)}};
		struct msghdr h = {.msg_iov = iov, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
		ssize_t n = recvmsg(w->socket, &h, MSG_CMSG_CLOEXEC);
		if (n < 0) {
			assert_int_equal(errno, EAGAIN);
			loop_turn(w->loop, 20);
			continue;
		}
		/* Each time the whole of it. */
		assert_int_equal(n, sizeof(head) + 5);
		assert_string_equal(body, "body");
		memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(fds));
		assert_int_equal(CMSG_FIRSTHDR(&h)->cmsg_len, CMSG_LEN(sizeof(fds)));
		assert_true(fcntl(fds[1], F_GETFD) >= 0);
		close(fds[1]);
		return fds[0];
	}
	return -1;
}

static void put(int status, enum spawn_record_kind kind, int value, const char *text)
{
	struct spawn_record r = {kind, value, (uint32_t)strlen(text)};
	assert_int_equal(write(status, &r, sizeof(r)), sizeof(r));
	assert_int_equal(write(status, text, r.length), r.length);
}

static void turn_until_done(struct world *w, const struct started *x)
{
	while (!x->done)
		loop_turn(w->loop, 20);
}

static void what_never_started_is_asked_for_again(void **state)
{
	struct world *w = *state;
	struct started x;
	ask(w, &x, SPAWN_COMMAND);
	close(take(w, &x));
	close(take(w, &x));
	int status = take(w, &x);
	put(status, SPAWN_PID, 1234, "");
	close(status);
	turn_until_done(w, &x);
	assert_int_equal(x.code, 0);
	assert_int_equal(x.pids, 1);
}

static void not_for_ever(void **state)
{
	struct world *w = *state;
	struct started x;
	unsigned asked = 0;
	ask(w, &x, SPAWN_FILES);
	for (int status; (status = take(w, &x)) >= 0; asked++)
		close(status);
	assert_int_equal(asked, 1 + SPAWN_MAX_TRIES);
	assert_int_equal(x.code, CONNECT_UNAVAILABLE);
	assert_int_equal(x.pids, 0);
}

static void want_of_memory_is_told_when_it_lasts(void **state)
{
	struct world *w = *state;
	struct started x;
	ask(w, &x, SPAWN_COMMAND);
	for (int status; (status = take(w, &x)) >= 0;) {
		put(status, SPAWN_AGAIN, CONNECT_RESOURCE_EXHAUSTED, "no memory");
		close(status);
	}
	assert_int_equal(x.code, CONNECT_RESOURCE_EXHAUSTED);
	assert_string_equal(x.message, "no memory");
}

static void the_next_spawner_gets_what_the_last_one_lost(void **state)
{
	struct world *w = *state;
	struct started x[50], nobody = {0};
	for (int i = 0; i < (int)ARRAY_SIZE(x); i++)
		ask(w, &x[i], SPAWN_COMMAND);
	close(take(w, &x[0])); /* read; the others lie in the socket */
	close(w->socket);
	w->socket = -1;
	while (!w->deaths)
		loop_turn(w->loop, 20);
	new_spawner(w);
	for (int i = 0; i < (int)ARRAY_SIZE(x); i++) {
		int status = take(w, &nobody);
		put(status, SPAWN_PID, 1000 + i, "");
		close(status);
	}
	for (int i = 0; i < (int)ARRAY_SIZE(x); i++) {
		turn_until_done(w, &x[i]);
		assert_int_equal(x[i].code, 0);
		assert_int_equal(x[i].pids, 1);
	}
	assert_int_equal(w->deaths, 1);
}

/* Whoever said something may have run. */
static void what_may_have_run_is_not_repeated(void **state)
{
	struct world *w = *state;
	struct started x;
	ask(w, &x, SPAWN_FILES);
	int status = take(w, &x);
	put(status, SPAWN_PID, 1234, "");
	close(status);
	assert_int_equal(take(w, &x), -1);
	assert_int_equal(x.code, CONNECT_UNAVAILABLE);
	ask(w, &x, SPAWN_COMMAND);
	status = take(w, &x);
	assert_int_equal(write(status, "ab", 2), 2);
	close(status);
	assert_int_equal(take(w, &x), -1);
	assert_int_equal(x.code, CONNECT_UNAVAILABLE);
	ask(w, &x, SPAWN_COMMAND);
	status = take(w, &x);
	put(status, SPAWN_FAILED, CONNECT_INVALID_ARGUMENT, "no");
	close(status);
	assert_int_equal(take(w, &x), -1);
	assert_int_equal(x.code, CONNECT_INVALID_ARGUMENT);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_never_started_is_asked_for_again, set_up, tear_down),
		cmocka_unit_test_setup_teardown(not_for_ever, set_up, tear_down),
		cmocka_unit_test_setup_teardown(want_of_memory_is_told_when_it_lasts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_next_spawner_gets_what_the_last_one_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_may_have_run_is_not_repeated, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
