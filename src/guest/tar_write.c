#include "guest/tar.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>

/* The header block of POSIX.1. */
struct ustar {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6], version[2], user[32], group[32], major[8], minor[8],
		prefix[155], rest[12];
};
_Static_assert(sizeof(struct ustar) == TAR_BLOCK, "a header is a block");

/* What fits into a field of so many bytes: octal digits and a NUL. */
static bool fits(uint64_t value, size_t n)
{
	return value >> (3 * (n - 1)) == 0;
}

static void put_octal(char *to, size_t n, uint64_t value)
{
	for (size_t i = n - 1; i > 0; i--, value >>= 3)
		to[i - 1] = (char)('0' + (value & 7));
	to[n - 1] = '\0';
}

static void put_name(char to[100], struct str name)
{
	memcpy(to, name.p, MIN(name.n, (size_t)100));
}

static int add_block(struct buf *to, struct ustar *h)
{
	unsigned sum = 0;
	memcpy(h->magic, "ustar", 6);
	memcpy(h->version, "00", 2);
	memset(h->checksum, ' ', sizeof(h->checksum));
	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += ((const unsigned char *)h)[i];
	put_octal(h->checksum, 7, sum);
	return buf_add(to, h, TAR_BLOCK);
}

static int add_zeros(struct buf *to, size_t n)
{
	static const char zeros[2 * TAR_BLOCK];
	return buf_add(to, zeros, n);
}

/* The length that leads a record counts its own digits, too. */
static int add_record(struct buf *to, const char *prefix, struct str key, struct str value)
{
	size_t n = strlen(prefix) + key.n + value.n + 3, digits = 1;
	for (size_t all = n + digits, limit = 10; all >= limit; limit *= 10)
		all = n + ++digits;
	buf_addf(to, "%zu %s", n + digits, prefix);
	buf_add_str(to, key);
	buf_add_c(to, "=");
	buf_add_str(to, value);
	return buf_add_c(to, "\n");
}

static int add_number(struct buf *to, const char *key, uint64_t value)
{
	char text[24];
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return add_record(to, "", str_of(key), str_of(text));
}

/* A time before 1970 with a part goes down from the second before it: "-1.25" is 1.25 s before. */
static void format_time(const struct tar_entry *e, char to[48])
{
	long long s = e->mtime;
	uint32_t ns = e->mtime_ns;
	const char *sign = "";
	if (s < 0 && ns) {
		s += 1;
		ns = 1000000000 - ns;
		sign = s == 0 ? "-" : "";
	}
	if (ns)
		snprintf(to, 48, "%s%lld.%09u", sign, s, ns);
	else
		snprintf(to, 48, "%lld", s);
}

static bool fits_time(const struct tar_entry *e)
{
	return e->mtime >= 0 && fits((uint64_t)e->mtime, 12) && !e->mtime_ns;
}

static int add_map(struct buf *to, const struct tar_entry *e)
{
	size_t before = buf_len(to);
	buf_addf(to, "%zu\n", e->n_extents);
	for (size_t i = 0; i < e->n_extents; i++)
		buf_addf(to, "%llu\n%llu\n", (unsigned long long)e->extents[i].at, (unsigned long long)e->extents[i].n);
	return add_zeros(to, tar_padding(buf_len(to) - before));
}

static void add_extended(struct buf *to, const struct tar_entry *e, uint64_t stored)
{
	bool has_link = e->type == TAR_HARDLINK || e->type == TAR_SYMLINK, long_name = e->name.n > 100, long_link = has_link && e->link.n > 100;
	if ((long_name && !str_is_utf8(e->name)) || (long_link && !str_is_utf8(e->link)))
		add_record(to, "", STR("hdrcharset"), STR("BINARY"));
	if (e->sparse) {
		add_number(to, "GNU.sparse.major", 1);
		add_number(to, "GNU.sparse.minor", 0);
		add_record(to, "", STR("GNU.sparse.name"), e->name);
		add_number(to, "GNU.sparse.realsize", e->size);
	} else if (long_name) {
		add_record(to, "", STR("path"), e->name);
	}
	if (long_link)
		add_record(to, "", STR("linkpath"), e->link);
	if (!fits(stored, 12))
		add_number(to, "size", stored);
	if (!fits(e->uid, 8))
		add_number(to, "uid", e->uid);
	if (!fits(e->gid, 8))
		add_number(to, "gid", e->gid);
	if (!fits_time(e)) {
		char text[48];
		format_time(e, text);
		add_record(to, "", STR("mtime"), str_of(text));
	}
	for (size_t i = 0; i < e->n_xattrs; i++)
		add_record(to, "SCHILY.xattr.", e->xattrs[i].name, e->xattrs[i].value);
}

static int add_extended_header(struct buf *to, struct str records)
{
	struct ustar h = {.type = 'x'};
	put_name(h.name, STR("PaxHeaders/member"));
	put_octal(h.mode, sizeof(h.mode), 0644);
	put_octal(h.uid, sizeof(h.uid), 0);
	put_octal(h.gid, sizeof(h.gid), 0);
	put_octal(h.size, sizeof(h.size), records.n);
	put_octal(h.mtime, sizeof(h.mtime), 0);
	add_block(to, &h);
	buf_add_str(to, records);
	return add_zeros(to, tar_padding(records.n));
}

static const char flags[] = {
	[TAR_FILE] = '0', [TAR_HARDLINK] = '1', [TAR_SYMLINK] = '2', [TAR_DIRECTORY] = '5', [TAR_FIFO] = '6', [TAR_DEVICE] = '3', [TAR_OTHER] = '0'};

int tar_add_header(struct buf *to, const struct tar_entry *e)
{
	cleanup_buf struct buf records = BUF_INIT, map = BUF_INIT;
	struct ustar h = {.type = flags[e->type]};
	uint64_t stored = e->type == TAR_FILE ? e->size : 0;
	if (e->sparse) {
		if (add_map(&map, e) < 0)
			return -ENOMEM;
		stored = buf_len(&map);
		for (size_t i = 0; i < e->n_extents; i++)
			stored += e->extents[i].n;
	}
	add_extended(&records, e, stored);
	if (buf_len(&records))
		add_extended_header(to, buf_str(&records));
	put_name(h.name, e->sparse ? STR("GNUSparseFile.0/member") : e->name);
	if (e->type == TAR_HARDLINK || e->type == TAR_SYMLINK)
		put_name(h.link, e->link);
	put_octal(h.mode, sizeof(h.mode), e->mode & 07777);
	put_octal(h.uid, sizeof(h.uid), fits(e->uid, 8) ? e->uid : 0);
	put_octal(h.gid, sizeof(h.gid), fits(e->gid, 8) ? e->gid : 0);
	put_octal(h.size, sizeof(h.size), fits(stored, 12) ? stored : 0);
	put_octal(h.mtime, sizeof(h.mtime), fits_time(e) || (e->mtime > 0 && fits((uint64_t)e->mtime, 12)) ? (uint64_t)e->mtime : 0);
	add_block(to, &h);
	buf_add_str(to, buf_str(&map));
	return records.failed || to->failed ? -ENOMEM : 0;
}

int tar_add_end(struct buf *to)
{
	return add_zeros(to, (size_t)2 * TAR_BLOCK);
}
