#include "cli/certificates.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "io/tls.h"
#include "io/x509.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <sys/mman.h>

char *certificates_path(const struct options *o, const char *name)
{
	char *path;
	return asprintf(&path, "%s/" CERT_DIRECTORY "/%s", o->state_dir, name) < 0 ? NULL : path;
}

/* The next of a comma-separated list; NULL at the end or without memory. */
static char *next_path(struct str *list)
{
	struct str one, rest = {0};
	if (!list->n)
		return NULL;
	if (!str_cut(*list, ',', &one, &rest))
		one = *list;
	*list = rest;
	return str_dup(str_trim(one));
}

int certificates_each(const struct options *o, certificates_fn *fn, void *arg, struct error *err)
{
	if (!*o->tls_cert) {
		cleanup_free char *made = certificates_path(o, CERT_SERVER);
		return made ? fn(made, NULL, arg, err) : error_errno(err, -ENOMEM, "certificates");
	}
	struct str certs = str_of(o->tls_cert), keys = str_of(o->tls_key);
	for (;;) {
		cleanup_free char *cert = next_path(&certs), *key = next_path(&keys);
		if (!cert && !key)
			return 0;
		if (!cert || (!key && *o->tls_key))
			return error_set(err, -EINVAL, 400, "tls.cert and tls.key name different numbers of files");
		int r = fn(cert, key, arg, err);
		if (r < 0)
			return r;
	}
}

static int read_pem(const char *path, const char *option, struct buf *to, struct error *err)
{
	int r = file_read(AT_FDCWD, path, X509_PEM_MAX, to);
	if (r == -ENOENT && !*option)
		return error_set(err, r, 404, "listen.tls needs a certificate, and there is none: make one with `cubicle cert make`, or name one with tls.cert and tls.key");
	if (r == -EACCES)
		return error_set(err, r, 403, "%s cannot be read: it must belong to root", path);
	return r < 0 ? error_errno(err, r, "%s", path) : 0;
}

struct reading {
	const struct options *options;
	struct buf *pairs;
};

static int add_pair(const char *cert, const char *key, void *arg, struct error *err)
{
	struct reading *reading = arg;
	cleanup_buf struct buf chain = BUF_INIT, secret = BUF_INIT;
	int r = read_pem(cert, reading->options->tls_cert, &chain, err);
	if (r == 0 && key)
		r = read_pem(key, "tls.key", &secret, err);
	if (r == 0) {
		r = tls_pair(reading->pairs, buf_str(&chain), key ? buf_str(&secret) : buf_str(&chain), err);
		if (r < 0)
			error_wrap(err, r, "%s", key ? key : cert);
	}
	OPENSSL_cleanse(secret.data, secret.end);
	OPENSSL_cleanse(chain.data, chain.end);
	return r;
}

static int seal(struct str text, struct error *err)
{
	cleanup_fd int fd = memfd_create("cubicle-certificates", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : fd_write_all(fd, text.p, text.n);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		r = -errno;
	return r < 0 ? error_errno(err, r, "certificates") : steal_fd(&fd);
}

int certificates_load(const struct options *o, struct certificates *ret, struct error *err)
{
	cleanup_buf struct buf pairs = BUF_INIT, names = BUF_INIT;
	struct tls_server *tls = NULL;
	int r = certificates_each(o, add_pair, &(struct reading){o, &pairs}, err);
	if (r == 0 && (r = tls_server_new(buf_str(&pairs), &tls, err)) < 0)
		error_wrap(err, r, "%s", *o->tls_cert ? "tls.cert" : CERT_SERVER);
	int fd = r < 0 ? r : seal(buf_str(&pairs), err);
	OPENSSL_cleanse(pairs.data, pairs.end);
	if (fd >= 0) {
		*ret = (struct certificates){.fd = fd, .expires = tls_server_expires(tls), .count = tls_server_pairs(tls)};
		tls_server_names(tls, 0, &names);
		snprintf(ret->names, sizeof(ret->names), "%.*s", STR_FMT(buf_str(&names)));
	}
	tls_server_unref(tls);
	return MIN(fd, 0);
}

void certificates_done(struct certificates *c)
{
	if (c->fd >= 0)
		close(c->fd);
	*c = (struct certificates){.fd = -1};
}
