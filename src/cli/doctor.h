/* What `cubicle doctor` tries: one table of checks, each done for real in a process and mount namespace of its own. */
#ifndef CUBICLE_CLI_DOCTOR_H
#define CUBICLE_CLI_DOCTOR_H

#include "base/error.h"
#include "config/options.h"

enum { DOCTOR_NOTE = 300 };

struct doctor {
	const struct options *options;
	char work[256];         /* scratch directory on the state directory's file system */
	char note[DOCTOR_NOTE]; /* what a check found, shown beside OK */
};

enum need {
	NEED_ALWAYS,   /* without it no sandbox runs */
	NEED_BETTER,   /* without it something is slower or absent: `cost` says what */
	NEED_MACHINES, /* for microVMs: as the former with the option `isolation = microvm`, else as the latter */
};

struct doctor_check {
	const char *name;
	enum need need;
	const char *cost;   /* when it is missing */
	const char *remedy; /* what to do */
	/* 0 (with d->note, or not) or -errno with *err. Runs in a child of its own: what it changes ends with it. */
	int (*try)(struct doctor *d, struct error *err);
};

extern const struct doctor_check doctor_checks[];
extern const size_t doctor_n_checks;

/* doctor_kernel.c */
int doctor_try_root(struct doctor *d, struct error *err);
int doctor_try_kernel(struct doctor *d, struct error *err);
int doctor_try_namespaces(struct doctor *d, struct error *err);
int doctor_try_network_namespace(struct doctor *d, struct error *err);
int doctor_try_pidfd(struct doctor *d, struct error *err);
int doctor_try_openat2(struct doctor *d, struct error *err);
int doctor_try_seccomp(struct doctor *d, struct error *err);
int doctor_try_cgroups(struct doctor *d, struct error *err);
int doctor_try_cgroup_kill(struct doctor *d, struct error *err);
int doctor_try_clone_into_cgroup(struct doctor *d, struct error *err);
int doctor_try_veth(struct doctor *d, struct error *err);
int doctor_try_nft(struct doctor *d, struct error *err);

/* doctor_machines.c */
int doctor_try_kvm(struct doctor *d, struct error *err);
int doctor_try_guest_kernel(struct doctor *d, struct error *err);
int doctor_try_monitor(struct doctor *d, struct error *err);
int doctor_try_tap(struct doctor *d, struct error *err);

/* doctor_disk.c */
int doctor_try_loop(struct doctor *d, struct error *err);
int doctor_try_ext4(struct doctor *d, struct error *err);
int doctor_try_erofs_loop(struct doctor *d, struct error *err);
int doctor_try_erofs_file(struct doctor *d, struct error *err);
int doctor_try_tmpfs(struct doctor *d, struct error *err);
int doctor_try_overlay(struct doctor *d, struct error *err);
int doctor_try_reflink(struct doctor *d, struct error *err);
int doctor_try_space(struct doctor *d, struct error *err);

/* doctor_tls.c */
int doctor_try_certificate(struct doctor *d, struct error *err);
int doctor_try_names(struct doctor *d, struct error *err);

/* doctor_host.c */
int doctor_try_users(struct doctor *d, struct error *err);
int doctor_try_ids(struct doctor *d, struct error *err);
int doctor_try_limits(struct doctor *d, struct error *err);
int doctor_try_shared_limits(struct doctor *d, struct error *err);
int doctor_try_programs(struct doctor *d, struct error *err);
int doctor_try_template_programs(struct doctor *d, struct error *err);
int doctor_try_route(struct doctor *d, struct error *err);
int doctor_try_template(struct doctor *d, struct error *err);

#endif
