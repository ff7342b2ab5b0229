"""The log of a sandbox: both routes, the command line, and what a hostile inside or a restart can do to it."""

import json
import subprocess
import time

import pytest
from e2b import Sandbox

from server import CUBICLE, clean_env, wait_for


@pytest.fixture
def box(server):
    box = Sandbox.create("base")
    yield box
    box.kill()


def v1(server, box, **query):
    status, body = server.call("GET", f"/sandboxes/{box.sandbox_id}/logs?" + "&".join(f"{k}={v}" for k, v in query.items()))
    assert status == 200, body
    assert len(body["logs"]) == len(body["logEntries"])
    return body


def v2(server, box, **query):
    status, body = server.call("GET", f"/v2/sandboxes/{box.sandbox_id}/logs?" + "&".join(f"{k}={v}" for k, v in query.items()))
    assert status == 200, body
    return body["logs"]


def commands(entries):
    return [e["fields"]["command"] for e in entries if "command" in e["fields"]]


def test_commands_are_told_with_their_ends(server, box):
    box.commands.run("echo first")
    handle = box.commands.run("exit 7", background=True)
    with pytest.raises(Exception):
        handle.wait()
    body = v1(server, box)
    entries = body["logEntries"]
    assert entries[0]["message"] == "started" and entries[0]["fields"] == {"logger": "sandbox"}
    assert [c.endswith(w) for c, w in zip(commands(entries), ("echo first", "exit 7"))] == [True, True]
    ended = {e["fields"]["pid"]: e["fields"]["status"] for e in entries if "status" in e["fields"]}
    assert ended[str(handle.pid)] == "exit status 7" and list(ended.values()) == ["exit status 0", "exit status 7"]
    # The client's own program parses each line and reads level and message (e2b.md A.5.4).
    for line, entry in zip(body["logs"], entries):
        parsed = json.loads(line["line"])
        assert (parsed["level"], parsed["message"], line["timestamp"]) == (entry["level"], entry["message"], entry["timestamp"])
        assert entry["level"] in ("debug", "info", "warn", "error")
    assert [e["timestamp"] for e in entries] == sorted(e["timestamp"] for e in entries)


def test_pages_and_filters(server, box):
    for i in range(4):
        box.commands.run(f"echo number {i}")
        time.sleep(0.01)  # a millisecond of its own
    all_ = v2(server, box, direction="forward")
    assert v2(server, box) == all_[::-1]
    assert v2(server, box, limit=3) == all_[::-1][:3]
    assert v2(server, box, direction="forward", limit=2) == all_[:2]
    assert [c.split()[-1] for c in commands(v2(server, box, search="number%202"))] == ["2"]
    assert v2(server, box, level="error") == []
    entries = v1(server, box)["logEntries"]
    third = [e for e in entries if "command" in e["fields"]][2]
    at = time.mktime(time.strptime(third["timestamp"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    ms = int(at) * 1000 + int(third["timestamp"][20:23])
    assert [c.split()[-1] for c in commands(v1(server, box, start=ms)["logEntries"])] == ["2", "3"]
    assert [c.split()[-1] for c in commands(v2(server, box, cursor=ms, direction="forward"))] == ["2", "3"]
    assert [c.split()[-1] for c in commands(v2(server, box, cursor=ms - 1))] == ["1", "0"]


@pytest.mark.parametrize("path, field", [("/sandboxes/{}/logs?start=x", "start"), ("/sandboxes/{}/logs?limit=0", "limit"), ("/v2/sandboxes/{}/logs?direction=up", "direction"),
    ("/v2/sandboxes/{}/logs?level=loud", "level"), ("/v2/sandboxes/{}/logs?cursor=-1", "cursor"), ("/v2/sandboxes/{}/logs?search=" + "x" * 300, "search"), ("/v2/sandboxes/{}/logs?limit=1001", "limit")])
def test_bad_queries_name_the_field(server, box, path, field):
    status, body = server.call("GET", path.format(box.sandbox_id))
    assert status == 400 and field in body["message"]


def test_of_a_sandbox_that_is_not_there(server, box):
    for version in ("", "/v2"):
        status, body = server.call("GET", f"{version}/sandboxes/iaaaaaaaaaaaaaaaaaaaa/logs")
        assert status == 404 and "not found" in body["message"]


def lifecycle(entries):
    """[(message, fields)] of what the server says happened to it."""
    return [(e["message"], {k: v for k, v in e["fields"].items() if k != "logger"}) for e in entries if e["fields"]["logger"] == "lifecycle"]


@pytest.mark.parametrize("how, reason", [("kill", "killed"), ("timeout", "timeout")])
def test_the_log_outlives_its_sandbox(server, how, reason):
    """cases.md 82: why it ended is in its log."""
    box = Sandbox.create("base")
    box.commands.run("echo the last words")
    if how == "kill":
        box.kill()
    else:
        box.set_timeout(0)
    wait_for(lambda: server.call("GET", f"/sandboxes/{box.sandbox_id}")[0] == 404, 60, "its end")
    entries = wait_for(lambda: (e := v2(server, box, direction="forward")) and lifecycle(e)[-1][0] == "ended" and e, 60, "its end in the log")
    [created, ended] = lifecycle(entries)
    assert created[0] == "created" and created[1]["template"] == "base" and created[1]["launch"] in ("warm", "cold")
    assert ended[1]["reason"] == reason
    # Nothing of what it did before is lost, not the last exit either.
    assert commands(entries)[-1].endswith("echo the last words")
    assert [e["fields"]["status"] for e in entries if "status" in e["fields"]] == ["exit status 0"]
    assert v2(server, box, level="error") == [] and len(v1(server, box)["logs"]) == len(entries)
    assert lifecycle(v2(server, box, search=reason))[0][1]["reason"] == reason
    assert v2(server, box, limit=1)[0]["message"] == "ended"


def test_of_a_paused_one(server, box):
    box.commands.run("echo before the pause")
    for memory in ("true", "false"):
        status, body = server.call("POST", f"/sandboxes/{box.sandbox_id}/pause", body={"memory": memory == "true"})
        assert status == 204, body
        entries = v1(server, box)["logEntries"]
        assert commands(entries)[0].endswith("echo before the pause")
        assert lifecycle(entries)[-1] == ("paused", {"memory": "kept" if memory == "true" else "not kept"})
        box.connect()
        entries = v1(server, box)["logEntries"]
        assert lifecycle(entries)[-1] == ("resumed", {"from": "memory" if memory == "true" else "disk"})
    box.commands.run("echo after it")
    assert [c.split()[-1] for c in commands(v1(server, box)["logEntries"])] == ["pause", "it"]


def test_the_log_of_one_that_ended_outlives_node_and_front(own_server):
    s = own_server()
    box = Sandbox.create("base", api_key=s.api_key, api_url=s.url, sandbox_url=s.url)
    box.commands.run("echo here")
    box.kill()
    entries = wait_for(lambda: (e := v2(s, box, direction="forward")) and lifecycle(e)[-1][0] == "ended" and e, 60, "its end in the log")
    assert lifecycle(entries)[-1] == ("ended", {"reason": "killed"}) and commands(entries)[0].endswith("echo here")
    for name in ("node", "front"):
        s.kill_process(name)
    wait_for(lambda: s.call("GET", f"/v2/sandboxes/{box.sandbox_id}/logs")[0] == 200, 60, "the log again")
    assert v2(s, box, direction="forward") == entries


def test_a_long_log_keeps_its_newest_part(server, box):
    box.commands.run("true " + "x" * 3000)
    for i in range(200):
        box.commands.run(f"true {i} " + "y" * 1500, user="root")
    found = commands(v2(server, box, direction="forward"))
    assert len(found) > 50 and "true 199 " in found[-1] and not any("xxx" in c for c in found)


def test_it_outlives_node_and_front(own_server):
    s = own_server()
    access = {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}
    box = Sandbox.create("base", **access)
    box.commands.run("echo before")
    for name in ("node", "front"):
        s.kill_process(name)
    wait_for(lambda: s.call("GET", f"/sandboxes/{box.sandbox_id}/logs")[0] == 200, 60, "the log again")
    assert commands(v1(s, box)["logEntries"])[0].endswith("echo before")
    box.kill()


def test_command_line(server, box):
    where = [f"--state.dir={server.state}", f"--listen=127.0.0.1:{server.port}"]
    def logs(*flags):
        return subprocess.run([CUBICLE, "sandbox", "logs", box.sandbox_id[:8], *flags, *where], capture_output=True, text=True, timeout=60, env=clean_env(), check=True).stdout
    box.commands.run("printf 'a\\033[31m'")
    text = logs()
    assert "sandbox: started" in text and "command=" in text and "\033" not in text
    assert [json.loads(line)["message"] for line in logs("--json").splitlines()][:3] == ["started", "created", "started"]
    assert logs("--level", "error") == ""
    follower = subprocess.Popen([CUBICLE, "sandbox", "logs", "-f", box.sandbox_id, *where], stdout=subprocess.PIPE, text=True, env=clean_env())
    box.commands.run("echo while it follows")
    seen = []
    while not any("while it follows" in line for line in seen):
        line = follower.stdout.readline()
        assert line
        seen.append(line)
    box.kill()
    follower.stdout.read()
    assert follower.wait(60) == 0
    lines = [line for line in seen if "command=" in line]
    assert len(lines) == len(set(lines))
