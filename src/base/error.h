/* What a user will see of a failure. Set once where it happens, wrapped with context on the way up, untouched on success. */
#ifndef CUBICLE_BASE_ERROR_H
#define CUBICLE_BASE_ERROR_H

struct error {
	int code;          /* negative errno; 0 = not set */
	int status;        /* HTTP status to answer with */
	int retry_after;   /* seconds, with 429 and 503; 0 = the default of who answers. error_set() clears it */
	char message[480]; /* for the user, names the field; never holds a secret */
};

/* Fills *err (which may be NULL) and returns code, so that `return error_set(...)` reads well. */
int error_set(struct error *err, int code, int status, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* As error_set with status 500 and ": <strerror(-code)>" appended. */
int error_errno(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message of a set error. Returns err->code (or `code` when err is NULL). */
int error_wrap(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
