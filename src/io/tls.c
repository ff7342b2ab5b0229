#include "io/tls_server.h"

#include "base/cleanup.h"
#include "io/sendq.h"

#include <errno.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>

enum { RECORD = 16 * 1024 };

struct tls {
	struct transport base;
	struct tls_server *server;
	SSL *ssl;
	int fd;
	struct str feed;   /* ciphertext for SSL, during one call */
	struct buf in;     /* what was left of it */
	struct buf out;    /* ciphertext for the socket */
	size_t before;     /* bytes received before the handshake was done */
	bool fin;          /* the socket ended */
	bool more;         /* see transport_ops.pending */
	bool over;         /* `end` says how reading ended */
	int end;           /* 0 or -errno, for read() */
	bool ending;       /* close_notify is queued or sent */
};

static struct tls *of(const struct transport *t)
{
	return (struct tls *)container_of(t, struct tls, base);
}

/* OpenSSL's side: a BIO over feed and out */

static int bio_read(BIO *b, char *p, int n)
{
	struct tls *t = BIO_get_data(b);
	BIO_clear_retry_flags(b);
	size_t take = MIN(t->feed.n, (size_t)n);
	if (take == 0) {
		if (t->fin)
			return 0;
		BIO_set_retry_read(b);
		return -1;
	}
	memcpy(p, t->feed.p, take);
	t->feed = str_from(t->feed, take);
	return (int)take;
}

static int bio_write(BIO *b, const char *p, int n)
{
	struct tls *t = BIO_get_data(b);
	BIO_clear_retry_flags(b);
	return buf_add(&t->out, p, (size_t)n) < 0 ? -1 : n;
}

static long bio_ctrl(BIO *b, int command, long n, void *p)
{
	const struct tls *t = BIO_get_data(b);
	if (command == BIO_CTRL_EOF)
		return t->fin && t->feed.n == 0;
	return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method;

static void make_bio_method(void)
{
	bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cubicle");
	if (!bio_method)
		return;
	BIO_meth_set_read(bio_method, bio_read);
	BIO_meth_set_write(bio_method, bio_write);
	BIO_meth_set_ctrl(bio_method, bio_ctrl);
}

static BIO *new_bio(struct tls *t)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, make_bio_method);
	BIO *b = bio_method ? BIO_new(bio_method) : NULL;
	if (b) {
		BIO_set_data(b, t);
		BIO_set_init(b, 1);
	}
	return b;
}

/* Reading */

static void end_reading(struct tls *t, int why)
{
	t->over = true;
	t->end = why;
}

/* Clients that were given an http:// address begin with a method. A TLS record begins with 22. */
static bool is_plain(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* More ciphertext for t->feed, which is used up. False when there is none now. *ret_dry: the socket has no more than that. */
static bool pull(struct tls *t, bool *ret_dry)
{
	ssize_t r;
	do {
		r = recv(t->fd, t->server->received, TLS_RECEIVE, MSG_DONTWAIT);
	} while (r < 0 && errno == EINTR);
	if (r < 0) {
		if (errno != EAGAIN)
			end_reading(t, -errno);
		return false;
	}
	*ret_dry = r < TLS_RECEIVE;
	if (r == 0) {
		t->fin = true;
		return true;
	}
	if (!SSL_is_init_finished(t->ssl)) {
		if (t->before == 0 && is_plain(t->server->received[0])) {
			end_reading(t, -EPROTONOSUPPORT);
			return false;
		}
		t->before += (size_t)r;
		if (t->before > TLS_MAX_HANDSHAKE) {
			end_reading(t, -EPROTO);
			return false;
		}
	}
	buf_clear(&t->in); /* used up: what is left over now is of this */
	t->feed = str_n(t->server->received, (size_t)r);
	return true;
}

/* SSL could not go on. True when there is new ciphertext for it. */
static bool go_on(struct tls *t, bool *dry)
{
	int why = SSL_get_error(t->ssl, 0);
	if (why == SSL_ERROR_WANT_READ)
		return !*dry && pull(t, dry);
	if (why == SSL_ERROR_ZERO_RETURN)
		end_reading(t, 0);
	else if (why == SSL_ERROR_SYSCALL || t->out.failed)
		end_reading(t, t->out.failed ? -ENOMEM : -ECONNRESET);
	else
		end_reading(t, ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -ECONNRESET : -EPROTO);
	ERR_clear_error();
	return false;
}

static void begin_reading(struct tls *t)
{
	t->feed = buf_str(&t->in);
	ERR_clear_error();
}

/* Keeps what SSL did not want yet, and sends what it wants the peer to know. */
static void stop_reading(struct tls *t)
{
	if (t->feed.n == 0)
		buf_done(&t->in);
	else if (buf_len(&t->in))
		buf_consume(&t->in, buf_len(&t->in) - t->feed.n);
	else if (buf_add_str(&t->in, t->feed) < 0 && !t->over)
		end_reading(t, -ENOMEM);
	t->feed = (struct str){0};
	if (buf_len(&t->out)) {
		ssize_t r = sendq_send(t->fd, &t->out, NULL, 0);
		if (r < 0 && !t->over)
			end_reading(t, (int)r);
	}
}

static ssize_t tls_read(struct transport *transport, void *p, size_t n)
{
	struct tls *t = of(transport);
	size_t got = 0, k;
	bool dry = false;
	/* OpenSSL answers by itself (alerts, key updates): a peer that asks and does not read is not read. */
	if (buf_len(&t->out) > TRANSPORT_MAX_QUEUED)
		return -EAGAIN;
	begin_reading(t);
	while (got < n && !t->over) {
		if (SSL_read_ex(t->ssl, (char *)p + got, n - got, &k))
			got += k;
		else if (!go_on(t, &dry))
			break;
	}
	stop_reading(t);
	t->more = got == n || (got && t->over);
	if (got)
		return (ssize_t)got;
	return t->over ? t->end : -EAGAIN;
}

static bool tls_pending(const struct transport *transport)
{
	return of(transport)->more;
}

static bool tls_at_end(struct transport *transport)
{
	struct tls *t = of(transport);
	bool dry = false, data = false;
	char byte;
	size_t k;
	begin_reading(t);
	/* To the very end of what is there, unlike tls_read(): this is asked once, when the socket has told of its end. */
	while (!t->over && !data && buf_len(&t->out) <= TRANSPORT_MAX_QUEUED) {
		dry = false;
		data = SSL_peek_ex(t->ssl, &byte, 1, &k);
		if (!data && !go_on(t, &dry))
			break;
	}
	stop_reading(t);
	t->more |= data || t->over;
	return t->over && !data;
}

/* Writing */

/* Drops n bytes of what is to be written: of the queue first, then of the parts. */
static void used(struct buf *queue, struct iovec *parts, int n_parts, size_t n)
{
	size_t of_queue = MIN(n, buf_len(queue));
	buf_consume(queue, of_queue);
	n -= of_queue;
	for (int i = 0; i < n_parts; i++) {
		size_t k = MIN(n, parts[i].iov_len);
		parts[i].iov_base = (char *)parts[i].iov_base + k;
		parts[i].iov_len -= k;
		n -= k;
	}
}

/* The next bytes to encrypt: as they lie when they fill records, else gathered, so that a chunk's size and end get no records of their own. */
static struct str next_run(struct tls *t, const struct buf *queue, const struct iovec *parts, int n_parts)
{
	struct str queued = buf_str(queue);
	size_t n = MIN(queued.n, (size_t)TLS_SEND);
	if (queued.n >= TLS_SEND || (queued.n && n_parts == 0))
		return str_n(queued.p, n);
	if (n == 0 && n_parts == 1)
		return str_n(parts[0].iov_base, MIN(parts[0].iov_len, (size_t)TLS_SEND));
	memcpy(t->server->gathered, queued.p, n);
	for (int i = 0; i < n_parts; i++) {
		size_t k = MIN(parts[i].iov_len, TLS_SEND - n);
		if (k)
			memcpy(t->server->gathered + n, parts[i].iov_base, k);
		n += k;
	}
	return str_n(t->server->gathered, n);
}

static ssize_t tls_write(struct transport *transport, struct buf *queue, const struct iovec *given, int n_parts)
{
	struct tls *t = of(transport);
	struct iovec parts[SENDQ_PARTS];
	ssize_t sent = 0;
	for (int i = 0; i < n_parts; i++)
		parts[i] = given[i];
	ERR_clear_error();
	for (;;) {
		ssize_t r = sendq_send(t->fd, &t->out, NULL, 0);
		if (r < 0)
			return r;
		sent += r;
		if (buf_len(&t->out))
			break;
		struct str run = next_run(t, queue, parts, n_parts);
		size_t k;
		if (run.n == 0)
			break;
		if (t->ending || !SSL_write_ex(t->ssl, run.p, run.n, &k)) {
			ERR_clear_error();
			return t->out.failed ? -ENOMEM : -EPIPE;
		}
		used(queue, parts, n_parts, k);
	}
	for (int i = 0; i < n_parts; i++)
		if (buf_add(queue, parts[i].iov_base, parts[i].iov_len) < 0)
			return -ENOMEM;
	if (buf_len(queue) == 0 && queue->cap > RECORD)
		buf_done(queue);
	return sent;
}

static size_t tls_queued(const struct transport *transport)
{
	return buf_len(&of(transport)->out);
}

static bool tls_ready(const struct transport *transport)
{
	return SSL_is_init_finished(of(transport)->ssl);
}

static void tls_end(struct transport *transport)
{
	struct tls *t = of(transport);
	if (t->ending || (t->over && t->end < 0) || !SSL_is_init_finished(t->ssl))
		return;
	t->ending = true;
	ERR_clear_error();
	SSL_shutdown(t->ssl);
	ERR_clear_error();
}

static void tls_free(struct transport *transport)
{
	struct tls *t = of(transport);
	SSL_free(t->ssl);
	buf_done(&t->in);
	buf_done(&t->out);
	tls_server_unref(t->server);
	free(t);
}

static const struct transport_ops ops = {
	.read = tls_read, .pending = tls_pending, .at_end = tls_at_end, .write = tls_write, .queued = tls_queued, .ready = tls_ready, .end = tls_end,
	.free = tls_free};

struct transport *tls_accept(int fd, void *arg)
{
	struct tls_server *s = *(struct tls_server **)arg;
	struct tls *t = s ? calloc(1, sizeof(*t)) : NULL;
	if (!t)
		return NULL;
	*t = (struct tls){.base = {&ops}, .server = tls_server_ref(s), .fd = fd};
	t->ssl = tls_server_ssl(s);
	BIO *b = t->ssl ? new_bio(t) : NULL;
	if (!b) {
		tls_free(&t->base);
		return NULL;
	}
	SSL_set_bio(t->ssl, b, b);
	return &t->base;
}
