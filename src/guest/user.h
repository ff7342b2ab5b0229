/* Names of users and groups: the sandbox's own /etc/passwd and /etc/group read as data (guest_user_find() is
 * in guest.h). */
#ifndef CUBICLE_GUEST_USER_H
#define CUBICLE_GUEST_USER_H

#include "base/buf.h"

#include <sys/types.h>

struct user_id {
	unsigned id;
	struct str name; /* into the text */
};

/* One of the two files, sorted by id. */
struct user_table {
	struct buf text;
	struct user_id *ids;
	size_t n;
};

struct user_names {
	struct user_table users, groups;
};

/* Reads both files; one that is missing, no regular file or over 4 MiB gives no names. 0 or -ENOMEM. */
int user_names_load(struct user_names *ret);
/* The name of the first entry with that id; empty view when unknown. Valid until user_names_done(). */
struct str user_name(const struct user_names *n, uid_t uid);
struct str group_name(const struct user_names *n, gid_t gid);
void user_names_done(struct user_names *n);

#endif
