#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "image/recipe.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char archive[64]; /* the name of a file beside this program */

static void write_archive(const char *text)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	assert_true(n > 0);
	path[n] = 0;
	*strrchr(path, '/') = 0;
	snprintf(archive, sizeof(archive), "test-recipe-%d.tar", getpid());
	cleanup_fd int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	if (text)
		assert_int_equal(file_replace(dir, archive, str_of(text), 0600), 0);
	else
		unlinkat(dir, archive, 0);
}

static int remove_archive(void **state)
{
	write_archive(NULL);
	return 0;
}

static void digest_of(const struct recipe *r, const char *below, char ret[RECIPE_DIGEST + 1])
{
	struct error err = {0};
	assert_int_equal(recipe_digest(r, below, ret, &err), 0);
	assert_int_equal(strspn(ret, "0123456789abcdef"), RECIPE_DIGEST);
	assert_int_equal(strlen(ret), RECIPE_DIGEST);
}

static void a_digest_changes_with_everything_that_a_layer_follows_from(void **state)
{
	char first[RECIPE_DIGEST + 1], again[RECIPE_DIGEST + 1], other[RECIPE_DIGEST + 1];
	struct recipe r = {.name = "x", .script = "echo a\n"};
	digest_of(&r, "", first);
	digest_of(&r, "", again);
	assert_string_equal(first, again);
	r.name = "y"; /* what people read makes no other layer */
	r.seconds = 7;
	digest_of(&r, "", again);
	assert_string_equal(first, again);
	digest_of(&r, first, other);
	assert_string_not_equal(first, other);
	r.script = "echo b\n";
	digest_of(&r, "", other);
	assert_string_not_equal(first, other);
}

static void a_digest_changes_with_the_files(void **state)
{
	char first[RECIPE_DIGEST + 1], other[RECIPE_DIGEST + 1], path[PATH_MAX];
	struct error err = {0};
	write_archive("one");
	struct recipe r = {.name = "x", .script = "echo a\n", .files = archive};
	digest_of(&r, "", first);
	write_archive("two");
	digest_of(&r, "", other);
	assert_string_not_equal(first, other);
	write_archive("one");
	digest_of(&r, "", other);
	assert_string_equal(first, other);
	assert_int_equal(recipe_find_files(&r, path, &err), 0);
	assert_non_null(strstr(path, archive));
}

static void files_that_are_missing_are_named(void **state)
{
	char digest[RECIPE_DIGEST + 1], path[PATH_MAX];
	struct error err = {0};
	struct recipe r = {.name = "x", .script = "echo a\n", .files = "no-such-archive.tar"};
	assert_int_equal(recipe_digest(&r, "", digest, &err), -ENOENT);
	assert_non_null(strstr(err.message, "no-such-archive.tar"));
	r.files = NULL;
	assert_int_equal(recipe_find_files(&r, path, &err), 0);
	assert_string_equal(path, "");
}

/* `sh -n` on what would run: a slip of the pen shows here and not after minutes of work. */
static void the_scripts_are_shell(void **state)
{
	static const struct recipe *const all[] = {&recipe_base, &recipe_interpreter_packages, &recipe_interpreter_files};
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		FILE *sh = popen("sh -n", "w");
		assert_non_null(sh);
		fputs(recipe_prelude, sh);
		fputs(all[i]->script, sh);
		int status = pclose(sh);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_digest_changes_with_everything_that_a_layer_follows_from),
		cmocka_unit_test_teardown(a_digest_changes_with_the_files, remove_archive),
		cmocka_unit_test(files_that_are_missing_are_named),
		cmocka_unit_test(the_scripts_are_shell),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
