/*
 * The message table. F(message, tag, KIND, field, max bytes, REQUIRED|OPTIONAL); tags are never reused for another meaning.
 * M(id, message, FIELDS, directions, descriptors).
 */
#ifndef CUBICLE_IO_MESSAGES_H
#define CUBICLE_IO_MESSAGES_H

#include "io/msg.h"

enum {
	MSG_FROM_SERVE = 1 << 0,  /* serve to any child */
	MSG_FROM_CHILD = 1 << 1,  /* any child to serve */
	MSG_FROM_FRONT = 1 << 2,  /* front to node */
	MSG_FROM_NODE = 1 << 3,   /* node to front or egress */
	MSG_FROM_EGRESS = 1 << 4, /* egress to node */
	MSG_TO_INIT = 1 << 5,     /* node to a sandbox's init */
	MSG_FROM_INIT = 1 << 6,   /* init to node: hostile bytes, never descriptors */
	MSG_TO_BUILDER = 1 << 7,  /* node to the processes that make templates (image/builder.h, image/unpack.h) */
	MSG_FROM_BUILDER = 1 << 8, /* they to node: hostile bytes */
	MSG_FROM_TOOLS = 1 << 9,  /* the process of the MCP server to front */
	MSG_TO_VMM = 1 << 10,     /* node to a microVM's monitor (vmm/admin.h) */
	MSG_FROM_VMM = 1 << 11,   /* it to node: hostile bytes, a guest may have broken out into it */
	MSG_FROM_ANY = (1 << 12) - 1,
};

/* Answers */
#define MSG_FIELDS_ok(F)
#define MSG_FIELDS_error(F)                                                                                  \
	F(error, 1, I64, code, 0, REQUIRED)          /* negative errno */                                    \
	F(error, 2, U64, status, 0, REQUIRED)        /* HTTP status */                                       \
	F(error, 3, STR, message, 512, REQUIRED)     /* for the user */                                      \
	F(error, 4, U64, retry_after, 0, OPTIONAL)   /* seconds, with 429 and 503 */

/* First message on every channel, both ways */
#define MSG_FIELDS_hello(F)                                                                                  \
	F(hello, 1, U64, version_min, 0, REQUIRED)                                                           \
	F(hello, 2, U64, version_max, 0, REQUIRED)

/* serve and its children */
#define MSG_FIELDS_peer(F) F(peer, 1, STR, role, 16, REQUIRED) /* "front", "egress" or "node": who is at the other end of the descriptor */
#define MSG_FIELDS_ready(F)
#define MSG_FIELDS_stop(F) /* finish cleanly; the child exits when done */
#define MSG_FIELDS_first_key(F)                                                                              \
	F(first_key, 1, STR, name, 128, REQUIRED)                                                            \
	F(first_key, 2, STR, hash, 64, REQUIRED)     /* hex SHA-256 of the key */                            \
	F(first_key, 3, STR, hint, 16, REQUIRED)     /* its first characters, for lists */

/* serve to front: certificates and keys for listen.tls, in a sealed memory file (io/tls.h, tls_server_new). With the request id of a reload_certificates: its answer */
#define MSG_FIELDS_certificates(F)
#define MSG_FIELDS_reload_certificates(F) /* front to serve: read the files again. Answered by certificates or error */

/* front to node */
#define MSG_FIELDS_subscribe(F)
#define MSG_FIELDS_create(F)                                                                                 \
	F(create, 1, STR, template, 256, REQUIRED)   /* id or alias, already normalised */                   \
	F(create, 2, STR, team, 64, REQUIRED)                                                                \
	F(create, 3, STR, request, 64, OPTIONAL)     /* request id for the logs */                           \
	F(create, 4, I64, timeout, 0, REQUIRED)      /* seconds, -1 = never */                               \
	F(create, 5, BOOL, secure, 0, REQUIRED)      /* an envd token is wanted */                           \
	F(create, 6, BOOL, public_traffic, 0, REQUIRED) /* false: a traffic token guards the other ports */  \
	F(create, 7, BOOL, internet, 0, OPTIONAL)    /* allow_internet_access as given */                    \
	F(create, 8, BOOL, auto_pause, 0, REQUIRED)                                                          \
	F(create, 9, BOOL, auto_resume, 0, REQUIRED)                                                         \
	F(create, 10, MAP, metadata, 24576, REQUIRED)                                                        \
	F(create, 11, MAP, envs, 32768, REQUIRED)                                                            \
	F(create, 12, BOOL, auto_pause_memory, 0, REQUIRED) /* false: the pause at the deadline keeps the disk only */ \
	F(create, 13, LIST, allow_out, 8192, OPTIONAL) /* as in `network` */                                 \
	F(create, 14, LIST, deny_out, 8192, OPTIONAL)                                                        \
	F(create, 15, STR, idempotency, 255, OPTIONAL) /* the client's name for what it makes; the same again: the same sandbox */ \
	F(create, 16, STR, fingerprint, 64, OPTIONAL) /* with that: hex SHA-256 of what was asked for; another one: 409 */ \
	F(create, 17, I64, shutdown_after, 0, OPTIONAL) /* seconds, 1 to SHUTDOWN_AFTER_MOST; it ends then, whatever else was said of it */
#define MSG_FIELDS_kill(F)                                                                                   \
	F(kill, 1, STR, sandbox, 32, REQUIRED)                                                               \
	F(kill, 2, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_timeout(F)                                                                                \
	F(timeout, 1, STR, sandbox, 32, REQUIRED)                                                            \
	F(timeout, 2, U64, mode, 0, REQUIRED)        /* enum timeout_mode */                                 \
	F(timeout, 3, I64, timeout, 0, REQUIRED)     /* seconds; -1 = never, 0 = expire now (mode set) */    \
	F(timeout, 4, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_open(F)                                                                                   \
	F(open, 1, STR, sandbox, 32, REQUIRED)                                                               \
	F(open, 2, U64, port, 0, REQUIRED)
#define MSG_FIELDS_reload_templates(F)
#define MSG_FIELDS_pause(F)                  /* answered by `ok`; joins a pause under way */                 \
	F(pause, 1, STR, sandbox, 32, REQUIRED)                                                              \
	F(pause, 2, BOOL, memory, 0, REQUIRED)       /* false: keep the disk only */                         \
	F(pause, 3, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_resume(F)                 /* answered by `sandbox`; joins a resume under way */           \
	F(resume, 1, STR, sandbox, 32, REQUIRED)                                                             \
	F(resume, 2, U64, mode, 0, REQUIRED)         /* enum resume_mode */                                  \
	F(resume, 3, I64, timeout, 0, REQUIRED)      /* seconds; -1 = never; RESUME_TRAFFIC: not looked at */ \
	F(resume, 4, BOOL, memory, 0, REQUIRED)      /* false: start anew from the disk also when the memory was kept */ \
	F(resume, 5, BOOL, auto_pause, 0, OPTIONAL)  /* from now on */                                       \
	F(resume, 6, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_make_snapshot(F)          /* answered by `snapshot` */                                    \
	F(make_snapshot, 1, STR, sandbox, 32, REQUIRED)                                                      \
	F(make_snapshot, 2, STR, name, 256, OPTIONAL) /* already normalised: [namespace/]name[:tag] */       \
	F(make_snapshot, 3, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_delete_snapshot(F)        /* answered by `ok` */                                          \
	F(delete_snapshot, 1, STR, snapshot, 32, REQUIRED)                                                   \
	F(delete_snapshot, 2, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_fork(F)                   /* answered by `forked` */                                      \
	F(fork, 1, STR, sandbox, 32, REQUIRED)                                                               \
	F(fork, 2, U64, count, 0, REQUIRED)          /* 1 to 100 */                                          \
	F(fork, 3, I64, timeout, 0, REQUIRED)        /* seconds; -1 = never */                               \
	F(fork, 4, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_rollback(F)               /* answered by `sandbox` */                                     \
	F(rollback, 1, STR, sandbox, 32, REQUIRED)                                                           \
	F(rollback, 2, STR, snapshot, 32, REQUIRED)                                                          \
	F(rollback, 3, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_network(F)                /* replaces the egress policy of a running sandbox, live; answered by `ok` */ \
	F(network, 1, STR, sandbox, 32, REQUIRED)                                                            \
	F(network, 2, LIST, allow_out, 8192, REQUIRED) /* IPv4 CIDRs in text, "1.2.3.4" or "1.2.3.0/24" */   \
	F(network, 3, LIST, deny_out, 8192, REQUIRED)                                                        \
	F(network, 4, BOOL, internet, 0, OPTIONAL)   /* allow_internet_access as given */                    \
	F(network, 5, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_metrics(F)                /* answered by `metrics_page` */                                \
	F(metrics, 1, STR, sandbox, 32, OPTIONAL)                                                            \
	F(metrics, 2, I64, start, 0, OPTIONAL)       /* with a sandbox; ns, CLOCK_REALTIME, inclusive */     \
	F(metrics, 3, I64, end, 0, OPTIONAL)                                                                 \
	F(metrics, 5, LIST, sandboxes, 4096, OPTIONAL) /* instead: the newest sample of each, at most METRICS_BATCH */
#define MSG_FIELDS_figures(F)                /* answered by `figures_page` */
#define MSG_FIELDS_set_pool(F)               /* answered by `pools_page` with this one, once it is recorded */ \
	F(set_pool, 1, STR, template, 256, REQUIRED) /* id or alias */                                       \
	F(set_pool, 2, U64, min, 0, REQUIRED)                                                                \
	F(set_pool, 3, U64, size, 0, REQUIRED)       /* to begin with; min <= size <= max */                 \
	F(set_pool, 4, U64, max, 0, REQUIRED)                                                                \
	F(set_pool, 5, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_unset_pool(F)             /* answered by `ok`; 404: it was not set */                     \
	F(unset_pool, 1, STR, template, 256, REQUIRED)                                                       \
	F(unset_pool, 2, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_pools(F)                  /* answered by `pools_page` */
#define MSG_FIELDS_logs(F)                                                                                   \
	F(logs, 1, STR, sandbox, 32, REQUIRED)                                                               \
	F(logs, 2, U64, after, 0, REQUIRED)          /* number of the entry to go on behind; 0 = from the first */ \
	F(logs, 3, I64, since, 0, REQUIRED)          /* ns, CLOCK_REALTIME: only entries of then or later */

/* front to node: templates (docs/architecture.md, "Templates"). `team` is the caller's; another team's template is answered as one that never existed */
#define MSG_FIELDS_make_template(F) /* a template and a build of it in state waiting; answered by `build_made`, after the event `template` */ \
	F(make_template, 1, STR, team, 64, REQUIRED)                                                         \
	F(make_template, 2, STR, name, 256, REQUIRED) /* normalised, without a tag; may be empty (kinds cube and image) */ \
	F(make_template, 3, LIST, tags, 4096, REQUIRED) /* that the build gets when it is ready; empty: default */ \
	F(make_template, 4, STR, kind, 8, REQUIRED) /* "e2b", "cube" or "image": whose API made it */        \
	F(make_template, 5, U64, cpu_count, 0, OPTIONAL)                                                     \
	F(make_template, 6, U64, memory_mb, 0, OPTIONAL)                                                     \
	F(make_template, 7, U64, disk_mb, 0, OPTIONAL)                                                       \
	F(make_template, 8, STR, reference, 512, OPTIONAL) /* kind image: the normalised image; one template for each of a team */ \
	F(make_template, 9, STR, template, 64, OPTIONAL) /* rebuild of this one, whatever its name */        \
	F(make_template, 10, STR, request, 64, OPTIONAL)                                                     \
	F(make_template, 11, STR, source, 8192, OPTIONAL) /* what was asked for, JSON without secrets: kept, told in `template`, and what a rebuild begins with */
#define MSG_FIELDS_start_build(F) /* the descriptor: what to build (image/spec.h), a sealed memory file. From waiting to building; 400 when it does not wait. Answered by `ok` at once */ \
	F(start_build, 1, STR, team, 64, REQUIRED)                                                           \
	F(start_build, 2, STR, build, 36, REQUIRED)                                                          \
	F(start_build, 3, STR, base, 96, OPTIONAL) /* what it is made on: template id, template id:tag, or snapshot id; the caller may use it */ \
	F(start_build, 4, BOOL, force, 0, REQUIRED) /* nothing that earlier builds have left is taken */     \
	F(start_build, 5, STR, request, 64, OPTIONAL)                                                        \
	F(start_build, 6, STR, template, 64, OPTIONAL) /* that it belongs to, else 404 */                    \
	F(start_build, 7, STR, isolation, 16, OPTIONAL) /* of the template: "auto", "namespace" or "microvm"; absent: as what it is made on */
#define MSG_FIELDS_build_status(F) /* answered by `build_page` */                                            \
	F(build_status, 1, STR, team, 64, REQUIRED)                                                          \
	F(build_status, 2, STR, build, 36, REQUIRED)                                                         \
	F(build_status, 3, U64, after, 0, REQUIRED) /* entries of the log to pass over */                    \
	F(build_status, 4, U64, limit, 0, REQUIRED) /* 1 to 100 */                                           \
	F(build_status, 5, U64, level, 0, OPTIONAL) /* least: 0 debug, 1 info, 2 warn, 3 error */            \
	F(build_status, 6, BOOL, backward, 0, OPTIONAL) /* from the newest on */                             \
	F(build_status, 7, STR, template, 64, OPTIONAL) /* that it belongs to, else 404 */
#define MSG_FIELDS_await_build(F) /* answered when it ended: `ok`, or its error */                           \
	F(await_build, 1, STR, team, 64, REQUIRED)                                                           \
	F(await_build, 2, STR, build, 36, REQUIRED)
#define MSG_FIELDS_builds(F) /* answered by `builds_page`, the newest first */                               \
	F(builds, 1, STR, team, 64, REQUIRED)                                                                \
	F(builds, 2, STR, template, 64, REQUIRED)                                                            \
	F(builds, 3, STR, after, 36, OPTIONAL)                                                               \
	F(builds, 4, U64, limit, 0, REQUIRED)
#define MSG_FIELDS_tag_template(F) /* answered by `build_made` */                                            \
	F(tag_template, 1, STR, team, 64, REQUIRED)                                                          \
	F(tag_template, 2, STR, template, 64, REQUIRED)                                                      \
	F(tag_template, 3, STR, from, 128, REQUIRED) /* tag whose build they get */                          \
	F(tag_template, 4, LIST, tags, 4096, REQUIRED)                                                       \
	F(tag_template, 5, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_untag_template(F) /* answered by `ok` */                                                  \
	F(untag_template, 1, STR, team, 64, REQUIRED)                                                        \
	F(untag_template, 2, STR, template, 64, REQUIRED)                                                    \
	F(untag_template, 3, LIST, tags, 4096, REQUIRED)                                                     \
	F(untag_template, 4, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_change_template(F) /* answered by `ok` */                                                 \
	F(change_template, 1, STR, team, 64, REQUIRED)                                                       \
	F(change_template, 2, STR, template, 64, REQUIRED)                                                   \
	F(change_template, 3, BOOL, public, 0, OPTIONAL)                                                     \
	F(change_template, 4, STR, name, 256, OPTIONAL) /* empty: none any more. Another template of the team that has it loses it */ \
	F(change_template, 5, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_delete_template(F) /* answered by `ok`, 404, or 409 with the reason */                    \
	F(delete_template, 1, STR, team, 64, REQUIRED)                                                       \
	F(delete_template, 2, STR, template, 64, REQUIRED)                                                   \
	F(delete_template, 3, STR, tag, 128, OPTIONAL) /* this tag's build only; the template goes with its last tag */ \
	F(delete_template, 4, BOOL, force, 0, REQUIRED) /* also when sandboxes stand on it: they keep what they use */ \
	F(delete_template, 5, STR, request, 64, OPTIONAL)
#define MSG_FIELDS_find_file(F) /* answered by `file_found` */                                               \
	F(find_file, 1, STR, team, 64, REQUIRED)                                                             \
	F(find_file, 2, STR, hash, 64, REQUIRED) /* of a COPY step or a context, 64 hexadecimal digits, as the client computed it */
#define MSG_FIELDS_write_file(F) /* answered by `file_writer`, or 507 */                                     \
	F(write_file, 1, STR, team, 64, REQUIRED)                                                            \
	F(write_file, 2, STR, hash, 64, REQUIRED)                                                            \
	F(write_file, 3, U64, size, 0, REQUIRED) /* bytes that will come; 0 = not known, at most build.upload_max */
#define MSG_FIELDS_keep_file(F) /* answered by `ok` */                                                       \
	F(keep_file, 1, STR, team, 64, REQUIRED)                                                             \
	F(keep_file, 2, STR, hash, 64, REQUIRED)                                                             \
	F(keep_file, 3, U64, writer, 0, REQUIRED) /* as file_writer said */                                  \
	F(keep_file, 4, BOOL, whole, 0, REQUIRED) /* false: throw it away */
#define MSG_FIELDS_collect_images(F) /* answered by `images_page` */                                         \
	F(collect_images, 1, BOOL, dry_run, 0, REQUIRED)                                                     \
	F(collect_images, 2, I64, older_than, 0, REQUIRED) /* seconds since it was last used */
#define MSG_FIELDS_describe_template(F) /* answered by `template_description`, or 404 */                    \
	F(describe_template, 1, STR, team, 64, REQUIRED)                                                     \
	F(describe_template, 2, STR, template, 256, REQUIRED) /* template id, or template id:tag */

/* front to tools: a connection to the MCP server, for one request after the other; answered by `stream` */
#define MSG_FIELDS_open_tools(F)

/* node to front */
#define MSG_FIELDS_sandbox(F)                                                                                \
	F(sandbox, 1, STR, id, 32, REQUIRED)                                                                 \
	F(sandbox, 2, U64, state, 0, REQUIRED)       /* enum sandbox_state */                                \
	F(sandbox, 3, STR, team, 64, REQUIRED)                                                               \
	F(sandbox, 4, STR, template_id, 64, REQUIRED)                                                        \
	F(sandbox, 5, STR, alias, 256, OPTIONAL)     /* the template's name */                               \
	F(sandbox, 6, I64, started_at, 0, REQUIRED)  /* ns, CLOCK_REALTIME */                                \
	F(sandbox, 7, I64, end_at, 0, REQUIRED)      /* ns, CLOCK_REALTIME; INT64_MAX = never */             \
	F(sandbox, 8, U64, cpu_count, 0, REQUIRED)                                                           \
	F(sandbox, 9, U64, memory_mb, 0, REQUIRED)                                                           \
	F(sandbox, 10, U64, disk_mb, 0, REQUIRED)                                                            \
	F(sandbox, 11, MAP, metadata, 24576, REQUIRED)                                                       \
	F(sandbox, 12, STR, envd_token, 128, OPTIONAL)                                                       \
	F(sandbox, 13, STR, traffic_token, 128, OPTIONAL)                                                    \
	F(sandbox, 14, BOOL, internet, 0, OPTIONAL)                                                          \
	F(sandbox, 15, BOOL, auto_pause, 0, REQUIRED)                                                        \
	F(sandbox, 16, BOOL, auto_resume, 0, REQUIRED)                                                       \
	F(sandbox, 17, STR, generation, 32, REQUIRED) /* hex, changes at each resume, restore, fork */       \
	F(sandbox, 18, STR, isolation, 16, REQUIRED) /* "namespace" or "microvm" */                          \
	F(sandbox, 19, STR, reason, 32, OPTIONAL)    /* with SANDBOX_GONE: killed, timeout, oom_killed, ... */ \
	F(sandbox, 20, STR, detail, 512, OPTIONAL)                                                           \
	F(sandbox, 21, I64, ended_at, 0, OPTIONAL)                                                           \
	F(sandbox, 22, U64, sequence, 0, REQUIRED)   /* number of the event; a gap means: subscribe again */ \
	F(sandbox, 23, STR, launch, 8, OPTIONAL)     /* "warm" or "cold" */                                  \
	F(sandbox, 24, BOOL, auto_pause_memory, 0, REQUIRED)                                                 \
	F(sandbox, 25, STR, resumed_from, 8, OPTIONAL) /* of its newest resume: "memory" or "disk" */        \
	F(sandbox, 26, LIST, allow_out, 8192, OPTIONAL)                                                      \
	F(sandbox, 27, LIST, deny_out, 8192, OPTIONAL)                                                       \
	F(sandbox, 28, STR, origin, 32, OPTIONAL)    /* the sandbox it is a fork of, or the snapshot it was made from */ \
	F(sandbox, 29, BOOL, memory_kept, 0, OPTIONAL) /* paused, and its memory stays on the machine */     \
	F(sandbox, 30, STR, idempotency, 255, OPTIONAL) /* as in `create` */                                 \
	F(sandbox, 31, STR, fingerprint, 64, OPTIONAL)                                                       \
	F(sandbox, 32, I64, shutdown_at, 0, OPTIONAL) /* ns, CLOCK_REALTIME: it ends then at the latest */
#define MSG_FIELDS_snapshot(F)                                                                               \
	F(snapshot, 1, STR, id, 32, REQUIRED)        /* "snap-" and 20 of [a-z0-9] */                        \
	F(snapshot, 2, STR, team, 64, REQUIRED)                                                              \
	F(snapshot, 3, STR, name, 256, OPTIONAL)                                                             \
	F(snapshot, 4, STR, sandbox, 32, REQUIRED)   /* what it was made of */                               \
	F(snapshot, 5, STR, template_id, 64, REQUIRED) /* of that sandbox */                                 \
	F(snapshot, 6, I64, created_at, 0, REQUIRED) /* ns, CLOCK_REALTIME */                                \
	F(snapshot, 7, U64, cpu_count, 0, REQUIRED)                                                          \
	F(snapshot, 8, U64, memory_mb, 0, REQUIRED)                                                          \
	F(snapshot, 9, U64, disk_mb, 0, REQUIRED)                                                            \
	F(snapshot, 10, U64, size, 0, REQUIRED)      /* bytes of its own image on disk */                    \
	F(snapshot, 11, BOOL, gone, 0, OPTIONAL)     /* deleted */
#define MSG_FIELDS_forked(F)                                                                                 \
	F(forked, 1, LIST, results, 49152, REQUIRED) /* each a list: id, or "", HTTP status in decimal, message. After the events of its sandboxes */
#define MSG_FIELDS_metrics_page(F)                                                                           \
	F(metrics_page, 1, STR, samples, 57344, REQUIRED) /* of one sandbox struct metrics_sample, of several metrics_newest (node/metrics.h), one behind the other */ \
	F(metrics_page, 2, BOOL, more, 0, REQUIRED)  /* of one sandbox: ask again, from behind the last sample */
#define MSG_FIELDS_figures_page(F)                                                                           \
	F(figures_page, 1, STR, values, 4096, REQUIRED) /* struct node_figures (node/figures.h) */
#define MSG_FIELDS_pools_page(F)                                                                             \
	F(pools_page, 1, STR, pools, 57344, REQUIRED) /* struct pool_info (node/ready_pools.h), one behind the other */
#define MSG_FIELDS_template(F)                                                                               \
	F(template, 1, STR, id, 64, REQUIRED)                                                                \
	F(template, 2, STR, alias, 256, OPTIONAL)                                                            \
	F(template, 3, I64, created_at, 0, REQUIRED)                                                         \
	F(template, 4, U64, cpu_count, 0, REQUIRED)                                                          \
	F(template, 5, U64, memory_mb, 0, REQUIRED)                                                          \
	F(template, 6, U64, disk_mb, 0, REQUIRED)                                                            \
	F(template, 7, U64, size, 0, REQUIRED)       /* bytes of its layers on disk */                       \
	F(template, 8, STR, build_id, 36, REQUIRED)  /* UUID */                                              \
	F(template, 9, BOOL, gone, 0, OPTIONAL)      /* deleted */                                           \
	F(template, 10, STR, team, 64, OPTIONAL)     /* whose it is; absent: everybody's, of this machine */ \
	F(template, 11, BOOL, public, 0, OPTIONAL)   /* other teams may use it, too */                       \
	F(template, 12, STR, kind, 8, OPTIONAL)      /* as in make_template; absent: of this machine */      \
	F(template, 13, MAP, tags, 24576, OPTIONAL)  /* tag → "build id created_at": what names resolve to; empty: nothing is ready yet */ \
	F(template, 14, I64, updated_at, 0, OPTIONAL)                                                        \
	F(template, 15, U64, build_count, 0, OPTIONAL)                                                       \
	F(template, 16, STR, status, 16, OPTIONAL)   /* of the newest build */                               \
	F(template, 17, STR, last_error, 512, OPTIONAL) /* of that */                                        \
	F(template, 18, STR, reference, 512, OPTIONAL) /* of kind image */                                   \
	F(template, 19, STR, source, 8192, OPTIONAL) /* as in make_template, of the newest that had one */
#define MSG_FIELDS_build_made(F)                                                                             \
	F(build_made, 1, STR, template, 64, REQUIRED)                                                        \
	F(build_made, 2, STR, build, 36, REQUIRED)                                                           \
	F(build_made, 3, BOOL, made, 0, REQUIRED) /* false: it is there already (kind image), building or ready */ \
	F(build_made, 4, STR, name, 256, OPTIONAL)                                                           \
	F(build_made, 5, LIST, tags, 4096, REQUIRED)                                                         \
	F(build_made, 6, BOOL, public, 0, REQUIRED)
#define MSG_FIELDS_build_page(F)                                                                             \
	F(build_page, 1, STR, template, 64, REQUIRED)                                                        \
	F(build_page, 2, STR, build, 36, REQUIRED)                                                           \
	F(build_page, 3, STR, status, 16, REQUIRED) /* waiting, building, ready or error */                  \
	F(build_page, 4, STR, kind, 8, REQUIRED)                                                             \
	F(build_page, 5, STR, phase, 32, REQUIRED) /* cube.md D.3, empty before it began */                  \
	F(build_page, 6, U64, progress, 0, REQUIRED) /* percent */                                           \
	F(build_page, 7, STR, reason, 1024, OPTIONAL)                                                        \
	F(build_page, 8, STR, step, 32, OPTIONAL) /* of the error: base, finalize, or the step's number */   \
	F(build_page, 9, STR, entries, 49152, REQUIRED) /* lines of JSON: timestamp, level, message, step */ \
	F(build_page, 10, U64, next, 0, REQUIRED) /* `after` of the next page */                             \
	F(build_page, 11, I64, created_at, 0, REQUIRED) /* ns, CLOCK_REALTIME */                             \
	F(build_page, 12, I64, finished_at, 0, OPTIONAL)
#define MSG_FIELDS_builds_page(F)                                                                            \
	F(builds_page, 1, LIST, builds, 49152, REQUIRED) /* each a list: build id, status, created_at, finished_at ("" = not), cpu_count, memory_mb, disk_mb in decimal, tags separated by commas, reason */ \
	F(builds_page, 2, BOOL, more, 0, REQUIRED)
#define MSG_FIELDS_file_found(F)                                                                             \
	F(file_found, 1, BOOL, found, 0, REQUIRED)
#define MSG_FIELDS_file_writer(F) /* the descriptor: an empty file without a name, for writing */            \
	F(file_writer, 1, U64, writer, 0, REQUIRED)                                                          \
	F(file_writer, 2, U64, reserve, 0, OPTIONAL) /* free bytes of its disk that who writes it leaves */
#define MSG_FIELDS_images_page(F)                                                                            \
	F(images_page, 1, LIST, images, 49152, REQUIRED) /* each a list: name, bytes, seconds since it was last used */ \
	F(images_page, 2, U64, bytes, 0, REQUIRED) /* of all of them, also those that the list had no room for */ \
	F(images_page, 3, U64, count, 0, REQUIRED)
#define MSG_FIELDS_template_description(F)                                                                   \
	F(template_description, 1, STR, description, 57344, REQUIRED) /* as in node/templates.h, without id, alias, createdAt and buildId */
#define MSG_FIELDS_synced(F) F(synced, 1, U64, sequence, 0, REQUIRED) /* the snapshot is complete up to here */
#define MSG_FIELDS_stream(F) F(stream, 1, STR, generation, 32, REQUIRED)

/* What a box is started from, as the records keep it; never sent. */
#define MSG_FIELDS_start(F)                                                                                  \
	F(start, 1, LIST, layers, 8192, REQUIRED)    /* files relative to node/, lowest first */             \
	F(start, 2, STR, user, 64, REQUIRED)                                                                 \
	F(start, 3, STR, workdir, 4096, REQUIRED)    /* may be empty */                                      \
	F(start, 4, MAP, envs, 32768, REQUIRED)      /* complete, as in the claim */                         \
	F(start, 5, LIST, services, 20480, REQUIRED)  /* as in the claim */                                   \
	F(start, 6, BOOL, nested_userns, 0, REQUIRED)                                                        \
	F(start, 7, BOOL, no_setuid, 0, REQUIRED)                                                            \
	F(start, 8, LIST, ready, 8192, OPTIONAL)     /* as in the claim, and so are these */                 \
	F(start, 9, LIST, service_options, 20480, OPTIONAL)                                                  \
	F(start, 10, U64, template_envs, 0, OPTIONAL)                                                        \
	F(start, 11, U64, probe_port, 0, OPTIONAL)                                                           \
	F(start, 12, STR, probe_path, 256, OPTIONAL)                                                         \
	F(start, 13, BOOL, wait_ready, 0, OPTIONAL)                                                          \
	F(start, 14, STR, isolation, 16, OPTIONAL)   /* "namespace" or "microvm"; absent: the former, an older version made it */

/* node to egress. The descriptors: UDP socket, TCP listener, both bound to port 53 inside the sandbox's network namespace. */
#define MSG_FIELDS_dns_serve(F)                                                                              \
	F(dns_serve, 1, U64, slot, 0, REQUIRED)                                                              \
	F(dns_serve, 2, BOOL, allow, 0, REQUIRED)    /* false: every query is REFUSED */
#define MSG_FIELDS_dns_policy(F)                                                                             \
	F(dns_policy, 1, U64, slot, 0, REQUIRED)                                                             \
	F(dns_policy, 2, BOOL, allow, 0, REQUIRED)                                                           \
	F(dns_policy, 3, STR, sandbox, 32, OPTIONAL) /* for the logs */
#define MSG_FIELDS_dns_stop(F) F(dns_stop, 1, U64, slot, 0, REQUIRED)

/* node and init */
#define MSG_FIELDS_init_state(F)             /* init's answer to hello */                                    \
	F(init_state, 1, BOOL, claimed, 0, REQUIRED)                                                         \
	F(init_state, 2, STR, sandbox, 32, OPTIONAL)                                                         \
	F(init_state, 3, U64, version_min, 0, REQUIRED)                                                      \
	F(init_state, 4, U64, version_max, 0, REQUIRED)                                                      \
	F(init_state, 5, BOOL, still, 0, OPTIONAL)   /* it knows `still` */
#define MSG_FIELDS_spawner(F)                /* sent by the spawner itself; its host pid is in the datagram's credentials */
#define MSG_FIELDS_attached(F)               /* node: the spawner is in the work cgroup now */
#define MSG_FIELDS_parked(F)                 /* init: ready to be claimed */
/* node: the root of a template stands at /new; it, and this filter, are most likely what the claim will ask for, and if not, there will be no claim */
#define MSG_FIELDS_enter(F)                                                                                  \
	F(enter, 1, STR, seccomp, 20480, REQUIRED)                                                           \
	F(enter, 2, LIST, drop_caps, 1024, REQUIRED) /* of the spawner; PID 1 keeps them for its claim */
#define MSG_FIELDS_entered(F)                /* init: it is the root now */
#define MSG_FIELDS_claim(F)                                                                                  \
	F(claim, 1, STR, sandbox, 32, REQUIRED)                                                              \
	F(claim, 2, STR, template, 64, REQUIRED)                                                             \
	F(claim, 3, STR, hostname, 64, REQUIRED)                                                             \
	F(claim, 4, MAP, envs, 32768, REQUIRED)                                                              \
	F(claim, 5, STR, token, 128, OPTIONAL)       /* envd access token; absent = open */                  \
	F(claim, 6, I64, realtime, 0, REQUIRED)      /* ns; only a microVM's init sets its clock */          \
	F(claim, 7, STR, user, 64, REQUIRED)         /* default user */                                      \
	F(claim, 8, STR, workdir, 4096, OPTIONAL)    /* default working directory; absent = the user's home */ \
	F(claim, 9, STR, boot_id, 36, REQUIRED)                                                              \
	F(claim, 10, STR, machine_id, 32, REQUIRED)                                                          \
	F(claim, 11, STR, nameserver, 64, REQUIRED)                                                          \
	F(claim, 12, STR, address, 64, OPTIONAL)     /* of the link, for /etc/hosts */                       \
	F(claim, 13, STR, seccomp, 20480, REQUIRED)  /* struct sock_filter[] */                              \
	F(claim, 14, LIST, drop_caps, 1024, OPTIONAL)                                                        \
	F(claim, 15, BOOL, no_setuid, 0, OPTIONAL)   /* set no_new_privs */                                  \
	F(claim, 16, LIST, services, 20480, OPTIONAL) /* each item a list: name, user, port in decimal ("" = no socket), arguments */ \
	F(claim, 17, LIST, ready, 8192, OPTIONAL)    /* arguments of the template's ready command: it ends with 0 when the services are ready */ \
	F(claim, 18, BOOL, unassigned, 0, OPTIONAL)  /* of a ready pool: `prepared` is told, `assign` will follow */ \
	F(claim, 19, LIST, service_options, 20480, OPTIONAL) /* for each service a list: working directory ("" = its user's home), "once" (not started again) or "", variables (a map) */ \
	F(claim, 20, U64, template_envs, 0, OPTIONAL) /* so many of `envs`, the first, are the template's: a service's own go before them */ \
	F(claim, 21, U64, probe_port, 0, OPTIONAL)   /* ready is only what answers here */                   \
	F(claim, 22, STR, probe_path, 256, OPTIONAL) /* ... an HTTP GET of this with 2xx; absent: what takes a connection */ \
	F(claim, 23, BOOL, wait_ready, 0, OPTIONAL)  /* `prepared` is told once: ready, or not in time */
#define MSG_FIELDS_claimed(F)                /* init: envd accepts connections */
/* init, of an unassigned one: its services are ready (the probe was answered and the ready command ended with 0; without them: all of them run), or not any more.
 * Of one whose claim says wait_ready: they are ready, or did not become so in time. why: they never will be, and nothing follows */
#define MSG_FIELDS_prepared(F)                                                                               \
	F(prepared, 1, BOOL, ready, 0, REQUIRED)                                                             \
	F(prepared, 2, STR, why, 512, OPTIONAL)
/* node: it is somebody's now. From the answer on, what is started has these variables, and envd wants this token */
#define MSG_FIELDS_assign(F)                 /* answered by `assigned` */                                    \
	F(assign, 1, MAP, envs, 32768, REQUIRED)     /* complete, as in the claim */                         \
	F(assign, 2, STR, token, 128, OPTIONAL)      /* absent = open */                                     \
	F(assign, 3, U64, template_envs, 0, OPTIONAL) /* as in the claim */
#define MSG_FIELDS_assigned(F) F(assigned, 1, BOOL, ready, 0, REQUIRED) /* false: a service has ended meanwhile */
/* node: what happened? (guest/logs.h) */
#define MSG_FIELDS_log_read(F)                                                                               \
	F(log_read, 1, U64, after, 0, REQUIRED)                                                              \
	F(log_read, 2, I64, since, 0, REQUIRED)                                                              \
	F(log_read, 3, BOOL, wait, 0, OPTIONAL)      /* a page as soon as there are entries, and up to 31 more as others come; replaces the one that waits */
/* init, and node to front as init said it: hostile bytes */
#define MSG_FIELDS_log_page(F)                                                                               \
	F(log_page, 1, STR, entries, 57344, REQUIRED) /* lines of JSON; to front as in node/journal.h */     \
	F(log_page, 2, U64, next, 0, REQUIRED)       /* `after` of the next page */                          \
	F(log_page, 3, BOOL, more, 0, REQUIRED)
/* node: all but PID 1 is frozen from now on, or not any more */
#define MSG_FIELDS_still(F) F(still, 1, BOOL, on, 0, REQUIRED)
/* node to the init of a microVM (guest/machine_disk.h), each answered by ok or error */
#define MSG_FIELDS_sync(F)                   /* writes the disk: when all stands still, after it does */
/* on: nothing changes on the disk until it is off again, 30 s at most. off: error -ETIMEDOUT when those were over before */
#define MSG_FIELDS_quiesce(F) F(quiesce, 1, BOOL, on, 0, REQUIRED)
#define MSG_FIELDS_trim(F)                   /* tells the disk's device what is free */
#define MSG_FIELDS_ping(F)
#define MSG_FIELDS_pong(F)

/* node and a builder (image/builder.h): one process for each build. All that it says is checked, and is about its own build only */
#define MSG_FIELDS_build_begin(F) /* the descriptor: the spec, as in start_build. The first message to a builder */ \
	F(build_begin, 1, STR, template, 64, REQUIRED)                                                       \
	F(build_begin, 2, STR, build, 36, REQUIRED)                                                          \
	F(build_begin, 3, STR, base, 32768, OPTIONAL) /* description (node/templates.h) of what start_build.base names */ \
	F(build_begin, 4, BOOL, force, 0, REQUIRED)                                                          \
	F(build_begin, 5, STR, team, 64, REQUIRED)                                                           \
	F(build_begin, 6, U64, cpu_count, 0, REQUIRED) /* of its sandboxes, and of the template */           \
	F(build_begin, 7, U64, memory_mb, 0, REQUIRED)                                                       \
	F(build_begin, 8, U64, disk_mb, 0, REQUIRED)
#define MSG_FIELDS_build_log(F) /* to node, not answered */                                                  \
	F(build_log, 1, U64, level, 0, REQUIRED) /* 0 debug, 1 info, 2 warn, 3 error */                      \
	F(build_log, 2, STR, step, 32, OPTIONAL)                                                             \
	F(build_log, 3, STR, message, 8192, REQUIRED) /* without secrets */
#define MSG_FIELDS_build_progress(F) /* likewise */                                                          \
	F(build_progress, 1, STR, phase, 32, REQUIRED) /* cube.md D.3 */                                     \
	F(build_progress, 2, U64, progress, 0, REQUIRED) /* percent, of all */
#define MSG_FIELDS_find_layer(F) /* answered by `layer` (file absent: there is none; with `make` it is the caller's now, until put_layer or its end). Waits while another builder makes it */ \
	F(find_layer, 1, STR, key, 128, REQUIRED) /* what the layer follows from: blob digests and options (image/builder.h) */ \
	F(find_layer, 2, BOOL, make, 0, REQUIRED) /* the caller makes it when there is none: others that ask for it wait */
#define MSG_FIELDS_new_file(F) /* answered by `file_writer`; its number counts in this builder only */       \
	F(new_file, 1, U64, size, 0, REQUIRED) /* bytes that it is going to have, 0 = not known: refused with 507 when they have no room */
#define MSG_FIELDS_unpack_layer(F) /* makes an image of blobs, in a process of its own; answered by `layer`: then the files are gone; or by `error`: then they are still there. The builder must have closed them */ \
	F(unpack_layer, 1, STR, key, 128, REQUIRED) /* that find_layer gave to the caller */                 \
	F(unpack_layer, 2, LIST, files, 2048, REQUIRED) /* numbers of new_file, in decimal, lowest first: each a layer blob; more than one: they are merged */ \
	F(unpack_layer, 3, LIST, digests, 12288, REQUIRED) /* of each, sha256:HEX: node hashes the file itself */ \
	F(unpack_layer, 4, LIST, diff_ids, 12288, REQUIRED) /* of each, sha256:HEX of its tar; empty: not known */ \
	F(unpack_layer, 5, LIST, formats, 2048, REQUIRED) /* of each: tar, gzip or zstd */                   \
	F(unpack_layer, 6, U64, size_max, 0, REQUIRED) /* of the image made, bytes */                        \
	F(unpack_layer, 7, BOOL, lowest, 0, OPTIONAL) /* as in unpack_begin; the key then is oci:HEX of "lowest\nhex\n..." */
#define MSG_FIELDS_drop_layer(F) /* the caller will not make it after all; answered by `ok` */               \
	F(drop_layer, 1, STR, key, 128, REQUIRED)
#define MSG_FIELDS_start_box(F) /* a sandbox of the build's own, in no list; answered by `box_started` */    \
	F(start_box, 1, LIST, layers, 8192, REQUIRED) /* files as `layer` names them, or of the base; lowest first */ \
	F(start_box, 2, STR, user, 64, REQUIRED)                                                             \
	F(start_box, 3, STR, token, 128, REQUIRED) /* that envd will want */
#define MSG_FIELDS_open_box(F) /* answered by `stream` */                                                    \
	F(open_box, 1, U64, box, 0, REQUIRED)                                                                \
	F(open_box, 2, U64, port, 0, REQUIRED)
#define MSG_FIELDS_seal_box(F) /* ends it; what it has written becomes a layer; answered by `layer` */       \
	F(seal_box, 1, U64, box, 0, REQUIRED)                                                                \
	F(seal_box, 2, STR, key, 128, OPTIONAL) /* later builds find it by that */
#define MSG_FIELDS_end_box(F) /* answered by `ok` */                                                         \
	F(end_box, 1, U64, box, 0, REQUIRED)
#define MSG_FIELDS_open_file(F) /* what was uploaded by that name (keep_file); answered by `file_reader` or 404 */ \
	F(open_file, 1, STR, hash, 64, REQUIRED)
#define MSG_FIELDS_merge_layers(F) /* makes one image of several; answered by `layer` */                     \
	F(merge_layers, 1, LIST, layers, 8192, REQUIRED) /* adjacent ones, lowest first */                   \
	F(merge_layers, 2, LIST, below, 8192, OPTIONAL) /* what will be below it, lowest first */
#define MSG_FIELDS_build_done(F) /* answered by `ok`, then the builder ends */                               \
	F(build_done, 1, STR, description, 32768, REQUIRED) /* as in node/templates.h, without id, alias, createdAt, buildId; only layers of this build and of its base */ \
	F(build_done, 2, STR, digest, 128, OPTIONAL) /* of the image that it was made from */                \
	F(build_done, 3, BOOL, probe, 0, OPTIONAL) /* node starts a sandbox of it, and it is ready only when its ready command has passed in it */
#define MSG_FIELDS_build_failed(F) /* answered by `ok`, then the builder ends */                             \
	F(build_failed, 1, STR, message, 1024, REQUIRED)                                                     \
	F(build_failed, 2, STR, step, 32, OPTIONAL)
#define MSG_FIELDS_registry_login(F) /* what the operator's registry.auth has for a registry; answered by `registry_access`, or `error` (a credential helper) */ \
	F(registry_login, 1, STR, registry, 300, REQUIRED) /* host[:port] in normal form (image/reference.h) */ \
	F(registry_login, 2, STR, repository, 512, REQUIRED)
#define MSG_FIELDS_registry_access(F) /* without fields: nothing */                                          \
	F(registry_access, 1, STR, username, 4096, OPTIONAL)                                                 \
	F(registry_access, 2, STR, password, 16384, OPTIONAL)                                                \
	F(registry_access, 3, STR, identity_token, 16384, OPTIONAL)
#define MSG_FIELDS_layer(F)                                                                                  \
	F(layer, 1, STR, file, 160, OPTIONAL) /* relative to node/ */                                        \
	F(layer, 2, U64, size, 0, OPTIONAL) /* bytes on disk */                                              \
	F(layer, 3, BOOL, found, 0, OPTIONAL) /* it was there */                                             \
	F(layer, 4, BOOL, guessed, 0, OPTIONAL) /* of unpack_layer: as in `unpacked` */
#define MSG_FIELDS_box_started(F)                                                                            \
	F(box_started, 1, U64, box, 0, REQUIRED)
#define MSG_FIELDS_file_reader(F) /* the descriptor: the file, for reading */                                \
	F(file_reader, 1, U64, size, 0, REQUIRED)

/* node and an unpacker (image/unpack.h): one process for each image made; descriptors in its hands from the start */
#define MSG_FIELDS_unpacked(F) /* to node: the image is complete. Else it tells `error` */                   \
	F(unpacked, 1, U64, size, 0, REQUIRED) /* bytes of the image */                                      \
	F(unpacked, 2, U64, entries, 0, REQUIRED)                                                            \
	F(unpacked, 3, LIST, diff_ids, 12288, REQUIRED) /* of each blob */                                    \
	F(unpacked, 4, BOOL, guessed, 0, OPTIONAL) /* it has directories that no blob says anything of (image/unpack.h) */
#define MSG_FIELDS_unpack_begin(F) /* to an unpacker, its first message */                                  \
	F(unpack_begin, 1, LIST, formats, 2048, REQUIRED) /* of each blob, lowest first: tar, gzip or zstd */ \
	F(unpack_begin, 2, LIST, diff_ids, 12288, REQUIRED) /* of each, sha256:HEX; empty: not known */       \
	F(unpack_begin, 3, U64, size_max, 0, REQUIRED) /* of the image, bytes */                             \
	F(unpack_begin, 4, BOOL, lowest, 0, OPTIONAL) /* nothing will be below this image: it has no whiteouts */
#define MSG_FIELDS_merge_begin(F) /* to `cubicle merge` (image/merge.h), its first message; it answers `unpacked` without diff_ids, or `error` */ \
	F(merge_begin, 1, U64, layers, 0, REQUIRED) /* how many of its directories are to be merged, lowest first */ \
	F(merge_begin, 2, U64, below, 0, REQUIRED) /* how many come after those: what will be below the image, topmost first */ \
	F(merge_begin, 3, U64, size_max, 0, REQUIRED)

/* node and the monitor of a microVM (vmm/admin.h). Each is answered: by `ok` where nothing else is said, or by `error` */
#define MSG_FIELDS_vm_open(F) /* the descriptor, a connected stream, is connected to a port inside; it is closed when nobody listens there */ \
	F(vm_open, 1, U64, port, 0, REQUIRED) /* of vsock */
#define MSG_FIELDS_vm_pause(F) /* answered when the processors stand and no device has anything under way */
#define MSG_FIELDS_vm_resume(F)
#define MSG_FIELDS_vm_save(F) /* the descriptors: empty regular files for the state and for the memory. Only while it is paused; answered when both are on disk */
#define MSG_FIELDS_vm_balloon(F)                                                                             \
	F(vm_balloon, 1, U64, pages, 0, REQUIRED) /* of 4 KiB, that the guest is to give up */
#define MSG_FIELDS_vm_status(F) /* answered by `vm_state` */
#define MSG_FIELDS_vm_state(F)                                                                               \
	F(vm_state, 1, BOOL, running, 0, REQUIRED)                                                           \
	F(vm_state, 2, BOOL, up, 0, REQUIRED)      /* the guest's init listens */                            \
	F(vm_state, 3, U64, balloon, 0, REQUIRED)  /* pages that the guest has given up */

#define MESSAGES(M)                                                                                          \
	M(1, hello, MSG_FROM_ANY, 0)                                                                         \
	M(2, ok, MSG_FROM_ANY, 0)                                                                            \
	M(3, error, MSG_FROM_ANY, 0)                                                                         \
	M(10, peer, MSG_FROM_SERVE, 1)                                                                       \
	M(11, ready, MSG_FROM_CHILD, 0)                                                                      \
	M(12, first_key, MSG_FROM_SERVE, 0)                                                                  \
	M(13, stop, MSG_FROM_SERVE, 0)                                                                       \
	M(14, certificates, MSG_FROM_SERVE, 1)                                                               \
	M(15, reload_certificates, MSG_FROM_CHILD, 0)                                                        \
	M(20, subscribe, MSG_FROM_FRONT, 0)                                                                  \
	M(21, create, MSG_FROM_FRONT, 0)                                                                     \
	M(22, kill, MSG_FROM_FRONT, 0)                                                                       \
	M(23, timeout, MSG_FROM_FRONT, 0)                                                                    \
	M(24, open, MSG_FROM_FRONT, 0)                                                                       \
	M(25, reload_templates, MSG_FROM_FRONT, 0)                                                           \
	M(26, logs, MSG_FROM_FRONT, 0)                                                                       \
	M(27, pause, MSG_FROM_FRONT, 0)                                                                      \
	M(28, resume, MSG_FROM_FRONT, 0)                                                                     \
	M(29, make_snapshot, MSG_FROM_FRONT, 0)                                                              \
	M(30, delete_snapshot, MSG_FROM_FRONT, 0)                                                            \
	M(31, fork, MSG_FROM_FRONT, 0)                                                                       \
	M(32, rollback, MSG_FROM_FRONT, 0)                                                                   \
	M(33, network, MSG_FROM_FRONT, 0)                                                                    \
	M(34, metrics, MSG_FROM_FRONT, 0)                                                                    \
	M(35, figures, MSG_FROM_FRONT, 0)                                                                    \
	M(36, set_pool, MSG_FROM_FRONT, 0)                                                                   \
	M(37, unset_pool, MSG_FROM_FRONT, 0)                                                                 \
	M(38, pools, MSG_FROM_FRONT, 0)                                                                      \
	M(40, sandbox, MSG_FROM_NODE, 0)                                                                     \
	M(41, template, MSG_FROM_NODE, 0)                                                                    \
	M(42, synced, MSG_FROM_NODE, 0)                                                                      \
	M(43, stream, MSG_FROM_NODE | MSG_TO_BUILDER | MSG_FROM_TOOLS, 1)                                                     \
	M(44, snapshot, MSG_FROM_NODE, 0)                                                                    \
	M(45, forked, MSG_FROM_NODE, 0)                                                                      \
	M(46, metrics_page, MSG_FROM_NODE, 0)                                                                \
	M(47, figures_page, MSG_FROM_NODE, 0)                                                                \
	M(48, pools_page, MSG_FROM_NODE, 0)                                                                  \
	M(60, dns_serve, MSG_FROM_NODE, 2)                                                                   \
	M(61, dns_policy, MSG_FROM_NODE, 0)                                                                  \
	M(62, dns_stop, MSG_FROM_NODE, 0)                                                                    \
	M(80, claim, MSG_TO_INIT, 0)                                                                         \
	M(81, attached, MSG_TO_INIT, 0)                                                                      \
	M(82, ping, MSG_TO_INIT, 0)                                                                          \
	M(83, enter, MSG_TO_INIT, 0)                                                                         \
	M(84, log_read, MSG_TO_INIT, 0)                                                                      \
	M(85, still, MSG_TO_INIT, 0)                                                                         \
	M(86, assign, MSG_TO_INIT, 0)                                                                        \
	M(87, sync, MSG_TO_INIT, 0)                                                                          \
	M(88, quiesce, MSG_TO_INIT, 0)                                                                       \
	M(89, trim, MSG_TO_INIT, 0)                                                                          \
	M(90, init_state, MSG_FROM_INIT, 0)                                                                  \
	M(91, spawner, MSG_FROM_INIT, 0)                                                                     \
	M(92, parked, MSG_FROM_INIT, 0)                                                                      \
	M(93, claimed, MSG_FROM_INIT, 0)                                                                     \
	M(94, pong, MSG_FROM_INIT, 0)                                                                        \
	M(95, entered, MSG_FROM_INIT, 0)                                                                     \
	M(96, log_page, MSG_FROM_INIT | MSG_FROM_NODE, 0)                                                    \
	M(97, prepared, MSG_FROM_INIT, 0)                                                                    \
	M(98, assigned, MSG_FROM_INIT, 0)                                                                    \
	M(100, open_tools, MSG_FROM_FRONT, 0)\
	M(110, start, 0, 0)                                                                                  \
	M(120, make_template, MSG_FROM_FRONT, 0)                                                             \
	M(121, start_build, MSG_FROM_FRONT, 1)                                                               \
	M(122, build_status, MSG_FROM_FRONT, 0)                                                              \
	M(123, await_build, MSG_FROM_FRONT, 0)                                                               \
	M(124, builds, MSG_FROM_FRONT, 0)                                                                    \
	M(125, tag_template, MSG_FROM_FRONT, 0)                                                              \
	M(126, untag_template, MSG_FROM_FRONT, 0)                                                            \
	M(127, change_template, MSG_FROM_FRONT, 0)                                                           \
	M(128, delete_template, MSG_FROM_FRONT, 0)                                                           \
	M(129, find_file, MSG_FROM_FRONT, 0)                                                                 \
	M(130, write_file, MSG_FROM_FRONT, 0)                                                                \
	M(131, keep_file, MSG_FROM_FRONT, 0)                                                                 \
	M(132, collect_images, MSG_FROM_FRONT, 0)                                                            \
	M(133, describe_template, MSG_FROM_FRONT, 0)                                                         \
	M(140, build_made, MSG_FROM_NODE, 0)                                                                 \
	M(141, build_page, MSG_FROM_NODE, 0)                                                                 \
	M(142, builds_page, MSG_FROM_NODE, 0)                                                                \
	M(143, file_found, MSG_FROM_NODE, 0)                                                                 \
	M(144, file_writer, MSG_FROM_NODE | MSG_TO_BUILDER, 1)                                               \
	M(145, images_page, MSG_FROM_NODE, 0)                                                                \
	M(146, template_description, MSG_FROM_NODE, 0)                                                       \
	M(160, build_begin, MSG_TO_BUILDER, 1)                                                               \
	M(161, layer, MSG_TO_BUILDER, 0)                                                                     \
	M(162, box_started, MSG_TO_BUILDER, 0)                                                               \
	M(163, file_reader, MSG_TO_BUILDER, 1)                                                               \
	M(164, registry_access, MSG_TO_BUILDER, 0)                                                           \
	M(165, unpack_begin, MSG_TO_BUILDER, 0)                                                              \
	M(166, merge_begin, MSG_TO_BUILDER, 0)                                                               \
	M(170, build_log, MSG_FROM_BUILDER, 0)                                                               \
	M(171, build_progress, MSG_FROM_BUILDER, 0)                                                          \
	M(172, find_layer, MSG_FROM_BUILDER, 0)                                                              \
	M(173, new_file, MSG_FROM_BUILDER, 0)                                                                \
	M(174, unpack_layer, MSG_FROM_BUILDER, 0)                                                            \
	M(175, drop_layer, MSG_FROM_BUILDER, 0)                                                              \
	M(176, start_box, MSG_FROM_BUILDER, 0)                                                               \
	M(177, open_box, MSG_FROM_BUILDER, 0)                                                                \
	M(178, seal_box, MSG_FROM_BUILDER, 0)                                                                \
	M(179, end_box, MSG_FROM_BUILDER, 0)                                                                 \
	M(180, open_file, MSG_FROM_BUILDER, 0)                                                               \
	M(181, merge_layers, MSG_FROM_BUILDER, 0)                                                            \
	M(182, build_done, MSG_FROM_BUILDER, 0)                                                              \
	M(183, build_failed, MSG_FROM_BUILDER, 0)                                                            \
	M(184, unpacked, MSG_FROM_BUILDER, 0)                                                                \
	M(185, registry_login, MSG_FROM_BUILDER, 0)                                                          \
	M(190, vm_open, MSG_TO_VMM, 1)                                                                       \
	M(191, vm_pause, MSG_TO_VMM, 0)                                                                      \
	M(192, vm_resume, MSG_TO_VMM, 0)                                                                     \
	M(193, vm_save, MSG_TO_VMM, 2)                                                                       \
	M(194, vm_balloon, MSG_TO_VMM, 0)                                                                    \
	M(195, vm_status, MSG_TO_VMM, 0)                                                                     \
	M(200, vm_state, MSG_FROM_VMM, 0)

enum {
	SHUTDOWN_AFTER_MOST = 10 * 365 * 24 * 3600, /* seconds */
};

enum timeout_mode {
	TIMEOUT_SET,     /* POST /timeout: the deadline becomes now + timeout */
	TIMEOUT_CONNECT, /* connect: max(current, now + timeout) */
	TIMEOUT_REFRESH, /* refreshes: as connect */
};

enum resume_mode {
	RESUME_CONNECT,  /* running already: as TIMEOUT_CONNECT, 0 = unchanged; paused: now + timeout, 0 = the server's default */
	RESUME_EXPLICIT, /* running already: 409 */
	RESUME_TRAFFIC,  /* a request of the data plane: now + the creation timeout, at least 300 s; running already: nothing changes */
};

/* Who owns each state is said in docs/lifecycle.md; wire values, never renumbered. */
enum sandbox_state {
	SANDBOX_CREATING = 1,
	SANDBOX_RUNNING = 2,
	SANDBOX_PAUSING = 3,
	SANDBOX_PAUSED = 4,
	SANDBOX_SNAPSHOTTING = 5,
	SANDBOX_KILLING = 6,
	SANDBOX_GONE = 7,
};

#define MSG_MEMBER_U64(name) uint64_t name;
#define MSG_MEMBER_I64(name) int64_t name;
#define MSG_MEMBER_BOOL(name) bool name;
#define MSG_MEMBER_STR(name) struct str name;
#define MSG_MEMBER_MAP(name) struct msg_map name;
#define MSG_MEMBER_LIST(name) struct msg_list name;
#define MSG_MEMBER(message, tag, kind, name, max, need) MSG_MEMBER_##kind(name)
#define MSG_TAG(message, tag, kind, name, max, need) MSG_TAG_##message##_##name = tag,

#define MSG_DECLARE(id, message, directions, fds)                                                            \
	enum { MSG_FIELDS_##message(MSG_TAG) MSG_TAG_##message##_none_ = 0 };                                \
	struct msg_##message {                                                                               \
		uint64_t present; /* bit per tag; required fields need none when sending */                  \
		MSG_FIELDS_##message(MSG_MEMBER)                                                             \
	};
MESSAGES(MSG_DECLARE)
#undef MSG_DECLARE

enum msg_id {
#define MSG_ID(id, message, directions, fds) MSG_ID_##message = id,
	MESSAGES(MSG_ID)
#undef MSG_ID
};

union msg_any {
	uint64_t present;
#define MSG_UNION(id, message, directions, fds) struct msg_##message message;
	MESSAGES(MSG_UNION)
#undef MSG_UNION
};

#endif
