/*
 * The control plane of the front process: REST routes, keys and authentication (e2b.md A, cube.md B). Runs on the front's one loop; what touches
 * the database runs on the work queue and comes back.
 */
#ifndef CUBICLE_API_API_H
#define CUBICLE_API_API_H

#include "api/node_client.h"
#include "api/quota.h"
#include "config/options.h"
#include "io/http_server.h"
#include "io/workq.h"

struct api;

struct api_config {
	struct loop *loop;
	struct workq *workq;
	const struct options *options;
	struct sandbox_index *index;
	struct node_client *node;
	/* Asks for the certificates of listen.tls to be read again; each call is followed by one api_certificates_reloaded(), in order. 0 or -errno with *err. */
	int (*reload_certificates)(void *arg, struct error *err);
	void *arg;
	unsigned (*connections)(void *arg); /* open to clients now; NULL = unknown */
	const char *directory; /* where front.db lies: the front's own directory */
};

/* Opens (and makes) directory/front.db and reads the keys. All of *c outlives the api. 0, or -errno with *err. */
int api_new(const struct api_config *c, struct api **ret, struct error *err);
/* Free the HTTP server (or its requests) and stop the work queue first. Takes NULL. */
void api_free(struct api *a);

/* Takes over a request from on_request() of the HTTP server. `admin`: it came over the admin socket, whose peer is root: no key is needed,
 * the default team acts, or the one that X-Cubicle-Team names, and the /admin/ routes exist. */
void api_handle(struct api *a, struct http_req *r, bool admin);

/* A request that came in on metrics.listen: GET /metrics, without a key, and nothing else (api/prometheus.h). */
void api_handle_metrics(struct api *a, struct http_req *r);

/* The key that serve made at its first start: added unless its hash is known (also as revoked). Blocks for one commit. 0 or -errno with *err. */
int api_first_key(struct api *a, const struct msg_first_key *m, struct error *err);

/* What came of the oldest reload_certificates() without an answer; err NULL = these are in use now (NULL: none). */
struct tls_server;
void api_certificates_reloaded(struct api *a, const struct error *err, const struct tls_server *tls);

/* What teams may run (api/quota.h), for resumes by traffic. */
struct quota *api_quota(struct api *a);

/* Whether the value is a key of this server that is not revoked: the ingress strips those before a request enters a sandbox. */
bool api_key_valid(struct api *a, struct str key);

#endif
