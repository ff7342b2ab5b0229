"""The node is ended at each step of a pause, a resume and a kill (fault points, src/base/fault.h): afterwards the sandbox is running, paused or gone as its records say, its files are whole,
connect and kill work, and nothing is left over. And a reboot, as the records and the disk tell of it (cases.md 8, 10, 173)."""

import hashlib
import os
import random
import re
import signal
import sqlite3
import time

import pytest
from e2b import Sandbox

from server import ROOT, wait_for

POINTS = re.findall(r"F\((\w+)\)", (ROOT / "src/base/fault.h").read_text())

# What is asked for, of what, and at which points the node ends; then the states that the sandbox may be in.
PAUSE, DISK, CONNECT, KILL = (("POST", "/pause", {"memory": True}), ("POST", "/pause", {"memory": False}), ("POST", "/connect", {"timeout": 600}), ("DELETE", "", None))
CASES = [
    (None, PAUSE, {"pause_intended": "running", "pause_frozen": "running", "pause_synced": "running", "pause_recorded": "paused"}),
    (None, DISK, {"pause_intended": "running", "pause_frozen": "running", "pause_synced": "running", "pause_killed": "paused", "pause_moved": "paused", "pause_recorded": "paused"}),
    (PAUSE, CONNECT, {"resume_recorded": "running", "resume_thawed": "running"}),
    (DISK, CONNECT, {"boot_taken": "paused", "boot_started": "paused", "boot_recorded": "running"}),
    (None, KILL, {"kill_intended": "gone"}),
    (PAUSE, KILL, {"kill_intended": "gone"}),
    (DISK, KILL, {"kill_intended": "gone", "kill_image_gone": "gone"}),
]


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}


def call(s, box, what):
    method, path, body = what
    return s.call(method, f"/sandboxes/{box.sandbox_id}{path}", body)


def state(s, box):
    def told():
        try:
            status, body = s.call("GET", "/sandboxes/" + box.sandbox_id)
        except OSError:
            return None
        return status == 404 and "gone" or status == 200 and body["state"]
    return wait_for(told, 60, "an answer")


def test_every_point_of_the_life_cycle_is_tried():
    tried = {point for _, _, points in CASES for point in points}
    assert tried == {p for p in POINTS if p.startswith(("pause_", "resume_", "boot_", "kill_"))}


# A server for each: after each end of the node, serve waits longer before it starts it again.
@pytest.mark.parametrize("before, doing, points", CASES, ids=["pause", "pause-disk", "resume", "boot", "kill", "kill-paused", "kill-saved"])
def test_008_a_node_that_ends_at_any_step_leaves_nothing_stuck(own_server, before, doing, points):
    s = own_server(start=False)
    armed = s.state / "node/fault"  # where the node looks, whatever else it does not see
    s.extra_env = {"FAULT_POINT_FILE": str(armed)}
    s.start()
    for point, expected in points.items():
        box = Sandbox.create("base", timeout=600, **client(s))
        content = random.randbytes(300_000)
        box.files.write("/home/user/content", content)
        box.commands.run("sleep 4321", background=True, timeout=0)
        if before:
            assert call(s, box, before)[0] == 204, point
        node = s.children()["node"]
        armed.write_text(point)
        try:
            call(s, box, doing)
        except OSError:
            pass
        wait_for(lambda: not armed.exists() and s.children().get("node", node) != node, 60, f"the node to end: {point}")
        s.wait_ready()
        if expected != "gone":
            wait_for(lambda: state(s, box) == expected, 60, f"{expected}: {point}")
            status, _ = call(s, box, CONNECT)
            assert status == (200 if expected == "running" else 201), point
            assert hashlib.sha256(bytes(box.files.read("/home/user/content", format="bytes"))).digest() == hashlib.sha256(content).digest(), point
            kept = any(p.args == ["-l", "-c", "sleep 4321"] for p in box.commands.list())
            assert kept == (before is not DISK and (doing is not DISK or expected == "running")), point
            assert call(s, box, PAUSE)[0] == 204, point
            assert call(s, box, KILL)[0] == 204, point
        wait_for(lambda: state(s, box) == "gone", 60, f"gone: {point}")


def test_010_what_was_paused_outlives_a_restart_and_a_reboot(own_server):
    """A reboot as far as one machine can play it: every process of the sandboxes is gone, and the records are of another boot."""
    s = own_server()
    kept, disk, running, again = (Sandbox.create("base", timeout=600, **client(s)) for _ in range(4))
    for box in (kept, disk, running, again):
        box.files.write("/home/user/content", box.sandbox_id)
    assert call(s, kept, PAUSE)[0] == 204
    assert call(s, disk, DISK)[0] == 204
    assert call(s, again, PAUSE)[0] == 204
    assert s.stop() == 0
    s.start()
    assert [state(s, box) for box in (kept, disk, running, again)] == ["paused", "paused", "running", "paused"]
    assert call(s, again, CONNECT)[0] == 201
    assert again.files.read("/home/user/content") == again.sandbox_id
    inits = [s.first_process(box.sandbox_id) for box in (kept, running, again)]
    assert s.stop() == 0
    for pid in inits:
        os.kill(pid, signal.SIGKILL)
    with sqlite3.connect(s.state / "node/node.db") as db:
        db.execute("UPDATE sandboxes SET boot_id = '00000000-0000-0000-0000-000000000000',"
                   " handle = substr(handle, 1, instr(handle, 'boot=') + 4) || '00000000-0000-0000-0000-000000000000' WHERE handle <> ''")
    db.close()
    s.start()
    wait_for(lambda: [state(s, box) for box in (kept, disk, running, again)] == ["paused", "paused", "gone", "gone"], 60, "states after a reboot")
    assert s.call("GET", "/sandboxes/" + running.sandbox_id)[1]["lastTermination"]["reason"] == "host_lost"
    for box in (kept, disk):
        status, told = call(s, box, CONNECT)
        assert status == 201 and told["resumedFrom"] == "disk", told
        assert box.files.read("/home/user/content") == box.sandbox_id
        assert box.commands.run("echo works").stdout == "works\n"
        assert box.kill() is True


def test_the_timeout_of_a_command_stands_still_while_it_is_paused(server):
    box = Sandbox.create("base", timeout=600)
    try:
        for seconds in (4, 8, 16, 32):
            begun = time.monotonic()
            pid = box.commands.run("echo on; while [ ! -e /home/user/go ]; do sleep 0.05; done; echo whole >/home/user/done; exec sleep 1000", background=True, timeout=seconds).pid
            assert call(server, box, PAUSE)[0] == 204
            ran = time.monotonic() - begun
            time.sleep(seconds + 1)
            begun = time.monotonic()
            assert call(server, box, CONNECT)[0] == 201
            box.files.write("/home/user/go", "")
            ended = "kill -0 %d 2>/dev/null || echo ended" % pid
            wait_for(lambda: box.files.exists("/home/user/done") or box.commands.run(ended).stdout, 60, "a command to go on")
            if box.files.exists("/home/user/done"):
                break
            assert ran + time.monotonic() - begun > seconds, "its timeout went on while it was paused"
            # The machine is slower than that.
            box.files.remove("/home/user/go")
        else:
            raise AssertionError("every timeout was over before a command could go on")
        wait_for(lambda: box.commands.run(ended).stdout == "ended\n", 60, "a command's timeout to pass")
    finally:
        box.kill()


def test_071_listeners_born_at_the_moment_of_a_pause_do_not_hang_the_agent(server):
    """cases.md 71 and 173: pause and resume again and again with something that starts, under a file that grows."""
    box = Sandbox.create("base", timeout=600)
    try:
        box.commands.run("(while [ ! -e /tmp/stop ]; do head -c 4096 /dev/urandom; sleep 0.01; done) | tee /home/user/stream | sha256sum >/home/user/sum", background=True, timeout=0)
        for i in range(12):
            box.commands.run(f"python3 -m http.server {9000 + i} >/dev/null 2>&1 || sleep 1000", background=True, timeout=0)
            assert call(server, box, PAUSE)[0] == 204
            assert call(server, box, CONNECT)[0] == 201
            assert box.commands.run("echo answers", timeout=30).stdout == "answers\n"
        assert box.commands.run("touch /tmp/stop; while [ ! -s /home/user/sum ]; do sleep 0.05; done; sha256sum < /home/user/stream | cmp - /home/user/sum && echo equal").stdout == "equal\n"
    finally:
        box.kill()
