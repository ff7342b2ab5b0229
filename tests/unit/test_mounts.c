#include "unit.h"

#include "base/cleanup.h"
#include "node/mounts.h"

static void the_node_sees_what_it_needs_only(void **state)
{
	static const char *const paths[] = {"/srv/cubicle", "/opt/cubicle/cubicle-init"};
	static const char *const in[] = {"/", "/proc", "/proc/sys/fs/binfmt_misc", "/sys/fs/cgroup/memory", "/dev/shm", "/usr", "/usr/local", "/srv", "/srv/cubicle",
		"/srv/cubicle/node/x", "/opt", "/opt/cubicle"};
	static const char *const out[] = {"/home", "/mnt/backup", "/srv/cubicle2", "/srv/other", "/opt/other", "/device", "/procs", "/tmp", "/run/user/0"};
	for (size_t i = 0; i < ARRAY_SIZE(in); i++)
		if (!mounts_needed(in[i], paths, 2))
			fail_msg("%s", in[i]);
	for (size_t i = 0; i < ARRAY_SIZE(out); i++)
		if (mounts_needed(out[i], paths, 2))
			fail_msg("%s", out[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_node_sees_what_it_needs_only),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
