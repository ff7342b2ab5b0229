"""Create, connect, list, deadlines, kill and errors (e2b.md A.5; cases.md "Lifecycle" and "API surface")."""

import concurrent.futures
import datetime
import time

import pytest
from e2b import Sandbox, SandboxQuery

from server import wait_for


def test_001_both_create_and_connect_routes(server):
    for create, connect in (("/sandboxes", "/sandboxes/{}/connect"), ("/v2/sandboxes", "/v2/sandboxes/{}/connect")):
        status, box = server.call("POST", create, {"templateID": "base", "secure": True})
        assert status == 201 and box["envdVersion"] == "0.6.13" and box["envdAccessToken"]
        status, again = server.call("POST", connect.format(box["sandboxID"]), {})
        assert status == 200 and again["envdAccessToken"] == box["envdAccessToken"]
        assert server.call("DELETE", "/sandboxes/" + box["sandboxID"])[0] == 204
        assert server.call("DELETE", "/sandboxes/" + box["sandboxID"])[0] == 404
    assert server.call("GET", "/no/such/path")[0] == 404
    status, body = server.call("PUT", "/v2/sandboxes", {})
    assert status == 405 and body["code"] == 405 and "GET" in server.last_headers["Allow"]


@pytest.mark.parametrize("timeout", [0, -10, -3600, 2147483648, "60", 60.5])
def test_002_bad_timeouts_are_400(server, timeout):
    status, body = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": timeout})
    assert status == 400 and "imeout" in body["message"]


def test_002_minus_one_is_never(server):
    status, box = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": -1})
    assert status == 201
    assert server.call("GET", "/sandboxes/" + box["sandboxID"])[1]["endAt"].startswith("9999-12-31T00:00:00")
    server.call("DELETE", "/sandboxes/" + box["sandboxID"])


def test_unknown_things_are_404_with_the_right_word(server):
    status, body = server.call("POST", "/v2/sandboxes", {"templateID": "no-such-template"})
    assert status == 404 and "template" in body["message"] and "not found" in body["message"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/timeout"), ("POST", "/connect")):
        status, body = server.call(method, "/sandboxes/idoesnotexist000000000" + path, {"timeout": 5} if method == "POST" else None)
        assert status == 404 and "not found" in body["message"] and "template" not in body["message"]


def test_authentication(server):
    for key in (None, "e2b_" + "0" * 40, "junk"):
        status, body = server.call("GET", "/v2/sandboxes", key=key)
        assert status == 401 and body["code"] == 401
    assert server.call("GET", "/v2/sandboxes", key=None, headers={"Authorization": "Bearer " + server.api_key})[0] == 200


def test_detail_and_list_agree(server):
    box = Sandbox.create("base", metadata={"purpose": "detail"}, timeout=100)
    status, detail = server.call("GET", "/sandboxes/" + box.sandbox_id)
    assert status == 200 and detail["state"] == "running" and detail["alias"] == "base" and detail["templateID"] != "base"
    assert (detail["cpuCount"], detail["memoryMB"]) == (2, 512)
    listed = [b for b in server.call("GET", "/v2/sandboxes?metadata=purpose%3Ddetail")[1]]
    assert [b["sandboxID"] for b in listed] == [box.sandbox_id] and listed[0]["startedAt"] == detail["startedAt"]
    box.kill()
    status, body = server.call("GET", "/sandboxes/" + box.sandbox_id)
    assert status == 404 and body["lastTermination"]["reason"] == "killed"


METADATA = [{"team name": "blue/green"}, {"k": "100%"}, {"k": "a=b&c"}, {"k": "+ +"}, {"k": "日本"}, {"": "x"}]


@pytest.mark.parametrize("metadata", METADATA, ids=range(len(METADATA)))
def test_035_metadata_filters_survive_three_encodings(server, metadata):
    box = Sandbox.create("base", metadata=metadata)
    try:
        found = Sandbox.list(query=SandboxQuery(metadata=metadata)).next_items()
        assert [b.sandbox_id for b in found] == [box.sandbox_id]
        assert found[0].metadata == metadata
    finally:
        box.kill()


def test_034_filters_that_match_nothing_return_nothing(server):
    box = Sandbox.create("base", metadata={"ws": "here"})
    try:
        assert server.call("GET", "/v2/sandboxes?metadata=ws%3DNO_SUCH") == (200, [])
        assert server.call("GET", "/v2/sandboxes?state=paused") == (200, [])
        for query in ("metadata=notkeyvalue", "limit=0", "limit=abc", "limit=101", "state=dead", "order=up", "nextToken=junk", "startedAfter=x"):
            assert server.call("GET", "/v2/sandboxes?" + query)[0] == 400, query
    finally:
        box.kill()


def test_paging_visits_each_sandbox_once(server):
    boxes = [Sandbox.create("base", metadata={"page": "yes"}) for _ in range(5)]
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata={"page": "yes"}), limit=2)
        seen = []
        while pages.has_next:
            seen += [b.sandbox_id for b in pages.next_items()]
        assert seen == [b.sandbox_id for b in reversed(boxes)]
    finally:
        [b.kill() for b in boxes]


def end_of(server, box):
    return datetime.datetime.fromisoformat(server.call("GET", "/sandboxes/" + box.sandbox_id)[1]["endAt"])


def test_connect_never_shortens_and_timeout_may(server):
    box = Sandbox.create("base", timeout=200)
    first = end_of(server, box)
    Sandbox.connect(box.sandbox_id, timeout=50)
    assert end_of(server, box) == first
    Sandbox.connect(box.sandbox_id, timeout=400)
    assert end_of(server, box) > first
    box.set_timeout(20)
    assert end_of(server, box) < first
    box.kill()


def test_expiry_kills_within_a_second_and_the_data_plane_says_502(server):
    box = Sandbox.create("base", timeout=10)
    assert box.is_running()
    end = end_of(server, box).timestamp()
    wait_for(lambda: server.call("GET", "/sandboxes/" + box.sandbox_id)[0] == 404, 60, "expiry")
    assert time.time() >= end - 0.05
    assert box.is_running() is False
    told = wait_for(lambda: server.call("GET", "/sandboxes/" + box.sandbox_id)[1].get("lastTermination"), 60, "the reason")
    assert told["reason"] == "timeout"
    status, body = server.call("GET", "/health", key=None, headers={"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"})
    assert (status, body) == (502, {"sandboxId": box.sandbox_id, "message": "The sandbox was not found", "code": 502})


def test_timeout_zero_expires_now(server):
    box = Sandbox.create("base")
    assert server.call("POST", f"/sandboxes/{box.sandbox_id}/timeout", {"timeout": 0})[0] == 204
    wait_for(lambda: server.call("GET", "/sandboxes/" + box.sandbox_id)[0] == 404, 60, "expiry")


def test_a_closed_port_is_told_apart_from_a_dead_sandbox(server, sandbox):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8123"}
    status, body = server.call("GET", "/", key=None, headers=headers)
    assert status == 502 and body == {"sandboxId": sandbox.sandbox_id, "message": "The sandbox is running but port is not open", "port": 8123, "code": 502}
    sandbox.commands.run("cd /tmp && python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &", background=True)
    wait_for(lambda: _status(server, headers) == 200, 60, "server inside")


def _status(server, headers):
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    c.request("GET", "/", headers=headers)
    r = c.getresponse()
    r.read()
    return r.status


def test_a_secured_sandbox_needs_its_token(server, sandbox):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    for token in ({}, {"X-Access-Token": "wrong"}):
        status, body = server.call("GET", "/envs", key=None, headers={**headers, **token})
        assert status == 401 and body["code"] == 401
    assert server.call("GET", "/envs", key=None, headers={**headers, "X-Access-Token": sandbox._envd_access_token})[0] == 200


@pytest.mark.parametrize("body, word", [
    ({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]}, "olume"),
    ({"templateID": "base", "network": {"rules": {"a.com": []}}}, "rules"),
    ({"templateID": "base", "metadata": {"a": 1}}, "metadata"),
    ({"templateID": "base", "envVars": {"A=B": "x"}}, "envVars"),
    ({"templateID": 7}, "templateID"),
    ({}, "templateID"),
    ({"templateID": "Bad Name!"}, "template"),
])
def test_what_is_not_served_is_refused_by_name(server, body, word):
    status, answer = server.call("POST", "/v2/sandboxes", body)
    assert status in (400, 501) and word in answer["message"], answer


def test_022_a_hundred_creates_at_once(server):
    def one(i):
        box = Sandbox.create("base", request_timeout=120)
        out = box.commands.run("true", request_timeout=120)
        box.kill()
        return out.exit_code
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        assert list(pool.map(one, range(100))) == [0] * 100


def test_019_a_client_that_leaves_mid_delete_changes_nothing(server):
    import socket
    for _ in range(20):
        status, box = server.call("POST", "/v2/sandboxes", {"templateID": "base", "metadata": {"leaver": "1"}})
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(f"DELETE /sandboxes/{box['sandboxID']} HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\n\r\n".encode())
        s.close()
    wait_for(lambda: server.call("GET", "/v2/sandboxes?metadata=leaver%3D1")[1] == [], 60, "all killed")
