/* Random bytes from the kernel. */
#ifndef CUBICLE_BASE_RANDOM_H
#define CUBICLE_BASE_RANDOM_H

#include <stddef.h>

/* Fills n bytes from getrandom(2); aborts the process if the kernel refuses (there is no safe fallback). */
void random_bytes(void *p, size_t n);

/* n characters of the alphabet (unbiased) and a NUL; to has n + 1 bytes. */
void random_text(char *to, size_t n, const char *alphabet);

/* A version 4 UUID (RFC 9562 §5.4) as text and a NUL. */
void random_uuid(char to[37]);

#endif
