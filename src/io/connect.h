/* Connect protocol (e2b.md B.5): 5-byte envelopes and error codes. JSON codec only. No I/O. */
#ifndef CUBICLE_IO_CONNECT_H
#define CUBICLE_IO_CONNECT_H

#include "base/buf.h"

#include <sys/types.h>

enum { CONNECT_FLAG_COMPRESSED = 1, CONNECT_FLAG_END = 2, CONNECT_HEADER = 5 };

/* Appends one envelope. 0 or -ENOMEM. */
int connect_envelope(struct buf *to, unsigned flags, struct str message);

/* One whole envelope at the front of `in`: bytes it takes (> 0) with *ret_flags and *ret_message set, 0 = more needed, -EMSGSIZE over max. */
ssize_t connect_parse_envelope(struct str in, size_t max, unsigned *ret_flags, struct str *ret_message);

enum connect_code {
	CONNECT_CANCELED = 1, CONNECT_UNKNOWN, CONNECT_INVALID_ARGUMENT, CONNECT_DEADLINE_EXCEEDED, CONNECT_NOT_FOUND,
	CONNECT_ALREADY_EXISTS, CONNECT_PERMISSION_DENIED, CONNECT_RESOURCE_EXHAUSTED, CONNECT_FAILED_PRECONDITION,
	CONNECT_ABORTED, CONNECT_OUT_OF_RANGE, CONNECT_UNIMPLEMENTED, CONNECT_INTERNAL, CONNECT_UNAVAILABLE, CONNECT_DATA_LOSS,
	CONNECT_UNAUTHENTICATED,
};

/* Wire name ("not_found") and unary HTTP status of a code. */
const char *connect_code_name(enum connect_code code);
int connect_code_status(enum connect_code code);

/* {"code":"…","message":"…"} */
int connect_error_json(struct buf *to, enum connect_code code, struct str message);
/* Appends the end-of-stream envelope: {} for code 0, else {"error":{…}}. */
int connect_end(struct buf *to, enum connect_code code, struct str message);

#endif
