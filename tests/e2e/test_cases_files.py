"""Rows of the list of field cases about files that no other file has (test_files.py, test_files_http.py, test_watch.py); the number is the row's."""

import json
import os
import urllib.parse

import pytest
from e2b import FileNotFoundException, InvalidArgumentException, Sandbox

from inside import ask, get, put, rpc


@pytest.fixture(scope="module")
def box(server):
    b = Sandbox.create("base", timeout=900)
    yield b
    b.kill()


@pytest.mark.parametrize("name", ["a b", "a%b", "a%2Fb", "\u00e9", "e\u0301", "...", "..x", " lead", "trail ", "\n", "a\nb", "\x01\x7f", "*?[", "x" * 255, "-rf", "'\"`$(id)"], ids=range(16))
def test_085_names_through_every_call(server, box, name):
    box.commands.run("rm -rf /home/user/n")
    path = "/home/user/n/" + name
    assert box.files.write(path, b"1").path == path
    assert box.files.get_info(path).name == name
    assert [(e.name, e.path) for e in box.files.list("/home/user/n")] == [(name, path)]
    assert box.files.read(path) == "1"
    assert box.files.rename(path, "/home/user/n/moved").path == "/home/user/n/moved"
    assert box.files.rename("/home/user/n/moved", path).path == path
    handle = box.files.watch_dir("/home/user/n")
    box.files.write(path, b"22")
    assert {e.name for e in handle.get_new_events()} == {name}
    handle.stop()
    box.files.remove(path)
    assert box.files.list("/home/user/n") == []
    assert box.files.make_dir(path) and box.files.get_info(path).type.value == "dir"


def test_085_dots_are_resolved_once_and_end_at_the_root(server, box):
    box.files.write("/home/user/real", b"real")
    for path in ("/home/user/./real", "/home/user//real", "/home/user/x/../real", "real", "./real", "../user/real", "~/real", "/../../../home/user/real", "/home/user/../../../../home/user/real"):
        box.commands.run("mkdir -p x")
        status, _, body = get(server, box, path)
        assert (status, body) == (200, b"real"), path
    # A percent sign that the query brought is none of a path.
    assert get(server, box, "/home/user/%72eal")[0] == 404
    assert ask(server, box, "GET", "/files?path=/home/user/%72eal")[2] == b"real"
    for name in ("x" * 256, "y" * 5000, "a/" * 3000):
        for status in (put(server, box, "/tmp/" + name, b"x")[0], rpc(server, box, "MakeDir", {"path": "/tmp/" + name})[0], get(server, box, "/tmp/" + name)[0]):
            assert status == 400, name[:10]
    for path in ("/home/user/real\0x", "~other/x"):
        assert get(server, box, path)[0] == 400
        assert rpc(server, box, "Stat", {"path": path})[0] == 400


def test_041_depths_of_a_listing(server, box):
    box.commands.run("mkdir -p deep/1/2/3/4/5/6 && touch deep/1/2/3/4/5/6/f")
    def names(**depth):
        status, answer = rpc(server, box, "ListDir", {"path": "deep", **depth})
        assert status == 200
        return [e["path"].removeprefix("/home/user/deep/") for e in answer["entries"]]
    whole = ["1", "1/2", "1/2/3", "1/2/3/4", "1/2/3/4/5", "1/2/3/4/5/6", "1/2/3/4/5/6/f"]
    assert names() == names(depth=0) == names(depth=1) == whole[:1]
    assert names(depth=4) == whole[:4] and names(depth=6) == whole[:6] and names(depth=4294967295) == whole
    for bad in (-1, 4294967296, 1.5, "x", True):
        assert rpc(server, box, "ListDir", {"path": "deep", "depth": bad})[0] == 400, bad


def test_089_a_written_file_is_there_for_who_comes_next(box):
    """The other half (a thousand times in one process) costs nothing new: here a command reads what another client wrote."""
    box.commands.run("mkdir -p seen")
    other = Sandbox.connect(box.sandbox_id)
    for i in range(200):
        box.files.write(f"seen/{i}", str(i))
        assert other.files.read(f"seen/{i}") == str(i)
    assert box.commands.run("cat seen/* | wc -c").stdout.strip() == str(sum(len(str(i)) for i in range(200)))


def test_094_host_mounts_are_refused_by_name(server):
    for field in ("volumeMounts", "mounts"):
        status, answer = server.call("POST", "/v2/sandboxes", {"templateID": "base", field: [{"name": "/srv/a/../../etc", "path": "/mnt"}]})
        if status == 201:  # a key that nobody knows: nothing is mounted
            b = Sandbox.connect(answer["sandboxID"])
            assert not b.files.exists("/mnt/passwd")
            b.kill()
        else:
            assert status in (400, 501) and field in answer["message"], answer


def test_097_what_is_not_there_or_no_file(server, box):
    box.commands.run("rm -f fifo; mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; ln -s nowhere broken; ln -s loop loop; mkdir -p empty")
    for path, wanted in (("/no/such", 404), ("broken", 404), ("/etc", 400), ("empty", 400), ("/dev/zero", 400), ("/dev/null", 400), ("fifo", 400), ("sock", 400), ("/proc/kmsg", None), ("loop", None), ("/etc/passwd/x", 404)):
        status, _, body = get(server, box, path)
        assert status == wanted if wanted else 400 <= status < 600 and status != 500 or status == 500 and b"code" in body, (path, status, body)
        status, _, body = put(server, box, path, b"x")
        if path in ("/etc", "empty", "/dev/zero", "fifo", "sock", "/dev/null"):
            assert status == 400, (path, body)
    box.commands.run("rm -rf nowhere /no 2>/dev/null || true")
    for method, message, status, code in (("Stat", {"path": "/none"}, 404, "not_found"), ("Move", {"source": "/none", "destination": "/tmp/never/x"}, 404, "not_found"), ("Remove", {"path": "/none"}, 200, None),
                                          ("ListDir", {"path": "/none"}, 404, "not_found"), ("ListDir", {"path": "/etc/passwd"}, 400, "invalid_argument"), ("MakeDir", {"path": "/etc/passwd"}, 400, "invalid_argument"),
                                          ("MakeDir", {"path": "/etc"}, 409, "already_exists"), ("MakeDir", {"path": "/etc/passwd/x"}, 400, "invalid_argument"), ("Remove", {"path": "/"}, 400, "invalid_argument"),
                                          ("Remove", {"path": "/proc"}, 500, "internal"), ("Stat", {"path": 7}, 400, "invalid_argument"), ("Stat", [], 400, "invalid_argument"), ("None", {}, 501, "unimplemented")):
        got = rpc(server, box, method, message)
        assert got[0] == status and (code is None or got[1]["code"] == code), (method, message, got)
    assert not box.files.exists("/tmp/never")  # a move of nothing makes nothing
    with pytest.raises(FileNotFoundException):
        box.files.read("/none")
    with pytest.raises(InvalidArgumentException):
        box.files.read("/etc")


def test_101_owners_groups_and_bits_are_kept(server, box):
    box.commands.run("cd /srv && mkdir other shared && chgrp 1000 shared && groupadd -g 5000 team && usermod -aG team user && chgrp team shared && chmod 2775 shared && "
                     "touch other/f && chown 1000:1000 other/f && touch other/daemon && chown daemon:daemon other/daemon && cp /bin/true other/tool && chmod 4755 other/tool && chown 1000:1000 other/tool && chmod 4755 other/tool", user="root")
    def of(path):
        e = box.files.get_info(path)
        return e.owner, e.group, oct(e.mode)
    assert of("/srv/other/f") == ("user", "user", "0o644") and of("/srv/other/daemon") == ("daemon", "daemon", "0o644")
    # Moves, listings and metadata change no owner; an upload gives the file to its user and leaves the mode.
    box.files.rename("/srv/other/daemon", "/srv/other/moved")
    assert of("/srv/other/moved")[:2] == ("daemon", "daemon")
    box.files.write("/srv/other/f", b"new")
    assert of("/srv/other/f") == ("user", "user", "0o644")
    # What is made in a directory with set-group-ID has the directory's group, as for any process.
    box.files.write("/srv/shared/f", b"1")
    box.files.write("/srv/shared/d/e/g", b"1")
    box.files.make_dir("/srv/shared/made")
    for path in ("f", "d", "d/e", "d/e/g", "made"):
        assert of("/srv/shared/" + path)[:2] == ("user", "team"), path
    assert box.commands.run("stat -c %a /srv/shared/d /srv/shared/made").stdout.split() == ["2755", "2755"]
    box.files.write("/srv/shared/f", b"22")
    assert of("/srv/shared/f")[:2] == ("user", "team")


def test_a_path_may_be_any_bytes(server, box):
    """Names on a disk need not be UTF-8: read and written byte for byte by /files; a listing, which is JSON, shows what it can."""
    raw = b"/home/user/raw/\xff\xfe\x80name"
    box.commands.run("mkdir -p raw")
    target = "/files?path=" + urllib.parse.quote(raw)
    status, _, body = ask(server, box, "POST", target, b"bytes", {"Content-Type": "application/octet-stream"})
    assert status == 200 and json.loads(body)
    assert ask(server, box, "GET", target)[2] == b"bytes"
    assert box.commands.run("ls raw | od -An -tx1 | tr -d ' \\n'").stdout.startswith("fffe806e616d65")
    status, answer = rpc(server, box, "ListDir", {"path": "raw"})
    assert status == 200 and len(answer["entries"]) == 1


def test_many_files_at_once(box):
    """write_files of a thousand in one form, listed and removed."""
    written = box.files.write_files([{"path": f"many/{i}", "data": os.urandom(100)} for i in range(1000)])
    assert len(written) == 1000 and len(box.files.list("many")) == 1000
    box.files.remove("many")
    assert not box.files.exists("many")
