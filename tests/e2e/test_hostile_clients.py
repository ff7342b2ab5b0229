"""Clients that break off, hold on, lie and flood: the front's descriptors come back to their base line, and others are served meanwhile."""

import json
import os
import random
import socket
import struct
import threading

import pytest
from e2b import Sandbox

from server import wait_for


@pytest.fixture(scope="module")
def box(server):
    b = Sandbox.create("base", timeout=900)
    b.commands.run("head -c 20000000 /dev/zero > /tmp/big")
    yield b
    b.kill()


def head(box, port=49983):
    token = f"X-Access-Token: {box._envd_access_token}\r\n" if port == 49983 else ""
    return f"Host: {port}-{box.sandbox_id}.sbx.test\r\n{token}"


def descriptors(server):
    return len(os.listdir(f"/proc/{server.children()['front']}/fd"))


@pytest.fixture
def base_line(server):
    """The front keeps a few connections to sandboxes for the next request; everything else goes."""
    before = descriptors(server)
    yield
    wait_for(lambda: descriptors(server) <= before + 40, 60, "descriptors of the front")


def leave(s, hard):
    if hard:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def raw(server, data, seconds=60, half_close=False):
    """What the server says until it closes or is silent for so long (at most a mebibyte)."""
    with socket.create_connection(("127.0.0.1", server.port), seconds) as s:
        s.sendall(data if isinstance(data, bytes) else data.encode("latin1"))
        if half_close:
            s.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while len(out) < 1 << 20 and (chunk := s.recv(65536)):
                out += chunk
        except OSError:
            pass
        return out


def in_parallel(n, f, threads=20):
    left = list(range(n))
    def work():
        while left:
            try:
                f(left.pop())
            except (IndexError, OSError):
                pass
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()


def test_five_thousand_idle_connections_hinder_nobody(server, box, base_line):
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5000)]
    for i, s in enumerate(held):
        if i % 3 == 0:
            s.sendall(b"GET /health HT")
        elif i % 3 == 1:
            s.shutdown(socket.SHUT_WR)
    assert server.call("GET", "/health")[0] == 200
    assert box.commands.run("echo on").stdout == "on\n"
    for s in held:
        s.close()


def test_who_only_holds_connections_keeps_nobody_out(own_server):
    """As many as the front may have: the idle make room."""
    s = own_server(options={"pool.min": 1})
    limit = int(next(line for line in open(f"/proc/{s.children()['front']}/limits") if line.startswith("Max open files")).split()[3])
    if limit > 60000:
        pytest.skip("the front may have more connections here than one address has ports")
    held = []
    try:
        for _ in range(limit // 2 + 100):
            c = socket.socket()
            c.settimeout(60)
            c.connect(("127.0.0.1", s.port))
            held.append(c)
    except OSError:
        pass
    for _ in range(3):
        assert s.call("GET", "/health", timeout=60)[0] == 200
    with_box, box = s.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert with_box == 201
    for c in held:
        c.close()


def test_aborted_uploads(server, box, base_line):
    def one(i):
        s = socket.create_connection(("127.0.0.1", server.port), 60)
        s.sendall(f"POST /files?path=/tmp/up{i % 7} HTTP/1.1\r\n{head(box)}Content-Type: application/octet-stream\r\nContent-Length: 10000000\r\n\r\n".encode()
                  + b"x" * random.choice([0, 100, 70000, 500000]))
        leave(s, i % 2)
    in_parallel(500, one)
    assert box.files.write("/tmp/after", "whole").path == "/tmp/after"


def test_aborted_downloads(server, box, base_line):
    def one(i):
        s = socket.create_connection(("127.0.0.1", server.port), 60)
        s.sendall(f"GET /files?path=/tmp/big HTTP/1.1\r\n{head(box)}\r\n".encode())
        s.recv(random.choice([1, 1000, 200000]))
        leave(s, i % 2)
    in_parallel(500, one)
    assert len(box.files.read("/tmp/big", format="bytes")) == 20000000


def test_070_aborted_commands(server, box, base_line):
    start = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", "yes"]}, "stdin": False}).encode()
    start = struct.pack(">BI", 0, len(start)) + start
    def one(i):
        s = socket.create_connection(("127.0.0.1", server.port), 60)
        s.sendall(f"POST /process.Process/Start HTTP/1.1\r\n{head(box)}Content-Type: application/connect+json\r\nConnect-Timeout-Ms: 1500\r\n"
                  f"Content-Length: {len(start)}\r\n\r\n".encode() + start)
        if i % 3:
            s.recv(random.choice([1, 1000, 100000]))
        leave(s, i % 2)
    in_parallel(300, one, 10)
    wait_for(lambda: box.commands.list() == [], 60, "aborted commands to end at their deadline")


def test_aborted_api_calls(server, base_line):
    def one(i):
        s = socket.create_connection(("127.0.0.1", server.port), 60)
        body = f"Content-Length: 1000\r\n\r\n{{" if i % 2 else "\r\n"
        s.sendall(f"{'POST' if i % 2 else 'GET'} /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\n{body}".encode())
        leave(s, i % 4 < 2)
    in_parallel(1000, one)
    assert server.call("GET", "/v2/sandboxes")[0] == 200


def test_a_pipeline_of_api_and_sandbox_requests_keeps_its_order(server, box, base_line):
    kinds = {
        "api": f"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "envd": f"GET /health HTTP/1.1\r\n{head(box)}\r\n",
        "detail": f"GET /sandboxes/{box.sandbox_id} HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\n\r\n",
        "rpc": f"POST /process.Process/List HTTP/1.1\r\n{head(box)}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}",
        "file": f"GET /files?path=/etc/hostname HTTP/1.1\r\n{head(box)}\r\n",
    }
    marks = {"api": b'"status"', "envd": b"204 No Content", "detail": b'"startedAt"', "rpc": b'"processes"', "file": box.sandbox_id.encode() + b"\n"}
    order = [random.choice(list(kinds)) for _ in range(300)]
    out = raw(server, "".join(kinds[k] for k in order), 60, half_close=True)
    answers = out.split(b"HTTP/1.1 ")[1:]
    assert len(answers) == len(order)
    for kind, answer in zip(order, answers):
        assert marks[kind] in answer, (kind, answer)


BODIES = {
    "deep arrays": b"[" * 200000,
    "deep objects": b'{"a":' * 100000,
    "too long": b'{"templateID":"' + b"a" * (1048577 - 17) + b'"}',
    "a key twice": b'{"templateID":"base","templateID":"x"}',
    "NUL": b'{"templateID":"ba\0se"}',
    "escaped NUL": b'{"templateID":"ba\\u0000se"}',
    "no UTF-8": b'{"templateID":"ba\xff"}',
    "half a surrogate": b'{"templateID":"base","metadata":{"a":"\\ud800"}}',
    "a huge number": b'{"templateID":"base","timeout":99999999999999999999999}',
    "NaN": b'{"templateID":"base","timeout":NaN}',
    "more behind it": b'{"templateID":"base"} x',
    "an array": b"[]", "null": b"null", "a path": b'{"templateID":"../../etc/passwd"}',
    "NUL in a variable": b'{"templateID":"base","envVars":{"A":"x\\u0000y"}}',
    "= in a name": b'{"templateID":"base","envVars":{"A=B":"x"}}',
    "much metadata": json.dumps({"templateID": "base", "metadata": {"A": "x" * 200000}}).encode(),
    "much environment": json.dumps({"templateID": "base", "envVars": {f"A{i}": "x" for i in range(20000)}}).encode(),
    "many keys": json.dumps({f"k{i}": i for i in range(60000)}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_038_bad_bodies_are_400_json(server, name):
    body = BODIES[name]
    out = raw(server, f"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body, 60)
    top, _, text = out.partition(b"\r\n\r\n")
    status = int(top.split()[1])
    answer = json.loads(text)
    assert status == (413 if name == "too long" else 400) and answer["code"] == status and answer["message"]


@pytest.mark.parametrize("path,status", [
    ("/sandboxes/%", 400), ("/sandboxes/%zz", 400), ("/sandboxes/%00", 400), ("/sandboxes/%ff", 400), ("/sandboxes/..%2f..%2fetc", 400), ("/sandboxes/a_b", 400),
    ("/sandboxes/ABC", 400), ("/sandboxes/a%2Fb", 400), ("/sandboxes/" + "a" * 3000, 404), ("/sandboxes/", 404), ("//sandboxes", 404), ("/./sandboxes", 404),
    ("/templates/aliases/team%2Fbase", 404), ("/templates/aliases/a%2Fb%2Fc", 400), ("/v2/sandboxes?limit=1e1", 400), ("/v2/sandboxes?limit=", 400),
    ("/v2/sandboxes?nextToken=%00", 400), ("/v2/sandboxes?metadata=%25", 400), ("/v2/sandboxes?startedAfter=x", 400), ("/v2/sandboxes?template=base:v1", 400),
])
def test_odd_paths_and_queries(server, path, status):
    got, answer = server.call("GET", path)
    assert got == status and answer["code"] == status and isinstance(answer["message"], str)


@pytest.mark.parametrize("data,status", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400), (b"SSH-2.0-OpenSSH\r\n\r\n", 400), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET /health HTTP/1.1\nHost: x\n\n", 400), (b"GET /health HTTP/1.1\r\n\r\n", 400), (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 2000 + b"\r\n", 431), (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: u@x\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\nHost: 0-iabc.x\r\nConnection: close\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: 03000-iabc.x\r\nConnection: close\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\nHost: 65536-iabc.x\r\nConnection: close\r\n\r\n", 400),
    (b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nExpect: foo\r\nContent-Length: 2\r\n\r\n{}", 417), (b"GET /health HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nConnection: close\r\n\r\n", 404), (b"TRACE /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
])
def test_f12_refusals_below_the_api_are_json_too(server, data, status):
    out = raw(server, data, 20)
    top, _, text = out.partition(b"\r\n\r\n")
    assert int(top.split()[1]) == status and b"application/json" in top
    answer = json.loads(text)
    assert answer["message"] and answer.get("code", status) == status


def test_037_browsers_may_ask(server):
    status, _ = server.call("OPTIONS", "/v2/sandboxes", key=None, headers={"Origin": "https://x", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"})
    assert status == 204 and server.last_headers["Access-Control-Allow-Origin"] == "*"
    server.call("GET", "/v2/sandboxes", headers={"Origin": "https://x"})
    assert {"X-Next-Token", "X-Total-Running"} <= {h.strip() for h in server.last_headers["Access-Control-Expose-Headers"].split(",")}


def test_websocket_abuse(server, box, base_line):
    """Upgrades that are answered by endless bytes, half-closed, reset, or never read."""
    box.files.write("/tmp/flood.py", """
import socket, threading
def serve(c):
    try:
        if not c.recv(65536): return
        c.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
        while True: c.sendall(b"x" * 65536)
    except OSError: pass
    finally: c.close()
s = socket.socket(); s.bind(("127.0.0.1", 8017)); s.listen(200)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
""")
    flood = box.commands.run("python3 /tmp/flood.py", background=True, timeout=0)
    upgrade = f"GET / HTTP/1.1\r\n{head(box, 8017)}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
    wait_for(lambda: b" 101 " in raw(server, upgrade, 1)[:20], 60, "the flood to flow")
    held = []
    for i in range(120):
        s = socket.create_connection(("127.0.0.1", server.port), 60)
        s.sendall(upgrade)
        held.append(s)
    for i, s in enumerate(held):
        if i % 3 == 0:
            s.shutdown(socket.SHUT_WR)
        elif i % 3 == 1:
            leave(s, True)
    memory = int(next(line for line in open(f"/proc/{server.children()['front']}/status") if line.startswith("VmRSS")).split()[1])
    assert memory < 200 * 1024
    assert box.commands.run("echo on").stdout == "on\n"
    for s in held:
        s.close()
    flood.kill()


ANSWERS = {
    "two framings": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "NUL": b"HTTP/1.1 200 OK\r\nA: \0\r\nContent-Length: 5\r\n\r\nhello",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "CR in the reason": b"HTTP/1.1 200 OK\rSet-Cookie: y\r\nContent-Length: 5\r\n\r\nhello",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
    "a long header": b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200000 + b"\r\n\r\n",
    "endless interim answers": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 30 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "an upgrade nobody asked for": b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw",
    "status 999": b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"hello", "HTTP/2": b"HTTP/2 200\r\n\r\n", "nothing": b"",
}


def test_answers_that_are_none_are_502(server, box, base_line):
    box.files.write("/tmp/answers.py", """
import json, socket, sys
a = json.load(open("/tmp/answers.json"))
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 8018)); s.listen(50)
while True:
    c, _ = s.accept()
    r = c.recv(65536)
    try: c.sendall(a[int(r.split(b" ")[1][1:])].encode("latin1"))
    except OSError: pass
    except ValueError: c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhelloHTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nevil")
    c.close()
""")
    box.files.write("/tmp/answers.json", json.dumps([a.decode("latin1") for a in ANSWERS.values()]))
    service = box.commands.run("python3 /tmp/answers.py", background=True, timeout=0)
    get = lambda path: raw(server, f"GET {path} HTTP/1.1\r\n{head(box, 8018)}Connection: close\r\n\r\n", 60)
    wait_for(lambda: b" 200 " in get("/first")[:20], 60, "the service")
    for i, name in enumerate(ANSWERS):
        out = get(f"/{i}")
        status = out.split(b"\r\n\r\n")[-2].rsplit(b"HTTP/1.1 ", 1)[-1][:3]
        assert status == b"502" and json.loads(out.split(b"\r\n\r\n")[-1])["port"] == 8018, (name, out)
    # What comes behind an answer is no answer to the next request.
    for _ in range(10):
        assert b"evil" not in get("/more")
    service.kill()
