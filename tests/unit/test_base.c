#include "unit.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"
#include "base/map.h"
#include "base/sha256.h"

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

/* NIST's examples of FIPS 180-4, and its long message that no block boundary divides. */
static void sha256_gives_the_published_digests(void **state)
{
	static char million[1000000];
	memset(million, 'a', sizeof(million));
	const struct {
		struct str message;
		const char *digest;
	} vectors[] = {
		{STR(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{STR("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{STR("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
			"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
		{STR("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
		     "mnopqrsmnopqrstnopqrstu"),
			"cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
		{str_n(million, sizeof(million)),
			"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
		/* Around the edges of the padding, by OpenSSL. */
		{str_n(million, 55), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
		{str_n(million, 56), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
		{str_n(million, 63), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
		{str_n(million, 64), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
		{str_n(million, 65), "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
		{str_n(million, 119), "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
		{str_n(million, 120), "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
		unsigned char digest[SHA256_SIZE];
		char hex[2 * SHA256_SIZE + 1];
		sha256(vectors[i].message, digest);
		assert_string_equal(hex_encode(hex, digest, sizeof(digest)), vectors[i].digest);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_refuse_signs_spaces_and_overflow),
		cmocka_unit_test(utf8_refuses_overlong_surrogates_and_cut_sequences),
		cmocka_unit_test(buffer_keeps_bytes_over_growth_and_consumption),
		cmocka_unit_test(map_finds_what_was_put_after_many_deletes),
		cmocka_unit_test(times_round_trip_and_take_offsets),
		cmocka_unit_test(sha256_gives_the_published_digests),
		cmocka_unit_test(base64_takes_both_alphabets_and_refuses_junk),
		cmocka_unit_test(json_strings_are_ascii_and_mend_broken_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
