"""What the measuring programs share: a server of their own, samples, memory, and where their tables are in docs/benchmarks.md."""

import datetime
import http.client
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(sys.argv[1]).resolve()
QUICK, WRITE = "--quick" in sys.argv, "--write" in sys.argv
os.environ.setdefault("CUBICLE_BUILD", str(BUILD))
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import TEMPLATES, Server, wait_for  # noqa: E402, F401

# Who ends us ends our servers, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
CLIENT, SPAWN = BUILD / "bench/bench-client", BUILD / "bench/bench-spawn"
INTERPRETER = "code-interpreter-v1"


def percentiles(samples):
    s = sorted(samples)
    return {"n": len(s), "p50_ms": s[len(s) // 2], "p90_ms": s[len(s) * 9 // 10], "p99_ms": s[len(s) * 99 // 100], "max_ms": s[-1]} if s else {"n": 0}


def client(server, mode, concurrency, rounds, template="base"):
    """One run of bench-client: its answer."""
    r = subprocess.run([CLIENT, mode, f"127.0.0.1:{server.port}", server.api_key, str(concurrency), str(rounds), template],
                       capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    return json.loads(r.stdout)


def start_client(server, mode, concurrency, rounds, template="base"):
    """One that goes on until its standard input is closed."""
    return subprocess.Popen([CLIENT, mode, f"127.0.0.1:{server.port}", server.api_key, str(concurrency), str(rounds), template],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def with_server(options, body, templates=("base",)):
    server = Server(options=options, templates=templates).start()
    try:
        return body(server)
    finally:
        server.destroy()


def meminfo():
    return {line.split(":")[0]: int(line.split()[1]) for line in open("/proc/meminfo")}


def children(pid):
    return subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()


def parked(server):
    """Children of the node: parked slots, ready and running sandboxes."""
    return len(children(server.children().get("node")))


def own_memory(pids, kinds=("Pss_Anon:", "Pss_Shmem:")):
    """KiB of memory of these kinds that these processes hold, shared pages divided."""
    total = 0
    for pid in pids:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith(kinds):
                total += int(line.split()[1])
    return total


class Box:
    """A sandbox of code-interpreter-v1 and one connection to it."""

    def __init__(self, server):
        self.c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        self.key = server.api_key
        try:
            box = self.call("POST", "/v2/sandboxes", {"templateID": INTERPRETER}, {"X-API-Key": self.key})
        except BaseException:
            self.c.close()
            raise
        self.id, self.token, self.launch = box["sandboxID"], box["envdAccessToken"], box["launch"]

    def call(self, method, path, body, headers):
        self.c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **headers})
        r = self.c.getresponse()
        text = r.read()
        assert r.status < 300, f"{method} {path}: {r.status} {text.decode(errors='replace')[:150]}"
        return json.loads(text) if text else None

    def cell(self, code):
        """The text of the result."""
        self.c.request("POST", "/execute", json.dumps({"code": code}), {
            "Content-Type": "application/json", "E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49999", "X-Access-Token": self.token})
        r = self.c.getresponse()
        assert r.status == 200, f"/execute: {r.status} {r.read().decode(errors='replace')[:150]}"
        result = None
        for line in r:
            if line.startswith(b'{"type": "result"'):
                result = json.loads(line)["text"]
        return result

    def kill(self):
        try:
            self.call("DELETE", "/sandboxes/" + self.id, None, {"X-API-Key": self.key})
        finally:
            self.c.close()


class Conditions:
    """When, on what, under which load: told over each table."""

    def __init__(self, program):
        self.started, self.load = datetime.datetime.now(datetime.timezone.utc), os.getloadavg()[0]
        self.program = program

    def times(self):
        return f"{self.started:%H:%M} to {datetime.datetime.now(datetime.timezone.utc):%H:%M} UTC, load {self.load:.2f} at the start and {os.getloadavg()[0]:.2f} at the end."

    def __str__(self):
        return (f"{self.started:%Y-%m-%d %H:%M} UTC, Linux {platform.release().split('-')[0]}, {os.cpu_count()} cores, load {self.load:.2f} at the start "
                f"and {os.getloadavg()[0]:.2f} at the end, `bench/{self.program} BUILD{' --quick' if QUICK else ''}`")


def publish(mark, text, program, found):
    """Writes what was found as JSON into the build directory and, with --write, the table between its marks in docs/benchmarks.md; prints the table."""
    (BUILD / f"{program}.json").write_text(json.dumps(found, indent=1))
    if WRITE:
        page = ROOT / "docs/benchmarks.md"
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        old = page.read_text()
        page.write_text(old[: old.index(begin) + len(begin)] + text + old[old.index(end):])
    print(text)
