#include "image/copy.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

/* A field of a line of /etc/passwd or /etc/group, counted from 0. */
static struct str field(struct str line, unsigned n)
{
	struct str head = STR(""), rest = line;
	for (;; n--) {
		if (!str_cut(rest, ':', &head, &rest)) {
			head = rest;
			rest = STR("");
		}
		if (n == 0)
			return head;
	}
}

static bool number(struct str s, unsigned *ret)
{
	uint64_t v;
	if (str_to_u64(s, &v) < 0 || v >= UINT_MAX)
		return false;
	*ret = (unsigned)v;
	return true;
}

/* The line whose name (or, by_id, whose id) is this. */
static bool find_line(struct str text, struct str name, bool by_id, struct str *ret)
{
	unsigned wanted = 0, id;
	if (by_id && !number(name, &wanted))
		return false;
	while (text.n) {
		struct str line;
		if (!str_cut(text, '\n', &line, &text)) {
			line = text;
			text = STR("");
		}
		if (by_id ? number(field(line, 2), &id) && id == wanted : name.n && str_eq(field(line, 0), name)) {
			*ret = line;
			return true;
		}
	}
	return false;
}

int copy_owner(struct str owner, bool user_is_group, struct str passwd, struct str group, uid_t *ret_uid, gid_t *ret_gid, struct error *err)
{
	struct str user = owner, of_group = STR(""), line;
	unsigned uid, gid = 0;
	bool named = false;
	bool given = str_cut(owner, ':', &user, &of_group);
	if (find_line(passwd, user, false, &line) && number(field(line, 2), &uid)) {
		named = true;
		if (!number(field(line, 3), &gid))
			gid = 0;
	} else if (!number(user, &uid)) {
		return error_set(err, -ENOENT, 400, "unknown user '%.*s'", (int)(user.n < 64 ? user.n : 64), user.p);
	}
	/* A number without a name: the group is the same number, as Docker has it, or root. */
	if (!given && !named)
		gid = user_is_group ? uid : find_line(passwd, user, true, &line) && number(field(line, 3), &gid) ? gid : 0;
	if (!given && named && user_is_group && find_line(group, user, false, &line))
		number(field(line, 2), &gid);
	if (given && !(find_line(group, of_group, false, &line) && number(field(line, 2), &gid)) && !number(of_group, &gid))
		return error_set(err, -ENOENT, 400, "unknown group '%.*s'", (int)(of_group.n < 64 ? of_group.n : 64), of_group.p);
	*ret_uid = uid;
	*ret_gid = gid;
	return 0;
}
