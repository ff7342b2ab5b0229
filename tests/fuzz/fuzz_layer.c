#include "fuzz.h"

#include "image/unpack.h"
#include "../unit/erofs_reader.h"

#include <sys/mman.h>

/* A layer of an image, decompressed: whatever it holds, what is made of it is within its limits and an image that a strict reader takes; else there is an error that says something. */

static const struct tree_limits limits = {.image = 1 << 20, .entries = 500, .memory = 2 << 20, .file = 1 << 30, .path = 4095, .depth = 40, .xattrs = 4096, .extents = 100};

struct pieces {
	struct str rest;
	size_t size;
};

static int next(void *arg, struct str *ret, struct error *err)
{
	struct pieces *p = arg;
	*ret = str_n(p->rest.p, MIN(p->size, p->rest.n));
	p->rest = str_from(p->rest, ret->n);
	return ret->n > 0;
}

static void make(struct str input, size_t size, bool twice, bool lowest, struct buf *ret)
{
	cleanup_fd int fd = memfd_create("image", MFD_CLOEXEC);
	struct tree *tree;
	struct error err = {0};
	hold(fd >= 0 && tree_new(fd, &limits, TREE_OCI, &tree) == 0);
	struct pieces p = {input, size};
	int r = unpack_archive(tree, next, &p, &err);
	if (r == 0 && twice) {
		tree_next_layer(tree);
		p = (struct pieces){input, size};
		r = unpack_archive(tree, next, &p, &err);
	}
	const struct tree_finish how = {.lowest = lowest};
	struct tree_result made;
	if (r == 0)
		r = tree_finish(tree, &how, &made, &err);
	tree_free(tree);
	hold(r == 0 || (r == err.code && err.message[0] && err.status >= 400 && str_is_utf8(str_of(err.message))));
	if (r < 0) {
		buf_addf(ret, "%d %s\n", r, err.message);
		return;
	}
	hold(made.size <= limits.image && made.size == (uint64_t)lseek(fd, 0, SEEK_END));
	r = erofs_list(fd, ret);
	if (r < 0)
		fprintf(stderr, "%s\n", buf_cstr(ret));
	hold(r == 0);
	struct str marks = STR("trusted.overlay.opaque");
	hold(!lowest || !memmem(buf_str(ret).p, buf_len(ret), marks.p, marks.n));
}

/* Headers with checksums that hold, so that what is behind them is reached. */
static void mend(char *p, size_t n)
{
	for (; n >= 512; p += 512, n -= 512) {
		unsigned sum = 0;
		char text[8];
		if (memcmp(p + 257, "ustar", 5) != 0)
			continue;
		memset(p + 148, ' ', 8);
		for (size_t i = 0; i < 512; i++)
			sum += (unsigned char)p[i];
		snprintf(text, sizeof(text), "%06o", sum);
		memcpy(p + 148, text, 7);
	}
}

static void try_all(struct str input)
{
	cleanup_buf struct buf whole = BUF_INIT, pieces = BUF_INIT, lowest = BUF_INIT, twice = BUF_INIT;
	make(input, SIZE_MAX, false, false, &whole);
	make(input, 7, false, false, &pieces);
	/* How it comes makes no difference. */
	hold(str_eq(buf_str(&whole), buf_str(&pieces)));
	make(input, 1000, false, true, &lowest);
	make(input, 4096, true, false, &twice);
}

void fuzz_one(struct str input)
{
	try_all(input);
	cleanup_free char *mended = malloc(input.n + 1);
	hold(mended);
	memcpy(mended, input.p, input.n);
	mend(mended, input.n);
	try_all(str_n(mended, input.n));
}
