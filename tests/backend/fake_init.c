/*
 * Stands in for cubicle-init and misbehaves on the control channel. The two digits behind "FAKE_INIT_MODE=" in this file are set by the test: at which step,
 * and how. Static, so that it runs in the empty tree in which an init begins.
 */
#include "backend/fake_init.h"
#include "base/cleanup.h"
#include "guest/guest.h"
#include "io/chan.h"

#include <stdlib.h>
#include <sys/socket.h>

static const volatile char mode[] = "FAKE_INIT_MODE=00";

static void put(int conn, const void *p, size_t n)
{
	send(conn, p, n, MSG_NOSIGNAL);
}

static void put_message(int conn, enum msg_id id, const void *m)
{
	struct error err = {0};
	msg_send_fd(conn, id, m, 0, NULL, 0, &err);
}

static void put_state(int conn, bool claimed, uint64_t min, uint64_t max)
{
	struct msg_init_state m = {.claimed = claimed, .version_min = min, .version_max = max};
	put_message(conn, MSG_ID_init_state, &m);
}

static void put_noise(int conn)
{
	static char noise[MSG_MAX];
	cleanup_buf struct buf good = BUF_INIT;
	struct msg_init_state m = {.version_min = 1, .version_max = 1};
	msg_set(&m, init_state, sandbox, STR("inobody"));
	msg_encode(MSG_ID_init_state, &m, 0, &good, NULL);
	for (size_t i = 0; i < buf_len(&good); i++) {
		for (int bit = 0; bit < 8; bit++) {
			good.data[good.start + i] = (char)(good.data[good.start + i] ^ 1 << bit);
			put(conn, buf_str(&good).p, buf_len(&good));
			good.data[good.start + i] = (char)(good.data[good.start + i] ^ 1 << bit);
		}
		put(conn, buf_str(&good).p, i);
	}
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)rand();
	for (size_t n = 0; n <= sizeof(noise); n = n * 3 + 1)
		put(conn, noise, n);
}

/* With descriptors, one of them a socket that would go on existing in node. */
static void put_descriptors(int conn)
{
	int pair[2];
	char byte = 'x';
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 2)];
	} control = {0};
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		return;
	struct iovec iov = {&byte, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int) * 2);
	memcpy(CMSG_DATA(c), pair, sizeof(pair));
	sendmsg(conn, &m, MSG_NOSIGNAL);
}

static void misbehave(int conn, char way)
{
	struct msg_error e = {.code = -1, .status = 999, .message = STR("\x1b[2J a \xff hostile \r\n message %s%n")};
	switch (way) {
	case FAKE_NOISE:
		put_noise(conn);
		break;
	case FAKE_WRONG_MESSAGE:
		put_message(conn, MSG_ID_claimed, &(struct msg_claimed){0});
		put_message(conn, MSG_ID_parked, &(struct msg_parked){0});
		put_message(conn, MSG_ID_entered, &(struct msg_entered){0});
		put_message(conn, MSG_ID_prepared, &(struct msg_prepared){.ready = true});
		/* Before anybody asked, and with the number that the question will have. */
		for (uint64_t request = 0; request < 3; request++)
			msg_send_fd(conn, MSG_ID_assigned, &(struct msg_assigned){.ready = true}, request, NULL, 0, NULL);
		put_state(conn, true, 0, UINT64_MAX);
		break;
	case FAKE_FOREIGN_MESSAGE:
		put_message(conn, MSG_ID_synced, &(struct msg_synced){.sequence = UINT64_MAX});
		put_message(conn, MSG_ID_attached, &(struct msg_attached){0});
		break;
	case FAKE_DESCRIPTORS:
		put_descriptors(conn);
		break;
	case FAKE_CLOSE:
		close(conn);
		break;
	case FAKE_ERROR:
		put_message(conn, MSG_ID_error, &e);
		break;
	case FAKE_FLOOD:
		for (int i = 0; i < 100000; i++)
			put_message(conn, MSG_ID_spawner, &(struct msg_spawner){0});
		break;
	case FAKE_EXIT:
		_exit(3);
	default:
		break;
	}
	/* Alive, and deaf. */
	for (;;)
		pause();
}

/* As far as a test of parking needs it. */
static void answer(int conn, char step, char way)
{
	char *storage = malloc(MSG_MAX);
	struct error err = {0};
	struct msg_header h;
	union msg_any any;
	while (storage && msg_receive_fd(conn, storage, &h, &any, NULL, NULL, &err) == 0) {
		if (h.type == MSG_ID_hello) {
			if (step == FAKE_AT_HELLO)
				misbehave(conn, way);
			put_state(conn, false, MSG_VERSION_OLDEST, MSG_VERSION);
			if (step == FAKE_AT_SPAWNER)
				misbehave(conn, way);
			put_message(conn, MSG_ID_spawner, &(struct msg_spawner){0});
		} else {
			misbehave(conn, way);
		}
	}
}

int main(int argc, char **argv)
{
	char step = mode[15], way = mode[16];
	int listener = argc > 1 ? atoi(argv[1]) : 3, conn, spawner;
	if (step < FAKE_AT_CLAIM) {
		conn = accept(listener, NULL, NULL);
		if (step == FAKE_AT_ONCE)
			misbehave(conn, way);
		answer(conn, step, way);
	} else {
		static struct guest_identity identity;
		guest_park(listener, &identity, &conn, &spawner);
		if (step == FAKE_RUNNING)
			put_message(conn, MSG_ID_claimed, &(struct msg_claimed){0});
		misbehave(conn, way);
	}
	return 0;
}
