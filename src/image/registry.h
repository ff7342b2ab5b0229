/* One repository of one registry (OCI distribution specification): connecting, being let in, manifests and small blobs. Large blobs: image/download.h. */
#ifndef CUBICLE_IMAGE_REGISTRY_H
#define CUBICLE_IMAGE_REGISTRY_H

#include "base/error.h"
#include "image/outbound.h"
#include "image/reference.h"
#include "image/source.h"

enum {
	REGISTRY_TRIES = 5,      /* of a small request, for what may pass by itself */
	REGISTRY_RENEWALS = 200, /* tokens fetched in one pull: they may live for a minute only */
};

struct registry {
	struct source_env *env;
	struct outbound *out;
	const struct registries *rules;
	const char *ecr_endpoint; /* image/ecr.h */
	struct reference ref;
	char base[REFERENCE_REGISTRY_MAX + 16]; /* "https://host:port" */
	bool unverified, trusted;               /* how it is spoken to; trusted: TLS, verified */
	const struct source_credentials *credentials; /* NULL: none */
	struct source_credentials found;        /* by env->login */
	char *authorization;                    /* value of the header, NULL: none yet */
	unsigned renewals;
};

/* Finds out how it is spoken to. given may be NULL; kept by the caller, as all else, until registry_done(). */
int registry_init(struct registry *r, struct source_env *env, struct outbound *out, const struct registries *rules, const struct reference *ref,
	const struct source_credentials *given, struct error *err);
void registry_done(struct registry *r);

/* GET of base/v2/REPOSITORY/<path> ("manifests/latest", "blobs/sha256:..."): an answer 200 of at most max bytes. accept: a header line or NULL. Lets itself in,
 * and tries again what may pass. *ret is the caller's to outbound_end(). Errors as source_open_image(). */
int registry_get(struct registry *r, const char *path, const char *accept, size_t max, struct outbound_transfer **ret, struct error *err);

/* After an answer 401: sets r->authorization anew (registry_auth.c). Asks the token service, blocking. -EACCES when there is nothing more to say. */
int registry_let_in(struct registry *r, const struct outbound_answer *a, struct error *err);

/* The error of an answer that is no success, of what was asked for ("the image", "a layer"). */
int registry_refusal(const struct registry *r, const struct outbound_answer *a, const char *what, struct error *err);

/* The answer or failure may be another one soon. */
bool registry_passing(int error_code, int status);

/* Waits, unless it is cancelled: 0 or -ECANCELED with *err. */
int registry_pause(const struct registry *r, unsigned ms, struct error *err);

/* Before try n (from 1) comes a pause of so many ms; retry_after: seconds that the registry asked for, or 0. */
unsigned registry_backoff(unsigned n, int retry_after);

#endif
