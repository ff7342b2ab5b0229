/* How tests/backend/fake_init.c misbehaves: at which step, and in which way. */
#ifndef CUBICLE_TESTS_BACKEND_FAKE_INIT_H
#define CUBICLE_TESTS_BACKEND_FAKE_INIT_H

enum fake_step {
	FAKE_AT_ONCE = '0', /* connected, nothing was said */
	FAKE_AT_HELLO,      /* instead of init_state */
	FAKE_AT_SPAWNER,    /* instead of spawner */
	FAKE_AT_ATTACHED,   /* instead of parked */
	FAKE_AT_CLAIM,      /* claimed as it should be, then instead of claimed */
	FAKE_RUNNING,       /* after claimed */
	FAKE_STEP_END,
};

enum fake_way {
	FAKE_NOISE = '0',     /* bytes of all lengths, and good messages with single bytes changed */
	FAKE_WRONG_MESSAGE,   /* messages that an init may send, at the wrong time */
	FAKE_FOREIGN_MESSAGE, /* messages that an init may not send */
	FAKE_DESCRIPTORS,
	FAKE_CLOSE,
	FAKE_ERROR,
	FAKE_FLOOD,
	FAKE_EXIT,
	FAKE_WAY_END,
};

#endif
