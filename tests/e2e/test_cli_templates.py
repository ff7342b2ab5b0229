"""`cubicle template` against a server and a registry: a template of each source, what stands in it compared with what umoci makes of the same image, files out and in, tags, deletion, space."""

import json
import os
import pathlib
import subprocess

import pytest

from conftest import serving
from registry import Layer, Layout, Registry, busybox, inventory, skopeo
from server import CUBICLE, wait_for

# Written anew in each sandbox, or mounted there.
OURS = ("dev", "proc", "sys", "run", "tmp", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id")
CONFIG = {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin:/usr/bin", "GREETING=hello"], "WorkingDir": "/srv", "User": "nobody"}


def many_things():
    """Three layers with what layers can do to each other."""
    first = busybox().dir("srv").file("srv/gone", b"1").file("srv/kept", b"2", uid=1000, gid=100).dir("old").file("old/a", b"a").dir("swap").file("swap/x", b"x")
    first.file("bin/su", b"\x7fELF", 0o4755).link("srv/link", "kept").hardlink("srv/again", "srv/kept").file("srv/noted", b"", xattrs={"user.note": b"\xffvalue"})
    first.fifo("srv/pipe").file("srv/" + "long" * 55, b"name")
    second = Layer().whiteout("srv/gone").opaque("old").file("old/new", b"n").whiteout("swap").file("swap", b"a file now").dir("srv", 0o1777)
    third = Layer().file("srv/gone", b"back").hardlink("srv/late", "srv/gone").file("srv/shifted", b"s", uid=65535, gid=65534)
    return [first, second, third]


@pytest.fixture(scope="module")
def hub():
    with Registry() as r:
        yield r


@pytest.fixture(scope="module")
def layout(tmp_path_factory, hub):
    made = Layout(tmp_path_factory.mktemp("layout"))
    made.image(many_things(), CONFIG, tag="1")
    hub.push(made, "1", "test/things", "1")
    return made


@pytest.fixture(scope="module")
def expected(layout, tmp_path_factory):
    """What umoci makes of the image; where it stands."""
    return layout.unpack("1", tmp_path_factory.mktemp("umoci") / "bundle")


class Cli:
    def __init__(self, server):
        self.server = server

    def __call__(self, *words, ok=True):
        """`cubicle template WORDS`: what it printed; with ok=None the whole result."""
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        r = subprocess.run([CUBICLE, "template", *map(str, words), f"--state.dir={self.server.state}"], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        if ok is None:
            return r
        assert (r.returncode == 0) == ok, f"{words}: {r.returncode} {r.stdout} {r.stderr}"
        return r.stdout.strip() if ok else r.stderr

    def run(self, template, *command):
        """Standard output of a command in a sandbox of it."""
        env = {"PATH": os.environ["PATH"]}
        r = subprocess.run([CUBICLE, "run", f"--state.dir={self.server.state}", template, "--", *command], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        assert r.returncode == 0, r.stderr
        return r.stdout

    def tree(self, template, directory):
        """The file system of a sandbox of the template, by an export that skopeo and umoci read."""
        path = directory / "export.tar"
        self("export", template, "-o", path)
        skopeo("copy", f"oci-archive:{path}", f"oci:{directory}/out:1")
        out = Layout.__new__(Layout)
        out.dir = directory / "out"
        return inventory(out.unpack("1", directory / "bundle"), OURS)

    def names(self):
        return {t["aliases"][0] for t in json.loads(self("list", "--json")) if t["aliases"]}


@pytest.fixture(scope="module")
def server(hub):
    with serving(options={"registry.insecure": hub.host}) as s:
        yield s


@pytest.fixture(scope="module")
def cli(server):
    return Cli(server)


@pytest.fixture(scope="module")
def things(cli, hub, layout):
    """The image as a template."""
    cli("create", "things", "--image", f"{hub.host}/test/things:1")
    return "things"


def same(got, want):
    """Two inventories, with the difference told; the root's own entry and times of directories are not in them."""
    assert got.keys() == want.keys(), (sorted(got.keys() - want.keys()), sorted(want.keys() - got.keys()))
    assert {k: (got[k], want[k]) for k in want if got[k] != want[k]} == {}


def test_an_image_is_what_umoci_makes_of_it(cli, things, expected, tmp_path):
    """cases 104, 106, 107, 112: whiteouts, opaque directories, what was replaced, links across layers, owners, modes, attributes."""
    same(cli.tree(things, tmp_path), inventory(expected, OURS))
    assert cli.run(things, "/bin/sh", "-c", "id -u; pwd; echo $GREETING; cat gone late") == "65534\n/srv\nhello\nbackback"


def test_every_source_makes_the_same(cli, things, layout, expected, tmp_path):
    want = inventory(expected, OURS)
    archive = layout.docker_archive("1", tmp_path / "docker.tar")
    subprocess.run(["gzip", "-k", archive], check=True)
    packed = tmp_path / "root.tar"
    subprocess.run(["tar", "--numeric-owner", "--xattrs", "-C", expected, "-cJf", packed, "."], check=True)
    sources = {"dir": ("--oci-layout", layout.dir), "named": ("--oci-layout", f"{layout.tar(tmp_path / 'oci.tar')}:1"), "docker": ("--docker-archive", f"{archive}.gz"), "root": ("--rootfs", expected),
               "tar": ("--rootfs", packed), "template": ("--template", things)}
    for name, words in sources.items():
        cli("create", name, *words)
        (tmp_path / name).mkdir()
        same(cli.tree(name, tmp_path / name), want)
    # What archives of images say of themselves is kept; a root file system says nothing.
    assert cli.run("docker", "/bin/sh", "-c", "id -u; pwd; echo $GREETING") == "65534\n/srv\nhello\n"
    assert cli.run("root", "/bin/sh", "-c", "id -u; echo $GREETING") == "0\n\n"
    cli("delete", *sources)


def test_sandboxes_and_snapshots(cli, server, things):
    status, box = server.call("POST", "/sandboxes", {"templateID": things})
    assert status == 201
    try:
        env = {"PATH": os.environ["PATH"]}
        subprocess.run([CUBICLE, "sandbox", "exec", f"--state.dir={server.state}", "--user", "root", box["sandboxID"], "--", "/bin/sh", "-c", "echo made > /srv/made; rm /srv/kept"], env=env, check=True,
                       stdin=subprocess.DEVNULL)
        cli("create", "of-box", "--sandbox", box["sandboxID"])
        status, snapshot = server.call("POST", f"/sandboxes/{box['sandboxID']}/snapshots", {"name": "a-snapshot"})
        assert status == 201
        cli("create", "of-snapshot", "--snapshot", snapshot["snapshotID"], "--env", "MORE=1")
    finally:
        server.call("DELETE", f"/sandboxes/{box['sandboxID']}")
    assert cli.run("of-box", "/bin/sh", "-c", "cat /srv/made; ls /srv/kept 2>&1; pwd") == "made\nls: /srv/kept: No such file or directory\n/srv\n"
    assert cli.run("of-snapshot", "/bin/sh", "-c", "cat /srv/made; echo $MORE") == "made\n1\n"
    # No snapshot is left of the first one.
    status, snapshots = server.call("GET", "/snapshots")
    assert [s["snapshotID"] for s in snapshots] == [snapshot["snapshotID"]]
    cli("delete", "of-box", "of-snapshot")
    assert server.call("DELETE", f"/templates/{snapshot['snapshotID']}")[0] == 204


def test_out_and_in_again(cli, things, hub, tmp_path):
    """An export, read by skopeo, is imported: the same files, user, directory and variables, and the same services."""
    cli("create", "service", "--image", f"{hub.host}/test/things:1", "--user", "root", "--start-cmd", "echo started > /tmp/state; sleep 1000", "--ready-cmd", "grep started /tmp/state", "--memory", "256")
    cli("export", "service", "--output", tmp_path / "a.tar")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    said = json.loads(skopeo("inspect", "--config", f"oci-archive:{tmp_path / 'a.tar'}"))
    assert (said["config"]["User"], said["config"]["WorkingDir"], sorted(said["config"]["Env"])) == ("root", "/srv", sorted(CONFIG["Env"]))
    json.loads(skopeo("inspect", f"docker-archive:{tmp_path / 'a.tar'}"))
    cli("import", tmp_path / "a.tar", "again")
    descriptions = [json.loads(cli("info", name, "--json"))["description"] for name in ("service", "again")]
    for d in descriptions:
        del d["layers"]
    assert descriptions[0] == descriptions[1] and descriptions[0]["services"] and descriptions[0]["memoryMB"] == 256
    same(cli.tree("again", tmp_path / "b"), cli.tree("service", tmp_path / "a"))
    assert cli.run("again", "/bin/sh", "-c", "cat /tmp/state; pwd; echo $GREETING") == "started\n/srv\nhello\n"
    assert not list(tmp_path.glob("*.partial"))
    assert "not found" in cli("export", "nothing", "-o", tmp_path / "n.tar", ok=False)
    assert not list(tmp_path.glob("n.tar*"))
    cli("delete", "service", "again")


def test_tags_and_deletion(cli, server, things, hub):
    """case 28: a template that a sandbox uses is not deleted, unless by force; then what it needs stays until its end."""
    cli("create", "tagged:v1", "--image", f"{hub.host}/test/things:1")
    cli("tag", "tagged:v1", "default", "stable")
    info = json.loads(cli("info", "tagged", "--json"))
    assert {t["tag"] for t in info["tags"]} == {"v1", "default", "stable"} and len({t["buildID"] for t in info["tags"]}) == 1
    assert f"FROM {hub.host}/test/things:1" in cli("logs", "tagged:v1") and cli("logs", "tagged:v1") == cli("logs", "tagged", info["builds"][0]["buildID"][:8])
    cli("untag", "tagged", "v1")
    assert {t["tag"] for t in json.loads(cli("info", "tagged", "--json"))["tags"]} == {"default", "stable"}
    cli("publish", "tagged")
    assert json.loads(cli("info", "tagged", "--json"))["public"] is True
    cli("unpublish", "tagged")
    status, box = server.call("POST", "/sandboxes", {"templateID": "tagged"})
    assert status == 201
    assert "is used by 1" in cli("delete", "tagged", ok=False)
    cli("delete", "tagged", "--force")
    assert "tagged" not in cli.names()
    assert server.call("GET", f"/sandboxes/{box['sandboxID']}")[0] == 200
    assert server.call("DELETE", f"/sandboxes/{box['sandboxID']}")[0] == 204


def test_a_build_that_fails_says_why(cli, hub):
    r = cli("create", "none", "--image", f"{hub.host}/test/nothing:1", ok=None)
    assert (r.returncode, r.stdout) == (1, "") and "cubicle: the build failed" in r.stderr
    assert json.loads(cli("create", "none", "--image", f"{hub.host}/test/nothing:1", "--json", ok=False))["error"]["message"].startswith("the build failed")
    assert cli("logs", "none")
    cli("delete", "none")


def stored(server):
    """{name: bytes on disk} of all images and files."""
    return {p.name: p.lstat().st_blocks * 512 for d in ("images", "files") for p in (server.state / "node" / d).rglob("*") if p.is_file()}


def used(server):
    return sum(stored(server).values())


def test_space_comes_back(cli, server, layout, hub, tmp_path):
    """20 rounds of building and deleting leave nothing; a dry run of the collection changes nothing; layers are stored once."""
    for path in [p for p in cli.names() if p != "base"]:
        cli("delete", path)
    own = {pathlib.Path(layer["file"]).name for p in (server.state / "node/templates").glob("*.json") for layer in json.loads(p.read_text())["layers"]}

    def collect():
        """Files go behind the answer, so it is waited for."""
        cli("gc")
        wait_for(lambda: stored(server).keys() == own, what=f"{sorted(own)} and nothing else")

    collect()
    for i in range(20):
        layout.image([*many_things(), Layer().file("srv/round", os.urandom(100000))], CONFIG, tag="round")
        cli("create", "round", "--image", hub.push(layout, "round", "test/round"))
        if i == 0:
            before = used(server)
            cli("create", "other", "--image", f"{hub.host}/test/things:1")
            assert used(server) - before < 20000, "its layers are there"
            cli("delete", "other")
        cli("delete", "round")
        if i % 5 == 4:
            full = used(server)
            shown = json.loads(cli("gc", "--dry-run", "--json"))
            assert used(server) == full
            assert shown["count"] and shown["bytes"] == sum(i["bytes"] for i in shown["images"])
            collect()
    assert json.loads(cli("gc", "--json")) == {"images": [], "bytes": 0, "count": 0}
