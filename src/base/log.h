/* JSON-lines logging, one object a line: time, level, process, message, and ids of request, team and sandbox where known. */
#ifndef CUBICLE_BASE_LOG_H
#define CUBICLE_BASE_LOG_H

#include "base/str.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log_ids {
	struct str request; /* empty when there is none */
	struct str team;
	struct str sandbox;
};

/* Process name that every line carries, descriptor to write to (not owned), lowest level written. Call once at start. */
void log_setup(const char *process, int fd, enum log_level lowest);

/* Writes one line with one write(2); messages over 2 KiB are cut (and say so). ids may be NULL. Thread-safe. */
void log_write(enum log_level level, const struct log_ids *ids, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_debug(...) log_write(LOG_DEBUG, NULL, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, NULL, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, NULL, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, NULL, __VA_ARGS__)

/* "debug", "info", "warn", "error" to a level: 0 or -EINVAL. */
int log_level_parse(struct str s, enum log_level *ret);

struct buf;
/* Appends s as a JSON string with its quotes, ASCII only; bytes that are no UTF-8 become U+FFFD. 0 or -ENOMEM. */
int json_quote(struct buf *to, struct str s);

#endif
