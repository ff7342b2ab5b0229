#include "image/provision.h"
#include "base/cleanup.h"
#include "image/copy.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
	MAX_FILE = 4 * 1024 * 1024,
	FIRST_ID = 1000,
	LAST_ID = 60000,
	CHANGED = 19700, /* days since 1970: of every password, so that what is made twice is the same */
};

/* The files that an account is made of. */
struct accounts {
	struct buf passwd, group, shadow, gshadow;
	bool has_passwd, has_shadow, has_gshadow;
};

static void accounts_done(struct accounts *a)
{
	buf_done(&a->passwd);
	buf_done(&a->group);
	buf_done(&a->shadow);
	buf_done(&a->gshadow);
}
#define cleanup_accounts __attribute__((__cleanup__(accounts_done)))

static int read_one(const struct envd *e, const char *path, struct buf *to, bool *ret_has, struct error *err)
{
	struct error local = {0};
	int r = envd_read_file(e, path, MAX_FILE, to, &local);
	*ret_has = r == 0;
	if (r < 0 && r != -ENOENT)
		return error_set(err, r, local.status, "%s", local.message);
	/* Lines are appended to it. */
	if (buf_len(to) && to->data[to->end - 1] != '\n')
		buf_add_c(to, "\n");
	return to->failed ? error_errno(err, -ENOMEM, "%s", path) : 0;
}

static int read_all(const struct envd *e, struct accounts *a, struct error *err)
{
	bool has_group;
	int r = read_one(e, "/etc/passwd", &a->passwd, &a->has_passwd, err);
	if (r == 0)
		r = read_one(e, "/etc/group", &a->group, &has_group, err);
	if (r == 0)
		r = read_one(e, "/etc/shadow", &a->shadow, &a->has_shadow, err);
	return r < 0 ? r : read_one(e, "/etc/gshadow", &a->gshadow, &a->has_gshadow, err);
}

/* Cuts a line into its fields; what is missing is empty. */
static void fields(struct str line, struct str *to, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!str_cut(line, ':', &to[i], &line)) {
			to[i] = line;
			line = STR("");
		}
	}
}

static bool next_line(struct str *text, struct str *ret)
{
	if (!text->n)
		return false;
	if (!str_cut(*text, '\n', ret, text)) {
		*ret = *text;
		*text = STR("");
	}
	return true;
}

static bool number(struct str s, unsigned *ret)
{
	uint64_t v;
	if (str_to_u64(s, &v) < 0 || v >= UINT_MAX)
		return false;
	*ret = (unsigned)v;
	return true;
}

static bool find_user(struct str passwd, struct str name, struct account *ret)
{
	unsigned wanted = 0, uid, gid;
	bool by_id = number(name, &wanted);
	struct str line, f[7];
	while (next_line(&passwd, &line)) {
		fields(line, f, 7);
		if (!number(f[2], &uid) || !number(f[3], &gid) || !(by_id ? uid == wanted : str_eq(f[0], name)))
			continue;
		*ret = (struct account){.exists = true, .uid = uid, .gid = gid};
		snprintf(ret->name, sizeof(ret->name), "%.*s", (int)MIN(f[0].n, sizeof(ret->name) - 1), f[0].p);
		snprintf(ret->home, sizeof(ret->home), "%.*s", (int)MIN(f[5].n, sizeof(ret->home) - 1), f[5].p);
		snprintf(ret->shell, sizeof(ret->shell), "%.*s", (int)MIN(f[6].n, sizeof(ret->shell) - 1), f[6].p);
		return f[0].n < sizeof(ret->name);
	}
	return false;
}

static bool id_taken(struct str text, unsigned id)
{
	struct str line, f[3];
	unsigned other;
	while (next_line(&text, &line)) {
		fields(line, f, 3);
		if (number(f[2], &other) && other == id)
			return true;
	}
	return false;
}

static bool find_group(struct str text, const char *name, gid_t *ret)
{
	struct str line, f[3];
	while (next_line(&text, &line)) {
		fields(line, f, 3);
		if (str_is(f[0], name))
			return number(f[2], ret);
	}
	return false;
}

int account_find(const struct envd *e, struct str name, struct account *ret, bool *ret_has_passwd, struct error *err)
{
	cleanup_buf struct buf passwd = BUF_INIT;
	bool has;
	*ret = (struct account){0};
	int r = read_one(e, "/etc/passwd", &passwd, &has, err);
	if (r < 0)
		return r;
	find_user(buf_str(&passwd), name, ret);
	if (ret_has_passwd)
		*ret_has_passwd = has;
	return 0;
}

int provision_shell(const struct envd *e, const char **ret, struct error *err)
{
	static const char *const shells[] = {"/bin/bash", "/bin/sh", ""};
	struct envd_stat st = {0};
	size_t i = 0;
	for (; *shells[i]; i++) {
		int r = envd_stat(e, shells[i], &st, err);
		if (r < 0)
			return r;
		if (st.exists)
			break;
	}
	*ret = shells[i];
	return 0;
}

/* What useradd(8) takes. */
static bool name_is_good(const char *name)
{
	static const char first[] = "abcdefghijklmnopqrstuvwxyz_", rest[] = "abcdefghijklmnopqrstuvwxyz_0123456789-";
	size_t n = strlen(name);
	return n > 0 && n <= 32 && strchr(first, name[0]) && strspn(name, rest) == n;
}

static int choose_ids(const struct accounts *a, struct account *to, struct error *err)
{
	bool grouped = find_group(buf_str(&a->group), to->name, &to->gid);
	for (unsigned id = FIRST_ID; id <= LAST_ID; id++) {
		if (id_taken(buf_str(&a->passwd), id) || (!grouped && id_taken(buf_str(&a->group), id)))
			continue;
		to->uid = id;
		to->gid = grouped ? to->gid : id;
		return 0;
	}
	return error_set(err, -EUSERS, 400, "user '%s': there is no free id", to->name);
}

static int add_lines(struct accounts *a, const struct account *u)
{
	gid_t gid;
	bool grouped = find_group(buf_str(&a->group), u->name, &gid);
	buf_addf(&a->passwd, "%s:%s:%u:%u::%s:%s\n", u->name, a->has_shadow ? "x" : "*", u->uid, u->gid, u->home, u->shell);
	if (!grouped)
		buf_addf(&a->group, "%s:x:%u:\n", u->name, u->gid);
	if (a->has_shadow)
		buf_addf(&a->shadow, "%s:*:%d:0:99999:7:::\n", u->name, CHANGED);
	if (a->has_gshadow && !grouped)
		buf_addf(&a->gshadow, "%s:!::\n", u->name);
	return a->passwd.failed || a->group.failed || a->shadow.failed || a->gshadow.failed ? -ENOMEM : 0;
}

static int write_accounts(const struct envd *e, const struct accounts *a, struct error *err)
{
	gid_t shadow = 0;
	find_group(buf_str(&a->group), "shadow", &shadow);
	struct envd_file files[4] = {
		{"passwd", S_IFREG | 0644, 0, 0, buf_str(&a->passwd)},
		{"group", S_IFREG | 0644, 0, 0, buf_str(&a->group)},
	};
	size_t n = 2;
	if (a->has_shadow)
		files[n++] = (struct envd_file){"shadow", S_IFREG | 0640, 0, shadow, buf_str(&a->shadow)};
	if (a->has_gshadow)
		files[n++] = (struct envd_file){"gshadow", S_IFREG | 0640, 0, shadow, buf_str(&a->gshadow)};
	return envd_place(e, "/etc", files, n, err);
}

static int make_home(const struct envd *e, const struct account *u, struct error *err)
{
	char owner[32], home[sizeof(u->home) + 1];
	struct envd_stat st;
	snprintf(owner, sizeof(owner), "%u:%u", u->uid, u->gid);
	snprintf(home, sizeof(home), "%s/", u->home);
	const struct envd_file dir = {".", S_IFDIR | 0755, u->uid, u->gid, STR("")};
	int r = envd_stat(e, home, &st, err);
	if (r == 0 && !st.exists)
		r = envd_place(e, u->home, &dir, 1, err);
	if (r == 0)
		r = envd_stat(e, "/etc/skel", &st, err);
	if (r < 0 || !st.is_dir)
		return r;
	const char *const sources[] = {"/etc/skel", NULL};
	const struct copy c = {.fd = -1, .from = e, .sources = sources, .dest = home, .owner = owner, .mode = -1};
	struct copy_done done;
	return copy_into(e, &c, &done, err);
}

/* sudo reads no file with a dot or a tilde in its name there; a name has neither. */
static int let_sudo(const struct envd *e, const char *name, bool *ret_changed, struct error *err)
{
	char path[64], line[96];
	struct envd_stat st;
	snprintf(path, sizeof(path), "/etc/sudoers.d/%s", name);
	snprintf(line, sizeof(line), "%s ALL=(ALL:ALL) NOPASSWD: ALL\n", name);
	int r = envd_stat(e, path, &st, err);
	if (r < 0 || st.exists)
		return r;
	*ret_changed = true;
	const struct envd_file file = {name, S_IFREG | 0440, 0, 0, str_of(line)};
	return envd_place(e, "/etc/sudoers.d", &file, 1, err);
}

int account_make(const struct envd *e, const char *name, bool sudo, enum account_need need, struct account *ret, struct error *err)
{
	cleanup_accounts struct accounts a = {0};
	const char *shell;
	bool changed = false;
	*ret = (struct account){0};
	int r = read_all(e, &a, err);
	if (r < 0)
		return r;
	if (!a.has_passwd && need == ACCOUNT_OPTIONAL)
		return BUILD_NOTHING;
	if (!find_user(buf_str(&a.passwd), str_of(name), ret)) {
		if (!name_is_good(name))
			return error_set(err, -EINVAL, 400, "user '%.64s': there is none, and one of that name cannot be made", name);
		snprintf(ret->name, sizeof(ret->name), "%s", name);
		snprintf(ret->home, sizeof(ret->home), "/home/%s", name);
		r = provision_shell(e, &shell, err);
		if (r == 0)
			r = choose_ids(&a, ret, err);
		if (r < 0)
			return r;
		snprintf(ret->shell, sizeof(ret->shell), "%s", shell);
		if (add_lines(&a, ret) < 0)
			return error_errno(err, -ENOMEM, "user '%s'", name);
		r = write_accounts(e, &a, err);
		if (r == 0)
			r = make_home(e, ret, err);
		ret->exists = changed = true;
	}
	if (r == 0 && sudo && ret->uid != 0)
		r = let_sudo(e, ret->name, &changed, err);
	return r < 0 ? error_wrap(err, r, "user '%.64s'", name) : changed ? 0 : BUILD_NOTHING;
}

static int make_default(struct box *box, void *arg, struct error *err)
{
	return account_make(&box->envd, PROVISION_USER, true, ACCOUNT_OPTIONAL, arg, err);
}

int provision(struct build *b, struct stack *s, const char **ret_user, struct error *err)
{
	/* When an earlier build has made it, it is there. */
	struct account user = {.exists = true};
	bool cached;
	int r = build_layer(b, s, STR("default user 1"), false, make_default, &user, &cached, err);
	if (r == 0)
		*ret_user = user.exists ? PROVISION_USER : "root";
	if (r == 0 && !user.exists)
		build_log(b, 2, "The image has no /etc/passwd: its sandboxes have no user but root");
	return r;
}
