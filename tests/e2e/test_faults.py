"""Killed processes, full memory, fork bombs, steps of the clock: nothing is lost, stuck or orphaned."""

import concurrent.futures
import os
import signal
import subprocess
import time

import pytest
from e2b import CommandExitException, Sandbox

from server import PROCESSES, wait_for


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}


def wait_children(s):
    wait_for(lambda: set(s.children()) == PROCESSES, 60, "children to run again")
    s.wait_ready()


@pytest.mark.parametrize("victim", ["front", "node", "egress", "tools"])
def test_a_killed_process_costs_no_sandbox(own_server, victim):
    s = own_server()
    boxes = [Sandbox.create("base", timeout=600, **client(s)) for _ in range(5)]
    pids = [b.commands.run("for i in $(seq 600); do echo $i; sleep 0.2; done; exit 5", background=True, timeout=0).pid for b in boxes]
    old = s.kill_process(victim)
    wait_for(lambda: s.children().get(victim, old) != old, 60, f"a new {victim}")
    wait_children(s)
    for box, pid in zip(boxes, pids):
        def usable():
            try:
                return box.commands.run("echo back").stdout == "back\n"
            except Exception:
                return False
        wait_for(usable, 60, "the sandbox to answer")
        assert pid in [p.pid for p in box.commands.list()]
        again = box.commands.connect(pid, timeout=30)
        seen = []
        for out, _, _ in again:
            seen.append(out)
            if len(seen) > 2:
                break
        assert seen
        again.disconnect()
        assert box.kill() is True


def test_all_at_once_during_fifty_commands(own_server):
    s = own_server()
    boxes = [Sandbox.create("base", timeout=600, **client(s)) for _ in range(10)]
    for box in boxes:
        for n in range(5):
            box.commands.run(f"sleep 4; echo done > /home/user/done{n}", background=True, timeout=0)
    victims = [*s.children().values(), s.process.pid]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    s.process.wait()
    s.process = None
    s.start()
    for box in boxes:
        def finished():
            try:
                return len(box.files.list("/home/user")) >= 5 and all(box.files.exists(f"/home/user/done{n}") for n in range(5))
            except Exception:
                return False
        wait_for(finished, 60, "commands to go on")
        assert box.kill() is True


def test_a_dead_pid_1_is_noticed_and_explained(own_server):
    s = own_server()
    box = Sandbox.create("base", **client(s))
    os.kill(s.first_process(box.sandbox_id), signal.SIGKILL)
    wait_for(lambda: s.call("GET", "/sandboxes/" + box.sandbox_id)[0] == 404, 60, "death to be noticed")
    assert s.call("GET", "/sandboxes/" + box.sandbox_id)[1]["lastTermination"]["reason"] == "crashed"
    assert box.is_running() is False
    wait_for(lambda: box.kill() is False, 60, "the cleaning up to end")  # a kill before that joins it


def test_082_out_of_memory_leaves_the_agent_alive(sandbox):
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("python3 -c 'x = bytearray(8 << 30)'", timeout=120)
    assert failure.value.exit_code != 0
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    sandbox.files.write("still", b"works")


def test_commands_go_on_at_once_after_out_of_memory(sandbox):
    for _ in range(3):
        with pytest.raises(CommandExitException):
            sandbox.commands.run("python3 -c 'x = bytearray(8 << 30)'", timeout=120)
        for i in range(20):
            assert sandbox.commands.run(f"echo alive {i}").stdout == f"alive {i}\n"
        sandbox.files.write("still", b"works")
    scores = sandbox.commands.run("sleep 0.5; cat /proc/self/oom_score_adj; cat /proc/$(pgrep cubicle-spawn)/oom_score_adj", user="root").stdout.split()
    assert scores == ["500", "400"], "commands are killed before what starts them"


def test_commands_go_on_at_once_after_everything_was_killed(sandbox):
    """Root inside kills what starts commands too."""
    for i in range(5):
        with pytest.raises(Exception):
            sandbox.commands.run("kill -9 -1; kill -9 $$", user="root")
        assert sandbox.commands.run(f"echo alive {i}").stdout == f"alive {i}\n"
        sandbox.files.write("still", b"works")


def test_a_command_that_waits_for_a_dying_starter_runs_once(sandbox):
    for i in range(3):
        sandbox.commands.run("starter=$(pgrep cubicle-spawn); kill -STOP $starter; (sleep 1; kill -9 $starter) >/dev/null 2>&1 &", user="root")
        assert sandbox.commands.run(f"echo ran >> ran{i}; echo alive {i}").stdout == f"alive {i}\n"
        assert sandbox.files.read(f"ran{i}") == "ran\n"


def test_a_fork_bomb_is_contained(sandbox):
    handle = sandbox.commands.run("python3 -c '\nimport os\nwhile True:\n try:\n  os.fork()\n except OSError:\n  pass\n'", background=True, timeout=8)
    time.sleep(2)
    assert sandbox.is_running()
    with pytest.raises(Exception):
        handle.wait()
    def recovered():
        try:
            return sandbox.commands.run("pkill -9 python3; echo ok", user="root", timeout=30).stdout == "ok\n"
        except Exception:
            return False
    wait_for(recovered, 120, "the sandbox to work again")


def test_083_a_cpu_hog_does_not_starve_the_agent(sandbox):
    for _ in range(8):
        sandbox.commands.run("yes > /dev/null", background=True, timeout=30)
    assert sandbox.files.list("/")


def test_deadlines_hold_while_front_is_dead(own_server):
    s = own_server()
    box = Sandbox.create("base", timeout=15, **client(s))
    first = s.first_process(box.sandbox_id)
    front = s.children()["front"]
    os.kill(front, signal.SIGSTOP)
    try:
        wait_for(lambda: not os.path.exists(f"/proc/{first}"), 60, "expiry without front")
    finally:
        os.kill(front, signal.SIGCONT)
    wait_for(lambda: s.call("GET", "/sandboxes/" + box.sandbox_id)[0] == 404, 60, "front to know")


def test_a_restart_keeps_sandboxes_and_their_deadlines(own_server):
    s = own_server()
    box = Sandbox.create("base", timeout=500, metadata={"kept": "yes"}, **client(s))
    before = s.call("GET", "/sandboxes/" + box.sandbox_id)[1]
    box.files.write("x", b"kept")
    assert s.stop() == 0
    s.start()
    after = s.call("GET", "/sandboxes/" + box.sandbox_id)[1]
    assert after["endAt"] == before["endAt"] and after["metadata"] == {"kept": "yes"} and after["startedAt"] == before["startedAt"]
    assert box.files.read("x") == "kept"
    assert box.kill() is True


def test_a_second_server_on_the_state_directory_is_refused(server):
    import server as module
    r = subprocess.run([module.CUBICLE, "serve", f"--state.dir={server.state}", "--listen=127.0.0.1:0"], capture_output=True, text=True, timeout=30, env=module.clean_env())
    assert r.returncode == 1 and "another server" in r.stderr and str(server.process.pid) in r.stderr


def test_creates_beyond_the_limit_are_503_with_retry_after(own_server):
    s = own_server(options={"max_sandboxes": 3})
    made = [s.call("POST", "/v2/sandboxes", {"templateID": "base"}) for _ in range(4)]
    assert sorted(status for status, _ in made) == [201, 201, 201, 503]
    assert int(s.last_headers["Retry-After"]) > 0


def test_concurrent_creates_never_exceed_the_limit(own_server):
    s = own_server(options={"max_sandboxes": 10})
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(lambda _: s.call("POST", "/v2/sandboxes", {"templateID": "base"})[0], range(40)))
    assert sorted(set(statuses)) == [201, 503] and statuses.count(201) == 10
