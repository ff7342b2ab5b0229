/*
 * Messages of the Jupyter protocol 5 (jupyter-client "Messaging"): the frames of one message, signed with
 * HMAC-SHA256 (its "Wire protocol"). No I/O.
 */
#ifndef CUBICLE_INTERP_WIRE_H
#define CUBICLE_INTERP_WIRE_H

#include "base/buf.h"

enum {
	WIRE_MAX_FRAMES = 16, /* kept of one message; more are buffers, which nothing here uses */
	WIRE_ID_SIZE = 37,    /* a UUID as text */
	WIRE_SIGNATURE_SIZE = 65,
	WIRE_OUT_FRAMES = 6,
};

/* A random UUID (RFC 9562, version 4) as text into to[WIRE_ID_SIZE]. */
void wire_new_id(char *to);

/* Hex signature over header, parent header, metadata and content. 0 or -ENOMEM. */
int wire_sign(struct str key, const struct str frames[4], char ret[WIRE_SIGNATURE_SIZE]);

/* Views into the frames. */
struct wire_message {
	struct str type;      /* msg_type, for example "stream" */
	struct str id;        /* msg_id */
	struct str parent_id; /* msg_id of what it answers; empty when there is none */
	struct str content;   /* a JSON object, checked (jsontext.h) */
};

/* Reads the frames of one received message and proves its signature: 0, -EPROTO (no such message), or
 * -EBADMSG (not signed with this key). */
int wire_parse(const struct str *frames, size_t n, struct str key, struct wire_message *ret);

/* A message to send. */
struct wire_out {
	char id[WIRE_ID_SIZE];
	char signature[WIRE_SIGNATURE_SIZE];
	struct buf header;
	struct str frames[WIRE_OUT_FRAMES]; /* views of this and of the content: send before either goes */
};

/* Makes it: header, signature, frames. `content` is a JSON object. Initialise *out with WIRE_OUT_INIT, end
 * with wire_out_done(). 0 or -ENOMEM. */
int wire_build(
	struct wire_out *out, struct str key, const char *session, const char *type, struct str content);
void wire_out_done(struct wire_out *out);
#define WIRE_OUT_INIT ((struct wire_out){0})
#define cleanup_wire_out __attribute__((__cleanup__(wire_out_done)))

#endif
