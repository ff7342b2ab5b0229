/* Accounts of a build box, made by editing its files: the image needs no programs for it. */
#ifndef CUBICLE_IMAGE_PROVISION_H
#define CUBICLE_IMAGE_PROVISION_H

#include "image/build.h"

#define PROVISION_USER "user" /* whom E2B's clients expect */

enum account_need {
	ACCOUNT_OPTIONAL, /* an image without /etc/passwd stays as it is: BUILD_NOTHING, and ret->exists is false */
	ACCOUNT_REQUIRED,
};

struct account {
	bool exists;
	uid_t uid;
	gid_t gid;
	char name[33];
	char home[256];
	char shell[256];
};

/* Finds an account by its name or number. *ret_has_passwd (may be NULL): there are any. An unknown one is no error. */
int account_find(const struct envd *e, struct str name, struct account *ret, bool *ret_has_passwd, struct error *err);

/*
 * Makes an account that is not there: uid 1000 or the next that is free, a group of its own, /home/NAME from /etc/skel, bash or sh. `sudo`: with a line in
 * /etc/sudoers.d. 0; BUILD_NOTHING: all of it was there. The texts of errors name the account.
 */
int account_make(const struct envd *e, const char *name, bool sudo, enum account_need need, struct account *ret, struct error *err);

/* Has the stack the account of E2B's clients: *ret_user is PROVISION_USER, or "root" when there can be none. */
int provision(struct build *b, struct stack *s, const char **ret_user, struct error *err);

/* "/bin/bash", else "/bin/sh", else "" of a box. */
int provision_shell(const struct envd *e, const char **ret, struct error *err);

#endif
