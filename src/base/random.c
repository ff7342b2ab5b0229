#include "base/random.h"

#include <errno.h>
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
