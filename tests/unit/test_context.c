/* The context of a Dockerfile, packed and looked at. */
#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/context.h"
#include "image/context_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>

static char dir[] = "/tmp/cubicle-test-context-XXXXXX";
static int root = -1;

static void write_file(const char *path, const char *text)
{
	cleanup_fd int fd = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static int make(void **state)
{
	char *made = mkdtemp(dir);
	assert_non_null(made);
	root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(mkdirat(root, "src", 0755), 0);
	assert_int_equal(mkdirat(root, "src/deep", 0755), 0);
	assert_int_equal(mkdirat(root, "empty", 0700), 0);
	write_file("a.txt", "a");
	write_file("src/main.c", "int");
	write_file("src/main.o", "obj");
	write_file("src/deep/keep.o", "kept");
	write_file("src-x", "x");
	assert_int_equal(symlinkat("src/main.c", root, "link"), 0);
	assert_int_equal(symlinkat("/nowhere", root, "broken"), 0);
	return 0;
}

static int take_away(void **state)
{
	close(root);
	remove_tree(AT_FDCWD, dir);
	memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
	return 0;
}

static int pack(const char *ignore, uint64_t max, struct packed *ret, struct error *err)
{
	cleanup_ignore struct ignore ig = {0};
	struct progress progress;
	assert_int_equal(ignore_parse(&ig, str_of(ignore), err), 0);
	progress_init(&progress, false);
	progress.mode = PROGRESS_PLAIN;
	int r = context_pack(dir, &ig, max, &progress, ret, err);
	progress_clear(&progress);
	return r;
}

static void check(const char *ignore, const char *want)
{
	struct error err = {0};
	cleanup_packed struct packed p = PACKED_NONE;
	cleanup_context_index struct context_index ix = {0};
	cleanup_buf struct buf all = BUF_INIT;
	assert_int_equal(pack(ignore, 1 << 20, &p, &err), 0);
	assert_int_equal(lseek(p.fd, 0, SEEK_END), p.size);
	assert_int_equal(context_index_read(&ix, p.fd, &err), 0);
	for (size_t i = 0; i < ix.n; i++)
		buf_addf(&all, "%s%s%s ", ix.entries[i].path, S_ISDIR(ix.entries[i].mode) ? "/" : "", ix.entries[i].target ? "@" : "");
	assert_string_equal(buf_cstr(&all), want);
}

static void everything_but_what_is_ignored(void **state)
{
	check("", "a.txt broken@ empty/ link@ src/ src/deep/ src/deep/keep.o src/main.c src/main.o src-x ");
	check("src\nempty", "a.txt broken@ link@ src-x ");
	check("**/*.o\n!src/deep", "a.txt broken@ empty/ link@ src/ src/deep/ src/deep/keep.o src/main.c src-x ");
	/* A directory that is left out is there for what is not. */
	check("*\n!src/deep/keep.o", "src/ src/deep/ src/deep/keep.o ");
}

static void the_hash_follows_from_names_modes_and_contents(void **state)
{
	struct error err = {0};
	cleanup_packed struct packed one = PACKED_NONE, two = PACKED_NONE, three = PACKED_NONE, four = PACKED_NONE, five = PACKED_NONE;
	assert_int_equal(pack("", 1 << 20, &one, &err), 0);
	const struct timespec times[2] = {{1000, 0}, {1000, 0}};
	assert_int_equal(utimensat(root, "a.txt", times, 0), 0);
	assert_int_equal(pack("", 1 << 20, &two, &err), 0);
	assert_string_equal(one.hash, two.hash);
	assert_int_equal(strspn(one.hash, "0123456789abcdef"), 64);
	assert_int_equal(fchmodat(root, "a.txt", 0755, 0), 0);
	assert_int_equal(pack("", 1 << 20, &three, &err), 0);
	assert_string_not_equal(three.hash, two.hash);
	write_file("a.txt", "b");
	assert_int_equal(pack("", 1 << 20, &four, &err), 0);
	assert_string_not_equal(four.hash, three.hash);
	assert_int_equal(renameat(root, "a.txt", root, "b.txt"), 0);
	assert_int_equal(pack("", 1 << 20, &five, &err), 0);
	assert_string_not_equal(five.hash, four.hash);
}

static void what_cannot_be_packed_is_named(void **state)
{
	struct error err = {0};
	cleanup_packed struct packed p = PACKED_NONE;
	assert_int_equal(mkfifoat(root, "src/pipe", 0644), 0);
	assert_int_equal(pack("", 1 << 20, &p, &err), -EINVAL);
	assert_non_null(strstr(err.message, "src/pipe is a pipe"));
	assert_int_equal(p.fd, -1);
	assert_int_equal(pack("src", 1 << 20, &p, &err), 0);
	packed_done(&p);
	assert_int_equal(unlinkat(root, "src/pipe", 0), 0);
	assert_int_equal(pack("", 2000, &p, &err), -EFBIG);
	assert_non_null(strstr(err.message, "larger than 2.0 kB"));
}

static void links_are_followed_inside(void **state)
{
	struct error err = {0};
	cleanup_packed struct packed p = PACKED_NONE;
	cleanup_context_index struct context_index ix = {0};
	static const struct {
		const char *path, *real;
		int result;
	} rows[] = {
		{"link", "src/main.c", 0}, {"src/deep/", "src/deep", 0}, {".", ".", 0}, {"", ".", 0}, {"dir/main.c", "src/main.c", 0}, {"dir/../a.txt", "a.txt", 0},
		{"up", "a.txt", 0}, {"broken", NULL, -ENOENT}, {"none", NULL, -ENOENT}, {"loop", NULL, -ELOOP}, {"../../a.txt", "a.txt", 0},
	};
	assert_int_equal(symlinkat("src", root, "dir"), 0);
	assert_int_equal(symlinkat("../../../a.txt", root, "up"), 0);
	assert_int_equal(symlinkat("loop", root, "loop"), 0);
	assert_int_equal(pack("", 1 << 20, &p, &err), 0);
	assert_int_equal(context_index_read(&ix, p.fd, &err), 0);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		cleanup_buf struct buf real = BUF_INIT;
		if (context_index_resolve(&ix, str_of(rows[i].path), &real) != rows[i].result)
			fail_msg("%s: not %d", rows[i].path, rows[i].result);
		if (rows[i].real)
			assert_string_equal(buf_cstr(&real), rows[i].real);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(everything_but_what_is_ignored, make, take_away),
		cmocka_unit_test_setup_teardown(the_hash_follows_from_names_modes_and_contents, make, take_away),
		cmocka_unit_test_setup_teardown(what_cannot_be_packed_is_named, make, take_away),
		cmocka_unit_test_setup_teardown(links_are_followed_inside, make, take_away),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
