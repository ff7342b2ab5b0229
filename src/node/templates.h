/*
 * What a template is, as a description in JSON. Those of the machine are one file node/templates/<id>.json each, owned by root, written whole by template_save()
 * (`cubicle template make-default`), read at the node's start and on `reload_templates`; those of teams are in the records, one description for each build that is
 * ready (node/builds.h), without "id", "alias", "createdAt" and "buildId".
 *
 *     {
 *       "id": "k3…",                  20 of [a-z0-9], or "tpl-" and 24 of [0-9a-f]; the file's name
 *       "alias": "base",              optional; [a-z0-9_-]+, or two of these with a '/' between
 *       "createdAt": "2026-01-02T03:04:05.678901Z",
 *       "buildId": "…",               UUID in lower case
 *       "cpuCount": 2, "memoryMB": 512, "diskMB": 10240,    each optional: the server's default (options sandbox.*)
 *       "layers": [{"file": "images/<name>.erofs", "size": 123, "recipe": "…"}],   1 to 12, lowest first; relative to node/; size in bytes; file may also be
 *                                     images/<name>.img or snapshots/<name>.img: the disk of a sandbox, whose upper is the layer;
 *                                     recipe: optional, the digest of what the layer was made from (image/recipe.h)
 *       "user": "user",               default user of commands and files: a name or number, perhaps with ":group"; root where the template has no user of that name
 *       "workdir": "/home/user",      optional: absolute; absent = the user's home
 *       "isolation": "microvm",       optional: "namespace", "microvm" or "auto", the server's default
 *       "nested_userns": false,       optional: user namespaces inside are allowed
 *       "no_setuid": false,           optional: no_new_privs is set
 *       "env": {"PATH": "/usr/bin"},  optional: part of the environment of every command, below what a create gives
 *       "services": [{"name": "web", "command": ["/usr/bin/web", "--quiet"], "port": 8080, "user": "root", "env": {"K": "V"}, "workdir": "/srv", "restart": false}]
 *                                     optional: 1 to 4 programs that cubicle-init keeps running (guest/services.h). name: [a-z0-9_-]+; command: 1 to 64
 *                                     strings, 4096 bytes with their NULs; port: optional, the listening socket that the program gets as descriptor 3; env: optional,
 *                                     on top of that of the template; workdir: optional, absolute; restart: optional, false = one that ended is not started again
 *       "ready": ["/usr/bin/check"],  optional, with services: a command like theirs, run as the default user in environment and working directory of the first
 *                                     service, that ends with 0 when they are ready (guest/ready.h)
 *       "probe": {"port": 8080, "path": "/health"},    optional, with services: ready is only what answers an HTTP GET of the path with 2xx there; without a path:
 *                                     what takes a connection
 *       "wait_ready": true            optional: a create is answered only when they are ready
 *     }
 *
 * All env together: 16384 bytes, with 8 for each variable.
 *
 * Any other key, a wrong type, a value out of its range or a missing layer file makes the whole file invalid: it is logged and skipped, and when an alias is
 * claimed by two files the newer createdAt has it. Layer files never change once they are named here; a new build is a new file.
 */
#ifndef CUBICLE_NODE_TEMPLATES_H
#define CUBICLE_NODE_TEMPLATES_H

#include "base/buf.h"
#include "base/error.h"
#include "base/map.h"
#include "sandbox/sandbox.h"
#include "io/msg.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	TEMPLATE_MAX_LAYERS = 12,
	TEMPLATE_MAX_FILE = 64 * 1024,
	TEMPLATE_MAX_SERVICES = 4,
	TEMPLATE_MAX_ARGS = 64,
	TEMPLATE_MAX_COMMAND = 4096,
	TEMPLATE_MAX_ENV = 16384,
	TEMPLATE_TAG = 128,
};

struct template_layer {
	char file[160]; /* relative to node/ */
	uint64_t size;  /* bytes on disk */
	char recipe[65]; /* "" = unknown */
};

struct template_command {
	size_t n_args;
	char text[TEMPLATE_MAX_COMMAND]; /* the arguments, each with its NUL */
};

/* A raw msg_map in the template's `envs`; template_env() gives the view. */
struct template_env {
	uint32_t at, n;
};

struct template_service {
	char name[33], user[33];
	uint16_t port; /* 0 = no socket */
	bool once;     /* not started again when it ended ("restart": false) */
	char workdir[1024]; /* "" = what services have without one */
	struct template_env env;
	struct template_command command;
};

struct template {
	char id[TEMPLATE_ID + 1];
	char alias[129];              /* "" = none */
	char build_id[37];
	char team[65];                /* whose it is; "" = of this machine, and everybody's */
	bool public;                  /* of a team, and others may use it, too */
	int64_t created_at;           /* ns, CLOCK_REALTIME */
	uint32_t cpu_count, memory_mb, disk_mb; /* 0 = the server's default */
	struct template_layer layers[TEMPLATE_MAX_LAYERS];
	size_t n_layers;
	char user[33];
	char workdir[1024];           /* "" = the user's home */
	bool nested_userns, no_setuid;
	char isolation[10];           /* "namespace", "microvm"; "" or "auto" = the server's default */
	struct template_service services[TEMPLATE_MAX_SERVICES];
	size_t n_services;
	struct template_command ready; /* without arguments: none */
	struct {
		uint16_t port;        /* 0 = none */
		char path[256];       /* "" = a connection is enough */
	} probe;
	bool wait_ready;
	struct template_env env;
	uint32_t envs_used;
	char envs[TEMPLATE_MAX_ENV];
};

/* Reads one description. `what` names it in errors. Layer files are not looked at. 0, or -EINVAL with *err naming the key. */
int template_parse(struct str json, const char *what, struct template *ret, struct error *err);
/* The same of what a build has made: id, alias, team, build id and time come from *identity, and are no keys. */
int template_parse_build(struct str json, const char *what, const struct template *identity, struct template *ret, struct error *err);
/* Variables of the template, or of a service. */
struct msg_map template_env(const struct template *t, struct template_env env);

/* Adds a service with these arguments (NULL-terminated); port 0 = no socket. 0, or -E2BIG when there is no room; what it says is checked by template_save(). */
int template_add_service(struct template *t, const char *name, const char *user, uint16_t port, const char *const *command);
/* Its ready command, likewise. */
int template_set_ready(struct template *t, const char *const *command);
/* Append the services, the ready command, what services have beside that, as the claim has them (io/messages.h). 0 or -ENOMEM. */
int template_encode_services(const struct template *t, struct buf *to);
int template_encode_ready(const struct template *t, struct buf *to);
int template_encode_service_options(const struct template *t, struct buf *to);

/* Appends the description as it stands in the file; or without what template_parse_build() takes from elsewhere. 0 or -ENOMEM. */
int template_serialize(const struct template *t, struct buf *to);
int template_serialize_build(const struct template *t, struct buf *to);
/* The same of what a build is made on, with these layers (a raw list; any number) in place of its own. */
int template_serialize_base(const struct template *t, struct msg_list layers, const uint64_t *sizes, struct buf *to);
/* The layers' files are there, and nobody but root can change them. 0, or -errno with *err. */
int template_check_layers(const char *node_dir, const struct template *t, const char *what, struct error *err);
/* Checks *t and replaces node_dir/templates/<id>.json durably (the directory is made). The layers' files must be there already: regular, not writable by
 * others than root. 0, or -errno with *err. */
int template_save(const char *node_dir, const struct template *t, struct error *err);

/* The registry: files that were valid at the last load, and builds of teams. */
struct templates;

struct templates *templates_new(void);
/* Takes NULL. */
void templates_free(struct templates *t);

/* Reads every file again. Broken ones are logged and skipped. changed() is told of each that is new, different or (gone) no longer there; pointers live during
 * the call. 0, or -errno with *err when the directory cannot be read (then nothing changed). */
int templates_load(struct templates *t, const char *node_dir,
	void (*changed)(const struct template *t, bool gone, void *arg), void *arg, struct error *err);

/* A build of a team's template that is ready. *t is copied; one of the same build id is replaced, keeping its tags. 0 or -ENOMEM. */
int templates_put_build(struct templates *t, const struct template *build);
/* That it has no more, with its tags. */
void templates_drop_build(struct templates *t, const char *build_id);
/* What id:tag means from now on; build_id NULL: nothing. 0, -ENOENT for a build that is not there, or -ENOMEM. */
int templates_set_tag(struct templates *t, const char *id, const char *tag, const char *build_id);
const struct template *templates_find_build(const struct templates *t, struct str build_id);

/* By id or id:tag, else by the alias of one of the machine's; no tag is "default". NULL. The pointer is valid until the next load or change. */
const struct template *templates_find(const struct templates *t, struct str reference);
/* Descriptions that the last load passed over, because they are broken: what they name may be needed still. */
size_t templates_skipped(const struct templates *t);
/* Calls fn for each that is a file; and for each build. */
void templates_each_build(const struct templates *t, void (*fn)(const struct template *t, void *arg), void *arg);
void templates_each(const struct templates *t, void (*fn)(const struct template *t, void *arg), void *arg);
/* Sum of the layers' sizes. */
uint64_t template_size(const struct template *t);

#endif
