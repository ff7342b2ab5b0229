/* SHA-256 (FIPS 180-4), for the static guest, which has no OpenSSL. */
#ifndef CUBICLE_BASE_SHA256_H
#define CUBICLE_BASE_SHA256_H

#include "base/str.h"

enum { SHA256_SIZE = 32 };

/* The digest of the bytes. */
void sha256(struct str bytes, unsigned char ret[SHA256_SIZE]);

#endif
