"""Every route of the life cycle with bad input, unknown ids and in every state that a client can bring about; then what each does, by raw HTTP. Numbers are rows of the list of field cases."""

import concurrent.futures
import json
import socket
import time
import urllib.parse

import pytest
from e2b import Sandbox

from server import wait_for

UNKNOWN = ("doesnotexist", "i00000000000000000000", "sdk-x-does-not-exist")


def make(server, **fields):
    status, box = server.call("POST", "/v2/sandboxes", {"templateID": "base", **fields})
    assert status == 201, box
    return box["sandboxID"]


def post(server, box, route, body=None):
    return server.call("POST", f"/sandboxes/{box}/{route}", body)


def info(server, box):
    return server.call("GET", f"/sandboxes/{box}")[1]


def run(box, command):
    """By a client that knows the sandbox already: it asks for no resume."""
    return box.commands.run(command).stdout


def is_error(answer, status):
    assert answer["code"] == status and answer["message"], answer


WRONG = [
    ("pause", {"memory": 1}), ("pause", {"memory": "true"}), ("pause", []),
    ("resume", {"timeout": 0}), ("resume", {"timeout": -3600}), ("resume", {"timeout": 2147483648}), ("resume", {"timeout": "60"}),
    ("resume", {"timeout": 60.5}), ("resume", {"memory": 0}), ("resume", {"autoPause": "x"}),
    ("connect", {"timeout": -2}), ("connect", {"timeout": "60"}), ("connect", {"timeout": 60.5}), ("connect", {"timeout": 2147483648}), ("connect", {"memory": "x"}),
    ("fork", {"count": 0}), ("fork", {"count": 101}), ("fork", {"count": -1}), ("fork", {"count": "1"}), ("fork", {"timeout": 0}), ("fork", {"timeout": -3600}),
    ("fork", {"timeout": 2147483648}), ("fork", {"timeout": "60"}), ("fork", {"memory": True}),
    ("snapshots", {"name": ""}), ("snapshots", {"name": "a b"}), ("snapshots", {"name": 7}), ("snapshots", {"name": "x" * 256}), ("snapshots", {"memory": True}),
    ("rollback", {}), ("rollback", {"snapshotID": 7}), ("rollback", {"snapshotID": "a b"}), ("rollback", []),
]


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_002_026_wrong_fields_are_400_and_change_nothing(server, paused):
    box = make(server)
    if paused:
        assert post(server, box, "pause")[0] == 204
    before = info(server, box)
    for route, body in WRONG:
        status, answer = post(server, box, route, body)
        assert status == 400, (route, body, answer)
        is_error(answer, 400)
    assert info(server, box) == before
    assert server.call("DELETE", f"/sandboxes/{box}")[0] == 204


@pytest.mark.parametrize("route,body", [("pause", {}), ("resume", {}), ("connect", {}), ("timeout", {"timeout": 9}), ("refreshes", {}), ("fork", {}), ("snapshots", {}),
                                        ("rollback", {"snapshotID": "x"})])
def test_004_unknown_ids_are_404_in_words_that_clients_understand(server, route, body):
    dead = make(server)
    assert server.call("DELETE", f"/sandboxes/{dead}")[0] == 204
    for name in (*UNKNOWN, dead):
        status, answer = post(server, name, route, body)
        assert status == 404 and "not found" in answer["message"] and "template" not in answer["message"], answer
        is_error(answer, 404)
    assert post(server, "Not_An_Id", route, body)[0] == 400


# What each route answers a sandbox that runs, and one that is paused.
STATES = [
    ("pause", None, 204, 409), ("resume", None, 409, 201), ("connect", {}, 200, 201), ("timeout", {"timeout": 99}, 204, 404), ("refreshes", {}, 204, 404),
    ("fork", None, 201, 409), ("snapshots", None, 201, 404),
]


@pytest.mark.parametrize("route,body,running,paused", STATES, ids=[s[0] for s in STATES])
def test_each_route_in_each_state(server, route, body, running, paused):
    box = make(server)
    assert post(server, box, route, body)[0] == running
    if route != "pause":
        assert post(server, box, "pause")[0] == 204
    status, answer = post(server, box, route, body)
    assert status == paused, answer
    if status == 409 and route == "pause":
        assert answer["message"] == f"Error pausing sandbox - sandbox '{box}' is already paused"
    if status == 404:
        assert "not found" in answer["message"] and "template" not in answer["message"]
    forget(server, box)


def forget(server, *boxes):
    """Kills them and their forks, deletes their snapshots."""
    for box in boxes:
        for s in server.call("GET", f"/snapshots?sandboxID={box}")[1]:
            assert server.call("DELETE", f"/templates/{s['snapshotID']}")[0] == 204
        server.call("DELETE", f"/sandboxes/{box}")
    for s in server.call("GET", "/v2/sandboxes")[1]:
        if info(server, s["sandboxID"]).get("memory") is False:
            server.call("DELETE", f"/sandboxes/{s['sandboxID']}")


def test_005_pauses_join_and_resume_answers_once_more(server):
    box = Sandbox.create("base", timeout=60)
    run(box, "sleep 1000 >/dev/null 2>&1 & echo $! > pid; cat /proc/sys/kernel/random/boot_id > boot")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        statuses = list(pool.map(lambda _: post(server, box.sandbox_id, "pause", {})[0], range(10)))
    assert 204 in statuses and set(statuses) <= {204, 409}, statuses
    assert post(server, box.sandbox_id, "pause", {})[0] == 409
    status, answer = post(server, box.sandbox_id, "resume")
    assert status == 201 and answer["resumedFrom"] == "memory" and answer["sandboxID"] == box.sandbox_id
    assert post(server, box.sandbox_id, "resume")[0] == 409
    assert run(box, "kill -0 $(cat pid) && cmp boot /proc/sys/kernel/random/boot_id && echo same") == "same\n"
    box.kill()


def test_010_a_paused_sandbox_outlives_a_restart_of_the_server(own_server):
    s = own_server()
    client = {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}
    frozen, stored = (Sandbox.create("base", timeout=60, **client) for _ in range(2))
    for box in (frozen, stored):
        run(box, "echo kept > file; sleep 1000 >/dev/null 2>&1 & echo $! > pid")
    assert post(s, frozen.sandbox_id, "pause")[0] == 204
    assert post(s, stored.sandbox_id, "pause", {"memory": False})[0] == 204
    shown = [info(s, b.sandbox_id) for b in (frozen, stored)]
    assert [i["pauseMode"] for i in shown] == ["full", "filesystem"]
    s.stop()
    s.start()
    assert [info(s, b.sandbox_id) for b in (frozen, stored)] == shown
    for box, source in ((frozen, "memory"), (stored, "disk")):
        status, answer = post(s, box.sandbox_id, "connect", {})
        assert status == 201 and answer["resumedFrom"] == source == info(s, box.sandbox_id)["resumedFrom"]
        assert answer["envdAccessToken"] == box._envd_access_token
        assert run(box, "cat file") == "kept\n"
    assert run(frozen, "kill -0 $(cat pid) && echo on") == "on\n"
    assert run(stored, "pgrep -fx 'sleep 1000' || echo gone") == "gone\n"


def test_011_the_clock_stops_while_paused(server):
    for seconds in (2, 10, 50):
        box = make(server, timeout=seconds)
        first = info(server, box)
        if post(server, box, "pause")[0] == 204:
            break
        # The machine is slower than that: it has ended before.
    paused = info(server, box)
    assert paused["state"] == "paused" and paused["endAt"] < first["endAt"]
    time.sleep(seconds + 1)
    assert info(server, box) == paused
    assert post(server, box, "connect", {"timeout": 60})[0] == 201
    after = info(server, box)
    assert after["state"] == "running" and after["startedAt"] > first["startedAt"] and after["endAt"] > first["endAt"]
    assert server.call("DELETE", f"/sandboxes/{box}")[0] == 204


def test_013_resume_without_a_body_sets_the_default_time(server):
    box = Sandbox.create("base", timeout=60)
    for body in (None, {}):
        assert post(server, box.sandbox_id, "pause")[0] == 204
        assert post(server, box.sandbox_id, "resume", body)[0] == 201
        shown = info(server, box.sandbox_id)
        assert shown["endAt"] > shown["startedAt"] and run(box, "echo on") == "on\n"
    box.kill()


def test_016_a_paused_sandbox_is_deleted_on_a_full_server(own_server):
    s = own_server(options={"max_sandboxes": 2})
    boxes = [make(s) for _ in range(2)]
    assert s.call("POST", "/v2/sandboxes", {"templateID": "base"})[0] == 503
    assert post(s, boxes[0], "pause")[0] == 204
    assert s.call("DELETE", f"/sandboxes/{boxes[0]}")[0] == 204
    assert s.call("DELETE", f"/sandboxes/{boxes[0]}")[0] == 404
    assert [b["sandboxID"] for b in s.call("GET", "/v2/sandboxes")[1]] == boxes[1:]


@pytest.mark.parametrize("route,then", [("pause", "paused"), ("fork", "running"), ("snapshots", "running")])
def test_019_a_client_that_leaves_changes_nothing(server, route, then):
    box = make(server)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as c:
            c.sendall(f"POST /sandboxes/{box}/{route} HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        if route == "pause":
            wait_for(lambda: info(server, box)["state"] == then, what=then)
            assert post(server, box, "connect", {})[0] == 201
    # What was begun ends by itself, and nothing is stuck behind it.
    assert post(server, box, "pause")[0] == 204
    assert post(server, box, "connect", {})[0] == 201
    assert info(server, box)["state"] == "running"
    forget(server, box)


def test_025_auto_pause_without_memory_keeps_the_disk_and_no_process(server):
    box = Sandbox.connect(make(server, autoPause=True, autoPauseMemory=False))
    run(box, "echo kept > file; cp /proc/sys/kernel/random/boot_id boot; sleep 1000 >/dev/null 2>&1 & echo $! > pid")
    assert post(server, box.sandbox_id, "timeout", {"timeout": 0})[0] == 204
    wait_for(lambda: info(server, box.sandbox_id)["state"] == "paused", what="the pause at the deadline")
    status, answer = post(server, box.sandbox_id, "connect", {})
    assert status == 201 and answer["resumedFrom"] == "disk"
    assert run(box, "cat file; pgrep -fx 'sleep 1000' || echo gone; cmp -s boot /proc/sys/kernel/random/boot_id || echo booted") == "kept\ngone\nbooted\n"
    box.kill()


def test_026_forks_have_ids_of_their_own_and_the_parents_files(server):
    parent = Sandbox.create("base", timeout=60, metadata={"of": "forks"}, envs={"A": "b"})
    run(parent, "echo shared > file")
    status, forks = post(server, parent.sandbox_id, "fork", {"count": 3, "timeout": 120})
    assert status == 201 and len(forks) == 3
    ids = {f["sandbox"]["sandboxID"] for f in forks}
    assert len(ids | {parent.sandbox_id}) == 4 and all(set(f) == {"sandbox"} and f["sandbox"]["memory"] is False for f in forks)
    ids_inside = set()
    for id in ids:
        child = Sandbox.connect(id)
        assert run(child, "cat file; echo $A; echo own > file") == "shared\nb\n"
        ids_inside.add(run(child, "cat /etc/machine-id /proc/sys/kernel/random/boot_id"))
        shown = info(server, id)
        assert shown["memory"] is False and shown["metadata"] == {"of": "forks"} and shown["state"] == "running"
    assert len(ids_inside) == 3
    assert run(parent, "cat file") == "shared\n" and "memory" not in info(server, parent.sandbox_id)
    forget(server, parent.sandbox_id)


def test_snapshots_by_every_name(server):
    box = Sandbox.create("base", timeout=60)
    run(box, "echo in the snapshot > file")
    first = post(server, box.sandbox_id, "snapshots", {"name": "Tests/Kept:V1"})[1]
    run(box, "echo later > file")
    second = post(server, box.sandbox_id, "snapshots")[1]
    own = f"sandboxID={box.sandbox_id}"
    assert first["names"] == ["tests/kept:v1"] and second["names"] == [] and first["memory"] is False
    assert [s["snapshotID"] for s in server.call("GET", f"/snapshots?{own}")[1]] == [second["snapshotID"], first["snapshotID"]]
    page = server.call("GET", f"/snapshots?limit=1&{own}")[1]
    token = server.last_headers["X-Next-Token"]
    rest = server.call("GET", f"/snapshots?limit=1&{own}&nextToken=" + urllib.parse.quote(token))[1]
    assert [s["snapshotID"] for s in page + rest] == [second["snapshotID"], first["snapshotID"]] and server.last_headers["X-Next-Token"] is None
    assert [s["snapshotID"] for s in server.call("GET", "/snapshots?name=tests%2Fkept")[1]] == [first["snapshotID"]]
    for reference in (first["snapshotID"], first["snapshotID"] + ":default", "tests/kept:v1"):
        made = server.call("POST", "/v2/sandboxes", {"templateID": reference})[1]
        assert made["memory"] is False
        assert run(Sandbox.connect(made["sandboxID"]), "cat file") == "in the snapshot\n"
        status, alias = server.call("GET", "/templates/aliases/" + urllib.parse.quote(reference, safe=""))
        assert status == 200 and alias["templateID"] == first["snapshotID"]
    for reference in ("tests/kept", "tests/kept:v2", "snap-00000000000000000000"):
        status, answer = server.call("POST", "/v2/sandboxes", {"templateID": reference})
        assert status == 404 and "template" in answer["message"] and "not found" in answer["message"]
    # The sandboxes made from it go on without it.
    assert server.call("DELETE", "/templates/tests%2Fkept%3Av1")[0] == 204
    assert server.call("DELETE", "/templates/tests%2Fkept%3Av1")[0] == 404
    assert run(Sandbox.connect(made["sandboxID"]), "cat file") == "in the snapshot\n"
    forget(server, box.sandbox_id)


def test_rollback_keeps_the_sandbox_and_takes_back_its_files(server):
    box = Sandbox.create("base", timeout=60)
    run(box, "echo old > file; mkdir d; touch d/x")
    snapshot = post(server, box.sandbox_id, "snapshots", {"name": "before"})[1]["snapshotID"]
    run(box, "echo new > file; rm -r d; touch later; cp /proc/sys/kernel/random/boot_id /tmp/boot")
    before = info(server, box.sandbox_id)
    status, answer = post(server, box.sandbox_id, "rollback", {"snapshotID": snapshot})
    assert status == 200 and answer["status"] == "READY" and answer["sandboxID"] == box.sandbox_id and answer["snapshotID"] == snapshot, answer
    assert run(box, "cat file; ls; ls d; test -e /tmp/boot || echo taken back") == "old\nd\nfile\nx\ntaken back\n"
    after = info(server, box.sandbox_id)
    assert {k: after[k] for k in ("sandboxID", "envdAccessToken", "endAt", "state")} == {k: before[k] for k in ("sandboxID", "envdAccessToken", "endAt", "state")}
    for wrong, words in (("snap-00000000000000000000", "template"), ("base", "template")):
        status, answer = post(server, box.sandbox_id, "rollback", {"snapshotID": wrong})
        assert status == 404 and words in answer["message"], answer
    assert run(box, "cat file") == "old\n"
    forget(server, box.sandbox_id)


def test_028_a_snapshot_in_use_can_go(server):
    """Templates of the machine are deleted by no API; a snapshot with sandboxes made from it leaves them whole, the paused ones too."""
    box = make(server)
    snapshot = post(server, box, "snapshots")[1]["snapshotID"]
    made = [Sandbox.connect(make(server, templateID=snapshot)) for _ in range(2)]
    for m in made:
        run(m, "echo mine > mine")
    assert post(server, made[1].sandbox_id, "pause", {"memory": False})[0] == 204
    assert server.call("DELETE", f"/templates/{snapshot}")[0] == 204
    assert post(server, made[1].sandbox_id, "connect", {})[0] == 201
    for m in made:
        assert run(m, "cat mine") == "mine\n"
    status, answer = server.call("DELETE", "/templates/base")
    assert status == 403 and "template" in answer["message"]
    forget(server, box)


def test_034_lists_by_state(server):
    tag = {"tests": "by state"}
    boxes = [make(server, metadata=tag) for _ in range(3)]
    assert post(server, boxes[1], "pause")[0] == 204

    def listed(query):
        answer = server.call("GET", f"/v2/sandboxes?metadata={urllib.parse.quote('tests=by%20state', safe='')}&{query}")[1]
        return [(boxes.index(s["sandboxID"]), s["state"]) for s in answer]
    assert listed("state=paused") == [(1, "paused")]
    assert listed("state=running") == [(2, "running"), (0, "running")]
    assert listed("") == listed("state=running,paused") == [(2, "running"), (1, "paused"), (0, "running")]
    assert int(server.last_headers["X-Total-Running"]) == 2
    assert [s["sandboxID"] for s in server.call("GET", "/sandboxes")[1] if s["sandboxID"] in boxes] == [boxes[2], boxes[0]]
    # A resume is a new start: it comes first now.
    assert post(server, boxes[1], "connect", {})[0] == 201
    assert listed("order=asc")[-1] == (1, "running")
    for box in boxes:
        server.call("DELETE", f"/sandboxes/{box}")


def test_043_lifecycle_in_every_spelling(server):
    for fields, pause, resume in (({}, False, False), ({"auto_pause": True}, True, False), ({"autoPause": True, "autoResume": {"enabled": True}}, True, True),
                                  ({"autoPause": True, "auto_resume": True}, True, True), ({"lifecycle": {"on_timeout": "pause", "auto_resume": True}}, True, True),
                                  ({"lifecycle": {"onTimeout": "kill"}, "autoPause": True}, False, False)):
        box = make(server, **fields)
        assert info(server, box)["lifecycle"] == {"autoResume": resume, "onTimeout": "pause" if pause else "kill"}, fields
        assert server.call("DELETE", f"/sandboxes/{box}")[0] == 204
    for fields in ({"autoPauseMemory": False}, {"autoPauseMemory": False, "autoPause": True, "autoResume": True}, {"autoPause": 1}, {"lifecycle": {"onTimeout": "x"}}):
        status, answer = server.call("POST", "/v2/sandboxes", {"templateID": "base", **fields})
        assert status == 400, json.dumps(fields)
        is_error(answer, 400)
