/* The form of a state file; what is in it is test_vmm_mechanics.c's affair. */
#include "unit.h"

#include "vmm/state_file.h"

#include <errno.h>

static struct error err;

static void make(struct buf *b)
{
	static const char big[5000] = {1, 2, 3};
	state_begin(b);
	state_add(b, STATE_CLOCK, 0, "clock", 5);
	state_add(b, STATE_REGS, 0, "", 0);
	state_add(b, STATE_REGS, 1, big, sizeof(big));
	assert_int_equal(state_seal(b, 2 << 20), 0);
}

static void test_whole(void **state)
{
	struct buf b = BUF_INIT;
	struct str block;
	uint64_t memory;
	char five[5];
	make(&b);
	assert_int_equal(state_check(buf_str(&b), &memory, &err), 0);
	assert_int_equal(memory, 2 << 20);
	assert_int_equal(state_find(buf_str(&b), STATE_CLOCK, 0, &block, &err), 0);
	assert_str(block, "clock");
	assert_int_equal(state_find(buf_str(&b), STATE_REGS, 0, &block, &err), 0);
	assert_int_equal(block.n, 0);
	assert_int_equal(state_find(buf_str(&b), STATE_REGS, 1, &block, &err), 0);
	assert_int_equal(block.n, 5000);
	assert_int_equal(state_find(buf_str(&b), STATE_REGS, 2, &block, &err), -EINVAL);
	assert_int_equal(state_get(buf_str(&b), STATE_CLOCK, 0, five, 5, &err), 0);
	assert_memory_equal(five, "clock", 5);
	assert_int_equal(state_get(buf_str(&b), STATE_CLOCK, 0, five, 4, &err), -EINVAL);
	assert_int_equal(state_get(buf_str(&b), STATE_SERIAL, 0, five, 5, &err), -EINVAL);
	buf_done(&b);
}

static void test_every_byte_counts(void **state)
{
	struct buf b = BUF_INIT;
	uint64_t memory;
	make(&b);
	for (size_t i = 0; i < buf_len(&b); i++) {
		b.data[b.start + i] ^= 0x40;
		assert_int_equal(state_check(buf_str(&b), &memory, &err), -EINVAL);
		b.data[b.start + i] ^= 0x40;
	}
	for (size_t n = 0; n < buf_len(&b); n++)
		assert_int_equal(state_check(str_n(b.data + b.start, n), &memory, &err), -EINVAL);
	assert_int_equal(state_check(buf_str(&b), &memory, &err), 0);
	buf_add(&b, "", 1);
	assert_int_equal(state_check(buf_str(&b), &memory, &err), -EINVAL);
	assert_non_null(strstr(err.message, "cut or lengthened"));
	buf_done(&b);
}

static void test_why(void **state)
{
	struct buf b = BUF_INIT;
	uint64_t memory;
	make(&b);
	b.data[8] = 2;
	assert_int_equal(state_check(buf_str(&b), &memory, &err), -EINVAL);
	assert_non_null(strstr(err.message, "it is of version 2, this monitor reads 1"));
	b.data[8] = 1;
	b.data[100]++;
	assert_int_equal(state_check(buf_str(&b), &memory, &err), -EINVAL);
	assert_non_null(strstr(err.message, "damaged"));
	b.data[0]++;
	assert_int_equal(state_check(buf_str(&b), &memory, &err), -EINVAL);
	assert_non_null(strstr(err.message, "something else"));
	/* The header comes last when it is written. */
	memset(b.data, 0, STATE_HEADER);
	assert_int_equal(state_check(buf_str(&b), &memory, &err), -EINVAL);
	assert_non_null(strstr(err.message, "never finished"));
	buf_done(&b);
}

/* A sealed file whose blocks are wrong: nobody makes one, and nothing is read beyond it. */
static void test_bad_blocks(void **state)
{
	struct buf b = BUF_INIT;
	struct str block;
	uint64_t memory;
	state_begin(&b);
	state_put(&b, STATE_CLOCK, 4);
	state_put(&b, 0, 4);
	state_put(&b, UINT64_MAX, 8);
	buf_add(&b, "x", 1);
	assert_int_equal(state_seal(&b, 0), 0);
	assert_int_equal(state_check(buf_str(&b), &memory, &err), 0);
	assert_int_equal(state_find(buf_str(&b), STATE_CLOCK, 0, &block, &err), -EINVAL);
	state_begin(&b);
	buf_add(&b, "0123456789", 10);
	assert_int_equal(state_seal(&b, 0), 0);
	assert_int_equal(state_find(buf_str(&b), STATE_CLOCK, 0, &block, &err), -EINVAL);
	buf_done(&b);
}

static void test_numbers(void **state)
{
	struct buf b = BUF_INIT;
	uint64_t v;
	state_put(&b, 0x0102030405060708, 8);
	state_put(&b, 0xfffffffe, 4);
	struct str rest = buf_str(&b);
	assert_true(state_take(&rest, 8, &v));
	assert_int_equal(v, 0x0102030405060708);
	assert_false(state_take(&rest, 8, &v));
	assert_true(state_take(&rest, 4, &v));
	assert_int_equal(v, 0xfffffffe);
	assert_false(state_take(&rest, 1, &v));
	buf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_every_byte_counts),
		cmocka_unit_test(test_why),
		cmocka_unit_test(test_bad_blocks),
		cmocka_unit_test(test_numbers),
	};
	return cmocka_run_group_tests_name("vmm state", tests, NULL, NULL);
}
