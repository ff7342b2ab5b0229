"""envd in a process of its own, and clients that see every byte."""
import base64
import json
import os
import random
import socket
import struct
import subprocess
import time


def free_port():
    """One that no client's connection takes before it is listened on: below the range that the kernel gives out."""
    while True:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", random.randrange(10240, 32000)))
                return s.getsockname()[1]
            except OSError:
                pass


class Envd:
    """Runs envd_host on a free port."""

    def __init__(self, *args):
        self.clients = []
        self.port = free_port()
        self.process = subprocess.Popen(
            [os.environ["ENVD_HOST"], str(self.port), *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.process.stdout.readline()
        if line != b"ready\n":
            raise RuntimeError("envd_host did not start: %r %r" % (line, self.process.stderr.read()))
        self.spawner = int(self.process.stderr.readline().split()[1])

    def stop(self):
        for client in self.clients:
            client.close()
        self.process.stdin.close()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        if code != 0:
            raise RuntimeError("envd_host ended with %d: %s" % (code, errors.decode(errors="replace")))

    def rss_kib(self):
        with open("/proc/%d/status" % self.process.pid) as f:
            for line in f:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])

    def fds(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def children(self):
        """State letters of the children by pid."""
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open("/proc/%s/stat" % name) as f:
                    rest = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(rest[1]) == self.process.pid:
                found[int(name)] = rest[0]
        return found

    def connect(self):
        client = Client(self.port)
        self.clients.append(client)
        return client

    def unary(self, method, message, **headers):
        c = self.connect()
        try:
            return c.unary(method, message, **headers)
        finally:
            c.close()

    def run(self, command, stdin=False, **more):
        """A shell command to its end: (stdout, stderr, end event)."""
        return self.run_argv(["/bin/sh", "-c", command], stdin=stdin, **more)

    def run_argv(self, argv, stdin=False, headers=None, pty=None, tag=None, **config):
        s = self.start(argv, stdin=stdin, headers=headers, pty=pty, tag=tag, **config)
        try:
            return s.finish()
        finally:
            s.close()

    def start(self, argv, stdin=False, headers=None, pty=None, tag=None, **config):
        message = {"process": {"cmd": argv[0], "args": argv[1:], **config}}
        if stdin is not None:
            message["stdin"] = stdin
        if pty is not None:
            message["pty"] = pty
        if tag is not None:
            message["tag"] = tag
        return Stream(self.connect(), "Start", message, headers or {})

    def attach(self, selector, headers=None):
        return Stream(self.connect(), "Connect", {"process": selector}, headers or {})


class Client:
    """One connection; HTTP by hand."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.settimeout(60)
        self.bytes = b""

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def more(self):
        got = self.socket.recv(65536)
        if not got:
            raise EOFError("connection closed with %r pending" % self.bytes[:200])
        self.bytes += got

    def line(self):
        while b"\r\n" not in self.bytes:
            self.more()
        line, self.bytes = self.bytes.split(b"\r\n", 1)
        return line

    def exact(self, n):
        while len(self.bytes) < n:
            self.more()
        got, self.bytes = self.bytes[:n], self.bytes[n:]
        return got

    def head(self):
        """Status and headers (lower-case names) of the next answer."""
        status = self.line().decode()
        headers = {}
        while True:
            line = self.line().decode()
            if not line:
                return int(status.split()[1]), headers
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()

    def chunk(self):
        n = int(self.line(), 16)
        data = self.exact(n)
        assert self.exact(2) == b"\r\n"
        return data

    def body(self, headers):
        if headers.get("transfer-encoding") == "chunked":
            whole = b""
            while True:
                data = self.chunk()
                if not data:
                    return whole
                whole += data
        return self.exact(int(headers.get("content-length", 0)))

    def request(self, method, path, body=b"", **headers):
        lines = ["%s %s HTTP/1.1" % (method, path), "Host: localhost"]
        lines += ["%s: %s" % (k.replace("_", "-"), v) for k, v in headers.items()]
        if body or method == "POST":
            lines.append("Content-Length: %d" % len(body))
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def get(self, path, **headers):
        self.request("GET", path, **headers)
        status, answer = self.head()
        return status, answer, self.body(answer)

    def unary(self, method, message, **headers):
        """Status and decoded JSON."""
        headers.setdefault("Content_Type", "application/json")
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.request("POST", "/process.Process/" + method, body, **headers)
        status, answer = self.head()
        return status, json.loads(self.body(answer))


def envelope(message, flags=0):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


class Stream:
    """A server stream; raw events in order."""

    def __init__(self, client, method, message, headers=None, service="process.Process"):
        self.client = client
        self.pending = b""
        head = {"Content_Type": "application/connect+json", "Connect_Protocol_Version": "1", **(headers or {})}
        client.request("POST", "/%s/%s" % (service, method), envelope(message), **head)
        self.opened = None
        self.pid = None

    def close(self):
        self.client.close()

    def open(self):
        if self.opened is None:
            self.opened = self.client.head()
            status, headers = self.opened
            assert status == 200, self.opened
            assert headers["content-type"] == "application/connect+json", headers
            assert headers["transfer-encoding"] == "chunked", headers

    def frame(self):
        """(flags, bytes) of the next envelope, whatever the chunks are."""
        self.open()
        while True:
            if len(self.pending) >= 5:
                flags, n = struct.unpack(">BI", self.pending[:5])
                if len(self.pending) >= 5 + n:
                    data, self.pending = self.pending[5:5 + n], self.pending[5 + n:]
                    return flags, data
            got = self.client.chunk()
            if not got:
                raise EOFError("the body ended without an end-stream frame")
            self.pending += got

    def message(self):
        """(flags, message) of the next envelope."""
        flags, data = self.frame()
        return flags, json.loads(data)

    def event(self):
        """The next event; ("end-stream", message) for the last frame."""
        flags, data = self.frame()
        message = json.loads(data)
        if flags == 2:
            assert self.pending == b"", self.pending
            assert self.client.chunk() == b"", "something follows the end"
            return "end-stream", message
        assert flags == 0, flags
        (name, value), = message["event"].items()
        return name, value

    def started(self):
        name, value = self.event()
        assert name == "start", (name, value)
        self.pid = value["pid"]
        return self.pid

    def finish(self):
        """Everything to the end: (stdout, stderr, end event). A pty's output counts as stdout."""
        if self.pid is None:
            self.started()
        out = {"stdout": [], "stderr": [], "pty": []}
        end = None
        while True:
            name, value = self.event()
            if name == "data":
                assert end is None, "data after the end event"
                (kind, text), = value.items()
                out[kind].append(base64.b64decode(text, validate=True))
            elif name == "end":
                end = value
            elif name == "end-stream":
                if value != {}:
                    raise StreamError(value["error"])
                assert end is not None, "no end event"
                return b"".join(out["stdout"] + out["pty"]), b"".join(out["stderr"]), end
            else:
                assert name == "keepalive", name

    def error(self):
        """The error of a stream that has no event."""
        name, value = self.event()
        assert name == "end-stream", (name, value)
        return value["error"]


class StreamError(Exception):
    def __init__(self, error):
        super().__init__("%s: %s" % (error["code"], error["message"]))
        self.code = error["code"]
        self.message = error["message"]


def until(condition, seconds=120):
    """Waits for something that happens in another process."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("did not happen within %d s" % seconds)
        time.sleep(0.005)
