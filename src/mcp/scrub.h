/* Texts of errors before a model reads them: what tells of the machine behind the tools is taken out, then they are cut. */
#ifndef CUBICLE_MCP_SCRUB_H
#define CUBICLE_MCP_SCRUB_H

#include "base/buf.h"

enum { SCRUB_MOST = 500 }; /* characters */

/*
 * Appends the text without URLs, IPv4 and IPv6 addresses (ports too), host names, absolute paths (but those under /home/user and /tmp, which are the sandbox's), stack traces
 * (Python, C and Node.js: whole lines), keys and tokens, and `secret` (may be empty) wherever it stands: each leaves "[…]" with a word in it. At most SCRUB_MOST characters, cut after that, never within one; control
 * characters become spaces. 0 or -ENOMEM.
 */
int scrub_text(struct str text, struct str secret, struct buf *to);

#endif
