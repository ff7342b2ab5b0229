"""The space account (docs/architecture.md, "Space") on a host file system of 3 GB of its own: it is filled from inside and from outside, and no sandbox loses anything."""

import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest
from e2b import CommandExitException, NotEnoughSpaceException, Sandbox

from server import wait_for
from small_host import MIB

FULL_MB = 128  # disk_marks(): the reserve of so small a file system is 512 MiB, the red mark half of it, the full mark half of that

# Writes files without end and tells each ENOSPC.
WRITER = r"""
import itertools, os, time
block = os.urandom(8 << 20)
for number in itertools.count():
    if os.path.exists("/dev/shm/stop"):
        break
    try:
        with open(f"/home/user/big{number}", "wb", buffering=0) as f:
            for _ in range(64):
                f.write(block)
    except OSError as e:
        print("full" if e.errno == 28 else f"error {e.errno}", flush=True)
        time.sleep(0.05)
"""

# Writes a file of that many MiB whose blocks fallocate got before: no ENOSPC is possible.
FALLOCATER = r"""
import os, sys
fd = os.open("/home/user/big", os.O_WRONLY | os.O_CREAT)
os.posix_fallocate(fd, 0, int(sys.argv[1]) << 20)
print("allocated", flush=True)
block = os.urandom(4 << 20)
for _ in range(int(sys.argv[1]) // 4):
    os.write(fd, block)
print("written", flush=True)
"""

# Small files with an fsync each; their sums are told once they are durable.
CAREFUL = r"""
import hashlib, itertools, os, time
for number in itertools.count():
    if os.path.exists("/dev/shm/stop"):
        break
    data = os.urandom(20000)
    try:
        with open(f"/home/user/f{number}", "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        print("file", number, hashlib.sha256(data).hexdigest(), flush=True)
    except OSError as e:
        print("full" if e.errno == 28 else f"error {e.errno}", flush=True)
    time.sleep(0.05)
"""

# Sums of what is on the disk: pages in memory are given up before.
SUMS = r"""
import hashlib, json, os, pathlib
os.sync()
out = {}
for p in pathlib.Path("/home/user").glob("f[0-9]*"):
    fd = os.open(p, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    out[p.name[1:]] = hashlib.sha256(open(fd, "rb").read()).hexdigest()
print(json.dumps(out))
"""

# Takes all of the host's file system by write(2), says "full", and takes what comes back, too, until its input ends.
OUTSIDE = r"""
import os, select, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
block, told = bytes(4 << 20), False
while not select.select([0], [], [], 0.01 if told else 0)[0]:
    try:
        os.write(fd, block)
    except OSError as e:
        if not told:
            print("full" if e.errno == 28 else f"error {e.errno}", flush=True)
        told = True
"""


@pytest.fixture
def serve(small_host, own_server):
    """A server whose state directory is on the small file system; its log is not."""
    def start(**options):
        s = own_server(start=False, state_dir=small_host.top / "s", options={"pool.min": 1, "sandbox.disk": 4096, **options})
        s.log_path = small_host.base / "log"
        return s.start()
    return start


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}


class Script:
    """A Python program inside a sandbox: its lines, as they come."""

    def __init__(self, box, text, *arguments):
        self.box, self.text = box, ""
        box.files.write("/dev/shm/program.py", text)
        self.thread = threading.Thread(target=self._run, args=(" ".join(map(str, ("python3", "/dev/shm/program.py", *arguments))),), daemon=True)
        self.failure = None
        self.thread.start()

    def _run(self, command):
        try:
            self.box.commands.run(command, on_stdout=self._more, timeout=0)
        except Exception as e:
            self.failure = e

    def _more(self, text):
        self.text += text

    def lines(self):
        return self.text.split("\n")[:-1]

    def count(self, word):
        return sum(line.split()[0] == word for line in self.lines())

    def finish(self):
        self.box.files.write("/dev/shm/stop", b"")
        self.thread.join(60)
        assert not self.thread.is_alive() and self.failure is None, self.failure
        assert [line for line in self.lines() if line.startswith("error")] == []


def errors_of_disks(state):
    """{image: errors its file system has seen} of those that had some; every mounted disk of the state directory is asked."""
    found, asked = {}, 0
    for p in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if p.read_text().startswith(f"{state}/node/disks/"):
                asked += 1
                n = int((pathlib.Path("/sys/fs/ext4") / p.parts[3] / "errors_count").read_text())
                if n:
                    found[p.read_text().strip()] = n
        except OSError:
            pass
    assert asked
    return found


def check_images(s, base):
    """e2fsck on a copy of every disk: its journal is replayed, and nothing else is wrong. Slots of the pool come and go meanwhile."""
    copy = base / "copy"
    for image in (s.state / "node/disks").glob("*.img"):
        def clean():
            copied = subprocess.run(["cp", "--sparse=always", image, copy], capture_output=True).returncode == 0
            return (copied and subprocess.run(["e2fsck", "-f", "-p", copy], capture_output=True).returncode in (0, 1)) or not image.exists()
        wait_for(clean, 60, f"a copy of {image.name} that e2fsck finds clean")
    copy.unlink(missing_ok=True)


def check_usable(box, number):
    """After a delete, as soon as the room has come back to the host."""
    assert box.commands.run("rm -f big*; sync; echo alive", timeout=60).stdout == "alive\n"
    root = [line.split()[3] for line in box.commands.run("cat /proc/mounts").stdout.splitlines() if line.split()[1] == "/"]
    assert root and all("rw" in options.split(",") for options in root)
    text = f"{number}" * 100000
    def written():
        try:
            box.files.write("after", text)
            return box.commands.run("mkdir -p d && cp after d/ && sync && cat d/after").stdout == text
        except (NotEnoughSpaceException, CommandExitException):
            return None
    wait_for(written, 60, "room to write")


def check_all(s, host, careful, boxes, ends=0):
    """Nothing lost, nothing read-only, everybody usable; so many were ended."""
    told = dict(line.split()[1:] for line in careful.lines() if line.startswith("file "))
    held = json.loads(careful.box.commands.run(f"python3 -c '{SUMS}'", timeout=60).stdout)
    assert {k: held.get(k) for k in told} == told
    for number, box in enumerate(boxes):
        check_usable(box, number)
    assert errors_of_disks(s.state) == {}
    check_images(s, host.base)
    for box in boxes:
        assert box.kill() is True
    assert s.log_tail(1 << 20).count("gone: disk_full") == ends


def started(s):
    """Three sandboxes, the third of which writes small files."""
    boxes = [Sandbox.create("base", timeout=600, **client(s)) for _ in range(3)]
    careful = Script(boxes[2], CAREFUL)
    wait_for(lambda: careful.count("file") > 5, 60, "small files")
    return boxes, careful


def more_files(careful, n):
    files = careful.count("file")
    wait_for(lambda: careful.count("file") > files + n, 120, f"{n} more small files")


def test_an_upload_leaves_the_reserve(small_host, serve):
    """How long it is nobody has said: it is refused where sandboxes would have to end for it, and nothing of it is left."""
    s = serve()
    status, made = s.call("POST", "/v3/templates", {"name": "large"})
    assert status == 202
    status, answer = s.call("GET", f"/templates/{made['templateID']}/files/{'0' * 64}")
    assert status == 201
    url = urllib.parse.urlsplit(answer["url"])
    small_host.take(leave=700 * MIB)
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        c.request("PUT", f"{url.path}?{url.query}", body=iter([bytes(MIB)] * 500), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    with contextlib.suppress(ConnectionError):
        assert c.getresponse().status == 507
    c.close()
    assert small_host.lowest > 480 * MIB
    wait_for(lambda: small_host.free() > 600 * MIB, 30, "its room to come back")
    assert not list((s.state / "node/files").iterdir())
    small_host.give_back()


def test_writers_inside_cannot_fill_the_host(small_host, serve):
    s = serve()
    boxes, careful = started(s)
    writers = [Script(box, WRITER) for box in boxes[:2]]
    wait_for(lambda: all(w.count("full") for w in writers), 60, "both writers to be refused")
    # They go on trying, and who writes little is not refused.
    refused = [w.count("full") for w in writers]
    more_files(careful, 60)
    assert careful.count("full") == 0
    assert all(w.count("full") > n for w, n in zip(writers, refused))
    assert small_host.lowest > FULL_MB * MIB
    status, body = s.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 507 and "disk" in body["message"], body
    for script in [*writers, careful]:
        script.finish()
    check_all(s, small_host, careful, boxes)


def test_who_writes_into_fallocated_blocks_waits_and_one_is_ended(small_host, serve):
    """No ENOSPC stops them: they are frozen, and when that frees nothing, one ends with disk_full, so that the others can go on."""
    s = serve()
    boxes, careful = started(s)
    writers = [Script(box, FALLOCATER, 1400) for box in boxes[:2]]
    ends = {}
    def ended():
        for box in boxes:
            status, body = s.call("GET", "/sandboxes/" + box.sandbox_id)
            if status == 404:
                ends[box.sandbox_id] = body["lastTermination"]
        return ends
    wait_for(ended, 60, "one to be ended")
    assert len(ends) == 1 and boxes[2].sandbox_id not in ends
    (end,) = ends.values()
    assert end["reason"] == "disk_full" and "the machine's disk is full" in end["detail"]
    assert small_host.lowest > 0
    left = [w for w in writers if w.box.sandbox_id not in ends]
    wait_for(lambda: left[0].count("written"), 60, "the other to end its file")
    more_files(careful, 5)
    careful.finish()
    assert "ending: disk_full" in s.log_tail(1 << 20)
    check_all(s, small_host, careful, [left[0].box, boxes[2]], ends=1)


@pytest.mark.parametrize("program,argument", [(WRITER, ""), (FALLOCATER, 800)], ids=["write", "fallocate"])
@pytest.mark.parametrize("when", ["at once", "late"])
def test_a_process_outside_fills_the_host(small_host, serve, program, argument, when):
    s = serve()
    boxes, careful = started(s)
    writers = [Script(box, program, argument) for box in boxes[:2]]
    if when == "late":
        wait_for(lambda: small_host.free() < 1400 * MIB, 60, "the writers to be well under way")
    outside = subprocess.Popen([sys.executable, "-c", OUTSIDE, small_host.top / "outside"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert outside.stdout.readline() == "full\n"
        time.sleep(5)  # the state under test: a full host that stays full
        assert small_host.free() < FULL_MB * MIB
    finally:
        outside.stdin.close()
        outside.wait()
        small_host.give_back()
    if program is FALLOCATER:
        wait_for(lambda: all(w.count("written") for w in writers), 60, "both files to be whole")
    for number, script in enumerate(writers):
        script.finish()
        check_usable(script.box, number)
    more_files(careful, 5)
    careful.finish()
    check_all(s, small_host, careful, boxes)


def test_creates_below_the_reserve_are_507(small_host, serve):
    s = serve()
    box = Sandbox.create("base", timeout=600, **client(s))
    small_host.take(leave=400 * MIB)
    status, body = s.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert (status, body["code"]) == (507, 507) and "disk" in body["message"] and "reserve" in body["message"], body
    check_usable(box, 1)
    small_host.give_back()
    def created():
        status, body = s.call("POST", "/v2/sandboxes", {"templateID": "base"})
        assert status in (201, 507), body
        return status == 201
    wait_for(created, 60, "a create")
    check_usable(box, 2)


def test_a_full_disk_of_one_sandbox_is_its_own(small_host, serve):
    s = serve(**{"sandbox.disk": 256})
    box, other = [Sandbox.create("base", timeout=600, **client(s)) for _ in range(2)]
    with pytest.raises(NotEnoughSpaceException):
        for i in range(40):
            box.files.write(f"big{i}", os.urandom(10 * MIB))
    other.files.write("x", "not concerned")
    assert other.files.read("x") == "not concerned"
    assert box.commands.run("cat big0 | wc -c").stdout.strip() == str(10 * MIB)
    box.commands.run("rm big0")
    box.files.write("after", b"a" * MIB)  # at once: nobody else's room is short
    assert box.files.read("after") == "a" * MIB
    assert "disk account: calm" not in s.log_tail()


def test_preallocated_disks_need_nothing_of_a_full_host(small_host, serve):
    s = serve(**{"disk.guarantee": "true", "sandbox.disk": 384})
    boxes, careful = started(s)
    images = list((s.state / "node/disks").glob("*.img"))
    assert len(images) >= 3 and all(i.stat().st_blocks * 512 >= i.stat().st_size == 384 * MIB for i in images)
    # Everything in one call, which no account could stop, and writers inside.
    small_host.take(leave=0)
    assert small_host.free() < MIB
    writers = [Script(box, WRITER) for box in boxes[:2]]
    wait_for(lambda: all(w.count("full") > 5 for w in writers), 60, "their own disks to be full")
    more_files(careful, 20)
    status, body = s.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 507, body
    assert all(i.stat().st_blocks * 512 >= i.stat().st_size for i in images if i.exists())
    for number, box in enumerate(boxes[:2]):
        writers[number].finish()
        check_usable(box, number)
    careful.finish()
    small_host.give_back()
    check_all(s, small_host, careful, boxes)


def test_everything_taken_in_one_call(small_host, serve):
    """What no account can stop. Files that were fsynced before are there, nobody who has nothing to write is hurt, and an end says why."""
    s = serve()
    boxes = [Sandbox.create("base", timeout=600, **client(s)) for _ in range(3)]
    for number, box in enumerate(boxes):
        box.commands.run(f"for i in 1 2 3 4 5; do echo {number}$i > f$i; done; sync")
    writer = Script(boxes[0], WRITER)
    wait_for(lambda: small_host.free() < 2000 * MIB, 60, "the writer to be under way")
    small_host.take(leave=0)
    time.sleep(5)
    small_host.give_back()
    ends = {}
    for number, box in enumerate(boxes):
        status, body = s.call("GET", "/sandboxes/" + box.sandbox_id)
        if status == 404:
            ends[number] = body["lastTermination"]["reason"]
            continue
        expected = "".join(f"{number}{i}\n" for i in range(1, 6))
        assert box.commands.run("cat f1 f2 f3 f4 f5").stdout == expected
        if number:
            check_usable(box, number)
    assert set(ends) <= {0} and set(ends.values()) <= {"disk_full"}
    assert "disk account: " in s.log_tail(1 << 20) and " -> full: " in s.log_tail(1 << 20)
