/*
 * WebSocket handshakes that are refused. A browser hides status and body of a refusal from its page, which sees the code 1006 and, mostly, tries again for
 * ever. So the handshake is accepted, and the connection closed with a code and a reason that the page gets to read (RFC 6455).
 */
#ifndef CUBICLE_INGRESS_WEBSOCKET_H
#define CUBICLE_INGRESS_WEBSOCKET_H

#include "io/http_server.h"

/* A handshake of version 13 with all that an answer needs. */
bool websocket_is_handshake(const struct http_head *h);

/* Accepts the request, which must be one, and closes with that code; of the reason as much as a close frame holds (123 bytes, cut between characters). */
void websocket_refuse(struct http_req *r, unsigned code, struct str reason);

#endif
