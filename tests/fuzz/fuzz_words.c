#include "fuzz.h"

#include "image/glob.h"
#include "image/words.h"

/* $A to $Z are what the input's first line says; the other lines are words. */
static bool get(void *data, struct str name, struct str *ret)
{
	struct str *value = data;
	if (name.n != 1 || name.p[0] < 'A' || name.p[0] > 'Z')
		return false;
	*ret = *value;
	return true;
}

static void check(struct str value, struct str text, bool stay, char escape)
{
	struct error err = {0};
	cleanup_buf struct buf whole = BUF_INIT, list = BUF_INIT;
	struct words w = {.escape = escape, .quotes_stay = stay, .get = get, .data = &value};
	size_t n = 0, nuls = 0;
	int r = words_expand(&w, text, &whole, &err), s = words_expand_list(&w, text, &list, &n, &err);
	hold((r == 0) == (s == 0));
	if (r < 0) {
		hold(err.message[0] && err.status == 400 && buf_len(&whole) == 0);
		return;
	}
	hold(buf_len(&whole) <= WORDS_MAX && buf_len(&list) <= buf_len(&whole) + 1);
	for (size_t i = 0; i < buf_len(&list); i++)
		nuls += list.data[list.start + i] == 0;
	hold(n <= nuls);
}

void fuzz_one(struct str input)
{
	struct str value = input, text = STR(""), rest, word;
	if (input.n > 4096)
		return;
	str_cut(input, '\n', &value, &text);
	check(value, text, false, '\\');
	check(value, text, true, '`');
	rest = text;
	size_t words = 0;
	while (words_next(&rest, '\\', &word))
		hold(inside(text, word) && ++words <= text.n);
	if (glob_check(value) == 0)
		glob_match(value, text, GLOB_PLAIN);
	/* One that has no special character fits itself only. */
	if (!glob_is_pattern(text))
		hold(glob_match(text, text, GLOB_DOUBLE_STAR) && glob_match(text, value, GLOB_PLAIN) == str_eq(text, value));
}
