"""A host file system so small that tests can fill it."""

import errno
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

from server import wait_for

MIB = 1 << 20
HOST_MB = 3072


class SmallHost:
    """An ext4 file system on a loop device, for a state directory."""

    def __init__(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="cub-disk-", dir="/tmp"))
        self.top = self.base / "h"
        self.top.mkdir()
        self.image = self.base / "image"
        self.device = None
        self.lowest = None
        self.done = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)

    def make(self):
        with open(self.image, "wb") as f:
            f.truncate(HOST_MB * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-F", self.image], check=True)
        self.device = subprocess.run(["losetup", "--direct-io=on", "--find", "--show", self.image], check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(["mount", "-t", "ext4", self.device, self.top], check=True)
        self.watcher.start()
        return self

    def free(self):
        st = os.statvfs(self.top)
        return st.f_bavail * st.f_frsize

    def _watch(self):
        while not self.done.wait(0.005):
            free = self.free()
            self.lowest = free if self.lowest is None else min(free, self.lowest)

    def take(self, leave):
        """A process outside any sandbox takes all but `leave` bytes, in one call."""
        with open(self.top / "taken", "wb") as f:
            try:
                os.posix_fallocate(f.fileno(), 0, self.free() - leave)
            except OSError as e:
                assert e.errno == errno.ENOSPC and leave == 0  # somebody took some of it meanwhile; the rest is ours

    def give_back(self):
        for name in ("taken", "outside"):
            (self.top / name).unlink(missing_ok=True)
        os.sync()

    def destroy(self):
        self.done.set()
        if self.watcher.is_alive():
            self.watcher.join()
        if self.device:
            def unmounted():
                return subprocess.run(["umount", self.top], capture_output=True).returncode == 0 or not os.path.ismount(self.top)
            wait_for(unmounted, 60, f"umount {self.top}")
            subprocess.run(["losetup", "--detach", self.device], check=True)
        shutil.rmtree(self.base)
