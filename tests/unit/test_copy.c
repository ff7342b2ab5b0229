#include "unit.h"

#include "base/cleanup.h"
#include "sandbox/box/copy.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { SIZE = 64 << 20, HERE = 3 << 20, THERE = 40 << 20 };

/* Data here and there, holes around it. */
static int sparse(void)
{
	int fd = memfd_create("sparse", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	assert_int_equal(pwrite(fd, "here", 4, HERE), 4);
	assert_int_equal(pwrite(fd, "there", 5, THERE), 5);
	return fd;
}

static void data_is_copied_and_holes_stay_holes(void **state)
{
	cleanup_fd int from = sparse(), to = memfd_create("copy", MFD_CLOEXEC);
	char text[8] = "";
	struct stat st;
	bool stop = false;
	assert_int_equal(copy_sparse(from, to, SIZE, true, &stop), 0);
	assert_int_equal(fstat(to, &st), 0);
	assert_int_equal(st.st_size, SIZE);
	assert_in_range(st.st_blocks * 512, 1, 1 << 20);
	assert_int_equal(pread(to, text, 4, HERE), 4);
	assert_string_equal(text, "here");
	assert_int_equal(pread(to, text, 5, THERE), 5);
	assert_string_equal(text, "there");
}

static void an_empty_one_is_all_hole(void **state)
{
	cleanup_fd int from = memfd_create("empty", MFD_CLOEXEC), to = memfd_create("copy", MFD_CLOEXEC);
	struct stat st;
	assert_int_equal(ftruncate(from, SIZE), 0);
	assert_int_equal(copy_sparse(from, to, SIZE, false, NULL), 0);
	assert_int_equal(fstat(to, &st), 0);
	assert_int_equal(st.st_size, SIZE);
	assert_int_equal(st.st_blocks, 0);
}

static void it_stops_when_told(void **state)
{
	cleanup_fd int from = sparse(), to = memfd_create("copy", MFD_CLOEXEC);
	bool stop = true;
	assert_int_equal(copy_sparse(from, to, SIZE, true, &stop), -ECANCELED);
}

static void what_cannot_be_written_is_told(void **state)
{
	cleanup_fd int from = sparse(), to = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(copy_sparse(from, to, SIZE, true, NULL) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(data_is_copied_and_holes_stay_holes),
		cmocka_unit_test(an_empty_one_is_all_hole),
		cmocka_unit_test(it_stops_when_told),
		cmocka_unit_test(what_cannot_be_written_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
