/* Does a port of the sandbox answer? Asked by PID 1 itself, at 127.0.0.1: a connection, or an HTTP GET that is answered with 2xx. */
#ifndef CUBICLE_GUEST_PROBE_H
#define CUBICLE_GUEST_PROBE_H

#include "base/str.h"
#include "io/loop.h"

#include <stdint.h>

enum { PROBE_TRY_MS = 5000 };

struct probe;

/* why: in words, when not. */
typedef void probe_fn(bool ok, struct str why, void *arg);
/* path NULL: a connection is enough. It is kept by the caller. NULL without memory. */
struct probe *probe_new(struct loop *l, uint16_t port, const char *path, probe_fn *fn, void *arg);
/* Asks; fn() follows, not before this returns, within PROBE_TRY_MS. One at a time. */
void probe_ask(struct probe *p);
/* fn() does not follow. */
void probe_stop(struct probe *p);
/* Takes NULL. */
void probe_free(struct probe *p);

#endif
