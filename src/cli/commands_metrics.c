#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/client.h"
#include "cli/output.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

enum { FOLLOW_EVERY_MS = 1000, TAIL = 12 };

static uint64_t number(const json_t *sample, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(sample, name));
}

static void print_sample(const struct cli *c, const json_t *s)
{
	char used[24], total[24], cache[24], disk[24], disk_total[24];
	struct str time = json_str(json_object_get(s, "timestamp"));
	if (c->json) {
		json_dumpf(s, stdout, JSON_COMPACT);
		putchar('\n');
		return;
	}
	printf("%.19s  cpu %5.1f %% of %llu  memory %s of %s, cache %s  disk %s of %s\n", time.n >= 19 ? time.p : "?", json_number_value(json_object_get(s, "cpuUsedPct")),
		(unsigned long long)number(s, "cpuCount"), size_text(used, number(s, "memUsed")), size_text(total, number(s, "memTotal")), size_text(cache, number(s, "memCache")),
		size_text(disk, number(s, "diskUsed")), size_text(disk_total, number(s, "diskTotal")));
}

int cmd_sandbox_metrics(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	char id[32];
	bool follow = cli_flag(c, "follow")->set, all = cli_flag(c, "all")->set;
	int64_t shown = 0; /* ns: samples come in the order of their times */
	if (client_open(&cl, c, &err) < 0 || client_resolve(&cl, c->words[0], id, &err) < 0)
		return cli_fail(c, &err);
	for (bool began = false;; began = true) {
		char path[128];
		cleanup_json json_t *samples = NULL;
		const json_t *s;
		size_t i;
		snprintf(path, sizeof(path), "/sandboxes/%s/metrics?start=%lld", id, (long long)(shown / NS_PER_S));
		if (client_call(&cl, "GET", path, NULL, &samples, NULL, &err) < 0)
			return began && err.status == 404 ? EXIT_OK : cli_fail(c, &err);
		size_t n = json_array_size(samples), skip = !began && !all && n > TAIL ? n - TAIL : 0;
		json_array_foreach(samples, i, s) {
			int64_t at;
			if (i < skip || rfc3339_parse(json_str(json_object_get(s, "timestamp")), &at) < 0 || at <= shown)
				continue;
			shown = at;
			print_sample(c, s);
		}
		if (fflush(stdout) != 0)
			return EXIT_FAILED;
		if (!follow)
			return EXIT_OK;
		nanosleep(&(struct timespec){.tv_sec = FOLLOW_EVERY_MS / 1000}, NULL);
	}
}
