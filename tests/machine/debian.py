"""Debian's kernels without installing them, and the initramfs that a machine of the tests starts with."""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

# Only the drivers that a server needs; the rest of the tree is 300 MB.
UNUSED = [f"kernel/{d}" for d in (
    "sound", "drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/net/ethernet", "drivers/infiniband", "drivers/scsi", "drivers/staging", "drivers/usb", "drivers/iio", "drivers/hid",
    "drivers/input", "drivers/isdn", "drivers/md", "drivers/hwmon", "drivers/mtd", "drivers/video", "drivers/ata", "fs/ocfs2", "fs/gfs2", "fs/nfs", "fs/ceph", "fs/xfs", "fs/btrfs")]


def temporary(cache):
    """A directory for a run or for what is being made: a later run removes it if this one is killed."""
    return tempfile.TemporaryDirectory(dir=cache, prefix="work.")


class Kernel:
    def __init__(self, root):
        self.root = root
        self.modules = next((root / "lib/modules").iterdir())
        self.version = self.modules.name
        self.image = root / f"boot/vmlinuz-{self.version}"

    def files_of(self, *names):
        """The files of these modules and of those they need, in the order to insert them; of one that is built in there is none."""
        files = {}
        for name in names:
            r = subprocess.run(["/sbin/modprobe", "-d", self.root, "-S", self.version, "--show-depends", name], capture_output=True, text=True, check=True)
            files |= dict.fromkeys(pathlib.Path(line.split()[1]) for line in r.stdout.splitlines() if line.startswith("insmod"))
        return list(files)


def newest(package):
    r = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True)
    return next((line.split()[1] for line in r.stdout.splitlines() if line.strip().startswith("Depends: linux-image-6")), None)


def update():
    subprocess.run(["apt-get", "update", "-qq"], check=True)


def kernel(cache, package):
    """The newest kernel that the package (linux-image-amd64, linux-image-cloud-amd64) stands for, kept in the directory `cache`."""
    name = newest(package)
    if not name:
        update()
        name = newest(package)
        if not name:
            raise SystemExit(f"apt does not know {package}")
    root = cache / name
    if root.exists():
        return Kernel(root)
    with temporary(cache) as d:
        work = pathlib.Path(d)
        download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", name]
        if subprocess.run(download, cwd=work).returncode:  # lists that are not fresh name files that are gone
            update()
            subprocess.run(download, cwd=work, check=True)
        subprocess.run(["dpkg", "-x", next(work.glob("*.deb")), work / "root"], check=True)
        made = Kernel(work / "root")
        for unused in UNUSED:
            shutil.rmtree(made.modules / unused, ignore_errors=True)
        subprocess.run(["/sbin/depmod", "-b", made.root, made.version], check=True)
        made.root.rename(root)
    return Kernel(root)


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
        for i, f in enumerate(files):
            self.file(f"modules/{i:02}-{f.name}", f.read_bytes())
        return self

    def bytes(self):
        end = Initramfs.__new__(Initramfs)
        end.data, end.n = bytearray(), 0
        end._entry("TRAILER!!!", 0)
        return bytes(self.data + end.data)

    def write(self, path):
        path.write_bytes(self.bytes())
        return path
