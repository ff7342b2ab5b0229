#include "sandbox/box/impl.h"
#include "sandbox/namespace/layers.h"
#include "base/cleanup.h"

#include <errno.h>
#include <string.h>

struct layer_opening {
	struct backend *backend;
	int *fds;
	size_t n;
	void (*done)(const struct error *err, void *arg);
	void *arg;
	struct error err;
	char paths[]; /* one behind the other, each with its NUL */
};

static void open_work(void *arg)
{
	struct layer_opening *o = arg;
	struct host *h = o->backend->host;
	const char *path = o->paths;
	size_t n = 0;
	int r = host_enter(h, &o->err);
	for (; r == 0 && n < o->n; n++, path += strlen(path) + 1) {
		int fd = layers_open(h, path, &o->err);
		if (fd < 0)
			break;
		o->fds[n] = fd;
	}
	if (n == o->n)
		return;
	while (n--) {
		close(o->fds[n]);
		o->fds[n] = -1;
	}
}

static void open_done(void *arg)
{
	struct layer_opening *o = arg;
	struct backend *b = o->backend;
	o->done(o->err.code ? &o->err : NULL, o->arg);
	free(o);
	backend_let_drain(b);
}

int backend_open_layers(struct backend *b, const char *const *paths, size_t n, int *fds, void (*done)(const struct error *err, void *arg), void *arg)
{
	size_t size = 0;
	for (size_t i = 0; i < n; i++)
		size += strlen(paths[i]) + 1;
	struct layer_opening *o = calloc(1, sizeof(*o) + size);
	if (!o)
		return -ENOMEM;
	*o = (struct layer_opening){.backend = b, .fds = fds, .n = n, .done = done, .arg = arg};
	char *at = o->paths;
	for (size_t i = 0; i < n; i++)
		at = stpcpy(at, paths[i]) + 1;
	backend_hold_drain(b);
	int r = workq_push(b->copiers, b->loop, open_work, open_done, o);
	if (r < 0) {
		free(o);
		backend_let_drain(b);
	}
	return r;
}
