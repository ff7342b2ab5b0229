/*
 * One file request being served, for the sources files*.c and filesystem*.c only: its connection with
 * blocking helpers, its user, and its answer. Every step returns 0 or a negative errno. A step that knows
 * what the client should read records it with files_fail() or files_fail_rpc(), which return -ECANCELED; the
 * first record wins, and files_worker() answers with it unless an answer has begun.
 */
#ifndef CUBICLE_GUEST_FILES_CALL_H
#define CUBICLE_GUEST_FILES_CALL_H

#include "guest/files.h"
#include "guest/guest.h"
#include "io/connect.h"

#include <sys/stat.h>
#include <time.h>

enum {
	FILES_BUFFER = 256 * 1024,     /* input buffer; also the largest write to a file */
	FILES_MAX_MESSAGE = 64 * 1024, /* body of an RPC */
};

struct files_call {
	const struct files_request *request;
	struct http_head head;
	struct guest_user user;
	int64_t idle_ns;

	/* The way in. */
	struct http_body body;
	struct str in;      /* received and not yet taken: in request->rest first, then in buffer */
	char *buffer;       /* FILES_BUFFER bytes */
	bool owes_continue; /* 100 Continue is to be sent before the first byte is awaited */

	/* The way out. */
	bool answered; /* the head of the final answer is out */
	bool keep_alive;
	int cut; /* negative errno once the connection is broken */

	/* What went wrong. */
	int status;             /* 0 = nothing recorded */
	enum connect_code code; /* of a filesystem RPC, else 0 */
	bool stream; /* a streaming RPC: its errors are an end-of-stream envelope under status 200 */
	struct buf message;
};

/* ---- failures ---- */

/* {"code":status,"message":…} (e2b.md B.2). Returns -ECANCELED. */
int files_fail(struct files_call *c, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A Connect error (B.5). Returns -ECANCELED. */
int files_fail_rpc(struct files_call *c, enum connect_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* For an errno met while doing `what` on the path: the statuses of B.2 to B.4 (ENOSPC 507, ENAMETOOLONG
 * 400...). Returns -ECANCELED. */
int files_fail_errno(struct files_call *c, int error, const char *what, const char *path);
/* Likewise as a Connect error. */
int files_fail_rpc_errno(struct files_call *c, int error, const char *what, const char *path);

/* ---- the way in ---- */

/* The next run of body bytes in *ret (valid until the next call): 1; 0 at the end of the body; -EPROTO
 * malformed, -ECONNRESET cut, -ETIMEDOUT idle. */
int files_body_next(struct files_call *c, struct str *ret);
/* The whole body, at most `max` bytes (-EMSGSIZE beyond). */
int files_body_read(struct files_call *c, size_t max, struct buf *to);

/* ---- the way out ---- */

/* Whole answer; `headers` are complete lines or NULL. HEAD gets no body. */
int files_respond(
	struct files_call *c, int status, const char *content_type, const char *headers, struct str body);
/* Head of a streamed answer with HTTP_BODY_LENGTH or HTTP_BODY_CHUNKED (until close for HTTP/1.0). */
int files_start(
	struct files_call *c, int status, const char *headers, enum http_framing framing, uint64_t length);
/* One chunk; empty = the last one. */
int files_send_chunk(struct files_call *c, struct str bytes);
/* Bytes as they are. */
int files_send(struct files_call *c, struct str bytes);
/* `length` bytes of the file from that offset. -EPIPE when the file turned out shorter. */
int files_send_file(struct files_call *c, int fd, uint64_t from, uint64_t length);
/* Answers with what was recorded. */
int files_respond_failure(struct files_call *c);
/* After the answer: reads the rest of the request away, so that the client gets to read the answer (e2b.md
 * F.97). */
void files_drain(struct files_call *c);

/* ---- gzip (files_gzip.c) ---- */

/* Decoder of the request's body; NULL without memory. The second takes NULL. */
struct files_gunzip;
struct files_gunzip *files_gunzip_new(void);
void files_gunzip_free(struct files_gunzip *g);
/* As files_body_next(), unpacked, some KiB at a time whatever the body grows to; a body that is not gzip to
 * its end is a recorded 400. */
int files_gunzip_next(struct files_call *c, struct files_gunzip *g, struct str *ret);

/* Encoder of an answer begun as HTTP_BODY_CHUNKED; NULL without memory. The second takes NULL. */
struct files_gzip;
struct files_gzip *files_gzip_new(void);
void files_gzip_free(struct files_gzip *g);
/* Sends bytes packed; the last ones (may be none) end the answer. */
int files_gzip_send(struct files_call *c, struct files_gzip *g, struct str bytes, bool last);

/* ---- what a download's headers ask for (files_negotiate.c) ---- */

/* The status that the preconditions of RFC 9110 §13.2.2 ask for, 0 = go on. There are no entity tags: none
 * matches, "*" does. */
int files_precondition(const struct http_head *h, time_t modified);
enum { FILES_IDENTITY, FILES_GZIP };
/* The coding by Accept-Encoding: gzip for who names it and does not like the identity better.
 * prefer_identity: only for who refuses the identity. -EINVAL when neither will do. */
int files_encoding(const struct http_head *h, bool prefer_identity);
/* The one range of a GET: 1; 0 = the whole file (none, several, not understood, or If-Range names another
 * version); -ERANGE outside the file. */
int files_range(
	const struct http_head *h, time_t modified, uint64_t size, uint64_t *ret_from, uint64_t *ret_length);

/* ---- paths (files_path.c) ---- */

/*
 * The path a client means, by the rules of B.3: empty is the default working directory, "~" and relative ones
 * start at the user's home and are cleaned, absolute ones stay byte for byte. Appends to *ret (NUL-terminated
 * through buf_cstr). 0, -EINVAL with *ret_why set to what to tell, or -ENOMEM.
 */
int files_resolve(const struct files_call *c, struct str path, struct buf *ret, const char **ret_why);
/* Appends an absolute path cleaned lexically: no empty and "." components, ".." takes one away, never above
 * the root (Go's filepath.Clean). */
void files_clean(struct buf *to, struct str path);
/* Last component ("/" for the root, as Go's filepath.Base). */
struct str files_base_name(struct str path);
/*
 * Makes the directory at `path` and those above that are missing, 0755 and owned by the call's user. 0 or
 * -errno; at -ENOTDIR *ret_bad is the length of the prefix of the path that is a file.
 */
int files_make_dirs(const struct files_call *c, const char *path, size_t *ret_bad);
/* The same for what is above `path`. */
int files_make_parents(const struct files_call *c, const char *path, size_t *ret_bad);
/* Whether what is made at the path gets the group of its directory (set-group-ID) rather than the user's. */
bool files_group_is_inherited(const char *path);

/* ---- metadata (files_meta.c) ---- */

/* What an upload's X-Metadata-* headers say (e2b.md B.4). */
struct files_meta {
	struct files_meta_pair {
		char *name;       /* of the extended attribute: user.e2b.<key in lower case> */
		struct str value; /* within the request's head */
	} pairs[HTTP_MAX_HEADERS];
	size_t n, total;
};

/* Collects them into *ret, which the caller made {0} and gives to files_meta_done() in any case. 0, a
 * recorded 400, or -ENOMEM. */
int files_meta_read(struct files_call *c, struct files_meta *ret);
void files_meta_done(struct files_meta *m);
/* Replaces the metadata of an open file. 1 = it is there, 0 = there is none, or the file system has no
 * attributes; negative errno (-E2BIG: more than the file system keeps for one file, although
 * the disk is not full). */
int files_meta_write(const struct files_meta *m, int fd);
/* Append ,"metadata":{…} when there is any: what was collected, and what the file at the path has. */
void files_meta_add(struct buf *to, const struct files_meta *m);
void files_meta_add_stored(struct buf *to, const char *path);

/* ---- files (files_download.c, files_upload.c) ---- */

/* Opens a file for reading, without waiting for the writer of a FIFO and without taking a terminal: nothing
 * but regular files is opened at all. Descriptor, or a recorded failure. */
int files_open(struct files_call *c, const char *path, struct stat *ret_st);
/* Opens a file emptied or new for writing, with what is above it made, the call's user as its owner, and this
 * metadata (of which *ret_meta_kept tells whether it is there). Descriptor, or a recorded failure. */
int files_create(struct files_call *c, const char *path, const struct files_meta *meta, bool *ret_meta_kept);

/* ---- users (files.c) ---- */

/* Fills the call's user from a name, the default one for an empty one; unknown ones are a recorded 401. */
int files_user_of_name(struct files_call *c, struct str name);
/* Fills the call's user from HTTP Basic (B.1): unknown ones are a Connect error. */
int files_user_of_basic(struct files_call *c);

/* ---- services ---- */

int files_download(struct files_call *c);
int files_upload(struct files_call *c);
int files_compose(struct files_call *c);
int filesystem_serve(struct files_call *c);

#endif
