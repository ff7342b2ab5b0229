"""Drives a server over its API with nothing but the standard library, in a machine that a test booted."""

import base64
import hashlib
import http.client
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import time
import traceback

import leak  # tests/e2e/leak.py

HERE = pathlib.Path(__file__).resolve().parent
STATE, PORT = "/var/lib/cubicle", 3000
LOG = "/var/log/cubicle.log"
ENVIRONMENT = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
START = time.monotonic()


def say(*words):
    print(f"{time.monotonic() - START:6.1f}", *words, flush=True)


class Server:
    def __init__(self, *options):
        self.options = options

    def start(self):
        self.process = subprocess.Popen([HERE / "cubicle", "serve", *self.options, f"--log.file={LOG}"], stdin=subprocess.DEVNULL, env=ENVIRONMENT, start_new_session=True)
        wait(self.healthy, 120, "the server")
        self.key = open(f"{STATE}/first-key").read().strip()
        return self

    def healthy(self):
        assert self.process.poll() is None, "the server ended"
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
        headers = {"Content-Type": "application/json", "X-API-Key": getattr(self, "key", "none")}
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        r = c.getresponse()
        raw = r.read()
        return r.status, json.loads(raw) if raw else None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0

    def child(self, name):
        return pid_of(b"cubicle\0" + name.encode() + b"\0")


class Sandbox:
    template = None  # the one that the disk has

    def __init__(self, server, **body):
        self.server = server
        status, answer = server.call("POST", "/v2/sandboxes", {"templateID": Sandbox.template, **body})
        assert status == 201, (status, answer)
        self.id, self.token = answer["sandboxID"], answer["envdAccessToken"]

    @classmethod
    def known(cls, server, i, token):
        box = cls.__new__(cls)
        box.server, box.id, box.token = server, i, token
        return box

    @classmethod
    def resumed(cls, server, i):
        """One that was paused before the power went, from its disk."""
        status, answer = server.call("POST", f"/sandboxes/{i}/connect", {"timeout": 600})
        assert status == 201 and answer["resumedFrom"] == "disk", (status, answer)
        return cls.known(server, i, answer["envdAccessToken"])

    def fill(self):
        """Leaves a file that can be checked."""
        data = os.urandom(100000)
        assert self.file("POST", "/home/user/g", data)[0] == 200
        assert self.file("POST", "/home/user/g.sum", hashlib.sha256(data).hexdigest().encode())[0] == 200
        return self

    def check(self):
        assert hashlib.sha256(self.file("GET", "/home/user/g")[1]).hexdigest().encode() == self.file("GET", "/home/user/g.sum")[1], self.id
        assert self.run("/bin/sha256sum", "/home/user/g")[0]["exitCode"] == 0
        return self

    def pause(self, memory):
        assert self.server.call("POST", f"/sandboxes/{self.id}/pause", {"memory": memory})[0] == 204

    def snapshot(self, **body):
        status, answer = self.server.call("POST", f"/sandboxes/{self.id}/snapshots", body)
        assert status == 201, (status, answer)
        return answer["snapshotID"]

    def headers(self):
        return {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49983", "X-Access-Token": self.token}

    def request(self, argv, user, timeout):
        body = json.dumps({"process": {"cmd": argv[0], "args": list(argv[1:])}, "stdin": False}).encode()
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
        c.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(body)) + body,
                  {**self.headers(), "Connect-Protocol-Version": "1", "Content-Type": "application/connect+json",
                   "Authorization": "Basic " + base64.b64encode(user.encode() + b":").decode()})
        return c.getresponse()

    def start(self, *argv, user="user"):
        """Leaves the command running; the first event says that it does."""
        self.request(argv, user, 60).read(5)

    def run(self, *argv, user="user", timeout=120):
        raw, out, end = self.request(argv, user, timeout).read(), b"", None
        while raw:
            flags, n = struct.unpack(">BI", raw[:5])
            message, raw = json.loads(raw[5:5 + n]), raw[5 + n:]
            event = message.get("event", {})
            out += base64.b64decode(event.get("data", {}).get("stdout", "")) + base64.b64decode(event.get("data", {}).get("stderr", ""))
            end = event.get("end", end)
            assert "error" not in message, message
        return end, out

    def shell(self, script, user="user", timeout=120):
        """What a script says that must succeed."""
        end, out = self.run("/bin/sh", "-c", script, user=user, timeout=timeout)
        assert end and end["exitCode"] == 0, (script, end, out)
        return out.decode(errors="replace")

    def file(self, method, path, data=None):
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
        c.request(method, "/files?path=" + path, data, {**self.headers(), "Content-Type": "application/octet-stream"})
        r = c.getresponse()
        return r.status, r.read()

    def answers(self, word):
        try:
            return self.run("/bin/echo", word)[1].decode() == word + "\n"
        except (OSError, ValueError, AssertionError, http.client.HTTPException):
            return False

    def kill_all(self):
        self.run("/bin/sh", "-c", "kill -9 -1", user="root")

    def kill(self):
        assert self.server.call("DELETE", "/sandboxes/" + self.id)[0] == 204


def basics(server, **body):
    box = Sandbox(server, envVars={"A": "b c"}, **body)
    end, out = box.run("/bin/sh", "-c", "id -u; echo $A; pwd")
    assert end["exitCode"] == 0 and out == b"1000\nb c\n/home/user\n", (end, out)
    data = os.urandom(300000)
    assert box.file("POST", "/home/user/f", data)[0] == 200
    assert box.file("GET", "/home/user/f") == (200, data)
    assert box.run("/bin/sha256sum", "/home/user/f")[1].split()[0].decode() == hashlib.sha256(data).hexdigest()
    say("ok: create, exec, files")
    return box


def tail():
    """The end of the server's log, without the noise, and what the kernel complained about."""
    lines = [line for line in open(LOG) if "/health" not in line] if os.path.exists(LOG) else []
    kernel = [line for line in subprocess.run(["dmesg", "-x"], capture_output=True, text=True).stdout.splitlines(keepends=True)
              if re.match(r"\w+ *:(emerg|alert|crit|err) ", line) or "audit" in line]
    return "".join(lines[-40:] + kernel[-20:])


def wait(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited for {what() if callable(what) else what}"
        time.sleep(0.1)


def nothing_left(before):
    wait(lambda: not leak.leaked(before) and not leak.state_leftovers(STATE), 120, lambda: f"nothing to be left of {leak.leaked(before)} {leak.state_leftovers(STATE)}")


def pid_of(command):
    for p in pathlib.Path("/proc").iterdir():
        try:
            if p.name.isdigit() and (p / "cmdline").read_bytes() == command:
                return int(p.name)
        except OSError:
            pass
    return None


def guarded(part, *args):
    """Runs a part, or a thread of one, and says how it went: the harness waits for that."""
    try:
        part(*args)
        say("RESULT PASS")
    except BaseException:
        print(traceback.format_exc() + tail(), flush=True)
        say("RESULT FAIL")
