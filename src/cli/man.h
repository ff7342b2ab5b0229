/* The manual page, written from the tables of commands and options. */
#ifndef CUBICLE_CLI_MAN_H
#define CUBICLE_CLI_MAN_H

#include "base/buf.h"

/* Appends cubicle(1) as man(7) source. 0 or -ENOMEM. */
int man_page(struct buf *to);

#endif
