#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "cli/certificates.h"
#include "cli/client.h"
#include "cli/output.h"
#include "io/json.h"
#include "io/x509.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

enum {
	CA_DAYS = 3650,
	LEAF_DAYS = 397, /* what browsers take at most */
	CA_MIN_DAYS = 30, /* an authority that ends sooner is worth a word */
	SECONDS_PER_DAY = 86400,
};
#define SYSTEM_BUNDLE "/etc/ssl/certs/ca-certificates.crt"

/* Making */

struct making {
	const struct options *options;
	int dir; /* state.dir/tls */
	char domain[X509_DOMAIN_MAX + 1];
	X509 *ca, *leaf;
	EVP_PKEY *ca_key;
	bool new_ca;
};

static void making_done(struct making *m)
{
	X509_free(m->ca);
	X509_free(m->leaf);
	EVP_PKEY_free(m->ca_key);
	if (m->dir >= 0)
		close(m->dir);
}
#define cleanup_making __attribute__((__cleanup__(making_done)))

static int read_file(const struct making *m, const char *name, struct buf *to, struct error *err)
{
	int r = file_read(m->dir, name, X509_PEM_MAX, to);
	return r < 0 && r != -ENOENT ? error_errno(err, r, "%s/" CERT_DIRECTORY "/%s", m->options->state_dir, name) : r;
}

static int write_file(const struct making *m, const char *name, struct str bytes, mode_t mode, struct error *err)
{
	int r = file_replace(m->dir, name, bytes, mode);
	return r < 0 ? error_errno(err, r, "%s/" CERT_DIRECTORY "/%s", m->options->state_dir, name) : 0;
}

/* What a run that was killed has left: nobody else writes here while we hold the lock. */
static void remove_leftovers(struct making *m)
{
	cleanup_fd int fd = openat(m->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (d)
		steal_fd(&fd);
	for (const struct dirent *e; d && (e = readdir(d));) {
		struct str name = str_of(e->d_name);
		if (name.n > 4 && str_is(str_from(name, name.n - 4), ".tmp"))
			unlinkat(m->dir, e->d_name, 0);
	}
}

/* The directory, locked against another `cert make`. Certificates may be read by everybody: clients have to. */
static int open_directory(struct making *m, struct error *err)
{
	cleanup_free char *path = certificates_path(m->options, "");
	if (!path)
		return error_errno(err, -ENOMEM, "certificates");
	int r = make_dirs(path, 0755);
	m->dir = r < 0 ? r : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r == 0 && m->dir < 0)
		r = -errno;
	if (r == 0 && (fchmod(m->dir, 0755) < 0 || flock(m->dir, LOCK_EX) < 0))
		r = -errno;
	if (r < 0)
		return error_errno(err, r, "%s", path);
	remove_leftovers(m);
	return 0;
}

/* What the certificate of the last time was for, when nothing else says. */
static void domain_of_last_time(const struct making *m, struct buf *to)
{
	cleanup_buf struct buf pem = BUF_INIT, names = BUF_INIT;
	struct error ignored;
	if (read_file(m, CERT_SERVER, &pem, &ignored) < 0)
		return;
	cleanup_x509 X509 *x = x509_read(buf_str(&pem));
	OPENSSL_cleanse(pem.data, pem.end);
	if (!x || x509_names(x, &names) < 0)
		return;
	struct str first = buf_str(&names), rest;
	str_cut(first, ' ', &first, &rest);
	buf_add_str(to, first);
}

static int choose_domain(struct making *m, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	buf_add_str(&text, options_domain_name(m->options));
	if (!buf_len(&text))
		domain_of_last_time(m, &text);
	struct str s = buf_str(&text);
	if (!s.n)
		return error_set(err, -EINVAL, 400, "for which domain? Set the option `domain`, or give --domain (such as sbx.example.com)");
	for (size_t i = 0; i < s.n && s.n <= X509_DOMAIN_MAX; i++)
		m->domain[i] = (char)(s.p[i] >= 'A' && s.p[i] <= 'Z' ? s.p[i] + 32 : s.p[i]);
	return x509_domain_valid(str_of(m->domain)) ? 0 : error_set(err, -EINVAL, 400, "'%.*s' is no domain (a host name without a port)", (int)MIN(s.n, (size_t)256), s.p);
}

/* The key first: an authority without its key is of no use, a key without its authority is made again. */
static int make_ca(struct making *m, struct error *err)
{
	cleanup_buf struct buf key = BUF_INIT, cert = BUF_INIT;
	if (!(m->ca_key = x509_make_key(err)) || !(m->ca = x509_make_ca(m->domain, m->ca_key, CA_DAYS, err)))
		return err->code;
	m->new_ca = true;
	if (x509_write_key(m->ca_key, &key) < 0 || x509_write(m->ca, &cert) < 0)
		return error_errno(err, -ENOMEM, "certificate authority");
	int r = write_file(m, CERT_CA_KEY, buf_str(&key), 0600, err);
	OPENSSL_cleanse(key.data, key.end);
	return r < 0 ? r : write_file(m, CERT_CA, buf_str(&cert), 0644, err);
}

/* What is there is kept, or nothing is done: a new authority has to be wanted. */
static int load_ca(struct making *m, struct error *err)
{
	static const char way_out[] = "with --new-ca another authority is made, which every client has to trust anew";
	cleanup_buf struct buf cert = BUF_INIT, key = BUF_INIT;
	int r = read_file(m, CERT_CA, &cert, err);
	if (r == -ENOENT)
		return make_ca(m, err);
	if (r == 0)
		r = read_file(m, CERT_CA_KEY, &key, err);
	if (r == -ENOENT)
		return error_set(err, r, 404, "%s is there, but %s is not: %s", CERT_CA, CERT_CA_KEY, way_out);
	if (r < 0)
		return r;
	m->ca = x509_read(buf_str(&cert));
	m->ca_key = x509_read_key(buf_str(&key));
	OPENSSL_cleanse(key.data, key.end);
	if (!m->ca || !m->ca_key || X509_check_private_key(m->ca, m->ca_key) != 1)
		return error_set(err, -EINVAL, 400, "%s and %s cannot be used together: %s", CERT_CA, CERT_CA_KEY, way_out);
	if (!x509_ca_permits(m->ca, m->domain))
		return error_set(err, -EPERM, 409, "the authority in %s may not vouch for %s, only for what it was made for: %s", CERT_CA, m->domain, way_out);
	if (x509_not_after(m->ca) <= clock_realtime() / NS_PER_S)
		return error_set(err, -EKEYEXPIRED, 409, "the authority in %s has expired: %s", CERT_CA, way_out);
	return 0;
}

static int make_leaf(struct making *m, int days, struct error *err)
{
	cleanup_key EVP_PKEY *key = x509_make_key(err);
	cleanup_buf struct buf text = BUF_INIT;
	if (!key || !(m->leaf = x509_make_leaf(m->domain, key, m->ca, m->ca_key, days, err)))
		return err->code;
	if (x509_write_key(key, &text) < 0 || x509_write(m->leaf, &text) < 0)
		return error_errno(err, -ENOMEM, "certificate");
	int r = write_file(m, CERT_SERVER, buf_str(&text), 0600, err);
	OPENSSL_cleanse(text.data, text.end);
	return r;
}

/* Some clients take one file in place of the machine's authorities (SSL_CERT_FILE): it has to hold both. */
static int make_bundle(struct making *m, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, SYSTEM_BUNDLE, 16 << 20, &text);
	if (r < 0 && r != -ENOENT)
		return error_errno(err, r, SYSTEM_BUNDLE);
	if (x509_write(m->ca, &text) < 0)
		return error_errno(err, -ENOMEM, "certificate");
	return write_file(m, CERT_BUNDLE, buf_str(&text), 0644, err);
}

/* 1: a running server uses the new certificate. 0: none runs, or it has no TLS, or others. */
static int tell_server(struct cli *c, const X509 *leaf, struct error *err)
{
	cleanup_json json_t *used = NULL;
	cleanup_client struct client cl = {0};
	cleanup_free char *socket = NULL;
	if (asprintf(&socket, "%s/admin.sock", c->options.state_dir) < 0)
		return error_errno(err, -ENOMEM, "client");
	if (access(socket, F_OK) < 0)
		return 0;
	int r = client_open_admin(&cl, c, err);
	if (r == 0)
		r = client_call(&cl, "POST", "/admin/reload-certificates", NULL, &used, NULL, err);
	if (r < 0)
		return r == -ECONNREFUSED || err->status == 409 ? 0 : r;
	char fingerprint[65];
	x509_fingerprint(leaf, fingerprint);
	bool uses = false;
	size_t i;
	json_t *one;
	json_array_foreach(used, i, one)
		uses |= str_is(json_str(json_object_get(one, "sha256")), fingerprint);
	return uses;
}

static char *format_day(char *to, int64_t seconds)
{
	rfc3339_format(to, seconds * NS_PER_S);
	to[10] = 0;
	return to;
}

static int print_made(const struct cli *c, const struct making *m, bool reloaded)
{
	char until[RFC3339_SIZE], ca_until[RFC3339_SIZE];
	cleanup_free char *ca = certificates_path(&c->options, CERT_CA), *server = certificates_path(&c->options, CERT_SERVER);
	format_day(until, x509_not_after(m->leaf));
	format_day(ca_until, x509_not_after(m->ca));
	if (c->json) {
		cleanup_json json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:s,s:b,s:b}", "domain", m->domain, "ca", ca, "caExpires", ca_until, "certificate", server, "expires",
			until, "newCA", m->new_ca, "reloaded", reloaded);
		print_json(j);
		return EXIT_OK;
	}
	printf("certificate   %s, for %s and *.%s, until %s\n", server, m->domain, m->domain, until);
	printf("authority     %s, %s, until %s\n", ca, m->new_ca ? "new: clients have to trust it" : "kept", ca_until);
	if (reloaded)
		printf("in use        by the running server, for new connections\n");
	else if (*c->options.tls_cert)
		printf("not in use    tls.cert names other files\n");
	else if (!*c->options.listen_tls || !*c->options.domain)
		printf("next          set listen.tls = 0.0.0.0:443 and domain = %s, start the server, then eval \"$(cubicle env)\"\n", m->domain);
	return EXIT_OK;
}

int cmd_cert_make(struct cli *c)
{
	struct error err = {0};
	cleanup_making struct making m = {.options = &c->options, .dir = -1};
	const struct cli_value *days = cli_flag(c, "days");
	int r = geteuid() ? error_set(&err, -EACCES, 403, "cert make needs root: it writes keys into %s", c->options.state_dir) : 0;
	if (r == 0)
		r = open_directory(&m, &err);
	if (r == 0)
		r = choose_domain(&m, &err);
	if (r == 0)
		r = cli_flag(c, "new-ca")->set ? make_ca(&m, &err) : load_ca(&m, &err);
	if (r == 0)
		r = make_bundle(&m, &err);
	if (r == 0)
		r = make_leaf(&m, days->set ? (int)days->number : LEAF_DAYS, &err);
	if (r < 0)
		return cli_fail(c, &err);
	if (x509_not_after(m.ca) - clock_realtime() / NS_PER_S < CA_MIN_DAYS * SECONDS_PER_DAY)
		fprintf(stderr, "cubicle: the authority itself expires soon; --new-ca makes another one\n");
	int reloaded = tell_server(c, m.leaf, &err);
	if (reloaded < 0) {
		error_wrap(&err, err.code, "the certificate is made, but the running server does not use it");
		return cli_fail(c, &err);
	}
	return print_made(c, &m, reloaded);
}

int cmd_cert_reload(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	if (client_open_admin(&cl, c, &err) < 0 || client_call(&cl, "POST", "/admin/reload-certificates", NULL, NULL, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json) {
		cleanup_json json_t *j = json_pack("{s:b}", "reloaded", 1);
		print_json(j);
	}
	return EXIT_OK;
}

/* Showing */

struct showing {
	const struct cli *cli;
	struct table *table;
	json_t *all;
	bool expired;
};

static void show(struct showing *s, const char *what, const char *path, X509 *x)
{
	char until[RFC3339_SIZE];
	cleanup_buf struct buf names = BUF_INIT;
	int64_t left = x509_not_after(x) - clock_realtime() / NS_PER_S;
	x509_names(x, &names);
	if (!buf_len(&names))
		buf_add_c(&names, "-");
	format_day(until, x509_not_after(x));
	s->expired |= left <= 0;
	if (s->all) {
		json_array_append_new(s->all, json_pack("{s:s,s:s,s:s,s:I,s:s%}", "what", what, "file", path, "expires", until, "daysLeft",
			(json_int_t)(left / SECONDS_PER_DAY), "names", buf_str(&names).p, buf_len(&names)));
		return;
	}
	table_add(s->table, str_of(what));
	table_add(s->table, str_of(until));
	if (left <= 0)
		table_add(s->table, STR("expired"));
	else
		table_addf(s->table, "%lld days", (long long)(left / SECONDS_PER_DAY));
	table_add(s->table, str_of(path));
	table_add(s->table, buf_str(&names));
}

static int show_file(struct showing *s, const char *what, const char *path, struct error *err)
{
	cleanup_buf struct buf pem = BUF_INIT;
	int r = file_read(AT_FDCWD, path, X509_PEM_MAX, &pem);
	if (r == -EACCES)
		return error_set(err, r, 403, "%s can be read by root only", path);
	if (r < 0)
		return error_errno(err, r, "%s", path);
	cleanup_x509 X509 *x = x509_read(buf_str(&pem));
	OPENSSL_cleanse(pem.data, pem.end);
	if (!x)
		return error_set(err, -EINVAL, 400, "%s holds no certificate", path);
	show(s, what, path, x);
	return 0;
}

static int show_pair(const char *cert, const char *key, void *arg, struct error *err)
{
	struct showing *s = arg;
	int r = show_file(s, "server", cert, err);
	if (r == -ENOENT && !*s->cli->options.tls_cert)
		error_set(err, r, 404, "there is no certificate in %s/" CERT_DIRECTORY ": make one with `cubicle cert make`", s->cli->options.state_dir);
	return r;
}

int cmd_cert_show(struct cli *c)
{
	static const char *const titles[] = {"WHAT", "UNTIL", "LEFT", "FILE", "NAMES", NULL};
	struct error err = {0};
	cleanup_table struct table t;
	cleanup_json json_t *all = c->json ? json_array() : NULL;
	table_init(&t, titles);
	struct showing s = {.cli = c, .table = &t, .all = all};
	cleanup_free char *ca = certificates_path(&c->options, CERT_CA);
	int r = ca ? 0 : error_errno(&err, -ENOMEM, "certificates");
	if (r == 0 && access(ca, F_OK) == 0)
		r = show_file(&s, "authority", ca, &err);
	if (r == 0)
		r = certificates_each(&c->options, show_pair, &s, &err);
	if (r < 0)
		return cli_fail(c, &err);
	if (all)
		print_json(all);
	else
		table_print(&t);
	return s.expired ? EXIT_FAILED : EXIT_OK;
}
