"""What the published clients are asked to do: the one list behind the drivers, the test and docs/compatibility.md."""

# group: [(call, what it proves)]. A driver that lacks a call says so ("absent"), and the page shows it.
SDK = {
    "Sandboxes": [
        ("create", "template, metadata, environment and timeout arrive"),
        ("create without a template", "the client's own default body"),
        ("create with an idempotency key", "the same key: the same sandbox, also at once; another request: refused; after the kill a new one"),
        ("connect", "a second handle works on the same sandbox"),
        ("connect keeps the deadline", "connect with a shorter timeout does not shorten"),
        ("get info", "state, template, metadata, times, size"),
        ("list", "a metadata filter with characters that need escaping finds exactly its own"),
        ("list by pages", "three sandboxes, two a page, none twice"),
        ("list by state", "running ones are listed, paused ones asked for are none"),
        ("set timeout", "longer and shorter"),
        ("is running", "true, and false after the kill"),
        ("kill", "true, then false"),
        ("kill by id", "true, then false"),
        ("metrics", "a sample soon after the create; only those of the times asked for"),
        ("host", "a server inside answers under its host name"),
        ("template exists", "true for base, false for another"),
    ],
    "Commands": [
        ("run", "output, exit code 0"),
        ("run with environment, directory, user", "each reaches the command"),
        ("run with callbacks", "output arrives in pieces, while the command runs"),
        ("run large output", "four megabytes, unharmed"),
        ("exit code", "CommandExit error with code, stdout and stderr"),
        ("background", "a handle, waited for"),
        ("stdin", "lines written, closed, read in order"),
        ("stream input", "one request carries the whole input"),
        ("list commands", "pid, arguments, directory"),
        ("connect to a command", "by pid, after the first stream was given up"),
        ("kill a command", "true, gone, then false"),
        ("command timeout", "timeout error, and the process is gone"),
        ("hundred commands at once", "each gets its own output"),
    ],
    "Terminals": [
        ("pty", "input, output, exit code"),
        ("resize a pty", "the program inside sees the new size"),
        ("connect to a pty", "a second subscriber"),
        ("kill a pty", "true, then false"),
    ],
    "Files": [
        ("write and read", "text, bytes, empty, names that need escaping"),
        ("write many", "in one request"),
        ("write a stream", "64 MB, hashed inside"),
        ("read a stream", "16 MB, hashed outside"),
        ("write gzip", "and read gzip"),
        ("write as octet stream", "raw body"),
        ("file metadata", "stored with the file, listed, replaced"),
        ("list files", "with depth, in order, with types"),
        ("file info", "size, mode, owner, times; a symbolic link and its target"),
        ("exists", "file, directory, nothing"),
        ("make a directory", "true, then false"),
        ("rename", "into a directory that is not there yet"),
        ("remove", "a tree; what is not there"),
        ("files as another user", "root's home and owner"),
        ("watch", "create, write, rename, remove; then stopped"),
        ("watch recursively", "a directory made later, too"),
        ("watch with entries", "what the entry is, with each event"),
        ("signed download", "a plain GET without any header"),
        ("signed upload", "a plain POST of a form"),
        ("signed URL that expired", "401"),
        ("signed URL of another path", "401"),
    ],
    "Git": [
        ("git", "init, add, commit, status, branches through the client's helper"),
    ],
    "Network": [
        ("create with a network policy", "a denied address is refused at once; shown as given"),
        ("update network", "replaced whole, live; shown"),
    ],
    "Errors": [
        ("no such sandbox", "get info, set timeout, connect: not found"),
        ("no such template", "create: not found, with the template's name"),
        ("wrong key", "authentication error"),
        ("bad timeout", "timeout 0: 400"),
        ("no such file", "read, list, rename, watch: file not found"),
        ("not a directory", "list: invalid argument"),
        ("no such command", "connect: not found"),
        ("no such user", "run: authentication error"),
        ("no such directory", "run: invalid argument"),
        ("no space", "write to a full file system: not enough space"),
        ("killed meanwhile", "a command under way ends with an error"),
        ("use after kill", "a command, a file: the sandbox is gone"),
    ],
    "Pause, snapshots, forks": [
        ("pause", "true, then false; shown and listed as paused; no command runs"),
        ("resume", "connect: the same process, file, boot id; then connect again"),
        ("pause without memory", "connect: the file is there, the process gone, another boot id"),
        ("resume anew", "connect that asks for a reboot, though the memory was kept"),
        ("kill a paused sandbox", "true, then false"),
        ("auto-pause", "at the deadline; the lifecycle in the details; connect"),
        ("auto-resume", "a command wakes it"),
        ("snapshot", "used as a template, listed by its sandbox, deleted: true, then false"),
        ("snapshot with a name", "used by its name"),
        ("fork", "two, with the parent's files and ids of their own; no such sandbox"),
    ],
    "Templates": [
        ("build a template", "files copied, variables, commands, a start command that is ready; its log; a sandbox of it"),
        ("template tags", "given, listed, taken away; a sandbox by a tag"),
        ("a build that fails", "the client's build error, with the command's reason"),
    ],
    "Not served yet": [
        ("create with a domain rule", ""),
        ("create with identity tokens", ""),
        ("create with a volume", ""),
        ("list volumes", ""),
        ("list secrets", ""),
    ],
}

CODE = {
    "Code interpreter": [
        ("run code", "output, result, execution count, state"),
        ("run code with callbacks", "output, errors and results as they come"),
        ("run code that fails", "name, value, traceback"),
        ("results of many kinds", "HTML, Markdown, SVG, JSON, LaTeX, JavaScript"),
        ("a chart", "a picture, and its data"),
        ("a data frame", "a table, and its data"),
        ("environment of one run", "gone after it"),
        ("contexts", "made, used, listed, restarted, removed"),
        ("javascript and bash", "other languages"),
        ("code that takes too long", "timeout error; the next run works"),
        ("no such context", "not found"),
    ],
}

CLI = {
    "Command line of E2B": [
        ("sandbox create -d", "prints the id"),
        ("sandbox create", "a terminal, until its shell ends"),
        ("sandbox connect", "a terminal in a sandbox that stays"),
        ("sandbox list", "as text, as JSON, by state"),
        ("sandbox info", "as text, as JSON"),
        ("sandbox exec", "output, user, directory, environment"),
        ("sandbox exec, exit code", "handed on"),
        ("sandbox exec in a pipe", "600 kB through it; a reader that stops early"),
        ("sandbox exec -b", "runs on"),
        ("sandbox exec, no such sandbox", "an error that says so"),
        ("sandbox kill", "several; one that is gone"),
        ("sandbox logs", ""),
        ("sandbox metrics", "as text, as JSON"),
        ("template list", "those of the machine"),
        ("sandbox pause, resume", "and the state between"),
        ("sandbox snapshot", "create, list, delete"),
        ("template create, publish, delete", "from a Dockerfile"),
    ],
}

CUBE = {
    "CubeSandbox client": [
        ("health", "without a sandbox"),
        ("create, run, kill", "environment, output, exit code; then not found"),
        ("connect to a sandbox", "as root, as another user"),
        ("list sandboxes", "both routes"),
        ("set the timeout", "also never"),
        ("files", "write, read, list, rename, remove, missing ones"),
        ("watch a directory", "an event"),
        ("terminal", "input, size, output, exit code"),
        ("errors", "no such sandbox, no such template, bad timeout"),
        ("pause and resume", "by connect and by resume; paused twice is an error"),
        ("auto-pause", "its own form of the lifecycle"),
        ("snapshots", "made, listed by pages, used, deleted; then not found"),
        ("clone", "three at once, with the files; the temporary snapshot goes with them"),
        ("roll back", "the file as it was; no such snapshot"),
        ("network policy", "at the create, replaced live"),
        ("templates", "made from an image, its build followed, listed, built again, deleted; the probed port answers at once"),
    ],
}

# What a refusal must say: status and name, in the client's own error. A call that is refused and not named here fails the test,
# and so does one that is named here and works.
REFUSED = {
    "create with a domain rule": r"501.*network\.allowOut",
    "create with identity tokens": r"400.*IAM",
    "create with a volume": r"400.*[Vv]olume",
    "list volumes": r"501.*volumes",
    "list secrets": r"501.*secrets",
}

SUITES = {"sdk": SDK, "code": CODE, "cli": CLI, "cube": CUBE}


def names(suite):
    return [name for calls in SUITES[suite].values() for name, _ in calls]
