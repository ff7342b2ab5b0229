/* Incremental multipart/form-data parser (RFC 7578; filename rules of e2b.md B.4). No I/O. */
#ifndef CUBICLE_IO_MULTIPART_H
#define CUBICLE_IO_MULTIPART_H

#include "base/buf.h"

enum { MULTIPART_MAX_HEADERS = 16 * 1024 };

struct multipart;

struct multipart_part {
	struct str name;     /* form-data name */
	struct str filename; /* decoded: only %22, %00 to %1F, \\ and \" are undone */
	bool has_filename;
};

/* Any callback may return a negative errno, which ends the parse with it. */
struct multipart_ops {
	int (*part)(const struct multipart_part *p, void *arg);    /* headers of a part are complete */
	int (*data)(const char *p, size_t n, void *arg);           /* its bytes */
	int (*part_end)(void *arg);                                /* it is complete */
};

/* `content_type` is the request header's value. NULL with errno EINVAL when there is no usable boundary (1..70 bytes), or ENOMEM. */
struct multipart *multipart_new(struct str content_type, const struct multipart_ops *ops, void *arg);
/* Feeds bytes: 0, -EPROTO (malformed), or what a callback returned. */
int multipart_feed(struct multipart *m, const char *p, size_t n);
/* At the end of the body: 0 when the closing boundary was seen, else -EPROTO. */
int multipart_finish(struct multipart *m);
void multipart_free(struct multipart *m);

#endif
