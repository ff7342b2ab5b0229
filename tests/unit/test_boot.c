#include "unit.h"

#include "base/cleanup.h"
#include "guest/boot.h"
#include "guest/chores.h"
#include "guest/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The program's own is in park.c; here nothing is given up. */
int guest_confine(struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err)
{
	return 0;
}

static void the_command_line_is_read(void **state)
{
	struct boot_config c;
	struct error err = {0};
	struct str text = STR("console=ttyS0 quiet  panic=-1 cubicle.layers=3 cubicle.net=10.0.0.2/31,10.0.0.1 cubicle.mtu=1450 cubicle.pids=77 cubicle.other=1 x\n");
	assert_int_equal(boot_cmdline_parse(text, &c, &err), 0);
	assert_int_equal(c.layers, 3);
	assert_int_equal(c.address, 0x0a000002);
	assert_int_equal(c.prefix, 31);
	assert_int_equal(c.gateway, 0x0a000001);
	assert_int_equal(c.mtu, 1450);
	assert_int_equal(c.pids, 77);
	assert_int_equal(boot_cmdline_parse(STR("cubicle.layers=1"), &c, &err), 0);
	assert_int_equal(c.address, 0);
	assert_int_equal(c.mtu, 0);
}

static void a_wrong_command_line_is_told(void **state)
{
	static const char *const wrong[] = {
		"", "quiet", "cubicle.layers=", "cubicle.layers=0", "cubicle.layers=26", "cubicle.layers=x", "cubicle.layers=1 cubicle.net=", "cubicle.layers=1 cubicle.net=10.0.0.2",
		"cubicle.layers=1 cubicle.net=10.0.0.2/33,10.0.0.1", "cubicle.layers=1 cubicle.net=10.0.0.2/0,10.0.0.1", "cubicle.layers=1 cubicle.net=10.0.0.256/24,10.0.0.1",
		"cubicle.layers=1 cubicle.net=10.0.0.2/24,", "cubicle.layers=1 cubicle.net=0.0.0.0/24,10.0.0.1", "cubicle.layers=1 cubicle.net=10.0.0.2/24,10.0.0.1000000000000",
		"cubicle.layers=1 cubicle.mtu=70000", "cubicle.layers=1 cubicle.pids=0", "cubicle.layers=1 cubicle.mtu=-1",
	};
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct boot_config c;
		struct error err = {0};
		if (boot_cmdline_parse(str_of(wrong[i]), &c, &err) != -EINVAL || !err.message[0])
			fail_msg("'%s' is taken", wrong[i]);
	}
}

struct results {
	int list[80];
	size_t n;
};

static void note(int result, void *owner, uint64_t request)
{
	struct results *r = owner;
	r->list[r->n++] = result + (int)request;
}

static int work_say(const void *arg)
{
	return *(const int *)arg;
}

static int work_die(const void *arg)
{
	_exit(0);
}

/* The descriptor it is to keep is all that it has. */
static int work_count(const void *arg)
{
	int n = 0;
	for (int fd = 3; fd < 64; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void await(struct loop *l, const struct results *r, size_t n)
{
	while (r->n < n)
		loop_turn(l, 20);
}

static void chores_are_done_in_order(void **state)
{
	struct loop *l = loop_new();
	struct chores *c = chores_new(l);
	struct results r = {.n = 0};
	for (int i = 0; i < 10; i++) {
		int value = -i;
		struct chore_order o = {.work = work_say, .arg = &value, .size = sizeof(value), .keep = {-1, -1}, .done = note, .owner = &r, .request = 100};
		assert_int_equal(chores_add(c, &o), 0);
	}
	await(l, &r, 10);
	for (int i = 0; i < 10; i++)
		assert_int_equal(r.list[i], 100 - i);
	chores_free(c);
	loop_free(l);
}

static void a_chore_that_dies_is_told_and_one_that_is_forgotten_is_not(void **state)
{
	struct loop *l = loop_new();
	struct chores *c = chores_new(l);
	struct results r = {.n = 0}, forgotten = {.n = 0};
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), other = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct chore_order die = {.work = work_die, .keep = {-1, -1}, .done = note, .owner = &r};
	struct chore_order nobody = {.work = work_die, .keep = {-1, -1}, .done = note, .owner = &forgotten};
	struct chore_order count = {.work = work_count, .keep = {other, fd}, .done = note, .owner = &r};
	assert_int_equal(chores_add(c, &nobody), 0);
	assert_int_equal(chores_add(c, &die), 0);
	assert_int_equal(chores_add(c, &count), 0);
	chores_forget(c, &forgotten);
	await(l, &r, 2);
	assert_int_equal(r.list[0], -EIO);
	assert_int_equal(r.list[1], 3); /* those two, and the pipe */
	assert_int_equal(forgotten.n, 0);
	close(fd);
	close(other);
	chores_free(c);
	loop_free(l);
}

static void too_many_chores_are_refused(void **state)
{
	struct loop *l = loop_new();
	struct chores *c = chores_new(l);
	struct results r = {.n = 0};
	struct chore_order o = {.work = work_die, .keep = {-1, -1}, .done = note, .owner = &r};
	size_t n = 0;
	int x;
	while ((x = chores_add(c, &o)) == 0)
		assert_true(++n < 80);
	assert_int_equal(x, -EBUSY);
	await(l, &r, n);
	chores_free(c);
	loop_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_command_line_is_read),
		cmocka_unit_test(a_wrong_command_line_is_told),
		cmocka_unit_test(chores_are_done_in_order),
		cmocka_unit_test(a_chore_that_dies_is_told_and_one_that_is_forgotten_is_not),
		cmocka_unit_test(too_many_chores_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
