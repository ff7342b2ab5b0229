"""Creates that have a name (Idempotency-Key), and lives with a bound (lifecycle.shutdownAfterSeconds), over kills and restarts of the server's processes: agents.md §3 (cases.md 8, 10)."""

import concurrent.futures
import http.client
import time

import pytest
from e2b import Sandbox

from server import wait_for


def create(s, key, timeout=600, **more):
    return s.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": timeout, **more}, headers={"Idempotency-Key": key})


def insists(s, key, **more):
    """Asks as a patient client does, again while the server is away: (status, answer)."""
    def ask():
        try:
            answer = create(s, key, **more)
        except (OSError, http.client.HTTPException):
            return None
        return answer if answer[0] != 503 else None
    return wait_for(ask, 120, f"an answer to the create named {key}")


def kill(s, box):
    """The front answers what it knows while the node is away; a kill needs one."""
    def killed():
        status, body = s.call("DELETE", "/sandboxes/" + box)
        assert status in (204, 503), body
        return status == 204
    wait_for(killed, 120, "a node")


def test_a_name_means_the_same_sandbox_after_every_restart(own_server):
    s = own_server()
    status, made = create(s, "job")
    assert status == 201
    for away in ("front", "node", "all"):
        if away == "all":
            assert s.stop() == 0
            s.start()
        else:
            s.kill_process(away)
        status, again = insists(s, "job")
        assert (status, again["sandboxID"], again["envdAccessToken"]) == (201, made["sandboxID"], made["envdAccessToken"]), away
        status, other = insists(s, "job", timeout=601)
        assert status == 409 and "Idempotency-Key" in other["message"], away
    kill(s, made["sandboxID"])
    status, new = create(s, "job", timeout=601)
    assert status == 201 and new["sandboxID"] != made["sandboxID"]
    assert [b["sandboxID"] for b in s.call("GET", "/v2/sandboxes")[1]] == [new["sandboxID"]]


def test_clients_that_lost_their_answers_leave_one_sandbox_each(own_server):
    """Node dies under creates: whoever asks again gets what there is, or a new one; none is made twice, none is left behind."""
    s = own_server()
    names = [f"job-{i}" for i in range(12)]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        asked = [threads.submit(insists, s, name) for name in names]
        concurrent.futures.wait(asked, return_when=concurrent.futures.FIRST_COMPLETED)
        s.kill_process("node")
        answers = dict(zip(names, (f.result() for f in asked)))
    assert {status for status, _ in answers.values()} == {201}
    ids = {name: box["sandboxID"] for name, (_, box) in answers.items()}
    assert {name: insists(s, name)[1]["sandboxID"] for name in names} == ids
    assert sorted(b["sandboxID"] for b in s.call("GET", "/v2/sandboxes")[1]) == sorted(ids.values())


@pytest.mark.parametrize("victim", ["node", "front"])
def test_008_a_create_that_is_cut_has_made_one_or_none(own_server, victim):
    """At several moments of it, for four who ask at once."""
    s = own_server()
    for i, delay in enumerate((0.0, 0.004, 0.02)):
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(insists, s, f"cut-{i}", metadata={"cut": str(i)}) for _ in range(4)]
            time.sleep(delay)
            s.kill_process(victim)
            answers = [f.result() for f in asked]
        assert {status for status, _ in answers} == {201}
        first = answers[0][1]["sandboxID"]
        assert {box["sandboxID"] for _, box in answers} == {first}
        wait_for(lambda: s.call("POST", f"/sandboxes/{first}/timeout", {"timeout": 700})[0] == 204, 120, "a node")
        assert [b["sandboxID"] for b in s.call("GET", f"/v2/sandboxes?metadata=cut%3D{i}")[1]] == [first]
        kill(s, first)
        status, new = insists(s, f"cut-{i}", metadata={"cut": str(i)})
        assert status == 201 and new["sandboxID"] != first


def test_010_a_paused_sandbox_keeps_its_name_over_restarts(own_server):
    """Asked for by a published client that has no parameter for it: the header is one it is told to send."""
    s = own_server()
    options = {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}

    def ask():
        return Sandbox.create("base", timeout=600, headers={"Idempotency-Key": "paused"}, **options).sandbox_id
    first = ask()
    assert s.call("POST", f"/sandboxes/{first}/pause", {"memory": False})[0] == 204
    s.kill_process("node")
    wait_for(lambda: s.call("GET", "/health", key=None)[1]["status"] == "ok", 120, "a node")
    assert s.stop() == 0
    s.start()
    assert ask() == first
    assert s.call("GET", "/sandboxes/" + first)[1]["state"] == "paused"
    kill(s, first)
    assert ask() != first


def test_a_bounded_life_ends_although_it_is_paused_and_the_node_is_killed(own_server):
    s = own_server()
    for seconds in (8, 40, 160):  # on a slow machine it may end before it is all prepared: then with more time
        ids = []
        for i in range(3):
            status, made = create(s, f"short-{i}-{seconds}", lifecycle={"shutdownAfterSeconds": seconds}, autoPause=True)
            assert status == 201
            ids.append(made["sandboxID"])
        steps = [s.call("POST", f"/sandboxes/{ids[0]}/timeout", {"timeout": 3600})[0],  # asks for more than there is
                 s.call("POST", f"/sandboxes/{ids[1]}/pause", {"memory": True})[0],
                 s.call("POST", f"/sandboxes/{ids[2]}/pause", {"memory": False})[0]]
        status, info = s.call("GET", "/sandboxes/" + ids[0])
        if steps == [204, 204, 204] and status == 200:
            break
        assert set(steps) <= {204, 404, 409}
    else:
        raise AssertionError(f"no three steps in {seconds} s")
    assert info["endAt"] == info["lifecycle"]["shutdownAt"] and info["lifecycle"]["onTimeout"] == "pause"
    s.kill_process("node")
    for box in ids:
        def end():
            status, answer = s.call("GET", "/sandboxes/" + box)
            return status == 404 and answer.get("lastTermination")  # not yet while it is being killed
        last = wait_for(end, seconds + 60, "its end")
        assert (last["reason"], last["detail"]) == ("timeout", "shutdownAfterSeconds")
    # Nobody sees it any more; its name is free when nothing is left of it.
    wait_for(lambda: insists(s, f"short-0-{seconds}", timeout=601)[0] == 201, 60, "a free name")
