/* `cubicle mcp`: sandboxes as tools of an agent, over standard input and output (mcp/server.h). */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "cli/client.h"
#include "cli/signals.h"
#include "mcp/console.h"

#include <errno.h>
#include <stdio.h>

enum { CALL_THREADS = 32, CHORE_THREADS = 2 };

int cmd_mcp(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_fd int signals = signals_block(false); /* before any thread exists */
	const struct cli_value *template = cli_flag(c, "template"), *lease = cli_flag(c, "lease");
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	struct remote_server server = {.url = cl.url, .sandbox_url = cl.sandbox_url, .socket = cl.socket, .key = cl.key, .team = cl.team};
	struct mcp_config config = {.loop = loop_new(), .template = template->set ? template->text : "code-interpreter-v1", .keep = cli_flag(c, "keep")->set,
		.allow_absolute = cli_flag(c, "allow-absolute")->set, .lease_s = lease->set ? (int)lease->number : MCP_LEASE_S};
	config.calls = workq_new(CALL_THREADS, 2 * MCP_MAX_CALLS);
	config.chores = workq_new(CHORE_THREADS, 64);
	int r = signals < 0 || !config.loop || !config.calls || !config.chores ? error_errno(&err, signals < 0 ? signals : -ENOMEM, "mcp")
									       : mcp_stdio(&config, &server, signals, &err);
	if (r > 0)
		error_set(&err, -EBUSY, 503, "%d sandboxes were not ended: they end by themselves within %d s", r, config.lease_s);
	if (r != 0) {
		cli_fail(c, &err);
		fflush(NULL);
		_exit(EXIT_FAILED); /* what did not end in time is not waited for */
	}
	workq_free(config.calls);
	workq_free(config.chores);
	loop_free(config.loop);
	return EXIT_OK;
}
