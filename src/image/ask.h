/* What a builder asks of node, over its channel (io/messages.h, "node and a builder"). Blocking; one thread at a time. A lost channel is -EPIPE: then there is nothing to go on for. */
#ifndef CUBICLE_IMAGE_ASK_H
#define CUBICLE_IMAGE_ASK_H

#include "base/error.h"
#include "io/messages.h"

#include <stdbool.h>
#include <stdint.h>

enum { ASK_FILE_NAME = 160, ASK_PENDING = 8 };

struct ask_layer {
	char file[ASK_FILE_NAME]; /* relative to node/; "" = there is none */
	uint64_t size;            /* bytes on disk */
	bool found;               /* it was there already */
	bool guessed;             /* as in `unpacked` */
};

/* An answer that came while another one was waited for. */
struct ask_answer {
	uint64_t request; /* 0 = free */
	struct ask_layer layer;
	struct error err; /* code 0: none */
};

struct ask {
	int fd;
	uint64_t last; /* request id */
	char *storage; /* MSG_MAX bytes */
	struct ask_answer kept[ASK_PENDING];
};

/* fd stays the caller's. 0 or -ENOMEM. */
int ask_init(struct ask *a, int fd);
void ask_done(struct ask *a);

/* The first message: views into the storage, valid until the next call; *ret_fd (the spec) is the caller's. */
int ask_begin(struct ask *a, struct msg_build_begin *ret, int *ret_fd, struct error *err);

/* A line of the build's log. Bytes that are no UTF-8 or control characters are replaced; longer than a message can be: cut. */
void ask_log(struct ask *a, int level, const char *step, struct str line);
void ask_progress(struct ask *a, const char *phase, unsigned percent);

int ask_find_layer(struct ask *a, const char *key, bool make, struct ask_layer *ret, struct error *err);
int ask_drop_layer(struct ask *a, const char *key, struct error *err);
/* An empty file of node's for `size` bytes; *ret_fd is the caller's. */
int ask_new_file(struct ask *a, uint64_t size, uint64_t *ret_number, int *ret_fd, struct error *err);
/* Begins to make an image; ask_wait_layer() takes the answer. At most ASK_PENDING at once. *ret_request: for that. */
int ask_unpack_layer(struct ask *a, const struct msg_unpack_layer *m, uint64_t *ret_request, struct error *err);
int ask_wait_layer(struct ask *a, uint64_t request, struct ask_layer *ret, struct error *err);
/* below: all that will be below the image, lowest first. */
int ask_merge_layers(struct ask *a, struct msg_list layers, struct msg_list below, struct ask_layer *ret, struct error *err);
int ask_start_box(struct ask *a, struct msg_list layers, const char *user, const char *token, uint64_t *ret_box, struct error *err);
/* A connection to a port inside; the caller's, or -errno. */
int ask_open_box(struct ask *a, uint64_t box, unsigned port, struct error *err);
/* key may be NULL: later builds do not find it. */
int ask_seal_box(struct ask *a, uint64_t box, const char *key, struct ask_layer *ret, struct error *err);
int ask_end_box(struct ask *a, uint64_t box, struct error *err);
/* What the operator has for a registry (image/source.h, source_env.login). *ret's texts, NULL when there are none, are the caller's to free. */
int ask_registry_login(struct ask *a, struct str registry, struct str repository, char **ret_username, char **ret_password, char **ret_identity_token, struct error *err);
/* An uploaded file, for reading; the caller's, or -ENOENT. */
int ask_open_file(struct ask *a, const char *hash, uint64_t *ret_size, struct error *err);

int ask_build_done(struct ask *a, struct str description, const char *digest, bool probe, struct error *err);
int ask_build_failed(struct ask *a, struct str message, const char *step, struct error *err);

#endif
