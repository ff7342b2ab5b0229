/*
 * The one table of configuration options. Sources, later wins: default, file (`name = value` lines), environment
 * (CUBICLE_ + upper-case name with '_' for '.'), flags (--name=value or --name value). Help and docs come from this table.
 */
#ifndef CUBICLE_CONFIG_OPTIONS_H
#define CUBICLE_CONFIG_OPTIONS_H

#include "base/buf.h"
#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

/* O(name, member, KIND, default, min, max, doc); min and max bound INT, PERCENT and FACTOR. */
#define OPTIONS(O)                                                                                           \
	O("state.dir", state_dir, STRING, "/var/lib/cubicle", 0, 0, "Where everything durable lives: records, images, disks.") \
	O("listen", listen, STRING, "127.0.0.1:3000", 0, 0, "Address and port of the API and of the sandboxes' ingress.") \
	O("listen.tls", listen_tls, STRING, "", 0, 0, "Address and port where the same is served over TLS; empty: nowhere.") \
	O("tls.cert", tls_cert, STRING, "", 0, 0, "Certificate chain (PEM, leaf first) for listen.tls; several, comma-separated, are chosen by name. Empty: the one of `cubicle cert make`.") \
	O("tls.key", tls_key, STRING, "", 0, 0, "Private keys (PEM, no passphrase) for tls.cert, in the same order; empty: they are in the files of tls.cert.") \
	O("metrics.listen", metrics_listen, STRING, "", 0, 0, "Address and port where GET /metrics tells a Prometheus about the whole server, to whoever can connect; empty: nowhere.") \
	O("domain", domain, STRING, "", 0, 0, "Domain (with a port where needed) that clients reach sandboxes under: <port>-<id>.<domain>. Empty: clients use their own.") \
	O("ingress.connections", ingress_connections, INT, "4096", 1, 100000, "Most connections from outside into one sandbox at once; more get 429.") \
	O("log.level", log_level, STRING, "info", 0, 0, "Lowest level written: debug, info, warn or error.")  \
	O("log.file", log_file, STRING, "", 0, 0, "File for the logs; empty: standard error.")               \
	O("user.front", user_front, STRING, "cubicle-front", 0, 0, "System user of the front process.")      \
	O("user.tools", user_tools, STRING, "cubicle-tools", 0, 0, "System user of the process of the MCP server.") \
	O("user.egress", user_egress, STRING, "cubicle-egress", 0, 0, "System user of the egress process.")  \
	O("user.build", user_build, STRING, "cubicle-build", 0, 0, "System user of the processes that build templates.") \
	O("build.max", build_max, INT, "2", 1, 64, "Most builds of templates at once; more wait.") \
	O("build.timeout", build_timeout, INT, "3600", 10, 86400, "Seconds that a build may take.") \
	O("build.disk", build_disk, INT, "51200", 64, 16777216, "Most disk in MiB that one build may have for what it fetches and makes.") \
	O("build.upload_max", build_upload_max, INT, "10240", 1, 1048576, "Largest file in MiB that may be sent for a build.") \
	O("image.keep", image_keep, INT, "168", 0, 87600, "Hours that layers and files of builds are kept after their last use when nothing stands on them.") \
	O("max_sandboxes", max_sandboxes, INT, "1000", 1, 20000, "Most sandboxes on this machine at once.") \
	O("quota.sandboxes", quota_sandboxes, INT, "0", 0, 1000000, "Most sandboxes of a team that run at once, for teams without a limit of their own; more get 429. 0 = no limit.") \
	O("quota.creates", quota_creates, INT, "0", 0, 1000000, "Most sandboxes that a team starts in a second, likewise.") \
	O("quota.memory", quota_memory, INT, "0", 0, 1000000000, "Most memory in MiB of a team's sandboxes that run or are paused with their memory, likewise.") \
	O("timeout.default", timeout_default, INT, "300", 1, 2592000, "Seconds a sandbox lives when a request names no timeout.") \
	O("timeout.max", timeout_max, INT, "2592000", 1, 31536000, "Longest timeout in seconds a request may ask for.") \
	O("isolation", isolation, STRING, "namespace", 0, 0, "What sandboxes run in whose template does not say: namespace, microvm (KVM, a kernel of its own for each), or auto: microVMs where this machine is proven to run them.") \
	O("guest.kernel", guest_kernel, STRING, "", 0, 0, "File of the kernel of microVMs, named vmlinuz-VERSION, its modules in ../lib/modules/VERSION; empty: the newest Debian cloud kernel in /boot.") \
	O("overcommit.memory", overcommit_memory, FACTOR, "4", 1, 100, "How often the machine's memory may be promised.") \
	O("disk.reserve", disk_reserve, PERCENT, "10", 1, 90, "Share of the state directory's file system that is never promised; the red mark is half of it.") \
	O("disk.overcommit", disk_overcommit, FACTOR, "200", 1, 10000, "How often the free disk space above the reserve may be promised to sparse disks.") \
	O("disk.guarantee", disk_guarantee, BOOL, "false", 0, 0, "Preallocate every sandbox's disk whole: nothing can run out, fewer sandboxes fit.") \
	O("sandbox.cpu", sandbox_cpu, INT, "2", 1, 256, "Virtual CPUs of a sandbox whose template names none.") \
	O("sandbox.memory", sandbox_memory, INT, "512", 64, 1048576, "Memory in MiB of a sandbox whose template names none.") \
	O("sandbox.disk", sandbox_disk, INT, "10240", 64, 1048576, "Disk in MiB of a sandbox whose template names none.") \
	O("sandbox.pids", sandbox_pids, INT, "512", 16, 4000000, "Most processes and threads in a sandbox.")   \
	O("pool.min", pool_min, INT, "8", 0, 1000, "Slots kept ready at least.")                             \
	O("pool.max", pool_max, INT, "128", 0, 1000, "Slots kept ready at most.")                            \
	O("ready.min", ready_min, INT, "1", 0, 1000, "Sandboxes kept ready at least, of each template with services whose pool is not set otherwise.") \
	O("ready.max", ready_max, INT, "16", 0, 1000, "Sandboxes kept ready at most, likewise. 0 = none, but for pools that are set.") \
	O("ready.memory", ready_memory, PERCENT, "25", 0, 100, "Share of the memory that may be promised which ready sandboxes may have.") \
	O("uid_base", uid_base, INT, "1879048192", 65536, 4294901760, "First id of the sandboxes' uid and gid ranges, 65536 each.") \
	O("network.pool", network_pool, STRING, "100.96.0.0/16", 0, 0, "IPv4 range that the sandboxes' links are cut from.") \
	O("network.private", network_private_open, STRING, "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16", 0, 0, "Private IPv4 ranges that a sandbox's allowOut may open, comma-separated; empty: none.") \
	O("dns.upstream", dns_upstream, STRING, "", 0, 0, "Resolvers, comma-separated; empty: the machine's own from /etc/resolv.conf.") \
	O("registry.insecure", registry_insecure, STRING, "", 0, 0, "Registries (exact host or host:port, comma-separated) that may be spoken to over plain HTTP or TLS that nobody vouches for, and may be at private addresses.") \
	O("registry.insecure_credentials", registry_insecure_credentials, BOOL, "false", 0, 0, "Let credentials go to a registry of registry.insecure over a connection that is not verified TLS; otherwise that is an error.") \
	O("registry.private", registry_private, STRING, "", 0, 0, "Registries (exact host or host:port, comma-separated) that may be at private, loopback and link-local addresses. The token services and blob stores that they refer to count by their own names.") \
	O("registry.ca", registry_ca, STRING, "", 0, 0, "File of certificates (PEM) that registries are believed with besides the system's; empty: only the system's.") \
	O("registry.auth", registry_auth, STRING, "", 0, 0, "Docker configuration file (`docker login`) with the credentials of pulls that nobody gave credentials for; empty: none.") \
	O("cgroup.parent", cgroup_parent, STRING, "cubicle", 0, 0, "Name of the top-level cgroup where systemd gave none.")

struct options {
#define OPTION_STRING(m) const char *m;
#define OPTION_INT(m) int64_t m;
#define OPTION_PERCENT(m) int64_t m;
#define OPTION_FACTOR(m) double m;
#define OPTION_BOOL(m) bool m;
#define OPTION(name, m, kind, def, min, max, doc) OPTION_##kind(m)
	OPTIONS(OPTION)
#undef OPTION
	struct option_value *values; /* private: owned texts and sources, one per option */
};

/* All defaults. -ENOMEM or 0. */
int options_init(struct options *o);
void options_done(struct options *o);

/* Sets one option from text; `source` ("file:line", "environment", "flag --x") is copied for `cubicle config` and for errors.
 * 0, or -EINVAL / -ENOENT with *err naming option, value and source. */
int options_set(struct options *o, struct str name, struct str value, const char *source, struct error *err);

/* Reads a file of `name = value` lines ('#' starts a comment). A missing file is an error only when `required`. */
int options_read_file(struct options *o, const char *path, bool required, struct error *err);
/* The same lines from memory; `source` is for errors. */
int options_read_text(struct options *o, const char *source, struct str text, struct error *err);
/* Takes every CUBICLE_... variable that names an option; an unknown one is an error unless it is in a short list of others' (CUBICLE_BACKEND...). */
int options_read_env(struct options *o, char **environ, struct error *err);
/* Takes options out of argv (from index 1), leaving the other words: new argc in *argc. "--" ends. A name in `others` (ended by NULL, or NULL) is left there: it means something else. */
int options_read_flags(struct options *o, int *argc, char **argv, const char *const *others, struct error *err);
/* Default order: file (flag --config, else $CUBICLE_CONFIG, else /etc/cubicle/cubicle.conf when it exists), environment, flags; then options_check. */
int options_load(struct options *o, int *argc, char **argv, const char *const *others, char **environ, struct error *err);
/* Rules across options (pool.min <= pool.max, timeout.default <= timeout.max, ...). */
int options_check(const struct options *o, struct error *err);

/* The domain as clients need it: with the port of listen.tls unless it has a port of its own or that is 443. Empty without a domain. Appended; 0 or -ENOMEM. */
int options_client_domain(const struct options *o, struct buf *to);
/* The domain without a port: what certificates are for. */
struct str options_domain_name(const struct options *o);

/* "http://host:port": how this machine reaches what `listen` says ("0.0.0.0:3000" gives 127.0.0.1); the caller frees it. NULL without memory. */
char *options_listen_url(const struct options *o);

/* `name = value` lines that options_read_file takes: how serve hands its configuration to its children. */
int options_serialize(const struct options *o, struct buf *to);
/* For `cubicle config`: calls fn for each option in table order. */
void options_each(const struct options *o, void (*fn)(const char *name, const char *value, const char *source, const char *doc, void *arg), void *arg);

#endif
