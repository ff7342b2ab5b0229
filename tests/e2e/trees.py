"""Templates made of a tree that a test has written: an EROFS image and a description in the state directory of a server."""

import hashlib
import json
import os
import pathlib
import subprocess
import uuid


def make_template(server, alias, tree, user="root", **more):
    """Makes the directory `tree` the only layer of a template with that alias; the server reads it at its start, or when reload() is called."""
    digest = hashlib.sha256(alias.encode()).hexdigest()
    node = server.state / "node"
    image = node / "images" / f"{digest}.erofs"
    image.parent.mkdir(parents=True, exist_ok=True)
    (node / "templates").mkdir(exist_ok=True)
    subprocess.run(["mkfs.erofs", "-x1", str(image), str(tree)], check=True, stdout=subprocess.DEVNULL)
    os.chmod(image, 0o600)
    text = {"id": digest[:20], "alias": alias, "createdAt": "2026-01-02T03:04:05Z", "buildId": str(uuid.UUID(digest[:32])),
            "layers": [{"file": f"images/{image.name}", "size": image.stat().st_size}], "user": user, **more}
    path = node / "templates" / f"{text['id']}.json"
    path.write_text(json.dumps(text))
    os.chmod(path, 0o600)
    return text["id"]


def plant(root, entries):
    """Fills a directory: name -> text or bytes (a file), None (a directory), "-> target" (a symbolic link), or a Path (a copy of that file, executable)."""
    for name, what in entries.items():
        path = pathlib.Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if what is None:
            path.mkdir(exist_ok=True)
        elif isinstance(what, pathlib.Path):
            path.write_bytes(what.read_bytes())
            path.chmod(0o755)
        elif isinstance(what, str) and what.startswith("-> "):
            path.symlink_to(what[3:])
        else:
            path.write_bytes(what.encode() if isinstance(what, str) else what)
    return root
