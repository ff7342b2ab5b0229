/* An archive, read in pieces of several sizes: each tells the same, and what is told can be written and read again. */
#include "fuzz.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "guest/tar.h"

#include <errno.h>

struct pieces {
	struct str rest;
	size_t step;
};

static int next_piece(void *arg, struct str *ret)
{
	struct pieces *p = arg;
	if (!p->rest.n)
		return 0;
	*ret = str_n(p->rest.p, MIN(p->step, p->rest.n));
	p->rest = str_from(p->rest, ret->n);
	return 1;
}

static void add_member(struct buf *log, const struct tar_entry *e)
{
	buf_addf(log, "<%d %o %llu %llu %lld.%u %llu>", e->type, e->mode, (unsigned long long)e->uid, (unsigned long long)e->gid, (long long)e->mtime, e->mtime_ns,
		e->type == TAR_FILE ? (unsigned long long)e->size : 0);
	buf_add_str(log, e->name);
	if (e->type == TAR_HARDLINK || e->type == TAR_SYMLINK)
		buf_add_str(log, e->link);
	for (size_t i = 0; i < e->n_xattrs; i++) {
		buf_add_str(log, e->xattrs[i].name);
		buf_add_str(log, e->xattrs[i].value);
	}
}

static void check_member(const struct tar_entry *e)
{
	uint64_t end = 0;
	hold(e->name.n > 0 && e->name.n <= TAR_MAX_NAME && !memchr(e->name.p, '\0', e->name.n));
	hold(e->mode <= 07777 && e->mtime_ns < 1000000000 && e->n_xattrs <= TAR_MAX_XATTRS);
	for (size_t i = 0; e->sparse && i < e->n_extents; i++) {
		hold(e->extents[i].at >= end);
		end = e->extents[i].at + e->extents[i].n;
		hold(end >= e->extents[i].at && end <= e->size);
	}
}

/* Names with a '=' cannot, and the attributes of a global header may be too much beside a member's own. */
static bool can_be_written(const struct tar_entry *e)
{
	size_t total = 0;
	for (size_t i = 0; i < e->n_xattrs; i++) {
		total += e->xattrs[i].name.n + e->xattrs[i].value.n;
		if (str_chr(e->xattrs[i].name, '=') >= 0)
			return false;
	}
	return total < TAR_MAX_HEADER / 2 && e->type != TAR_DEVICE && e->type != TAR_OTHER;
}

/* What tar_next() said last; members and data are logged. With `again`, what was read is written, too: each member alone, with its data. */
static int read_all(struct str input, size_t step, struct buf *log, struct buf *again)
{
	struct pieces p = {input, step};
	const struct tar_source from = {next_piece, &p};
	struct tar_reader *r = tar_reader_new(&from);
	const struct tar_entry *e;
	int x;
	while ((x = tar_next(r, &e)) > 0) {
		check_member(e);
		add_member(log, e);
		bool good = e->type == TAR_FILE && e->size < 1 << 20;
		uint64_t n = 0, at;
		struct str bytes;
		cleanup_buf struct buf data = BUF_INIT;
		bool whole = can_be_written(e);
		struct buf header = BUF_INIT;
		if (again && whole)
			tar_add_header(&header, e);
		while (good && (x = tar_data(r, &bytes, &at)) > 0) {
			hold(bytes.n > 0 && at <= e->size && bytes.n <= e->size - at);
			buf_add_str(&data, bytes);
			n += bytes.n;
		}
		if (x < 0 && good) {
			buf_done(&header);
			break;
		}
		buf_add_str(log, buf_str(&data));
		if (again && whole && (good || e->type != TAR_FILE)) {
			static const char zeros[TAR_BLOCK];
			buf_add_str(again, buf_str(&header));
			buf_add_str(again, buf_str(&data));
			buf_add(again, zeros, tar_padding(n));
		}
		buf_done(&header);
	}
	hold(x != -EPROTO || *tar_why(r));
	tar_reader_free(r);
	return x;
}

static void try_one(struct str input)
{
	static const size_t steps[] = {1, 7, 511, 4096};
	cleanup_buf struct buf whole = BUF_INIT, again = BUF_INIT, first = BUF_INIT, second = BUF_INIT, copy = BUF_INIT;
	int result = read_all(input, input.n + 1, &whole, &again);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		cleanup_buf struct buf log = BUF_INIT;
		hold(read_all(input, steps[i], &log, NULL) == result);
		hold(str_eq(buf_str(&log), buf_str(&whole)));
	}
	/* What we have written reads as it was, and is written the same again. */
	tar_add_end(&again);
	hold(read_all(buf_str(&again), 4096, &first, &copy) == 0);
	tar_add_end(&copy);
	hold(str_eq(buf_str(&copy), buf_str(&again)));
	hold(read_all(buf_str(&copy), 4096, &second, NULL) == 0);
	hold(str_eq(buf_str(&first), buf_str(&second)));
}

/* As it is, and with the checksum of whatever calls itself a header put right: else nearly nothing that is changed would be read. */
void fuzz_one(struct str input)
{
	cleanup_free char *copy = malloc(input.n + 1);
	bool changed = false;
	try_one(input);
	if (!copy)
		return;
	memcpy(copy, input.p, input.n);
	for (size_t at = 0; at + TAR_BLOCK <= input.n; at += TAR_BLOCK) {
		char *h = copy + at;
		unsigned sum = 0;
		if (memcmp(h + 257, "ustar", 5) != 0)
			continue;
		memset(h + 148, ' ', 8);
		for (size_t i = 0; i < TAR_BLOCK; i++)
			sum += (unsigned char)h[i];
		snprintf(h + 148, 8, "%06o", sum);
		changed = true;
	}
	if (changed)
		try_one(str_n(copy, input.n));
}
