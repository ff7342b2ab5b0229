/* Amazon's Elastic Container Registry: its passwords are made from the keys of an account (AWS Signature Version 4, GetAuthorizationToken). */
#ifndef CUBICLE_IMAGE_ECR_H
#define CUBICLE_IMAGE_ECR_H

#include "base/buf.h"
#include "base/error.h"
#include "image/outbound.h"
#include "image/source.h"

#include <stdint.h>

/* A request to sign: everything is signed, `headers` ("name: value", names in lower case, sorted, no space to trim) with it. */
struct aws_request {
	const char *method, *path, *query; /* path and query are in canonical form already */
	const char *const *headers;        /* NULL at the end; "host: ..." and "x-amz-date: ..." among them */
	struct str body;
	const char *service, *region, *date; /* date: "20150830T123600Z" */
	const char *access_key_id, *secret_access_key;
};

/* Appends the value of Authorization. 0 or -ENOMEM. */
int aws_sign(const struct aws_request *q, struct buf *to);

/* The region of ACCOUNT.dkr.ecr.REGION.amazonaws.com[.cn] (or dkr.ecr-fips) to ret_region[64]; false: it is no registry of Amazon's. */
bool ecr_region(struct str registry, char ret_region[64]);

/*
 * The password of the user AWS for a registry. endpoint: URL of the service, NULL for Amazon's own in that region, which is all that the server ever uses.
 * *ret: allocated, the caller wipes it. -EINVAL not Amazon's registry or a bad region, -EACCES refused (400), others of outbound.
 */
int ecr_login(struct outbound *o, const struct source_credentials *c, struct str registry, const char *endpoint, char **ret, struct error *err);

#endif
