"""A piece of internet of the test's own: a network namespace behind a link of this machine, with addresses that stand for hosts outside.

    addresses, path    an HTTP server on port 80: "/" answers with the address that was asked, "/stream" never ends
    dns                answers every name with the first address
"""

import contextlib
import os
import random
import subprocess
import sys
import time

SERVICE = r"""
import http.server, socket, socketserver, struct, sys, threading, time
sys.stdin.readline()
first = sys.argv[1]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path != "/stream":
            self.wfile.write(self.request.getsockname()[0].encode())
            return
        try:
            while True:
                self.wfile.write(bytes(4096))
                time.sleep(0.02)
        except OSError:
            pass
    def log_message(self, *_):
        pass

def answer(q):
    end = 12
    while q[end]:
        end += q[end] + 1
    question = q[12:end + 5]
    is_a = question[-4:-2] == b"\0\1"
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(first) if is_a else b""
    return q[:2] + struct.pack("!HHHHH", 0x8180, 1, int(is_a), 0, 0) + question + record

def names():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", 53))
    while True:
        q, peer = s.recvfrom(4096)
        s.sendto(answer(q), peer)

class Names(socketserver.StreamRequestHandler):
    def handle(self):
        while head := self.rfile.read(2):
            a = answer(self.rfile.read(*struct.unpack("!H", head)))
            self.wfile.write(struct.pack("!H", len(a)) + a)

threading.Thread(target=names, daemon=True).start()
threading.Thread(target=socketserver.ThreadingTCPServer(("0.0.0.0", 53), Names).serve_forever, daemon=True).start()
print("ready", flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", 80), Handler).serve_forever()
"""


class Internet:
    def __init__(self, hosts, lan):
        self.hosts, self.lan = hosts, lan

    @property
    def dns(self):
        return self.hosts[0]


def _ip(*words, pid=None):
    enter = ["nsenter", "-t", str(pid), "-n"] if pid else []
    subprocess.run([*enter, "ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def internet():
    """Three hosts outside and one of a private network (`lan`). Several tests may have one at once: each takes its own addresses."""
    tag = f"{os.getpid() % 0x10000:04x}"
    link = f"inet{tag}"
    a, b = random.randrange(1, 60) * 4, random.randrange(256)
    near, gate = f"198.51.100.{a + 1}", f"198.51.100.{a + 2}"
    hosts = [gate, f"203.0.113.{a + 1}", f"203.0.113.{a + 2}"]
    lan = f"10.{200 + a % 50}.{b}.9"
    service = subprocess.Popen(["unshare", "-n", sys.executable, "-c", SERVICE, hosts[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        ours = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{service.pid}/ns/net") == ours:
            assert service.poll() is None
            time.sleep(0.01)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(service.pid))
        _ip("addr", "add", f"{near}/30", "dev", link)
        _ip("link", "set", link, "up")
        _ip("link", "set", "lo", "up", pid=service.pid)
        _ip("addr", "add", f"{gate}/30", "dev", "eth0", pid=service.pid)
        for address in [*hosts[1:], lan]:
            _ip("addr", "add", f"{address}/32", "dev", "lo", pid=service.pid)
        _ip("link", "set", "eth0", "up", pid=service.pid)
        _ip("route", "add", "default", "via", near, pid=service.pid)
        for address in [*hosts[1:], lan]:
            _ip("route", "add", f"{address}/32", "via", gate)
        service.stdin.write("\n")
        service.stdin.flush()
        assert service.stdout.readline() == "ready\n"
        yield Internet(hosts, lan)
    finally:
        service.kill()
        service.wait()
        subprocess.run(["ip", "link", "del", link], capture_output=True)
