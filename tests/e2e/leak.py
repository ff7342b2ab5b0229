"""What a server may leave behind: nothing. A base line before, the same view after."""

import os
import pathlib
import subprocess


def _tag(state_dir):
    """src/config/instance.c."""
    h = 2166136261
    for b in state_dir.encode():
        h = (h ^ b) * 16777619 & 0xFFFFFFFF
    return "%04x" % ((h ^ h >> 16) & 0xFFFF)


class _Process:
    def __init__(self, entry):
        self.pid = int(entry.name)
        self.words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        self.name = (entry / "comm").read_text().strip()
        self.parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        self.cgroups = (entry / "cgroup").read_text()
        self.namespaces = []
        for kind in ("net", "mnt", "user", "pid"):
            try:
                self.namespaces.append((kind, os.readlink(entry / "ns" / kind)))
            except OSError:
                pass

    def is_ours(self):
        return self.name.startswith("cubicle") or "cubicle" in self.words[0] or "/cubicle" in self.cgroups


def _all_processes():
    out = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                p = _Process(entry)
            except OSError:
                continue
            out[p.pid] = p
    return out


class _Others:
    """Servers that run now: what is theirs changes while they serve, and is no leak of the one that was stopped."""

    def __init__(self, processes):
        self.servers = {}
        for p in processes.values():
            if p.is_ours() and "serve" in p.words:
                dirs = [w.split("=", 1)[1] for w in p.words if w.startswith("--state.dir=")]
                self.servers[p.pid] = dirs[0] if dirs else "/var/lib/cubicle"
        self.tags = {_tag(d) for d in self.servers.values()}
        self.processes = processes

    def have_process(self, p):
        if any(f"-{tag}/" in p.cgroups or f"-{tag}\n" in p.cgroups for tag in self.tags):
            return True
        while p:
            if p.pid in self.servers:
                return True
            p = self.processes.get(p.parent)
        return False

    def have_cgroup(self, path):
        return any(part.startswith("cubicle") and part.rsplit("-", 1)[-1] in self.tags for part in pathlib.Path(path).parts)

    def have_link(self, name):
        return any(name.startswith(f"cub{tag}x") for tag in self.tags)

    def have_table(self, line):
        return any(line.endswith(f"cubicle_{tag}") for tag in self.tags)

    def have_file(self, path):
        return any(path.startswith(d + "/") for d in self.servers.values())


def _mounts():
    """Those that a server could have made; what the machine or another test mounts meanwhile is no concern."""
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split(" ", 1)[1] for line in lines if any(w in line for w in ("cubicle", "/node/", " - erofs ", " - overlay "))}


def _links():
    return set(os.listdir("/sys/class/net"))


def _cgroups():
    found = set()
    for top in [pathlib.Path("/sys/fs/cgroup"), *pathlib.Path("/sys/fs/cgroup").glob("*")]:
        if top.is_dir():
            found.update(str(p) for p in top.glob("cubicle*"))
            for p in top.glob("cubicle*"):
                found.update(str(d) for d, _, _ in os.walk(p))
    return found


def _loops():
    out = set()
    for p in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            path = p.read_text().strip()
            if "/node/" in path:  # <state.dir>/node/disks, /node/images
                out.add((p.parts[3], path))
        except OSError:
            pass
    return out


def _nft():
    r = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True)
    return {line for line in r.stdout.splitlines() if "cubicle" in line}


def snapshot():
    processes = _all_processes()
    others = _Others(processes)
    ours = [p for p in processes.values() if p.is_ours() and not others.have_process(p)]
    return {
        "processes": {(p.pid, p.name) for p in ours},
        "namespaces": {n for p in ours for n in p.namespaces},
        "mounts": _mounts(),
        "links": {n for n in _links() if not others.have_link(n)},
        "cgroups": {c for c in _cgroups() if not others.have_cgroup(c)},
        "loop devices": {(d, f) for d, f in _loops() if not others.have_file(f)},
        "nftables": {t for t in _nft() if not others.have_table(t)},
    }


def leaked(before, words=None):
    """{kind: what is there now and was not before}, empty when nothing leaked. On a machine where others start servers at the same time (CUBICLE_SHARED_MACHINE set)
    only what carries one of `words` counts."""
    after = snapshot()
    shared = os.environ.get("CUBICLE_SHARED_MACHINE") and words
    new = {kind: sorted(map(str, after[kind] - before[kind])) for kind in after}
    if shared:
        new = {kind: [x for x in items if any(w in x for w in words)] for kind, items in new.items()}
    return {kind: items for kind, items in new.items() if items}


def state_leftovers(state):
    """Files under the state directory that belong to no record once every sandbox is dead and the server stopped."""
    node = pathlib.Path(state) / "node"
    return sorted(str(p.relative_to(state)) for part in ("disks", "control", "mnt") for p in (node / part).rglob("*")
                  if p.is_file() or p.is_socket())
