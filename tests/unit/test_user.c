#include "files_harness.h"

#include "base/cleanup.h"
#include "guest/guest.h"
#include "guest/user.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char PASSWD[] = "root:x:0:0:root:/root:/bin/bash\n"
			     "# a comment\n"
			     "\n"
			     "broken line\n"
			     "nouid:x::1:::\n"
			     "minus:x:4294967295:1::/:/bin/sh\n"
			     "user:x:1000:1000:A, B:/home/user:/bin/zsh\n"
			     "1000:x:1007:1007::/home/digits:/bin/sh\n"
			     "bare:x:1001:100::\n"
			     "empty:x:1002:1002:::\n"
			     "last:x:1003:1003::/home/last:/bin/sh";
static const char GROUP[] = "root:x:0:\nsudo:x:27:other,user\nuser:x:1000:user\nusers:x:100:userx,xuser\nbad:"
			    "x:zz:user\ndocker:x:999:user";

static int set_up(void **state)
{
	unlink("/etc/passwd");
	unlink("/etc/group");
	disk_write("/etc/passwd", str_of(PASSWD));
	disk_write("/etc/group", str_of(GROUP));
	return 0;
}

static void a_user_has_home_shell_and_groups(void **state)
{
	struct guest_user u;
	assert_int_equal(guest_user_find(STR("user"), &u), 0);
	assert_string_equal(u.name, "user");
	assert_string_equal(u.home, "/home/user");
	assert_string_equal(u.shell, "/bin/zsh");
	assert_int_equal(u.uid, 1000);
	assert_int_equal(u.gid, 1000);
	const gid_t groups[] = {1000, 27, 999};
	assert_int_equal(u.n_groups, 3);
	assert_memory_equal(u.groups, groups, sizeof(groups));
	assert_int_equal(guest_user_find(STR("last"), &u), 0);
	assert_string_equal(u.shell, "/bin/sh");
}

static void empty_fields_have_defaults_and_short_lines_are_none(void **state)
{
	struct guest_user u;
	assert_int_equal(guest_user_find(STR("empty"), &u), 0);
	assert_string_equal(u.home, "/");
	assert_string_equal(u.shell, "/bin/sh");
	static const char *const unknown[] = {
		"", "bare", "nouid", "minus", "broken line", "ghost", "user:x", "us", "users", "#"};
	for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
		assert_int_equal(guest_user_find(str_of(unknown[i]), &u), -ENOENT);
	assert_int_equal(guest_user_find(str_n("user\0", 5), &u), -ENOENT);
}

static void numbers_are_ids_unless_they_are_names(void **state)
{
	struct guest_user u;
	assert_int_equal(guest_user_find(STR("1003"), &u), 0);
	assert_string_equal(u.name, "last");
	assert_int_equal(guest_user_find(STR("1000"), &u), 0);
	assert_int_equal(u.uid, 1007);
	assert_int_equal(guest_user_find(STR("4242"), &u), 0);
	assert_int_equal(u.uid, 4242);
	assert_int_equal(u.gid, 0);
	assert_string_equal(u.home, "/");
	assert_string_equal(u.name, "4242");
	assert_int_equal(guest_user_find(STR("4294967295"), &u), -ENOENT);
}

static void a_group_may_be_named(void **state)
{
	struct guest_user u;
	const struct {
		const char *name;
		unsigned uid, gid;
	} good[] = {{"user:docker", 1000, 999}, {"user:27", 1000, 27}, {"4242:4343", 4242, 4343}, {"4242:users", 4242, 100}, {"root:user", 0, 1000}};
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		assert_int_equal(guest_user_find(str_of(good[i].name), &u), 0);
		assert_int_equal(u.uid, good[i].uid);
		assert_int_equal(u.gid, good[i].gid);
		assert_int_equal(u.n_groups, 1);
		assert_int_equal(u.groups[0], good[i].gid);
	}
	static const char *const bad[] = {"user:", ":user", "user:ghost", "user:bad", "ghost:user", "user:1:2", "user:-1", "user:4294967295"};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(guest_user_find(str_of(bad[i]), &u), -ENOENT);
}

static void a_default_user_that_is_not_there_is_root(void **state)
{
	char *user = str_dup(STR("user")), *ghost = str_dup(STR("ghost")), *number = str_dup(STR("77")), *none = NULL;
	guest_user_settle(&user);
	guest_user_settle(&ghost);
	guest_user_settle(&number);
	guest_user_settle(&none);
	assert_string_equal(user, "user");
	assert_string_equal(ghost, "root");
	assert_string_equal(number, "77");
	assert_null(none);
	unlink("/etc/passwd");
	guest_user_settle(&user);
	assert_string_equal(user, "root");
	free(user);
	free(ghost);
	free(number);
}

static void root_is_there_whatever_the_file_is(void **state)
{
	struct guest_user u;
	for (int i = 0; i < 4; i++) {
		unlink("/etc/passwd");
		if (i == 1)
			mkfifo("/etc/passwd", 0644);
		else if (i == 2)
			symlink("passwd", "/etc/passwd");
		else if (i == 3)
			disk_write("/etc/passwd", STR("root:x:abc:0::/:/\n"));
		assert_int_equal(guest_user_find(STR("root"), &u), 0);
		assert_int_equal(u.uid, 0);
		assert_string_equal(u.home, "/root");
		assert_true(guest_user_find(STR("user"), &u) < 0);
	}
}

static void too_much_is_refused(void **state)
{
	const size_t size = 5 << 20;
	cleanup_free char *text = malloc(size);
	memset(text, 'a', size);
	disk_write("/etc/passwd", str_n(text, size));
	struct guest_user u;
	assert_int_equal(guest_user_find(STR("user"), &u), -EFBIG);
	assert_int_equal(guest_user_find(STR("root"), &u), 0);
	struct user_names names;
	assert_int_equal(user_names_load(&names), 0);
	assert_int_equal(user_name(&names, 1000).n, 0);
	assert_str(group_name(&names, 27), "sudo");
	user_names_done(&names);
	/* A home that does not fit, more groups than fit. */
	cleanup_buf struct buf lines = BUF_INIT;
	buf_addf(&lines, "long:x:1:1::/%.*s:/bin/sh\nmany:x:2:2::/:/bin/sh\n", 2000, text);
	disk_write("/etc/passwd", buf_str(&lines));
	buf_clear(&lines);
	for (int i = 0; i < 200; i++)
		buf_addf(&lines, "g%d:x:%d:many\n", i, 100 + i);
	disk_write("/etc/group", buf_str(&lines));
	assert_int_equal(guest_user_find(STR("long"), &u), -ENOENT);
	assert_int_equal(guest_user_find(STR("many"), &u), 0);
	assert_int_equal(u.n_groups, ARRAY_SIZE(u.groups));
	assert_int_equal(u.groups[0], 2);
}

static void names_of_ids_are_the_first_ones(void **state)
{
	disk_write("/etc/passwd", STR("b:x:7:0::/:/\na:x:7:0::/:/\nz:x:1:0::/:/\n"));
	struct user_names names;
	assert_int_equal(user_names_load(&names), 0);
	assert_str(user_name(&names, 7), "b");
	assert_str(user_name(&names, 1), "z");
	assert_int_equal(user_name(&names, 2).n, 0);
	assert_str(group_name(&names, 999), "docker");
	user_names_done(&names);
	unlink("/etc/passwd");
	unlink("/etc/group");
	assert_int_equal(user_names_load(&names), 0);
	assert_int_equal(user_name(&names, 0).n, 0);
	user_names_done(&names);
}

int main(void)
{
	harness_enter();
#define T(f) cmocka_unit_test_setup(f, set_up)
	const struct CMUnitTest tests[] = {
		T(a_user_has_home_shell_and_groups),
		T(empty_fields_have_defaults_and_short_lines_are_none),
		T(numbers_are_ids_unless_they_are_names),
		T(a_group_may_be_named),
		T(a_default_user_that_is_not_there_is_root),
		T(root_is_there_whatever_the_file_is),
		T(too_much_is_refused),
		T(names_of_ids_are_the_first_ones),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	harness_leave();
	return r;
}
