"""Drives PyPI cubesandbox through the calls of calls.py: driver_cube.py CALL... CUBE_API_URL and its likes name the server."""

import os
import re
import sys

import cubesandbox as errors
import requests
from cubesandbox import PtySize, Sandbox, Template
from driving import Calls, a, fails, until

calls = Calls(lambda: Sandbox.create("base", timeout=600))
call, alone = calls.on_shared, calls.alone


@alone("health")
def _():
    assert Sandbox.health()["status"] == "ok"


@alone("create, run, kill")
async def _():
    box = Sandbox.create("base", timeout=120, env_vars={"GREETING": "hello"}, metadata={"a": "b"})
    r = box.commands.run("echo $GREETING; echo err >&2; exit 3")
    assert (r.stdout, r.stderr, r.exit_code) == ("hello\n", "err\n", 3)
    info = box.get_info()
    assert info.state.value == "running" and info.metadata == {"a": "b"}
    box.kill()
    await fails(box.kill, errors.SandboxNotFoundError)
    await fails(box.get_info, errors.SandboxNotFoundError)


@call("connect to a sandbox")
def _(box):
    again = Sandbox.connect(box.sandbox_id)
    assert again.commands.run("whoami").stdout == "root\n"
    assert again.commands.run("whoami", user="user", cwd="/tmp", envs={"A": "b"}).stdout == "user\n"


@call("list sandboxes")
def _(box):
    for listed in (Sandbox.list(), Sandbox.list_v2()):
        assert box.sandbox_id in [s["sandboxID"] for s in listed]


@call("set the timeout")
def _(box):
    first = box.get_info().end_at
    box.set_timeout(3000)
    assert box.get_info().end_at > first
    box.set_timeout(-1)
    assert box.get_info().end_at.year == 9999
    box.set_timeout(600)


@call("files")
async def _(box):
    box.files.write("/tmp/a ü", "one")
    assert box.files.read("/tmp/a ü") == "one"
    data = os.urandom(5000)
    assert box.files.write_files([("/tmp/many/1", data), ("/tmp/many/2", "2")]) == 2
    assert [e["name"] for e in box.files.list("/tmp/many")] == ["1", "2"]
    assert box.files.stat("/tmp/many/1")["size"] == "5000"
    box.files.make_dir("/tmp/made")
    assert box.files.rename("/tmp/many/2", "/tmp/made/3")["path"] == "/tmp/made/3"
    assert box.files.exists("/tmp/made/3") and not box.files.exists("/tmp/many/2")
    box.files.remove("/tmp/made")
    assert not box.files.exists("/tmp/made")
    await fails(lambda: box.files.read("/nowhere"), IOError, match="not exist")
    await fails(lambda: box.files.list("/nowhere"), errors.FilesystemNotFoundError)


@call("watch a directory")
def _(box):
    box.files.make_dir("/tmp/watched")
    with box.files.watch_dir("/tmp/watched") as events:
        other = Sandbox.connect(box.sandbox_id)
        other.files.write("/tmp/watched/f", "x")
        event = next(iter(events))
        assert (event.name, event.type) == ("f", "EVENT_TYPE_CREATE")


@call("terminal")
def _(box):
    handle = box.pty.create(size=PtySize(rows=24, cols=80))
    handle.resize(PtySize(rows=45, cols=123))
    handle.send_stdin(b"stty size; exit\n")
    text = bytearray()
    assert handle.wait(on_data=text.extend) == 0
    assert b"45 123" in text


@alone("errors")
async def _():
    await fails(lambda: Sandbox.connect("i" + "0" * 20), errors.SandboxNotFoundError)
    await fails(lambda: Sandbox.create("no-such-template"), errors.TemplateNotFoundError)
    await fails(lambda: Sandbox.create("base", timeout=0), errors.ApiError, match="Timeout")


def own(name, **options):
    """The body gets a sandbox of its own."""
    def add(body):
        async def run():
            box = Sandbox.create("base", timeout=600, **options)
            try:
                await a(body(box))
            finally:
                box.kill()
        calls.bodies[name] = run
    return add


def read(box, path):
    return box.files.read(path)


@own("pause and resume")
async def _(box):
    box.files.write("/tmp/kept", "over the pause")
    box.pause(interval=0.05)
    assert box.get_info().state.value == "paused"
    await fails(box.pause, errors.ApiError, match="already paused")
    again = Sandbox.connect(box.sandbox_id)
    assert read(again, "/tmp/kept") == "over the pause" and box.get_info().state.value == "running"
    await fails(box.resume, errors.ApiError, match="already running")
    box.pause(interval=0.05)
    box.resume(timeout=600)
    assert read(box, "/tmp/kept") == "over the pause"


@own("auto-pause", lifecycle={"on_timeout": "pause"})
async def _(box):
    box.files.write("/tmp/kept", "over the pause")
    box.set_timeout(0)
    await until(lambda: box.get_info().state.value == "paused", "the pause")
    assert read(Sandbox.connect(box.sandbox_id), "/tmp/kept") == "over the pause"


@own("snapshots")
async def _(box):
    box.files.write("/tmp/kept", "in the snapshot")
    one, two = box.create_snapshot(), box.create_snapshot("cube-snapshot")
    assert (one.names, two.names) == ([], ["cube-snapshot"])
    page, token = Sandbox.list_snapshots(sandbox_id=box.sandbox_id, limit=1)
    rest, end = Sandbox.list_snapshots(sandbox_id=box.sandbox_id, limit=1, next_token=token)
    assert [s.snapshot_id for s in page + rest] == [two.snapshot_id, one.snapshot_id] and end is None
    for name in (one.snapshot_id, "cube-snapshot"):
        made = Sandbox.create(name)
        assert read(made, "/tmp/kept") == "in the snapshot"
        made.kill()
    for s in (one, two):
        Sandbox.delete_snapshot(s.snapshot_id)
        await fails(lambda: Sandbox.delete_snapshot(s.snapshot_id), errors.TemplateNotFoundError)


@own("clone")
async def _(box):
    box.files.write("/tmp/kept", "in each")
    clones = box.clone(3, concurrency=3)
    assert len({box.sandbox_id, *(c.sandbox_id for c in clones)}) == 4
    for c in clones:
        assert read(c, "/tmp/kept") == "in each"
        c.kill()
    assert Sandbox.list_snapshots(sandbox_id=box.sandbox_id)[0] == []


@own("roll back")
async def _(box):
    box.files.write("/tmp/kept", "before")
    snapshot = box.create_snapshot()
    box.files.write("/tmp/kept", "after")
    assert box.rollback(snapshot.snapshot_id)["snapshotID"] == snapshot.snapshot_id
    assert read(box, "/tmp/kept") == "before"
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    await fails(lambda: box.rollback("snap-" + "0" * 20), errors.TemplateNotFoundError)


@alone("network policy")
def _():
    def is_refused(address):
        return box.commands.run(f"curl -s -m 60 http://{address}/ || echo $?").stdout == "7\n"
    box = Sandbox.create("base", network={"allow_out": ["203.0.113.8"], "deny_out": ["203.0.113.0/24"]})
    try:
        assert is_refused("203.0.113.7")
        box.update_network({"deny_out": ["203.0.113.9"], "allow_internet_access": True})
        assert is_refused("203.0.113.9")
        box.update_network({"allow_internet_access": False})
        assert is_refused("203.0.113.8")
    finally:
        box.kill()



@alone("templates")
async def _():
    image = os.environ["TEST_IMAGE"]
    job = Template.build(image=image, name="team/cube-app:1", writable_layer_size="1G", exposed_ports=[8080], probe_port=8080, probe_path="/ready", cpu_count=1000, memory_mb=256,
                         envs={"GREETING": "hello"})
    assert re.fullmatch("tpl-[0-9a-f]{24}", job.template_id) and job.job_id and job.status == "PENDING"

    def ready(build):
        now = Template.get_build_status(job.template_id, build.job_id)
        assert now.status in ("PENDING", "RUNNING", "READY"), (now, Template.get_build_logs(job.template_id, build.job_id))
        return now.status == "READY"
    await until(lambda: ready(job), "the template", 300)
    detail = Template.get(job.template_id)
    assert (detail.status, detail.name, detail.create_request["image"], detail.memory_mb) == ("READY", "cube-app", image, 256)
    assert job.template_id in [t.template_id for t in Template.list()]
    # The probed port answers at once in every new sandbox.
    box = Sandbox.create("cube-app", timeout=120)
    r = requests.get(f"{os.environ['CUBE_API_URL']}/ready", headers={"Host": box.get_host(8080)}, timeout=30)
    assert (r.status_code, r.text) == (200, "hello\n"), r.text
    box.kill()
    again = Template.rebuild(job.template_id)
    await until(lambda: ready(again), "the rebuilt template", 300)
    Template.delete(job.template_id)
    await fails(lambda: Template.get(job.template_id), errors.TemplateNotFoundError)
    await fails(lambda: Template.build(image=image, probe_port=70000), errors.ApiError)


calls.drive(sys.argv[1:])
