"""What a server may leave behind: nothing. A base line before, the same view after."""

import os
import pathlib
import subprocess


def _processes():
    out = set()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            name = (entry / "comm").read_text().strip()
            ns = os.readlink(entry / "ns/pid")
        except OSError:
            continue
        if name.startswith("cubicle") or b"cubicle" in words[0] or ns != _OWN_PID_NS:
            out.add((int(entry.name), name))
    return out


_OWN_PID_NS = os.readlink("/proc/self/ns/pid")


def _mounts():
    return {line.split(" ", 1)[1] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()}


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
            out.add((p.parts[3], p.read_text().strip()))
        except OSError:
            pass
    return out


def _namespaces():
    out = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            for kind in ("net", "mnt", "user", "pid"):
                try:
                    out.add((kind, os.readlink(entry / "ns" / kind)))
                except OSError:
                    pass
    return out


def _nft():
    r = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True)
    return {line for line in r.stdout.splitlines() if "cubicle" in line}


def snapshot():
    return {"processes": _processes(), "mounts": _mounts(), "links": _links(), "cgroups": _cgroups(),
            "loop devices": _loops(), "namespaces": _namespaces(), "nftables": _nft()}


def leaked(before, after=None):
    """{kind: what is there now and was not before}, empty when nothing leaked."""
    after = after or snapshot()
    return {kind: sorted(map(str, after[kind] - before[kind])) for kind in after if after[kind] - before[kind]}


def state_leftovers(state):
    """Files under the state directory that belong to no record once every sandbox is dead and the server stopped."""
    node = pathlib.Path(state) / "node"
    return sorted(str(p.relative_to(state)) for part in ("disks", "control", "mnt") for p in (node / part).rglob("*")
                  if p.is_file() or p.is_socket())
