/*
 * The file services of the sandbox: GET, HEAD and POST /files (e2b.md B.3, B.4), filesystem.Filesystem
 * (B.7), and our own /archive (guest/archive.h). Each request is served by one short-lived worker process in the work cgroup, forked by the spawner,
 * as root of the sandbox and inside its root: paths and links are followed as for any process there.
 * Straight-line blocking code with flat memory (about 700 KiB and what the answer of a ListDir takes).
 */
#ifndef CUBICLE_GUEST_FILES_H
#define CUBICLE_GUEST_FILES_H

#include "io/http.h"

#include <stdint.h>

struct files_request {
	int conn;                    /* connected stream socket, non-blocking (and left so); not owned */
	struct str head_bytes;       /* the request's head as received */
	struct str rest;             /* bytes received beyond the head */
	const char *default_user;    /* NULL = root */
	const char *default_workdir; /* what an empty path means; NULL = the user's home */
	int64_t idle_timeout_ns; /* without a byte from the client, five times that without one taken by it; 0
				    = 120 s. No other limit on time */
};

/* True for requests that belong to files_worker(): the path /files and below, /archive, and every method of
 * filesystem.Filesystem. */
bool files_serves(const struct http_head *head);

/*
 * Serves one request (that envd_auth_refusal() let pass: it costs no process, so who has no token cannot occupy the workers) whole, Expect: 100-continue and every error answer included. Ignores
 * SIGPIPE, sets the umask and raises the soft limit of open files, so it belongs into a process of its own.
 * Returns 0 when the answer went out whole (also an error answer), or a negative errno when the connection
 * was cut in the middle. *ret_keep_alive tells whether the connection may carry another request, of which the
 * bytes in *ret_rest (appended) were received already; without it the caller closes the socket, which then
 * holds nothing unread as far as the peer ended its request.
 */
int files_worker(const struct files_request *q, struct buf *ret_rest, bool *ret_keep_alive);

#endif
