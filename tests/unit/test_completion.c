#include "unit.h"

#include "base/cleanup.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/man.h"

#include <stdio.h>

static void two_sandboxes(struct buf *to, void *arg)
{
	++*(int *)arg;
	buf_add_c(to, "i1aa\tbase\ni2bb\t\n");
}

/* The candidates for the last word, without what is said about them, each followed by a blank. *ret_asked: how often the server was asked. */
static char *words(int *ret_asked, const char **typed)
{
	static const struct completion_source sources[] = {{"SANDBOX", two_sandboxes}, {0}};
	static char found[4096];
	cleanup_buf struct buf out = BUF_INIT;
	char *argv[16];
	int argc = 0;
	*ret_asked = 0;
	while (*typed)
		argv[argc++] = (char *)(uintptr_t)*typed++;
	assert_int_equal(completion_words(&out, argc, argv, sources, ret_asked), 0);
	found[0] = 0;
	size_t n = 0;
	for (struct str rest = buf_str(&out), line; str_cut(rest, '\n', &line, &rest);) {
		struct str what;
		str_cut(line, '\t', &line, &what);
		n += (size_t)snprintf(found + n, sizeof(found) - n, "%.*s ", STR_FMT(line));
	}
	return found;
}
#define WORDS(asked, ...) words(asked, (const char *[]){"cubicle", __VA_ARGS__, NULL})

static void commands_are_completed_word_by_word(void **state)
{
	int asked;
	assert_string_equal(WORDS(&asked, "sandb"), "sandbox ");
	assert_string_equal(WORDS(&asked, "sandbox", "ki"), "kill ");
	assert_string_equal(WORDS(&asked, "ve"), "version ");
	assert_string_equal(WORDS(&asked, "nonsense", ""), "");
	assert_string_equal(WORDS(&asked, "sandbox", "nonsense", ""), "");
	assert_non_null(strstr(WORDS(&asked, ""), "sandbox "));
	assert_null(strstr(strstr(WORDS(&asked, ""), "sandbox ") + 1, "sandbox "));
	int none;
	assert_string_equal(words(&none, (const char *[]){"cubicle", NULL}), "");
}

static void arguments_come_from_the_server_or_the_table(void **state)
{
	int asked;
	assert_string_equal(WORDS(&asked, "sandbox", "info", ""), "i1aa i2bb ");
	assert_string_equal(WORDS(&asked, "sandbox", "info", "i2"), "i2bb ");
	assert_int_equal(asked, 1);
	assert_string_equal(WORDS(&asked, "sandbox", "info", "i1aa", ""), "");
	assert_int_equal(asked, 0);
	assert_string_equal(WORDS(&asked, "sandbox", "kill", "i1aa", "--all", "i"), "i1aa i2bb ");
	assert_string_equal(WORDS(&asked, "completion", ""), "bash zsh fish ");
	assert_string_equal(WORDS(&asked, "completion", "z"), "zsh ");
}

static void values_of_flags_and_words_of_others_are_left_alone(void **state)
{
	int asked;
	assert_string_equal(WORDS(&asked, "sandbox", "exec", "--user", ""), "");
	assert_string_equal(WORDS(&asked, "sandbox", "exec", "--user", "root", "i1"), "i1aa ");
	assert_string_equal(WORDS(&asked, "sandbox", "exec", "-e", "A=b", "--listen", "127.0.0.1:1", "--log.level=info", "i1"), "i1aa ");
	assert_string_equal(WORDS(&asked, "sandbox", "exec", "i1aa", ""), "-- ");
	assert_string_equal(WORDS(&asked, "sandbox", "exec", "i1aa", "--", "l"), "");
	assert_string_equal(WORDS(&asked, "sandbox", "exec", "i1aa", "--", "--"), "");
}

static void flags_are_completed_and_options_when_begun(void **state)
{
	int asked;
	assert_string_equal(WORDS(&asked, "sandbox", "kill", "-"), "--all --json --help --config --team ");
	assert_string_equal(WORDS(&asked, "serve", "--lis"), "--listen --listen.tls ");
	assert_string_equal(WORDS(&asked, "serve", "--pool.m"), "--pool.min --pool.max ");
}

static void shells_have_a_script(void **state)
{
	assert_non_null(strstr(completion_script("bash"), "complete "));
	assert_non_null(strstr(completion_script("zsh"), "compdef"));
	assert_non_null(strstr(completion_script("fish"), "complete "));
	assert_null(completion_script("words"));
}

static void the_manual_has_every_command_flag_and_option(void **state)
{
	cleanup_buf struct buf page = BUF_INIT, plain = BUF_INIT;
	assert_int_equal(man_page(&page), 0);
	/* As it reads: without markup. */
	for (const char *s = buf_cstr(&page); *s; s++) {
		if (s[0] == '\\' && s[1] == 'f')
			s += 2;
		else if (s[0] != '\\')
			buf_add(&plain, s, 1);
	}
	for (size_t i = 0; i < n_commands; i++) {
		assert_non_null(strstr(buf_cstr(&plain), commands[i].name));
		for (const struct flag *f = commands[i].flags; f && f->name; f++)
			assert_non_null(strstr(buf_cstr(&plain), f->name));
	}
	assert_non_null(strstr(buf_cstr(&plain), "network.pool = 100.96.0.0/16"));
	/* A line that begins with a dot is a request: none comes out of a text. */
	for (struct str rest = buf_str(&page), line; str_cut(rest, '\n', &line, &rest);)
		if (str_starts(line, STR(".")))
			assert_true(str_starts(line, STR(".TH")) || str_starts(line, STR(".SH")) || str_starts(line, STR(".SS")) || str_starts(line, STR(".TP")) ||
				str_starts(line, STR(".PP")) || str_starts(line, STR(".B ")) || str_starts(line, STR(".I ")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_are_completed_word_by_word),
		cmocka_unit_test(arguments_come_from_the_server_or_the_table),
		cmocka_unit_test(values_of_flags_and_words_of_others_are_left_alone),
		cmocka_unit_test(flags_are_completed_and_options_when_begun),
		cmocka_unit_test(shells_have_a_script),
		cmocka_unit_test(the_manual_has_every_command_flag_and_option),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
