"""Runs inside the booted Debian 12 machine: drives the server over its API with nothing but the standard library."""

import base64
import hashlib
import http.client
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time
import traceback

STATE, PORT = "/var/lib/cubicle", 3000
LOG = "/var/log/cubicle.log"


def say(*words):
    print(*words, flush=True)


class Server:
    def start(self):
        self.process = subprocess.Popen(["/distro/cubicle", "serve", "--pool.min=1", "--pool.max=2", "--disk.reserve=2", "--sandbox.disk=256", f"--log.file={LOG}"], stdin=subprocess.DEVNULL,
                                        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True)
        wait(self.healthy, 60, "the server")
        self.key = open(f"{STATE}/first-key").read().strip()
        return self

    def healthy(self):
        assert self.process.poll() is None, "the server ended: " + tail()
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        headers = {"Content-Type": "application/json", "X-API-Key": getattr(self, "key", "none")}
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        r = c.getresponse()
        raw = r.read()
        return r.status, json.loads(raw) if raw else None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0

    def child(self, name):
        for p in pathlib.Path("/proc").iterdir():
            if p.name.isdigit() and (p / "cmdline").read_bytes() == b"cubicle\0" + name.encode() + b"\0":
                return int(p.name)


class Sandbox:
    def __init__(self, server, **body):
        self.server = server
        status, answer = server.call("POST", "/v2/sandboxes", {"templateID": "distro", **body})
        assert status == 201, (status, answer, tail())
        self.id, self.token = answer["sandboxID"], answer["envdAccessToken"]

    def headers(self):
        return {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49983", "X-Access-Token": self.token}

    def run(self, *argv, user="user", timeout=60):
        body = json.dumps({"process": {"cmd": argv[0], "args": list(argv[1:])}, "stdin": False}).encode()
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
        c.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(body)) + body,
                  {**self.headers(), "Connect-Protocol-Version": "1", "Content-Type": "application/connect+json",
                   "Authorization": "Basic " + base64.b64encode(user.encode() + b":").decode()})
        raw, out, end = c.getresponse().read(), b"", None
        while raw:
            flags, n = struct.unpack(">BI", raw[:5])
            message, raw = json.loads(raw[5:5 + n]), raw[5 + n:]
            event = message.get("event", {})
            out += base64.b64decode(event.get("data", {}).get("stdout", "")) + base64.b64decode(event.get("data", {}).get("stderr", ""))
            end = event.get("end", end)
            assert "error" not in message, message
        return end, out

    def file(self, method, path, data=None):
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        c.request(method, "/files?path=" + path, data, {**self.headers(), "Content-Type": "application/octet-stream"})
        r = c.getresponse()
        return r.status, r.read()

    def kill(self):
        assert self.server.call("DELETE", "/sandboxes/" + self.id)[0] == 204


def tail():
    return open(LOG).read()[-3000:] if os.path.exists(LOG) else ""


def wait(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited for {what}; {tail()}"
        time.sleep(0.1)


def leftovers():
    found = [m.split()[4] for m in open("/proc/self/mountinfo") if "cubicle" in m]
    found += [n for n in os.listdir("/sys/class/net") if n.startswith("cub")]
    found += [str(p) for p in pathlib.Path("/sys/fs/cgroup").rglob("cubicle*")]
    found += [p.read_text() for p in pathlib.Path("/sys/block").glob("loop*/loop/backing_file") if "disks" in p.read_text()]
    for p in pathlib.Path("/proc").iterdir():
        try:
            if p.name.isdigit() and os.readlink(p / "ns/pid") != os.readlink("/proc/self/ns/pid"):
                found.append(f"process {p.name}")
        except OSError:
            pass
    found += [str(p) for p in pathlib.Path(STATE, "node/disks").rglob("*") if p.is_file()]
    return found


def nothing_left():
    wait(lambda: not leftovers(), 20, f"nothing to be left of {leftovers()}")


def cgroup_of(command):
    for p in pathlib.Path("/proc").iterdir():
        try:
            if p.name.isdigit() and (p / "cmdline").read_bytes() == command:
                return int(p.name), (p / "cgroup").read_text()
        except OSError:
            pass
    raise AssertionError(f"{command} does not run")


def basics(server):
    box = Sandbox(server, envVars={"A": "b c"})
    end, out = box.run("/bin/sh", "-c", "id -u; echo $A; pwd")
    assert end["exitCode"] == 0 and out == b"1000\nb c\n/home/user\n", (end, out)
    data = os.urandom(300000)
    assert box.file("POST", "/home/user/f", data)[0] == 200
    assert box.file("GET", "/home/user/f") == (200, data)
    assert box.run("/bin/sha256sum", "/home/user/f")[1].split()[0].decode() == hashlib.sha256(data).hexdigest()
    say("ok: create, exec, files")
    return box


def limits(server, box):
    end, out = box.run("/bin/sh", "-c", "x=a; while :; do x=$x$x; done", timeout=120)
    assert end["exitCode"] != 0, (end, out)
    assert box.run("/bin/echo", "alive")[1] == b"alive\n"
    end, out = box.run("/bin/sh", "-c", "i=0; while [ $i -lt 700 ]; do sleep 20 & i=$((i+1)); done; echo all", timeout=120)
    assert b"all" not in out, "the pids limit did not hold"
    box.run("/bin/sh", "-c", "kill -9 -1", user="root")
    assert box.run("/bin/echo", "alive")[1] == b"alive\n"
    end, out = box.run("/bin/dd", "if=/dev/zero", "of=/home/user/fill", "bs=1M", "count=400", timeout=120)
    assert end["exitCode"] != 0 and b"space" in out, (end, out)
    assert box.run("/bin/rm", "/home/user/fill")[0]["exitCode"] == 0
    say("ok: memory, processes and disk are limited; the agent lives")


def start_background(box, seconds):
    body = json.dumps({"process": {"cmd": "/bin/sleep", "args": [seconds]}, "stdin": False}).encode()
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    c.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(body)) + body,
              {**box.headers(), "Connect-Protocol-Version": "1", "Content-Type": "application/connect+json"})
    c.getresponse().read(5)
    return c


def freeze_and_kill(box):
    start_background(box, "7654")
    pid, groups = cgroup_of(b"/bin/sleep\x007654\0")
    path = pathlib.Path("/sys/fs/cgroup" + groups.strip().split("::")[1])
    (path / "cgroup.freeze").write_text("1")
    wait(lambda: "frozen 1" in (path / "cgroup.events").read_text(), 10, "the freeze")
    (path / "cgroup.freeze").write_text("0")
    (path / "cgroup.kill").write_text("1")
    wait(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1][:3], 10, "the kill")
    say("ok: the work cgroup freezes and dies as one")


def adoption(server, box):
    node = server.child("node")
    os.kill(node, signal.SIGKILL)
    wait(lambda: server.child("node") not in (None, node), 20, "a new node")

    def answers():
        try:
            return box.run("/bin/echo", "adopted")[1] == b"adopted\n"
        except (OSError, ValueError, AssertionError):
            return False
    wait(answers, 30, "the sandbox to be adopted")
    say("ok: a killed node adopts its sandboxes")


def first():
    server = Server().start()
    box = basics(server)
    limits(server, box)
    freeze_and_kill(box)
    box.kill()
    box = Sandbox(server, metadata={"cut": "yes"}, timeout=3600)
    adoption(server, box)
    box.file("POST", "/home/user/kept", b"x" * 100000)
    open("/distro/cut-id", "w").write(box.id)
    os.sync()
    say("CUT NOW")
    while True:  # the power goes in the middle of this
        other = Sandbox(server)
        other.file("POST", "/home/user/g", os.urandom(100000))
        other.kill()


def after():
    server = Server().start()
    gone = open("/distro/cut-id").read()
    status, body = server.call("GET", "/sandboxes/" + gone)
    assert status == 404 and body["lastTermination"]["reason"] == "host_lost", (status, body)
    assert server.call("GET", "/v2/sandboxes") == (200, [])
    basics(server).kill()
    server.stop()
    nothing_left()
    say("ok: after the power cut nothing is half made")


def v1():
    server = Server().start()
    box = basics(server)
    limits(server, box)
    box.kill()
    server.stop()
    nothing_left()
    say("ok: cgroup v1")


try:
    {"first": first, "after": after, "v1": v1}[sys.argv[1]]()
    say("RESULT PASS")
except BaseException:
    traceback.print_exc()
    say(tail())
    say("RESULT FAIL")
