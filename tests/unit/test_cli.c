#include "unit.h"

#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/env.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static char *no_env[] = {NULL};

/* Parses words (argv without the program); *code is cli_parse's answer. The caller ends c. */
static int parse(struct cli *c, struct error *err, const char **words, char **env)
{
	static char *argv[64];
	int argc = 0, taken = 0;
	argv[argc++] = (char *)"cubicle";
	while (*words)
		argv[argc++] = (char *)(uintptr_t)*words++;
	argv[argc] = NULL;
	const struct command *k = command_find(argc, argv, &taken);
	assert_non_null(k);
	*err = (struct error){0};
	return cli_parse(c, k, taken, argc, argv, env, err);
}
#define PARSE(c, err, ...) parse(c, err, (const char *[]){__VA_ARGS__, NULL}, no_env)

static void the_table_is_sound(void **state)
{
	for (size_t i = 0; i < n_commands; i++) {
		const struct command *k = &commands[i];
		size_t n = 0;
		assert_non_null(k->run);
		assert_true(k->min <= k->max && k->max <= CLI_MAX_WORDS);
		for (const struct flag *f = k->flags; f && f->name; f++, n++) {
			assert_true((f->value == NULL) == (f->kind == FLAG_SWITCH));
			for (const struct flag *g = f + 1; g->name; g++)
				assert_true(strcmp(f->name, g->name) && (!f->letter || f->letter != g->letter));
		}
		assert_true(n <= CLI_MAX_FLAGS);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(k->name, commands[j].name);
		cleanup_buf struct buf text = BUF_INIT;
		command_help(&text, k);
		assert_non_null(strstr(buf_cstr(&text), k->summary));
	}
}

static void a_flag_of_the_command_hides_an_option_of_its_name(void **state)
{
	struct cli c;
	struct error err;
	assert_int_equal(PARSE(&c, &err, "forward", "isandbox", "80", "--listen", "127.0.0.1:7", "--state.dir=/s"), 0);
	assert_string_equal(cli_flag(&c, "listen")->text, "127.0.0.1:7");
	assert_string_equal(c.options.listen, "127.0.0.1:3000");
	assert_string_equal(c.options.state_dir, "/s");
	cli_done(&c);
	assert_int_equal(PARSE(&c, &err, "sandbox", "list", "--listen=127.0.0.1:7"), 0);
	assert_string_equal(c.options.listen, "127.0.0.1:7");
	cli_done(&c);
}

static void flags_and_words_come_in_any_order(void **state)
{
	struct cli c;
	struct error err;
	assert_int_equal(PARSE(&c, &err, "run", "--user", "root", "base", "-t", "--state.dir=/s", "-e", "A=b=c", "--json", "--env=X=", "--", "--user", "-x", "--listen"), 0);
	assert_int_equal(c.n_words, 1);
	assert_string_equal(c.words[0], "base");
	assert_string_equal(cli_flag(&c, "user")->text, "root");
	assert_true(cli_flag(&c, "tty")->set);
	assert_false(cli_flag(&c, "no-stdin")->set);
	assert_true(c.json);
	assert_string_equal(c.options.state_dir, "/s");
	assert_int_equal(c.n_pairs, 2);
	assert_str(c.pairs[0].key, "A");
	assert_str(c.pairs[0].value, "b=c");
	assert_str(c.pairs[1].value, "");
	/* Behind -- nothing is ours. */
	assert_string_equal(c.rest[0], "--user");
	assert_string_equal(c.rest[2], "--listen");
	assert_null(c.rest[3]);
	assert_string_equal(c.options.listen, "127.0.0.1:3000");
	cli_done(&c);
}

static void mistakes_are_named(void **state)
{
	static const struct {
		const char *words[6], *named;
	} cases[] = {
		{{"run", "base"}, "--"},
		{{"run", "base", "--"}, "command"},
		{{"run", "--", "true"}, "TEMPLATE"},
		{{"run", "base", "ls", "--", "true"}, "'ls'"},
		{{"run", "base", "--nope", "--", "true"}, "--nope"},
		{{"run", "base", "--user"}, "--user"},
		{{"run", "base", "--user", "--", "true"}, "--user"},
		{{"run", "base", "--timeout", "1.5"}, "1.5"},
		{{"run", "base", "--timeout", "-2"}, "-2"},
		{{"run", "base", "--tty=yes"}, "--tty"},
		{{"run", "base", "-e", "=x"}, "'=x'"},
		{{"run", "base", "-e", "CUBICLE_TEST_NOT_SET"}, "CUBICLE_TEST_NOT_SET"},
		{{"sandbox", "list", "x"}, "'x'"},
		{{"sandbox", "list", "--", "x"}, "--"},
		{{"sandbox", "info"}, "SANDBOX"},
		{{"config", "--pool.min", "x"}, "pool.min"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct cli c;
		struct error err;
		const char *words[7] = {0};
		memcpy(words, cases[i].words, sizeof(cases[i].words));
		assert_true(parse(&c, &err, words, no_env) < 0);
		if (!strstr(err.message, cases[i].named))
			fail_msg("\"%s\" does not name %s", err.message, cases[i].named);
		cli_done(&c);
	}
	int taken;
	char *unknown[] = {"cubicle", "sandbox", "fly", NULL}, *group[] = {"cubicle", "sandbox", NULL};
	assert_null(command_find(3, unknown, &taken));
	assert_null(command_find(2, group, &taken));
}

static void the_environment_configures(void **state)
{
	struct cli c;
	struct error err;
	char *env[] = {"CUBICLE_LISTEN=0.0.0.0:80", "CUBICLE_API_KEY=k", NULL};
	assert_int_equal(parse(&c, &err, (const char *[]){"env", NULL}, env), 0);
	assert_string_equal(c.options.listen, "0.0.0.0:80");
	cli_done(&c);
}

/* What a real shell makes of it. */
static void exports_survive_eval(void **state)
{
	static const char evil[] = "a'b\"c$(touch /tmp/cubicle-eval)`id`\\ \n;exit 3 #*";
	cleanup_buf struct buf text = BUF_INIT, script = BUF_INIT;
	assert_int_equal(env_exports(&text, &(struct env){.key = str_of(evil), .url = "http://127.0.0.1:3000", .domain = STR("x.test:1")}, false), 0);
	buf_addf(&script, "%s\nprintf %%s \"$E2B_API_KEY|$CUBE_PROXY_NODE_IP|$CUBE_PROXY_PORT_HTTP|$E2B_DOMAIN\"", buf_cstr(&text));
	setenv("CUBICLE_TEST_SCRIPT", buf_cstr(&script), 1);
	FILE *sh = popen("eval \"$CUBICLE_TEST_SCRIPT\"", "r");
	char got[256] = "", want[256];
	size_t n = fread(got, 1, sizeof(got) - 1, sh);
	got[n] = 0;
	assert_int_equal(pclose(sh), 0);
	snprintf(want, sizeof(want), "%s|127.0.0.1|3000|x.test:1", evil);
	assert_string_equal(got, want);
}

static void strangers_text_cannot_drive_the_terminal(void **state)
{
	cleanup_buf struct buf text = BUF_INIT;
	print_safe(&text, STR("a\033[2Jb\xc2\x9b" "31m\tü\x7f"));
	assert_string_equal(buf_cstr(&text), "a?[2Jb?31m?ü?");
	buf_clear(&text);
	print_safe(&text, STR("\xff\xfe" "x"));
	assert_string_equal(buf_cstr(&text), "??x");
}

static void sizes_and_durations_read_well(void **state)
{
	char t[24];
	assert_string_equal(size_text(t, 999), "999 B");
	assert_string_equal(size_text(t, 238002176), "238 MB");
	assert_string_equal(size_text(t, 1500), "1.5 kB");
	assert_string_equal(duration_text(t, 119), "119 s");
	assert_string_equal(duration_text(t, 120), "2 min");
	assert_string_equal(duration_text(t, -5), "0 s");
	assert_string_equal(duration_text(t, INT64_MAX), "never");
}

int main(void)
{
	unsetenv("CUBICLE_CONFIG");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_is_sound),
		cmocka_unit_test(a_flag_of_the_command_hides_an_option_of_its_name),
		cmocka_unit_test(flags_and_words_come_in_any_order),
		cmocka_unit_test(mistakes_are_named),
		cmocka_unit_test(the_environment_configures),
		cmocka_unit_test(exports_survive_eval),
		cmocka_unit_test(strangers_text_cannot_drive_the_terminal),
		cmocka_unit_test(sizes_and_durations_read_well),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
