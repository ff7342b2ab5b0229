"""envd answers what every published client sends as it did when that was recorded (tests/e2e/matrix/record.py)."""
import json
import os
import pathlib
import re
import shutil
import struct
import tempfile
import unittest

from envd import Envd, envelope

RECORDED = pathlib.Path(__file__).parent / "recorded"
TOKEN = "a-token"
DIRECTORY = b"/tmp/recorded-00000000"


def for_a_sandbox(head):
    return re.search(rb"(?i)\r\n(e2b-sandbox-id:|host: 49983-)", head)


def whole_body(head, body):
    """The bytes that a body means, and whether it came in chunks."""
    if not re.search(rb"(?i)\r\ntransfer-encoding: chunked", head):
        return body, False
    whole = b""
    while True:
        line, body = body.split(b"\r\n", 1)
        n = int(line, 16)
        if n == 0:
            return whole, True
        whole, body = whole + body[:n], body[n + 2:]


def envelopes(body):
    """(flags, message) of each."""
    while body:
        flags, n = struct.unpack(">BI", body[:5])
        yield flags, body[5:5 + n]
        body = body[5 + n:]


def with_pid(head, body, recorded, pid):
    """The request for a process that is there: its lengths follow from that."""
    body, chunked = whole_body(head, body)
    fill = lambda message: re.sub(rb'("pid": ?)%d\b' % recorded, rb"\g<1>%d" % pid, message)
    if b"connect+json" in head:
        body = b"".join(envelope(fill(message), flags) for flags, message in envelopes(body))
    else:
        body = fill(body)
    if chunked:
        return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return re.sub(rb"(?i)content-length: \d+", b"content-length: %d" % len(body), head) + body


class Recorded(unittest.TestCase):
    def process(self, envd, pty):
        s = envd.start(["/bin/cat"], stdin=None if pty else True, pty={"size": {"cols": 80, "rows": 24}} if pty else None,
                       headers={"X_Access_Token": TOKEN})
        s.started()
        return s

    def replay(self, envd, head, body, status, recorded_pid):
        """Sends one request as it was; its answer has the recorded status, and a stream begins as it must."""
        opened, data = None, head + body
        if recorded_pid:
            opened = self.process(envd, b'"pty"' in body)
            data = with_pid(head, body, recorded_pid, opened.pid)
        c = envd.connect()
        try:
            c.send(data)
            got, headers = c.head()
            self.assertEqual(got, status, data)
            if b"connect+json" in head and b"StreamInput" not in head:
                self.assertEqual(headers["content-type"], "application/connect+json")
                first = c.chunk()
                self.assertEqual(first[0], 0, first)
                self.assertIn(b'"start"', first)
            else:
                answer = c.body(headers) if got != 204 else b""
                if headers.get("content-type", "").startswith("application/connect+json"):
                    self.assertNotIn(b'"error"', answer)
                return answer
        finally:
            c.close()
            if opened:
                opened.close()

    def replay_file(self, path):
        text = path.read_text()
        # The sandboxes of a client that knows no tokens have none.
        envd = Envd("user=root", *(["token=" + TOKEN] if "{token}" in text else []))
        self.addCleanup(envd.stop)
        # Names of the same length, so that the recorded lengths stay right.
        watcher = None
        ours = tempfile.mkdtemp(prefix="recorded-", dir="/tmp").encode()
        self.assertEqual(len(ours), len(DIRECTORY))
        n = 0
        try:
            for line in text.splitlines():
                entry = json.loads(line)
                request = entry["request"].encode("latin-1").replace(b"recorded-00000000", ours[5:])
                head, body = request.split(b"\r\n\r\n", 1)
                head += b"\r\n\r\n"
                if not for_a_sandbox(head):
                    continue
                head = head.replace(b"{token}", TOKEN.encode()).replace(b"{id}", b"i00000000000000000000")
                with self.subTest(client=path.stem, request=head.split(b"\r\n")[0]):
                    answer = self.replay(envd, head, re.sub(rb"\bw[a-z0-9]{20}\b", watcher or rb"\g<0>", body), entry["status"], entry.get("pid"))
                    watcher = json.loads(answer)["watcherId"].encode() if b"/CreateWatcher " in head else watcher
                n += 1
            self.assertGreater(n, 12)
            left = sorted(os.listdir(ours.decode()))
            self.assertIn("deep" if "cube" not in path.stem else "dir", left)
        finally:
            shutil.rmtree(ours)


for _path in sorted(RECORDED.glob("*.jsonl")):
    def _test(self, path=_path):
        self.replay_file(path)
    setattr(Recorded, "test_" + re.sub(r"\W", "_", _path.stem), _test)


if __name__ == "__main__":
    unittest.main()
