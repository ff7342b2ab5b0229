"""What builds of templates do, driven by PyPI `e2b` (e2b.md A.6, F85-F89): images of a registry of the test's own, and nothing else of a network."""

import gzip
import hashlib
import os
import pathlib
import subprocess
import tarfile
import tempfile

import pytest

from conftest import serving
from e2b import Sandbox, Template, wait_for_file
from e2b.exceptions import BuildException
from registry import LAYER, Layer, Layout, Registry, busybox

# What clients run commands with. Busybox has its own shell, which takes the same words here.
BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'


@pytest.fixture(scope="module")
def registry():
    with Registry() as r, tempfile.TemporaryDirectory(prefix="cubicle-layout-", dir="/tmp") as tmp:
        layout = Layout(tmp)
        small = busybox().file("etc/skel/.profile", b"# skeleton\n").file("etc/shadow", b"root:*:1:0:99999:7:::\n", 0o640, gid=42)
        layout.image([small, Layer().file("bin/bash", BASH, 0o755)], {"Env": ["FROM_IMAGE=yes"], "WorkingDir": "/var", "Cmd": ["/bin/sh"]}, tag="small")
        layout.image([busybox()], {}, tag="musl")
        layout.image([Layer().file("hello.txt", b"nothing but a file\n")], {}, tag="nothing")
        profile = b'export PATH=/usr/bin:/bin\nfor f in /etc/profile.d/*.sh; do . "$f"; done\n'
        layout.image([busybox(), Layer().file("bin/bash", BASH, 0o755).file("etc/profile", profile).file("opt/tools/tool", b"#!/bin/sh\necho found\n", 0o755)],
                     {"Env": ["PATH=/opt/tools:/bin", "KEY=of the image"], "WorkingDir": "/opt"}, tag="tools")
        shell = busybox().file("bin/bash", BASH, 0o755).dir("srv").dir("srv/own", mode=0o700, uid=1000, gid=1000).file("srv/tool", b"one file\n")
        layout.image([shell, Layer().file("srv/own/implied", b"").whiteout("srv/never")], {}, tag="implied")
        layout.image([shell, Layer().file("srv/own/new", b"").opaque("srv/own").file("srv/own/newer", b"")], {}, tag="opaque")
        layout.image([shell, Layer().hardlink("srv/linked", "srv/tool")], {}, tag="linked")
        steps = [Layer().dir("deep").file(f"deep/{i}", b"%d" % i).file("deep/last", b"%d" % i).whiteout(f"deep/{i - 3}") for i in range(16)]
        new = [Layer().dir("new").file("new/a").file("new/b"), Layer().dir("new").whiteout("new/a")]
        layout.image([shell, *steps, *new], {}, tag="deep")
        for tag in layout.tags:
            r.push(layout, tag, "test/" + tag)
        r.layout = layout
        yield r


@pytest.fixture(scope="module")
def server(registry):
    with serving(options={"registry.insecure": registry.host}) as s:
        yield s


class Logs(list):
    def __bool__(self):
        return True  # an empty one is a listener, too

    def __call__(self, entry):
        self.append(entry.message)

    def said(self, words):
        return [m for m in self if words in m]


def image(registry, name="small"):
    return Template().from_image(f"{registry.host}/test/{name}:latest")


def context(tmp_path, files):
    """A template whose files are these: name -> text, None (a directory), or "-> target"."""
    for name, what in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if what is None:
            path.mkdir()
        elif what.startswith("-> "):
            path.symlink_to(what[3:])
        else:
            path.write_text(what)
    return Template(file_context_path=str(tmp_path))


def build(template, name, **more):
    logs = Logs()
    made = Template.build(template, name, cpu_count=1, memory_mb=256, on_build_logs=logs, **more)
    made.logs = logs
    return made


def run(template, command, **more):
    with Sandbox.create(template, timeout=120) as box:
        return box.commands.run(command, **more).stdout


def test_steps(server, registry):
    """ENV (with expansion, F88), USER, WORKDIR and RUN, and what of them a sandbox has."""
    t = (image(registry).run_cmd("id -un > /tmp/first; pwd >> /tmp/first; echo $FROM_IMAGE >> /tmp/first")
         .set_envs({"PATH": "$PATH:/opt/tools", "WHERE": "it's ${HOME:-nowhere}", "QUOTED": '$(id) `id` "x"'})
         .run_cmd("mkdir -p /opt/tools && printf '#!/bin/sh\\necho found\\n' > /opt/tools/tool && chmod 755 /opt/tools/tool && chown -R nobody /opt", user="root")
         .set_workdir("/srv/app").set_workdir("deeper")
         .run_cmd("tool > here; pwd >> here; printf '%s\\n' \"$QUOTED\" >> here")
         .set_user("worker").set_workdir("/srv/own").run_cmd("id -un > mine"))
    build(t, "steps")
    with Sandbox.create("steps", timeout=120) as box:
        assert box.commands.run("cat /tmp/first").stdout == "user\n/home/user\nyes\n"
        assert box.commands.run("cat /srv/app/deeper/here").stdout == 'found\n/srv/app/deeper\n$(id) `id` "x"\n'
        assert box.commands.run("cat /srv/own/mine; id -un; pwd; stat -c %U /srv/own /srv/app/deeper /home/worker /opt/tools/tool").stdout == \
            "worker\nworker\n/srv/own\nworker\nuser\nworker\nnobody\n"
        # ENV is for the build and for what starts with the sandbox.
        assert box.commands.run("echo ${FROM_IMAGE-unset} ${WHERE-unset}").stdout == "unset unset\n"
        assert "user ALL=(ALL:ALL) NOPASSWD: ALL" in box.commands.run("cat /etc/sudoers.d/user", user="root").stdout
        assert box.commands.run("cat ~/.profile", user="user").stdout == "# skeleton\n"


def test_copy(server, registry, tmp_path):
    """F87: contents are merged, dotfiles come along, links stay links whatever they point to; owner, mode, places that are relative or missing."""
    t = context(tmp_path, {
        "tree/.dot": "dot", "tree/file": "file", "tree/deep/er": "deeper", "tree/relative": "-> file", "tree/absolute": "-> /etc/passwd", "tree/dangling": "-> no/where",
        "single.txt": "single", "other/x.py": "x", "other/y.txt": "y"}).from_image(f"{registry.host}/test/small:latest")
    t = (t.run_cmd("mkdir -p /merged/deep && echo old > /merged/file && echo kept > /merged/kept && chmod 711 /merged/deep", user="root")
         .copy("tree", "/merged")
         .copy("tree/*", "/globbed/")
         .copy("single.txt", "renamed.txt")
         .copy("single.txt", "/into/", user="nobody", mode=0o600)
         .copy("single.txt", "/merged")
         .copy("other/*.py", "/py"))
    build(t, "copies")
    listing = "cd %s && find . | sort | while read f; do echo $f $(stat -c %%U:%%G:%%a $f) $(readlink $f); done"
    with Sandbox.create("copies", timeout=120) as box:
        merged = box.commands.run(listing % "/merged", user="root").stdout.splitlines()
        assert [line.split(" ")[0] for line in merged] == ["."] + ["./" + n for n in sorted([".dot", "absolute", "dangling", "deep", "deep/er", "file", "kept", "relative", "single.txt"])]
        assert "./relative user:user:777 file" in merged and "./absolute user:user:777 /etc/passwd" in merged and "./dangling user:user:777 no/where" in merged
        assert "./deep root:root:711" in [line.rstrip() for line in merged]
        assert box.commands.run("cat /merged/file /merged/kept /globbed/.dot /globbed/deep/er").stdout == "filekept\ndotdeeper"
        assert box.commands.run("cat ~/renamed.txt").stdout == "single"
        assert box.commands.run("stat -c %U:%G:%a /into/single.txt", user="root").stdout == "nobody:nogroup:600\n"
        assert box.commands.run("ls /py").stdout == "x.py\n"


def test_failing_steps(server, registry):
    """The step that failed, its last words, and the text for an unknown user."""
    with pytest.raises(BuildException) as failed:
        build(image(registry).run_cmd("true").run_cmd("echo said this; echo and that >&2; exit 7"), "fails")
    assert "exit status 7" in str(failed.value) and "said this" in str(failed.value) and "and that" in str(failed.value)
    with pytest.raises(BuildException) as unknown:
        build(image(registry).run_cmd("whoami", user="root123"), "fails")
    assert "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'" in str(unknown.value)
    with pytest.raises(BuildException) as missing:
        build(image(registry, "absent"), "fails")
    assert "test/absent" in str(missing.value)
    # Nothing half-made has a name.
    assert server.call("POST", "/v2/sandboxes", {"templateID": "fails"})[0] == 404


def test_steps_are_cached(server, registry, tmp_path):
    """By what they follow from: the same again runs nothing; a changed file, or a forced step, and all that follows it."""
    def made(text, force=False):
        t = context(tmp_path, {"data": text}).from_image(f"{registry.host}/test/small:latest")
        t = t.run_cmd("head -c 16 /dev/urandom | od -An -tx1 > /tmp/one").copy("data", "/tmp/data")
        t = (t.skip_cache() if force else t).run_cmd("head -c 16 /dev/urandom | od -An -tx1 > /tmp/two")
        return build(t, "cached")
    read = "cat /tmp/one /tmp/two"
    made("a")
    first = run("cached", read).splitlines()
    again = made("a")
    assert len(again.logs.said("CACHED")) == 3 and run("cached", read).splitlines() == first
    other = made("b")
    assert len(other.logs.said("CACHED")) == 1
    second = run("cached", read).splitlines()
    assert second[0] == first[0] and second[1] != first[1]
    forced = made("b", force=True)
    assert len(forced.logs.said("CACHED")) == 2
    third = run("cached", read).splitlines()
    assert third[0] == second[0] and third[1] != second[1]
    all_anew = build(context(tmp_path, {}).from_image(f"{registry.host}/test/small:latest").run_cmd("head -c 16 /dev/urandom | od -An -tx1 > /tmp/one"), "cached", skip_cache=True)
    assert not all_anew.logs.said("CACHED") and run("cached", "cat /tmp/one").strip() != first[0].strip()


def test_from_template(server, registry):
    """A template on a template: files, user and directory go on; its own start command starts, too, and names tell which build is meant."""
    build(image(registry).run_cmd("echo below > /tmp/below").set_user("worker").set_workdir("/srv/below").set_start_cmd("echo started > /tmp/started; sleep 100000", wait_for_file("/tmp/started")), "below")
    build(Template().from_template("below").run_cmd("cat /tmp/below > above; id -un >> above"), "above")
    with Sandbox.create("above", timeout=120) as box:
        assert box.commands.run("cat /srv/below/above").stdout == "below\nworker\n"
        assert box.commands.run("cat /tmp/started").stdout == "started\n"
    build(Template().from_template("base").run_cmd("echo of base > ~/mine"), "on-base")
    assert run("on-base", "cat ~/mine; id -un") == "of base\nuser\n"


def test_start_command_runs_in_every_sandbox(server, registry):
    """F89: with its user, directory and environment; a create is answered when the ready command has passed."""
    t = image(registry).set_envs({"GREETING": "hello"}).set_workdir("/srv/www").set_start_cmd(
        'echo "$GREETING from $(id -un)" > index.html; sleep 1; touch up; exec httpd -f -p 8080', "[ -f /srv/www/up ] && wget -q -O /dev/null http://127.0.0.1:8080/")
    build(t, "serves")
    for _ in range(2):
        with Sandbox.create("serves", timeout=120) as box:
            assert box.commands.run("wget -q -O - http://127.0.0.1:8080/").stdout == "hello from user\n"
            assert box.commands.run("echo ${GREETING-unset}").stdout == "unset\n"


def test_any_base(server, registry):
    """musl and busybox without bash, and an image that is one file: built, started, read."""
    build(image(registry, "musl").run_cmd("echo $0 > /tmp/shell"), "musl")
    with Sandbox.create("musl", timeout=120) as box:
        assert box.files.read("/tmp/shell") == "/bin/sh\n"
        assert box.files.read("/etc/passwd").endswith("user:x:1000:1000::/home/user:/bin/sh\n") or "user:*:1000:1000::/home/user:/bin/sh\n" in box.files.read("/etc/passwd")
    build(image(registry, "nothing"), "nothing")
    with Sandbox.create("nothing", timeout=120) as box:
        assert box.files.read("/hello.txt") == "nothing but a file\n"
    with pytest.raises(BuildException) as none:
        build(image(registry, "nothing").run_cmd("ls"), "nothing-more")
    assert "neither /bin/bash nor /bin/sh" in str(none.value)


def test_layers_that_lean_on_others(server, registry):
    """A directory that a layer only implies, a hard link to a file of a layer below, and more layers than a template has: as all of them together say."""
    with Sandbox.create(f"{registry.host}/test/implied:latest", timeout=120) as box:
        assert box.commands.run("stat -c '%a %u:%g' /srv/own; ls /srv/own /srv", user="root").stdout == "700 1000:1000\n/srv:\nown\ntool\n\n/srv/own:\nimplied\n"
    with Sandbox.create(f"{registry.host}/test/opaque:latest", timeout=120) as box:
        assert box.commands.run("stat -c '%a %u:%g' /srv/own; ls /srv/own", user="root").stdout == "700 1000:1000\nnew\nnewer\n"
    with Sandbox.create(f"{registry.host}/test/linked:latest", timeout=120) as box:
        assert box.commands.run("cat /srv/linked; stat -c %h /srv/linked /srv/tool").stdout == "one file\n2\n2\n"
    with Sandbox.create(f"{registry.host}/test/deep:latest", timeout=120) as box:
        assert box.commands.run("ls /deep /new; cat /deep/last").stdout == "/deep:\n13\n14\n15\nlast\n\n/new:\nb\n15"


def test_image_as_it_is(server, registry):
    """Straight from a reference: variables and directory of the image, and its PATH also in the login shells that clients use."""
    with Sandbox.create(f"{registry.host}/test/tools:latest", timeout=120) as box:
        assert box.commands.run("tool; echo $KEY; pwd; id -un").stdout == "found\nof the image\n/opt\nroot\n"


def push(registry, tag, layers, config=None, **more):
    """The reference of a new image."""
    registry.layout.image(layers, config or {}, tag=tag, **more)
    return registry.push(registry.layout, tag, "test/" + tag)


def test_cases_104_106_107_109_what_layers_say_of_each_other(server, registry):
    """From the registry to what a sandbox sees: whiteouts that are hard links, opaque directories in any order, what was a file and is a directory, long names."""
    below = Layer().file("a").file("b").file("c").file("p", b"a file").dir("d", mode=0o750, uid=7).file("d/low").dir("e", uid=7).file("e/low")
    middle = Layer().whiteout("a").file("d/n").opaque("d").file("d/m").file("p/q", b"q").whiteout("e").file("e/new")
    above = Layer().file("x").hardlink(".wh.b", "x").file("n" * 200 + "/" + "m" * 250, b"long").link("far", "t" * 4000)
    gnu = Layer(format=tarfile.GNU_FORMAT).file("g" * 240, b"gnu").link("gnu", "u" * 3000)
    with Sandbox.create(push(registry, "rows", [busybox().file("bin/bash", BASH, 0o755), below, middle, above, gnu]), timeout=120) as box:
        line = "cd /; ls a b; ls c d e p x; stat -c '%a %u' d e; readlink far | wc -c; cat n*/m* g*; readlink gnu | wc -c; find / -xdev -name '.wh*'"
        assert box.commands.run(line + "; true", user="root").stdout.split() == [
            "c", "x", "d:", "m", "n", "e:", "new", "p:", "q", "750", "7", "755", "0", "4001", "longgnu3001"]


PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
	char line[256];
	FILE *f = fopen("/proc/self/status", "r");
	printf("%d %d\n", (int)getuid(), (int)geteuid());
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "CapEff", 6))
			fputs(line, stdout);
	return 0;
}
"""


def test_case_112_what_files_may_be(server, registry, tmp_path):
    """Set-user-ID and capabilities hold inside, for users of the sandbox; devices are none of the image's; holes take no room, and layers of a build keep all of it."""
    subprocess.run(["cc", "-O1", "-static", "-x", "c", "-o", tmp_path / "program", "-"], input=PROGRAM.encode(), check=True)
    program, capability = (tmp_path / "program").read_bytes(), bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service, effective
    first = busybox().file("bin/bash", BASH, 0o755).file("bin/suid", program, 0o4755).file("bin/capped", program, 0o755, xattrs={"security.capability": capability})
    first.device("null", 1, 3).device("disk", 8, 0, kind=tarfile.BLKTYPE).fifo("pipe")
    with open(tmp_path / "sparse", "wb") as f:
        f.seek(5 << 30)
        f.write(b"x" * 1024)
        f.truncate(8 << 30)
    sparse = subprocess.run(["tar", "-C", tmp_path, "-S", "--format=posix", "-cf", "-", "sparse"], check=True, capture_output=True).stdout
    reference = push(registry, "kinds", [first, sparse])
    build(Template().from_image(reference).run_cmd("cp -p /bin/suid /bin/again && mkdir -m 2755 /set && chown 5:7 /set", user="root"), "kinds")
    with Sandbox.create("kinds", timeout=120) as box:
        run = box.commands.run("/bin/suid; /bin/capped; /bin/again; stat -c '%a %u:%g' /set; ls -d /null /disk /pipe 2>/dev/null; stat -c %s /sparse; true", user="nobody").stdout.split()
        # Its own capability and no other, and root by the set-user-ID bit.
        assert run[:8:4] == ["65534", "65534"] and run[1] == "0" and run[5:8] == ["65534", "CapEff:", "0000000000000400"] and run[9] == "0", run
        assert run[12:] == ["2755", "5:7", "/pipe", str(8 << 30)], run
    made = [p.stat().st_blocks * 512 for p in (server.state / "node/images").iterdir() if p.stat().st_size > 1 << 16]
    assert made and sum(made) < 2 << 30, made


def test_cases_110_113_images_that_are_not_made(server, registry):
    """Of another machine, ten gigabytes in ten megabytes, not what its digests say, cut: the create says why, and nothing stays."""
    def create(tag, layers, words, **more):
        status, answer = server.call("POST", "/sandboxes", {"templateID": push(registry, tag, layers, **more), "timeout": 60})
        assert status == 400 and words in answer["message"], answer

    def packed(data, diff_id):
        return registry.layout.blob(data, LAYER + "+gzip"), "sha256:" + diff_id

    header = tarfile.TarInfo("zeros")
    header.size = 160 << 26
    zeros = gzip.compress(bytes(1 << 26), 9, mtime=0)
    raw = Layer().file("x", os.urandom(1000)).raw()
    create("bomb", [packed(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)) + zeros * 160, "0" * 64)], "zeros: the image would be larger than its limit of")
    create("diffid", [packed(gzip.compress(raw), "1" * 64)], "its image says sha256:1111")
    create("cut", [packed(gzip.compress(raw)[:-20], hashlib.sha256(raw).hexdigest())], "it is truncated")
    create("name", [Layer().file("n" * 10000)], "a path of 10000 bytes")
    create("arm", [Layer().file("x")], "no match for linux/amd64: the image is for linux/arm64", platform=("linux", "arm64"))
    ready = [t["imageInfo"] for t in server.call("GET", "/templates")[1] if t.get("kind") == "image" and t["buildStatus"] == "ready"]
    assert not [r for r in ready for tag in ("bomb", "diffid", "cut", "name", "arm") if f"/{tag}:" in r], ready


def test_case_29_a_tag_that_moves(server, registry):
    """What was made of it stays what it was, without the registry, too: what is paused, what a snapshot keeps, the template."""
    shell = busybox().file("bin/bash", BASH, 0o755).raw()
    reference = push(registry, "moves", [shell, Layer().file("v", b"one")])
    box = Sandbox.create(reference, timeout=120)
    snapshot = box.create_snapshot()
    box.pause()
    push(registry, "moves", [shell, Layer().file("v", b"two")])
    registry.stop()
    try:
        kept = [Sandbox.connect(box.sandbox_id, timeout=120), Sandbox.create(snapshot.snapshot_id, timeout=120), Sandbox.create(reference, timeout=120)]
        assert [b.files.read("/v") for b in kept] == ["one"] * 3
        for b in kept:
            b.kill()
    finally:
        registry.start()
    Sandbox.delete_snapshot(snapshot.snapshot_id)
