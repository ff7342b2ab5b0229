/* The certificates of listen.tls: which files they are in, read and checked by serve, which gives them to the front in memory. */
#ifndef CUBICLE_CLI_CERTIFICATES_H
#define CUBICLE_CLI_CERTIFICATES_H

#include "base/buf.h"
#include "base/error.h"
#include "config/options.h"

#include <stdbool.h>

/* What `cubicle cert make` keeps below state.dir/tls. The server's key and certificate are one file, so that they are replaced together. */
#define CERT_DIRECTORY "tls"
#define CERT_SERVER "server.pem"
#define CERT_CA "ca.pem"
#define CERT_CA_KEY "ca.key"
#define CERT_BUNDLE "bundle.pem" /* this machine's authorities and ours, for clients that take one file for all */

struct certificates {
	int fd;          /* sealed memory file with what tls_server_new() takes; owned. -1 = none */
	int64_t expires; /* the earliest, seconds since 1970 */
	size_t count;
	char names[200]; /* of the first, for people; cut where it is long */
};

/* Reads and checks what the options name, or what `cert make` made. 0, or -errno with *err, which says which file and what to do. */
int certificates_load(const struct options *o, struct certificates *ret, struct error *err);
void certificates_done(struct certificates *c);

/* Calls fn for each pair of files of the options (key NULL = the same file) until it fails. 0, -EINVAL when there are not as many keys, or what fn returned. */
typedef int certificates_fn(const char *cert, const char *key, void *arg, struct error *err);
int certificates_each(const struct options *o, certificates_fn *fn, void *arg, struct error *err);

/* state.dir/tls/NAME; the caller frees it. NULL without memory. */
char *certificates_path(const struct options *o, const char *name);

#endif
