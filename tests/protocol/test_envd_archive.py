"""Trees in and out as archives (guest/archive.h): what hostile archives do, and what others' programs read and write."""
import gzip
import io
import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import unittest
from urllib.parse import quote

from envd import Envd, until


def member(name, data=b"", **more):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def link(name, target, kind=tarfile.SYMTYPE):
    return member(name, type=kind, linkname=target)


def directory(name, **more):
    return member(name, type=tarfile.DIRTYPE, **{"mode": 0o755, **more})


def archive(*members, format=tarfile.PAX_FORMAT, headers=None):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, pax_headers=headers or {}) as t:
        for info, data in members:
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def read(data):
    """Members by name."""
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        return {m.name: (m, t.extractfile(m).read() if m.isreg() else None) for m in t}


class Archives(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.envd = Envd("user=nobody")

    @classmethod
    def tearDownClass(cls):
        cls.envd.stop()

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="cubicle-envd-archive-", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.root)
        self.client = self.envd.connect()

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def need_attributes(self):
        try:
            os.setxattr(self.root, "user.tried", b"")
            os.removexattr(self.root, "user.tried")
        except OSError as e:
            self.skipTest("no extended attributes in %s: %s" % (self.root, e))

    def mount(self, name, options):
        os.mkdir(self.path(name))
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", self.path(name)], capture_output=True, text=True)
        if done.returncode:
            self.skipTest("nothing can be mounted here: " + done.stderr)

    def make(self, name, data=b"x"):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as f:
            f.write(data)

    def content(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def get(self, path, more=""):
        status, headers, body = self.envd.connect().get("/archive?path=%s%s" % (quote(path), more))
        if status == 200:
            self.assertEqual(headers["content-type"], "application/x-tar")
            self.assertEqual(len(body) % 512, 0)
            return body
        return status, json.loads(body)["message"]

    def put(self, path, data, client=None, **headers):
        client = client or self.envd.connect()
        client.request("PUT", "/archive?path=" + quote(path), data, **headers)
        status, headers = client.head()
        answer = json.loads(client.body(headers))
        return status, answer if status == 200 else answer["message"]

    def placed(self, data, path=None, **headers):
        status, answer = self.put(path or self.path("to"), data, **headers)
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, status, text, data, path=None):
        got, message = self.put(path or self.path("to"), data)
        self.assertEqual((got, text in str(message)), (status, True), message)
        self.assertEqual([n for n in os.listdir(self.path("to")) if n.startswith(".cubicle-")] if os.path.isdir(self.path("to")) else [], [])
        self.assertEqual(self.envd.connect().get("/health")[0], 204)

    # Out

    def test_tree(self):
        self.need_attributes()
        self.make("d/sub/file", b"content")
        os.symlink("sub/file", self.path("d/link"))
        os.link(self.path("d/sub/file"), self.path("d/other"))
        os.mkfifo(self.path("d/fifo"))
        os.mknod(self.path("d/null"), 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(self.path("d/socket"))
        os.chown(self.path("d/sub/file"), 1234, 54321)
        os.chmod(self.path("d/sub/file"), 0o4751)
        os.utime(self.path("d/sub/file"), ns=(0, -1500000000))
        os.utime(self.path("d/sub"), ns=(0, 1234567890123456789))
        os.setxattr(self.path("d/sub/file"), "user.a", b"\0=\n\xff")
        found = read(self.get(self.path("d")))
        self.assertEqual(list(found), [".", "fifo", "link", "other", "sub", "sub/file"])
        first, data = found["other"]
        self.assertEqual((first.uid, first.gid, first.mode, first.mtime, data), (1234, 54321, 0o4751, -1.5, b"content"))
        self.assertEqual(first.pax_headers["SCHILY.xattr.user.a"].encode("utf-8", "surrogateescape"), b"\0=\n\xff")
        self.assertEqual((found["sub/file"][0].type, found["sub/file"][0].linkname), (tarfile.LNKTYPE, "other"))
        self.assertEqual((found["link"][0].type, found["link"][0].linkname), (tarfile.SYMTYPE, "sub/file"))
        self.assertTrue(found["fifo"][0].isfifo())
        self.assertEqual(found["sub"][0].pax_headers["mtime"], "1234567890.123456789")

    def test_one_member(self):
        self.make("file", b"abc")
        os.symlink("file", self.path("link"))
        os.symlink(self.root, self.path("tree"))
        self.assertEqual([(n, d) for n, (m, d) in read(self.get(self.path("file"))).items()], [("file", b"abc")])
        self.assertEqual(read(self.get(self.path("link")))["link"][0].linkname, "file")
        self.assertEqual(read(self.get(self.path("link"), "&follow=1"))["link"][1], b"abc")
        # What leads to the last part is followed, like in any path.
        self.assertEqual(read(self.get(self.path("tree/file")))["file"][1], b"abc")
        self.assertEqual(read(self.get(self.path("tree")))["tree"][0].type, tarfile.SYMTYPE)
        self.assertIn("file", read(self.get(self.path("tree"), "&follow=true")))

    def test_large_file(self):
        data = os.urandom(3 << 20) + b"end"
        self.make("large", data)
        self.make("small", b"")
        found = read(self.get(self.root))
        self.assertTrue(found["large"][1] == data)
        self.assertEqual(found["small"][1], b"")

    def test_sparse_file_stays_small(self):
        with open(self.path("sparse"), "wb") as f:
            f.truncate(1 << 40)
            f.seek(123 << 20)
            f.write(b"x" * 8192)
            f.seek((1 << 40) - 3)
            f.write(b"end")
        with open(self.path("hole"), "wb") as f:
            f.truncate(1 << 30)
        data = self.get(self.root)
        self.assertLess(len(data), 1 << 20)
        with tarfile.open(fileobj=io.BytesIO(data)) as t:
            m = t.getmember("sparse")
            self.assertEqual((m.size, m.issparse()), (1 << 40, True))
            with t.extractfile(m) as f:
                f.seek(123 << 20)
                self.assertEqual(f.read(8193), b"x" * 8192 + b"\0")
                f.seek((1 << 40) - 3)
                self.assertEqual(f.read(), b"end")
            self.assertEqual(t.getmember("hole").size, 1 << 30)
        self.placed(data)
        st = os.stat(self.path("to/sparse"))
        self.assertEqual((st.st_size, st.st_blocks < 1000), (1 << 40, True))
        self.assertEqual(os.stat(self.path("to/hole")).st_blocks, 0)
        with open(self.path("to/sparse"), "rb") as f:
            f.seek((123 << 20) - 1)
            self.assertEqual(f.read(8194), b"\0" + b"x" * 8192 + b"\0")

    def test_names(self):
        names = ["ü", "a" * 255, "new\nline", "-rf", "/".join(["d" * 200] * 9), "x" * 100, "y" * 101]
        for name in names:
            self.make("from/" + name, name.encode())
        with open(os.path.join(self.path("from").encode(), b"\xff" * 3), "wb"), open(os.path.join(self.path("from").encode(), b"\xfe" * 120), "wb"):
            pass
        os.symlink("t" * 300, self.path("from/long"))
        data = self.get(self.path("from"))
        self.placed(data)
        left = subprocess.run(["diff", "-r", "--no-dereference", self.path("from"), self.path("to")], capture_output=True)
        self.assertEqual((left.returncode, left.stdout), (0, b""))
        # GNU tar and bsdtar (if it is there) read the same.
        for program in filter(shutil.which, ["tar", "bsdtar"]):
            os.mkdir(self.path(program))
            subprocess.run([program, "-xpf", "-", "-C", self.path(program)], input=data, check=True, stderr=subprocess.DEVNULL)
            self.assertEqual(subprocess.run(["diff", "-r", "--no-dereference", self.path("from"), self.path(program)]).returncode, 0)

    def test_mounts_are_not_entered(self):
        self.mount("m", "size=1m")
        try:
            self.make("m/inside")
            self.assertEqual(list(read(self.get(self.root))), [".", "m"])
            self.assertEqual(list(read(self.get(self.path("m")))), [".", "inside"])
            answer = self.placed(archive(directory("m"), member("m/x", b"x"), member("beside", b"y")), self.root)
            self.assertEqual(answer, {"members": 1, "bytes": 1, "skippedCount": 2, "skipped": ["m/", "m/x"]})
            self.assertEqual(os.listdir(self.path("m")), ["inside"])
        finally:
            subprocess.run(["umount", self.path("m")], check=True)

    def test_refused_questions(self):
        for query, status in [("", 400), ("?path=", 400), ("?path=relative", 400), ("?path=/%00", 400), ("?path=%zz", 400), ("?path=/nowhere", 404),
                              ("?path=/dev/null", 400), ("?path=/tmp&follow=yes", 400), ("?path=/tmp&username=root", 400)]:
            got, headers, body = self.client.get("/archive" + query)
            self.assertEqual((got, json.loads(body)["code"]), (status, status), query)
        self.client.request("POST", "/archive?path=/tmp", b"")
        status, headers = self.client.head()
        self.client.body(headers)
        self.assertEqual((status, headers["allow"]), (405, "GET, PUT"))
        self.assertEqual(self.client.get("/archives?path=/tmp")[0], 404)

    def test_connection_goes_on(self):
        for i in range(5):
            status, headers, body = self.client.get("/archive?path=" + self.root)
            self.assertEqual((status, list(read(body))), (200, [".", "to", "to/a"] if i else ["."]))
            self.assertEqual(self.put(self.path("to"), archive(member("a", b"%d" % i)), self.client)[0], 200)
            self.assertEqual(self.client.get("/health")[0], 204)
        self.assertEqual(self.content("to/a"), b"4")

    def test_http_1_0(self):
        self.make("large", b"l" * 100000)
        self.client.send(("GET /archive?path=%s HTTP/1.0\r\n\r\n" % self.root).encode())
        status, headers = self.client.head()
        self.assertEqual((status, "transfer-encoding" in headers), (200, False))
        with self.assertRaises(EOFError):
            while True:
                self.client.more()
        self.assertEqual(read(self.client.bytes)["large"][1], b"l" * 100000)

    # In

    def test_everything_comes_back(self):
        self.need_attributes()
        self.make("from/a/file", b"1")
        self.make("from/b/file", b"2" * 100000)
        os.link(self.path("from/a/file"), self.path("from/b/hard"))
        os.symlink("../../..", self.path("from/b/up"))
        os.mkfifo(self.path("from/fifo"))
        for name, mode, uid in [("a", 0o2750, 7), ("a/file", 0o6755, 1), ("b/file", 0o000, 65534), ("fifo", 0o622, 5), ("b", 0o1777, 0)]:
            os.chown(self.path("from", name), uid, uid + 1)
            os.chmod(self.path("from", name), mode)
        os.chown(self.path("from/b/up"), 11, 12, follow_symlinks=False)
        os.setxattr(self.path("from/a/file"), "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
        os.setxattr(self.path("from/a"), "user.dir", b"d" * 1000)
        for i, name in enumerate(["a/file", "b/file", "a", "b", "fifo", "b/up", ""]):
            os.utime(self.path("from", name), ns=(0, 10**18 + i), follow_symlinks=False)
        answer = self.placed(self.get(self.path("from")), self.path("missing/parents/to"))
        self.assertEqual(answer, {"members": 8, "bytes": 100001, "skippedCount": 0, "skipped": []})
        for name in ["", "a", "a/file", "b", "b/file", "b/hard", "b/up", "fifo"]:
            of, st = os.lstat(self.path("from", name)), os.lstat(self.path("missing/parents/to", name))
            self.assertEqual((of.st_mode, of.st_uid, of.st_gid, of.st_mtime_ns, of.st_nlink), (st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, st.st_nlink), name)
        self.assertEqual(os.getxattr(self.path("missing/parents/to/a/file"), "security.capability").hex(), "0100000200040000000000000000000000000000")
        self.assertEqual(os.getxattr(self.path("missing/parents/to/a"), "user.dir"), b"d" * 1000)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("missing")).st_mode), 0o755)

    def test_replaced_not_written_through(self):
        self.make("secret", b"kept")
        self.make("to/mine", b"old")
        os.link(self.path("secret"), self.path("to/hard"))
        os.symlink("../secret", self.path("to/soft"))
        os.symlink("nowhere", self.path("to/dangling"))
        os.mkfifo(self.path("to/fifo"))
        self.placed(archive(member("hard", b"1"), member("soft", b"2"), member("dangling", b"3"), member("fifo", b"4"), member("mine", b"5")))
        self.assertEqual([self.content("to/" + n) for n in ("hard", "soft", "dangling", "fifo", "mine")], [b"1", b"2", b"3", b"4", b"5"])
        self.assertEqual((self.content("secret"), os.stat(self.path("secret")).st_nlink), (b"kept", 1))
        self.assertFalse(os.path.exists(self.path("to/nowhere")))
        self.placed(archive(link("mine", "../secret"), link("hard", "mine", tarfile.LNKTYPE), link("mine", "hard", tarfile.LNKTYPE)))
        self.assertEqual(os.readlink(self.path("to/hard")), "../secret")
        self.assertEqual(sorted(os.listdir(self.path("to"))), ["dangling", "fifo", "hard", "mine", "soft"])

    def test_escapes(self):
        for name in ("/absolute", "../up", "a/../../up", "..", "a/.."):
            self.refused(400, "outside the archive", archive(member(name, b"x")))
            self.refused(400, "outside the archive", archive(member("in", b"x"), link("l", name, tarfile.LNKTYPE)))
        self.assertEqual(os.listdir(self.root), ["to"])
        self.assertFalse(os.path.exists("/absolute"))

    def test_links_on_the_way(self):
        os.mkdir(self.path("outside"))
        self.refused(409, "symbolic link", archive(link("l", "../outside"), member("l/x", b"x")))
        self.refused(409, "symbolic link", archive(link("l", "."), member("l/x", b"x")))
        self.refused(409, "symbolic link", archive(link("l", self.path("outside")), member("l/a/b/x", b"x")))
        self.refused(409, "symbolic link", archive(link("l", "../outside"), directory("l")))
        self.refused(409, "symbolic link", archive(member("x", b"x"), link("l", "../outside"), link("h", "l/file", tarfile.LNKTYPE)))
        self.refused(409, "a file is in its way", archive(member("f", b"x"), member("f/x", b"x")))
        self.refused(409, "a file is in its place", archive(member("f", b"x"), directory("f")))
        self.refused(409, "a directory is in its place", archive(directory("d"), member("d", b"x")))
        self.refused(409, "a directory is in its place", archive(directory("d"), link("d", "x")))
        self.refused(400, "not there", archive(link("h", "missing", tarfile.LNKTYPE)))
        self.assertEqual(os.listdir(self.path("outside")), [])

    def test_the_destination_is_an_ordinary_path(self):
        os.mkdir(self.path("real"))
        os.symlink("real", self.path("link"))
        self.placed(archive(member("x", b"1")), self.path("link"))
        self.placed(archive(member("y", b"2")), self.path("link/new/deep"))
        self.assertEqual((self.content("real/x"), self.content("real/new/deep/y")), (b"1", b"2"))
        self.make("file")
        self.refused(409, "path is a file", archive(member("x", b"1")), self.path("file"))
        self.refused(409, "path is a file", archive(member("x", b"1")), self.path("file/below"))

    def test_devices_are_skipped(self):
        answer = self.placed(archive(member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), member("a", b"x"), member("sda", type=tarfile.BLKTYPE)))
        self.assertEqual((answer["skippedCount"], answer["skipped"]), (2, ["null", "sda"]))
        self.assertEqual(os.listdir(self.path("to")), ["a"])

    def test_cut_bodies(self):
        whole = archive(member("a", b"1" * 700), member("b", b"2"))
        for n in (0, 1, 511, 512, 513, 1000, 1536, 1537, 2048, 2560):
            self.refused(400, "broken", whole[:n])
        self.assertEqual(self.put(self.path("ok"), whole[:len(whole) // 10240 * 10240 + 2560 + 512])[0], 200)
        self.assertEqual(sorted(os.listdir(self.path("ok"))), ["a", "b"])
        # The connection ends: nothing half-written is left.
        c = self.envd.connect()
        c.send(("PUT /archive?path=%s HTTP/1.1\r\nHost: x\r\nContent-Length: 10240\r\n\r\n" % self.path("cut")).encode() + whole[:900])
        until(lambda: os.path.isdir(self.path("cut")))
        c.close()
        until(lambda: not [p for p in self.envd.children() if p != self.envd.spawner])
        self.assertEqual(os.listdir(self.path("cut")), [])

    def test_broken_archives(self):
        whole = archive(member("a", b"x"))
        self.refused(400, "no tar archive", b"not a tar archive at all".ljust(1024, b"."))
        self.refused(400, "no tar archive", whole[:20] + b"!" + whole[21:])
        self.refused(400, "no tar archive", gzip.compress(whole).ljust(1024, b"\0"))

        def raw(**fields):
            block = bytearray(whole[:512])
            for (at, n), value in fields.values():
                block[at:at + n] = value.ljust(n, b"\0")
            block[148:156] = b" " * 8
            block[148:155] = b"%06o\0" % sum(block)
            return bytes(block) + b"\0" * 1024
        self.refused(400, "number", raw(size=((124, 12), b"99999999999")))
        self.refused(400, "number", raw(size=((124, 12), b"\xff" * 12)))
        self.refused(400, "number", raw(size=((124, 12), b"\x80" + b"\0" * 3 + b"\xff" * 8)))
        self.refused(400, "stops before", raw(size=((124, 12), b"\x80" + b"\0" * 4 + b"\x7f" + b"\xff" * 6)))
        self.refused(400, "name", raw(name=((0, 100), b"")))
        made = [(b"mtime=1.2.3.4", "time"), (b"uid=blah", "number"), (b"path=a\0", "name"), (b"GNU.sparse.realsize=-10", "sparse"), (b"GNU.sparse.map=1,2", "sparse"),
                (b"GNU.sparse.offset=12", "sparse"), (b"SCHILY.xattr.=x", "attribute")]
        records = [(b"%d %s\n" % (len(r) + 4, r), text) for r, text in made]
        for record, text in records + [(r, "malformed") for r in (b"99 path=x\n", b"5 p=\n\n", b"path=x\n", b"0 x=y\n", b"9 path=xx")]:
            head = bytearray(raw(kind=((156, 1), b"x"), size=((124, 12), b"%011o" % len(record)))[:512])
            self.refused(400, text, bytes(head) + record.ljust(512, b"\0") + whole)
        self.refused(400, "nothing follows", raw(kind=((156, 1), b"x"), size=((124, 12), b"0"))[:512] + b"\0" * 1024)
        self.refused(400, "too long", raw(kind=((156, 1), b"x"), size=((124, 12), b"%011o" % (1 << 30)))[:512] + b"\0" * 1024)
        self.refused(400, "too long", raw(kind=((156, 1), b"L"), size=((124, 12), b"%011o" % 5000)) + b"a" * 5120)

    def test_huge_things(self):
        whole = archive(member("a/" * 2100 + "x", b""))
        self.refused(400, "too long", whole)
        sizes = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": str((1 << 63) - 1)}
        info, data = member("made-up", b"0\n".ljust(512, b"\0"))
        info.pax_headers = sizes
        status, message = self.put(self.path("to"), archive((info, data)))
        self.assertIn(status, (200, 400), message)
        info.pax_headers = {**sizes, "GNU.sparse.realsize": str(1 << 40)}
        self.placed(archive((info, data)))
        self.assertEqual(os.stat(self.path("to/s")).st_blocks, 0)
        info, data = member("made-up", b"1\n10\n99999\n".ljust(512, b"\0"))
        info.pax_headers = sizes
        self.refused(400, "sparse", archive((info, data)))
        info, data = member("many", b"")
        info.pax_headers = {"SCHILY.xattr.user.%d" % i: "v" for i in range(200)}
        self.refused(400, "too many extended attributes", archive((info, data)))

    def test_ids_and_times_out_of_range(self):
        info, data = member("far", b"", uid=(1 << 32) - 1)
        self.refused(400, "no user or group", archive((info, data)))
        info, data = member("big", b"", uid=4000000000, gid=3000000, mtime=1 << 34)
        self.placed(archive((info, data)))
        st = os.stat(self.path("to/big"))
        self.assertEqual((st.st_uid, st.st_gid), (4000000000, 3000000))

    def test_attributes_that_are_not_carried(self):
        self.need_attributes()
        info, data = member("a", b"")
        info.pax_headers = {"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.mine": "1", "SCHILY.xattr.security.selinux": "s"}
        self.placed(archive((info, data)))
        self.assertEqual(os.listxattr(self.path("to/a")), ["user.mine"])

    def test_a_full_disk(self):
        self.mount("small", "size=1m,nr_inodes=20")
        try:
            status, message = self.put(self.path("small/to"), archive(member("a", b"1"), member("big/file", b"x" * (2 << 20))))
            self.assertEqual((status, "big/file" in message, "disk space" in message), (507, True, True), message)
            self.assertEqual((sorted(os.listdir(self.path("small/to"))), os.listdir(self.path("small/to/big"))), (["a", "big"], []))
            status, message = self.put(self.path("small/to"), archive(*[directory("d%d" % i) for i in range(40)]))
            self.assertEqual((status, "disk space" in message), (507, True), message)
        finally:
            subprocess.run(["umount", self.path("small")], check=True)

    def test_many_forms(self):
        """What other programs write: ustar, GNU's, pax, with sparse files in each of their forms."""
        self.make("from/dir/" + "n" * 90 + "/file", b"content")
        os.symlink("n" * 130, self.path("from/link"))
        with open(self.path("from/sparse"), "wb") as f:
            for i in range(60):
                f.seek(i << 20)
                f.write(b"%d" % i)
            f.truncate(64 << 20)
        for i, form in enumerate([["--format=gnu"], ["--format=posix"], ["--format=gnu", "-S"], ["--format=posix", "-S"], ["--format=posix", "-S", "--sparse-version=0.0"],
                                  ["--format=posix", "-S", "--sparse-version=0.1"], ["--format=ustar"]]):
            skip = ["--exclude=link"] if form == ["--format=ustar"] else []
            data = subprocess.run(["tar", "-C", self.path("from"), *form, *skip, "-cf", "-", "."], check=True, capture_output=True).stdout
            self.placed(data, self.path("to%d" % i))
            self.assertEqual(subprocess.run(["diff", "-r", "--no-dereference", *["--exclude=link" for _ in skip], self.path("from"), self.path("to%d" % i)]).returncode, 0, form)
            if "-S" in form:
                self.assertLess(os.stat(self.path("to%d/sparse" % i)).st_blocks, 2000)

    def test_packed_and_chunked(self):
        whole = archive(member("a", b"1" * 5000))
        self.placed(gzip.compress(whole), Content_Encoding="gzip")
        self.assertEqual(self.content("to/a"), b"1" * 5000)
        self.refused(400, "", gzip.compress(whole)[:-20])
        status, message = self.put(self.path("to"), whole, Content_Encoding="br")
        self.assertEqual(status, 400)
        self.client.send(("PUT /archive?path=%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % self.path("chunks")).encode())
        for at in range(0, len(whole), 100):
            self.client.send(b"%x\r\n%s\r\n" % (len(whole[at:at + 100]), whole[at:at + 100]))
        self.client.send(b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers = self.client.head()
        self.client.body(headers)
        self.assertEqual((status, self.client.head()[0], self.content("chunks/a")), (200, 204, b"1" * 5000))

    def test_global_headers(self):
        self.placed(archive(member("a", b"1"), member("b", b"2"), headers={"uid": "77", "comment": "x"}))
        self.assertEqual((os.stat(self.path("to/a")).st_uid, os.stat(self.path("to/b")).st_uid), (77, 77))


class Guarded(unittest.TestCase):
    def test_the_token_is_wanted(self):
        envd = Envd("user=root", "token=secret")
        try:
            for method in ("GET", "PUT"):
                c = envd.connect()
                c.request(method, "/archive?path=/tmp&signature=x")
                self.assertEqual(c.head()[0], 401)
            self.assertEqual(envd.connect().get("/archive?path=/etc/hostname", X_Access_Token="secret")[0], 200)
        finally:
            envd.stop()


if __name__ == "__main__":
    unittest.main()
