#include "build_world.h"

#include "base/cleanup.h"
#include "image/copy.h"
#include "image/source.h"
#include "io/json.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <unistd.h>

/* Builds against a scripted node, a fake registry and a fake envd. */

#define H1 "1111111111111111111111111111111111111111111111111111111111111111"
#define H2 "2222222222222222222222222222222222222222222222222222222222222222"

static struct world w;

static int set_up(void **state)
{
	world_start(&w);
	world_image = "ab";
	static char *none[] = {NULL};
	world_config = (struct source_config){.user = (char *)"", .workdir = (char *)"", .stop_signal = (char *)"", .env = none, .entrypoint = none, .cmd = none,
		.shell = none, .on_build = none, .exposed_ports = none, .volumes = none, .labels = none};
	return 0;
}

static int tear_down(void **state)
{
	world_stop(&w);
	return 0;
}

static void build(const char *spec)
{
	struct error err = {0};
	assert_int_equal(world_build(&w, spec, NULL, false, &err), 0);
	if (!w.done)
		fail_msg("%s: %s", w.step, w.message);
}

static void build_fails(const char *spec, const char *step, const char *says)
{
	struct error err = {0};
	assert_int_equal(world_build(&w, spec, NULL, false, &err), 0);
	assert_false(w.done);
	if (strcmp(w.step, step) != 0 || !strstr(w.message, says))
		fail_msg("step '%s': '%s'", w.step, w.message);
}

static bool said(struct buf *b, const char *what)
{
	return strstr(buf_cstr(b), what) != NULL;
}

static json_t *described(void)
{
	struct error err = {0};
	json_t *j = json_parse(str_of(w.description), 65536, "description", &err);
	assert_non_null(j);
	return j;
}

static void an_image_becomes_a_template(void **state)
{
	static char *env[] = {(char *)"PATH=/opt/bin:/bin", (char *)"LANG=C", NULL}, *cmd[] = {(char *)"server", NULL};
	world_config.env = env;
	world_config.cmd = cmd;
	world_config.user = (char *)"33";
	world_config.workdir = (char *)"/srv";
	build("{\"kind\":\"image\",\"image\":\"thing\"}");
	cleanup_json json_t *j = described();
	assert_int_equal(json_array_size(json_object_get(j, "layers")), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(j, "layers"), 0), "file")), "images/o4.erofs");
	assert_string_equal(json_string_value(json_object_get(j, "user")), "www-data");
	assert_string_equal(json_string_value(json_object_get(j, "workdir")), "/srv");
	assert_string_equal(json_string_value(json_object_get(json_object_get(j, "env"), "LANG")), "C");
	assert_null(json_object_get(j, "services"));
	assert_int_equal(w.unpacked, 2);
	assert_int_equal(w.sealed, 0);
	assert_false(w.probe);
	/* The second time nothing is fetched. */
	build("{\"kind\":\"image\",\"image\":\"thing\"}");
	assert_int_equal(world_fetched, 0);
	assert_int_equal(w.unpacked, 0);
}

static void an_images_path_is_that_of_login_shells(void **state)
{
	static char *usual[] = {(char *)"PATH=/usr/local/bin:/usr/bin:/bin", NULL}, *own[] = {(char *)"PATH=/usr/local/go/bin:/bin", NULL};
	world_put(&w, 'f', "/etc/profile", 0644, 0, 0, "PATH=/bin\n");
	world_config.env = usual;
	build("{\"kind\":\"image\",\"image\":\"python\"}");
	assert_int_equal(w.boxes, 0);
	world_config.env = own;
	build("{\"kind\":\"image\",\"image\":\"go\"}");
	assert_string_equal(world_find(&w, "/etc/profile.d/zz-image-path.sh")->text, "export PATH='/usr/local/go/bin:/bin'\n");
	assert_int_equal(w.sealed, 1);
	build("{\"kind\":\"image\",\"image\":\"go\"}");
	assert_int_equal(w.boxes, 0);
}

static void deep_images_have_their_upper_layers_merged(void **state)
{
	world_image = "abcdefghijklmnop";
	build("{\"kind\":\"image\",\"image\":\"deep\"}");
	cleanup_json json_t *j = described();
	assert_int_equal(json_array_size(json_object_get(j, "layers")), 11);
	assert_int_equal(w.unpacked, 11);
	assert_int_equal(world_fetched, 16);
	/* Its lower ones are shared with another image. */
	world_image = "abcdefghijk";
	build("{\"kind\":\"image\",\"image\":\"less\"}");
	assert_int_equal(w.unpacked, 1);
}

static void layers_without_files_and_repeated_ones_are_made_once(void **state)
{
	world_image = "a-b-a";
	build("{\"kind\":\"image\",\"image\":\"holes\"}");
	cleanup_json json_t *j = described();
	assert_int_equal(json_array_size(json_object_get(j, "layers")), 3);
	assert_int_equal(w.unpacked, 2);
	world_image = "--";
	build("{\"kind\":\"image\",\"image\":\"nothing\"}");
	cleanup_json json_t *empty = described();
	assert_int_equal(json_array_size(json_object_get(empty, "layers")), 1);
}

static void a_hard_link_to_below_merges_what_is_below(void **state)
{
	world_image = "abc";
	w.unpack_error = 'x';
	build("{\"kind\":\"image\",\"image\":\"linked\"}");
	cleanup_json json_t *j = described();
	/* The fake fetches from the top, so it was the third layer that could not stand alone. */
	assert_int_equal(json_array_size(json_object_get(j, "layers")), 1);
}

static void steps_run_with_user_directory_and_environment(void **state)
{
	static char *env[] = {(char *)"LANG=C", NULL};
	world_config.env = env;
	world_put(&w, 'd', "/etc/skel", 0755, 0, 0, "");
	world_put(&w, 'f', "/etc/skel/.profile", 0644, 0, 0, "umask 022\n");
	world_put(&w, 'f', "/etc/shadow", 0640, 0, 42, "root:*:1:0:99999:7:::\n");
	build("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"one\"]},{\"type\":\"ENV\",\"args\":[\"A\",\"1\",\"B\",\"$A:2\"]},"
	      "{\"type\":\"WORKDIR\",\"args\":[\"/app\"]},{\"type\":\"USER\",\"args\":[\"worker\"]},{\"type\":\"RUN\",\"args\":[\"two\"]},{\"type\":\"RUN\",\"args\":[\"three\",\"root\"]}]}");
	assert_true(said(&w.commands, "user -: one [LANG=C]\n"));
	assert_true(said(&w.commands, "worker /app: two [LANG=C] [A=1] [B=1:2]\n"));
	assert_true(said(&w.commands, "root /app: three [LANG=C] [A=1] [B=1:2]\n"));
	/* The accounts, by their files alone. */
	const char *passwd = world_find(&w, "/etc/passwd")->text;
	assert_non_null(strstr(passwd, "\nuser:x:1000:1000::/home/user:/bin/bash\n"));
	assert_non_null(strstr(passwd, "\nworker:x:1001:1001::/home/worker:/bin/bash\n"));
	assert_non_null(strstr(world_find(&w, "/etc/group")->text, "\nuser:x:1000:\n"));
	assert_non_null(strstr(world_find(&w, "/etc/shadow")->text, "\nuser:*:19700:"));
	assert_int_equal(world_find(&w, "/etc/shadow")->mode, 0640);
	assert_string_equal(world_find(&w, "/etc/sudoers.d/user")->text, "user ALL=(ALL:ALL) NOPASSWD: ALL\n");
	assert_int_equal(world_find(&w, "/etc/sudoers.d/user")->mode, 0440);
	assert_null(world_find(&w, "/etc/sudoers.d/worker"));
	assert_int_equal(world_find(&w, "/home/user")->uid, 1000);
	assert_int_equal(world_find(&w, "/home/user/.profile")->uid, 1000);
	assert_string_equal(world_find(&w, "/home/user/.profile")->text, "umask 022\n");
	assert_int_equal(world_find(&w, "/app")->type, 'd');
	cleanup_json json_t *j = described();
	assert_string_equal(json_string_value(json_object_get(j, "user")), "worker");
	assert_string_equal(json_string_value(json_object_get(j, "workdir")), "/app");
	/* What ENV said is no part of the sandboxes' environment. */
	assert_null(json_object_get(j, "env"));
	/* The image's two, the account, three commands. */
	assert_int_equal(json_array_size(json_object_get(j, "layers")), 6);
	assert_true(said(&w.log, "1 1 [1/6] RUN one\n"));
}

static void steps_are_found_again(void **state)
{
	static const char both[] = "{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"one\"]},{\"type\":\"RUN\",\"args\":[\"two\"]}]}";
	static const char forced[] = "{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"one\"]},{\"type\":\"RUN\",\"args\":[\"two\"],\"force\":true}]}";
	static const char other[] = "{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\",\"b\"]},{\"type\":\"RUN\",\"args\":[\"one\"]},{\"type\":\"RUN\",\"args\":[\"two\"]}]}";
	struct error err = {0};
	build(both);
	assert_int_equal(w.sealed, 3);
	build(both);
	assert_int_equal(w.boxes, 0);
	assert_true(said(&w.log, "CACHED [1/2] RUN one"));
	assert_true(said(&w.log, "CACHED [2/2] RUN two"));
	build(forced);
	assert_int_equal(w.sealed, 1);
	assert_true(said(&w.log, "CACHED [1/2] RUN one"));
	build(other); /* another environment: other results */
	assert_int_equal(w.sealed, 2);
	world_build(&w, both, NULL, true, &err);
	/* The account is there in our one file system, so it makes no layer. */
	assert_int_equal(w.sealed, 2);
	assert_int_equal(w.unpacked, 0);
}

static void many_steps_are_merged(void **state)
{
	cleanup_buf struct buf spec = BUF_INIT;
	buf_add_c(&spec, "{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[");
	for (int i = 0; i < 30; i++)
		buf_addf(&spec, "%s{\"type\":\"RUN\",\"args\":[\"c%d\"]}", i ? "," : "", i);
	buf_add_c(&spec, "]}");
	build(buf_cstr(&spec));
	cleanup_json json_t *j = described();
	const json_t *layers = json_object_get(j, "layers");
	assert_true(json_array_size(layers) <= 12);
	/* The image's own stay as they are: others have them, too. */
	assert_string_equal(json_string_value(json_object_get(json_array_get(layers, 0), "file")), "images/o4.erofs");
	assert_string_equal(json_string_value(json_object_get(json_array_get(layers, 1), "file")), "images/o3.erofs");
	assert_true(w.merged >= 1);
}

static int refuse_user(struct world *world, const char *user, const char *command, struct buf *out, char *refusal, size_t size)
{
	snprintf(refusal, size, "invalid username: '%s'", user);
	return !strcmp(user, "root123") ? -1 : 0;
}

static int fail_seven(struct world *world, const char *user, const char *command, struct buf *out, char *refusal, size_t size)
{
	for (int i = 1; i < 30; i++)
		buf_addf(out, "line %d\n", i);
	buf_add_c(out, "a bar: 10%\ra bar: 100%\r\nE: the end\n");
	return 7;
}

static void a_failing_command_is_told(void **state)
{
	w.run = refuse_user;
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"true\"]},{\"type\":\"RUN\",\"args\":[\"whoami\",\"root123\"]}]}", "2",
		"failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'");
	w.run = fail_seven;
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"make it\"]}]}", "1", "failed to run command 'make it': exit status 7: line 24\n");
	assert_true(strstr(w.message, "a bar: 100%\nE: the end") != NULL);
	assert_true(said(&w.log, "1 1 line 1\n1 1 line 2\n"));
	assert_int_equal(w.dropped, 1);
}

static void other_errors_have_their_step(void **state)
{
	build_fails("{\"kind\":\"e2b\",\"image\":\"missing\"}", "base", "there is no image 'missing'");
	build_fails("{\"kind\":\"e2b\"}", "base", "image: give exactly one");
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\"],\"filesHash\":\"" H1 "\"}]}", "1", "its files were not uploaded");
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\",\"${x\"]}]}", "1", "ENV A: ${ without }");
	build_fails("{\"kind\":\"cube\",\"image\":\"x\",\"probePort\":80}", "finalize", "probePort: the image has no ENTRYPOINT or CMD");
	build_fails("{\"kind\":\"cube\",\"image\":\"x\",\"user\":\"ghost\"}", "finalize", "user: the image has no user 'ghost'");
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"USER\",\"args\":[\"No Good\"]},{\"type\":\"RUN\",\"args\":[\"a\"]}]}", "2", "'No Good'");
}

static void a_user_by_number_stays_as_it_is(void **state)
{
	build("{\"kind\":\"cube\",\"image\":\"x\",\"user\":\"4321:8765\"}");
	cleanup_json json_t *j = described();
	assert_string_equal(json_string_value(json_object_get(j, "user")), "4321:8765");
}

static void start_and_ready_commands_are_described(void **state)
{
	build("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"PORT\",\"80\"]},{\"type\":\"WORKDIR\",\"args\":[\"/app\"]}],"
	      "\"startCmd\":\"serve $PORT\",\"readyCmd\":\"curl localhost\"}");
	cleanup_json json_t *j = described();
	const json_t *service = json_array_get(json_object_get(j, "services"), 0);
	assert_string_equal(json_string_value(json_object_get(service, "name")), "start");
	assert_string_equal(json_string_value(json_array_get(json_object_get(service, "command"), 0)), "/bin/bash");
	assert_string_equal(json_string_value(json_array_get(json_object_get(service, "command"), 3)), "serve $PORT");
	assert_string_equal(json_string_value(json_object_get(service, "user")), "user");
	assert_string_equal(json_string_value(json_object_get(service, "workdir")), "/app");
	assert_string_equal(json_string_value(json_object_get(json_object_get(service, "env"), "PORT")), "80");
	assert_true(json_is_false(json_object_get(service, "restart")));
	assert_string_equal(json_string_value(json_array_get(json_object_get(j, "ready"), 3)), "curl localhost");
	assert_true(json_is_true(json_object_get(j, "wait_ready")));
	assert_true(w.probe);
	/* The default of E2B's clients costs no create its twenty seconds. */
	build("{\"kind\":\"e2b\",\"image\":\"x\",\"startCmd\":\"serve\",\"readyCmd\":\"sleep 20\"}");
	cleanup_json json_t *waits = described();
	assert_null(json_object_get(waits, "ready"));
}

static void what_stands_on_a_template_goes_on_starting_its_programs(void **state)
{
	static const char base[] = "{\"layers\":[{\"file\":\"images/base.erofs\",\"size\":5}],\"user\":\"user\",\"services\":[{\"name\":\"start\",\"command\":[\"/old\"],\"user\":\"root\"},"
				   "{\"name\":\"interp\",\"command\":[\"/i\"],\"user\":\"root\"}],\"ready\":[\"/r\"],\"env\":{\"X\":\"y\"}}";
	struct error err = {0};
	assert_int_equal(world_build(&w, "{\"kind\":\"e2b\",\"base\":true,\"startCmd\":\"new\"}", base, false, &err), 0);
	assert_true(w.done);
	cleanup_json json_t *j = described();
	const json_t *services = json_object_get(j, "services");
	assert_int_equal(json_array_size(services), 2);
	assert_string_equal(json_string_value(json_array_get(json_object_get(json_array_get(services, 0), "command"), 3)), "new");
	assert_string_equal(json_string_value(json_object_get(json_array_get(services, 1), "name")), "interp");
	assert_non_null(json_object_get(j, "ready"));
	assert_string_equal(json_string_value(json_object_get(json_object_get(j, "env"), "X")), "y");
	assert_null(world_find(&w, "/home/user")); /* nobody provisions a template */
}

static void commands_of_cube_are_kubernetes_words(void **state)
{
	static char *entry[] = {(char *)"/entry", NULL}, *cmd[] = {(char *)"default", NULL};
	world_config.entrypoint = entry;
	world_config.cmd = cmd;
	static const struct {
		const char *more, *argv[3];
	} table[] = {
		{"", {"/entry", "default"}},
		{",\"args\":[\"mine\"]", {"/entry", "mine"}},
		{",\"command\":[\"/mine\"]", {"/mine"}},
		{",\"command\":[\"/mine\"],\"args\":[\"x\"]", {"/mine", "x"}},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		char spec[256];
		snprintf(spec, sizeof(spec), "{\"kind\":\"cube\",\"image\":\"x\",\"probePort\":8080,\"probePath\":\"/health\",\"env\":[\"K=V\"]%s}", table[i].more);
		build(spec);
		cleanup_json json_t *j = described();
		const json_t *command = json_object_get(json_array_get(json_object_get(j, "services"), 0), "command");
		size_t n = 0;
		for (; table[i].argv[n]; n++)
			assert_string_equal(json_string_value(json_array_get(command, n)), table[i].argv[n]);
		assert_int_equal(json_array_size(command), n);
		assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "probe"), "port")), 8080);
		assert_string_equal(json_string_value(json_object_get(json_object_get(j, "env"), "K")), "V");
	}
}

static void images_without_accounts_keep_root(void **state)
{
	w.n_files = 0;
	world_put(&w, 'd', "/", 0755, 0, 0, "");
	build("{\"kind\":\"e2b\",\"image\":\"x\"}");
	cleanup_json json_t *j = described();
	assert_string_equal(json_string_value(json_object_get(j, "user")), "root");
	assert_null(world_find(&w, "/etc/passwd"));
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"ls\"]}]}", "1", "neither /bin/bash nor /bin/sh");
}

static void no_secret_is_logged(void **state)
{
	build("{\"kind\":\"e2b\",\"image\":\"x\",\"registry\":{\"type\":\"registry\",\"username\":\"me\",\"password\":\"hunter2\"},\"steps\":[{\"type\":\"ENV\",\"args\":[\"TOKEN\",\"s3cret\"]}]}");
	assert_true(said(&w.log, "[1/1] ENV TOKEN\n"));
	assert_false(said(&w.log, "hunter2") || said(&w.log, "s3cret") || strstr(w.description, "hunter2"));
}

/* ---- COPY ---- */

static const char *const tree[] = {"app", "app/.hidden=dot", "app/main.py=main", "app/deep/er/x=x", "app/abs->/etc/passwd", "app/rel->main.py", "app/gone->nowhere",
	"app/twin=>app/main.py", "one.txt=one", "other/two.txt=two", "other/away=>one.txt", NULL};

struct copied {
	const char *sources[4], *dest, *owner;
	long mode;
	const char *placed[12]; /* "path type mode uid:gid [text]" */
	const char *says;       /* an error */
};

static void check_placed(const struct copied *c)
{
	for (size_t i = 0; c->placed[i]; i++) {
		char path[256], line[700];
		sscanf(c->placed[i], "%255s", path);
		const struct world_file *f = world_find(&w, path);
		if (!f)
			fail_msg("%s -> %s: there is no %s", c->sources[0], c->dest, path);
		snprintf(line, sizeof(line), "%.200s %c %o %u:%u%s%.300s", path, f->type, f->mode, f->uid, f->gid, f->type == 'd' ? "" : " ", f->type == 'f' ? f->text : f->link);
		if (f->type == 'l') /* nobody looks at a link's mode */
			snprintf(line, sizeof(line), "%.200s l %u:%u %.300s", path, f->uid, f->gid, f->link);
		assert_string_equal(line, c->placed[i]);
	}
}

static void copies_follow_dockers_rules(void **state)
{
	static const struct copied table[] = {
		/* A directory's contents are merged, dotfiles and links as they are; what is new belongs to the owner. */
		{{"app"}, "/srv/new", "user", -1, {"/srv d 755 0:0", "/srv/new d 755 1000:1000", "/srv/new/.hidden f 640 1000:1000 dot", "/srv/new/main.py f 640 1000:1000 main",
			"/srv/new/deep d 755 1000:1000", "/srv/new/deep/er d 755 1000:1000", "/srv/new/deep/er/x f 640 1000:1000 x", "/srv/new/abs l 1000:1000 /etc/passwd",
			"/srv/new/rel l 1000:1000 main.py", "/srv/new/gone l 1000:1000 nowhere", "/srv/new/twin h 640 1000:1000 /srv/new/main.py"}},
		/* A directory that is there stays as it is. */
		{{"app"}, "/there", NULL, 0755, {"/there d 711 7:7", "/there/main.py f 755 0:0 main", "/there/deep d 755 0:0"}},
		/* A file to a name, into a directory that is there, into one that is to be. */
		{{"one.txt"}, "/there", NULL, -1, {"/there/one.txt f 640 0:0 one"}},
		{{"one.txt"}, "/fresh", NULL, -1, {"/fresh f 640 0:0 one"}},
		{{"one.txt"}, "/fresh/", NULL, -1, {"/fresh d 755 0:0", "/fresh/one.txt f 640 0:0 one"}},
		{{"one.txt"}, "/a/b/c", "33:staff", 0600, {"/a d 755 0:0", "/a/b d 755 0:0", "/a/b/c f 600 33:50 one"}},
		/* Several go into a directory, even when its name does not say so. */
		{{"one.txt", "other/two.txt"}, "/many", NULL, -1, {"/many d 755 0:0", "/many/one.txt f 640 0:0 one", "/many/two.txt f 640 0:0 two"}},
		{{"one.txt", "app", "app/deep"}, "/mix/", NULL, -1, {"/mix/one.txt f 640 0:0 one", "/mix/main.py f 640 0:0 main", "/mix/er/x f 640 0:0 x", "/mix/deep/er/x f 640 0:0 x"}},
		/* Everything; the root is there. */
		{{""}, "/", NULL, -1, {"/ d 755 0:0", "/app/main.py f 640 0:0 main", "/one.txt f 640 0:0 one", "/other/away h 640 0:0 //one.txt"}},
		/* A further name of a file that is not copied has its bytes. */
		{{"other"}, "/o", NULL, -1, {"/o/away f 640 0:0 one"}},
		{{"app/twin"}, "/t", NULL, -1, {"/t f 640 0:0 main"}},
		/* A link alone stays one. */
		{{"app/rel"}, "/l", NULL, -1, {"/l l 0:0 main.py"}},
		{{"nothing"}, "/n", NULL, -1, {NULL}, "'nothing' does not exist"},
		{{"app/main"}, "/n", NULL, -1, {NULL}, "'app/main' does not exist"},
		{{"one.txt"}, "/n", "ghost", -1, {NULL}, "unknown user 'ghost'"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		const struct copied *c = &table[i];
		struct error err = {0};
		struct copy_done done;
		world_stop(&w);
		world_start(&w);
		world_put(&w, 'f', "/etc/passwd", 0644, 0, 0, "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
		world_put(&w, 'd', "/there", 0711, 7, 7, "");
		world_upload(&w, H1, tree);
		const struct envd e = {.connect = world_connect, .arg = &w, .token = "token"};
		const struct copy what = {.fd = w.uploads[0].fd, .sources = c->sources, .dest = c->dest, .owner = c->owner, .mode = c->mode};
		int r = copy_into(&e, &what, &done, &err);
		if ((r < 0) != (c->says != NULL) || (c->says && !strstr(err.message, c->says)))
			fail_msg("%s -> %s: %s", c->sources[0], c->dest, err.message);
		check_placed(c);
	}
}

static bool leave_deep(void *arg, struct str path)
{
	return str_is(path, "app/deep") || str_starts(path, STR("app/deep/"));
}

static void copies_leave_out_and_come_from_other_boxes(void **state)
{
	struct error err = {0};
	struct copy_done done;
	static const char *const app[] = {"app", NULL}, *const both[] = {"/app", "/one.txt", NULL};
	world_upload(&w, H1, tree);
	const struct envd e = {.connect = world_connect, .arg = &w, .token = "token"};
	const struct copy some = {.fd = w.uploads[0].fd, .sources = app, .exclude = leave_deep, .dest = "/app", .owner = "33:50", .mode = -1};
	assert_int_equal(copy_into(&e, &some, &done, &err), 0);
	assert_non_null(world_find(&w, "/app/main.py"));
	assert_null(world_find(&w, "/app/deep"));
	world_put(&w, 'f', "/one.txt", 04755, 9, 9, "one");
	/* Between boxes owners stay, unless they are named. */
	const struct copy between = {.fd = -1, .from = &e, .sources = both, .dest = "/target", .mode = -1};
	assert_int_equal(copy_into(&e, &between, &done, &err), 0);
	assert_int_equal(world_find(&w, "/target/main.py")->uid, 33);
	assert_int_equal(world_find(&w, "/target/one.txt")->uid, 9);
	assert_int_equal(world_find(&w, "/target/one.txt")->mode, 04755);
	static const char *const absent[] = {"/absent", NULL};
	const struct copy nothing = {.fd = -1, .from = &e, .sources = absent, .dest = "/target", .mode = -1};
	assert_int_equal(copy_into(&e, &nothing, &done, &err), -ENOENT);
}

static void archives_that_are_none_are_refused(void **state)
{
	struct error err = {0};
	struct copy_done done;
	static const char *const all[] = {"", NULL}, *const up[] = {"../x=y", NULL};
	const struct envd e = {.connect = world_connect, .arg = &w, .token = "token"};
	world_upload(&w, H1, up);
	const struct copy out = {.fd = w.uploads[0].fd, .sources = all, .dest = "/d", .mode = -1};
	assert_int_equal(copy_into(&e, &out, &done, &err), -EBADMSG);
	static const char *const none[] = {NULL};
	world_upload(&w, H2, none);
	assert_int_equal(ftruncate(w.uploads[1].fd, 0), 0);
	assert_int_equal(pwrite(w.uploads[1].fd, "this is no archive at all, whatever you may think of it", 55, 0), 55);
	const struct copy noise = {.fd = w.uploads[1].fd, .sources = all, .dest = "/d", .mode = -1};
	assert_int_equal(copy_into(&e, &noise, &done, &err), -EBADMSG);
}

static void copy_steps_place_uploads(void **state)
{
	world_upload(&w, H1, tree);
	build("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"app/*\",\"code\",\"\",\"\"],\"filesHash\":\"" H1 "\"},"
	      "{\"type\":\"COPY\",\"args\":[\"one.txt\",\"/opt/\",\"www-data\",\"0600\"],\"filesHash\":\"" H1 "\"}]}");
	assert_int_equal(world_find(&w, "/home/user/code/main.py")->uid, 1000);
	assert_int_equal(world_find(&w, "/opt/one.txt")->uid, 33);
	assert_int_equal(world_find(&w, "/opt/one.txt")->gid, 33);
	assert_int_equal(world_find(&w, "/opt/one.txt")->mode, 0600);
	build_fails("{\"kind\":\"e2b\",\"image\":\"x\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"app\",\"x\",\"\",\"9\"],\"filesHash\":\"" H1 "\"}]}", "1", "the mode '9' is not octal");
}

int main(void)
{
	setlocale(LC_CTYPE, "C.UTF-8");
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		T(an_image_becomes_a_template),
		T(an_images_path_is_that_of_login_shells),
		T(deep_images_have_their_upper_layers_merged),
		T(layers_without_files_and_repeated_ones_are_made_once),
		T(a_hard_link_to_below_merges_what_is_below),
		T(steps_run_with_user_directory_and_environment),
		T(steps_are_found_again),
		T(many_steps_are_merged),
		T(a_failing_command_is_told),
		T(other_errors_have_their_step),
		T(a_user_by_number_stays_as_it_is),
		T(start_and_ready_commands_are_described),
		T(what_stands_on_a_template_goes_on_starting_its_programs),
		T(commands_of_cube_are_kubernetes_words),
		T(images_without_accounts_keep_root),
		T(no_secret_is_logged),
		T(copies_follow_dockers_rules),
		T(copies_leave_out_and_come_from_other_boxes),
		T(archives_that_are_none_are_refused),
		T(copy_steps_place_uploads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
