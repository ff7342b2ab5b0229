"""Sandboxes as tools (agents.md §1): the published MCP clients drive every tool; each rule there has the test that would have caught its bug (cases.md 176)."""

import concurrent.futures
import http.client
import http.server
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

from agent import HELLO, Agent
from conftest import serving
from server import CUBICLE, ROOT, clean_env, wait_for

TOOLS = ["sandbox_create", "sandbox_run_code", "sandbox_run_command", "sandbox_read_file", "sandbox_write_file", "sandbox_list_files", "sandbox_get_info", "sandbox_pause",
         "sandbox_resume", "sandbox_snapshot", "sandbox_fork", "sandbox_destroy"]


@pytest.fixture(scope="module")
def server():
    with serving(templates=("base", "code-interpreter-v1")) as s:
        yield s
        for snapshot in s.call("GET", "/snapshots")[1]:
            s.call("DELETE", f"/templates/{snapshot['snapshotID']}")


@pytest.fixture
def agents(server):
    """A factory of agents; each has left at the end, and nothing of it is left."""
    made = []

    def make(*flags, at=server, **kwargs):
        made.append(Agent(at, *flags, **kwargs))
        return made[-1]
    yield make
    for a in made:
        if a.process.poll() is None:
            assert a.leave() == 0, a.stderr()
        a.destroy()
    wait_for(lambda: not alive(server), 90, "no sandbox is left")


def alive(server):
    return [s["sandboxID"] for s in server.call("GET", "/v2/sandboxes")[1]]


# Clients

def check_every_tool(found, slow):
    text = {key: value["content"][0].get("text") for key, value in found.items() if isinstance(value, dict)}
    assert found["server"] == "cubicle" and found["tools"] == TOOLS
    assert "42" in text["run_code"] and "out" in text["run_code"]
    image = [c for c in found["run_code"]["content"] if c["type"] == "image"]
    assert len(image) == 1 and image[0]["mimeType"] == "image/png" and image[0]["data"].startswith("iVBORw0KGgo")
    assert text["run_command"].split("\n") == ["stdout:", "blue", "", "stderr:", "oops", "", "exit code: 3"]
    assert text["write_file"] == "6 bytes written to /home/user/notes/a.txt"
    assert text["read_file"] == "hällo" and "hällo" in text["in_fork"]
    assert "notes/\nnotes/a.txt  6 bytes" in text["list_files"]
    assert [line.split(":")[0] for line in text["get_info"].split("\n")] == ["id", "template", "state", "cpu", "memory", "started", "ends"]
    assert text["pause"] == "state: paused" and text["resume"] == "state: running"
    assert text["snapshot"].startswith("snapshot snap-") and "every-tool" in text["snapshot"]
    forks = text["fork"].split("\n")
    assert len(set(forks)) == 2 and text["destroy"] == f"sandbox {forks[-1]} is destroyed"
    assert not any(value.get("isError") for value in found.values() if isinstance(value, dict))
    if slow:
        assert "done" in text["slow"] and found["ticks"] >= 1


@pytest.mark.parametrize("client", ["node-stdio", "node-http", "python-stdio"])
def test_published_clients_drive_every_tool(server, client):
    kind, transport = client.split("-")
    env = clean_env({"CUBICLE": str(CUBICLE), "CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": server.api_key})
    here = ROOT / "tests/e2e/clients" / ("npm-mcp" if kind == "node" else "pypi-mcp")
    words = [ROOT / "build/bin/node", "every_tool.mjs", transport] if kind == "node" else [ROOT / "build/clients/pypi-mcp/bin/python", "every_tool.py"]
    r = subprocess.run(words, cwd=here, env=env, capture_output=True, text=True, timeout=240)
    assert r.returncode == 0, r.stderr
    check_every_tool(json.loads(r.stdout), kind == "node")
    wait_for(lambda: not alive(server), 60, "the session's sandboxes are ended")


# The protocol

@pytest.mark.parametrize("asked, spoken", [("2024-11-05", "2024-11-05"), ("2025-03-26", "2025-03-26"), ("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"),
                                           ("1999-01-01", "2025-11-25"), ("2999-01-01", "2025-11-25")])
def test_versions_are_negotiated(agents, asked, spoken):
    a = agents(initialize=False)
    assert a.request("initialize", {**HELLO, "protocolVersion": asked})["result"]["protocolVersion"] == spoken
    assert a.request("initialize", HELLO)["error"]["code"] == -32600  # once


def test_what_is_no_request_is_refused_and_harms_nothing(agents):
    a = agents(initialize=False)
    assert a.request("ping")["result"] == {}
    assert a.request("tools/list")["error"]["code"] == -32600  # initialize comes first
    a.request("initialize", HELLO)
    assert a.request("resources/list")["error"]["code"] == -32601
    assert a.request("tools/call", {"name": "rm_rf"})["error"]["code"] == -32602
    assert a.request("tools/call", {"name": "sandbox_create", "arguments": [1]})["error"]["code"] == -32602
    for line, code in [(b"{", -32700), (b"[]", -32600), (b"7", -32600), (b'{"id":1,"method":"ping"}', -32600), (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
                       (b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}', -32600), (b'{"jsonrpc":"2.0","id":7}', -32600), (b"\xff\xfe", -32700), (b"[" * 100000, -32700),
                       (b'{"jsonrpc":"2.0","id":8,"method":"ping","params":[]}', -32602)]:
        a.raw(line + b"\n")
        stray = a.strays.get(timeout=30)
        assert stray["error"]["code"] == code, (line[:40], stray)
    a.raw(b"x" * (5 << 20) + b"\n")
    assert a.strays.get(timeout=30)["error"]["code"] == -32700
    a.raw(b"\n \n" + b'{"jsonrpc":"2.0","method":"notifications/nonsense","params":{}}\n')
    assert a.request("ping")["result"] == {}
    assert a.leave() == 0 and a.stderr() == ""


def test_batches_where_the_version_has_them(agents):
    a = agents(initialize=False)
    a.request("initialize", {**HELLO, "protocolVersion": "2025-03-26"})
    a.answers[501] = a.answers[502] = a.strays
    a.send([{"jsonrpc": "2.0", "id": 501, "method": "ping"}, {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 502, "method": "tools/call", "params": {"name": "sandbox_get_info", "arguments": {}}}])
    assert {a.strays.get(timeout=30)["id"] for _ in range(2)} == {501, 502}
    assert json.loads(a.lines[-1])[0]["id"] in (501, 502)  # together
    b = agents()
    b.send([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
    assert b.strays.get(timeout=30)["error"]["code"] == -32600


def test_a_cancelled_call_kills_its_command_and_is_not_answered(agents):
    a = agents()
    a.create()
    number = a.begin_call("sandbox_run_command", command="touch begun; exec -a victim sleep 1000")
    wait_for(lambda: "begun" in a.ok("sandbox_list_files", path="."), what="the command runs")
    a.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    wait_for(lambda: "victim" not in a.ok("sandbox_run_command", command="ps ax -o args | grep -v grep | grep victim || true"), what="the command is dead")
    assert a.answers[number].empty()
    # A cell likewise: the next one is not held up behind it.
    a.create(template="code-interpreter-v1")
    assert "2" in a.ok("sandbox_run_code", code="1+1")
    number = a.begin_call("sandbox_run_code", code="open('/home/user/cell','w').close()\nimport time\ntime.sleep(1000)")
    wait_for(lambda: "cell" in a.ok("sandbox_list_files", path="."), what="the cell runs")
    a.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    assert "3" in a.ok("sandbox_run_code", code="1+2")
    assert a.answers[number].empty()


def test_long_runs_tell_of_their_progress(agents):
    a = agents()
    a.create()
    number = a.begin_call("sandbox_run_command", meta={"progressToken": "t1"}, command="sleep 6")
    note = a.notes.get(timeout=60)
    assert note["method"] == "notifications/progress" and note["params"]["progressToken"] == "t1" and note["params"]["progress"] >= 5
    assert not a.result(number)[1]


# Arguments and results

BOUNDS = [("sandbox_create", "timeout", 30, 86400), ("sandbox_run_code", "timeout", 1, 3600), ("sandbox_run_command", "timeout", 1, 3600), ("sandbox_list_files", "depth", 1, 5),
          ("sandbox_fork", "count", 1, 20)]
NEEDED = {"sandbox_run_code": {"code": "1"}, "sandbox_run_command": {"command": "true"}, "sandbox_list_files": {"path": "."}}


@pytest.mark.parametrize("tool, name, least, most", BOUNDS)
def test_numbers_outside_of_their_bounds_are_refused_by_name(agents, tool, name, least, most):
    a = agents()
    for value in (least - 1, most + 1, -1, 0, 1 << 62, 1.5, "30", True, [30]):
        if least <= (value if type(value) is int else -1) <= most:
            continue
        assert a.fails(tool, **NEEDED.get(tool, {}), **{name: value}) == f"{name} must be an integer from {least} to {most}"


def test_texts_outside_of_their_bounds_are_refused_by_name(agents):
    a = agents()
    for tool, arguments, message in [
            ("sandbox_run_code", {"code": "x" * (100 * 1024 + 1)}, "code must have at most 102400 bytes, it has 102401"),
            ("sandbox_run_command", {"command": "x" * (64 * 1024 + 1)}, "command must have at most 65536 bytes, it has 65537"),
            ("sandbox_write_file", {"path": "a", "content": "x" * (512 * 1024 + 1)}, "content must have at most 524288 bytes, it has 524289"),
            ("sandbox_run_command", {"command": ""}, "command must not be empty"), ("sandbox_run_command", {}, "command is missing"),
            ("sandbox_run_command", {"command": 7}, "command must be a string"), ("sandbox_run_command", {"command": "a\0b"}, "command must not have a NUL character"),
            ("sandbox_create", {"envs": {"A": 1}}, "envs.A must be a string"), ("sandbox_create", {"envs": "A=1"}, "envs must be an object of strings"),
            ("sandbox_create", {"allow_internet": "no"}, "allow_internet must be true or false"), ("sandbox_get_info", {"colour": 1}, "colour: sandbox_get_info has no such argument"),
            ("sandbox_get_info", {}, "there is no sandbox: call sandbox_create first"), ("sandbox_get_info", {"sandbox": "inothing"}, "this session has no sandbox of that id, or it is gone")]:
        assert a.fails(tool, **arguments) == message


def test_files_and_output_are_cut_and_say_so(agents):
    a = agents()
    a.create()
    a.ok("sandbox_write_file", path="long.txt", content="ä" * 60000)
    text = a.ok("sandbox_read_file", path="long.txt")
    assert text.startswith("ä" * 50000 + "\n[… cut") and text.count("ä") == 50000
    a.ok("sandbox_write_file", path="exact.txt", content="ä" * 50000)
    assert a.ok("sandbox_read_file", path="exact.txt") == "ä" * 50000
    a.ok("sandbox_write_file", path="empty", content="")
    assert a.ok("sandbox_read_file", path="empty") == ""
    a.ok("sandbox_run_command", command=r"printf 'a\0b\377' > bin; head -c 2000000 /dev/urandom > large; head -c 10000000 /dev/zero | tr '\0' y > text")
    _, failed, content = a.call("sandbox_read_file", path="bin")
    assert not failed and content[0]["type"] == "resource" and content[0]["resource"]["blob"] == "YQBi/w=="
    assert "binary" in a.fails("sandbox_read_file", path="large")
    assert a.ok("sandbox_read_file", path="text").startswith("y" * 50000 + "\n[…")
    out = a.ok("sandbox_run_command", command="cat text; echo; echo the end")
    assert "bytes are left out here" in out and "the end" in out and len(out) < 60000
    assert a.fails("sandbox_read_file", path="nothing") == "there is no file 'nothing'"
    assert a.fails("sandbox_read_file", path=".") == "'.' is a directory"
    text = a.fails("sandbox_run_command", command="echo before; sleep 60", timeout=1)
    assert "before" in text and text.endswith("killed: it ran for longer than its timeout of 1 s.")
    assert a.ok("sandbox_run_command", command="kill -9 $$").endswith("(signal: killed)")


def test_paths_do_not_leave_the_workspace(agents):
    a, free = agents(), agents("--allow-absolute")
    for one in (a, free):
        one.create()
        one.ok("sandbox_run_command", command="ln -s /etc out; ln -s . self; mkdir -p d; ln -s ../../../etc/hostname d/up; ln -s /nowhere/x dangling; echo inside > d/f; ln -s d in")
    for path in ("../x", "d/../../x", "/etc/hostname", "/home/user/d/f", "out/hostname", "d/up", "self/out/hostname", "self/self/d/up", "dangling", "in/up"):
        for tool, more in (("sandbox_read_file", {}), ("sandbox_write_file", {"content": "x"}), ("sandbox_list_files", {})):
            assert a.fails(tool, path=path, **more).startswith("path "), (tool, path)
        assert a.fails("sandbox_run_command", command="pwd", cwd=path).startswith("cwd ") or path in ("../x", "d/../../x", "/etc/hostname", "/home/user/d/f")
    assert a.ok("sandbox_read_file", path="in/f") == "inside\n" == a.ok("sandbox_read_file", path="self/d/../in/f")
    assert free.ok("sandbox_read_file", path="/etc/hostname").strip() and free.ok("sandbox_read_file", path="d/up").strip()
    assert free.ok("sandbox_write_file", path="../../tmp/x", content="y") == "1 bytes written to /tmp/x"


def test_a_snapshot_has_the_name_it_was_given_or_there_is_none(agents, server):
    a = agents()
    a.create()
    before = len(server.call("GET", "/snapshots")[1])
    assert a.fails("sandbox_snapshot", name="") == "name must not be empty"
    a.fails("sandbox_snapshot", name="No Such Name!")
    assert len(server.call("GET", "/snapshots")[1]) == before
    text = a.ok("sandbox_snapshot", name="0")
    assert "named 0 " in text
    made = [s for s in server.call("GET", "/snapshots")[1] if s["snapshotID"] == text.split()[1].rstrip(",")]
    assert made and made[0]["names"][0].split("/")[-1].split(":")[0] == "0"


# Several sandboxes, and calls beside each other

def test_a_call_acts_on_the_sandbox_that_it_found(agents):
    a = agents()
    first = a.create()
    number = a.begin_call("sandbox_run_command", command="touch begun; while [ ! -e go ]; do sleep 0.05; done; hostname")
    wait_for(lambda: "begun" in a.ok("sandbox_list_files", path="."), what="the command runs")
    second = a.create()
    assert second in a.ok("sandbox_run_command", command="hostname")
    assert first in a.ok("sandbox_run_command", command="touch go; hostname", sandbox=first)
    assert first in a.result(number)[0]
    # One that is destroyed beside a call: the call is told so, the newer sandbox is untouched.
    number = a.begin_call("sandbox_run_command", command="touch again; sleep 1000", sandbox=first)
    wait_for(lambda: "again" in a.ok("sandbox_list_files", path=".", sandbox=first), what="the command runs")
    a.ok("sandbox_destroy", sandbox=first)
    assert a.result(number)[0] == "the sandbox is gone"
    assert second in a.ok("sandbox_run_command", command="hostname")
    a.fails("sandbox_destroy", sandbox=first)


def test_a_paused_and_an_ended_sandbox_are_told_apart(agents, server):
    a = agents()
    box = a.create()
    a.ok("sandbox_pause")
    assert a.fails("sandbox_run_command", command="true") == "the sandbox is paused: call sandbox_resume"
    a.ok("sandbox_resume")
    a.ok("sandbox_run_command", command="true")
    server.call("DELETE", f"/sandboxes/{box}")
    assert a.fails("sandbox_run_command", command="true") == "the sandbox is gone"
    assert a.fails("sandbox_get_info") == "there is no sandbox: call sandbox_create first"


def test_eight_callers_at_once_touch_no_wrong_sandbox(agents, server):
    """MCP_SECONDS: the issue's minute; a few seconds in CI."""
    a, end = agents(), time.monotonic() + float(os.environ.get("MCP_SECONDS", "12"))
    wrong = []

    def caller(number):
        rng = random.Random(number)
        while time.monotonic() < end:
            text, failed, _ = a.call("sandbox_create", timeout=60)
            if failed:
                wrong.append(text)
                return
            box = text.split()[1]
            for _ in range(rng.randrange(1, 4)):
                text, failed, _ = a.call("sandbox_run_command", command="hostname", sandbox=box)
                if failed or box not in text:
                    wrong.append((box, text))
            # Two destroy it at once: one of them does it, and nobody else's goes.
            both = [a.begin_call("sandbox_destroy", sandbox=box) for _ in range(2)]
            results = [a.result(n) for n in both]
            if sorted(r[1] for r in results) != [False, True]:
                wrong.append(results)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for f in [pool.submit(caller, i) for i in range(8)]:
            f.result()
    assert not wrong, wrong[:5]
    assert not alive(server)


# The ways out

@pytest.mark.parametrize("way", ["eof", "SIGTERM", "SIGINT", "SIGHUP", "broken pipe"])
def test_every_way_out_ends_the_sandboxes(server, agents, way):
    a = agents()
    boxes = {a.create(), *a.ok("sandbox_fork", count=2).split("\n"), a.create()}
    assert boxes <= set(alive(server))
    a.begin_call("sandbox_run_command", command="sleep 1000")
    a.begin_call("sandbox_create")
    if way == "eof":
        a.process.stdin.close()
    elif way == "broken pipe":
        a.deaf = True
        a.send({"jsonrpc": "2.0", "id": 999, "method": "ping"})
    else:
        a.process.send_signal(getattr(signal, way))
    assert a.process.wait(60) == 0
    assert not alive(server)


def test_keep_pauses_them_instead(server, agents):
    a = agents("--keep")
    box = a.create()
    a.ok("sandbox_write_file", path="kept", content="x")
    assert a.leave() == 0
    assert server.call("GET", f"/sandboxes/{box}")[1]["state"] == "paused"
    assert server.call("DELETE", f"/sandboxes/{box}")[0] == 204


def test_sandboxes_of_a_killed_server_end_by_their_lease(server, agents):
    a, other = agents("--lease=10"), agents("--lease=10")
    box, kept = a.create(timeout=3600), other.create(timeout=3600)
    os.kill(a.process.pid, signal.SIGKILL)
    a.process.wait()
    began = time.monotonic()
    wait_for(lambda: box not in alive(server), 60, "the lease is over")
    while time.monotonic() < began + 14:  # longer than a lease: the other server renews its own
        time.sleep(0.2)
    assert kept in alive(server) and "kept" in other.ok("sandbox_run_command", command="echo kept")


def test_twenty_starts_and_stops_leave_nothing(server):
    for i in range(20):
        a = Agent(server)
        a.create()
        a.begin_call("sandbox_run_command", command="sleep 1000")
        a.process.send_signal(signal.SIGTERM) if i % 2 else a.process.stdin.close()
        assert a.process.wait(60) == 0
        a.destroy()
    assert not alive(server)


# A server that is not there, or hostile

def test_an_unreachable_server_is_told_in_time_and_without_its_address(agents):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    a = Agent(env={"CUBICLE_API_URL": f"http://127.0.0.1:{port}", "CUBICLE_API_KEY": "e2b_" + "a" * 40})
    text = a.fails("sandbox_create")
    assert "cannot be reached" in text and "127.0.0.1" not in text and str(port) not in text
    assert a.leave() == 0
    a.destroy()


def test_a_hanging_server_holds_up_no_other_call_and_no_end(agents):
    """Creating is bounded by 60 s; what else is asked meanwhile is answered, and the end does not wait for it."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(50)
        a = Agent(env={"CUBICLE_API_URL": f"http://127.0.0.1:{s.getsockname()[1]}", "CUBICLE_API_KEY": "k"})
        slow = [a.begin_call("sandbox_create") for _ in range(4)]
        assert a.fails("sandbox_get_info") == "there is no sandbox: call sandbox_create first"
        assert a.request("ping")["result"] == {}
        assert all(a.answers[n].empty() for n in slow)
        a.process.send_signal(signal.SIGTERM)
        a.process.wait(60)
        a.destroy()


SECRET = "e2b_5ec4e75ec4e75ec4e75ec4e75ec4e75ec4e75ec4"
HOSTILE = [
    "see https://internal.example.com:8443/a?token=hunter2hunter2hunter2hunter2", "10.20.30.40:5432 refused", "no route to fe80::aaaa:1", "[2001:db8::dead]:443",
    "db7.prod.internal.example.net is down", "in /var/lib/cubicle/node/node.db", f"key {SECRET}", "Bearer abcdefghijklmnop123456",
    "Traceback (most recent call last):\n  File \"/srv/app/secret_module.py\", line 3, in secret_function\n    secret_call()\nValueError: x",
    "#0 0x00007ffff7a42428 in secret_frame () from /lib/libc.so.6\n#1 0x1 in main", "x" * 480 + " http://cut.example.com/in/the/middle " + SECRET,
]
FORBIDDEN = ["example", "hunter2", "10.20.30.40", "fe80", "2001:db8", "/var/lib", "5ec4e7", "abcdefghijklmnop123456", "/srv", "secret_", "libc.so", "127.0.0.1", "localhost"]


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers everything with an error whose text tells too much; a create as well once `good` is set."""
    protocol_version = "HTTP/1.1"
    text, status, good = "", 500, False

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        status, body = self.status, {"code": self.status, "message": self.text, "internalHost": "leak.example.com", "stack": self.text}
        if self.good and self.path.startswith("/v2/sandboxes") and self.command == "POST":
            status, body = 201, {"sandboxID": "ihostilehostilehosti1", "envdAccessToken": "t", "internalHost": "leak.example.com"}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = answer

    def log_message(self, *_):
        pass


def test_nothing_of_the_server_comes_out_through_any_error():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as s:
        thread = threading.Thread(target=s.serve_forever, daemon=True)
        thread.start()
        a = Agent(env={"CUBICLE_API_URL": f"http://127.0.0.1:{s.server_port}", "CUBICLE_API_KEY": SECRET})
        try:
            texts = []
            for Hostile.text in HOSTILE:
                for Hostile.status in (400, 401, 403, 404, 409, 429, 500, 502, 503, 507):
                    Hostile.good = False
                    texts.append(a.fails("sandbox_create"))
                    Hostile.good = True
                    a.ok("sandbox_create")
                    for tool, arguments in [("run_code", {"code": "1"}), ("run_command", {"command": "x"}), ("read_file", {"path": "x"}), ("write_file", {"path": "x", "content": ""}),
                                            ("list_files", {"path": "."}), ("get_info", {}), ("pause", {}), ("resume", {}), ("snapshot", {}), ("fork", {}), ("destroy", {})]:
                        text, failed, _ = a.call("sandbox_" + tool, **arguments)
                        assert failed or (tool, Hostile.status) == ("destroy", 404), text  # what is gone needs no destroying
                        texts.append(text)
                        if "gone" in texts[-1] or "no sandbox" in texts[-1]:
                            a.ok("sandbox_create")
            for text in texts:
                assert len(text) <= 520 and not [word for word in FORBIDDEN if word in text], text
            # The control: these texts do come in, and what is harmless of them comes out.
            Hostile.text, Hostile.status, Hostile.good = "the moon is full", 409, False
            assert "the moon is full" in a.fails("sandbox_create")
            Hostile.status = 404  # so that the end is quick
            a.leave()
            assert not [word for word in FORBIDDEN if word in a.stderr()]
        finally:
            a.destroy()
            s.shutdown()


# HTTP

class Session:
    """The client's side of streamable HTTP, bare."""

    def __init__(self, server, key=None):
        self.server, self.key, self.id = server, key or server.api_key, None

    def ask(self, method="POST", message=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        h = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": f"Bearer {self.key}", **(headers or {})}
        if self.id and "Mcp-Session-Id" not in h:
            h["Mcp-Session-Id"] = self.id
        try:
            c.request(method, "/mcp", json.dumps(message) if message is not None else None, {k: v for k, v in h.items() if v is not None})
            r = c.getresponse()
            return r.status, r.headers, r.read().decode()
        finally:
            c.close()

    def initialize(self):
        status, headers, _ = self.ask(message={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO})
        assert status == 200
        self.id = headers["Mcp-Session-Id"]
        return self

    def call(self, tool, **arguments):
        status, headers, body = self.ask(message={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", body
        return json.loads(body.split("data: ", 1)[1].split("\n")[0])["result"]["content"][0]["text"]


PING = {"jsonrpc": "2.0", "id": 5, "method": "ping"}


def test_sessions_over_http(server):
    s = Session(server).initialize()
    box = s.call("sandbox_create", template="base").split()[1]
    assert box in s.call("sandbox_run_command", command="hostname")
    assert s.ask(message={"jsonrpc": "2.0", "method": "notifications/initialized"})[::2] == (202, "")
    assert json.loads(s.ask(message=PING)[2])["result"] == {}
    assert s.ask("GET")[0] == 405
    # Nobody else gets into it, whoever knows its id.
    status, other = server.call("POST", "/api-keys", {"name": "other"})
    assert status == 201
    thief = Session(server, other["key"])
    thief.id = s.id
    assert thief.ask(message=PING)[0] == 404 and thief.ask("DELETE")[0] == 404
    assert Session(server, "e2b_" + "0" * 40).ask(message=PING)[0] == 401
    assert s.ask(message=PING, headers={"Authorization": None})[0] == 401
    assert s.ask(message=PING, headers={"Mcp-Session-Id": "nothing"})[0] == 404
    assert Session(server).ask(message=PING)[0] == 400
    assert s.ask("DELETE")[0] == 204
    assert s.ask(message=PING)[0] == 404 and s.ask("DELETE")[0] == 404
    wait_for(lambda: not alive(server), 60, "its sandboxes are ended")


def test_what_http_refuses(server):
    s = Session(server).initialize()
    for headers in ({"Host": "evil.example.com"}, {"Host": "evil.example.com:3000"}, {"Origin": "http://evil.example.com"}, {"Origin": "null"}, {"Origin": "https://127.0.0.1.evil.com"}):
        assert s.ask(message=PING, headers=headers)[0] == 403, headers
    for headers in ({"Host": "localhost:1"}, {"Origin": "http://localhost:8080"}, {"Origin": f"http://127.0.0.1:{server.port}"}):
        assert s.ask(message=PING, headers=headers)[0] == 200, headers
    assert s.ask(message=PING, headers={"Content-Type": "text/plain"})[0] == 415
    assert s.ask(message=PING, headers={"Accept": "text/html"})[0] == 406
    assert s.ask(message=PING, headers={"MCP-Protocol-Version": "1999-01-01"})[0] == 400
    assert s.ask(message={"jsonrpc": "2.0", "id": 1, "method": "nonsense"})[0] == 200
    assert s.ask(message="x" * (5 << 20))[0] in (400, 413)
    assert s.ask("PUT", message=PING)[0] == 405
    assert Session(server).ask(message={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})[1].get("Mcp-Session-Id") is None
    assert s.ask("DELETE")[0] == 204


def test_whatever_is_posted_gets_a_whole_answer_and_harms_nothing(server):
    tools = server.children()["tools"]
    # Without a body, and with one, by nobody: its key is asked for once.
    for key in ("e2b_" + "0" * 40, server.api_key):
        for length in ("", "Content-Length: 0\r\n", "Content-Length: 4000000\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as c:
                c.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n{length}\r\n".encode())
                if "4" not in length or key != server.api_key:
                    assert c.recv(1000).startswith(b"HTTP/1.1 40")
    s = Session(server)
    s.id = s.ask(message={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {**HELLO, "protocolVersion": "2025-03-26"}})[1]["Mcp-Session-Id"]
    for message in ({"jsonrpc": "1.0", "id": 5, "method": "ping"}, {"id": 5, "method": "ping"}, {"jsonrpc": "2.0", "id": "x" * 400, "method": "ping"}, 7, [], [PING] * 65,
                    [PING, {"id": 6, "method": "ping"}]):
        status, headers, body = s.ask(message=message)  # read to its end
        assert status == 200 and headers["Content-Type"] == "application/json" and "-32600" in body
    # A call that is cancelled is not answered: its stream ends.
    s.call("sandbox_create", template="base")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {"name": "sandbox_run_command", "arguments": {"command": "touch begun; sleep 1000"}}}
        waiting = pool.submit(s.ask, message=call)
        wait_for(lambda: "begun" in s.call("sandbox_list_files", path="."), what="the command runs")
        assert s.ask(message={"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "c"}})[0] == 202
        status, _, body = waiting.result(60)
        assert status == 200 and "data:" not in body
        # All of a batch likewise.
        waiting = pool.submit(s.ask, message=[{**call, "id": i, "params": {"name": "sandbox_run_command", "arguments": {"command": f"touch b{i}; sleep 1000"}}} for i in (11, 12)])
        wait_for(lambda: {"b11", "b12"} <= {line.split()[0] for line in s.call("sandbox_list_files", path=".").split("\n")}, what="they run")
        for i in (11, 12):
            s.ask(message={"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": i}})
        status, _, body = waiting.result(60)
        assert status == 200 and "data:" not in body
    assert server.children()["tools"] == tools
    assert s.ask("DELETE")[0] == 204


def test_of_images_as_many_as_an_answer_can_hold_arrive(server):
    s = Session(server).initialize()
    s.call("sandbox_create", template="code-interpreter-v1")
    code = "for i in range(6):\n    display({'image/png': 'A' * 1000000, 'text/plain': 'y' * 200000}, raw=True)"
    _, _, body = s.ask(message={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox_run_code", "arguments": {"code": code}}})
    content = json.loads(body.split("data: ", 1)[1].split("\n")[0])["result"]["content"]
    assert [len(c["data"]) for c in content[1:]] == [1000000] * 4
    assert "bytes are left out here" in content[0]["text"] and content[0]["text"].endswith("2 images are left out: too many, or too big.")
    assert s.ask("DELETE")[0] == 204
    wait_for(lambda: not alive(server), 60, "its sandboxes are ended")


def test_one_key_takes_neither_all_calls_nor_all_sessions(server):
    s = Session(server)
    s.id = s.ask(message={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {**HELLO, "protocolVersion": "2025-03-26"}})[1]["Mcp-Session-Id"]
    s.call("sandbox_create", template="base")
    calls = [{"jsonrpc": "2.0", "id": i, "method": "tools/call", "params": {"name": "sandbox_run_command", "arguments": {"command": "sleep 1000"}}} for i in range(64)]
    other, key = Session(server).initialize(), server.call("POST", "/api-keys", {"name": "third"})[1]["key"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(s.ask, message=calls)

        def refused():
            return "calls are under way" in other.ask(message={**calls[0], "params": {"name": "sandbox_get_info"}})[2]
        wait_for(refused, what="the key's calls are all taken")
        third = Session(server, key).initialize()
        assert "there is no sandbox" in third.ask(message={**calls[0], "params": {"name": "sandbox_get_info"}})[2]
        assert s.ask("DELETE")[0] == 204
        with pytest.raises((http.client.HTTPException, OSError)):
            waiting.result(60)
    wait_for(lambda: not refused(), what="they have ended")
    # Sessions that were left behind make room for new ones, those that hold something do not.
    box = other.call("sandbox_create", template="base").split()[1]
    left = [Session(server).initialize() for _ in range(70)]
    assert left[0].ask(message=PING)[0] == 404 and left[-1].ask(message=PING)[0] == 200
    assert box in other.call("sandbox_run_command", command="hostname")
    for session in (*left[10:], other, third):
        session.ask("DELETE")
    wait_for(lambda: not alive(server), 60, "its sandboxes are ended")


def test_a_server_that_stops_ends_the_sessions_sandboxes():
    with serving() as own:
        s = Session(own).initialize()
        box = s.call("sandbox_create", template="base").split()[1]
        tools = own.children()["tools"]
        assert own.stop() == 0
        own.start()
        assert box not in alive(own) and s.ask(message=PING)[0] == 404
        assert own.children()["tools"] != tools


def test_the_process_of_the_server_is_killed_and_comes_back(server):
    s = Session(server).initialize()
    os.kill(server.children()["tools"], signal.SIGKILL)

    def answers():
        return s.ask(message=PING)[0] == 404  # its sessions went with it
    wait_for(answers, 60, "a new process serves")
    Session(server).initialize().ask("DELETE")
