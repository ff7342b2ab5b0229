"""The disk of a machine of the tests: a small Debian with our programs, and a template that emulation is quick enough for."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import debian
import initramfs

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libarchive13", "nftables", "e2fsprogs", "erofs-utils", "kmod", "iproute2", "procps", "libjansson4", "libsqlite3-0", "libcurl4", "libseccomp2", "libmnl0",
            "libssl3", "libzstd1", "busybox-static")
APPLETS = ("sh", "id", "echo", "sleep", "sha256sum", "dd", "rm", "cat", "ls", "kill", "mknod", "pwd", "true")
USERS = (("front", 901), ("egress", 902), ("build", 903), ("tools", 904))


def copy_program(root, program, target):
    """The program and the shared libraries that the root lacks."""
    shutil.copy2(program, root / target)
    for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
        words = line.split()
        if "=>" in words and words[2].startswith("/"):
            library = root / words[2].lstrip("/")
            if not library.exists() and not (root / "usr" / words[2].lstrip("/")).exists():
                raise SystemExit(f"the Debian root lacks {words[2]}: add its package to tests/machine/disk.py")


def make_template(root, name, applets):
    """A template of busybox alone: small enough to be read under emulation."""
    import maker  # tests/layers/maker.py, which the environment tells where the program is

    with tempfile.TemporaryDirectory() as d:
        t = pathlib.Path(d)
        for part in ("bin", "etc", "home/user", "root", "tmp", "proc", "sys", "dev", "run", "usr", "var", "sbin"):
            (t / part).mkdir(parents=True)
        shutil.copy2(shutil.which("busybox"), t / "bin/busybox")
        for applet in applets:
            (t / "bin" / applet).symlink_to("busybox")
        (t / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
        (t / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
        os.chown(t / "home/user", 1000, 1000)
        os.chmod(t / "tmp", 0o1777)
        node = root / "var/lib/cubicle/node"
        for part in ("images", "templates"):
            (node / part).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as f, tarfile.open(fileobj=f, mode="w") as tar, open(node / f"images/{name}.erofs", "w+b") as image:
            tar.add(t, arcname=".")
            tar.close()
            f.seek(0)
            # An image as templates have them from layers: this kernel is the oldest that must read it.
            maker.unpack_files([f], image)
    identity = name.ljust(20, "0")
    (node / f"templates/{identity}.json").write_text(json.dumps({
        "id": identity, "alias": name, "createdAt": "2026-01-01T00:00:00.000000Z", "buildId": "00000000-0000-4000-8000-000000000000",
        "memoryMB": 128, "diskMB": 96, "layers": [{"file": f"images/{name}.erofs", "size": (node / f"images/{name}.erofs").stat().st_size}], "user": "user"}))
    os.chmod(node, 0o700)
    os.chmod(root / "var/lib/cubicle", 0o711)


def make(cache, work, build, kernel, checks, modules, template, guest=None, applets=APPLETS, further=()):
    """A disk in the directory `work`, from what is kept in `cache`. It has our programs from the directory `build` and the files of the directory `checks` in /test, the kernel's modules,
    of which `modules` are loaded, and the kernel `guest` as if it were installed; the files `further` are in /test, too. Returns its path."""
    os.environ["CUBICLE"] = str(build / "src/cli/cubicle")
    sys.path.insert(0, str(HERE.parent / "layers"))
    root = work / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", debian.system(cache, *PACKAGES), root], check=True)
    (root / "test").mkdir()
    for f in *(HERE / "guest").iterdir(), *checks.iterdir(), HERE.parent / "e2e/leak.py", *further:
        if f.is_file():
            shutil.copy2(f, root / "test" / f.name)
    os.chmod(root / "test/init", 0o755)
    (root / "test/modules").write_text(" ".join(modules))
    copy_program(root, build / "src/cli/cubicle", "test/cubicle")
    for program in build / "src/guest/cubicle-init", build / "src/vmm/cubicle-vmm":
        if program.exists():
            shutil.copy2(program, root / "test")
    (root / "lib/modules").mkdir(exist_ok=True)
    for k in filter(None, (kernel, guest)):
        subprocess.run(["cp", "-a", "--reflink=auto", k.modules, root / "lib/modules"], check=True)
    if guest:
        shutil.copy2(guest.image, root / "boot")
    passwd, group = root / "etc/passwd", root / "etc/group"
    passwd.write_text(passwd.read_text() + "".join(f"cubicle-{n}:x:{i}:{i}::/:/usr/sbin/nologin\n" for n, i in USERS))
    group.write_text(group.read_text() + "".join(f"cubicle-{n}:x:{i}:\n" for n, i in USERS))
    make_template(root, template, applets)
    disk = work / "disk.img"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, disk, "2500M"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)
    return disk


def finder(kernel):
    """The archive whose only task is to find that disk."""
    made = initramfs.Initramfs().directory("proc").directory("root").modules(kernel.files_of("virtio_pci", "virtio_blk", "ext4", "crc32c_generic"))
    program = pathlib.Path(shutil.which("busybox"))
    return made.file("bin/busybox", program.read_bytes(), 0o755).file("init", (HERE / "find-disk").read_bytes(), 0o755)
