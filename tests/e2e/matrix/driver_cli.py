"""Drives npm @e2b/cli through the calls of calls.py: driver_cli.py PROGRAM CALL... Each call is what a person types into a shell."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import termios
import time
import uuid

from driving import Calls

PROGRAM = sys.argv[1]


class Box:
    def __init__(self):
        self.id = create()

    def kill(self):
        e2b("kill", self.id)


def run(*words, input=b"", check=True):
    """(stdout, stderr, exit code) of `e2b sandbox WORDS`."""
    r = subprocess.run(["node", PROGRAM, *words], input=input, capture_output=True, timeout=300)
    out, err = r.stdout.decode(), r.stderr.decode()
    assert not check or r.returncode == 0, f"{words}: {r.returncode}\n{out}{err}"
    return out, err, r.returncode


def e2b(*words, **more):
    return run("sandbox", *words, **more)


def create(*words):
    out, _, _ = e2b("create", "-d", *words, "base")
    return re.search(r"\bi[a-z0-9]{20}\b", out)[0]


def terminal(words, typed, seconds=300):
    """What the program showed on a terminal of its own until it ended: it is typed at when a prompt is there."""
    pid, fd = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (33, 111))
        os.execvp("node", ["node", PROGRAM, "sandbox", *words])
    seen, end = b"", time.monotonic() + seconds
    while True:
        assert time.monotonic() < end, f"still there: {seen!r}"
        if not select.select([fd], [], [], 1)[0]:
            continue
        try:
            part = os.read(fd, 65536)
        except OSError:
            part = b""
        if not part:
            break
        seen += part
        if typed and re.search(rb"[$#] (\x1b\[[0-9;?]*[a-zA-Z])*$", seen):
            os.write(fd, typed)
            typed = b""
    os.close(fd)
    return seen.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


calls = Calls(Box)
call, alone = calls.on_shared, calls.alone


@alone("sandbox create -d")
def _():
    box = create("--timeout", "120")
    out, _, _ = e2b("info", "-f", "json", box)
    assert json.loads(out)["sandboxId"] == box
    e2b("kill", box)


@alone("sandbox create")
def _():
    text, _ = terminal(["create", "base"], b"echo to $((40+2)); exit\r")
    assert "to 42" in text, text


@call("sandbox connect")
def _(box):
    text, _ = terminal(["connect", box.id], b"stty size; echo to $((40+2)); exit\r")
    assert "to 42" in text and "33 111" in text, text
    assert json.loads(e2b("info", "-f", "json", box.id)[0])["state"] == "running"


@call("sandbox list")
def _(box):
    assert box.id in [s["sandboxId"] for s in json.loads(e2b("list", "-f", "json")[0])]
    assert box.id in e2b("list")[0]
    assert json.loads(e2b("list", "-f", "json", "-s", "paused")[0] or "[]") == []


@call("sandbox info")
def _(box):
    info = json.loads(e2b("info", "-f", "json", box.id)[0])
    assert (info["sandboxId"], info["state"], info["name"]) == (box.id, "running", "base")
    assert box.id in e2b("info", box.id)[0]


@call("sandbox exec")
def _(box):
    out, err, _ = e2b("exec", box.id, "echo out; echo err >&2")
    assert (out, err) == ("out\n", "err\n"), (out, err)
    assert e2b("exec", "-u", "root", "-c", "/tmp", "-e", "A=b", box.id, "whoami; pwd; echo $A")[0] == "root\n/tmp\nb\n"


@call("sandbox exec, exit code")
def _(box):
    assert e2b("exec", box.id, "exit 7", check=False)[2] == 7
    assert e2b("exec", box.id, "no-such-program", check=False)[2] == 127


@call("sandbox exec in a pipe")
def _(box):
    data = os.urandom(300_000).hex().encode()
    assert e2b("exec", box.id, "wc -c", input=data)[0].strip() == str(len(data))
    assert e2b("exec", box.id, "cat", input=b"line\n" * 1000)[0] == "line\n" * 1000
    assert e2b("exec", box.id, "head -c 5", input=data)[0].encode() == data[:5]


@call("sandbox exec -b")
def _(box):
    e2b("exec", "-b", box.id, "sleep 0.3; echo done > /tmp/background")
    out, _, _ = e2b("exec", box.id, "for i in $(seq 200); do [ -s /tmp/background ] && break; sleep 0.1; done; cat /tmp/background")
    assert out == "done\n"


@alone("sandbox kill")
def _():
    one, two = create(), create()
    e2b("kill", one, two)
    out, err, status = e2b("kill", one, check=False)
    assert "wasn't found" in out + err, (out, err, status)
    assert e2b("info", one, check=False)[2] != 0


@alone("sandbox exec, no such sandbox")
def _():
    out, err, status = e2b("exec", "i" + "0" * 20, "true", check=False)
    assert status != 0 and "not found" in out + err, (out, err)


@call("sandbox logs")
def _(box):
    e2b("logs", box.id)


@alone("template list")
def _():
    assert "base" in run("template", "list")[0]


@alone("sandbox pause, resume")
def _():
    box = create()
    e2b("exec", box, "touch /tmp/kept")
    e2b("pause", box)
    assert "paused" in e2b("info", box)[0].lower()
    assert [s["sandboxId"] for s in json.loads(e2b("list", "-f", "json", "-s", "paused")[0]) if s["sandboxId"] == box] == [box]
    e2b("resume", box)
    assert "running" in e2b("info", box)[0].lower()
    e2b("exec", box, "test -e /tmp/kept")
    e2b("pause", box)
    e2b("kill", box)


@call("sandbox metrics")
def _(box):
    deadline = time.monotonic() + 60
    while "MiB" not in (text := e2b("metrics", box.id)[0]):
        assert time.monotonic() < deadline, text
        time.sleep(0.5)
    assert "CPU" in text and "2 Cores" in text and "/ 512" in text, text
    # An empty line comes first.
    sample = json.loads(e2b("metrics", box.id, "--format", "json")[0].split()[0])
    assert sample["cpuCount"] == 2 and 0 < sample["memUsed"] < sample["memTotal"] == 512 << 20, sample


@call("sandbox snapshot")
def _(box):
    out = e2b("snapshot", "create", box.id)[0]
    snapshot = re.search(r"snap-[a-z0-9]{20}", out)[0]
    assert snapshot in e2b("snapshot", "list")[0]
    e2b("snapshot", "delete", snapshot)
    assert snapshot not in e2b("snapshot", "list")[0]


@alone("template create, publish, delete")
def _():
    name = f"cli-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="cubicle-cli-") as path:
        with open(f"{path}/e2b.Dockerfile", "w") as f:
            f.write("FROM e2bdev/base\nRUN echo made > /made\nCOPY one.txt /one.txt\n")
        with open(f"{path}/one.txt", "w") as f:
            f.write("one\n")
        run("template", "create", "-p", path, name)
    listed = json.loads(run("template", "list", "-f", "json")[0])
    template = next(t for t in listed if name in t["aliases"])
    box = re.search(r"\bi[a-z0-9]{20}\b", e2b("create", "-d", name)[0])[0]
    assert e2b("exec", box, "cat /made /one.txt")[0] == "made\none\n"
    e2b("kill", box)
    run("template", "publish", "-y", template["templateID"])
    run("template", "unpublish", "-y", template["templateID"])
    run("template", "delete", "-y", template["templateID"])
    assert name not in run("template", "list")[0]


calls.drive(sys.argv[2:])
