/* Reads EROFS images strictly, apart from the code that writes them: for tests. */
#ifndef CUBICLE_TESTS_EROFS_READER_H
#define CUBICLE_TESTS_EROFS_READER_H

#include "base/buf.h"

/*
 * Appends a line for each name below the root, in the order of the directories: "PATH TYPE MODE UID:GID LINKS MTIME.NS", then of a regular file its size and contents (all of it up to
 * 24 bytes, in quotes), of a symbolic link its target, of a device its numbers, and the names of its attributes with their values. The root itself is "/".
 * 0, or -EBADMSG and what is wrong in `text`: everything is checked that the kernel or fsck.erofs would refuse, and that link counts, names and inodes fit together.
 */
int erofs_list(int fd, struct buf *text);

#endif
