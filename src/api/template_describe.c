#include "api/handlers.h"
#include "api/request.h"
#include "api/sources.h"
#include "base/cleanup.h"

#include <errno.h>

enum { COLLECT_AGE_MAX = 315360000 };

/* What is behind a template, for who keeps house: its description, and what images nobody needs. */

static void described(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	if (!api_called(r, a))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	buf_add_str(&body, a->body->template_description.description);
	api_answer(r, 200, &body);
}

void handle_template_description(struct api_request *r)
{
	struct source found;
	struct error err = {0};
	cleanup_buf struct buf reference = BUF_INIT;
	if (!source_of_path(r, &found))
		return;
	if (!found.template) {
		api_failf(r, 400, "'%.*s' is a snapshot: make a template of it first", STR_FMT(r->match.params[0]));
		return;
	}
	buf_add_str(&reference, found.template->id);
	if (found.build.tag.n)
		buf_addf(&reference, ":%.*s", STR_FMT(found.build.tag));
	struct msg_describe_template m = {.team = r->team, .template = buf_str(&reference)};
	api_wait(r, node_describe_template(r->api->config.node, &m, described, r, &err), &err);
}

static void collected(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	if (!api_called(r, a))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = a->body->images_page.images.raw, image, name, text;
	out_open(&o, NULL, '{');
	out_open(&o, "images", '[');
	while (msg_list_next(&rest, &image)) {
		uint64_t bytes = 0, seconds = 0;
		if (!msg_list_next(&image, &name) || !msg_list_next(&image, &text) || str_to_u64(text, &bytes) < 0 || !msg_list_next(&image, &text) ||
			str_to_u64(text, &seconds) < 0)
			continue;
		out_open(&o, NULL, '{');
		out_str(&o, "name", name);
		out_int(&o, "bytes", (int64_t)bytes);
		out_int(&o, "idleSeconds", (int64_t)seconds);
		out_close(&o, '}');
	}
	out_close(&o, ']');
	out_int(&o, "bytes", (int64_t)a->body->images_page.bytes);
	out_int(&o, "count", (int64_t)a->body->images_page.count);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_collect_images(struct api_request *r)
{
	struct error err = {0};
	bool dry_run = false;
	int64_t older_than = 0;
	int e = field_bool(r->body, "dryRun", NULL, &dry_run, &err);
	if (e >= 0)
		e = field_int(r->body, "olderThan", NULL, &older_than, &err);
	if (e >= 0 && (older_than < 0 || older_than > COLLECT_AGE_MAX))
		e = error_set(&err, -EINVAL, 400, "olderThan must be 0 to %d seconds", COLLECT_AGE_MAX);
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_collect_images m = {.dry_run = dry_run, .older_than = older_than};
	api_wait(r, node_collect_images(r->api->config.node, &m, collected, r, &err), &err);
}
