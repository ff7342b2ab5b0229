#!/usr/bin/python3
"""Images that `cubicle unpack` and `cubicle merge` make, mounted by the kernel. Needs root."""

import contextlib
import errno
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

import compare
import maker
from compare import Layer

CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service, permitted and effective


def text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else value


def xattrs(**values):
    """As pax headers; the bytes go out as they are."""
    return {f"SCHILY.xattr.{k.replace('__', '.')}": v.decode("utf-8", "surrogateescape") for k, v in values.items()}


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cubicle-layers-"))
        self.dir.chmod(0o711)
        self.stack = contextlib.ExitStack()
        self.addCleanup(shutil.rmtree, self.dir)
        self.addCleanup(self.stack.close)

    def blob(self, layer, how="gzip"):
        raw = layer if isinstance(layer, bytes) else layer.raw()
        path = self.dir / f"blob{len(os.listdir(self.dir))}"
        path.write_bytes(compare.compress(raw, how))
        return path

    def image(self, layers, **how):
        """The image of blobs (paths or Layers), checked."""
        blobs = [b if isinstance(b, pathlib.Path) else self.blob(b) for b in layers]
        path = self.dir / f"image{len(os.listdir(self.dir))}.erofs"
        self.said = maker.unpack(blobs, path, **how)
        self.assertEqual(self.said["size"], path.stat().st_size)
        maker.fsck(path)
        return path

    def mounted(self, image):
        return self.stack.enter_context(maker.Mounted(image, f"{image}.d"))

    def overlay(self, mounts):
        """Mounts of the layers, lowest first, as the node stacks them."""
        at = self.dir / f"overlay{len(os.listdir(self.dir))}"
        at.mkdir()
        work = [self.dir / f"{at.name}.{n}" for n in ("upper", "work")]
        # An upper directory on a file system that may be one.
        top = self.dir / f"{at.name}.top"
        top.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", top], check=True)
        self.stack.callback(subprocess.run, ["umount", top], check=True)
        work = [top / "upper", top / "work"]
        for d in work:
            d.mkdir()
        lower = ":".join(str(m) for m in reversed(mounts))
        subprocess.run(["mount", "-t", "overlay", "-o", f"lowerdir={lower},upperdir={work[0]},workdir={work[1]}", "none", at], check=True)
        self.stack.callback(subprocess.run, ["umount", at], check=True)
        return at

    def refused(self, code, words, call, *args, **how):
        with self.assertRaises(maker.Failed) as e:
            call(*args, **how)
        self.assertEqual(e.exception.code, -code, e.exception)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, e.exception.message)
        return e.exception


def everything():
    """A layer with something of each kind."""
    layer = Layer()
    layer.dir("./", mode=0o755, mtime=1600000000)
    for d in ("usr", "usr/bin", "etc", "empty", "usr/share"):
        layer.dir(d)
    layer.dir("tmp", mode=0o1777).dir("home", uid=0).dir("home/user", mode=0o2750, uid=1000, gid=65535)
    layer.add("usr/bin/su", b"#!" * 20000, mode=0o4755)
    layer.add("usr/bin/ping", os.urandom(12345), mode=0o755, pax_headers=xattrs(security__capability=CAPABILITY, user__note=b"hello"))
    layer.add("etc/passwd", b"root:x:0:0::/:/bin/sh\n", uid=65535, gid=65534)
    for n in (0, 1, 31, 4031, 4032, 4033, 4095, 4096, 4097, 8192, 8193, 100000, 1 << 20):
        layer.add(f"etc/size{n}", bytes(i & 0xFF for i in range(n)) if n < 9000 else os.urandom(n), mode=0o600)
    layer.symlink("usr/lib", "bin").symlink("etc/absolute", "/nowhere").symlink("etc/long", "y" * 4000).symlink("etc/middle", "z/" * 600)
    layer.link("etc/passwd-", "etc/passwd").link("usr/share/passwd", "./etc/passwd").link("etc/also-absolute", "etc/absolute")
    layer.add("usr/fifo", type=tarfile.FIFOTYPE, mode=0o640)
    layer.dir("usr/share/marked", pax_headers=xattrs(user__a=b"1", user__b=b"x" * 3000))
    for i in range(700):
        layer.add(f"usr/share/{i:03}-{'n' * (i % 200)}", b"%d" % i)
    layer.add("usr/-dash").add("usr/!bang").add("usr/zz\x7f").add("e\u0301-nfd").add("\u00e9-nfc")
    layer.add("usr/" + "l" * 255)
    for depth in range(1, 11):
        layer.dir("usr/share/" + "/".join(["d" * 200] * depth))
    layer.add("usr/share/" + "/".join(["d" * 200] * 10) + "/deep", b"deep")
    layer.add("old-time", mtime=-86400 * 365 + 0.5).add("far-time", mtime=1 << 33)
    return layer


class AgainstUmoci(Case):
    """Whatever `umoci unpack` makes of an image, ours shows the same, in one layer and in several."""

    def check(self, layers, ignore=lambda path, key: False):
        theirs, blobs = compare.umoci(self.dir / f"umoci{len(layers)}", layers)
        wanted = compare.tree(theirs)
        ours = self.mounted(self.image(blobs, lowest=True))
        self.assertEqual(compare.differences(compare.tree(ours), wanted, ignore), [])
        self.assertEqual(self.said["diff_ids"], [compare.sha(x.raw()) for x in layers])
        if len(layers) > 1:
            stacked = self.overlay([self.mounted(self.image([b])) for b in blobs])
            self.assertEqual(compare.differences(compare.tree(stacked), wanted, ignore), [])
            upper = self.mounted(self.image(blobs[1:]))
            stacked = self.overlay([self.mounted(self.image(blobs[:1])), upper])
            self.assertEqual(compare.differences(compare.tree(stacked), wanted, ignore), [])

    def test_one_layer_of_everything(self):
        """109, 112"""
        self.check([everything()])

    def test_gnu_names(self):
        """109"""
        layer = Layer(tarfile.GNU_FORMAT).dir("d").symlink("d/long", "t" * 4000)
        name = "d/" + "/".join("n" * 200 for _ in range(10))
        for depth in range(1, 10):
            layer.dir("d/" + "/".join(["n" * 200] * depth))
        layer.add(name, b"x").link("d/hard", name).symlink("d/both" + "o" * 200, "u" * 3000)
        layer.add(b"d/latin-\xe9".decode("utf-8", "surrogateescape"), b"not utf-8")
        self.check([layer])

    def test_whiteouts(self):
        """104, 106, 107: what layers hide of those below, never of themselves"""
        one = Layer().dir("d").dir("d/sub").add("d/sub/f", b"1").add("d/a", b"a").add("d/b", b"b").add("a").add("b").add("p", b"a file")
        one.dir("gone").add("gone/x").dir("again").add("again/old").dir("opaque").add("opaque/lower").dir("opaque/kept").add("opaque/kept/lower")
        one.dir("becomes-file").add("becomes-file/x").symlink("becomes-dir", "d").add("linked", b"1").link("linked2", "linked")
        two = Layer().add(".wh.a").dir("d").add("d/.wh.b").add("d/.wh.sub").dir("again").add(".wh.again").add("again/new", b"new")
        two.dir("p").add("p/q", b"below a file").add("becomes-file", b"now a file").dir("becomes-dir").add("becomes-dir/x")
        two.add(".wh.gone").add(".wh.linked").dir("opaque").add("opaque/n").add("opaque/.wh..wh..opq").add("opaque/m").dir("opaque/kept").add("opaque/kept/new")
        three = Layer().dir("gone").add("gone/new").add("a", b"back").dir("d").dir("d/sub").add("d/sub/g", b"3").add("b", b"changed", mode=0o600)
        three.add("only-here").link("only-here-2", "only-here").add(".wh.never-was")

        def ignore(path, key):
            """Times of directories that umoci itself has changed; an overlay counts the links of a layer."""
            return (key == "mtime" and b"/" not in path) or (path == b"linked2" and key in ("links", "same"))

        self.check([one, two], ignore)
        self.check([one, two, three], ignore)


class Marks(Case):
    """What other readers get wrong, against what it should be."""

    def names(self, at):
        return sorted(text(n) for n in compare.tree(at) if n != b".")

    def test_hard_linked_whiteout(self):
        """104"""
        one = self.blob(Layer().add("a").add("b"))
        two = self.blob(Layer().add("c", b"c").link(".wh.b", "c").add(".wh.a"))
        self.assertEqual(self.names(self.mounted(self.image([one, two], lowest=True))), ["c"])
        stacked = self.overlay([self.mounted(self.image([one])), self.mounted(self.image([two]))])
        self.assertEqual(self.names(stacked), ["c"])


    def test_only_below_is_hidden(self):
        """106, 107: in one layer, whatever the order, and the marks are what overlayfs reads"""
        layer = Layer().add("d/n").add("d/.wh..wh..opq").add("d/m").dir("d", mode=0o700)
        layer.add(".wh.e").dir("e").add("e/f").add("g").add(".wh.g").dir("h").add("h/i").add(".wh.h").add(".wh..wh.plnk/x").dir(".wh..wh.aufs").add("x/.wh.y")
        at = self.mounted(self.image([layer]))
        self.assertEqual(self.names(at), ["d", "d/m", "d/n", "e", "e/f", "g", "h", "h/i", "x", "x/y"])
        for name in "deh":
            self.assertEqual(os.getxattr(at / name, "trusted.overlay.opaque"), b"y", name)
        mark = os.lstat(at / "x/y")
        self.assertTrue(stat.S_ISCHR(mark.st_mode) and mark.st_rdev == 0)
        self.assertEqual(stat.S_IMODE(os.lstat(at / "d").st_mode), 0o700)
        alone = self.mounted(self.image([layer], lowest=True))
        self.assertEqual(self.names(alone), ["d", "d/m", "d/n", "e", "e/f", "g", "h", "h/i", "x"])
        self.assertEqual(os.listxattr(alone / "d"), [])

    def test_hard_link_to_a_layer_below(self):
        """A link that its layer alone cannot make; the layers together can."""
        one, two = self.blob(Layer().dir("d").add("d/a", b"1")), self.blob(Layer().link("b", "d/a"))
        e = self.refused(errno.EXDEV, ["b: a hard link to d/a"], self.image, [two])
        self.assertEqual(e.status, 409)
        at = self.mounted(self.image([one, two], lowest=True))
        self.assertTrue(os.path.samefile(at / "b", at / "d/a"))
        self.assertEqual((at / "b").read_bytes(), b"1")
        self.refused(errno.EXDEV, "/: all of the layers below", self.image, [Layer().add(".wh..wh..opq").add("x")])
        self.assertEqual(self.names(self.mounted(self.image([one, Layer().add("x").add(".wh..wh..opq")], lowest=True))), ["x"])

    def test_guessed_directories(self):
        self.image([Layer().dir("a").add("a/b")])
        self.assertFalse(self.said["guessed"])
        at = self.mounted(self.image([Layer().add("a/b").add("var/tmp/x").add("tmp/x")]))
        self.assertTrue(self.said["guessed"])
        self.assertEqual([stat.S_IMODE(os.stat(at / d).st_mode) for d in ("a", "var/tmp", "tmp")], [0o755, 0o1777, 0o1777])


class Sizes(Case):
    def test_directories(self):
        """More names than 16 bits count, names as long as there may be, and directories whose names fill blocks."""
        layer = Layer().dir("many").dir("long")
        for i in range(65540):
            layer.add(f"many/{i}")
        for i in range(500):
            layer.add(f"long/{i:04}" + "n" * 251, b"%d" % i)
        at = self.mounted(self.image([layer]))
        self.assertEqual(len(os.listdir(at / "many")), 65540)
        self.assertTrue((at / "many/0").exists() and (at / "many/65539").exists() and not (at / "many/65540").exists())
        self.assertEqual([(at / "long" / (f"{i:04}" + "n" * 251)).read_bytes() for i in range(500)], [b"%d" % i for i in range(500)])

    def test_attributes_around_a_block(self):
        """Of a file, an empty one and a directory with many names: up to a block with the inode, and beyond."""
        for n in (3000, 3990, 4000, 4010, 4020, 4090, 8192, 60000):
            value = b"x" * n
            said = {"pax_headers": xattrs(user__x=value)}
            layer = Layer().dir("d", **said).add("d/f", b"y" * 100, **said).add("d/g", b"z" * 5000, **said).add("d/e", **said)
            for i in range(300):
                layer.add(f"d/{i}")
            at = self.mounted(self.image([layer]))
            self.assertEqual([os.getxattr(at / name, "user.x") for name in ("d", "d/f", "d/g", "d/e")], [value] * 4, n)
            self.assertEqual([(at / "d/f").read_bytes(), (at / "d/g").read_bytes(), len(os.listdir(at / "d"))], [b"y" * 100, b"z" * 5000, 303], n)

    def test_holes_in_every_place(self):
        for pieces, size in [([(0, 4096)], 8192), ([(4096, 4096)], 8192), ([(100, 10)], 5000), ([], 4096), ([], 1), ([(0, 1)], 4097), ([(0, 8192)], 12288), ([(8195, 100)], 12365), ([(7, 1)], 1 << 33)]:
            file = self.dir / "sparse"
            with open(file, "wb") as f:
                for at, n in pieces:
                    f.seek(at)
                    f.write(os.urandom(n))
                f.truncate(size)
            raw = subprocess.run(["tar", "-C", self.dir, "--format=posix", "-S", "-cf", "-", "sparse"], check=True, capture_output=True).stdout
            made = self.mounted(self.image([self.blob(raw)])) / "sparse"
            self.assertEqual(made.stat().st_size, size)
            with open(file, "rb") as a, open(made, "rb") as b:
                self.assertEqual(a.read(1 << 20), b.read(1 << 20), (pieces, size))


class Entries(Case):
    def test_dropped(self):
        """112: an image brings neither overlayfs' marks, nor labels of another machine, nor devices"""
        bad = xattrs(trusted__overlay__opaque=b"y", trusted__x=b"1", user__overlay__redirect=b"/etc", security__selinux=b"label", system__posix_acl_access=b"\2\0\0\0")
        layer = Layer().dir("d", pax_headers=bad).add("f", b"x", pax_headers={**bad, **xattrs(user__fine=b"1")}).symlink("l", "f", pax_headers=bad)
        layer.add("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3).add("zero", type=tarfile.CHRTYPE).add("sda", type=tarfile.BLKTYPE, devmajor=8)
        layer.dir("cap", pax_headers=xattrs(security__capability=CAPABILITY))
        at = self.mounted(self.image([layer]))
        self.assertEqual({n: os.listxattr(at / n, follow_symlinks=False) for n in os.listdir(at)}, {"d": [], "f": ["user.fine"], "l": [], "cap": []})

    def test_refused(self):
        """Escapes, owners that no sandbox has, and what is no archive."""
        for layer, words in [
            (Layer().add("../x"), "../x: it leads out of the image"),
            (Layer().add("a/../../x"), "it leads out"),
            (Layer().dir("d").link("d/l", "../x"), "d/l: a link to: ../x"),
            (Layer().add("big-owner", uid=65536), "big-owner: its owner 65536 is over 65535"),
            (Layer().add("d/big-group", gid=1 << 31), "d/big-group: its group 2147483648"),
            (Layer().add(".wh..."), "it removes no name"),
            (Layer().add(".wh."), "it removes no name"),
            (Layer().dir("d").link("l", "d"), "a hard link to the directory d"),
            (Layer().add(".", b"x"), "the root is no directory"),
            (Layer().symlink("empty", ""), "a link to a path of 0 bytes"),
        ]:
            with self.subTest(words):
                self.assertEqual(self.refused(errno.EINVAL, words, self.image, [layer]).status, 400)
        for layer, words in [
            (Layer().add("n/" * 5000 + "f"), "a path of 10001 bytes"),
            (Layer(tarfile.GNU_FORMAT).add("n/" * 5000 + "f"), "a path of 10001 bytes"),
            (Layer().add("a" * 256), "a name of 256 bytes"),
            (Layer().add("d/" * 1002 + "f"), "more than 1000 directories deep"),
            (Layer().symlink("l", "t" * 4096), "l: a link to a path of 4096 bytes"),
            (Layer().add("f", pax_headers=xattrs(user__big=b"x" * 65536)), "f: its extended attributes are larger"),
        ]:
            with self.subTest(words):
                self.assertEqual(self.refused(errno.EDQUOT, words, self.image, [layer]).status, 413)

    def test_by_name_only(self):
        """Nothing follows a link, whatever way a path is written."""
        (self.dir / "outside").mkdir()
        layer = Layer().symlink("l", str(self.dir / "outside")).add("l/f", b"inside").add("/abs", b"1").add("./a/./b//c", b"2").add("x/../y", b"3")
        at = self.mounted(self.image([layer]))
        self.assertEqual((at / "l/f").read_bytes() + (at / "abs").read_bytes() + (at / "a/b/c").read_bytes() + (at / "y").read_bytes(), b"inside123")
        self.assertEqual(os.listdir(self.dir / "outside"), [])

    def test_later_entries_replace(self):
        layer = Layer().add("f", b"1").link("g", "f").add("f", b"22", mode=0o600).dir("d").add("d/x").add("d", b"file").dir("e").add("e/x").symlink("e", "f").dir("e").add("e/y")
        at = self.mounted(self.image([layer]))
        self.assertEqual(((at / "f").read_bytes(), (at / "g").read_bytes(), (at / "d").read_bytes()), (b"22", b"1", b"file"))
        self.assertEqual([os.stat(at / n).st_nlink for n in "fg"], [1, 1])
        self.assertEqual(os.listdir(at / "e"), ["y"])


class Sparse(Case):
    def test_eight_gigabytes(self):
        """112: in each of tar's forms, sparse stays sparse"""
        source = self.dir / "source"
        source.mkdir()
        with open(source / "sparse", "wb") as f:
            f.truncate(8 << 30)
            for at in (0, 5 << 30, (8 << 30) - 100):
                f.seek(at)
                f.write(b"%1024d" % at if at < 8 << 29 else b"the end")
            f.truncate(8 << 30)
        with open(source / "hole", "wb") as f:
            f.truncate(123456789)
        with open(source / "many", "wb") as f:
            for i in range(60):
                f.seek(i * 100000)
                f.write(b"piece %d" % i * 100)
        for form in (["--format=gnu"], ["--format=posix", "--sparse-version=0.0"], ["--format=posix", "--sparse-version=0.1"], ["--format=posix", "--sparse-version=1.0"]):
            with self.subTest(form):
                raw = subprocess.run(["tar", "-C", source, "--sparse", *form, "-c", "sparse", "hole", "many"], check=True, capture_output=True).stdout
                image = self.image([self.blob(raw, "tar")])
                self.assertLess(image.stat().st_size, 3 << 20)
                at = self.mounted(image)
                for name in ("hole", "many"):
                    self.assertEqual((at / name).read_bytes(), (source / name).read_bytes(), name)
                with open(at / "sparse", "rb") as f, open(source / "sparse", "rb") as g:
                    self.assertEqual(os.fstat(f.fileno()).st_size, 8 << 30)
                    for where in (0, 1 << 30, (5 << 30) - 4096, 5 << 30, (8 << 30) - 8192):
                        f.seek(where)
                        g.seek(where)
                        self.assertEqual(f.read(1 << 20), g.read(1 << 20), where)


class Blobs(Case):
    def setUp(self):
        super().setUp()
        self.layer = Layer().add("a", os.urandom(300000)).add("b", b"b" * 5000)

    def test_forms(self):
        """113: the blob's own first bytes say what it is; members and frames follow each other"""
        raw = self.layer.raw()
        half = len(raw) // 2 + 17
        skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
        images = set()
        for blob in [
            raw,
            compare.compress(raw, "gzip"),
            compare.compress(raw[:half], "gzip") + compare.compress(raw[half:], "gzip") + compare.compress(b"", "gzip"),
            compare.compress(raw, "gzip") + bytes(1000),
            compare.compress(raw, "zstd"),
            compare.compress(raw[:half], "zstd") + skippable + compare.compress(raw[half:], "zstd") + skippable,
        ]:
            image = self.image([self.blob(blob, "tar")], diff_ids=[compare.sha(raw)])
            self.assertEqual(self.said["diff_ids"], [compare.sha(raw)])
            images.add(image.read_bytes())
        self.assertEqual(len(images), 1, "the same archive gives the same bytes")

    def test_damaged(self):
        """113"""
        raw = self.layer.raw()
        packed, frame = compare.compress(raw, "gzip"), compare.compress(raw, "zstd")
        for blob, words in [
            (packed[: len(packed) // 2], "truncated"),
            (packed[:-4], "truncated"),
            (frame[: len(frame) // 2], "truncated"),
            (raw[:1000], "ends within it"),
            (raw[:100000], "a: the archive ends within it"),
            (packed + b"garbage", "something follows its end"),
            (packed + bytes(10) + packed, "something follows its end"),
            (frame + b"garbage", "something follows its end"),
            (packed[:1000] + b"\xff" * 100 + packed[1100:], "damaged"),
            (b"x" * 5000, "checksum is wrong"),
            (raw[:512] + b"x" * (len(raw) - 512), "is wrong"),
        ]:
            with self.subTest(words):
                self.assertEqual(self.refused(errno.EBADMSG, words, self.image, [self.blob(blob, "tar")]).status, 400)
        wrong = compare.sha(b"something else")
        self.refused(errno.EBADMSG, [compare.sha(raw), wrong], self.image, [self.blob(packed, "tar")], diff_ids=[wrong])

    def test_empty(self):
        for blob in (b"", bytes(1024), bytes(512), compare.compress(bytes(1024), "gzip")):
            at = self.mounted(self.image([self.blob(blob, "tar")]))
            self.assertEqual(os.listdir(at), [])

    def test_bombs(self):
        """113: ten gigabytes of zeros in ten megabytes"""
        member = compare.compress(bytes(1 << 20), "gzip")
        zeros = tarfile.TarInfo("zeros")
        zeros.size = 10 << 30
        bomb = self.blob(compare.compress(zeros.tobuf(), "gzip") + member * 10240, "tar")
        e = self.refused(errno.EDQUOT, ["zeros", str(1 << 30)], self.image, [bomb], size_max=1 << 30)
        self.assertEqual(e.status, 413)
        # One file after the other, none of them too large.
        small = tarfile.TarInfo("small")
        small.size = 1 << 20
        entry = compare.compress(small.tobuf(), "gzip") + member
        self.refused(errno.EDQUOT, ["small", str(20 << 20)], self.image, [self.blob(entry * 30, "tar")], size_max=20 << 20)
        holes = tarfile.TarInfo("holes")
        holes.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 60), "GNU.sparse.name": "holes"}
        holes.size = 512
        raw = holes.tobuf(tarfile.PAX_FORMAT) + b"0\n" + bytes(510) + bytes(1024)
        self.refused(errno.EDQUOT, "holes: a file of", self.image, [self.blob(raw, "tar")])

    def test_no_space(self):
        """A full file system is an error that says so."""
        small = self.dir / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k,mode=755", "none", small], check=True)
        self.stack.callback(subprocess.run, ["umount", small], check=True)
        self.assertEqual(self.refused(errno.ENOSPC, "no space", maker.unpack, [self.blob(self.layer)], small / "image").status, 507)


class Merge(Case):
    """Directories as overlayfs leaves them."""

    def setUp(self):
        super().setUp()
        self.top = self.dir / "top"
        self.top.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", self.top], check=True)
        self.stack.callback(subprocess.run, ["umount", self.top], check=True)

    def change(self, lowers, name, script):
        """What the script changes in an overlay of these (lowest first), as an upper directory."""
        upper, work, at = (self.top / f"{name}.{d}" for d in ("upper", "work", "at"))
        for d in (upper, work, at):
            d.mkdir()
        lower = ":".join(str(d) for d in reversed(lowers))
        options = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off,metacopy=off,index=off"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "none", at], check=True)
        try:
            subprocess.run(["/bin/sh", "-e", "-c", script], cwd=at, check=True)
        finally:
            subprocess.run(["umount", at], check=True)
        return upper

    def test_as_if_stacked(self):
        base = self.mounted(self.image([everything()]))
        one = self.change([base], "one", "rm -r usr/bin; mkdir usr/bin; echo new >usr/bin/new; mkdir -p n/m; touch n/m/x n/m/y n/z; ln n/m/x n/m/hard; echo more >>etc/passwd;"
                          "rm etc/size0; mkdir etc/size0; ln -s long etc/l; mkfifo n/fifo; chmod 700 home; truncate -s 64M n/sparse; echo x >>n/sparse")
        two = self.change([base, one], "two", "rm n/m/y etc/l etc/size1; rm -r usr/share; echo again >etc/size1; rm -r etc/size0; echo file >etc/size0; touch usr/bin/other; rm -r empty;"
                          "rm n/m/x; chown 7:8 n/z")
        wanted = compare.tree(self.overlay([base, one, two]))
        image = self.dir / "merged"
        said = maker.merge([one, two], image, below=[base])
        maker.fsck(image)
        self.assertEqual(said["size"], image.stat().st_size)
        self.assertLess(said["size"], 4 << 20)
        merged = self.mounted(image)

        def ignore(path, key):
            return key in ("links", "same") or (path == b"." and key == "mtime")

        self.assertEqual(compare.differences(compare.tree(self.overlay([base, merged])), wanted, ignore), [])
        # Not even in a listing: a mark without anything below would show as a broken name.
        self.assertEqual(sorted(os.listdir(merged / "n/m")), ["hard"])
        # All of it: no marks at all.
        maker.merge([base, one, two], image2 := self.dir / "all")
        maker.fsck(image2)
        self.assertEqual(compare.differences(compare.tree(self.mounted(image2)), wanted, ignore), [])
        again = self.dir / "again"
        maker.merge([base, one, two], again)
        self.assertEqual(image2.read_bytes(), again.read_bytes())

    def test_images_of_layers(self):
        """Mounted images in place of directories give what unpacking their blobs together gives."""
        layers = [everything(), Layer().add("etc/.wh.passwd").dir("usr").dir("usr/bin").add("usr/bin/.wh..wh..opq").add("usr/bin/x"), Layer().dir("etc").add("etc/passwd", b"new")]
        mounts = [self.mounted(self.image([x])) for x in layers]
        maker.merge(mounts, self.dir / "merged")
        maker.fsck(self.dir / "merged")
        together = self.mounted(self.image(layers, lowest=True))

        def ignore(path, key):
            """What a layer does not say of the root another image below it cannot say."""
            return path == b"." and key == "mtime"

        self.assertEqual(compare.differences(compare.tree(self.mounted(self.dir / "merged")), compare.tree(together), ignore), [])

    def test_fitted_to_what_is_below(self):
        """An image that was made without knowledge of those below: directories it implies are as they are below, names it hides in vain are in no listing."""
        base = [
            self.mounted(self.image([Layer().dir("home").dir("home/u", mode=0o700, uid=1000, gid=1000, mtime=5, pax_headers=xattrs(user__k=b"v")).dir("tmp", mode=0o1777).dir("lost", mode=0o711)
                                      .dir("opaque", mode=0o750, uid=7, gid=8).add("opaque/low").dir("turned", mode=0o700, uid=7).add("turned/low")])),
            self.mounted(self.image([Layer().add("home/u/g").add(".wh.lost")])),
        ]
        first = Layer().add("home/u/f").dir("new").add("new/x").add("new/y").add("tmp/f").add("lost/f").add("opaque/n").add("opaque/.wh..wh..opq").add("opaque/m").add(".wh.turned").add("turned/n")
        upper = self.image([first, Layer().add("new/.wh.x").add("home/u/.wh.g")])
        self.assertTrue(self.said["guessed"])
        wrong = self.overlay([*base, self.mounted(upper)])
        self.assertEqual(os.stat(wrong / "home/u").st_uid, 0)
        maker.merge([f"{upper}.d"], self.dir / "fitted", below=reversed(base))
        maker.fsck(self.dir / "fitted")
        at = self.mounted(self.dir / "fitted")
        self.assertEqual(sorted(os.listdir(at / "new")), ["y"])
        self.assertEqual(sorted(os.listdir(at / "home/u")), ["f", "g"])
        stacked = self.overlay([*base, at])
        self.assertEqual(sorted(os.listdir(stacked / "home/u")), ["f"])
        home = os.stat(stacked / "home/u")
        self.assertEqual((home.st_uid, home.st_gid, stat.S_IMODE(home.st_mode), home.st_mtime), (1000, 1000, 0o700, 5))
        self.assertEqual(os.getxattr(stacked / "home/u", "user.k"), b"v")
        self.assertEqual(stat.S_IMODE(os.stat(stacked / "tmp").st_mode), 0o1777)
        self.assertEqual(stat.S_IMODE(os.stat(stacked / "lost").st_mode), 0o755)
        self.assertEqual([os.listxattr(at / d) for d in ("home/u", "tmp", "lost")], [["user.k"], [], []])
        # 106: what is hidden is what it holds; 107: what was removed is another one.
        for name, names, wanted in (("opaque", ["m", "n"], (7, 8, 0o750)), ("turned", ["n"], (0, 0, 0o755))):
            st = os.stat(stacked / name)
            self.assertEqual((st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)), wanted)
            self.assertEqual(sorted(os.listdir(stacked / name)), names)
            self.assertEqual(os.listxattr(at / name), ["trusted.overlay.opaque"])

    def test_refused(self):
        for name, value in [("redirect", b"/x"), ("metacopy", b""), ("opaque", b"x"), ("whiteout", b"")]:
            layer = self.top / name
            (layer / "d").mkdir(parents=True)
            os.setxattr(layer / "d", f"trusted.overlay.{name}", value)
            self.refused(errno.EOPNOTSUPP, "d", maker.merge, [layer], self.dir / "image")
        big = self.top / "big"
        big.mkdir()
        (big / "f").write_bytes(bytes(100000))
        self.refused(errno.EDQUOT, ["f", "50000"], maker.merge, [big], self.dir / "image", size_max=50000)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    unittest.main()
