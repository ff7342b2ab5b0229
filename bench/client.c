/*
 * The measuring client: replays the recorded bytes of npm e2b 2.51 (e2b.md Appendix 1) over plain sockets, so that no SDK's own cost is in
 * the figures. One thread a caller. Prints one JSON object.
 *
 *   client MODE HOST:PORT KEY CONCURRENCY ROUNDS [TEMPLATE]
 *
 * MODE  create  POST /v2/sandboxes, then Start of /bin/echo without a shell, until its first output byte; the DELETE afterwards is timed apart
 *       cell    the same with POST /execute of `1+1` to port 49999, until the line of its result, as npm @e2b/code-interpreter 2.8 sends it
 *       exec    one sandbox a caller, Start of /bin/echo until the end of its stream
 *       loop    the same until standard input ends, ROUNDS at most
 *       hold    creates CONCURRENCY x ROUNDS sandboxes, prints, and keeps them until standard input ends
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVE = 64 * 1024 };

static struct sockaddr_in server;
static const char *key, *host, *template = "base";
static int rounds;
static atomic_bool over;
static pthread_barrier_t gate;

struct sandbox {
	char id[64], token[160], launch[8];
	int status; /* of the create; < 0: no answer came */
	double ms; /* until that answer */
};

struct connection {
	int fd;
	size_t have; /* bytes in data */
	char data[RECEIVE];
};

struct caller {
	pthread_t thread;
	double *ms; /* of each success */
	double *gone; /* ms of each DELETE that was answered with 204 */
	int ok, failed, deleted, warm, cold;
	char failure[200];
	struct sandbox *held; /* by `hold` */
};

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int open_connection(struct connection *c)
{
	int one = 1;
	c->have = 0;
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&server, sizeof(server)) < 0)
		return -errno;
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	struct timeval patience = {.tv_sec = 120};
	setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return 0;
}

static int send_all(struct connection *c, const char *p, size_t n)
{
	while (n) {
		ssize_t r = send(c->fd, p, n, MSG_NOSIGNAL);
		if (r <= 0)
			return -EIO;
		p += r;
		n -= (size_t)r;
	}
	return 0;
}

/* Reads until `needle` was seen: a pointer to it, or NULL. */
static char *read_until(struct connection *c, const char *needle)
{
	for (;;) {
		char *hit = memmem(c->data, c->have, needle, strlen(needle));
		if (hit)
			return hit;
		if (c->have == sizeof(c->data))
			return NULL;
		ssize_t r = recv(c->fd, c->data + c->have, sizeof(c->data) - c->have, 0);
		if (r <= 0)
			return NULL;
		c->have += (size_t)r;
	}
}

static void drop_until_after(struct connection *c, const char *hit, const char *needle)
{
	size_t n = (size_t)(hit - c->data) + strlen(needle);
	memmove(c->data, c->data + n, c->have - n);
	c->have -= n;
}

/* Reads one answer with Content-Length: its status (body left at *ret_body, valid until the next read), or -EIO. */
static int read_answer(struct connection *c, char *ret_body, size_t size)
{
	char *end = read_until(c, "\r\n\r\n");
	if (!end || c->have < 12)
		return -EIO;
	int status = atoi(c->data + 9);
	size_t head = (size_t)(end - c->data) + 4, length = 0;
	char *field = memmem(c->data, head, "ontent-Length: ", 15);
	if (!field)
		field = memmem(c->data, head, "ontent-length: ", 15);
	if (field)
		length = strtoul(field + 15, NULL, 10);
	while (c->have < head + length) {
		ssize_t r = recv(c->fd, c->data + c->have, sizeof(c->data) - c->have, 0);
		if (r <= 0)
			return -EIO;
		c->have += (size_t)r;
	}
	if (ret_body) {
		size_t n = length < size - 1 ? length : size - 1;
		memcpy(ret_body, c->data + head, n);
		ret_body[n] = '\0';
	}
	memmove(c->data, c->data + head + length, c->have - head - length);
	c->have -= head + length;
	return status;
}

static void json_field(const char *body, const char *name, char *to, size_t size)
{
	char pattern[64];
	snprintf(pattern, sizeof(pattern), "\"%s\":", name);
	const char *at = strstr(body, pattern);
	to[0] = '\0';
	if (!at)
		return;
	at += strlen(pattern);
	while (*at == ' ')
		at++;
	if (*at++ != '"')
		return;
	size_t n = strcspn(at, "\"");
	if (n < size) {
		memcpy(to, at, n);
		to[n] = '\0';
	}
}

static int create(struct connection *c, struct sandbox *ret, char *failure)
{
	char request[2048], body[4096], json[256];
	int length = snprintf(json, sizeof(json), "{\"templateID\":\"%s\"}", template);
	int n = snprintf(request, sizeof(request),
		"POST /v2/sandboxes HTTP/1.1\r\nhost: %s\r\nconnection: keep-alive\r\nX-API-KEY: %s\r\nUser-Agent: e2b-js-sdk/2.51.0\r\nbrowser: unknown\r\nlang: js\r\n"
		"lang_version: 20.20.2\r\npackage_version: 2.51.0\r\npublisher: e2b\r\nsdk_runtime: node\r\nsystem: linux\r\ncontent-type: application/json\r\naccept: */*\r\n"
		"accept-language: *\r\nsec-fetch-mode: cors\r\naccept-encoding: gzip, deflate\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
		host, key, (unsigned)length, json);
	ret->status = send_all(c, request, (size_t)n) < 0 ? -EIO : read_answer(c, body, sizeof(body));
	if (ret->status != 201) {
		snprintf(failure, 200, "create: %d %.150s", ret->status, ret->status > 0 ? body : "");
		return -EIO;
	}
	json_field(body, "launch", ret->launch, sizeof(ret->launch));
	json_field(body, "sandboxID", ret->id, sizeof(ret->id));
	json_field(body, "envdAccessToken", ret->token, sizeof(ret->token));
	return 0;
}

/* Runs /bin/echo and reads its whole stream; *ret_first is the time of the first output byte. */
static int start_echo(struct connection *c, const struct sandbox *s, double *ret_first, char *failure)
{
	char request[2048];
	static const char json[] = "{\"process\":{\"cmd\":\"/bin/echo\",\"args\":[\"hi\"]},\"stdin\":false}";
	size_t length = sizeof(json) - 1;
	int n = snprintf(request, sizeof(request),
		"POST /process.Process/Start HTTP/1.1\r\nhost: %s\r\nconnection: keep-alive\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: %s\r\n"
		"User-Agent: e2b-js-sdk/2.51.0\r\nconnect-protocol-version: 1\r\ncontent-type: application/connect+json\r\nkeepalive-ping-interval: 50\r\nconnect-timeout-ms: 60000\r\n"
		"accept: */*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\naccept-encoding: gzip, deflate\r\ncontent-length: %zu\r\n\r\n",
		host, s->id, s->token, length + 5);
	memcpy(request + n, (char[]){0, (char)(length >> 24), (char)(length >> 16), (char)(length >> 8), (char)length}, 5);
	memcpy(request + n + 5, json, length);
	if (send_all(c, request, (size_t)n + 5 + length) < 0)
		return -EIO;
	static const char end[] = "\r\n0\r\n\r\n";
	char *hit = read_until(c, "\"stdout\"");
	*ret_first = now_ms();
	if (hit)
		hit = read_until(c, end);
	if (!hit || !memmem(c->data, c->have, "aGkK", 4)) {
		snprintf(failure, 200, "start: %.*s", (int)(c->have < 150 ? c->have : 150), c->data);
		return -EIO;
	}
	drop_until_after(c, hit, end);
	return 0;
}

/* Runs the cell `1+1` and reads its whole answer; *ret_first is the time of the result. */
static int run_one_cell(struct connection *c, const struct sandbox *s, double *ret_first, char *failure)
{
	char request[1024];
	static const char json[] = "{\"code\":\"1+1\"}", end[] = "\r\n0\r\n\r\n";
	int n = snprintf(request, sizeof(request),
		"POST /execute HTTP/1.1\r\nhost: %s\r\nconnection: keep-alive\r\nContent-Type: application/json\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49999\r\n"
		"X-Access-Token: %s\r\naccept: */*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\nuser-agent: node\r\naccept-encoding: gzip, deflate\r\ncontent-length: %zu\r\n\r\n%s",
		host, s->id, s->token, sizeof(json) - 1, json);
	if (send_all(c, request, (size_t)n) < 0)
		return -EIO;
	char *hit = read_until(c, "\"is_main_result\": true");
	*ret_first = now_ms();
	if (hit)
		hit = read_until(c, end);
	if (!hit || !memmem(c->data, c->have, "\"text\": \"2\"", 11)) {
		snprintf(failure, 200, "execute: %.*s", (int)(c->have < 150 ? c->have : 150), c->data);
		return -EIO;
	}
	drop_until_after(c, hit, end);
	return 0;
}

static bool destroy(struct connection *c, const struct sandbox *s)
{
	char request[512];
	int n = snprintf(request, sizeof(request), "DELETE /sandboxes/%s HTTP/1.1\r\nhost: %s\r\nX-API-KEY: %s\r\n\r\n", s->id, host, key);
	return send_all(c, request, (size_t)n) == 0 && read_answer(c, NULL, 0) == 204;
}

/* Creates, uses once by `use`, deletes. */
static void run_lives(struct caller *me, int (*use)(struct connection *, const struct sandbox *, double *, char *))
{
	struct connection *control = malloc(sizeof(*control)), *data = malloc(sizeof(*data));
	if (!control || !data || open_connection(control) < 0 || open_connection(data) < 0)
		abort();
	pthread_barrier_wait(&gate);
	for (int i = 0; i < rounds; i++) {
		struct sandbox s;
		double start = now_ms();
		if (create(control, &s, me->failure) < 0) {
			me->failed++;
			close(control->fd);
			if (open_connection(control) < 0)
				break;
			continue;
		}
		double first;
		*(strcmp(s.launch, "warm") == 0 ? &me->warm : &me->cold) += 1;
		if (use(data, &s, &first, me->failure) < 0) {
			me->failed++;
			close(data->fd);
			if (open_connection(data) < 0)
				break;
		} else {
			me->ms[me->ok++] = first - start;
		}
		start = now_ms();
		if (destroy(control, &s))
			me->gone[me->deleted++] = now_ms() - start;
	}
}

static void *run_create(void *arg)
{
	run_lives(arg, start_echo);
	return NULL;
}

static void *run_cell(void *arg)
{
	run_lives(arg, run_one_cell);
	return NULL;
}

static void *run_exec(void *arg)
{
	struct caller *me = arg;
	struct connection *c = malloc(sizeof(*c));
	struct sandbox s;
	bool made = c && open_connection(c) == 0 && create(c, &s, me->failure) == 0;
	pthread_barrier_wait(&gate);
	for (int i = 0; made && i < rounds && !over; i++) {
		double start = now_ms(), first;
		if (start_echo(c, &s, &first, me->failure) < 0) {
			me->failed++;
			break;
		}
		me->ms[me->ok++] = now_ms() - start;
	}
	if (made)
		destroy(c, &s);
	else
		me->failed++;
	return NULL;
}

static void *run_hold(void *arg)
{
	struct caller *me = arg;
	struct connection *c = malloc(sizeof(*c));
	if (!c || open_connection(c) < 0)
		abort();
	pthread_barrier_wait(&gate);
	for (int i = 0; i < rounds; i++) {
		double start = now_ms();
		if (create(c, &me->held[i], me->failure) < 0) {
			me->held[i].id[0] = '\0';
			me->failed++;
			if (me->held[i].status > 0)
				continue;
			close(c->fd);
			if (open_connection(c) < 0)
				break;
		} else {
			me->ms[me->ok++] = me->held[i].ms = now_ms() - start;
			*(strcmp(me->held[i].launch, "warm") == 0 ? &me->warm : &me->cold) += 1;
		}
	}
	return NULL;
}

static void *watch_input(void *arg)
{
	while (getchar() != EOF)
		;
	over = true;
	return arg;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void report(const char *mode, struct caller *callers, int n, double wall)
{
	int ok = 0, failed = 0, warm = 0, cold = 0;
	const char *failure = "";
	double *all = calloc((size_t)n * (size_t)rounds + 1, sizeof(*all));
	for (int i = 0; i < n; i++) {
		memcpy(all + ok, callers[i].ms, (size_t)callers[i].ok * sizeof(*all));
		ok += callers[i].ok;
		failed += callers[i].failed;
		warm += callers[i].warm;
		cold += callers[i].cold;
		if (callers[i].failed)
			failure = callers[i].failure;
	}
	qsort(all, (size_t)ok, sizeof(*all), by_value);
	printf("{\"mode\":\"%s\",\"concurrency\":%d,\"ok\":%d,\"failed\":%d,\"warm\":%d,\"cold\":%d,\"p50_ms\":%.3f,\"p90_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f,\"per_second\":%.1f",
		mode, n, ok, failed, warm, cold, ok ? all[ok / 2] : 0, ok ? all[ok * 9 / 10] : 0, ok ? all[ok * 99 / 100] : 0, ok ? all[ok - 1] : 0, ok / wall * 1e3);
	printf(",\"samples_ms\":[");
	for (int i = 0; i < ok; i++)
		printf(i ? ",%.3f" : "%.3f", all[i]);
	printf("]");
	const char *comma = "";
	printf(",\"deletes_ms\":[");
	for (int i = 0; i < n; i++)
		for (int j = 0; j < callers[i].deleted; j++, comma = ",")
			printf("%s%.3f", comma, callers[i].gone[j]);
	printf("]");
	if (callers[0].held) {
		comma = "";
		printf(",\"creates\":[");
		for (int i = 0; i < n; i++)
			for (int j = 0; j < rounds; j++, comma = ",")
				printf("%s{\"status\":%d,\"id\":\"%s\",\"launch\":\"%s\",\"ms\":%.3f}", comma, callers[i].held[j].status, callers[i].held[j].id,
					callers[i].held[j].launch, callers[i].held[j].ms);
		printf("]");
	}
	if (failed) {
		printf(",\"failure\":\"");
		for (const char *p = failure; *p; p++)
			putchar(*p == '"' || *p == '\\' || (unsigned char)*p < ' ' ? '\'' : *p);
		printf("\"");
	}
	printf("}\n");
	fflush(stdout);
	free(all);
}

int main(int argc, char **argv)
{
	if (argc != 6 && argc != 7) {
		fprintf(stderr, "usage: client create|cell|exec|loop|hold HOST:PORT KEY CONCURRENCY ROUNDS [TEMPLATE]\n");
		return 2;
	}
	if (argc == 7)
		template = argv[6];
	host = argv[2];
	key = argv[3];
	char address[64];
	const char *colon = strrchr(host, ':');
	if (!colon || (size_t)(colon - host) >= sizeof(address))
		return 2;
	memcpy(address, host, (size_t)(colon - host));
	address[colon - host] = '\0';
	server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
	int n = atoi(argv[4]);
	rounds = atoi(argv[5]);
	if (inet_pton(AF_INET, address, &server.sin_addr) != 1 || n < 1 || rounds < 1 || strlen(template) > 128)
		return 2;
	void *(*run)(void *) = strcmp(argv[1], "create") == 0 ? run_create
		: strcmp(argv[1], "cell") == 0 ? run_cell
		: strcmp(argv[1], "exec") == 0 || strcmp(argv[1], "loop") == 0 ? run_exec
		: strcmp(argv[1], "hold") == 0 ? run_hold
		: NULL;
	if (!run)
		return 2;
	struct caller *callers = calloc((size_t)n, sizeof(*callers));
	pthread_barrier_init(&gate, NULL, (unsigned)n + 1);
	for (int i = 0; i < n; i++) {
		callers[i].ms = calloc((size_t)rounds, sizeof(double));
		callers[i].gone = calloc((size_t)rounds, sizeof(double));
		callers[i].held = run == run_hold ? calloc((size_t)rounds, sizeof(struct sandbox)) : NULL;
		if (pthread_create(&callers[i].thread, NULL, run, &callers[i]) != 0)
			abort();
	}
	pthread_barrier_wait(&gate);
	double start = now_ms();
	pthread_t watcher;
	if (strcmp(argv[1], "loop") == 0 && pthread_create(&watcher, NULL, watch_input, NULL) != 0)
		abort();
	for (int i = 0; i < n; i++)
		pthread_join(callers[i].thread, NULL);
	report(argv[1], callers, n, now_ms() - start);
	if (run == run_hold) {
		struct connection *c = malloc(sizeof(*c));
		while (getchar() != EOF)
			;
		if (!c || open_connection(c) < 0)
			return 1;
		for (int i = 0; i < n; i++)
			for (int j = 0; j < rounds; j++)
				if (callers[i].held[j].id[0])
					destroy(c, &callers[i].held[j]);
	}
	int failed = 0;
	for (int i = 0; i < n; i++)
		failed += callers[i].failed;
	return failed ? 1 : 0;
}
