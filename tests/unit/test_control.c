#include "unit.h"
#include "base/cleanup.h"
#include "guest/control.h"
#include "guest/logs.h"
#include "io/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

/* The program's own is in park.c; here nothing is given up. */
int guest_confine(struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err)
{
	return 0;
}

/* A claimed sandbox's control channel, and a node at the other end of it. */
struct world {
	struct loop *loop;
	struct guest_identity identity;
	struct control *control;
	struct logs *logs;
	struct sockaddr_un address;
	socklen_t address_size;
	char storage[MSG_MAX];
};

static int set_up(void **state)
{
	static struct world w;
	w = (struct world){.loop = loop_new(), .address = {.sun_family = AF_UNIX}};
	w.identity.sandbox = strdup("i0");
	w.identity.template = strdup("t0");
	w.identity.user = strdup("user");
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	/* An address of the kernel's choice. */
	assert_int_equal(bind(fd, (struct sockaddr *)&w.address, sizeof(sa_family_t)), 0);
	w.address_size = sizeof(w.address);
	getsockname(fd, (struct sockaddr *)&w.address, &w.address_size);
	assert_int_equal(listen(fd, 4), 0);
	w.logs = logs_new();
	w.control = control_new(w.loop, fd, &w.identity, w.logs);
	assert_non_null(w.control);
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;
	control_free(w->control);
	logs_free(w->logs);
	loop_free(w->loop);
	free(w->identity.sandbox);
	free(w->identity.template);
	free(w->identity.user);
	free(w->identity.token);
	buf_done(&w->identity.envs);
	return 0;
}

static int connect_node(struct world *w)
{
	int one = 1, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&w->address, w->address_size), 0);
	setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one));
	return fd;
}

static void turns(struct world *w)
{
	for (int i = 0; i < 5; i++)
		loop_turn(w->loop, 20);
}

/* What init says next. */
static enum msg_id receive(struct world *w, int fd, union msg_any *any, uint64_t *ret_request)
{
	struct msg_header h;
	struct error err = {0};
	turns(w);
	int r = msg_receive_fd(fd, w->storage, &h, any, NULL, NULL, &err);
	if (r < 0)
		fail_msg("%s", err.message);
	if (ret_request)
		*ret_request = h.request;
	return h.type;
}

static void answers_hello_and_ping(void **state)
{
	struct world *w = *state;
	union msg_any any;
	uint64_t request;
	int fd = connect_node(w);
	msg_send_fd(
		fd, MSG_ID_hello, &(struct msg_hello){.version_min = 1, .version_max = 1}, 7, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, &request), MSG_ID_init_state);
	assert_int_equal(request, 7);
	assert_true(any.init_state.claimed);
	assert_str(any.init_state.sandbox, "i0");
	msg_send_fd(fd, MSG_ID_ping, &(struct msg_ping){0}, 8, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, &request), MSG_ID_pong);
	assert_int_equal(request, 8);
	close(fd);
}

static void note_still(bool on, void *arg)
{
	*(int *)arg = on ? 1 : 2;
}

static bool note_assigned(void *arg)
{
	return ++*(int *)arg == 1;
}

static const struct control_ops ops = {.still = note_still, .assigned = note_assigned};

static void is_told_when_all_stands_still(void **state)
{
	struct world *w = *state;
	int told = 0, fd = connect_node(w);
	for (int on = 1; on >= 0; on--) { /* nobody asks, then somebody does */
		msg_send_fd(fd, MSG_ID_still, &(struct msg_still){.on = on}, 0, NULL, 0, NULL);
		turns(w);
		assert_int_equal(told, on ? 0 : 2);
		control_set_ops(w->control, &ops, &told);
	}
	msg_send_fd(fd, MSG_ID_still, &(struct msg_still){.on = true}, 0, NULL, 0, NULL);
	turns(w);
	assert_int_equal(told, 1);
	close(fd);
}

static void lives_on_when_node_goes_and_comes(void **state)
{
	struct world *w = *state;
	union msg_any any;
	for (int i = 0; i < 20; i++) {
		int fd = connect_node(w);
		turns(w);
		close(fd);
		turns(w);
	}
	int fd = connect_node(w);
	msg_send_fd(fd, MSG_ID_ping, &(struct msg_ping){0}, 1, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, NULL), MSG_ID_pong);
	close(fd);
}

static void refuses_what_is_not_for_it(void **state)
{
	struct world *w = *state;
	int fd = connect_node(w);
	turns(w);
	assert_int_equal(send(fd, "nonsense", 8, 0), 8);
	turns(w);
	char byte;
	assert_int_equal(recv(fd, &byte, 1, 0), 0);
	close(fd);
}

static void a_later_claim_replaces_the_identity(void **state)
{
	struct world *w = *state;
	union msg_any any;
	uint64_t request;
	struct buf envs = BUF_INIT;
	msg_map_add(&envs, STR("A"), STR("1"));
	struct msg_claim c = {.sandbox = STR("i1"),
		.template = STR("t1"),
		.hostname = STR("h"),
		.envs = {buf_str(&envs)},
		.user = STR("root"),
		.boot_id = STR("b"),
		.machine_id = STR("m"),
		.nameserver = STR("n"),
		.seccomp = STR("s")};
	msg_set(&c, claim, token, STR("secret"));
	int fd = connect_node(w);
	msg_send_fd(fd, MSG_ID_claim, &c, 3, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, &request), MSG_ID_claimed);
	assert_int_equal(request, 3);
	assert_string_equal(w->identity.sandbox, "i1");
	assert_string_equal(w->identity.token, "secret");
	assert_string_equal(w->identity.user, "root");
	assert_null(w->identity.workdir);
	struct str rest = buf_str(&w->identity.envs), name, value;
	assert_true(msg_map_next(&rest, &name, &value));
	assert_str(value, "1");
	/* Without a token it is open again. */
	c.present = 0;
	msg_send_fd(fd, MSG_ID_claim, &c, 4, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, NULL), MSG_ID_claimed);
	assert_null(w->identity.token);
	buf_done(&envs);
	close(fd);
}

static void an_assignment_changes_envs_and_token_once(void **state)
{
	struct world *w = *state;
	union msg_any any;
	uint64_t request;
	int calls = 0;
	struct buf envs = BUF_INIT;
	msg_map_add(&envs, STR("A"), STR("2"));
	struct msg_assign a = {.envs = {buf_str(&envs)}};
	int fd = connect_node(w);
	w->identity.unassigned = true;
	w->identity.token = strdup("of-the-claim");
	control_set_ops(w->control, &ops, &calls);
	msg_send_fd(fd, MSG_ID_assign, &a, 9, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, &request), MSG_ID_assigned);
	assert_int_equal(request, 9);
	assert_true(any.assigned.ready);
	assert_int_equal(calls, 1);
	assert_null(w->identity.token); /* none: open */
	assert_false(w->identity.unassigned);
	struct str rest = buf_str(&w->identity.envs), name, value;
	assert_true(msg_map_next(&rest, &name, &value));
	assert_str(value, "2");
	assert_int_equal(rest.n, 0);
	assert_string_equal(w->identity.sandbox, "i0");
	assert_string_equal(w->identity.user, "user");
	/* It has an owner: another would get what is his. */
	msg_set(&a, assign, token, STR("of-another"));
	msg_send_fd(fd, MSG_ID_assign, &a, 10, NULL, 0, NULL);
	assert_int_equal(receive(w, fd, &any, &request), MSG_ID_error);
	assert_int_equal(request, 10);
	assert_null(w->identity.token);
	assert_int_equal(calls, 1);
	buf_done(&envs);
	close(fd);
}

static void every_node_is_told_when_it_is_prepared(void **state)
{
	struct world *w = *state;
	union msg_any any;
	uint64_t request;
	int a = connect_node(w), b = connect_node(w);
	turns(w);
	control_tell_prepared(w->control, true, STR(""));
	control_tell_prepared(w->control, false, STR(""));
	for (int i = 0; i < 2; i++) {
		int fd = i ? b : a;
		assert_int_equal(receive(w, fd, &any, &request), MSG_ID_prepared);
		assert_int_equal(request, 0);
		assert_true(any.prepared.ready);
		assert_int_equal(receive(w, fd, &any, &request), MSG_ID_prepared);
		assert_false(any.prepared.ready);
	}
	close(a);
	close(b);
}

struct started {
	pid_t pid;
	bool done;
	enum connect_code code;
};

static void on_pid(struct spawn *s, pid_t pid, void *arg)
{
	((struct started *)arg)->pid = pid;
}

static void on_done(struct spawn *s, const struct spawn_result *r, void *arg)
{
	struct started *x = arg;
	x->done = true;
	x->code = r->code;
}

static const struct spawn_ops spawn_ops = {.pid = on_pid, .done = on_done};

static void on_died(void *arg)
{
	struct world *w = arg;
	(void)w;
}

static const struct spawner_ops spawner_ops = {.died = on_died};

/* /bin/true through the spawner. */
static void start_one(struct spawner *s, struct started *ret)
{
	struct spawn_head head = {.kind = SPAWN_COMMAND, .n_args = 1};
	struct buf body = BUF_INIT;
	buf_add(&body, "root\0\0\0/bin/true", 17);
	int fds[3];
	for (int i = 0; i < 3; i++)
		fds[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
	*ret = (struct started){0};
	assert_non_null(spawn_new(s, &head, &body, fds, 3, &spawn_ops, ret));
}

static void a_new_spawner_works_once_it_is_attached(void **state)
{
	struct world *w = *state;
	union msg_any any;
	struct started x;
	struct spawner *s = spawner_new(w->loop, &spawner_ops, w);
	assert_non_null(s);
	control_replace_spawner(w->control, s); /* nobody is there who could attach it */
	start_one(s, &x);
	turns(w);
	assert_false(x.done);
	int fd = connect_node(w);
	turns(w);
	/* The datagram is the spawner's own: the kernel says so. */
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec iov = {w->storage, sizeof(w->storage)};
	struct msghdr h = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n = recvmsg(fd, &h, 0);
	struct msg_header header;
	struct error err = {0};
	assert_true(n > 0);
	assert_int_equal(msg_decode(str_n(w->storage, (size_t)n), &header, &any, sizeof(any), &err), 0);
	assert_int_equal(header.type, MSG_ID_spawner);
	struct ucred who;
	memcpy(&who, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(who));
	assert_int_not_equal(who.pid, getpid());
	turns(w);
	assert_false(x.done);
	msg_send_fd(fd, MSG_ID_attached, &(struct msg_attached){0}, 0, NULL, 0, NULL);
	for (int i = 0; i < 200 && !x.done; i++)
		loop_turn(w->loop, 20);
	assert_true(x.done);
	assert_int_equal(x.code, 0);
	assert_int_equal(waitpid(x.pid, NULL, 0), x.pid);
	spawner_free(s);
	assert_int_equal(waitpid(who.pid, NULL, 0), who.pid);
	close(fd);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(answers_hello_and_ping, set_up, tear_down),
		cmocka_unit_test_setup_teardown(is_told_when_all_stands_still, set_up, tear_down),
		cmocka_unit_test_setup_teardown(lives_on_when_node_goes_and_comes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(refuses_what_is_not_for_it, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_later_claim_replaces_the_identity, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_assignment_changes_envs_and_token_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(every_node_is_told_when_it_is_prepared, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_new_spawner_works_once_it_is_attached, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
