#include "unit.h"

#include "base/cleanup.h"
#include "image/ignore.h"

#include <errno.h>

static void check(const char *text, const char *const *out, const char *const *in)
{
	struct error err = {0};
	cleanup_ignore struct ignore ig = {0};
	assert_int_equal(ignore_parse(&ig, str_of(text), &err), 0);
	for (; *out; out++)
		if (!ignore_match(&ig, str_of(*out)))
			fail_msg("%s is not left out by: %s", *out, text);
	for (; *in; in++)
		if (ignore_match(&ig, str_of(*in)))
			fail_msg("%s is left out by: %s", *in, text);
}

#define PATHS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(,) NULL})

static void lines_leave_paths_out(void **state)
{
	check("", PATHS(), PATHS("a", "a/b"));
	check("a", PATHS("a", "a/b", "a/b/c"), PATHS("b/a", "ab"));
	check("/a", PATHS("a", "a/b"), PATHS("b/a"));
	check("a/", PATHS("a", "a/b"), PATHS("b"));
	check("./a/../b", PATHS("b"), PATHS("a"));
	check("*.md", PATHS("README.md"), PATHS("d/README.md"));
	check("**/*.md", PATHS("README.md", "d/e/README.md"), PATHS("README"));
	check("*/temp*", PATHS("a/temporary.txt", "b/temp", "b/temp/c"), PATHS("temp", "a/b/temp"));
	check("temp?", PATHS("tempa"), PATHS("temp", "tempab"));
	check("**/node_modules", PATHS("node_modules", "node_modules/x", "a/node_modules/b/c"), PATHS("a/node_module"));
	check("*", PATHS("a", "a/b", ".git"), PATHS());
}

static void comments_spaces_and_line_ends(void **state)
{
	check("# a\n\n  b  \r\n\tc\n", PATHS("b", "c"), PATHS("# a", "a"));
	check("\xef\xbb\xbf""a", PATHS("a"), PATHS("b"));
	check("a # b", PATHS("a # b"), PATHS("a"));
}

static void the_last_line_decides(void **state)
{
	check("*.md\n!README.md", PATHS("a.md"), PATHS("README.md"));
	check("*.md\n!README*.md\nREADME-secret.md", PATHS("a.md", "README-secret.md"), PATHS("README-public.md"));
	check("!README.md\n*.md", PATHS("README.md"), PATHS());
	check("*\n!src\n!src/**", PATHS("a", "b/c"), PATHS("src", "src/a/b"));
	check("node_modules\n!node_modules/keep", PATHS("node_modules/a"), PATHS("node_modules/keep", "node_modules/keep/b"));
	check("a\n! b", PATHS("a"), PATHS("b"));
}

static void bad_lines_are_named(void **state)
{
	struct error err = {0};
	struct ignore ig = {0};
	assert_int_equal(ignore_parse(&ig, STR("a\n!\n"), &err), -EINVAL);
	assert_non_null(strstr(err.message, "line 2"));
	ignore_done(&ig);
	assert_int_equal(ignore_parse(&ig, STR("a\n\n[b\n"), &err), -EINVAL);
	assert_non_null(strstr(err.message, "line 3: bad pattern"));
	ignore_done(&ig);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_leave_paths_out),
		cmocka_unit_test(comments_spaces_and_line_ends),
		cmocka_unit_test(the_last_line_decides),
		cmocka_unit_test(bad_lines_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
