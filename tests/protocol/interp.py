"""cubicle-interp in a process of its own, kernels for it, and a client."""
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
LAST_LINE = '{"type": "end_of_execution"}'


def until(condition, what, seconds=120):
    """Waits for what another process does."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("never: " + what)
        time.sleep(0.02)


def stat_of(pid):
    """(state, parent, group) of a process; None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            rest = f.read().rsplit(")", 1)[1].split()
        return rest[0], int(rest[1]), int(rest[2])
    except OSError:
        return None


def gone(pid):
    s = stat_of(pid)
    return s is None or s[0] == "Z"


def spec(directory, name, argv, **more):
    where = pathlib.Path(directory) / name
    where.mkdir(parents=True)
    (where / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": name, "language": name, **more}))


def fake(directory, name, *how, **more):
    """A kernel that runs fake_kernel.py."""
    spec(directory, name, [sys.executable, str(HERE / "fake_kernel.py"), "{connection_file}", *how], **more)


class Interp:
    def __init__(self, kernels, *args, start="", run_dir=None, env=None):
        self.dir = tempfile.mkdtemp(prefix="interp-")
        self.run_dir = run_dir or self.dir + "/run"
        argv = [os.environ["CUBICLE_INTERP"], "--kernels", str(kernels), "--user", "root", "--run-dir", self.run_dir, "--start", start, "--listen", "127.0.0.1:0", *args]
        self.log = open(self.dir + "/log", "w+b")
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd="/", env=env)
        self.port = until(self.find_port, "the service listens")

    def log_text(self):
        with open(self.dir + "/log", "rb") as f:
            return f.read().decode(errors="replace")

    def find_port(self):
        assert self.process.poll() is None, self.log_text()
        found = re.search(r"listening on port (\d+)", self.log_text())
        return found and int(found.group(1))

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.log.close()
        text = self.log_text()
        shutil.rmtree(self.dir)
        if code != 0:
            raise RuntimeError("cubicle-interp ended with %d: %s" % (code, text))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def discard(self):
        """For a test that is over, however."""
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def kernels(self):
        """Pids of its living kernels."""
        found = []
        for name in os.listdir("/proc"):
            s = stat_of(int(name)) if name.isdigit() else None
            if s and s[1] == self.process.pid and s[0] != "Z":
                found.append(int(name))
        return found

    def rss_kib(self):
        with open("/proc/%d/status" % self.process.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def fds(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def call(self, method, path, body=None, **headers):
        """(status, headers, body as text)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
            r = c.getresponse()
            return r.status, r.headers, r.read().decode()
        finally:
            c.close()

    def create(self, **wish):
        status, _, body = self.call("POST", "/contexts", wish)
        assert status == 200, (status, body)
        return json.loads(body)

    def begin(self, code, token=None, **more):
        """The answer to /execute, while it runs."""
        return Stream(self.port, {"code": code, **more}, token)

    def run(self, code, **more):
        """All events of an execution, without keepalives, and without its end, which is checked."""
        s = self.begin(code, **more)
        try:
            return s.rest()
        finally:
            s.close()

    def text(self, code, **more):
        """Its stdout."""
        return "".join(e["text"] for e in self.run(code, **more) if e["type"] == "stdout")


class Stream:
    def __init__(self, port, body, token=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Content-Type": "application/json"}
        if token:
            headers["X-Access-Token"] = token
        self.connection.request("POST", "/execute", json.dumps(body), headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200, (self.response.status, self.response.read())
        self.lines = []

    def next(self):
        """The next event, None at the end."""
        line = self.response.readline().decode("ascii")
        if not line:
            return None
        assert line.endswith("\n"), line
        self.lines.append(line[:-1])
        return json.loads(line)

    def until(self, kind):
        """The next event of that type."""
        while True:
            e = self.next()
            assert e, self.lines
            if e["type"] == kind:
                return e

    def rest(self):
        events = []
        while True:
            e = self.next()
            if e is None:
                break
            events.append(e)
        assert self.lines[-1] == LAST_LINE, self.lines[-3:]
        assert [e["type"] for e in events].count("end_of_execution") == 1
        return [e for e in events[:-1] if e["type"] != "keepalive"]

    def close(self):
        self.response.close()
        self.connection.close()


class FakeEnvd:
    """GET /envs, for whoever has the token."""

    def __init__(self, variables, token="secret"):
        owner = self
        self.variables, self.token, self.asked = variables, token, []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                owner.asked.append((self.path, self.headers.get("X-Access-Token")))
                good = self.headers.get("X-Access-Token") == owner.token
                body = json.dumps(owner.variables).encode() if good else b'{"code":401}'
                self.send_response(200 if good else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def kinds(events):
    return [e["type"] for e in events]


def of(events, kind):
    return [e for e in events if e["type"] == kind]
