"""Every call of tests/e2e/matrix/calls.py through every published client and version that has it (cases.md 47, 14)."""

import concurrent.futures
import json
import os
import re
import subprocess

import pytest

from conftest import serving
from matrix.calls import REFUSED, names
from matrix.clients import CLIENTS
from matrix.page import PAGE, render, split
from registry import Layout, Registry, busybox
from server import BUILD, ROOT, wait_for

RESULTS = BUILD / "clients.jsonl"


def drive(client, server):
    """What the client found: {call: (result, detail)}."""
    words, cwd = client.command()
    cube = {"CUBE_API_URL": server.url, "CUBE_API_KEY": server.api_key, "CUBE_PROXY_NODE_IP": "127.0.0.1", "CUBE_PROXY_PORT_HTTP": str(server.port), "TEST_IMAGE": server.image}
    r = subprocess.run(words, cwd=cwd, env={**os.environ, **server.env(), **cube}, capture_output=True, text=True, timeout=1200)
    found = {}
    for line in r.stdout.splitlines():
        entry = json.loads(line)
        found[entry["call"]] = entry["result"], entry["detail"]
    assert r.returncode == 0, f"{found}\n{r.stderr[-4000:]}"
    return found


def complaint(call, result, detail):
    """What is wrong with this result, or None."""
    if result == "failed":
        return f"{call}: {detail}"
    if result == "refused" and not re.search(REFUSED.get(call, "(?!)"), detail, re.S):
        return f"{call}: refused, and not as the table says: {detail}"
    if result == "ok" and call in REFUSED:
        return f"{call}: works, but the table says that it is refused"
    return None


SERVES = 'mkdir -p /www; echo "$GREETING" > /www/ready; exec busybox httpd -f -p 8080 -h /www'


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The reference of an image that serves on port 8080, in a registry without TLS."""
    with Registry() as hub:
        layout = Layout(tmp_path_factory.mktemp("image"))
        layout.image([busybox()], {"Cmd": ["/bin/sh", "-c", SERVES], "Env": ["PATH=/bin"]}, tag="1")
        yield hub.push(layout, "1", "team/serves", "1")


@pytest.fixture(scope="module")
def server(image):
    with serving(templates=("base", "code-interpreter-v1"), options={"registry.insecure": image.split("/")[0]}) as s:
        s.image = image
        yield s


@pytest.fixture(scope="session")
def found():
    """{client: {call: result}} of this run, also written as JSON lines for scripts/compatibility."""
    everything = {}
    yield everything
    with open(RESULTS, "w") as f:
        for client, results in everything.items():
            for call, result in results.items():
                f.write(json.dumps({"client": client, "call": call, "result": result}) + "\n")


@pytest.fixture(scope="module")
def drives(server, request):
    """{client: what it will have found}: three at a time, for they wait more than they work."""
    chosen = [item.callspec.params["client"] for item in request.session.items if getattr(item, "originalname", "") == "test_client"]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield {c.id: pool.submit(drive, c, server) for c in chosen}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.id)
def test_client(drives, found, client):
    results = drives[client.id].result()
    found[client.id] = {call: result for call, (result, _) in results.items()}
    assert list(results) == names(client.suite)
    wrong = [c for call, (result, detail) in results.items() if (c := complaint(call, result, detail))]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def test_the_server_knows_the_newest_versions():
    """cases.md 47: it tells of newer clients in its log, by a table in the source."""
    table = dict(re.findall(r'\{"([a-z0-9-]+)", "([0-9.]+)"\},', (ROOT / "src/api/clients.c").read_text()))
    newest = {}
    for c in CLIENTS:
        newest[c.pinned.endswith("lock.json"), c.package] = c.version  # the list ascends
    assert table == {"e2b-js-sdk": newest[True, "e2b"], "e2b-python-sdk": newest[False, "e2b"], "e2b-cli": newest[True, "@e2b/cli"]}


def test_the_page_says_what_this_run_found(found):
    if any(c.id not in found or "failed" in found[c.id].values() for c in CLIENTS):
        pytest.skip("not every client was run to its end")
    assert split(PAGE.read_text())[1] == render(found), f"docs/compatibility.md is not what this run found: scripts/compatibility {RESULTS}"


def snippet(client, code, server, **more):
    """A few lines for one client, whose language follows from where it is pinned."""
    js = client.pinned.endswith("lock.json")
    words = ["node", "--input-type=module", "-e", code] if js else [client.environment / "bin/python", "-c", code]
    return subprocess.Popen(words, cwd=client.environment if js else None, env={**os.environ, **server.env()}, stdout=subprocess.PIPE, text=True, **more)


def test_a_full_server_is_asked_again_or_called_busy(own_server):
    """503 with Retry-After: the newest Python client waits and asks again, the JavaScript one has an error of its own for it."""
    by_id = {c.id: c for c in CLIENTS}
    s = own_server(options={"max_sandboxes": 1})
    status, first = s.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 201
    js = snippet(by_id["npm-2.51"], "import { Sandbox, ServiceBusyError } from 'e2b';"
                 "await Sandbox.create('base').catch((e) => console.log(e instanceof ServiceBusyError, e.message))", s)
    out, _ = js.communicate(timeout=120)
    assert out.startswith("true") and js.returncode == 0, out
    refused = s.log_path.read_text().count("/v2/sandboxes 503 ")
    assert refused == 1
    patient = snippet(by_id["pypi-2.63"], "import e2b; print(e2b.Sandbox.create('base').sandbox_id)", s)
    wait_for(lambda: s.log_path.read_text().count("/v2/sandboxes 503 ") > refused, 60, "the first refusal")
    assert s.call("DELETE", "/sandboxes/" + first["sandboxID"])[0] == 204
    out, _ = patient.communicate(timeout=120)
    assert patient.returncode == 0 and [b["sandboxID"] for b in s.call("GET", "/v2/sandboxes")[1]] == [out.strip()]
