"""A Cubicle server of the test's own: fresh state directory, port, address range, uid range and cgroup."""

import contextlib
import fcntl
import functools
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time

import backend

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CUBICLE_BUILD", ROOT / "build"))
CUBICLE = BUILD / "src/cli/cubicle"
# Where templates are made once and shared by every test run.
TEMPLATES = pathlib.Path(os.environ.get("CUBICLE_TEST_TEMPLATES", ROOT / "build/test-state"))


def free_port():
    """One that no client's connection takes while the server is stopped: below the range that the kernel gives out."""
    while True:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", random.randrange(10240, 32000)))
                return s.getsockname()[1]
            except OSError:
                pass


def wait_for(condition, seconds=60.0, what="condition"):
    """Polls until condition() is true (returned) or the time is over (AssertionError)."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(0.02)


def clean_env(extra=None):
    """Our environment without what configures a server or a client."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(("CUBICLE_", "E2B_"))}, **(extra or {})}


@functools.cache
def ensure_templates(*names):
    """Makes these templates once per machine; later runs take the same files, unless what they are made of has changed."""
    subprocess.run([CUBICLE, "template", "make-default", *names, "--if-missing", f"--state.dir={TEMPLATES}"], check=True, env=clean_env())


def share_templates(node, names):
    """Links these templates, and no others, into this directory of a server, while nobody else makes templates there."""
    source = TEMPLATES / "node"
    with open_directory(source / "images") as images:
        fcntl.flock(images, fcntl.LOCK_SH)
        descriptions = [(p, json.loads(p.read_text())) for p in (source / "templates").glob("*.json")]
        wanted = [(p, t) for p, t in descriptions if t["alias"] in names]
        for path in [*(p for p, _ in wanted), *(source / layer["file"] for _, t in wanted for layer in t["layers"])]:
            target = node / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                continue
            try:
                os.link(path, target)
            except OSError:
                shutil.copy2(path, target)


@contextlib.contextmanager
def open_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


PROCESSES = {"node", "front", "egress", "tools"}


class Server:
    ranges = set()  # taken by the servers of this process

    def __init__(self, options=None, state_dir=None, env=None, templates=("base",)):
        self.port = free_port()
        self.options = dict(options or {})
        self.own_state = state_dir is None
        self.state = pathlib.Path(state_dir or tempfile.mkdtemp(prefix="cubicle-e2e-", dir="/tmp"))
        self.log_path = self.state.with_name(self.state.name + ".log")
        self.extra_env = env or {}
        self.process = None
        digest = int(hashlib.sha256(str(self.state).encode()).hexdigest(), 16)
        # Ranges of this server alone: several may run at once on the test machine.
        self.uid_base = 0x10000000 + next(n % 56 for n in range(digest % 56, 200) if n % 56 not in Server.ranges) * 0x4000000
        Server.ranges.add((self.uid_base - 0x10000000) // 0x4000000)
        self.cgroup_parent = f"cubicle-test{digest % 10000}"
        ensure_templates(*templates)
        node = self.state / "node"
        share_templates(node, templates)
        os.chmod(node, 0o700)
        os.chmod(self.state, 0o711)

    @property
    def tag(self):
        """config/instance.c: what names of links, cgroups and tables carry."""
        h = 2166136261
        for byte in str(self.state).encode():
            h = (h ^ byte) * 16777619 & 0xFFFFFFFF
        return f"{(h ^ h >> 16) & 0xFFFF:04x}"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_key(self):
        return (self.state / "first-key").read_text().strip()

    def env(self):
        """Environment for a published client."""
        return {
            "E2B_API_KEY": self.api_key,
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_DOMAIN": f"127.0.0.1:{self.port}",
        }

    def start(self, wait=True):
        options = {
            "state.dir": self.state,
            "listen": f"127.0.0.1:{self.port}",
            "uid_base": self.uid_base,
            "cgroup.parent": self.cgroup_parent,
            "pool.min": 4,
            "ready.max": 0,
            "log.level": "info",
            **backend.options(),
            **self.options,
        }
        env = clean_env(self.extra_env)
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            [str(CUBICLE), "serve"] + [f"--{k}={v}" for k, v in options.items()],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env, start_new_session=True)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds=60):
        def answers():
            assert self.process.poll() is None, f"the server ended:\n{self.log_tail()}"
            try:
                status, body = self.call("GET", "/health", key=None)
                return status == 200
            except OSError:
                return False
        wait_for(answers, seconds, f"/health\n{self.log_tail()}")

    def log_tail(self, n=4000):
        try:
            return self.log_path.read_text(errors="replace")[-n:]
        except OSError:
            return ""

    def call(self, method, path, body=None, key="", headers=None, timeout=60):
        """One API call: (status, parsed JSON or None). key "" = the first key, None = without."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        h = dict(headers or {})
        if key is not None:
            h["X-API-Key"] = key or self.api_key
        data = None
        if body is not None:
            data = json.dumps(body)
            h["Content-Type"] = "application/json"
        try:
            c.request(method, path, body=data, headers=h)
            r = c.getresponse()
            raw = r.read()
            self.last_headers = r.headers
            return r.status, json.loads(raw) if raw else None
        finally:
            c.close()

    def children(self):
        """{name: pid} of the running server's processes that serve, PROCESSES when all run."""
        out = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) != self.process.pid:
                    continue
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            if len(words) > 1 and words[0].endswith(b"cubicle"):
                out[words[1].decode()] = int(entry.name)
        return out

    def kill_process(self, name):
        """kill -9 of one process of the server by its pid; "serve" too. It is dead when this returns: it takes no connection and answers nothing any more."""
        pid = self.process.pid if name == "serve" else self.children()[name]
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [])
        finally:
            os.close(process)
        return pid

    def first_process(self, sandbox):
        """What a sandbox lives and dies with, as this machine numbers it: its PID 1, or the monitor of its machine."""
        with contextlib.closing(sqlite3.connect(f"file:{self.state}/node/node.db?mode=ro", uri=True)) as db:
            (handle,) = db.execute("SELECT handle FROM sandboxes WHERE id = ?", (sandbox,)).fetchone()
        return int(re.search(r"pid=(\d+)", handle)[1])

    def kill_all_sandboxes(self):
        status, boxes = self.call("GET", "/v2/sandboxes?limit=100")
        while boxes:
            for b in boxes:
                self.call("DELETE", "/sandboxes/" + b["sandboxID"])
            status, boxes = self.call("GET", "/v2/sandboxes?limit=100")

    def stop(self, seconds=60):
        """Clean stop; returns the exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            for pid in self.children().values():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop in {seconds} s:\n{self.log_tail()}")
        self.process = None
        self.log.close()
        return status

    def destroy(self):
        """Kills every sandbox, stops, removes the state directory."""
        try:
            if self.process and self.process.poll() is None:
                self.kill_all_sandboxes()
            self.stop()
        finally:
            Server.ranges.discard((self.uid_base - 0x10000000) // 0x4000000)
            if self.own_state:
                shutil.rmtree(self.state, ignore_errors=True)
                self.log_path.unlink(missing_ok=True)
