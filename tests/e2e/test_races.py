"""Two things at once to one sandbox, again and again (cases.md 5, 7, 8, 19, 20). Whatever wins: each answer is one that the protocol has, and the sandbox is running,
paused or gone afterwards, never stuck."""

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket
import threading
import time

import pytest

from server import wait_for

BUSY = (200, 201, 204, 404, 409)


def create(server, **body):
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600, "metadata": {"races": "yes"}, **body})
    assert status == 201, made
    return made["sandboxID"]


def ask(server, what, i):
    """The status of one call; the ids of what it made are killed."""
    method, path, body = {
        "pause": ("POST", "/pause", {"memory": True}),
        "pause the disk": ("POST", "/pause", {"memory": False}),
        "resume": ("POST", "/resume", {"timeout": 600}),
        "connect": ("POST", "/connect", {"timeout": 600}),
        "kill": ("DELETE", "", None),
        "timeout": ("POST", "/timeout", {"timeout": 600}),
        "expire": ("POST", "/timeout", {"timeout": 0}),
        "snapshot": ("POST", "/snapshots", {}),
        "fork": ("POST", "/fork", {"timeout": 600}),
    }[what]
    status, told = server.call(method, f"/sandboxes/{i}{path}", body)
    if what == "snapshot" and status == 201:
        assert server.call("DELETE", "/templates/" + told["snapshotID"])[0] == 204
    if what == "fork" and status == 201:
        for child in told:
            if "sandbox" in child:
                assert server.call("DELETE", "/sandboxes/" + child["sandbox"]["sandboxID"])[0] == 204
    return status


def settle(server, i):
    """It is in a state that connect and kill lead out of; returns whether it was alive."""
    status = wait_for(lambda: (s := ask(server, "connect", i)) != 409 and s, 60, "connect to work")
    assert status in (200, 201, 404), status
    if status != 404:
        status, told = server.call("GET", "/sandboxes/" + i)
        assert status == 200 and told["state"] == "running", told
        assert health(server, i) == 204
        assert ask(server, "kill", i) == 204
    assert server.call("GET", "/sandboxes/" + i)[0] == 404
    return status != 404


def health(server, i):
    return server.call("GET", "/health", key=None, headers={"Host": f"49983-{i}.sbx.test"})[0]


def at_once(server, i, *calls):
    """The statuses of calls that start together, each a little off."""
    gate = threading.Barrier(len(calls))

    def one(what):
        gate.wait()
        time.sleep(random.random() ** 3 / 20)
        return ask(server, what, i)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def many(n, one, width=6):
    """n runs of one(number), some at a time, each told apart when it fails."""
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        for run in [pool.submit(one, k) for k in range(n)]:
            run.result()


def test_005_ten_pauses_of_one(server):
    def one(k):
        i = create(server)
        assert at_once(server, i, *["pause"] * 10).count(204) >= 1
        assert ask(server, "pause", i) == 409
        assert ask(server, "resume", i) == 201
        assert settle(server, i)
    many(10, one, 3)


@pytest.mark.parametrize("other", ["connect", "kill", "timeout", "expire", "snapshot", "fork", "resume", "pause the disk"])
def test_007_pause_against(server, other):
    def one(k):
        i = create(server)
        statuses = at_once(server, i, "pause", other)
        assert set(statuses) <= set(BUSY), statuses
        settle(server, i)
    many(100, one)


@pytest.mark.parametrize("first, second, good", [
    ("resume", "resume", {201, 409}), ("connect", "connect", {200, 201}), ("resume", "connect", {200, 201, 409}), ("connect", "kill", {200, 201, 204, 404, 409}),
    ("connect", "pause", {200, 201, 204, 409}), ("kill", "kill", {204, 404}), ("connect", "expire", set(BUSY)),
])
def test_007_two_at_once_on_a_paused_one(server, first, second, good):
    def one(k):
        i = create(server)
        assert ask(server, "pause" if k % 2 else "pause the disk", i) == 204
        statuses = at_once(server, i, first, second)
        assert set(statuses) <= good and (first != second or {200, 201, 204} & set(statuses)), statuses
        alive = settle(server, i)
        assert alive or "kill" in (first, second) or second == "expire", statuses
    many(100, one)


@pytest.mark.parametrize("what", ["kill", "snapshot", "fork", "timeout"])
def test_twice_at_once_on_a_running_one(server, what):
    def one(k):
        i = create(server)
        statuses = at_once(server, i, what, what)
        assert set(statuses) <= set(BUSY) and {200, 201, 204} & set(statuses), statuses
        assert settle(server, i) == (what != "kill")
    many(100, one)


def test_020_a_kill_at_the_deadline(server):
    def one(k):
        i = create(server, **({"autoPause": True} if k % 2 else {}))
        statuses = at_once(server, i, "expire", "kill")
        assert set(statuses) <= set(BUSY), statuses
        wait_for(lambda: server.call("GET", "/sandboxes/" + i)[0] == 404, 60, "the end")
    many(100, one)


def cut(server, method, path, body=None):
    """Sends a request and is gone."""
    data = json.dumps(body).encode() if body is not None else b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(random.random() ** 3 / 20)


def test_019_clients_that_leave_in_the_middle(server):
    def one(k):
        i = create(server)
        if k % 5 == 0:
            cut(server, "DELETE", f"/sandboxes/{i}")
            wait_for(lambda: server.call("GET", "/sandboxes/" + i)[0] == 404, 60, "the kill to go on")
            return
        cut(server, "POST", f"/sandboxes/{i}/" + ("pause", "pause", "snapshots", "fork")[k % 5 - 1], {"memory": k % 2 > 0} if k % 5 < 3 else {})
        if k % 5 < 3:
            wait_for(lambda: server.call("GET", "/sandboxes/" + i)[1].get("state") == "paused", 60, "the pause to go on")
            cut(server, "POST", f"/sandboxes/{i}/connect", {})
            wait_for(lambda: server.call("GET", "/sandboxes/" + i)[1].get("state") == "running", 60, "the resume to go on")
        assert settle(server, i)
    many(100, one)
    # What was made for those who had left.
    for s in server.call("GET", "/snapshots")[1]:
        assert server.call("DELETE", "/templates/" + s["snapshotID"])[0] == 204
    server.kill_all_sandboxes()
    assert server.call("GET", "/v2/sandboxes")[1] == [] and server.call("GET", "/snapshots")[1] == []


def test_008_pid_1_dies_during_a_pause(server):
    from e2b import Sandbox
    def one(k):
        box = Sandbox.create("base", timeout=600)
        i = box.sandbox_id
        box.commands.run("sleep 1000", background=True, timeout=0)
        init = os.pidfd_open(server.first_process(i))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pausing = pool.submit(ask, server, "pause" if k % 2 else "pause the disk", i)
            time.sleep(random.random() / 30)
            with contextlib.suppress(ProcessLookupError):  # a pause that keeps the disk only has ended it
                signal.pidfd_send_signal(init, signal.SIGKILL)
            assert pausing.result() in (*BUSY, 500, 502, 503)
        os.close(init)
        # It may run for the moment until its death is seen; then it is gone, or resumes from its disk.
        wait_for(lambda: health(server, i) == 204 or ask(server, "connect", i) == 404, 60, "its end or its resume")
        assert ask(server, "kill", i) in (204, 404)
    many(20, one, 2)
