"""Rows of the list of field cases about commands and terminals, through the ingress and, where one can say it, a published client. The number is the row's; the others of them are in test_commands.py,
test_cases_life.py, test_faults.py and tests/protocol/test_envd_*.py."""

import base64
import concurrent.futures
import hashlib
import json
import os
import socket
import struct
import threading
import time

import pytest
from e2b import AuthenticationException, CommandExitException, PtySize, Sandbox

from inside import kept, rpc
from server import wait_for

PROCESS = "process.Process"


@pytest.fixture(scope="module")
def box(server):
    b = Sandbox.create("base", timeout=900)
    yield b
    b.kill()


class Stream:
    """A stream of process.Process by hand: events as they come."""

    def __init__(self, server, box, method, message, headers=""):
        body = json.dumps(message).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), 60)
        self.socket.sendall(f"POST /{PROCESS}/{method} HTTP/1.1\r\nHost: 49983-{box.sandbox_id}.sbx.test\r\nX-Access-Token: {box._envd_access_token}\r\nConnect-Protocol-Version: 1\r\n"
                            f"Content-Type: application/connect+json\r\n{headers}Content-Length: {len(body) + 5}\r\n\r\n".encode() + struct.pack(">BI", 0, len(body)) + body)
        self.file = self.socket.makefile("rb")
        assert self.file.readline().startswith(b"HTTP/1.1 200")
        while self.file.readline() != b"\r\n":
            pass
        self.pending = b""

    def event(self):
        """(flags, message)."""
        while len(self.pending) < 5 or len(self.pending) < 5 + struct.unpack(">I", self.pending[1:5])[0]:
            size = int(self.file.readline(), 16)
            self.pending += self.file.read(size)
            self.file.read(2)
            assert size, "the stream ended without its last message"
        n = 5 + struct.unpack(">I", self.pending[1:5])[0]
        message, self.pending = self.pending[:n], self.pending[n:]
        return message[0], json.loads(message[5:])

    def close(self):
        # The file holds the socket too.
        self.file.close()
        self.socket.close()


def start(server, box, cmd, *args, headers="", **more):
    return Stream(server, box, "Start", {"process": {"cmd": cmd, "args": list(args)}, "stdin": False, **more}, headers)


def pid_of(stream):
    flags, message = stream.event()
    return message["event"]["start"]["pid"]


def test_049_stdin_takes_any_byte_and_tells_of_a_reader_that_closed(box):
    data = bytes(range(256)) * (4 << 10)
    handle = box.commands.run("sha256sum", background=True, stdin=True, timeout=120)
    for i in range(0, len(data), 1 << 18):
        box.commands.send_stdin(handle.pid, data[i : i + (1 << 18)])
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.split()[0] == hashlib.sha256(data).hexdigest()
    # Reads one byte, closes its input and lives on.
    handle = box.commands.run("head -c 1; exec 0<&-; sleep 1000", background=True, stdin=True, timeout=0)
    with pytest.raises(Exception):
        for _ in range(20):
            box.commands.send_stdin(handle.pid, b"x" * (1 << 20), request_timeout=60)
    assert handle.kill()


def test_055_who_leaves_in_a_burst_takes_nothing_from_others(server, box):
    for _ in range(20):
        s = start(server, box, "/bin/sh", "-c", "head -c 3000000 /dev/zero")
        pid = pid_of(s)
        other = Stream(server, box, "Connect", {"process": {"pid": pid}})
        other.event()
        other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        total = 0
        while True:
            flags, message = s.event()
            if flags == 2:
                assert message == {}
                break
            data = message["event"].get("data")
            total += len(base64.b64decode(data["stdout"])) if data else 0
        assert total == 3000000
        s.close()


def test_059_silence_is_broken_at_the_asked_interval_and_lines_come_as_they_are_written(server, box):
    # Each line but the first waits until the one before has come.
    s = start(server, box, "/bin/sh", "-c", "sleep 4; for i in 1 2 3; do echo $i; while [ ! -e /tmp/came$i ]; do sleep 0.05; done; done", headers="Keepalive-Ping-Interval: 1\r\n")
    kinds = []
    while True:
        flags, message = s.event()
        if flags == 2:
            break
        kinds += message["event"]
        if "data" in message["event"]:
            box.files.write(f"/tmp/came{kinds.count('data')}", "")
    first = kinds.index("data")
    assert kinds[0] == "start" and kinds[1:first].count("keepalive") >= 2
    assert kinds.count("data") == 3 and kinds[-1] == "end"
    s.close()


def test_061_term_may_be_ignored_kill_may_not(server, box):
    s = start(server, box, "/bin/bash", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    pid = pid_of(s)
    s.event()
    selector = {"process": {"pid": pid}}
    assert rpc(server, box, "SendSignal", {**selector, "signal": "SIGNAL_SIGTERM"}, PROCESS) == (200, {})
    time.sleep(0.3)
    assert pid in {p.pid for p in box.commands.list()}
    for sent, status, code in (("SIGNAL_UNSPECIFIED", 501, "unimplemented"), (0, 501, "unimplemented"), ("SIGNAL_SIGHUP", 400, "invalid_argument"), (7, 400, "invalid_argument"), ("kill", 400, "invalid_argument")):
        answer = rpc(server, box, "SendSignal", {**selector, "signal": sent}, PROCESS)
        assert (answer[0], answer[1]["code"]) == (status, code), sent
    assert rpc(server, box, "SendSignal", {**selector, "signal": "SIGNAL_SIGKILL"}, PROCESS) == (200, {})
    while (last := s.event())[0] != 2:
        end = last[1]["event"]
    assert end["end"]["status"] == "signal: killed" and pid not in {p.pid for p in box.commands.list()}
    s.close()


def test_062_kill_and_timeout_end_a_stream_whose_output_is_held(server, box):
    handle = box.commands.run("sleep 1000 & echo hi", background=True, timeout=0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(handle.wait)
        box.commands.run("until pgrep -f '^sleep 1000'; do sleep 0.1; done")
        time.sleep(0.5)
        assert not result.done()
        box.commands.run("pkill -f '^sleep 1000' || true")
        assert result.result(60).stdout == "hi\n"
    s = start(server, box, "/bin/bash", "-c", "setsid sleep 1001 & echo hi; sleep 1001", headers="Connect-Timeout-Ms: 700\r\n")
    while (last := s.event())[0] != 2:
        pass
    assert last[1]["error"]["code"] == "deadline_exceeded"
    s.close()
    box.commands.run("pkill sleep || true")


@pytest.mark.parametrize("text", ["'", '"', "`id`", "$(id)", "a\nb", "--", "'; touch /tmp/pwn; '", "\\", "é\t", "%s%n", "*", "~", "-c", ""])
def test_064_arguments_arrive_as_they_are(server, box, text):
    s = start(server, box, "/usr/bin/printf", "%s|", text, "end")
    out = b""
    while (message := s.event())[0] != 2:
        data = message[1]["event"].get("data", {})
        out += base64.b64decode(data.get("stdout", ""))
    assert out.decode() == text + "|end|"
    s.close()
    assert not box.files.exists("/tmp/pwn")


def test_065_bad_names_of_variables_are_refused(server, box):
    for name in ("E=F", "", "A\0B"):
        s = start(server, box, "/bin/true")
        s.close()
        s = Stream(server, box, "Start", {"process": {"cmd": "/bin/true", "envs": {name: "1"}}, "stdin": False})
        flags, message = s.event()
        assert flags == 2 and message["error"]["code"] == "invalid_argument", message
        s.close()
        assert server.call("POST", "/v2/sandboxes", {"templateID": "base", "envVars": {name: "1"}})[0] == 400


def test_067_working_directories_that_cannot_be_entered(box):
    box.commands.run("mkdir -m 700 /tmp/closed; mkdir /tmp/gone; ln -s /nowhere /tmp/broken", user="root")
    for cwd in ("/tmp/closed", "/tmp/broken", "/tmp/none/below", "~nobody"):
        with pytest.raises(Exception) as e:
            box.commands.run("true", cwd=cwd)
        assert cwd.lstrip("~") in str(e.value) or "home" in str(e.value), e.value
    # One that is removed under a command: the command goes on, the next is told.
    handle = box.commands.run("read x; pwd; echo done", background=True, stdin=True, cwd="/tmp/gone")
    box.files.remove("/tmp/gone")
    box.commands.send_stdin(handle.pid, "go\n")
    assert handle.wait().stdout.endswith("done\n")
    with pytest.raises(Exception, match="/tmp/gone"):
        box.commands.run("true", cwd="/tmp/gone")


def test_068_all_groups_of_the_user(box):
    box.commands.run("groupadd -g 4711 docker && groupadd -g 4712 more && usermod -aG docker,more user", user="root")
    assert {"1000", "4711", "4712"} <= set(box.commands.run("id -G").stdout.split())
    assert set(box.commands.run("id -G", user="root").stdout.split()) == {"0"}
    for name in ("nobody-here", "../root", "user\n"):
        with pytest.raises(AuthenticationException):
            box.commands.run("true", user=name)


def test_074_a_hundred_megabytes_flow_at_the_readers_pace(box):
    size, digest = 0, hashlib.sha256()

    def take(text):
        nonlocal size
        size += len(text)
        digest.update(text.encode())

    handle = box.commands.run("yes abcdefghijklmnopqrstuvwxyz0123456789 | head -c 100000000", background=True, timeout=0)
    handle.wait(on_stdout=take)
    wanted = hashlib.sha256((b"abcdefghijklmnopqrstuvwxyz0123456789\n" * 2702703)[:100000000])
    assert (size, digest.hexdigest()) == (100000000, wanted.hexdigest())
    assert kept(box)[2] < 8 * 1024


def test_076_sizes_of_terminals(server, box):
    handle = box.pty.create(PtySize(rows=24, cols=80), timeout=60)
    selector = {"process": {"pid": handle.pid}}
    for cols, rows in ((0, 0), (0, 24), (80, 0), (65536, 24), (80, 4294967295), (-1, 24), (4294967296, 1)):
        status, answer = rpc(server, box, "Update", {**selector, "pty": {"size": {"cols": cols, "rows": rows}}}, PROCESS)
        assert (status, answer["code"]) == (400, "invalid_argument"), (cols, rows)
        s = Stream(server, box, "Start", {"process": {"cmd": "/bin/true"}, "pty": {"size": {"cols": cols, "rows": rows}}})
        flags, message = s.event()
        assert flags == 2 and message["error"]["code"] == "invalid_argument"
        s.close()
    assert rpc(server, box, "Update", {**selector, "pty": {"size": {"cols": 1, "rows": 65535}}}, PROCESS) == (200, {})
    out = []
    box.pty.send_stdin(handle.pid, b"stty size; exit\n")
    handle.wait(on_pty=lambda data: out.append(bytes(data)))
    assert b"65535 1" in b"".join(out).replace(b"\r\n", b"")


def test_077_keystrokes_keep_their_order(box):
    """Each is a request of its own; the client sends them one after another."""
    handle = box.pty.create(PtySize(rows=24, cols=200), timeout=0)
    box.pty.send_stdin(handle.pid, b"stty -echo; cat > /tmp/typed\n")
    wait_for(lambda: box.files.exists("/tmp/typed"), 60, "cat to read")
    text = "".join(chr(97 + i % 26) for i in range(1000))
    for i, c in enumerate(text):
        box.pty.send_stdin(handle.pid, (c + ("\n" if i % 50 == 49 else "")).encode())
    box.pty.send_stdin(handle.pid, b"\x04")
    wait_for(lambda: len(box.files.read("/tmp/typed")) == 1020, 60, "all that was typed")
    assert box.files.read("/tmp/typed").replace("\n", "") == text
    assert box.pty.kill(handle.pid)


def test_079_080_terminals_are_met_again_and_end_with_their_code(box):
    before = kept(box)
    for i in range(60):
        handle = box.pty.create(PtySize(rows=24, cols=80), timeout=0)
        handle.disconnect()
        again = box.pty.connect(handle.pid)
        box.pty.send_stdin(handle.pid, b"exit %d\n" % (i % 4))
        try:
            code = again.wait().exit_code
        except CommandExitException as e:
            code = e.exit_code
        assert code == i % 4
    wait_for(lambda: kept(box)[0] <= before[0], 60, "no process to be left")
    assert box.commands.run("ls /dev/pts").stdout.split() == ["ptmx"]
    assert kept(box)[2] < before[2] + 512


def test_070_a_client_that_gives_up_at_once_blocks_nobody(server, box):
    def one(i):
        s = start(server, box, "/bin/echo", "hi")
        if i % 2:
            s.event()
        s.close()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(300)))
    assert box.commands.run("echo fine").stdout == "fine\n"
    wait_for(lambda: len(box.commands.list()) == 0, 60, "the commands to end")


def test_182_a_kill_and_an_expiry_end_everything_at_once(server):
    """There is no grace, on purpose: nothing that a trap could save outlives the sandbox (docs/lifecycle.md). What ignores TERM does not delay it either."""
    made = Sandbox.create("base", timeout=300)
    made.commands.run("trap 'sleep 1000' TERM; while :; do sleep 1; done", background=True, timeout=0)
    assert made.kill() is True and not made.is_running()
    status, short = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 2})
    assert status == 201
    wait_for(lambda: server.call("GET", f"/sandboxes/{short['sandboxID']}")[0] == 404, 60, "the deadline")
