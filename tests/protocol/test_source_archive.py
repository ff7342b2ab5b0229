"""Images in archives: OCI layouts, what `docker save` writes and wrote, root file systems; and archives that are none."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from registry import Layer, Layout, skopeo  # noqa: E402

PULL = os.environ["PULL"]


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(members, format=tarfile.PAX_FORMAT):
    """Bytes of a tar of {name: bytes, or "-> target" for a symbolic link, "=> target" for a hard one} (or pairs)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as t:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type = tarfile.SYMTYPE if data.startswith("->") else tarfile.LNKTYPE
                info.linkname = data[3:]
                data = b""
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Archives(unittest.TestCase):
    def setUp(self):
        self.tmp = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="cubicle-archive-", dir="/tmp")))
        (self.tmp / "out").mkdir()

    def open(self, kind, archive, name="", platform="amd64", fetch=True):
        """archive: bytes, or a path."""
        if isinstance(archive, bytes):
            (self.tmp / "archive").write_bytes(archive)
            archive = self.tmp / "archive"
        done = subprocess.run([PULL, f"--platform={platform}", kind, str(archive), name, str(self.tmp / "out") if fetch else ""], capture_output=True, text=True, timeout=300)
        assert done.returncode in (0, 1), f"{done.returncode}: {done.stderr}"
        out = json.loads(done.stdout)
        if "error" not in out and fetch:
            for i, layer in enumerate(out["layers"]):
                data = (self.tmp / "out" / str(i)).read_bytes()
                self.assertEqual((sha256(data), len(data)), (layer["digest"], layer["size"]))
        return out

    def refused(self, out, *words):
        self.assertIn("error", out)
        self.assertEqual(out["status"], 400, out)
        for word in words:
            self.assertIn(word, out["error"])

    def layout(self):
        layout = Layout(self.tmp / "layout")
        self.raw = [Layer().dir("etc").file("etc/a", b"a").raw(), Layer().file("b", os.urandom(300000)).raw()]
        layout.image(self.raw, {"Cmd": ["/bin/sh"], "User": "1000"}, tag="one")
        return layout

    def test_oci_layout(self):
        layout = self.layout()
        archive = layout.tar(self.tmp / "oci.tar")
        for name in ("", "one", layout.tags["one"]["digest"]):
            out = self.open("oci-archive", archive, name)
            self.assertNotIn("error", out)
            self.assertEqual((out["digest"], out["cmd"], out["user"]), (layout.tags["one"]["digest"], ["/bin/sh"], "1000"))
            self.assertEqual([layer["diff_id"] for layer in out["layers"]], [sha256(raw) for raw in self.raw])
        self.refused(self.open("oci-archive", archive, "two"), "no image of the name two", "one")
        layout.image([Layer().file("c", b"c")], tag="two")
        archive = layout.tar(self.tmp / "oci.tar")
        self.refused(self.open("oci-archive", archive), "several images", "one", "two")
        self.assertEqual(self.open("oci-archive", archive, "two")["digest"], layout.tags["two"]["digest"])

    def test_110_layout_of_many_platforms(self):
        """Case 110, in an archive."""
        layout = Layout(self.tmp / "layout")
        images = [layout.image([Layer().file(p, b"")], platform=("linux", p)) for p in ("amd64", "arm64")]
        inner = layout.index([*images, layout.attestation(images[0])])
        layout.index([{k: v for k, v in inner.items() if k != "platform"}], tag="many")
        archive = layout.tar(self.tmp / "oci.tar")
        self.assertEqual(self.open("oci-archive", archive)["digest"], images[0]["digest"])
        self.assertEqual(self.open("oci-archive", archive, platform="arm64")["digest"], images[1]["digest"])
        self.refused(self.open("oci-archive", archive, platform="riscv64"), "no match for linux/riscv64", "linux/amd64, linux/arm64")

    def test_layouts_that_lie(self):
        layout = self.layout()
        archive = layout.tar(self.tmp / "oci.tar")
        members = {}
        with tarfile.open(archive) as t:
            for info in t:
                if info.isfile():
                    members[info.name.removeprefix("./")] = t.extractfile(info).read()
        layer = "blobs/sha256/" + next(d["digest"] for d in json.loads(members["blobs/sha256/" + layout.tags["one"]["digest"][7:]])["layers"])[7:]
        manifest = "blobs/sha256/" + layout.tags["one"]["digest"][7:]
        self.assertNotIn("error", self.open("oci-archive", tar(members)))
        self.assertNotIn("error", self.open("oci-archive", tar(members, tarfile.GNU_FORMAT)))
        changed = bytes([members[layer][0] ^ 1]) + members[layer][1:]
        self.refused(self.open("oci-archive", tar({**members, layer: changed})), "not those of its digest")
        self.refused(self.open("oci-archive", tar({**members, layer: members[layer] + b"x"})), "another size")
        self.refused(self.open("oci-archive", tar({k: v for k, v in members.items() if k != layer})), "lacks layer 0")
        self.refused(self.open("oci-archive", tar({k: v for k, v in members.items() if k != manifest})), "lacks a file")
        self.refused(self.open("oci-archive", tar({k: v for k, v in members.items() if k != "oci-layout"})), "no OCI layout")
        self.refused(self.open("oci-archive", tar({**members, "oci-layout": b'{"imageLayoutVersion":"2.0"}'})), "version")
        out = self.open("oci-archive", tar({**members, manifest: members[manifest] + b" "}))
        self.assertIn("not what its digest", out["error"])
        self.assertIn("error", self.open("oci-archive", tar({**members, "index.json": b"[]"})))
        # Links inside the archive are followed, never out of it.
        moved = {**{k: v for k, v in members.items() if k != layer}, "elsewhere": members[layer], layer: "-> ../../../elsewhere"}
        self.assertNotIn("error", self.open("oci-archive", tar(moved)))
        self.refused(self.open("oci-archive", tar({**members, layer: "-> /etc/passwd"})), "lacks layer 0")
        self.refused(self.open("oci-archive", tar({**members, layer: "-> " + layer[13:]})), "lacks layer 0")

    def test_what_is_no_archive(self):
        whole = self.layout().tar(self.tmp / "oci.tar").read_bytes()
        self.refused(self.open("oci-archive", gzip.compress(whole)), "compressed")
        self.refused(self.open("oci-archive", whole[:len(whole) // 2]), "truncated")
        for data in (b"", b"x" * 5000, b"\0" * 10240):
            self.assertIn("error", self.open("oci-archive", data))
        self.refused(self.open("docker-archive", whole), "no docker archive")
        self.refused(self.open("oci-archive", tar([("a" * 2000, b"")])), "longer than 1024")
        self.refused(self.open("docker-archive", tar({"repositories": b"{}", "x/json": b"{}"})), "before 1.10")

    def test_docker_archive(self):
        layout = self.layout()
        out = self.open("docker-archive", layout.docker_archive("one", self.tmp / "docker.tar", "me/app:1"))
        self.assertNotIn("error", out)
        self.assertEqual([layer["digest"] for layer in out["layers"]], [sha256(raw) for raw in self.raw])
        self.assertEqual((out["cmd"], {layer["format"] for layer in out["layers"]}), (["/bin/sh"], {"tar"}))
        for name in ("1", "me/app:1", "docker.io/me/app:1"):
            self.assertNotIn("error", self.open("docker-archive", self.tmp / "docker.tar", name, fetch=False))
        self.refused(self.open("docker-archive", self.tmp / "docker.tar", "me/app:2"), "me/app:1")

    def old(self, **more):
        """As `docker save` of 1.10 to 24: directories of layers, VERSION and json beside them, layers of equal contents by links."""
        raw = [tar({"a": b"1"}), tar({"b": b"2"})]
        config = json.dumps({"os": "linux", "architecture": "amd64", "config": {"Cmd": ["x"]}, "rootfs": {"type": "layers", "diff_ids": [sha256(raw[0]), sha256(raw[1]), sha256(raw[0])]}}).encode()
        name = hashlib.sha256(config).hexdigest() + ".json"
        manifest = [{"Config": name, "RepoTags": ["a:1"], "Layers": ["l1/layer.tar", "l2/layer.tar", "l3/layer.tar"]}]
        return {name: config, "l1/VERSION": b"1.0", "l1/json": b"{}", "l1/layer.tar": raw[0], "l2/layer.tar": raw[1], "l3/layer.tar": "-> ../l1/layer.tar", "manifest.json": json.dumps(manifest).encode(),
                "repositories": b"{}", **more}, name, manifest, raw

    def test_docker_archives_of_old(self):
        members, name, manifest, raw = self.old()
        out = self.open("docker-archive", tar(members))
        self.assertEqual([layer["digest"] for layer in out["layers"]], [sha256(raw[0]), sha256(raw[1]), sha256(raw[0])])
        self.assertEqual(out["digest"], "sha256:" + name[:64])
        self.assertNotIn("error", self.open("docker-archive", tar({**members, "l3/layer.tar": "=> l1/layer.tar"})))
        self.refused(self.open("docker-archive", tar({**members, "l2/layer.tar": raw[0]})), "not those of its digest")
        self.refused(self.open("docker-archive", tar({**members, name: members[name] + b" "})), "not what its name says")
        self.refused(self.open("docker-archive", tar({**members, "manifest.json": json.dumps(manifest * 2).encode()})), "several images")
        two = [*manifest, {**manifest[0], "RepoTags": ["b:2"]}]
        self.refused(self.open("docker-archive", tar({**members, "manifest.json": json.dumps(two).encode()})), "several images", "a:1, b:2")
        self.assertNotIn("error", self.open("docker-archive", tar({**members, "manifest.json": json.dumps(two).encode()}), "b:2"))
        out = self.open("docker-archive", tar({**members, "manifest.json": json.dumps([{**manifest[0], "Layers": ["l1/layer.tar"]}]).encode()}))
        self.assertIn("names 3 layers, its manifest 1", out["error"])
        for bad in (b"", b"{}", b"[]", b"[1]", b'[{"Config":""}]', b'[{"Config":"none","Layers":[]}]', b'[{"Config":5,"Layers":{}}]'):
            self.assertIn("error", self.open("docker-archive", tar({**members, "manifest.json": bad})))
        self.refused(self.open("docker-archive", tar(members), platform="arm64"), "no match for linux/arm64: the image is for linux/amd64")

    def test_docker_archives_of_today(self):
        """Docker 25 and later: an OCI layout with a manifest.json, layers plain or compressed."""
        layout = self.layout()
        digest = layout.tags["one"]["digest"][7:]
        manifest = json.loads((layout.dir / "blobs/sha256" / digest).read_bytes())
        blob = lambda d: "blobs/sha256/" + d["digest"][7:]  # noqa: E731
        (layout.dir / "manifest.json").write_text(json.dumps([{"Config": blob(manifest["config"]), "RepoTags": ["app:1"], "Layers": [blob(layer) for layer in manifest["layers"]]}]))
        archive = layout.tar(self.tmp / "both.tar")
        out = self.open("docker-archive", archive, "app:1")
        self.assertNotIn("error", out)
        self.assertEqual([(layer["digest"], layer["format"]) for layer in out["layers"]], [(layer["digest"], "gzip") for layer in manifest["layers"]])
        self.assertEqual(self.open("oci-archive", archive)["digest"], "sha256:" + digest)

    def test_root_file_systems(self):
        raw = tar({"etc/a": b"a"})
        for data, form in ((raw, "tar"), (gzip.compress(raw), "gzip"), (subprocess.run(["zstd", "-c"], input=raw, capture_output=True, check=True).stdout, "zstd")):
            out = self.open("rootfs", data)
            self.assertEqual([(layer["digest"], layer["format"], layer["diff_id"]) for layer in out["layers"]], [(sha256(data), form, sha256(raw) if form == "tar" else "")])
            self.assertEqual((out["env"], out["cmd"], out["user"]), ([], [], ""))
        self.refused(self.open("rootfs", b""), "empty")

    def test_skopeos_archives(self):
        layout = self.layout()
        skopeo("copy", f"oci:{layout.dir}:one", f"oci-archive:{self.tmp / 'skopeo.tar'}:app:1")
        for name in ("", "app:1", "1"):
            out = self.open("oci-archive", self.tmp / "skopeo.tar", name)
            self.assertNotIn("error", out)


if __name__ == "__main__":
    unittest.main()
