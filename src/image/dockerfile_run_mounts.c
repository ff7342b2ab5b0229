/* What RUN --mount asks for, put in place and taken away again. */
#include "base/cleanup.h"
#include "base/fd.h"
#include "image/dockerfile_build.h"
#include "image/dockerfile_mount.h"
#include "image/path.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 64 * 1024 };

/* One, from the command's point of view. */
struct one {
	struct dockerfile_mount asked;
	char *target;                 /* absolute */
	struct dockerfile_instruction copy; /* bind: the COPY that brings the files */
	struct str args[2];
	struct dockerfile_flag from;
	struct copying_out *files;    /* of that */
	bool was_dir;
	int kept;                     /* archive of what stood there, or -1 */
};

struct df_mounts {
	struct df_stage *stage;
	struct one *all;
	struct one **order; /* of placing: as they were given, but one above another before that */
	size_t n;
};

static int no_memory(struct error *err)
{
	return error_errno(err, -ENOMEM, "mounts");
}

/* Where the sandbox has mounts of its own. */
static bool is_taken(const char *path)
{
	static const char *const taken[] = {"/proc", "/sys", "/dev", "/run"};
	for (size_t i = 0; i < ARRAY_SIZE(taken); i++) {
		size_t n = strlen(taken[i]);
		if (strncmp(path, taken[i], n) == 0 && (!path[n] || path[n] == '/'))
			return true;
	}
	return strcmp(path, "/") == 0;
}

static int open_bind(struct df_stage *s, struct one *o, struct buf *what, struct error *err)
{
	o->args[0] = o->asked.source.n ? o->asked.source : STR(".");
	o->args[1] = str_of(o->target);
	o->from = (struct dockerfile_flag){STR("from"), o->asked.from};
	/* The target was expanded already, and is one word more: as an array's it is what it is. */
	o->copy = (struct dockerfile_instruction){.kind = DF_COPY, .json = true, .args = o->args, .n_args = 2, .flags = o->asked.from.n ? &o->from : NULL,
		.n_flags = o->asked.from.n ? 1 : 0};
	return df_copy_open(s, &o->copy, &o->files, what, err);
}

static int open_one(struct df_stage *s, struct str text, struct one *o, struct buf *what, struct error *err)
{
	cleanup_buf struct buf target = BUF_INIT, path = BUF_INIT;
	const char *workdir = s->files->config.workdir;
	int r = dockerfile_mount_parse(text, &o->asked, err);
	if (r == 0)
		r = df_expand(s, o->asked.target, &target, err);
	if (r < 0)
		return r;
	path_join(&path, *workdir ? str_of(workdir) : STR("/"), buf_str(&target));
	o->target = str_dup(buf_str(&path));
	if (!o->target || path.failed)
		return no_memory(err);
	if (is_taken(o->target) || strpbrk(o->target, "$'\"\\`"))
		return error_set(err, -ENOTSUP, 501, "--mount at %s is not supported", o->target);
	buf_addf(what, "mount %d %u %u %o ", (int)o->asked.type, (unsigned)o->asked.uid, (unsigned)o->asked.gid, (unsigned)o->asked.mode);
	df_tell(what, str_of(o->target));
	return o->asked.type == DF_MOUNT_BIND ? open_bind(s, o, what, err) : 0;
}

static bool is_below(const char *path, const char *above)
{
	size_t n = strlen(above);
	return strncmp(path, above, n) == 0 && path[n] == '/';
}

/* They themselves stay where they are: their COPYs point into them. */
static void put_in_order(struct df_mounts *m)
{
	for (size_t i = 0; i < m->n; i++) {
		size_t at = 0;
		while (at < i && !is_below(m->order[at]->target, m->all[i].target))
			at++;
		memmove(&m->order[at + 1], &m->order[at], (i - at) * sizeof(*m->order));
		m->order[at] = &m->all[i];
	}
}

int df_mounts_open(struct df_stage *s, const struct dockerfile_instruction *i, struct df_mounts **ret, struct buf *what, struct error *err)
{
	size_t n = 0;
	for (size_t k = 0; k < i->n_flags; k++)
		n += str_is(i->flags[k].name, "mount");
	if (n == 0)
		return 0;
	struct df_mounts *m = calloc(1, sizeof(*m));
	if (!m)
		return no_memory(err);
	m->stage = s;
	m->all = calloc(n, sizeof(*m->all));
	m->order = calloc(n, sizeof(*m->order));
	int r = m->all && m->order ? 0 : no_memory(err);
	for (size_t k = 0; k < i->n_flags && r == 0; k++) {
		if (!str_is(i->flags[k].name, "mount"))
			continue;
		m->all[m->n].kept = -1;
		r = open_one(s, i->flags[k].value, &m->all[m->n++], what, err);
	}
	if (r < 0) {
		df_mounts_free(m);
		return r;
	}
	put_in_order(m);
	*ret = m;
	return 0;
}

void df_mounts_free(struct df_mounts *m)
{
	for (size_t i = 0; m && i < m->n; i++) {
		df_copy_free(m->all[i].files);
		free(m->all[i].target);
		if (m->all[i].kept >= 0)
			close(m->all[i].kept);
	}
	if (m) {
		free(m->all);
		free(m->order);
	}
	free(m);
}

/* What stands at the target, into a file of node's. */
static int keep(struct df_mounts *m, struct one *o, struct box *box, struct error *err)
{
	struct envd_download *d = NULL;
	uint64_t number;
	cleanup_free char *piece = malloc(PIECE);
	int r = piece ? ask_new_file(m->stage->w->b->ask, 0, &number, &o->kept, err) : no_memory(err);
	if (r == 0)
		r = envd_download_open(&box->envd, o->target, &d, err);
	while (r == 0) {
		ssize_t n = envd_download_read(d, piece, PIECE, err);
		if (n <= 0) {
			r = (int)n;
			break;
		}
		r = fd_write_all(o->kept, piece, (size_t)n);
		if (r < 0)
			error_errno(err, r, "keeping %s", o->target);
	}
	envd_download_close(d);
	return r;
}

/* The directory above. */
static char *parent(const char *path)
{
	const char *slash = strrchr(path, '/');
	return str_dup(slash == path ? STR("/") : str_n(path, (size_t)(slash - path)));
}

static int make_dir(const struct one *o, struct box *box, struct error *err)
{
	cleanup_free char *above = parent(o->target);
	const struct envd_file dir = {.path = strrchr(o->target, '/') + 1, .mode = S_IFDIR | o->asked.mode, .uid = o->asked.uid, .gid = o->asked.gid};
	return above ? envd_place(&box->envd, above, &dir, 1, err) : no_memory(err);
}

static int place(struct df_mounts *m, struct one *o, struct box *box, struct error *err)
{
	struct envd_stat st;
	int r = envd_stat(&box->envd, o->target, &st, err);
	if (r == 0 && st.is_link)
		r = error_set(err, -ENOTSUP, 501, "a symbolic link stands there");
	if (r == 0 && st.exists) {
		o->was_dir = st.is_dir;
		r = keep(m, o, box, err);
		if (r == 0)
			r = envd_remove(&box->envd, o->target, err);
	}
	if (r == 0)
		r = o->files ? df_copy_make(box, o->files, err) : make_dir(o, box, err);
	return r < 0 ? error_wrap(err, r, "--mount at %s", o->target) : 0;
}

int df_mounts_place(struct df_mounts *m, struct box *box, struct error *err)
{
	int r = 0;
	for (size_t i = 0; i < m->n && r == 0; i++)
		r = place(m, m->order[i], box, err);
	return r;
}

static int put_back(struct one *o, struct box *box, struct error *err)
{
	cleanup_free char *above = o->was_dir ? strdup(o->target) : parent(o->target), *piece = malloc(PIECE);
	struct envd_upload *up = NULL;
	off_t at = 0;
	if (!above || !piece)
		return no_memory(err);
	int r = envd_upload_open(&box->envd, above, &up, err);
	if (r < 0)
		return r;
	while (r == 0) {
		ssize_t n = pread(o->kept, piece, PIECE, at);
		if (n < 0)
			r = error_errno(err, -errno, "what stood at %s", o->target);
		if (n <= 0)
			break;
		r = envd_upload_write(up, piece, (size_t)n, err);
		at += n;
	}
	if (r == 0)
		return envd_upload_finish(up, err);
	envd_upload_abort(up);
	return r;
}

int df_mounts_take_away(struct df_mounts *m, struct box *box, struct error *err)
{
	int r = 0;
	for (size_t i = m->n; i > 0 && r == 0; i--) {
		struct one *o = m->order[i - 1];
		r = envd_remove(&box->envd, o->target, err);
		if (r == 0 && o->kept >= 0)
			r = put_back(o, box, err);
		if (r < 0)
			error_wrap(err, r, "--mount at %s", o->target);
	}
	return r;
}
