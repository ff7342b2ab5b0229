"""Runs inside the booted Debian 12 machine: drives the server over its API with nothing but the standard library."""

import datetime
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import api  # tests/machine/guest/api.py
import leak  # tests/e2e/leak.py
from api import Sandbox, basics, guarded, nothing_left, pid_of, say, wait

PIDS = 64
LOST = "/test/lost"  # the sandbox that the power cut takes
SLEEP = b"/bin/sleep\x009999\0"


def new_server():
    return api.Server("--pool.min=1", "--pool.max=2", "--disk.reserve=2", f"--sandbox.pids={PIDS}")


class Group:
    """The cgroup of a sandbox's commands, found through one that runs there: a directory for each v1 controller, one for all on v2."""

    V2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")

    def __init__(self, box):
        box.start("/bin/sleep", "9999")
        wait(lambda: pid_of(SLEEP), 120, "a command")
        self.dirs = {}
        for line in open(f"/proc/{pid_of(SLEEP)}/cgroup").read().splitlines():
            _, controllers, path = line.split(":", 2)
            for c in controllers.split(","):
                self.dirs[c] = pathlib.Path(f"/sys/fs/cgroup/{controllers}{path}")
        for c in ("memory", "pids", "cpu", "freezer"):
            assert self.dir(c).name == "work" and self.dir(c).parent.parent.name.startswith("cubicle"), self.dirs

    def dir(self, controller):
        return self.dirs["" if self.V2 else controller]

    def read(self, v2, v1):
        return (self.dir(v1.split(".")[0]) / (v2 if self.V2 else v1)).read_text()

    def number(self, key, v2, v1):
        return int(dict(line.split() for line in self.read(v2, v1).splitlines())[key])

    def freeze(self):
        if self.V2:
            (self.dir("") / "cgroup.freeze").write_text("1")
            wait(lambda: self.number("frozen", "cgroup.events", "") == 1, 120, "the freeze")
        else:
            (self.dir("freezer") / "freezer.state").write_text("FROZEN")
            wait(lambda: self.read("", "freezer.state") == "FROZEN\n", 120, "the freeze")

    def may_open(self, path):
        """Whether a process of this machine's root, put into the group, gets at a device."""
        pid = os.fork()
        if pid == 0:
            (self.dir("devices") / "cgroup.procs").write_text(str(os.getpid()))
            try:
                os.close(os.open(path, os.O_RDONLY))
                os._exit(0)
            except PermissionError:
                os._exit(1)
            finally:
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, 1), status
        return status == 0


def doctor(kind):
    """It tries what the server needs, without the server. Templates are not made here."""
    r = subprocess.run(["/test/cubicle", "doctor"], capture_output=True, text=True, env=api.ENVIRONMENT)
    failed = [line for line in r.stdout.splitlines() if line.startswith("FAILED")]
    assert (failed, r.returncode) == ([], 0) and "missing  programs for templates: mmdebstrap (package mmdebstrap)\n" in r.stdout, r.stdout + r.stderr
    assert "OK       limits: 1048576 open files" in r.stdout, r.stdout  # the kernel gave 4096
    assert f"OK       cgroups: limits and freezer: {kind}\n" in r.stdout, r.stdout
    say("ok: the doctor finds what it takes")


def limits(box):
    group = Group(box)
    assert int(group.read("memory.max", "memory.limit_in_bytes")) == 128 << 20
    assert group.number("oom_kill", "memory.events", "memory.oom_control") == 0
    end, _ = box.run("/bin/sh", "-c", "x=aaaaaaaa; while :; do x=$x$x; done", timeout=120)
    assert end["exitCode"] != 0 and "oom_killed: the memory limit of 128 MiB" in json.dumps(end), end
    assert group.number("oom_kill", "memory.events", "memory.oom_control") > 0
    assert box.run("/bin/echo", "alive")[1] == b"alive\n"

    end, out = box.run("/bin/sh", "-c", f"i=0; while [ $i -lt {PIDS + 20} ]; do sleep 999 >/dev/null 2>&1 & i=$((i+1)); done; echo all", timeout=120)
    assert b"all" not in out and b"can't fork" in out, (end, out)
    assert group.number("max", "pids.events", "pids.events") > 0 and int(group.read("pids.current", "pids.current")) <= PIDS
    assert int(group.read("pids.current", "pids.current")) > PIDS / 2, "the check did not reach the limit"
    box.kill_all()
    assert box.run("/bin/echo", "alive")[1] == b"alive\n"

    end, out = box.run("/bin/dd", "if=/dev/zero", "of=/home/user/fill", "bs=1M", "count=120", timeout=120)
    assert end["exitCode"] != 0 and b"No space left" in out, (end, out)
    assert box.run("/bin/rm", "/home/user/fill")[0]["exitCode"] == 0
    assert box.file("POST", "/home/user/again", b"y" * 1000000)[0] == 200

    assert group.read("cpu.max", "cpu.cfs_quota_us").split()[0] == "200000"
    assert group.may_open("/dev/null") and not group.may_open("/dev/vda")
    say("ok: memory, processes, disk, cpu and devices are limited; the agent lives")


def freeze_and_kill(server):
    """Frozen commands die as one, and a sandbox whose commands are frozen can be killed."""
    box = Sandbox(server)
    group = Group(box)
    group.freeze()
    if Group.V2:
        (group.dir("") / "cgroup.kill").write_text("1")
        wait(lambda: pid_of(SLEEP) is None, 120, "the kill")
        (group.dir("") / "cgroup.freeze").write_text("0")
        wait(lambda: box.answers("again"), 120, "commands after the kill of all commands")
        group = Group(box)
        group.freeze()
    box.kill()
    assert pid_of(SLEEP) is None
    wait(lambda: not any(d.exists() for d in group.dirs.values() if d.name == "work"), 120, "the cgroups of a killed sandbox to go")
    say("ok: a frozen sandbox is killed")


def adoption(server, boxes):
    boxes[0].start("/bin/sleep", "7654")
    wait(lambda: pid_of(b"/bin/sleep\x007654\0"), 120, "a command")
    command, node = pid_of(b"/bin/sleep\x007654\0"), server.child("node")
    assert "Max open files            1048576              1048576" in pathlib.Path(f"/proc/{node}/limits").read_text()
    os.kill(node, signal.SIGKILL)
    wait(lambda: server.child("node") not in (None, node), 120, "a new node")
    for box in boxes:
        wait(lambda: box.answers("adopted"), 120, "the sandbox to be adopted")
    assert {b["sandboxID"] for b in server.call("GET", "/v2/sandboxes")[1]} == {b.id for b in boxes}
    assert pid_of(b"/bin/sleep\x007654\0") == command, "a command died with the node"
    say("ok: a killed node adopts its sandboxes")


def clock_step(server):
    """design: deadlines run on CLOCK_BOOTTIME; a step of the wall clock moves endAt and kills nobody."""
    def end(box):
        return datetime.datetime.fromisoformat(server.call("GET", "/sandboxes/" + box.id)[1]["endAt"]).timestamp()
    box = Sandbox(server, timeout=600)
    before, step = end(box), 2 * 3600
    time.clock_settime(time.CLOCK_REALTIME, time.time() + step)
    try:
        wait(lambda: abs(end(box) - before - step) < 5, 120, "endAt to follow the clock")
        assert box.run("/bin/echo", "alive")[1] == b"alive\n"
        brief = Sandbox(server, timeout=2)
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - step)
    wait(lambda: server.call("GET", "/sandboxes/" + brief.id)[0] == 404, 120, "a deadline to hold over a step back")
    assert abs(end(box) - before) < 5 and box.answers("still")
    box.kill()
    say("ok: a step of the wall clock moves deadlines and kills nobody")


def churn_kills(server):
    """Creates and kills until the power goes; likewise the others."""
    while True:
        box = Sandbox(server).fill()
        box.kill()
        say("KILLED", box.id)


def churn_pauses(server):
    for n in itertools.count():
        box = Sandbox(server, timeout=3600).fill()
        box.pause(n % 2 == 0)
        say("PAUSED", box.id)


def churn_snapshots(server):
    box = Sandbox(server, timeout=3600)
    while True:
        say("SNAPPED", box.fill().snapshot())


def first():
    doctor("v2")
    server = new_server().start()
    box = basics(server)
    limits(box)
    box.kill()
    freeze_and_kill(server)
    clock_step(server)
    boxes = [Sandbox(server, metadata={"cut": "yes"}, timeout=3600) for _ in range(2)]
    adoption(server, boxes)
    boxes[1].kill()
    assert boxes[0].file("POST", "/home/user/kept", b"x" * 100000)[0] == 200
    pathlib.Path(LOST).write_text(boxes[0].id)
    os.sync()
    for part in churn_kills, churn_pauses, churn_snapshots:
        threading.Thread(target=guarded, args=(part, server), daemon=True).start()
    threading.Event().wait()


def after(killed, paused, snapped):
    """After the power cut. `killed`, `paused` and `snapped` were answered before: each stays so, and what was under way is done or undone."""
    before = leak.snapshot()
    server = new_server().start()
    for gone, reason in (pathlib.Path(LOST).read_text(), "host_lost"), (killed, "killed"):
        status, body = server.call("GET", "/sandboxes/" + gone)
        assert status == 404 and body["lastTermination"]["reason"] == reason, (status, body)
    boxes = server.call("GET", "/v2/sandboxes")[1]
    assert paused in [b["sandboxID"] for b in boxes] and {b["state"] for b in boxes} == {"paused"}, boxes
    for b in boxes:
        Sandbox.resumed(server, b["sandboxID"]).check().kill()
    snapshots = [x["snapshotID"] for x in server.call("GET", "/snapshots")[1]]
    assert snapped in snapshots, snapshots
    for i in snapshots:
        Sandbox(server, templateID=i).check().kill()
        assert server.call("DELETE", "/templates/" + i)[0] == 204
    say(f"ok: {len(boxes)} paused sandboxes and {len(snapshots)} snapshots are whole")
    assert server.call("GET", "/v2/sandboxes") == (200, [])
    box = basics(server)
    server.stop()
    left = leak.leaked(before)
    assert all(left.get(kind) for kind in ("processes", "namespaces", "links", "cgroups", "loop devices")), f"the leak check is blind: {left}"
    server.start()
    wait(lambda: box.answers("adopted"), 120, "the sandbox to be adopted")
    box.kill()
    server.stop()
    nothing_left(before)
    say("ok: after the power cut nothing is half made; nothing is left")


def v1():
    doctor("v1")
    before = leak.snapshot()
    server = new_server().start()
    box = basics(server)
    limits(box)
    box.kill()
    freeze_and_kill(server)
    server.stop()
    nothing_left(before)
    say("ok: cgroup v1")


Sandbox.template = "distro"
api.LOG = f"/var/log/cubicle-{sys.argv[1]}.log"
guarded({"first": first, "after": after, "v1": v1}[sys.argv[1]], *sys.argv[2:])
