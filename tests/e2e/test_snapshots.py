"""Snapshots, forks and rollback through the published client, and what is left when the server is killed in the middle of one."""

import concurrent.futures
import contextlib

from e2b import Sandbox

from backend import MICROVM
from server import wait_for

WHO = "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id; hostname; openssl rand -hex 16"
if not MICROVM:  # where each has the same address inside
    WHO += "; ip -4 -o addr show scope global | tr -s ' ' | cut -d' ' -f4"
# Everything that a layer must carry: deleted and replaced entries of the template, a big file of which only the mode changed, links, owners, attributes.
CHANGE = """set -e
rm /etc/issue; rm -r /usr/share/doc/bash; mkdir /usr/share/doc/bash; echo new > /usr/share/doc/bash/only
chmod 700 /usr/bin/perl; mv /usr/share/perl5 /usr/share/perl6
echo linked > /srv/a; ln /srv/a /srv/b; ln -s a /srv/c; install -o user -g user -m 4711 /bin/true /srv/suid
truncate -s 1G /srv/sparse; touch -d '2001-02-03 04:05:06 UTC' /srv/old; mkfifo /srv/fifo
"""
LOOK = """ls /etc/issue 2>&1; ls /usr/share/doc/bash; stat -c '%a %s' /usr/bin/perl; sha256sum < /usr/bin/perl; ls -d /usr/share/perl5 2>&1; ls -R /usr/share/perl6 | sha256sum
cat /srv/b; stat -c '%h %i' /srv/a | cut -d' ' -f1; readlink /srv/c; stat -c '%U:%G %a' /srv/suid; stat -c '%s %b' /srv/sparse; stat -c %Y /srv/old; stat -c %F /srv/fifo
"""


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}


def run(box, command):
    return box.commands.run(command, user="root", timeout=60).stdout


def images(s):
    return sorted(p.name for p in (s.state / "node/snapshots").iterdir())


def roll_back(s, box, snapshot):
    return s.call("POST", f"/sandboxes/{box.sandbox_id}/rollback", {"snapshotID": snapshot})


def test_forks_are_copies_of_one_copy(server):
    """Cases 164, 166, 172, 23 (many at once of one image)."""
    with Sandbox.create("base", timeout=900, envs={"MINE": "yes"}, metadata={"k": "v"}) as parent:
        run(parent, CHANGE + "head -c 40M /dev/urandom > /srv/big; sha256sum /srv/big > /srv/sum")
        want = run(parent, LOOK)
        before = images(server)
        children = parent.fork(count=8, timeout=600)
        try:
            assert all(isinstance(c, Sandbox) for c in children), children
            made = [i for i in images(server) if i not in before]
            assert len(made) == 1
            assert (server.state / "node/snapshots" / made[0]).stat().st_blocks * 512 < 100 << 20
            run(parent, "echo later > /srv/a; rm /srv/big")
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert set(pool.map(lambda c: run(c, LOOK), children)) == {want}
                assert set(pool.map(lambda c: run(c, "sha256sum -c --quiet /srv/sum; echo $MINE"), children)) == {"yes\n"}
                who = list(pool.map(lambda c: run(c, WHO).split("\n"), [parent, *children]))
                for column in zip(*who):
                    assert len(set(column)) == len(who) or set(column) == {""}, column
                assert set(pool.map(lambda c: run(c, "echo $E2B_SANDBOX_ID") == c.sandbox_id + "\n", children)) == {True}
                # One port in all of them.
                list(pool.map(lambda c: c.commands.run(f"hostname > /tmp/h; cd /tmp; python3 -m http.server 8000", background=True, timeout=0), children))
                ask = lambda c: wait_for(lambda: c.commands.run("curl -s localhost:8000/h || true").stdout.strip(), 60, "the service")
                assert list(pool.map(ask, children)) == [c.sandbox_id for c in children]
            assert {tuple(c.get_info().metadata.items()) for c in children} == {(("k", "v"),)}
        finally:
            for c in children:
                if isinstance(c, Sandbox):
                    c.kill()
        wait_for(lambda: images(server) == before, 60, "the copy to go with the last fork")


def test_generations_stand_on_each_other(server):
    """Case 173: what was written is there after each step, and what was deleted is not."""
    with contextlib.ExitStack() as stack:
        box = stack.enter_context(Sandbox.create("base", timeout=300))
        run(box, CHANGE)
        want, snapshots = run(box, LOOK), []
        for i in range(10):
            run(box, f"head -c 3M /dev/urandom > /srv/g{i}; sha256sum /srv/g{i} >> /srv/sums; echo {i} > /srv/last; rm -f /srv/t; touch /srv/t{i}; rm -f /srv/t{i - 1}")
            snapshots.append(box.create_snapshot().snapshot_id)
            box = stack.enter_context(Sandbox.create(snapshots[-1], timeout=300))
            assert run(box, LOOK) == want
            assert run(box, "sha256sum -c --quiet /srv/sums; cat /srv/last; ls /srv/t*") == f"{i}\n/srv/t{i}\n"
        for one in snapshots:
            Sandbox.delete_snapshot(one)
        # Deleted, and still under the last of them.
        assert run(box, "sha256sum -c --quiet /srv/sums; cat /srv/last") == "9\n"


def test_a_rollback_brings_the_disk_back(server):
    with Sandbox.create("base", timeout=300) as box:
        run(box, "echo before > /srv/file; mkdir /srv/dir; echo 1 > /srv/dir/one")
        one = box.create_snapshot().snapshot_id
        for i in range(3):
            run(box, "echo after > /srv/file; rm -r /srv/dir; sleep 1000 > /dev/null 2>&1 &")
            status, told = roll_back(server, box, one)
            assert (status, told["sandboxID"], told["snapshotID"]) == (200, box.sandbox_id, one)
            assert run(box, "cat /srv/file /srv/dir/one; pgrep -x sleep || true; hostname") == f"before\n1\n{box.sandbox_id}\n"
        with Sandbox.create("base", timeout=60) as other:
            assert roll_back(server, other, one)[0] == 409
        assert roll_back(server, box, "snap-aaaaaaaaaaaaaaaaaaaa")[0] == 404
        Sandbox.delete_snapshot(one)


FAULTS = [
    ("copy_frozen", "snapshot", False), ("copy_thawed", "snapshot", False), ("copy_kept", "fork", False), ("snapshot_copied", "snapshot", False),
    ("snapshot_recorded", "snapshot", True), ("fork_made", "fork", False), ("rollback_started", "rollback", False), ("rollback_recorded", "rollback", True),
]


def test_killed_in_any_step(own_server, tmp_path):
    fault = tmp_path / "fault"
    s = own_server(env={"FAULT_POINT_FILE": str(fault)})
    box = Sandbox.create("base", timeout=600, **client(s))
    box.commands.run("while :; do date >> /home/user/log; done", background=True, timeout=0)
    run(box, "echo kept > /srv/file; sync")
    for point, what, done in FAULTS:
        before = {b["sandboxID"] for b in s.call("GET", "/v2/sandboxes")[1]}
        if what == "rollback":
            run(box, "echo kept > /srv/file")
            base = box.create_snapshot().snapshot_id
            run(box, "echo changed > /srv/file; sync")
        listed = len(s.call("GET", "/snapshots")[1])
        node = s.children()["node"]
        fault.write_text(point)
        paths = {"snapshot": ("snapshots", {}), "fork": ("fork", {"count": 2, "timeout": 600}), "rollback": ("rollback", {"snapshotID": ""})}
        path, body = paths[what]
        if what == "rollback":
            body = {"snapshotID": base}
        status, _ = s.call("POST", f"/sandboxes/{box.sandbox_id}/{path}", body)
        assert status >= 500, point
        wait_for(lambda: not fault.exists() and s.children().get("node", node) != node, 60, f"a new node after {point}")
        s.wait_ready()

        # Until the new node has swept it, the front may still speak to the box that went.
        want = "changed\nworks\n" if what == "rollback" and not done else "kept\nworks\n"

        def goes_on():
            try:
                return run(box, "cat /srv/file; echo works > /srv/again; cat /srv/again") == want
            except Exception:
                return False
        wait_for(goes_on, 60, f"the sandbox to go on after {point}")
        # Until it is told anew, the front answers from what it knew.
        wait_for(lambda: len(s.call("GET", "/snapshots")[1]) == listed + (what == "snapshot" and done), 60, f"the list after {point}")
        wait_for(lambda: len(s.call("GET", "/v2/sandboxes")[1]) == len(before) + (2 if point == "fork_made" else 0), 60, f"the sandboxes after {point}")
        for b in s.call("GET", "/v2/sandboxes")[1]:
            if b["sandboxID"] not in before:
                s.call("DELETE", "/sandboxes/" + b["sandboxID"])
    for one in s.call("GET", "/snapshots")[1]:
        s.call("DELETE", "/templates/" + one["snapshotID"])
    box.kill()
    wait_for(lambda: images(s) == [], 60, "no image to be left")


def test_snapshots_outlive_their_sandbox_and_the_server(own_server):
    s = own_server()
    box = Sandbox.create("base", timeout=300, **client(s))
    run(box, "echo here > /srv/file")
    one = box.create_snapshot(name="mine").snapshot_id
    child = box.fork()[0]
    box.kill()
    s.stop()
    s.start()
    assert run(child, "cat /srv/file") == "here\n"
    for name in (one, "mine"):
        with Sandbox.create(name, timeout=60, **client(s)) as again:
            assert run(again, "cat /srv/file") == "here\n"
    # Paused with its disk only, its fork's copy must stay.
    assert s.call("POST", f"/sandboxes/{child.sandbox_id}/pause", {"memory": False})[0] == 204
    assert Sandbox.delete_snapshot(one, **client(s)) is True
    wait_for(lambda: len(images(s)) == 1, 60, "the snapshot's image to go")
    s.stop()
    s.start()
    child = Sandbox.connect(child.sandbox_id, timeout=60, **client(s))
    assert run(child, "cat /srv/file") == "here\n"
    child.kill()
    wait_for(lambda: images(s) == [], 60, "no image to be left")


FILL = """import os
def until_full(write):
    try:
        for n in range(1 << 20): write(n)
    except OSError: pass
os.mkdir("/srv/f")
def file(n): open(f"/srv/f/{n}", "wb").write(b"x" * SIZE)
for SIZE in SIZES: until_full(lambda n: file(f"{SIZE}-{n}")); os.sync()
"""


def test_what_is_full_or_spoilt_starts_from_its_disk(own_server):
    """Without a byte or an inode left, or a directory where a file of the system was: the only way to the files of a sandbox whose memory is not kept. A node that was killed, too."""
    s = own_server(options={"sandbox.disk": 128})
    boxes = {}
    for name, sizes in (("blocks", "4000000, 100000, 5000, 1, 1"), ("inodes", "0,"), ("etc", "")):
        box = boxes[name] = Sandbox.create("base", timeout=300, **client(s))
        run(box, "echo mine > /home/user/file; sync")
        if sizes:
            box.files.write("/dev/shm/fill.py", FILL.replace("SIZES", f"({sizes})"), user="root")
            run(box, "python3 /dev/shm/fill.py")
            assert int(run(box, "df --output=avail,iavail / | tail -1").split()[name == "inodes"]) < 600  # of 110 thousand KiB, or 4 thousand
        else:
            run(box, "rm -rf /etc/hosts /etc/resolv.conf; mkdir -p /etc/hosts/x; ln -s /dev /etc/resolv.conf; rm -rf /tmp; ln -s /nowhere /tmp")
    for again in range(3):
        for name, box in boxes.items():
            assert s.call("POST", f"/sandboxes/{box.sandbox_id}/pause", {"memory": False})[0] == 204
        if again == 1:
            s.kill_process("node")
            wait_for(lambda: all(s.call("GET", f"/sandboxes/{b.sandbox_id}")[0] == 200 for b in boxes.values()), 60, "the node")
        for name, box in boxes.items():
            status, told = wait_for(lambda: (a := s.call("POST", f"/sandboxes/{box.sandbox_id}/connect", {"timeout": 300}))[0] != 503 and a, 60, "the node")
            assert status == 201, (name, again, told)
            assert run(box, "cat /home/user/file; cat /proc/sys/kernel/hostname") == f"mine\n{box.sandbox_id}\n"
    child = boxes["etc"].fork()[0]
    assert run(child, "cat /home/user/file") == "mine\n"
    child.kill()
    run(boxes["inodes"], "rm -r /srv/f; touch /srv/new")
