#include "io/json.h"

#include <errno.h>

/* Deepest nesting of the text; what stands in strings does not count. Malformed text may give anything: the parser refuses it then. */
static size_t depth_of(struct str s)
{
	size_t depth = 0, deepest = 0;
	bool in_string = false;
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
		} else if (c == '"') {
			in_string = true;
		} else if (c == '[' || c == '{') {
			if (++depth > deepest)
				deepest = depth;
		} else if ((c == ']' || c == '}') && depth) {
			depth--;
		}
	}
	return deepest;
}

json_t *json_parse(struct str text, size_t max, const char *what, struct error *err)
{
	if (text.n > max) {
		error_set(err, -EMSGSIZE, 400, "%s is longer than %zu bytes", what, max);
		return NULL;
	}
	if (depth_of(text) > JSON_MAX_DEPTH) {
		error_set(err, -EINVAL, 400, "%s is nested deeper than %d", what, JSON_MAX_DEPTH);
		return NULL;
	}
	json_error_t why;
	json_t *j = json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
	if (!j)
		error_set(err, -EINVAL, 400, "%s is no valid JSON: %s (line %d, column %d)", what, why.text, why.line, why.column);
	return j;
}

struct str json_str(const json_t *j)
{
	return json_is_string(j) ? str_n(json_string_value(j), json_string_length(j)) : STR("");
}
