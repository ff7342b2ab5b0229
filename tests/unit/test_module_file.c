#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "sandbox/microvm/module_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

enum { SIZE = 300001 };

/* As the kernel's scripts/Makefile.modinst does it. */
static const struct {
	const char *suffix, *command;
} kinds[] = {
	{".xz", "xz --check=crc32 --lzma2=dict=1MiB -f"},
	{".zst", "zstd -T0 --rm -f -q"},
	{".gz", "gzip -n -f"},
};

static char directory[64];

static const char *path_of(const char *name)
{
	static char path[300];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return path;
}

static void put(const char *name, struct str bytes)
{
	cleanup_fd int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, bytes.p, bytes.n), 0);
}

static struct buf get(const char *name)
{
	struct buf b = BUF_INIT;
	assert_int_equal(file_read(AT_FDCWD, path_of(name), 1 << 30, &b), 0);
	return b;
}

/* m.ko becomes m.ko and the suffix, whose name is returned. */
static const char *compressed(size_t kind)
{
	static char name[32];
	char command[400];
	snprintf(command, sizeof(command), "%s %s", kinds[kind].command, path_of("m.ko"));
	if (system(command) != 0)
		fail_msg("%s", command);
	snprintf(name, sizeof(name), "m.ko%s", kinds[kind].suffix);
	return name;
}

static int set_up(void **state)
{
	strcpy(directory, "/tmp/cubicle-module-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int tear_down(void **state)
{
	return remove_tree(AT_FDCWD, directory);
}

/* Half of it can be made smaller, half cannot. */
static void put_module(void)
{
	static char bytes[SIZE];
	unsigned x = 1;
	for (size_t i = 0; i < SIZE; i++) {
		x = x * 1103515245 + 12345;
		bytes[i] = (char)(i < SIZE / 2 ? x >> 16 : i >> 10);
	}
	put("m.ko", str_n(bytes, SIZE));
}

/* What reading says; the message names the file when it is refused. */
static int read_it(const char *name, struct buf *to)
{
	struct error err = {0};
	int r = module_file_read(path_of(name), to, &err);
	if (r < 0 && !strstr(err.message, path_of(name)))
		fail_msg("%s: %s", name, err.message);
	return r;
}

static int refused(const char *name)
{
	cleanup_buf struct buf b = BUF_INIT;
	return read_it(name, &b);
}

static void names_tell_the_kind(void **state)
{
	static const char *const known[] = {"m.ko", "m.ko.xz", "kernel/fs/m.ko.zst", "./m.ko.gz", "a.b/m.ko"};
	static const char *const unknown[] = {"", "m", "m.xz", "m.ko.bz2", "m.ko.lz4", "m.ko.xz.gz", "m.ko/", "m.o.gz", ".xz"};
	struct str name;
	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		assert_true(module_file_name(str_of(known[i]), &name));
		assert_str(name, "m.ko");
	}
	for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
		assert_false(module_file_name(str_of(unknown[i]), &name));
}

static void each_compression_gives_the_same_bytes(void **state)
{
	cleanup_buf struct buf whole = BUF_INIT, plain = BUF_INIT;
	put_module();
	whole = get("m.ko");
	assert_int_equal(read_it("m.ko", &plain), 0);
	assert_int_equal(buf_len(&plain), SIZE);
	assert_memory_equal(plain.data, whole.data, SIZE);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		cleanup_buf struct buf b = BUF_INIT;
		put_module();
		assert_int_equal(read_it(compressed(i), &b), 0);
		assert_int_equal(buf_len(&b), SIZE);
		assert_memory_equal(buf_str(&b).p, whole.data, SIZE);
	}
}

static void a_damaged_file_is_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		put_module();
		const char *name = compressed(i);
		cleanup_buf struct buf b = get(name);
		size_t n = buf_len(&b), at[] = {0, 3, n / 4, n / 2, n - 6, n - 1};
		for (size_t k = 0; k < ARRAY_SIZE(at); k++) {
			b.data[at[k]] ^= 0x55;
			put(name, buf_str(&b));
			if (refused(name) != -EBADMSG)
				fail_msg("%s with another byte %zu of %zu is taken", name, at[k], n);
			b.data[at[k]] ^= 0x55;
		}
		put(name, buf_str(&b));
		assert_int_equal(refused(name), 0);
	}
}

static void a_cut_file_is_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		put_module();
		const char *name = compressed(i);
		cleanup_buf struct buf b = get(name);
		size_t n = buf_len(&b), left[] = {0, 1, 4, 12, n / 3, n - 9, n - 8, n - 7, n - 4, n - 1};
		for (size_t k = 0; k < ARRAY_SIZE(left); k++) {
			put(name, str_n(buf_str(&b).p, left[k]));
			if (refused(name) != -EBADMSG)
				fail_msg("%zu bytes of %zu of %s are taken", left[k], n, name);
		}
	}
}

static void a_file_is_what_its_name_says(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
			char name[32];
			put_module();
			cleanup_buf struct buf b = get(compressed(i));
			snprintf(name, sizeof(name), "other.ko%s", kinds[k].suffix);
			put(name, buf_str(&b));
			assert_int_equal(refused(name), i == k ? 0 : -EBADMSG);
		}
	put_module();
	cleanup_buf struct buf plain = get("m.ko");
	put("plain.ko.xz", buf_str(&plain));
	assert_int_equal(refused("plain.ko.xz"), -EBADMSG);
	/* Compressed twice: the second time is no business of ours. */
	cleanup_buf struct buf once = get(compressed(2));
	put("m.ko", buf_str(&once));
	cleanup_buf struct buf twice = get(compressed(2));
	put("twice.ko.gz", buf_str(&twice));
	assert_int_equal(refused("twice.ko.gz"), -EBADMSG);
	assert_int_equal(refused("absent.ko"), -ENOENT);
	assert_int_equal(refused("absent.ko.xz"), -ENOENT);
	assert_int_equal(mkdir(path_of("directory.ko.xz"), 0700), 0);
	assert_true(refused("directory.ko.xz") < 0);
}

static void put_zeros(off_t size)
{
	put("m.ko", STR(""));
	assert_int_equal(truncate(path_of("m.ko"), size), 0);
}

static void what_grows_without_end_is_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		put_zeros(MODULE_FILE_MAX + 1);
		const char *name = compressed(i);
		struct stat st;
		assert_int_equal(stat(path_of(name), &st), 0);
		assert_true(st.st_size < 1 << 20);
		assert_int_equal(refused(name), -EFBIG);
	}
	put_zeros(MODULE_FILE_MAX + 1);
	assert_int_equal(refused("m.ko"), -EFBIG);
	put_zeros(MODULE_FILE_MAX);
	assert_int_equal(refused("m.ko"), 0);
	assert_int_equal(refused(compressed(1)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(names_tell_the_kind, set_up, tear_down),
		cmocka_unit_test_setup_teardown(each_compression_gives_the_same_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_damaged_file_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_cut_file_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_file_is_what_its_name_says, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_grows_without_end_is_refused, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
