"""Helpers for the code interpreter's tests: the server with its template, raw executions, and pictures as values."""

import base64
import contextlib
import http.client
import json
import struct
import zlib

from inside import ask

PORT = 49999
TEMPLATE = "code-interpreter-v1"
# A machine that is busy with others: what a client would give up after by default is no failure here.
PATIENT = {"timeout": 300, "request_timeout": 300}


def create(timeout=900, **more):
    from e2b_code_interpreter import Sandbox
    return Sandbox.create(TEMPLATE, timeout=timeout, request_timeout=300, **more)


@contextlib.contextmanager
def sandbox(**more):
    box = create(**more)
    try:
        yield box
    finally:
        box.kill()


def run(box, code, **more):
    """A cell that must not fail."""
    execution = box.run_code(code, **PATIENT, **more)
    assert execution.error is None, execution.error.traceback
    return execution


def text(box, code, **more):
    return run(box, code, **more).text


def out(box, code, **more):
    return "".join(run(box, code, **more).logs.stdout)


def interpreter(server, box, method, target, body=None, headers=None):
    """One raw request to the interpreter: (status, headers, body)."""
    data = None if body is None else json.dumps(body)
    return ask(server, box, method, target, data, {"Content-Type": "application/json", **(headers or {})}, port=PORT)


class Stream:
    """A raw execution: events as they come."""

    def __init__(self, server, box, code, **more):
        self.c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        self.c.request("POST", "/execute", json.dumps({"code": code, **more}), {
            "Host": f"{PORT}-{box.sandbox_id}.sbx.test", "Content-Type": "application/json", "X-Access-Token": box._envd_access_token})
        self.r = self.c.getresponse()
        assert self.r.status == 200, self.r.read()

    def lines(self):
        while line := self.r.readline():
            yield line

    def events(self):
        for line in self.lines():
            yield json.loads(line)

    def until(self, kind):
        for event in self.events():
            if event["type"] == kind:
                return event
        raise AssertionError(f"no {kind}")

    def close(self):
        self.r.close()
        self.c.close()


def png(data):
    """A picture as (width, height, rows of pixels): 8 bits a channel, not interlaced, as Pillow and matplotlib write it."""
    raw = base64.b64decode(data)
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, palette = 8, b"", b""
    while at < len(raw):
        n, kind = struct.unpack(">I4s", raw[at:at + 8])
        body = raw[at + 8:at + 8 + n]
        assert zlib.crc32(kind + body) == struct.unpack(">I", raw[at + 8 + n:at + 12 + n])[0]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and not interlaced
        elif kind == b"IDAT":
            packed += body
        at += 12 + n
    size = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    flat, rows, above = zlib.decompress(packed), [], bytes(width * size)
    for y in range(height):
        start = y * (width * size + 1)
        above = _unfilter(flat[start], bytearray(flat[start + 1:start + 1 + width * size]), above, size)
        rows.append([tuple(above[x * size:(x + 1) * size]) for x in range(width)])
    return width, height, rows


def _unfilter(kind, line, above, size):
    for i in range(len(line)):
        a = line[i - size] if i >= size else 0
        b = above[i]
        c = above[i - size] if i >= size else 0
        nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        line[i] = (line[i] + [0, a, b, (a + b) // 2, nearest][kind]) & 255
    return bytes(line)
