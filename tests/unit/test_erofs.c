#include "unit.h"

#include "base/cleanup.h"
#include "erofs_reader.h"
#include "image/erofs.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* The writer by itself: layouts, limits, and the same bytes for the same calls. */

static struct erofs *begin(uint64_t max, int *ret_fd)
{
	struct erofs *e;
	*ret_fd = memfd_create("image", MFD_CLOEXEC);
	assert_true(*ret_fd >= 0);
	assert_int_equal(erofs_new(*ret_fd, max, &e), 0);
	return e;
}

static int add(struct erofs *e, const struct erofs_attr *attr, const char *bytes, size_t n, uint64_t *ret)
{
	int r = erofs_file_begin(e, attr, n, NULL, 0);
	/* In uneven pieces. */
	for (size_t at = 0; r == 0 && at < n;) {
		size_t piece = n - at < 777 ? n - at : 777;
		r = erofs_file_write(e, at, bytes + at, piece);
		at += piece;
	}
	return r < 0 ? r : erofs_file_end(e, ret);
}

static void end(struct erofs *e, struct erofs_name *names, size_t n, const char *lines, int fd)
{
	const struct erofs_attr root = {.mode = S_IFDIR | 0755};
	cleanup_buf struct buf text = BUF_INIT;
	struct erofs_place place;
	uint64_t size;
	assert_int_equal(erofs_directory_place(e, &root, names, n, true, &place), 0);
	names[0].inode = names[1].inode = place.inode;
	assert_int_equal(erofs_directory_write(e, &root, 2, names, n, &place), 0);
	assert_int_equal(erofs_finish(e, &size), 0);
	assert_int_equal(size, lseek(fd, 0, SEEK_END));
	erofs_free(e);
	int r = erofs_list(fd, &text);
	if (r < 0 || strcmp(buf_cstr(&text), lines) != 0)
		fail_msg("%d\n%s\nnot\n%s", r, buf_cstr(&text), lines);
}

#define OWN_NAMES {STR("."), 0, S_IFDIR}, {STR(".."), 0, S_IFDIR}

static void test_empty(void **state)
{
	int fd;
	struct erofs *e = begin(1 << 20, &fd);
	struct erofs_name names[] = {OWN_NAMES};
	end(e, names, 2, "/ d 0755 0:0 2 0.000000000\n", fd);
	assert_int_equal(lseek(fd, 0, SEEK_END), EROFS_BLOCK);
	close(fd);
}

static void test_sizes(void **state)
{
	/* Around every bound between layouts; names in the order of directories. */
	static const size_t sizes[] = {0, 1, 4031, 4032, 4033, 4096, 4097, 70000};
	static char bytes[70000];
	struct erofs_name names[10] = {OWN_NAMES};
	char text[8][8];
	cleanup_buf struct buf lines = BUF_INIT;
	int fd;
	struct erofs *e = begin(1 << 20, &fd);
	buf_add_c(&lines, "/ d 0755 0:0 2 0.000000000\n");
	for (size_t i = 0; i < 8; i++) {
		const struct erofs_attr attr = {.mode = S_IFREG | 0644, .uid = (uint32_t)i, .gid = 65535, .mtime = -1, .mtime_ns = 999999999};
		snprintf(text[i], sizeof(text[i]), "%zu", i);
		names[i + 2] = (struct erofs_name){str_of(text[i]), 0, S_IFREG};
		assert_int_equal(add(e, &attr, bytes, sizes[i], &names[i + 2].inode), 0);
		buf_addf(&lines, "%zu f 0644 %zu:65535 1 -1.999999999 %zu%s\n", i, i, sizes[i], sizes[i] == 1 ? " '\\00'" : "");
	}
	end(e, names, 10, buf_cstr(&lines), fd);
	close(fd);
}

static void test_xattrs(void **state)
{
	cleanup_buf struct buf xattrs = BUF_INIT, big = BUF_INIT;
	static char value[EROFS_XATTR_MAX + 1];
	int fd;
	memset(value, 'v', sizeof(value));
	assert_int_equal(erofs_xattr_add(&xattrs, STR("user.a"), STR("1")), 0);
	assert_int_equal(erofs_xattr_add(&xattrs, STR("security.capability"), STR("")), 0);
	assert_int_equal(erofs_xattr_add(&xattrs, STR("trusted.overlay.opaque"), STR("y")), 0);
	assert_int_equal(erofs_xattr_add(&xattrs, STR("system.posix_acl_access"), STR("22")), 0);
	assert_int_equal(erofs_xattr_add(&xattrs, STR("system.other"), STR("")), -EOPNOTSUPP);
	assert_int_equal(erofs_xattr_add(&xattrs, STR("user."), STR("")), -EOPNOTSUPP);
	assert_int_equal(erofs_xattr_add(&xattrs, STR("plain"), STR("")), -EOPNOTSUPP);
	assert_int_equal(erofs_xattr_add(&big, STR("user.big"), str_n(value, sizeof(value))), -E2BIG);
	assert_int_equal(erofs_xattr_add(&big, STR("user.big"), str_n(value, sizeof(value) - 1)), 0);
	struct erofs_name names[] = {OWN_NAMES, {STR("big"), 0, S_IFREG}, {STR("f"), 0, S_IFREG}, {STR("l"), 0, S_IFLNK}};
	struct erofs *e = begin(1 << 20, &fd);
	struct erofs_attr attr = {.mode = S_IFREG | 04755, .xattrs = buf_str(&xattrs)};
	assert_int_equal(add(e, &attr, "hello", 5, &names[3].inode), 0);
	attr = (struct erofs_attr){.mode = S_IFREG, .xattrs = buf_str(&big)};
	assert_int_equal(add(e, &attr, "x", 1, &names[2].inode), 0);
	attr = (struct erofs_attr){.mode = S_IFLNK | 0777, .xattrs = buf_str(&xattrs)};
	assert_int_equal(erofs_special(e, &attr, str_n(value, 4095), &names[4].inode), 0);
	cleanup_buf struct buf lines = BUF_INIT;
	const char *all = " user.a= '1' security.capability= '' trusted.overlay.opaque= 'y' system.posix_acl_access= '22'";
	buf_addf(&lines, "/ d 0755 0:0 2 0.000000000\nbig f 0000 0:0 1 0.000000000 1 'x' user.big= '%.40s'\nf f 4755 0:0 1 0.000000000 5 'hello'%s\n", value, all);
	buf_addf(&lines, "l l 0777 0:0 1 0.000000000 '%.4095s'%s\n", value, all);
	end(e, names, 5, buf_cstr(&lines), fd);
	close(fd);
}

static void test_holes(void **state)
{
	static const struct erofs_extent extents[] = {{0, 3}, {5000, 100}, {(UINT64_C(1) << 33) - 1, 1}}, whole[] = {{0, 10}};
	const struct erofs_attr attr = {.mode = S_IFREG};
	struct erofs_name names[] = {OWN_NAMES, {STR("hole"), 0, S_IFREG}, {STR("sparse"), 0, S_IFREG}, {STR("whole"), 0, S_IFREG}};
	char bytes[100] = {0};
	int fd;
	struct erofs *e = begin(8 << 20, &fd);
	assert_int_equal(erofs_file_begin(e, &attr, UINT64_C(1) << 33, extents, 3), 0);
	assert_int_equal(erofs_file_write(e, 0, "abc", 3), 0);
	assert_int_equal(erofs_file_write(e, 5000, bytes, 50), 0);
	assert_int_equal(erofs_file_write(e, 5050, bytes, 50), 0);
	assert_int_equal(erofs_file_write(e, (UINT64_C(1) << 33) - 1, "z", 1), 0);
	assert_int_equal(erofs_file_write(e, 0, "z", 1), -EINVAL);
	assert_int_equal(erofs_file_end(e, &names[3].inode), 0);
	assert_int_equal(erofs_file_begin(e, &attr, 20, extents, 0), 0);
	assert_int_equal(erofs_file_end(e, &names[2].inode), 0);
	assert_int_equal(erofs_file_begin(e, &attr, 10, whole, 1), 0);
	assert_int_equal(erofs_file_end(e, &names[4].inode), -EINVAL);
	assert_int_equal(erofs_file_begin(e, &attr, 10, whole, 1), 0);
	assert_int_equal(erofs_file_write(e, 0, "0123456789", 10), 0);
	assert_int_equal(erofs_file_end(e, &names[4].inode), 0);
	end(e, names, 5,
		"/ d 0755 0:0 2 0.000000000\n"
		"hole f 0000 0:0 1 0.000000000 20 '\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00'\n"
		"sparse f 0000 0:0 1 0.000000000 8589934592\n"
		"whole f 0000 0:0 1 0.000000000 10 '0123456789'\n",
		fd);
	assert_true(lseek(fd, 0, SEEK_END) < 1 << 20);
	close(fd);
}

static void test_limit(void **state)
{
	static char bytes[100000];
	const struct erofs_attr attr = {.mode = S_IFREG};
	uint64_t inode;
	int fd;
	struct erofs *e = begin(200000, &fd);
	assert_int_equal(add(e, &attr, bytes, sizeof(bytes), &inode), 0);
	assert_int_equal(erofs_file_begin(e, &attr, sizeof(bytes), NULL, 0), -EDQUOT);
	erofs_free(e);
	close(fd);
	/* Also names alone come to an end. */
	e = begin(1 << 20, &fd);
	int r = 0, n = 0;
	for (; r == 0 && n < 100000; n++)
		r = add(e, &attr, "", 0, &inode);
	assert_int_equal(r, -EDQUOT);
	assert_in_range(n, 10000, 17000);
	assert_true(lseek(fd, 0, SEEK_END) <= 1 << 20);
	erofs_free(e);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_xattrs),
		cmocka_unit_test(test_holes),
		cmocka_unit_test(test_limit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
