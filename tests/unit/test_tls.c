/* TLS under the HTTP server: an OpenSSL client whose bytes are moved by hand, over real sockets and one loop. */
#include "unit.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/http_server.h"
#include "io/tls_server.h"
#include "tls_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/socket.h>

enum { BIG = 16 * 1024 * 1024, MANY_TURNS = 200000 };

/* What the server's owner saw and did; one test at a time. */
static struct {
	struct loop *loop;
	struct http_server *server;
	struct tls_server *tls;
	int listener;
	struct sockaddr_in address;
	struct http_req *req;
	struct buf body;
	bool hold;       /* body() takes nothing */
	bool discard;    /* ... or forgets what it took */
	uint64_t taken;
	unsigned requests, ends, closed, complete, hangups;
	size_t sent, most_queued;
} t;

static size_t on_body(struct http_req *r, const char *p, size_t n)
{
	if (t.hold)
		return 0;
	t.taken += n;
	if (!t.discard)
		buf_add(&t.body, p, n);
	if (str_is(r->head->path, "/tunnel"))
		http_send(r, p, n);
	return n;
}

static void on_end(struct http_req *r)
{
	t.ends++;
	if (str_is(r->head->path, "/echo"))
		http_respond(r, 200, NULL, NULL, buf_str(&t.body));
	if (str_is(r->head->path, "/tunnel") && t.ends == 1) {
		http_send(r, "bye", 3);
		http_finish(r);
	}
}

static char byte_at(size_t i)
{
	return (char)(i * 2654435761u >> 13);
}

static void flood(struct http_req *r)
{
	static char block[50000];
	while (t.sent < BIG) {
		size_t n = MIN(sizeof(block), BIG - t.sent);
		for (size_t i = 0; i < n; i++)
			block[i] = byte_at(t.sent + i);
		t.sent += n;
		size_t queued = http_send(r, block, n);
		t.most_queued = MAX(t.most_queued, queued);
		if (queued > HTTP_HIGH_WATER)
			return;
	}
	http_finish(r);
}

static void on_writable(struct http_req *r)
{
	if (str_is(r->head->path, "/flood"))
		flood(r);
}

static void on_hangup(struct http_req *r)
{
	t.hangups++;
}

static void on_closed(struct http_req *r, bool complete)
{
	t.closed++;
	t.complete += complete;
	t.req = NULL;
}

static const struct http_req_ops ops = {on_body, on_end, on_writable, on_hangup, on_closed};

static void on_request(struct http_req *r, void *arg)
{
	t.requests++;
	t.req = r;
	r->ops = &ops;
	struct str path = r->head->path;
	assert_true(http_conn_is_secure(r->conn));
	if (str_is(path, "/hello"))
		http_respond(r, 200, NULL, NULL, STR("hello"));
	else if (str_is(path, "/tunnel"))
		http_upgrade(r, 101, NULL, "Upgrade: x\r\n");
	else if (str_is(path, "/flood") || str_is(path, "/stream"))
		http_start(r, 200, NULL, NULL, HTTP_BODY_LENGTH, BIG);
	else if (str_is(path, "/cut")) {
		http_start(r, 200, NULL, NULL, HTTP_BODY_CHUNKED, 0);
		http_send(r, "abc", 3);
		http_abort(r);
	}
	if (str_is(path, "/flood"))
		flood(r);
}

static void start(const struct http_server_config *extra)
{
	memset(&t, 0, sizeof(t));
	struct http_server_config config = extra ? *extra : (struct http_server_config){0};
	config.on_request = on_request;
	if (!config.handshake_timeout_ns)
		config.handshake_timeout_ns = 600 * NS_PER_S; /* the machine may be busy */
	t.loop = loop_new();
	t.server = http_server_new(t.loop, &config);
	t.tls = server_for("sbx.test");
	t.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof(t.address);
	t.address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(t.listener, (struct sockaddr *)&t.address, n), 0);
	assert_int_equal(listen(t.listener, 512), 0);
	getsockname(t.listener, (struct sockaddr *)&t.address, &n);
	assert_int_equal(http_server_listen_with(t.server, t.listener, tls_accept, &t.tls), 0);
}

static void stop(void)
{
	http_server_free(t.server);
	loop_turn(t.loop, 0);
	loop_free(t.loop);
	tls_server_unref(t.tls);
	close(t.listener);
	buf_done(&t.body);
}

static void turns(int n)
{
	for (int i = 0; i < n; i++)
		loop_turn(t.loop, 0);
}

/* Packets take their time, also on the loopback of a busy machine. */
#define until(condition)                                                                                     \
	do {                                                                                                 \
		for (int turn_ = 0; turn_ < MANY_TURNS && !(condition); turn_++)                             \
			loop_turn(t.loop, 1);                                                                \
		assert_true(condition);                                                                      \
	} while (0)

static int connect_raw(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&t.address, sizeof(t.address)), 0);
	fd_set_nonblock(fd, true);
	return fd;
}

static int shake(struct peer *p)
{
	int r = 0;
	for (int i = 0; i < MANY_TURNS && r == 0; i++) {
		r = peer_shake(p);
		turns(1);
	}
	return r;
}

static void connect_peer(struct peer *p)
{
	peer_init(p, connect_raw());
	assert_int_equal(shake(p), 1);
}

static void say(struct peer *p, const char *text)
{
	peer_write(p, text, strlen(text));
	turns(3);
}

/* Reads until the text is there (1), or the stream ends: 0 announced, -1 cut. */
static int read_until(struct peer *p, struct buf *to, const char *text)
{
	int r = 1;
	for (int i = 0; i < MANY_TURNS && r == 1; i++) {
		r = peer_read(p, to);
		const char *all = buf_cstr(to);
		if (text && all && strstr(all, text))
			return 1;
		loop_turn(t.loop, r == 1 ? 1 : 0);
	}
	return r;
}

static int read_to_end(struct peer *p, struct buf *to)
{
	return read_until(p, to, NULL);
}

static void hello(struct peer *p)
{
	cleanup_buf struct buf answer = BUF_INIT;
	say(p, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_int_equal(read_until(p, &answer, "\r\n\r\nhello"), 1);
}

static void a_handshake_may_come_in_single_bytes(void **state)
{
	struct peer p;
	start(NULL);
	peer_init(&p, connect_raw());
	p.step = 1;
	assert_int_equal(shake(&p), 1);
	hello(&p);
	hello(&p);
	assert_int_equal(t.requests, 2);
	peer_done(&p);
	stop();
}

static void old_versions_are_refused(void **state)
{
	static const struct {
		int version;
		bool served;
	} cases[] = {{TLS1_VERSION, false}, {TLS1_1_VERSION, false}, {TLS1_2_VERSION, true}, {TLS1_3_VERSION, true}};
	start(NULL);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct peer p;
		peer_init(&p, connect_raw());
		SSL_set_security_level(p.ssl, 0);
		SSL_set_min_proto_version(p.ssl, cases[i].version);
		SSL_set_max_proto_version(p.ssl, cases[i].version);
		assert_int_equal(shake(&p), cases[i].served ? 1 : -1);
		if (cases[i].served)
			hello(&p);
		peer_done(&p);
	}
	stop();
}

static void weak_ciphers_are_refused(void **state)
{
	static const struct {
		const char *cipher;
		bool served;
	} cases[] = {{"ECDHE-ECDSA-AES128-GCM-SHA256", true}, {"ECDHE-ECDSA-CHACHA20-POLY1305", true}, {"ECDHE-ECDSA-AES128-SHA", false}, {"ECDHE-ECDSA-AES256-CCM8", false},
		{"AECDH-AES128-SHA", false}};
	start(NULL);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct peer p;
		peer_init(&p, connect_raw());
		SSL_set_security_level(p.ssl, 0);
		SSL_set_max_proto_version(p.ssl, TLS1_2_VERSION);
		assert_int_equal(SSL_set_cipher_list(p.ssl, cases[i].cipher), 1);
		assert_int_equal(shake(&p), cases[i].served ? 1 : -1);
		peer_done(&p);
	}
	stop();
}

static void only_http_1_is_negotiated(void **state)
{
	static const struct {
		const char *offer, *chosen; /* NULL: refused */
	} cases[] = {{"\x02h2\x08http/1.1", "http/1.1"}, {"\x08http/1.0", "http/1.0"}, {"\x02h2", NULL}, {"", ""}, {"\x08HTTP/1.1", NULL}};
	start(NULL);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct peer p;
		const unsigned char *chosen;
		unsigned n;
		peer_init(&p, connect_raw());
		SSL_set_alpn_protos(p.ssl, (const unsigned char *)cases[i].offer, (unsigned)strlen(cases[i].offer));
		assert_int_equal(shake(&p), cases[i].chosen ? 1 : -1);
		if (!cases[i].chosen)
			assert_int_equal(p.reason, SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL);
		SSL_get0_alpn_selected(p.ssl, &chosen, &n);
		if (cases[i].chosen)
			assert_str(str_n(chosen, n), cases[i].chosen);
		peer_done(&p);
	}
	stop();
}

static bool is_for(SSL *ssl, const char *host)
{
	X509 *x = SSL_get1_peer_certificate(ssl);
	bool covers = x && X509_check_host(x, host, 0, 0, NULL) == 1;
	X509_free(x);
	return covers;
}

static void certificates_are_chosen_by_name(void **state)
{
	static const char *const cases[][2] = {{"a.one.test", "one.test"}, {"A.TWO.Test", "two.test"}, {"two.test.", "two.test"}, {"x.y.two.test", "one.test"}, {NULL, "one.test"},
		{"other.test", "one.test"}, {"api.three.test", "three.test"}};
	cleanup_buf struct buf pairs = BUF_INIT;
	struct error err = {0};
	start(NULL);
	pair_for("one.test", &pairs, NULL);
	pair_for("two.test", &pairs, NULL);
	pair_for("three.test", &pairs, NULL);
	tls_server_unref(t.tls);
	assert_int_equal(tls_server_new(buf_str(&pairs), &t.tls, &err), 0);
	assert_int_equal(tls_server_pairs(t.tls), 3);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct peer p;
		peer_init(&p, connect_raw());
		if (cases[i][0])
			SSL_set_tlsext_host_name(p.ssl, cases[i][0]);
		assert_int_equal(shake(&p), 1);
		if (!is_for(p.ssl, cases[i][1]))
			fail_msg("%s got another certificate than %s's", cases[i][0], cases[i][1]);
		peer_done(&p);
	}
	stop();
}

static void new_certificates_are_for_new_connections(void **state)
{
	struct peer old, fresh;
	cleanup_buf struct buf answer = BUF_INIT;
	start(NULL);
	connect_peer(&old);
	say(&old, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
	until(t.req);
	tls_server_unref(t.tls);
	t.tls = server_for("new.test");
	connect_peer(&fresh);
	assert_true(is_for(fresh.ssl, "new.test"));
	/* The old one's answer was under way, and goes on. */
	struct http_req *r = t.req;
	http_send(r, "still here", 10);
	assert_int_equal(read_until(&old, &answer, "still here"), 1);
	hello(&fresh);
	assert_true(is_for(old.ssl, "sbx.test"));
	peer_done(&old);
	peer_done(&fresh);
	stop();
}

/* TLS 1.3 tickets come after the handshake, with the first bytes. */
static bool resumes(SSL_SESSION *session, int version)
{
	struct peer p;
	peer_init(&p, connect_raw());
	SSL_set_max_proto_version(p.ssl, version);
	SSL_set_session(p.ssl, session);
	assert_int_equal(shake(&p), 1);
	hello(&p);
	bool reused = SSL_session_reused(p.ssl);
	SSL_shutdown(p.ssl);
	peer_done(&p);
	return reused;
}

static void tickets_resume_until_the_certificates_change(void **state)
{
	static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
	for (size_t i = 0; i < ARRAY_SIZE(versions); i++) {
		struct peer p;
		start(NULL);
		peer_init(&p, connect_raw());
		SSL_set_max_proto_version(p.ssl, versions[i]);
		assert_int_equal(shake(&p), 1);
		hello(&p);
		SSL_SESSION *session = SSL_get1_session(p.ssl);
		SSL_shutdown(p.ssl);
		peer_done(&p);
		assert_true(resumes(session, versions[i]));
		tls_server_unref(t.tls);
		t.tls = server_for("sbx.test");
		assert_false(resumes(session, versions[i]));
		SSL_SESSION_free(session);
		stop();
	}
}

static void ticket_keys_are_replaced(void **state)
{
	struct peer p;
	start(NULL);
	connect_peer(&p);
	hello(&p);
	SSL_SESSION *session = SSL_get1_session(p.ssl);
	SSL_shutdown(p.ssl);
	peer_done(&p);
	assert_true(resumes(session, TLS1_3_VERSION));
	t.tls->ticket_key_since -= 13 * 3600 * NS_PER_S;
	assert_false(resumes(session, TLS1_3_VERSION));
	assert_true(clock_boottime() - t.tls->ticket_key_since < 3600 * NS_PER_S);
	SSL_SESSION_free(session);
	stop();
}

static void plain_http_is_told_so(void **state)
{
	static const char *const requests[] = {"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", "DELETE /x HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "x"};
	start(NULL);
	for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
		char answer[1000];
		int fd = connect_raw();
		turns(2);
		send(fd, requests[i], strlen(requests[i]), MSG_NOSIGNAL);
		ssize_t n = -1;
		for (int k = 0; k < MANY_TURNS && n < 0; k++) {
			loop_turn(t.loop, 1);
			n = recv(fd, answer, sizeof(answer) - 1, MSG_DONTWAIT);
		}
		assert_true(n > 0);
		answer[n] = 0;
		assert_memory_equal(answer, "HTTP/1.1 400 ", 13);
		assert_non_null(strstr(answer, "https://"));
		assert_non_null(strstr(answer, "Connection: close\r\n"));
		until(recv(fd, answer, sizeof(answer), MSG_DONTWAIT) == 0);
		close(fd);
	}
	assert_int_equal(t.requests, 0);
	until(http_server_connections(t.server) == 0);
	stop();
}

/* Sends bytes and gives what comes back until the server closes. */
static size_t reaction(const void *bytes, size_t n, char *to, size_t size)
{
	int fd = connect_raw();
	turns(2);
	send(fd, bytes, n, MSG_NOSIGNAL);
	size_t got = 0;
	ssize_t r = -1;
	for (int k = 0; k < MANY_TURNS && r != 0; k++) {
		loop_turn(t.loop, 1);
		r = recv(fd, to + got, size - got, MSG_DONTWAIT);
		if (r > 0)
			got += (size_t)r;
		if (r < 0 && errno != EAGAIN)
			break;
	}
	close(fd);
	turns(2);
	return got;
}

static void garbage_ends_the_connection(void **state)
{
	static char zeros[200000];
	char answer[1000];
	start(&(struct http_server_config){.handshake_timeout_ns = 300 * NS_PER_MS});
	/* An alert (21), then the end. */
	assert_true(reaction("\x16\x03\x01\x00\x05garbage", 12, answer, sizeof(answer)) >= 7);
	assert_int_equal(answer[0], 21);
	reaction(zeros, sizeof(zeros), answer, sizeof(answer));
	reaction("\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10", 11, answer, sizeof(answer)); /* SSL 2 */
	/* A record that announces more than there may be. */
	reaction("\x16\x03\x01\xff\xff\x01", 6, answer, sizeof(answer));
	/* A ClientHello of 16 MB, which never comes. */
	reaction("\x16\x03\x01\x40\x00\x01\xff\xff\xff", 9, answer, sizeof(answer));
	until(http_server_connections(t.server) == 0);
	assert_int_equal(t.requests, 0);
	stop();
}

/* Nothing may be heard of a connection, also not of one whose peer says something from time to time. */
static void slow_handshakes_are_given_up(void **state)
{
	char byte;
	start(&(struct http_server_config){.handshake_timeout_ns = 2 * NS_PER_S});
	int silent = connect_raw(), slow = connect_raw();
	send(slow, "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", 11, MSG_NOSIGNAL); /* a ClientHello of 16 KiB */
	ssize_t r = -1, q = -1;
	for (int k = 0; k < MANY_TURNS && (r < 0 || q < 0); k++) {
		loop_turn(t.loop, 5);
		send(slow, "\x00", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		usleep(1000);
		r = r < 0 ? recv(silent, &byte, 1, MSG_DONTWAIT) : r;
		q = q < 0 ? recv(slow, &byte, 1, MSG_DONTWAIT) : q;
		if (q < 0 && errno == ECONNRESET)
			q = 0;
	}
	assert_int_equal(r, 0);
	assert_int_equal(q, 0);
	close(silent);
	close(slow);
	/* One that is done is not hurried. */
	struct peer p;
	connect_peer(&p);
	for (int64_t end = clock_monotonic() + 3 * NS_PER_S; clock_monotonic() < end;)
		loop_turn(t.loop, 50);
	hello(&p);
	peer_done(&p);
	stop();
}

static void a_hundred_handshakes_at_once(void **state)
{
	enum { N = 100 };
	static struct peer peers[N];
	bool done[N] = {0};
	size_t n = 0;
	start(NULL);
	for (size_t i = 0; i < N; i++) {
		peer_init(&peers[i], connect_raw());
		peers[i].step = i % 3 ? 0 : 100;
	}
	for (int k = 0; k < MANY_TURNS && n < N; k++) {
		for (size_t i = 0; i < N; i++) {
			if (done[i])
				continue;
			int r = peer_shake(&peers[i]);
			assert_true(r >= 0);
			done[i] = r == 1;
			n += done[i];
		}
		turns(1);
	}
	assert_int_equal(n, N);
	for (size_t i = 0; i < N; i++) {
		hello(&peers[i]);
		peer_done(&peers[i]);
	}
	assert_int_equal(t.requests, N);
	stop();
}

static void big_answers_wait_for_their_reader(void **state)
{
	struct peer p;
	cleanup_buf struct buf answer = BUF_INIT;
	start(NULL);
	connect_peer(&p);
	say(&p, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
	for (int i = 0; i < 50; i++)
		loop_turn(t.loop, 0);
	assert_true(t.sent < BIG); /* socket buffers hold a few MiB at most */
	assert_true(t.most_queued < HTTP_HIGH_WATER + 128 * 1024);
	for (int i = 0; i < MANY_TURNS && buf_len(&answer) < BIG; i++) {
		assert_int_equal(peer_read(&p, &answer), 1);
		loop_turn(t.loop, 1);
	}
	struct str all = buf_str(&answer);
	const char *body = memmem(all.p, all.n, "\r\n\r\n", 4);
	assert_non_null(body);
	body += 4;
	for (int i = 0; i < MANY_TURNS && (size_t)(buf_str(&answer).p + buf_len(&answer) - body) < BIG; i++) {
		size_t at = (size_t)(body - buf_str(&answer).p);
		assert_int_equal(peer_read(&p, &answer), 1);
		loop_turn(t.loop, 1);
		body = buf_str(&answer).p + at;
	}
	for (size_t i = 0; i < BIG; i++)
		if (body[i] != byte_at(i))
			fail_msg("byte %zu differs", i);
	until(t.complete == 1);
	hello(&p);
	peer_done(&p);
	stop();
}

static void big_bodies_wait_for_their_owner(void **state)
{
	enum { STEP = 100000 };
	static char block[STEP];
	struct peer p;
	cleanup_buf struct buf answer = BUF_INIT;
	char head[100];
	start(NULL);
	connect_peer(&p);
	t.hold = t.discard = true;
	snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", BIG);
	say(&p, head);
	/* The owner takes nothing: the socket fills, and the client has to wait. */
	size_t sent = 0;
	for (int idle = 0; sent < BIG && idle < 20;) {
		if (peer_unsent(&p) < STEP) {
			size_t n = MIN((size_t)STEP, BIG - sent);
			peer_write(&p, block, n);
			sent += n;
			idle = 0;
		} else {
			idle++;
		}
		peer_move(&p);
		turns(2);
	}
	assert_true(peer_unsent(&p) > 0);
	assert_int_equal(t.taken, 0);
	t.hold = false;
	until(t.req);
	http_req_resume(t.req);
	for (int i = 0; i < MANY_TURNS && t.taken < BIG; i++) {
		if (sent < BIG && peer_unsent(&p) < STEP) {
			size_t n = MIN((size_t)STEP, BIG - sent);
			peer_write(&p, block, n);
			sent += n;
		}
		peer_move(&p);
		loop_turn(t.loop, 1);
	}
	assert_int_equal(t.taken, BIG);
	assert_int_equal(read_until(&p, &answer, "200 OK"), 1);
	peer_done(&p);
	stop();
}

/* What was decrypted while the owner took nothing is not told by the socket: it has to come when the owner resumes. */
static void what_was_read_ahead_is_not_forgotten(void **state)
{
	static char block[60000];
	struct peer p;
	cleanup_buf struct buf answer = BUF_INIT;
	memset(block, 'x', sizeof(block));
	start(NULL);
	connect_peer(&p);
	t.hold = true;
	say(&p, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 60003\r\n\r\nabc");
	peer_write(&p, block, sizeof(block));
	turns(5);
	assert_int_equal(buf_len(&t.body), 0);
	t.hold = false;
	until(t.req);
	http_req_resume(t.req);
	assert_int_equal(read_until(&p, &answer, "xxx"), 1);
	assert_int_equal(buf_len(&t.body), 60003);
	/* Many requests in one go, too: each is read when the one before is answered. */
	cleanup_buf struct buf many = BUF_INIT;
	for (int i = 0; i < 2000; i++)
		buf_add_c(&many, "GET /hello HTTP/1.1\r\nHost: x\r\nX-Filler: ........................................................\r\n\r\n");
	peer_write(&p, buf_str(&many).p, buf_len(&many));
	for (int i = 0; i < MANY_TURNS && t.requests < 2001; i++) {
		peer_read(&p, &answer);
		loop_turn(t.loop, 1);
	}
	assert_int_equal(t.requests, 2001);
	peer_done(&p);
	stop();
}

static void a_tunnel_has_halves(void **state)
{
	struct peer p;
	cleanup_buf struct buf answer = BUF_INIT;
	start(NULL);
	connect_peer(&p);
	say(&p, "GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
	assert_int_equal(read_until(&p, &answer, "\r\n\r\n"), 1);
	buf_clear(&answer);
	say(&p, "ping");
	assert_int_equal(read_until(&p, &answer, "ping"), 1);
	assert_int_equal(t.ends, 0);
	/* close_notify without a FIN: our half is closed, the other is not. */
	assert_int_equal(SSL_shutdown(p.ssl), 0);
	buf_clear(&answer);
	assert_int_equal(read_to_end(&p, &answer), 0);
	assert_str(buf_str(&answer), "bye");
	assert_int_equal(t.ends, 1);
	until(t.closed == 1);
	assert_int_equal(t.complete, 1);
	peer_done(&p);
	until(http_server_connections(t.server) == 0);
	stop();
}

static void a_cut_tunnel_is_no_end(void **state)
{
	struct peer p;
	start(NULL);
	connect_peer(&p);
	say(&p, "GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
	say(&p, "ping");
	until(t.taken == 4);
	shutdown(p.fd, SHUT_WR); /* a FIN that close_notify did not announce */
	until(t.closed == 1);
	assert_int_equal(t.ends, 0);
	assert_int_equal(t.complete, 0);
	peer_done(&p);
	stop();
}

static void a_cut_body_is_no_body(void **state)
{
	struct peer p;
	start(NULL);
	connect_peer(&p);
	say(&p, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345");
	until(t.taken == 5);
	shutdown(p.fd, SHUT_WR);
	until(t.closed == 1);
	assert_int_equal(t.requests, 1);
	assert_int_equal(t.ends, 0);
	assert_int_equal(t.complete, 0);
	peer_done(&p);
	stop();
}

static void a_cut_answer_is_not_announced_as_an_end(void **state)
{
	struct peer p;
	cleanup_buf struct buf answer = BUF_INIT;
	start(NULL);
	connect_peer(&p);
	say(&p, "GET /cut HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_int_equal(read_to_end(&p, &answer), -1);
	assert_non_null(strstr(buf_cstr(&answer), "3\r\nabc\r\n"));
	assert_null(strstr(buf_cstr(&answer), "0\r\n\r\n"));
	peer_done(&p);
	stop();
}

static void a_regular_end_is_announced(void **state)
{
	static const char *const ends[] = {"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET /hello HTTP/1.0\r\n\r\n", "BROKEN\r\n\r\n"};
	start(NULL);
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		struct peer p;
		cleanup_buf struct buf answer = BUF_INIT;
		connect_peer(&p);
		say(&p, ends[i]);
		assert_int_equal(read_to_end(&p, &answer), 0);
		assert_true(buf_len(&answer) > 0);
		peer_done(&p);
	}
	struct peer idle;
	connect_peer(&idle);
	hello(&idle);
	http_server_drain(t.server);
	cleanup_buf struct buf rest = BUF_INIT;
	assert_int_equal(read_to_end(&idle, &rest), 0);
	peer_done(&idle);
	stop();
}

static void a_client_that_left_is_noticed(void **state)
{
	start(NULL);
	for (int announced = 0; announced < 2; announced++) {
		struct peer p;
		connect_peer(&p);
		say(&p, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
		until(t.req);
		assert_int_equal(t.hangups, announced);
		if (announced)
			SSL_shutdown(p.ssl);
		peer_move(&p);
		shutdown(p.fd, SHUT_WR);
		until(t.hangups == (unsigned)announced + 1);
		peer_done(&p);
		http_respond(t.req, 200, NULL, NULL, STR("late"));
		until(!t.req);
	}
	/* One that has more to ask has not left. */
	struct peer p;
	connect_peer(&p);
	say(&p, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
	until(t.req);
	say(&p, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
	SSL_shutdown(p.ssl);
	peer_move(&p);
	shutdown(p.fd, SHUT_WR);
	turns(5);
	assert_int_equal(t.hangups, 2);
	http_respond(t.req, 200, NULL, NULL, STR("first"));
	cleanup_buf struct buf answer = BUF_INIT;
	assert_int_equal(read_until(&p, &answer, "hello"), 1);
	assert_non_null(strstr(buf_cstr(&answer), "first"));
	peer_done(&p);
	stop();
}

static void renegotiation_is_refused(void **state)
{
	struct peer p;
	cleanup_buf struct buf answer = BUF_INIT;
	start(NULL);
	peer_init(&p, connect_raw());
	SSL_set_max_proto_version(p.ssl, TLS1_2_VERSION);
	assert_int_equal(shake(&p), 1);
	hello(&p);
	assert_int_equal(SSL_renegotiate(p.ssl), 1);
	int r = 0;
	for (int i = 0; i < 50 && r == 0; i++) {
		r = peer_shake(&p);
		turns(1);
	}
	assert_int_equal(r, -1);
	assert_int_equal(p.reason, SSL_R_NO_RENEGOTIATION);
	peer_done(&p);
	stop();
}

/* Each wants an answer; a peer that never reads does not fill our memory with them. */
static void key_updates_do_not_pile_up(void **state)
{
	struct peer p;
	start(NULL);
	int small = 4096;
	peer_init(&p, connect_raw());
	setsockopt(p.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	assert_int_equal(shake(&p), 1);
	hello(&p);
	char *bytes;
	for (int i = 0; i < 20000; i++) {
		SSL_key_update(p.ssl, SSL_KEY_UPDATE_REQUESTED);
		SSL_do_handshake(p.ssl);
		long n = BIO_get_mem_data(SSL_get_wbio(p.ssl), &bytes);
		ssize_t r = send(p.fd, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
		BIO_reset(SSL_get_wbio(p.ssl));
		loop_turn(t.loop, 0);
		if (r < n)
			break; /* the server stopped reading, or closed */
	}
	assert_true(http_server_connections(t.server) <= 1);
	peer_done(&p);
	turns(5);
	/* Others are served. */
	connect_peer(&p);
	hello(&p);
	peer_done(&p);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_handshake_may_come_in_single_bytes),
		cmocka_unit_test(old_versions_are_refused),
		cmocka_unit_test(weak_ciphers_are_refused),
		cmocka_unit_test(only_http_1_is_negotiated),
		cmocka_unit_test(certificates_are_chosen_by_name),
		cmocka_unit_test(new_certificates_are_for_new_connections),
		cmocka_unit_test(tickets_resume_until_the_certificates_change),
		cmocka_unit_test(ticket_keys_are_replaced),
		cmocka_unit_test(plain_http_is_told_so),
		cmocka_unit_test(garbage_ends_the_connection),
		cmocka_unit_test(slow_handshakes_are_given_up),
		cmocka_unit_test(a_hundred_handshakes_at_once),
		cmocka_unit_test(big_answers_wait_for_their_reader),
		cmocka_unit_test(big_bodies_wait_for_their_owner),
		cmocka_unit_test(what_was_read_ahead_is_not_forgotten),
		cmocka_unit_test(a_tunnel_has_halves),
		cmocka_unit_test(a_cut_tunnel_is_no_end),
		cmocka_unit_test(a_cut_body_is_no_body),
		cmocka_unit_test(a_cut_answer_is_not_announced_as_an_end),
		cmocka_unit_test(a_regular_end_is_announced),
		cmocka_unit_test(a_client_that_left_is_noticed),
		cmocka_unit_test(renegotiation_is_refused),
		cmocka_unit_test(key_updates_do_not_pile_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
