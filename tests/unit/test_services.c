/* Services before anything runs: what a claim may say, the sockets, and what is asked of the spawner, which the test plays. */
#include "unit.h"
#include "base/cleanup.h"
#include "guest/services.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
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

static int make(struct world *w, const struct buf *list, struct error *err)
{
	services_free(steal_pointer(&w->envd.services));
	return services_new(&w->envd, (struct msg_list){buf_str(list)}, &w->envd.services, err);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_no_service_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_port_is_open_before_anything_runs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(it_is_started_with_what_the_claim_said, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
