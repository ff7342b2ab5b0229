#include "unit.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/logs.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 57344 };

/* Reads everything by pages; returns how many entries there were, and the number of the first in *ret_first. */
static size_t read_all(const struct logs *l, size_t page, uint64_t *ret_first)
{
	size_t n = 0;
	uint64_t after = 0, next, last = 0;
	int more;
	do {
		cleanup_buf struct buf text = BUF_INIT;
		more = logs_read(l, after, 0, page, &text, &next);
		assert_true(more >= 0 && buf_len(&text) <= page);
		for (struct str rest = buf_str(&text), line; str_cut(rest, '\n', &line, &rest); n++) {
			cleanup_json json_t *j = json_parse(line, PAGE, "entry", NULL);
			uint64_t number = (uint64_t)json_integer_value(json_object_get(j, "n"));
			assert_non_null(j);
			assert_true(!last || number == last + 1);
			if (!last)
				*ret_first = number;
			last = number;
		}
		assert_true(!more || next > after);
		after = next;
	} while (more);
	return n;
}

static void entries_come_back_in_order(void **state)
{
	struct logs *l = logs_new();
	char text[16];
	uint64_t first;
	for (int i = 0; i < 500; i++) {
		snprintf(text, sizeof(text), "%d", i);
		logs_add(l, LOG_INFO, "test", str_of(text), (struct log_field[]){{"field", STR("v\"\n")}, {0}});
	}
	assert_int_equal(read_all(l, PAGE, &first), 500);
	assert_int_equal(read_all(l, 400, &first), 500);
	assert_int_equal(first, 1);
	logs_free(l);
}

static void the_oldest_go_when_it_is_full(void **state)
{
	struct logs *l = logs_new();
	char text[LOGS_MAX_TEXT + 100];
	uint64_t first;
	memset(text, 'x', sizeof(text));
	for (int i = 0; i < 1000; i++)
		logs_add(l, LOG_INFO, "test", str_n(text, sizeof(text)), NULL);
	size_t n = read_all(l, PAGE, &first);
	assert_true(n > 50 && n * LOGS_MAX_TEXT <= LOGS_MAX_BYTES);
	assert_int_equal(first, 1000 - n + 1);
	logs_free(l);
}

static void the_worst_entry_fits_a_page(void **state)
{
	struct logs *l = logs_new();
	char text[LOGS_MAX_TEXT];
	uint64_t first;
	memset(text, 1, sizeof(text)); /* six characters each, escaped */
	struct str s = str_n(text, sizeof(text));
	logs_add(l, LOG_ERROR, "test", s, (struct log_field[]){{"a", s}, {"b", s}, {0}});
	assert_int_equal(read_all(l, PAGE, &first), 1);
	logs_free(l);
}

static void long_texts_are_cut_between_characters(void **state)
{
	struct logs *l = logs_new();
	cleanup_buf struct buf text = BUF_INIT, out = BUF_INIT;
	uint64_t next;
	for (int i = 0; i < LOGS_MAX_TEXT; i++)
		buf_add_c(&text, "€");
	logs_add(l, LOG_WARN, "test", buf_str(&text), NULL);
	assert_int_equal(logs_read(l, 0, 0, PAGE, &out, &next), 0);
	assert_null(strstr(buf_cstr(&out), "\\ufffd"));
	assert_non_null(strstr(buf_cstr(&out), "\\u20ac"));
	logs_free(l);
}

static void only_later_ones_are_read(void **state)
{
	struct logs *l = logs_new();
	cleanup_buf struct buf out = BUF_INIT;
	uint64_t next;
	logs_add(l, LOG_INFO, "test", STR("old"), NULL);
	int64_t now = clock_realtime();
	while (clock_realtime() == now)
		;
	logs_add(l, LOG_INFO, "test", STR("new"), NULL);
	assert_int_equal(logs_read(l, 0, now + 1, PAGE, &out, &next), 0);
	assert_null(strstr(buf_cstr(&out), "old"));
	assert_non_null(strstr(buf_cstr(&out), "new"));
	assert_int_equal(next, 2);
	logs_add(NULL, LOG_INFO, "test", STR("nowhere"), NULL);
	logs_free(l);
	logs_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_come_back_in_order),
		cmocka_unit_test(the_oldest_go_when_it_is_full),
		cmocka_unit_test(the_worst_entry_fits_a_page),
		cmocka_unit_test(long_texts_are_cut_between_characters),
		cmocka_unit_test(only_later_ones_are_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
