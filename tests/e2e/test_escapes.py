"""What a hostile root inside tries (design: docs/security.md). Each test asks from inside; positive controls show that the question was a fair one."""

import json
import os
import subprocess
import textwrap

import pytest
from e2b import CommandExitException, Sandbox

from backend import of_namespaces
from server import PROCESSES, wait_for

PRELUDE = textwrap.dedent("""
    import ctypes, ctypes.util, errno, json, os, socket, struct, sys
    libc = ctypes.CDLL(None, use_errno=True)
    def syscall(number, *args):
        ctypes.set_errno(0)
        r = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, (bytes, ctypes.Array)) or a is None else ctypes.c_long(a) for a in args])
        return r if r >= 0 else errno.errorcode[ctypes.get_errno()]
    def attempt(f, *args):
        try:
            r = f(*args)
            return r if isinstance(r, (int, str, type(None))) else "done"
        except OSError as e:
            return errno.errorcode.get(e.errno, str(e))
    def say(**kw):
        print(json.dumps(kw))
""")


@pytest.fixture(scope="module")
def box(server):
    b = Sandbox.create("base", timeout=600)
    yield b
    b.kill()


def probe(box, code, user="root", timeout=60):
    """Runs Python inside as root; the last line it prints is JSON."""
    box.files.write("/tmp/probe.py", PRELUDE + textwrap.dedent(code), user="root")
    r = box.commands.run("python3 /tmp/probe.py", user=user, timeout=timeout)
    return json.loads(r.stdout.strip().splitlines()[-1])


@of_namespaces
def test_mounting_and_unmounting_are_refused(box):
    r = probe(box, """
        say(mount=attempt(lambda: libc.mount and syscall(165, b"none", b"/mnt", b"tmpfs", 0, None)),
            umount_proc=syscall(166, b"/proc", 2), umount_sys=syscall(166, b"/sys", 2), umount_mask=syscall(166, b"/proc/kcore", 2),
            remount=syscall(165, None, b"/", None, 32, None), bind=syscall(165, b"/etc", b"/mnt", None, 4096, None),
            move=syscall(165, b"/proc", b"/mnt", None, 8192, None),
            fsopen=syscall(430, b"tmpfs", 0), open_tree=syscall(428, -100, b"/", 1), move_mount=syscall(429, 3, b"", -100, b"/mnt", 4),
            mount_setattr=syscall(442, -100, b"/", 0, None, 0), pivot_root=syscall(155, b"/", b"/mnt"), chroot=attempt(os.chroot, "/tmp"))
    """)
    r.pop("chroot")  # allowed: changes nothing that a root inside does not have
    assert set(r.values()) <= {"EPERM", "ENOSYS"}, r


@of_namespaces
def test_new_namespaces_are_refused(box):
    r = probe(box, """
        flags = dict(user=0x10000000, pid=0x20000000, net=0x40000000, mnt=0x20000, uts=0x4000000, ipc=0x8000000, cgroup=0x2000000, time=0x80)
        out = {k: syscall(272, f) for k, f in flags.items()}
        out["clone_user"] = syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
        out["clone3"] = syscall(435, bytes(88), 88)
        out["setns"] = syscall(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0)
        say(**out)
    """)
    assert r.pop("clone3") == "ENOSYS"
    assert set(r.values()) == {"EPERM"}, r


@of_namespaces
def test_dangerous_system_calls_are_refused_and_ordinary_ones_work(box):
    r = probe(box, """
        say(bpf=syscall(321, 0, None, 0), perf=syscall(298, None, 0, -1, -1, 0), userfaultfd=syscall(323, 0), io_uring=syscall(425, 1, None),
            keyctl=syscall(250, 0, 0, 0, 0, 0), add_key=syscall(248, b"user", b"x", b"y", 1, -3), request_key=syscall(249, b"user", b"x", None, 0),
            open_by_handle=syscall(304, -100, None, 0), kexec=syscall(246, 0, 0, None, 0), init_module=syscall(175, None, 0, b""),
            finit_module=syscall(313, 0, b"", 0), reboot=syscall(169, 0xfee1dead, 672274793, 0x4321fedc, None), swapon=syscall(167, b"/x", 0),
            settime=syscall(227, 0, struct.pack("qq", 1, 0)), acct=syscall(163, b"/x"), quotactl=syscall(179, 0, None, 0, None), syslog=syscall(103, 2, None, 0))
    """)
    assert set(r.values()) <= {"EPERM", "ENOSYS", "EACCES"}, r
    control = probe(box, "say(getpid=syscall(39) > 0, memfd=syscall(319, b'x', 1) > 0, eventfd=syscall(290, 0, 0) > 0)")
    assert set(control.values()) == {True}


@of_namespaces
def test_socket_families(box):
    r = probe(box, """
        fam = dict(packet=(17, 3), vsock=(40, 1), alg=(38, 5), netfilter=(16, 3, 12), raw=(2, 3, 1), bluetooth=(31, 3), xdp=(44, 3))
        say(**{k: attempt(lambda a=a: socket.socket(*a) and 0) for k, a in fam.items()})
    """)
    assert all(v in ("EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT") for v in r.values()), r
    assert probe(box, "say(tcp=attempt(lambda: socket.socket() and 0), route=attempt(lambda: socket.socket(16, 3, 0) and 0))") == {"tcp": 0, "route": 0}


@of_namespaces
def test_the_bounding_set_lacks_what_undoes_a_policy(box):
    caps = int(box.commands.run("grep CapBnd /proc/self/status", user="root").stdout.split()[1], 16)
    forbidden = {"NET_ADMIN": 12, "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_ADMIN": 21, "SYS_BOOT": 22, "SYS_TIME": 25, "PERFMON": 38, "BPF": 39}
    assert {n for n, bit in forbidden.items() if caps >> bit & 1} == set()
    needed = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18}
    assert {n for n, bit in needed.items() if not caps >> bit & 1} == set()


@of_namespaces
def test_187_masks_of_proc_and_sys(box):
    r = probe(box, """
        def content(p):
            try:
                return len(open(p, "rb").read(100))
            except OSError as e:
                return errno.errorcode[e.errno]
        say(**{p: content(p) for p in ("/proc/kcore", "/proc/keys", "/proc/sched_debug", "/proc/timer_list", "/proc/kmsg", "/proc/sysrq-trigger", "/proc/kallsyms")},
            writable=[p for p in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
                "/proc/sys/fs/binfmt_misc/register", "/proc/irq/default_smp_affinity", "/proc/acpi", "/sys/power/state")
                if attempt(lambda: os.close(os.open(p, os.O_WRONLY))) is None],
            dmi=attempt(lambda: os.listdir("/sys/class/dmi/id") and "seen"), firmware=attempt(lambda: len(os.listdir("/sys/firmware"))))
    """)
    assert r.pop("writable") == []
    assert r.pop("dmi") in ("ENOENT", "EACCES", "seen") and r.pop("firmware") in (0, "ENOENT", "EACCES")
    allowed = r.pop("/proc/kallsyms")
    assert allowed in (0, 100, "EACCES", "EPERM")
    assert all(v in (0, "EACCES", "EPERM", "ENOENT", "EIO") for v in r.values()), r
    if allowed == 100:
        assert probe(box, "say(zero=all(int(l.split()[0], 16) == 0 for l in open('/proc/kallsyms').readlines()[:50]))")["zero"]


def test_host_mounts_are_not_visible(server, box):
    mounts = box.commands.run("cat /proc/self/mountinfo", user="root").stdout
    assert str(server.state) not in mounts, mounts
    for line in open("/proc/self/mountinfo"):
        where = line.split()[4]
        if where.count("/") > 1 and not where.startswith(("/dev", "/proc", "/sys", "/run", "/tmp")):
            assert where not in mounts, line


@of_namespaces
def test_pid_1_cannot_be_touched(box):
    r = probe(box, """
        say(mem=attempt(lambda: os.open("/proc/1/mem", os.O_RDWR)), fd=attempt(os.listdir, "/proc/1/fd"), exe=attempt(os.readlink, "/proc/1/exe"),
            root=attempt(os.listdir, "/proc/1/root"), environ=attempt(lambda: open("/proc/1/environ", "rb").read() and "read"),
            attach=syscall(101, 16, 1, 0, 0), seize=syscall(101, 0x4206, 1, 0, 0),
            getfd=syscall(438, syscall(434, 1, 0), 0, 0))
    """)
    assert all(v in ("EPERM", "EACCES", "ESRCH") for v in r.values()), r


@of_namespaces
def test_the_file_api_tells_nothing_of_the_host_and_does_not_reach_its_program(server, box):
    """The process that serves a file call is one of ours: what it says about itself goes out to whoever asks."""
    maps = box.files.read("/proc/self/maps", user="root")
    assert "[stack]" in maps and str(server.state) not in maps and "cubicle-init" in maps
    for name in ("exe", "mem", "environ", "pagemap"):
        with pytest.raises(Exception, match="(?i)permission|403"):
            box.files.read(f"/proc/self/{name}", user="root")
        with pytest.raises(Exception, match="(?i)permission|403"):
            box.files.write(f"/proc/self/{name}", "x", user="root")
    assert box.files.get_info("/proc/self/exe", user="root").symlink_target in (None, "/proc/self/exe", "/memfd:cubicle-init (deleted)")
    assert "cubicle-init" in box.commands.run("cat /proc/1/cmdline").stdout


def test_ptrace_of_ones_own_processes_works(box):
    r = probe(box, """
        pid = os.fork()
        if pid == 0:
            import time; time.sleep(30)
        r = syscall(101, 16, pid, 0, 0)
        os.waitpid(pid, 0)
        os.kill(pid, 9)
        say(attach=r)
    """)
    assert r == {"attach": 0}


def test_killing_pid_1_from_inside_does_nothing(box):
    box.commands.run("kill -9 1; kill -TERM 1; kill -STOP 1; true", user="root")
    assert box.commands.run("echo alive").stdout == "alive\n"


@of_namespaces
def test_devices(box):
    r = probe(box, """
        say(mknod_mem=attempt(os.mknod, "/tmp/mem", 0o20600, os.makedev(1, 1)), mknod_disk=attempt(os.mknod, "/tmp/vda", 0o60600, os.makedev(254, 0)),
            devs=",".join(sorted(os.listdir("/dev"))), kvm=attempt(lambda: os.open("/dev/kvm", os.O_RDWR)), loop=attempt(lambda: os.open("/dev/loop-control", os.O_RDWR)))
    """)
    assert r["mknod_mem"] == "EPERM" and r["mknod_disk"] == "EPERM" and r["kvm"] == "ENOENT" and r["loop"] == "ENOENT"
    assert set(r["devs"].split(",")) <= {"console", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero", "core"}
    assert probe(box, "say(null=attempt(lambda: os.write(os.open('/dev/null', os.O_RDWR), b'x')), zero=len(open('/dev/zero', 'rb').read(10)))") == {"null": 1, "zero": 10}


NETWORK = """
    import subprocess
    def tcp(address, port, family=socket.AF_INET):
        s = socket.socket(family)
        s.settimeout(3)
        try:
            s.connect((address, port))
            return "connected"
        except OSError as e:
            return errno.errorcode.get(e.errno, "timeout")
"""


def test_host_neighbours_and_private_ranges_are_unreachable(server, box):
    other = Sandbox.create("base")
    other.commands.run("python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &", background=True)
    address = other.commands.run("hostname -I || ip -4 -o addr show").stdout
    addresses = [a.split("/")[0] for a in other.commands.run("ip -4 -o addr show scope global | awk '{print $4}'").stdout.split()]
    assert addresses, address
    wait_for(lambda: probe(other, NETWORK + "    say(up=tcp('127.0.0.1', 8000))") == {"up": "connected"}, 60, "the service of the other")
    hosts = [w.split("/")[0] for w in subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True).stdout.split() if "/" in w and w[0].isdigit()]
    targets = [(a, 8000) for a in addresses] + [(h, server.port) for h in hosts if not h.startswith("127.")] + [
        ("127.0.0.1", server.port), ("169.254.169.254", 80), ("10.0.0.1", 80), ("172.16.0.1", 80), ("192.168.0.1", 80), ("100.64.0.1", 80), ("224.0.0.1", 80)]
    r = probe(box, NETWORK + f"    say(**{{f'{{a}}:{{p}}': tcp(a, p) for a, p in {targets!r}}})", timeout=120)
    assert "connected" not in r.values(), r
    # Positive control: the same address answers inside its own sandbox.
    assert probe(other, NETWORK + f"    say(own=tcp({addresses[0]!r}, 8000))") == {"own": "connected"}
    other.kill()


@of_namespaces
def test_links_and_addresses_cannot_be_changed(box):
    with pytest.raises(CommandExitException):
        box.commands.run("ip link add dummy0 type veth", user="root")
    with pytest.raises(CommandExitException):
        box.commands.run("ip addr add 10.9.9.9/24 dev lo", user="root")
    with pytest.raises(CommandExitException):
        box.commands.run("ip route add 10.0.0.0/8 dev lo", user="root")


def test_internet_off_fails_at_once(server):
    b = Sandbox.create("base", allow_internet_access=False)
    r = b.commands.run("curl -sS --max-time 4 http://1.1.1.1/; echo code $?; curl -sS --max-time 4 http://example.com/; echo code $?", timeout=120)
    codes = [line.split()[1] for line in r.stdout.splitlines() if line.startswith("code")]
    assert len(codes) == 2 and "0" not in codes
    assert b.commands.run("echo still reachable").stdout == "still reachable\n"
    b.kill()


def test_symlinks_lead_nowhere_outside(server, box):
    box.commands.run("ln -sfn / /home/user/root; ln -sfn /proc/1/root /home/user/p1; ln -sfn ../../../../../../../../etc/hostname /home/user/up")
    host = open("/etc/hostname").read().strip()
    inside = box.files.read("/home/user/up").strip()
    assert inside == box.commands.run("cat /etc/hostname").stdout.strip() and inside != host
    assert not box.files.exists(f"/home/user/root{server.state}")
    with pytest.raises(Exception):
        box.files.list("/home/user/p1/work")


EXHAUST = {
    "inotify": """
        n, kept = 0, []
        while True:
            r = syscall(294, 0)
            if isinstance(r, str): break
            kept.append(r); n += 1
            if n > 5000: break
        print(json.dumps({"n": n, "error": str(r)}), flush=True)
    """,
    "aio": """
        n = 0
        while n < 2000:
            c = ctypes.c_ulong(0)
            if libc.syscall(206, 4096, ctypes.byref(c)) < 0: break
            n += 1
        print(json.dumps({"n": n}), flush=True)
    """,
    "ptys": """
        n, kept = 0, []
        while n < 10000:
            try:
                kept.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)); n += 1
            except OSError as e:
                break
        print(json.dumps({"n": n}), flush=True)
    """,
}


@pytest.mark.parametrize("what", EXHAUST)
def test_exhausting_a_kernel_limit_leaves_it_to_the_others(server, what):
    greedy, modest = Sandbox.create("base"), Sandbox.create("base")
    try:
        greedy.files.write("/tmp/g.py", PRELUDE + textwrap.dedent(EXHAUST[what]) + "\nimport time; time.sleep(100)\n", user="root")
        handle = greedy.commands.run("ulimit -n 100000 2>/dev/null || ulimit -n $(ulimit -Hn); python3 /tmp/g.py", user="root", background=True, timeout=0)
        for out, _, _ in handle:
            if out and "{" in out:
                assert json.loads(out[out.index("{"):])["n"] > 3
                break
        r = probe(modest, {"inotify": "say(got=syscall(294, 0) >= 0)", "aio": "c = ctypes.c_ulong(0); say(got=libc.syscall(206, 10, ctypes.byref(c)) == 0)",
                           "ptys": "say(got=os.open('/dev/ptmx', os.O_RDWR) >= 0)"}[what])
        assert r == {"got": True}
    finally:
        greedy.kill()
        modest.kill()


def test_identity_is_the_sandboxs_own(server):
    a, b = Sandbox.create("base"), Sandbox.create("base")
    try:
        for what in ("cat /etc/machine-id", "hostname", "cat /proc/sys/kernel/random/boot_id"):
            x, y = a.commands.run(what).stdout.strip(), b.commands.run(what).stdout.strip()
            assert x and y and x != y, what
        assert a.commands.run("cat /proc/sys/kernel/random/boot_id").stdout.strip() != open("/proc/sys/kernel/random/boot_id").read().strip()
        assert a.commands.run("sudo -n true 2>&1").stdout == ""
    finally:
        a.kill()
        b.kill()


def test_privileges_of_our_processes(server):
    """docs/security.md's table, read from /proc/PID/status."""
    def status(pid):
        return dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":\t" in line)
    children = server.children()
    assert set(children) == PROCESSES
    for name in ("front", "egress", "tools"):
        s = status(children[name])
        assert int(s["CapEff"], 16) == int(s["CapPrm"], 16) == int(s["CapBnd"], 16) == 0, name
        assert s["NoNewPrivs"] == "1" and s["Seccomp"] == "2" and s["Uid"].split()[0] != "0", name
    node = status(children["node"])
    assert node["NoNewPrivs"] == "0" and node["Seccomp"] == "0"
    caps = int(node["CapEff"], 16)
    for bit in (16, 17, 22, 25):  # SYS_MODULE, SYS_RAWIO, SYS_BOOT, SYS_TIME
        assert not caps >> bit & 1
    serve = status(server.process.pid)
    assert serve["NoNewPrivs"] == "0" and int(serve["CapPrm"], 16) == int(serve["CapEff"], 16) == 1 << 5  # KILL
    for name, pid in children.items():
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0, f"{name} is dumpable"


def test_setuid_programs_and_packages_work(box):
    assert box.commands.run("sudo whoami").stdout == "root\n"
    assert box.commands.run("su -c whoami user", user="root").stdout == "user\n"
    assert "1 received" in box.commands.run("ping -c 1 -W 2 127.0.0.1").stdout
    assert box.commands.run("dpkg -l bash | tail -1 | cut -c1-2").stdout == "ii\n"
    box.commands.run("useradd -m carol && su -c 'touch ~/x && ls -l ~/x' carol", user="root")
    assert box.commands.run("python3 -m venv /tmp/venv && /tmp/venv/bin/python -c 'print(7)'", timeout=120).stdout == "7\n"
    assert box.commands.run("cd /tmp && git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l").stdout == "1\n"
