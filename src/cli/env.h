/* The variables that point the published clients at this server. */
#ifndef CUBICLE_CLI_ENV_H
#define CUBICLE_CLI_ENV_H

#include "base/buf.h"

/* Appends s quoted for a POSIX shell, safe for eval whatever s holds. 0 or -ENOMEM. */
int shell_quote(struct buf *to, struct str s);

/* Appends `export NAME='value'` lines for E2B and Cube clients (cube.md G.3), or one JSON object. url: "http://host:port". 0 or -ENOMEM. */
int env_exports(struct buf *to, struct str key, const char *url, const char *domain, bool json);

#endif
