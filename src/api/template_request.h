/* What the bodies of template calls ask for, checked field by field, and the specification of a build that follows from it (image/spec.h). No I/O, no state. */
#ifndef CUBICLE_API_TEMPLATE_REQUEST_H
#define CUBICLE_API_TEMPLATE_REQUEST_H

#include "api/decode.h"
#include "image/reference.h"

enum {
	TEMPLATE_TAG_MAX = 127,
	TEMPLATE_SOURCE_MAX = 8192, /* of what is kept of Cube's request */
	BUILD_SPEC_MAX = 2 * 1024 * 1024, /* as image/spec.h has it */
	BUILD_ID = 36, /* a UUID */
};

/* A tag in its normal form into to[TEMPLATE_TAG_MAX + 1]. 0, or -EINVAL with *err (400). */
int decode_template_tag(struct str s, char *to, struct error *err);
/* The list `tags` of a body in the form of a msg_list. 1, 0 = absent or empty, or -errno with *err. */
int decode_template_tags(const json_t *body, struct buf *ret, struct error *err);
/* 64 hexadecimal digits, as they are used from here on: in lower case. 0 or -EINVAL with *err (400). */
int decode_files_hash(struct str s, char ret[65], struct error *err);
bool is_build_id(struct str s);

/* What a template is called, and its size; 0 = nothing was said. */
struct template_args {
	char name[TEMPLATE_REFERENCE_MAX + 1];
	struct buf tags; /* msg_list; empty = default */
	int64_t cpu_count, memory_mb, disk_mb;
};
void template_args_done(struct template_args *a);
#define cleanup_template_args __attribute__((__cleanup__(template_args_done)))

/* The body of POST /v3/templates; `field` is "name", or "alias" as older clients call it. *ret needs template_args_done() in any case. 0 or -errno with *err. */
int template_args_parse(const json_t *body, const char *field, struct template_args *ret, struct error *err);

/* A build to be started. */
struct build_args {
	json_t *spec;
	bool force, has_base;
	const char *isolation; /* "auto", "namespace", "microvm"; NULL: as its base */
	struct template_reference base; /* fromTemplate */
};
void build_args_done(struct build_args *a);
#define cleanup_build_args __attribute__((__cleanup__(build_args_done)))

/*
 * The body of POST /v2/templates/{templateID}/builds/{buildID}: E2B's (e2b.md A.6) and keys of our own (docs/templates.md). Unknown keys, of steps too, are ignored: newer clients
 * send some. *ret needs build_args_done() in any case. 0, or a negative errno with *err: 400, or 501 for what is known and not served; each names the field.
 */
int build_args_parse(const json_t *body, struct build_args *ret, struct error *err);

/* fromImage is the image that E2B's builder starts from when nothing is said: the template "base" of this machine is what it stands for. */
bool build_args_is_e2b_base(const struct build_args *a);

/* Cube's POST /templates (cube.md B.5). */
struct cube_args {
	struct template_args template; /* name: the alias that its rules make of it, or empty */
	struct build_args build;
	struct buf source;             /* what is kept: JSON without secrets; empty = too large for that */
};
void cube_args_done(struct cube_args *a);
#define cleanup_cube_args __attribute__((__cleanup__(cube_args_done)))

/* `before`: what an earlier request was, for a rebuild: a member that the body has replaces its; or NULL. As above. */
int cube_args_parse(const json_t *body, const json_t *before, struct cube_args *ret, struct error *err);
/* Cube's aliases: [a-z0-9][a-z0-9-]{0,63}, not as an id begins. */
bool is_cube_alias(struct str s);

/* The specification of a template that is made of an image because a create named it. NULL without memory. */
json_t *build_spec_of_image(const char *image);

#endif
