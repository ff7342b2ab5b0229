/* The server on standard input and output: one message a line. */
#ifndef CUBICLE_MCP_CONSOLE_H
#define CUBICLE_MCP_CONSOLE_H

#include "mcp/server.h"

/*
 * Serves until standard input ends, standard output breaks, or SIGINT, SIGTERM or SIGHUP comes; then the sandboxes are ended (see mcp_session_close()). The three signals must
 * be blocked before any thread exists; `signals` is a signalfd of them. config->loop is run here. The number of sandboxes that could not be ended, or -errno with *err.
 */
int mcp_stdio(const struct mcp_config *c, const struct remote_server *server, int signals, struct error *err);

#endif
