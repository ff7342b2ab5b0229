"""GET /metrics on the listener of its own, read by Prometheus' own parser."""

import contextlib
import http.client
import re

import pytest
from e2b import Sandbox
from prometheus_client.parser import text_string_to_metric_families

from conftest import serving
from server import PROCESSES, free_port, wait_for

STATES = {"creating", "running", "pausing", "paused", "snapshotting", "killing"}
REASONS = {"killed", "timeout", "oom_killed", "disk_full", "host_lost", "crashed"}


class Monitor:
    def __init__(self, server, port):
        self.server, self.port = server, port

    def ask(self, path="/metrics", method="GET"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as c:
            c.request(method, path)
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read().decode()

    def samples(self):
        """{name: {(sorted labels): value}}; every family has help and type, no sample comes twice."""
        status, headers, text = self.ask()
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        found = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation and family.type in ("gauge", "counter", "histogram"), family
            for s in family.samples:
                key = tuple(sorted(s.labels.items()))
                assert key not in found.setdefault(s.name, {}), s
                found[s.name][key] = s.value
        return found

    def value(self, name, **labels):
        return self.samples()[name][tuple(sorted(labels.items()))]


@pytest.fixture(scope="module")
def monitor():
    port = free_port()
    with serving(options={"metrics.listen": f"127.0.0.1:{port}"}) as s:
        yield Monitor(s, port)


def test_states_creates_and_ends_are_counted(monitor):
    before = monitor.samples()
    assert {dict(k)["state"] for k in before["cubicle_sandboxes"]} == STATES
    assert {dict(k)["reason"] for k in before["cubicle_sandbox_ends_total"]} == REASONS
    box = Sandbox.create("base")
    assert monitor.value("cubicle_sandboxes", state="running") == 1
    assert monitor.value("cubicle_memory_promised_bytes") == 512 << 20
    wait_for(lambda: monitor.value("cubicle_sandboxes_memory_bytes", part="used") > 0, 60, "a sample")
    box.kill()
    Sandbox.create("base").set_timeout(0)
    wait_for(lambda: monitor.value("cubicle_sandbox_ends_total", reason="timeout") == 1, 60, "the end by timeout")
    after = monitor.samples()
    assert sum(after["cubicle_sandbox_creates_total"].values()) == 2
    assert after["cubicle_sandbox_ends_total"][(("reason", "killed"),)] == 1
    assert after["cubicle_sandboxes"][(("state", "running"),)] == 0
    assert after["cubicle_memory_promised_bytes"][()] == 0


def test_requests_are_counted_by_route_and_status(monitor):
    name = "cubicle_http_request_duration_seconds"
    route = {"method": "GET", "route": "/sandboxes/{sandboxID}"}
    for _ in range(3):
        assert monitor.server.call("GET", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa")[0] == 404
    monitor.server.call("GET", "/no/such/path?x=" + "y" * 100)
    samples = monitor.samples()
    labels = tuple(sorted({**route, "status": "404"}.items()))
    assert samples[name + "_count"][labels] == 3 and samples[name + "_sum"][labels] > 0
    buckets = [(float(dict(k)["le"]), v) for k, v in samples[name + "_bucket"].items() if {**dict(k), "le": ""} == {**route, "status": "404", "le": ""}]
    assert [v for _, v in sorted(buckets)] == sorted(v for _, v in buckets) and sorted(buckets)[-1] == (float("inf"), 3)
    assert samples[name + "_count"][tuple(sorted({"method": "", "route": "", "status": "404"}.items()))] == 1


def test_the_server_itself(monitor):
    samples = monitor.samples()
    assert [v for v in samples["cubicle_build_info"].values()] == [1]
    assert samples["cubicle_node_up"][()] == 1
    for name in ("cubicle_process_resident_bytes", "cubicle_process_open_files"):
        assert {dict(k)["process"] for k, v in samples[name].items() if v > 0} == {"serve"} | PROCESSES
    assert samples["cubicle_state_disk_bytes"][()] > samples["cubicle_state_disk_free_bytes"][()] > 0
    assert samples["cubicle_sandboxes_limit"][()] == 1000


def test_no_label_names_a_sandbox_or_what_clients_chose(monitor):
    with Sandbox.create("base", metadata={"secret-key": "secret-value"}) as box:
        box.commands.run("true")
        wait_for(lambda: box.get_metrics(), 60, "a sample")
        text = monitor.ask()[2]
        for word in (box.sandbox_id, "secret", monitor.server.api_key, box.sandbox_domain or "-"):
            assert word == "-" or word not in text
    assert set(re.findall(r'[{,](\w+)="', text)) <= {"state", "launch", "result", "cause", "reason", "part", "process", "version", "method", "route", "status", "le"}


def test_it_is_not_on_the_public_listener_and_nothing_else_is_on_its_own(monitor):
    status, body = monitor.server.call("GET", "/metrics")
    assert status == 501 and "metrics.listen" in body["message"]
    assert monitor.ask("/sandboxes")[0] == 404 and monitor.ask("/admin/keys")[0] == 404
    assert monitor.ask(method="POST")[0] == 405
    assert monitor.ask(method="HEAD")[2] == ""
    assert "Access-Control-Allow-Origin" not in monitor.ask()[1]


def test_a_restarted_node_comes_back(monitor):
    old = monitor.server.kill_process("node")
    wait_for(lambda: monitor.server.children().get("node", old) != old, 60, "a new node")
    wait_for(lambda: (s := monitor.samples())["cubicle_node_up"][()] == 1 and "cubicle_sandbox_ends_total" in s, 60, "the node's own figures")
