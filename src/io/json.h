/* jansson behind limits on size and depth: every JSON text that a peer sends enters through here. */
#ifndef CUBICLE_IO_JSON_H
#define CUBICLE_IO_JSON_H

#include "base/error.h"
#include "base/str.h"

#include <jansson.h>

enum { JSON_MAX_DEPTH = 32 };

/* Parses one JSON value (nothing may follow but white space; duplicate keys refused). `what` names it in errors. The caller decrefs. NULL with
 * *err set (400) when it is malformed, deeper than JSON_MAX_DEPTH or longer than max. */
json_t *json_parse(struct str text, size_t max, const char *what, struct error *err);

static inline void json_decref_p(json_t **j)
{
	json_decref(*j);
}
#define cleanup_json __attribute__((__cleanup__(json_decref_p)))

/* View of a JSON string value (may hold NUL); empty for other types and NULL. */
struct str json_str(const json_t *j);

#endif
