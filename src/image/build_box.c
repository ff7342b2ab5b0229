#include "image/build.h"
#include "base/cleanup.h"
#include "image/build_image.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
	LINES_KEPT = 8,    /* of a command's output, for the error */
	LINE_KEPT = 160,
	LAYER_KEY = 5 + STACK_KEY + 1,
};

void build_log(struct build *b, int level, const char *fmt, ...)
{
	cleanup_buf struct buf text = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&text, fmt, ap);
	va_end(ap);
	ask_log(b->ask, level, b->step, buf_str(&text));
}

void build_progress(struct build *b, const char *phase, unsigned percent)
{
	if (percent <= b->progress && b->phase && !strcmp(phase, b->phase))
		return;
	b->progress = MAX(b->progress, percent);
	b->phase = phase;
	ask_progress(b->ask, phase, b->progress);
}

static int connect_box(void *arg, unsigned port, struct error *err)
{
	struct box *box = arg;
	return ask_open_box(box->build->ask, box->id, port, err);
}

/* Fewer layers: those on top that nobody else has become one. */
static int make_room(struct build *b, struct stack *s, size_t most, struct error *err)
{
	cleanup_buf struct buf names = BUF_INIT, below = BUF_INIT;
	struct ask_layer merged;
	if (s->n <= most)
		return 0;
	size_t first = s->n;
	while (first > 0 && strncmp(s->layers[first - 1].file, "images/o", 8) != 0)
		first--;
	/* That was not enough: also some of the image's. */
	first = MIN(first, most - 1);
	for (size_t i = 0; i < s->n; i++)
		if (msg_list_add(i < first ? &below : &names, str_of(s->layers[i].file)) < 0)
			return error_errno(err, -ENOMEM, "layers");
	build_log(b, 0, "Merging %zu layers", s->n - first);
	int r = ask_merge_layers(b->ask, (struct msg_list){buf_str(&names)}, (struct msg_list){buf_str(&below)}, &merged, err);
	if (r < 0)
		return r;
	s->n = first;
	return stack_add(s, &merged, err);
}

int build_squeeze(struct build *b, struct stack *s, struct error *err)
{
	return make_room(b, s, STACK_TEMPLATE, err);
}

int build_open_box(struct build *b, const struct stack *s, struct box *ret, struct error *err)
{
	cleanup_buf struct buf names = BUF_INIT;
	uint64_t id;
	for (size_t i = 0; i < s->n; i++)
		if (msg_list_add(&names, str_of(s->layers[i].file)) < 0)
			return error_errno(err, -ENOMEM, "layers");
	int r = ask_start_box(b->ask, (struct msg_list){buf_str(&names)}, "root", b->token, &id, err);
	if (r < 0)
		return r;
	*ret = (struct box){.build = b, .id = id, .envd = {.connect = connect_box, .arg = ret, .token = b->token}};
	return 0;
}

void build_end_box(struct box *box)
{
	struct error ignored = {0};
	if (box->build)
		ask_end_box(box->build->ask, box->id, &ignored);
	box->build = NULL;
}

/* The layer of an earlier build: 1; 0: it is ours to make. */
static int take_cached(struct build *b, struct stack *s, const char *key, struct error *err)
{
	struct ask_layer layer;
	int r = ask_find_layer(b->ask, key, true, &layer, err);
	if (r < 0 || !layer.file[0])
		return r;
	r = stack_add(s, &layer, err);
	return r < 0 ? r : 1;
}

static int make_layer(struct build *b, struct stack *s, const char *key, int (*make)(struct box *box, void *arg, struct error *err), void *arg, struct error *err)
{
	struct box box = {0};
	struct ask_layer layer;
	int r = build_open_box(b, s, &box, err);
	if (r == 0)
		r = make(&box, arg, err);
	if (r != 0) {
		build_end_box(&box);
		return r;
	}
	box.build = NULL;
	r = ask_seal_box(b->ask, box.id, key, &layer, err);
	return r < 0 ? r : stack_add(s, &layer, err);
}

int build_layer(struct build *b, struct stack *s, struct str what, bool force, int (*make)(struct box *box, void *arg, struct error *err), void *arg,
	bool *ret_cached, struct error *err)
{
	char key[LAYER_KEY + 8];
	struct error ignored = {0};
	bool fresh = force || b->force;
	int r = make_room(b, s, STACK_MOST - 1, err);
	if (r < 0)
		return r;
	stack_turn(s, what);
	snprintf(key, sizeof(key), "step:%s", s->key);
	r = fresh ? 0 : take_cached(b, s, key, err);
	if (ret_cached)
		*ret_cached = r > 0;
	if (r != 0)
		return r < 0 ? r : 0;
	r = make_layer(b, s, key, make, arg, err);
	if (r != 0 && !fresh)
		ask_drop_layer(b->ask, key, &ignored);
	return r < 0 ? r : 0;
}

/* ---- commands ---- */

struct tail {
	struct build *b;
	char lines[LINES_KEPT][LINE_KEPT + 1];
	size_t n; /* lines that came */
};

static void on_line(void *arg, bool is_stderr, struct str line)
{
	struct tail *t = arg;
	ask_log(t->b->ask, 1, t->b->step, line);
	if (!line.n)
		return;
	char *to = t->lines[t->n++ % LINES_KEPT];
	size_t n = MIN(line.n, (size_t)LINE_KEPT);
	memcpy(to, line.p, n);
	to[n] = '\0';
}

/* The last lines, as many as an error has room for. */
static int failed(const struct tail *t, const char *shown, const char *status, struct error *err)
{
	struct error e = {0};
	cleanup_buf struct buf text = BUF_INIT;
	size_t room = sizeof(e.message) - 1;
	buf_addf(&text, "failed to run command '%.120s': %s", shown, status);
	size_t used = buf_len(&text) + 2, first = t->n;
	size_t oldest = t->n > LINES_KEPT ? t->n - LINES_KEPT : 0;
	while (first > oldest && used + strlen(t->lines[(first - 1) % LINES_KEPT]) + 1 < room)
		used += strlen(t->lines[--first % LINES_KEPT]) + 1;
	for (size_t i = first; i < t->n; i++)
		buf_addf(&text, "%s%s", i == first ? ": " : "\n", t->lines[i % LINES_KEPT]);
	return error_set(err, -ECANCELED, 400, "%s", buf_cstr(&text) ? buf_cstr(&text) : status);
}

int build_command(struct box *box, const char *const *argv, const char *user, const char *cwd, const struct env *env, const char *shown, struct error *err)
{
	struct tail tail = {.b = box->build};
	struct envd_command c = {.argv = argv, .user = user ? user : "root", .cwd = cwd, .env = env, .line = on_line, .arg = &tail};
	struct envd_end end;
	struct error why = {0};
	int r = envd_run(&box->envd, &c, &end, &why);
	if (r == -EPIPE)
		return error_set(err, r, 500, "failed to run command '%.120s': %s", shown, why.message);
	/* The words that the E2B builder's tests look for (e2b.md A.6). */
	if (r < 0)
		return error_set(err, r, 400, "failed to run command '%.120s': command failed: %s", shown, why.message);
	return end.code == 0 ? 0 : failed(&tail, shown, end.status, err);
}
