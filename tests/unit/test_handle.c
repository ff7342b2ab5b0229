#include "unit.h"
#include "sandbox/box/handle.h"
#include "sandbox/box/runtime.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>

static const struct handle sample = {
	.pid = 4711, .start = UINT64_MAX, .slot = 65535, .loop = 1000, .warm = false, .boot = "da1884d2-cc7e-4da3-901f-afe69e4ab966",
};

static void what_is_written_is_read(void **state)
{
	struct box_handle text;
	struct handle h;
	handle_format(&sample, &text);
	assert_null(strchr(text.text, '\n'));
	assert_int_equal(handle_parse(text.text, &h), 0);
	assert_int_equal(h.pid, 4711);
	assert_true(h.start == UINT64_MAX);
	assert_int_equal(h.slot, 65535);
	assert_int_equal(h.loop, 1000);
	assert_false(h.warm);
	assert_string_equal(h.boot, sample.boot);
}

static void both_kinds_are_told_apart(void **state)
{
	const struct runtime *const kinds[] = {&namespace_runtime, &microvm_runtime};
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		struct box_handle text;
		struct handle h = sample;
		h.runtime = kinds[i];
		h.warm = i == 0;
		handle_format(&h, &text);
		assert_int_equal(strncmp(text.text, kinds[i]->isolation, strlen(kinds[i]->isolation)), 0);
		assert_int_equal(handle_parse(text.text, &h), 0);
		assert_ptr_equal(h.runtime, kinds[i]);
		assert_int_equal(h.warm, i == 0);
	}
}

static void damaged_handles_are_refused(void **state)
{
	static const char good[] = "namespace-1 pid=9 start=8 slot=7 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966";
	static const char *const bad[] = {
		"", "microvm-1", "microvm-2 pid=9 start=8 slot=7 loop=6 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966", "namespace-1", "namespace-1 ", "namespace-2 pid=9 start=8 slot=7 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966",
		"namespace-1 pid=1 start=8 slot=7 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966",
		"namespace-1 pid=9 start=8 slot=65536 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966",
		"namespace-1 pid=9 start=8 slot=7 loop=6 internet=2 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966",
		"namespace-1 pid=9 pid=9 start=8 slot=7 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966",
		"namespace-1 pid=9 start=8 slot=7 loop=6 internet=1 warm=0 boot=short",
		"namespace-1 pid=-9 start=8 slot=7 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966",
		"namespace-1 pid=9 start=8 slot=7 loop=6 internet=1 warm=0 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966 more=1",
	};
	struct handle h;
	assert_int_equal(handle_parse(good, &h), 0);
	assert_int_equal(handle_parse("namespace-1 pid=9 start=8 slot=7 loop=6 warm=1 boot=da1884d2-cc7e-4da3-901f-afe69e4ab966", &h), 0);
	assert_true(h.warm);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (handle_parse(bad[i], &h) != -EINVAL)
			fail_msg("taken: %s", bad[i]);
	/* Every prefix of a good one. */
	char cut[sizeof(good)];
	for (size_t n = 0; n < sizeof(good) - 1; n++) {
		memcpy(cut, good, n);
		cut[n] = '\0';
		assert_int_equal(handle_parse(cut, &h), -EINVAL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_is_read),
		cmocka_unit_test(both_kinds_are_told_apart),
		cmocka_unit_test(damaged_handles_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
