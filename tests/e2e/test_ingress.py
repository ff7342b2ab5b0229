"""Reaching services inside a sandbox (e2b.md A.8, F 78-80, 97-103; cases.md "Ingress")."""

import concurrent.futures
import hashlib
import http.client
import json
import socket
import time

import pytest
from e2b import Sandbox

from server import wait_for

# A service that answers by path and tells what it was sent. Raw asyncio, so that nothing between hides what arrives.
SERVICE = r'''
import asyncio, hashlib, json, sys

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

async def answer(reader, writer, head):
    path = head.split(b" ")[1]
    if path == b"/upgrade":
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\nhello")
        data = await reader.read(-1)
        writer.write(b"got " + hashlib.sha256(data).hexdigest().encode())
        return False
    if path == b"/expect":
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        return False
    if path == b"/cut":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n")
        await writer.drain()
        return False
    if path == b"/events":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(4):
            writer.write(b"8\r\ndata: %d\n\r\n" % i)
            await writer.drain()
            if i == 0:
                await go_on.wait()
        writer.write(b"0\r\n\r\n")
        return True
    if path == b"/go-on":
        go_on.set()
    if path == b"/redirect":
        writer.write(b"HTTP/1.1 307 Away\r\nLocation: http://localhost:1/x?y\r\nContent-Length: 0\r\n\r\n")
        return True
    if path == b"/big":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")
        for i in range(64):
            writer.write(bytes([i]) * 1048576)
            await writer.drain()
        return True
    data = await body_of(reader, head)
    told = json.dumps({"head": head.decode("latin-1"), "sha256": hashlib.sha256(data).hexdigest()}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Service: 1\r\n\r\n" % len(told))
    if not head.startswith(b"HEAD "):
        writer.write(told)
    return True

async def serve(reader, writer):
    try:
        while await answer(reader, writer, await reader.readuntil(b"\r\n\r\n")):
            await writer.drain()
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()

async def main():
    global go_on
    go_on = asyncio.Event()
    for address, port in (("127.0.0.1", 3001), ("0.0.0.0", 3002), ("::1", 3003)):
        await asyncio.start_server(serve, address, port, backlog=2048)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
'''


@pytest.fixture(scope="module")
def box(server):
    box = Sandbox.create("base", timeout=600)
    box.files.write("/home/user/service.py", SERVICE)
    box.commands.run("python3 /home/user/service.py", background=True, timeout=0)
    wait_for(lambda: ask(server, box, "GET", "/")[0] == 200, 60, "the service")
    yield box
    box.kill()


def ask(server, box, method, path, body=None, headers=None, port=3001, host=None, chunked=False):
    """(status, headers, body) of one request, routed by Host."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        c.request(method, path, body, {"Host": host or f"{port}-{box.sandbox_id}.sbx.test", **(headers or {})}, encode_chunked=chunked)
        r = c.getresponse()
        return r.status, r.headers, r.read()
    finally:
        c.close()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def read_until(s, end):
    data = b""
    while end not in data:
        more = s.recv(65536)
        assert more, f"ended after {data!r}"
        data += more
    return data


@pytest.mark.parametrize("port", [3001, 3002, 3003])
def test_f78_any_bind_address_is_reached(server, box, port):
    assert ask(server, box, "GET", "/", port=port)[0] == 200


def test_151_host_and_header_routing(server, box):
    both = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "3001"}
    i = box.sandbox_id
    for host, headers, status in (
            (f"3001-{i.upper()}.SBX.TEST.:443", {}, 200), (f"3001-{i}-6532622b.sbx.test", {}, 200), (f"3001-{i}.sbx.test", both, 200),
            ("192.168.1.5:3002", both, 200), ("localhost", both, 200), ("any.host", both, 200), (f"3002-{i}.sbx.test", both, 400),
            ("localhost", {"E2b-Sandbox-Id": i}, 400), ("localhost", {**both, "E2b-Sandbox-Port": "03001"}, 400), (f"0-{i}.sbx.test", {}, 400),
            (f"65536-{i}.sbx.test", {}, 400), (f"+1-{i}.sbx.test", {}, 400)):
        assert ask(server, box, "GET", "/", host=host, headers=headers)[0] == status, (host, headers)


def test_what_a_service_sees(server, box):
    status, _, body = ask(server, box, "GET", "/a%2Fb?c=d", headers={
        "X-API-Key": server.api_key, "Authorization": "Bearer " + server.api_key, "X-Forwarded-For": "6.6.6.6", "X-Access-Token": "passes",
        "E2b-Sandbox-Id": box.sandbox_id, "lang_version": "1"})
    head = json.loads(body)["head"]
    lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    assert head.startswith("GET /a%2Fb?c=d HTTP/1.1\r\n")
    assert server.api_key not in head and "6.6.6.6" not in head and "e2b-sandbox" not in head.lower()
    assert lines["X-Access-Token"] == "passes" and lines["lang_version"] == "1"
    assert lines["Host"] == lines["X-Forwarded-Host"] == f"3001-{box.sandbox_id}.sbx.test"
    assert lines["X-Forwarded-For"] == "127.0.0.1" and lines["X-Forwarded-Proto"] == "http"
    # a key that is not ours belongs to the application
    head = json.loads(ask(server, box, "GET", "/", headers={"X-API-Key": "theirs", "Authorization": "Basic dTo="})[2])["head"]
    assert "X-API-Key: theirs" in head and "Authorization: Basic dTo=" in head


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "PATCH", "DELETE", "PROPFIND", "QUERY", "TRACE"])
def test_158_every_method_passes(server, box, method):
    status, _, body = ask(server, box, method, "/")
    assert status == 200 and json.loads(body)["head"].startswith(method + " / ")


def test_158_head_keeps_its_length(server, box):
    status, headers, body = ask(server, box, "HEAD", "/")
    assert status == 200 and int(headers["Content-Length"]) > 10 and body == b""


def test_154_redirects_pass(server, box):
    status, headers, _ = ask(server, box, "GET", "/redirect")
    assert status == 307 and headers["Location"] == "http://localhost:1/x?y"


def test_bodies_arrive_whole(server, box):
    data = bytes(range(256)) * 40000
    digest = hashlib.sha256(data).hexdigest()
    assert json.loads(ask(server, box, "POST", "/", data)[2])["sha256"] == digest
    pieces = (data[i:i + 99999] for i in range(0, len(data), 99999))
    assert json.loads(ask(server, box, "POST", "/", pieces, chunked=True, headers={"Transfer-Encoding": "chunked"})[2])["sha256"] == digest


def test_160_a_slow_reader_loses_nothing(server, box):
    s = connect(server)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.sendall(f"GET /big HTTP/1.1\r\nHost: 3001-{box.sandbox_id}.x\r\n\r\n".encode())
    data = read_until(s, b"\r\n\r\n").split(b"\r\n\r\n", 1)[1]
    time.sleep(1)
    digest, n = hashlib.sha256(data), len(data)
    while n < 64 << 20:
        more = s.recv(1 << 20)
        assert more
        digest.update(more)
        n += len(more)
    want = hashlib.sha256()
    for i in range(64):
        want.update(bytes([i]) * (1 << 20))
    assert digest.hexdigest() == want.hexdigest()


def test_160_a_thousand_at_once(server, box):
    def one(i):
        return ask(server, box, "GET", f"/{i}")[0]
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        assert set(pool.map(one, range(1000))) == {200}


def test_143_events_are_not_held_back(server, box):
    s = connect(server)
    s.sendall(f"GET /events HTTP/1.1\r\nHost: 3001-{box.sandbox_id}.x\r\nAccept-Encoding: gzip\r\n\r\n".encode())
    # the first comes before the service has made the others: it is not kept until the end
    data = read_until(s, b"data: 0\n")
    assert b"data: 1" not in data and b"gzip" not in data.lower()
    assert ask(server, box, "GET", "/go-on")[0] == 200
    data += read_until(s, b"0\r\n\r\n")
    assert b"data: 3\n" in data


def test_upgrades_are_tunnels_with_half_close(server, box):
    s = connect(server)
    s.sendall(f"GET /upgrade HTTP/1.1\r\nHost: 3001-{box.sandbox_id}.x\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n".encode())
    head = read_until(s, b"hello")
    assert head.startswith(b"HTTP/1.1 101 ") and b"\r\nUpgrade: raw\r\n" in head
    data = bytes(range(256)) * 40000
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    tail = b""
    while more := s.recv(65536):
        tail += more
    assert tail == b"got " + hashlib.sha256(data).hexdigest().encode()


def test_148_smuggling_is_refused(server, box):
    for lines in ("Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked,", "Transfer-Encoding:\tchunked",
                  "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: xchunked", "Content-Length: 5\r\nContent-Length: 5", "Content-Length: +5",
                  "Content-Length: 5,5", "Content-Length: -1", "X: a\r\n b", "X : a", "X: a\0b", "X: a\nY: b"):
        s = connect(server)
        s.sendall(f"POST / HTTP/1.1\r\nHost: 3001-{box.sandbox_id}.x\r\n{lines}\r\n\r\n".encode() + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        while more := s.recv(65536):
            data += more
        assert data.startswith(b"HTTP/1.1 400 ") and data.count(b"HTTP/1.1 ") == 1, lines


def test_149_expectations(server, box):
    host = f"Host: 3001-{box.sandbox_id}.x\r\n"
    s = connect(server)
    s.sendall(f"PUT /expect HTTP/1.1\r\n{host}Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n".encode())
    assert read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    s = connect(server)
    s.sendall(f"PUT / HTTP/1.1\r\n{host}Expect: foo\r\nContent-Length: 1\r\n\r\n".encode())
    assert read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 417 ")
    # this service never says 100: we do, and the body follows
    s = connect(server)
    s.sendall(f"PUT / HTTP/1.1\r\n{host}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode())
    assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    s.sendall(b"ok")
    assert hashlib.sha256(b"ok").hexdigest().encode() in read_until(s, b"}")


def test_f101_a_cut_stream_stays_cut(server, box):
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(server, box, "GET", "/cut")
    assert cut.value.partial == b"begin"


def test_closed_ports_and_unknown_sandboxes(server, box):
    status, headers, body = ask(server, box, "GET", "/", port=3999)
    assert status == 502 and headers["Content-Type"] == "application/json; charset=utf-8"
    assert json.loads(body) == {"sandboxId": box.sandbox_id, "message": "The sandbox is running but port is not open", "port": 3999, "code": 502}
    status, _, body = ask(server, box, "GET", "/", host="3001-inosuchsandbox.sbx.test")
    assert status == 502 and json.loads(body) == {"sandboxId": "inosuchsandbox", "message": "The sandbox was not found", "code": 502}
    status, headers, body = ask(server, box, "GET", "/", port=3999, headers={"User-Agent": "Mozilla/5.0", "Accept": "text/html"})
    assert status == 502 and headers["Content-Type"].startswith("text/html") and b"port is not open" in body


@pytest.mark.parametrize("path", ["/init", "/freeze", "//init", "/%69nit", "/x/../init", "/init/"])
def test_155_internal_calls_are_not_reachable(server, box, path):
    status, _, body = ask(server, box, "POST", path, b"{}", port=49983)
    assert status == 404 and json.loads(body)["code"] == 404 and json.loads(body)["path"] in ("/init", "/freeze")


def test_traffic_tokens(server):
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base", "network": {"allowPublicTraffic": False}})
    if status == 400:
        pytest.skip(f"private traffic is not served: {made['message']}")
    assert status == 201

    class box:
        sandbox_id = made["sandboxID"]

    try:
        assert ask(server, box, "GET", "/")[0] == 403
        assert ask(server, box, "GET", "/", headers={"E2b-Traffic-Access-Token": "0" * 64})[0] == 403
        assert ask(server, box, "GET", "/", headers={"e2b-traffic-access-token": made["trafficAccessToken"]})[0] == 502
        assert ask(server, box, "GET", "/health", port=49983)[0] == 204
    finally:
        server.call("DELETE", "/sandboxes/" + box.sandbox_id)


def test_f101_a_kill_cuts_streams_and_502_follows(server):
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base", "secure": True})
    assert status == 201

    class victim:
        sandbox_id = made["sandboxID"]

    message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", "while :; do echo x; sleep 0.1; done"]}, "stdin": False}).encode()
    envelope = b"\0" + len(message).to_bytes(4, "big") + message
    s = connect(server)
    s.sendall(f"POST /process.Process/Start HTTP/1.1\r\nHost: 49983-{victim.sandbox_id}.x\r\nX-Access-Token: {made['envdAccessToken']}\r\n"
              f"Content-Type: application/connect+json\r\nContent-Length: {len(envelope)}\r\n\r\n".encode() + envelope)
    data = read_until(s, b'"stdout"')
    assert server.call("DELETE", "/sandboxes/" + victim.sandbox_id)[0] == 204
    assert ask(server, victim, "GET", "/health", port=49983)[0] == 502
    try:
        while more := s.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    # neither the last chunk nor the end of the stream
    assert data.startswith(b"HTTP/1.1 200 ") and b"\r\n0\r\n\r\n" not in data and b"\x02\0\0\0" not in data


def test_a_restarted_front_is_a_pause_only(own_server):
    server = own_server()
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base"})

    class box:
        sandbox_id = made["sandboxID"]

    for _ in range(2):
        server.kill_process("front")
        assert ask(server, box, "GET", "/health", port=49983)[0] == 204
