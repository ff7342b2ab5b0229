/* The channel to the process of the MCP server (mcp/process.h), which gives out connections to itself. */
#ifndef CUBICLE_INGRESS_TOOLS_H
#define CUBICLE_INGRESS_TOOLS_H

#include "io/chan.h"

struct tools;
struct tools_call;

/* A connected, non-blocking socket (owned by the callback), or -errno. From the loop. */
typedef void tools_done_fn(int fd, void *arg);

/* NULL without memory. */
struct tools *tools_new(struct loop *l);
/* Calls in flight end without done(). Takes NULL. */
void tools_free(struct tools *t);
/* A fresh channel (owned from here); calls on the old one fail. 0 or -errno. */
int tools_attach(struct tools *t, int fd);
/* Asks for a connection. NULL when there is no such process at the moment. */
struct tools_call *tools_open(struct tools *t, tools_done_fn *done, void *arg);
/* Nobody waits any more: done() is not called. Takes NULL. */
void tools_call_cancel(struct tools_call *c);

#endif
