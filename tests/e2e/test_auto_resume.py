"""Traffic to paused sandboxes (e2b.md A.8; cases.md 71, 146, 157, 163, 170)."""

import base64
import concurrent.futures
import datetime
import hashlib
import http.client
import json
import random
import socket
import threading
import time

import pytest
from e2b import PtySize, Sandbox

from server import PROCESSES, wait_for

AUTO = {"on_timeout": "pause", "auto_resume": True}

# Tells of each request how often it was seen, what its body was and on which connection it came.
SERVICE = r'''
import asyncio, hashlib, json

seen, connections = {}, 0

async def body_of(reader, head):
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        data = b""
        while n := int((await reader.readline()).split(b";")[0], 16):
            data += await reader.readexactly(n)
            await reader.readline()
        await reader.readline()
        return data
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return await reader.readexactly(int(line.split(b":")[1]))
    return b""

async def serve(reader, writer):
    global connections
    connections += 1
    mine = connections
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            data = await body_of(reader, head)
            if path == "/stream":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n")
                await writer.drain()
                await asyncio.Event().wait()
            if path != "/seen":
                seen[path] = seen.get(path, 0) + 1
            told = json.dumps(seen if path == "/seen" else {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "connection": mine}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told) + told)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()

async def main():
    await asyncio.start_server(serve, "127.0.0.1", 3001, backlog=2048)
    await asyncio.Event().wait()

asyncio.run(main())
'''


def ask(server, box, method="GET", path="/", body=None, headers=None, port=3001, connection=None, **more):
    """(status, body) of one request, routed by Host."""
    c = connection or http.client.HTTPConnection("127.0.0.1", server.port, timeout=90)
    try:
        c.request(method, path, body, {"Host": f"{port}-{box.sandbox_id}.sbx.test", **(headers or {})}, **more)
        r = c.getresponse()
        return r.status, r.read()
    finally:
        if not connection:
            c.close()


def state_of(server, box):
    status, told = server.call("GET", "/sandboxes/" + box.sandbox_id)
    return told["state"] if status == 200 else status


def serve_inside(server, box):
    box.files.write("/home/user/service.py", SERVICE)
    box.commands.run("python3 /home/user/service.py", background=True, timeout=0)
    wait_for(lambda: ask(server, box, path="/seen")[0] == 200, 60, "the service")


@pytest.fixture(scope="module")
def box(server):
    box = Sandbox.create("base", timeout=600, lifecycle=AUTO)
    serve_inside(server, box)
    yield box
    box.kill()


def test_163_a_hundred_requests_to_a_paused_sandbox(server, box):
    """One herd: each is answered, no body is lost or doubled."""
    box.pause()
    assert state_of(server, box) == "paused"
    gate = threading.Barrier(100)

    def one(i):
        data = random.Random(i).randbytes(i * 2500) if i % 2 else None
        body = data if i % 4 != 3 else (data[at:at + 10000] for at in range(0, len(data), 10000))
        gate.wait()
        status, told = ask(server, box, "POST" if data else "GET", f"/herd/{i}", body, encode_chunked=i % 4 == 3,
            headers={"Transfer-Encoding": "chunked"} if i % 4 == 3 else None)
        return i, status, told, hashlib.sha256(data or b"").hexdigest()

    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        for i, status, told, wanted in pool.map(one, range(100)):
            assert status == 200, (i, status, told)
            told = json.loads(told)
            assert (told["path"], told["sha256"]) == (f"/herd/{i}", wanted)
    seen = {path: n for path, n in json.loads(ask(server, box, path="/seen")[1]).items() if path.startswith("/herd/")}
    assert seen == {f"/herd/{i}": 1 for i in range(100)}
    assert state_of(server, box) == "running"


def test_170_157_connections_of_an_earlier_life_are_not_used(server, box):
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=90)
    connections = []
    for i in range(15):
        for _ in range(2):
            status, told = ask(server, box, path=f"/pool/{i}", connection=kept)
            assert status == 200
        connections.append(json.loads(told)["connection"])
        box.pause()
        if i % 2:
            box.connect(timeout=600)
    kept.close()
    assert len(set(connections)) == 15
    seen = json.loads(ask(server, box, path="/seen")[1])
    assert [seen[f"/pool/{i}"] for i in range(15)] == [2] * 15


def test_071_listeners_at_the_moment_of_the_pause(server):
    """Files are served, listeners begin, a terminal and its programs live on; the agent answers after each resume."""
    box = Sandbox.create("base", timeout=600, lifecycle=AUTO)
    box.commands.run("cd /etc && python3 -m http.server 8000", background=True, timeout=0)
    wait_for(lambda: ask(server, box, port=8000, path="/hostname")[0] == 200, 60, "http.server")
    pty = box.pty.create(PtySize(80, 24), timeout=0)
    box.pty.send_stdin(pty.pid, b"kept=$((6*7))\n")
    sleeper = box.commands.run("sleep 1000", background=True, timeout=0).pid
    for i in range(20):
        box.commands.run(f"exec python3 -m http.server {8100 + i}", background=True, timeout=0)
        box.pause()
        assert ask(server, box, port=8000, path="/hostname")[0] == 200
        assert box.commands.run(f"echo {i}").stdout == f"{i}\n"
        wait_for(lambda: ask(server, box, port=8100 + i, path="/")[0] == 200, 60, "the new listener")
    pids = [p.pid for p in box.commands.list()]
    assert sleeper in pids and pty.pid in pids
    again = box.pty.connect(pty.pid)
    box.pty.send_stdin(pty.pid, b"echo it-is-$kept\n")
    seen = b""
    for _, _, out in again:
        seen += out or b""
        if b"it-is-42" in seen:
            break
    again.disconnect()
    box.kill()


def test_what_was_under_way_ends_with_an_error(server, box):
    """Streams of envd and of services are cut by a pause: their end must not look like success."""
    ask(server, box)
    command = box.commands.run("echo begun; sleep 1000", background=True, timeout=0)
    first = next(iter(command))
    assert first[0] == "begun\n"
    exits = []
    watch = box.files.watch_dir("/home/user")
    stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=90)
    stream.request("GET", "/stream", headers={"Host": f"3001-{box.sandbox_id}.sbx.test"})
    answer = stream.getresponse()
    assert answer.read(5) == b"begin"
    waiting = threading.Thread(target=lambda: exits.append(end_of(command)))
    waiting.start()
    box.pause()
    waiting.join(60)
    assert len(exits) == 1 and isinstance(exits[0], Exception), exits
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    stream.close()
    # What is asked for by itself, and not by a stream, goes on behind the pause.
    box.files.write("/home/user/watched", b"x")
    assert any(e.name == "watched" for e in watch.get_new_events())
    watch.stop()
    assert command.pid in [p.pid for p in box.commands.list()]


def end_of(command):
    try:
        return command.wait()
    except Exception as e:
        return e


def handshake(server, box):
    """The first bytes behind the head of the answer to a WebSocket's handshake."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=90) as s:
        s.sendall(f"GET / HTTP/1.1\r\nHost: 3001-{box.sandbox_id}.sbx.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode())
        data = b""
        while more := s.recv(65536):
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), rest


def test_146_without_auto_resume_nothing_wakes_it(server):
    box = Sandbox.create("base", timeout=600)
    serve_inside(server, box)
    box.pause()
    for port, path in ((49983, "/health"), (3001, "/"), (1, "/")):
        status, told = ask(server, box, port=port, path=path)
        assert (status, json.loads(told)) == (502, {"sandboxId": box.sandbox_id, "message": "The sandbox was not found", "code": 502})
    status, frame = handshake(server, box)
    assert status == 101 and frame[0] == 0x88 and int.from_bytes(frame[2:4], "big") == 4004
    assert box.is_running() is False
    assert state_of(server, box) == "paused"
    box.connect(timeout=600)
    assert ask(server, box)[0] == 200
    box.kill()
    assert ask(server, box)[0] == 502


def test_who_may_not_enter_wakes_nothing(server):
    box = Sandbox.create("base", timeout=600, lifecycle=AUTO, network={"allow_public_traffic": False})
    token = {"e2b-traffic-access-token": box.traffic_access_token}
    box.files.write("/home/user/service.py", SERVICE)
    box.commands.run("python3 /home/user/service.py", background=True, timeout=0)
    wait_for(lambda: ask(server, box, headers=token)[0] == 200, 60, "the service")
    signed = box.download_url("/home/user/service.py").split("/files", 1)[1]
    box.pause()
    for port, path, headers in ((3001, "/", {}), (3001, "/", {"e2b-traffic-access-token": "wrong"}), (49983, "/health", {}), (49983, "/health", token),
            (49983, "/envs", {"X-Access-Token": "wrong"}), (49983, "/files" + signed.replace("v1_", "v1_0"), {})):
        status, told = ask(server, box, port=port, path=path, headers=headers)
        assert status == 403 and sorted(json.loads(told)) == ["code", "message"], (port, path, told)
    assert ask(server, box, "POST", port=49983, path="/init")[0] == 404
    assert state_of(server, box) == "paused"
    assert ask(server, box, port=49983, path="/files" + signed) == (200, SERVICE.encode())
    box.pause()
    assert ask(server, box, headers=token)[0] == 200
    box.pause()
    assert box.is_running()  # the client sends its token, and any request wakes
    box.kill()


def test_the_deadline_pauses_and_traffic_resumes(server):
    box = Sandbox.create("base", timeout=2, lifecycle=AUTO)
    wait_for(lambda: state_of(server, box) == "paused", 60, "the deadline")
    assert box.commands.run("echo woken").stdout == "woken\n"
    status, told = server.call("GET", "/sandboxes/" + box.sandbox_id)
    left = datetime.datetime.fromisoformat(told["endAt"]) - datetime.datetime.now(datetime.timezone.utc)
    assert told["state"] == "running" and 200 < left.total_seconds() < 301
    box.kill()


def test_a_request_while_it_is_being_paused(server, box):
    """Waits for the pause and resumes then; a client that leaves changes nothing."""
    for i in range(10):
        ask(server, box)
        pausing = threading.Thread(target=lambda: server.call("POST", f"/sandboxes/{box.sandbox_id}/pause", {"memory": i % 3 > 0}))
        pausing.start()
        time.sleep(random.random() / 20)
        if i % 2:
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall(f"GET /left HTTP/1.1\r\nHost: 49983-{box.sandbox_id}.sbx.test\r\n\r\n".encode())
        try:
            assert box.commands.run("echo there").stdout == "there\n"
        except Exception:  # it was under way when the pause began: the next one is not
            pausing.join()
            assert box.commands.run("echo there").stdout == "there\n"
        pausing.join()
        assert box.commands.run("echo there").stdout == "there\n"
        if i % 3 == 0:
            serve_inside(server, box)


def test_restarts_and_quotas(own_server):
    s = own_server(options={"quota.sandboxes": 1})
    opts = {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}
    box = Sandbox.create("base", timeout=600, lifecycle=AUTO, **opts)
    serve_inside(s, box)
    box.pause()
    for victims in (["front"], ["node"], ["front", "node"]):
        for victim in victims:
            s.kill_process(victim)
        wait_for(lambda: ask(s, box)[0] == 200, 60, "the sandbox to be resumed, with the service in its memory")
        wait_for(lambda: set(s.children()) == PROCESSES, 60, "the processes")
        wait_for(lambda: paused(s, box), 60, "another pause")
    other = Sandbox.create("base", timeout=600, **opts)
    status, told = ask(s, box)
    assert status == 429 and "sandboxes" in json.loads(told)["message"]
    assert state_of(s, box) == "paused"
    other.kill()
    assert ask(s, box)[0] == 200
    box.kill()


def paused(s, box):
    return s.call("POST", f"/sandboxes/{box.sandbox_id}/pause", {})[0] in (204, 409)
