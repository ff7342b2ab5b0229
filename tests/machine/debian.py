"""Debian's kernels and a small Debian system, without installing anything."""

import contextlib
import fcntl
import hashlib
import pathlib
import re
import shutil
import subprocess
import tempfile

# Only the drivers that a server needs; the rest of the tree is 300 MB.
UNUSED = [f"kernel/{d}" for d in (
    "sound", "drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/net/ethernet", "drivers/infiniband", "drivers/scsi", "drivers/staging", "drivers/usb", "drivers/iio", "drivers/hid",
    "drivers/input", "drivers/isdn", "drivers/md", "drivers/hwmon", "drivers/mtd", "drivers/video", "drivers/ata", "fs/ocfs2", "fs/gfs2", "fs/nfs", "fs/ceph", "fs/xfs", "fs/btrfs")]


@contextlib.contextmanager
def cache(build):
    """BUILD/machine, where what was downloaded and made is kept, for one run at a time."""
    path = build / "machine"
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in path.glob("work.*"):  # of a run that was killed
            shutil.rmtree(left)
        yield path


@contextlib.contextmanager
def temporary(cache):
    with tempfile.TemporaryDirectory(dir=cache, prefix="work.") as d:
        yield pathlib.Path(d)


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

    def has(self, module):
        """As a module, or built in."""
        return subprocess.run(["/sbin/modprobe", "-d", self.root, "-S", self.version, "--show-depends", module], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def finish(self):
        """Leaves what is needed, and makes the list of it."""
        for unused in UNUSED:
            shutil.rmtree(self.modules / unused, ignore_errors=True)
        subprocess.run(["/sbin/depmod", "-b", self.root, self.version], check=True)
        return self


def kernel_of(root, work):
    """A copy in the directory `work` of the kernel in a root directory, as `dpkg -x` or an installation leaves it."""
    images = list(root.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        raise SystemExit(f"{root}/boot has {len(images)} files vmlinuz-VERSION")
    version, made = images[0].name.removeprefix("vmlinuz-"), work / "kernel"
    modules = [p for p in (root / "lib/modules" / version, root / "usr/lib/modules" / version) if p.is_dir()]
    if not modules:
        raise SystemExit(f"{root} has no modules of {version}")
    for source, target in (images[0], made / "boot"), (modules[0], made / "lib/modules"):
        target.mkdir(parents=True)
        subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
    return Kernel(made).finish()


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
    for old in cache.glob("linux-image-*"):
        if re.sub(r"[\d.-]+", "", old.name) == re.sub(r"[\d.-]+", "", name):  # a former version of the same
            shutil.rmtree(old)
    with temporary(cache) as work:
        download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", name]
        if subprocess.run(download, cwd=work).returncode:  # lists that are not fresh name files that are gone
            update()
            subprocess.run(download, cwd=work, check=True)
        subprocess.run(["dpkg", "-x", next(work.glob("*.deb")), work / "root"], check=True)
        Kernel(work / "root").finish().root.rename(root)
    return Kernel(root)


def system(cache, *packages):
    """A directory with Debian 12 and these packages, kept in the directory `cache`."""
    root = cache / ("system-" + hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12])
    if root.exists():
        return root
    with temporary(cache) as work:
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=" + ",".join(packages), "bookworm", work / "root.tar"], check=True)
        (work / "root").mkdir()
        subprocess.run(["tar", "-C", work / "root", "-xf", work / "root.tar"], check=True)
        for unused in *(work / "root/usr/share" / d for d in ("doc", "man", "locale", "info")), *(work / "root/var/cache/apt").iterdir(), *(work / "root/var/lib/apt/lists").iterdir():
            shutil.rmtree(unused) if unused.is_dir() else unused.unlink()
        (work / "root").rename(root)
    return root
