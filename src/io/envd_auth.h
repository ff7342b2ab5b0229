/* Who may use envd (e2b.md B.1). Known to both sides: envd asks this of each file request, the ingress of one that would wake a paused sandbox. No I/O. */
#ifndef CUBICLE_IO_ENVD_AUTH_H
#define CUBICLE_IO_ENVD_AUTH_H

#include "io/http.h"

/*
 * Whether a request may be served in a sandbox that wants `token` (empty = an open one): as X-Access-Token or, for /files alone, in a signature of the
 * query. 0, or the status to refuse with and a message (static).
 */
int envd_auth_refusal(const struct http_head *head, struct str token, const char **ret_message);

#endif
