/* Is the service on a port of this machine ready? Its /health waits for the kernels that were started with it (server.h). */
#ifndef CUBICLE_INTERP_PROBE_H
#define CUBICLE_INTERP_PROBE_H

#include "base/error.h"

#include <stdint.h>

/* Asks 127.0.0.1:port, blocking, until it answers, and at most `seconds` for each step. 0 when it answered 200, else -errno with *err. */
int probe_health(uint16_t port, unsigned seconds, struct error *err);

#endif
