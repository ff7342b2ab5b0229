"""Registries and images of a test's own, without any network but the loopback.

    with Registry() as hub:                      # Debian's docker-registry: plain HTTP; tls=True: with an authority of its own; users={"anna": "secret"}: with passwords
        layout = Layout(directory)
        layout.image([busybox(), Layer().file("etc/motd", b"hello\\n")], {"Cmd": ["/bin/sh"]}, tag="1")
        reference = hub.push(layout, "1", "team/hello", "1")          # "127.0.0.1:PORT/team/hello:1"
    layout.unpack("1", directory)                # what `umoci unpack` makes of it, to compare with

Nothing of a docker-registry service of the machine is used or changed."""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import ssl
import stat
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request

from server import free_port, wait_for

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"


def run(*words, **kwargs):
    """Runs a program that must succeed; its standard output."""
    done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, capture_output=True, **kwargs)
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}: {done.stderr.decode(errors='replace')}"
    return done.stdout


def skopeo(*words, ca=None, user=None, verify=True):
    """`skopeo copy FROM TO`, without anybody's own logins and settings. ca: of the registry it copies from; user: "name:password" there."""
    options = [*([] if verify else ["--src-tls-verify=false"]), *(["--src-cert-dir", ca] if ca else []), *(["--src-creds", user] if user else [])]
    with tempfile.TemporaryDirectory(prefix="cubicle-skopeo-", dir="/tmp") as tmp:
        return run("skopeo", "--insecure-policy", "--tmpdir", tmp, words[0], *options, *words[1:], env={"PATH": os.environ["PATH"], "HOME": tmp, "XDG_RUNTIME_DIR": tmp})


class Registry:
    """Debian's docker-registry on a port and in a directory of its own; ended by its pid."""

    def __init__(self, tls=False, users=None, port=None):
        self.tls, self.users, self.port = tls, dict(users or {}), port or free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cubicle-registry-", dir="/tmp"))
        self.process = None

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://{self.host}"

    @property
    def ca(self):
        """The authority that vouches for it (PEM), with tls."""
        return self.dir / "certs" / "ca.crt"

    def configure(self):
        config = {
            "version": 0.1, "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.dir / "data")}, "delete": {"enabled": True}},
            "http": {"addr": self.host, "secret": "of this test"},
        }
        if self.tls:
            make_certificate(self.dir)
            config["http"]["tls"] = {"certificate": str(self.dir / "server.crt"), "key": str(self.dir / "server.key")}
        if self.users:
            lines = [run("htpasswd", "-Bbn", "-C", "5", name, password).decode().strip() for name, password in self.users.items()]
            (self.dir / "htpasswd").write_text("\n".join(lines) + "\n")
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(self.dir / "htpasswd")}}
        (self.dir / "config.json").write_text(json.dumps(config))  # JSON is YAML, too

    def start(self):
        self.configure()
        self.log = open(self.dir / "log", "ab")
        self.process = subprocess.Popen(["docker-registry", "serve", str(self.dir / "config.json")], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={"PATH": os.environ["PATH"], "OTEL_TRACES_EXPORTER": "none"}, start_new_session=True)
        wait_for(self.answers, what="the registry")
        return self

    def answers(self):
        assert self.process.poll() is None, f"the registry ended: {(self.dir / 'log').read_text(errors='replace')}"
        try:
            return self.request("/v2/") in (200, 401)
        except (OSError, urllib.error.URLError):
            return False

    def send(self, method, path, body=None, headers=None, user=None):
        """One request: (status, headers, body). user: "name:password"."""
        context = ssl.create_default_context(cafile=self.ca) if self.tls else None
        q = urllib.request.Request(path if "://" in path else self.url + path, data=body, method=method, headers=headers or {})
        if user:
            q.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        try:
            with opener.open(q, timeout=60) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()

    def request(self, path, method="GET", user=None):
        """The status of a request."""
        return self.send(method, path, user=user)[0]

    def stop(self):
        """It answers nothing more; start() goes on with the same port and images."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process:
            self.log.close()
        self.process = None

    def close(self):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    @property
    def writer(self):
        """Somebody who may push: "name:password", or None."""
        return next((f"{n}:{p}" for n, p in self.users.items()), None)

    def must(self, status, *request, **more):
        got, headers, body = self.send(*request, user=self.writer, **more)
        assert got == status, f"{request[:2]}: {got} {body!r}"
        return headers

    def push_blob(self, name, digest, data):
        if self.request(f"/v2/{name}/blobs/{digest}", "HEAD", self.writer) == 200:
            return
        place = self.must(202, "POST", f"/v2/{name}/blobs/uploads/")["Location"]
        self.must(201, "PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", body=data, headers={"Content-Type": "application/octet-stream"})

    def push_manifest(self, layout, descriptor, name, reference):
        data = layout.read(descriptor)
        manifest = json.loads(data)
        for inner in manifest.get("manifests", []):
            self.push_manifest(layout, inner, name, inner["digest"])
        for inner in [manifest["config"], *manifest["layers"]] if "config" in manifest else []:
            self.push_blob(name, inner["digest"], layout.read(inner))
        self.must(201, "PUT", f"/v2/{name}/manifests/{reference}", body=data, headers={"Content-Type": descriptor["mediaType"]})

    def push(self, layout, tag, name, to_tag="latest"):
        """Brings an image or an index (nested, with all it names) of a Layout here, byte for byte; the reference to pull it by."""
        self.push_manifest(layout, layout.tags[tag], name, to_tag)
        return f"{self.host}/{name}:{to_tag}"

    def digest(self, name, tag="latest"):
        """sha256:… of what the tag means now."""
        accept = ", ".join((MANIFEST, INDEX, DOCKER_MANIFEST))
        return self.must(200, "HEAD", f"/v2/{name}/manifests/{tag}", headers={"Accept": accept})["Docker-Content-Digest"]


def make_certificate(directory, names=("IP:127.0.0.1", "DNS:localhost")):
    """certs/ca.crt, server.crt and server.key in the directory."""
    (directory / "certs").mkdir(exist_ok=True)
    ca, ca_key = directory / "certs" / "ca.crt", directory / "ca.key"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", "/CN=authority of a test",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", directory / "server.key", "-out", directory / "server.csr", "-subj", "/CN=registry")
    (directory / "extensions").write_text("subjectAltName=" + ",".join(names) + "\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
    run("openssl", "x509", "-req", "-in", directory / "server.csr", "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", directory / "extensions", "-out", directory / "server.crt")


class Layer:
    """A layer's tar, entry by entry in the order of the calls. Paths have no leading slash."""

    def __init__(self, format=tarfile.PAX_FORMAT, mtime=1700000000):
        self.bytes, self.mtime = io.BytesIO(), mtime
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=format)

    def add(self, path, kind, data=None, mode=0o644, uid=0, gid=0, target="", xattrs=None, device=(0, 0), pax=None, mtime=None):
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.uid, info.gid, info.linkname = kind, mode, uid, gid, target
        info.mtime = self.mtime if mtime is None else mtime
        info.devmajor, info.devminor = device
        info.size = len(data) if data is not None else 0
        # Values of xattrs are any bytes; tarfile writes what surrogates stand for as they were.
        info.pax_headers = {f"SCHILY.xattr.{k}": v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for k, v in (xattrs or {}).items()} | (pax or {})
        self.tar.addfile(info, io.BytesIO(data) if data is not None else None)
        return self

    def dir(self, path, mode=0o755, **more):
        return self.add(path, tarfile.DIRTYPE, mode=mode, **more)

    def file(self, path, data=b"", mode=0o644, **more):
        return self.add(path, tarfile.REGTYPE, data=data, mode=mode, **more)

    def link(self, path, target, **more):
        return self.add(path, tarfile.SYMTYPE, mode=0o777, target=target, **more)

    def hardlink(self, path, target, **more):
        return self.add(path, tarfile.LNKTYPE, target=target, **more)

    def device(self, path, major, minor, kind=tarfile.CHRTYPE, **more):
        return self.add(path, kind, device=(major, minor), **more)

    def fifo(self, path, **more):
        return self.add(path, tarfile.FIFOTYPE, **more)

    def whiteout(self, path):
        """What is below goes: `a/b` by an entry a/.wh.b."""
        head, _, tail = path.rpartition("/")
        return self.file(f"{head}/.wh.{tail}" if head else f".wh.{tail}")

    def opaque(self, path):
        """What the directory holds below goes."""
        return self.file(f"{path}/.wh..wh..opq")

    def tree(self, root, under=""):
        """What stands below a directory of this machine, owned by root; times as there."""
        root = pathlib.Path(root)
        for path in sorted(root.rglob("*")):
            info = self.tar.gettarinfo(str(path), arcname=str(pathlib.PurePosixPath(under) / path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            with open(path, "rb") if info.isreg() else contextlib.nullcontext() as f:
                self.tar.addfile(info, f)
        return self

    def raw(self):
        self.tar.close()
        return self.bytes.getvalue()


APPLETS = ("sh ls cat echo cp mv rm mkdir rmdir ln id env true false sleep touch chmod chown stat find grep sed awk sort head tail wc tar sha256sum readlink df du ps kill test pwd printf "
           "hostname uname date dd od tr cut xargs nc httpd wget vi who whoami seq basename dirname mktemp").split()


def busybox(layer=None, musl=True):
    """A small root: busybox (static) with its applets, the usual directories, root and nobody; with musl's loader for programs that want it."""
    layer = layer or Layer()
    for path, mode in (("bin", 0o755), ("etc", 0o755), ("lib", 0o755), ("root", 0o700), ("tmp", 0o1777), ("usr", 0o755), ("usr/bin", 0o755), ("var", 0o755)):
        layer.dir(path, mode)
    layer.file("bin/busybox", pathlib.Path("/bin/busybox").read_bytes(), 0o755)
    for name in APPLETS:
        layer.link(f"bin/{name}", "busybox")
    if musl:
        layer.file("lib/ld-musl-x86_64.so.1", pathlib.Path("/usr/lib/x86_64-linux-musl/libc.so").read_bytes(), 0o755)
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    layer.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return layer


def compressed(data, how):
    if how == "gzip":
        return gzip.compress(data, 1, mtime=0)
    if how == "zstd":
        return subprocess.run(["zstd", "-q", "-1", "-c"], input=data, capture_output=True, check=True).stdout
    return data


class Layout:
    """An OCI image layout directory, made file by file; digests are what they should be unless a test spoils them."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        (self.dir / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (self.dir / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        self.tags = {}
        self.save()

    def save(self):
        manifests = [{**d, "annotations": {**d.get("annotations", {}), "org.opencontainers.image.ref.name": tag}} for tag, d in self.tags.items()]
        (self.dir / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))

    def blob(self, data, media_type):
        """Adds a blob; its descriptor."""
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self.dir / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def read(self, descriptor):
        return (self.dir / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()

    def image(self, layers, config=None, tag=None, compression="gzip", platform=("linux", "amd64"), docker=False, annotations=None):
        """An image of these layers, lowest first (Layer, bytes of a tar, or a descriptor with its diffID as a pair); compression: "gzip", "zstd", None, or one for each. Its descriptor."""
        hows = compression if isinstance(compression, (list, tuple)) else [compression] * len(layers)
        descriptors, diff_ids = [], []
        for layer, how in zip(layers, hows, strict=True):
            if isinstance(layer, tuple):
                descriptor, diff_id = layer
            else:
                raw = layer.raw() if isinstance(layer, Layer) else layer
                suffix = {"gzip": ".gzip" if docker else "+gzip", "zstd": "+zstd", None: ""}[how]
                descriptor = self.blob(compressed(raw, how), (DOCKER_LAYER if docker else LAYER) + suffix)
                diff_id = "sha256:" + hashlib.sha256(raw).hexdigest()
            descriptors.append(descriptor)
            diff_ids.append(diff_id)
        os_name, architecture, *variant = platform
        document = {"created": "2023-11-14T22:13:20Z", "os": os_name, "architecture": architecture, **({"variant": variant[0]} if variant else {}), "config": config or {},
                    "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": [{"created": "2023-11-14T22:13:20Z", "created_by": f"layer {i}"} for i in range(len(layers))]}
        manifest = {"schemaVersion": 2, "mediaType": DOCKER_MANIFEST if docker else MANIFEST, "config": self.blob(document, DOCKER_CONFIG if docker else CONFIG), "layers": descriptors}
        if annotations:
            manifest["annotations"] = annotations
        made = self.blob(manifest, manifest["mediaType"])
        made["platform"] = {"os": os_name, "architecture": architecture, **({"variant": variant[0]} if variant else {})}
        return self.name(made, tag)

    def index(self, descriptors, tag=None):
        """An index of images (or of indexes: nested); its descriptor."""
        return self.name(self.blob({"schemaVersion": 2, "mediaType": INDEX, "manifests": descriptors}, INDEX), tag)

    def attestation(self, subject):
        """What BuildKit puts beside an image in an index: a manifest that is none, for platform unknown/unknown."""
        statement = self.blob({"_type": "https://in-toto.io/Statement/v0.1"}, "application/vnd.in-toto+json")
        config = self.blob({"architecture": "unknown", "os": "unknown", "config": {}, "rootfs": {"type": "layers", "diff_ids": [statement["digest"]]}}, CONFIG)
        made = self.blob({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [statement]}, MANIFEST)
        return {**made, "platform": {"os": "unknown", "architecture": "unknown"},
                "annotations": {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": subject["digest"]}}

    def name(self, descriptor, tag):
        if tag:
            self.tags[tag] = descriptor
            self.save()
        return descriptor

    def tar(self, path):
        """The layout as one tar file."""
        with tarfile.open(path, "w") as t:
            t.add(self.dir, arcname=".")
        return path

    def docker_archive(self, tag, path, name="test:1"):
        """What `docker save` would write."""
        skopeo("copy", f"oci:{self.dir}:{tag}", f"docker-archive:{path}:{name}")
        return path

    def unpack(self, tag, directory):
        """What `umoci unpack` makes of an image: its root file system. Needs root."""
        bundle = pathlib.Path(directory)
        run("umoci", "unpack", "--image", f"{self.dir}:{tag}", bundle)
        return bundle / "rootfs"


def inventory(root, skip=()):
    """{path: what stands there} of a tree, for comparing two file by file: kind, mode, owner, size and SHA-256 or target or device, xattrs, and which paths are one file."""
    root, found, inodes = pathlib.Path(root), {}, {}
    for top, directories, files in os.walk(root):
        for name in sorted(directories + files):
            path = pathlib.Path(top) / name
            short = str(path.relative_to(root))
            if any(short == s or short.startswith(s + "/") for s in skip):
                continue
            st = path.lstat()
            item = {"mode": oct(st.st_mode), "uid": st.st_uid, "gid": st.st_gid}
            if stat.S_ISREG(st.st_mode):
                item |= {"size": st.st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "mtime": int(st.st_mtime)}
                if st.st_nlink > 1:
                    item["same as"] = inodes.setdefault((st.st_dev, st.st_ino), short)
            elif stat.S_ISLNK(st.st_mode):
                item["target"] = os.readlink(path)
            elif stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
                item["device"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
            names = os.listxattr(path, follow_symlinks=False)
            item["xattrs"] = {n: os.getxattr(path, n, follow_symlinks=False) for n in sorted(names) if not n.startswith("system.")}
            found[short] = item
    return found
