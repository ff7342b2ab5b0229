"""Teams: what one of them has, another cannot see, reach or count on (case 179); their keys and quotas."""

import concurrent.futures
import http.client
import json
import os
import re
import subprocess
import urllib.parse

import pytest
from e2b import RateLimitException, Sandbox
from e2b.exceptions import AuthenticationException, NotFoundException

from conftest import serving
from server import CUBICLE, ROOT, clean_env, wait_for

JS = ROOT / "tests/e2e/js"


@pytest.fixture(scope="module")
def server():
    with serving() as s:
        yield s


def cubicle(server, *words, check=True):
    r = subprocess.run([str(CUBICLE), *words[:2], f"--state.dir={server.state}", *words[2:]], capture_output=True, text=True, timeout=120, env=clean_env())
    assert not check or r.returncode == 0, (words, r.stderr)
    return r


class Team:
    def __init__(self, server, name, *quotas):
        self.server, self.name = server, name
        self.id = cubicle(server, "team", "create", name, *quotas).stdout.strip()
        self.key = cubicle(server, "key", "create", "main", "--team", name).stdout.strip()

    def call(self, method, path, body=None):
        return self.server.call(method, path, body, key=self.key)

    def create(self, **body):
        return self.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300, **body})

    def delete(self):
        for box in self.call("GET", "/v2/sandboxes")[1]:
            self.call("DELETE", "/sandboxes/" + box["sandboxID"])
        cubicle(self.server, "team", "delete", self.id)


@pytest.fixture
def team(server):
    """team(name, flags...) makes one that ends with the test."""
    made = []

    def make(name, *quotas):
        made.append(Team(server, name, *quotas))
        return made[-1]

    yield make
    for t in made:
        t.delete()


def routes():
    """(method, pattern, flags) of the program's own table."""
    table = re.findall(r'^\t(R|LATER)\("([A-Z]+)", "(/[^"]*)", ([^"]*)', (ROOT / "src/api/routes.c").read_text(), re.M)
    assert len(table) > 80
    return [(method, pattern, rest if kind == "R" else "") for kind, method, pattern, rest in table]


def fits_all(snapshot):
    """A body that every route takes."""
    return {"timeout": 60, "duration": 60, "count": 1, "memory": True, "templateID": "base", "snapshotID": snapshot, "allowOut": [], "denyOut": [], "name": "x"}


def answers(team, method, pattern, parameter, value, snapshot):
    """What a team is told about a thing, by several bodies, with the thing's id taken out."""
    path = re.sub(r"\{\w+\}", "x", pattern.replace(parameter, value))
    found = []
    for body in (None, {}, fits_all(snapshot)) if method in ("POST", "PUT", "PATCH") else (None,):
        status, answer = team.call(method, path, body)
        found.append((status, json.dumps(answer).replace(value, "ID")))
    return found


def check_hidden(team, parameter, value, never, snapshot):
    """Every route that names such a thing answers as it does for one that never was, with 404."""
    checked = 0
    for method, pattern, _ in routes():
        if parameter not in pattern:
            continue
        theirs = answers(team, method, pattern, parameter, value, snapshot)
        none = answers(team, method, pattern, parameter, never, snapshot)
        assert theirs == none, (method, pattern)
        assert 404 in {status for status, _ in theirs} and all(status >= 400 for status, _ in theirs), (method, pattern, theirs)
        checked += 1
    return checked


def check_unlisted(team, *secrets):
    for method, pattern, flags in routes():
        if method == "GET" and "{" not in pattern and "ADMIN" not in flags:
            text = json.dumps(team.call("GET", pattern)[1])
            assert not [s for s in secrets if s in text], (pattern, text)


def test_no_route_tells_of_another_teams_sandbox(server, team):
    """case 179"""
    a, b = team("owner"), team("stranger")
    status, box = a.create(metadata={"who": "very-secret-word"})
    assert status == 201
    box = box["sandboxID"]
    never = "i" + "".join(chr(ord("a") + (ord(c) - ord("a") + 1) % 26) if c.isalpha() else c for c in box[1:])
    status, answer = a.call("POST", f"/sandboxes/{box}/snapshots", {"name": "very-secret-name"})
    assert status == 201, answer
    snapshot = answer["snapshotID"]
    for state in ("running", "paused"):
        assert check_hidden(b, "{sandboxID}", box, never, snapshot) >= 15
        check_unlisted(b, box, "very-secret", snapshot)
        assert b.call("GET", f"/sandboxes/metrics?sandbox_ids={box}") == (200, {"sandboxes": {}})
        assert b.call("GET", f"/snapshots?sandboxID={box}") == (200, [])
        assert a.call("GET", f"/sandboxes/{box}")[1]["state"] == state
        if state == "running":
            assert a.call("POST", f"/sandboxes/{box}/pause", {})[0] == 204
    assert check_hidden(b, "{templateID}", snapshot, "snap-" + "0" * (len(snapshot) - 5), "x") >= 10
    mine = b.create()[1]["sandboxID"]
    for reference in (snapshot, "very-secret-name", f"{a.id}/very-secret-name"):
        assert b.create(templateID=reference)[0] == 404
        assert b.call("POST", f"/sandboxes/{mine}/rollback", {"snapshotID": reference})[0] == 404
    assert a.call("DELETE", f"/templates/{snapshot}")[0] == 204
    # The published client says the same.
    with pytest.raises(NotFoundException):
        Sandbox.connect(box, api_key=b.key)
    assert Sandbox.kill(box, api_key=b.key) is False
    # How it ended is its team's to know, too.
    assert a.call("DELETE", f"/sandboxes/{box}")[0] == 204
    assert "lastTermination" in a.call("GET", f"/sandboxes/{box}")[1]
    assert check_hidden(b, "{sandboxID}", box, never, snapshot) >= 15


def test_the_ingress_asks_for_tokens_and_no_key_opens_it(server, team):
    """case 179: traffic is let in by the sandbox's tokens; a key, whoever's, neither helps nor enters."""
    a, b = team("owner"), team("stranger")
    _, box = a.create(network={"allowPublicTraffic": False})
    to = {"E2b-Sandbox-Id": box["sandboxID"], "X-API-Key": b.key, "Authorization": f"Bearer {b.key}"}

    def via(port, path, **more):
        return server.call("GET", path, key=None, headers={**to, "E2b-Sandbox-Port": str(port), **more})

    assert via(49983, "/envs")[0] == 401
    assert via(49983, "/envs", **{"X-Access-Token": b.key})[0] == 401
    assert via(49983, "/envs", **{"X-Access-Token": box["envdAccessToken"]})[0] == 200
    assert via(8000, "/")[0] == 403
    assert via(8000, "/", **{"e2b-traffic-access-token": b.key})[0] == 403
    s = Sandbox.connect(box["sandboxID"], api_key=a.key)
    s.files.write("/tmp/s.py", """
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(dict(self.headers)).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.HTTPServer(("", 8000), H).serve_forever()
""")
    s.commands.run("python3 /tmp/s.py", background=True)
    token = {"e2b-traffic-access-token": box["trafficAccessToken"], "X-Mark": "here"}
    wait_for(lambda: via(8000, "/", **token)[0] == 200, what="the service")
    seen = via(8000, "/", **token)[1]
    assert seen["X-Mark"] == "here" and b.key not in json.dumps(seen)


def js(script, key, server):
    r = subprocess.run(["node", "--input-type=module", "-e", script], cwd=JS, capture_output=True, text=True, timeout=120,
                       env={**os.environ, **server.env(), "E2B_API_KEY": key})
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_a_team_over_its_quota_is_told_so_by_every_client(server, team):
    a = team("small", "--sandboxes", "2")
    first = Sandbox.create("base", api_key=a.key)
    second = a.create()
    assert second[0] == 201
    with pytest.raises(RateLimitException, match="quota sandboxes"):
        Sandbox.create("base", api_key=a.key)
    assert server.call("POST", "/sandboxes", {"templateID": "base"}, key=a.key)[0] == 429
    assert re.fullmatch(r"[1-9]\d*", server.last_headers["Retry-After"])
    assert a.call("POST", f"/sandboxes/{first.sandbox_id}/fork", {"count": 1})[0] == 429
    said = js("import { Sandbox, RateLimitError } from 'e2b'; try { await Sandbox.create('base') } catch (e) { console.log(e instanceof RateLimitError, e.message) }", a.key, server)
    assert said.startswith("true") and "quota sandboxes" in said
    # Of another team nothing is taken, and a place that is free is given at once.
    assert team("other").create()[0] == 201
    first.kill()
    status, forks = a.call("POST", f"/sandboxes/{second[1]['sandboxID']}/fork", {"count": 2})
    assert status == 429
    status, forks = a.call("POST", f"/sandboxes/{second[1]['sandboxID']}/fork", {"count": 1})
    assert status == 201 and "error" not in forks[0]
    # What runs is known also to a front that was started anew.
    server.kill_process("front")
    wait_for(lambda: reachable(a), what="the new front")
    assert a.create()[0] == 429
    cubicle(server, "team", "quota", "small", "--sandboxes", "none", "--memory", "1")
    status, answer = a.create()
    assert status == 429 and "quota memory" in answer["message"]
    cubicle(server, "team", "quota", a.id[:8], "--memory", "default")
    assert a.create()[0] == 201


def test_a_paused_sandbox_gives_back_what_it_does_not_keep(server, team):
    a = team("frozen", "--memory", "512")
    box = a.create()[1]["sandboxID"]
    assert a.call("POST", f"/sandboxes/{box}/pause", {"memory": True})[0] == 204
    assert a.create()[0] == 429
    assert a.call("POST", f"/v2/sandboxes/{box}/connect", {})[0] == 201
    assert a.call("POST", f"/sandboxes/{box}/pause", {"memory": False})[0] == 204
    other = a.create()[1]["sandboxID"]
    assert a.call("POST", f"/v2/sandboxes/{box}/connect", {})[0] == 429
    assert a.call("DELETE", f"/sandboxes/{other}")[0] == 204
    assert a.call("POST", f"/v2/sandboxes/{box}/connect", {})[0] == 201


def reachable(team):
    try:
        return team.call("GET", "/v2/sandboxes")[0] == 200
    except OSError:
        return False


def test_a_hundred_at_once_do_not_pass_a_quota(server, team):
    a = team("crowd", "--sandboxes", "5")
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        got = [f.result()[0] for f in [pool.submit(a.create) for _ in range(100)]]
    assert sorted(set(got)) == [201, 429] and got.count(201) == 5
    assert len(a.call("GET", "/v2/sandboxes")[1]) == 5


def test_a_rate_of_creates_lets_patient_clients_through(server, team):
    """The newest client comes again after Retry-After by itself, and gets all it asked for."""
    a = team("hasty", "--creates", "2")
    said = js("import { Sandbox } from 'e2b'; const all = await Promise.all([0, 1, 2].map(() => Sandbox.create('base'))); console.log(all.length); await Promise.all(all.map((s) => s.kill()))", a.key, server)
    assert said.strip() == "3"


def test_teams_by_hand(server):
    a = Team(server, "by-hand", "--memory", "2048")
    listed = {t["name"]: t for t in json.loads(cubicle(server, "team", "list", "--json").stdout)}
    assert listed["by-hand"]["quotas"] == {"sandboxes": None, "creates": None, "memoryMB": 2048} and listed["default"]["isDefault"]
    table = cubicle(server, "team", "list").stdout
    assert "by-hand" in table and "0/2048" in table
    assert a.id in cubicle(server, "key", "list", "--json").stdout and "by-hand" in cubicle(server, "key", "list").stdout
    assert len(json.loads(cubicle(server, "key", "list", "--team", "by-hand", "--json").stdout)) == 1
    assert cubicle(server, "key", "revoke", "main", "--team", "default", check=False).returncode == 1
    assert cubicle(server, "env", "--team=by-hand", check=False).returncode == 2
    assert "2048 MiB" in cubicle(server, "team", "quota", "by-hand").stdout
    assert cubicle(server, "team", "quota", "by-hand", "--memory", "lots", check=False).returncode == 2
    assert cubicle(server, "team", "create", "by-hand", check=False).returncode == 1
    assert cubicle(server, "team", "rename", "by-hand", "renamed").stdout.strip() == a.id
    status, box = a.create(autoPause=True, autoResume={"enabled": True})
    assert status == 201
    assert "has 1 sandbox" in cubicle(server, "team", "delete", "renamed", check=False).stderr
    to = {"E2b-Sandbox-Id": box["sandboxID"], "E2b-Sandbox-Port": "49983", "X-Access-Token": box["envdAccessToken"]}
    assert a.call("POST", f"/sandboxes/{box['sandboxID']}/pause", {})[0] == 204
    cubicle(server, "team", "block", "renamed")
    status, answer = server.call("GET", "/envs", key=None, headers=to)
    assert status == 403 and "renamed" not in json.dumps(answer)
    assert a.call("GET", "/teams")[0] == 403
    with pytest.raises(Exception, match="blocked"):
        Sandbox.create("base", api_key=a.key)
    cubicle(server, "team", "unblock", "renamed")
    assert server.call("GET", "/envs", key=None, headers=to)[0] == 200
    assert [t["teamID"] for t in a.call("GET", "/teams")[1]] == [a.id]
    assert a.call("DELETE", f"/sandboxes/{box['sandboxID']}")[0] == 204
    assert cubicle(server, "team", "delete", a.id[:13]).stdout.strip() == a.id
    with pytest.raises(AuthenticationException):
        Sandbox.create("base", api_key=a.key)
    assert cubicle(server, "team", "delete", "default", check=False).returncode == 1
    assert cubicle(server, "key", "create", "x", "--team", "renamed", check=False).returncode == 1


def test_root_acts_for_a_team(server, team):
    a = team("acted for")
    box = a.create()[1]["sandboxID"]
    assert box not in cubicle(server, "sandbox", "list").stdout and box in cubicle(server, "sandbox", "list", "--team", "acted for").stdout
    assert cubicle(server, "sandbox", "exec", box, f"--team={a.id}", "--", "echo", "hi").stdout == "hi\n"
    assert cubicle(server, "sandbox", "kill", box, check=False).returncode == 1
    assert cubicle(server, "sandbox", "kill", box, "--team", a.id).stdout.strip() == box
    assert "not found" in cubicle(server, "sandbox", "list", "--team", "nobody", check=False).stderr
    far = clean_env({"CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": a.key})
    r = subprocess.run([str(CUBICLE), "sandbox", "list", "--team", "default"], capture_output=True, text=True, timeout=60, env=far)
    assert r.returncode == 1 and "root" in r.stderr


def test_a_template_is_its_teams_own(server, team):
    """Files, links, builds, tags, names and the end of another team's template: as if there were none."""
    a, b = team("maker"), team("thief")
    status, made = a.call("POST", "/v3/templates", {"name": "secret-app"})
    assert status == 202
    t, build, none = made["templateID"], made["buildID"], "0" * 20
    digest = "ab" * 32
    url = urllib.parse.urlsplit(a.call("GET", f"/templates/{t}/files/{digest}")[1]["url"])

    def put(path, query):
        c = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        c.request("PUT", path + "?" + query, body=b"files")
        status = c.getresponse().status
        c.close()
        return status

    def changed(**more):
        return urllib.parse.urlencode({**dict(urllib.parse.parse_qsl(url.query)), **more})

    assert put(url.path, url.query) == 204
    assert put(url.path, url.query) == 204
    signature = dict(urllib.parse.parse_qsl(url.query))["signature"]
    flipped = signature[:-1] + ("0" if signature[-1] != "0" else "1")
    for path, query in [(url.path.replace(digest, "cd" * 32), url.query), (url.path, changed(expires="99999999999")), (url.path, changed(signature=flipped)), (url.path, changed(signature="")),
                        (url.path, ""), (url.path.replace(t, "base"), url.query), (url.path.replace(t, none), url.query), (url.path.replace(digest, "..%2f..%2fetc"), url.query),
                        (url.path, url.query + "&signature=" + signature)]:
        assert put(path, query) in (403, 404), (path, query)
    # What a has sent b has not, whatever it is called; and a link of b's is for b's own.
    status, mine = b.call("POST", "/v3/templates", {"name": "mine"})
    assert status == 202
    assert b.call("GET", f"/templates/{mine['templateID']}/files/{digest}")[1]["present"] is False
    calls = [
        ("GET", "/templates/{t}/files/" + digest, None), ("GET", "/templates/{t}", None), ("DELETE", "/templates/{t}?force=true", None), ("PATCH", "/v2/templates/{t}", {"public": True}),
        ("GET", "/templates/{t}/tags", None), ("POST", "/templates/tags", {"target": "{t}", "tags": ["x"]}), ("DELETE", "/templates/tags", {"name": "{t}", "tags": ["x"]}),
        ("POST", "/v2/templates/{t}/builds/" + build, {"fromTemplate": "base"}), ("GET", "/templates/{t}/builds/" + build + "/status", None), ("GET", "/templates/{t}/builds/" + build + "/logs", None),
        ("PUT", "/templates/{t}/alias", {"alias": "stolen"}), ("POST", "/v2/sandboxes", {"templateID": "{t}"}),
    ]
    for method, path, body in calls:
        told = []
        for name in (t, none, "secret-app", "no-such-app"):
            filled = json.loads(json.dumps(body).replace("{t}", name))
            status, answer = b.call(method, path.replace("{t}", name), filled)
            told.append((status, json.dumps(answer).replace(name, "X")))
        assert told[0] == told[1] and told[2] == told[3] and told[0][0] == 404, (method, path, told)
    # The id of a build of another's under a template of one's own.
    own = mine["templateID"]
    assert b.call("GET", f"/templates/{own}/builds/{build}/status")[0] == 404
    assert b.call("POST", f"/v2/templates/{own}/builds/{build}", {"fromTemplate": "base"})[0] == 404
    status, answer = b.call("POST", f"/v2/templates/{own}/builds/{mine['buildID']}", {"fromTemplate": t})
    assert status == 404, answer
    assert a.call("GET", f"/templates/{t}/builds/{build}/status")[1]["status"] == "waiting"
    for who, template in ((a, t), (b, own)):
        assert who.call("DELETE", f"/templates/{template}?force=true")[0] == 204
    assert put(url.path, url.query) == 404
