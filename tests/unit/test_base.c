#include "unit.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"
#include "base/map.h"

#include <errno.h>
#include <stdio.h>

static void numbers_refuse_signs_spaces_and_overflow(void **state)
{
	uint64_t u = 7;
	assert_int_equal(str_to_u64(STR("18446744073709551615"), &u), 0);
	assert_true(u == UINT64_MAX);
	assert_int_equal(str_to_u64(STR("18446744073709551616"), &u), -ERANGE);
	assert_int_equal(str_to_u64(STR("+1"), &u), -EINVAL);
	assert_int_equal(str_to_u64(STR(" 1"), &u), -EINVAL);
	assert_int_equal(str_to_u64(STR(""), &u), -EINVAL);
	int64_t i;
	assert_int_equal(str_to_i64(STR("-9223372036854775808"), &i), 0);
	assert_true(i == INT64_MIN);
	assert_int_equal(str_to_i64(STR("9223372036854775808"), &i), -ERANGE);
	assert_int_equal(str_to_i64(STR("-"), &i), -EINVAL);
}

static void utf8_refuses_overlong_surrogates_and_cut_sequences(void **state)
{
	assert_true(str_is_utf8(STR("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80")));
	assert_false(str_is_utf8(STR("\xc0\xaf")));
	assert_false(str_is_utf8(STR("\xed\xa0\x80")));
	assert_false(str_is_utf8(STR("\xe2\x82")));
	assert_false(str_is_utf8(STR("\xf4\x90\x80\x80")));
	assert_false(str_is_utf8(STR("\xff")));
}

static void buffer_keeps_bytes_over_growth_and_consumption(void **state)
{
	struct buf b = BUF_INIT;
	for (int i = 0; i < 10000; i++) {
		assert_int_equal(buf_addf(&b, "%05d", i), 0);
		if (i % 3 == 2) {
			char want[6];
			snprintf(want, sizeof(want), "%05d", i / 3);
			assert_memory_equal(buf_str(&b).p, want, 5);
			buf_consume(&b, 5);
		}
	}
	assert_int_equal(buf_len(&b), 5 * (10000 - 3333));
	assert_memory_equal(buf_str(&b).p, "03333", 5);
	buf_done(&b);
	assert_int_equal(buf_len(&b), 0);
}

static void map_finds_what_was_put_after_many_deletes(void **state)
{
	struct map m = MAP_INIT;
	static int values[5000];
	char key[16];
	for (int i = 0; i < 5000; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		assert_int_equal(map_put(&m, str_of(key), &values[i], NULL), 0);
	}
	for (int i = 0; i < 5000; i += 2) {
		snprintf(key, sizeof(key), "k%d", i);
		assert_ptr_equal(map_del(&m, str_of(key)), &values[i]);
	}
	for (int i = 0; i < 5000; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		assert_ptr_equal(map_get(&m, str_of(key)), i % 2 ? &values[i] : NULL);
	}
	assert_int_equal(m.count, 2500);
	map_done(&m);
}

static void times_round_trip_and_take_offsets(void **state)
{
	int64_t ns;
	char text[RFC3339_SIZE];
	assert_int_equal(rfc3339_parse(STR("2026-01-02T03:04:05.678901Z"), &ns), 0);
	assert_string_equal(rfc3339_format(text, ns), "2026-01-02T03:04:05.678901Z");
	int64_t other;
	assert_int_equal(rfc3339_parse(STR("2026-01-02T05:04:05.678901+02:00"), &other), 0);
	assert_true(other == ns);
	assert_int_equal(rfc3339_parse(STR("9999-12-31T00:00:00Z"), &ns), 0);
	assert_true(ns == INT64_MAX);
	assert_int_equal(rfc3339_parse(STR("0001-01-01T00:00:00Z"), &ns), 0);
	assert_true(ns == INT64_MIN);
	assert_int_equal(rfc3339_parse(STR("2026-01-02"), &ns), -EINVAL);
	assert_int_equal(rfc3339_parse(STR("2026-13-02T03:04:05Z"), &ns), -EINVAL);
	assert_int_equal(rfc3339_parse(STR("2026-01-02T03:04:05"), &ns), -EINVAL);
}

static void base64_takes_both_alphabets_and_refuses_junk(void **state)
{
	struct buf b = BUF_INIT;
	assert_int_equal(base64_encode(&b, str_n("\xff\xfe\x00", 3)), 0);
	assert_str(buf_str(&b), "//4A");
	buf_clear(&b);
	assert_int_equal(base64_decode(&b, STR("__4A")), 0);
	assert_memory_equal(buf_str(&b).p, "\xff\xfe\x00", 3);
	buf_clear(&b);
	assert_int_equal(base64_decode(&b, STR("YQ")), 0);
	assert_str(buf_str(&b), "a");
	buf_clear(&b);
	assert_int_equal(base64_decode(&b, STR("YQ==")), 0);
	assert_int_equal(base64_decode(&b, STR("Y")), -EINVAL);
	assert_int_equal(base64_decode(&b, STR("YQ=")), -EINVAL);
	assert_int_equal(base64_decode(&b, STR("Y Q=")), -EINVAL);
	assert_int_equal(base64_decode(&b, STR("YR==")), -EINVAL);
	buf_done(&b);
}

static void json_strings_are_ascii_and_mend_broken_bytes(void **state)
{
	struct buf b = BUF_INIT;
	json_quote(&b, str_n("a\"\\\n\x01\xc3\xa9\xf0\x9f\x98\x80\xff\0", 13));
	assert_str(buf_str(&b), "\"a\\\"\\\\\\n\\u0001\\u00e9\\ud83d\\ude00\\ufffd\\u0000\"");
	buf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_refuse_signs_spaces_and_overflow),
		cmocka_unit_test(utf8_refuses_overlong_surrogates_and_cut_sequences),
		cmocka_unit_test(buffer_keeps_bytes_over_growth_and_consumption),
		cmocka_unit_test(map_finds_what_was_put_after_many_deletes),
		cmocka_unit_test(times_round_trip_and_take_offsets),
		cmocka_unit_test(base64_takes_both_alphabets_and_refuses_junk),
		cmocka_unit_test(json_strings_are_ascii_and_mend_broken_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
