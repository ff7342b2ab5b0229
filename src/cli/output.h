/* What commands print: tables for people, JSON for programs. */
#ifndef CUBICLE_CLI_OUTPUT_H
#define CUBICLE_CLI_OUTPUT_H

#include "base/buf.h"

#include <jansson.h>
#include <stdint.h>

enum { TABLE_MAX_COLUMNS = 8 };

struct table {
	size_t columns;
	char **cells; /* owned, row by row; the first row holds the titles */
	size_t n, cap;
	bool failed;
};

/* A table with these titles (NULL-terminated). */
void table_init(struct table *t, const char *const *titles);
void table_done(struct table *t);
#define cleanup_table __attribute__((__cleanup__(table_done)))

/* The next cell. Control characters are replaced, so that text of strangers cannot drive a terminal. */
void table_add(struct table *t, struct str text);
void table_addf(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes all rows to standard output, columns as wide as their widest cell (counted in characters). */
void table_print(const struct table *t);

/* Prints the value with a newline; indented when standard output is a terminal. */
void print_json(const json_t *j);

/* s without control characters, for a terminal. */
void print_safe(struct buf *to, struct str s);

/* "3 s", "5 min", "2 h", "4 d", "never" for INT64_MAX. */
const char *duration_text(char to[24], int64_t seconds);
/* "512 B", "3.2 MB" (powers of 1000). */
const char *size_text(char to[24], uint64_t bytes);

#endif
