#include "vmm/state_file.h"
#include "base/encode.h"
#include "base/sha256.h"

#include <errno.h>

static const char magic[8] = {'C', 'U', 'B', 'V', 'M', 'S', 'T', '\n'};

enum { AT_VERSION = 8, AT_SIZE = 16, AT_MEMORY = 24, AT_DIGEST = 32, BLOCK_HEADER = 16 };

void state_put(struct buf *b, uint64_t v, unsigned bytes)
{
	char n[8];
	le_put(n, v, bytes);
	buf_add(b, n, bytes);
}

bool state_take(struct str *rest, unsigned bytes, uint64_t *ret)
{
	if (rest->n < bytes)
		return false;
	*ret = le_get(rest->p, bytes);
	*rest = str_from(*rest, bytes);
	return true;
}

void state_begin(struct buf *b)
{
	static const char header[STATE_HEADER];
	buf_clear(b);
	buf_add(b, header, sizeof(header));
}

void state_add(struct buf *b, enum state_kind kind, uint32_t index, const void *p, size_t n)
{
	state_put(b, kind, 4);
	state_put(b, index, 4);
	state_put(b, n, 8);
	buf_add(b, p, n);
}

int state_seal(struct buf *b, uint64_t memory)
{
	unsigned char digest[SHA256_SIZE];
	if (b->failed)
		return -ENOMEM;
	char *header = b->data + b->start;
	memcpy(header, magic, sizeof(magic));
	le_put(header + AT_VERSION, STATE_VERSION, 4);
	le_put(header + AT_SIZE, buf_len(b), 8);
	le_put(header + AT_MEMORY, memory, 8);
	sha256(buf_str(b), digest);
	memcpy(header + AT_DIGEST, digest, sizeof(digest));
	return 0;
}

static int bad(struct error *err, const char *what)
{
	return error_set(err, -EINVAL, 500, "saved state: %s", what);
}

/* The digest of the file as it was when that was made. */
static int check_digest(struct str file, struct error *err)
{
	static const char none[SHA256_SIZE];
	unsigned char digest[SHA256_SIZE];
	cleanup_buf struct buf copy = BUF_INIT;
	if (buf_add_str(&copy, file) < 0)
		return error_errno(err, -ENOMEM, "saved state");
	memcpy(copy.data + copy.start + AT_DIGEST, none, sizeof(none));
	sha256(buf_str(&copy), digest);
	return memcmp(digest, file.p + AT_DIGEST, sizeof(digest)) == 0 ? 0 : bad(err, "it is damaged (its checksum is not that of its bytes)");
}

int state_check(struct str file, uint64_t *ret_memory, struct error *err)
{
	static const char none[sizeof(magic)];
	if (file.n < STATE_HEADER || memcmp(file.p, none, sizeof(none)) == 0)
		return bad(err, "it was never finished");
	if (memcmp(file.p, magic, sizeof(magic)) != 0)
		return bad(err, "it is something else");
	if (le_get(file.p + AT_VERSION, 4) != STATE_VERSION)
		return error_set(err, -EINVAL, 500, "saved state: it is of version %u, this monitor reads %u", (unsigned)le_get(file.p + AT_VERSION, 4), (unsigned)STATE_VERSION);
	if (le_get(file.p + AT_SIZE, 8) != file.n)
		return bad(err, "it was cut or lengthened");
	int r = check_digest(file, err);
	if (r == 0)
		*ret_memory = le_get(file.p + AT_MEMORY, 8);
	return r;
}

int state_find(struct str file, enum state_kind kind, uint32_t index, struct str *ret, struct error *err)
{
	struct str rest = str_from(file, STATE_HEADER);
	while (rest.n >= BLOCK_HEADER) {
		uint64_t n = le_get(rest.p + 8, 8);
		if (n > rest.n - BLOCK_HEADER)
			break;
		if (le_get(rest.p, 4) == (uint64_t)kind && le_get(rest.p + 4, 4) == index) {
			*ret = str_n(rest.p + BLOCK_HEADER, (size_t)n);
			return 0;
		}
		rest = str_from(rest, BLOCK_HEADER + (size_t)n);
	}
	return error_set(err, -EINVAL, 500, "saved state: block %u.%u is missing", (unsigned)kind, index);
}

int state_get(struct str file, enum state_kind kind, uint32_t index, void *to, size_t n, struct error *err)
{
	struct str block;
	int r = state_find(file, kind, index, &block, err);
	if (r < 0)
		return r;
	if (block.n != n)
		return error_set(err, -EINVAL, 500, "saved state: block %u.%u has %zu bytes, not %zu", (unsigned)kind, index, block.n, n);
	memcpy(to, block.p, n);
	return 0;
}
