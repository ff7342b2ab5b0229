/* What the table of routes points to. Each answers its request, now or later. */
#ifndef CUBICLE_API_HANDLERS_H
#define CUBICLE_API_HANDLERS_H

struct api_request;

void handle_health(struct api_request *r);
/* A route of e2b.md or cube.md that this server does not serve yet: 404 for an unknown sandbox or template, else 501 naming the route. */
void handle_later(struct api_request *r);

/* lifecycle.c */
void handle_create(struct api_request *r);
void handle_create_v2(struct api_request *r);
void handle_connect(struct api_request *r);
void handle_resume(struct api_request *r);
void handle_pause(struct api_request *r);
void handle_kill(struct api_request *r);
void handle_timeout(struct api_request *r);
void handle_refresh(struct api_request *r);

/* network.c */
void handle_network(struct api_request *r);

/* snapshots.c */
void handle_fork(struct api_request *r);
void handle_snapshot(struct api_request *r);
void handle_snapshots(struct api_request *r);
void handle_rollback(struct api_request *r);
/* DELETE /templates/{templateID} of what is no template. */
void handle_snapshot_delete(struct api_request *r);

/* list.c */
void handle_get(struct api_request *r);
void handle_list(struct api_request *r);
void handle_list_v2(struct api_request *r);

/* logs.c */
void handle_logs(struct api_request *r);
void handle_logs_v2(struct api_request *r);

/* metrics.c */
void handle_metrics(struct api_request *r);
void handle_metrics_of_several(struct api_request *r);

/* pools.c */
void handle_pools(struct api_request *r);
void handle_pool_set(struct api_request *r);
void handle_pool_unset(struct api_request *r);

/* prometheus.c */
void handle_prometheus(struct api_request *r);
void handle_no_prometheus(struct api_request *r);

/* templates.c */
void handle_templates(struct api_request *r);
void handle_template(struct api_request *r);
void handle_template_alias(struct api_request *r);
void handle_templates_v2(struct api_request *r);
void handle_default_templates(struct api_request *r);
void handle_reload_templates(struct api_request *r);

/* template_describe.c */
void handle_template_description(struct api_request *r);
void handle_collect_images(struct api_request *r);

/* template_builds.c, template_log.c, template_files.c: E2B's builder */
void handle_template_make(struct api_request *r);
void handle_template_make_v2(struct api_request *r);
void handle_build_start(struct api_request *r);
void handle_build_status(struct api_request *r);
void handle_build_log(struct api_request *r);
void handle_upload_link(struct api_request *r);
void handle_upload(struct api_request *r);

/* template_tags.c: what names and tags mean, who may use a template, its end */
void handle_tags(struct api_request *r);
void handle_tags_assign(struct api_request *r);
void handle_tags_remove(struct api_request *r);
void handle_tag_exists(struct api_request *r);
void handle_tag_count(struct api_request *r);
void handle_template_change(struct api_request *r);
void handle_template_delete(struct api_request *r);

/* template_cube.c: Cube's */
void handle_cube_make(struct api_request *r);
void handle_cube_rebuild(struct api_request *r);
void handle_cube_alias(struct api_request *r);
void handle_compat(struct api_request *r);
void handle_compat_adopt(struct api_request *r);

/* key_routes.c: of the caller's team; on /admin/ of all teams */
void handle_keys(struct api_request *r);
void handle_key_create(struct api_request *r);
void handle_key_rename(struct api_request *r);
void handle_key_revoke(struct api_request *r);

/* team_routes.c */
void handle_own_teams(struct api_request *r);
void handle_teams(struct api_request *r);
void handle_team_create(struct api_request *r);
void handle_team_change(struct api_request *r);
void handle_team_delete(struct api_request *r);

/* admin.c */
void handle_reload_certificates(struct api_request *r);

#endif
