/* Which registries the operator lets be reached in ways that are not safe for all: the lists of the options registry.insecure and registry.private. */
#ifndef CUBICLE_IMAGE_REGISTRIES_H
#define CUBICLE_IMAGE_REGISTRIES_H

#include "base/error.h"
#include "base/str.h"
#include "config/options.h"

#include <stdbool.h>
#include <stdint.h>

enum { REGISTRIES_MAX = 256 /* entries of a list */ };

struct registries_entry;

struct registries {
	struct registries_entry *insecure, *private;
	size_t n_insecure, n_private;
	bool insecure_credentials;
};

/* Reads the options. -EINVAL names the option and the entry that is no host or host:port; -ENOMEM. */
int registries_init(struct registries *r, const struct options *o, struct error *err);
void registries_done(struct registries *r);

/* registries_init() for nothing but its errors: at the server's start. */
int registries_check(const struct options *o, struct error *err);

/* The endpoint host:port (host as in URLs, any case; an IPv6 address in brackets) is in registry.insecure. An entry without a port means 443 with `tls`, 80 without;
 * Docker Hub's hosts are one. */
bool registries_insecure(const struct registries *r, struct str host, uint16_t port, bool tls);

/* It may be at an address that is not public: in registry.private or registry.insecure. */
bool registries_private(const struct registries *r, struct str host, uint16_t port, bool tls);

#endif
