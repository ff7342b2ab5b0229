/* Files that are sent for builds. */
#include "builds_world.h"

#include "node/layers.h"

#include <fcntl.h>
#include <stdio.h>

static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static uint64_t write_file(const char *team, const char *bytes, uint64_t size)
{
	struct msg_write_file m = {.team = str_of(team), .hash = str_of(hash), .size = size};
	assert_int_equal(answer(send_front(MSG_ID_write_file, &m)), MSG_ID_file_writer);
	assert_true(got_fd >= 0);
	assert_int_equal(write(got_fd, bytes, strlen(bytes)), strlen(bytes));
	return got.file_writer.writer;
}

static unsigned keep_file(const char *team, uint64_t writer, bool whole)
{
	struct msg_keep_file m = {.team = str_of(team), .hash = str_of(hash), .writer = writer, .whole = whole};
	return answer(send_front(MSG_ID_keep_file, &m));
}

static bool found_file(const char *team)
{
	struct msg_find_file m = {.team = str_of(team), .hash = str_of(hash)};
	assert_int_equal(answer(send_front(MSG_ID_find_file, &m)), MSG_ID_file_found);
	return got.file_found.found;
}

static void files_are_kept_whole(void **state)
{
	assert_false(found_file("team-1"));
	uint64_t w = write_file("team-1", "abc", 4);
	expect_error(keep_file("team-1", w, true), 400, "another size");
	w = write_file("team-1", "abcd", 4);
	expect_error(keep_file("team-2", w, true), 404, "no such file");
	w = write_file("team-1", "abcd", 4);
	assert_int_equal(keep_file("team-1", w, false), MSG_ID_ok);
	assert_false(found_file("team-1"));
	w = write_file("team-1", "abcd", 0);
	assert_int_equal(keep_file("team-1", w, true), MSG_ID_ok);
	expect_error(keep_file("team-1", w, true), 404, "no such file");
	assert_true(found_file("team-1"));
	assert_false(found_file("team-2"));
	restart();
	assert_true(found_file("team-1"));
	struct seat *s = begin("app");
	struct msg_open_file m = {.hash = str_of(hash)};
	int fd = -1;
	char bytes[8] = "";
	assert_int_equal(reply(s, say(s, MSG_ID_open_file, &m), &fd), MSG_ID_file_reader);
	assert_int_equal(got.file_reader.size, 4);
	assert_int_equal(read(fd, bytes, 8), 4);
	assert_string_equal(bytes, "abcd");
	assert_int_equal(write(fd, "x", 1), -1);
	close(fd);
	machine.disk.free = 1000 * MIB;
	struct msg_write_file more = {.team = STR("team-1"), .hash = str_of(hash), .size = 4};
	expect_error(answer(send_front(MSG_ID_write_file, &more)), 507, "disk");
	more.size = ((uint64_t)options.build_upload_max << 20) + 1;
	expect_error(answer(send_front(MSG_ID_write_file, &more)), 413, "build.upload_max");
	more.hash = STR("ABC");
	expect_error(answer(send_front(MSG_ID_write_file, &more)), 400, "Invalid files hash");
}

static void a_front_that_goes_leaves_no_writers(void **state)
{
	write_file("team-1", "abc", 3);
	assert_int_equal(node->uploads.n_writers, 1);
	close(steal_fd(&front));
	front_is_gone();
	assert_int_equal(node->uploads.n_writers, 0);
	open_front();
}

static void a_team_leaves_others_their_turn(void **state)
{
	struct msg_write_file m = {.team = STR("team-1"), .hash = str_of(hash), .size = 4};
	for (int i = 0; i < FILE_WRITERS_OF_TEAM; i++) {
		assert_int_equal(answer(send_front(MSG_ID_write_file, &m)), MSG_ID_file_writer);
		assert_true(got.file_writer.reserve > 0);
	}
	expect_error(answer(send_front(MSG_ID_write_file, &m)), 503, "16 files already");
	m.team = STR("team-2");
	assert_int_equal(answer(send_front(MSG_ID_write_file, &m)), MSG_ID_file_writer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BUILD_TEST(files_are_kept_whole),
		BUILD_TEST(a_front_that_goes_leaves_no_writers),
		BUILD_TEST(a_team_leaves_others_their_turn),
	};
	return node_world_run(tests);
}
