#include "ingress_world.h"

#include "base/cleanup.h"
#include "base/fd.h"

#include <poll.h>
#include <sys/socket.h>

struct ingress_world t;

static bool own_key(struct str value, void *arg)
{
	return str_is(value, "e2b_own");
}

static void on_request(struct http_req *r, void *arg)
{
	struct route route;
	route_request(r->head, &route);
	if (route.kind == ROUTE_SANDBOX)
		ingress_handle(t.ingress, r, &route);
	else if (route.kind == ROUTE_BAD)
		page_respond(r, &(struct page){.status = 400, .message = route.why});
	else
		http_respond_error(r, 404, "api");
}

void turns(int n)
{
	for (int i = 0; i < n; i++)
		loop_turn(t.loop, 0);
}

static void send_sandbox(const char *id, enum sandbox_state state, const char *generation, const char *token, uint64_t sequence, uint64_t request)
{
	struct msg_sandbox m = {.id = str_of(id), .state = state, .team = STR("default"), .template_id = STR("t"), .started_at = 1,
		.end_at = INT64_MAX, .generation = str_of(generation), .isolation = STR("namespace"), .sequence = sequence};
	m.auto_resume = !strncmp(id, "iauto", 5);
	if (token)
		msg_set(&m, sandbox, traffic_token, str_of(token));
	if (!strcmp(id, "isecret") || !strcmp(id, "iautosecret"))
		msg_set(&m, sandbox, envd_token, STR("eeee"));
	if (state == SANDBOX_GONE)
		msg_set(&m, sandbox, reason, STR("killed"));
	assert_int_equal(chan_send(t.node, MSG_ID_sandbox, &m, request, NULL, 0, NULL), 0);
}

void say_sandbox(const char *id, enum sandbox_state state, const char *generation, const char *token, bool event)
{
	send_sandbox(id, state, generation, token, event ? ++t.sequence : 0, event ? 0 : 1);
}

void grant_resume(const char *id, const char *generation)
{
	t.generation = generation;
	send_sandbox(id, SANDBOX_RUNNING, generation, NULL, t.sequence, t.last_resume);
	turns(10);
}

void refuse_resume(int code, unsigned status, const char *message, unsigned retry_after)
{
	struct msg_error m = {.code = code, .status = status, .message = str_of(message)};
	if (retry_after)
		msg_set(&m, error, retry_after, retry_after);
	chan_send(t.node, MSG_ID_error, &m, t.last_resume, NULL, 0, NULL);
	turns(10);
}

static void refuse_open(uint64_t request, int code, unsigned status, const char *message)
{
	struct msg_error m = {.code = code, .status = status, .message = str_of(message)};
	chan_send(t.node, MSG_ID_error, &m, request, NULL, 0, NULL);
}

static void grant_open(uint64_t request, const char *generation)
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	struct msg_stream m = {.generation = str_of(generation)};
	assert_int_equal(chan_send(t.node, MSG_ID_stream, &m, request, &pair[0], 1, NULL), 0);
	close(pair[0]);
	t.apps[t.n_apps++] = pair[1];
}

static void on_node_message(struct chan *c, struct chan_message *m, void *arg)
{
	uint64_t request = m->header.request;
	if (m->header.type == MSG_ID_subscribe) {
		struct msg_synced synced = {0};
		say_sandbox("iabc", SANDBOX_RUNNING, "g1", NULL, false);
		say_sandbox("isecret", SANDBOX_RUNNING, "g1", "tttt", false);
		say_sandbox("iunsecured", SANDBOX_RUNNING, "g1", "tttt", false);
		say_sandbox("ipaused", SANDBOX_PAUSED, "g1", NULL, false);
		say_sandbox("iauto", SANDBOX_PAUSED, "g1", NULL, false);
		say_sandbox("iautotoken", SANDBOX_PAUSED, "g1", "tttt", false);
		say_sandbox("iautosecret", SANDBOX_PAUSED, "g1", NULL, false);
		chan_send(t.node, MSG_ID_synced, &synced, request, NULL, 0, NULL);
	} else if (m->header.type == MSG_ID_open) {
		t.opens++;
		unsigned port = (unsigned)m->body->open.port;
		if (t.pausing)
			refuse_open(request, -ENOENT, 404, "no such sandbox");
		else if (port == FULL_PORT && t.opens < 3)
			refuse_open(request, -ETIMEDOUT, 502, "no answer");
		else if (port == CLOSED_PORT || (port == LATE_PORT && t.opens < 3))
			refuse_open(request, -ECONNREFUSED, 502, "refused");
		else if (port == GONE_PORT)
			refuse_open(request, -ENOENT, 404, "no such sandbox");
		else if (port == BUSY_PORT)
			refuse_open(request, -EAGAIN, 503, "too busy");
		else if (port != SILENT_PORT)
			grant_open(request, port == FOREIGN_PORT ? "g9" : t.generation);
	} else if (m->header.type == MSG_ID_resume) {
		assert_int_equal(m->body->resume.mode, RESUME_TRAFFIC);
		t.resumes++;
		t.last_resume = request;
	}
}

static void on_node_closed(struct chan *c, const struct error *err, void *arg)
{
	t.node = NULL;
}

void start(void)
{
	static const struct chan_ops ops = {on_node_message, on_node_closed};
	int pair[2];
	t = (struct ingress_world){.limit = t.limit, .patience = t.patience, .generation = "g1"};
	t.loop = loop_new();
	t.index = index_new();
	t.client = node_client_new(t.loop, t.index);
	struct ingress_config config = {.loop = t.loop, .index = t.index, .node = t.client, .connection_limit = t.limit ? t.limit : LIMIT,
		.wake_patience = t.patience, .own_key = own_key};
	t.ingress = ingress_new(&config);
	t.server = http_server_new(t.loop, &(struct http_server_config){.on_request = on_request});
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	t.node = chan_new(t.loop, pair[1], MSG_FROM_FRONT, CHAN_NO_FDS, &ops, NULL);
	assert_int_equal(node_client_attach(t.client, pair[0]), 0);
	turns(6);
	assert_true(index_ready(t.index));
}

void stop(void)
{
	http_server_free(t.server);
	turns(2);
	ingress_free(t.ingress);
	turns(1);
	node_client_free(t.client);
	chan_free(t.node);
	index_free(t.index);
	loop_free(t.loop);
	for (int i = 0; i < t.n_apps; i++)
		if (t.apps[i] >= 0)
			close(t.apps[i]);
	t.limit = 0;
	t.patience = 0;
}

int connect_client(void)
{
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
	assert_int_equal(http_server_adopt(t.server, fds[1], STR("")), 0);
	turns(1);
	return fds[0];
}

void say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
	turns(10);
}

/* Appends what is there; how the stream stands. */
enum end take(int fd, struct buf *to)
{
	static char p[65536];
	for (;;) {
		ssize_t r = recv(fd, p, sizeof(p), 0);
		if (r == 0)
			return ENDED;
		if (r < 0)
			return errno == EAGAIN ? OPEN : RESET;
		if (to)
			buf_add(to, p, (size_t)r);
	}
}

/* All that arrives on fd now, NUL-terminated; until the next call. */
const char *heard(int fd)
{
	static struct buf b;
	buf_clear(&b);
	turns(10);
	take(fd, &b);
	return buf_cstr(&b);
}

/* Turns the loop until the descriptor has something to say. */
void await(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	for (int i = 0; i < 400 && poll(&p, 1, 0) == 0; i++)
		loop_turn(t.loop, 20);
}

const char *body_of(const char *answer)
{
	const char *end = strstr(answer, "\r\n\r\n");
	return end ? end + 4 : "no body";
}

