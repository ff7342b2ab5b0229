/* The body of a create, checked whole (e2b.md A.5.1, A.5.2; cube.md B.3). */
#ifndef CUBICLE_API_CREATE_H
#define CUBICLE_API_CREATE_H

#include "api/network.h"
#include "image/reference.h"

struct create_args {
	struct template_reference template;
	char image[REFERENCE_TEXT_MAX]; /* instead: an image, in its normal form; empty = none */
	int64_t timeout;     /* seconds, -1 = never */
	bool secure;         /* an envd token */
	struct network_args network;
	bool auto_pause, auto_resume, auto_pause_memory;
	int64_t shutdown_after; /* seconds; 0 = nothing was said */
	struct buf metadata, envs; /* forms of a msg_map */
};

/*
 * `v2`: always secured. 0, or a negative errno with *err: 400 for what is wrong, 501 for what is known but not served yet; each names the field. Unknown keys
 * are ignored (newer clients send some). *ret needs create_args_done() in any case.
 */
int create_parse(const json_t *body, bool v2, const struct options *o, struct create_args *ret, struct error *err);
void create_args_done(struct create_args *a);
#define cleanup_create_args __attribute__((__cleanup__(create_args_done)))

#endif
