#include "image/unpack.h"
#include "base/cleanup.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>

static const struct tar_limits limits = {.header = 1 << 20, .extents = 100000};

static int add_file(struct tree *tree, struct tar *tar, const struct tree_entry *entry, struct error *err)
{
	uint64_t offset;
	struct str piece;
	int r = tree_file(tree, entry, err);
	if (r != 0)
		return MIN(r, 0);
	while ((r = tar_data(tar, &offset, &piece, err)) > 0)
		if ((r = tree_file_data(tree, offset, piece.p, piece.n, err)) < 0)
			return r;
	return r < 0 ? r : tree_file_end(tree, err);
}

int unpack_archive(struct tree *tree, tar_source source, void *arg, struct error *err)
{
	struct tar *tar = tar_new(&limits, source, arg);
	if (!tar)
		return error_errno(err, -ENOMEM, "reading a layer");
	struct tree_entry entry;
	enum tar_type type;
	int r;
	while ((r = tar_next(tar, &type, &entry, err)) > 0) {
		if (type == TAR_FILE)
			r = add_file(tree, tar, &entry, err);
		else if (type == TAR_LINK)
			r = tree_link(tree, entry.path, entry.target, err);
		else
			r = tree_add(tree, &entry, err);
		if (r < 0)
			break;
	}
	tar_free(tar);
	return r;
}

struct source {
	const struct unpack *u;
	EVP_MD_CTX *hash;
	uint64_t bytes;
	bool ended; /* the blob at hand; the next call would be about the next one */
};

static int next(void *arg, struct str *ret, struct error *err)
{
	struct source *s = arg;
	int r = s->ended ? 0 : blobs_next(s->u->blobs, ret, err);
	s->ended = r == 0;
	if (r <= 0)
		return r;
	s->bytes += ret->n;
	if (s->bytes > s->u->bytes_max)
		return error_set(err, -EDQUOT, 413, "the layer is larger than %" PRIu64 " bytes when it is decompressed", s->u->bytes_max);
	return EVP_DigestUpdate(s->hash, ret->p, ret->n) ? 1 : error_errno(err, -ENOMEM, "hashing a layer");
}

static int check_diff_id(EVP_MD_CTX *hash, struct str wanted, char ret[UNPACK_DIGEST + 1], struct error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	if (!EVP_DigestFinal_ex(hash, digest, NULL))
		return error_errno(err, -ENOMEM, "hashing a layer");
	strcpy(ret, "sha256:");
	for (size_t i = 0; i < 32; i++)
		sprintf(ret + 7 + 2 * i, "%02x", digest[i]);
	if (wanted.n && !str_is(wanted, ret))
		return error_set(err, -EBADMSG, 400, "the layer's contents have the digest %s, its image says %.*s", ret, (int)MIN(wanted.n, (size_t)UNPACK_DIGEST), wanted.p);
	return 0;
}

static int add_blob(struct source *s, struct tree *tree, struct str diff_id, char ret[UNPACK_DIGEST + 1], struct error *err)
{
	struct str rest;
	s->ended = false;
	if (!EVP_DigestInit_ex(s->hash, EVP_sha256(), NULL))
		return error_errno(err, -ENOMEM, "hashing a layer");
	int r = unpack_archive(tree, next, s, err);
	if (r < 0)
		return r;
	/* What follows the end of the archive means nothing, but is part of the digest. */
	while ((r = next(s, &rest, err)) > 0)
		;
	return r < 0 ? r : check_diff_id(s->hash, diff_id, ret, err);
}

int unpack(const struct unpack *u, struct unpacked *ret, struct error *err)
{
	struct source s = {.u = u, .hash = EVP_MD_CTX_new()};
	struct tree *tree = NULL;
	int r = s.hash ? tree_new(u->image, &u->limits, TREE_OCI, &tree) : -ENOMEM;
	if (r < 0)
		error_errno(err, r, "unpacking a layer");
	for (size_t i = 0; r == 0 && i < u->n; i++) {
		if (i > 0)
			tree_next_layer(tree);
		r = add_blob(&s, tree, u->diff_ids[i], ret->diff_ids[i], err);
		if (r < 0 && u->n > 1)
			error_wrap(err, r, "layer %zu", i + 1);
	}
	const struct tree_finish how = {.lowest = u->lowest};
	if (r == 0)
		r = tree_finish(tree, &how, &ret->image, err);
	tree_free(tree);
	EVP_MD_CTX_free(s.hash);
	return r;
}
