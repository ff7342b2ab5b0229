"""Builds of templates under attack: the node ends at each step of one (fault points, src/base/fault.h), its builder and unpacker are killed, what is built goes away whole. Issue C; cases.md 28."""

import http.client
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import sqlite3
import time

import pytest

from registry import Layer, Layout, Registry, busybox
from server import ROOT, wait_for

POINTS = re.findall(r"F\((\w+)\)", (ROOT / "src/base/fault.h").read_text())
# Of a build and what is around it; after each the node starts anew, and serve waits longer: so several servers.
GROUPS = {
    "layers": ["build_intended", "builder_started", "unpacker_started", "build_layer_published"],
    "boxes": ["build_layer_recorded", "build_box_started", "build_box_sealed", "build_recorded"],
    "files": ["upload_kept", "upload_recorded", "template_forgotten"],
}


@pytest.fixture(scope="module")
def hub():
    with Registry() as r:
        yield r


def push_new(hub, directory):
    """An image that nobody has seen before."""
    name = f"{random.getrandbits(48):012x}"
    layout = Layout(directory / name)
    layout.image([busybox(), Layer().file("etc/name", name.encode())], {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin:/usr/bin"]}, tag="1")
    return hub.push(layout, "1", f"new/{name}", "1")


def start_build(s, name, **body):
    status, made = s.call("POST", "/v3/templates", {"name": name, "cpuCount": 1, "memoryMB": 256})
    assert status == 202, made
    status, answer = s.call("POST", f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", body)
    assert status == 202, answer
    return made


def build_status(s, made):
    return s.call("GET", f"/templates/{made['templateID']}/builds/{made['buildID']}/status?logsOffset=0")[1]


def finished(s, made, seconds=120):
    def over():
        try:
            page = build_status(s, made)
        except OSError:
            return None
        return page and page.get("status") in ("ready", "error") and page
    return wait_for(over, seconds, "the end of the build")


def build(s, name, **body):
    page = finished(s, made := start_build(s, name, **body))
    assert page["status"] == "ready", page
    return made


def admin(s, path, body):
    c = http.client.HTTPConnection("localhost", timeout=60)
    c.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    c.sock.connect(str(s.state / "admin.sock"))
    c.request("POST", path, body=json.dumps(body), headers={"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read()
    c.close()
    assert r.status == 200, text
    return json.loads(text)


def images(s):
    return {p.name for p in (s.state / "node/images").iterdir()}


def collect(s):
    admin(s, "/admin/collect-images", {"olderThan": 0})


def builders(s, which="builder"):
    """Processes of this server that build: {pid: command line}."""
    node = s.children().get("node")
    out = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == node and len(words) > 1 and words[1].decode(errors="replace") == which:
            out[int(entry.name)] = words
    return out


def end(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], 60)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)


def test_every_point_of_a_build_is_tried():
    assert {p for group in GROUPS.values() for p in group} == {p for p in POINTS if p.startswith(("build", "unpacker_", "upload_", "template_"))}


def upload(s, template):
    digest = f"{random.getrandbits(256):064x}"
    status, link = s.call("GET", f"/templates/{template}/files/{digest}")
    assert status == 201 and not link["present"], link
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    path = link["url"].split("/", 3)[3]
    c.request("PUT", "/" + path, body=os.urandom(70_000), headers=link.get("headers") or {})
    status = c.getresponse().status
    c.close()
    assert status < 300
    return digest


def steps():
    return [{"type": "RUN", "args": [f"echo {random.getrandbits(64)} > /tmp/number"]}]


@pytest.mark.parametrize("group", GROUPS)
def test_a_node_that_ends_at_any_step_leaves_the_old_or_the_new(own_server, hub, tmp_path, group):
    s = own_server(start=False, options={"registry.insecure": hub.host})
    armed = s.state / "node/fault"
    s.extra_env = {"FAULT_POINT_FILE": str(armed)}
    s.start()
    before = images(s)
    template = build(s, "app", fromTemplate="base")["templateID"]
    for point in GROUPS[group]:
        node = s.children()["node"]
        made = None
        armed.write_text(point)
        try:
            if point.startswith("upload_"):
                upload(s, template)
            elif point.startswith("template_"):
                s.call("DELETE", f"/templates/{template}")
            elif point.startswith("build_box") or point == "build_recorded":
                made = start_build(s, "app", fromTemplate="base", steps=steps())
            else:
                made = start_build(s, "app", fromImage=push_new(hub, tmp_path), steps=steps())
        except (OSError, AssertionError):
            pass
        wait_for(lambda: not armed.exists() and s.children().get("node", node) != node, 60, f"the node to end: {point}")
        s.wait_ready()
        assert not builders(s), point
        if made:
            page = finished(s, made)
            assert page["status"] == ("ready" if point == "build_recorded" else "error"), (point, page)
            assert page["status"] == "ready" or "restarted" in page["reason"]["message"], (point, page)
        # What was ready before is ready still; what was deleted is gone; nothing half-made is there.
        status, box = s.call("POST", "/sandboxes", {"templateID": "app"})
        assert status == (404 if point.startswith("template_") else 201), (point, box)
        if status == 201:
            assert s.call("DELETE", "/sandboxes/" + box["sandboxID"])[0] == 204
        if not point.startswith(("template_", "upload_")):
            build(s, "app", fromTemplate="base", steps=steps())
    if group != "files":
        assert s.call("DELETE", f"/templates/{template}")[0] == 204
    collect(s)
    wait_for(lambda: images(s) == before, 30, f"the images to go: {images(s) - before}")
    assert not list((s.state / "node/builds").iterdir()) or wait_for(lambda: not list((s.state / "node/builds").glob("*.log")), 10, "logs to go")


def test_builders_and_unpackers_that_are_killed_take_only_their_build_along(own_server, hub, tmp_path):
    s = own_server(options={"registry.insecure": hub.host})
    before = images(s)
    template = build(s, "app", fromTemplate="base")["templateID"]
    long = f"600.{random.getrandbits(40)}"
    slow = [{"type": "RUN", "args": [f"echo begun; sleep {long}"]}]
    for kill_at in ("start", "step"):
        made = start_build(s, "app", fromTemplate="base", steps=slow)
        pid = wait_for(lambda: next(iter(builders(s)), None), 60, "the builder")
        if kill_at == "step":
            wait_for(lambda: any(e["message"] == "begun" for e in build_status(s, made)["logEntries"]), 60, "its step to run")
            check_jail(s, pid)
        end(pid)
        page = finished(s, made)
        assert page["status"] == "error" and "the builder was killed" in page["reason"]["message"], page
    # The sandbox of the step is gone with it.
    wait_for(lambda: not any(long in p for p in commands()), 30, "the step's processes to end")
    status, box = s.call("POST", "/sandboxes", {"templateID": "app"})
    assert status == 201
    assert s.call("DELETE", f"/templates/{template}")[0] == 409  # 028
    assert s.call("DELETE", "/sandboxes/" + box["sandboxID"])[0] == 204
    assert s.call("DELETE", f"/templates/{template}")[0] == 204
    collect(s)
    wait_for(lambda: images(s) == before, 30, "the images to go")


def test_kills_at_any_moment_leave_a_build_that_can_be_made_again(own_server, hub, tmp_path):
    """Nine more moments, of a pull and of what unpacks it: whatever is killed, the build is told as failed (or was done), nothing half-made is there, and it can be made again."""
    s = own_server(options={"registry.insecure": hub.host})
    before = images(s)
    layout = Layout(tmp_path / "big")
    layout.image([busybox(), Layer().file("big", random.randbytes(24 << 20))], {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin:/usr/bin"]}, tag="1")
    reference = hub.push(layout, "1", "big", "1")
    failed = 0
    for i in range(9):
        victim = ("unpack", "builder", "node")[i % 3]
        made = start_build(s, "app", fromImage=reference, steps=steps(), force=True)
        if victim == "node":
            wait_for(lambda: builders(s), 60, "the builder")
            pid = s.children()["node"]
        else:
            pid = wait_for(lambda: next(iter(builders(s, victim)), None) or build_status(s, made)["status"] in ("ready", "error"), 60, f"the {victim}")
        time.sleep(random.random() * 0.3)
        if pid is not True:
            end(pid)
        page = finished(s, made)
        assert page["status"] == "ready" or "killed" in page["reason"]["message"] or "restarted" in page["reason"]["message"] or "ended" in page["reason"]["message"], (victim, page)
        failed += page["status"] == "error"
        s.wait_ready()
        assert not [n for n in images(s) - before if n.startswith(".")]
        if page["status"] == "ready":
            s.call("DELETE", f"/templates/{made['templateID']}")
            collect(s)
            wait_for(lambda: images(s) == before, 30, "the images to go, so that they are made anew")
    assert failed  # else nothing was tried
    template = build(s, "app", fromImage=reference, steps=steps())["templateID"]
    status, box = s.call("POST", "/sandboxes", {"templateID": "app"})
    assert status == 201 and s.call("DELETE", "/sandboxes/" + box["sandboxID"])[0] == 204
    assert s.call("DELETE", f"/templates/{template}")[0] == 204
    collect(s)
    wait_for(lambda: images(s) == before, 30, f"the images to go: {images(s) - before}")


def commands():
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                pass


def check_jail(s, pid):
    """It is nobody, sees nothing, and may nothing: in namespaces of its own, but for the network."""
    import pwd
    status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    user = pwd.getpwnam("cubicle-build")
    assert status["Uid"].split() == [str(user.pw_uid)] * 4
    assert status["Gid"].split() == [str(user.pw_gid)] * 4
    assert status["Groups"].split() == []
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    for kind in ("user", "mnt", "pid", "ipc", "uts"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/{s.children()['node']}/ns/{kind}"), kind
    seen = set(os.listdir(f"/proc/{pid}/root"))
    assert seen <= {"usr", "lib", "lib32", "lib64", "libx32", "etc", "dev"}, seen
    assert "shadow" not in os.listdir(f"/proc/{pid}/root/etc")


def held(s):
    """Bytes that what builds make, and what is sent for them, hold on the disk."""
    out = 0
    for directory in ("images", "builds", "files", "snapshots", "saved", "templates"):
        for root, _, files in os.walk(s.state / "node" / directory):
            for name in files:
                try:
                    out += os.lstat(os.path.join(root, name)).st_blocks * 512
                except OSError:
                    pass
    return out


def test_rounds_of_building_and_deleting_take_no_room(own_server, hub, tmp_path):
    s = own_server(options={"registry.insecure": hub.host})
    reference = push_new(hub, tmp_path)
    start = held(s)
    for i in range(20):
        made = build(s, f"round-{i % 3}", fromImage=reference, steps=steps() if i % 5 == 0 else [])
        assert s.call("DELETE", f"/templates/{made['templateID']}")[0] == 204
    collect(s)
    wait_for(lambda: held(s) <= start, 30, f"the room of before: {held(s)} of {start}")
    with sqlite3.connect(f"file:{s.state}/node/node.db?mode=ro", uri=True) as db:
        for table in ("templates", "builds", "tags", "layers", "files"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0, table


def test_builds_at_once_share_their_layers(own_server, hub, tmp_path):
    """Ten builds of one new image: its layers are made once."""
    s = own_server(options={"registry.insecure": hub.host, "build.max": 10})
    before = images(s)
    reference = push_new(hub, tmp_path)
    made = [start_build(s, f"same-{i}", fromImage=reference) for i in range(10)]
    for m in made:
        page = finished(s, m)
        assert page["status"] == "ready", page
    names = {re.sub(r"-[a-z0-9]{6}(-implied)?\.erofs$", "", n) for n in images(s) - before}
    assert len(names) == len(images(s) - before), images(s) - before
    for m in made:
        assert s.call("DELETE", f"/templates/{m['templateID']}")[0] == 204
    # What builds when the server stops ends with it: the fixture looks for what is left.
    m = start_build(s, "stops", fromTemplate="base", steps=[{"type": "RUN", "args": ["echo begun; sleep 600"]}])
    wait_for(lambda: any(e["message"] == "begun" for e in build_status(s, m)["logEntries"]), 60, "its step to run")
    s.stop()
    s.start()
    page = finished(s, m)
    assert page["status"] == "error" and "stopped" in page["reason"]["message"], page
