#include "unit.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "erofs_reader.h"
#include "image/unpack.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

/* From blobs to an image, without a process of its own. */

static void tar_entry(struct buf *to, const char *name, char type, struct str bytes)
{
	char h[512] = {0};
	static const char zeros[512];
	unsigned sum = 0;
	snprintf(h, 100, "%s", name);
	snprintf(h + 100, 8, "%07o", 0644);
	snprintf(h + 108, 8, "%07o", 1);
	snprintf(h + 116, 8, "%07o", 2);
	snprintf(h + 124, 12, "%011zo", bytes.n);
	snprintf(h + 136, 12, "%011o", 3);
	h[156] = type;
	memcpy(h + 257, "ustar\0" "00", 8);
	memset(h + 148, ' ', 8);
	for (size_t i = 0; i < sizeof(h); i++)
		sum += (unsigned char)h[i];
	snprintf(h + 148, 8, "%06o", sum);
	buf_add(to, h, sizeof(h));
	buf_add_str(to, bytes);
	buf_add(to, zeros, (512 - bytes.n % 512) % 512);
}

static void tar_end(struct buf *to)
{
	static const char zeros[1024];
	buf_add(to, zeros, sizeof(zeros));
}

static void gzip(struct str bytes, struct buf *to)
{
	z_stream z = {.next_in = (unsigned char *)(uintptr_t)bytes.p, .avail_in = (unsigned)bytes.n};
	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	size_t most = deflateBound(&z, bytes.n);
	z.next_out = (unsigned char *)buf_reserve(to, most);
	z.avail_out = (unsigned)most;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	buf_commit(to, z.total_out);
	deflateEnd(&z);
}

static void zstd(struct str bytes, struct buf *to)
{
	size_t most = ZSTD_compressBound(bytes.n), n = ZSTD_compress(buf_reserve(to, most), most, bytes.p, bytes.n, 3);
	assert_false(ZSTD_isError(n));
	buf_commit(to, n);
}

struct run {
	struct error err;
	struct buf text;
	char diff_ids[4][UNPACK_DIGEST + 1];
};

static int run(struct run *run, const struct str *blobs, size_t n, const struct str *diff_ids, uint64_t bytes_max)
{
	static const struct str unknown[4];
	int fds[4], image = memfd_create("image", MFD_CLOEXEC);
	struct unpack u = {.image = image, .n = n, .diff_ids = diff_ids ? diff_ids : unknown, .limits = tree_limits_usual, .bytes_max = bytes_max};
	struct unpacked made = {.diff_ids = run->diff_ids};
	u.limits.image = 1 << 20;
	run->err = (struct error){0};
	buf_clear(&run->text);
	for (size_t i = 0; i < n; i++) {
		fds[i] = memfd_create("blob", MFD_CLOEXEC);
		assert_int_equal(fd_write_all(fds[i], blobs[i].p, blobs[i].n), 0);
		lseek(fds[i], 0, SEEK_SET);
	}
	assert_int_equal(blobs_new(fds, n, &u.blobs), 0);
	int r = unpack(&u, &made, &run->err);
	blobs_free(u.blobs);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	if (r == 0)
		assert_int_equal(erofs_list(image, &run->text), 0);
	close(image);
	assert_true(r == run->err.code);
	return r;
}

static void test_one_digest_however_it_is_packed(void **state)
{
	cleanup_buf struct buf tar = BUF_INIT, gz = BUF_INIT, zs = BUF_INIT;
	struct run a = {0};
	unsigned char digest[SHA256_SIZE];
	char wanted[UNPACK_DIGEST + 1] = "sha256:";
	tar_entry(&tar, "f", '0', STR("hello"));
	tar_end(&tar);
	gzip(buf_str(&tar), &gz);
	zstd(buf_str(&tar), &zs);
	sha256(buf_str(&tar), digest);
	hex_encode(wanted + 7, digest, sizeof(digest));
	const struct str blobs[] = {buf_str(&tar), buf_str(&gz), buf_str(&zs)};
	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++) {
		const struct str right = str_of(wanted), wrong = STR("sha256:0000");
		assert_int_equal(run(&a, &blobs[i], 1, &right, 1 << 20), 0);
		assert_string_equal(a.diff_ids[0], wanted);
		assert_string_equal(buf_cstr(&a.text), "/ d 0755 0:0 2 0.000000000\nf f 0644 1:2 1 3.000000000 5 'hello'\n");
		assert_int_equal(run(&a, &blobs[i], 1, &wrong, 1 << 20), -EBADMSG);
		assert_int_equal(a.err.status, 400);
		assert_non_null(strstr(a.err.message, wanted));
	}
	/* Together: each by its own. */
	assert_int_equal(run(&a, blobs, 3, NULL, 1 << 20), 0);
	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++)
		assert_string_equal(a.diff_ids[i], wanted);
	buf_done(&a.text);
}

static void test_cut_anywhere(void **state)
{
	cleanup_buf struct buf tar = BUF_INIT, gz = BUF_INIT, zs = BUF_INIT;
	struct run a = {0};
	for (int i = 0; i < 20; i++)
		tar_entry(&tar, "some/file", '0', STR("contents"));
	tar_end(&tar);
	gzip(buf_str(&tar), &gz);
	zstd(buf_str(&tar), &zs);
	const struct str blobs[] = {buf_str(&gz), buf_str(&zs)};
	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++)
		for (size_t n = 4; n < blobs[i].n; n++) {
			const struct str cut = {blobs[i].p, n};
			assert_int_equal(run(&a, &cut, 1, NULL, 1 << 20), -EBADMSG);
		}
	/* A tar may end where an entry ends. */
	for (size_t n = 1; n < 2048; n++) {
		const struct str cut = {buf_str(&tar).p, n};
		assert_int_equal(run(&a, &cut, 1, NULL, 1 << 20), n % 1024 == 0 ? 0 : -EBADMSG);
	}
	buf_done(&a.text);
}

/* 113: what follows the end of the archive counts too. */
static void test_bomb(void **state)
{
	cleanup_buf struct buf tar = BUF_INIT, gz = BUF_INIT, many = BUF_INIT;
	struct run a = {0};
	tar_end(&tar);
	memset(buf_reserve(&tar, 1 << 20), 0, 1 << 20);
	buf_commit(&tar, 1 << 20);
	gzip(buf_str(&tar), &gz);
	for (int i = 0; i < 100; i++)
		buf_add_str(&many, buf_str(&gz));
	struct str blob = buf_str(&many);
	assert_int_equal(run(&a, &blob, 1, NULL, 10 << 20), -EDQUOT);
	assert_int_equal(a.err.status, 413);
	assert_non_null(strstr(a.err.message, "10485760 bytes"));
	assert_int_equal(run(&a, &blob, 1, NULL, UINT64_C(200) << 20), 0);
	buf_done(&a.text);
}

static void test_errors_name_the_layer(void **state)
{
	cleanup_buf struct buf good = BUF_INIT, bad = BUF_INIT;
	struct run a = {0};
	tar_entry(&good, "f", '0', STR("hello"));
	tar_entry(&bad, "../f", '0', STR("hello"));
	const struct str blobs[] = {buf_str(&good), buf_str(&bad)};
	assert_int_equal(run(&a, blobs, 2, NULL, 1 << 20), -EINVAL);
	assert_string_equal(a.err.message, "layer 2: ../f: it leads out of the image");
	/* The second is decompressed already, or not looked at at all: either way it ends. */
	const struct str reversed[] = {buf_str(&bad), buf_str(&good)};
	assert_int_equal(run(&a, reversed, 2, NULL, 1 << 20), -EINVAL);
	buf_clear(&bad);
	tar_entry(&bad, "x", 'Z', STR(""));
	const struct str unknown = buf_str(&bad);
	assert_int_equal(run(&a, &unknown, 1, NULL, 1 << 20), -EBADMSG);
	assert_non_null(strstr(a.err.message, "unknown type"));
	buf_done(&a.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_digest_however_it_is_packed),
		cmocka_unit_test(test_cut_anywhere),
		cmocka_unit_test(test_bomb),
		cmocka_unit_test(test_errors_name_the_layer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
