#include "image/build.h"
#include "base/cleanup.h"

#include <errno.h>
#include <string.h>

int build_config_init(struct build_config *c)
{
	*c = (struct build_config){.user = strdup(""), .workdir = strdup(""), .stop_signal = strdup("")};
	if (c->user && c->workdir && c->stop_signal)
		return 0;
	build_config_done(c);
	return -ENOMEM;
}

static void list_free(char ***list)
{
	for (char **i = *list; i && *i; i++)
		free(*i);
	free(*list);
	*list = NULL;
}

void build_config_done(struct build_config *c)
{
	env_done(&c->env);
	free(c->user);
	free(c->workdir);
	free(c->stop_signal);
	list_free(&c->entrypoint);
	list_free(&c->cmd);
	list_free(&c->shell);
	list_free(&c->on_build);
	list_free(&c->exposed_ports);
	list_free(&c->labels);
	*c = (struct build_config){0};
}

int build_config_text(char **to, const char *text)
{
	char *copy = strdup(text ? text : "");
	if (!copy)
		return -ENOMEM;
	free(*to);
	*to = copy;
	return 0;
}

int build_config_list(char ***to, const char *const *from)
{
	size_t n = 0;
	while (from && from[n])
		n++;
	char **copy = n ? calloc(n + 1, sizeof(*copy)) : NULL;
	if (n && !copy)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (!(copy[i] = strdup(from[i]))) {
			list_free(&copy);
			return -ENOMEM;
		}
	list_free(to);
	*to = copy;
	return 0;
}
