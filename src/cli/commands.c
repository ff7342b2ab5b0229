/* The table of commands. */
#include "cli/commands.h"
#include "base/cleanup.h"

enum { MAX_SECONDS = 31536000 };

#define PROCESS_FLAGS                                                                                        \
	{"user", 'u', FLAG_TEXT, "USER", "Unix user inside (default: the template's).", 0, 0},               \
	{"cwd", 'w', FLAG_TEXT, "DIR", "Working directory inside (default: the template's, or the user's home).", 0, 0}, \
	{"env", 'e', FLAG_PAIR, "KEY=VALUE", "Environment variable; KEY alone passes ours on. Repeatable.", 0, 0}

static const struct flag run_flags[] = {
	PROCESS_FLAGS,
	{"tty", 't', FLAG_SWITCH, NULL, "Give the command a terminal.", 0, 0},
	{"no-stdin", 'n', FLAG_SWITCH, NULL, "Do not read standard input.", 0, 0},
	{"timeout", 0, FLAG_NUMBER, "SECONDS", "The sandbox ends after this time; -1 = never (default: with the command).", -1, MAX_SECONDS},
	{"no-internet", 0, FLAG_SWITCH, NULL, "Let nothing out.", 0, 0},
	{0},
};

static const struct flag exec_flags[] = {
	PROCESS_FLAGS,
	{"tty", 't', FLAG_SWITCH, NULL, "Give the command a terminal.", 0, 0},
	{"no-stdin", 'n', FLAG_SWITCH, NULL, "Do not read standard input.", 0, 0},
	{"timeout", 0, FLAG_NUMBER, "SECONDS", "Kill the command after this time, exit code 124 (default: never).", 1, MAX_SECONDS},
	{0},
};

static const struct flag shell_flags[] = {PROCESS_FLAGS, {0}};

static const struct flag create_flags[] = {
	{"timeout", 0, FLAG_NUMBER, "SECONDS", "The sandbox ends after this time; -1 = never (default: the server's, 300).", -1, MAX_SECONDS},
	{"metadata", 'm', FLAG_PAIR, "KEY=VALUE", "What `sandbox list` can filter by. Repeatable.", 0, 0},
	{"env", 'e', FLAG_PAIR, "KEY=VALUE", "Environment variable of every command; KEY alone passes ours on. Repeatable.", 0, 0},
	{"no-internet", 0, FLAG_SWITCH, NULL, "Let nothing out.", 0, 0},
	{"auto-pause", 0, FLAG_SWITCH, NULL, "Pause it at its deadline instead of ending it.", 0, 0},
	{"auto-resume", 0, FLAG_SWITCH, NULL, "Resume it when somebody connects to one of its ports while it is paused.", 0, 0},
	{"shutdown-after", 0, FLAG_NUMBER, "SECONDS", "It ends then, whatever deadlines, pauses and resumes come meanwhile.", 1, 315360000},
	{0},
};

static const struct flag pause_flags[] = {
	{"disk-only", 0, FLAG_SWITCH, NULL, "End the processes and keep the file system only.", 0, 0},
	{0},
};

static const struct flag resume_flags[] = {
	{"timeout", 0, FLAG_NUMBER, "SECONDS", "The sandbox ends after this time; -1 = never (default: the server's, 300).", -1, MAX_SECONDS},
	{"from-disk", 0, FLAG_SWITCH, NULL, "Start it anew from its file system, also when its processes were kept.", 0, 0},
	{0},
};

static const struct flag fork_flags[] = {
	{"count", 'n', FLAG_NUMBER, "N", "How many (default 1).", 1, 100},
	{"timeout", 0, FLAG_NUMBER, "SECONDS", "Each ends after this time; -1 = never (default: the server's, 300).", -1, MAX_SECONDS},
	{0},
};

static const struct flag snapshot_list_flags[] = {
	{"sandbox", 0, FLAG_TEXT, "ID", "Only those of this sandbox.", 0, 0},
	{0},
};

static const struct flag list_flags[] = {
	{"metadata", 'm', FLAG_PAIR, "KEY=VALUE", "Only sandboxes made with this metadata. Repeatable: all must fit.", 0, 0},
	{0},
};

static const struct flag logs_flags[] = {
	{"follow", 'f', FLAG_SWITCH, NULL, "Go on until the sandbox ends.", 0, 0},
	{"level", 0, FLAG_TEXT, "LEVEL", "Only this or worse: debug, info, warn, error.", 0, 0},
	{0},
};

static const struct flag metrics_flags[] = {
	{"follow", 'f', FLAG_SWITCH, NULL, "Go on until the sandbox ends.", 0, 0},
	{"all", 0, FLAG_SWITCH, NULL, "All that is kept, up to 24 hours, not only the newest minute.", 0, 0},
	{0},
};

static const struct flag kill_flags[] = {
	{"all", 0, FLAG_SWITCH, NULL, "Every sandbox.", 0, 0},
	{0},
};

static const struct flag pool_flags[] = {
	{"min", 0, FLAG_NUMBER, "N", "Fewest that are kept ready (default SIZE).", 0, 1000},
	{"max", 0, FLAG_NUMBER, "N", "Most that are kept ready when many are asked for (default SIZE).", 0, 1000},
	{"wait", 0, FLAG_NUMBER, "SECONDS", "Return when the fewest are ready; after SECONDS say why they are not, and fail.", 1, 3600},
	{0},
};

static const struct flag make_default_flags[] = {
	{"mirror", 0, FLAG_TEXT, "URL", "Debian mirror to take the packages from (default: this machine's own sources).", 0, 0},
	{"if-missing", 0, FLAG_SWITCH, NULL, "Make only what is not there, or whose recipe has changed since.", 0, 0},
	{0},
};

/* Of every command that builds a template (build_follow.h). */
#define BUILD_FLAGS                                                                                          \
	{"cpu", 0, FLAG_NUMBER, "N", "Processors of each sandbox (default: the server's).", 1, 1024},         \
	{"memory", 0, FLAG_NUMBER, "MIB", "Memory of each sandbox (default: the server's).", 1, 1 << 24},     \
	{"disk", 0, FLAG_NUMBER, "MIB", "What each sandbox may write (default: the server's).", 1, 1 << 28},  \
	{"isolation", 0, FLAG_TEXT, "KIND", "namespace, microvm, or auto: what the server is set to (default: what it is made on has it).", 0, 0}, \
	{"public", 0, FLAG_SWITCH, NULL, "Let other teams use it.", 0, 0},                                   \
	{"no-cache", 0, FLAG_SWITCH, NULL, "Take nothing that earlier builds have left.", 0, 0},             \
	{"no-wait", 0, FLAG_SWITCH, NULL, "Return when the build has begun.", 0, 0}

#define SETTING_FLAGS                                                                                        \
	{"start-cmd", 0, FLAG_TEXT, "COMMAND", "Shell command that runs in every sandbox from its start on.", 0, 0}, \
	{"ready-cmd", 0, FLAG_TEXT, "COMMAND", "Shell command that ends with 0 when a sandbox is ready.", 0, 0}, \
	{"probe-port", 0, FLAG_NUMBER, "PORT", "A sandbox is ready when it answers at this port.", 1, 65535}, \
	{"probe-path", 0, FLAG_TEXT, "PATH", "... with 2xx to a GET of this path.", 0, 0},                      \
	{"env", 'e', FLAG_PAIR, "KEY=VALUE", "Environment variable of every command; KEY alone passes ours on. Repeatable.", 0, 0}, \
	{"user", 'u', FLAG_TEXT, "USER", "User of commands that name none (default: the image's).", 0, 0},     \
	{"workdir", 'w', FLAG_TEXT, "DIR", "Directory of commands that name none (default: the image's).", 0, 0}, \
	{"e2b", 0, FLAG_SWITCH, NULL, "Add what E2B's builder adds: the user `user`, who may sudo, as the default.", 0, 0}

static const struct flag template_create_flags[] = {
	{"image", 0, FLAG_TEXT, "REF", "An image of a registry; the server pulls it.", 0, 0},
	{"template", 0, FLAG_TEXT, "TEMPLATE", "Another template, with a tag or not.", 0, 0},
	{"sandbox", 0, FLAG_TEXT, "SANDBOX", "A running sandbox, as it is now.", 0, 0},
	{"snapshot", 0, FLAG_TEXT, "SNAPSHOT", "A snapshot.", 0, 0},
	{"rootfs", 0, FLAG_TEXT, "PATH", "A root file system: a directory, or a tar (gzip, zstd, xz or bzip2, or not compressed).", 0, 0},
	{"oci-layout", 0, FLAG_TEXT, "PATH[:TAG]", "An OCI image layout: a directory, or a tar of one.", 0, 0},
	{"docker-archive", 0, FLAG_TEXT, "PATH[:NAME]", "What `docker save` wrote.", 0, 0},
	{"packages", 0, FLAG_TEXT, "A,B,...", "Debian, with these packages; made on this machine by mmdebstrap.", 0, 0},
	{"suite", 0, FLAG_TEXT, "NAME", "... of this release (default bookworm).", 0, 0},
	{"mirror", 0, FLAG_TEXT, "URL", "... from this mirror (default: this machine's own sources).", 0, 0},
	{"username", 0, FLAG_TEXT, "USER", "Who pulls the image (default: what `docker login` has stored for its registry).", 0, 0},
	{"password-stdin", 0, FLAG_SWITCH, NULL, "... with the password that comes on standard input.", 0, 0},
	{"aws-region", 0, FLAG_TEXT, "REGION", "Amazon's registry there, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.", 0, 0},
	{"gcp-key", 0, FLAG_TEXT, "FILE", "Google's registry, with the key of a service account (JSON).", 0, 0},
	SETTING_FLAGS,
	BUILD_FLAGS,
	{0},
};

static const struct flag template_build_flags[] = {
	{"file", 'f', FLAG_TEXT, "PATH", "The Dockerfile; - = standard input (default: PATH/Dockerfile).", 0, 0},
	{"tag", 't', FLAG_TEXT, "NAME[:TAG]", "What the template is called (default: what the directory is called).", 0, 0},
	{"build-arg", 0, FLAG_PAIR, "KEY=VALUE", "Value of an ARG; KEY alone takes ours. Repeatable.", 0, 0},
	{"target", 0, FLAG_TEXT, "STAGE", "Build this stage, by its name or number (default: the last one).", 0, 0},
	{"progress", 0, FLAG_TEXT, "HOW", "plain: lines only; tty: with a line that is drawn again (default: what standard error is).", 0, 0},
	{"start-cmd", 0, FLAG_TEXT, "COMMAND", "Shell command that runs in every sandbox from its start on, instead of ENTRYPOINT and CMD.", 0, 0},
	{"ready-cmd", 0, FLAG_TEXT, "COMMAND", "Shell command that ends with 0 when a sandbox is ready.", 0, 0},
	{"probe-port", 0, FLAG_NUMBER, "PORT", "A sandbox is ready when it answers at this port.", 1, 65535},
	{"probe-path", 0, FLAG_TEXT, "PATH", "... with 2xx to a GET of this path.", 0, 0},
	{"e2b", 0, FLAG_SWITCH, NULL, "Add what E2B's builder adds: the user `user`, who may sudo, as the default.", 0, 0},
	BUILD_FLAGS,
	{0},
};

static const struct flag template_import_flags[] = {SETTING_FLAGS, BUILD_FLAGS, {0}};

static const struct flag template_logs_flags[] = {
	{"follow", 'f', FLAG_SWITCH, NULL, "Go on until the build ends.", 0, 0},
	{0},
};

static const struct flag template_delete_flags[] = {
	{"force", 0, FLAG_SWITCH, NULL, "Also while sandboxes use it: they keep what they stand on.", 0, 0},
	{0},
};

static const struct flag template_export_flags[] = {
	{"output", 'o', FLAG_TEXT, "FILE", "Where to.", 0, 0},
	{0},
};

static const struct flag template_gc_flags[] = {
	{"dry-run", 0, FLAG_SWITCH, NULL, "Only show what would be removed.", 0, 0},
	{"older-than", 0, FLAG_TEXT, "TIME", "Only what was not used for that long: 90s, 30m, 12h, 7d (default: all).", 0, 0},
	{0},
};

#define QUOTA_FLAGS                                                                                          \
	{"sandboxes", 0, FLAG_TEXT, "N", "Most sandboxes that run at once: a number, `none`, or `default` for the server's option.", 0, 0}, \
	{"creates", 0, FLAG_TEXT, "N", "Most sandboxes that are started in a second, likewise.", 0, 0},      \
	{"memory", 0, FLAG_TEXT, "MIB", "Most memory in MiB of the sandboxes that run or are paused with their memory, likewise.", 0, 0}

static const struct flag quota_flags[] = {QUOTA_FLAGS, {0}};

static const struct flag forward_flags[] = {
	{"listen", 'l', FLAG_TEXT, "ADDRESS", "Loopback address and port to listen on (default 127.0.0.1:0, a free port).", 0, 0},
	{"allow-insecure", 0, FLAG_SWITCH, NULL, "Also when the server is elsewhere and speaks no TLS.", 0, 0},
	{0},
};

static const struct flag mcp_flags[] = {
	{"template", 0, FLAG_TEXT, "TEMPLATE", "What sandbox_create makes when it is not told (default code-interpreter-v1).", 0, 0},
	{"keep", 0, FLAG_SWITCH, NULL, "Pause the sandboxes at the end instead of ending them.", 0, 0},
	{"allow-absolute", 0, FLAG_SWITCH, NULL, "Let the tools for files leave /home/user.", 0, 0},
	{"lease", 0, FLAG_NUMBER, "SECONDS", "Sandboxes of a server that was killed end after this time (default 60).", 10, 3600},
	{0},
};

static const struct flag cert_make_flags[] = {
	{"days", 0, FLAG_NUMBER, "N", "How long the server's certificate is good (default 397).", 1, 825},
	{"new-ca", 0, FLAG_SWITCH, NULL, "Also make a new authority: every client has to trust it anew.", 0, 0},
	{0},
};

static const struct flag version_flags[] = {
	{"licenses", 0, FLAG_SWITCH, NULL, "Also what is linked or run, with its licence.", 0, 0},
	{0},
};

const struct command commands[] = {
	{"run", "TEMPLATE -- COMMAND [ARGUMENT...]", "Run one command in a new sandbox, then end the sandbox.",
		"Standard input, output and error are the command's. The sandbox is ended in every case, also on Ctrl-C.", run_flags, 1, 1, REST_REQUIRED,
		EXIT_CUBICLE, cmd_run},
	{"sandbox create", "TEMPLATE", "Start a sandbox and print its id.", NULL, create_flags, 1, 1, REST_NONE, 0, cmd_sandbox_create},
	{"sandbox list", "", "List the sandboxes.", NULL, list_flags, 0, 0, REST_NONE, 0, cmd_sandbox_list},
	{"sandbox info", "SANDBOX", "Show one sandbox, or how it ended.", "SANDBOX is an id or the unique beginning of one.", NULL, 1, 1, REST_NONE, 0,
		cmd_sandbox_info},
	{"sandbox exec", "SANDBOX -- COMMAND [ARGUMENT...]", "Run a command in a sandbox.",
		"Standard input, output and error are the command's. Ctrl-C sends it SIGTERM, a second one SIGKILL.", exec_flags, 1, 1, REST_REQUIRED,
		EXIT_CUBICLE, cmd_sandbox_exec},
	{"sandbox shell", "SANDBOX", "Open a login shell in a sandbox.", NULL, shell_flags, 1, 1, REST_NONE, EXIT_CUBICLE, cmd_sandbox_shell},
	{"sandbox logs", "SANDBOX", "Show what happened in a sandbox: commands, and what its services write.",
		"And what happened to it: created, paused, resumed, ended and why. With --json a line for each entry. The newest 256 KiB are kept, until 24 hours after its end; then SANDBOX must be the whole id.", logs_flags, 1, 1, REST_NONE, 0, cmd_sandbox_logs},
	{"sandbox metrics", "SANDBOX", "Show what a sandbox uses: CPU, memory, disk, every five seconds.",
		"CPU in percent of all its processors. With --json a line for each sample. Of what is older than a quarter of an hour a sample for two minutes is kept.", metrics_flags, 1, 1, REST_NONE, 0,
		cmd_sandbox_metrics},
	{"sandbox pause", "SANDBOX...", "Pause sandboxes: processes are frozen, deadlines stop.",
		"A paused sandbox keeps its memory until the machine is restarted, then what is on its disk. It counts for no quota and never ends by itself.", pause_flags, 1,
		CLI_MAX_WORDS, REST_NONE, 0, cmd_sandbox_pause},
	{"sandbox resume", "SANDBOX...", "Let paused sandboxes go on.", NULL, resume_flags, 1, CLI_MAX_WORDS, REST_NONE, 0, cmd_sandbox_resume},
	{"sandbox fork", "SANDBOX", "Make sandboxes that go on from the file system of a running one, and print their ids.",
		"Memory and processes are not copied: each starts as after a restart, with new ids of its own.", fork_flags, 1, 1, REST_NONE, 0, cmd_sandbox_fork},
	{"sandbox snapshot", "SANDBOX [NAME]", "Make a snapshot of a running sandbox's file system and print its id.",
		"`cubicle sandbox create` takes the id or the name in the place of a template. A name that is given again means the newer snapshot.", NULL, 1, 2, REST_NONE, 0,
		cmd_sandbox_snapshot},
	{"sandbox rollback", "SANDBOX SNAPSHOT", "Take a sandbox back to a snapshot of it.", "It keeps its id; its processes end, and it starts anew.", NULL, 2, 2, REST_NONE, 0,
		cmd_sandbox_rollback},
	{"sandbox kill", "SANDBOX...", "End sandboxes: every process is dead when this returns.", NULL, kill_flags, 0, CLI_MAX_WORDS, REST_NONE, 0,
		cmd_sandbox_kill},
	{"snapshot list", "", "List the snapshots, the newest first.", NULL, snapshot_list_flags, 0, 0, REST_NONE, 0, cmd_snapshot_list},
	{"snapshot delete", "SNAPSHOT...", "Delete snapshots, given by id or name.", "Sandboxes that were made from one go on.", NULL, 1, CLI_MAX_WORDS, REST_NONE, 0, cmd_snapshot_delete},
	{"template create", "NAME", "Make a template of an image, an archive, a root file system, a sandbox, or Debian packages.",
		"NAME may end in :TAG. Exactly one of the first eight flags says what it is made of. Shows the log, and prints the template's id when it is ready; a name that exists means the new build from then on.",
		template_create_flags, 1, 1, REST_NONE, 0, cmd_template_create},
	{"template build", "PATH", "Make a template of a Dockerfile.",
		"PATH is the directory that COPY and ADD take from, without what .dockerignore (or DOCKERFILE.dockerignore) names. Each step is done in a sandbox and kept for the next build. ENTRYPOINT and "
		"CMD run in every sandbox of the template.",
		template_build_flags, 1, 1, REST_NONE, 0, cmd_template_build},
	{"template list", "", "List the templates.", NULL, NULL, 0, 0, REST_NONE, 0, cmd_template_list},
	{"template info", "TEMPLATE", "Show a template: its builds, their tags, its layers.", NULL, NULL, 1, 1, REST_NONE, 0, cmd_template_info},
	{"template logs", "TEMPLATE [BUILD]", "Show the log of a build, by default of the newest.", "TEMPLATE with a tag means the build of the tag; the beginning of a build's id is enough.",
		template_logs_flags, 1, 2, REST_NONE, 0, cmd_template_logs},
	{"template tag", "TEMPLATE TAG...", "Give tags to a build of a template.", "TEMPLATE with a tag means the build of that tag, else that of `default`.", NULL, 2, CLI_MAX_WORDS, REST_NONE, 0,
		cmd_template_tag},
	{"template untag", "TEMPLATE TAG...", "Take tags away from a template.", NULL, NULL, 2, CLI_MAX_WORDS, REST_NONE, 0, cmd_template_untag},
	{"template publish", "TEMPLATE", "Let other teams use a template.", NULL, NULL, 1, 1, REST_NONE, 0, cmd_template_publish},
	{"template unpublish", "TEMPLATE", "Keep a template to its own team again.", "Sandboxes that others made go on.", NULL, 1, 1, REST_NONE, 0, cmd_template_unpublish},
	{"template delete", "TEMPLATE...", "Delete templates.", "TEMPLATE with a tag means the build of that tag only; the template goes with its last one.", template_delete_flags, 1, CLI_MAX_WORDS,
		REST_NONE, 0, cmd_template_delete},
	{"template export", "TEMPLATE", "Write a template into a file that `skopeo`, `docker load` and `template import` read.",
		"The file is a tar of an OCI image layout with one layer: the file system of a sandbox of the template, as it is when it starts.", template_export_flags, 1, 1, REST_NONE, 0,
		cmd_template_export},
	{"template import", "FILE NAME", "Make a template of such a file, of what `docker save` wrote, or of a tar of a root file system.",
		"What the file says of user, directory, variables and commands is kept, unless a flag says otherwise.", template_import_flags, 2, 2, REST_NONE, 0, cmd_template_import},
	{"template gc", "", "Remove images and layers that no template and no sandbox uses.", "Needs root on the server's machine.", template_gc_flags, 0, 0, REST_NONE, 0, cmd_template_gc, true},
	{"template make-default", "[NAME...]", "Make the templates `base` and `code-interpreter-v1`.",
		"From Debian packages, and for code-interpreter-v1 pinned files of the registries of Python and npm. Without a name both. Needs root, a package mirror and about "
		"2.5 GB of disk while it works. A template of the same name is replaced; sandboxes made from it go on.",
		make_default_flags, 0, CLI_MAX_WORDS, REST_NONE, 0, cmd_template_make_default, true},
	{"forward", "SANDBOX PORT", "Give a port of a sandbox an address on this machine, until interrupted.",
		"Prints the URL. Every HTTP request and WebSocket that reaches it goes to the port through the server's ingress, with the headers and tokens that it needs there.", forward_flags, 2, 2, REST_NONE,
		0, cmd_forward},
	{"mcp", "", "Serve sandboxes as tools of an agent (MCP, on standard input and output).",
		"For agents that start their tools themselves: Claude Code, Cursor and others. Everything that a session made is ended when standard input ends or a signal comes.", mcp_flags, 0, 0, REST_NONE,
		0, cmd_mcp},
	{"pool set", "TEMPLATE SIZE", "Keep sandboxes of a template started and ready, so that a create gets one at once.",
		"SIZE is how many to begin with. With --min or --max the number follows what is asked for, within these bounds. SIZE 0 keeps none. They take memory of the whole server, so the key must "
		"be one of the default team. A template without services has nothing to be ready.", pool_flags, 2, 2, REST_NONE, 0, cmd_pool_set},
	{"pool list", "", "List the ready pools: bounds, what is ready, and how many creates got one.", NULL, NULL, 0, 0, REST_NONE, 0, cmd_pool_list},
	{"pool unset", "TEMPLATE", "Give a template's pool back to the server's defaults (ready.min, ready.max).", NULL, NULL, 1, 1, REST_NONE, 0, cmd_pool_unset},
	{"team create", "NAME", "Make a team and print its id.",
		"A team has keys, sandboxes and snapshots of its own and sees nothing of others'. Needs root on the server's machine, as all team and key commands do.",
		quota_flags, 1, 1, REST_NONE, 0, cmd_team_create},
	{"team list", "", "List the teams with what they use and may use.", NULL, NULL, 0, 0, REST_NONE, 0, cmd_team_list},
	{"team quota", "TEAM", "Show or set what a team may use.", "TEAM is a name, an id, or the unique beginning of one. Without flags the limits are shown. What runs goes on when a limit shrinks.",
		quota_flags, 1, 1, REST_NONE, 0, cmd_team_quota},
	{"team rename", "TEAM NAME", "Give a team another name.", NULL, NULL, 2, 2, REST_NONE, 0, cmd_team_rename},
	{"team block", "TEAM", "Refuse the keys of a team.", "Its sandboxes go on until their deadlines.", NULL, 1, 1, REST_NONE, 0, cmd_team_block},
	{"team unblock", "TEAM", "Take the keys of a team again.", NULL, NULL, 1, 1, REST_NONE, 0, cmd_team_unblock},
	{"team delete", "TEAM", "Delete a team and its keys.", "It must have no sandboxes and no snapshots.", NULL, 1, 1, REST_NONE, 0, cmd_team_delete},
	{"key create", "[NAME]", "Make an API key and print it.", "With --team for that team.", NULL, 0, 1, REST_NONE, 0, cmd_key_create},
	{"key list", "", "List the API keys.", "Of all teams, or with --team of one.", NULL, 0, 0, REST_NONE, 0, cmd_key_list},
	{"key revoke", "KEY", "Revoke an API key, given by its id or name.", NULL, NULL, 1, 1, REST_NONE, 0, cmd_key_revoke},
	{"cert make", "", "Make a local authority and a certificate for listen.tls, or renew the certificate.",
		"Needs root. The certificate is for the option `domain` (else for what the last one was for), everything one label below it, localhost, 127.0.0.1 and ::1. The authority is kept when there is one; it can\n"
		"vouch for that domain only. A running server takes the new certificate at once; connections go on.", cert_make_flags, 0, 0, REST_NONE, 0, cmd_cert_make, true},
	{"cert show", "", "Show the certificates in use and when they expire.", NULL, NULL, 0, 0, REST_NONE, 0, cmd_cert_show, true},
	{"cert reload", "", "Have the server read its certificates again.", "Needs root. SIGHUP to `cubicle serve` does the same. Certificates that cannot be used change nothing.", NULL,
		0, 0, REST_NONE, 0, cmd_cert_reload, true},
	{"env", "", "Print variables for E2B and Cube clients.", "Use it as: eval \"$(cubicle env)\"", NULL, 0, 0, REST_NONE, 0, cmd_env, true},
	{"config", "", "Show every configuration option, its value and where that comes from.", NULL, NULL, 0, 0, REST_NONE, 0, cmd_config, true},
	{"doctor", "", "Try everything that sandboxes need of this machine.",
		"Each line says OK, or what is missing, what that costs and what to do. Exit code 1 when sandboxes cannot run.", NULL, 0, 0, REST_NONE, 0, cmd_doctor, true},
	{"serve", "", "Run the server.", "Runs in the foreground until SIGTERM or SIGINT. Sandboxes live on and are adopted at the next start.", NULL, 0, 0,
		REST_NONE, 0, cmd_serve, true},
	{"completion", "bash|zsh|fish", "Print the completion script of a shell.",
		"bash: source <(cubicle completion bash)   zsh: source <(cubicle completion zsh)   fish: cubicle completion fish | source", NULL, 1, 1, REST_OPTIONAL, 0,
		cmd_completion, true},
	{"man", "", "Print the manual page.", "Use it as: cubicle man | man -l -", NULL, 0, 0, REST_NONE, 0, cmd_man, true},
	{"version", "", "Show the version.", NULL, version_flags, 0, 0, REST_NONE, 0, cmd_version, true},
};

const size_t n_commands = ARRAY_SIZE(commands);
