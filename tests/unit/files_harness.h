/*
 * files_worker() for tests: a small root directory of its own (tmpfs, passwd, /proc, some devices) that the
 * whole test program is moved into, and a client that speaks raw HTTP to a forked worker over a socket pair.
 */
#ifndef CUBICLE_TESTS_FILES_HARNESS_H
#define CUBICLE_TESTS_FILES_HARNESS_H

#include "unit.h"

#include "guest/files.h"

/* Moves the program into the new root; exits with 77 (skipped) when that needs rights it has not. The second
 * leaves it again and removes it. */
void harness_enter(void);
void harness_leave(void);

/* What the next workers get; set back to {0} by harness_reset(), the setup of each test. */
struct harness_options {
	const char *user, *workdir;
	int64_t idle_ns;
	size_t rest;       /* bytes of the body handed over with the head */
	size_t step;       /* send the request in pieces of that size; 0 = as large as the socket takes */
	bool stop_sending; /* after the request: shut the sending half down */
	bool stay;         /* after the request: say nothing and wait for the worker to give up */
	/* Called once when that many bytes of the answer have arrived. */
	size_t call_at;
	void (*call)(void);
};
extern struct harness_options harness;
int harness_reset(void **state);

struct reply {
	int result; /* of files_worker(); 1000 + n when it died of signal n */
	bool keep_alive;
	struct buf rest; /* given back by the worker */
	struct buf wire; /* everything received */
	struct http_head head;
	struct buf body; /* decoded */
	bool complete;   /* the body came to its announced end */
	long grown_kib;  /* most memory that the worker took */
};

/* The answer to a request; valid until the next one. A worker with no whole head in its answer leaves
 * head.status 0. */
struct reply *ask_bytes(struct str request);
struct reply *ask(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* GET of a path (encoded here). */
struct reply *get(const char *path);
/* POST application/octet-stream of the bytes to a path (encoded here). */
struct reply *put(const char *path, struct str bytes);
/* POST multipart/form-data, boundary "B", body as given with query (encoded already, may be empty). */
struct reply *post_form(const char *query, struct str body);
/* One part, to be joined; `disposition` is what follows "form-data; ". form_end() closes the form. */
void form_part(struct buf *to, const char *disposition, struct str bytes);
void form_end(struct buf *to);
/* Unary call of filesystem.Filesystem. */
struct reply *rpc(const char *method, const char *json);

struct str header(const struct reply *r, const char *name);
#define assert_status(r, wanted) harness_assert_status(r, wanted, __FILE__, __LINE__)
void harness_assert_status(const struct reply *r, int wanted, const char *file, int line);
/* Status and {"code":status,"message":…} holding the text. */
#define assert_failure(r, wanted, text) harness_assert_failure(r, wanted, text, __FILE__, __LINE__)
void harness_assert_failure(const struct reply *r, int wanted, const char *text, const char *file, int line);
/* Connect error of that code. */
#define assert_rpc_failure(r, code, text) harness_assert_rpc_failure(r, code, text, __FILE__, __LINE__)
void harness_assert_rpc_failure(
	const struct reply *r, const char *code, const char *text, const char *file, int line);
#define assert_body(r, wanted) harness_assert_body(r, wanted, __FILE__, __LINE__)
void harness_assert_body(const struct reply *r, struct str wanted, const char *file, int line);
#define assert_contains(s, text) harness_assert_contains(s, text, __FILE__, __LINE__)
void harness_assert_contains(struct str s, const char *text, const char *file, int line);

/* Writes and reads files of the root directly. */
void disk_write(const char *path, struct str bytes);
struct str disk_read(const char *path); /* valid until the next call */
unsigned disk_mode(const char *path);
bool disk_exists(const char *path);

#endif
