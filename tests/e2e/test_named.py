"""Creates that have a name (Idempotency-Key), and lives with a bound (lifecycle.shutdownAfterSeconds), over kills and restarts of the server's processes: agents.md §3."""

import concurrent.futures
import http.client

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
    assert s.call("DELETE", "/sandboxes/" + made["sandboxID"])[0] == 204
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


def test_a_bounded_life_ends_while_paused(own_server):
    s = own_server()
    status, made = create(s, "short", lifecycle={"shutdownAfterSeconds": 8}, autoPause=True)
    assert status == 201
    target = "/sandboxes/" + made["sandboxID"]
    status, info = s.call("GET", target)
    assert info["endAt"] == info["lifecycle"]["shutdownAt"] and info["lifecycle"]["onTimeout"] == "pause"
    assert s.call("POST", target + "/timeout", {"timeout": 3600})[0] == 204  # asks for more than there is
    assert s.call("GET", target)[1]["endAt"] == info["endAt"]
    assert s.call("POST", target + "/pause")[0] == 204
    assert s.call("GET", target)[1]["state"] == "paused"
    s.kill_process("node")

    def gone():
        status, answer = s.call("GET", target)
        return answer if status == 404 else None
    end = wait_for(gone, 60, "the end")["lastTermination"]
    assert (end["reason"], end["detail"]) == ("timeout", "shutdownAfterSeconds")
    # Nobody sees it any more; its name is free when nothing is left of it.
    wait_for(lambda: insists(s, "short", timeout=601)[0] == 201, 60, "a free name")
