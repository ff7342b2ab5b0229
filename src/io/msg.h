/*
 * Messages between our processes (design: docs/architecture.md, "Messages"). One SEQPACKET datagram of at most 64 KiB each:
 * a header, then tagged fields. The table in io/messages.h is the single source: structs, encoder, decoder and checks come from it.
 *
 * Wire form, little-endian: u32 magic "CUBM", u16 version, u16 type, u32 length of the whole, u32 zero, u64 request id;
 * then per field: u16 tag, u16 kind, u32 length, bytes. Unknown tags are skipped (newer peers); everything else out of the table is refused.
 */
#ifndef CUBICLE_IO_MSG_H
#define CUBICLE_IO_MSG_H

#include "base/buf.h"
#include "base/error.h"

enum {
	MSG_MAX = 64 * 1024,
	MSG_HEADER = 24,
	MSG_VERSION = 1,
	MSG_VERSION_OLDEST = 1, /* node and init both speak the current and up to two older versions */
	MSG_MAX_FDS = 4,
};

/* A map of strings: encoded pairs (u32 key length, key, u32 value length, value). A list of strings: u32 length, bytes. */
struct msg_map {
	struct str raw;
};
struct msg_list {
	struct str raw;
};

/* Takes the next pair off *rest (start with m->raw); false at the end. Decoded maps are well-formed. */
bool msg_map_next(struct str *rest, struct str *ret_key, struct str *ret_value);
bool msg_list_next(struct str *rest, struct str *ret_item);
/* Builders: append to a buffer whose bytes then are the raw view. 0 or -ENOMEM. */
int msg_map_add(struct buf *raw, struct str key, struct str value);
int msg_list_add(struct buf *raw, struct str item);

enum msg_kind { MSG_U64 = 1, MSG_I64, MSG_BOOL, MSG_STR, MSG_MAP, MSG_LIST };

struct msg_field {
	const char *name;
	size_t offset;
	uint32_t max; /* bytes, for STR, MAP, LIST */
	uint16_t tag; /* 1..63 */
	uint16_t kind;
	bool required;
};

struct msg_type {
	const char *name;
	const struct msg_field *fields;
	size_t n_fields;
	size_t size;         /* of the struct */
	uint32_t directions; /* who may send it, MSG_FROM_* */
	uint16_t id;
	uint16_t fds; /* descriptors it carries, exactly */
};

/* The entry of a type id, or NULL. */
const struct msg_type *msg_type(unsigned id);

struct msg_header {
	uint16_t version, type;
	uint64_t request; /* answers carry the id of their request; 0 = an event */
};

/* Encodes *m (the struct of that type; every struct begins with uint64_t present) as one datagram appended to `to`.
 * 0, -EMSGSIZE (the field or the whole is too long; the field is named in *err), -ENOMEM. */
int msg_encode(unsigned type, const void *m, uint64_t request, struct buf *to, struct error *err);

/* Decodes one datagram into *ret (a union msg_any), views pointing into it. 0, -EPROTO (malformed; *err says what), -EOPNOTSUPP (unknown type or version). */
int msg_decode(struct str datagram, struct msg_header *ret_header, void *ret, size_t size, struct error *err);

#define msg_has(m, message, field) (((m)->present >> MSG_TAG_##message##_##field) & 1)
#define msg_set(m, message, field, v)                                                                        \
	do {                                                                                                 \
		(m)->field = (v);                                                                            \
		(m)->present |= UINT64_C(1) << MSG_TAG_##message##_##field;                                  \
	} while (0)

#endif
