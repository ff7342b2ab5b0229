#include "api/template_builds.h"
#include "api/handlers.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* E2B's calls that make templates and start their builds (e2b.md A.6). */

struct str build_status_of_cube(struct str status)
{
	return str_is(status, "waiting") ? STR("PENDING") : str_is(status, "building") ? STR("RUNNING") : str_is(status, "ready") ? STR("READY") : STR("FAILED");
}

/* The specification in a memory file that nobody can change any more: it may hold a registry's password, so no path leads to it. Descriptor or -errno with *err. */
static int seal_spec(const json_t *spec, struct error *err)
{
	cleanup_free char *text = json_dumps(spec, JSON_COMPACT);
	if (!text)
		return error_set(err, -ENOMEM, 503, "the server is out of memory");
	size_t n = strlen(text);
	cleanup_fd int fd = memfd_create("cubicle-build", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : fd_write_all(fd, text, n);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		r = -errno;
	explicit_bzero(text, n);
	return r < 0 ? error_errno(err, r, "the build's description") : steal_fd(&fd);
}

struct node_call *build_start(struct api_request *r, const struct template_build *b, const struct build_args *a, const struct source *base, node_done_fn *done, struct error *err)
{
	char from[2 * TEMPLATE_REFERENCE_MAX];
	cleanup_fd int fd = seal_spec(a->spec, err);
	if (fd < 0)
		return NULL;
	struct msg_start_build m = {.team = r->team, .build = str_of(b->build), .force = a->force};
	msg_set(&m, start_build, template, str_of(b->template));
	msg_set(&m, start_build, request, str_of(r->id));
	if (a->isolation)
		msg_set(&m, start_build, isolation, str_of(a->isolation));
	if (base && base->snapshot) {
		msg_set(&m, start_build, base, base->snapshot->id);
	} else if (base) {
		bool tagged = !str_is(base->build.tag, "default");
		snprintf(from, sizeof(from), "%.*s%s%.*s", STR_FMT(base->template->id), tagged ? ":" : "", tagged ? (int)base->build.tag.n : 0, base->build.tag.p);
		msg_set(&m, start_build, base, str_of(from));
	}
	return node_start_build(r->api->config.node, &m, fd, done, r, err);
}

struct node_call *template_make(struct api_request *r, const char *kind, const struct template_args *a, struct str reference, struct str template, struct str source,
	node_done_fn *done, struct error *err)
{
	struct msg_make_template m = {.team = r->team, .name = str_of(a->name), .tags = {buf_str(&a->tags)}, .kind = str_of(kind)};
	msg_set(&m, make_template, request, str_of(r->id));
	if (a->cpu_count)
		msg_set(&m, make_template, cpu_count, (uint64_t)a->cpu_count);
	if (a->memory_mb)
		msg_set(&m, make_template, memory_mb, (uint64_t)a->memory_mb);
	if (a->disk_mb)
		msg_set(&m, make_template, disk_mb, (uint64_t)a->disk_mb);
	if (reference.n)
		msg_set(&m, make_template, reference, reference);
	if (template.n)
		msg_set(&m, make_template, template, template);
	if (source.n)
		msg_set(&m, make_template, source, source);
	return node_make_template(r->api->config.node, &m, done, r, err);
}

void build_fail(struct api_request *r, struct str template, struct str build, const struct error *err)
{
	if (err->status == 404)
		api_failf(r, 404, "template '%.*s' has no build '%.*s': not found", (int)MIN(template.n, (size_t)64), template.p, (int)MIN(build.n, (size_t)64), build.p);
	else
		api_fail(r, err);
}

static void made(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	static const char *const lists[] = {"aliases", "names"};
	if (!api_called(r, a))
		return;
	const struct msg_build_made *m = &a->body->build_made;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = m->tags.raw, tag;
	out_open(&o, NULL, '{');
	out_str(&o, "templateID", m->template);
	out_str(&o, "buildID", m->build);
	out_bool(&o, "public", m->public);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		out_open(&o, lists[i], '[');
		if (msg_has(m, build_made, name) && m->name.n)
			out_str(&o, NULL, m->name);
		out_close(&o, ']');
	}
	out_open(&o, "tags", '[');
	while (msg_list_next(&rest, &tag))
		out_str(&o, NULL, tag);
	out_close(&o, ']');
	out_close(&o, '}');
	api_answer(r, 202, &body);
}

/* "<ref of the team>/name" is the name. */
static void drop_own_space(const struct api_request *r, char *name)
{
	struct str space, bare;
	if (str_cut(str_of(name), '/', &space, &bare) && str_eq(space, r->team))
		memmove(name, bare.p, bare.n + 1);
}

static void make(struct api_request *r, const char *field)
{
	cleanup_template_args struct template_args args = {0};
	struct error err = {0};
	if (template_args_parse(r->body, field, &args, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	drop_own_space(r, args.name);
	if (api_index_ready(r))
		api_wait(r, template_make(r, "e2b", &args, STR(""), STR(""), STR(""), made, &err), &err);
}

void handle_template_make(struct api_request *r)
{
	make(r, "name");
}

void handle_template_make_v2(struct api_request *r)
{
	make(r, "alias");
}

static void started(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct template_build *b = r->work;
	r->call = NULL;
	if (a->err)
		build_fail(r, str_of(b->template), str_of(b->build), a->err);
	else
		api_answer_accepted(r);
}

/* What fromTemplate means; e2bdev/base is this machine's own base. False = answered. */
static bool find_base(struct api_request *r, struct build_args *args, struct source *ret)
{
	const struct sandbox_index *ix = r->api->config.index;
	if (args->has_base) {
		*ret = source_find(ix, r->team, &args->base);
		if (!ret->template && !ret->snapshot)
			source_not_found(r, &args->base);
		return ret->template || ret->snapshot;
	}
	ret->template = build_args_is_e2b_base(args) ? index_template_named(ix, STR(""), STR("base")) : NULL;
	ret->build.tag = STR("default");
	if (ret->template && (json_object_del(args->spec, "image") < 0 || json_object_set_new(args->spec, "base", json_true()) < 0)) {
		api_failf(r, 503, "the server is out of memory");
		return false;
	}
	args->has_base = ret->template;
	return true;
}

bool build_of_path(struct api_request *r, struct template_build *ret)
{
	struct template_reference reference;
	const struct index_template *t = source_own(r, r->match.params[0], &reference);
	struct str build = r->match.params[1];
	if (!t)
		return false;
	if (!is_build_id(build)) {
		build_fail(r, r->match.params[0], build, &(struct error){.status = 404});
		return false;
	}
	*ret = (struct template_build){0};
	snprintf(ret->template, sizeof(ret->template), "%.*s", STR_FMT(t->id));
	snprintf(ret->build, sizeof(ret->build), "%.*s", STR_FMT(build));
	return true;
}

void handle_build_start(struct api_request *r)
{
	cleanup_build_args struct build_args args = {0};
	struct source base = {0};
	struct error err = {0};
	struct template_build *b = r->work = calloc(1, sizeof(*b));
	if (!b) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	if (!build_of_path(r, b))
		return;
	if (build_args_parse(r->body, &args, &err) < 0)
		api_fail(r, &err);
	else if (find_base(r, &args, &base))
		api_wait(r, build_start(r, b, &args, args.has_base ? &base : NULL, started, &err), &err);
}
