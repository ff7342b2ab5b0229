#include "unit.h"

#include "base/cleanup.h"
#include "node/journal.h"

#include <stdio.h>

/* The log of one sandbox as node keeps it. */

#define INIT(n, t, text) "{\"n\":" n ",\"t\":" t ",\"message\":\"" text "\"}\n"

static struct buf text;

static const char *all(const struct journal *j, uint64_t after, int64_t since)
{
	uint64_t next;
	buf_clear(&text);
	assert_int_equal(journal_read(j, after, since, 1 << 20, &text, &next), 0);
	return buf_cstr(&text);
}

static void page(struct journal *j, const char *lines)
{
	journal_add_page(j, str_of(lines), 1000, JOURNAL_INIT_MAX);
}

static void both_kinds_are_kept_in_their_order(void **state)
{
	struct journal j = {0};
	const struct journal_field fields[] = {{"reason", STR("killed")}, {"detail", STR("")}, {"odd", STR("\"\n")}, {0}};
	page(&j, INIT("1", "5", "a"));
	journal_add(&j, 7, "info", "ended", fields);
	assert_string_equal(all(&j, 0, 0), "-5 {\"message\":\"a\"}\n+7 {\"level\":\"info\",\"logger\":\"lifecycle\",\"message\":\"ended\",\"fields\":{\"reason\":\"killed\",\"odd\":\"\\\"\\n\"}}\n");
	assert_non_null(strstr(all(&j, 1, 0), "+7 "));
	assert_string_equal(all(&j, 2, 0), "");
	assert_int_equal(all(&j, 0, 6)[0], '+');
	journal_done(&j);
}

static void what_comes_again_is_passed_over(void **state)
{
	struct journal j = {0};
	page(&j, INIT("1", "5", "a") INIT("2", "6", "b"));
	page(&j, INIT("1", "5", "a") INIT("2", "6", "b") INIT("3", "6", "c"));
	assert_string_equal(all(&j, 0, 0), "-5 {\"message\":\"a\"}\n-6 {\"message\":\"b\"}\n-6 {\"message\":\"c\"}\n");
	/* Another init of the same sandbox counts anew, later. */
	page(&j, INIT("1", "9", "d"));
	assert_non_null(strstr(all(&j, 0, 0), "-9 {\"message\":\"d\"}\n"));
	journal_done(&j);
}

static void what_is_no_line_is_dropped(void **state)
{
	struct journal j = {0};
	page(&j, "\n{}\n+1 {}\n{\"n\":x,\"t\":1,}\n{\"n\":1}\n{\"n\":1,\"t\":-1,}\n{\"n\":1,\"t\":1,\"tab\":\"\t\"}\n{\"n\":99999999999999999999,\"t\":1,}\n{\"n\":1,\"t\":1,cut");
	assert_string_equal(all(&j, 0, 0), "");
	/* A time to come is now. */
	page(&j, INIT("1", "9000000000000000000", "a"));
	assert_string_equal(all(&j, 0, 0), "-1000 {\"message\":\"a\"}\n");
	journal_done(&j);
}

static void a_flood_from_inside_leaves_what_happened(void **state)
{
	struct journal j = {0};
	char line[2200];
	journal_add(&j, 1, "info", "created", NULL);
	for (int i = 1; i < 1000; i++) {
		snprintf(line, sizeof(line), "{\"n\":%d,\"t\":%d,\"message\":\"%02000d\"}\n", i, i, i);
		page(&j, line);
	}
	assert_in_range(j.init, JOURNAL_INIT_MAX - 3000, JOURNAL_INIT_MAX);
	const char *kept = all(&j, 0, 0);
	assert_non_null(strstr(kept, "created"));
	assert_non_null(strstr(kept, "-999 "));
	assert_null(strstr(kept, "-10 "));
	/* And node's own are bounded, too. */
	for (int i = 0; i < 2000; i++)
		journal_add(&j, i, "info", "paused", NULL);
	assert_true(j.own <= JOURNAL_OWN_MAX);
	assert_non_null(strstr(all(&j, 0, 0), "-999 "));
	journal_done(&j);
}

static void pages_go_on_where_they_ended(void **state)
{
	struct journal j = {0};
	uint64_t next = 0;
	for (int i = 0; i < 50; i++)
		journal_add(&j, i, "info", "paused", NULL);
	size_t n = 0;
	for (int r = 1; r == 1;) {
		buf_clear(&text);
		r = journal_read(&j, next, 0, 300, &text, &next);
		assert_true(buf_len(&text) > 0);
		for (size_t i = 0; i < buf_len(&text); i++)
			n += buf_str(&text).p[i] == '\n';
	}
	assert_int_equal(n, 50);
	journal_done(&j);
}

static void a_file_gives_back_what_was_written(void **state)
{
	struct journal j = {0}, back = {0};
	cleanup_buf struct buf file = BUF_INIT;
	page(&j, INIT("1", "5", "a"));
	journal_add(&j, 7, "info", "paused", NULL);
	assert_int_equal(journal_write(&j, &file), 0);
	buf_add_c(&file, "rubbish\n-x {}\n-9 {\"cut");
	journal_load(&back, buf_str(&file));
	cleanup_free char *before = strdup(all(&j, 0, 0));
	assert_string_equal(all(&back, 0, 0), before);
	assert_int_equal(back.own, j.own);
	journal_done(&j);
	journal_done(&back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_kinds_are_kept_in_their_order),
		cmocka_unit_test(what_comes_again_is_passed_over),
		cmocka_unit_test(what_is_no_line_is_dropped),
		cmocka_unit_test(a_flood_from_inside_leaves_what_happened),
		cmocka_unit_test(pages_go_on_where_they_ended),
		cmocka_unit_test(a_file_gives_back_what_was_written),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	buf_done(&text);
	return r;
}
