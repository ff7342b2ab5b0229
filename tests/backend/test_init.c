/* A cubicle-init that misbehaves on its control channel, at every step: the create fails with an error, or the sandbox can be killed; nothing is left over. */
#include "backend/fake_init.h"
#include "backend/world.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

static const char mark[] = "FAKE_INIT_MODE=";

/* A copy of the fake with its mode set, as the init of the next backend. */
static void make_fake(struct world *w, char step, char way)
{
	cleanup_buf struct buf program = BUF_INIT;
	char path[96];
	assert_non_null(getenv("CUBICLE_FAKE_INIT"));
	assert_int_equal(file_read(AT_FDCWD, getenv("CUBICLE_FAKE_INIT"), 64 << 20, &program), 0);
	char *at = memmem(program.data + program.start, buf_len(&program), mark, sizeof(mark) - 1);
	assert_non_null(at);
	at[sizeof(mark) - 1] = step;
	at[sizeof(mark)] = way;
	snprintf(path, sizeof(path), "%s/fake-init", w->dir);
	assert_int_equal(file_replace(AT_FDCWD, path, buf_str(&program), 0755), 0);
	setenv("CUBICLE_INIT", path, 1);
}

static void attempt(struct world *w, char step, char way)
{
	struct patient p;
	make_fake(w, step, way);
	world_start(w);
	world_ready(w);
	struct box_spec spec = world_spec(w, "ifake");
	const struct box_assignment nothing = {.token = STR("x")};
	spec.unassigned = step == FAKE_RUNNING;
	patient_create(w, &p, &spec);
	wait_for(w, &p.started, "an answer to a create");
	/* The wrong messages hold the one that was due. */
	if (p.failed == (step == FAKE_RUNNING || (step == FAKE_AT_CLAIM && way == FAKE_WRONG_MESSAGE)))
		fail_msg("step %c, way %c: %s", step, way, p.failed ? p.error.message : "the create succeeded");
	if (!p.failed) {
		/* What is noise on the channel is not yet the sandbox's end. */
		if (way == FAKE_EXIT)
			wait_for(w, &p.died, "its death to be noticed");
		else
			turn(w, 100);
		assert_int_equal(p.died, way == FAKE_EXIT);
		/* Nobody becomes its owner by what it said before. */
		int r = box_assign(p.box, &nothing, patient_assigned, &p);
		assert_true(r == 0 || r == -EAGAIN);
		turn(w, 20);
		assert_true(!p.assigned || p.assignment.code < 0);
		box_kill(p.box);
		wait_for(w, &p.released, "a misbehaving sandbox to be released");
	}
	world_stop(w);
}

static void try_all(char step)
{
	struct world w;
	cleanup_buf struct buf before = BUF_INIT;
	world_init(&w);
	inventory(&w, &before);
	for (char way = FAKE_NOISE; way < FAKE_WAY_END; way++)
		attempt(&w, step, way);
	expect_inventory(&w, &before);
	world_done(&w);
}

static void noise_while_it_parks(void **state)
{
	for (char step = FAKE_AT_ONCE; step < FAKE_AT_CLAIM; step++)
		try_all(step);
}

static void noise_while_it_starts(void **state)
{
	try_all(FAKE_AT_CLAIM);
}

static void noise_while_it_runs(void **state)
{
	try_all(FAKE_RUNNING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(noise_while_it_parks),
		cmocka_unit_test(noise_while_it_starts),
		cmocka_unit_test(noise_while_it_runs),
	};
	if (!world_possible())
		return 77;
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
