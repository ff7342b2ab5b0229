/*
 * HTTP to a Cubicle server: the control plane, and envd of a sandbox through the ingress.
 *
 * Where to: $CUBICLE_API_URL with $CUBICLE_API_KEY when the first is set; else, for root with a server of this state directory, its
 * admin socket, which needs no key; else $E2B_API_URL with $E2B_API_KEY; else https://api.$E2B_DOMAIN when $E2B_API_KEY is set as well; else the address of the
 * option `listen`. $SSL_CERT_FILE names the authorities to trust.
 */
#ifndef CUBICLE_CLI_CLIENT_H
#define CUBICLE_CLI_CLIENT_H

#include "cli/command.h"

#include <curl/curl.h>
#include <jansson.h>

struct client {
	CURL *easy;
	char *url, *sandbox_url; /* without a trailing slash */
	char *socket;            /* admin socket, or NULL */
	char *key;               /* or NULL */
	char *team;              /* for the header that names the team to act for, or NULL */
};

/* A sandbox to talk to. */
struct target {
	char id[32];
	char *token; /* envd access token, or NULL; owned */
};

/* Settles where to. No connection is made yet. 0 or -errno with *err. */
int client_open(struct client *cl, const struct cli *c, struct error *err);
/* The admin socket, whatever the environment says. -EACCES or -ECONNREFUSED with *err. */
int client_open_admin(struct client *cl, const struct cli *c, struct error *err);
void client_close(struct client *cl);
#define cleanup_client __attribute__((__cleanup__(client_close)))

/*
 * One request to the control plane; body may be NULL. 0 with the answer's JSON in *ret (NULL for an empty one; the caller decrefs; ret may be
 * NULL), else a negative errno with *err (status and message of the server's error). next, when not NULL, gets the X-Next-Token header (empty
 * when there was none).
 */
int client_call(struct client *cl, const char *method, const char *path, const json_t *body, json_t **ret, struct buf *next, struct error *err);

/*
 * PUT of `size` bytes of fd, from its beginning, to an address that the server named; headers is an object of strings, or NULL. progress, when not NULL, is called now and
 * then with the bytes that have left; what it returns other than 0 ends the transfer with -EINTR. 0 or a negative errno with *err.
 */
int client_upload(struct client *cl, const char *url, const json_t *headers, int fd, uint64_t size, int (*progress)(uint64_t sent, void *arg), void *arg,
	struct error *err);

/* All pages of a list. */
int client_list(struct client *cl, const char *path, json_t **ret, struct error *err);

/* One thing of a list by its id, its name, or the unique beginning of its id; owned by the caller. `kind` ("key") is for messages, id_field what the id is
 * called. -ENOENT, -ENOTUNIQ with *err. */
int client_find(struct client *cl, const char *kind, const char *path, const char *id_field, const char *given, json_t **ret, struct error *err);

/* The id of a sandbox given by its id or by the unique beginning of one, into id[32]. -ENOENT, -ENOTUNIQ with *err. */
int client_resolve(struct client *cl, const char *given, char *id, struct error *err);

/* Finds the sandbox and its token. */
int client_target(struct client *cl, const char *given, struct target *ret, struct error *err);
void target_done(struct target *t);
#define cleanup_target __attribute__((__cleanup__(target_done)))

/* Sets an easy handle up for a POST to envd of the sandbox: URL, socket, headers (returned; free with curl_slist_free_all after the transfer). NULL
 * without memory. `user`: Unix user, or NULL for the default one. */
struct curl_slist *client_envd(const struct client *cl, CURL *easy, const struct target *t, const char *procedure, const char *content_type, const char *user);

/* What a failed transfer means, with what to do about it. Returns err->code. */
int client_transfer_error(const struct client *cl, CURLcode code, const char *text, struct error *err);

#endif
