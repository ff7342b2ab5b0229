/* Which files of a kernel's directory of modules are needed for some modules, by its modules.dep and modules.builtin. */
#ifndef CUBICLE_SANDBOX_MICROVM_KERNEL_MODULES_H
#define CUBICLE_SANDBOX_MICROVM_KERNEL_MODULES_H

#include "base/buf.h"
#include "base/error.h"

enum { KERNEL_MODULES_MAX = 99 };

struct kernel_modules {
	struct buf dep, builtin; /* texts of both files */
	struct str order[KERNEL_MODULES_MAX]; /* paths below the directory, each behind those that it needs: views of dep */
	size_t n;
};

int kernel_modules_open(const char *directory, struct kernel_modules *ret, struct error *err);
/* Adds the module ('-' and '_' are the same in names) and what it needs. One that is built in needs nothing. 0, -ENOENT when it is found nowhere, -ENOTSUP when its file cannot be read (module_file.h), or -errno. */
int kernel_modules_need(struct kernel_modules *k, const char *name, struct error *err);
void kernel_modules_done(struct kernel_modules *k);

#endif
