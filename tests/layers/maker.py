"""Starts `cubicle unpack` and `cubicle merge` as the node does, and speaks their messages (src/io/msg.h, src/io/messages.h)."""

import contextlib
import os
import pathlib
import socket
import struct
import subprocess

CUBICLE = os.environ["CUBICLE"]
KINDS = {"u64": 1, "i64": 2, "bool": 3, "str": 4, "map": 5, "list": 6}
NOBODY = 65534


class Failed(Exception):
    def __init__(self, code, status, message):
        super().__init__(f"{code} {status}: {message}")
        self.code, self.status, self.message = code, status, message


def message(kind, *fields):
    body = b""
    for tag, form, value in fields:
        if form in ("u64", "i64"):
            raw = struct.pack("<Q", value)
        elif form == "bool":
            raw = bytes([value])
        elif form == "list":
            raw = b"".join(struct.pack("<I", len(v)) + v for v in value)
        else:
            raw = value
        body += struct.pack("<HHI", tag, KINDS[form], len(raw)) + raw
    return struct.pack("<4sHHIIQ", b"CUBM", 1, kind, 24 + len(body), 0, 0) + body


def parse(datagram):
    kind = struct.unpack_from("<H", datagram, 6)[0]
    at, fields = 24, {}
    while at < len(datagram):
        tag, form, n = struct.unpack_from("<HHI", datagram, at)
        fields[tag] = (form, datagram[at + 8 : at + 8 + n])
        at += 8 + n
    return kind, fields


def number(field):
    return int.from_bytes(field[1], "little", signed=field[0] == KINDS["i64"])


def items(field):
    raw, found = field[1], []
    while raw:
        n = struct.unpack_from("<I", raw)[0]
        found.append(raw[4 : 4 + n].decode())
        raw = raw[4 + n :]
    return found


def run(command, first, fds, user=None):
    """One run of the process with those descriptors from 4 on. What `unpacked` says, or Failed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wanted = [theirs.fileno(), *fds]
    # Out of the way of the numbers that they get.
    high = [os.dup2(fd, 200 + i) for i, fd in enumerate(wanted)]
    # The user may be one who cannot go where it lies.
    program = os.open(CUBICLE, os.O_PATH)
    high.append(os.dup2(program, 199, inheritable=False))
    os.close(program)

    def place():
        for i, fd in enumerate(high[:-1]):
            os.dup2(fd, 3 + i)
            os.set_inheritable(3 + i, True)
        os.closerange(3 + len(high) - 1, 199)
        os.closerange(200, 500)

    ids = {"user": user, "group": user, "extra_groups": []} if user else {}
    process = subprocess.Popen(["cubicle", command], executable="/proc/self/fd/199", close_fds=False, preexec_fn=place, stdin=subprocess.DEVNULL, env={}, **ids)
    for fd in high:
        os.close(fd)
    theirs.close()
    ours.sendall(first)
    try:
        answer = ours.recv(65536)
    except ConnectionResetError:
        answer = b""
    status = process.wait()
    ours.close()
    if not answer:
        raise Failed(0, 0, f"it ended with {status} and said nothing")
    kind, fields = parse(answer)
    if kind == 3:
        assert status == 1, status
        raise Failed(number(fields[1]), number(fields[2]), fields[3][1].decode())
    assert kind == 184 and status == 0, (kind, status)
    return {
        "size": number(fields[1]),
        "entries": number(fields[2]),
        "diff_ids": items(fields[3]),
        "guessed": bool(number(fields[4])) if 4 in fields else False,
    }


def unpack(blobs, image, diff_ids=None, size_max=1 << 34, lowest=False, formats=None, user=NOBODY):
    """Blobs (paths) into the image (a path), as a user who may not open any of them."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(b, "rb")) for b in blobs]
        return unpack_files(files, stack.enter_context(open(image, "w+b")), diff_ids, size_max, lowest, formats, user)


def unpack_files(blobs, image, diff_ids=None, size_max=1 << 34, lowest=False, formats=None, user=NOBODY):
    """The same with open files."""
    first = message(
        165,
        (1, "list", [f.encode() for f in formats or ["gzip"] * len(blobs)]),
        (2, "list", [d.encode() for d in diff_ids or [""] * len(blobs)]),
        (3, "u64", size_max),
        (4, "bool", lowest),
    )
    return run("unpack", first, [f.fileno() for f in [image, *blobs]], user)


def merge(layers, image, below=(), size_max=1 << 34):
    """Directories, lowest first, into the image; those below it topmost first."""
    fds = [os.open(image, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)]
    layers, below = list(layers), list(below)
    fds += [os.open(d, os.O_RDONLY | os.O_DIRECTORY) for d in [*layers, *below]]
    first = message(166, (1, "u64", len(layers)), (2, "u64", len(below)), (3, "u64", size_max))
    try:
        return run("merge", first, fds)
    finally:
        for fd in fds:
            os.close(fd)


def fsck(image):
    done = subprocess.run(["fsck.erofs", image], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Mounted:
    """The image, mounted as the node does it."""

    def __init__(self, image, at):
        self.image, self.at = str(image), pathlib.Path(at)

    def __enter__(self):
        self.at.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "erofs", "-o", "loop,ro,nodev", self.image, self.at], check=True)
        return self.at

    def __exit__(self, *_):
        subprocess.run(["umount", self.at], check=True)
