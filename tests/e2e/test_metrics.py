"""What sandboxes use: the samples behind both routes, through the published clients and the command line."""

import json
import subprocess
from datetime import timedelta

import pytest
from e2b import Sandbox

from server import CUBICLE, clean_env, wait_for

MIB = 1 << 20


@pytest.fixture
def box(server):
    box = Sandbox.create("base")
    yield box
    box.kill()


def samples(box, **times):
    return box.get_metrics(**times)


def test_the_first_sample_comes_soon_and_has_every_field(server, box):
    first = wait_for(lambda: samples(box), 30, "a first sample")[0]
    status, [raw, *_] = server.call("GET", f"/sandboxes/{box.sandbox_id}/metrics")
    assert status == 200
    assert sorted(raw) == sorted(["timestamp", "timestampUnix", "cpuCount", "cpuUsedPct", "memUsed", "memTotal", "memCache", "diskUsed", "diskTotal"])
    assert raw["timestampUnix"] == int(first.timestamp.timestamp())
    assert raw["cpuCount"] == 2 and raw["memTotal"] == 512 * MIB
    assert 0 < raw["memUsed"] < raw["memTotal"] and 0 < raw["diskUsed"] < raw["diskTotal"] <= 10240 * MIB


def test_work_shows_in_them(server, box):
    before = wait_for(lambda: samples(box), 30, "a first sample")[-1]
    # One processor busy, 64 MB that cannot be dropped, 100 MB on the disk.
    box.commands.run("dd if=/dev/zero of=/dev/shm/held bs=1M count=64 && dd if=/dev/zero of=/home/user/file bs=1M count=100 && sync")
    busy = box.commands.run("while :; do :; done", background=True)

    def shows():
        last = samples(box)[-1]
        return last if last.cpu_used_pct > 10 and last.mem_used > before.mem_used + 60 * MIB and last.disk_used > before.disk_used + 90 * MIB else None
    last = wait_for(shows, 60, "the work in a sample")
    assert last.cpu_used_pct <= 100 and last.mem_used < last.mem_total
    # Idle again.
    busy.kill()
    wait_for(lambda: samples(box)[-1].cpu_used_pct < 10, 60, "an idle sample")


def test_only_those_of_the_times_asked_for(server, box):
    all_ = wait_for(lambda: len(s := samples(box)) >= 3 and s, 60, "three samples")
    assert [s.timestamp for s in all_] == sorted(s.timestamp for s in all_)
    middle = all_[1].timestamp
    status, found = server.call("GET", f"/sandboxes/{box.sandbox_id}/metrics?start={int(middle.timestamp())}&end={int(middle.timestamp()) + 1}")
    assert status == 200
    assert [s["timestampUnix"] for s in found] == [int(middle.timestamp())]
    assert samples(box, start=all_[-1].timestamp + timedelta(hours=1)) == []
    assert samples(box, end=all_[0].timestamp - timedelta(hours=1)) == []


def test_several_at_once(server, box):
    with Sandbox.create("base") as other:
        ids = [box.sandbox_id, other.sandbox_id]

        def both():
            status, body = server.call("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join([*ids, "iaaaaaaaaaaaaaaaaaaaa"]))
            assert status == 200
            return body["sandboxes"] if len(body["sandboxes"]) == 2 else None
        found = wait_for(both, 30, "samples of both")
        assert sorted(found) == sorted(ids)
        assert all(m["cpuCount"] == 2 for m in found.values())
        other.kill()
        assert list(server.call("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join(ids))[1]["sandboxes"]) == [box.sandbox_id]


def test_bad_questions(server, box):
    for query, field in (("start=x", "start"), ("end=-1", "end"), ("start=2&end=1", "start")):
        status, body = server.call("GET", f"/sandboxes/{box.sandbox_id}/metrics?{query}")
        assert status == 400 and field in body["message"]
    assert server.call("GET", "/sandboxes/metrics")[0] == 400
    assert server.call("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join(["i1"] * 101))[0] == 400
    assert server.call("GET", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa/metrics")[0] == 404


def test_command_line(server, box):
    where = [f"--state.dir={server.state}", f"--listen=127.0.0.1:{server.port}"]
    wait_for(lambda: samples(box), 30, "a first sample")
    def metrics(*flags):
        return subprocess.run([CUBICLE, "sandbox", "metrics", box.sandbox_id[:8], *flags, *where], capture_output=True, text=True, timeout=60, env=clean_env(), check=True).stdout
    assert "% of 2" in metrics() and "memory" in metrics()
    assert json.loads(metrics("--json", "--all").splitlines()[0])["cpuCount"] == 2
    follower = subprocess.Popen([CUBICLE, "sandbox", "metrics", "-f", "--json", box.sandbox_id, *where], stdout=subprocess.PIPE, text=True, env=clean_env())
    seen = [json.loads(follower.stdout.readline())["timestamp"] for _ in range(3)]
    assert seen == sorted(set(seen))
    box.kill()
    follower.stdout.read()
    assert follower.wait(60) == 0
