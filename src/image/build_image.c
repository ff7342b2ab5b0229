#include "image/build_image.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/sha256.h"
#include "image/unpack.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	KEY = 80,
	FETCH_AT_ONCE = 8,    /* layers that are fetched together; more blobs than that wait on the disk */
	UNPACK_AT_ONCE = 2,
	PULLED = 40,          /* percent of the build */
	UNPACKED = 60,
};
/* Of one image, bytes. What is packed a hundred times over is no software, but a bomb. */
#define LAYER_LEAST (UINT64_C(1) << 30)
#define LAYER_MOST (UINT64_C(64) << 30)
#define LAYER_RATIO 100

/* Blobs that become one image. */
struct group {
	size_t first, n;
	char key[KEY];
	bool lowest;
	bool made;           /* `layer` is there */
	bool ours;           /* node waits for us to make it */
	bool asked;          /* being unpacked */
	size_t missing;      /* blobs that are not here */
	uint64_t request;
	struct ask_layer layer;
};

struct blob {
	size_t group;
	uint64_t number;
	int fd;
};

struct pulling {
	struct build *b;
	struct source *source;
	const struct source_image *image;
	struct group *groups;
	size_t n_groups;
	struct blob *blobs; /* by layer */
	size_t unpacking;
	size_t merge; /* so many of the lowest layers must be one image */
	uint64_t total, done, before; /* bytes of blobs: of all, fetched, fetched by earlier calls */
	int64_t told; /* when the log was told of progress */
	bool retry;
};

int stack_add(struct stack *s, const struct ask_layer *l, struct error *err)
{
	if (s->n == STACK_MOST)
		return error_set(err, -E2BIG, 400, "more than %d layers", STACK_MOST);
	struct stack_layer *to = &s->layers[s->n++];
	snprintf(to->file, sizeof(to->file), "%s", l->file);
	to->size = l->size;
	return 0;
}

void stack_turn(struct stack *s, struct str what)
{
	unsigned char digest[SHA256_SIZE];
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text, "%s\n", s->key);
	buf_add_str(&text, what);
	sha256(buf_str(&text), digest);
	hex_encode(s->key, digest, sizeof(digest));
}

/* ---- groups ---- */

static bool is_empty(const struct source_layer *l)
{
	/* Two blocks of zeros; the same in gzip, as Docker and as the OCI specification write it. */
	static const char *const empty[] = {"sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
		"sha256:a3ed95caeb02ffe68cdd9fd84406680ae93d663cb16422d00e8a7c22955b46d4", "sha256:4f4fb700ef54461cfa02571ae0db9a0dc1e0cdb5577484a6d75e68dc38e8acc1"};
	for (size_t i = 0; i < ARRAY_SIZE(empty); i++)
		if (!strcmp(l->digest, empty[i]) || !strcmp(l->diff_id, empty[i]))
			return true;
	return false;
}

static const char *hex_of(const char *digest)
{
	return strchr(digest, ':') + 1;
}

static void group_key(const struct pulling *p, struct group *g)
{
	unsigned char digest[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1];
	cleanup_buf struct buf text = BUF_INIT;
	if (g->n == 1 && !g->lowest) {
		snprintf(g->key, sizeof(g->key), "oci:%.64s", hex_of(p->image->layers[g->first].digest));
		return;
	}
	buf_add_c(&text, g->lowest ? "lowest\n" : "");
	for (size_t i = 0; i < g->n; i++)
		buf_addf(&text, "%s\n", hex_of(p->image->layers[g->first + i].digest));
	sha256(buf_str(&text), digest);
	snprintf(g->key, sizeof(g->key), "oci:%s", hex_encode(hex, digest, sizeof(digest)));
}

static void add_group(struct pulling *p, size_t first, size_t n, bool lowest)
{
	struct group *g = &p->groups[p->n_groups++];
	*g = (struct group){.first = first, .n = n, .lowest = lowest};
	group_key(p, g);
	for (size_t i = first; i < first + n; i++)
		p->blobs[i].group = p->n_groups - 1;
}

/* Which blobs become one image: each its own, but for the upper ones of a deep image, and for the lowest ones when something in them needs what is below. */
static void divide(struct pulling *p)
{
	size_t n = p->image->n_layers, at = 0, alone = 0;
	p->n_groups = 0;
	if (p->merge) {
		add_group(p, 0, p->merge, true);
		at = p->merge;
	}
	for (size_t i = at; i < n; i++)
		alone += !is_empty(&p->image->layers[i]);
	size_t room = STACK_IMAGE - p->n_groups;
	for (size_t i = at; i < n; i++) {
		if (is_empty(&p->image->layers[i]))
			continue;
		if (alone > room && p->n_groups + 1 == STACK_IMAGE) {
			add_group(p, i, n - i, false);
			return;
		}
		add_group(p, i, 1, false);
	}
}

static int by_key(const void *a, const void *b)
{
	return strcmp((*(struct group *const *)a)->key, (*(struct group *const *)b)->key);
}

/* In the order of their keys, so that builds which need some of the same layers never wait for each other in a circle. */
static int look_up(struct pulling *p, struct error *err)
{
	cleanup_free struct group **sorted = calloc(p->n_groups + 1, sizeof(struct group *));
	if (!sorted)
		return error_errno(err, -ENOMEM, "layers");
	for (size_t i = 0; i < p->n_groups; i++)
		sorted[i] = &p->groups[i];
	qsort(sorted, p->n_groups, sizeof(struct group *), by_key);
	for (size_t i = 0; i < p->n_groups; i++) {
		struct group *g = sorted[i];
		if (i && !strcmp(sorted[i - 1]->key, g->key))
			continue; /* the same blob again */
		int r = ask_find_layer(p->b->ask, g->key, true, &g->layer, err);
		if (r < 0)
			return r;
		g->made = g->layer.file[0];
		g->ours = !g->made;
		g->missing = g->made ? 0 : g->n;
	}
	return 0;
}

/* ---- unpacking ---- */

static int add_text(struct buf *to, const char *text)
{
	return msg_list_add(to, str_of(text));
}

static uint64_t bytes_of(const struct pulling *p, const struct group *g)
{
	uint64_t bytes = 0;
	for (size_t i = g->first; i < g->first + g->n; i++)
		bytes += p->image->layers[i].size;
	return bytes;
}

static int begin_unpacking(struct pulling *p, struct group *g, struct error *err)
{
	cleanup_buf struct buf files = BUF_INIT, digests = BUF_INIT, diff_ids = BUF_INIT, formats = BUF_INIT;
	uint64_t blobs = bytes_of(p, g);
	for (size_t i = g->first; i < g->first + g->n; i++) {
		const struct source_layer *l = &p->image->layers[i];
		char number[24];
		snprintf(number, sizeof(number), "%llu", (unsigned long long)p->blobs[i].number);
		add_text(&files, number);
		add_text(&digests, l->digest);
		add_text(&diff_ids, l->diff_id);
		add_text(&formats, source_format_name(l->format));
		close(steal_fd(&p->blobs[i].fd));
	}
	if (files.failed || digests.failed || diff_ids.failed || formats.failed)
		return error_errno(err, -ENOMEM, "layers");
	struct msg_unpack_layer m = {.key = str_of(g->key), .files = {buf_str(&files)}, .digests = {buf_str(&digests)}, .diff_ids = {buf_str(&diff_ids)},
		.formats = {buf_str(&formats)}, .size_max = MIN(LAYER_MOST, LAYER_LEAST + LAYER_RATIO * MIN(blobs, LAYER_MOST))};
	if (g->lowest)
		msg_set(&m, unpack_layer, lowest, true);
	int r = ask_unpack_layer(p->b->ask, &m, &g->request, err);
	if (r < 0)
		return r;
	g->asked = true;
	p->unpacking++;
	return 0;
}

/* Something in it needs what is below: all of that has to be one image. */
static int merge_instead(struct pulling *p, struct group *g, struct error *err)
{
	if (g->lowest)
		return err->code;
	p->retry = true;
	p->merge = MAX(p->merge, g->first + g->n);
	return 0;
}

static int take_unpacked(struct pulling *p, struct group *g, struct error *err)
{
	g->asked = false;
	p->unpacking--;
	g->ours = false;
	struct error local = {0};
	int r = ask_wait_layer(p->b->ask, g->request, &g->layer, &local);
	if (r == -EXDEV && merge_instead(p, g, &local) == 0)
		return 0;
	if (r < 0)
		return error_set(err, local.code, local.status, "%s", local.message);
	g->made = true;
	size_t made = 0;
	for (size_t i = 0; i < p->n_groups; i++)
		made += p->groups[i].made;
	build_log(p->b, 0, "Unpacked layer %.12s (%.1f MB)", hex_of(p->image->layers[g->first].digest), (double)g->layer.size / 1e6);
	build_progress(p->b, "UNPACKING", PULLED + (unsigned)((UNPACKED - PULLED) * made / p->n_groups));
	return 0;
}

/* Until at most `most` are being unpacked. */
static int settle(struct pulling *p, size_t most, struct error *err)
{
	for (size_t i = 0; i < p->n_groups && p->unpacking > most; i++) {
		int r = p->groups[i].asked ? take_unpacked(p, &p->groups[i], err) : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- fetching ---- */

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct pulling *p = arg;
	uint64_t here = p->before + done;
	p->done = here;
	build_progress(p->b, "PULLING", (unsigned)(PULLED * MIN(here, p->total) / MAX(p->total, (uint64_t)1)));
	int64_t now = clock_monotonic();
	if (now - p->told < 1000000000 || here == p->total)
		return;
	p->told = now;
	build_log(p->b, 1, "Downloading: %.1f of %.1f MB", (double)here / 1e6, (double)p->total / 1e6);
}

static int on_complete(void *arg, const struct source_want *w, struct error *err)
{
	struct pulling *p = arg;
	struct group *g = &p->groups[p->blobs[w->layer].group];
	if (--g->missing)
		return 0;
	int r = settle(p, UNPACK_AT_ONCE - 1, err);
	return r < 0 ? r : begin_unpacking(p, g, err);
}

static int fetch(struct pulling *p, const struct source_want *wants, size_t n, uint64_t bytes, struct error *err)
{
	struct source_fetch f = {.wants = wants, .n_wants = n, .progress = on_progress, .complete = on_complete, .arg = p};
	if (n == 0)
		return 0;
	int r = source_fetch(p->source, &f, err);
	p->before += bytes;
	return r;
}

static int want(struct pulling *p, size_t layer, struct source_want *to, struct error *err)
{
	struct blob *blob = &p->blobs[layer];
	int r = ask_new_file(p->b->ask, p->image->layers[layer].size, &blob->number, &blob->fd, err);
	*to = (struct source_want){.layer = layer, .fd = blob->fd};
	return r;
}

static int fetch_all(struct pulling *p, struct error *err)
{
	cleanup_free struct source_want *wants = calloc(p->image->n_layers + 1, sizeof(*wants));
	size_t n = 0;
	uint64_t bytes = 0;
	int r = wants ? 0 : error_errno(err, -ENOMEM, "layers");
	for (size_t i = 0; i < p->n_groups && r == 0 && !p->retry; i++) {
		struct group *g = &p->groups[i];
		if (!g->ours)
			continue;
		if (n && n + g->n > FETCH_AT_ONCE) {
			r = fetch(p, wants, n, bytes, err);
			n = 0;
			bytes = 0;
		}
		for (size_t l = g->first; l < g->first + g->n && r == 0; l++)
			r = want(p, l, &wants[n++], err);
		bytes += bytes_of(p, g);
	}
	if (r == 0 && !p->retry)
		r = fetch(p, wants, n, bytes, err);
	struct error later = {0};
	int s = settle(p, 0, r < 0 ? &later : err);
	return r < 0 ? r : s;
}

/* ---- all of it ---- */

static void let_go(struct pulling *p)
{
	struct error ignored = {0};
	for (size_t i = 0; i < p->image->n_layers; i++)
		if (p->blobs[i].fd >= 0)
			close(steal_fd(&p->blobs[i].fd));
	for (size_t i = 0; i < p->n_groups; i++)
		if (p->groups[i].ours)
			ask_drop_layer(p->b->ask, p->groups[i].key, &ignored);
}

/* What an image could not know of the layers below when it was made: directories that it only implies, names that it hides and nobody has (image/unpack.h). */
static int fit(struct pulling *p, const struct group *g, const struct stack *below, struct ask_layer *layer, struct error *err)
{
	cleanup_buf struct buf names = BUF_INIT, under = BUF_INIT;
	if (below->n == 0 || (!layer->guessed && (g->n == 1 || g->lowest)))
		return 0;
	add_text(&names, layer->file);
	for (size_t i = 0; i < below->n; i++)
		add_text(&under, below->layers[i].file);
	if (names.failed || under.failed)
		return error_errno(err, -ENOMEM, "layers");
	build_log(p->b, 0, "Fitting layer %.12s to those below", hex_of(p->image->layers[g->first].digest));
	return ask_merge_layers(p->b->ask, (struct msg_list){buf_str(&names)}, (struct msg_list){buf_str(&under)}, layer, err);
}

static int collect(struct pulling *p, struct stack *ret, struct error *err)
{
	int r = 0;
	for (size_t i = 0; i < p->n_groups && r == 0; i++) {
		const struct group *g = &p->groups[i];
		for (size_t j = 0; j < p->n_groups && !g->made; j++)
			if (p->groups[j].made && !strcmp(p->groups[j].key, g->key))
				g = &p->groups[j];
		stack_turn(ret, str_of(g->key));
		struct ask_layer layer = g->layer;
		r = g->made ? fit(p, &p->groups[i], ret, &layer, err) : error_set(err, -EPROTO, 500, "a layer was not made");
		if (r == 0)
			r = stack_add(ret, &layer, err);
	}
	return r;
}

static int pull(struct pulling *p, struct stack *ret, struct error *err)
{
	size_t found = 0;
	divide(p);
	p->retry = false;
	p->total = p->done = p->before = 0;
	p->told = clock_monotonic();
	for (size_t i = 0; i < p->n_groups; i++)
		if (p->groups[i].n > UNPACK_MAX_BLOBS)
			return error_set(err, -E2BIG, 400, "the image has too many layers (%zu)", p->image->n_layers);
	int r = look_up(p, err);
	for (size_t i = 0; i < p->n_groups && r == 0; i++) {
		found += p->groups[i].made;
		p->total += p->groups[i].ours ? bytes_of(p, &p->groups[i]) : 0;
	}
	if (r == 0 && p->total)
		build_log(p->b, 1, "%zu layers, %zu of them here already, %.1f MB to fetch", p->n_groups, found, (double)p->total / 1e6);
	if (r == 0)
		r = fetch_all(p, err);
	let_go(p);
	if (r == 0 && !p->retry)
		r = collect(p, ret, err);
	return r;
}

int build_image_layers(struct build *b, struct source *s, struct stack *ret, struct error *err)
{
	struct pulling p = {.b = b, .source = s, .image = source_image(s)};
	size_t n = p.image->n_layers;
	cleanup_free struct group *groups = p.groups = calloc(n + 1, sizeof(*groups));
	cleanup_free struct blob *blobs = p.blobs = calloc(n + 1, sizeof(*blobs));
	if (!groups || !blobs)
		return error_errno(err, -ENOMEM, "layers");
	for (size_t i = 0; i < n; i++)
		p.blobs[i].fd = -1;
	*ret = (struct stack){0};
	stack_turn(ret, STR("image"));
	int r;
	do
		r = pull(&p, ret, err);
	while (r == 0 && p.retry);
	return r;
}
