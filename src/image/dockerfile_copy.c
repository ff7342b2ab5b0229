/* COPY and ADD of a Dockerfile: which files, where to, and what a cached layer follows from. */
#include "base/cleanup.h"
#include "base/encode.h"
#include "image/archive_file.h"
#include "image/copy.h"
#include "image/dockerfile_build.h"
#include "image/glob.h"
#include "image/ignore.h"
#include "image/path.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { SOURCES_MOST = 100000, HEREDOC_MODE = 0644 };

/* One thing to copy. */
struct source {
	char *path; /* in the archive, or absolute in the other box */
	char *name; /* what it is called where it goes to, when it is no directory */
	char *sub;  /* --parents: directory below the destination, else NULL */
	bool is_dir, packed;
};

struct copying_out {
	struct df_stage *stage;
	const struct dockerfile_instruction *i;
	struct source *sources;
	size_t n, cap;
	bool several; /* sources as given: the destination is a directory */
	bool any;     /* a pattern may mean nothing */
	char *dest;
	char *owner;  /* NULL: none given */
	long mode;
	bool parents, packed_stays; /* packed_stays: ADD --unpack=false */
	struct ignore exclude;
	const struct df_files *from; /* NULL: the context */
	int heredocs;                /* archive of them, or -1 */
	struct error *err;
};

static int no_memory(struct error *err)
{
	return error_errno(err, -ENOMEM, "Dockerfile");
}

static struct str base_name(struct str path)
{
	const char *slash = memrchr(path.p, '/', path.n);
	return slash ? str_from(path, (size_t)(slash - path.p) + 1) : path;
}

/* Takes what is at `path`; it is called as `given` says. */
static int add_source(struct copying_out *c, struct str path, struct str given, struct str sub, bool is_dir, bool packed)
{
	if (c->n == SOURCES_MOST)
		return error_set(c->err, -E2BIG, 400, "more than %d sources", SOURCES_MOST);
	if (c->n == c->cap) {
		size_t cap = c->cap ? 2 * c->cap : 16;
		struct source *more = reallocarray(c->sources, cap, sizeof(*more));
		if (!more)
			return no_memory(c->err);
		c->sources = more;
		c->cap = cap;
	}
	struct source s = {.path = str_dup(path), .name = str_dup(base_name(given)), .sub = c->parents ? str_dup(sub) : NULL, .is_dir = is_dir, .packed = packed};
	if (!s.path || !s.name || (c->parents && !s.sub)) {
		free(s.path);
		free(s.name);
		free(s.sub);
		return no_memory(c->err);
	}
	c->sources[c->n++] = s;
	return 0;
}

/* ---- from the context ---- */

static int open_context(struct copying_out *c)
{
	struct df_work *w = c->stage->w;
	struct build *b = w->b;
	uint64_t size;
	if (w->context >= 0)
		return 0;
	if (!b->spec->context)
		return error_set(c->err, -EINVAL, 400, "this build was given no files to copy from");
	int fd = ask_open_file(b->ask, b->spec->context, &size, c->err);
	if (fd < 0)
		return fd == -ENOENT ? error_set(c->err, fd, 400, "the files to copy from were not uploaded") : fd;
	w->context = fd;
	return context_index_read(&w->index, fd, c->err);
}

/* --parents: the directories of the path below its pivot ("./"), or all of them. */
static struct str parents_of(struct str given, struct str path, bool is_dir)
{
	const char *pivot = memmem(given.p, given.n, "/./", 3);
	struct str sub = path;
	if (pivot) {
		cleanup_buf struct buf before = BUF_INIT;
		path_join(&before, STR("/"), str_n(given.p, (size_t)(pivot - given.p)));
		size_t skip = buf_len(&before) > 1 ? buf_len(&before) : 0;
		sub = str_from(path, MIN(skip, path.n));
	}
	if (!is_dir)
		sub = str_n(sub.p, sub.n - base_name(sub).n);
	return sub;
}

/* One path of the context that is there, perhaps by way of links. */
static int take_path(struct copying_out *c, struct str given, struct str path)
{
	const struct context_index *ix = &c->stage->w->index;
	cleanup_buf struct buf real = BUF_INIT;
	int r = context_index_resolve(ix, path, &real);
	if (r == -ENOENT)
		return error_set(c->err, r, 400, "\"%.*s\" is not in the context (does .dockerignore leave it out?)", STR_FMT(str_n(given.p, MIN(given.n, 200))));
	if (r < 0)
		return r == -ELOOP ? error_set(c->err, r, 400, "\"%.*s\": too many symbolic links", STR_FMT(str_n(given.p, MIN(given.n, 200)))) : no_memory(c->err);
	const struct context_entry *e = context_index_find(ix, buf_str(&real));
	bool is_dir = !e || S_ISDIR(e->mode);
	return add_source(c, buf_str(&real), path, parents_of(given, path, is_dir), is_dir, e && e->packed);
}

static int take_pattern(struct copying_out *c, struct str given, struct str pattern)
{
	const struct context_index *ix = &c->stage->w->index;
	if (glob_check(pattern) < 0)
		return error_set(c->err, -EINVAL, 400, "\"%.*s\" is no pattern", STR_FMT(str_n(given.p, MIN(given.n, 200))));
	c->any = true;
	for (size_t i = 0; i < ix->n;) {
		size_t from, to;
		struct str path = str_of(ix->entries[i].path);
		if (!glob_match(pattern, path, GLOB_PLAIN)) {
			i++;
			continue;
		}
		int r = take_path(c, given, path);
		if (r < 0)
			return r;
		/* What is in a directory goes with it. */
		context_index_below(ix, path, &from, &to);
		i = to;
	}
	return 0;
}

static int take_from_context(struct copying_out *c, struct str given)
{
	cleanup_buf struct buf clean = BUF_INIT;
	int r = open_context(c);
	if (r < 0)
		return r;
	path_join(&clean, STR("/"), given);
	if (!buf_cstr(&clean))
		return no_memory(c->err);
	struct str path = str_from(buf_str(&clean), 1);
	return glob_is_pattern(path) ? take_pattern(c, given, path) : take_path(c, given, path.n ? path : STR("."));
}

/* ---- what the layer follows from ---- */

static void tell(EVP_MD_CTX *hash, struct str s)
{
	char n[24];
	EVP_DigestUpdate(hash, n, (size_t)snprintf(n, sizeof(n), "%zu:", s.n));
	EVP_DigestUpdate(hash, s.p, s.n);
}

/* The path as --exclude sees it: below the source, or the name of a file. */
static bool excluded(const struct copying_out *c, const struct source *s, struct str path)
{
	size_t n = strcmp(s->path, ".") == 0 ? 0 : strlen(s->path);
	struct str rel = path.n == n ? (s->is_dir ? STR("") : base_name(path)) : str_from(path, n ? n + 1 : 0);
	return rel.n && ignore_match(&c->exclude, rel);
}

static bool source_has(const struct source *s, struct str path)
{
	size_t n = strlen(s->path);
	return strcmp(s->path, ".") == 0 || (str_starts(path, str_of(s->path)) && (path.n == n || path.p[n] == '/'));
}

/* Of struct copy. */
static bool left_out(void *arg, struct str path)
{
	const struct copying_out *c = arg;
	for (size_t i = 0; i < c->n; i++)
		if (source_has(&c->sources[i], path))
			return excluded(c, &c->sources[i], path);
	return false;
}

static void tell_source(EVP_MD_CTX *hash, const struct copying_out *c, const struct source *s)
{
	const struct context_index *ix = &c->stage->w->index;
	size_t from, to, n = strcmp(s->path, ".") == 0 ? 0 : strlen(s->path);
	tell(hash, str_of(s->is_dir ? "" : s->name));
	tell(hash, str_of(s->sub ? s->sub : ""));
	if (!context_index_below(ix, str_of(s->path), &from, &to))
		return;
	for (size_t i = from; i < to; i++) {
		const struct context_entry *e = &ix->entries[i];
		char facts[64];
		if (excluded(c, s, str_of(e->path)))
			continue;
		tell(hash, str_from(str_of(e->path), n));
		tell(hash, str_n(facts, (size_t)snprintf(facts, sizeof(facts), "%o %llu", (unsigned)e->mode, S_ISREG(e->mode) ? (unsigned long long)e->size : 0)));
		tell(hash, e->target ? str_of(e->target) : S_ISREG(e->mode) ? str_n(e->digest, SHA256_SIZE) : STR(""));
	}
}

static int tell_all(const struct copying_out *c, struct str heredocs, struct buf *what)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	char text[2 * SHA256_SIZE + 1];
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	if (!hash || !EVP_DigestInit_ex(hash, EVP_sha256(), NULL)) {
		EVP_MD_CTX_free(hash);
		return no_memory(c->err);
	}
	tell(hash, heredocs);
	for (size_t k = 0; k < c->n; k++) {
		if (c->from)
			tell(hash, str_of(c->sources[k].path));
		else
			tell_source(hash, c, &c->sources[k]);
	}
	for (size_t k = 0; k < c->exclude.n; k++)
		tell(hash, str_of(c->exclude.rules[k].pattern));
	EVP_DigestFinal_ex(hash, digest, NULL);
	EVP_MD_CTX_free(hash);
	buf_addf(what, "%s%s %ld %s ", c->i->kind == DF_ADD && !c->packed_stays ? "add" : "copy", c->several ? " into" : "", c->mode, c->parents ? "parents" : "");
	df_tell(what, str_of(c->dest));
	df_tell(what, str_of(c->owner ? c->owner : ""));
	df_tell(what, str_of(c->from ? c->from->stack.key : ""));
	buf_add_c(what, hex_encode(text, digest, SHA256_SIZE));
	return what->failed ? no_memory(c->err) : 0;
}

/* ---- doing it ---- */

static int copy_some(struct copying_out *c, struct box *box, const struct envd *from, int fd, const char *const *paths, const char *dest, bool keep_owner, struct error *err)
{
	struct copy_done done = {0};
	struct copy copy = {.fd = fd, .from = from, .sources = paths, .dest = dest, .owner = c->owner, .mode = c->mode, .keep_owner = keep_owner};
	if (c->exclude.n && fd >= 0 && fd == c->stage->w->context) {
		copy.exclude = left_out;
		copy.arg = c;
	}
	return copy_into(&box->envd, &copy, &done, err);
}

/* Where one source goes to by itself. */
static int own_dest(struct copying_out *c, struct box *box, const struct source *s, struct buf *to, struct error *err)
{
	bool slash = str_ends(str_of(c->dest), STR("/"));
	buf_add_c(to, c->dest);
	if (s->sub)
		buf_addf(to, "%s%s%s", slash ? "" : "/", s->sub, str_ends(str_of(s->sub), STR("/")) ? "" : "/");
	if (s->is_dir)
		return buf_cstr(to) ? 0 : no_memory(err);
	if (!s->sub && !slash && !c->several) {
		struct envd_stat st;
		int r = envd_stat(&box->envd, c->dest, &st, err);
		if (r < 0)
			return r;
		if (!st.exists || !st.is_dir)
			return buf_cstr(to) ? 0 : no_memory(err);
	}
	if (!str_ends(buf_str(to), STR("/")))
		buf_add_c(to, "/");
	buf_add_c(to, s->name);
	return buf_cstr(to) ? 0 : no_memory(err);
}

/* ADD of an archive: what is in it. 1 when it was none. */
static int add_archive(struct copying_out *c, struct box *box, const struct source *s, struct error *err)
{
	static const char *const everything[] = {"", NULL};
	cleanup_buf struct buf dest = BUF_INIT;
	cleanup_fd int fd = -1;
	int r = archive_file_unpack(c->stage->w->b->ask, c->stage->w->context, s->path, &fd, err);
	if (r != 0)
		return r;
	buf_add_c(&dest, c->dest);
	if (!str_ends(buf_str(&dest), STR("/")))
		buf_add_c(&dest, "/");
	return buf_cstr(&dest) ? copy_some(c, box, NULL, fd, everything, buf_cstr(&dest), !c->owner, err) : no_memory(err);
}

/* A source that goes to a place of its own. 1: it may go with the others. */
static int copy_alone(struct copying_out *c, struct box *box, const struct envd *from, const struct source *s, struct error *err)
{
	cleanup_buf struct buf dest = BUF_INIT;
	const char *paths[] = {strcmp(s->path, ".") == 0 ? "" : s->path, NULL};
	bool renamed = !s->is_dir && strcmp(base_name(str_of(s->path)).p, s->name) != 0;
	if (c->i->kind == DF_ADD && s->packed && !s->is_dir && !c->packed_stays) {
		int r = add_archive(c, box, s, err);
		if (r <= 0)
			return r;
	}
	if (!renamed && !s->sub)
		return 1;
	int r = own_dest(c, box, s, &dest, err);
	return r == 0 ? copy_some(c, box, from, from ? -1 : c->stage->w->context, paths, buf_cstr(&dest), false, err) : r;
}

static int copy_sources(struct copying_out *c, struct box *box, const struct envd *from, struct error *err)
{
	cleanup_buf struct buf dest = BUF_INIT;
	cleanup_free const char **together = calloc(c->n + 1, sizeof(*together));
	size_t n = 0;
	if (!together)
		return no_memory(err);
	for (size_t k = 0; k < c->n; k++) {
		int r = copy_alone(c, box, from, &c->sources[k], err);
		if (r < 0)
			return r;
		if (r == 1)
			together[n++] = strcmp(c->sources[k].path, ".") == 0 ? "" : c->sources[k].path;
	}
	buf_add_c(&dest, c->dest);
	if (c->several && !str_ends(buf_str(&dest), STR("/")))
		buf_add_c(&dest, "/");
	if (!buf_cstr(&dest))
		return no_memory(err);
	return n ? copy_some(c, box, from, from ? -1 : c->stage->w->context, together, buf_cstr(&dest), false, err) : 0;
}

static int copy_heredocs(struct copying_out *c, struct box *box, struct error *err)
{
	const char *paths[DOCKERFILE_HEREDOCS + 1] = {NULL};
	for (size_t k = 0; k < c->i->n_heredocs; k++)
		paths[k] = c->i->heredocs[k].name.p;
	return copy_some(c, box, NULL, c->heredocs, paths, c->dest, false, err);
}

int df_copy_make(struct box *box, void *arg, struct error *err)
{
	struct copying_out *c = arg;
	struct box other = {0};
	int r = c->heredocs >= 0 ? copy_heredocs(c, box, err) : 0;
	if (r == 0 && c->n && c->from) {
		r = build_open_box(c->stage->w->b, &c->from->stack, &other, err);
		if (r == 0)
			r = copy_sources(c, box, &other.envd, err);
		build_end_box(&other);
	} else if (r == 0 && c->n) {
		r = copy_sources(c, box, NULL, err);
	}
	return r == 0 && !c->n && c->heredocs < 0 ? BUILD_NOTHING : r;
}

/* ---- reading the instruction ---- */

static int take_heredocs(struct copying_out *c, struct buf *told)
{
	struct archive_file a;
	int r = archive_file_begin(&a, c->err);
	for (size_t k = 0; k < c->i->n_heredocs && r == 0; k++) {
		const struct dockerfile_heredoc *h = &c->i->heredocs[k];
		struct dockerfile_scope scope = {.env = &c->stage->files->config.env, .args = &c->stage->args};
		struct words w = {.escape = '\\', .quotes_stay = true, .get = dockerfile_scope_get, .data = &scope};
		cleanup_buf struct buf text = BUF_INIT, whole = BUF_INIT;
		dockerfile_heredoc_text(h, &text);
		if (str_is(h->name, ".") || str_is(h->name, "..") || memchr(h->name.p, '/', h->name.n))
			r = error_set(c->err, -EINVAL, 400, "<<%.*s: a file cannot have that name", STR_FMT(str_n(h->name.p, MIN(h->name.n, 60))));
		else if (h->expand)
			r = words_expand(&w, buf_str(&text), &whole, c->err);
		else
			buf_add_str(&whole, buf_str(&text));
		if (r == 0)
			r = archive_file_add(&a, h->name.p, HEREDOC_MODE, buf_str(&whole), c->err);
		df_tell(told, h->name);
		df_tell(told, buf_str(&whole));
	}
	if (r == 0)
		r = archive_file_end(&a, &c->heredocs, c->err);
	archive_file_done(&a);
	return r < 0 ? r : told->failed ? no_memory(c->err) : 0;
}

static int take_sources(struct copying_out *c)
{
	const struct dockerfile_instruction *i = c->i;
	size_t files = 0;
	for (size_t k = 0; k + 1 < i->n_args; k++) {
		cleanup_buf struct buf text = BUF_INIT, name = BUF_INIT, path = BUF_INIT;
		bool tabs, expand;
		if (!i->json && dockerfile_heredoc_word(i->args[k], c->stage->w->file.escape, &name, &tabs, &expand))
			continue;
		int r = df_expand(c->stage, i->args[k], &text, c->err);
		if (r == 0 && i->kind == DF_ADD && dockerfile_is_remote(buf_str(&text)))
			r = error_set(c->err, -ENOTSUP, 501, "a URL or a git repository is not supported: fetch it with RUN, or put the file into the context");
		if (r < 0)
			return r;
		files++;
		if (!c->from) {
			r = take_from_context(c, buf_str(&text));
		} else if (glob_is_pattern(buf_str(&text))) {
			r = error_set(c->err, -ENOTSUP, 501, "patterns are not supported with --from: name the files, or their directory");
		} else {
			path_join(&path, STR("/"), buf_str(&text));
			r = add_source(c, buf_str(&path), buf_str(&path), STR(""), true, false);
		}
		if (r < 0)
			return r;
	}
	c->several = files + i->n_heredocs > 1 || c->n > 1;
	if (files + i->n_heredocs > 1 && !str_ends(str_of(c->dest), STR("/")))
		return error_set(c->err, -EINVAL, 400, "with several sources the destination must be a directory and end in /");
	return 0;
}

static int take_mode(struct copying_out *c, struct str text)
{
	c->mode = 0;
	for (size_t i = 0; i < text.n; i++) {
		if (text.p[i] < '0' || text.p[i] > '7' || c->mode > 0777)
			return error_set(c->err, -ENOTSUP, 501, "--chmod=%.*s is not supported: it takes an octal number", STR_FMT(str_n(text.p, MIN(text.n, 40))));
		c->mode = c->mode * 8 + (text.p[i] - '0');
	}
	return text.n ? 0 : error_set(c->err, -EINVAL, 400, "--chmod: nothing is left of its value");
}

/* Where from: also pulls an image, which must not happen while a layer is made. */
static int take_from(struct copying_out *c, const struct dockerfile_flag *flag)
{
	struct df_work *w = c->stage->w;
	enum dockerfile_base_kind kind;
	struct df_files *files;
	size_t stage;
	int r = dockerfile_copy_from(&w->file, flag->value, c->stage->number, &kind, &stage, c->err);
	if (r < 0)
		return r;
	if (kind == DF_BASE_SCRATCH)
		return error_set(c->err, -EINVAL, 400, "--from=scratch: there are no files in it");
	if (kind == DF_BASE_STAGE && !w->stages[stage])
		return error_set(c->err, -ENOTSUP, 501, "--from=%.*s in an ONBUILD of the base: only images can be named there", STR_FMT(flag->value));
	if (kind == DF_BASE_IMAGE) {
		cleanup_free char *reference = str_dup(flag->value);
		r = reference ? df_image(w, reference, &files, c->err) : no_memory(c->err);
		c->from = r == 0 ? files : NULL;
		return r;
	}
	c->from = w->stages[stage];
	return 0;
}

static int take_flags(struct copying_out *c)
{
	for (size_t k = 0; k < c->i->n_flags; k++) {
		const struct dockerfile_flag *f = &c->i->flags[k];
		cleanup_buf struct buf text = BUF_INIT;
		int r = 0;
		if (str_is(f->name, "from")) {
			r = take_from(c, f);
		} else if (str_is(f->name, "parents")) {
			c->parents = true;
		} else if (str_is(f->name, "unpack")) {
			c->packed_stays = str_is(f->value, "false");
		} else if (str_is(f->name, "chown") || str_is(f->name, "chmod") || str_is(f->name, "exclude")) {
			r = df_expand(c->stage, f->value, &text, c->err);
			if (r == 0 && str_is(f->name, "chmod"))
				r = take_mode(c, buf_str(&text));
			else if (r == 0 && str_is(f->name, "exclude"))
				r = ignore_add(&c->exclude, buf_str(&text), c->err);
			else if (r == 0 && buf_len(&text))
				r = (c->owner = str_dup(buf_str(&text))) ? 0 : no_memory(c->err);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int take_all(struct copying_out *c, struct buf *what)
{
	cleanup_buf struct buf text = BUF_INIT, dest = BUF_INIT, told = BUF_INIT;
	int r = take_flags(c);
	if (r == 0)
		r = df_expand(c->stage, c->i->args[c->i->n_args - 1], &text, c->err);
	if (r == 0)
		r = df_absolute(c->stage, buf_str(&text), &dest, c->err);
	if (r < 0)
		return r;
	c->dest = str_dup(buf_str(&dest));
	if (!c->dest)
		return no_memory(c->err);
	r = take_sources(c);
	if (r == 0 && c->i->n_heredocs)
		r = take_heredocs(c, &told);
	return r == 0 ? tell_all(c, buf_str(&told), what) : r;
}

int df_copy_open(struct df_stage *s, const struct dockerfile_instruction *i, struct copying_out **ret, struct buf *what, struct error *err)
{
	struct copying_out *c = malloc(sizeof(*c));
	if (!c)
		return no_memory(err);
	*c = (struct copying_out){.stage = s, .i = i, .mode = -1, .heredocs = -1, .err = err};
	int r = take_all(c, what);
	if (r < 0)
		df_copy_free(c);
	else
		*ret = c;
	return r;
}

void df_copy_free(struct copying_out *c)
{
	for (size_t k = 0; c && k < c->n; k++) {
		free(c->sources[k].path);
		free(c->sources[k].name);
		free(c->sources[k].sub);
	}
	if (c) {
		free(c->sources);
		free(c->dest);
		free(c->owner);
		ignore_done(&c->exclude);
		if (c->heredocs >= 0)
			close(c->heredocs);
	}
	free(c);
}

int df_copy(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err)
{
	struct copying_out *c = NULL;
	cleanup_buf struct buf what = BUF_INIT;
	int r = df_copy_open(s, i, &c, &what, err);
	if (r < 0)
		return r;
	if (!c->n && c->heredocs < 0)
		build_log(s->w->b, 2, "%s: nothing in the context fits", dockerfile_kind_name(i->kind));
	r = df_layer(s, buf_str(&what), df_copy_make, c, err);
	df_copy_free(c);
	return r;
}
