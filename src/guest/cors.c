#include "guest/cors.h"

void cors_add(const struct http_head *h, struct buf *to)
{
	if (!http_find(h, "Origin"))
		return;
	buf_add_c(to, "Access-Control-Allow-Origin: *\r\n"
		      "Access-Control-Expose-Headers: Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, "
		      "Location, "
		      "Cache-Control, X-Content-Type-Options, Content-Disposition, Content-Encoding, "
		      "Content-Range, "
		      "Accept-Ranges\r\n");
}

void cors_add_preflight(const struct http_head *h, struct buf *to)
{
	/* "*" would leave out Authorization (Fetch §4.10), so what is asked for is named. */
	struct str wanted = http_value(h, "Access-Control-Request-Headers");
	buf_add_c(to, "Access-Control-Allow-Methods: HEAD, GET, POST, PUT, PATCH, DELETE\r\n"
		      "Access-Control-Max-Age: 7200\r\nVary: Access-Control-Request-Headers\r\n");
	http_add_header(to, "Access-Control-Allow-Headers", wanted.n ? wanted : STR("*"));
}
