#include "api/prometheus.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/request_counts.h"
#include "base/cleanup.h"

#define REQUESTS "cubicle_http_request_duration_seconds"

static const struct figure {
	const char *name, *labels, *help;
	enum figure_kind kind;
} figures[] = {
#define FIGURE(field, kind, name, labels, help) {name, labels, help, FIGURE_##kind},
	NODE_FIGURES(FIGURE)
#undef FIGURE
};

_Static_assert(sizeof(struct node_figures) == ARRAY_SIZE(figures) * sizeof(uint64_t), "one value for each entry of the table");

void prometheus_label(struct buf *to, const char *name, struct str value)
{
	buf_addf(to, "%s%s=\"", buf_len(to) ? "," : "", name);
	for (size_t i = 0; i < value.n; i++) {
		char c = value.p[i];
		if (c == '\n')
			buf_add_c(to, "\\n");
		else if (c == '"' || c == '\\')
			buf_addf(to, "\\%c", c);
		else
			buf_add(to, &c, 1);
	}
	buf_add_c(to, "\"");
}

static void head(struct buf *to, const char *name, const char *type, const char *help)
{
	buf_addf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct buf *to, const char *name, const char *help, uint64_t value)
{
	head(to, name, "gauge", help);
	buf_addf(to, "%s %llu\n", name, (unsigned long long)value);
}

static void write_node(const struct node_figures *node, struct buf *to)
{
	const uint64_t *values = (const uint64_t *)node;
	for (size_t i = 0; i < ARRAY_SIZE(figures); i++) {
		const struct figure *f = &figures[i];
		if (!i || strcmp(f->name, figures[i - 1].name) != 0)
			head(to, f->name, f->kind == FIGURE_GAUGE ? "gauge" : "counter", f->help);
		buf_addf(to, "%s%s%s%s ", f->name, *f->labels ? "{" : "", f->labels, *f->labels ? "}" : "");
		if (f->kind == FIGURE_SECONDS)
			buf_addf(to, "%.6f\n", (double)values[i] / 1e6);
		else
			buf_addf(to, "%llu\n", (unsigned long long)values[i]);
	}
}

void prometheus_write(const struct api *a, const struct node_figures *node, struct buf *to)
{
	head(to, "cubicle_build_info", "gauge", "The version that runs.");
	buf_add_c(to, "cubicle_build_info{version=\"" CUBICLE_VERSION "\"} 1\n");
	gauge(to, "cubicle_node_up", "Whether the node answered.", node != NULL);
	if (node)
		write_node(node, to);
	gauge(to, "cubicle_http_connections", "Connections of clients to the API and to sandboxes.", a->config.connections ? a->config.connections(a->config.arg) : 0);
	head(to, REQUESTS, "histogram", "Requests to the API, from their head to their answer. Status 499: the client left. Without method and route: no such path.");
	request_counts_write(a->counts, REQUESTS, to);
}

static void write_answer(struct api_request *r, const struct node_figures *node)
{
	cleanup_buf struct buf text = BUF_INIT;
	prometheus_write(r->api, node, &text);
	api_answer_text(r, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static void figures_read(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct node_figures node;
	r->call = NULL;
	bool known = !a->err && a->body->figures_page.values.n == sizeof(node);
	if (known)
		memcpy(&node, a->body->figures_page.values.p, sizeof(node));
	write_answer(r, known ? &node : NULL);
}

void handle_prometheus(struct api_request *r)
{
	r->call = node_figures(r->api->config.node, figures_read, r, NULL);
	if (!r->call)
		write_answer(r, NULL);
}

void handle_no_prometheus(struct api_request *r)
{
	api_failf(r, 501, "GET /metrics is served on the listener of the option metrics.listen only");
}
