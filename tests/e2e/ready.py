"""Helpers for ready pools: templates with a service of the test's own, what a server tells of a pool, and its members as the machine sees them."""

import json
import os
import pathlib
import random
import secrets
import subprocess
import uuid

from server import wait_for

INTERPRETER = "code-interpreter-v1"

# Tells who asks what it was started with.
WEB = r"""
import json,os,socket
s=socket.socket(fileno=3)
me=json.dumps({"pid":os.getpid(),"env":dict(os.environ)})
while 1:
 c,_=s.accept()
 c.recv(4096)
 c.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(me)}\r\nConnection: close\r\n\r\n{me}".encode())
 c.close()
"""
WEB_READY = ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000; echo GET >&3; read -r -t 5 line <&3 && [[ $line == *200* ]]"]


class Template:
    """One with the files of base and services of its own. The first argument of its first service tells its processes from all others on the machine."""

    def __init__(self, server, alias, command=None, **more):
        base = next(t for t in (json.loads(p.read_text()) for p in (server.state / "node/templates").glob("*.json")) if t["alias"] == "base")
        self.server, self.alias = server, alias
        self.mark = str(random.randrange(10**8, 10**9))
        self.command = command or ["/bin/sleep", self.mark]
        self.id = secrets.token_hex(10)
        self.described = {"id": self.id, "alias": alias, "createdAt": "2026-01-02T03:04:05.678901Z", "layers": base["layers"], "user": base["user"],
                          "services": [{"name": "one", "command": self.command, "user": "user"}], **more}
        self.path = server.state / "node/templates" / f"{self.id}.json"
        self.save()

    def save(self, **changes):
        """A new build."""
        self.described.update(changes, buildId=str(uuid.uuid4()))
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.described))
        os.chmod(new, 0o600)
        new.rename(self.path)

    def processes(self):
        """{sandbox id: pid on the host of its service}, of members and sandboxes alike."""
        found = {}
        wanted = b"\0".join(w.encode() for w in self.command) + b"\0"
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "cmdline").read_bytes() != wanted:
                        continue
                    environ = dict(line.split(b"=", 1) for line in (entry / "environ").read_bytes().split(b"\0") if b"=" in line)
                except OSError:
                    continue
                if b"E2B_SANDBOX_ID" in environ:
                    found[environ[b"E2B_SANDBOX_ID"].decode()] = int(entry.name)
        return found


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def reload_templates(server):
    subprocess.run(["curl", "-sf", "--unix-socket", f"{server.state}/admin.sock", "-X", "POST", "http://localhost/admin/reload-templates"], check=True)


def pool(server, name):
    """What the server tells of one: None when it tells of none, or its node is being started again."""
    status, pools = server.call("GET", "/pools")
    if status == 503:
        return None
    assert status == 200, pools
    return next((p for p in pools if name in (p["templateID"], p.get("alias"))), None)


def set_pool(server, name, size, filled=True, **more):
    status, told = server.call("PUT", f"/pools/{name}", {"size": size, **more})
    assert status == 200, told
    if filled:
        wait_ready(server, name, size)
    return told


def wait_ready(server, name, n, seconds=120):
    wait_for(lambda: (p := pool(server, name)) and p["ready"] >= n, seconds, f"{n} ready sandboxes of {name}")


def unset_pool(server, name):
    status, told = server.call("DELETE", f"/pools/{name}")
    assert status == 204, told


def ids(server):
    """All that is listed, whoever's."""
    found, query = set(), "limit=100"
    while True:
        status, boxes = server.call("GET", "/v2/sandboxes?" + query)
        assert status == 200, boxes
        found.update(b["sandboxID"] for b in boxes)
        token = server.last_headers.get("X-Next-Token")
        if not token:
            return found
        query = f"limit=100&nextToken={token}"


def create(server, template, key="", headers=None, **body):
    """The answer to a create that must succeed."""
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": template, "timeout": 600, **body}, key=key, headers=headers)
    assert status == 201, made
    return made


def detail(server, box):
    status, told = server.call("GET", "/sandboxes/" + box)
    assert status == 200, told
    return told

