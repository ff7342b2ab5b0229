#include "cli/template_source.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/child.h"
#include "cli/docker_login.h"
#include "image/recipe.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PASSWORD_MAX = 64 * 1024 };

void template_source_done(struct template_source *s)
{
	json_decref(s->body);
	packed_done(&s->files);
	*s = (struct template_source){.files = PACKED_NONE};
}

static const char *flag_text(const struct build *b, const char *name)
{
	return cli_flag(b->cli, name)->text;
}

/* JSON takes UTF-8 only. */
static int set_text(json_t *to, const char *key, const char *text, struct error *err)
{
	return json_object_set_new(to, key, json_string(text)) == 0 ? 0 : error_set(err, -EINVAL, 400, "%s: '%s' is no UTF-8", key, text);
}

static int read_standard_input(struct buf *to, const char *what, struct error *err)
{
	char *p = buf_reserve(to, PASSWORD_MAX);
	ssize_t n = p ? fd_read_full(0, p, PASSWORD_MAX) : -ENOMEM;
	if (n < 0)
		return error_errno(err, (int)n, "%s", what);
	while (n && (p[n - 1] == '\n' || p[n - 1] == '\r'))
		n--;
	buf_commit(to, (size_t)n);
	return n ? 0 : error_set(err, -EINVAL, 400, "%s: nothing came on standard input", what);
}

/* Credentials in the forms of E2B's `fromImageRegistry` (e2b.md A.6). */

static int registry_basic(json_t **ret, const char *user, struct str password, struct error *err)
{
	*ret = json_pack("{s:s,s:s,s:o}", "type", "registry", "username", user, "password", json_stringn(password.p, password.n));
	return *ret ? 0 : error_set(err, -EINVAL, 400, "user name or password are no UTF-8");
}

static int registry_aws(json_t **ret, const char *region, struct error *err)
{
	const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
	if (!id || !*id || !secret || !*secret)
		return error_set(err, -EINVAL, 400, "--aws-region takes the key from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which are not set");
	*ret = json_pack("{s:s,s:s,s:s,s:s}", "type", "aws", "awsAccessKeyId", id, "awsSecretAccessKey", secret, "awsRegion", region);
	return *ret ? 0 : error_set(err, -EINVAL, 400, "the AWS key is no UTF-8");
}

static int registry_gcp(json_t **ret, const char *path, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, path, PASSWORD_MAX, &text);
	if (r < 0)
		return error_errno(err, r, "--gcp-key %s", path);
	*ret = json_pack("{s:s,s:o}", "type", "gcp", "serviceAccountJson", json_stringn(buf_str(&text).p, buf_len(&text)));
	return *ret ? 0 : error_set(err, -EINVAL, 400, "--gcp-key %s is no UTF-8", path);
}

static int registry_docker(json_t **ret, const struct reference *image, struct error *err)
{
	cleanup_free char *user = NULL, *password = NULL;
	int r = docker_login(image, &user, &password, err);
	if (r > 0)
		r = registry_basic(ret, user, str_of(password), err);
	if (password)
		explicit_bzero(password, strlen(password));
	return r;
}

static int registry_given(const struct build *b, json_t **ret, const struct reference *image, struct error *err)
{
	const char *user = flag_text(b, "username"), *region = flag_text(b, "aws-region"), *key = flag_text(b, "gcp-key");
	if (region)
		return registry_aws(ret, region, err);
	if (key)
		return registry_gcp(ret, key, err);
	if (!user)
		return registry_docker(ret, image, err);
	cleanup_buf struct buf text = BUF_INIT;
	int r = read_standard_input(&text, "--password-stdin", err);
	if (r == 0)
		r = registry_basic(ret, user, buf_str(&text), err);
	if (text.data)
		explicit_bzero(text.data, text.cap);
	return r;
}

static int from_image(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	struct reference image;
	json_t *registry = NULL;
	int r = reference_parse(str_of(value), &image, err);
	if (r == 0)
		r = registry_given(b, &registry, &image, err);
	if (r < 0)
		return r;
	if (registry)
		json_object_set_new(s->body, "fromImageRegistry", registry);
	return set_text(s->body, "fromImage", value, err);
}

static int from_template(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	return set_text(s->body, "fromTemplate", value, err);
}

static int from_sandbox(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	char id[32], path[96];
	cleanup_json json_t *body = json_object(), *made = NULL;
	int r = client_resolve(b->client, value, id, err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/sandboxes/%s/snapshots", id);
	r = client_call(b->client, "POST", path, body, &made, NULL, err);
	if (r < 0)
		return r;
	struct str snapshot = json_str(json_object_get(made, "snapshotID"));
	if (!snapshot.n || snapshot.n >= sizeof(s->snapshot))
		return error_set(err, -EPROTO, 502, "the server did not say which snapshot it made");
	snprintf(s->snapshot, sizeof(s->snapshot), "%.*s", STR_FMT(snapshot));
	return set_text(s->body, "fromTemplate", s->snapshot, err);
}

int template_source_files(struct template_source *s, const char *type, const char *name, struct error *err)
{
	json_t *source = json_pack("{s:s,s:s,s:s*}", "type", type, "hash", s->files.hash, "name", name);
	return source && json_object_set_new(s->body, "source", source) == 0 ? 0 : error_set(err, -EINVAL, 400, "the image's name is no UTF-8");
}

static bool is_directory(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int pack_any(struct template_source *s, struct build *b, const char *path, bool plain, struct error *err)
{
	return is_directory(path) ? pack_directory(path, &b->progress, &s->files, err) : pack_file(path, plain, &b->progress, &s->files, err);
}

static int from_rootfs(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	int r = pack_any(s, b, value, false, err);
	return r < 0 ? r : template_source_files(s, "rootfs", NULL, err);
}

/* PATH, or PATH:NAME for one of several images; a path that exists is meant as it is. */
static int from_archive(struct template_source *s, struct build *b, const char *type, const char *value, struct error *err)
{
	const char *colon = access(value, F_OK) == 0 ? NULL : strchr(value, ':');
	cleanup_free char *path = str_dup(colon ? str_n(value, (size_t)(colon - value)) : str_of(value));
	if (!path)
		return error_errno(err, -ENOMEM, "%s", value);
	int r = pack_any(s, b, path, true, err);
	return r < 0 ? r : template_source_files(s, type, colon ? colon + 1 : NULL, err);
}

static int from_oci(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	return from_archive(s, b, "oci-archive", value, err);
}

static int from_docker(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	return is_directory(value) ? error_set(err, -EINVAL, 400, "--docker-archive %s is a directory; `docker save` writes a file", value) :
				     from_archive(s, b, "docker-archive", value, err);
}

/* What mmdebstrap says goes above the bar. */
static void debian_line(struct str line, void *arg)
{
	struct build *b = arg;
	if (!b->cli->json && line.n)
		progress_print(&b->progress, line);
	progress_show(&b->progress, "installing packages", -1, 0, 0);
}

/* Behind recipe_prelude: a tar of the system goes to standard output. What says how this machine reaches the mirror stays outside. */
static const char packages_script[] =
	"suite=$3 packages=$4\n"
	"package_sources\n"
	"cat > clean <<'EOF'\n"
	"cat \"$1\"/etc/apt/sources.list \"$1\"/etc/apt/sources.list.d/*.list 2>/dev/null | sed -n 's#//[^/@ ]*@#//#; /^deb /p' > plain\n"
	"if [ -s plain ]; then mv plain \"$1\"/etc/apt/sources.list; rm -rf \"$1\"/etc/apt/sources.list.d/*; fi\n"
	"rm -rf \"$1\"/etc/apt/apt.conf.d/99mmdebstrap \"$1\"/etc/apt/trusted.gpg.d/keys* \"$1\"/var/log/*.log \"$1\"/var/log/apt/* \"$1\"/var/cache/ldconfig/aux-cache\n"
	"for f in machine-id hostname hosts resolv.conf; do rm -f \"$1\"/etc/$f; : > \"$1\"/etc/$f; done\n"
	"EOF\n"
	"mmdebstrap --format=tar --variant=minbase --keyring=$work/keys --aptopt=$work/apt.conf --dpkgopt='path-exclude=/usr/share/man/*' \\\n"
	"	--dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \\\n"
	"	${packages:+--include=$packages} --customize-hook=\"sh $work/clean \\\"\\$1\\\"\" $suite - $([ ! -s sources ] || echo -) < sources\n";

static int from_packages(struct template_source *s, struct build *b, const char *value, struct error *err)
{
	const char *suite = flag_text(b, "suite"), *mirror = flag_text(b, "mirror");
	cleanup_free char *script = NULL;
	if (asprintf(&script, "command -v mmdebstrap >/dev/null || exit 126\ndir=$(mktemp -d \"${TMPDIR:-/var/tmp}/cubicle-XXXXXX\")\ntrap 'rm -rf \"$dir\"' EXIT\n"
			      "trap 'exit 130' INT TERM HUP\nchmod 755 \"$dir\"\ncd \"$dir\"\n%s%s", recipe_prelude, packages_script) < 0)
		return error_errno(err, -ENOMEM, "--packages");
	const char *argv[] = {"sh", "-c", script, "cubicle-template", mirror ? mirror : "", "", suite ? suite : "bookworm", value, NULL};
	cleanup_fd int fd = pack_temporary(err);
	if (fd < 0)
		return fd;
	struct child c = {.argv = argv, .output = fd, .line = debian_line, .arg = b};
	int r = child_run(&c, err);
	if (r == 126)
		return error_set(err, -ENOENT, 500, "the program mmdebstrap is missing: apt-get install mmdebstrap");
	if (r != 0)
		return r < 0 ? r : error_set(err, -EIO, 500, "mmdebstrap could not make it (%d)%s", r, b->cli->json ? "" : ": see above");
	r = pack_descriptor(steal_fd(&fd), &b->progress, &s->files, err);
	return r < 0 ? r : template_source_files(s, "rootfs", NULL, err);
}

static const struct {
	const char *flag;
	int (*open)(struct template_source *s, struct build *b, const char *value, struct error *err);
} kinds[] = {
	{"image", from_image},
	{"template", from_template},
	{"sandbox", from_sandbox},
	{"snapshot", from_template},
	{"rootfs", from_rootfs},
	{"oci-layout", from_oci},
	{"docker-archive", from_docker},
	{"packages", from_packages},
};

/* What only some sources take, and is wrong with another. */
static int check_rest(const struct cli *c, const char *source, struct error *err)
{
	static const char *const only[][2] = {{"username", "image"}, {"password-stdin", "image"}, {"aws-region", "image"}, {"gcp-key", "image"}, {"suite", "packages"},
		{"mirror", "packages"}};
	for (size_t i = 0; i < ARRAY_SIZE(only); i++)
		if (cli_flag(c, only[i][0])->set && strcmp(only[i][1], source) != 0)
			return error_set(err, -EINVAL, 400, "--%s has a meaning with --%s only", only[i][0], only[i][1]);
	if (cli_flag(c, "username")->set + cli_flag(c, "aws-region")->set + cli_flag(c, "gcp-key")->set > 1)
		return error_set(err, -EINVAL, 400, "one of --username, --aws-region and --gcp-key is enough");
	if (cli_flag(c, "username")->set != cli_flag(c, "password-stdin")->set)
		return error_set(err, -EINVAL, 400, "--username and --password-stdin go together");
	return 0;
}

int template_source_choose(const struct cli *c, struct error *err)
{
	int chosen = -1;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		if (!cli_flag(c, kinds[i].flag)->set)
			continue;
		if (chosen >= 0)
			return error_set(err, -EINVAL, 400, "--%s and --%s: a template is made of one thing", kinds[chosen].flag, kinds[i].flag);
		chosen = (int)i;
	}
	if (chosen < 0)
		return error_set(err, -EINVAL, 400,
			"what is it made of? Give one of --image, --template, --sandbox, --snapshot, --rootfs, --oci-layout, --docker-archive and --packages");
	int r = check_rest(c, kinds[chosen].flag, err);
	return r < 0 ? r : chosen;
}

int template_source_open(struct template_source *s, int choice, struct build *b, struct error *err)
{
	*s = (struct template_source){.body = json_object(), .files = PACKED_NONE};
	return kinds[choice].open(s, b, flag_text(b, kinds[choice].flag), err);
}
