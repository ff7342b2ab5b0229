#include "unit.h"

#include "base/cleanup.h"
#include "image/words.h"

#include <errno.h>
#include <stdio.h>

/* A=one, EMPTY=, SPACES="x  y", PATHS=/usr/local/bin/tool.tar.gz, LONG a big one; all else is not set. */
static bool get(void *data, struct str name, struct str *ret)
{
	static char big[WORDS_MAX / 2 + 1];
	static const char *const vars[][2] = {{"A", "one"}, {"B_2", "two"}, {"EMPTY", ""}, {"SPACES", "x  y"}, {"FILE", "/usr/local/bin/tool.tar.gz"},
		{"Q", "it's"}, {"STAR", "a*b"}, {"DOLLAR", "$A"}, {"1", "digit"}};
	for (size_t i = 0; i < ARRAY_SIZE(vars); i++) {
		if (str_is(name, vars[i][0])) {
			*ret = str_of(vars[i][1]);
			return true;
		}
	}
	if (!str_is(name, "LONG"))
		return false;
	memset(big, 'x', sizeof(big));
	*ret = str_n(big, sizeof(big));
	return true;
}

static const struct words usual = {.escape = '\\', .get = get};

static void check(const struct words *w, const char *text, const char *want)
{
	struct error err = {0};
	cleanup_buf struct buf to = BUF_INIT;
	int r = words_expand(w, str_of(text), &to, &err);
	if (r < 0)
		fail_msg("%s: %s", text, err.message);
	if (!str_is(buf_str(&to), want))
		fail_msg("%s: %s, not %s", text, buf_cstr(&to), want);
}

static void variables_and_quotes(void **state)
{
	static const char *const rows[][2] = {
		{"", ""}, {"abc", "abc"}, {"$A", "one"}, {"${A}", "one"}, {"x${A}y", "xoney"}, {"$Ay", ""}, {"$A.y", "one.y"}, {"$", "$"}, {"a$", "a$"}, {"$ A", "$ A"},
		{"$NO", ""}, {"${NO}", ""}, {"\\$A", "$A"}, {"\\${A}", "${A}"}, {"\\\\$A", "\\one"}, {"'$A'", "$A"}, {"\"$A\"", "one"}, {"\"\\$A\"", "$A"}, {"\"\\n\"", "\\n"},
		{"\\n", "n"}, {"'a\"b'", "a\"b"}, {"\"a'b\"", "a'b"}, {"\"a\\\"b\"", "a\"b"}, {"'a'\"b\"c", "abc"}, {"a\\", "a"}, {"$SPACES", "x  y"}, {"$Q", "it's"},
		{"$DOLLAR", "$A"}, {"$1x", "digitx"}, {"$12", ""}, {"${B_2}", "two"}, {"$B_2-", "two-"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		check(&usual, rows[i][0], rows[i][1]);
}

static void modifiers(void **state)
{
	static const char *const rows[][2] = {
		{"${A:-x}", "one"}, {"${NO:-x}", "x"}, {"${EMPTY:-x}", "x"}, {"${EMPTY-x}", ""}, {"${NO-x}", "x"}, {"${A:+x}", "x"}, {"${NO:+x}", ""},
		{"${EMPTY:+x}", ""}, {"${EMPTY+x}", "x"}, {"${NO+x}", ""}, {"${A:?no}", "one"}, {"${EMPTY?no}", ""}, {"${NO:-$A}", "one"}, {"${NO:-${NO2:-z}}", "z"},
		{"${NO:-'a}b'}", "a}b"}, {"${NO:-\"$A }\"}", "one }"}, {"${NO:-a\\}b}", "a}b"}, {"${NO:-}", ""}, {"${FILE#*/}", "usr/local/bin/tool.tar.gz"},
		{"${FILE##*/}", "tool.tar.gz"}, {"${FILE%.*}", "/usr/local/bin/tool.tar"}, {"${FILE%%.*}", "/usr/local/bin/tool"}, {"${FILE#x}", "/usr/local/bin/tool.tar.gz"},
		{"${FILE%/*}", "/usr/local/bin"}, {"${FILE#/?sr}", "/local/bin/tool.tar.gz"}, {"${STAR#a\\*}", "b"}, {"${A#\\*}", "one"}, {"${A/n/N}", "oNe"}, {"${FILE/.*/}", "/usr/local/bin/tool"},
		{"${FILE//\\//-}", "-usr-local-bin-tool.tar.gz"}, {"${FILE//[/x}", "/usr/local/bin/tool.tar.gz"}, {"${A//?/x}", "xxx"}, {"${NO/a/b}", ""}, {"${A/z/b}", "one"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		check(&usual, rows[i][0], rows[i][1]);
}

static void mistakes_are_told(void **state)
{
	static const char *const rows[][2] = {
		{"${A", "missing '}'"}, {"${", "missing '}'"}, {"${}", "bad substitution"}, {"${:x}", "bad substitution"}, {"${A:}", "unsupported modifier (:})"}, {"${A:#x}", "unsupported modifier (:#)"},
		{"${A!x}", "unsupported modifier (!)"}, {"${A:-x", "missing '}'"}, {"'a", "single-quote"}, {"\"a", "double-quote"}, {"\"a\\\"", "double-quote"}, {"${NO:?give it}", "NO: give it"},
		{"${NO?}", "NO: is not allowed to be unset"}, {"${EMPTY:?}", "EMPTY: is not allowed to be empty"}, {"${A//e}", "missing '}'"},
		{"${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-${a:-x}}}}}}}}}}}}}}}}}", "too deep"}, {"$LONG$LONG", "longer than"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct error err = {0};
		cleanup_buf struct buf to = BUF_INIT;
		assert_true(words_expand(&usual, str_of(rows[i][0]), &to, &err) < 0);
		if (!strstr(err.message, rows[i][1]))
			fail_msg("%s: %s", rows[i][0], err.message);
		assert_int_equal(buf_len(&to), 0);
		assert_int_equal(err.status, 400);
	}
}

static void another_escape_character(void **state)
{
	struct words w = usual;
	w.escape = '`';
	check(&w, "C:\\dir\\$A`$A", "C:\\dir\\one$A");
	check(&w, "\"a`\"b\"", "a\"b");
}

static void heredocs_keep_quotes(void **state)
{
	struct words w = usual;
	w.quotes_stay = true;
	check(&w, "'$A' \"${A}\" it's \\$A\n", "'one' \"one\" it's $A\n");
}

static void what_must_be_set(void **state)
{
	struct error err = {0};
	cleanup_buf struct buf to = BUF_INIT;
	struct words w = usual;
	w.must_be_set = true;
	check(&w, "${NO:-x}$EMPTY$A${NO+y}", "xone");
	assert_int_equal(words_expand(&w, STR("base:$NO"), &to, &err), -EINVAL);
	assert_string_equal(err.message, "NO is not set");
}

static void check_list(const char *text, const char *want)
{
	struct error err = {0};
	size_t n = 0, nuls = 0;
	cleanup_buf struct buf to = BUF_INIT;
	assert_int_equal(words_expand_list(&usual, str_of(text), &to, &n, &err), 0);
	for (size_t i = 0; i < buf_len(&to); i++) {
		if (to.data[to.start + i] == 0) {
			to.data[to.start + i] = '|';
			nuls++;
		}
	}
	if (!str_is(buf_str(&to), want))
		fail_msg("%s: %s, not %s", text, buf_cstr(&to), want);
	assert_int_equal(n, nuls);
}

static void lists_are_cut_outside_of_quotes(void **state)
{
	check_list("a b", "a|b|");
	check_list("  a  ", "a|");
	check_list("", "");
	check_list("$SPACES", "x|y|");
	check_list("\"$SPACES\"", "x  y|");
	check_list("'a b' c\\ d", "a b|c d|");
	check_list("${NO:-a b}", "a|b|");
}

static void raw_words(void **state)
{
	struct str rest = STR(" a=\"b c\" d\\ e='f \\' g \"h \\\" i\" j\\"), word;
	static const char *const want[] = {"a=\"b c\"", "d\\ e='f \\'", "g", "\"h \\\" i\"", "j"};
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		assert_true(words_next(&rest, '\\', &word));
		assert_str(word, want[i]);
	}
	assert_false(words_next(&rest, '\\', &word));
}

/* A pattern that would take for ever is given up. */
static void work_is_bounded(void **state)
{
	struct error err = {0};
	cleanup_buf struct buf to = BUF_INIT;
	assert_int_equal(words_expand(&usual, STR("${LONG//*y/z}"), &to, &err), -E2BIG);
	assert_non_null(strstr(err.message, "too much work"));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(variables_and_quotes),
		cmocka_unit_test(modifiers),
		cmocka_unit_test(mistakes_are_told),
		cmocka_unit_test(another_escape_character),
		cmocka_unit_test(heredocs_keep_quotes),
		cmocka_unit_test(what_must_be_set),
		cmocka_unit_test(lists_are_cut_outside_of_quotes),
		cmocka_unit_test(raw_words),
		cmocka_unit_test(work_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
