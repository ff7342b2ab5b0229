"""Trees, file by file, and OCI images written by hand."""

import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile


def describe(path, directory_times=True):
    """All that there is to say about a file, without its name."""
    st = os.lstat(path)
    kind = stat.S_IFMT(st.st_mode)
    said = {"type": oct(kind), "mode": oct(stat.S_IMODE(st.st_mode)), "owner": (st.st_uid, st.st_gid)}
    said["xattrs"] = {n: os.getxattr(path, n, follow_symlinks=False) for n in os.listxattr(path, follow_symlinks=False)}
    if kind != stat.S_IFDIR:
        said["links"] = st.st_nlink
    if kind != stat.S_IFDIR or directory_times:
        said["mtime"] = st.st_mtime_ns
    if kind == stat.S_IFLNK:
        said["target"] = os.readlink(path)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        said["device"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
    elif kind == stat.S_IFREG:
        with open(path, "rb") as f:
            said["size"], said["sha256"] = st.st_size, hashlib.file_digest(f, "sha256").hexdigest()
    return said


def tree(root, **how):
    """{relative path (bytes): what it is}; hard links are the first name of their file."""
    root, found, inodes = os.fsencode(root), {}, {}
    for directory, names, files in os.walk(root):
        for name in [b""] if directory == root else []:
            found[b"."] = describe(root, **how)
        for name in sorted(names + files):
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, root)
            found[relative] = describe(path, **how)
            st = os.lstat(path)
            if st.st_nlink > 1 and not stat.S_ISDIR(st.st_mode):
                found[relative]["same"] = inodes.setdefault((st.st_dev, st.st_ino), set())
                found[relative]["same"].add(relative)
    return found


def differences(ours, theirs, ignore=lambda path, key: False):
    lines = []
    for path in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(path), theirs.get(path)
        if a is None or b is None:
            lines.append(f"{path}: only {'theirs' if a is None else 'ours'}")
            continue
        lines += [f"{path[:80]}: {k}: ours {a.get(k)!r}, theirs {b.get(k)!r}" for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k) and not ignore(path, k)]
    return lines


class Layer:
    """A tar archive, entry by entry, in the order of the calls."""

    def __init__(self, form=tarfile.PAX_FORMAT):
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=form)

    def add(self, name, data=b"", **attributes):
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(data), 0o644, 1700000000.25
        for key, value in attributes.items():
            setattr(info, key, value)
        self.tar.addfile(info, io.BytesIO(data))
        return self

    def dir(self, name, mode=0o755, **attributes):
        return self.add(name, type=tarfile.DIRTYPE, mode=mode, **attributes)

    def symlink(self, name, target, **attributes):
        return self.add(name, type=tarfile.SYMTYPE, linkname=target, **attributes)

    def link(self, name, target, **attributes):
        return self.add(name, type=tarfile.LNKTYPE, linkname=target, **attributes)

    def raw(self):
        if not self.tar.closed:
            self.tar.close()
        return self.bytes.getvalue()


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def compress(data, how):
    if how == "gzip":
        return gzip.compress(data, 6, mtime=0)
    if how == "zstd":
        return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout
    return data


def layout(directory, layers):
    """An OCI layout with one image, tag `t`, of gzip layers. Returns the paths of its layer blobs."""
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data, kind):
        (blobs / sha(data)[7:]).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": sha(data), "size": len(data)}

    raws = [layer.raw() for layer in layers]
    descriptors = [put(compress(r, "gzip"), "layer.v1.tar+gzip") for r in raws]
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [sha(r) for r in raws]}, "history": [{}] * len(raws)}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(config).encode(), "config.v1+json"),
        "layers": descriptors,
    }
    top = put(json.dumps(manifest).encode(), "manifest.v1+json")
    top["annotations"] = {"org.opencontainers.image.ref.name": "t"}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return [blobs / d["digest"][7:] for d in descriptors]


def umoci(directory, layers):
    """What umoci makes of an image of these layers: its root file system, and the layer blobs."""
    blobs = layout(directory / "oci", layers)
    subprocess.run(["umoci", "unpack", "--image", f"{directory}/oci:t", directory / "bundle"], check=True, capture_output=True)
    return directory / "bundle/rootfs", blobs
