"""Templates over the API, end to end: files of any size, sandboxes straight from an image, deletion in use. What the published clients do by themselves is in test_clients.py."""

import concurrent.futures
import hashlib
import http.client
import json
import pathlib
import socket
import urllib.parse

import pytest
from e2b import AuthenticationException, BuildException, Sandbox, SandboxException, Template, TemplateBuildStatus

from conftest import serving
from registry import Layout, Registry, busybox
from server import wait_for

IMAGE = {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin", "OF=image"], "WorkingDir": "/srv"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with Registry() as hub:
        layout = Layout(tmp_path_factory.mktemp("image"))
        layout.image([busybox().dir("srv")], IMAGE, tag="1")
        hub.image = hub.push(layout, "1", "team/app", "1")
        yield hub


@pytest.fixture(scope="module")
def server(hub):
    with serving(options={"registry.insecure": hub.host}) as s:
        yield s


def front_memory(server):
    """Resident memory of the front, and the most that it was, in KiB."""
    status = pathlib.Path(f"/proc/{server.children()['front']}/status").read_text()
    return [int(status.split(f"{name}:")[1].split()[0]) for name in ("VmRSS", "VmHWM")]


def waiting(server, name):
    status, made = server.call("POST", "/v3/templates", {"name": name})
    assert status == 202
    return made["templateID"], made["buildID"]


def link(server, template, digest):
    status, answer = server.call("GET", f"/templates/{template}/files/{digest}")
    assert status == 201
    return answer["present"], urllib.parse.urlsplit(answer["url"])


def forget(server, *templates):
    for t in templates:
        assert server.call("DELETE", f"/templates/{t}?force=true")[0] == 204


def test_a_gigabyte_goes_through_in_constant_memory(server):
    """e2b.md F 84: exact Content-Length, present afterwards; in pieces without a length, too. What is cut leaves nothing."""
    template, _ = waiting(server, "large")
    piece, pieces = bytes(range(256)) * 4096, 1024
    digest = hashlib.sha256(b"large").hexdigest()
    present, url = link(server, template, digest)
    assert not present and (url.hostname, url.port, url.scheme) == ("127.0.0.1", server.port, "http")
    before = front_memory(server)[0]
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    # Cut in the middle.
    with socket.create_connection((url.hostname, url.port)) as s:
        s.sendall(f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(piece) * 2}\r\n\r\n".encode() + piece)
    assert not link(server, template, digest)[0]
    c.request("PUT", f"{url.path}?{url.query}", body=(piece for _ in range(pieces)), headers={"Content-Length": str(len(piece) * pieces)})
    r = c.getresponse()
    assert (r.status, r.read()) == (204, b"")
    assert link(server, template, digest)[0]
    most = front_memory(server)[1]
    assert most - before < 64 * 1024, (before, most)
    other = hashlib.sha256(b"other").hexdigest()
    url = link(server, template, other)[1]
    c.request("PUT", f"{url.path}?{url.query}", body=iter([b"x" * 100000] * 10), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    r = c.getresponse()
    assert (r.status, r.read()) == (204, b"")
    c.close()
    left = [p.stat().st_size for p in (server.state / "node/files").iterdir()]
    assert sorted(left) == [1000000, len(piece) * pieces]
    forget(server, template)


def test_a_build_in_the_background_and_its_cache(server, tmp_path):
    """F 84, 85: building at once; the second time nothing is sent, and the steps are there."""
    (tmp_path / "data").write_text("of the context")
    template = Template(file_context_path=tmp_path).from_base_image().copy("data", "/data").run_cmd("cp /data ~/copy")

    def build(name):
        info = Template.build_in_background(template, alias=name)
        status = Template.get_build_status(info)
        assert status.status in (TemplateBuildStatus.BUILDING, TemplateBuildStatus.READY)
        wait_for(lambda: Template.get_build_status(info).status == TemplateBuildStatus.READY, what="the build")
        return info, "".join(e.message + "\n" for e in Template.get_build_status(info).log_entries)
    first, log = build("cached")
    log_size = server.log_path.stat().st_size
    second, again = build("CACHED")
    assert second.template_id == first.template_id and second.build_id != first.build_id
    sent = [line for line in server.log_path.read_bytes()[log_size:].decode().splitlines() if "PUT /templates/" in line]
    assert sent == [] and "CACHED" in again.upper() and "CACHED" not in log.upper(), (log, again)
    with Sandbox.create("cached", timeout=120) as box:
        assert box.commands.run("cat copy").stdout == "of the context"
        # It runs on what it was made from; its template goes by force only. case 28.
        box.pause()
        status, answer = server.call("DELETE", "/templates/cached")
        assert status == 409 and box.sandbox_id in answer["message"], answer
        assert server.call("DELETE", "/templates/cached?force=true")[0] == 204
        assert not Template.exists("cached")
        with pytest.raises(SandboxException, match="404.*template 'cached' not found"):
            Sandbox.create("cached")
        box = Sandbox.connect(box.sandbox_id)
        assert box.commands.run("cat copy").stdout == "of the context"


def test_builds_are_refused_by_name(server):
    """What is wrong is said before anything is built; texts that clients compare."""
    with pytest.raises(BuildException, match="400: Invalid template reference"):
        Template.build(Template().from_base_image(), alias="a b")
    with pytest.raises(BuildException, match="404.*no-such-template.*not found"):
        Template.build(Template().from_template("no-such-template"), alias="refused")
    with pytest.raises(BuildException, match="failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"):
        Template.build(Template().from_base_image().run_cmd("whoami", user="root123"), alias="refused")
    with pytest.raises(AuthenticationException):
        Template.build(Template().from_base_image(), alias="refused", api_key="e2b_" + "0" * 40)
    forget(server, "refused")


def test_sandboxes_straight_from_an_image(server, hub):
    """Made once, however many ask at once; each runs in the image as it is."""
    def ask(_):
        return server.call("POST", "/v2/sandboxes", {"templateID": f"docker://{hub.image}", "timeout": 120})
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(ask, range(30)))
    assert {status for status, _ in answers} == {201}, answers
    made = [t for t in server.call("GET", "/templates")[1] if t.get("kind") == "image"]
    assert [(t["imageInfo"], t["buildCount"]) for t in made] == [(hub.image, 1)]
    box = Sandbox.connect(answers[0][1]["sandboxID"])
    assert server.call("GET", f"/sandboxes/{box.sandbox_id}")[1]["templateID"] == made[0]["templateID"]
    for _, answer in answers:
        server.call("DELETE", f"/sandboxes/{answer['sandboxID']}")
    # It is there without its registry from now on. case 29.
    hub.stop()
    try:
        with Sandbox.create(hub.image, timeout=120) as box:
            assert box.sandbox_id
        with pytest.raises(SandboxException, match="image"):
            Sandbox.create(f"{hub.host}/team/other:1", timeout=120)
    finally:
        hub.start()
    with pytest.raises(SandboxException, match="template of the image.*does not have the image"):
        Sandbox.create(f"{hub.host}/team/other:1", timeout=120)
    for t in server.call("GET", "/templates")[1]:
        if t.get("kind") == "image":
            forget(server, t["templateID"])
    assert json.dumps(server.call("GET", "/templates")[1]).count(hub.host) == 0
