#include "api/handlers.h"
#include "api/request.h"
#include "api/sources.h"
#include "api/template_request.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>

/*
 * Files for the steps of a build (e2b.md A.6). A link names the template and the hash that the client computed of its files, and is signed: whoever has it may send
 * these files once more until it expires, without a key, which clients do not send there. Links end with this process.
 *
 * A body goes from the connection into a descriptor of the node's: 128 KiB are collected while as much is written by a worker, then the connection is not read on.
 * So an upload has constant memory, whatever its size, and the pace of the disk. E2B's hash is of the names and contents of files, not of the bytes that come: it cannot
 * be checked here. It is a name in the team's own space, so a wrong one deceives nobody else.
 */

enum {
	LINK_SECONDS = 4000, /* clients give an upload an hour */
	CHUNK = 128 * 1024,
	MIB = 1024 * 1024,
};

/* Links */

struct signature {
	char text[2 * EVP_MAX_MD_SIZE + 1];
};

static void sign(const struct api *api, struct str team, struct str template, struct str hash, int64_t expires, struct signature *ret)
{
	char text[512];
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	/* None of them holds a blank. */
	int length = snprintf(text, sizeof(text), "upload %.*s %.*s %.*s %lld", STR_FMT(team), STR_FMT(template), STR_FMT(hash), (long long)expires);
	if (length < 0 || length >= (int)sizeof(text) ||
		!HMAC(EVP_sha256(), api->upload_key, sizeof(api->upload_key), (const unsigned char *)text, (size_t)length, digest, &n))
		n = 0;
	hex_encode(ret->text, digest, n);
}

/* What of a header of the client's, or of a proxy's before us, may stand in a link: a name or address with a port. */
static bool is_authority(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr(".-_:[]", c);
		if (!c || !fits)
			return false;
	}
	return s.n > 0 && s.n <= 255;
}

/* The server as the client reached it; proxies say what they took off. */
static void add_origin(const struct api_request *r, struct buf *to)
{
	struct str scheme = http_value(r->http->head, "x-forwarded-proto"), host = http_value(r->http->head, "x-forwarded-host");
	bool secure = str_eq_nocase(scheme, STR("https")) || (!str_eq_nocase(scheme, STR("http")) && http_conn_is_secure(r->http->conn));
	if (!is_authority(host))
		host = http_value(r->http->head, "host");
	if (!is_authority(host))
		host = STR("localhost");
	buf_addf(to, "%s://%.*s", secure ? "https" : "http", STR_FMT(host));
}

struct link {
	char template[65], hash[65];
};

static void answer_link(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct link *l = r->work;
	if (!api_called(r, a))
		return;
	cleanup_buf struct buf body = BUF_INIT, url = BUF_INIT;
	struct signature signature;
	int64_t expires = clock_realtime() / NS_PER_S + LINK_SECONDS;
	struct out o = {.to = &body};
	add_origin(r, &url);
	sign(r->api, r->team, str_of(l->template), str_of(l->hash), expires, &signature);
	buf_addf(&url, "/templates/%s/files/%s?expires=%lld&signature=%s", l->template, l->hash, (long long)expires, signature.text);
	out_open(&o, NULL, '{');
	out_bool(&o, "present", a->body->file_found.found);
	/* Also when they are there: a client may want to send them again. */
	out_str(&o, "url", buf_str(&url));
	out_close(&o, '}');
	body.failed |= url.failed;
	api_answer(r, 201, &body);
}

void handle_upload_link(struct api_request *r)
{
	struct template_reference reference;
	struct error err = {0};
	const struct index_template *t = source_own(r, r->match.params[0], &reference);
	if (!t)
		return;
	struct link *l = r->work = calloc(1, sizeof(*l));
	if (!l)
		error_set(&err, -ENOMEM, 503, "the server is out of memory");
	if (!l || decode_files_hash(r->match.params[1], l->hash, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	snprintf(l->template, sizeof(l->template), "%.*s", STR_FMT(t->id));
	struct msg_find_file m = {.team = r->team, .hash = str_of(l->hash)};
	api_wait(r, node_find_file(r->api->config.node, &m, answer_link, r, &err), &err);
}

/* Uploads */

struct chunk {
	char *p;
	size_t n;
};

/* The node is asked for a writer: what it answers must be given back also when nobody waits for it any more. */
struct opening {
	struct api *api;
	struct upload *upload; /* NULL: the client left */
	char team[65], hash[65];
};

struct upload {
	struct api_request *request;
	struct opening *opening;
	char team[65], hash[65];
	uint64_t limit, taken;
	int fd;            /* -1: the node has not answered yet */
	bool kept;         /* or there never was a writer */
	uint64_t writer;
	uint64_t reserve;  /* free bytes of the disk that are not ours */
	struct chunk filling, writing;
	int result;        /* of writing */
	bool busy, ended;  /* a worker writes; the body is complete */
	bool has_turn, waits;
	struct upload *next; /* that waits, too */
};

/* Whoever has bytes in hand has a turn: so all uploads together hold no more than UPLOAD_TURNS times two chunks. */
static bool take_turn(struct upload *u)
{
	struct uploads *all = &u->request->api->uploads;
	if (u->has_turn)
		return true;
	if (all->turns < UPLOAD_TURNS) {
		all->turns++;
		u->has_turn = true;
	} else if (!u->waits) {
		u->waits = true;
		struct upload **end = &all->waiting;
		while (*end)
			end = &(*end)->next;
		*end = u;
	}
	return u->has_turn;
}

static void give_turn(struct api *api, struct upload *u)
{
	struct upload *next = api->uploads.waiting;
	if (!u->has_turn)
		return;
	u->has_turn = false;
	free(u->filling.p);
	free(u->writing.p);
	u->filling = u->writing = (struct chunk){0};
	if (!next) {
		api->uploads.turns--;
		return;
	}
	api->uploads.waiting = next->next;
	next->next = NULL;
	next->waits = false;
	next->has_turn = true;
	if (next->request->http)
		http_req_resume(next->request->http);
}

static void ignore(const struct node_answer *a, void *arg)
{
}

static void throw_away(struct api *api, const char *team, const char *hash, uint64_t writer)
{
	struct msg_keep_file m = {.team = str_of(team), .hash = str_of(hash), .writer = writer, .whole = false};
	node_keep_file(api->config.node, &m, ignore, NULL, NULL);
}

/* Nobody waits for it any more: what came is thrown away. */
static void release(void *work)
{
	struct upload *u = work;
	struct api *api = u->request->api;
	for (struct upload **at = &api->uploads.waiting; u->waits && *at; at = &(*at)->next)
		if (*at == u) {
			*at = u->next;
			break;
		}
	give_turn(api, u);
	if (u->opening)
		u->opening->upload = NULL;
	if (u->fd >= 0)
		close(u->fd);
	if (!u->kept)
		throw_away(api, u->team, u->hash, u->writer);
}

static void finish(struct api_request *r)
{
	struct upload *u = r->work;
	struct error err = {0};
	struct msg_keep_file m = {.team = str_of(u->team), .hash = str_of(u->hash), .writer = u->writer, .whole = true};
	close(u->fd);
	u->fd = -1;
	u->kept = true;
	api_wait(r, node_keep_file(r->api->config.node, &m, api_done_plain, r, &err), &err);
}

static void write_chunk(void *arg)
{
	struct api_request *r = arg;
	struct upload *u = r->work;
	struct statfs disk;
	/* The last of the disk is the sandboxes': what an upload took of it they would have to end for. */
	if (fstatfs(u->fd, &disk) < 0)
		u->result = -errno;
	else if (disk.f_blocks && disk.f_bavail * (uint64_t)disk.f_bsize < u->reserve + u->writing.n) /* without blocks: memory */
		u->result = -ENOSPC;
	else
		u->result = fd_write_all(u->fd, u->writing.p, u->writing.n);
}

static void written(struct api_request *r);

/* Something was collected, and no worker writes. */
static void write_on(struct api_request *r)
{
	struct upload *u = r->work;
	struct chunk full = u->filling;
	u->filling = u->writing;
	u->filling.n = 0;
	u->writing = full;
	u->busy = true;
	api_work(r, write_chunk, written);
}

static void written(struct api_request *r)
{
	struct upload *u = r->work;
	u->busy = false;
	bool full = u->result == -ENOSPC || u->result == -EDQUOT || u->result == -EFBIG;
	if (!r->http) {
		api_failf(r, 400, "the client left");
	} else if (r->answered) {
		return; /* with an error; closed() follows */
	} else if (u->result < 0) {
		api_failf(r, full ? 507 : 500, "the files cannot be written: %s", strerror(-u->result));
	} else if (u->filling.n) {
		write_on(r);
		http_req_resume(r->http);
	} else if (u->ended) {
		give_turn(r->api, u);
		finish(r);
	} else {
		give_turn(r->api, u);
		http_req_resume(r->http);
	}
}

static size_t on_body(struct api_request *r, const char *p, size_t n)
{
	struct upload *u = r->work;
	if (u->fd < 0 || !take_turn(u))
		return 0;
	if (!u->filling.p && !(u->filling.p = malloc(CHUNK))) {
		api_failf(r, 503, "the server is out of memory");
		return n;
	}
	size_t take = MIN(n, CHUNK - u->filling.n);
	if (take > u->limit - u->taken) {
		api_failf(r, 413, "the files are longer than %lld MiB (option build.upload_max)", (long long)r->api->config.options->build_upload_max);
		return n;
	}
	memcpy(u->filling.p + u->filling.n, p, take);
	u->filling.n += take;
	u->taken += take;
	if (!u->busy && take)
		write_on(r);
	return take;
}

static void on_end(struct api_request *r)
{
	struct upload *u = r->work;
	u->ended = true;
	if (u->fd >= 0 && !u->busy && !u->filling.n)
		finish(r);
}

static const struct api_stream stream = {.body = on_body, .end = on_end};

static void opened(const struct node_answer *a, void *arg)
{
	cleanup_free struct opening *o = arg;
	struct upload *u = o->upload;
	if (!u) {
		if (!a->err) {
			close(a->fd);
			throw_away(o->api, o->team, o->hash, a->body->file_writer.writer);
		}
		return;
	}
	struct api_request *r = u->request;
	u->opening = NULL;
	if (a->err) {
		api_fail(r, a->err);
		return;
	}
	u->fd = a->fd;
	u->writer = a->body->file_writer.writer;
	u->reserve = a->body->file_writer.reserve;
	u->kept = false;
	if (u->ended)
		finish(r);
	else
		http_req_resume(r->http);
}

struct upload_query {
	int64_t expires;
	struct buf signature;
};

static int parse_link(struct str name, struct str value, void *arg, struct error *err)
{
	struct upload_query *q = arg;
	if (str_is(name, "expires") && str_to_i64(value, &q->expires) < 0)
		q->expires = 0;
	else if (str_is(name, "signature"))
		buf_add_str(&q->signature, value);
	return 0;
}

/* Whose link it is: the template, or NULL; answered then. A wrong link is as one that never was. */
static const struct index_template *check_link(struct api_request *r, char hash[65])
{
	cleanup_buf struct buf signature = BUF_INIT;
	struct upload_query q = {0};
	struct signature right;
	struct template_reference reference;
	struct error err = {0};
	if (!api_index_ready(r))
		return NULL;
	const struct index_template *t = NULL;
	if (decode_template_reference(r->match.params[0], &reference, NULL) == 0 && decode_files_hash(r->match.params[1], hash, NULL) == 0 &&
		decode_query(r->http->head->query, parse_link, &q, &err) == 0)
		t = index_template_find(r->api->config.index, str_of(reference.name));
	signature = q.signature;
	if (t) {
		sign(r->api, t->team, t->id, str_of(hash), q.expires, &right);
		size_t n = strlen(right.text);
		if (!n || buf_len(&signature) != n || CRYPTO_memcmp(buf_str(&signature).p, right.text, n) != 0)
			t = NULL;
	}
	if (!t) {
		api_failf(r, 404, "no such link for files of a template: not found, or from before the server was started; ask for a new one");
		return NULL;
	}
	const struct team *team = teams_by_ref(r->api->teams, t->team);
	if (q.expires < clock_realtime() / NS_PER_S)
		api_failf(r, 403, "the link has expired: ask for a new one");
	else if (!team || team->blocked)
		api_failf(r, 403, "the team is blocked");
	else
		return t;
	return NULL;
}

void handle_upload(struct api_request *r)
{
	char hash[65];
	struct error err = {0};
	const struct http_head *head = r->http->head;
	const struct index_template *t = check_link(r, hash);
	if (!t)
		return;
	uint64_t limit = (uint64_t)r->api->config.options->build_upload_max * MIB;
	bool known = head->framing != HTTP_BODY_CHUNKED;
	uint64_t size = head->framing == HTTP_BODY_LENGTH ? head->length : 0;
	if (size > limit) {
		api_failf(r, 413, "the files are longer than %lld MiB (option build.upload_max)", (long long)r->api->config.options->build_upload_max);
		return;
	}
	if (known && !size) {
		api_failf(r, 400, "the files are empty");
		return;
	}
	cleanup_free struct opening *o = calloc(1, sizeof(*o));
	struct upload *u = r->work = calloc(1, sizeof(*u));
	if (!o || !u) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	*u = (struct upload){.request = r, .limit = known ? size : limit, .fd = -1, .kept = true};
	snprintf(u->team, sizeof(u->team), "%.*s", STR_FMT(t->team));
	memcpy(u->hash, hash, sizeof(u->hash));
	r->team = str_of(u->team);
	r->release = release;
	r->stream = &stream;
	*o = (struct opening){.api = r->api, .upload = u};
	memcpy(o->team, u->team, sizeof(o->team));
	memcpy(o->hash, u->hash, sizeof(o->hash));
	struct msg_write_file m = {.team = r->team, .hash = str_of(u->hash), .size = size};
	if (node_write_file(r->api->config.node, &m, opened, o, &err))
		u->opening = steal_pointer(&o);
	else
		api_fail(r, &err);
}
