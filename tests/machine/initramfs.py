"""The archive that a machine of the tests starts with."""

import gzip
import lzma
import os
import pathlib
import shutil
import stat
import subprocess


def plain_module(file):
    """The name and the bytes of a module that may be compressed."""
    data = file.read_bytes()
    unpack = {".xz": lzma.decompress, ".gz": gzip.decompress, ".zst": lambda b: subprocess.run(["zstd", "-dcq"], input=b, capture_output=True, check=True).stdout}.get(file.suffix)
    return (file.stem, unpack(data)) if unpack else (file.name, data)


class Initramfs:
    """A cpio archive ("newc", as the kernel's Documentation/driver-api/early-userspace/buffer-format.rst has it), made without being root and without compression."""

    def __init__(self):
        self.data, self.n, self.dirs = bytearray(), 0, set()
        self.directory("dev")
        self._entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def _entry(self, name, mode, data=b"", device=(0, 0)):
        self.n += 1
        raw = name.encode() + b"\0"
        fields = (self.n, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
        for part in b"070701" + b"".join(b"%08x" % f for f in fields) + raw, data:
            self.data += part + bytearray(-len(part) % 4)

    def directory(self, path, mode=0o755):
        parts = path.split("/")
        for i in range(1, len(parts) + 1):
            parent = "/".join(parts[:i])
            if parent not in self.dirs:
                self.dirs.add(parent)
                self._entry(parent, stat.S_IFDIR | mode)
        return self

    def file(self, path, data, mode=0o644):
        if "/" in path:
            self.directory(path.rpartition("/")[0])
        self._entry(path, stat.S_IFREG | mode, data)
        return self

    def link(self, path, target):
        self.directory(path.rpartition("/")[0])
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())
        return self

    def tree(self, path, source):
        """All files below the directory `source`."""
        for p in sorted(source.rglob("*")):
            name = f"{path}/{p.relative_to(source)}"
            if p.is_symlink():
                self.link(name, os.readlink(p))
            elif p.is_dir():
                self.directory(name)
            elif p.is_file():
                self.file(name, p.read_bytes(), stat.S_IMODE(p.stat().st_mode))
        return self

    def busybox(self):
        program = shutil.which("busybox")
        self.file("bin/busybox", pathlib.Path(program).read_bytes(), 0o755)
        for applet in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
            if applet != "busybox":
                self.link(f"bin/{applet}", "busybox")
        return self

    def modules(self, files):
        """As modules/NN-name.ko, in the order to insert them."""
        for i, (name, data) in enumerate(map(plain_module, files)):
            self.file(f"modules/{i:02}-{name}", data)
        return self

    def bytes(self):
        end = Initramfs.__new__(Initramfs)
        end.data, end.n = bytearray(), 0
        end._entry("TRAILER!!!", 0)
        return bytes(self.data + end.data)

    def write(self, path):
        path.write_bytes(self.bytes())
        return path
