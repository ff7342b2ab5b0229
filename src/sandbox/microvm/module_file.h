/* The file of a kernel's module: as it is, or compressed, which its name tells. */
#ifndef CUBICLE_SANDBOX_MICROVM_MODULE_FILE_H
#define CUBICLE_SANDBOX_MICROVM_MODULE_FILE_H

#include "base/buf.h"
#include "base/error.h"

enum { MODULE_FILE_MAX = 64 << 20 };

/* Whether a file of that name can be read: NAME.ko, NAME.ko.xz, NAME.ko.zst or NAME.ko.gz. *ret_name: NAME.ko, without directories. */
bool module_file_name(struct str path, struct str *ret_name);

/*
 * Fills the empty buffer with what the kernel takes, which is decompressed in this process. 0, -EFBIG when that is more than MODULE_FILE_MAX, -EBADMSG when it is damaged or cut, or -errno; the
 * message names the file.
 */
int module_file_read(const char *path, struct buf *to, struct error *err);

#endif
