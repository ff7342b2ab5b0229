#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/docker_login.h"
#include "cli/oci_archive.h"
#include "cli/progress.h"
#include "image/spec.h"
#include "io/json.h"

#include <stdio.h>
#include <sys/mman.h>

static const char *line(int columns, const char *phase, int percent, uint64_t done, uint64_t total)
{
	static struct buf text;
	buf_clear(&text);
	assert_int_equal(progress_line(&text, columns, 3, phase, percent, done, total, 75), 0);
	return buf_cstr(&text);
}

static void a_line_never_is_wider_than_the_terminal(void **state)
{
	assert_string_equal(line(80, "pulling", 50, 5000000, 10000000), "[============>           ]  50 %   75 s  pulling  5.0 MB of 10 MB");
	/* The bar gets smaller, then it goes, then the text is cut. */
	assert_string_equal(line(60, "pulling", 50, 5000000, 10000000), "[=========>        ]  50 %   75 s  pulling  5.0 MB of 10 MB");
	assert_string_equal(line(49, "pulling", 50, 5000000, 10000000), " 50 %   75 s  pulling  5.0 MB of 10 MB");
	assert_string_equal(line(20, "pulling", 50, 5000000, 10000000), " 50 %   75 s  pulli");
	assert_string_equal(line(2, "pulling", 50, 0, 0), " ");
	assert_string_equal(line(1, "pulling", 50, 0, 0), "");
	assert_string_equal(line(0, "pulling", 50, 0, 0), "");
	assert_string_equal(line(80, "pulling", 250, 0, 0), "[========================] 100 %   75 s  pulling");
	/* Not known: something moves. */
	assert_string_equal(line(60, "x", -1, 0, 0), "[   =                    ]   75 s  x");
	assert_string_equal(line(60, "x", -1, 1500, 0), "[   =                    ]   75 s  x  1.5 kB");
}

static void wide_characters_count_two_and_are_not_cut(void **state)
{
	assert_string_equal(line(14, "構築中", -1, 0, 0), "  75 s  構築");
	assert_string_equal(line(13, "構築中", -1, 0, 0), "  75 s  構築");
	assert_string_equal(line(12, "構築中", -1, 0, 0), "  75 s  構");
	/* What combines takes no place. */
	assert_string_equal(line(10, "e\xcc\x81x", -1, 0, 0), "  75 s  e\xcc\x81");
	/* Nothing of a stranger's drives the terminal. */
	assert_string_equal(line(40, "a\x1b[2Jb\n\xff", -1, 0, 0), "[   =                ]   75 s  a?[2Jb??");
}

static int memory(void)
{
	int fd = memfd_create("archive", MFD_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void an_archive_that_is_written_is_read(void **state)
{
	struct error err = {0};
	enum oci_kind kind;
	cleanup_fd int fd = memory();
	cleanup_json json_t *config = json_pack("{s:[s],s:{s:s}}", "Env", "A=1", "Labels", DESCRIPTION_LABEL, "{}"), *got = NULL, *none = NULL, *named = NULL;
	struct oci_writer *w = oci_writer_new(fd);
	cleanup_free char *tar = calloc(1, 1 << 20);
	for (int i = 0; i < 5; i++)
		assert_int_equal(oci_writer_add(w, tar, 1 << 20), 0);
	assert_int_equal(oci_writer_size(w), 5 << 20);
	assert_int_equal(oci_writer_finish(w, config, "amd64", "web:v1"), 0);
	oci_writer_free(w);
	assert_int_equal(lseek(fd, 0, SEEK_END) % 512, 0);
	assert_int_equal(oci_read_config(fd, NULL, &kind, &got, &err), 0);
	assert_int_equal(kind, OCI_LAYOUT);
	assert_true(json_equal(got, config));
	assert_int_equal(oci_read_config(fd, "v1", &kind, &named, &err), 0);
	assert_true(json_equal(named, config));
	assert_int_equal(oci_read_config(fd, "v2", &kind, &none, &err), 0);
	assert_null(none);
}

static void what_is_no_archive_has_no_configuration(void **state)
{
	struct error err = {0};
	enum oci_kind kind;
	json_t *config;
	static const char *const texts[] = {"", "no tar", "\x1f\x8b garbage"};
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		cleanup_fd int fd = memory();
		assert_int_equal(fd_write_all(fd, texts[i], strlen(texts[i])), 0);
		assert_int_equal(oci_read_config(fd, NULL, &kind, &config, &err), 0);
		assert_int_equal(kind, OCI_OTHER);
		assert_null(config);
	}
}

static void helpers_are_found_by_registry(void **state)
{
	static const char config[] = "{\"credsStore\": \"pass\", \"credHelpers\": {\"ghcr.io\": \"gh\", \"https://index.docker.io/v1/\": \"hub\", \"quay.io\": \"../x\"}}";
	static const struct {
		const char *registry, *helper;
	} cases[] = {{"ghcr.io", "gh"}, {"docker.io", "hub"}, {"other.io:5000", "pass"}, {"quay.io", NULL}};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_free char *got = docker_login_helper(STR(config), cases[i].registry);
		if (cases[i].helper)
			assert_string_equal(got, cases[i].helper);
		else
			assert_null(got);
	}
	assert_null(docker_login_helper(STR("{}"), "ghcr.io"));
	assert_null(docker_login_helper(STR("["), "ghcr.io"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_never_is_wider_than_the_terminal),
		cmocka_unit_test(wide_characters_count_two_and_are_not_cut),
		cmocka_unit_test(an_archive_that_is_written_is_read),
		cmocka_unit_test(what_is_no_archive_has_no_configuration),
		cmocka_unit_test(helpers_are_found_by_registry),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
