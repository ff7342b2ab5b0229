#include "sys/cgroup_impl.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

static const char *const part_names[] = {[CGROUP_AGENT] = "agent", [CGROUP_WORK] = "work"};

static bool has_word(struct str list, const char *word)
{
	struct str head, tail;
	while (str_cut(list, ',', &head, &tail)) {
		if (str_is(head, word))
			return true;
		list = tail;
	}
	return str_is(list, word);
}

static int copy_path(char to[CGROUP_PATH], struct str path)
{
	/* Spaces and the like come as \040: nobody mounts cgroups there, and a wrong path must not be guessed. */
	if (path.n >= CGROUP_PATH || str_chr(path, '\\') >= 0)
		return -EINVAL;
	memcpy(to, path.p, path.n);
	to[path.n] = '\0';
	return 0;
}

static int parse_line(struct str line, struct cgroup_layout *l)
{
	struct str source, path, type, options, rest;
	if (!str_cut(line, ' ', &source, &rest) || !str_cut(rest, ' ', &path, &rest) || !str_cut(rest, ' ', &type, &rest) ||
		!str_cut(rest, ' ', &options, &rest))
		return 0;
	if (str_is(type, "cgroup2"))
		return l->v2[0] ? 0 : copy_path(l->v2, path);
	if (!str_is(type, "cgroup") || l->n_v1 == CGROUP_MAX_V1)
		return 0;
	__typeof__(&l->v1[0]) h = &l->v1[l->n_v1];
	h->cpu = has_word(options, "cpu");
	h->cpuacct = has_word(options, "cpuacct");
	h->memory = has_word(options, "memory");
	h->pids = has_word(options, "pids");
	h->devices = has_word(options, "devices");
	h->freezer = has_word(options, "freezer");
	for (size_t i = 0; i < l->n_v1; i++) /* the same hierarchy mounted twice */
		if (h->memory == l->v1[i].memory && h->cpu == l->v1[i].cpu && h->cpuacct == l->v1[i].cpuacct && h->pids == l->v1[i].pids &&
			h->devices == l->v1[i].devices && h->freezer == l->v1[i].freezer)
			return 0;
	if (!(h->cpu || h->cpuacct || h->memory || h->pids || h->devices || h->freezer))
		return 0;
	int r = copy_path(h->path, path);
	if (r == 0)
		l->n_v1++;
	return r;
}

int cgroup_layout_parse(struct str mounts, struct cgroup_layout *ret)
{
	struct cgroup_layout l = {0};
	while (mounts.n) {
		struct str line, rest = str_n("", 0);
		if (!str_cut(mounts, '\n', &line, &rest))
			line = mounts;
		mounts = rest;
		int r = parse_line(line, &l);
		if (r < 0)
			return r;
	}
	*ret = l;
	return 0;
}

const char *cgroup_path(char *to, const char *mount, const struct cgroups *c, const char *dir, const char *file)
{
	snprintf(to, CGROUP_LONG_PATH, "%s/%s%s%s%s%s", mount, c->top, *dir ? "/" : "", dir, *file ? "/" : "", file);
	return to;
}

int cgroup_write(const char *mount, const struct cgroups *c, const char *dir, const char *file, const char *value)
{
	char path[CGROUP_LONG_PATH];
	return file_write_value(AT_FDCWD, cgroup_path(path, mount, c, dir, file), str_of(value));
}

static int read_text(const char *mount, const struct cgroups *c, const char *dir, const char *file, struct buf *to)
{
	char path[CGROUP_LONG_PATH];
	return file_read(AT_FDCWD, cgroup_path(path, mount, c, dir, file), 1 << 20, to);
}

int cgroup_read_u64(const char *mount, const struct cgroups *c, const char *dir, const char *file, uint64_t *ret)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_text(mount, c, dir, file, &text);
	if (r < 0)
		return r;
	struct str s = buf_str(&text);
	if (s.n && s.p[s.n - 1] == '\n')
		s.n--;
	if (str_is(s, "max")) {
		*ret = UINT64_MAX;
		return 0;
	}
	return str_to_u64(s, ret);
}

int cgroup_read_keys(const char *mount, const struct cgroups *c, const char *dir, const char *file, const struct cgroup_key *keys, size_t n)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_text(mount, c, dir, file, &text);
	struct str all = buf_str(&text);
	while (r == 0 && all.n) {
		struct str line, rest = str_n("", 0), name, value;
		if (!str_cut(all, '\n', &line, &rest))
			line = all;
		all = rest;
		for (size_t i = 0; i < n && str_cut(line, ' ', &name, &value); i++)
			if (str_is(name, keys[i].name)) {
				r = str_to_u64(value, keys[i].value);
				break;
			}
	}
	return r;
}

int cgroup_read_key(const char *mount, const struct cgroups *c, const char *dir, const char *file, const char *key, uint64_t *ret)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_text(mount, c, dir, file, &text);
	if (r < 0)
		return r;
	struct str all = buf_str(&text);
	while (all.n) {
		struct str line, rest = str_n("", 0), name, value;
		if (!str_cut(all, '\n', &line, &rest))
			line = all;
		all = rest;
		if (str_cut(line, ' ', &name, &value) && str_is(name, key))
			return str_to_u64(value, ret);
	}
	return -ENOENT;
}

int cgroup_mkdir(const char *mount, const struct cgroups *c, const char *dir)
{
	char path[CGROUP_LONG_PATH];
	return mkdir(cgroup_path(path, mount, c, dir, ""), 0755) < 0 && errno != EEXIST ? -errno : 0;
}

int cgroup_rmdir(const char *mount, const struct cgroups *c, const char *dir)
{
	char path[CGROUP_LONG_PATH];
	return rmdir(cgroup_path(path, mount, c, dir, "")) < 0 && errno != ENOENT ? -errno : 0;
}

int cgroup_kill_listed(const char *mount, const struct cgroups *c, const char *dir)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_text(mount, c, dir, "cgroup.procs", &text);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	struct str all = buf_str(&text);
	while (all.n) {
		struct str line, rest = str_n("", 0);
		uint64_t pid;
		if (!str_cut(all, '\n', &line, &rest))
			line = all;
		all = rest;
		if (str_to_u64(line, &pid) == 0 && pid > 1)
			kill((pid_t)pid, SIGKILL);
	}
	return 0;
}

static bool v2_is_complete(const struct cgroup_layout *l)
{
	char path[CGROUP_PATH + 32];
	snprintf(path, sizeof(path), "%s/cgroup.controllers", l->v2);
	cleanup_buf struct buf text = BUF_INIT;
	if (!l->v2[0] || file_read(AT_FDCWD, path, 4096, &text) < 0)
		return false;
	bool memory = false, pids = false;
	struct str all = buf_str(&text);
	while (all.n) {
		struct str word, rest = str_n("", 0);
		if (!str_cut(all, ' ', &word, &rest))
			word = all;
		all = rest;
		if (word.n && word.p[word.n - 1] == '\n')
			word.n--;
		memory |= str_is(word, "memory");
		pids |= str_is(word, "pids");
	}
	return memory && pids;
}

/* Makes each directory of <top> in one hierarchy. */
static int make_top(const char *mount, const struct cgroups *c)
{
	char path[CGROUP_LONG_PATH];
	int r = make_dirs(cgroup_path(path, mount, c, "", ""), 0755);
	/* Whatever the umask: each sandbox's PID 1, whom the host does not know, looks up its own numbers through it. */
	return r == 0 && chmod(path, 0755) < 0 ? -errno : r;
}

static int make_tops(struct cgroups *c, struct error *err)
{
	if (c->ops == &cgroup_v2 || c->pair) {
		int r = make_top(c->layout.v2, c);
		if (r < 0)
			return error_errno(err, r, "cgroup %s in %s", c->top, c->layout.v2);
	}
	for (size_t i = 0; c->ops == &cgroup_v1 && i < c->layout.n_v1; i++) {
		int r = make_top(c->layout.v1[i].path, c);
		if (r < 0)
			return error_errno(err, r, "cgroup %s in %s", c->top, c->layout.v1[i].path);
	}
	return 0;
}

static bool has_file(struct cgroups *c, const char *file)
{
	char path[CGROUP_LONG_PATH];
	return access(cgroup_path(path, c->layout.v2, c, "", file), W_OK) == 0;
}

int cgroups_new(const char *top, struct cgroups **ret, struct error *err)
{
	cleanup_free struct cgroups *c = calloc(1, sizeof(*c));
	cleanup_buf struct buf mounts = BUF_INIT;
	if (!c)
		return error_errno(err, -ENOMEM, "cgroups");
	if (snprintf(c->top, sizeof(c->top), "%s", top) >= (int)sizeof(c->top) || strstr(top, ".."))
		return error_set(err, -EINVAL, 400, "cgroup.parent '%s' is no cgroup name", top);
	int r = file_read(AT_FDCWD, "/proc/self/mounts", 4 << 20, &mounts);
	if (r == 0)
		r = cgroup_layout_parse(buf_str(&mounts), &c->layout);
	if (r < 0)
		return error_errno(err, r, "cgroup mounts");
	if (v2_is_complete(&c->layout))
		c->ops = &cgroup_v2;
	else if (c->layout.n_v1)
		c->ops = &cgroup_v1;
	else
		return error_set(err, -ENODEV, 500, "no cgroup file system with a memory and a pids controller is mounted");
	c->pair = c->ops == &cgroup_v1 && c->layout.v2[0];
	if ((r = make_tops(c, err)) < 0)
		return r;
	if (c->pair && !has_file(c, "cgroup.freeze"))
		c->pair = false;
	c->v2_kill = (c->pair || c->ops == &cgroup_v2) && has_file(c, "cgroup.kill");
	if ((r = c->ops->prepare(c, err)) < 0)
		return r;
	*ret = steal_pointer(&c);
	return 0;
}

void cgroups_free(struct cgroups *c, bool remove)
{
	if (!c)
		return;
	if (remove)
		c->ops->remove(c, "");
	free(c);
}

const char *cgroups_kind(const struct cgroups *c)
{
	return c->ops == &cgroup_v2 ? "v2" : c->pair ? "hybrid" : "v1";
}

const char *cgroups_missing(const struct cgroups *c)
{
	return c->missing;
}

int cgroups_dir(const struct cgroups *c, const char *controller, char *to, size_t size)
{
	const char *mount = c->ops == &cgroup_v2 ? c->layout.v2 : NULL;
	for (size_t i = 0; !mount && i < c->layout.n_v1; i++)
		if (strcmp(controller, "memory") == 0 ? c->layout.v1[i].memory : c->layout.v1[i].cpuacct)
			mount = c->layout.v1[i].path;
	if (!mount)
		return -ENOENT;
	return snprintf(to, size, "%s/%s", mount, c->top) < (int)size ? 0 : -ENAMETOOLONG;
}

static const char *part_dir(char to[160], const char *name, enum cgroup_part part)
{
	snprintf(to, 160, "%.100s/%s", name, part_names[part]);
	return to;
}

int cgroups_create(struct cgroups *c, const char *name, struct error *err)
{
	char dir[160];
	int r = c->ops->create(c, name, err);
	for (int part = CGROUP_AGENT; part <= CGROUP_WORK && r == 0; part++)
		r = c->ops->create(c, part_dir(dir, name, (enum cgroup_part)part), err);
	return r;
}

int cgroups_limit(struct cgroups *c, const char *name, enum cgroup_part part, const struct cgroup_limits *l, struct error *err)
{
	char dir[160];
	return c->ops->limit(c, part_dir(dir, name, part), l, err);
}

int cgroups_weigh(struct cgroups *c, const char *name, uint32_t cpu_count)
{
	int r = c->ops->weigh(c, name, cpu_count);
	return r == -ENOENT ? 0 : r;
}

int cgroups_attach(struct cgroups *c, const char *name, enum cgroup_part part, pid_t pid, struct error *err)
{
	char dir[160];
	return c->ops->attach(c, part_dir(dir, name, part), pid, part == CGROUP_AGENT, err);
}

int cgroups_freeze(struct cgroups *c, const char *name, enum cgroup_part part, bool on)
{
	char dir[160];
	return c->ops->freeze(c, part_dir(dir, name, part), on);
}

int cgroups_frozen(struct cgroups *c, const char *name, enum cgroup_part part)
{
	char dir[160];
	return c->ops->frozen(c, part_dir(dir, name, part));
}

int cgroups_kill(struct cgroups *c, const char *name)
{
	char dir[160];
	int r = 0;
	for (int part = CGROUP_AGENT; part <= CGROUP_WORK; part++) {
		int one = c->ops->kill(c, part_dir(dir, name, (enum cgroup_part)part));
		if (one < 0)
			r = one;
	}
	return r;
}

int cgroups_remove(struct cgroups *c, const char *name)
{
	char dir[160];
	for (int part = CGROUP_AGENT; part <= CGROUP_WORK; part++) {
		int r = c->ops->remove(c, part_dir(dir, name, (enum cgroup_part)part));
		if (r < 0)
			return r;
	}
	return c->ops->remove(c, name);
}

int cgroups_stats(struct cgroups *c, const char *name, enum cgroup_part part, struct cgroup_stats *ret)
{
	char dir[160];
	*ret = (struct cgroup_stats){0};
	return c->ops->stats(c, part_dir(dir, name, part), ret);
}

int cgroups_dirty(struct cgroups *c, const char *name, enum cgroup_part part, uint64_t *ret)
{
	char dir[160];
	return c->ops->dirty(c, part_dir(dir, name, part), ret);
}

static int each_in(const char *mount, struct cgroups *c, void (*fn)(const char *, void *), void *arg)
{
	char path[CGROUP_LONG_PATH];
	cleanup_dir DIR *d = opendir(cgroup_path(path, mount, c, "", ""));
	if (!d)
		return -errno;
	for (struct dirent *e; (e = readdir(d));)
		if (e->d_type == DT_DIR && e->d_name[0] != '.')
			fn(e->d_name, arg);
	return 0;
}

int cgroups_each(struct cgroups *c, void (*fn)(const char *name, void *arg), void *arg)
{
	if (c->ops == &cgroup_v2 || c->pair) {
		int r = each_in(c->layout.v2, c, fn, arg);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; c->ops == &cgroup_v1 && i < c->layout.n_v1; i++) {
		int r = each_in(c->layout.v1[i].path, c, fn, arg);
		if (r < 0)
			return r;
	}
	return 0;
}
