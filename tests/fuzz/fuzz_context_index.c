#include "fuzz.h"

#include "base/fd.h"
#include "image/context_index.h"

#include <string.h>
#include <sys/mman.h>

/* The order that lookups rely on: what is in a directory follows it at once. */
static void check_order(const struct context_index *ix)
{
	for (size_t i = 0; i < ix->n; i++) {
		size_t from, to;
		struct str path = str_of(ix->entries[i].path);
		hold(path.n && path.p[0] != '/' && context_index_find(ix, path) == &ix->entries[i]);
		hold(context_index_below(ix, path, &from, &to) && from == i && to > i && to <= ix->n);
		for (size_t k = from + 1; k < to; k++)
			hold(str_starts(str_of(ix->entries[k].path), path) && ix->entries[k].path[path.n] == '/');
	}
}

void fuzz_one(struct str input)
{
	struct error err = {0};
	cleanup_context_index struct context_index ix = {0};
	cleanup_fd int fd = memfd_create("input", MFD_CLOEXEC);
	if (fd < 0 || fd_write_all(fd, input.p, input.n) < 0)
		return;
	int r = context_index_read(&ix, fd, &err);
	hold(r == 0 || err.message[0]);
	if (ix.n > 1000)
		return;
	check_order(&ix);
	for (size_t i = 0; i < ix.n; i++) {
		cleanup_buf struct buf real = BUF_INIT;
		if (context_index_resolve(&ix, str_of(ix.entries[i].path), &real) == 0) {
			const struct context_entry *e = context_index_find(&ix, buf_str(&real));
			hold(!e || !e->target);
		}
	}
}
