"""Runs inside the emulated machine: cubicle-vmm alone, with tests/vm/agent.c in the guest."""

import array
import fcntl
import hashlib
import http.server
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

from api import HERE, say, wait

KERNEL = next(pathlib.Path("/boot").glob("vmlinuz-*"))
FORKED = "crng reseeded due to virtual machine fork"  # what Linux says when it has taken a new generation id (drivers/char/random.c)
OUTSIDE, INSIDE, MAC = "192.168.77.1", "192.168.77.2", "02:00:00:00:00:02"
OFF, RESET, PANIC, NO_START = 0, 10, 11, 13
BLOB = os.urandom(4 << 20)


def message_table():
    """{name: (id, {field: (tag, kind)})}, from the table itself (src/io/messages.h)."""
    text = (HERE / "messages.h").read_text()
    table = {name: (int(i), {}) for i, name in re.findall(r"\bM\((\d+), (\w+),", text)}
    for message, tag, kind, field in re.findall(r"\bF\((\w+), (\d+), (\w+), (\w+),", text):
        if message in table:
            table[message][1][field] = (int(tag), kind)
    return table


MESSAGES = message_table()


def encode(name, **fields):
    number, known = MESSAGES[name]
    body = b""
    for field, value in fields.items():
        tag, kind = known[field]
        assert kind == "U64", field
        body += struct.pack("<HHIQ", tag, 1, 8, value)
    return struct.pack("<4sHHIIQ", b"CUBM", 1, number, 24 + len(body), 0, 1) + body


def decode(datagram):
    number = struct.unpack_from("<H", datagram, 6)[0]
    name, known = next((n, fields) for n, (i, fields) in MESSAGES.items() if i == number)
    names, found, at = {tag: field for field, (tag, _) in known.items()}, {}, 24
    while at < len(datagram):
        tag, kind, n = struct.unpack_from("<HHI", datagram, at)
        raw = datagram[at + 8:at + 8 + n]
        found[names.get(tag)] = raw if kind == 4 else int.from_bytes(raw, "little")
        at += 8 + n
    return name, found


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", name.encode(), 0x0002 | 0x1000 | 0x4000))  # TUNSETIFF, a tap with vnet headers
    fcntl.ioctl(fd, 0x400454d8, struct.pack("i", 12))  # TUNSETVNETHDRSZ
    subprocess.run(["ip", "addr", "add", OUTSIDE + "/24", "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    return fd


class Vm:
    everyone = []

    def __init__(self, name, *words, memory=128, vcpus=1, disks=(), tap=None, restore=None, kernel=KERNEL, initramfs=HERE / "initramfs"):
        """`disks`: (path, further words); `tap`: a descriptor, closed here; `restore`: the files of state and memory."""
        self.name, self.dir = name, pathlib.Path(tempfile.mkdtemp(prefix=name + "-"))
        fds = {"kvm": os.open("/dev/kvm", os.O_RDWR), "console": os.open(self.dir / "console", os.O_RDWR | os.O_CREAT)}
        for which in "admin", "control":
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.bind(str(self.dir / which))
                s.listen(16)
                s.setblocking(False)
                fds[which] = s.detach()
        if restore:
            fds |= {word: os.open(path, os.O_RDONLY) for word, path in zip(("state", "memfile"), restore)}
        else:
            fds |= {"kernel": os.open(kernel, os.O_RDONLY), "initramfs": os.open(initramfs, os.O_RDONLY)}
            words += ("cmdline=console=ttyS0 quiet panic=-1 reboot=k,a random.trust_cpu=on do=agent",)
        opened = [(os.open(path, os.O_RDONLY if "ro" in further else os.O_RDWR), further) for path, further in disks]
        argv = [f"name={name}", f"vcpus={vcpus}", f"memory={memory}", *words, *(f"{k}={v}" for k, v in fds.items()), *(f"disk={fd}{further and ',' + further}" for fd, further in opened)]
        if tap is not None:
            argv += [f"tap={tap}", f"mac={MAC}", "mtu=1500"]
        pass_fds = [*fds.values(), *(fd for fd, _ in opened), *([] if tap is None else [tap])]
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen([HERE / "cubicle-vmm", *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds)
        for fd in pass_fds:
            os.close(fd)
        self.admin = None
        Vm.everyone.append(self)

    def connect(self, which):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(120)
        s.connect(str(self.dir / which))
        return s

    def call(self, name, *fds, **fields):
        """One message to the monitor; what its answer says. An error is an AssertionError."""
        self.admin = self.admin or self.connect("admin")
        self.admin.sendmsg([encode(name, **fields)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        kind, answer = decode(self.admin.recv(65536))
        assert kind != "error", answer
        return answer

    def status(self):
        return self.call("vm_status")

    def up(self):
        wait(lambda: self.process.poll() is not None or self.status()["up"], 120, self.story)
        assert self.process.poll() is None, self.story()
        return self

    def sh(self, script):
        """What a script in the guest says that must succeed."""
        with self.connect("control") as s:
            s.send(script.encode())
            answer = s.recv(65536)
        assert answer and answer[:4] == bytes(4), (script, answer)
        return answer[4:].decode(errors="replace")

    def leave(self, script):
        """Starts a script and does not wait."""
        with self.connect("control") as s:
            s.send(script.encode())
            select.select([s], [], [], 120)

    def open(self, port=1234):
        """A connection into the guest, None when that port refuses."""
        ours, theirs = socket.socketpair()
        self.call("vm_open", theirs.fileno(), port=2)
        theirs.close()
        ours.settimeout(120)
        ours.sendall(struct.pack("<H", port))
        if ours.recv(1) != b"\0":
            ours.close()
            return None
        return ours

    def ends(self, status):
        assert self.process.wait(120) == status, (self.process.returncode, self.story())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def story(self):
        return f"{self.name}: {(self.dir / 'log').read_text(errors='replace')[-3000:]}\n{(self.dir / 'console').read_text(errors='replace')[-3000:]}"


def told(part):
    """The part; when it fails, with what the machines said."""
    def run():
        try:
            part()
        except BaseException:
            for vm in Vm.everyone[-4:]:
                print(f"{vm.process.poll()} {vm.story()}", flush=True)
            raise
        finally:
            for vm in Vm.everyone:
                vm.kill()
    return run


def file_of(path, data):
    pathlib.Path(path).write_bytes(data)
    return path


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(BLOB)

    def do_POST(self):
        Handler.posted = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def sockets(vm):
    with vm.connect("control") as s:
        for n in 1, 2, 4095, 4096, 4097, 16384, 65535, 65536:
            s.send(b"\0" + os.urandom(n - 1))
            assert len(s.recv(65537)) == n, n
        for n in range(1, 200):  # as many as there may be, without waiting
            s.send(b"\0" * n)
        assert [len(s.recv(65537)) for _ in range(1, 200)] == list(range(1, 200))
    assert vm.open(1) is None
    assert vm.call("vm_status")["running"]
    many = [vm.open() for _ in range(40)]
    for i, s in enumerate(many):
        s.sendall(b"%d" % i)
    assert [s.recv(100) for s in many] == [b"%d" % i for i in range(40)]
    s = many[0]
    sender = threading.Thread(target=lambda: (s.sendall(BLOB), s.shutdown(socket.SHUT_WR)))
    sender.start()
    back = b""
    while part := s.recv(1 << 16):
        back += part
    sender.join()
    assert back == BLOB, len(back)
    for s in many:
        s.close()
    assert vm.sh("echo $((6 * 7))") == "42\n"
    say("ok: messages and connections into the guest")


def network(vm):
    web = http.server.ThreadingHTTPServer((OUTSIDE, 8000), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    assert vm.sh("cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu") == MAC + "\n1500\n"
    vm.sh(f"ip addr add {INSIDE}/24 dev eth0 && ip link set eth0 up && ping -c 3 {OUTSIDE}")
    for _ in range(2):
        assert vm.sh(f"wget -q -O - http://{OUTSIDE}:8000/ | sha256sum").split()[0] == hashlib.sha256(BLOB).hexdigest()
    vm.sh(f"head -c 500000 /dev/urandom | base64 > /tmp/f; wget -q -O - --post-file=/tmp/f http://{OUTSIDE}:8000/")
    assert hashlib.sha256(Handler.posted).hexdigest() == vm.sh("sha256sum < /tmp/f").split()[0]
    web.shutdown()
    say("ok: the network, both ways")


def disks(vm, written):
    assert vm.sh("sha256sum < /dev/vda").split()[0] == hashlib.sha256(BLOB).hexdigest()
    assert vm.sh("cat /sys/block/vda/ro /sys/block/vdb/ro") == "1\n0\n"
    vm.sh("mkfs.ext2 -q /dev/vdb 2>/dev/null || mke2fs /dev/vdb; mkdir -p /mnt; mount -t ext4 /dev/vdb /mnt; cp /dev/vda /mnt/copy; sync; umount /mnt; mount -t ext4 /dev/vdb /mnt; cmp /mnt/copy /dev/vda")
    vm.sh("dd if=/dev/urandom of=/dev/vdc bs=1M count=4 conv=fsync 2>/dev/null; dd if=/dev/vda of=/dev/vdc bs=512 seek=3 count=5 conv=fsync,notrunc 2>/dev/null")
    assert pathlib.Path(written).read_bytes()[3 * 512:8 * 512] == BLOB[:5 * 512]
    assert vm.sh("sha256sum < /dev/vdc").split()[0] == hashlib.sha256(pathlib.Path(written).read_bytes()).hexdigest()
    vm.sh("umount /mnt")
    say("ok: disks, one with limits, one read-only")


def balloon(vm):
    free = int(vm.sh("awk '/MemFree/ {print $2}' /proc/meminfo"))
    vm.call("vm_balloon", pages=4096)
    wait(lambda: vm.status()["balloon"] == 4096, 120, "the balloon")
    assert int(vm.sh("awk '/MemFree/ {print $2}' /proc/meminfo")) < free - 8192
    vm.call("vm_balloon", pages=0)
    wait(lambda: vm.status()["balloon"] == 0, 120, "the balloon to be empty")
    say("ok: the balloon")


def wrong_starts():
    for vm in (Vm("words", "nonsense=1"), Vm("none", memory=3), Vm("kernel", kernel=file_of("/tmp/nokernel", os.urandom(100000))), Vm("short", kernel=file_of("/tmp/half", KERNEL.read_bytes()[:300000])),
               Vm("empty", restore=(file_of("/tmp/e1", b""), file_of("/tmp/e2", b"")))):
        vm.ends(NO_START)
        assert '"level":"error"' in vm.story(), vm.story()
    say("ok: what cannot start says why")


@told
def monitor():
    for n, size in ("b", 32 << 20), ("c", 4 << 20):
        file_of(f"/tmp/vd{n}", b"")
        os.truncate(f"/tmp/vd{n}", size)
    vm = Vm("all", "jail=1234", vcpus=2, disks=((file_of("/tmp/vda", BLOB), "ro"), ("/tmp/vdb", ""), ("/tmp/vdc", "bps=50000000,iops=5000")), tap=tap("tap0")).up()
    assert vm.sh("nproc") == "2\n" and vm.sh("cat /sys/devices/system/clocksource/clocksource0/current_clocksource") == "kvm-clock\n"
    assert vm.sh("cat /sys/class/misc/hw_random/rng_current; head -c 32 /dev/hwrng | wc -c").startswith("virtio_rng.0\n32")
    say("ok: it boots, with two processors, in its jail")
    sockets(vm)
    disks(vm, "/tmp/vdc")
    network(vm)
    balloon(vm)
    vm.leave("sync; (sleep 1; poweroff -f) >/dev/null 2>&1 &")
    vm.ends(OFF)
    say("ok: powered off")
    wrong_starts()


@told
def endings():
    for script, status in ("echo c > /proc/sysrq-trigger", PANIC), ("reboot -f", RESET):
        vm = Vm("ends").up()
        vm.leave(f"(sleep 1; {script}) >/dev/null 2>&1 &")
        vm.ends(status)
        assert status != PANIC or "Kernel panic - not syncing" in (vm.dir / "console").read_text(errors="replace"), vm.story()
        say(f"ok: {script}: {status}")
    vm = Vm("busy", vcpus=2).up()
    for words in "yes > /dev/null", "while :; do cat /dev/hwrng > /dev/null; done", "while :; do :; done":
        vm.leave(f"({words}) >/dev/null 2>&1 &")
    vm.call("vm_pause")
    vm.call("vm_resume")
    assert vm.sh("echo here") == "here\n"
    vm.process.send_signal(signal.SIGTERM)
    vm.process.wait(120)
    say("ok: ended while it is busy")


def saved(vm, name):
    paths = [f"/tmp/{name}.state", f"/tmp/{name}.memory"]
    fds = [os.open(p, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for p in paths]
    vm.call("vm_pause")
    assert not vm.status()["running"]
    vm.call("vm_save", *fds)
    for fd in fds:
        os.close(fd)
    return paths


def counts(vm):
    n = int(vm.sh("cat /tmp/n"))
    wait(lambda: int(vm.sh("cat /tmp/n")) > n, 120, "the counter to go on")


def sum_of(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def knows_generations():
    """Whether the guest's kernel has the driver, as a module or built in."""
    return subprocess.run(["modprobe", "-S", KERNEL.name.removeprefix("vmlinuz-"), "--show-depends", "vmgenid"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def forks(vm):
    return int(vm.sh(f"dmesg | grep -c '{FORKED}'; true"))


def generations(n, *vms):
    """Each has taken n new generations since it booted, and none makes the random numbers that another makes of the same state."""
    for vm in vms:
        wait(lambda: forks(vm) >= n, 60, f"generation {n}")
        assert forks(vm) == n, vm.sh("dmesg | tail -20")
    random = [vm.sh("head -c 16 /dev/urandom | od -x") for vm in vms]
    assert len(set(random)) == len(vms), random
    say(f"ok: generation {n} of {len(vms)}")


def generations_elsewhere():
    """With a kernel that knows them, where the other does not."""
    kernel, initramfs = HERE / "vmlinuz-vmgenid", HERE / "initramfs-vmgenid"
    if not kernel.exists():
        say(f"SKIPPED: {KERNEL.name} has no driver for the generation id, nor has another kernel that is here")
        return
    vm = Vm("generation", kernel=kernel, initramfs=initramfs).up()
    generations(0, vm)
    files = saved(vm, "generation")
    vm.kill()
    generations(1, *[Vm(f"generation{i}", restore=files).up() for i in range(2)])


@told
def save():
    file_of("/tmp/vda", bytes(8 << 20))
    known = knows_generations()
    vm = Vm("first", "jail=1234", disks=(("/tmp/vda", ""),), tap=tap("tap0")).up()
    vm.sh(f"ip addr add {INSIDE}/24 dev eth0; ip link set eth0 up; head -c 20000000 /dev/urandom > /tmp/data; sha256sum < /tmp/data > /tmp/sum; mke2fs -q /dev/vda 2>/dev/null; mkdir -p /mnt; mount -t ext4 /dev/vda /mnt; echo a > /mnt/a; sync")
    vm.leave("(n=1; while :; do echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; n=$((n + 1)); sleep 0.05; done) >/dev/null 2>&1 &")
    wait(lambda: vm.sh("cat /tmp/n; true"), 120, "the counter")
    if known:
        generations(0, vm)
    stream = vm.open()
    stream.sendall(b"before")
    assert stream.recv(100) == b"before"
    files = saved(vm, "state")
    subprocess.run(["cp", "/tmp/vda", "/tmp/vda-2"], check=True)
    subprocess.run(["cp", "/tmp/vda", "/tmp/vda-3"], check=True)
    vm.call("vm_resume")
    counts(vm)
    stream.sendall(b"after")
    assert stream.recv(100) == b"after"
    vm.kill()
    say("ok: saved, and it goes on")
    sums = [sum_of(f) for f in files]
    others = [Vm(f"restored{i}", "jail=1234", disks=((f"/tmp/vda-{i}", ""),), tap=tap(f"tap{i}"), restore=files).up() for i in (2, 3)]
    if known:
        generations(1, *others)
    for vm in others:
        counts(vm)
        assert vm.sh("sha256sum < /tmp/data | cmp - /tmp/sum && echo same") == "same\n"
        vm.sh("cat /mnt/a; echo b > /mnt/b; sync; umount /mnt; mount -t ext4 /dev/vda /mnt; cat /mnt/b")
        new = vm.open()
        new.sendall(b"new")
        assert new.recv(100) == b"new"
        new.close()
    assert [sum_of(f) for f in files] == sums, "a restored guest wrote to the files"
    say("ok: restored twice")
    again = saved(others[0], "again")
    for vm in others:
        vm.kill()
    vm = Vm("again", disks=(("/tmp/vda-2", ""),), tap=tap("tap4"), restore=again).up()
    if known:
        generations(2, vm)
    counts(vm)
    vm.sh("cat /mnt/b")
    vm.kill()
    say("ok: saved and restored once more")
    damaged()
    if not known:
        generations_elsewhere()


def damaged():
    """A file that was not written to its end, or is another's, is no state."""
    whole = pathlib.Path("/tmp/state.state").read_bytes()
    for n in 0, 1, 4096, len(whole) // 2, len(whole) - 1:
        Vm("damaged", disks=(("/tmp/vda", ""),), tap=tap("tap5"), restore=(file_of("/tmp/d", whole[:n]), "/tmp/state.memory")).ends(NO_START)
    Vm("damaged", disks=(("/tmp/vda", ""),), tap=tap("tap5"), restore=(file_of("/tmp/d", bytes(4096) + whole[4096:]), "/tmp/state.memory")).ends(NO_START)
    Vm("damaged", disks=(("/tmp/vda", ""),), tap=tap("tap5"), restore=("/tmp/state.state", file_of("/tmp/d", b"\0" * 4096))).ends(NO_START)
    Vm("damaged", tap=tap("tap5"), restore=("/tmp/state.state", "/tmp/state.memory")).ends(NO_START)  # other devices than it was saved with
    say("ok: no damaged state is restored")
