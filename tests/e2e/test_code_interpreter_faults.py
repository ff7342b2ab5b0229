"""What goes wrong around code cells: clients that leave or are slow, killed kernels, a killed service, memory, freezing (e2b.md C, F)."""

import glob
import http.client
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest

from conftest import serving
from inside import ask
from interpreter import PATIENT, PORT, Stream, interpreter, out, run, sandbox, text
from server import wait_for


@pytest.fixture(scope="module")
def server():
    with serving(templates=("base", "code-interpreter-v1")) as s:
        yield s


@pytest.fixture(scope="module")
def box(server):
    with sandbox(envs={"FROM_CREATE": "yes"}) as b:
        yield b


def service(server, box):
    """What envd says of the interpreter."""
    status, _, body = ask(server, box, "GET", "/services")
    assert status == 200
    (found,) = json.loads(body)
    return found


def patient_text(box, code):
    """A cell whose connection may be cut by what was killed before."""
    for _ in range(20):
        try:
            return text(box, code)
        except Exception as e:
            last = e
            time.sleep(0.2)
    raise last


# Clients that leave


@pytest.mark.parametrize("busy", ["while True: pass", "import time\nwhile True: time.sleep(0.1)", "import subprocess; subprocess.run(['sleep', '1000'])",
                                  "while True: print('x' * 1000)"], ids=["loop", "sleep", "child", "loud"])
def test_case_92_a_cell_that_nobody_waits_for_is_interrupted(server, box, busy):
    run(box, "state = 'kept'")
    stream = Stream(server, box, "print('running', flush=True)\n" + busy)
    stream.until("stdout")
    stream.close()
    assert text(box, "state") == "kept"


def test_case_92_a_timeout_of_the_client_interrupts(box):
    from e2b import TimeoutException
    run(box, "state = 5")
    with pytest.raises(TimeoutException):
        box.run_code("while True: pass", timeout=1.5, request_timeout=300)
    assert text(box, "state") == "5"


def test_who_leaves_the_queue_is_not_run(server, box):
    run(box, "ran = []")
    first = Stream(server, box, "import os, time\nprint('in')\nwhile not os.path.exists('/tmp/release'): time.sleep(0.01)\nran.append(1)")
    first.until("stdout")
    # Sent while the first runs, given up before it ends.
    second = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps({"code": "ran.append(2)"})
    second.sendall(f"POST /execute HTTP/1.1\r\nHost: {PORT}-{box.sandbox_id}.sbx.test\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    time.sleep(0.5)
    second.close()
    time.sleep(0.5)
    box.files.write("/tmp/release", "")
    first.until("end_of_execution")
    first.close()
    assert run(box, "ran").results[0].json == [1]


def test_case_99_a_slow_reader_gets_everything(server, box):
    """It reads nothing until the kernel must long have waited; ten megabytes are more than all buffers on the way hold."""
    stream = Stream(server, box, "for i in range(10000): print(f'{i:05d}', 'y' * 1000)")
    time.sleep(2)
    parts = []
    for event in stream.events():
        assert event["type"] != "error", event
        if event["type"] == "stdout":
            parts.append(event["text"])
            if len(parts) < 20:
                time.sleep(0.02)
    lines = "".join(parts).splitlines()
    assert len(lines) == 10000 and all(line == f"{i:05d} " + "y" * 1000 for i, line in enumerate(lines))
    assert text(box, "1+1") == "2"


def test_many_that_connect_and_leave_cost_nothing(server, box):
    before = out(box, "!ls /proc/$(pgrep -f cubicle-interp | head -1)/fd 2>/dev/null | wc -l")
    for i in range(100):
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(f"POST /execute HTTP/1.1\r\nHost: {PORT}-{box.sandbox_id}.sbx.test\r\nContent-Length: 1000\r\n\r\n{{".encode()[:80 + i])
        s.close()
    assert text(box, "1+1") == "2"
    assert before.strip()


# Killed


def test_a_kernel_that_dies_is_told_and_replaced(box):
    run(box, "gone = 1")
    execution = box.run_code("print('last words', flush=True)\nimport os; os.kill(os.getpid(), 9)", **PATIENT)
    assert execution.error is not None and execution.error.name
    assert box.run_code("gone", **PATIENT).error.name == "NameError"
    assert run(box, "import os; os.environ['FROM_CREATE']").text == "yes"


def test_a_kernel_killed_while_idle_is_replaced(box):
    pid = int(text(box, "import os; os.getpid()"))
    box.commands.run(f"kill -9 {pid}", user="root")
    assert int(patient_text(box, "import os; os.getpid()")) != pid
    assert box.run_code("exit()", **PATIENT) is not None
    assert patient_text(box, "1+1") == "2"


def test_case_systemd_a_killed_service_is_started_again(server):
    """The whole service, three times, in the middle of a cell: init starts it again, and no client meets a closed port."""
    with sandbox() as b:
        kernel = int(text(b, "x = 1; import os; os.getpid()"))
        assert service(server, b)["starts"] == 1
        for i in range(3):
            stream = Stream(server, b, "print('on', flush=True)\nimport time; time.sleep(1000)")
            stream.until("stdout")
            b.commands.run("kill -9 %d" % service(server, b)["pid"], user="root")
            # Case 101: cut, without the last chunk.
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                stream.r.read()
            stream.close()
            wait_for(lambda: service(server, b)["starts"] == i + 2, 60, "the next start")
            assert text(b, "1+1") == "2"
        assert b.run_code("x", **PATIENT).error.name == "NameError"
        # Kernels do not outlive the service that started them.
        assert b.commands.run(f"test -d /proc/{kernel} && cat /proc/{kernel}/comm || echo gone").stdout == "gone\n"
        wait_for(lambda: int(b.commands.run("pgrep -fc 'launch.py' || true", user="root").stdout) <= 2, 60, "the kernels of killed services to be gone")
        logged = json.dumps(server.call("GET", f"/v2/sandboxes/{b.sandbox_id}/logs")[1])
        assert "code-interpreter" in logged and "signal: killed" in logged


def test_a_cell_that_takes_all_memory_ends_alone(server, box):
    execution = box.run_code("hog = []\nwhile True: hog.append(bytearray(64 << 20))", **PATIENT)
    assert execution.error is not None, execution
    assert patient_text(box, "40 + 2") == "42"
    assert box.commands.run("echo alive").stdout == "alive\n"
    assert box.is_running()


def test_a_cell_that_takes_all_processes_ends_and_the_next_one_works(box):
    code = "import os, time, signal\npids = []\ntry:\n    while True:\n        p = os.fork()\n        if p == 0:\n            time.sleep(1000)\n        pids.append(p)\n" \
           "except OSError as e:\n    failed = type(e).__name__\nfor p in pids: os.kill(p, signal.SIGKILL); os.waitpid(p, 0)\nfailed, len(pids) > 50"
    assert text(box, code) == "('BlockingIOError', True)"
    assert text(box, "2+2") == "4"


def test_a_killed_sandbox_is_told_as_such(server):
    from e2b import TimeoutException
    with sandbox() as b:
        found = []

        def cell():
            try:
                found.append(b.run_code("print('on')\nimport time; time.sleep(1000)", on_stdout=lambda m: started.set(), **PATIENT))
            except Exception as e:
                found.append(e)

        started = threading.Event()
        t = threading.Thread(target=cell)
        t.start()
        assert started.wait(120)
        b.kill()
        t.join()
        assert isinstance(found[0], TimeoutException), found


# Stopped and frozen


def freezers(server, box):
    """Functions that freeze and thaw the cgroup of the sandbox's commands, as the node does under disk pressure; v1 or v2."""
    wanted = None
    for entry in glob.glob("/proc/[0-9]*"):
        try:
            line = open(entry + "/cgroup").read()
            if open(entry + "/comm").read() == "cubicle-interp\n" and f"-{server.tag}/" in line:
                wanted = line
        except OSError:
            continue
    assert wanted, "the interpreter's process was not found"
    for line in wanted.splitlines():
        _, controllers, path = line.split(":", 2)
        for base, file, on, off in ((f"/sys/fs/cgroup/unified{path}", "cgroup.freeze", "1", "0"), (f"/sys/fs/cgroup{path}", "cgroup.freeze", "1", "0"),
                                    (f"/sys/fs/cgroup/freezer{path}", "freezer.state", "FROZEN", "THAWED")):
            if (controllers == "" or "freezer" in controllers) and os.path.exists(f"{base}/{file}"):
                return [lambda value=value: open(f"{base}/{file}", "w").write(value) for value in (on, off)]
    pytest.fail(f"no freezer: {wanted}")


def test_case_93_after_a_freeze_the_first_cell_does_not_hang(server):
    with sandbox() as b:
        run(b, "x = 5")
        freeze, thaw = freezers(server, b)
        for _ in range(2):
            freeze()
            found = []
            t = threading.Thread(target=lambda: found.append(text(b, "x += 1; x")))
            t.start()
            time.sleep(3)
            assert not found
            thaw()
            t.join()
        assert found == ["7"]
        # In the middle of a cell, longer than heartbeats are waited for.
        stream = Stream(server, b, "import time\nprint('on', flush=True)\nfor i in range(20): time.sleep(0.05)\n'through'")
        stream.until("stdout")
        freeze()
        time.sleep(7)
        thaw()
        assert stream.until("result")["text"] == "through"
        stream.close()


def test_stopped_and_continued(server):
    with sandbox() as b:
        kernel, pid = int(text(b, "import os; os.getpid()")), service(server, b)["pid"]
        for victim in (kernel, pid):
            b.commands.run(f"kill -STOP {victim}", user="root")
            found = []
            t = threading.Thread(target=lambda: found.append(text(b, "1+1")))
            t.start()
            time.sleep(3)
            b.commands.run(f"kill -CONT {victim}", user="root")
            t.join()
            assert found == ["2"]
