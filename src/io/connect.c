#include "io/connect.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>

int connect_envelope(struct buf *to, unsigned flags, struct str message)
{
	if (message.n > UINT32_MAX)
		return -EMSGSIZE;
	unsigned char *p = (unsigned char *)buf_reserve(to, CONNECT_HEADER + message.n);
	if (!p)
		return -ENOMEM;
	p[0] = (unsigned char)flags;
	p[1] = (unsigned char)(message.n >> 24);
	p[2] = (unsigned char)(message.n >> 16);
	p[3] = (unsigned char)(message.n >> 8);
	p[4] = (unsigned char)message.n;
	if (message.n)
		memcpy(p + CONNECT_HEADER, message.p, message.n);
	buf_commit(to, CONNECT_HEADER + message.n);
	return 0;
}

ssize_t connect_parse_envelope(struct str in, size_t max, unsigned *ret_flags, struct str *ret_message)
{
	if (in.n < CONNECT_HEADER)
		return 0;
	const unsigned char *p = (const unsigned char *)in.p;
	size_t n = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
	if (n > max)
		return -EMSGSIZE;
	if (in.n - CONNECT_HEADER < n)
		return 0;
	*ret_flags = p[0];
	*ret_message = str_n(in.p + CONNECT_HEADER, n);
	return (ssize_t)(CONNECT_HEADER + n);
}

static const struct {
	const char *name;
	int status;
} codes[] = {
	[CONNECT_CANCELED] = {"canceled", 499},
	[CONNECT_UNKNOWN] = {"unknown", 500},
	[CONNECT_INVALID_ARGUMENT] = {"invalid_argument", 400},
	[CONNECT_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504},
	[CONNECT_NOT_FOUND] = {"not_found", 404},
	[CONNECT_ALREADY_EXISTS] = {"already_exists", 409},
	[CONNECT_PERMISSION_DENIED] = {"permission_denied", 403},
	[CONNECT_RESOURCE_EXHAUSTED] = {"resource_exhausted", 429},
	[CONNECT_FAILED_PRECONDITION] = {"failed_precondition", 400},
	[CONNECT_ABORTED] = {"aborted", 409},
	[CONNECT_OUT_OF_RANGE] = {"out_of_range", 400},
	[CONNECT_UNIMPLEMENTED] = {"unimplemented", 501},
	[CONNECT_INTERNAL] = {"internal", 500},
	[CONNECT_UNAVAILABLE] = {"unavailable", 503},
	[CONNECT_DATA_LOSS] = {"data_loss", 500},
	[CONNECT_UNAUTHENTICATED] = {"unauthenticated", 401},
};

static bool known(enum connect_code code)
{
	return (unsigned)code < sizeof(codes) / sizeof(codes[0]) && codes[code].name;
}

const char *connect_code_name(enum connect_code code)
{
	return codes[known(code) ? code : CONNECT_UNKNOWN].name;
}

int connect_code_status(enum connect_code code)
{
	return codes[known(code) ? code : CONNECT_UNKNOWN].status;
}

int connect_error_json(struct buf *to, enum connect_code code, struct str message)
{
	int r = buf_addf(to, "{\"code\":\"%s\",\"message\":", connect_code_name(code));
	if (r == 0)
		r = json_quote(to, message);
	return r < 0 ? r : buf_add_c(to, "}");
}

int connect_end(struct buf *to, enum connect_code code, struct str message)
{
	if (code == 0)
		return connect_envelope(to, CONNECT_FLAG_END, STR("{}"));
	cleanup_buf struct buf body = BUF_INIT;
	buf_add_c(&body, "{\"error\":");
	connect_error_json(&body, code, message);
	buf_add_c(&body, "}");
	return body.failed ? -ENOMEM : connect_envelope(to, CONNECT_FLAG_END, buf_str(&body));
}
