/* The functions behind the table of commands. Each returns the exit code and has said why when it failed. */
#ifndef CUBICLE_CLI_COMMANDS_H
#define CUBICLE_CLI_COMMANDS_H

#include "cli/command.h"

/* commands_sandbox.c */
int cmd_sandbox_create(struct cli *c);
int cmd_sandbox_list(struct cli *c);
int cmd_sandbox_info(struct cli *c);
int cmd_sandbox_kill(struct cli *c);

/* commands_life.c */
int cmd_sandbox_pause(struct cli *c);
int cmd_sandbox_resume(struct cli *c);
int cmd_sandbox_fork(struct cli *c);
int cmd_sandbox_snapshot(struct cli *c);
int cmd_sandbox_rollback(struct cli *c);
int cmd_snapshot_list(struct cli *c);
int cmd_snapshot_delete(struct cli *c);

/* commands_logs.c */
int cmd_sandbox_logs(struct cli *c);

/* commands_metrics.c */
int cmd_sandbox_metrics(struct cli *c);

/* commands_run.c */
int cmd_run(struct cli *c);
int cmd_sandbox_exec(struct cli *c);
int cmd_sandbox_shell(struct cli *c);

/* commands_key.c */
int cmd_key_create(struct cli *c);
int cmd_key_list(struct cli *c);
int cmd_key_revoke(struct cli *c);

/* commands_team.c */
int cmd_team_create(struct cli *c);
int cmd_team_list(struct cli *c);
int cmd_team_quota(struct cli *c);
int cmd_team_rename(struct cli *c);
int cmd_team_block(struct cli *c);
int cmd_team_unblock(struct cli *c);
int cmd_team_delete(struct cli *c);

/* commands_template.c */
int cmd_template_list(struct cli *c);
int cmd_template_info(struct cli *c);
int cmd_template_logs(struct cli *c);
int cmd_template_tag(struct cli *c);
int cmd_template_untag(struct cli *c);
int cmd_template_publish(struct cli *c);
int cmd_template_unpublish(struct cli *c);
/* Deletes the templates or snapshots that the words name; query: "" or "?…". The exit code. */
int template_delete_words(struct cli *c, const char *query);
int cmd_template_delete(struct cli *c);
int cmd_template_gc(struct cli *c);

/* commands_build.c */
int cmd_template_build(struct cli *c);

/* template_create.c */
int cmd_template_create(struct cli *c);
int cmd_template_import(struct cli *c);

/* template_export.c */
int cmd_template_export(struct cli *c);

/* commands_forward.c */
int cmd_forward(struct cli *c);

/* commands_mcp.c */
int cmd_mcp(struct cli *c);

/* commands_pool.c */
int cmd_pool_set(struct cli *c);
int cmd_pool_list(struct cli *c);
int cmd_pool_unset(struct cli *c);

/* make_default.c */
int cmd_template_make_default(struct cli *c);

/* commands_cert.c */
int cmd_cert_make(struct cli *c);
int cmd_cert_show(struct cli *c);
int cmd_cert_reload(struct cli *c);

/* commands_local.c: what needs no server */
int cmd_serve(struct cli *c);
int cmd_env(struct cli *c);
int cmd_config(struct cli *c);
int cmd_version(struct cli *c);

/* commands_complete.c */
int cmd_completion(struct cli *c);

/* man.c */
int cmd_man(struct cli *c);

/* doctor.c */
int cmd_doctor(struct cli *c);

#endif
