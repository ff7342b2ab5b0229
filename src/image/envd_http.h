/* HTTP/1.1 over one connection for one request, blocking: what image/envd.h is made of. */
#ifndef CUBICLE_IMAGE_ENVD_HTTP_H
#define CUBICLE_IMAGE_ENVD_HTTP_H

#include "image/envd.h"
#include "io/http.h"

enum { ENVD_PORT = 49983, ENVD_SILENCE_S = 600 };

struct envd_http {
	int fd;
	struct buf in;         /* received, not taken yet */
	struct http_body body; /* once the head of the answer is there */
	int status;            /* of it; 0 before */
};

/* Connects and sends a head: the target with its query, percent-encoded; further header lines, each with its CRLF. length < 0: a chunked body follows. */
int envd_http_open(struct envd_http *h, const struct envd *e, const char *method, const char *target, const char *lines, int64_t length, struct error *err);
int envd_http_send(struct envd_http *h, struct str bytes, struct error *err);
/* Waits for the head of the answer. */
int envd_http_answer(struct envd_http *h, struct error *err);
/* The next bytes of its body, valid until the next call: 1, 0 at the end, -errno. */
int envd_http_next(struct envd_http *h, struct str *ret, struct error *err);
/* The whole body, at most max bytes (-EFBIG). */
int envd_http_body(struct envd_http *h, size_t max, struct buf *to, struct error *err);
/* What an answer with another status says: sets *err with its message. */
int envd_http_refused(struct envd_http *h, const char *what, struct error *err);
void envd_http_close(struct envd_http *h);
#define cleanup_envd_http __attribute__((__cleanup__(envd_http_close)))
#define ENVD_HTTP_INIT ((struct envd_http){.fd = -1})

/* Authorization of a Unix user, as a header line. user may be NULL: nothing. */
int envd_http_user(struct buf *lines, const char *user);

#endif
