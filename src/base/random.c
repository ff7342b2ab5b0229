#include "base/random.h"
#include "base/encode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void random_bytes(void *p, size_t n)
{
	char *at = p;
	while (n) {
		ssize_t r = getrandom(at, n, 0);
		if (r < 0 && errno != EINTR)
			abort();
		if (r > 0) {
			at += r;
			n -= (size_t)r;
		}
	}
}

void random_text(char *to, size_t n, const char *alphabet)
{
	size_t size = strlen(alphabet), limit = 256 - 256 % size;
	for (size_t i = 0; i < n;) {
		unsigned char some[32];
		random_bytes(some, sizeof(some));
		for (size_t j = 0; j < sizeof(some) && i < n; j++)
			if (some[j] < limit)
				to[i++] = alphabet[some[j] % size];
	}
	to[n] = '\0';
}

void random_uuid(char to[37])
{
	unsigned char id[16];
	char hex[33];
	random_bytes(id, sizeof(id));
	id[6] = (unsigned char)((id[6] & 0x0f) | 0x40);
	id[8] = (unsigned char)((id[8] & 0x3f) | 0x80);
	hex_encode(hex, id, sizeof(id));
	snprintf(to, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}
