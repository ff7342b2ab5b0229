"""Rows of the list of field cases (inputs that broke systems of this kind) about the life of sandboxes that no other file has; the number is the row's."""

import concurrent.futures
import os
import random
import signal
import time

import pytest
from e2b import Sandbox

from server import wait_for


@pytest.mark.parametrize("call", ["pause", "resume", "connect", "timeout", "refreshes", "fork", "snapshots"])
def test_004_calls_about_a_missing_sandbox_are_404(server, call):
    for name in ("doesnotexist", "i00000000000000000000", "sdk-x-does-not-exist"):
        status, answer = server.call("POST", f"/sandboxes/{name}/{call}", {"timeout": 10})
        assert status == 404 and answer["code"] == 404 and "not found" in answer["message"] and "template" not in answer["message"]


def test_013_resume_without_a_body_is_no_dead_end(server, sandbox):
    for body in (None, {}):
        status, answer = server.call("POST", f"/sandboxes/{sandbox.sandbox_id}/resume", body)
        assert status == 409 and "already running" in answer["message"]
    assert sandbox.commands.run("echo on").stdout == "on\n"


def test_014_connect_at_the_moment_of_expiry_is_alive_or_404(server):
    def one(i):
        status, box = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 1})
        assert status == 201
        time.sleep(0.9 + random.random() * 0.25)
        status, answer = server.call("POST", f"/v2/sandboxes/{box['sandboxID']}/connect", {"timeout": 60})
        if status == 200:
            s = Sandbox.connect(box["sandboxID"])
            assert s.commands.run("echo on").stdout == "on\n"
            assert s.kill()
        else:
            assert status in (404, 409), answer
        return status
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert len(list(pool.map(one, range(40)))) == 40


def test_014_connect_right_after_pid_1_was_killed(own_server):
    s = own_server()
    for delay in (0, 0.02, 0.2):
        box = s.call("POST", "/v2/sandboxes", {"templateID": "base"})[1]["sandboxID"]
        os.kill(s.first_process(box), signal.SIGKILL)
        time.sleep(delay)
        status, _ = s.call("POST", f"/v2/sandboxes/{box}/connect", {})
        wait_for(lambda: s.call("POST", f"/v2/sandboxes/{box}/connect", {})[0] == 404, 60, "404 for what is dead")
        wait_for(lambda: s.call("DELETE", f"/sandboxes/{box}")[0] == 404, 60, "the cleaning up to end")  # a kill before that joins it


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}


def test_056_a_command_whose_agent_dies_is_an_error_and_no_success(own_server):
    s = own_server()
    for i in range(10):
        box = Sandbox.create("base", **client(s))
        handle = box.commands.run("while :; do echo x; done" if i % 2 else "sleep 100", background=True, timeout=0)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(handle.wait)
            time.sleep(0.05 * i)
            os.kill(s.first_process(box.sandbox_id), signal.SIGKILL)
            with pytest.raises(Exception) as e:
                waiting.result(60)
        assert not hasattr(e.value, "exit_code"), e.value
        assert not box.is_running()


def test_020_kill_at_the_moment_of_expiry_is_idempotent(server):
    def one(i):
        box = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 1})[1]["sandboxID"]
        time.sleep(0.9 + random.random() * 0.25)
        statuses = [server.call("DELETE", f"/sandboxes/{box}")[0] for _ in range(3)]
        assert set(statuses) <= {204, 404} and statuses[-1] == 404, statuses
        assert server.call("GET", f"/sandboxes/{box}")[0] == 404
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(one, range(40)))


def test_181_kills_during_output_leave_no_descriptor(server):
    def descriptors():
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in server.children().values())
    time.sleep(1)
    before = descriptors()
    for i in range(40):
        box = Sandbox.create("base")
        handle = box.commands.run("yes", background=True, timeout=0)
        for _ in handle:
            break
        assert box.kill()
        handle.disconnect()
    wait_for(lambda: descriptors() <= before + 60, 60, "descriptors of our processes")
