#include "fuzz.h"

#include "base/encode.h"
#include "io/url.h"

#include <errno.h>

static void check_round_trip(struct str input)
{
	cleanup_buf struct buf decoded = BUF_INIT, encoded = BUF_INIT, again = BUF_INIT;
	int r = url_decode(&decoded, input, false);
	hold(r == 0 || (r == -EINVAL && buf_len(&decoded) == 0));
	hold(buf_len(&decoded) <= input.n);
	hold(url_encode(&encoded, input) == 0);
	hold(url_decode(&again, buf_str(&encoded), true) == 0);
	hold(str_eq(buf_str(&again), input));
}

static void check_base64(struct str input)
{
	cleanup_buf struct buf text = BUF_INIT, bytes = BUF_INIT, any = BUF_INIT;
	hold(base64_encode(&text, input) == 0);
	hold(base64_decode(&bytes, buf_str(&text)) == 0 && str_eq(buf_str(&bytes), input));
	hold(base64_decode(&any, input) == 0 || buf_len(&any) <= input.n);
}

void fuzz_one(struct str input)
{
	struct str rest = input, key, value;
	size_t pairs = 0;
	while (url_query_next(&rest, &key, &value)) {
		hold(inside(input, key) && inside(input, value) && !memchr(key.p, '&', key.n) && !memchr(value.p, '&', value.n));
		hold(++pairs <= input.n);
	}
	cleanup_buf struct buf found = BUF_INIT;
	int r = url_query_get(input, "path", &found);
	hold(r == 1 || buf_len(&found) == 0);
	check_round_trip(input);
	check_base64(input);
}
