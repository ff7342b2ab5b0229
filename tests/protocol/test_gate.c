/* Requests to sandboxes that are paused: who wakes one, who waits, what becomes of them (e2b.md A.8; cases.md 146, 157, 163, 170). */
#include "ingress_world.h"

#include "base/clock.h"

#include <sys/socket.h>
#include <unistd.h>

static const char get[] = "GET /x HTTP/1.1\r\nHost: 80-iauto.x\r\n\r\n";

static bool starts(const char *answer, const char *with)
{
	return strncmp(answer, with, strlen(with)) == 0;
}

static void case_163_one_resume_for_all_and_each_is_answered(void **state)
{
	enum { N = 60 };
	int clients[N];
	t.limit = N;
	start();
	for (int i = 0; i < N; i++) {
		char text[256];
		clients[i] = connect_client();
		snprintf(text, sizeof(text), i % 2 ? "GET /%d HTTP/1.1\r\nHost: 80-iauto.x\r\n\r\n" : "POST /%d HTTP/1.1\r\nHost: 80-iauto.x\r\nContent-Length: 3\r\n\r\n%03d", i, i);
		say(clients[i], text);
	}
	assert_int_equal(t.resumes, 1);
	assert_int_equal(t.opens, 0);
	/* one more than may be under way in one sandbox */
	int crowd = connect_client();
	say(crowd, get);
	assert_true(starts(heard(crowd), "HTTP/1.1 429 "));
	grant_resume("iauto", "g2");
	for (int i = 0; i < 20 && t.n_apps < N; i++)
		turns(10);
	assert_int_equal(t.resumes, 1);
	assert_int_equal(t.n_apps, N);
	/* in the order of their coming, each once and whole */
	for (int i = 0; i < N; i++) {
		char line[64], body[8];
		snprintf(line, sizeof(line), i % 2 ? "GET /%d " : "POST /%d ", i);
		snprintf(body, sizeof(body), "%03d", i);
		const char *request = heard(t.apps[i]);
		assert_true(starts(request, line));
		assert_string_equal(body_of(request), i % 2 ? "" : body);
		say(t.apps[i], "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
		assert_string_equal(body_of(heard(clients[i])), "ok");
		close(clients[i]);
	}
	close(crowd);
	stop();
}

static void a_body_waits_outside_and_goes_in_once(void **state)
{
	static char block[1024 * 1024];
	start();
	memset(block, 'b', sizeof(block));
	int c = connect_client();
	say(c, "POST /x HTTP/1.1\r\nHost: 80-iauto.x\r\nContent-Length: 1048576\r\n\r\n");
	size_t sent = 0;
	for (int still = 0; still < 20; still++) {
		ssize_t r = send(c, block + sent, sizeof(block) - sent, MSG_NOSIGNAL);
		sent += r > 0 ? (size_t)r : 0;
		turns(2);
	}
	assert_true(sent < sizeof(block)); /* the client is held, not its bytes */
	grant_resume("iauto", "g2");
	struct buf got = BUF_INIT;
	for (int i = 0; i < 200; i++) {
		ssize_t r = sent < sizeof(block) ? send(c, block + sent, sizeof(block) - sent, MSG_NOSIGNAL) : 0;
		sent += r > 0 ? (size_t)r : 0;
		turns(4);
		take(t.apps[0], &got);
	}
	const char *body = body_of(buf_cstr(&got));
	assert_int_equal(strlen(body), sizeof(block));
	assert_memory_equal(body, block, sizeof(block));
	say(t.apps[0], "HTTP/1.1 204 x\r\n\r\n");
	assert_true(starts(heard(c), "HTTP/1.1 204 "));
	buf_done(&got);
	close(c);
	stop();
}

static void a_continue_is_asked_for_when_somebody_can_say_it(void **state)
{
	start();
	int c = connect_client();
	say(c, "POST /x HTTP/1.1\r\nHost: 80-iauto.x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
	assert_string_equal(heard(c), "");
	grant_resume("iauto", "g2");
	say(t.apps[0], "HTTP/1.1 100 Continue\r\n\r\n");
	assert_true(starts(heard(c), "HTTP/1.1 100 "));
	say(c, "body");
	assert_string_equal(body_of(heard(t.apps[0])), "body");
	close(c);
	stop();
}

/* The answer to one request of a fresh connection. */
static const char *answer_to(const char *text)
{
	int c = connect_client();
	say(c, text);
	const char *answer = heard(c);
	close(c);
	turns(4);
	return answer;
}

static void who_may_not_enter_wakes_nobody(void **state)
{
	start();
	static const struct {
		const char *request, *status;
	} refused[] = {
		{"GET / HTTP/1.1\r\nHost: 80-iautotoken.x\r\n\r\n", "HTTP/1.1 403 "},
		{"GET / HTTP/1.1\r\nHost: 80-iautotoken.x\r\nE2b-Traffic-Access-Token: tttx\r\n\r\n", "HTTP/1.1 403 "},
		{"GET /health HTTP/1.1\r\nHost: 49983-iautotoken.x\r\n\r\n", "HTTP/1.1 403 "},
		{"GET /health HTTP/1.1\r\nHost: 49983-iautosecret.x\r\n\r\n", "HTTP/1.1 403 "},
		{"POST /process.Process/Start HTTP/1.1\r\nHost: 49983-iautosecret.x\r\nX-Access-Token: eeex\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 403 "},
		{"GET /files?path=hello.txt&username=user&signature=v1_wrong HTTP/1.1\r\nHost: 49983-iautosecret.x\r\n\r\n", "HTTP/1.1 403 "},
		{"OPTIONS /files HTTP/1.1\r\nHost: 49983-iautosecret.x\r\nOrigin: http://a\r\nAccess-Control-Request-Method: POST\r\n\r\n", "HTTP/1.1 204 "},
		{"POST /init HTTP/1.1\r\nHost: 49983-iauto.x\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 404 "},
		{"CONNECT a.b:1 HTTP/1.1\r\nHost: 80-iauto.x\r\n\r\n", "HTTP/1.1 501 "},
		{"GET /health HTTP/1.1\r\nHost: 49983-ipaused.x\r\n\r\n", "HTTP/1.1 502 "},
	};
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		const char *a = answer_to(refused[i].request);
		if (!starts(a, refused[i].status))
			fail_msg("%s: %s", refused[i].request, a);
	}
	assert_string_equal(body_of(answer_to(refused[1].request)),
		"{\"message\":\"The traffic access token in the header e2b-traffic-access-token is invalid\",\"code\":403}");
	assert_int_equal(t.resumes, 0);
	stop();
}

static void who_may_enter_wakes(void **state)
{
	static const char *const welcome[] = {
		"GET / HTTP/1.1\r\nHost: 80-iautotoken.x\r\nE2b-Traffic-Access-Token: tttt\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: 80-iautosecret.x\r\n\r\n",
		"GET /health HTTP/1.1\r\nHost: 49983-iautosecret.x\r\nX-Access-Token: eeee\r\n\r\n",
		/* e2b.md B.1: sha256("a:read:user:eeee") */
		"GET /files?path=a&username=user&signature=v1_nnJPSVEQRvufMIhKDvQgorlJnghzQVWJrSX0WBTFXIU HTTP/1.1\r\nHost: 49983-iautosecret.x\r\n\r\n",
		"GET /health HTTP/1.1\r\nHost: 49983-iauto.x\r\n\r\n",
	};
	for (size_t i = 0; i < sizeof(welcome) / sizeof(welcome[0]); i++) {
		start();
		int c = connect_client();
		say(c, welcome[i]);
		if (t.resumes != 1)
			fail_msg("%s: %s", welcome[i], heard(c));
		close(c);
		stop();
	}
}

static void a_failing_resume_answers_each(void **state)
{
	static const struct {
		int code;
		unsigned status, retry_after;
		const char *message, *want, *says;
	} failures[] = {
		{-EDQUOT, 429, 5, "the team runs its most sandboxes", "HTTP/1.1 429 ", "the team runs its most sandboxes"},
		{-EAGAIN, 503, 7, "the server is short of memory", "HTTP/1.1 503 ", "Retry-After: 7\r\n"},
		{-ENOSPC, 507, 0, "no room", "HTTP/1.1 507 ", "no room"},
		{-EBUSY, 409, 0, "busy", "HTTP/1.1 409 ", "{\"sandboxId\":\"iauto\",\"message\":\"The sandbox is still transitioning. Try again in a moment.\",\"code\":409}"},
		{-ENOENT, 404, 0, "gone", "HTTP/1.1 502 ", "{\"sandboxId\":\"iauto\",\"message\":\"The sandbox was not found\",\"code\":502}"},
	};
	start();
	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
		int clients[3];
		for (int j = 0; j < 3; j++) {
			clients[j] = connect_client();
			say(clients[j], get);
		}
		assert_int_equal(t.resumes, i + 1);
		refuse_resume(failures[i].code, failures[i].status, failures[i].message, failures[i].retry_after);
		for (int j = 0; j < 3; j++) {
			const char *a = heard(clients[j]);
			if (!starts(a, failures[i].want) || !strstr(a, failures[i].says))
				fail_msg("%u: %s", failures[i].status, a);
			close(clients[j]);
		}
	}
	assert_int_equal(t.opens, 0);
	/* The next one tries again. */
	int c = connect_client();
	say(c, get);
	grant_resume("iauto", "g2");
	assert_true(starts(heard(t.apps[0]), "GET /x "));
	close(c);
	stop();
}

static void the_loss_of_the_node_answers_each(void **state)
{
	start();
	int c = connect_client();
	say(c, get);
	chan_free(t.node);
	t.node = NULL;
	turns(5);
	assert_true(starts(heard(c), "HTTP/1.1 503 "));
	say(c, get);
	assert_true(starts(heard(c), "HTTP/1.1 503 "));
	close(c);
	stop();
}

static void who_waited_too_long_is_told_409(void **state)
{
	t.patience = 50 * NS_PER_MS;
	start();
	int c = connect_client();
	say(c, get);
	await(c);
	const char *a = heard(c);
	assert_true(starts(a, "HTTP/1.1 409 "));
	assert_string_equal(body_of(a), "{\"sandboxId\":\"iauto\",\"message\":\"The sandbox is still transitioning. Try again in a moment.\",\"code\":409}");
	/* The same resume serves who comes later. */
	say(c, get);
	assert_int_equal(t.resumes, 1);
	grant_resume("iauto", "g2");
	assert_true(starts(heard(t.apps[0]), "GET /x "));
	close(c);
	stop();
}

static void a_client_that_leaves_stops_no_resume(void **state)
{
	start();
	int gone = connect_client(), reset = connect_client(), stays = connect_client();
	say(gone, "POST /gone HTTP/1.1\r\nHost: 80-iauto.x\r\nContent-Length: 4\r\n\r\nbody");
	say(reset, "POST /reset HTTP/1.1\r\nHost: 80-iauto.x\r\nContent-Length: 400\r\n\r\nbody");
	close(gone);
	close(reset);
	turns(5);
	say(stays, get);
	assert_int_equal(t.resumes, 1);
	grant_resume("iauto", "g2");
	assert_int_equal(t.n_apps, 1);
	assert_true(starts(heard(t.apps[0]), "GET /x "));
	close(stays);
	turns(5);
	/* nobody waits any more: it goes on all the same */
	say_sandbox("iauto", SANDBOX_PAUSED, "g2", NULL, true);
	turns(3);
	int last = connect_client();
	say(last, get);
	close(last);
	turns(5);
	assert_int_equal(t.resumes, 2);
	grant_resume("iauto", "g3");
	assert_true(index_is_running(index_find(t.index, STR("iauto"))));
	assert_int_equal(t.n_apps, 1);
	stop();
}

static void one_that_is_being_paused_is_resumed_too(void **state)
{
	start();
	say_sandbox("iauto", SANDBOX_RUNNING, "g1", NULL, true);
	say_sandbox("iauto", SANDBOX_PAUSING, "g1", NULL, true);
	turns(3);
	int c = connect_client();
	say(c, get);
	assert_int_equal(t.resumes, 1);
	say_sandbox("iauto", SANDBOX_PAUSED, "g1", NULL, true);
	turns(3);
	grant_resume("iauto", "g2");
	assert_true(starts(heard(t.apps[0]), "GET /x "));
	close(c);
	stop();
}

static void what_was_not_sent_yet_survives_the_pause(void **state)
{
	start();
	say_sandbox("iauto", SANDBOX_RUNNING, "g1", NULL, true);
	turns(3);
	/* a connection is being made when the pause begins */
	int opening = connect_client(), sent = connect_client();
	say(sent, get);
	say(opening, "POST /opening HTTP/1.1\r\nHost: 10-iauto.x\r\nContent-Length: 4\r\n\r\nbody");
	assert_int_equal(t.opens, 2);
	say_sandbox("iauto", SANDBOX_PAUSING, "g1", NULL, true);
	turns(5);
	assert_int_equal(t.resumes, 1);
	/* what was under way may have been acted upon: cut on both sides, not tried again */
	heard(t.apps[0]);
	assert_int_not_equal(take(t.apps[0], NULL), OPEN);
	assert_true(starts(heard(sent), "HTTP/1.1 502 "));
	grant_resume("iauto", "g2");
	assert_int_equal(t.opens, 3);
	close(opening), close(sent);
	/* the node has begun to pause and the index does not know yet */
	t.pausing = true;
	int early = connect_client();
	say(early, get);
	assert_int_equal(t.resumes, 2);
	t.pausing = false;
	grant_resume("iauto", "g3");
	assert_true(starts(heard(t.apps[1]), "GET /x "));
	close(early);
	stop();
}

static void what_is_paused_again_and_again_is_409_at_last(void **state)
{
	start();
	t.pausing = true;
	int c = connect_client();
	say(c, get);
	for (unsigned i = 0; i < 10 && t.resumes == i + 1; i++)
		grant_resume("iauto", "g2");
	assert_true(t.resumes > 1 && t.resumes < 6);
	assert_true(starts(heard(c), "HTTP/1.1 409 "));
	close(c);
	stop();
}

static void case_170_connections_of_an_earlier_life_are_not_used(void **state)
{
	start();
	char generation[8] = "g1";
	say_sandbox("iauto", SANDBOX_RUNNING, generation, NULL, true);
	turns(3);
	int c = connect_client();
	for (int i = 0; i < 100; i++) {
		say(c, get);
		assert_int_equal(t.n_apps, i + 1);
		assert_true(starts(heard(t.apps[i]), "GET /x "));
		say(t.apps[i], "HTTP/1.1 204 x\r\n\r\n");
		assert_true(starts(heard(c), "HTTP/1.1 204 "));
		say_sandbox("iauto", SANDBOX_PAUSED, generation, NULL, true);
		turns(3);
		assert_int_not_equal(take(t.apps[i], NULL), OPEN);
		snprintf(generation, sizeof(generation), "g%d", i + 2);
		t.generation = generation;
		say_sandbox("iauto", SANDBOX_RUNNING, generation, NULL, true);
		turns(3);
	}
	assert_int_equal(t.resumes, 0);
	close(c);
	stop();
}

static void case_146_websockets_wake_too(void **state)
{
	static const char upgrade[] = "GET /ws HTTP/1.1\r\nHost: 80-%s.x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
				      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
	char text[512];
	start();
	int c = connect_client();
	snprintf(text, sizeof(text), upgrade, "iauto");
	say(c, text);
	assert_int_equal(t.resumes, 1);
	grant_resume("iauto", "g2");
	assert_true(starts(heard(t.apps[0]), "GET /ws "));
	say(t.apps[0], "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\nearly");
	assert_string_equal(body_of(heard(c)), "early");
	/* its tunnel ends with the next pause, not with a regular close */
	say_sandbox("iauto", SANDBOX_PAUSING, "g2", NULL, true);
	turns(5);
	assert_int_not_equal(take(t.apps[0], NULL), OPEN);
	struct buf end = BUF_INIT;
	assert_int_not_equal(take(c, &end), OPEN);
	assert_int_equal(buf_len(&end), 0);
	buf_done(&end);
	close(c);
	/* one whose resume fails may try again (1013), one that nobody may wake was not found (4004) */
	static const struct {
		unsigned status;
		int code;
	} ends[] = {{409, 1013}, {503, 1013}, {429, 1013}, {404, 4004}, {500, 1011}};
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		c = connect_client();
		say(c, text);
		refuse_resume(-EBUSY, ends[i].status, "no", 0);
		const unsigned char *frame = (const unsigned char *)body_of(heard(c));
		assert_int_equal(frame[0], 0x88);
		assert_int_equal(frame[2] << 8 | frame[3], ends[i].code);
		close(c);
	}
	c = connect_client();
	snprintf(text, sizeof(text), upgrade, "ipaused");
	unsigned before = t.resumes;
	say(c, text);
	const unsigned char *frame = (const unsigned char *)body_of(heard(c));
	assert_int_equal(frame[2] << 8 | frame[3], 4004);
	assert_int_equal(t.resumes, before);
	close(c);
	stop();
}

static void a_service_whose_queue_is_full_is_waited_for(void **state)
{
	start();
	int c = connect_client();
	say(c, "GET /x HTTP/1.1\r\nHost: 13-iabc.x\r\n\r\n");
	for (int i = 0; i < 400 && !t.n_apps; i++)
		loop_turn(t.loop, 20);
	assert_true(starts(heard(t.apps[0]), "GET /x "));
	close(c);
	stop();
}

static void what_waits_ends_with_the_server(void **state)
{
	start();
	int c = connect_client();
	say(c, get);
	assert_int_equal(t.resumes, 1);
	stop();
	close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_163_one_resume_for_all_and_each_is_answered),
		cmocka_unit_test(a_body_waits_outside_and_goes_in_once),
		cmocka_unit_test(a_continue_is_asked_for_when_somebody_can_say_it),
		cmocka_unit_test(who_may_not_enter_wakes_nobody),
		cmocka_unit_test(who_may_enter_wakes),
		cmocka_unit_test(a_failing_resume_answers_each),
		cmocka_unit_test(the_loss_of_the_node_answers_each),
		cmocka_unit_test(who_waited_too_long_is_told_409),
		cmocka_unit_test(a_client_that_leaves_stops_no_resume),
		cmocka_unit_test(one_that_is_being_paused_is_resumed_too),
		cmocka_unit_test(what_was_not_sent_yet_survives_the_pause),
		cmocka_unit_test(what_is_paused_again_and_again_is_409_at_last),
		cmocka_unit_test(case_170_connections_of_an_earlier_life_are_not_used),
		cmocka_unit_test(case_146_websockets_wake_too),
		cmocka_unit_test(a_service_whose_queue_is_full_is_waited_for),
		cmocka_unit_test(what_waits_ends_with_the_server),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
