"""Ready pools when something is killed, full or hostile: nobody gets a sandbox that does not work, none is given twice, nothing is left behind."""

import concurrent.futures
import contextlib
import http.client
import os
import random
import threading
import time

import pytest
from e2b import Sandbox

from ready import Template, create, detail, ids, pool, reload_templates, set_pool, wait_ready
from server import wait_for
from small_host import MIB

AGAIN = (OSError, http.client.HTTPException)
SIXTH = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB // 6  # of the machine's memory, in MiB


@pytest.fixture
def serve(own_server):
    """serve(options) starts a server with the template "fast"."""
    def start(state_dir=None, **options):
        s = own_server(start=False, state_dir=state_dir, options=options)
        s.fast = Template(s, "fast", memoryMB=128)
        return s.start()
    return start


def client(s):
    return {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}


def works(s, i):
    box = Sandbox.connect(i, **client(s))
    assert box.commands.run("echo works; hostname").stdout.split() == ["works", i]
    assert box.kill() is True


class Clients:
    """Threads that create and kill without end; errors that a restart may cause are none of theirs."""

    def __init__(self, server, n):
        self.server, self.made, self.killed, self.unsure, self.failure = server, {}, set(), set(), []
        self.lock, self.done = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(k,), daemon=True) for k in range(n)]
        for t in self.threads:
            t.start()

    def _run(self, k):
        n = 0
        while not self.done.is_set():
            n += 1
            try:
                self._one(f"{k}.{n}")
            except AGAIN:
                self.done.wait(0.02)
            except Exception as e:
                self.failure.append(e)
                return

    def _one(self, name):
        status, made = self.server.call("POST", "/v2/sandboxes", {"templateID": "fast", "timeout": 600, "metadata": {"name": name}})
        if status in (502, 503, 504):
            self.done.wait(0.02)
            return
        assert status == 201, made
        i = made["sandboxID"]
        with self.lock:
            assert i not in self.made, f"{i} was given to {self.made[i]} and to {name}"
            self.made[i] = name
        if random.random() < 0.7:
            self.unsure.add(i)
            status, told = self.server.call("DELETE", "/sandboxes/" + i)
            assert status in (204, 404, 502, 503, 504), told
            if status in (204, 404):
                self.killed.add(i)

    def finish(self):
        self.done.set()
        for t in self.threads:
            t.join(120)
            assert not t.is_alive()
        assert self.failure == []
        return self


@pytest.mark.parametrize("victim", ["node", "front", "serve"])
def test_a_kill_while_a_pool_is_filled_and_claimed_from(serve, victim):
    s = serve(**{"max_sandboxes": 60})
    set_pool(s, "fast", 5)
    for _ in range(3):
        clients = Clients(s, 4)
        n = len(clients.made)
        wait_for(lambda: len(clients.made) > n + 4 or clients.failure, 60, "some creates")
        old = s.kill_process(victim)
        if victim == "serve":
            s.process.wait()
            wait_for(lambda: not os.path.exists(f"/proc/{old}"), 60, "its end")
            s.process = None
            s.start()
        else:
            wait_for(lambda: s.children().get(victim, old) != old, 60, f"a new {victim}")
            s.wait_ready()
        n = len(clients.made)
        wait_for(lambda: len(clients.made) > n + 4 or clients.failure, 60, "creates after it")
        clients.finish()
        # What a client was told holds: it lives, unless it was killed.
        alive = ids(s)
        assert not clients.killed & alive
        assert set(clients.made) - clients.unsure <= alive
        for i in alive & set(clients.made):
            assert detail(s, i)["metadata"] == {"name": clients.made[i]}
        for i in alive:
            works(s, i)
        wait_ready(s, "fast", 5)
        wait_for(lambda: len(s.fast.processes()) == 5, 60, "no process but those of the pool")
    # And a stop takes the members along.
    assert s.stop() == 0
    assert s.fast.processes() == {}


def test_a_node_that_ends_at_any_step_of_a_claim(own_server):
    """Before its record the sandbox was never made, and the member goes; after it, it is there."""
    s = own_server(start=False)
    s.fast = Template(s, "fast", memoryMB=128)
    armed = s.state / "node/fault"
    s.extra_env = {"FAULT_POINT_FILE": str(armed)}
    s.start()
    set_pool(s, "fast", 2)
    for point, made in (("claim_taken", False), ("claim_assigned", False), ("claim_recorded", True)):
        wait_ready(s, "fast", 2)
        members, node = set(s.fast.processes()), s.children()["node"]
        armed.write_text(point)
        with contextlib.suppress(*AGAIN):
            status, told = s.call("POST", "/v2/sandboxes", {"templateID": "fast", "timeout": 600, "envVars": {"MINE": point}})
            assert status in (502, 503), (point, told)
        wait_for(lambda: not armed.exists() and s.children().get("node", node) != node, 60, f"the node to end: {point}")
        s.wait_ready()
        wait_ready(s, "fast", 2)
        alive = ids(s)
        assert len(alive) == made and alive <= members, point
        wait_for(lambda: s.fast.processes().keys() & members == alive, 60, f"members of before to be swept: {point}")
        for i in alive:
            assert Sandbox.connect(i, **client(s)).commands.run("printenv MINE").stdout == point + "\n"
            works(s, i)


def test_pools_outlive_a_restart(serve):
    s = serve()
    set_pool(s, "fast", 2, min=1, max=3, filled=False)
    wait_ready(s, "fast", 1)
    old = set(s.fast.processes())
    made = create(s, "fast", envVars={"MINE": "kept"}, metadata={"who": "kept"}, network={"denyOut": ["203.0.113.0/24"]})
    kept, told = made["sandboxID"], detail(s, made["sandboxID"])
    assert kept in old and told["launch"] == "warm"
    for stop in (lambda: s.stop(), lambda: s.kill_process("node")):
        before = set(s.fast.processes()) - {kept}
        stop()
        if s.process is None:
            assert set(s.fast.processes()) == {kept}
            s.start()
        wait_ready(s, "fast", 1)
        of_pool = wait_for(lambda: pool(s, "fast"), 60, "the pool")
        assert (of_pool["min"], of_pool["max"], of_pool["set"]) == (1, 3, True)
        wait_for(lambda: not before & set(s.fast.processes()), 60, "members of before to be swept")
        another = create(s, "fast")
        assert another["launch"] == "warm" and another["sandboxID"] not in before
        works(s, another["sandboxID"])
    assert detail(s, kept) == told
    box = Sandbox.connect(kept, **client(s))
    assert box._envd_access_token == made["envdAccessToken"] and box.commands.run("printenv MINE").stdout == "kept\n"
    works(s, kept)
    assert s.call("DELETE", "/pools/fast")[0] == 204
    s.stop()
    s.start()
    assert not pool(s, "fast") or not pool(s, "fast")["set"]


@pytest.mark.parametrize("options,sizes", [
    ({"max_sandboxes": 6}, {}),
    ({"overcommit.memory": 1}, {"memoryMB": SIXTH}),
], ids=["number", "memory"])
def test_pools_never_cause_a_refusal(serve, options, sizes):
    """What a pool holds of the machine's promise is there for a create."""
    s = serve(**{"ready.memory": 90, **options})
    s.fast.save(**sizes)
    reload_templates(s)
    paused = create(s, "base")["sandboxID"]
    assert s.call("POST", f"/sandboxes/{paused}/pause", {"memory": False})[0] == 204
    set_pool(s, "fast", 20, filled=False)
    room = wait_for(lambda: settled(s), 120, "the pool to be as large as it may")
    assert room >= 2
    if "max_sandboxes" in options:
        assert room <= 6
        made = [create(s, "base")["sandboxID"] for _ in range(5)]
        assert s.call("POST", f"/sandboxes/{paused}/connect", {"timeout": 600})[0] == 201
        assert s.call("POST", "/v2/sandboxes", {"templateID": "base"})[0] == 503
    else:
        # As much as the pool held, and what was left beside it.
        Template(s, "large", memoryMB=SIXTH)
        reload_templates(s)
        made = [create(s, "large")["sandboxID"] for _ in range(room + 1)]
    for i in made:
        works(s, i)
    works(s, paused)


def settled(s):
    """The number of ready ones when it does not grow any more."""
    seen = -1
    while True:
        p = pool(s, "fast")
        if p["ready"] == seen and not p["starting"]:
            return seen
        seen = p["ready"]
        time.sleep(1)


def test_a_full_disk(small_host, serve):
    """Creates are refused or work; members come back when there is room again."""
    s = serve(state_dir=small_host.top / "s", **{"pool.min": 1, "sandbox.disk": 512})
    set_pool(s, "fast", 3)
    small_host.take(64 * MIB)
    for _ in range(5):
        status, made = s.call("POST", "/v2/sandboxes", {"templateID": "fast"})
        assert status in (201, 507), made
        if status == 201:
            assert s.call("DELETE", "/sandboxes/" + made["sandboxID"])[0] == 204
    small_host.give_back()
    wait_ready(s, "fast", 3)
    for _ in range(3):
        works(s, create(s, "fast")["sandboxID"])


# Hostile ones


BURN = """
for i in 1 2 3 4; do (while :; do :; done) & done
(while :; do head -c 200000000 /dev/zero | tail -c 1 >/dev/null; done) >/dev/null 2>&1 &
(:(){ :|:& };:) >/dev/null 2>&1 &
(while :; do dd if=/dev/zero of=/tmp/fill bs=1M count=64; done) >/dev/null 2>&1 &
echo burning; wait
"""


def test_members_beside_a_hostile_neighbour(serve):
    """A claimed sandbox takes all it can get: the pool behind it is filled, and what comes out of it works."""
    s = serve()
    set_pool(s, "fast", 2)
    hostile = Sandbox.create("fast", timeout=600, **client(s))
    assert detail(s, hostile.sandbox_id)["launch"] == "warm"
    seen = []
    with contextlib.suppress(Exception):
        hostile.commands.run(BURN, background=True, timeout=0, on_stdout=seen.append)
    for _ in range(4):
        wait_ready(s, "fast", 1)
        made = create(s, "fast")
        assert made["launch"] == "warm"
        works(s, made["sandboxID"])
    assert hostile.kill() is True
    wait_ready(s, "fast", 2)
    wait_for(lambda: len(s.fast.processes()) == 2, 60, "the hostile one's processes to end")


def test_one_name_for_many_creates_at_once(serve):
    """Idempotency-Key: whoever asks gets the one sandbox, and the pool gave one."""
    s = serve()
    set_pool(s, "fast", 4)
    for k in range(4):
        key = f"name-{k}"
        body = {"templateID": "fast", "timeout": 600, "metadata": {"k": str(k)}}
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = [f.result() for f in [threads.submit(s.call, "POST", "/v2/sandboxes", body, headers={"Idempotency-Key": key}) for _ in range(8)]]
        assert {status for status, _ in answers} == {201}
        assert len({m["sandboxID"] for _, m in answers}) == 1 and len(ids(s)) == 1
        i = answers[0][1]["sandboxID"]
        # Another thing by that name is refused; the name is free again when its owner is gone.
        assert s.call("POST", "/v2/sandboxes", {**body, "timeout": 601}, headers={"Idempotency-Key": key})[0] == 409
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            kill = threads.submit(s.call, "DELETE", "/sandboxes/" + i)
            others = [f.result() for f in [threads.submit(s.call, "POST", "/v2/sandboxes", body, headers={"Idempotency-Key": key}) for _ in range(4)]]
            assert kill.result()[0] == 204
        assert {status for status, _ in others} <= {201, 409}
        left = ids(s)
        assert len(left) <= 1 and i not in left
        for other in left:
            assert s.call("DELETE", "/sandboxes/" + other)[0] == 204
