/* `cubicle template make-default`: the templates that every server has, made from recipes (image/recipe.h). */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "cli/client.h"
#include "cli/output.h"
#include "image/layer.h"
#include "io/json.h"
#include "node/templates.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

enum {
	MAX_LAYERS = 3,
};

struct service {
	const char *name, *user;
	uint16_t port;
	const char *const *command, *const *ready;
};

/* A template that this command knows. */
struct kind {
	const char *name;
	const struct recipe *layers[MAX_LAYERS + 1]; /* lowest first, NULL-terminated */
	uint32_t cpu_count, memory_mb;               /* 0: the server's default */
	const struct service *service;
};

/* A kernel of a machine that starts many sandboxes at once may be slow to come; who waits for it has limits of his own. */
static const char *const interpreter_command[] = {"/usr/lib/cubicle/cubicle-interp", "--envd", "http://127.0.0.1:49983", "--start-timeout", "300", NULL};
static const char *const interpreter_ready[] = {"/usr/lib/cubicle/cubicle-interp", "--probe", "49999", NULL};
static const struct service interpreter = {"code-interpreter", "root", 49999, interpreter_command, interpreter_ready};

static const struct kind kinds[] = {
	{.name = "base", .layers = {&recipe_base}},
	{.name = "code-interpreter-v1", .layers = {&recipe_base, &recipe_interpreter_packages, &recipe_interpreter_files}, .cpu_count = 2,
		.memory_mb = 1024, .service = &interpreter},
};

/* One run of the command. */
struct make {
	struct cli *cli;
	const char *node_dir, *images;
	struct templates *known; /* what was there, and what this run has made */
	int64_t start;           /* of the run */
	/* What this run has built: it is not built twice, also when everything is asked to be new. */
	char fresh[8][sizeof(((struct template_layer *)0)->file)];
	size_t n_fresh;
	/* Progress: seconds of the recipes to run, all and before the current one. */
	int total, before;
	const struct kind *kind;
	const struct recipe *recipe;
	bool json, terminal;
	char phase[160];
	unsigned turn;
};

static void show_progress(const char *phase, int percent, void *arg)
{
	static const char spinner[] = "|/-\\";
	struct make *m = arg;
	char text[sizeof(m->phase)];
	long long elapsed = (clock_monotonic() - m->start) / NS_PER_S;
	int whole = (m->before * 100 + m->recipe->seconds * percent) / MAX(m->total, 1);
	snprintf(text, sizeof(text), "%s: %s", m->kind->name, phase);
	bool new = strcmp(m->phase, text) != 0;
	memcpy(m->phase, text, sizeof(text));
	if (m->json && new) {
		cleanup_buf struct buf line = BUF_INIT;
		buf_addf(&line, "{\"percent\":%d,\"seconds\":%lld,\"phase\":", whole, elapsed);
		json_quote(&line, str_of(text));
		buf_add_c(&line, "}\n");
		fputs(buf_cstr(&line) ? buf_cstr(&line) : "", stdout);
		fflush(stdout);
	} else if (!m->json && m->terminal) {
		fprintf(stderr, "\r%c %3d %%  %4lld s  %-65s", spinner[m->turn++ % 4], whole, elapsed, text);
	} else if (!m->json && new) {
		fprintf(stderr, "%3d %%  %4lld s  %s\n", whole, elapsed, text);
	}
}

static void ignore_change(const struct template *t, bool gone, void *arg)
{
}

/* The recipes' digests of all layers, each with those below it in it. */
static int digests(const struct kind *k, char ret[MAX_LAYERS][RECIPE_DIGEST + 1], struct error *err)
{
	const char *below = "";
	for (size_t i = 0; k->layers[i]; i++) {
		int r = recipe_digest(k->layers[i], below, ret[i], err);
		if (r < 0)
			return r;
		below = ret[i];
	}
	return 0;
}

struct layer_search {
	const struct template_layer *below; /* n of them, that the wanted one must stand on */
	size_t n;
	const char *recipe;
	const struct template_layer *found;
};

static void look_at(const struct template *t, void *arg)
{
	struct layer_search *s = arg;
	if (t->n_layers <= s->n || strcmp(t->layers[s->n].recipe, s->recipe) != 0)
		return;
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(t->layers[i].file, s->below[i].file) != 0)
			return;
	s->found = &t->layers[s->n];
}

static bool is_fresh(const struct make *m, const char *file)
{
	for (size_t i = 0; i < m->n_fresh; i++)
		if (strcmp(m->fresh[i], file) == 0)
			return true;
	return false;
}

/* A layer of that recipe on t's first n layers, of any template of this machine. A base layer is every template's; what stands on it is made anew when that was asked for. */
static const struct template_layer *find_layer(const struct make *m, const struct template *t, size_t n, const char *recipe)
{
	struct layer_search s = {.below = t->layers, .n = n, .recipe = recipe};
	templates_each(m->known, look_at, &s);
	bool anew = !cli_flag(m->cli, "if-missing")->set && (n > 0 || !m->kind->layers[1]);
	return s.found && (!anew || is_fresh(m, s.found->file)) ? s.found : NULL;
}

static int build_layer(struct make *m, struct template *t, const char *recipe, struct error *err)
{
	char paths[MAX_LAYERS][PATH_MAX];
	const char *lower[MAX_LAYERS];
	struct layer_image image;
	for (size_t i = 0; i < t->n_layers; i++) {
		snprintf(paths[i], sizeof(paths[i]), "%s/%s", m->node_dir, t->layers[i].file);
		lower[i] = paths[i];
	}
	m->recipe = m->kind->layers[t->n_layers];
	struct layer_build b = {.recipe = m->recipe, .directory = m->images, .mirror = cli_flag(m->cli, "mirror")->text, .lower = lower, .n_lower = t->n_layers,
		.progress = show_progress, .arg = m};
	int r = layer_build(&b, &image, err);
	if (m->terminal && !m->json)
		fputs("\r\033[K", stderr);
	if (r < 0)
		return r;
	struct template_layer *to = &t->layers[t->n_layers++];
	*to = (struct template_layer){.size = image.size};
	snprintf(to->file, sizeof(to->file), "images/%s", image.name);
	memcpy(to->recipe, recipe, sizeof(to->recipe));
	if (m->n_fresh < ARRAY_SIZE(m->fresh))
		memcpy(m->fresh[m->n_fresh++], to->file, sizeof(to->file));
	m->before += m->recipe->seconds;
	return 0;
}

/* Everything but the layers. A template that is made again keeps its id: clients that know it get the new one. */
static int describe(const struct kind *k, const struct template *old, struct template *t, struct error *err)
{
	unsigned char b[16];
	char hex[33];
	*t = (struct template){.created_at = clock_realtime(), .user = "user", .cpu_count = k->cpu_count, .memory_mb = k->memory_mb};
	if (old)
		memcpy(t->id, old->id, sizeof(t->id));
	else
		random_text(t->id, TEMPLATE_OWN_ID, "abcdefghijklmnopqrstuvwxyz0123456789");
	random_bytes(b, sizeof(b));
	b[6] = (b[6] & 0x0f) | 0x40; /* RFC 9562: version 4 */
	b[8] = (b[8] & 0x3f) | 0x80;
	hex_encode(hex, b, sizeof(b));
	snprintf(t->build_id, sizeof(t->build_id), "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
	snprintf(t->alias, sizeof(t->alias), "%s", k->name);
	if (k->service && template_add_service(t, k->service->name, k->service->user, k->service->port, k->service->command) < 0)
		return error_set(err, -E2BIG, 500, "template %s: its service is too big", k->name);
	if (k->service && template_set_ready(t, k->service->ready) < 0)
		return error_set(err, -E2BIG, 500, "template %s: its ready command is too long", k->name);
	return 0;
}

/* A server that runs learns of it; one that does not will at its start. */
static void tell_server(const struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	if (client_open(&cl, c, &err) < 0 || !cl.socket)
		return;
	int r = client_call(&cl, "POST", "/admin/reload-templates", NULL, NULL, NULL, &err);
	if (r < 0 && r != -ECONNREFUSED)
		fprintf(stderr, "cubicle: the running server did not read the new template (%s): it will at its next start\n", err.message);
}

static void report(const struct make *m, const struct template *t, int64_t start)
{
	char size[24];
	double seconds = (double)(clock_monotonic() - start) / NS_PER_S;
	if (m->json) {
		cleanup_json json_t *j = json_pack("{s:s,s:s,s:I,s:f}", "templateID", t->id, "alias", t->alias, "size", (json_int_t)template_size(t), "seconds", seconds);
		json_dumpf(j, stdout, JSON_COMPACT);
		putchar('\n');
	} else {
		printf("template %s (%s): %s, made in %.0f s\n", t->alias, t->id, size_text(size, template_size(t)), seconds);
	}
	fflush(stdout);
}

static bool same_but_identity(const struct template *a, const struct template *b)
{
	struct template x = *a, y = *b;
	x.created_at = y.created_at;
	memcpy(x.build_id, y.build_id, sizeof(x.build_id));
	return memcmp(&x, &y, sizeof(x)) == 0;
}

static int make_one(struct make *m, const struct kind *k, struct error *err)
{
	char recipes[MAX_LAYERS][RECIPE_DIGEST + 1];
	int64_t start = clock_monotonic();
	const struct template *found = templates_find(m->known, str_of(k->name));
	struct template old = {0}, t;
	bool exists = found != NULL;
	if (exists)
		old = *found;
	m->kind = k;
	int r = digests(k, recipes, err);
	if (r == 0)
		r = describe(k, exists ? &old : NULL, &t, err);
	while (r == 0 && k->layers[t.n_layers]) {
		const struct template_layer *have = find_layer(m, &t, t.n_layers, recipes[t.n_layers]);
		if (have)
			t.layers[t.n_layers++] = *have;
		else
			r = build_layer(m, &t, recipes[t.n_layers], err);
	}
	if (r < 0 || (exists && same_but_identity(&old, &t)))
		return r;
	r = template_save(m->node_dir, &t, err);
	if (r == 0)
		r = templates_load(m->known, m->node_dir, ignore_change, NULL, err);
	if (r < 0)
		return r;
	/* Images that only the replaced description named are the node's to remove: it knows who stands on them. */
	tell_server(m->cli);
	report(m, &t, start);
	return 0;
}

static bool is_wanted(const struct cli *c, const struct kind *k)
{
	for (size_t i = 0; i < c->n_words; i++)
		if (strcmp(c->words[i], k->name) == 0)
			return true;
	return c->n_words == 0;
}

static int check_names(const struct cli *c, struct error *err)
{
	for (size_t i = 0; i < c->n_words; i++) {
		bool known = false;
		for (size_t j = 0; j < ARRAY_SIZE(kinds); j++)
			known |= strcmp(c->words[i], kinds[j].name) == 0;
		if (!known)
			return error_set(err, -EINVAL, 400, "'%s' is no default template: these are %s and %s", c->words[i], kinds[0].name, kinds[1].name);
	}
	return 0;
}

/* How long the work will be, for the progress shown: the recipes that no layer of this machine follows. */
static int plan(struct make *m, struct error *err)
{
	const struct recipe *counted[ARRAY_SIZE(kinds) * MAX_LAYERS] = {0};
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		char recipes[MAX_LAYERS][RECIPE_DIGEST + 1];
		struct template t = {0};
		m->kind = &kinds[i];
		if (!is_wanted(m->cli, m->kind))
			continue;
		int r = digests(m->kind, recipes, err);
		if (r < 0)
			return r;
		for (size_t j = 0; m->kind->layers[j]; j++) {
			bool seen = false;
			for (size_t k = 0; k < n; k++)
				seen |= counted[k] == m->kind->layers[j];
			const struct template_layer *have = t.n_layers == j ? find_layer(m, &t, j, recipes[j]) : NULL;
			if (have)
				t.layers[t.n_layers++] = *have;
			else if (!seen)
				m->total += m->kind->layers[j]->seconds;
			counted[n++] = m->kind->layers[j];
		}
	}
	return 0;
}

/* One at a time: two would do the same work, and one could drop what the other has just made. A descriptor. */
static int lock_images(const char *images, struct error *err)
{
	int r = make_dirs(images, 0700);
	cleanup_fd int fd = r < 0 ? r : open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, r < 0 ? r : -errno, "%s", images);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		fprintf(stderr, "waiting: another make-default is at work\n");
		while (flock(fd, LOCK_EX) < 0)
			if (errno != EINTR)
				return error_errno(err, -errno, "%s", images);
	}
	return steal_fd(&fd);
}

static int make_all(struct make *m, struct error *err)
{
	/* serve makes these with the same modes; it may not have run yet. */
	int r = make_dirs(m->cli->options.state_dir, 0711);
	if (r == 0)
		r = make_dirs(m->node_dir, 0700);
	if (r < 0)
		return error_errno(err, r, "%s", m->node_dir);
	cleanup_fd int lock = lock_images(m->images, err);
	if (lock < 0)
		return lock;
	r = templates_load(m->known, m->node_dir, ignore_change, NULL, err);
	if (r == 0)
		r = plan(m, err);
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(kinds); i++)
		if (is_wanted(m->cli, &kinds[i]))
			r = make_one(m, &kinds[i], err);
	return r;
}

int cmd_template_make_default(struct cli *c)
{
	struct error err = {0};
	cleanup_free char *node_dir = NULL, *images = NULL;
	int r = check_names(c, &err);
	if (r == 0 && (asprintf(&node_dir, "%s/node", c->options.state_dir) < 0 || asprintf(&images, "%s/images", node_dir) < 0))
		r = error_errno(&err, -ENOMEM, "template");
	if (r < 0)
		return cli_fail(c, &err);
	struct make m = {.cli = c, .node_dir = node_dir, .images = images, .known = templates_new(), .start = clock_monotonic(), .json = c->json,
		.terminal = isatty(2)};
	r = m.known ? make_all(&m, &err) : error_errno(&err, -ENOMEM, "template");
	templates_free(m.known);
	return r < 0 ? cli_fail(c, &err) : EXIT_OK;
}
