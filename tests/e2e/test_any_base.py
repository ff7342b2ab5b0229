"""Sandboxes on whatever an image may be: a single program, no shell, musl, no /etc, links and files where directories are expected; and what a template says of its programs."""

import pathlib
import subprocess

import pytest
from e2b import InvalidArgumentException, PtySize, Sandbox

from conftest import serving
from registry import Layer, Layout, Registry, busybox
from server import CUBICLE, clean_env
from trees import make_template, plant

BUSYBOX = pathlib.Path("/usr/bin/busybox")
STATIC = r"""
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char where[1024];
	printf("%d %d %s\n", (int)getuid(), (int)getgid(), getcwd(where, sizeof(where)) ? where : "?");
	for (int i = 1; i < argc; i++)
		puts(argv[i]);
	return argc;
}
"""
# Started by musl's loader and linked with its library alone; its headers are not needed.
MUSL = r"""
extern int puts(const char *);
extern int __libc_start_main(int (*)(void), int, char **);
static int run(void) { puts("musl"); return 0; }
__attribute__((used)) static void begin(long *stack) { __libc_start_main(run, (int)stack[0], (char **)(stack + 1)); }
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n\thlt\n");
"""
PASSWD = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"


def compiled(directory, name, source, *flags):
    path = directory / name
    subprocess.run(["cc", "-O1", "-x", "c", "-o", str(path), "-", *flags], input=source.encode(), check=True)
    return path


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    d = tmp_path_factory.mktemp("programs")
    loader = pathlib.Path("/lib/ld-musl-x86_64.so.1")
    musl = compiled(d, "musl", MUSL, "-nostdlib", "-nostartfiles", "-fno-stack-protector", "-no-pie", "-fno-pie", f"-Wl,--dynamic-linker={loader}",
                    "-x", "none", "/lib/x86_64-linux-musl/libc.so") if loader.exists() else None
    return {"static": compiled(d, "static", STATIC, "-static"), "dynamic": compiled(d, "dynamic", STATIC), "musl": musl}


def shells(**more):
    """A tree with busybox and its usual names."""
    names = ["sh", "cat", "ls", "id", "test", "pwd", "env", "stat", "sleep", "touch", "printf", "true", "false", "ps", "mkdir", "readlink", "nc", "rm", "mv"]
    return {"bin/busybox": BUSYBOX, **{f"bin/{n}": "-> busybox" for n in names}, **more}


@pytest.fixture(scope="module")
def hub():
    with Registry() as r:
        yield r


@pytest.fixture(scope="module")
def server(programs, hub, tmp_path_factory):
    def make(s):
        def template(alias, entries, change=None, **more):
            tree = plant(tmp_path_factory.mktemp(alias), entries)
            if change:
                change(tree)
            else:
                tree.chmod(0o755)
            make_template(s, alias, tree, **more)

        def spoil(tree):
            (tree / "etc").chmod(0o555)
            (tree / "etc/machine-id").chmod(0o444)
            subprocess.run(["chown", "1000:1000", str(tree)], check=True)
            tree.chmod(0o700)

        template("scratch", {"any": programs["static"]}, user="user")
        template("shells", shells(**{"lib/x86_64-linux-musl/libc.so": pathlib.Path("/lib/x86_64-linux-musl/libc.so"), "lib/ld-musl-x86_64.so.1": "-> x86_64-linux-musl/libc.so",
                                  "bin/musl": programs["musl"]} if programs["musl"] else {},
                 **{"bin/dynamic": programs["dynamic"], "etc/passwd": PASSWD, "etc/group": "root:x:0:\nuser:x:1000:\n"}), user="user")
        template("odd", shells(**{
            "etc/resolv.conf": "-> /run/systemd/resolve/stub-resolv.conf", "etc/alternatives/hosts": "of the image", "etc/hosts": "-> /etc/alternatives/hosts",
            "etc/hostname/x": "a directory", "etc/machine-id": "old", "tmp": "-> /var/none", "var/x": "", "run": "-> var/run", "proc": "a file", "dev/null": "a file",
            "sys": "-> /nowhere", "etc/passwd": "-> /no/passwd"}), change=spoil, user="user")
        template("numbers", {"any": programs["static"], **shells()}, user="1234:5678", workdir="/bin", env={"PATH": "/bin:/opt/bin", "FROM": "image"})
        shell = ["/bin/sh", "-c"]
        template("started", shells(**{"etc/passwd": PASSWD, "home/user/x": ""}), user="user", env={"FROM": "image"}, wait_ready=True,
                 services=[{"name": "start", "command": [*shell, "sleep 0.2; (sleep 1000 &); env > /tmp/env; pwd > /tmp/p; mv /tmp/p /tmp/pwd; echo started"], "user": "user",
                            "env": {"STEP": "yes", "FROM": "step"}, "workdir": "/home", "restart": False}],
                 ready=[*shell, "test -e /tmp/pwd"])
        template("probed", shells(), wait_ready=True, probe={"port": 8080, "path": "/health"},
                 services=[{"name": "web", "user": "root", "command": [*shell,
                     "while :; do printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\nConnection: close\\r\\n\\r\\nup\\n' | nc -l -p 8080 > /dev/null; done"]}])
        template("bashless", shells(), wait_ready=True, services=[{"name": "start", "command": ["/bin/bash", "-l", "-c", "x"], "user": "root", "restart": False}])

    with serving(prepare=make, options={"registry.insecure": hub.host}) as s:
        yield s


@pytest.fixture
def cli(server):
    def call(*words):
        at = words.index("--") if "--" in words else len(words)
        return subprocess.run([str(CUBICLE), *words[:at], f"--state.dir={server.state}", f"--listen=127.0.0.1:{server.port}", *words[at:]], capture_output=True, text=True,
                              timeout=120, env=clean_env())
    return call


def run(cli, box, line, user="root", code=0):
    r = cli("sandbox", "exec", box.sandbox_id, "-u", user, "--", "/bin/sh", "-c", line)
    assert r.returncode == code, r
    return r.stdout


def test_a_single_program(server, cli):
    with Sandbox.create("scratch") as box:
        # Its template has no user of the default's name: root takes its place.
        r = cli("sandbox", "exec", box.sandbox_id, "--", "/any", "a", "b")
        assert (r.returncode, r.stdout) == (3, "0 0 /\na\nb\n")
        assert {"any", "dev", "etc", "proc", "run", "sys", "tmp"} <= {e.name for e in box.files.list("/")}
        assert box.files.get_info("/tmp").permissions == "dtrwxrwxrwx"
        assert box.files.read("/etc/resolv.conf").startswith("nameserver ")
        assert "localhost" in box.files.read("/etc/hosts")
        box.files.write("/data/deep/file", "content")
        box.files.write("home.txt", "x")
        assert (box.files.read("/data/deep/file"), box.files.read("/root/home.txt")) == ("content", "x")
        with pytest.raises(InvalidArgumentException, match="/bin/bash.*no bash"):
            box.commands.run("true")
        with pytest.raises(InvalidArgumentException, match="/bin/bash.*no bash"):
            box.pty.create(PtySize(24, 80))
        assert "no such program" in cli("sandbox", "exec", box.sandbox_id, "--", "/any2").stderr


def test_shells_and_musl(server, cli, programs):
    with Sandbox.create("shells") as box:
        assert run(cli, box, "id; pwd; echo $HOME", user="user") == "uid=1000(user) gid=1000(user) groups=1000(user)\n/\n/home/user\n"
        assert "loader" in cli("sandbox", "exec", box.sandbox_id, "--", "/bin/dynamic").stderr
        assert "invalid username: 'ghost'" in cli("sandbox", "exec", box.sandbox_id, "-u", "ghost", "--", "/bin/true").stderr
        if programs["musl"]:
            assert run(cli, box, "/bin/musl") == "musl\n"
        with pytest.raises(InvalidArgumentException, match="no bash"):
            box.commands.run("true")
        box.files.write("hello.txt", "x")
        assert run(cli, box, "stat -c '%u %a' /home/user/hello.txt; ls -d /dev/null /proc/self/stat /sys/class") == "1000 644\n/dev/null\n/proc/self/stat\n/sys/class\n"


def test_links_and_files_in_the_way(server, cli):
    with Sandbox.create("odd") as box:
        assert run(cli, box, "cat /etc/resolv.conf").startswith("nameserver ")
        assert "localhost" in run(cli, box, "cat /etc/hosts")
        assert run(cli, box, "cat /etc/alternatives/hosts") == "of the image"
        assert run(cli, box, "ls /etc/hostname") == "x\n"
        assert len(run(cli, box, "cat /etc/machine-id").strip()) == 32
        assert run(cli, box, "stat -c '%F %a' /tmp /run /dev /proc /sys").splitlines()[0] == "directory 1777"
        assert run(cli, box, "echo through > /dev/null; test -c /dev/null && echo x > /tmp/x && cat /tmp/x /run/e2b/.E2B_SANDBOX") == "x\ntrue"
        assert run(cli, box, "id -u", user="4242") == "4242\n"


def test_users_by_number_and_variables_of_the_image(server, cli):
    with Sandbox.create("numbers", envs={"GIVEN": "create"}) as box:
        r = cli("sandbox", "exec", box.sandbox_id, "--", "any", "x")
        assert "no such program in PATH" in r.stderr
        assert cli("sandbox", "exec", box.sandbox_id, "--", "/any").stdout == "1234 5678 /bin\n"
        lines = set(cli("sandbox", "exec", box.sandbox_id, "--", "env").stdout.splitlines())
        assert {"PATH=/bin:/opt/bin", "FROM=image", "GIVEN=create", "HOME=/"} <= lines
        box.files.write("/tmp/mine", "x")
        assert run(cli, box, "stat -c '%u %g' /tmp/mine") == "1234 5678\n"
    with Sandbox.create("numbers", envs={"FROM": "create"}) as box:
        assert "FROM=create\n" in cli("sandbox", "exec", box.sandbox_id, "--", "env").stdout


@pytest.mark.parametrize("pause", [False, True])
def test_cases_29_116_a_create_is_answered_when_the_start_command_is_ready(server, cli, pause):
    with Sandbox.create("started", envs={"GIVEN": "create"}) as box:
        if pause:
            run(cli, box, "rm /tmp/pwd /tmp/env")
            assert server.call("POST", f"/sandboxes/{box.sandbox_id}/pause", {"memory": False})[0] == 204
            box.connect()
        assert run(cli, box, "cat /tmp/pwd; ps | grep -c '[s]leep 1000'") == "/home\n1\n"
        lines = set(run(cli, box, "cat /tmp/env").splitlines())
        assert {"FROM=step", "STEP=yes", "GIVEN=create", "HOME=/home/user"} <= lines
        # Variables of steps are the start command's alone.
        assert run(cli, box, "echo $FROM $STEP") == "image\n"


def test_case_116_a_create_is_answered_when_the_probe_is(server, cli):
    with Sandbox.create("probed") as box:
        assert "up" in run(cli, box, "for i in $(busybox seq 100); do echo | nc 127.0.0.1 8080 && exit; sleep 0.1; done; exit 1")


def test_a_start_command_that_cannot_run_fails_the_create(server):
    status, body = server.call("POST", "/sandboxes", {"templateID": "bashless"})
    assert status == 504 and "service 'start': cannot start '/bin/bash'" in body["message"], body
    assert server.call("GET", "/v2/sandboxes")[1] == []


def test_case_116_what_an_image_says_holds_in_its_sandboxes(server, cli, hub, tmp_path):
    layout = Layout(tmp_path)
    config = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo listening; id -u > /tmp/who; while :; do printf 'HTTP/1.1 200 OK\\r\\n\\r\\n' | nc -l -p 8080; done"],
              "Env": ["PATH=/bin:/opt", "GREETING=from the image"], "User": "1234:5678", "WorkingDir": "/srv"}
    layout.image([busybox(), Layer().file("srv/page", b"hello\n")], config, tag="1")
    reference = hub.push(layout, "1", "team/served", "1")
    r = cli("template", "create", "--image", reference, "--probe-port", "8080", "--probe-path", "/", "from-image")
    assert r.returncode == 0 and "listening" in r.stderr, r
    with Sandbox.create("from-image") as box:
        r = cli("sandbox", "exec", box.sandbox_id, "--", "sh", "-c", "id -u; id -g; pwd; cat page; echo $GREETING $PATH; cat /tmp/who")
        assert r.stdout == "1234\n5678\n/srv\nhello\nfrom the image /bin:/opt\n1234\n", r
