"""The loopback forward (agents.md §2): `cubicle forward` against plain and TLS ingress, with a service in the sandbox that streams, upgrades, redirects and cuts."""

import contextlib
import hashlib
import http.client
import http.server
import json
import pathlib
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest
from e2b import Sandbox

from conftest import serving
from server import CUBICLE, ROOT, clean_env, free_port, wait_for
from test_tls import cubicle

HERE = pathlib.Path(__file__).parent
PORT = 8000


class Recorder(http.server.BaseHTTPRequestHandler):
    """Where redirects lead: it must stay empty."""
    protocol_version = "HTTP/1.1"
    seen = []

    def answer(self):
        Recorder.seen.append((self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0)), str(self.headers)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def recorder():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{s.server_port}/elsewhere"
        s.shutdown()


@pytest.fixture(scope="module")
def server():
    tls_port = free_port()
    with serving(lambda s: cubicle(s, "cert", "make"), options={"domain": "sbx.test", "listen.tls": f"127.0.0.1:{tls_port}"}) as s:
        s.tls_port = tls_port
        yield s


@pytest.fixture(scope="module")
def box(server, recorder):
    box = Sandbox.create("base", timeout=3600, network={"allow_public_traffic": False})
    box.files.write("service.py", (HERE / "forward_service.py").read_text())
    box.commands.run(f"python3 service.py {PORT} {recorder}", background=True, timeout=0)
    box.commands.run(f"for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {PORT}))' 2>/dev/null && break; sleep 0.1; done")
    yield box
    box.kill()


@contextlib.contextmanager
def forward(server, box, *flags, env=None, port=PORT, code=0):
    """Runs it: (its URL, the process)."""
    where = {"CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": server.api_key}
    p = subprocess.Popen([CUBICLE, "forward", box.sandbox_id, str(port), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env({**where, **(env or {})}))
    try:
        assert select.select([p.stdout], [], [], 60)[0]
        url = p.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), url + p.stderr.read()
        yield url, p
        p.send_signal(signal.SIGTERM)
        assert p.wait(30) == code
        said = p.stderr.read()
        assert server.api_key not in said and str(server.port) not in said
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()


def tls_env(server):
    # The certificate is good for names under the domain; the address is reached by one that this machine resolves.
    return {"CUBICLE_API_URL": f"https://localhost:{server.tls_port}", "SSL_CERT_FILE": str(server.state / "tls/ca.pem")}


@pytest.fixture(params=["plain", "tls"])
def url(request, server, box):
    with forward(server, box, env=tls_env(server) if request.param == "tls" else None) as (u, _):
        yield u


def ask(url, path, method="GET", body=None, headers=None):
    u = urllib.parse.urlsplit(url)
    c = http.client.HTTPConnection(u.hostname, u.port, timeout=60)
    try:
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        return r.status, r.headers, r.read()
    finally:
        c.close()


def test_requests_reach_the_port_with_what_routes_them(url, server, box):
    status, _, body = ask(url, "/headers?a=b", headers={"X-Own": "1", "E2b-Sandbox-Id": "inobody", "E2b-Sandbox-Port": "1", "Connection": "close, X-Hop", "X-Hop": "1"})
    text = body.decode()
    assert status == 200 and "X-Own: 1" in text and "X-Hop" not in text
    # Nothing that routes or opens goes into the sandbox.
    assert "E2b-" not in text and "Access-Token" not in text and server.api_key not in text
    assert ask(url, "/nothing")[0] == 404
    assert ask(url, "/headers", "HEAD")[2] == b""


def test_bodies_stream_both_ways(url):
    data = bytes(range(256)) * (1 << 16)
    assert ask(url, "/hash", "POST", data)[2].decode() == hashlib.sha256(data).hexdigest()
    assert ask(url, "/hash", "PUT", iter([data[:1000], data[1000:]]))[2].decode() == hashlib.sha256(data).hexdigest()
    big = hashlib.sha256(b"".join(bytes([i]) * (1 << 20) for i in range(64))).hexdigest()
    assert hashlib.sha256(ask(url, "/big")[2]).hexdigest() == big
    # An upload is not collected first: each part is answered before the next one is sent.
    u = urllib.parse.urlsplit(url)
    with socket.create_connection((u.hostname, u.port), timeout=60) as s:
        s.sendall(b"POST /echo-as-it-comes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        seen = b""
        for i in range(3):
            s.sendall(b"5\r\npart%d\r\n" % i)
            while b"got part%d" % i not in seen:
                got = s.recv(65536)
                assert got, seen
                seen += got
        s.sendall(b"0\r\n\r\n")
        while not seen.endswith(b"0\r\n\r\n"):
            seen += s.recv(65536)


def test_events_come_when_they_are_sent_and_a_client_that_leaves_ends_them(url, box):
    u = urllib.parse.urlsplit(url)
    with socket.create_connection((u.hostname, u.port), timeout=60) as s:
        s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        seen = b""
        while b"data: 2" not in seen:
            seen += s.recv(65536)
        assert b"data: 5000" not in seen
    wait_for(lambda: box.files.exists("/tmp/events-ended"), 60, "the service sees that its client left")
    box.files.remove("/tmp/events-ended")


def test_a_cut_stays_a_cut(url):
    with pytest.raises(http.client.IncompleteRead) as e:
        ask(url, "/cut")
    assert e.value.partial == b"ten bytes."


def test_websockets_pass_whole(url, recorder):
    Recorder.seen.clear()
    ws = url.replace("http", "ws", 1)
    r = subprocess.run([ROOT / "build/bin/node", "sockets.mjs", ws + "/ws", ws + "/redirect"], cwd=HERE / "clients/npm-mcp", capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    seen = json.loads(r.stdout)
    assert seen == {"text": ["häl\0lo", "false"], "binary": [True, True], "fragments": "fragmented", "pong": "are you there", "ours": [4321, "enough"], "theirs": [4007, "your turn"],
                    "cut": 1006, "redirected": "Unexpected server response: 502"}
    assert not Recorder.seen


def test_a_redirect_elsewhere_is_a_502_and_nothing_goes_there(url, server, box, recorder):
    Recorder.seen.clear()
    status, headers, body = ask(url, "/elsewhere", "POST", b"the body is a secret")
    assert status == 502 and "Location" not in headers and recorder.encode() not in body and b"127.0.0.1" not in body
    # urllib follows what it is told to.
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url + "/elsewhere")
    assert not Recorder.seen
    status, headers, _ = ask(url, "/here")
    assert status == 302 and headers["Location"] == "/headers?x=1"
    # The control: who follows the service's own redirect arrives there.
    assert box.commands.run(f"curl -s -o /dev/null -w '%{{redirect_url}}' http://127.0.0.1:{PORT}/elsewhere").stdout == recorder
    urllib.request.urlopen(recorder).read()
    assert len(Recorder.seen) == 1


def test_of_two_places_none_may_be_elsewhere(url):
    assert ask(url, "/two-places")[0] == 502


def test_a_client_that_closes_its_half_gets_its_answer(url):
    u = urllib.parse.urlsplit(url)
    with socket.create_connection((u.hostname, u.port), timeout=60) as s:
        s.sendall(b"GET /headers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        s.shutdown(socket.SHUT_WR)
        seen = b""
        while got := s.recv(65536):
            seen += got
    assert seen.startswith(b"HTTP/1.1 200 ") and b"X-Forwarded-Proto" in seen and b"X-Cubicle-Team" not in seen


def test_who_may_not_listen_or_go_in_the_clear_is_refused(server, box):
    def refused(*flags, env=None):
        r = subprocess.run([CUBICLE, "forward", box.sandbox_id, str(PORT), *flags], env=clean_env({"CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": server.api_key, **(env or {})}),
                           capture_output=True, text=True, timeout=60)
        assert r.returncode and r.stdout == ""
        return r.stderr
    assert "is no loopback address" in refused("--listen=0.0.0.0:0")
    assert "is no port" in subprocess.run([CUBICLE, "forward", box.sandbox_id, "70000"], env=clean_env(), capture_output=True, text=True).stderr
    # The API is asked as ever; the way of the data is judged, and nothing is sent (192.0.2.0/24 is nobody's: RFC 5737).
    elsewhere = {"E2B_API_URL": server.url, "E2B_API_KEY": server.api_key, "E2B_SANDBOX_URL": f"http://192.0.2.1:{server.port}", "CUBICLE_API_URL": ""}
    assert "--allow-insecure" in refused("--state.dir=/nonexistent", env=elsewhere)


def test_it_stops_at_once_with_requests_in_flight(server, box):
    with forward(server, box) as (url, p):
        u = urllib.parse.urlsplit(url)
        held = [socket.create_connection((u.hostname, u.port), timeout=60) for _ in range(10)]
        for s in held[:5]:
            s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(10)
        for s in held[5:]:
            s.sendall(b"POST /hash HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nsome")
        began = time.monotonic()
        p.send_signal(signal.SIGINT)
        assert p.wait(30) == 0 and time.monotonic() - began < 25
        for s in held:
            with contextlib.suppress(OSError):
                while s.recv(65536):
                    pass
            s.close()


def test_twenty_starts_and_stops_leave_nothing(server, box):
    for i in range(20):
        with forward(server, box) as (url, p):
            u = urllib.parse.urlsplit(url)
            with socket.create_connection((u.hostname, u.port), timeout=60) as s:
                s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
                assert s.recv(10)
                tasks = list(pathlib.Path(f"/proc/{p.pid}/task").iterdir())
                assert len(tasks) < 10
        assert not pathlib.Path(f"/proc/{p.pid}").exists() or p.poll() is not None


def test_a_server_that_goes_away_is_told_without_its_address(box, server):
    with serving() as own:
        other = Sandbox.create("base", api_key=own.api_key, timeout=600)
        with forward(own, other) as (url, _):
            own.call("DELETE", f"/sandboxes/{other.sandbox_id}")
            status, _, body = ask(url, "/x")
            assert status == 502 and str(own.port).encode() not in body
            own.stop()
            status, _, body = ask(url, "/x")
            assert status == 502 and b"127.0.0.1" not in body and str(own.port).encode() not in body
            own.start()
