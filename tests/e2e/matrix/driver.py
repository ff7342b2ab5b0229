"""Drives one version of a published Python client through the calls of calls.py: driver.py sync|async VERSION CALL...
One JSON line a call on the standard output; E2B_API_URL and its likes name the server. One body serves both forms of the client:
what the synchronous one returns at once, the other one returns after an await."""

import asyncio
import concurrent.futures
import contextlib
import hashlib
import http.client
import inspect
import io
import os
import pathlib
import re
import shutil
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import uuid
from datetime import timedelta

import e2b
from driving import Calls, a, fails, need, refused, until

FORM, VERSION = sys.argv[1:3]
ASYNC = FORM == "async"
MINOR = int(VERSION.split(".")[1])
Sandbox = e2b.AsyncSandbox if ASYNC else e2b.Sandbox
Template = e2b.AsyncTemplate if ASYNC else e2b.Template
SERVER = urllib.parse.urlsplit(os.environ["E2B_API_URL"])


def plain(box, port, path, method="GET", body=None, headers=None):
    """A plain request to a port of a sandbox by its host name, with no header of the client's: (status, text)."""
    c = http.client.HTTPConnection(SERVER.hostname, SERVER.port, timeout=30)
    try:
        c.request(method, path, body=body, headers={"Host": box.get_host(port), **(headers or {})})
        r = c.getresponse()
        return r.status, r.read().decode()
    finally:
        c.close()


def signed(box, url, **more):
    u = urllib.parse.urlsplit(url)
    return plain(box, 49983, f"{u.path}?{u.query}", **more)


def unique():
    return f"py-{VERSION}-{FORM}-{uuid.uuid4().hex[:12]}"


class Watched:
    """A directory watch of either form: the synchronous one is polled, the other one calls back."""

    def __init__(self, box, path, **options):
        self.box, self.path, self.options, self.seen = box, path, options, []

    async def __aenter__(self):
        if ASYNC:
            self.handle = await self.box.files.watch_dir(self.path, on_event=self.seen.append, **self.options)
        else:
            self.handle = self.box.files.watch_dir(self.path, **self.options)
        return self

    async def __aexit__(self, *_):
        await a(self.handle.stop())

    async def find(self, kind=None, name=None, entry=False):
        def look():
            if not ASYNC:
                self.seen += self.handle.get_new_events()
            return next((e for e in self.seen if kind in (None, e.type.value) and name in (None, e.name) and (not entry or e.entry)), None)
        return await until(look, f"{kind} {name}, saw {self.seen}")


calls = Calls(lambda: Sandbox.create("base", timeout=600))
call, alone = calls.on_shared, calls.alone


def own(name, **options):
    """The body gets a sandbox of its own, which it may kill."""
    def add(body):
        async def run():
            box = await a(Sandbox.create("base", **options))
            try:
                await body(box)
            finally:
                await a(box.kill())
        calls.bodies[name] = run
        return body
    return add


# Sandboxes


@alone("create")
async def _():
    tag = unique()
    box = await a(Sandbox.create("base", metadata={"tag": tag}, envs={"GREETING": "hello there"}, timeout=123))
    assert re.fullmatch(r"i[a-z0-9]{20}", box.sandbox_id)
    r = await a(box.commands.run("echo $GREETING $E2B_SANDBOX"))
    assert r.stdout == "hello there true\n"
    info = await a(box.get_info())
    assert info.metadata == {"tag": tag}
    assert 122 < (info.end_at - info.started_at).total_seconds() < 124
    await a(box.kill())


@alone("create without a template")
async def _():
    box = await a(Sandbox.create())
    assert (await a(box.commands.run("echo hi"))).stdout == "hi\n"
    await a(box.kill())


@alone("create with an idempotency key")
async def _():
    need("idempotency_key" in inspect.signature(Sandbox.create).parameters, "idempotency_key")
    key = str(uuid.uuid4())

    def create(timeout=600):
        return Sandbox.create("base", timeout=timeout, idempotency_key=key)
    if ASYNC:
        boxes = await asyncio.gather(*(create() for _ in range(5)))
    else:
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            boxes = await asyncio.gather(*(loop.run_in_executor(pool, create) for _ in range(5)))
    again = await a(create())
    assert {b.sandbox_id for b in boxes} == {again.sandbox_id}
    assert (await a(again.commands.run("echo hi"))).stdout == "hi\n"
    await fails(lambda: create(timeout=601), e2b.SandboxException, match="409.*Idempotency-Key")
    assert await a(again.kill()) is True
    other = await a(create())
    assert other.sandbox_id != again.sandbox_id
    await a(other.kill())


@call("connect")
async def _(box):
    again = await a(Sandbox.connect(box.sandbox_id))
    await a(box.files.write("/tmp/shared", "one"))
    assert await a(again.files.read("/tmp/shared")) == "one"
    assert (await a(again.commands.run("cat /tmp/shared"))).stdout == "one"


@own("connect keeps the deadline", timeout=100)
async def _(box):
    async def end():
        return (await a(Sandbox.get_info(box.sandbox_id))).end_at
    first = await end()
    await a(Sandbox.connect(box.sandbox_id, timeout=10))
    assert await end() == first
    await a(box.connect(timeout=900))
    assert await end() > first


@call("get info")
async def _(box):
    info = await a(Sandbox.get_info(box.sandbox_id))
    assert info.sandbox_id == box.sandbox_id and info.name == "base"
    assert info.state.value == "running"
    assert info.cpu_count >= 1 and info.memory_mb >= 128
    assert info.end_at > info.started_at
    assert re.fullmatch(r"\d+\.\d+\.\d+", info.envd_version)


@alone("list")
async def _():
    # cases.md 35: each goes through three layers of encoding.
    tag = {"tag": unique()}
    for metadata in ({"team name": "blue/green"}, {"k": "100%"}, {"k": "a=b&c"}, {"k": "+ +"}, {"k": "日本"}, {"": "x"}, {"the key": "&=ü%25+/#?"}):
        made = await a(Sandbox.create("base", metadata={**metadata, **tag}))
        other = await a(Sandbox.create("base", metadata={**tag, "k": "another"}))
        found = await a(Sandbox.list(query=e2b.SandboxQuery(metadata={**metadata, **tag})).next_items())
        assert [s.sandbox_id for s in found] == [made.sandbox_id], metadata
        assert found[0].metadata == {**metadata, **tag}
        await a(made.kill())
        await a(other.kill())


@alone("list by pages")
async def _():
    tag = unique()
    made = [await a(Sandbox.create("base", metadata={"tag": tag})) for _ in range(3)]
    pages, sizes, seen = Sandbox.list(query=e2b.SandboxQuery(metadata={"tag": tag}), limit=2), [], []
    while pages.has_next:
        items = await a(pages.next_items())
        sizes.append(len(items))
        seen += [s.sandbox_id for s in items]
    assert sizes == [2, 1]
    assert sorted(seen) == sorted(s.sandbox_id for s in made)
    for s in made:
        await a(s.kill())


@alone("list by state")
async def _():
    tag = unique()
    made = await a(Sandbox.create("base", metadata={"tag": tag}))
    for state, n in ((e2b.SandboxState.RUNNING, 1), (e2b.SandboxState.PAUSED, 0)):
        assert len(await a(Sandbox.list(query=e2b.SandboxQuery(metadata={"tag": tag}, state=[state])).next_items())) == n
    await a(made.kill())


@own("set timeout")
async def _(box):
    async def end():
        return (await a(box.get_info())).end_at
    first = await end()
    await a(box.set_timeout(800))
    assert (await end() - first).total_seconds() > 300
    await a(Sandbox.set_timeout(box.sandbox_id, 30))
    assert await end() < first


@own("is running")
async def _(box):
    assert await a(box.is_running()) is True
    await a(box.kill())
    assert await a(box.is_running()) is False


@alone("kill")
async def _():
    box = await a(Sandbox.create("base"))
    assert await a(box.kill()) is True
    assert await a(box.kill()) is False


@alone("kill by id")
async def _():
    box = await a(Sandbox.create("base"))
    assert await a(Sandbox.kill(box.sandbox_id)) is True
    assert await a(Sandbox.kill(box.sandbox_id)) is False
    assert await a(Sandbox.kill("sdk-x-does-not-exist")) is False


@call("host")
async def _(box):
    await a(box.files.write("/tmp/www/index.html", "from inside"))
    server = await a(box.commands.run("python3 -m http.server 8123", cwd="/tmp/www", background=True))
    assert box.get_host(8123).startswith(f"8123-{box.sandbox_id}.")

    def answer():
        status, text = plain(box, 8123, "/")
        return status != 502 and (status, text)
    assert await until(answer, "the server inside") == (200, "from inside")
    await a(server.kill())


@alone("template exists")
async def _():
    need(hasattr(Template, "exists"), "Template.exists")
    assert await a(Template.exists("base")) is True
    assert await a(Template.exists("no-such-template")) is False


# Commands


@call("run")
async def _(box):
    r = await a(box.commands.run("echo out; echo err >&2"))
    assert (r.stdout, r.stderr, r.exit_code) == ("out\n", "err\n", 0)


@call("run with environment, directory, user")
async def _(box):
    r = await a(box.commands.run('echo "$A"; pwd; whoami', envs={"A": 'a=b\nc "d"'}, cwd="/tmp", user="root"))
    assert r.stdout == 'a=b\nc "d"\n/tmp\nroot\n'
    assert (await a(box.commands.run("pwd; whoami"))).stdout == "/home/user\nuser\n"


@call("run with callbacks")
async def _(box):
    # The command goes on only when its first line was seen; a second client says so, which may be used inside a callback of either form.
    out, err = [], []

    def first(text):
        out.append(text)
        if len(out) == 1:
            plain_write(box, "/tmp/go")
    r = await a(box.commands.run("echo first; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo ü日; echo last >&2",
                                 on_stdout=first, on_stderr=err.append))
    assert "".join(out) == r.stdout == "first\nü日\n"
    assert "".join(err) == "last\n"


def plain_write(box, path):
    status, _ = plain(box, 49983, "/files?path=" + urllib.parse.quote(path), method="POST", body=b"",
                      headers={"Content-Type": "application/octet-stream", "X-Access-Token": box._envd_access_token})
    assert status == 200


@call("run large output")
async def _(box):
    r = await a(box.commands.run("seq 600000"))
    assert r.stdout == "".join(f"{i}\n" for i in range(1, 600001)), len(r.stdout)


@call("exit code")
async def _(box):
    e = await fails(lambda: box.commands.run("echo out; echo err >&2; exit 3"), e2b.CommandExitException)
    assert (e.exit_code, e.stdout, e.stderr) == (3, "out\n", "err\n")


@call("background")
async def _(box):
    handle = await a(box.commands.run("sleep 0.2; echo done", background=True))
    assert handle.pid > 0
    assert (await a(handle.wait())).stdout == "done\n"


@call("stdin")
async def _(box):
    handle = await a(box.commands.run("cat", background=True, stdin=True))
    for i in range(50):
        await a(box.commands.send_stdin(handle.pid, f"line {i} ü\n"))
    await a(box.commands.close_stdin(handle.pid))
    assert (await a(handle.wait())).stdout == "".join(f"line {i} ü\n" for i in range(50))


@call("stream input")
async def _(box):
    need(hasattr(box.commands, "stream_input"), "stream_input")
    handle = await a(box.commands.run("head -c 1048584 | sha256sum", background=True, stdin=True))
    parts = ["ü" * 32768] * 16 + [b"12345678"]
    if ASYNC:
        async with box.commands.stream_input(handle.pid) as stream:
            for part in parts:
                await stream.send(part)
    else:
        box.commands.stream_input(handle.pid, parts)
    want = hashlib.sha256(b"".join(p if isinstance(p, bytes) else p.encode() for p in parts)).hexdigest()
    assert (await a(handle.wait())).stdout.split()[0] == want
    if not ASYNC:
        await fails(lambda: box.commands.stream_input(99999999, ["x"]), e2b.NotFoundException)


@call("list commands")
async def _(box):
    handle = await a(box.commands.run("sleep 1000", background=True, cwd="/tmp", envs={"A": "b"}))
    entry = next(p for p in await a(box.commands.list()) if p.pid == handle.pid)
    assert (entry.cmd, entry.args, entry.cwd, entry.envs["A"]) == ("/bin/bash", ["-l", "-c", "sleep 1000"], "/tmp", "b")
    await a(handle.kill())


@call("connect to a command")
async def _(box):
    handle = await a(box.commands.run("while ! [ -e /tmp/seen ]; do sleep 0.05; done; echo seen by the second", background=True))
    await a(handle.disconnect())
    again = await a(box.commands.connect(handle.pid))
    await a(box.files.write("/tmp/seen", ""))
    r = await a(again.wait())
    assert (r.exit_code, r.stdout) == (0, "seen by the second\n")


@call("kill a command")
async def _(box):
    handle = await a(box.commands.run("sleep 1000", background=True))
    assert await a(box.commands.kill(handle.pid)) is True
    await fails(lambda: box.commands.run(f"kill -0 {handle.pid}"), e2b.CommandExitException)
    assert await a(box.commands.kill(handle.pid)) is False
    e = await fails(handle.wait, e2b.CommandExitException)
    assert "killed" in str(e.error)


@call("command timeout")
async def _(box):
    await fails(lambda: box.commands.run("sleep 777", timeout=1), e2b.TimeoutException)

    async def gone():
        return not (await a(box.commands.run("pgrep -fx 'sleep 777' || true"))).stdout
    await until(gone, "the end of the command")


@call("hundred commands at once")
async def _(box):
    if ASYNC:
        results = await asyncio.gather(*(box.commands.run(f"echo {i}") for i in range(100)))
    else:
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(100) as pool:
            results = await asyncio.gather(*(loop.run_in_executor(pool, box.commands.run, f"echo {i}") for i in range(100)))
    assert [r.stdout for r in results] == [f"{i}\n" for i in range(100)]


# Terminals


async def pty(box, input, env=None, resize=None):
    """(text, exit code) of a terminal that got this input."""
    text = bytearray()
    more = {"on_data": text.extend} if ASYNC else {}
    handle = await a(box.pty.create(e2b.PtySize(rows=24, cols=80), envs=env or {}, **more))
    if resize:
        await a(box.pty.resize(handle.pid, resize))
    await a(box.pty.send_stdin(handle.pid, input))
    try:
        r = await a(handle.wait() if ASYNC else handle.wait(on_pty=text.extend))
    except e2b.CommandExitException as e:
        r = e
    return text.decode(), r.exit_code


@call("pty")
async def _(box):
    text, code = await pty(box, b'stty size; echo "<$P>" $TERM; exit 7\n', {"P": "q"})
    assert code == 7
    assert "24 80" in text and "<q> xterm-256color" in text


@call("resize a pty")
async def _(box):
    text, code = await pty(box, b"stty size; exit\n", resize=e2b.PtySize(rows=45, cols=123))
    assert code == 0 and "45 123" in text


@call("connect to a pty")
async def _(box):
    need(hasattr(box.pty, "connect"), "pty.connect")
    text = bytearray()
    first = await a(box.pty.create(e2b.PtySize(rows=24, cols=80), **({"on_data": lambda d: None} if ASYNC else {})))
    again = await a(box.pty.connect(first.pid, **({"on_data": text.extend} if ASYNC else {})))
    await a(box.pty.send_stdin(first.pid, b"echo to $((40+2)); exit\n"))
    r = await a(again.wait() if ASYNC else again.wait(on_pty=text.extend))
    assert r.exit_code == 0 and b"to 42" in text
    await a(first.disconnect())


@call("kill a pty")
async def _(box):
    handle = await a(box.pty.create(e2b.PtySize(rows=24, cols=80), **({"on_data": lambda d: None} if ASYNC else {})))
    assert await a(box.pty.kill(handle.pid)) is True
    assert await a(box.pty.kill(handle.pid)) is False
    await fails(handle.wait, e2b.CommandExitException)


# Files


@call("write and read")
async def _(box):
    for name in ("plain", "a b", 'q"uote', "per%41cent", "ü-é", "a+b#c?d", "-dash", "x" * 255):
        data = os.urandom(70000)
        info = await a(box.files.write(f"names/{name}", data))
        assert info.path == f"/home/user/names/{name}"
        assert await a(box.files.read(f"names/{name}", format="bytes")) == data
    await a(box.files.write("text", "Ünï\n"))
    assert await a(box.files.read("text")) == "Ünï\n"
    await a(box.files.write("empty", ""))
    assert await a(box.files.read("empty")) == ""
    assert await a(box.files.read("empty", format="bytes")) == b""
    assert "Linux" in await a(box.files.read("/proc/version"))


@call("write many")
async def _(box):
    files = [{"path": "many/1", "data": "1"}, {"path": "/tmp/many/ü 2", "data": b"2"}]
    assert [w.path for w in await a(box.files.write_files(files))] == ["/home/user/many/1", "/tmp/many/ü 2"]
    assert await a(box.files.read("/tmp/many/ü 2")) == "2"


@call("write a stream")
async def _(box):
    data = os.urandom(1 << 20) * 64
    await a(box.files.write("streamed", io.BytesIO(data)))
    r = await a(box.commands.run("sha256sum < streamed"))
    assert r.stdout.split()[0] == hashlib.sha256(data).hexdigest()


@call("read a stream")
async def _(box):
    r = await a(box.commands.run("head -c 16777216 /dev/urandom > big; sha256sum < big"))
    stream, digest = await a(box.files.read("big", format="stream")), hashlib.sha256()
    if ASYNC:
        async for part in stream:
            digest.update(part)
    else:
        for part in stream:
            digest.update(part)
    assert digest.hexdigest() == r.stdout.split()[0]


@call("write gzip")
async def _(box):
    text = "compress me " * 50000
    await a(box.files.write("zipped", text, gzip=True))
    assert (await a(box.commands.run("wc -c < zipped"))).stdout.strip() == str(len(text))
    assert await a(box.files.read("zipped", gzip=True)) == text


@call("write as octet stream")
async def _(box):
    data = os.urandom(300000)
    await a(box.files.write("octets", data, use_octet_stream=True))
    assert await a(box.files.read("octets", format="bytes")) == data


@call("file metadata")
async def _(box):
    written = await a(box.files.write("meta", "x", metadata={"Author": "me", "purpose": "a test"}))
    assert written.metadata == {"author": "me", "purpose": "a test"}
    assert (await a(box.files.get_info("meta"))).metadata == {"author": "me", "purpose": "a test"}
    await a(box.files.write("meta", "y"))
    assert not (await a(box.files.get_info("meta"))).metadata


@call("list files")
async def _(box):
    for name in ("tree/b", "tree/a/z", "tree/a/y/x", "tree/a-b"):
        await a(box.files.write(name, name))
    one = await a(box.files.list("tree"))
    assert [(e.name, e.type.value) for e in one] == [("a", "dir"), ("a-b", "file"), ("b", "file")]
    deep = await a(box.files.list("tree", depth=3))
    assert [e.path[16:] for e in deep] == ["a", "a/y", "a/y/x", "a/z", "a-b", "b"]


@call("file info")
async def _(box):
    await a(box.files.write("info", "12345"))
    await a(box.commands.run("chmod 640 info; ln -sf info link"))
    i = await a(box.files.get_info("info"))
    assert (i.name, i.path, i.type.value, i.size, i.mode, i.permissions, i.owner, i.group) == \
        ("info", "/home/user/info", "file", 5, 0o640, "-rw-r-----", "user", "user")
    assert i.modified_time is not None
    link = await a(box.files.get_info("link"))
    assert (link.name, link.symlink_target) == ("link", "/home/user/info")
    assert link.type.value == ("symlink" if MINOR >= 63 else "file")


@call("exists")
async def _(box):
    await a(box.files.write("here", ""))
    assert [await a(box.files.exists(p)) for p in ("here", "/tmp", "nowhere")] == [True, True, False]


@call("make a directory")
async def _(box):
    assert await a(box.files.make_dir("made/deep")) is True
    assert await a(box.files.make_dir("made/deep")) is False


@call("rename")
async def _(box):
    await a(box.files.write("old name", "kept"))
    entry = await a(box.files.rename("old name", "new dir/new name"))
    assert entry.path == "/home/user/new dir/new name"
    assert await a(box.files.read("new dir/new name")) == "kept"
    assert await a(box.files.exists("old name")) is False


@call("remove")
async def _(box):
    await a(box.files.write("away/with/it", ""))
    await a(box.files.remove("away"))
    assert await a(box.files.exists("away")) is False
    await a(box.files.remove("away"))


@call("files as another user")
async def _(box):
    info = await a(box.files.write("roots", "x", user="root"))
    assert info.path == "/root/roots"
    assert (await a(box.files.get_info("roots", user="root"))).owner == "root"
    await a(box.files.make_dir("rootsdir", user="root"))
    assert (await a(box.commands.run("stat -c %U /root/rootsdir", user="root"))).stdout == "root\n"


@call("watch")
async def _(box):
    await a(box.files.make_dir("watched"))
    async with Watched(box, "watched") as w:
        await a(box.files.write("watched/f", "1"))
        await w.find("create", "f")
        await w.find("write", "f")
        await a(box.commands.run("chmod 600 watched/f; mv watched/f watched/g; rm watched/g"))
        for kind, name in (("chmod", "f"), ("rename", "f"), ("create", "g"), ("remove", "g")):
            await w.find(kind, name)


@call("watch recursively")
async def _(box):
    await a(box.files.make_dir("deep"))
    async with Watched(box, "deep", recursive=True) as w:
        await a(box.commands.run("mkdir -p deep/later/still && echo x > deep/later/still/file"))
        await w.find(None, "later/still/file")


@call("watch with entries")
async def _(box):
    await a(box.files.make_dir("entries"))
    async with Watched(box, "entries", include_entry=True) as w:
        await a(box.files.write("entries/f", "123"))
        e = await w.find("write", "f", entry=True)
    assert (e.entry.name, e.entry.path, e.entry.type.value) == ("f", "/home/user/entries/f", "file")


@call("signed download")
async def _(box):
    await a(box.files.write("to sign ü", "signed"))
    assert signed(box, box.download_url("to sign ü", use_signature_expiration=60)) == (200, "signed")


@call("signed upload")
async def _(box):
    body = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nby form\r\n--b--\r\n'
    status, _ = signed(box, box.upload_url("uploaded", use_signature_expiration=60), method="POST", body=body,
                       headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert status == 200
    assert await a(box.files.read("uploaded")) == "by form"


@call("signed URL that expired")
async def _(box):
    await a(box.files.write("late", "x"))
    assert signed(box, box.download_url("late", use_signature_expiration=-10))[0] == 401


@call("signed URL of another path")
async def _(box):
    assert signed(box, box.download_url("mine").replace("mine", "yours"))[0] == 401


# Git


@call("git")
async def _(box):
    repo = "/home/user/repo"
    await a(box.git.init(repo, initial_branch="trunk"))
    await a(box.files.write(f"{repo}/a file", "1"))
    assert (await a(box.git.status(repo))).untracked_count == 1
    await a(box.git.add(repo))
    await a(box.git.commit(repo, "first", author_name="A", author_email="a@b.example"))
    assert (await a(box.git.status(repo))).is_clean
    assert (await a(box.git.branches(repo))).current_branch == "trunk"


# Network


async def is_refused(box, address):
    return (await a(box.commands.run(f"curl -s -m 60 http://{address}/ || echo $?"))).stdout == "7\n"


@own("create with a network policy", network={"allow_out": ["203.0.113.8"], "deny_out": ["203.0.113.0/24"]})
async def _(box):
    assert await is_refused(box, "203.0.113.7")
    network = (await a(box.get_info())).network
    assert (network["allow_out"], network["deny_out"]) == (["203.0.113.8"], ["203.0.113.0/24"])


@own("update network")
async def _(box):
    await a(box.update_network({"allow_out": ["203.0.113.8"], "deny_out": ["203.0.113.7"]}))
    assert await is_refused(box, "203.0.113.7")
    await a(box.update_network({"allow_internet_access": False}))
    assert await is_refused(box, "203.0.113.8")
    info = await a(box.get_info())
    assert "allow_out" not in info.network and "deny_out" not in info.network and info.allow_internet_access is False


# Errors

NO_BOX = "i" + "0" * 20
NO_KEY = "e2b_" + "0" * 40


@alone("no such sandbox")
async def _():
    for ask in (lambda: Sandbox.get_info(NO_BOX), lambda: Sandbox.set_timeout(NO_BOX, 1), lambda: Sandbox.connect(NO_BOX)):
        await fails(ask, e2b.SandboxNotFoundException)


@alone("no such template")
async def _():
    await fails(lambda: Sandbox.create("no-such-template"), e2b.SandboxException, match="404.*no-such-template.*not found")


@alone("wrong key")
async def _():
    await fails(lambda: Sandbox.create("base", api_key=NO_KEY), e2b.AuthenticationException)
    await fails(lambda: Sandbox.list(api_key=NO_KEY).next_items(), e2b.AuthenticationException)


@alone("bad timeout")
async def _():
    await fails(lambda: Sandbox.create("base", timeout=-5), e2b.SandboxException, match="400.*[Tt]imeout")


@call("no such file")
async def _(box):
    for ask in (lambda: box.files.read("nope"), lambda: box.files.read("nope", format="stream"), lambda: box.files.list("nope"),
                lambda: box.files.rename("nope", "nowhere"), lambda: box.files.get_info("nope"),
                lambda: box.files.watch_dir("nope", **({"on_event": print} if ASYNC else {}))):
        await fails(ask, e2b.FileNotFoundException)


@call("not a directory")
async def _(box):
    await fails(lambda: box.files.list("/etc/passwd"), e2b.InvalidArgumentException)


@call("no such command")
async def _(box):
    await fails(lambda: box.commands.connect(99999999), e2b.NotFoundException)
    await fails(lambda: box.commands.send_stdin(99999999, "x"), e2b.NotFoundException)


@call("no such user")
async def _(box):
    await fails(lambda: box.commands.run("true", user="nobody-here"), e2b.AuthenticationException)
    await fails(lambda: box.files.read("x", user="nobody-here"), e2b.AuthenticationException)


@call("no such directory")
async def _(box):
    await fails(lambda: box.commands.run("true", cwd="/no/such"), e2b.InvalidArgumentException, match="/no/such")


@call("no space")
async def _(box):
    # The file system of devices is one of 64 KiB.
    await fails(lambda: box.files.write("/dev/more", "x" * 100000, user="root"), e2b.NotEnoughSpaceException)
    await a(box.files.remove("/dev/more", user="root"))


@own("killed meanwhile")
async def _(box):
    handle = await a(box.commands.run("echo on; sleep 60", background=True))
    await a(Sandbox.kill(box.sandbox_id))
    await fails(handle.wait, e2b.TimeoutException)


@own("use after kill")
async def _(box):
    await a(box.kill())
    for ask in (lambda: box.commands.run("true"), lambda: box.files.read("/etc/passwd"), lambda: box.files.list("/")):
        e = await fails(ask, e2b.TimeoutException)
        if hasattr(e2b, "SandboxNotRunningException"):
            assert isinstance(e, e2b.SandboxNotRunningException), repr(e)


# Pause, snapshots, forks


async def living(box):
    """Starts a process and writes a file: what alive() must tell after a pause."""
    await a(box.files.write("kept", "over the pause"))
    await a(box.commands.run("sleep 4321", background=True, timeout=0))

    async def seen():
        now = await alive(box)
        return now[1] != "gone" and now
    return await until(seen, "the process")


async def alive(box):
    r = await a(box.commands.run("cat kept; echo; pgrep -fx 'sleep 4321' || echo gone; cat /proc/sys/kernel/random/boot_id"))
    return r.stdout.split("\n")


def booted_anew(before, now):
    assert now[:2] == [before[0], "gone"] and now[2] != before[2], (before, now)


async def state(box):
    return (await a(box.get_info())).state.value


@own("pause")
async def _(box):
    started = (await a(box.get_info())).started_at
    assert await a(box.pause()) is True
    assert await a(Sandbox.pause(box.sandbox_id)) is False
    info = await a(box.get_info())
    assert info.state.value == "paused" and info.end_at > started
    paused = await a(Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])).next_items())
    assert [s.state.value for s in paused if s.sandbox_id == box.sandbox_id] == ["paused"]
    assert await a(box.is_running()) is False
    await fails(lambda: box.commands.run("true"), Exception)


@own("resume")
async def _(box):
    before = await living(box)
    await a(box.pause())
    again = await a(Sandbox.connect(box.sandbox_id))
    assert await alive(again) == before
    assert (await a(box.connect())).sandbox_id == box.sandbox_id
    assert await alive(box) == before


@own("pause without memory")
async def _(box):
    before = await living(box)
    await a(box.pause(**({"mode": "filesystem"} if MINOR >= 63 else {"keep_memory": False})))
    booted_anew(before, await alive(await a(box.connect())))


@own("resume anew")
async def _(box):
    need("on_resume" in inspect.signature(Sandbox.create).parameters or MINOR >= 63, "on_resume")
    before = await living(box)
    await a(box.pause())
    booted_anew(before, await alive(await a(box.connect(on_resume="reboot"))))


@alone("kill a paused sandbox")
async def _():
    box = await a(Sandbox.create("base"))
    await a(box.pause())
    assert await a(Sandbox.kill(box.sandbox_id)) is True
    assert await a(Sandbox.kill(box.sandbox_id)) is False


@own("auto-pause", lifecycle={"on_timeout": "pause"})
async def _(box):
    lifecycle = (await a(box.get_info())).lifecycle
    assert (lifecycle["on_timeout"], lifecycle["auto_resume"]) == ("pause", False), lifecycle
    before = await living(box)
    await a(box.set_timeout(0))

    async def paused():
        return await state(box) == "paused"
    await until(paused, "the pause")
    assert await alive(await a(Sandbox.connect(box.sandbox_id))) == before


@own("auto-resume", lifecycle={"on_timeout": "pause", "auto_resume": True})
async def _(box):
    before = await living(box)
    await a(box.pause())
    assert await alive(box) == before
    assert await state(box) == "running"


async def own_snapshots(box):
    return [s.snapshot_id for s in await a(box.list_snapshots().next_items())]


@own("snapshot")
async def _(box):
    await a(box.files.write("kept", "in the snapshot"))
    snapshot = await a(box.create_snapshot(**({"mode": "filesystem"} if MINOR >= 63 else {})))
    await a(box.files.write("kept", "later"))
    assert await state(box) == "running"
    assert await own_snapshots(box) == [snapshot.snapshot_id]
    assert snapshot.snapshot_id in [s.snapshot_id for s in await a(Sandbox.list_snapshots().next_items())]
    made = await a(Sandbox.create(snapshot.snapshot_id))
    assert await a(made.files.read("kept")) == "in the snapshot"
    assert await a(Sandbox.delete_snapshot(snapshot.snapshot_id)) is True
    assert await a(Sandbox.delete_snapshot(snapshot.snapshot_id)) is False
    assert await own_snapshots(box) == []
    assert await a(made.files.read("kept")) == "in the snapshot"
    await a(made.kill())
    await fails(lambda: Sandbox.create(snapshot.snapshot_id), e2b.SandboxException, match="404.*template.*not found")


@own("snapshot with a name")
async def _(box):
    name = f"matrix/{unique().replace('.', '-')}:v1"
    await a(box.files.write("kept", "by name"))
    snapshot = await a(box.create_snapshot(name=name))
    assert snapshot.names == [name]
    made = await a(Sandbox.create(name))
    assert await a(made.files.read("kept")) == "by name"
    await a(made.kill())
    assert await a(Sandbox.delete_snapshot(snapshot.snapshot_id)) is True


@own("fork")
async def _(box):
    await a(box.files.write("shared", "of the parent"))
    forks = await a(box.fork(count=2))
    assert len({box.sandbox_id, *(f.sandbox_id for f in forks)}) == 3
    for f in forks:
        assert await a(f.files.read("shared")) == "of the parent"
        await a(f.files.write("shared", "own"))
    assert await a(box.files.read("shared")) == "of the parent"
    for f in (*forks, box):
        await a(f.kill())
    await fails(box.fork, e2b.SandboxNotFoundException)


# Not served yet


@call("metrics")
async def _(box):
    # The first one comes some seconds after the create (e2b.md A.5.4).
    [first, *_] = await until(box.get_metrics, "a first sample")
    assert first.cpu_count == 2 and 0 <= first.cpu_used_pct <= 100, vars(first)
    assert 0 < first.mem_used < first.mem_total == 512 << 20 and 0 < first.disk_used < first.disk_total, vars(first)
    same = await a(Sandbox.get_metrics(box.sandbox_id, start=first.timestamp - timedelta(seconds=2), end=first.timestamp + timedelta(seconds=2)))
    assert [m.timestamp for m in same] == [first.timestamp], same
    assert await a(box.get_metrics(end=first.timestamp - timedelta(hours=1))) == []


def refuses_create(name, **options):
    async def run():
        await refused(lambda: Sandbox.create("base", **options))
    calls.bodies[name] = run


refuses_create("create with a domain rule", network={"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
refuses_create("create with identity tokens", iam={"tokens": {"t": {"audience": "a", "token_type": "JWT-SVID"}}})
refuses_create("create with a volume", volume_mounts={"/data": "no-volume"})


@alone("list volumes")
async def _():
    await refused(lambda: (e2b.AsyncVolume if ASYNC else e2b.Volume).list())


@alone("list secrets")
async def _():
    secret = getattr(e2b, "AsyncSecret" if ASYNC else "Secret", None)
    need(secret, "Secret")
    await refused(lambda: secret.list().next_items())


class Built:
    """A name for a template and a directory for its files; both are gone afterwards."""

    def __enter__(self):
        self.name, self.files = unique().replace(".", "-"), pathlib.Path(tempfile.mkdtemp(prefix="cubicle-built-"))
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.files)
        url = f"{os.environ['E2B_API_URL']}/templates/{self.name}?force=true"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, method="DELETE", headers={"X-API-KEY": os.environ["E2B_API_KEY"]})).close()


@alone("build a template")
async def _():
    logs = []
    with Built() as b:
        (b.files / "tree").mkdir()
        (b.files / "tree/.hidden").write_text("hidden")
        (b.files / "one.txt").write_text("one")
        template = (Template(file_context_path=b.files).from_template("base").copy("one.txt", "/srv/").copy("tree", "/srv/tree").set_envs({"WHO": "world"})
                    .run_cmd("echo hello $WHO > /home/user/hello").set_start_cmd("touch /tmp/started; exec sleep 1000000", e2b.wait_for_file("/tmp/started")))
        await a(Template.build(template, alias=b.name, on_build_logs=logs.append))
        assert len(logs) > 2, logs
        assert await a(Template.exists(b.name)) is True
        box = await a(Sandbox.create(b.name, timeout=300))
        r = await a(box.commands.run("cat /srv/one.txt /srv/tree/.hidden ~/hello; ls /tmp/started"))
        assert r.stdout == "onehiddenhello world\n/tmp/started\n"
        await a(box.kill())


@alone("template tags")
async def _():
    need(hasattr(Template, "get_tags"), "Template.get_tags")
    with Built() as b:
        info = await a(Template.build(Template().from_template("base").run_cmd("echo one > ~/which"), f"{b.name}:v1"))
        given = await a(Template.assign_tags(f"{b.name}:v1", ["prod", "Latest"]))
        assert (given.build_id, sorted(given.tags)) == (info.build_id, ["latest", "prod"])
        assert sorted(t.tag for t in await a(Template.get_tags(info.template_id))) == ["latest", "prod", "v1"]
        box = await a(Sandbox.create(f"{b.name}:prod", timeout=300))
        assert (await a(box.commands.run("cat which"))).stdout == "one\n"
        await a(box.kill())
        await a(Template.remove_tags(b.name, ["prod"]))
        await fails(lambda: Sandbox.create(f"{b.name}:prod"), e2b.SandboxException, match="404.*not found")
        await fails(lambda: Template.remove_tags(b.name, ["default"]), e2b.TemplateException, match="400")
        await fails(lambda: Template.assign_tags(":v1", ["x"]), e2b.TemplateException, match="400")


@alone("a build that fails")
async def _():
    with Built() as b:
        await fails(lambda: Template.build(Template().from_template("base").run_cmd("echo one").run_cmd("echo gone wrong >&2; exit 7"), alias=b.name), e2b.BuildException, match="7")
        await fails(lambda: Sandbox.create(b.name), e2b.SandboxException, match="404.*not found")


calls.drive(sys.argv[3:])
