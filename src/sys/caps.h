/* Capabilities. */
#ifndef CUBICLE_SYS_CAPS_H
#define CUBICLE_SYS_CAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What no sandbox has in its bounding set (docs/security.md says why): numbers of linux/capability.h. */
extern const unsigned char caps_never_inside[];
extern const size_t caps_never_inside_n;

/* The calling thread's effective set holds the capability. */
bool caps_have(int cap);
/* Of what the calling thread has it keeps only the capabilities of the mask (bit n = capability n), permitted and effective; nothing is inheritable.
 * The bounding set stays. 0 or -errno. */
int caps_keep_only(uint64_t mask);
/* "CAP_SYS_ADMIN"; "?" for an unknown number. */
const char *caps_name(int cap);

#endif
