"""Clients that do at random what clients do, while the server's processes are killed. What a client was told holds, whatever happens: nothing is lost, stuck or wrong.

An error that a restart may cause (502, 503, a connection that ends) is no answer: the call is made again. Everything else is judged."""

import base64
import collections
import hashlib
import http.client
import json
import random
import struct
import threading
import time
import traceback
import urllib.parse

import e2b
from e2b import Sandbox

PATIENCE = 120  # seconds that a call may go on failing as it may during a restart
MAX_BOXES, MAX_SNAPSHOTS = 3, 2  # of one client
MAX_DEPTH = 19  # of a disk: 20 layers, one of them the template's (docs/lifecycle.md)
ENVD = 49983


class Again(Exception):
    """What a restart may cause."""


class Status(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status}: {body!r:.300}")
        self.status = status


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Raw:
    """The protocol by hand."""

    def __init__(self, server):
        self.server = server

    def call(self, method, path, body=None, headers=None, expect=(200, 201, 204)):
        """(status, body) of one request; what came of one that failed is not known."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=70)
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            data = r.read()
        except (OSError, http.client.HTTPException) as e:
            raise Again(repr(e)) from e
        finally:
            c.close()
        if r.status in (502, 503, 504):
            raise Again(f"{r.status}: {data!r:.200}")
        if r.status not in expect:
            raise Status(r.status, data)
        return r.status, data

    def api(self, method, path, body=None, expect=(200, 201, 204)):
        headers = {"X-API-Key": self.server.api_key}
        if body is not None:
            headers["Content-Type"] = "application/json"
        status, data = self.call(method, path, None if body is None else json.dumps(body), headers, expect)
        return status, json.loads(data) if data else None

    def inside(self, box, method, path, body=None, headers=None):
        return self.call(method, path, body, {"Host": f"{ENVD}-{box.id}.sbx.test", "X-Access-Token": box.token, **(headers or {})})[1]

    def create(self, template, mark):
        made = self.api("POST", "/v2/sandboxes", {"templateID": template, "timeout": 3600, "metadata": mark, "autoPause": True, "autoResume": {"enabled": True}})[1]
        return made["sandboxID"], made["envdAccessToken"]

    def write(self, box, path, data):
        self.inside(box, "POST", f"/files?path={path}&username=user", data, {"Content-Type": "application/octet-stream"})

    def read(self, box, path):
        return self.inside(box, "GET", f"/files?path={path}&username=user")

    def run(self, box, command):
        start = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", command]}}).encode()
        data = self.inside(box, "POST", "/process.Process/Start", b"\0" + struct.pack(">I", len(start)) + start, {
            "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", "Authorization": "Basic " + base64.b64encode(b"user:").decode()})
        out, code = b"", None
        while data:
            flags, n = data[0], struct.unpack(">I", data[1:5])[0]
            message, data = json.loads(data[5:5 + n]), data[5 + n:]
            if flags & 2:
                if message.get("error"):
                    raise Again(str(message))
                return code, out.decode()
            event = message.get("event", {})
            out += base64.b64decode(event.get("data", {}).get("stdout", ""))
            if "end" in event:
                code = event["end"].get("exitCode", 0)
        raise Again("the stream was cut")

    def kill(self, box):
        return self.api("DELETE", f"/sandboxes/{box.id}", expect=(204, 404))[0] == 204

    def pause(self, box, memory):
        return self.api("POST", f"/sandboxes/{box.id}/pause", {"memory": memory}, expect=(204, 409))[0]

    def connect(self, box):
        box.token = self.api("POST", f"/sandboxes/{box.id}/connect", {"timeout": 3600})[1]["envdAccessToken"]

    def fork(self, box, n):
        """[(id, token) or None]"""
        made = self.api("POST", f"/sandboxes/{box.id}/fork", {"timeout": 3600, "count": n})[1]
        return [(x["sandbox"]["sandboxID"], x["sandbox"]["envdAccessToken"]) if "sandbox" in x else None for x in made]

    def snapshot(self, box):
        return self.api("POST", f"/sandboxes/{box.id}/snapshots", {})[1]["snapshotID"]

    def rollback(self, box, snapshot):
        return self.api("POST", f"/sandboxes/{box.id}/rollback", {"snapshotID": snapshot})[1]["snapshotID"]

    def delete_snapshot(self, snapshot):
        return self.api("DELETE", f"/templates/{snapshot}", expect=(204, 404))[0] == 204


class Published:
    """The published client for Python."""

    def __init__(self, server):
        self.opts = {"api_key": server.api_key, "api_url": server.url, "sandbox_url": server.url}
        self.handles = {}  # id -> Sandbox

    def handle(self, box):
        return self.handles[box.id]

    def create(self, template, mark):
        made = Sandbox.create(template, timeout=3600, metadata=mark, lifecycle={"on_timeout": "pause", "auto_resume": True}, **self.opts)
        return self.keep(made)

    def keep(self, made):
        self.handles[made.sandbox_id] = made
        return made.sandbox_id, None

    def write(self, box, path, data):
        self.handle(box).files.write(path, data)

    def read(self, box, path):
        return bytes(self.handle(box).files.read(path, format="bytes"))

    def run(self, box, command):
        try:
            done = self.handle(box).commands.run(command, timeout=60)
        except e2b.CommandExitException as e:
            return e.exit_code, e.stdout
        return done.exit_code, done.stdout

    def kill(self, box):
        return self.handle(box).kill()

    def pause(self, box, memory):
        self.handle(box).pause(keep_memory=memory)
        return 204

    def connect(self, box):
        self.handle(box).connect(timeout=3600)

    def fork(self, box, n):
        return [None if isinstance(x, Exception) else self.keep(x) for x in self.handle(box).fork(timeout=3600, count=n)]

    def snapshot(self, box):
        return self.handle(box).create_snapshot().snapshot_id

    def delete_snapshot(self, snapshot):
        return Sandbox.delete_snapshot(snapshot, **self.opts)


def may_pass(e):
    """An error that a killed process may cause. The published client has no type for it, but words."""
    if isinstance(e, (Again, OSError, e2b.TimeoutException)):
        return True
    if isinstance(e, Status) or (isinstance(e, e2b.SandboxException) and not str(e).startswith(("502", "503", "504"))):
        return False
    while e is not None:  # transports' own errors, and those that wrap them
        if isinstance(e, (OSError, e2b.SandboxException)) or type(e).__module__.split(".")[0] in ("httpx", "httpcore", "pyqwest", "connectrpc"):
            return True
        e = e.__cause__
    return False


class Box:
    def __init__(self, i, token, files, origin, depth):
        self.id, self.token, self.files, self.origin = i, token, dict(files), origin
        self.depth = depth   # how many snapshots its disk stands on
        self.state = "running"
        self.alive = None    # the pid of a process that lives as long as the memory
        self.serial = 0


class Client(threading.Thread):
    def __init__(self, soak, number):
        super().__init__(name=f"client{number}", daemon=True)
        self.soak, self.number = soak, number
        self.random = random.Random(f"{soak.seed}/{number}")
        self.raw = Raw(soak.server)
        self.api = self.raw if number % 2 else Published(soak.server)
        self.boxes, self.snapshots = [], []  # of the latter: (id, files, the sandbox, the depth of what is made of it)
        self.killed = []
        self.journal = []
        self.failure = None
        self.made = 0

    def note(self, *words):
        self.journal.append(f"{time.strftime('%H:%M:%S')} " + " ".join(map(str, words)))

    def run(self):
        try:
            while time.monotonic() < self.soak.deadline and not self.soak.failed():
                self.step()
        except Exception:
            self.failure = traceback.format_exc()

    def again(self, what, ask):
        """(value, whether an earlier try may have worked)"""
        deadline = time.monotonic() + PATIENCE
        repeated = False
        while True:
            try:
                value = ask()
                self.note(what, "->", str(value)[:60] if not isinstance(value, bytes) else f"{len(value)} bytes")
                return value, repeated
            except Exception as e:
                self.note(what, "!", type(e).__name__, str(e)[:200])
                if not may_pass(e):
                    raise
                assert time.monotonic() < deadline, f"{what} does not come to work: {e!r}"
                self.soak.again += 1
                repeated = True
            time.sleep(0.1 + self.random.random() / 2)

    # What a client does. Each leaves what it knows true.

    def create(self, template="base", files={}, depth=0):
        self.made += 1
        mark = {"soak": f"{self.soak.seed}", "client": str(self.number), "made": str(self.made)}
        (i, token), _ = self.again(f"create of {template}", lambda: self.api.create(template, mark))
        self.boxes.append(Box(i, token, files, template, depth))
        return self.boxes[-1]

    def write(self, box):
        self.awake(box)
        path = f"/home/user/f{self.random.randrange(4)}"
        data = self.random.randbytes(self.random.choice([0, 17, 4096, 300_000]))
        self.again(f"{box.id}: write {path}", lambda: self.api.write(box, path, data))
        box.files[path] = digest(data)

    def read(self, box):
        self.awake(box)
        for path, wanted in sorted(box.files.items()):
            data, _ = self.again(f"{box.id}: read {path}", lambda: self.api.read(box, path))
            assert digest(data) == wanted, f"{box.id}: {path} is another ({len(data)} bytes)"

    def execute(self, box):
        self.awake(box)
        paths = sorted(box.files) or ["/etc/passwd"]
        (code, out), _ = self.again(f"{box.id}: sha256sum", lambda: self.api.run(box, "sha256sum " + " ".join(paths)))
        assert code == 0, (box.id, code, out)
        if box.files:
            found = {line.split()[1]: line.split()[0] for line in out.splitlines()}
            assert found == box.files, f"{box.id}: {found} instead of {box.files}"

    def begin(self, box):
        self.awake(box)
        if box.alive is None:
            (code, out), _ = self.again(f"{box.id}: start", lambda: self.api.run(box, "setsid sleep 100000 </dev/null >/dev/null 2>&1 & echo $!"))
            assert code == 0, (box.id, code, out)
            box.alive = int(out)
        self.lives(box)

    def lives(self, box):
        if box.alive is not None:
            (code, _), _ = self.again(f"{box.id}: kill -0", lambda: self.api.run(box, f"kill -0 {box.alive}"))
            assert code == 0, f"{box.id}: process {box.alive} is gone"

    def awake(self, box):
        if box.state == "paused":
            if self.random.random() < 0.5:
                self.again(f"{box.id}: connect", lambda: self.api.connect(box))
            else:  # any request does it
                self.again(f"{box.id}: wake", lambda: self.api.run(box, "true"))
            box.state = "running"
            self.lives(box)

    def pause(self, box):
        if box.state == "paused":
            return
        memory = self.random.random() < 0.6
        status, repeated = self.again(f"{box.id}: pause memory={memory}", lambda: self.api.pause(box, memory))
        assert status == 204 or repeated, f"{box.id}: {status} of a sandbox that runs"
        box.state = "paused"
        if not memory:
            box.alive = None

    def copied(self, box, what, ask):
        """again(), for what is refused of a disk that stands on as many others as there is room for, and of no other."""
        try:
            value, _ = self.again(f"{box.id}: {what}", ask)
        except (Status, e2b.SandboxException) as e:
            if box.depth != MAX_DEPTH or "409" not in str(e):
                raise
            return None
        assert box.depth < MAX_DEPTH, f"{box.id}: {what} at the end of its chain"
        return value

    def fork(self, box):
        self.awake(box)
        room = MAX_BOXES + 2 - len(self.boxes)
        if room < 1:
            return
        made = self.copied(box, "fork", lambda: self.api.fork(box, min(room, self.random.randrange(1, 3))))
        self.boxes += [Box(*x, box.files, box.id, box.depth + 1) for x in made or [] if x]

    def snapshot(self, box):
        self.awake(box)
        if len(self.snapshots) < MAX_SNAPSHOTS:
            i = self.copied(box, "snapshot", lambda: self.api.snapshot(box))
            if i:
                self.snapshots.append((i, dict(box.files), box, box.depth + 1))

    def start_again(self, box):
        """From a snapshot."""
        if self.snapshots and len(self.boxes) < MAX_BOXES:
            i, files, _, depth = self.random.choice(self.snapshots)
            self.create(i, files, depth)

    def rollback(self, box):
        own = [(i, files, depth) for i, files, origin, depth in self.snapshots if origin is box]
        if own:
            i, files, depth = self.random.choice(own)
            self.awake(box)
            self.again(f"{box.id}: rollback to {i}", lambda: self.raw.rollback(box, i))
            box.files, box.alive, box.depth = dict(files), None, depth
            self.read(box)

    def forget(self, box):
        if self.snapshots:
            i, *_ = self.snapshots.pop(self.random.randrange(len(self.snapshots)))
            done, repeated = self.again(f"delete {i}", lambda: self.api.delete_snapshot(i))
            assert done or repeated, f"snapshot {i} was lost"

    def kill(self, box):
        self.boxes.remove(box)
        done, repeated = self.again(f"{box.id}: kill", lambda: self.api.kill(box))
        assert done or repeated, f"{box.id} was lost: {self.fate(box)}"
        self.killed.append(box)

    def fate(self, box):
        (status, told), _ = self.again(f"{box.id}: info", lambda: self.raw.api("GET", f"/sandboxes/{box.id}", expect=(200, 404)))
        return told["state"] if status == 200 else told.get("lastTermination", "gone without a reason")

    def tidy(self, box):
        """Calls that were cut may have made sandboxes of which nobody was told, and which hold what others ask for."""
        known = {b.id for b in self.boxes}
        which = urllib.parse.urlencode({"metadata": urllib.parse.urlencode({"soak": self.soak.seed, "client": self.number}), "limit": 100})
        (_, listed), _ = self.again("list", lambda: self.raw.api("GET", f"/v2/sandboxes?{which}"))
        for lost in [b["sandboxID"] for b in listed if b["sandboxID"] not in known]:
            self.again(f"{lost}: kill, known to nobody", lambda: self.raw.api("DELETE", f"/sandboxes/{lost}", expect=(204, 404)))

    def step(self):
        if not self.boxes or (len(self.boxes) < MAX_BOXES and self.random.random() < 0.2):
            self.create()
            return
        box = self.random.choice(self.boxes)
        names, weights = zip(*self.soak.actions.items())
        name = self.random.choices(names, weights)[0]
        getattr(self, name)(box)
        self.soak.done[name] += 1

    def finish(self):
        """Everything is there, right, and can be ended."""
        for box in list(self.boxes):
            fate = self.fate(box)
            assert fate == box.state, f"{box.id} should be {box.state}: {fate}"
            self.awake(box)
            self.read(box)
            self.execute(box)
            self.lives(box)
            self.kill(box)
        for i, files, *_ in self.snapshots:
            box = self.create(i, files)
            self.read(box)
            self.kill(box)
        while self.snapshots:
            self.forget(None)
        for box in self.killed:
            fate = self.fate(box)
            assert isinstance(fate, dict) and fate["reason"] == "killed", f"{box.id}: {fate}"


class Soak:
    actions = {"write": 6, "read": 2, "execute": 4, "begin": 2, "pause": 4, "fork": 3, "snapshot": 2, "start_again": 1, "rollback": 2, "forget": 1, "kill": 2, "tidy": 1}

    def __init__(self, server, seed, minutes, clients, between_kills):
        self.server, self.seed = server, seed
        self.random = random.Random(f"{seed}/chaos")
        self.between_kills = between_kills
        self.deadline = time.monotonic() + minutes * 60
        self.again = self.kills = 0
        self.done = collections.Counter()
        self.clients = [Client(self, n) for n in range(clients)]

    def failed(self):
        return any(c.failure for c in self.clients)

    def serve(self):
        """Kills processes of the server until the time is over; serve starts them again."""
        while time.monotonic() < self.deadline and not self.failed():
            time.sleep(self.random.uniform(0.3, 1.7) * self.between_kills)
            for victim in self.random.choice([["node"], ["front"], ["front", "node"]]):
                if victim in self.server.children():
                    self.server.kill_process(victim)
                    self.kills += 1

    def tell(self, client):
        return f"client {client.number} (seed {self.seed}):\n" + "\n".join(client.journal[-40:]) + "\n" + (client.failure or "")

    def run(self):
        print(f"soak: seed {self.seed}", flush=True)
        for c in self.clients:
            c.start()
        self.serve()
        for c in self.clients:
            c.join(PATIENCE * 3)
            assert not c.is_alive(), "it hangs: " + self.tell(c)
        for c in self.clients:
            assert c.failure is None, self.tell(c)
        for c in self.clients:
            try:
                c.finish()
            except Exception:
                c.failure = traceback.format_exc()
                raise AssertionError(self.tell(c)) from None
        self.sweep()
        print(f"soak: {dict(self.done)}; {self.kills} processes killed, {self.again} calls made again", flush=True)

    def sweep(self):
        """What is left was made for a caller who was never told: its creation was cut."""
        left = self.server.call("GET", "/v2/sandboxes?limit=100")[1]
        assert all(b["metadata"].get("soak") == str(self.seed) for b in left), left
        assert len(left) <= self.again, left
        for b in left:
            status, _ = self.server.call("DELETE", "/sandboxes/" + b["sandboxID"])
            assert status == 204, b
        left = self.server.call("GET", "/snapshots")[1]
        assert len(left) <= self.again, left
        for x in left:
            assert self.server.call("DELETE", "/templates/" + x["snapshotID"])[0] == 204, x
