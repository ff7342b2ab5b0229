#include "sys/host_limits.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static const struct {
	const char *path;
	uint64_t least;
} limits[] = {
	{"/proc/sys/fs/aio-max-nr", UINT64_C(1) << 30},
	{"/proc/sys/kernel/pty/max", UINT64_C(1) << 20},
	/* These count for each user, which is here: for each sandbox, with all that is watched in it (guest/watch.h, and programs such as build servers). The
	 * defaults are 128 instances and, on a machine with 4 GiB, some 30,000 watches. */
	{"/proc/sys/fs/inotify/max_user_instances", 8192},
	{"/proc/sys/fs/inotify/max_user_watches", 524288},
	/* Of one instance. */
	{"/proc/sys/fs/inotify/max_queued_events", 65536},
	/* Neighbours of all namespaces stand in one table, at least one for each loopback: a thousand sandboxes are over the default of 1024. */
	{"/proc/sys/net/ipv4/neigh/default/gc_thresh3", 65536},
	{"/proc/sys/net/ipv4/neigh/default/gc_thresh2", 32768},
	{"/proc/sys/net/ipv4/neigh/default/gc_thresh1", 16384},
	{"/proc/sys/net/ipv6/neigh/default/gc_thresh3", 65536},
	{"/proc/sys/net/ipv6/neigh/default/gc_thresh2", 32768},
	{"/proc/sys/net/ipv6/neigh/default/gc_thresh1", 16384},
};

/* The value when it is lower than wanted; else (also when there is no such limit here) false. */
static bool is_low(size_t i, uint64_t *ret_now)
{
	cleanup_buf struct buf text = BUF_INIT;
	struct str line, rest;
	return file_read(AT_FDCWD, limits[i].path, 64, &text) == 0 && str_cut(buf_str(&text), '\n', &line, &rest) && str_to_u64(line, ret_now) == 0 &&
	       *ret_now < limits[i].least;
}

void host_limits_raise(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		uint64_t now;
		char value[24];
		if (!is_low(i, &now))
			continue;
		int n = snprintf(value, sizeof(value), "%llu", (unsigned long long)limits[i].least);
		int r = file_write_value(AT_FDCWD, limits[i].path, str_n(value, (size_t)n));
		if (r < 0)
			log_warn("%s stays at %llu: %s", limits[i].path, (unsigned long long)now, strerror(-r));
	}
}

unsigned host_limits_missing(struct buf *to)
{
	unsigned count = 0;
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		uint64_t now;
		if (!is_low(i, &now) || access(limits[i].path, W_OK) == 0)
			continue;
		buf_addf(to, "%s%s is %llu, wanted are %llu", count++ ? ", " : "", limits[i].path, (unsigned long long)now, (unsigned long long)limits[i].least);
	}
	return count;
}
