/* What clients write into paths, queries and bodies, decoded by the rules of e2b.md A.4 and A.5. No I/O, no state. */
#ifndef CUBICLE_API_DECODE_H
#define CUBICLE_API_DECODE_H

#include "base/buf.h"
#include "base/error.h"
#include "config/options.h"
#include "io/json.h"
#include "io/msg.h"

/* A sandbox id of a path: [a-z0-9]+, also in the old form <id>-<client id>. *ret is a view into s. 0, or -EINVAL with *err (400). */
int decode_sandbox_id(struct str s, struct str *ret, struct error *err);

enum { TEMPLATE_REFERENCE_MAX = 255 };

/* "[namespace/]alias[:tag]", trimmed and lower-cased; the tag "default" is none. */
struct template_reference {
	char name[TEMPLATE_REFERENCE_MAX + 1]; /* with the namespace, without the tag */
	char tag[TEMPLATE_REFERENCE_MAX + 1];  /* empty = none */
};
/* 0, or -EINVAL with *err (400). */
int decode_template_reference(struct str s, struct template_reference *ret, struct error *err);

/*
 * The `metadata` filter, once decoded as a query value. Clients encode twice more: the whole is unescaped again, cut at '&' and '=', then each key and value
 * is unescaped. Appends the pairs to *ret in the form of a msg_map. 0, -ENOMEM, or -EINVAL with *err (400).
 */
int decode_metadata_filter(struct str s, struct buf *ret, struct error *err);
/* Whether `have` contains every pair of the filter exactly. */
bool metadata_matches(struct msg_map have, struct msg_map filter);

/*
 * Calls fn(name, value, arg, err) for each pair of a query, both decoded, until one fails. 0, -ENOMEM, -EINVAL with *err (400) for a broken escape, or what fn
 * returned, with its *err; one that says nothing has run out of memory (503). Unknown names are fn's to pass over: newer clients send some.
 */
typedef int query_pair_fn(struct str name, struct str value, void *arg, struct error *err);
int decode_query(struct str query, query_pair_fn *fn, void *arg, struct error *err);

/* Where the next page of a list starts: after this sandbox or snapshot. */
struct cursor {
	int64_t at; /* the time that the list is sorted by: ns, CLOCK_REALTIME */
	char id[33];
	bool ascending;
};
/* base64url of "<RFC 3339, nanoseconds>__<id>", with "__asc" behind for ascending lists. 0 or -ENOMEM. */
int cursor_encode(const struct cursor *c, struct buf *to);
/* 0, or -EINVAL with *err (400). */
int cursor_decode(struct str s, struct cursor *ret, struct error *err);

/*
 * Members of a JSON object that is a request's body (NULL = no body). Each returns 1 = there, 0 = absent or null, or -EINVAL with *err (400) naming the field
 * when its type is wrong. `alias` is another spelling of the same field (NULL = none); giving both is refused.
 */
int field_any(const json_t *body, const char *name, const char *alias, json_t **ret, struct error *err);
int field_bool(const json_t *body, const char *name, const char *alias, bool *ret, struct error *err);
int field_int(const json_t *body, const char *name, const char *alias, int64_t *ret, struct error *err);
int field_str(const json_t *body, const char *name, const char *alias, struct str *ret, struct error *err);
int field_object(const json_t *body, const char *name, const char *alias, json_t **ret, struct error *err);
int field_array(const json_t *body, const char *name, const char *alias, json_t **ret, struct error *err);

/* A name for people: 1 to max bytes without control characters, into to[max + 1]. As above, but 1 or -EINVAL: it must be there. */
int field_name(const json_t *body, const char *name, size_t max, char *to, struct error *err);

/* design.md §6: what a timeout of a body means. */
enum timeout_rule {
	TIMEOUT_OF_CREATE,  /* absent = the default; -1 = never; else > 0 */
	TIMEOUT_OF_CONNECT, /* absent = the default; -1 = never; 0 is allowed */
	TIMEOUT_OF_SET,     /* needed; -1 = never; 0 = now */
};
/* Seconds, at most options->timeout_max. 0, or -EINVAL with *err (400). */
int decode_timeout(const json_t *body, enum timeout_rule rule, const struct options *o, int64_t *ret, struct error *err);

#endif
