#include "files_harness.h"

#include "base/fd.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct harness_options harness;

static char root[64];
static int outside = -1;

int harness_reset(void **state)
{
	harness = (struct harness_options){0};
	return 0;
}

static void must(int r, const char *what)
{
	if (r < 0) {
		fprintf(stderr, "cannot make the test's root directory (%s: %s)\n", what, strerror(errno));
		exit(errno == EPERM || errno == EACCES ? 77 : 1);
	}
}

void harness_enter(void)
{
	must(unshare(CLONE_NEWNS), "unshare");
	outside = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
	snprintf(root, sizeof(root), "/tmp/cubicle-files-XXXXXX");
	must(mkdtemp(root) ? 0 : -1, root);
	must(mount("tmpfs", root, "tmpfs", 0, "mode=755"), "tmpfs");
	must(chdir(root), root);
	umask(0);
	static const struct {
		const char *path;
		mode_t mode;
		uid_t owner;
	} directories[] = {{"etc", 0755, 0}, {"root", 0700, 0}, {"home", 0755, 0}, {"home/user", 0755, 1000},
		{"tmp", 01777, 0}, {"proc", 0755, 0}, {"sys", 0755, 0}, {"dev", 0755, 0},
		{"work", 0755, 1000}, {"small", 0755, 0}};
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
		must(mkdir(directories[i].path, directories[i].mode), directories[i].path);
		must(chown(directories[i].path, directories[i].owner, directories[i].owner),
			directories[i].path);
	}
	must(mount("/proc", "proc", NULL, MS_BIND, NULL), "proc");
	must(mount("/sys", "sys", NULL, MS_BIND, NULL), "sys");
	must(mount("tmpfs", "small", "tmpfs", 0, "size=1m,nr_inodes=64,mode=755"), "small tmpfs");
	disk_write("dev/zero", STR(""));
	must(mount("/dev/zero", "dev/zero", NULL, MS_BIND, NULL), "dev/zero");
	disk_write("etc/passwd", STR("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/"
				     "bash\nother:x:1001:1001::/home/other:/bin/sh\n"));
	disk_write("etc/group", STR("root:x:0:\nuser:x:1000:\nsudo:x:27:user,other\nother:x:1001:\n"));
	must(chroot("."), "chroot");
	signal(SIGPIPE, SIG_IGN);
}

void harness_leave(void)
{
	must(fchdir(outside), "leave");
	must(chroot("."), "leave");
	must(umount2(root, MNT_DETACH), "umount");
	rmdir(root);
}

/* ---- the worker's side ---- */

static void be_worker(int conn, int result, struct str head, struct str rest)
{
	fd_set_nonblock(conn, true);
	struct files_request q = {.conn = conn,
		.head_bytes = head,
		.rest = rest,
		.default_user = harness.user,
		.default_workdir = harness.workdir,
		.idle_timeout_ns = harness.idle_ns};
	cleanup_buf struct buf back = BUF_INIT;
	bool keep_alive = false;
	/* A forked process starts with its parent's pages. */
	struct rusage before, after;
	getrusage(RUSAGE_SELF, &before);
	int r = files_worker(&q, &back, &keep_alive);
	getrusage(RUSAGE_SELF, &after);
	long grown_kib = after.ru_maxrss - before.ru_maxrss;
	fd_write_all(result, &grown_kib, sizeof(grown_kib));
	fd_write_all(result, &r, sizeof(r));
	fd_write_all(result, &keep_alive, sizeof(keep_alive));
	fd_write_all(result, buf_str(&back).p, buf_len(&back));
	close(result);
	close(conn);
}

/* ---- the client's side ---- */

static struct reply reply;

static bool receive_some(int fd)
{
	size_t before = buf_len(&reply.wire);
	char *at = buf_reserve(&reply.wire, 65536);
	assert_non_null(at);
	ssize_t r = read(fd, at, 65536);
	if (r < 0 && errno == EAGAIN)
		return true;
	if (r <= 0)
		return false;
	buf_commit(&reply.wire, (size_t)r);
	if (harness.call && before < harness.call_at && buf_len(&reply.wire) >= harness.call_at)
		harness.call();
	return true;
}

static void talk(int fd, struct str out)
{
	fd_set_nonblock(fd, true);
	for (bool open = true; open;) {
		struct pollfd p = {.fd = fd, .events = (short)(POLLIN | (out.n ? POLLOUT : 0))};
		assert_int_equal(poll(&p, 1, 50000), 1);
		if (p.revents & POLLOUT) {
			size_t n = harness.step && harness.step < out.n ? harness.step : out.n;
			ssize_t r = send(fd, out.p, n, MSG_NOSIGNAL);
			/* The worker may have closed already: its answer is still there to be read. */
			out = r > 0                      ? str_from(out, (size_t)r)
			      : r < 0 && errno == EAGAIN ? out
							 : str_n("", 0);
			if (out.n == 0 && harness.stop_sending)
				shutdown(fd, SHUT_WR);
		}
		if (p.revents & (POLLIN | POLLHUP | POLLERR))
			open = receive_some(fd);
	}
}

static void parse_reply(bool to_head)
{
	struct str in = buf_str(&reply.wire);
	ssize_t n;
	do {
		n = http_parse_response(in, to_head, &reply.head);
		if (n <= 0)
			return;
		in = str_from(in, (size_t)n);
	} while (reply.head.status < 200);
	struct http_body body;
	http_body_init(&body, reply.head.framing, reply.head.length);
	for (struct str run; in.n && !body.done;) {
		if (http_body_next(&body, &in, &run) < 0)
			return;
		buf_add_str(&reply.body, run);
	}
	reply.complete = body.done || reply.head.framing == HTTP_BODY_UNTIL_CLOSE;
}

static void collect_worker(pid_t pid, int result)
{
	cleanup_buf struct buf told = BUF_INIT;
	for (;;) {
		char *at = buf_reserve(&told, 65536);
		ssize_t r = read(result, at, 65536);
		if (r <= 0)
			break;
		buf_commit(&told, (size_t)r);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status) || WEXITSTATUS(status)) {
		reply.result = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : 2000 + WEXITSTATUS(status);
		return;
	}
	const size_t fixed = sizeof(long) + sizeof(int) + sizeof(bool);
	assert_true(buf_len(&told) >= fixed);
	memcpy(&reply.grown_kib, told.data, sizeof(long));
	memcpy(&reply.result, told.data + sizeof(long), sizeof(int));
	memcpy(&reply.keep_alive, told.data + sizeof(long) + sizeof(int), sizeof(bool));
	buf_add_str(&reply.rest, str_from(buf_str(&told), fixed));
}

struct reply *ask_bytes(struct str request)
{
	buf_done(&reply.rest);
	buf_done(&reply.wire);
	buf_done(&reply.body);
	reply = (struct reply){0};
	const char *end = memmem(request.p, request.n, "\r\n\r\n", 4);
	assert_non_null(end);
	struct str head = str_n(request.p, (size_t)(end + 4 - request.p)), rest = str_from(request, head.n),
		   later = str_from(rest, harness.rest);
	rest.n = MIN(rest.n, harness.rest);
	int pair[2], result[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(pipe2(result, O_CLOEXEC), 0);
	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(pair[0]);
		close(result[0]);
		be_worker(pair[1], result[1], head, rest);
		exit(0); /* not _exit: the leak checker runs at exit */
	}
	close(pair[1]);
	close(result[1]);
	talk(pair[0], later);
	close(pair[0]);
	collect_worker(pid, result[0]);
	close(result[0]);
	parse_reply(str_starts(request, STR("HEAD ")));
	return &reply;
}

struct reply *ask(const char *fmt, ...)
{
	cleanup_buf struct buf request = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&request, fmt, ap);
	va_end(ap);
	return ask_bytes(buf_str(&request));
}

struct reply *get(const char *path)
{
	cleanup_buf struct buf encoded = BUF_INIT;
	url_encode(&encoded, str_of(path));
	return ask("GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n", buf_cstr(&encoded));
}

struct reply *put(const char *path, struct str bytes)
{
	cleanup_buf struct buf request = BUF_INIT;
	buf_add_c(&request, "POST /files?path=");
	url_encode(&request, str_of(path));
	buf_addf(&request,
		" HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: "
		"%zu\r\n\r\n",
		bytes.n);
	buf_add_str(&request, bytes);
	return ask_bytes(buf_str(&request));
}

struct reply *post_form(const char *query, struct str body)
{
	cleanup_buf struct buf request = BUF_INIT;
	buf_addf(&request,
		"POST /files?%s HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; "
		"boundary=B\r\nContent-Length: %zu\r\n\r\n",
		query, body.n);
	buf_add_str(&request, body);
	return ask_bytes(buf_str(&request));
}

void form_part(struct buf *to, const char *disposition, struct str bytes)
{
	buf_addf(to,
		"--B\r\nContent-Disposition: form-data; %s\r\nContent-Type: application/octet-stream\r\n\r\n",
		disposition);
	buf_add_str(to, bytes);
	buf_add_c(to, "\r\n");
}

void form_end(struct buf *to)
{
	buf_add_c(to, "--B--\r\n");
}

struct reply *rpc(const char *method, const char *json)
{
	return ask("POST /filesystem.Filesystem/%s HTTP/1.1\r\nHost: x\r\nContent-Type: "
		   "application/json\r\nConnect-Protocol-Version: 1\r\n"
		   "Content-Length: %zu\r\n\r\n%s",
		method, strlen(json), json);
}

/* ---- looking at answers ---- */

struct str header(const struct reply *r, const char *name)
{
	return http_value(&r->head, name);
}

static void show(const struct reply *r)
{
	fprintf(stderr, "worker returned %d; received %zu bytes: %.*s\n", r->result, buf_len(&r->wire),
		(int)MIN(buf_len(&r->wire), 2000UL), buf_str(&r->wire).p);
}

void harness_assert_status(const struct reply *r, int wanted, const char *file, int line)
{
	if (r->head.status == wanted && r->result == 0 && r->complete)
		return;
	show(r);
	print_error("status %d (complete: %d), wanted %d\n", r->head.status, r->complete, wanted);
	_fail(file, line);
}

void harness_assert_contains(struct str s, const char *text, const char *file, int line)
{
	if (memmem(s.p, s.n, text, strlen(text)))
		return;
	print_error("'%s' is not in '%.*s'\n", text, (int)MIN(s.n, 2000UL), s.p);
	_fail(file, line);
}

static json_t *parse_body(const struct reply *r, const char *file, int line)
{
	struct error err = {0};
	json_t *j = json_parse(buf_str(&r->body), 1 << 26, "body", &err);
	if (!json_is_object(j) || !str_is(header(r, "Content-Type"), "application/json")) {
		show(r);
		print_error("no JSON object (%s)\n", err.message);
		_fail(file, line);
	}
	return j;
}

void harness_assert_failure(const struct reply *r, int wanted, const char *text, const char *file, int line)
{
	harness_assert_status(r, wanted, file, line);
	cleanup_json json_t *j = parse_body(r, file, line);
	_assert_int_equal(
		(uintmax_t)json_integer_value(json_object_get(j, "code")), (uintmax_t)wanted, file, line);
	harness_assert_contains(json_str(json_object_get(j, "message")), text, file, line);
	_assert_int_equal(json_object_size(j), 2, file, line);
}

void harness_assert_rpc_failure(
	const struct reply *r, const char *code, const char *text, const char *file, int line)
{
	cleanup_json json_t *j = parse_body(r, file, line);
	const char *given = json_string_value(json_object_get(j, "code"));
	if (!given || strcmp(given, code) != 0 || r->head.status < 400) {
		show(r);
		print_error("wanted Connect error %s\n", code);
		_fail(file, line);
	}
	harness_assert_contains(json_str(json_object_get(j, "message")), text, file, line);
}

void harness_assert_body(const struct reply *r, struct str wanted, const char *file, int line)
{
	struct str got = buf_str(&r->body);
	if (str_eq(got, wanted))
		return;
	show(r);
	print_error("body of %zu bytes is not the %zu bytes wanted: '%.*s'\n", got.n, wanted.n,
		(int)MIN(wanted.n, 500UL), wanted.p);
	_fail(file, line);
}

/* ---- the disk ---- */

void disk_write(const char *path, struct str bytes)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, bytes.p, bytes.n), 0);
}

struct str disk_read(const char *path)
{
	static struct buf content;
	buf_done(&content);
	assert_int_equal(file_read(AT_FDCWD, path, 1 << 30, &content), 0);
	return buf_str(&content);
}

unsigned disk_mode(const char *path)
{
	struct stat st;
	assert_int_equal(lstat(path, &st), 0);
	return st.st_mode & 07777;
}

bool disk_exists(const char *path)
{
	struct stat st;
	return lstat(path, &st) == 0;
}
