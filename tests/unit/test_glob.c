#include "unit.h"

#include "base/cleanup.h"
#include "image/glob.h"
#include "image/path.h"

#include <errno.h>

struct row {
	const char *pattern, *path;
	bool fits;
};

static void check(const struct row *rows, size_t n, enum glob_kind kind)
{
	for (size_t i = 0; i < n; i++)
		if (glob_match(str_of(rows[i].pattern), str_of(rows[i].path), kind) != rows[i].fits)
			fail_msg("%s on %s: not %d", rows[i].pattern, rows[i].path, rows[i].fits);
}

static void patterns_of_copy(void **state)
{
	static const struct row rows[] = {
		{"a", "a", true}, {"a", "b", false}, {"a", "ab", false}, {"", "", true}, {"*", "", true}, {"*", "abc", true}, {"*", "a/b", false},
		{"*.go", "main.go", true}, {"*.go", "d/main.go", false}, {"d/*.go", "d/main.go", true}, {"a*b*c", "aXbYbc", true}, {"a*b*c", "aXbYb", false},
		{"*a/*b", "xaa/yb", true}, {"*a/*b", "xa/b/b", false}, {"?", "a", true}, {"?", "/", false}, {"?", "\xc3\xa4", true}, {"??", "\xc3\xa4", false},
		{"[a-c]x", "bx", true}, {"[a-c]x", "dx", false}, {"[^a-c]x", "dx", true}, {"[^a-c]x", "ax", false}, {"[^a]", "/", false}, {"[\\]]", "]", true},
		{"[\\-a]", "-", true}, {"[\xc3\xa4-\xc3\xbc]", "\xc3\xb6", true}, {"\\*", "*", true}, {"\\*", "a", false}, {"a\\", "a", false}, {"[", "[", false},
		{"[]a]", "]", false}, {"**", "a/b", false}, {"a/**", "a/b", true}, {"a/**/b", "a/b", false}, {"hom?.txt", "home.txt", true},
		{"arr[[]0].txt", "arr[0].txt", true},
	};
	check(rows, ARRAY_SIZE(rows), GLOB_PLAIN);
}

static void two_stars_are_any_directories(void **state)
{
	static const struct row rows[] = {
		{"**", "a", true}, {"**", "a/b/c", true}, {"**/b", "b", true}, {"**/b", "a/b", true}, {"**/b", "x/a/b", true}, {"**/b", "ab", false},
		{"**/*.o", "a.o", true}, {"**/*.o", "x/y/a.o", true}, {"a/**", "a", false}, {"a/**", "a/b/c", true}, {"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true}, {"a/**/b", "a/xb", false}, {"**/a/**/b", "q/a/w/e/b", true}, {"**/a/*/b", "a/a/x/b", true}, {"*/b", "a/x/b", false},
		{"a**b", "axb", false}, {"a**b", "ab", true}, {"a**b", "ax/b", true}, {"**/**/c", "c", true}, {"**/[ab]/?", "x/b/c", true},
	};
	check(rows, ARRAY_SIZE(rows), GLOB_DOUBLE_STAR);
}

static void broken_patterns_are_found(void **state)
{
	assert_int_equal(glob_check(STR("a[b-c]\\*?*")), 0);
	assert_int_equal(glob_check(STR("a[")), -EINVAL);
	assert_int_equal(glob_check(STR("[]a]")), -EINVAL);
	assert_int_equal(glob_check(STR("[a-]")), -EINVAL);
	assert_int_equal(glob_check(STR("a\\")), -EINVAL);
	assert_false(glob_is_pattern(STR("a/b.c")));
	assert_true(glob_is_pattern(STR("a/b*")));
	assert_true(glob_is_pattern(STR("a\\b")));
}

/* What a pattern of many stars could take: bounded, and right all the same. */
static void many_stars_end(void **state)
{
	char pattern[600], path[3000];
	for (size_t i = 0; i + 2 < sizeof(pattern); i += 2)
		memcpy(pattern + i, "*a", 3);
	memset(path, 'a', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	assert_true(glob_match(str_of(pattern), str_of(path), GLOB_PLAIN));
	path[sizeof(path) - 2] = 'b';
	assert_false(glob_match(str_of(pattern), str_of(path), GLOB_PLAIN));
}

static void paths_are_cleaned(void **state)
{
	static const char *const rows[][2] = {
		{"", "."}, {".", "."}, {"./", "."}, {"a", "a"}, {"./a/", "a"}, {"a//b", "a/b"}, {"a/./b", "a/b"}, {"a/../b", "b"}, {"a/..", "."}, {"..", ".."},
		{"../..", "../.."}, {"../a/../..", "../.."}, {"/", "/"}, {"/..", "/"}, {"/a/../../b", "/b"}, {"/a/b/..", "/a"}, {"a/b/../..", "."}, {"//a", "/a"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		cleanup_buf struct buf to = BUF_INIT;
		path_clean(&to, str_of(rows[i][0]));
		assert_string_equal(buf_cstr(&to), rows[i][1]);
	}
	cleanup_buf struct buf to = BUF_INIT;
	path_join(&to, STR("/a/b"), STR("../c"));
	buf_add_c(&to, " ");
	path_join(&to, STR("/a/b"), STR("/x/"));
	buf_add_c(&to, " ");
	path_join(&to, STR("/"), STR("x"));
	assert_string_equal(buf_cstr(&to), "/a/c /x /x");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(patterns_of_copy),
		cmocka_unit_test(two_stars_are_any_directories),
		cmocka_unit_test(broken_patterns_are_found),
		cmocka_unit_test(many_stars_end),
		cmocka_unit_test(paths_are_cleaned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
