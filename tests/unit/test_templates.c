#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/msg.h"
#include "node/templates.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static char dir[] = "/tmp/cubicle-test-templates-XXXXXX";

static const char good[] = "{\"id\":\"k3abcdefghij0123456a\",\"alias\":\"base\",\"createdAt\":\"2026-01-02T03:04:05.678901Z\","
			   "\"buildId\":\"0f8fad5b-d9cb-469f-a165-70867728950e\",\"cpuCount\":2,\"memoryMB\":512,\"diskMB\":1024,"
			   "\"layers\":[{\"file\":\"images/aa.erofs\",\"size\":12}],\"user\":\"user\",\"workdir\":\"/home/user\","
			   "\"nested_userns\":false,\"no_setuid\":true}";

static int fresh(void **state)
{
	char path[128];
	remove_tree(AT_FDCWD, dir);
	snprintf(path, sizeof(path), "%s/images", dir);
	assert_int_equal(make_dirs(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/images/aa.erofs", dir);
	assert_int_equal(file_replace(AT_FDCWD, path, STR("layer bytes!"), 0600), 0);
	return 0;
}

static void write_file(const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/templates", dir);
	assert_int_equal(make_dirs(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/templates/%s", dir, name);
	assert_int_equal(file_replace(AT_FDCWD, path, str_of(text), 0600), 0);
}

/* The good description with the first `from` replaced. */
static const char *changed(const char *from, const char *to)
{
	static char text[4096];
	const char *at = strstr(good, from);
	assert_non_null(at);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
	return text;
}

static void a_description_is_read(void **state)
{
	struct template t;
	assert_int_equal(template_parse(str_of(good), "x", &t, NULL), 0);
	assert_string_equal(t.alias, "base");
	assert_int_equal(t.memory_mb, 512);
	assert_int_equal(t.n_layers, 1);
	assert_string_equal(t.layers[0].file, "images/aa.erofs");
	assert_int_equal(template_size(&t), 12);
	assert_true(t.no_setuid);
	assert_false(t.nested_userns);
}

static void wrong_descriptions_name_the_key(void **state)
{
	static const struct {
		const char *from, *to, *names;
	} cases[] = {
		{"k3abcdefghij0123456a", "K3abcdefghij0123456a", "id"},
		{"k3abcdefghij0123456a", "../abcdefghij0123456", "id"},
		{"\"base\"", "\"Base\"", "alias"},
		{"\"base\"", "\"a/b/c\"", "alias"},
		{"\"base\"", "\"\"", "alias"},
		{"2026-01-02T", "yesterday", "createdAt"},
		{"0f8fad5b-", "0f8fad5bx", "buildId"},
		{"\"cpuCount\":2", "\"cpuCount\":0", "cpuCount"},
		{"\"cpuCount\":2", "\"cpuCount\":300", "cpuCount"},
		{"\"cpuCount\":2", "\"cpuCount\":\"2\"", "cpuCount"},
		{"\"memoryMB\":512", "\"memoryMB\":63", "memoryMB"},
		{"\"diskMB\":1024", "\"diskMB\":1.5", "diskMB"},
		{"images/aa.erofs", "images/../aa.erofs", "layers"},
		{"\"size\":12", "\"size\":12,\"recipe\":\"abc\"", "recipe"},
		{"\"size\":12", "\"size\":12,\"recipe\":\"\"", "layers"},
		{"\"size\":12", "\"size\":12,\"other\":1", "layers"},
		{"images/aa.erofs", "/images/aa.erofs", "layers"},
		{"images/aa.erofs", "images/aa.ext4", "layers"},
		{"images/aa.erofs", "snapshots/aa.erofs", "layers"},
		{"images/aa.erofs", "saved/aa.img", "layers"},
		{"{\"file\":\"images/aa.erofs\",\"size\":12}", "", "layers"},
		{"\"size\":12", "\"size\":0", "layers"},
		{"\"size\":12", "\"size\":12,\"x\":1", "layers"},
		{"\"user\":\"user\"", "\"user\":\"a b\"", "user"},
		{"\"/home/user\"", "\"home\"", "workdir"},
		{"\"no_setuid\":true", "\"no_setuid\":1", "no_setuid"},
		{"\"no_setuid\":true", "\"no_setuids\":true", "no_setuids"},
		{"\"createdAt\":\"2026-01-02T03:04:05.678901Z\",", "", "createdAt"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct template t;
		struct error err = {0};
		assert_int_equal(template_parse(str_of(changed(cases[i].from, cases[i].to)), "x", &t, &err), -EINVAL);
		if (!strstr(err.message, cases[i].names))
			fail_msg("%s does not name %s", err.message, cases[i].names);
	}
	struct template t;
	assert_true(template_parse(STR("[1]"), "x", &t, NULL) < 0);
	assert_true(template_parse(STR("{"), "x", &t, NULL) < 0);
}

#define SERVICE "{\"name\":\"web\",\"command\":[\"/bin/web\",\"\",\"a \\\"b\\\"\"],\"port\":8080,\"user\":\"root\"}"
#define OTHER "{\"user\":\"user\",\"command\":[\"/x\"],\"name\":\"other\"}"

/* The good description with this value of "services". */
static const char *with_services(const char *value)
{
	char text[2048];
	snprintf(text, sizeof(text), "\"no_setuid\":true,\"services\":%s", value);
	return changed("\"no_setuid\":true", text);
}

static void expect_item(struct str *rest, const char *text)
{
	struct str item;
	assert_true(msg_list_next(rest, &item));
	assert_str(item, text);
}

static void services_are_read_saved_and_encoded(void **state)
{
	struct template t, again;
	cleanup_buf struct buf raw = BUF_INIT, text = BUF_INIT;
	char path[256];
	assert_int_equal(template_parse(str_of(with_services("[" SERVICE "," OTHER "]")), "x", &t, NULL), 0);
	assert_int_equal(t.n_services, 2);
	assert_int_equal(template_save(dir, &t, NULL), 0);
	snprintf(path, sizeof(path), "%s/templates/%s.json", dir, t.id);
	assert_int_equal(file_read(AT_FDCWD, path, TEMPLATE_MAX_FILE, &text), 0);
	assert_int_equal(template_parse(buf_str(&text), "x", &again, NULL), 0);
	assert_memory_equal(t.services, again.services, sizeof(t.services));
	assert_int_equal(template_encode_services(&again, &raw), 0);
	struct str rest = buf_str(&raw), one;
	assert_true(msg_list_next(&rest, &one));
	expect_item(&one, "web");
	expect_item(&one, "root");
	expect_item(&one, "8080");
	expect_item(&one, "/bin/web");
	expect_item(&one, "");
	expect_item(&one, "a \"b\"");
	assert_int_equal(one.n, 0);
	assert_true(msg_list_next(&rest, &one));
	expect_item(&one, "other");
	expect_item(&one, "user");
	expect_item(&one, "");
	expect_item(&one, "/x");
	assert_int_equal(rest.n + one.n, 0);
	buf_clear(&raw);
	assert_int_equal(template_encode_ready(&again, &raw), 0);
	assert_int_equal(buf_len(&raw), 0);
}

static void a_ready_command_is_read_saved_and_encoded(void **state)
{
	struct template t, again;
	cleanup_buf struct buf raw = BUF_INIT, text = BUF_INIT;
	assert_int_equal(template_parse(str_of(with_services("[" SERVICE "],\"ready\":[\"/bin/check\",\"\",\"a \\\"b\\\"\"]")), "x", &t, NULL), 0);
	assert_int_equal(template_serialize(&t, &text), 0);
	assert_int_equal(template_parse(buf_str(&text), "x", &again, NULL), 0);
	assert_memory_equal(&t, &again, sizeof(t));
	assert_int_equal(template_encode_ready(&again, &raw), 0);
	struct str rest = buf_str(&raw);
	expect_item(&rest, "/bin/check");
	expect_item(&rest, "");
	expect_item(&rest, "a \"b\"");
	assert_int_equal(rest.n, 0);
}

#define SIXTEEN ",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\""

static void wrong_ready_commands_are_refused(void **state)
{
	static const char *const cases[] = {
		"[" SERVICE "],\"ready\":[]", "[" SERVICE "],\"ready\":{}", "[" SERVICE "],\"ready\":\"/x\"", "[" SERVICE "],\"ready\":[\"x\"]",
		"[" SERVICE "],\"ready\":[\"\"]", "[" SERVICE "],\"ready\":[1]", "[" SERVICE "],\"ready\":[\"/x\\u0000\"]",
		"[" SERVICE "],\"ready\":[\"/x\"" SIXTEEN SIXTEEN SIXTEEN SIXTEEN "]",
	};
	struct template t;
	struct error err = {0};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		if (template_parse(str_of(with_services(cases[i])), "x", &t, &err) != -EINVAL || !strstr(err.message, "ready"))
			fail_msg("%s: %s", cases[i], err.message);
	/* Without services nothing could be ready. */
	assert_int_equal(template_parse(str_of(changed("\"no_setuid\":true", "\"ready\":[\"/x\"]")), "x", &t, &err), -EINVAL);
	assert_non_null(strstr(err.message, "no services"));
	char long_argument[TEMPLATE_MAX_COMMAND] = "";
	memset(long_argument, 'a', sizeof(long_argument) - 2);
	const char *too_long[] = {"/", long_argument, NULL};
	assert_int_equal(template_set_ready(&t, too_long), -E2BIG);
	long_argument[sizeof(long_argument) - 3] = '\0';
	assert_int_equal(template_set_ready(&t, too_long), 0);
}

static void wrong_services_are_refused(void **state)
{
	static const char *const cases[] = {
		"[]", "{}", "[1]", "[" SERVICE "," SERVICE "]", "[" OTHER "," OTHER "]", "[" OTHER "," OTHER "," OTHER "," OTHER "," OTHER "]",
		"[{\"name\":\"a\",\"user\":\"root\"}]", "[{\"name\":\"a\",\"command\":[\"/x\"]}]", "[{\"user\":\"root\",\"command\":[\"/x\"]}]",
		"[{\"name\":\"A\",\"command\":[\"/x\"],\"user\":\"root\"}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"r t\"}]",
		"[{\"name\":\"a\",\"command\":[\"x\"],\"user\":\"root\"}]", "[{\"name\":\"a\",\"command\":[],\"user\":\"root\"}]",
		"[{\"name\":\"a\",\"command\":[\"/x\",1],\"user\":\"root\"}]", "[{\"name\":\"a\",\"command\":\"/x\",\"user\":\"root\"}]",
		"[{\"name\":\"a\",\"command\":[\"/x\\u0000\"],\"user\":\"root\"}]",
		"[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"port\":0}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"port\":65536}]",
		"[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"port\":\"80\"}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"port\":49983}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"port\":53}]",
		"[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"restart\":1}]",
		"[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"workdir\":\"srv\"}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"workdir\":\"\"}]",
		"[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"env\":{\"A=\":\"\"}}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"env\":{\"\":\"\"}}]",
		"[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"env\":{\"A\":1}}]", "[{\"name\":\"a\",\"command\":[\"/x\"],\"user\":\"root\",\"env\":[\"A=1\"]}]",
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct template t;
		struct error err = {0};
		if (template_parse(str_of(with_services(cases[i])), "x", &t, &err) != -EINVAL || !strstr(err.message, "services"))
			fail_msg("%s: %s", cases[i], err.message);
	}
}

static void a_service_has_its_limits(void **state)
{
	struct template t = {0};
	char long_name[40] = "", long_argument[TEMPLATE_MAX_COMMAND] = "";
	memset(long_name, 'a', 33);
	memset(long_argument, 'a', sizeof(long_argument) - 3);
	const char *many[TEMPLATE_MAX_ARGS + 2] = {"/x"}, *const one[] = {"/x", NULL}, *too_long[] = {"/", long_argument, "", NULL};
	for (size_t i = 1; i <= TEMPLATE_MAX_ARGS; i++)
		many[i] = "";
	assert_int_equal(template_add_service(&t, long_name, "root", 0, one), -E2BIG);
	assert_int_equal(template_add_service(&t, "a", long_name, 0, one), -E2BIG);
	assert_int_equal(template_add_service(&t, "a", "root", 0, many), -E2BIG);
	assert_int_equal(template_add_service(&t, "a", "root", 0, too_long), -E2BIG);
	many[TEMPLATE_MAX_ARGS] = too_long[2] = NULL;
	long_name[32] = '\0';
	assert_int_equal(template_add_service(&t, "a", "root", 0, many), 0);
	assert_int_equal(template_add_service(&t, "b", "root", 0, too_long), 0);
	assert_int_equal(template_add_service(&t, long_name, long_name, 65535, too_long), 0);
	assert_int_equal(template_add_service(&t, "c", "root", 1, one), 0);
	assert_int_equal(template_add_service(&t, "d", "root", 2, one), -E2BIG);
	/* The claim has room for the most there can be. */
	t.services[0] = t.services[1] = t.services[3] = t.services[2];
	cleanup_buf struct buf raw = BUF_INIT;
	assert_int_equal(template_encode_services(&t, &raw), 0);
	assert_true(buf_len(&raw) <= 20480);
}

#define WHOLE "[{\"name\":\"web\",\"command\":[\"/bin/web\"],\"user\":\"root\",\"env\":{\"A\":\"1\",\"B\":\"\"},\"workdir\":\"/srv\",\"restart\":false}]," \
	"\"env\":{\"PATH\":\"/bin\"},\"probe\":{\"port\":8080,\"path\":\"/health?a=b\"},\"wait_ready\":true"

static void expect_pair(struct str *rest, const char *key, const char *value)
{
	struct str k, v;
	assert_true(msg_map_next(rest, &k, &v));
	assert_str(k, key);
	assert_str(v, value);
}

static void environments_and_probes_are_read_and_saved(void **state)
{
	static struct template t, again;
	cleanup_buf struct buf text = BUF_INIT;
	assert_int_equal(template_parse(str_of(with_services(WHOLE)), "x", &t, NULL), 0);
	assert_int_equal(template_serialize(&t, &text), 0);
	assert_int_equal(template_parse(buf_str(&text), "x", &again, NULL), 0);
	assert_int_equal(again.probe.port, 8080);
	assert_string_equal(again.probe.path, "/health?a=b");
	assert_true(again.wait_ready);
	assert_true(again.services[0].once);
	assert_string_equal(again.services[0].workdir, "/srv");
	struct str rest = template_env(&again, again.env).raw;
	expect_pair(&rest, "PATH", "/bin");
	assert_int_equal(rest.n, 0);
	rest = template_env(&again, again.services[0].env).raw;
	expect_pair(&rest, "A", "1");
	expect_pair(&rest, "B", "");
	assert_int_equal(rest.n, 0);
}

static void wrong_environments_and_probes_are_refused(void **state)
{
	static const char *const cases[] = {
		"\"env\":{\"A\":null}", "\"env\":{\"A=B\":\"\"}", "\"env\":{\"A\":\"\\u0000\"}", "\"env\":[]", "\"probe\":{}", "\"probe\":{\"port\":0}", "\"probe\":8080",
		"\"probe\":{\"port\":53}", "\"probe\":{\"port\":80,\"path\":\"\"}", "\"probe\":{\"port\":80,\"path\":\"health\"}", "\"probe\":{\"port\":80,\"path\":\"/a b\"}",
		"\"probe\":{\"port\":80,\"path\":\"/\\r\\n\"}", "\"probe\":{\"port\":80,\"scheme\":\"https\"}", "\"wait_ready\":1",
	};
	static struct template t;
	struct error err = {0};
	char text[1024];
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		snprintf(text, sizeof(text), "[" SERVICE "],%s", cases[i]);
		if (template_parse(str_of(with_services(text)), "x", &t, &err) != -EINVAL)
			fail_msg("%s", cases[i]);
	}
	assert_int_equal(template_parse(str_of(changed("\"no_setuid\":true", "\"probe\":{\"port\":80}")), "x", &t, &err), -EINVAL);
	assert_non_null(strstr(err.message, "no services"));
	/* All variables together have a bound. */
	cleanup_buf struct buf big = BUF_INIT;
	buf_add_c(&big, "{\"layers\":[{\"file\":\"images/aa.erofs\",\"size\":12}],\"user\":\"user\",\"env\":{");
	for (int i = 0; i < 4; i++)
		buf_addf(&big, "%s\"V%d\":\"%04080d\"", i ? "," : "", i, 0);
	buf_add_c(&big, "}}");
	static struct template id;
	assert_int_equal(template_parse(str_of(good), "x", &id, NULL), 0);
	assert_int_equal(template_parse_build(buf_str(&big), "x", &id, &t, &err), 0);
	buf_clear(&big);
	buf_add_c(&big, "{\"layers\":[{\"file\":\"images/aa.erofs\",\"size\":12}],\"user\":\"user\",\"env\":{");
	for (int i = 0; i < 4; i++)
		buf_addf(&big, "%s\"V%d\":\"%04090d\"", i ? "," : "", i, 0);
	buf_add_c(&big, "}}");
	assert_int_equal(template_parse_build(buf_str(&big), "x", &id, &t, &err), -EINVAL);
}

/* What a builder says of itself is not believed. */
static void a_build_has_the_identity_that_it_is_given(void **state)
{
	static struct template id, t, again;
	struct error err = {0};
	cleanup_buf struct buf text = BUF_INIT;
	const char *plain = "{\"layers\":[{\"file\":\"images/a.img\",\"size\":12},{\"file\":\"snapshots/snap-a.img\",\"size\":1}],\"user\":\"root\"}";
	assert_int_equal(template_parse(str_of(good), "x", &id, NULL), 0);
	strcpy(id.team, "team-1");
	assert_int_equal(template_parse_build(str_of(plain), "x", &id, &t, &err), 0);
	assert_string_equal(t.id, id.id);
	assert_string_equal(t.alias, "base");
	assert_string_equal(t.build_id, id.build_id);
	assert_string_equal(t.team, "team-1");
	assert_int_equal(template_serialize_build(&t, &text), 0);
	assert_int_equal(template_parse_build(buf_str(&text), "x", &id, &again, &err), 0);
	assert_memory_equal(&t, &again, sizeof(t));
	assert_int_equal(template_parse_build(str_of(good), "x", &id, &t, &err), -EINVAL);
}

static void a_tag_names_one_build(void **state)
{
	static struct template one, two;
	struct templates *t = templates_new();
	assert_int_equal(template_parse(str_of(good), "x", &one, NULL), 0);
	two = one;
	strcpy(two.build_id, "1f8fad5b-d9cb-469f-a165-70867728950e");
	assert_int_equal(templates_put_build(t, &one), 0);
	assert_null(templates_find(t, str_of(one.id)));
	assert_int_equal(templates_set_tag(t, one.id, "default", two.build_id), -ENOENT);
	assert_int_equal(templates_put_build(t, &two), 0);
	assert_int_equal(templates_set_tag(t, one.id, "default", one.build_id), 0);
	assert_int_equal(templates_set_tag(t, one.id, "v2", two.build_id), 0);
	assert_string_equal(templates_find(t, str_of(one.id))->build_id, one.build_id);
	assert_string_equal(templates_find(t, STR("k3abcdefghij0123456a:default"))->build_id, one.build_id);
	assert_string_equal(templates_find(t, STR("k3abcdefghij0123456a:v2"))->build_id, two.build_id);
	assert_null(templates_find(t, STR("k3abcdefghij0123456a:v3")));
	assert_null(templates_find(t, STR("base"))); /* names of teams are the front's */
	assert_int_equal(templates_set_tag(t, one.id, "default", two.build_id), 0);
	templates_drop_build(t, one.build_id);
	assert_string_equal(templates_find(t, str_of(one.id))->build_id, two.build_id);
	templates_drop_build(t, two.build_id);
	assert_null(templates_find(t, str_of(one.id)));
	assert_null(templates_find(t, STR("k3abcdefghij0123456a:v2")));
	templates_free(t);
}

static int told, told_gone;

static void on_change(const struct template *t, bool gone, void *arg)
{
	told++;
	told_gone += gone;
}

static void load(struct templates *t, int expect, int expect_gone)
{
	told = told_gone = 0;
	assert_int_equal(templates_load(t, dir, on_change, NULL, NULL), 0);
	assert_int_equal(told, expect);
	assert_int_equal(told_gone, expect_gone);
}

static void saved_templates_are_found(void **state)
{
	struct template one, two;
	assert_int_equal(template_parse(str_of(good), "x", &one, NULL), 0);
	two = one;
	memcpy(two.id, "zzzzzzzzzzzzzzzzzzzz", 20);
	two.created_at++;
	two.memory_mb = 0;
	assert_int_equal(template_save(dir, &one, NULL), 0);
	struct templates *t = templates_new();
	load(t, 1, 0);
	load(t, 0, 0);
	assert_string_equal(templates_find(t, STR("base"))->id, one.id);
	assert_int_equal(templates_find(t, STR("base"))->created_at, one.created_at);
	assert_string_equal(templates_find(t, STR("base:default"))->id, one.id);
	assert_null(templates_find(t, STR("base:v2")));
	assert_null(templates_find(t, STR("bas")));
	assert_int_equal(template_save(dir, &two, NULL), 0);
	load(t, 1, 0);
	assert_string_equal(templates_find(t, STR("base"))->id, two.id); /* the newer one has the name */
	assert_string_equal(templates_find(t, str_of(one.id))->alias, "base");
	char path[256];
	snprintf(path, sizeof(path), "%s/templates/%s.json", dir, two.id);
	assert_int_equal(unlink(path), 0);
	load(t, 1, 1);
	assert_string_equal(templates_find(t, STR("base"))->id, one.id);
	templates_free(t);
}

static void broken_files_do_not_hide_good_ones(void **state)
{
	char path[256];
	write_file("k3abcdefghij0123456a.json", good);
	write_file("b3abcdefghij0123456a.json", good); /* not named after its id */
	write_file("c3abcdefghij0123456a.json", "{\"id\":");
	write_file("d3abcdefghij0123456a.json", "");
	write_file(".hidden.json", good);
	write_file("note.txt", "hello");
	struct templates *t = templates_new();
	load(t, 1, 0);
	/* A layer that others can write is refused. */
	snprintf(path, sizeof(path), "%s/images/aa.erofs", dir);
	assert_int_equal(chmod(path, 0666), 0);
	load(t, 1, 1);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/etc/passwd", path), 0);
	load(t, 0, 0);
	templates_free(t);
}

static void no_directory_is_no_templates(void **state)
{
	struct templates *t = templates_new();
	load(t, 0, 0);
	templates_free(t);
}

int main(void)
{
	if (!mkdtemp(dir))
		return 1;
	log_setup("test", 2, LOG_ERROR);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_description_is_read),
		cmocka_unit_test(wrong_descriptions_name_the_key),
		cmocka_unit_test_setup(services_are_read_saved_and_encoded, fresh),
		cmocka_unit_test(wrong_services_are_refused),
		cmocka_unit_test(a_ready_command_is_read_saved_and_encoded),
		cmocka_unit_test(wrong_ready_commands_are_refused),
		cmocka_unit_test(a_service_has_its_limits),
		cmocka_unit_test(environments_and_probes_are_read_and_saved),
		cmocka_unit_test(wrong_environments_and_probes_are_refused),
		cmocka_unit_test(a_build_has_the_identity_that_it_is_given),
		cmocka_unit_test(a_tag_names_one_build),
		cmocka_unit_test_setup(saved_templates_are_found, fresh),
		cmocka_unit_test_setup(broken_files_do_not_hide_good_ones, fresh),
		cmocka_unit_test_setup(no_directory_is_no_templates, fresh),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	remove_tree(AT_FDCWD, dir);
	return r;
}
