"""A root inside that uses up what there is, or turns on its own agent. What it may hurt is itself; the API of its sandbox goes on as far as it can."""

import textwrap
import time

import pytest
from e2b import Sandbox

from server import wait_for


@pytest.fixture
def box(server):
    b = Sandbox.create("base", timeout=300)
    yield b
    b.kill()


def python(box, code, timeout=60, user="root"):
    box.files.write("/tmp/hostile.py", textwrap.dedent(code), user="root")
    return box.commands.run("python3 /tmp/hostile.py", user=user, timeout=timeout).stdout


def test_082_buffers_of_sockets_count_as_memory(box):
    """On cgroup v1 they are in an account of their own; without a limit there 200 connections filled the machine's tcp_mem for everybody."""
    out = python(box, """
        import socket
        keep, n = [], 0
        l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(1000)
        try:
            for i in range(400):
                a = socket.socket(); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
                a.connect(l.getsockname()); b, _ = l.accept(); b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 6 << 20)
                a.setblocking(False)
                try:
                    while True: n += a.send(b"x" * 65536)
                except BlockingIOError: pass
                keep += [a, b]
        except OSError: pass
        print(n >> 20)
    """)
    assert 0 < int(out) < 520
    assert box.commands.run("echo alive").stdout == "alive\n"


def test_limits_of_the_agent_and_cores_stay(box):
    out = python(box, """
        import ctypes, os, resource, struct
        libc = ctypes.CDLL(None, use_errno=True)
        none = struct.pack("QQ", 0, 0)
        print([libc.syscall(302, pid, 7, none, None) for pid in (1, 2, -1, os.getpid())])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print(resource.getrlimit(resource.RLIMIT_CORE))
    """)
    assert out == "[-1, -1, -1, -1]\n(1, 1)\n"
    assert box.files.list("/tmp") and box.commands.run("ulimit -n 100; ulimit -n; sudo -n whoami").stdout == "100\nroot\n"
