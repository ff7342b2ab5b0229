"""A root inside that uses up what there is, or turns on its own agent. What it may hurt is itself; the API of its sandbox goes on as far as it can."""

import base64
import http.client
import json
import struct
import textwrap
import time

import pytest
from e2b import CommandExitException, Sandbox

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


def fill(path):
    return f"""
        f = open("{path}", "wb")
        while 1:
            try: f.write(b"x" * (1 << 20)); f.flush()
            except OSError: time.sleep(0.1)
    """


USE_UP = {
    "connections to the agent": """
        held = []
        while len(held) < 3000:
            try:
                s = socket.socket(); s.settimeout(2); s.connect(("127.0.0.1", 49983)); held.append(s)
                if len(held) % 2: s.sendall(b"GET / HTTP/1.1\\r\\nA: " + b"x" * 60000)
            except OSError: time.sleep(0.2)
    """,
    "file workers, without a token": """
        held = []
        for i in range(300):
            s = socket.socket(); s.settimeout(2); s.connect(("127.0.0.1", 49983)); held.append(s)
            s.sendall(b"POST /files?path=/tmp/q HTTP/1.1\\r\\nHost: a\\r\\nContent-Type: application/octet-stream\\r\\nContent-Length: 100000000\\r\\n\\r\\n" + b"x" * 1000)
    """,
    "memory": "x = []\nwhile 1: x.append(bytearray(1 << 20))",
    "memory files": """
        held = []
        while 1:
            held.append(os.memfd_create("a"))
            try: os.write(held[-1], b"x" * (8 << 20))
            except OSError: time.sleep(0.1)
    """,
    "pipes": """
        held = []
        while 1:
            try:
                r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.set_blocking(w, False); held += [r, w]
                os.write(w, b"x" * (1 << 20))
            except OSError: time.sleep(0.01)
    """,
    "terminals": """
        held = []
        while 1:
            try: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
            except OSError: time.sleep(0.1)
    """,
    "shared memory": fill("/dev/shm/fill"),
    "the runtime directory": fill("/run/fill"),
    "signals to PID 1": """
        while 1:
            for n in range(1, 65):
                try: os.kill(1, n)
                except OSError: pass
    """,
    "names": """
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        q = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\3www\\7example\\3com\\0\\0\\1\\0\\1"
        while 1:
            try: s.sendto(q, ("127.0.0.53", 53))
            except OSError: pass
    """,
    "the spawner, stopped": "while 1:\n    os.kill(2, signal.SIGSTOP)\n    time.sleep(0.01)",
    "priorities": "os.setpriority(os.PRIO_PROCESS, 1, 19)\nfor _ in range(4): os.fork()\nwhile 1: pass",
}


@pytest.mark.parametrize("what", USE_UP)
def test_the_api_works_while_a_root_inside_uses_up(box, what):
    box.files.write("/tmp/greedy.py", "import fcntl, os, signal, socket, time\n" + textwrap.dedent(USE_UP[what]) + "\ntime.sleep(1000)\n", user="root")
    box.commands.run("setsid python3 /tmp/greedy.py >/dev/null 2>&1 </dev/null &", user="root")
    time.sleep(2)
    assert box.commands.run("echo on", request_timeout=60, timeout=60).stdout == "on\n"
    box.files.write("/home/user/x", "written", request_timeout=60)
    assert box.files.read("/home/user/x", request_timeout=60) == "written"
    assert box.files.list("/", request_timeout=60) and box.commands.list(request_timeout=60) == [] and box.is_running()


def test_without_processes_left_calls_are_refused_by_name(box):
    """Before, file requests were cut without an answer, which clients take for the end of the sandbox."""
    box.files.write("/tmp/bomb.py", "import threading, time\nwhile 1:\n    try: threading.Thread(target=time.sleep, args=(1000,)).start()\n    except Exception: time.sleep(0.01)\n")
    box.commands.run("setsid python3 /tmp/bomb.py >/dev/null 2>&1 </dev/null &")
    def refused():
        try:
            box.commands.run("true")
            return False
        except CommandExitException:  # the shell was the last one that found room
            return False
        except Exception as e:
            assert "limit of processes" in str(e), e
            return True
    wait_for(refused, 60, "the limit of processes")
    for call in (lambda: box.files.read("/etc/hostname"), lambda: box.files.write("/tmp/x", "y"), lambda: box.files.list("/")):
        with pytest.raises(Exception, match="limit of processes"):
            call()
    assert box.is_running()


def sh(server, box, command):
    """As root by /bin/sh: the SDK's way needs bash."""
    message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", command]}, "stdin": False}).encode()
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    c.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(message)) + message, {
        "Host": f"49983-{box.sandbox_id}.sbx.test", "X-Access-Token": box._envd_access_token, "Content-Type": "application/connect+json",
        "Authorization": "Basic " + base64.b64encode(b"root:").decode()})
    answer = c.getresponse().read()
    assert b'"exitCode":0' in answer, answer


@pytest.mark.parametrize("spoil,mend", [
    ("mv /etc/passwd /etc/p; mkfifo /etc/passwd", "mv /etc/p /etc/passwd"),
    ("mv /etc/group /etc/g; ln -s /dev/zero /etc/group; mv /etc/passwd /etc/p; ln -s /dev/zero /etc/passwd", "mv /etc/p /etc/passwd; mv /etc/g /etc/group"),
    ("cp -p /etc/passwd /etc/p; truncate -s 10G /etc/passwd", "mv /etc/p /etc/passwd"),
    ("mv /usr/bin/bash /usr/bin/b2; mkfifo /usr/bin/bash", "mv /usr/bin/b2 /usr/bin/bash"),
    ("chmod 000 /home/user", "chmod 755 /home/user"),
    ("mv /dev/null /dev/n; mkfifo /dev/null", "mv /dev/n /dev/null"),
])
def test_a_spoilt_system_is_an_error_and_no_hang(server, box, spoil, mend):
    box.commands.run(spoil, user="root")
    try:
        box.commands.run("echo on", timeout=120, request_timeout=120)
    except Exception as e:
        assert "timed out" not in str(e).lower(), e
    sh(server, box, mend)
    assert box.commands.run("echo on").stdout == "on\n"
