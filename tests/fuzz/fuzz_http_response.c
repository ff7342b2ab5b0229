#include "bodies.h"

#include "ingress/forward.h"

void fuzz_one(struct str input)
{
	static struct http_head h;
	for (int head = 0; head < 2; head++) {
		ssize_t n = http_parse_response(input, head, &h);
		hold(n <= (ssize_t)input.n);
		if (n <= 0)
			continue;
		check_head(input, &h);
		hold(h.status >= 100 && h.status <= 599 && inside(input, h.reason));
		hold(!head || h.framing == HTTP_BODY_NONE);
		hold(!h.keep_alive || h.framing != HTTP_BODY_UNTIL_CLOSE);
		hold(http_parse_response(str_n(input.p, (size_t)n - 1), head, &h) == 0);
		hold(http_parse_response(input, head, &h) == n);
		check_body(str_from(input, (size_t)n), h.framing, h.length);
		cleanup_buf struct buf lines = BUF_INIT;
		hold(forward_response(&lines, &h, head) == 0);
	}
}
