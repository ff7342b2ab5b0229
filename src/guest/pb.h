/* Fields of a JSON object as the protobuf JSON mapping reads them: lowerCamelCase or snake_case names, null = absent. */
#ifndef CUBICLE_GUEST_PB_H
#define CUBICLE_GUEST_PB_H

#include "base/buf.h"
#include "base/error.h"
#include "io/json.h"

/* The field's value, or NULL when absent or null. `name` is the snake_case name. */
const json_t *pb_get(const json_t *o, const char *name);

/* Each returns 1 when the field is there, 0 when it is absent (*ret untouched), -EINVAL with *err (status 400, names the field). */
int pb_object(const json_t *o, const char *name, const json_t **ret, struct error *err);
int pb_array(const json_t *o, const char *name, const json_t **ret, struct error *err);
/* At most max bytes, no NUL inside (they go to system calls). */
int pb_string(const json_t *o, const char *name, size_t max, struct str *ret, struct error *err);
/* A number, or one in a string. */
int pb_u32(const json_t *o, const char *name, uint32_t *ret, struct error *err);
int pb_bool(const json_t *o, const char *name, bool *ret, struct error *err);
/* Appends the decoded bytes: either base64 alphabet, padded or not. */
int pb_bytes(const json_t *o, const char *name, struct buf *ret, struct error *err);

struct pb_enum {
	const char *name;
	int value;
};
/* By name or number; the table ends with a NULL name. A value that it lacks is -EINVAL. */
int pb_enum(const json_t *o, const char *name, const struct pb_enum *table, int *ret, struct error *err);

#endif
