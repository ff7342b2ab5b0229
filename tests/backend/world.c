#include "backend/world.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/log.h"
#include "config/instance.h"
#include "io/connect.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { PATIENCE_MS = 60000 };

bool world_possible(void)
{
	const char *why = geteuid() != 0 ? "they need root" : access("/bin/busybox", X_OK) < 0 ? "busybox-static is not installed" :
			access("/usr/bin/mkfs.erofs", X_OK) < 0 ? "erofs-utils is not installed" : NULL;
	if (why)
		fprintf(stderr, "the backend's tests are skipped: %s\n", why);
	return !why;
}

static void run_shell(const char *script, const char *a, const char *b)
{
	pid_t pid = fork();
	if (pid == 0) {
		execl("/bin/sh", "sh", "-ec", script, "sh", a, b, NULL);
		_exit(127);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status)
		fail_msg("script failed: %s", script);
}

/* A range of ids that no other test of this machine has now: who has it holds a name. */
static unsigned take_ids(void)
{
	for (unsigned i = 0;; i++) {
		unsigned n = ((unsigned)getpid() + i) % 32;
		struct sockaddr_un name = {.sun_family = AF_UNIX};
		int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "cubicle-backend-test-%u", n);
		int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		assert_true(fd >= 0 && i < 32);
		if (bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) == 0)
			return 0x40000000u + n * WORLD_IDS;
		close(fd);
	}
}

void world_init(struct world *w)
{
	static unsigned ids;
	char base[16];
	*w = (struct world){0};
	assert_non_null(getenv("CUBICLE_PROBE"));
	snprintf(w->dir, sizeof(w->dir), "/tmp/cubicle-backend-%d", getpid());
	snprintf(w->template, sizeof(w->template), "%s/template.erofs", w->dir);
	if (!ids)
		ids = take_ids();
	w->uid_base = ids;
	snprintf(base, sizeof(base), "%u", w->uid_base);
	run_shell("rm -rf $1; mkdir -p $1/tree; cd $1/tree; mkdir -m 755 bin etc home home/user root dev proc sys run usr; mkdir -m 1777 tmp\n"
		  "cp /bin/busybox bin/; for c in $(busybox --list); do [ $c = busybox ] || ln -s busybox bin/$c; done\n"
		  "cp $2 bin/probe; printf 'root::0:0::/root:/bin/sh\\nuser:x:1000:1000::/home/user:/bin/sh\\n' > etc/passwd\n"
		  "cp $2 bin/probe; printf 'root:x:0:\\nuser:x:1000:\\n' > etc/group; chown 1000:1000 home/user; cp bin/busybox bin/busybox-suid; chmod 4755 bin/busybox-suid\n"
		  "ln -s /etc/elsewhere etc/hosts; head -c 1000000 /dev/urandom > etc/blob\n"
		  "mkdir -p opt/moved/deep opt/replaced; echo one > opt/moved/deep/one; echo two > opt/moved/two; echo old > opt/replaced/old; echo gone > opt/gone\n"
		  "mkfs.erofs $1/template.erofs . >/dev/null; cd /; rm -rf $1/tree",
		w->dir, getenv("CUBICLE_PROBE"));
	assert_int_equal(options_init(&w->options), 0);
	world_set(w, "state.dir", w->dir);
	world_set(w, "pool.min", "0");
	world_set(w, "pool.max", "0");
	world_set(w, "sandbox.disk", "256");
	world_set(w, "sandbox.memory", "128");
	world_set(w, "max_sandboxes", "80");
	world_set(w, "uid_base", base);
}

void world_set(struct world *w, const char *option, const char *value)
{
	struct error err = {0};
	if (options_set(&w->options, str_of(option), str_of(value), "test", &err) < 0)
		fail_msg("%s", err.message);
}

static void dns_serve(unsigned slot, int udp, int tcp, bool allow, struct str sandbox, void *arg)
{
}

static void dns_stop(unsigned slot, void *arg)
{
}

void world_start(struct world *w)
{
	static char node[80];
	struct error err = {0};
	snprintf(node, sizeof(node), "%s/node", w->dir);
	mkdir(node, 0700);
	struct backend_config c = {
		.options = &w->options,
		.state_dir = node,
		.init_path = getenv("CUBICLE_INIT"),
		.machines = w->machines,
		.dns_serve = dns_serve,
		.dns_stop = dns_stop,
	};
	assert_non_null(c.init_path);
	log_setup("test", 2, LOG_WARN);
	w->loop = loop_new();
	assert_non_null(w->loop);
	if (backend_new(w->loop, &c, &w->backend, &err) < 0)
		fail_msg("%s", err.message);
}

void world_ready(struct world *w)
{
	backend_ready(w->backend);
}

static void set_flag(void *arg)
{
	*(bool *)arg = true;
}

void world_stop(struct world *w)
{
	bool drained = false;
	backend_drain(w->backend, set_flag, &drained);
	wait_for(w, &drained, "the backend to drain");
	backend_free(w->backend);
	loop_free(w->loop);
	w->backend = NULL;
	w->loop = NULL;
}

void world_done(struct world *w)
{
	assert_int_equal(remove_tree(AT_FDCWD, w->dir), 0);
	options_done(&w->options);
}

void wait_for(struct world *w, const bool *flag, const char *what)
{
	for (int64_t end = clock_monotonic() + PATIENCE_MS * NS_PER_MS; !*flag;) {
		loop_turn(w->loop, 100);
		if (clock_monotonic() > end)
			fail_msg("waited in vain for %s", what);
	}
}

void turn(struct world *w, int ms)
{
	for (int64_t end = clock_monotonic() + ms * NS_PER_MS; clock_monotonic() < end;)
		loop_turn(w->loop, 10);
}

static void on_started(struct box *b, const struct box_handle *h, const struct error *err, void *arg)
{
	struct patient *p = arg;
	p->started = true;
	p->failed = err != NULL;
	if (err) {
		p->error = *err;
		box_evidence(b, &p->death);
		p->box = NULL;
	} else {
		p->handle = *h;
	}
}

static void on_died(struct box *b, const struct box_death *d, void *arg)
{
	struct patient *p = arg;
	p->died = true;
	p->death = *d;
}

static void on_released(struct box *b, void *arg)
{
	struct patient *p = arg;
	p->released = true;
	p->box = NULL;
}

static void on_prepared(struct box *b, bool ready, const char *why, void *arg)
{
	struct patient *p = arg;
	if (why)
		snprintf(p->why, sizeof(p->why), "%s", why);
	p->prepared = ready;
	p->unready |= !ready;
}

void patient_assigned(const struct error *err, void *arg)
{
	struct patient *p = arg;
	p->assigned = true;
	p->assignment = err ? *err : (struct error){0};
}

void patient_assign(struct world *w, struct patient *p, const struct buf *envs, const char *token)
{
	const struct box_assignment a = {.envs = {buf_str(envs)}, .token = str_of(token)};
	p->assigned = false;
	assert_int_equal(box_assign(p->box, &a, patient_assigned, p), 0);
	assert_false(p->assigned);
	wait_for(w, &p->assigned, "an assignment");
}

void world_add_service(struct buf *list, const char *name, const char *user, const char *port, const char *command)
{
	cleanup_buf struct buf item = BUF_INIT;
	struct str rest = str_of(command), word;
	msg_list_add(&item, str_of(name));
	msg_list_add(&item, str_of(user));
	msg_list_add(&item, str_of(port));
	while (str_cut(rest, ' ', &word, &rest))
		msg_list_add(&item, word);
	msg_list_add(&item, rest);
	assert_int_equal(msg_list_add(list, buf_str(&item)), 0);
}

static void on_programs(struct box *b, void *arg)
{
	struct patient *p = arg;
	p->programs = !p->started;
}

const struct box_ops patient_ops = {on_started, on_died, on_released, on_prepared, on_programs};
const struct box_network any_network = {.internet = true};

struct box_spec world_spec(struct world *w, const char *id)
{
	return (struct box_spec){
		.id = str_of(id),
		.template_id = STR("busybox"),
		.layers = {w->template},
		.n_layers = 1,
		.cpu_count = (uint32_t)w->options.sandbox_cpu,
		.memory_mb = (uint32_t)w->options.sandbox_memory,
		.disk_mb = (uint32_t)w->options.sandbox_disk,
		.pids = (uint32_t)w->options.sandbox_pids,
		.user = STR("user"),
		.internet = true,
	};
}

void patient_create(struct world *w, struct patient *p, const struct box_spec *spec)
{
	struct error err = {0};
	*p = (struct patient){0};
	p->box = box_create(w->backend, spec, &patient_ops, p, &err);
	if (!p->box)
		fail_msg("%s", err.message);
}

void patient_run(struct world *w, struct patient *p, const char *id)
{
	struct box_spec spec = world_spec(w, id);
	patient_create(w, p, &spec);
	wait_for(w, &p->started, "a sandbox to start");
	if (p->failed)
		fail_msg("%s", p->error.message);
}

void patient_kill(struct world *w, struct patient *p)
{
	box_kill(p->box);
	wait_for(w, &p->released, "a sandbox to be released");
}

struct opening {
	int fd;
	bool done;
};

static void on_open(int fd_or_error, void *arg)
{
	struct opening *o = arg;
	o->fd = fd_or_error;
	o->done = true;
}

static void send_start(int fd, const char *user, const char *script)
{
	json_t *body = json_pack("{s:{s:s,s:[s,s]},s:b}", "process", "cmd", "/bin/sh", "args", "-c", script, "stdin", 0);
	char *text = json_dumps(body, 0), credentials[64];
	cleanup_buf struct buf message = BUF_INIT, request = BUF_INIT;
	connect_envelope(&message, 0, str_of(text));
	buf_addf(&request, "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n"
			   "Connection: close\r\nContent-Length: %zu\r\nAuthorization: Basic ", buf_len(&message));
	snprintf(credentials, sizeof(credentials), "%s:", user);
	base64_encode(&request, str_of(credentials));
	buf_addf(&request, "\r\n\r\n");
	buf_add_str(&request, buf_str(&message));
	assert_int_equal(fd_write_all(fd, buf_str(&request).p, buf_len(&request)), 0);
	free(text);
	json_decref(body);
}

/* Takes the chunked transfer coding off. */
static void unchunk(struct str in, struct buf *to)
{
	while (in.n) {
		struct str line, rest;
		if (!str_cut(in, '\n', &line, &rest))
			return;
		size_t n = strtoul(line.p, NULL, 16);
		if (n == 0 || n + 2 > rest.n)
			return;
		buf_add(to, rest.p, n);
		in = str_from(rest, n + 2);
	}
}

static void read_events(struct str body, struct buf *out, int *code)
{
	unsigned flags;
	struct str message;
	ssize_t n;
	while ((n = connect_parse_envelope(body, 1 << 20, &flags, &message)) > 0) {
		json_t *root = json_loadb(message.p, message.n, 0, NULL), *event = json_object_get(root, "event");
		json_t *end = json_object_get(event, "end"), *data = json_object_get(event, "data");
		if (data && json_object_get(data, "stdout"))
			base64_decode(out, json_str(json_object_get(data, "stdout")));
		if (data && json_object_get(data, "stderr"))
			base64_decode(out, json_str(json_object_get(data, "stderr")));
		if (end)
			*code = (int)json_integer_value(json_object_get(end, "exitCode"));
		if (json_object_get(root, "error"))
			fail_msg("envd: %.*s", STR_FMT(message));
		json_decref(root);
		body = str_from(body, (size_t)n);
	}
}

int world_open(struct world *w, struct patient *p, uint16_t port)
{
	struct opening o = {.fd = -1};
	assert_int_equal(box_open(p->box, port, on_open, &o), 0);
	wait_for(w, &o.done, "a connection");
	if (o.fd >= 0)
		fd_set_nonblock(o.fd, false);
	return o.fd;
}

int inside(struct world *w, struct patient *p, const char *user, const char *script, struct buf *out)
{
	int fd = world_open(w, p, 49983);
	if (fd < 0)
		fail_msg("envd cannot be reached: %s", strerror(-fd));
	send_start(fd, user, script);
	cleanup_buf struct buf answer = BUF_INIT, body = BUF_INIT;
	for (int64_t end = clock_monotonic() + PATIENCE_MS * NS_PER_MS;;) {
		struct pollfd q = {.fd = fd, .events = POLLIN};
		loop_turn(w->loop, 0);
		if (poll(&q, 1, 20) > 0) {
			char bytes[65536];
			ssize_t n = read(fd, bytes, sizeof(bytes));
			if (n <= 0)
				break;
			buf_add(&answer, bytes, (size_t)n);
		}
		if (clock_monotonic() > end)
			fail_msg("waited in vain for: %s", script);
	}
	close(fd);
	const char *text = buf_cstr(&answer), *head_end = strstr(text, "\r\n\r\n");
	if (!head_end || strncmp(text, "HTTP/1.1 200", 12) != 0)
		fail_msg("envd answered: %s", text);
	struct str rest = str_from(buf_str(&answer), (size_t)(head_end + 4 - text));
	unchunk(rest, &body);
	int code = -1000;
	buf_clear(out);
	read_events(buf_str(&body), out, &code);
	if (code == -1000)
		fail_msg("no end of: %s (%s)", script, text);
	return code;
}

void expect_inside_as(struct world *w, struct patient *p, const char *user, const char *script, const char *output)
{
	cleanup_buf struct buf out = BUF_INIT;
	int code = inside(w, p, user, script, &out);
	if (code != 0 || strcmp(buf_cstr(&out), output) != 0)
		fail_msg("%s: exit %d, output «%s», expected «%s»", script, code, buf_cstr(&out), output);
}

void expect_inside(struct world *w, struct patient *p, const char *script, const char *output)
{
	expect_inside_as(w, p, "root", script, output);
}

static void run_into(struct buf *to, const char *script, const char *a, const char *b, const char *c)
{
	int pipes[2];
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(pipes[1], 1);
		execl("/bin/sh", "sh", "-c", script, "sh", a, b, c, NULL);
		_exit(127);
	}
	close(pipes[1]);
	char bytes[4096];
	ssize_t n;
	while ((n = read(pipes[0], bytes, sizeof(bytes))) > 0)
		buf_add(to, bytes, (size_t)n);
	close(pipes[0]);
	waitpid(pid, NULL, 0);
}

bool is_ours(struct world *w, const char *pid)
{
	char path[300];
	unsigned inner, outer;
	cleanup_buf struct buf map = BUF_INIT;
	snprintf(path, sizeof(path), "/proc/%s/uid_map", pid);
	return *pid >= '0' && *pid <= '9' && file_read(AT_FDCWD, path, 256, &map) == 0 && sscanf(buf_cstr(&map), "%u %u", &inner, &outer) == 2 &&
		outer >= w->uid_base && outer - w->uid_base < WORLD_IDS;
}

void inventory(struct world *w, struct buf *to)
{
	struct instance i;
	instance_of(&w->options, &i);
	/* Only what carries this world's names: others work on the same machine. */
	run_into(to,
		"echo cgroups; find /sys/fs/cgroup -maxdepth 3 -type d -path \"*$2/*\" 2>/dev/null | sort; echo links; ls /sys/class/net | grep -i \"cub$3x\" | sort\n"
		"echo loops; grep -l \"$1\" /sys/block/loop*/loop/backing_file 2>/dev/null; echo mounts; grep -c \"$1\" /proc/self/mountinfo\n"
		"echo files; find $1 -path '*/disks/*' -o -path '*/control/*' | sort; echo processes",
		w->dir, i.cgroup, i.tag);
	cleanup_dir DIR *d = opendir("/proc");
	for (struct dirent *e; (e = readdir(d));)
		if (is_ours(w, e->d_name))
			buf_addf(to, "%s\n", e->d_name);
}

void expect_inventory(struct world *w, const struct buf *before)
{
	cleanup_buf struct buf now = BUF_INIT;
	for (int tries = 0; tries < 600; tries++) {
		buf_clear(&now);
		inventory(w, &now);
		if (str_eq(buf_str(&now), buf_str(before)))
			return;
		if (w->loop)
			turn(w, 100);
		else
			usleep(100000);
	}
	fail_msg("left over:\n%s\nbefore:\n%.*s", buf_cstr(&now), STR_FMT(buf_str(before)));
}
