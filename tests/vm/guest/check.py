"""Runs inside the emulated machine: drives the server with the backend `microvm` (or `namespace`, to try this program itself) over its API.

usage: check.py PART microvm|namespace
"""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

import api
import leak  # tests/e2e/leak.py
import monitor
from api import Sandbox, basics, guarded, nothing_left, say, wait

PIDS = 64
HOST, WORLD, INNER = "203.0.113.1", "203.0.113.2", "10.9.9.9"  # this machine, the internet as far as it exists here, and somebody's private address in it
BLOB = os.urandom(1 << 20)
MICROVM = sys.argv[2] == "microvm"
KERNEL = next(pathlib.Path("/boot").glob("vmlinuz-*"))


def new_server(*options, isolation="microvm"):
    """With `auto` it has to find out that it can, and the kernel, too."""
    backend = () if not MICROVM else ("--isolation=auto",) if isolation == "auto" else ("--isolation=microvm", f"--guest.kernel={KERNEL}")
    return api.Server("--pool.min=1", "--pool.max=2", "--disk.reserve=2", f"--sandbox.pids={PIDS}", *backend, *options)


def doctor():
    """What microVMs need is here."""
    r = subprocess.run([api.HERE / "cubicle", "doctor"], capture_output=True, text=True, env=api.ENVIRONMENT | {"CUBICLE_ISOLATION": "microvm"})
    for what in "KVM", "guest kernel", "monitor", "tap links":
        assert f"OK       microVMs: {what}" in r.stdout, r.stdout + r.stderr
    say("ok: the doctor finds what microVMs take")


def make_world():
    """A network namespace that everything without a route of its own goes to, with a web server."""
    for words in ("netns add world", "link add world0 type veth peer name eth0 netns world", f"addr add {HOST}/24 dev world0", "link set world0 up", f"route add default via {WORLD}",
                  f"-n world addr add {WORLD}/24 dev eth0", "-n world link set eth0 up", "-n world link set lo up", f"-n world addr add {INNER}/32 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
    os.makedirs("/tmp/world")
    pathlib.Path("/tmp/world/blob").write_bytes(BLOB)
    for prefix in ["ip", "netns", "exec", "world"], []:
        subprocess.Popen([*prefix, sys.executable, "-m", "http.server", "--directory", "/tmp/world", "8000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(lambda: fetches(WORLD) and fetches(HOST), 120, "the web servers")


def fetches(address):
    try:
        c = http.client.HTTPConnection(address, 8000, timeout=10)
        c.request("GET", "/blob")
        return c.getresponse().read() == BLOB
    except OSError:
        return False


def processes(name):
    """{pid: its words}"""
    found = {}
    for p in pathlib.Path("/proc").iterdir():
        try:
            words = (p / "cmdline").read_bytes().decode(errors="replace").split("\0") if p.name.isdigit() else [""]
        except OSError:
            continue
        if pathlib.Path(words[0]).name == name:
            found[int(p.name)] = words
    return found


def monitor_of(box):
    pids = [pid for pid, words in processes("cubicle-vmm").items() if f"name={box.id}" in words]
    assert len(pids) == 1, (box.id, processes("cubicle-vmm"))
    return pids[0]


def memory_files(pid):
    """The sizes of those that a process has open, by their names."""
    links = {fd: os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
    return {link.removeprefix("/memfd:").removesuffix(" (deleted)"): fd.stat().st_size for fd, link in links.items() if link.startswith("/memfd:")}


def kill_now(pid):
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
    finally:
        os.close(process)


def termination(server, box):
    """How it ended; None while it has not."""
    status, body = server.call("GET", "/sandboxes/" + box.id)
    return body.get("lastTermination") if status == 404 else None


def ended(server, box, reason):
    wait(lambda: termination(server, box), 120, f"the end of {box.id}")
    assert termination(server, box)["reason"] == reason, termination(server, box)


def command(box):
    """Leaves a command running, to be asked for with lives()."""
    box.start("/bin/sh", "-c", "echo $$ > /tmp/pid; exec sleep 9999")
    wait(lambda: box.file("GET", "/tmp/pid")[0] == 200, 120, "a command")


def lives(box):
    """The very command: a pid alone may be another's after a boot, that of this question, too."""
    return box.run("/bin/sh", "-c", r"""[ "$(tr '\0' ' ' < /proc/$(cat /tmp/pid)/cmdline)" = 'sleep 9999 ' ]""")[0]["exitCode"] == 0


def inside(box, server):
    """What the sandbox is from inside."""
    assert server.call("GET", "/sandboxes/" + box.id)[1]["isolation"] == sys.argv[2]
    release = box.shell("uname -r").strip()
    assert release == (KERNEL.name.removeprefix("vmlinuz-") if MICROVM else os.uname().release), release
    if MICROVM:
        assert box.shell("nproc").strip() == "2"
        total = int(box.shell("awk '/MemTotal/ {print $2}' /proc/meminfo"))
        assert 64 << 10 < total <= 128 << 10, total
        assert "cubicle-vmm" not in box.shell("cat /proc/*/comm; cat /proc/mounts"), "the machine outside is seen"
    clock(box)
    say("ok: its own kernel and clock")


def clock(box):
    before = time.time()
    now = int(box.shell("date +%s"))
    assert before - 2 < now < time.time() + 2, (before, now, time.time())


def loads(box, address, seconds=20):
    end, out = box.run("/bin/sh", "-c", f"timeout {seconds} wget -q -O - http://{address}:8000/blob | sha256sum", timeout=120)
    return out.split()[0].decode() == hashlib.sha256(BLOB).hexdigest()


def network(box, server):
    assert loads(box, WORLD, 100), "the internet is not reached"
    for address in HOST, INNER:
        assert not loads(box, address, 3), f"{address} is reached"
    assert server.call("PUT", f"/sandboxes/{box.id}/network", {"denyOut": [WORLD + "/32"]})[0] == 204
    assert not loads(box, WORLD, 3), "what is denied is reached"
    assert server.call("PUT", f"/sandboxes/{box.id}/network", {})[0] == 204
    assert loads(box, WORLD, 100)
    box.start("/bin/sh", "-c", r"while :; do printf 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello' | nc -l -p 8080 >/dev/null; done")
    wait(lambda: visits(box) == b"hello", 120, "a port of the sandbox")
    say("ok: the network, out and in")


def visits(box):
    try:
        c = http.client.HTTPConnection("127.0.0.1", api.PORT, timeout=60)
        c.request("GET", "/", headers={**box.headers(), "E2b-Sandbox-Port": "8080"})
        r = c.getresponse()
        return r.read() if r.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None


def files(box):
    """Sizes at which a queue or a buffer somewhere is full."""
    for n in 0, 1, 65536, 3000001:
        data = os.urandom(n)
        assert box.file("POST", "/home/user/f", data)[0] == 200
        assert box.file("GET", "/home/user/f") == (200, data), n
    assert hashlib.sha256(data).hexdigest() in box.shell("sync; cat /home/user/f | sha256sum")
    flood = box.shell("yes 0123456789abcde | head -c 8000000")
    assert len(flood) == 8000000 and flood.startswith("0123456789abcde\n" * 1000)
    say("ok: large files and much output")


def limits(box):
    end, _ = box.run("/bin/sh", "-c", "x=aaaaaaaa; while :; do x=$x$x; done", timeout=120)
    assert end["exitCode"] != 0 and "oom_killed: the memory limit of " in json.dumps(end), end
    assert box.shell("echo alive") == "alive\n"
    end, out = box.run("/bin/sh", "-c", f"i=0; while [ $i -lt {PIDS + 20} ]; do sleep 999 >/dev/null 2>&1 & i=$((i+1)); done; echo all", timeout=120)
    assert b"all" not in out and b"can't fork" in out, (end, out)
    box.kill_all()
    assert box.shell("echo alive") == "alive\n"
    end, out = box.run("/bin/dd", "if=/dev/zero", "of=/home/user/fill", "bs=1M", "count=120", timeout=120)
    assert end["exitCode"] != 0 and b"No space left" in out, (end, out)
    assert box.run("/bin/rm", "/home/user/fill")[0]["exitCode"] == 0
    assert box.file("POST", "/home/user/again", b"y" * 1000000)[0] == 200
    say("ok: memory, processes and disk are limited; the agent lives")


def node_dies(server, boxes):
    for box in boxes:
        command(box)
    node = server.child("node")
    kill_now(node)
    wait(lambda: server.child("node") not in (None, node), 120, "a new node")
    for box in boxes:
        wait(lambda: box.answers("adopted"), 120, "the sandbox to be adopted")
        assert lives(box)
    assert {b["sandboxID"] for b in server.call("GET", "/v2/sandboxes")[1]} == {b.id for b in boxes}
    say("ok: a killed node adopts its sandboxes")


def server_stops(server, boxes):
    """Sandboxes live on while no server is there; what is told when they end meanwhile is told afterwards."""
    server.stop()
    time.sleep(1)
    if MICROVM and len(boxes) > 1:
        kill_now(monitor_of(boxes[-1]))
    server.start()
    for box in boxes if not MICROVM else boxes[:-1] or boxes:
        wait(lambda: box.answers("adopted"), 120, "the sandbox to be adopted")
        assert lives(box)
    if MICROVM and len(boxes) > 1:
        ended(server, boxes[-1], "crashed")
    say("ok: a server that was stopped finds its sandboxes")


def of_its_own(boxes):
    """What no two sandboxes have in common, though one state may be restored for both."""
    for what in "cat /proc/sys/kernel/random/boot_id", "cat /etc/machine-id", "head -c 16 /dev/urandom | od -x", "hostname":
        words = [box.shell(what) for box in boxes]
        assert len(set(words)) == len(words), (what, words)
    say("ok: identities and random numbers differ")


def server():
    make_world()
    before = leak.snapshot()
    s = new_server().start()
    box = basics(s)
    inside(box, s)
    files(box)
    network(box, s)
    limits(box)
    box.kill()
    boxes = [Sandbox(s, timeout=3600) for _ in range(2)]
    of_its_own(boxes)
    node_dies(s, boxes)
    server_stops(s, boxes)
    for box in boxes:
        if not termination(s, box):
            box.kill()
    s.stop()
    nothing_left(before)
    say("ok: nothing is left")


def state():
    before = leak.snapshot()
    if MICROVM:
        doctor()
    s = new_server("--sandbox.cpu=1", isolation="auto").start()
    box = Sandbox(s, timeout=3600).fill()
    assert s.call("GET", "/sandboxes/" + box.id)[1]["isolation"] == sys.argv[2]
    command(box)
    box.shell("echo kept > /dev/shm/memory")
    for _ in range(2):
        box.pause(True)
        time.sleep(3)
        status, answer = s.call("POST", f"/sandboxes/{box.id}/connect", {"timeout": 600})
        assert status == 201, (status, answer)
        box.token = answer["envdAccessToken"]
        assert lives(box) and box.shell("cat /dev/shm/memory") == "kept\n"
        clock(box)
        box.check()
    say("ok: a pause keeps the memory")
    box.pause(False)
    box = Sandbox.resumed(s, box.id).check()
    assert not lives(box)
    say("ok: a pause that keeps the disk")
    snapshot = box.snapshot()
    assert box.answers("still")
    copy = Sandbox(s, templateID=snapshot).check()
    status, answer = s.call("POST", f"/sandboxes/{box.id}/fork", {"count": 2})
    assert status == 201, (status, answer)
    children = [Sandbox.known(s, a["sandbox"]["sandboxID"], a["sandbox"]["envdAccessToken"]).check() for a in answer]
    of_its_own([box, copy, *children])
    say("ok: a snapshot and forks have the files")
    box.pause(True)
    for b in copy, *children:
        b.kill()
    s.stop()
    s.start()
    status, answer = s.call("POST", f"/sandboxes/{box.id}/connect", {"timeout": 600})
    assert status == 201, (status, answer)
    box.check()
    box.pause(True)
    if MICROVM:
        for pid in processes("cubicle-vmm"):  # whoever keeps the memory, if anybody does
            kill_now(pid)
        s.call("POST", f"/sandboxes/{box.id}/connect", {"timeout": 600})
        wait(lambda: box.answers("again"), 120, "the sandbox, with its memory or without")
        box.check()
        say("ok: a paused sandbox outlives its monitor")
    box.kill()
    assert s.call("DELETE", "/templates/" + snapshot)[0] == 204
    s.stop()
    nothing_left(before)
    say("ok: nothing is left")


def flood_console(box):
    box.run("/bin/sh", "-c", "timeout 3 yes 0123456789abcdef0123456789abcdef0123456789abcdef > /dev/console", user="root")
    kept = memory_files(monitor_of(box))
    assert 4 << 10 < kept["console"] <= 256 << 10 and kept["log"] <= 16 << 10, kept
    assert box.answers("alive")


def write_over_disks(box):
    """It harms itself. The template, which the next one is made from, stays whole."""
    try:
        box.run("/bin/sh", "-c", "for d in /dev/vd*; do dd if=/dev/urandom of=$d bs=64k count=64; done; sync; echo 3 > /proc/sys/vm/drop_caches", user="root")
    except (OSError, ValueError, AssertionError, http.client.HTTPException):
        pass


def end_itself(server, box, script):
    """What waits for a command of it hears of its end, too."""
    waiting = None if termination(server, box) else box.request(["/bin/sleep", "9999"], "user", 120)
    try:
        box.request(["/bin/sh", "-c", script], "root", 120).close()
        waiting.read()
    except (OSError, AttributeError, http.client.HTTPException):
        pass
    ended(server, box, "crashed")
    assert server.call("DELETE", "/sandboxes/" + box.id)[0] == 404


def flood(box):
    for script in (f"while :; do head -c 1400 /dev/zero | timeout 1 nc -u -w 1 {WORLD} 9; done", "while :; do yes > /home/user/full; done", "b() { b | b & }; b", "while :; do :; done"):
        box.start("/bin/sh", "-c", script)


def hostile():
    make_world()
    before = leak.snapshot()
    s = new_server("--sandbox.cpu=1").start()
    witness = Sandbox(s, timeout=3600)
    command(witness)
    for name, script, harm in ENDS if MICROVM else ():
        box = Sandbox(s, timeout=3600).fill().check()
        harm(box)
        end_itself(s, box, script)
        assert lives(witness)
        say(f"ok: {name}")
    box = Sandbox(s, timeout=3600)
    flood(box)
    for _ in range(5):
        assert lives(witness)
    say("ok: floods, and the neighbour answers")
    if MICROVM:
        kill_now(monitor_of(box))
        ended(s, box, "crashed")
        say("ok: kill -9 of the monitor")
    else:
        box.kill()
    flood(witness)
    witness.kill()
    s.stop()
    nothing_left(before)
    say("ok: nothing is left")


def small_state():
    """The state directory on a file system of its own: its reserve is 100 MiB then, it is red below 50 and full below 25."""
    image = "/small.img"
    with open(image, "wb") as f:
        f.truncate(400 * MIB)
    for words in f"mkfs.ext4 -q -m 0 -F {image}", f"busybox mount -o loop {image} /mnt", f"cp -a {api.STATE}/. /mnt", "umount /mnt", f"busybox mount -o loop {image} {api.STATE}":
        subprocess.run(words.split(), check=True)


def free():
    st = os.statvfs(api.STATE)
    return st.f_bavail * st.f_frsize


class Outside:
    """A process beside the sandboxes that takes what there is but 10 MiB, and what comes back, too."""

    def __init__(self):
        self.end = False
        self.file = open(api.STATE + "/outside", "wb")
        self.thread = threading.Thread(target=self.take, daemon=True)
        self.thread.start()

    def take(self):
        at = 0
        while not self.end:
            more = free() - 10 * MIB
            if more > MIB:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(self.file.fileno(), at, more)
                    at += more
            time.sleep(0.05)

    def give_back(self):
        self.end = True
        self.thread.join()
        self.file.close()
        os.unlink(self.file.name)


def log_of(server, box):
    return json.dumps(server.call("GET", f"/sandboxes/{box.id}/logs")[1])


def stands(box):
    try:
        box.request(["/bin/true"], "user", 6).read(1)
        return False
    except OSError:
        return True


def room():
    """The host's disk is filled from outside while a sandbox writes."""
    small_state()
    before = leak.snapshot()
    s = new_server("--sandbox.cpu=1").start()
    writer, witness, doomed = (Sandbox(s, timeout=3600).fill() for _ in range(3))
    for box in writer, witness, doomed:
        command(box)
        box.shell("sync")
    writer.start("/bin/sh", "-c", "while :; do dd if=/dev/zero of=/home/user/f bs=64k count=640 conv=fsync 2>/dev/null && echo done || echo failed; sleep 0.1; done >> /dev/shm/rounds")
    wait(lambda: "done" in writer.shell("cat /dev/shm/rounds"), 120, "what it writes")
    outside = Outside()
    for box in writer, witness, doomed:
        wait(lambda: FROZEN in log_of(s, box), 120, f"{box.id} to be told that it is frozen: {log_of(s, box)}")
    assert s.call("GET", "/sandboxes/" + witness.id)[1]["state"] == "running"
    assert s.call("POST", "/v2/sandboxes", {"templateID": Sandbox.template})[0] == 507
    assert stands(witness)
    say("ok: on a full disk all are frozen, and their logs say so")
    doomed.kill()
    say("ok: a frozen one is killed")
    assert s.call("POST", f"/sandboxes/{witness.id}/snapshots", {})[0] == 507
    if MICROVM:
        status, answer = s.call("POST", f"/sandboxes/{witness.id}/pause", {"memory": False})
        assert status == 507 and "full" in json.dumps(answer), (status, answer)
    witness.pause(True)
    outside.give_back()
    wait(lambda: GOES_ON in log_of(s, writer), 120, "the sandbox to go on")
    rounds = writer.shell("cat /dev/shm/rounds")
    say("what it had written:", *rounds.split())
    assert lives(writer)
    if "failed" not in rounds:  # else it got what the host's disk said, which its file system may not have borne
        n = rounds.count("done")
        wait(lambda: writer.shell("cat /dev/shm/rounds").count("done") > n + 1, 120, "it to write on")
        writer.check()
    status, answer = s.call("POST", f"/sandboxes/{witness.id}/connect", {"timeout": 600})
    assert status == 201 and answer["resumedFrom"] == "memory", (status, answer)
    witness.token = answer["envdAccessToken"]
    assert lives(witness)
    witness.check().shell("echo x > /home/user/x; sync")
    say("ok: with room they go on")
    for box in writer, witness:
        box.kill()
    s.stop()
    nothing_left(before)
    say("ok: nothing is left")


MIB = 1 << 20
FROZEN, GOES_ON = "frozen: the server's disk is nearly full", "goes on: the server's disk has room again"
ENDS = (  # what root may do to its own machine
    ("the console flooded, panic", "echo c > /proc/sysrq-trigger", flood_console),
    ("its disks written over, reset", "echo b > /proc/sysrq-trigger", write_over_disks),
    ("reboot", "reboot -f", lambda box: None),
    ("power off", "poweroff -f", lambda box: None),
)
Sandbox.template = "vm"
guarded({"monitor": monitor.monitor, "ends": monitor.endings, "save": monitor.save, "server": server, "state": state, "room": room, "hostile": hostile}[sys.argv[1]])
