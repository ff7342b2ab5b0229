"""Ready pools through the published clients: a claimed sandbox is like any other that was just created, and a pool costs nobody anything but its memory."""

import concurrent.futures
import contextlib
import datetime
import http.client
import json
import pathlib
import random
import re
import subprocess
import threading

import pytest
from e2b import Sandbox
from prometheus_client.parser import text_string_to_metric_families

import interpreter
from conftest import serving
from inside import ask
from ready import (INTERPRETER, WEB, WEB_READY, Template, create, detail, ids, parent, pool, reload_templates, set_pool, unset_pool, wait_ready)
from server import CUBICLE, clean_env, free_port, wait_for
from test_network import rcodes, reached


MOST = 80  # sandboxes that the server may hold


@pytest.fixture(scope="module")
def server(world):
    port = free_port()
    with serving(options={"dns.upstream": world.dns, "metrics.listen": f"127.0.0.1:{port}", "max_sandboxes": MOST}, templates=("base", INTERPRETER)) as s:
        s.metrics_port = port
        yield s


@pytest.fixture(scope="module")
def fast(server):
    t = Template(server, "fast", memoryMB=128)
    reload_templates(server)
    return t


@pytest.fixture(scope="module")
def web(server):
    t = Template(server, "web")
    t.command = ["/usr/bin/python3", "-c", WEB, t.mark]
    t.save(services=[{"name": "web", "command": t.command, "port": 8000, "user": "user"}], ready=WEB_READY, memoryMB=256)
    reload_templates(server)
    return t


@contextlib.contextmanager
def pooled(server, name, size, **more):
    """So many are ready; at the end there is no pool."""
    set_pool(server, name, size, **more)
    try:
        yield
    finally:
        unset_pool(server, name)


@contextlib.contextmanager
def claimed(server, name, **more):
    """A sandbox out of the pool."""
    wait_ready(server, name, 1)
    box = Sandbox.create(name, **{"timeout": 600, **more})
    try:
        assert detail(server, box.sandbox_id)["launch"] == "warm"
        yield box
    finally:
        box.kill()


def member_processes(sandbox):
    """{pid: command line} of the processes that a sandbox started, on the host."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"E2B_SANDBOX_ID={sandbox}\0".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                pass
    return found


def interpreters(server):
    """The ids of sandboxes with an interpreter that this server has."""
    uids = range(server.uid_base, server.uid_base + 0x4000000)
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(b"/usr/lib/cubicle/cubicle-interp\0") and entry.stat().st_uid in uids:
                    found.update(re.findall(rb"E2B_SANDBOX_ID=([a-z0-9]+)", (entry / "environ").read_bytes()))
            except OSError:
                pass
    return {i.decode() for i in found}


def shares(pid):
    """What its cgroups give a process."""
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = pathlib.Path("/sys/fs/cgroup") / controllers.removeprefix("name=")
        for place in ((top / path[1:]), (top / path[1:]).parent):
            for name in ("cpu.weight", "cpu.max", "cpu.shares", "cpu.cfs_quota_us", "memory.max", "memory.limit_in_bytes", "pids.max", "cpu.idle"):
                if (place / name).is_file():
                    found[controllers, place == top / path[1:], name] = (place / name).read_text()
    assert found
    return found


def when(text):
    return datetime.datetime.fromisoformat(text)


# What a create adds


def test_everything_of_a_create_is_in_place(server, web):
    with pooled(server, "web", 1):
        members = web.processes()
        before = datetime.datetime.now(datetime.timezone.utc)
        with claimed(server, "web", timeout=1234, envs={"MINE": "of the create", "EMPTY": ""}, metadata={"who": "me"}) as box:
            assert box.commands.run("printenv MINE EMPTY E2B_SANDBOX E2B_SANDBOX_ID; hostname; pwd; whoami").stdout.splitlines() == \
                ["of the create", "", "true", box.sandbox_id, box.sandbox_id, "/home/user", "user"]
            assert [box.sandbox_id] == list(members), "it is the member that was ready"
            told = detail(server, box.sandbox_id)
            assert told["metadata"] == {"who": "me"} and told["alias"] == "web" and told["templateID"] == web.id and told["memoryMB"] == 256
            assert before <= when(told["startedAt"])
            assert abs((when(told["endAt"]) - when(told["startedAt"])).total_seconds() - 1234) < 1
            (listed,) = [b for b in server.call("GET", "/v2/sandboxes?metadata=who%3Dme")[1]]
            assert (listed["sandboxID"], listed["startedAt"], listed["endAt"]) == (box.sandbox_id, told["startedAt"], told["endAt"])
            # The service is that of before, and shows what it was started with.
            status, _, body = ask(server, box, "GET", "/", port=8000)
            service = json.loads(body)
            assert status == 200 and "MINE" not in service["env"] and service["env"]["E2B_SANDBOX_ID"] == box.sandbox_id
            assert box.commands.run("sudo hostname; cat /etc/hostname; getent hosts $(hostname) | wc -l").stdout.split() == [box.sandbox_id, box.sandbox_id, "1"]
            # Started again it has the variables of the create.
            box.commands.run(f"kill {service['pid']}")
            def restarted():
                now = json.loads(ask(server, box, "GET", "/", port=8000)[2] or b"{}")
                return now if now.get("pid", service["pid"]) != service["pid"] else None
            assert wait_for(restarted, 60, "the service's next start")["env"]["MINE"] == "of the create"
            # Samples of its use are those of this life.
            samples = wait_for(lambda: box.get_metrics(), 60, "a sample")
            assert all(s.timestamp >= when(told["startedAt"]).replace(microsecond=0) for s in samples)
            assert samples[0].mem_total == 256 << 20


@pytest.mark.parametrize("secure", [True, False])
def test_the_token_is_that_of_the_create(server, fast, secure):
    with pooled(server, "fast", 1):
        (member,) = fast.processes()
        with claimed(server, "fast", secure=secure, envs={"SEEN": "yes"}) as box:
            assert box.sandbox_id == member
            assert bool(box._envd_access_token) == secure
            other = {"X-Access-Token": "x" * len(box._envd_access_token or "xx")}
            assert ask(server, box, "GET", "/envs", token=False)[0] == (401 if secure else 200)
            assert not secure or ask(server, box, "GET", "/envs", token=False, headers=other)[0] == 401
            assert box.commands.run("printenv SEEN").stdout == "yes\n"
            again = Sandbox.connect(box.sandbox_id)
            assert again._envd_access_token == box._envd_access_token and again.commands.run("printenv SEEN").stdout == "yes\n"


def test_a_denied_network_is_denied_at_the_first_command(server, world, fast):
    a, b, c = world.hosts
    with pooled(server, "fast", 4, max=4):
        for more, wanted, names in [
            ({"network": {"deny_out": [a]}}, [b, c], "0"),
            ({"network": {"allow_out": [b], "deny_out": ["0.0.0.0/0"]}}, [b], "5"),
            ({"allow_internet_access": False}, [], "5"),
            ({}, [a, b, c], "0"),
        ]:
            with claimed(server, "fast", **more) as box:
                assert reached(box, a, b, c, world.lan) == wanted, more
                assert rcodes(box) == [names, names], more
                told = detail(server, box.sandbox_id)
                assert told.get("allowInternetAccess", True) == more.get("allow_internet_access", True)
                assert (told.get("network") or {}).get("denyOut") == more.get("network", {}).get("deny_out")


STREAMER = r"""
import socket,sys,time
while 1:
 try:
  s=socket.create_connection((sys.argv[1],80),60)
  s.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
  n=0
  while d:=s.recv(4096):
   n+=len(d)
   open("/tmp/got","w").write(str(n))
  why="end"
 except OSError as e: why=type(e).__name__
 open("/tmp/why","w").write(why)
 time.sleep(.1)
"""


def test_what_a_service_had_reached_before_the_claim_is_cut_when_the_claim_denies_it(server, world):
    t = Template(server, "streamer", memoryMB=128)
    t.command = ["/usr/bin/python3", "-c", STREAMER, world.hosts[0], t.mark]
    t.save(services=[{"name": "one", "command": t.command, "user": "user"}], ready=["/usr/bin/test", "-s", "/tmp/got"])
    reload_templates(server)
    with pooled(server, "streamer", 1):
        with claimed(server, "streamer", allow_internet_access=False) as box:
            got = box.files.read("/tmp/got")
            assert wait_for(lambda: box.files.exists("/tmp/why") and box.files.read("/tmp/why"), 60, "its connection to end") in ("ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError")
            assert int(got) > 0
    t.path.unlink()
    reload_templates(server)


def test_the_rest_of_what_a_create_may_say(server, web):
    """Traffic token, what the deadline does, automatic resume."""
    with pooled(server, "web", 1):
        body = {"autoPause": True, "autoResume": {"enabled": True}, "network": {"allowPublicTraffic": False}, "envVars": {"MINE": "yes"}}
        wait_ready(server, "web", 1)
        made = create(server, "web", **body)
        i, token = made["sandboxID"], made["trafficAccessToken"]
        assert made["launch"] == "warm" and detail(server, i)["lifecycle"] == {"autoResume": True, "onTimeout": "pause"}
        def status(token=None):
            return server.call("GET", "/", key=None, headers={"Host": f"8000-{i}.sbx.test", **({"e2b-traffic-access-token": token} if token else {})})[0]
        assert (status(), status("wrong"), status(token)) == (403, 403, 200)
        assert server.call("POST", f"/sandboxes/{i}/timeout", {"timeout": 0})[0] == 204
        wait_for(lambda: detail(server, i)["state"] == "paused", 60, "the pause at the deadline")
        assert status() == 403 and detail(server, i)["state"] == "paused"
        assert status(token) == 200 and detail(server, i)["state"] == "running"
        assert server.call("DELETE", f"/sandboxes/{i}")[0] == 204


# Nothing of others


LOOK = """
find /home /tmp /var/tmp /root /dev/shm /run /var/log /mnt /srv 2>/dev/null | sed "s/$(hostname)/ID/" | sort | sed 's/^/file /'
processes=$(ps -eo comm=)
echo "$processes" | sort | sed 's/^/process /'
cat /proc/mounts | cut -d' ' -f2 | sort | sed 's/^/mount /'
"""
NAMES = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; printenv E2B_SANDBOX_ID"


def test_nothing_of_an_earlier_life_or_a_neighbour_is_there(server, fast):
    seen, looks = [], []
    with pooled(server, "fast", 2):
        for k in range(3):
            with claimed(server, "fast", envs={f"SECRET{k}": "x"}, metadata={"n": str(k)}) as box:
                looks.append(box.commands.run(LOOK, user="root").stdout)
                machine, boot, host, own = box.commands.run(NAMES).stdout.split()
                assert host == own == box.sandbox_id
                seen += [machine, boot, host, box._envd_access_token]
                assert not re.search(rf"SECRET[^{k}]", box.commands.run("env; cat /proc/*/environ 2>/dev/null; true", user="root").stdout)
                assert [p.cmd for p in box.commands.list()] == []
                entries = server.call("GET", f"/v2/sandboxes/{box.sandbox_id}/logs")[1]["logs"]
                (made,) = [e for e in entries if e["message"] == "created"]
                assert made["fields"]["launch"] == "warm"
                text = json.dumps(entries)
                assert not [s for s in seen if s != box.sandbox_id and s in text]
                box.commands.run("echo mine | tee /home/user/mine /tmp/mine /dev/shm/mine; sleep 1000 & sleep 1000", background=True, timeout=0)
                wait_for(lambda: box.files.exists("/dev/shm/mine"), 60, "the files")
    assert len(set(seen)) == len(seen)
    cold = Sandbox.create("fast")
    assert detail(server, cold.sandbox_id)["launch"] == "cold"
    wait_for(lambda: cold.sandbox_id in fast.processes(), 60, "its service")
    assert looks == [cold.commands.run(LOOK, user="root").stdout] * 3
    cold.kill()


def test_a_member_is_nobodys(server, fast):
    """Whoever guesses its id is told what is said of one that never was."""
    with pooled(server, "fast", 1):
        (member,) = fast.processes()
        never = member[:-1] + ("a" if member[-1] != "a" else "b")
        before = ids(server)
        assert member not in before
        for method, path, body in [("GET", "", None), ("DELETE", "", None), ("POST", "/timeout", {"timeout": 60}), ("POST", "/connect", {"timeout": 60}), ("POST", "/pause", {}),
                                   ("POST", "/fork", {}), ("POST", "/snapshots", {}), ("GET", "/logs", None), ("GET", "/metrics", None), ("PUT", "/network", {"denyOut": []})]:
            answers = [server.call(method, f"/sandboxes/{i}{path}", body) for i in (member, never)]
            assert answers[0][0] == answers[1][0] >= 400, (method, path, answers)
            assert json.dumps(answers[0][1]).replace(member, never) == json.dumps(answers[1][1])
        assert server.call("GET", "/health", key=None, headers={"Host": f"49983-{member}.sbx.test"})[0] == 502
        with claimed(server, "fast") as box:
            assert box.sandbox_id == member


# The interpreter


UNIQUE = "import os, random, uuid, numpy, secrets, tempfile; [random.random(), str(uuid.uuid4()), str(uuid.uuid1()), numpy.random.rand(), os.urandom(8).hex(), secrets.token_hex(8), hash('x')]"
FRESH = "[sorted(n for n in globals() if not n.startswith('_')), len(In), list(Out), len(list(get_ipython().history_manager.get_tail(10)))]"
WHO = "import os, socket; [os.environ.get('MINE'), os.environ['E2B_SANDBOX_ID'], socket.gethostname(), open('/etc/machine-id').read().strip()]"


def test_the_first_cell_of_a_claimed_interpreter(server):
    found = []
    with pooled(server, INTERPRETER, 2):
        for k in range(2):
            wait_ready(server, INTERPRETER, 1)
            with interpreter.sandbox(envs={"MINE": f"of {k}"}, metadata={"k": str(k)}) as box:
                assert detail(server, box.sandbox_id)["launch"] == "warm"
                first = interpreter.run(box, FRESH)
                assert first.execution_count == 1
                context = box.create_code_context(request_timeout=300)
                assert first.results[0].json == interpreter.run(box, FRESH, context=context).results[0].json
                mine, own, host, machine = interpreter.run(box, WHO).results[0].json
                assert (mine, own, host) == (f"of {k}", box.sandbox_id, box.sandbox_id)
                js = "[process.env.MINE, process.env.E2B_SANDBOX_ID, require('os').hostname()].join()"
                assert interpreter.text(box, js, language="javascript") == f"of {k},{box.sandbox_id},{box.sandbox_id}"
                unique = interpreter.run(box, UNIQUE).results[0].json
                unique += interpreter.text(box, "[Math.random(), crypto.randomUUID(), Math.random()].join()", language="javascript").split(",")
                found += [machine, *unique]
    assert len(set(map(str, found))) == len(found) == 2 * 11


def test_a_claimed_interpreter_without_a_token_and_without_the_internet(server, world):
    with pooled(server, INTERPRETER, 1):
        with interpreter.sandbox(secure=False, envs={"MINE": "open"}, allow_internet_access=False) as box:
            assert detail(server, box.sandbox_id)["launch"] == "warm"
            code = f"import os, socket\ntry:\n    socket.create_connection(('{world.hosts[0]}', 80), 60)\n    r = 'reached'\nexcept ConnectionRefusedError:\n    r = 'refused'\n[r, os.environ['MINE']]"
            assert interpreter.run(box, code).results[0].json == ["refused", "open"]


# Members that are of no use


def works(server, made):
    """The sandbox of an answer does what it is for, and ends."""
    box = Sandbox.connect(made["sandboxID"])
    assert box.commands.run("echo works").stdout == "works\n"
    assert box.kill() is True


def test_a_dead_member_is_never_handed_out(server, fast):
    with pooled(server, "fast", 2):
        for _ in range(5):
            members = fast.processes()
            dead = next(iter(members))
            subprocess.run(["kill", "-9", str(parent(members[dead]))], check=True)
            made = [create(server, "fast") for _ in range(3)]
            assert dead not in [m["sandboxID"] for m in made]
            for m in made:
                works(server, m)
            wait_ready(server, "fast", 2)
            assert dead not in fast.processes()


def test_a_member_whose_service_ended_is_ready_again_when_the_service_is(server, web):
    with pooled(server, "web", 1):
        for _ in range(3):
            (member, service), = web.processes().items()
            subprocess.run(["kill", "-9", str(service)], check=True)
            made = create(server, "web")
            box = Sandbox.connect(made["sandboxID"])
            # Whoever it is, it answers.
            assert json.loads(wait_for(lambda: ask(server, box, "GET", "/", port=8000)[2], 60, "the service"))["env"]["E2B_SANDBOX_ID"] == box.sandbox_id
            box.kill()
            wait_ready(server, "web", 1)


def test_a_killed_kernel_or_interpreter_in_a_member_hurts_nobody(server):
    with pooled(server, INTERPRETER, 1):
        for name in ("python/launch.py", "javascript.mjs", "cubicle-interp "):
            (member,) = interpreters(server)
            victims = [pid for pid, words in member_processes(member).items() if name in words]
            assert victims
            subprocess.run(["kill", "-9", *map(str, victims)], check=True)
            wait_for(lambda: not any(pathlib.Path(f"/proc/{v}").exists() for v in victims), 60, "who started it to notice")
            with interpreter.sandbox() as box:
                assert interpreter.text(box, "40 + 2") == "42"
                assert interpreter.text(box, "[6, 7].join()", language="javascript") == "6,7"
            wait_ready(server, INTERPRETER, 1)


def test_one_that_never_becomes_ready_is_never_handed_out(server):
    t = Template(server, "never", memoryMB=128, ready=["/bin/false"])
    reload_templates(server)
    with pooled(server, "never", 2, filled=False):
        wait_for(t.processes, 60, "a member to be started")
        for _ in range(3):
            members = set(t.processes())
            made = create(server, "never")
            assert made["launch"] == "cold" and made["sandboxID"] not in members
            works(server, made)
        assert pool(server, "never")["ready"] == 0
    wait_for(lambda: not t.processes(), 60, "its members to end")
    t.path.unlink()
    reload_templates(server)


def test_of_a_template_that_was_made_anew_only_the_new_build_is_handed_out(server, fast):
    with pooled(server, "fast", 3):
        old = set(fast.processes())
        fast.save(workdir="/tmp")
        reload_templates(server)
        for _ in range(4):
            made = create(server, "fast")
            assert made["sandboxID"] not in old
            box = Sandbox.connect(made["sandboxID"])
            assert box.commands.run("pwd").stdout == "/tmp\n"
            box.kill()
        wait_ready(server, "fast", 3)
        assert not old & set(fast.processes())
        # One that is gone has no pool, and no process.
        described = fast.path.read_text()
        fast.path.unlink()
        reload_templates(server)
        wait_for(lambda: not fast.processes(), 60, "members of a removed template to end")
        assert server.call("POST", "/v2/sandboxes", {"templateID": "fast"})[0] == 404
        fast.path.write_text(described)
        reload_templates(server)
        # What an administrator had asked for is kept, or to be asked for again; in either way it works.
        set_pool(server, "fast", 2)
        del fast.described["workdir"]
        fast.save()
        reload_templates(server)


# What a claimed sandbox can do


def test_pause_resume_fork_and_snapshot_of_a_claimed_one(server, web):
    with pooled(server, "web", 2, max=2):
        with claimed(server, "web", envs={"MINE": "kept"}, timeout=1000) as box:
            host = box.sandbox_id
            box.files.write("/home/user/file", "data")
            pid = box.commands.run("sleep 1000", background=True, timeout=0).pid
            for memory in (True, False):
                assert server.call("POST", f"/sandboxes/{host}/pause", {"memory": memory})[0] == 204
                box = Sandbox.connect(host, timeout=1000)
                assert box.commands.run("printenv MINE; hostname; cat file").stdout == f"kept\n{host}\ndata"
                assert (pid in [p.pid for p in box.commands.list()]) == memory
                assert json.loads(wait_for(lambda: ask(server, box, "GET", "/", port=8000)[2], 60, "the service"))["env"].get("MINE") == (None if memory else "kept")
            snapshot = box.create_snapshot()
            status, children = server.call("POST", f"/sandboxes/{host}/fork", {"count": 2, "timeout": 600})
            assert status == 201, children
            made = [c["sandbox"]["sandboxID"] for c in children] + [create(server, snapshot.snapshot_id)["sandboxID"]]
            for i in made:
                child = Sandbox.connect(i)
                assert child.commands.run("printenv MINE; hostname; cat file").stdout == f"kept\n{i}\ndata"
                assert detail(server, i)["launch"] == "cold"
                child.kill()
            Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_the_machines_other_limits_are_those_of_sandboxes(server, fast):
    """Memory, processors, processes: a claimed sandbox has what a cold one has."""
    limits = "nproc; ulimit -a; cat /proc/self/oom_score_adj; nice"
    with pooled(server, "fast", 1):
        with claimed(server, "fast") as box:
            warm = box.commands.run(limits).stdout
            cgroups = shares(fast.processes()[box.sandbox_id])
    cold = Sandbox.create("fast")
    assert detail(server, cold.sandbox_id)["launch"] == "cold"
    assert cold.commands.run(limits).stdout == warm
    wait_for(lambda: cold.sandbox_id in fast.processes(), 60, "its service")
    assert shares(fast.processes()[cold.sandbox_id]) == cgroups
    cold.kill()


# What pools do not cost


@pytest.fixture
def team(server):
    """A team that may run two sandboxes: call(method, path, body) with its key."""
    def cubicle(*words):
        return subprocess.run([str(CUBICLE), *words[:2], f"--state.dir={server.state}", *words[2:]], capture_output=True, text=True, check=True, timeout=120, env=clean_env()).stdout.strip()
    team = cubicle("team", "create", "poor", "--sandboxes", "2")
    key = cubicle("key", "create", "main", "--team", "poor")
    yield lambda method, path, body=None: server.call(method, path, body, key=key)
    cubicle("team", "delete", team)


def test_a_quota_counts_claims_and_no_members(server, fast, team):
    with pooled(server, "fast", 4, max=4):
        made = [team("POST", "/v2/sandboxes", {"templateID": "fast"}) for _ in range(2)]
        assert [status for status, _ in made] == [201, 201] and {m["launch"] for _, m in made} == {"warm"}
        wait_ready(server, "fast", 4)
        assert team("POST", "/v2/sandboxes", {"templateID": "fast"})[0] == 429
        assert len(team("GET", "/v2/sandboxes")[1]) == 2
        create_of_another = create(server, "fast")
        works(server, create_of_another)
        assert team("DELETE", "/sandboxes/" + made[0][1]["sandboxID"])[0] == 204
        status, third = team("POST", "/v2/sandboxes", {"templateID": "fast"})
        assert status == 201
        # Pools are the server's: a team reads what there is and changes nothing.
        assert team("GET", "/pools")[0] == 200
        for method, path, body in (("PUT", "/pools/fast", {"size": 1}), ("DELETE", "/pools/fast", None)):
            status, told = team(method, path, body)
            assert status == 403 and told["code"] == 403 and told["message"]
        for i in (made[1][1]["sandboxID"], third["sandboxID"]):
            assert team("DELETE", "/sandboxes/" + i)[0] == 204


# Pools by hand


def cli(server, *words, check=True):
    r = subprocess.run([str(CUBICLE), *words[:2], f"--state.dir={server.state}", f"--listen=127.0.0.1:{server.port}", *words[2:]], capture_output=True, text=True, timeout=120, env=clean_env())
    assert not check or r.returncode == 0, (words, r.stderr)
    return r


def test_pools_by_the_command_line(server, fast):
    cli(server, "pool", "set", "fast", "2", "--min", "1", "--max", "3")
    (told,) = [p for p in json.loads(cli(server, "pool", "list", "--json").stdout) if p["templateID"] == fast.id]
    assert (told["min"], told["max"]) == (1, 3)
    wait_ready(server, "fast", 1)
    assert "fast" in cli(server, "pool", "list").stdout
    cli(server, "pool", "unset", "fast")
    wait_for(lambda: not fast.processes(), 60, "members to end")
    for words in (("set", "nope", "1"), ("set", "base", "1"), ("set", "fast", "x"), ("set", "fast", "-1"), ("set", "fast", "2", "--min", "3"), ("set", "fast", "2", "--max", "1"), ("unset", "fast")):
        r = cli(server, "pool", *words, check=False)
        assert r.returncode != 0 and r.stderr, words


BAD = [
    None, [], "x", 7, {}, {"size": None}, {"size": "2"}, {"size": 2.5}, {"size": -1}, {"size": 1001}, {"size": True}, {"size": 10**30}, {"min": 1}, {"max": 1},
    {"size": 2, "min": 3}, {"size": 2, "max": 1}, {"size": 2, "min": -1}, {"size": 2, "max": 1001}, {"size": 2, "min": "1"}, {"size": 2, "max": None, "min": {}},
    {"size": [2]},
]


def test_what_a_pool_may_not_be(server, fast):
    for body in BAD:
        status, told = server.call("PUT", "/pools/fast", body)
        assert status == 400 and told["code"] == 400 and told["message"], (body, told)
    for path, body, wanted in [("/pools/nope", {"size": 1}, 404), ("/pools/base", {"size": 1}, 400), ("/pools/A%20b", {"size": 1}, 400)]:
        status, told = server.call("PUT", path, body)
        assert status == wanted and told["message"], (path, told)
    assert server.call("DELETE", "/pools/fast")[0] == 404 and server.call("DELETE", "/pools/nope")[0] == 404
    assert server.call("POST", "/pools/fast", {"size": 1})[0] == 405
    assert pool(server, "fast") is None or not pool(server, "fast")["ready"]
    # Snapshots have no pool.
    box = Sandbox.create("fast")
    snapshot = box.create_snapshot()
    status, told = server.call("PUT", f"/pools/{snapshot.snapshot_id}", {"size": 1})
    assert status == 400 and "snapshot" in told["message"]
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    box.kill()


def test_a_pool_grows_and_shrinks_as_it_is_told(server, fast):
    set_pool(server, "fast", 1)
    for size in (4, 2):
        told = set_pool(server, "fast", size)
        assert (told["size"], told["min"], told["max"]) == (size, size, size)
        wait_for(lambda: len(fast.processes()) == size, 60, f"{size} members")
    set_pool(server, "fast", 0)
    wait_for(lambda: not fast.processes(), 60, "members to end")
    made = create(server, "fast")
    assert made["launch"] == "cold"
    works(server, made)
    unset_pool(server, "fast")


def test_a_pool_by_each_of_its_templates_names(server, fast):
    for name, other in ((fast.id, "fast"), ("fast", fast.id), ("fast:default", "fast")):
        assert set_pool(server, name, 0, filled=False)["templateID"] == fast.id
        assert server.call("DELETE", f"/pools/{other}")[0] == 204
        assert server.call("DELETE", f"/pools/{name}")[0] == 404


def samples(server):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=60)) as c:
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
    return {(s.name, *s.labels.values()): s.value for family in text_string_to_metric_families(text) for s in family.samples if "ready" in s.name}


def test_hits_and_misses_are_counted(server, fast):
    set_pool(server, "fast", 0)
    before, own = samples(server), pool(server, "fast")
    works(server, create(server, "fast"))
    with pooled(server, "fast", 2):
        for _ in range(3):
            with claimed(server, "fast"):
                pass
        after, now = samples(server), pool(server, "fast")
        assert (now["hits"] - own["hits"], now["misses"] - own["misses"]) == (3, 1)
        for result, n in (("hit", 3), ("miss", 1)):
            assert after["cubicle_ready_creates_total", result] - before["cubicle_ready_creates_total", result] == n
        wait_ready(server, "fast", 2)
        assert (samples(server)["cubicle_ready_sandboxes",], samples(server)["cubicle_ready_memory_promised_bytes",]) == (2, 256 << 20)


# Many at once


def at_once(n, one, width=50):
    with concurrent.futures.ThreadPoolExecutor(width) as threads:
        return [f.result() for f in [threads.submit(one, k) for k in range(n)]]


def test_two_hundred_creates_at_once(server, fast):
    """None is lost, none is given twice; who finds the pool empty is served cold, and refused only when the machine is full."""
    with pooled(server, "fast", 20):
        before, gate = ids(server), threading.Barrier(100)

        def one(k):
            if k < 100:
                gate.wait()
            return server.call("POST", "/v2/sandboxes", {"templateID": "fast", "timeout": 600, "metadata": {"k": str(k)}}, timeout=300)
        answers = at_once(200, one, 100)
        made = {m["sandboxID"]: str(k) for k, (status, m) in enumerate(answers) if status == 201}
        assert [status for status, _ in answers].count(201) == len(made) == MOST - len(before), "each got one of its own, and all room was used"
        assert {status for status, _ in answers} == {201, 503}
        assert sum(m["launch"] == "warm" for status, m in answers if status == 201) >= 20
        assert ids(server) - before == set(made)

        def check(i):
            assert detail(server, i)["metadata"] == {"k": made[i]}
            assert server.call("GET", "/health", key=None, headers={"Host": f"49983-{i}.sbx.test"})[0] == 204
            assert server.call("DELETE", "/sandboxes/" + i)[0] == 204
        list(at_once(len(made), lambda k, all_=list(made): check(all_[k]), 8))


def test_clients_that_leave_in_the_middle_of_a_claim(server, fast):
    """case 19: a create goes on without its client; what it made is listed, or was never made."""
    from test_races import cut
    with pooled(server, "fast", 6):
        before = ids(server)
        at_once(100, lambda k: cut(server, "POST", "/v2/sandboxes", {"templateID": "fast", "timeout": 600}), 8)
        def settled():
            left = ids(server) - before
            for i in left:
                assert server.call("GET", "/health", key=None, headers={"Host": f"49983-{i}.sbx.test"})[0] == 204
                assert server.call("DELETE", "/sandboxes/" + i)[0] == 204
            p = pool(server, "fast")
            return not left and p["ready"] == 6 and len(fast.processes()) == 6
        wait_for(settled, 120, "what was made for those who had left to be ended")


def test_pools_that_change_while_they_are_claimed_from(server, fast):
    def one(k):
        if k % 4 == 3:
            status, told = server.call(*random.choice([("PUT", "/pools/fast", {"size": random.randrange(5)}), ("PUT", "/pools/fast", {"size": 1, "min": 0, "max": 4}), ("DELETE", "/pools/fast")]))
            assert status in (200, 204, 404), told
        else:
            works(server, create(server, "fast"))
    before = ids(server)
    at_once(60, one, 6)
    set_pool(server, "fast", 2)
    wait_for(lambda: len(fast.processes()) == 2, 60, "members that are too many to end")
    assert ids(server) == before
    unset_pool(server, "fast")
    wait_for(lambda: not fast.processes(), 60, "members to end")
