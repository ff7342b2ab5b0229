#include "guest/files.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "guest/archive.h"
#include "guest/files_call.h"
#include "io/url.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const struct str RPC_PREFIX = {"/filesystem.Filesystem/", sizeof("/filesystem.Filesystem/") - 1};

static bool is_files(const struct http_head *h)
{
	return str_is(h->path, "/files") || str_starts(h->path, STR("/files/"));
}

static bool is_archive(const struct http_head *h)
{
	return str_is(h->path, "/archive");
}

bool files_serves(const struct http_head *head)
{
	return is_files(head) || is_archive(head) || str_starts(head->path, RPC_PREFIX);
}

static int find_user(struct files_call *c, struct str name)
{
	return guest_user_find(
		name.n ? name : str_of(c->request->default_user ? c->request->default_user : "root"),
		&c->user);
}

int files_user_of_name(struct files_call *c, struct str name)
{
	int r = find_user(c, name);
	if (r == 0 || r == -ENOMEM)
		return r;
	struct str who = name.n ? name : str_of(c->request->default_user);
	return files_fail(
		c, 401, "error looking up user '%.*s': user: unknown user %.*s", STR_FMT(who), STR_FMT(who));
}

/* The user of a /files request: query `username`. */
static int user_of_query(struct files_call *c)
{
	cleanup_buf struct buf name = BUF_INIT;
	int r = url_query_get(c->head.query, "username", &name);
	if (r < 0)
		return r == -ENOMEM ? r : files_fail(c, 400, "malformed query string");
	return files_user_of_name(c, buf_str(&name));
}

/* The user of an RPC: HTTP Basic without regard to the password. Other schemes say nothing about users. */
int files_user_of_basic(struct files_call *c)
{
	struct str value = http_value(&c->head, "Authorization"), name = str_n("", 0), scheme, encoded;
	cleanup_buf struct buf decoded = BUF_INIT;
	if (str_cut(value, ' ', &scheme, &encoded) && str_eq_nocase(scheme, STR("Basic"))) {
		struct str password;
		if (base64_decode(&decoded, str_trim(encoded)) < 0 ||
			!str_cut(buf_str(&decoded), ':', &name, &password))
			return files_fail_rpc(c, CONNECT_UNAUTHENTICATED, "malformed Authorization header");
	}
	int r = find_user(c, name);
	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		struct str who = name.n ? name : str_of(c->request->default_user);
		return files_fail_rpc(c, CONNECT_UNAUTHENTICATED, "invalid username: '%.*s'", STR_FMT(who));
	}
	return 0;
}

static int serve_files(struct files_call *c)
{
	bool compose = str_is(c->head.path, "/files/compose");
	if (!compose && !str_is(c->head.path, "/files"))
		return files_fail(c, 404, "path not found");
	bool get = str_is(c->head.method, "GET") || str_is(c->head.method, "HEAD");
	if ((!get || compose) && !str_is(c->head.method, "POST"))
		return files_fail(c, 405, "method not allowed");
	if (compose)
		return files_compose(c);
	int r = user_of_query(c);
	if (r < 0)
		return r;
	return get ? files_download(c) : files_upload(c);
}

static int serve(struct files_call *c)
{
	return is_files(&c->head) ? serve_files(c) : is_archive(&c->head) ? archive_serve(c) : filesystem_serve(c);
}

/* An answer for every step that failed without saying why. */
static void explain(struct files_call *c, int r)
{
	switch (-r) {
	case EPROTO:
		files_fail(c, 400, "malformed request body");
		break;
	case EMSGSIZE:
		files_fail(c, 413, "request body too large");
		break;
	default:
		files_fail(c, 500, "%s", strerror(-r));
	}
}

static void prepare_process(void)
{
	/* sendfile() has no MSG_NOSIGNAL. */
	signal(SIGPIPE, SIG_IGN);
	umask(022);
	/* A listing keeps one directory open per level. */
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

int files_worker(const struct files_request *q, struct buf *ret_rest, bool *ret_keep_alive)
{
	prepare_process();
	cleanup_free char *buffer = malloc(FILES_BUFFER);
	cleanup_free struct files_call *c = calloc(1, sizeof(*c));
	if (!buffer || !c)
		return -ENOMEM;
	c->request = q;
	c->buffer = buffer;
	c->in = q->rest;
	c->idle_ns = q->idle_timeout_ns ? q->idle_timeout_ns : 120 * NS_PER_S;
	int status = 400;
	if (http_parse_request(q->head_bytes, &c->head, &status) <= 0)
		return -EPROTO;
	http_body_init(&c->body, c->head.framing, c->head.length);
	c->owes_continue = c->head.expect_continue && q->rest.n == 0;

	int r = serve(c);
	if (r < 0 && !c->answered && c->cut == 0) {
		explain(c, r);
		files_respond_failure(c);
	}
	/* An answer that stopped in its middle must not look whole. */
	if (r < 0 && c->answered && c->cut == 0 && c->status == 0)
		c->cut = r;
	buf_done(&c->message);
	r = c->cut;
	if (r == 0)
		files_drain(c);
	*ret_keep_alive = c->keep_alive && c->cut == 0 && c->body.done;
	if (*ret_keep_alive && buf_add_str(ret_rest, c->in) < 0)
		*ret_keep_alive = false;
	return r;
}
