"""Files through the published Python client (e2b.md B.3, B.4, B.7; cases.md "Files")."""

import hashlib
import http.client
import io
import os
import random

import pytest
from e2b import FileNotFoundException, InvalidArgumentException, NotEnoughSpaceException, Sandbox

NAMES = ["a b", 'quo"te', "per%cent", "a%2Fb", "plus+hash#q?", "é", "e\u0301", "日本語", "-dash", "...", "x" * 255, "tab\there", "back\\slash"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_085_names_are_byte_exact(sandbox, name):
    data = name.encode() + bytes(range(256))
    info = sandbox.files.write(f"/home/user/n/{name}", data)
    assert info.path == f"/home/user/n/{name}"
    assert sandbox.files.read(f"/home/user/n/{name}", format="bytes") == data
    assert [e.name for e in sandbox.files.list("/home/user/n")] == [name]
    sandbox.files.rename(f"/home/user/n/{name}", "/home/user/n/moved")
    sandbox.files.remove("/home/user/n/moved")
    assert not sandbox.files.exists(f"/home/user/n/{name}")


def test_085_a_name_of_256_bytes_is_refused(sandbox):
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write("/home/user/" + "y" * 256, b"x")


def test_086_empty_files_and_defaults(sandbox):
    sandbox.files.write("empty", b"")
    assert sandbox.files.read("empty") == "" and bytes(sandbox.files.read("empty", format="bytes")) == b""
    info = sandbox.files.get_info("empty")
    assert (info.size, info.path, info.owner, info.group, info.mode) == (0, "/home/user/empty", "user", "user", 0o644)


def test_several_files_in_one_upload_and_owner_by_user(sandbox):
    sandbox.files.write_files([{"path": "one", "data": b"1"}, {"path": "d/two", "data": "zwei"}])
    assert sandbox.files.read("one") == "1" and sandbox.files.read("d/two") == "zwei"
    sandbox.files.write("/root/r", b"r", user="root")
    assert sandbox.files.get_info("/root/r", user="root").owner == "root"
    assert sandbox.files.read("r", user="root") == "r"


def test_089_a_written_file_is_there_at_once(sandbox):
    for i in range(100):
        data = os.urandom(1000)
        sandbox.files.write("now", data)
        assert sandbox.commands.run("sha256sum now").stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_097_missing_files_and_directories(sandbox):
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("/no/such")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/etc")
    with pytest.raises(Exception):
        sandbox.files.rename("/no/such", "/tmp/x")
    sandbox.files.remove("/no/such")
    sandbox.commands.run("mkfifo /tmp/fifo")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/tmp/fifo")


def test_files_of_procfs_have_content(sandbox):
    assert sandbox.files.read("/proc/self/status").startswith("Name:")


def test_directories_listing_and_depth(sandbox):
    sandbox.commands.run("mkdir -p t/a/b/c t/a-b && touch t/a/x t/a/b/c/deep && ln -s a t/link && ln -s nowhere t/broken")
    names = [e.path.removeprefix("/home/user/t/") for e in sandbox.files.list("t", depth=4)]
    assert [n for n in names if n not in ("broken", "link")] == ["a", "a/b", "a/b/c", "a/b/c/deep", "a/x", "a-b"]
    assert sandbox.files.make_dir("t/new") is True and sandbox.files.make_dir("t/new") is False
    link = {e.name: e for e in sandbox.files.list("t")}["link"]
    assert link.symlink_target == "/home/user/t/a" and link.type.value == "dir"


def test_101_ownership_of_existing_files_is_kept_inside_setgid(sandbox):
    sandbox.commands.run("chmod 600 f || (touch f && chmod 600 f)")
    sandbox.files.write("f", b"new")
    assert sandbox.files.get_info("f").mode == 0o600


def test_a_gibibyte_streams_both_ways(server, sandbox):
    """1 GiB up and down, streamed; the hash is the same inside, and the agent stays small."""
    size, block = 1 << 30, random.Random(7).randbytes(1 << 20)
    digest = hashlib.sha256()
    headers = {"Host": "x", "E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": sandbox._envd_access_token}

    def blocks():
        for i in range(size // len(block)):
            data = i.to_bytes(8, "big") + block[8:]
            digest.update(data)
            yield data

    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    c.request("POST", "/files?path=/home/user/big", body=blocks(), headers={**headers, "Content-Type": "application/octet-stream"}, encode_chunked=True)
    r = c.getresponse()
    assert r.status == 200, r.read()
    r.read()
    assert sandbox.commands.run("sha256sum big", timeout=120).stdout.split()[0] == digest.hexdigest()
    c.request("GET", "/files?path=/home/user/big", headers=headers)
    r = c.getresponse()
    back = hashlib.sha256()
    while chunk := r.read(1 << 20):
        back.update(chunk)
    assert back.hexdigest() == digest.hexdigest()
    assert int(sandbox.commands.run("ps -o rss= -p 1", user="root").stdout) < 8 * 1024


def test_full_disk_is_507_and_usable_after_a_delete(server, own_server):
    s = own_server(options={"sandbox.disk": 128})
    box = Sandbox.create("base", **client(s))
    box.commands.run("head -c 90M /dev/zero > filler && sync")
    with pytest.raises(NotEnoughSpaceException):
        for i in range(10):
            box.files.write(f"more{i}", os.urandom(10 << 20))
    box.commands.run("rm -f filler more*")
    box.files.write("small", b"fits again")
    assert box.files.read("small") == "fits again"
    assert box.commands.run("echo alive").stdout == "alive\n"
    box.kill()


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}
