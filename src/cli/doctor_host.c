/* The doctor's checks of how this machine is set up. */
#include "cli/doctor.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "node/templates.h"
#include "sys/host_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	FDS_PER_SANDBOX = 6,
	PROCESSES_PER_SANDBOX = 3,
};

int doctor_try_users(struct doctor *d, struct error *err)
{
	const char *const names[] = {d->options->user_front, d->options->user_egress, d->options->user_tools, d->options->user_build};
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		const struct passwd *p = getpwnam(names[i]);
		if (!p)
			return error_set(err, -ENOENT, 500, "there is no user '%s'", names[i]);
		if (p->pw_uid == 0)
			return error_set(err, -EINVAL, 500, "'%s' is root", names[i]);
	}
	return 0;
}

/* One line "name:first:count" of subuid and subgid. */
static int check_subids(const char *path, uint64_t first, uint64_t end, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	if (file_read(AT_FDCWD, path, 1 << 20, &text) < 0)
		return 0; /* none are handed out */
	struct str rest = buf_str(&text), line, name, numbers, a, b;
	while (rest.n) {
		struct str tail = str_n("", 0);
		if (!str_cut(rest, '\n', &line, &tail))
			line = rest;
		rest = tail;
		uint64_t from, count;
		if (!str_cut(line, ':', &name, &numbers) || !str_cut(numbers, ':', &a, &b) || str_to_u64(a, &from) < 0 || str_to_u64(b, &count) < 0)
			continue;
		if (from < end && from + count > first)
			return error_set(err, -EADDRINUSE, 500, "%s gives %llu to %llu to %.*s", path, (unsigned long long)from,
				(unsigned long long)(from + count - 1), STR_FMT(name));
	}
	return 0;
}

int doctor_try_ids(struct doctor *d, struct error *err)
{
	uint64_t first = (uint64_t)d->options->uid_base, end = first + (uint64_t)(d->options->max_sandboxes + d->options->pool_max) * 65536;
	if (end > UINT32_MAX)
		return error_set(err, -ERANGE, 500, "uid_base %llu leaves no room for %lld sandboxes below 2^32", (unsigned long long)first, (long long)d->options->max_sandboxes);
	setpwent();
	for (const struct passwd *p; (p = getpwent());)
		if (p->pw_uid >= first && p->pw_uid < end)
			return error_set(err, -EADDRINUSE, 500, "the user '%s' has uid %u", p->pw_name, p->pw_uid);
	endpwent();
	int r = check_subids("/etc/subuid", first, end, err);
	if (r == 0)
		r = check_subids("/etc/subgid", first, end, err);
	snprintf(d->note, sizeof(d->note), "%llu to %llu", (unsigned long long)first, (unsigned long long)end - 1);
	return r;
}

static uint64_t read_number(const char *path)
{
	cleanup_buf struct buf text = BUF_INIT;
	uint64_t v = 0;
	if (file_read(AT_FDCWD, path, 64, &text) == 0) {
		struct str s = buf_str(&text);
		while (s.n && s.p[s.n - 1] == '\n')
			s.n--;
		str_to_u64(s, &v);
	}
	return v;
}

int doctor_try_limits(struct doctor *d, struct error *err)
{
	unsigned files = fd_raise_limit(); /* as the node does */
	uint64_t pids = read_number("/proc/sys/kernel/pid_max"), wanted = (uint64_t)d->options->max_sandboxes;
	uint64_t by_files = files / FDS_PER_SANDBOX, by_pids = pids / (PROCESSES_PER_SANDBOX + 8);
	snprintf(d->note, sizeof(d->note), "%u open files, %llu processes", files, (unsigned long long)pids);
	if (by_files < wanted)
		return error_set(err, -EMFILE, 500, "%u open files are enough for about %llu sandboxes, max_sandboxes is %llu", files,
			(unsigned long long)by_files, (unsigned long long)wanted);
	if (by_pids < wanted)
		return error_set(err, -EAGAIN, 500, "%llu process ids are enough for about %llu sandboxes, max_sandboxes is %llu", (unsigned long long)pids,
			(unsigned long long)by_pids, (unsigned long long)wanted);
	return 0;
}

/* Those that the server raises when it starts. */
int doctor_try_shared_limits(struct doctor *d, struct error *err)
{
	cleanup_buf struct buf missing = BUF_INIT;
	if (host_limits_missing(&missing) == 0)
		return 0;
	return error_set(err, -EROFS, 500, "%s", buf_cstr(&missing) ? buf_cstr(&missing) : "");
}

/* A program, and the Debian package that has it. */
typedef const char *const program[2];

static int find_programs(const program *needed, size_t n, struct error *err)
{
	static const char *const places[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"};
	cleanup_buf struct buf missing = BUF_INIT;
	for (size_t i = 0; i < n; i++) {
		bool found = false;
		for (size_t j = 0; j < ARRAY_SIZE(places); j++) {
			char path[64];
			snprintf(path, sizeof(path), "%s/%s", places[j], needed[i][0]);
			found |= access(path, X_OK) == 0;
		}
		if (!found)
			buf_addf(&missing, "%s%s (package %s)", buf_len(&missing) ? ", " : "", needed[i][0], needed[i][1]);
	}
	return buf_len(&missing) ? error_set(err, -ENOENT, 500, "%s", buf_cstr(&missing)) : 0;
}

int doctor_try_programs(struct doctor *d, struct error *err)
{
	static program needed[] = {{"nft", "nftables"}, {"ip", "iproute2"}, {"mkfs.ext4", "e2fsprogs"}, {"mkfs.erofs", "erofs-utils"}};
	return find_programs(needed, ARRAY_SIZE(needed), err);
}

int doctor_try_template_programs(struct doctor *d, struct error *err)
{
	static program needed[] = {{"mmdebstrap", "mmdebstrap"}};
	return find_programs(needed, ARRAY_SIZE(needed), err);
}

int doctor_try_route(struct doctor *d, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, "/proc/net/route", 1 << 20, &text);
	if (r < 0)
		return error_errno(err, r, "/proc/net/route");
	/* Interface, destination, ...: a default route's destination is zero. */
	struct str rest = buf_str(&text), line, link, fields;
	while (str_cut(rest, '\n', &line, &rest))
		if (str_cut(line, '\t', &link, &fields) && str_starts(fields, STR("00000000\t"))) {
			snprintf(d->note, sizeof(d->note), "by %.*s", (int)MIN(link.n, 32u), link.p);
			return 0;
		}
	return error_set(err, -ENETUNREACH, 500, "there is no default route");
}

static void count_template(const struct template *t, bool gone, void *arg)
{
	++*(unsigned *)arg;
}

int doctor_try_template(struct doctor *d, struct error *err)
{
	char node_dir[256];
	unsigned n = 0;
	struct templates *all = templates_new();
	snprintf(node_dir, sizeof(node_dir), "%s/node", d->options->state_dir);
	int r = all ? templates_load(all, node_dir, count_template, &n, err) : error_errno(err, -ENOMEM, "templates");
	templates_free(all);
	if (r == 0 && n == 0)
		return error_set(err, -ENOENT, 404, "%s has none", node_dir);
	snprintf(d->note, sizeof(d->note), "%u", n);
	return r;
}
