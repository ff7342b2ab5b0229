"""What the operator says about registries (registry.*), with a whole server: an authority of his own, a private address, his own credentials; and what is refused."""

import base64
import json
import subprocess

import pytest
from e2b import Sandbox

from conftest import serving
from registry import Layout, Registry, busybox
from server import CUBICLE, clean_env


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with Registry(tls=True, users={"anna": "s3cret-of-anna"}) as hub:
        layout = Layout(tmp_path_factory.mktemp("image"))
        layout.image([busybox()], {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin", "OF=image"]}, tag="1")
        hub.image = hub.push(layout, "1", "team/app", "1")
        hub.push(layout, "1", "other/app", "1")
        yield hub


@pytest.fixture(scope="module")
def login(tmp_path_factory, hub):
    path = tmp_path_factory.mktemp("login") / "config.json"
    path.write_text(json.dumps({"auths": {f"{hub.host}/team": {"auth": base64.b64encode(b"anna:s3cret-of-anna").decode()}}}))
    return path


def test_the_operators_authority_and_credentials(hub, login):
    with serving(options={"registry.private": hub.host, "registry.ca": str(hub.ca), "registry.auth": str(login)}) as server:
        with Sandbox.create(f"docker://{hub.image}", timeout=120) as box:
            assert box.files.exists("/bin/sh", user="root")
        # Its file names credentials for one path, and another host is nobody's word.
        status, answer = server.call("POST", "/sandboxes", {"templateID": f"docker://{hub.host}/other/app:1", "timeout": 120})
        assert status == 400 and "credentials" in answer["message"], answer
        status, answer = server.call("POST", "/sandboxes", {"templateID": "docker://127.0.0.1:1/team/app:1", "timeout": 120})
        assert status == 400 and "registry.private" in answer["message"], answer
        assert "s3cret" not in server.log_tail(10**7)
        for t in server.call("GET", "/templates")[1]:
            if t.get("kind") == "image":
                server.call("DELETE", f"/templates/{t['templateID']}?force=true")


def test_what_cannot_be_used_is_named_at_the_start(tmp_path, login):
    broken = tmp_path / "broken"
    broken.write_text("no certificate, no JSON")
    table = [("registry.insecure", "good.example,http://bad.example", "'http://bad.example'"), ("registry.private", "10.0.0.0/8", "'10.0.0.0/8'"), ("registry.ca", str(broken), "no certificate"),
             ("registry.ca", "/nowhere/ca.pem", "/nowhere/ca.pem"), ("registry.auth", str(broken), str(broken))]
    for option, value, words in table:
        done = subprocess.run([CUBICLE, "serve", f"--state.dir={tmp_path / 'state'}", f"--{option}={value}"], env=clean_env(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and option in done.stderr and words in done.stderr, done.stderr
    assert not (tmp_path / "state").exists()
