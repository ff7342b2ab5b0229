#include "fuzz.h"

#include "io/connect.h"
#include "io/json.h"

enum { MAX_MESSAGE = 4096 };

void fuzz_one(struct str input)
{
	struct str rest = input, message;
	unsigned flags;
	for (;;) {
		ssize_t n = connect_parse_envelope(rest, MAX_MESSAGE, &flags, &message);
		if (n <= 0)
			break;
		hold((size_t)n <= rest.n && message.n == (size_t)n - CONNECT_HEADER && message.n <= MAX_MESSAGE && inside(rest, message));
		cleanup_buf struct buf again = BUF_INIT;
		hold(connect_envelope(&again, flags, message) == 0);
		hold(str_eq(buf_str(&again), str_n(rest.p, (size_t)n)));
		struct error err = {0};
		cleanup_json json_t *j = json_parse(message, MAX_MESSAGE, "message", &err);
		hold(j || err.status == 400);
		rest = str_from(rest, (size_t)n);
	}
	/* Any text becomes an error that is JSON. */
	cleanup_buf struct buf e = BUF_INIT;
	hold(connect_error_json(&e, CONNECT_INTERNAL, input) == 0);
	cleanup_json json_t *j = json_parse(buf_str(&e), SIZE_MAX, "error", NULL);
	hold(json_is_object(j) && json_is_string(json_object_get(j, "message")));
}
