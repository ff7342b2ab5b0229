"""What sandboxes may reach: network policies at a create and live, against hosts of the test's own (docs/security.md, "The network")."""

import concurrent.futures
import json
import os
import subprocess

import pytest
from e2b import Sandbox

from conftest import serving
from backend import MICROVM
from server import wait_for


@pytest.fixture(scope="module")
def server(world):
    with serving(options={"dns.upstream": world.dns}) as s:
        yield s


@pytest.fixture
def box(server):
    b = Sandbox.create("base", timeout=600)
    yield b
    b.kill()


def reached(box, *addresses):
    """Those of the addresses that answer; the others must refuse, not be silent (curl: 7)."""
    script = "; ".join(f"curl -s -m 60 http://{a}/ >/dev/null; echo {a} $?" for a in addresses)
    codes = dict(line.split() for line in box.commands.run(script, timeout=300).stdout.splitlines())
    assert set(codes) == set(addresses) and set(codes.values()) <= {"0", "7"}, codes
    return [a for a in addresses if codes[a] == "0"]


ASK = r"""
import socket, struct, sys
name = b"".join(bytes([len(p)]) + p for p in sys.argv[1].encode().split(b".")) + b"\0"
query = struct.pack("!6H", 4660, 256, 1, 0, 0, 0) + name + struct.pack("!HH", 1, 1)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(60)
server = next(line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver"))
udp.sendto(query, (server, 53))
tcp = socket.create_connection((server, 53), 60)
tcp.sendall(struct.pack("!H", len(query)) + query)
print(udp.recv(4096)[3] & 15, tcp.recv(4096)[5] & 15)
"""


def rcodes(box, name="a.example.com"):
    """The answers of the sandbox's resolver over UDP and TCP: 0 = fine, 5 = refused."""
    box.files.write("/tmp/ask.py", ASK)
    return box.commands.run(f"python3 /tmp/ask.py {name}", timeout=200).stdout.split()


def test_lists_of_a_create(server, world):
    a, b, c = world.hosts
    for network, wanted in [
        ({"deny_out": [b]}, [a, c]),
        ({"allow_out": [b], "deny_out": ["0.0.0.0/0"]}, [b]),
        ({"allow_out": [b]}, [a, b, c]),  # without anything denied an allowed address changes nothing
        ({"allow_out": ["203.0.113.0/24"], "deny_out": [b, "0.0.0.0/1", "128.0.0.0/1"]}, [b, c]),
        ({"allow_out": ["0.0.0.0/0"], "deny_out": lambda ctx: [ctx.all_traffic]}, [a, b, c]),
    ]:
        box = Sandbox.create("base", network=network)
        try:
            assert reached(box, a, b, c, world.lan) == wanted, network
        finally:
            box.kill()
    box = Sandbox.create("base", allow_internet_access=False, network={"allow_out": [c]})
    try:
        assert reached(box, a, b, c) == [c]
        info = box.get_info()
        assert info.allow_internet_access is False and info.network == {"allow_out": [c], "allow_public_traffic": True}
    finally:
        box.kill()


def test_a_policy_is_replaced_whole(server, world, box):
    a, b, c = world.hosts
    assert reached(box, a, b, c) == [a, b, c]
    box.update_network({"deny_out": [a], "allow_internet_access": True})
    assert reached(box, a, b) == [b]
    box.update_network({"allow_out": [a], "deny_out": ["0.0.0.0/0"]})
    assert reached(box, a, b) == [a]
    assert box.get_info().network == {"allow_out": [a], "deny_out": ["0.0.0.0/0"], "allow_public_traffic": True}
    box.update_network({"allow_internet_access": False})
    assert reached(box, a, b) == []
    assert box.get_info().network == {"allow_public_traffic": True}
    box.update_network({})
    assert reached(box, a, b, c) == [a, b, c]
    assert box.get_info().allow_internet_access is None


def test_119_names_are_refused_without_the_internet(server, world, box):
    """Case 119: REFUSED, not silence; and with it, what the resolver knows."""
    a = world.hosts[0]
    assert rcodes(box) == ["0", "0"]
    assert a in box.commands.run("getent ahostsv4 a.example.com").stdout
    for policy in ({"allow_internet_access": False}, {"deny_out": ["0.0.0.0/0"]}, {"deny_out": ["0.0.0.0/1", "128.0.0.0/1"], "allow_out": [a]}):
        box.update_network(policy)
        assert rcodes(box) == ["5", "5"], policy
    for policy in ({"deny_out": ["0.0.0.0/1"]}, {"deny_out": ["0.0.0.0/0"], "allow_out": ["0.0.0.0/0"]}, {}):
        box.update_network(policy)
        assert rcodes(box) == ["0", "0"], policy
    off = Sandbox.create("base", allow_internet_access=False)
    try:
        assert rcodes(off) == ["5", "5"]
        assert off.commands.run("getent hosts a.example.com || echo $?").stdout == "2\n"
    finally:
        off.kill()


def test_124_an_address_that_no_list_names_is_refused_at_connect(server, world, box):
    """Case 124, without its domains: refused at connect, not accepted and then reset."""
    a, b, _ = world.hosts
    box.update_network({"allow_out": [a], "deny_out": ["0.0.0.0/0"]})
    script = ("import socket, sys\ntry:\n    socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)\n    print('connected')\n"
              "except ConnectionRefusedError:\n    print('refused')\n")
    box.files.write("/tmp/connect.py", script)
    for address, port, wanted in [(a, 80, "connected"), (b, 80, "refused"), (b, 443, "refused"), ("9.9.9.9", 443, "refused"), ("9.9.9.9", 53, "refused"), (world.lan, 80, "refused")]:
        assert box.commands.run(f"python3 /tmp/connect.py {address} {port}", timeout=200).stdout == wanted + "\n", (address, port)


@pytest.mark.parametrize("field, entry, status, words", [
    ("denyOut", "0.0.0.0/0", 204, None), ("denyOut", "240.0.0.0/4", 204, None), ("denyOut", "255.255.255.255/32", 204, None), ("denyOut", "1.2.3.4/8", 204, None),
    ("denyOut", "::/0", 204, None), ("denyOut", "1.2.3.4/33", 400, "invalid denied CIDR"), ("denyOut", "a.com", 400, "invalid denied CIDR"), ("denyOut", "", 400, "denyOut[0]"),
    ("allowOut", "1.2.3.4/8", 204, None), ("allowOut", "1.2.3.4/33", 400, "invalid allowed address"), ("allowOut", "999.999.999.999", 400, "invalid allowed address"),
    ("allowOut", "::/0", 400, "IPv6"), ("allowOut", "example.com", 501, "allowOut[0]"), ("allowOut", "*.example.com", 501, "domains"),
    ("allowOut", "169.254.169.254", 400, "network.private"), ("allowOut", "127.0.0.1", 400, "network.private"), ("allowOut", "224.0.0.1", 400, "network.private"),
])
def test_134_entries(server, box, field, entry, status, words):
    """Case 134, at a create and live."""
    got, answer = server.call("PUT", f"/sandboxes/{box.sandbox_id}/network", {field: [entry]})
    assert got == status and (words is None or words in answer["message"]), answer
    got, made = server.call("POST", "/v2/sandboxes", {"templateID": "base", "network": {field: [entry]}})
    assert got == {204: 201}.get(status, status), made
    if got == 201:
        detail = server.call("GET", f"/sandboxes/{made['sandboxID']}")[1]
        assert detail["network"][field] == [entry]  # as given
        server.call("DELETE", f"/sandboxes/{made['sandboxID']}")
    else:
        assert words in made["message"]


@pytest.mark.parametrize("body, status, words", [
    ({"rules": {"a.com": [{"transform": {"headers": {"a": "b"}}}]}}, 501, "rules"), ({"egressProxy": {"address": "a:1"}}, 501, "egressProxy"),
    ({"maskRequestHost": "a"}, 501, "maskRequestHost"), ({"dnsServers": []}, 501, "dnsServers"), ({"httpsPorts": [8443]}, 501, "httpsPorts"),
    ({"allowPublicTraffic": False}, 501, "allowPublicTraffic"), ({"denyOut": "0.0.0.0/0"}, 400, "denyOut"), ({"denyOut": ["1.1.1.1"] * 257}, 400, "256"),
    ({"rules": {}, "egressProxy": None, "allow_public_traffic": True, "something": 1}, 204, None),
])
def test_what_is_not_served_is_named(server, box, body, status, words):
    got, answer = server.call("PUT", f"/sandboxes/{box.sandbox_id}/network", body)
    assert got == status and (words is None or words in answer["message"]), answer


def test_only_what_runs_has_a_policy_to_change(server):
    assert server.call("PUT", "/sandboxes/i00000000000000000000/network", {})[0] == 404
    box = Sandbox.create("base")
    box.kill()
    assert server.call("PUT", f"/sandboxes/{box.sandbox_id}/network", {})[0] == 404


def test_136_a_change_cuts_what_is_open(server, world, box):
    """Case 136: a download ends when its host is denied, another one goes on; nothing a root inside does brings it back."""
    a, b, _ = world.hosts
    cut = box.commands.run(f"timeout 300 curl -s -o /tmp/cut http://{a}/stream; echo curl $?", background=True, timeout=0)
    box.commands.run(f"curl -s -o /tmp/kept http://{b}/stream", background=True, timeout=0)

    def size(name):
        return int(box.commands.run(f"stat -c %s /tmp/{name} 2>/dev/null || echo 0").stdout)
    wait_for(lambda: size("cut") and size("kept"), 60, "both downloads")
    box.update_network({"allow_out": [b], "deny_out": ["0.0.0.0/0"]})
    assert cut.wait().stdout == "curl 56\n"  # its socket was ended: it did not wait for a timeout
    assert reached(box, a) == []
    before = size("kept")
    wait_for(lambda: size("kept") > before, 60, "the allowed download to go on")
    box.commands.run("nft flush ruleset; iptables -F; ip route del default; ip link set eth0 down; true", user="root")
    assert reached(box, a, b) == ([] if MICROVM else [b])  # a kernel of its own does as root says


def test_136_a_flow_of_datagrams_is_cut(server, world, box):
    """What has no connection that could be ended."""
    box.files.write("/tmp/udp.py", ASK.split("tcp =")[0].replace("(server,", "(sys.argv[2],") + r"""
udp.connect((sys.argv[2], 53))
for line in sys.stdin:
    try:
        udp.send(query)
        print(len(udp.recv(4096)) > 0, flush=True)
    except OSError as e:
        print(type(e).__name__, flush=True)
""")
    c = box.commands.run(f"python3 /tmp/udp.py a.example.com {world.dns}", background=True, stdin=True, timeout=0)
    out = iter(c)
    box.commands.send_stdin(c.pid, "again\n")
    assert next(out)[0] == "True\n"
    box.update_network({"deny_out": [world.dns]})
    box.commands.send_stdin(c.pid, "again\n")
    assert next(out)[0] != "True\n"
    c.kill()


def test_private_networks_only_by_name(server, world, own_server):
    """An entry that lies in a private network opens it for its sandbox; a wider one does not, and an administrator may close them."""
    a, lan = world.hosts[0], world.lan
    box, other = Sandbox.create("base", network={"allow_out": [lan]}), Sandbox.create("base", network={"allow_out": ["0.0.0.0/0", "8.0.0.0/5"]})
    try:
        assert reached(box, a, lan) == [a, lan]
        assert reached(other, a, lan) == [a]
        box.update_network({"allow_out": ["0.0.0.0/0"]})
        assert reached(box, a, lan) == [a]
        other.update_network({"allow_out": [lan.rsplit(".", 1)[0] + ".0/24"], "deny_out": ["0.0.0.0/0"]})
        assert reached(other, a, lan) == [lan]
    finally:
        box.kill()
        other.kill()
    s = own_server(options={"network.private": ""})
    status, answer = s.call("POST", "/v2/sandboxes", {"templateID": "base", "network": {"allowOut": [lan]}})
    assert status == 400 and "network.private" in answer["message"]


def test_139_rules_survive_a_killed_node_and_a_restart(own_server, world, tmp_path):
    """Case 139: also those of a private network, which the host's chains hold too."""
    a, b, _ = world.hosts
    fault = tmp_path / "fault"
    s = own_server(options={"dns.upstream": world.dns}, env={"FAULT_POINT_FILE": str(fault)})
    client = {"api_key": s.api_key, "api_url": s.url, "sandbox_url": s.url}
    made = Sandbox.create("base", timeout=600, network={"allow_out": [a, world.lan], "deny_out": ["0.0.0.0/0"]}, **client)
    changed = Sandbox.create("base", timeout=600, network={"allow_out": [a], "deny_out": ["0.0.0.0/0"]}, **client)
    changed.update_network({"deny_out": [a]})

    def check():
        assert reached(made, a, b, world.lan) == [a, world.lan]
        assert rcodes(made) == ["5", "5"]
        assert reached(changed, a, b, world.lan) == [b]
        assert rcodes(changed) == ["0", "0"]
    check()

    def new_node(old):
        wait_for(lambda: s.children().get("node", old) != old, 60, "a new node")
        wait_for(lambda: s.call("PUT", f"/sandboxes/{other.sandbox_id}/network", {})[0] == 204, 60, "it to serve")
    other = Sandbox.create("base", timeout=600, **client)
    new_node(s.kill_process("node"))
    check()
    # Killed in between: what is recorded is in force, whatever the kernel had.
    for point, wanted in (("network_applied", [b]), ("network_recorded", [a])):
        node = s.children()["node"]
        fault.write_text(point)
        assert s.call("PUT", f"/sandboxes/{changed.sandbox_id}/network", {"denyOut": [b]})[0] >= 500
        new_node(node)
        assert reached(changed, a, b) == wanted, point
        shown = [a if wanted == [b] else b]
        wait_for(lambda: s.call("GET", f"/sandboxes/{changed.sandbox_id}")[1]["network"]["denyOut"] == shown, 60, "it to be shown")
    changed.update_network({"deny_out": [a]})
    assert s.stop() == 0
    s.start()
    check()
    assert made.get_info().network == {"allow_out": [a, world.lan], "deny_out": ["0.0.0.0/0"], "allow_public_traffic": True}
    # What the administrator has closed since is not opened again: nothing is reached, rather than what was not asked for.
    assert s.stop() == 0
    s.options["network.private"] = ""
    s.start()
    assert reached(made, a, b, world.lan) == [] and rcodes(made) == ["5", "5"]
    assert reached(changed, a, b) == [b]


def test_139_rules_survive_pauses(server, world, box):
    """Case 139: with memory kept, and started again from the disk; a paused sandbox has no policy to change."""
    a, b, _ = world.hosts
    box.update_network({"allow_out": [a, world.lan], "deny_out": ["0.0.0.0/0"]})
    for body in ({}, {"memory": False}):
        assert server.call("POST", f"/sandboxes/{box.sandbox_id}/pause", body)[0] == 204
        status, answer = server.call("PUT", f"/sandboxes/{box.sandbox_id}/network", {})
        assert status == 409 and "not running" in answer["message"], answer
        box.connect(timeout=600)
        assert reached(box, a, b, world.lan) == [a, world.lan], body
        assert rcodes(box) == ["5", "5"]
        assert box.get_info().network == {"allow_out": [a, world.lan], "deny_out": ["0.0.0.0/0"], "allow_public_traffic": True}
    box.update_network({})
    assert reached(box, a, b) == [a, b]


def test_139_rules_are_inherited(server, world, box):
    """Case 139: by forks, with the private network that the host's chains open for each by itself; a snapshot and a rollback change nothing."""
    a, b, _ = world.hosts
    path = f"/sandboxes/{box.sandbox_id}"
    policy = {"allow_out": [b, world.lan], "deny_out": ["0.0.0.0/0"], "allow_public_traffic": True}
    box.update_network({"allow_out": [b, world.lan], "deny_out": ["0.0.0.0/0"]})
    status, forks = server.call("POST", path + "/fork", {"count": 2, "timeout": 300})
    assert status == 201, forks
    children = [Sandbox.connect(f["sandbox"]["sandboxID"]) for f in forks]
    try:
        for child in children:
            assert reached(child, a, b, world.lan) == [b, world.lan]
            assert child.get_info().network == policy
        children[0].update_network({"deny_out": [b]})
        assert reached(children[0], a, b, world.lan) == [a]
        assert reached(children[1], a, b, world.lan) == [b, world.lan]
    finally:
        for child in children:
            child.kill()
    status, snapshot = server.call("POST", path + "/snapshots", {})
    assert status == 201, snapshot
    assert reached(box, a, b, world.lan) == [b, world.lan]
    status, answer = server.call("POST", path + "/rollback", {"snapshotID": snapshot["snapshotID"]})
    assert status in (200, 201), answer
    assert reached(box, a, b, world.lan) == [b, world.lan]
    assert box.get_info().network == policy


JAVASCRIPT = r"""
import assert from 'node:assert/strict'
import { Sandbox, ALL_TRAFFIC } from 'e2b'
const [a, b] = JSON.parse(process.env.HOSTS)
const box = await Sandbox.create('base', { network: { allowOut: [a], denyOut: [ALL_TRAFFIC] } })
const codes = async () => (await box.commands.run(`for h in ${a} ${b}; do curl -s -m 60 http://$h/ >/dev/null; echo $?; done`)).stdout
assert.equal(await codes(), '0\n7\n')
await box.updateNetwork({ denyOut: [a] })
assert.equal(await codes(), '7\n0\n')
await box.updateNetwork({ allowInternetAccess: false })
assert.equal(await codes(), '7\n7\n')
await Sandbox.updateNetwork(box.sandboxId, {})
assert.equal(await codes(), '0\n0\n')
await box.kill()
"""


def test_the_javascript_client_changes_policies(server, world):
    js = os.path.join(os.path.dirname(__file__), "js")
    r = subprocess.run(["node", "--input-type=module", "-e", JAVASCRIPT], cwd=js, env={**os.environ, **server.env(), "HOSTS": json.dumps(world.hosts[:2])},
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr


def test_a_hundred_changes_at_once(server, world):
    """Those of one sandbox wait for each other; the last one that was answered holds."""
    a, b, _ = world.hosts
    boxes = [Sandbox.create("base", timeout=600) for _ in range(4)]
    try:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            jobs = [pool.submit(server.call, "PUT", f"/sandboxes/{boxes[i % 4].sandbox_id}/network", {"denyOut": [f"11.0.{i}.0/24", a]}) for i in range(100)]
            assert {j.result()[0] for j in jobs} == {204}
        for box in boxes:
            assert reached(box, a, b) == [b]
            shown = server.call("GET", f"/sandboxes/{box.sandbox_id}")[1]["network"]["denyOut"]
            box.update_network({"deny_out": shown})
            assert reached(box, a, b) == [b]
    finally:
        for box in boxes:
            box.kill()
