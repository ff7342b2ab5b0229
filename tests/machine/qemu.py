"""An emulated machine and its serial console. It needs no KVM and takes none."""

import os
import re
import select
import subprocess
import time


def tell(part, text):
    print(f"   {part:7} {text}\n", end="", flush=True)


class Machine:
    running = set()  # those of this process

    def __init__(self, kernel, initrd, append, cpu="max", processors=2, memory="1536M", disk=None, outside=None):
        """`outside`: a directory of this machine that it can mount, read-only, by 9p."""
        words = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35", "-cpu", cpu, "-smp", str(processors), "-m", memory, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
                 "-serial", "stdio", "-kernel", kernel, "-initrd", initrd, "-append", f"console=ttyS0 panic=-1 mitigations=off {append}"]
        if disk:
            words += ["-drive", f"file={disk},format=raw,if=virtio,cache=writeback"]
        if outside:
            words += ["-virtfs", f"local,path={outside},mount_tag=outside,security_model=none,readonly=on,multidevs=remap"]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        Machine.running.add(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()
        Machine.running.discard(self)

    def _lines(self, deadline):
        pending = b""
        while time.monotonic() < deadline:
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    yield re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e]", "", line.decode("ascii", "replace"))
            yield None
        yield f"no end in {self.limit} s"

    def lines(self, seconds):
        """The lines of the serial console as they come, None about ten times a second without one; ends with the machine, or after so many seconds. What BIOS, boot loader and kernel say
        before PID 1 says BOOTED comes only when nothing else does."""
        self.limit = seconds
        before = []
        for line in self._lines(time.monotonic() + seconds):
            if before is None or line is None:
                yield line
            elif line.endswith("BOOTED"):
                before = None
            else:
                before.append(line)
        yield from before or []
