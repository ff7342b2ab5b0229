#include "guest/user.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "guest/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_DATABASE = 4 * 1024 * 1024, MAX_FIELDS = 7 };

/* Opens without blocking and reads regular files only: root inside may have put a FIFO or a device in the
 * place. */
static int read_database(const char *path, struct buf *to)
{
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	for (;;) {
		char *at = buf_reserve(to, 8192);
		if (!at)
			return -ENOMEM;
		ssize_t r = read(fd, at, 8192);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			return 0;
		buf_commit(to, (size_t)r);
		if (buf_len(to) > MAX_DATABASE)
			return -EFBIG;
	}
}

/* Takes the next line off *rest and splits it at colons; returns the number of fields, 0 at the end. */
static size_t next_entry(struct str *rest, struct str fields[MAX_FIELDS])
{
	while (rest->n) {
		struct str line = *rest;
		if (!str_cut(*rest, '\n', &line, rest))
			*rest = str_n("", 0);
		if (line.n == 0 || line.p[0] == '#')
			continue;
		size_t n = 0;
		struct str field;
		while (n < MAX_FIELDS - 1 && str_cut(line, ':', &field, &line))
			fields[n++] = field;
		fields[n++] = line;
		return n;
	}
	return 0;
}

static int parse_id(struct str s, unsigned *ret)
{
	uint64_t id;
	/* (uid_t)-1 means "no change" to chown. */
	if (str_to_u64(s, &id) < 0 || id >= UINT_MAX)
		return -EINVAL;
	*ret = (unsigned)id;
	return 0;
}

static int copy_field(char *to, size_t size, struct str s)
{
	if (s.n >= size || memchr(s.p, '\0', s.n))
		return -EINVAL;
	memcpy(to, s.p, s.n);
	to[s.n] = '\0';
	return 0;
}

static int fill_user(struct guest_user *u, const struct str fields[MAX_FIELDS])
{
	*u = (struct guest_user){0};
	unsigned uid, gid;
	if (parse_id(fields[2], &uid) < 0 || parse_id(fields[3], &gid) < 0)
		return -EINVAL;
	u->uid = uid;
	u->gid = gid;
	struct str home = fields[5].n ? fields[5] : STR("/"),
		   shell = fields[6].n ? fields[6] : STR("/bin/sh");
	if (copy_field(u->name, sizeof(u->name), fields[0]) < 0 ||
		copy_field(u->home, sizeof(u->home), home) < 0 ||
		copy_field(u->shell, sizeof(u->shell), shell) < 0)
		return -EINVAL;
	return 0;
}

static bool lists_member(struct str members, const char *name)
{
	struct str one;
	while (str_cut(members, ',', &one, &members)) {
		if (str_is(one, name))
			return true;
	}
	return str_is(members, name);
}

/* Supplementary groups; the primary one leads, as initgroups() has it. More than fit are left out. */
static void fill_groups(struct guest_user *u)
{
	u->groups[u->n_groups++] = u->gid;
	cleanup_buf struct buf text = BUF_INIT;
	if (read_database("/etc/group", &text) < 0)
		return;
	struct str rest = buf_str(&text), fields[MAX_FIELDS];
	for (size_t n; (n = next_entry(&rest, fields)) && u->n_groups < ARRAY_SIZE(u->groups);) {
		unsigned gid;
		if (n < 4 || parse_id(fields[2], &gid) < 0 || gid == u->gid ||
			!lists_member(fields[3], u->name))
			continue;
		u->groups[u->n_groups++] = gid;
	}
}

/* The number of a group, or of the one with that name. */
static int find_group(struct str name, gid_t *ret)
{
	cleanup_buf struct buf text = BUF_INIT;
	unsigned gid;
	if (parse_id(name, &gid) == 0) {
		*ret = gid;
		return 0;
	}
	if (read_database("/etc/group", &text) < 0)
		return -ENOENT;
	struct str rest = buf_str(&text), fields[MAX_FIELDS];
	for (size_t n; (n = next_entry(&rest, fields));)
		if (n >= 4 && str_eq(fields[0], name) && parse_id(fields[2], &gid) == 0) {
			*ret = gid;
			return 0;
		}
	return -ENOENT;
}

static int find_by_name(struct str name, struct guest_user *ret)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_database("/etc/passwd", &text);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		buf_clear(&text);
	unsigned wanted = 0;
	bool by_id = name.n && parse_id(name, &wanted) == 0;
	struct guest_user found, u;
	bool have = false;
	struct str rest = buf_str(&text), fields[MAX_FIELDS];
	for (size_t n; name.n && (n = next_entry(&rest, fields));) {
		if (n < MAX_FIELDS || (!str_eq(fields[0], name) && !by_id) || fill_user(&u, fields) < 0)
			continue;
		/* A user whose name is this number goes before the one who has the number. */
		if (str_eq(fields[0], name) || (!have && u.uid == wanted)) {
			found = u;
			have = true;
			if (str_eq(fields[0], name))
				break;
		}
	}
	/* Images without a passwd file (distroless, scratch) still have root, and whoever spoils the file has
	 * too: to repair it. */
	if (!have && (str_is(name, "root") || str_is(name, "0"))) {
		found = (struct guest_user){.name = "root", .home = "/root", .shell = "/bin/sh"};
		have = true;
	}
	/* A number needs no entry, as images' USER has it. */
	if (!have && by_id && name.n < sizeof(found.name)) {
		found = (struct guest_user){.uid = wanted, .home = "/", .shell = "/bin/sh"};
		copy_field(found.name, sizeof(found.name), name);
		have = true;
	}
	if (!have)
		return r < 0 && r != -ENOTDIR ? r : -ENOENT;
	*ret = found;
	return 0;
}

int guest_user_find(struct str name, struct guest_user *ret)
{
	struct guest_user found;
	struct str user = name, group;
	bool with_group = str_cut(name, ':', &user, &group);
	int r = find_by_name(user, &found);
	if (r < 0)
		return r;
	if (with_group) {
		r = find_group(group, &found.gid);
		if (r < 0)
			return r;
		found.groups[found.n_groups++] = found.gid;
	} else {
		fill_groups(&found);
	}
	*ret = found;
	return 0;
}

void guest_user_settle(char **user)
{
	struct guest_user u;
	if (!*user || strcmp(*user, "root") == 0 || guest_user_find(str_of(*user), &u) != -ENOENT)
		return;
	char *root = str_dup(STR("root"));
	if (!root)
		return;
	log_warn("the sandbox has no user '%s': root takes its place", *user);
	free(*user);
	*user = root;
}

static int by_id_then_place(const void *a, const void *b)
{
	const struct user_id *x = a, *y = b;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->name.p < y->name.p ? -1 : x->name.p > y->name.p;
}

static int load_table(const char *path, struct user_table *t)
{
	if (read_database(path, &t->text) < 0) {
		buf_done(&t->text);
		return 0;
	}
	struct str rest = buf_str(&t->text), fields[MAX_FIELDS];
	size_t cap = 0;
	for (size_t n; (n = next_entry(&rest, fields));) {
		unsigned id;
		if (n < 3 || fields[0].n == 0 || parse_id(fields[2], &id) < 0)
			continue;
		if (t->n == cap) {
			cap = cap ? 2 * cap : 64;
			struct user_id *grown = reallocarray(t->ids, cap, sizeof(*grown));
			if (!grown)
				return -ENOMEM;
			t->ids = grown;
		}
		t->ids[t->n++] = (struct user_id){id, fields[0]};
	}
	if (t->n)
		qsort(t->ids, t->n, sizeof(*t->ids), by_id_then_place);
	return 0;
}

int user_names_load(struct user_names *ret)
{
	*ret = (struct user_names){0};
	int r = load_table("/etc/passwd", &ret->users);
	if (r == 0)
		r = load_table("/etc/group", &ret->groups);
	if (r < 0)
		user_names_done(ret);
	return r;
}

static struct str look_up(const struct user_table *t, unsigned id)
{
	size_t low = 0, high = t->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (t->ids[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < t->n && t->ids[low].id == id ? t->ids[low].name : str_n("", 0);
}

struct str user_name(const struct user_names *n, uid_t uid)
{
	return look_up(&n->users, uid);
}

struct str group_name(const struct user_names *n, gid_t gid)
{
	return look_up(&n->groups, gid);
}

void user_names_done(struct user_names *n)
{
	buf_done(&n->users.text);
	buf_done(&n->groups.text);
	free(n->users.ids);
	free(n->groups.ids);
	*n = (struct user_names){0};
}
