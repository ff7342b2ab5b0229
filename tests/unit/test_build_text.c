#include "unit.h"

#include "base/cleanup.h"
#include "image/copy.h"
#include "image/describe.h"
#include "image/spec.h"
#include "image/steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* The texts of builds: specs, variables, paths, names of owners. */

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void specs_are_read(void **state)
{
	static const char text[] = "{\"kind\":\"e2b\",\"image\":\"python:3\",\"registry\":{\"type\":\"registry\",\"username\":\"u\",\"password\":\"p\"},"
				   "\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"/b\",\"\",\"\"],\"filesHash\":\"" HASH "\"},{\"type\":\"RUN\",\"args\":[\"true\"],\"force\":true}],"
				   "\"startCmd\":\"x\",\"readyCmd\":\"\",\"env\":[\"A=b=c\"],\"probePort\":80}";
	struct build_spec s = {0};
	struct error err = {0};
	assert_int_equal(spec_parse(STR(text), &s, &err), 0);
	assert_int_equal(s.kind, SPEC_E2B);
	assert_string_equal(s.image, "python:3");
	assert_true(s.has_registry);
	assert_string_equal(s.registry.password, "p");
	assert_int_equal(s.n_steps, 2);
	assert_int_equal(s.steps[0].type, SPEC_COPY);
	assert_string_equal(s.steps[0].files, HASH);
	assert_true(s.steps[1].force);
	assert_null(s.ready_command); /* an empty one says nothing */
	assert_int_equal(s.probe_port, 80);
	spec_done(&s);
}

static void specs_that_are_wrong_name_the_field(void **state)
{
	static const struct {
		const char *text, *says;
	} table[] = {
		{"[]", "spec: must be an object"},
		{"{\"image\":\"x\"}", "kind: must be one of"},
		{"{\"kind\":\"e2b\"}", "image: give exactly one"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"base\":true}", "image: give exactly one"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"colour\":1}", "spec: 'colour' is not known"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[]}]}", "step 1: RUN cannot have these 0 arguments"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\"]},{\"type\":\"EAT\",\"args\":[]}]}", "step 2: the type 'EAT' is not known"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\"]}]}", "step 1: ENV cannot"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\"]}]}", "step 1: filesHash: is missing"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\"],\"filesHash\":\"AA\"}]}", "step 1: filesHash: must be 64"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\\u0000b\"]}]}", "NUL"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"registry\":{\"type\":\"registry\",\"username\":\"u\"}}", "fromImageRegistry.password: is missing"},
		{"{\"kind\":\"e2b\",\"image\":\"x\",\"registry\":{\"type\":\"magic\"}}", "registry.type: must be one of registry, aws, gcp"},
		{"{\"kind\":\"image\",\"source\":{\"type\":\"rootfs\"}}", "source.hash: is missing"},
		{"{\"kind\":\"image\",\"dockerfile\":{\"text\":\"FROM x\"},\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\"]}]}", "steps: cannot be given together"},
		{"{\"kind\":\"cube\",\"image\":\"x\",\"probePort\":70000}", "probePort: must be a port"},
		{"{\"kind\":\"cube\",\"image\":\"x\",\"probePath\":\"health\"}", "probePath: must be a path"},
		{"{\"kind\":\"cube\",\"image\":\"x\",\"env\":[\"=b\"]}", "env: must be an array of NAME=value"},
		{"{\"kind\":\"cube\",\"image\":\"x\",\"workdir\":\"a\"}", "workdir: must be an absolute path"},
		{"{\"kind\":\"cube\",\"image\":7}", "image: must be a string"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct build_spec s = {0};
		struct error err = {0};
		if (spec_parse(str_of(table[i].text), &s, &err) != -EINVAL || !strstr(err.message, table[i].says))
			fail_msg("%s: '%s'", table[i].text, err.message);
		assert_int_equal(err.status, 400);
	}
}

static void variables_expand_as_between_quotes(void **state)
{
	static const struct {
		const char *value, *becomes;
	} table[] = {
		{"plain", "plain"},
		{"$A/x", "one/x"},
		{"${A}x", "onex"},
		{"$Ax", ""},
		{"$NOT-", "-"},
		{"$PATH:/x", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/x"},
		{"\\$A", "$A"},
		{"\\\\$A", "\\one"},
		{"\\n", "\\n"},
		{"$(whoami)", "$(whoami)"},
		{"`whoami`", "`whoami`"},
		{"100%$", "100%$"},
		{"$1", "$1"},
		{"${NOT:-a $A}", "a one"},
		{"${E-x}${E:-y}", "y"},
		{"${A:+set}${NOT:+set}", "set"},
		{"${NOT:-${ALSO:-deep}}", "deep"},
		{"'$A'", "'one'"},
	};
	struct env env = {0};
	struct error err = {0};
	assert_int_equal(env_set(&env, STR("A"), STR("one")), 0);
	assert_int_equal(env_set(&env, STR("E"), STR("")), 0);
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		cleanup_buf struct buf to = BUF_INIT;
		assert_int_equal(steps_expand(str_of(table[i].value), &env, &to, &err), 0);
		assert_str(buf_str(&to), table[i].becomes);
	}
	static const char *const wrong[] = {"${A", "${}", "${A:?x}", "${A%x}", "${!A}"};
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		cleanup_buf struct buf to = BUF_INIT;
		assert_int_equal(steps_expand(str_of(wrong[i]), &env, &to, &err), -EINVAL);
	}
	env_done(&env);
}

static void paths_are_joined(void **state)
{
	static const struct {
		const char *workdir, *path, *becomes;
	} table[] = {
		{"/app", "x", "/app/x"}, {"/app", ".", "/app/"}, {"/app", "", "/app/"}, {"/app", "./", "/app/"}, {"/app", "x/", "/app/x/"}, {"/app", "/x", "/x"},
		{"/app", "../y", "/y"}, {"/app", "../../..", "/"}, {"", "x", "/x"}, {"/", "x", "/x"}, {"/a//b", "./c/./d/.", "/a/b/c/d/"}, {"/a", "/", "/"}, {"/a", "b/..", "/a/"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		cleanup_buf struct buf to = BUF_INIT;
		assert_int_equal(steps_join(table[i].workdir, str_of(table[i].path), &to), 0);
		assert_str(buf_str(&to), table[i].becomes);
	}
}

static void shell_lines_keep_the_path(void **state)
{
	struct env env = {0};
	cleanup_buf struct buf plain = BUF_INIT, set = BUF_INIT;
	assert_int_equal(steps_shell_line(&env, "make", &plain), 0);
	assert_str(buf_str(&plain), "make");
	assert_int_equal(env_set(&env, STR("PATH"), STR("/it's")), 0);
	assert_int_equal(steps_shell_line(&env, "make", &set), 0);
	assert_str(buf_str(&set), "export PATH='/it'\\''s:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'; make");
	env_done(&env);
}

static void environments_are_bounded(void **state)
{
	struct env env = {0};
	static char big[ENV_BYTES];
	memset(big, 'x', sizeof(big));
	assert_int_equal(env_set(&env, STR("A"), str_n(big, sizeof(big))), -E2BIG);
	assert_int_equal(env_set(&env, STR("A"), str_n(big, sizeof(big) - 1)), 0);
	assert_int_equal(env_set(&env, STR("B"), STR("")), -E2BIG);
	assert_int_equal(env_set(&env, STR("A"), STR("small")), 0);
	assert_int_equal(env_set(&env, STR("B"), STR("")), 0);
	assert_int_equal(env_set(&env, STR(""), STR("x")), -EINVAL);
	assert_int_equal(env_set(&env, STR("A=B"), STR("x")), -EINVAL);
	assert_int_equal(env_set_pair(&env, STR("C=d=e")), 0);
	assert_string_equal(env_get(&env, STR("C")), "d=e");
	assert_string_equal(env_get(&env, STR("A")), "small");
	assert_null(env_get(&env, STR("D")));
	env_done(&env);
}

static void globs_are_stripped(void **state)
{
	static const struct {
		const char *source, *becomes; /* NULL: refused */
	} table[] = {
		{"folder", "folder"}, {"./folder/", "folder"}, {"folder/*", "folder"}, {"*", ""}, {".", ""}, {"src/**/*.py", "src"}, {"a/b?/c", "a"}, {"a/[x]", "a"},
		{"a/{b,c}", "a"}, {"file.txt", "file.txt"}, {"/abs/x", "abs/x"}, {"../x", NULL}, {"a/../../x", NULL},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		cleanup_buf struct buf to = BUF_INIT;
		struct error err = {0};
		assert_int_equal(copy_strip_glob(str_of(table[i].source), &to, &err), table[i].becomes ? 0 : -EINVAL);
		if (table[i].becomes)
			assert_str(buf_str(&to), table[i].becomes);
	}
}

static void owners_are_found(void **state)
{
	static const char passwd[] = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1001::/home/user:/bin/bash\nbroken\nodd:x:abc:1::/:\n";
	static const char group[] = "root:x:0:\nuser:x:1002:\nstaff:x:50:a,b";
	static const struct {
		const char *owner;
		bool same;
		int r;
		unsigned uid, gid;
	} table[] = {
		{"root", false, 0, 0, 0}, {"user", false, 0, 1000, 1001}, {"user", true, 0, 1000, 1002}, {"user:staff", false, 0, 1000, 50}, {"user:7", false, 0, 1000, 7},
		{"1000", false, 0, 1000, 1001}, {"77", false, 0, 77, 0}, {"77", true, 0, 77, 77}, {"77:88", false, 0, 77, 88}, {"nobody", false, -ENOENT, 0, 0},
		{"user:nothing", false, -ENOENT, 0, 0}, {"odd", false, -ENOENT, 0, 0}, {"", false, -ENOENT, 0, 0}, {"4294967295", false, -ENOENT, 0, 0},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		uid_t uid = 0;
		gid_t gid = 0;
		struct error err = {0};
		int r = copy_owner(str_of(table[i].owner), table[i].same, STR(passwd), STR(group), &uid, &gid, &err);
		if (r != table[i].r || uid != table[i].uid || gid != table[i].gid)
			fail_msg("%s: %d, %u:%u", table[i].owner, r, uid, gid);
	}
}

static void waiting_is_no_readiness(void **state)
{
	assert_true(describe_only_waits("sleep 20"));
	assert_true(describe_only_waits(" sleep 0.5 "));
	assert_false(describe_only_waits("sleep 20; curl x"));
	assert_false(describe_only_waits("sleep "));
	assert_false(describe_only_waits("curl localhost"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(specs_are_read),
		cmocka_unit_test(specs_that_are_wrong_name_the_field),
		cmocka_unit_test(variables_expand_as_between_quotes),
		cmocka_unit_test(paths_are_joined),
		cmocka_unit_test(shell_lines_keep_the_path),
		cmocka_unit_test(environments_are_bounded),
		cmocka_unit_test(globs_are_stripped),
		cmocka_unit_test(owners_are_found),
		cmocka_unit_test(waiting_is_no_readiness),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
