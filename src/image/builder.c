#include "image/builder.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "image/build.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CA = 16 * 1024 * 1024, MAX_OPTIONS = 1024 * 1024 };

/* ---- what sources want to know ---- */

static int login(void *arg, struct str registry, struct str repository, struct source_credentials *ret, struct error *err)
{
	struct build *b = arg;
	char *username = NULL, *password = NULL, *identity_token = NULL;
	int r = ask_registry_login(b->ask, registry, repository, &username, &password, &identity_token, err);
	struct source_credentials c = {.username = username, .password = password, .identity_token = identity_token};
	if (r < 0)
		source_credentials_done(&c);
	else if (username || password || identity_token)
		*ret = c;
	return r;
}

static void source_log(void *arg, int level, const char *message)
{
	build_log(arg, level, "%s", message);
}

/* ---- the build ---- */

static int read_fd(int fd, size_t max, struct buf *to)
{
	for (off_t at = 0;;) {
		char *p = buf_reserve(to, 64 * 1024);
		ssize_t n = p ? pread(fd, p, 64 * 1024, at) : -1;
		if (n < 0 && p && errno == EINTR)
			continue;
		if (n <= 0)
			return n == 0 ? 0 : p ? -errno : -ENOMEM;
		buf_commit(to, (size_t)n);
		at += n;
		if (buf_len(to) > max)
			return -EFBIG;
	}
}

static int begin(struct build *b, struct build_spec *spec, struct error *err)
{
	struct msg_build_begin m;
	cleanup_fd int fd = -1;
	cleanup_buf struct buf text = BUF_INIT;
	unsigned char token[32];
	int r = ask_begin(b->ask, &m, &fd, err);
	if (r < 0)
		return r;
	b->force = m.force;
	b->cpu_count = (unsigned)m.cpu_count;
	b->memory_mb = (unsigned)m.memory_mb;
	b->disk_mb = (unsigned)m.disk_mb;
	random_bytes(token, sizeof(token));
	hex_encode(b->token, token, sizeof(token));
	if (msg_has(&m, build_begin, base) && !(b->base = json_parse(m.base, MSG_MAX, "base", err)))
		return -EINVAL;
	r = read_fd(fd, SPEC_MAX, &text);
	if (r < 0)
		return error_errno(err, r, "the spec");
	r = spec_parse(buf_str(&text), spec, err);
	/* It may hold credentials. */
	explicit_bzero(text.data, text.cap);
	return r;
}

/* A build that could not even begin is told like one that failed. */
static int refuse(struct ask *a, const struct error *why, struct error *err)
{
	if (why->code == -EPIPE)
		return error_set(err, why->code, why->status, "%s", why->message);
	return ask_build_failed(a, str_of(why->message), "base", err);
}

int builder_run(int channel, const struct options *o, struct str ca_pem, struct error *err)
{
	struct ask ask;
	struct build_spec spec = {0};
	struct error why = {0};
	if (ask_init(&ask, channel) < 0)
		return error_errno(err, -ENOMEM, "builder");
	struct build b = {.ask = &ask, .spec = &spec, .options = o};
	struct source_env sources = {.options = o, .ca_pem = ca_pem, .login = login, .log = source_log, .arg = &b};
	int r = begin(&b, &spec, &why);
	if (r == 0)
		r = source_env_init(&sources, &why);
	if (r == 0) {
		b.sources = &sources;
		r = build_all(&b, err);
		source_env_done(&sources);
	} else {
		r = refuse(&ask, &why, err);
	}
	spec_done(&spec);
	json_decref(b.base);
	explicit_bzero(b.token, sizeof(b.token));
	ask_done(&ask);
	return r;
}

/* ---- the process ---- */

static int read_options(struct options *o, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_fd(BUILDER_OPTIONS_FD, MAX_OPTIONS, &text);
	close(BUILDER_OPTIONS_FD);
	return r < 0 ? error_errno(err, r, "options") : options_read_text(o, "options", buf_str(&text), err);
}

static int read_ca(struct buf *to, struct error *err)
{
	struct stat st;
	if (fstat(BUILDER_CA_FD, &st) < 0)
		return 0;
	int r = read_fd(BUILDER_CA_FD, MAX_CA, to);
	close(BUILDER_CA_FD);
	return r < 0 ? error_errno(err, r, "registry.ca") : 0;
}

int builder_main(int argc, char **argv)
{
	struct options o;
	struct error err = {0};
	cleanup_buf struct buf ca = BUF_INIT;
	log_setup("builder", 2, LOG_INFO);
	signal(SIGPIPE, SIG_IGN);
	/* Names of files in archives are UTF-8, whatever the machine speaks. */
	setlocale(LC_CTYPE, "C.UTF-8");
	int r = options_init(&o);
	if (r == 0)
		r = read_options(&o, &err);
	if (r == 0)
		r = read_ca(&ca, &err);
	if (r == 0)
		r = builder_confine(&err);
	if (r == 0)
		r = builder_run(BUILDER_CHANNEL_FD, &o, buf_str(&ca), &err);
	if (r < 0)
		log_error("builder: %s", err.code ? err.message : strerror(-r));
	options_done(&o);
	return r < 0 ? 1 : 0;
}
