#include "image/source.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"
#include "image/docker_config.h"
#include "image/download.h"
#include "image/source_private.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <signal.h>
#include <sys/utsname.h>

enum {
	MANIFESTS_MAX = 32, /* that are looked at for one image */
	NESTED_MAX = 4,     /* indexes in indexes */
};

/* uname's words, and Go's. */
static const struct {
	const char *machine, *architecture, *variant;
} machines[] = {
	{"x86_64", "amd64", ""},
	{"aarch64", "arm64", "v8"},
	{"armv7l", "arm", "v7"},
	{"armv6l", "arm", "v6"},
	{"i686", "386", ""},
	{"riscv64", "riscv64", ""},
	{"ppc64le", "ppc64le", ""},
	{"s390x", "s390x", ""},
	{"loongarch64", "loong64", ""},
};

const char *source_format_name(enum source_format f)
{
	static const char *const names[] = {"tar", "gzip", "zstd"};
	return names[f];
}

int source_env_init(struct source_env *e, struct error *err)
{
	struct utsname u;
	uname(&u);
	e->architecture = "unknown";
	e->variant = "";
	for (size_t i = 0; i < ARRAY_SIZE(machines); i++)
		if (!strcmp(u.machine, machines[i].machine)) {
			e->architecture = machines[i].architecture;
			e->variant = machines[i].variant;
		}
	signal(SIGPIPE, SIG_IGN); /* a peer that leaves is an error of its transfer; OpenSSL would let the signal end the process */
	struct source_private *p = calloc(1, sizeof(*p));
	if (!p)
		return error_set(err, -ENOMEM, 500, "out of memory");
	int r = registries_init(&p->registries, e->options, err);
	if (r == 0) {
		const struct outbound_rules rules = {
			.registries = &p->registries, .own_range = e->options->network_pool, .ca_pem = e->ca_pem, .patience_s = e->patience_s, .cancelled = e->cancelled, .arg = e->arg};
		r = outbound_new(&p->out, &rules, err);
	}
	if (r < 0) {
		registries_done(&p->registries);
		free(p);
		return r;
	}
	e->private = p;
	return 0;
}

void source_env_done(struct source_env *e)
{
	if (!e->private)
		return;
	outbound_free(e->private->out);
	registries_done(&e->private->registries);
	free(e->private);
	e->private = NULL;
}

int source_check_options(const struct options *o, struct error *err)
{
	cleanup_buf struct buf ca = BUF_INIT, login = BUF_INIT;
	struct source_credentials none = {0};
	int r = registries_check(o, err);
	if (r == 0 && *o->registry_ca && (r = file_read(AT_FDCWD, o->registry_ca, SOURCE_CA_MAX, &ca)) < 0)
		return error_errno(err, r, "registry.ca: %s", o->registry_ca);
	if (r == 0 && *o->registry_ca && !buf_len(&ca))
		return error_set(err, -EINVAL, 400, "registry.ca: %s is empty", o->registry_ca);
	if (r == 0)
		r = outbound_check_ca(buf_str(&ca), err);
	if (r < 0 || !*o->registry_auth)
		return r;
	r = file_read(AT_FDCWD, o->registry_auth, DOCKER_CONFIG_MAX, &login);
	if (r < 0)
		return error_errno(err, r, "registry.auth: %s", o->registry_auth);
	r = docker_config_find(buf_str(&login), STR("nowhere.invalid"), STR("nothing"), &none, err);
	source_credentials_done(&none);
	if (login.data)
		explicit_bzero(login.data, login.cap);
	return r < 0 ? error_wrap(err, r, "registry.auth: %s", o->registry_auth) : 0;
}

void source_digest(struct str bytes, char to[SOURCE_DIGEST_MAX])
{
	unsigned char d[SHA256_DIGEST_LENGTH];
	SHA256((const unsigned char *)bytes.p, bytes.n, d);
	memcpy(to, "sha256:", 7);
	hex_encode(to + 7, d, sizeof(d));
}

/* --- from a manifest to the image of one platform --- */

struct resolve {
	struct source *s;
	unsigned looked_at;
	struct buf seen; /* platforms that there are, for the error */
};

static void add_platform(struct resolve *v, const struct manifest_platform *p)
{
	char text[3 * PLATFORM_MAX + 2];
	text[0] = ' ';
	manifest_platform_text(p, text + 1);
	strcat(text, ",");
	const char *seen = buf_cstr(&v->seen);
	if (seen && !strstr(seen, text) && buf_len(&v->seen) < 200)
		buf_add_c(&v->seen, text);
}

/* The bytes of a digest, checked. */
static int read_checked(struct resolve *v, bool manifest, const char *digest, uint64_t size, size_t max, struct buf *to, char type[128], struct error *err)
{
	char found[SOURCE_DIGEST_MAX];
	int r = v->s->read(v->s, manifest, digest, max, to, type, err);
	if (r < 0)
		return r;
	source_digest(buf_str(to), found);
	if (buf_len(to) != size || strcmp(found, digest) != 0)
		return error_set(err, -EBADMSG, 502, "the image's %s is not what its digest and size say", manifest ? "manifest" : "configuration");
	return 0;
}

static int resolve_bytes(struct resolve *v, struct str json, const char *type, const char *digest, unsigned depth, struct error *err);

/* 1: nothing for this platform. */
static int resolve_index(struct resolve *v, const struct manifest *m, unsigned depth, struct error *err)
{
	size_t places[MANIFEST_ENTRIES_MAX];
	size_t n = manifest_candidates(m, v->s->env->architecture, v->s->env->variant, places);
	if (depth >= NESTED_MAX)
		return error_set(err, -ELOOP, 400, "the image has indexes in indexes, more than %d", NESTED_MAX);
	for (size_t i = 0; i < m->n_entries; i++)
		if (*m->entries[i].platform.os)
			add_platform(v, &m->entries[i].platform);
	for (size_t i = 0; i < n; i++) {
		const struct manifest_entry *e = &m->entries[places[i]];
		cleanup_buf struct buf json = BUF_INIT;
		char type[128] = "";
		if (++v->looked_at > MANIFESTS_MAX)
			return error_set(err, -E2BIG, 400, "the image leads to more than %d manifests", MANIFESTS_MAX);
		int r = read_checked(v, true, e->digest, e->size, MANIFEST_MAX, &json, type, err);
		if (r == 0)
			r = resolve_bytes(v, buf_str(&json), type, e->digest, depth + 1, err);
		if (r <= 0)
			return r;
	}
	return 1;
}

static int resolve_image(struct resolve *v, struct manifest *m, const char *digest, struct error *err)
{
	struct source_image *image = &v->s->image;
	struct manifest_platform p = {0};
	cleanup_buf struct buf json = BUF_INIT;
	char type[128];
	int r = read_checked(v, false, m->config, m->config_size, CONFIG_MAX, &json, type, err);
	if (r == 0)
		r = manifest_config(buf_str(&json), m->layers, m->n_layers, &image->config, err);
	if (r < 0)
		return r;
	const struct source_config *c = &image->config;
	if (strlen(c->os) < PLATFORM_MAX && strlen(c->architecture) < PLATFORM_MAX && strlen(c->variant) < PLATFORM_MAX) {
		strcpy(p.os, c->os);
		strcpy(p.architecture, c->architecture);
		strcpy(p.variant, c->variant);
	}
	/* A configuration may leave out what the index told. */
	if (*c->architecture && !manifest_runs(&p, v->s->env->architecture, v->s->env->variant)) {
		add_platform(v, &p);
		source_config_done(&image->config);
		return 1;
	}
	image->layers = steal_pointer(&m->layers);
	image->n_layers = m->n_layers;
	strcpy(image->digest, digest);
	return 0;
}

static int resolve_bytes(struct resolve *v, struct str json, const char *type, const char *digest, unsigned depth, struct error *err)
{
	struct manifest m;
	int r = manifest_parse(json, type, &m, err);
	if (r < 0)
		return r;
	r = m.index ? resolve_index(v, &m, depth, err) : resolve_image(v, &m, digest, err);
	manifest_done(&m);
	return r;
}

static int no_match(struct resolve *v, struct error *err)
{
	const struct source_env *e = v->s->env;
	const char *seen = buf_cstr(&v->seen);
	size_t n = seen ? strlen(seen) : 0;
	return error_set(err, -ENOTSUP, 400, "no match for linux/%s: the image is for%s%.*s", e->architecture, n ? "" : " nothing", n ? (int)n - 1 : 0, n ? seen : "");
}

int source_resolve(struct source *s, struct str json, const char *type, struct error *err)
{
	struct resolve v = {.s = s};
	char digest[SOURCE_DIGEST_MAX];
	source_digest(json, digest);
	int r = resolve_bytes(&v, json, type, digest, 0, err);
	if (r > 0)
		r = no_match(&v, err);
	buf_done(&v.seen);
	return r;
}

int source_resolve_entries(struct source *s, const struct manifest *index, struct error *err)
{
	struct resolve v = {.s = s};
	int r = resolve_index(&v, index, 0, err);
	if (r > 0)
		r = no_match(&v, err);
	buf_done(&v.seen);
	return r;
}

/* --- a registry --- */

static int read_registry(struct source *s, bool manifest, const char *digest, size_t max, struct buf *to, char type[128], struct error *err)
{
	char path[SOURCE_DIGEST_MAX + 16];
	struct outbound_transfer *t;
	snprintf(path, sizeof(path), "%s/%s", manifest ? "manifests" : "blobs", digest);
	int r = registry_get(&s->registry, path, manifest ? MANIFEST_ACCEPT : NULL, max, &t, err);
	if (r < 0)
		return r;
	const struct outbound_answer *a = outbound_answer(t);
	strcpy(type, a->content_type);
	if (buf_add_str(to, buf_str(&a->body)) < 0)
		r = error_set(err, -ENOMEM, 500, "out of memory");
	outbound_end(t);
	return r;
}

/* The document that the reference names. */
static int read_top(struct source *s, struct buf *json, char type[128], struct error *err)
{
	const struct reference *ref = &s->registry.ref;
	char path[REFERENCE_TAG_MAX + 16], digest[SOURCE_DIGEST_MAX];
	struct outbound_transfer *t;
	snprintf(path, sizeof(path), "manifests/%s", *ref->digest ? ref->digest : ref->tag);
	int r = registry_get(&s->registry, path, MANIFEST_ACCEPT, MANIFEST_MAX, &t, err);
	if (r < 0)
		return r;
	const struct outbound_answer *a = outbound_answer(t);
	strcpy(type, a->content_type);
	source_digest(buf_str(&a->body), digest);
	if ((*ref->digest && strcmp(ref->digest, digest) != 0) || (!*ref->digest && *a->digest && strcmp(a->digest, digest) != 0))
		r = error_set(err, -EBADMSG, 502, "%s: the image's manifest is not what its digest says", ref->registry);
	else if (buf_add_str(json, buf_str(&a->body)) < 0)
		r = error_set(err, -ENOMEM, 500, "out of memory");
	outbound_end(t);
	return r;
}

int source_open_image(struct source **ret, struct source_env *e, struct str reference, const struct source_credentials *given, struct error *err)
{
	struct reference ref;
	cleanup_buf struct buf json = BUF_INIT;
	char type[128];
	int r = reference_parse(reference, &ref, err);
	if (r < 0)
		return r;
	struct source *s = calloc(1, sizeof(*s));
	if (!s)
		return error_set(err, -ENOMEM, 500, "out of memory");
	s->env = e;
	s->read = read_registry;
	reference_format(&ref, s->image.reference);
	r = registry_init(&s->registry, e, e->private->out, &e->private->registries, &ref, given, err);
	if (r == 0) {
		s->online = true;
		s->registry.ecr_endpoint = e->ecr_endpoint;
		r = read_top(s, &json, type, err);
	}
	if (r == 0)
		r = source_resolve(s, buf_str(&json), type, err);
	if (r < 0) {
		source_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

/* --- both --- */

const struct source_image *source_image(const struct source *s)
{
	return &s->image;
}

int source_fetch(struct source *s, const struct source_fetch *f, struct error *err)
{
	for (size_t i = 0; i < f->n_wants; i++)
		if (f->wants[i].layer >= s->image.n_layers)
			return error_set(err, -EINVAL, 500, "the image has no layer %zu", f->wants[i].layer);
	return s->online ? download_layers(&s->registry, s->image.layers, f, err) : source_copy(s, f, err);
}

void source_free(struct source *s)
{
	if (!s)
		return;
	if (s->online)
		registry_done(&s->registry);
	source_archive_done(s);
	source_config_done(&s->image.config);
	free(s->image.layers);
	free(s);
}
