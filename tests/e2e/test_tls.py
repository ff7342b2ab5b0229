"""TLS: certificates of a local authority, the published clients with E2B_DOMAIN alone (e2b.md A.1, F.100, F.102), certificates that change while connections are open."""

import base64
import concurrent.futures
import http.client
import json
import pathlib
import shutil
import signal
import socket
import ssl
import stat
import subprocess

import pytest

import leak
from conftest import check_leaks
from matrix.calls import names as call_names
from matrix.clients import CLIENTS
from names import Names
from server import CUBICLE, Server, clean_env, free_port, wait_for

HERE = pathlib.Path(__file__).parent
DOMAIN = "sbx.test"


def cubicle(server, *argv, code=0):
    """The command line as root of that server, with the options it runs with: what it printed."""
    options = [f"--{k}={v}" for k, v in {**server.options, "state.dir": server.state, "listen": f"127.0.0.1:{server.port}"}.items()]
    own = argv.index("--") if "--" in argv else len(argv)
    r = subprocess.run([CUBICLE, *argv[:own], *options, *argv[own:]], env=clean_env(), capture_output=True, text=True, timeout=60)
    assert r.returncode == code, r.stdout + r.stderr
    return r.stdout if code == 0 else r.stderr


def make_server(**options):
    s = Server(options={"domain": DOMAIN, "listen.tls": f"127.0.0.1:{free_port()}", **options})
    s.tls_port = int(s.options["listen.tls"].split(":")[1])
    return s


@pytest.fixture(scope="module")
def server():
    before = leak.snapshot()
    s = make_server()
    try:
        cubicle(s, "cert", "make")
        s.start()
        yield s
        assert s.process.poll() is None, f"the server died during the tests:\n{s.log_tail()}"
        s.kill_all_sandboxes()
        assert s.stop() == 0
        check_leaks(before, s)
    finally:
        s.destroy()


@pytest.fixture
def fresh():
    """A factory of servers that are not started, for tests of what goes wrong."""
    made = []

    def make(**options):
        made.append(make_server(**options))
        return made[-1]
    yield make
    for s in made:
        s.destroy()


@pytest.fixture
def names():
    n = Names(DOMAIN)
    yield n
    n.close()


def trust(server):
    context = ssl.create_default_context(cafile=server.state / "tls/ca.pem")
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # Python's default hides what these tests look at
    return context


def connect(server, name="api." + DOMAIN, context=None):
    raw = socket.create_connection(("127.0.0.1", server.tls_port), timeout=60)
    return (context or trust(server)).wrap_socket(raw, server_hostname=name, suppress_ragged_eofs=False)


def serial(s):
    return s.getpeercert()["serialNumber"]


def get(server, path="/health", host="api." + DOMAIN, context=None):
    """(status, body) of one request over a connection of its own."""
    c = http.client.HTTPConnection("127.0.0.1", server.tls_port)
    c.sock = connect(server, host, context)
    c.request("GET", path, headers={"Host": f"{host}:{server.tls_port}", "X-API-Key": server.api_key})
    r = c.getresponse()
    body = r.read()
    c.close()
    return r.status, body


def run_client(server, names, *argv):
    env = json.loads(cubicle(server, "env", "--json"))
    assert env["E2B_DOMAIN"] == f"{DOMAIN}:{server.tls_port}"
    assert "E2B_API_URL" not in env and "E2B_SANDBOX_URL" not in env
    r = subprocess.run(names.command(*argv), env=clean_env(env), capture_output=True, text=True, timeout=300, cwd="/")
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr[-4000:] + server.log_tail()
    return json.loads(r.stdout.splitlines()[-1])


def test_102_published_python_client_by_its_domain(server, names):
    told = run_client(server, names, shutil.which("python"), HERE / "tls/client.py", HERE / "tls/service.py")
    assert told["domain"] == f"{DOMAIN}:{server.tls_port}"
    assert told["host"] == f"3001-{told['id']}.{DOMAIN}:{server.tls_port}"


def test_100_102_published_javascript_client_by_its_domain(server, names):
    run_client(server, names, "node", HERE / "tls/client.mjs", HERE / "tls/service.py", HERE / "js/package.json")


# Of the matrix of test_clients.py: what uses connections in ways of its own.
CALLS = ["create", "run large output", "stdin", "hundred commands at once", "pty", "write and read", "read a stream", "watch", "kill"]
# The other two are driven above.
OTHERS = [c for c in CLIENTS if c.suite == "sdk" and c.id not in ("npm-2.51", "pypi-2.45")]


@pytest.mark.parametrize("client", OTHERS, ids=lambda c: c.id)
def test_every_version_of_the_clients(server, names, client):
    words, cwd = client.command()
    words = words[:len(words) - len(call_names(client.suite))] + CALLS
    env = clean_env(json.loads(cubicle(server, "env", "--json")))
    env["E2B_API_URL"] = f"https://api.{DOMAIN}:{server.tls_port}"  # the drivers want it; the clients would make the same of the domain
    r = subprocess.run(names.command(*words), cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    found = {entry["call"]: (entry["result"], entry["detail"]) for entry in map(json.loads, r.stdout.splitlines())}
    assert r.returncode == 0, f"{found}\n{r.stderr[-4000:]}"
    # Older versions lack some calls.
    assert [c for c in CALLS if found[c][0] not in ("ok", "absent")] == [], found


def test_the_command_line_by_the_domain(server, names):
    """From a machine that has neither the server's state directory nor its options."""
    env = clean_env(json.loads(cubicle(server, "env", "--json")))
    run = names.command(CUBICLE, "run", "base", "--state.dir=/nonexistent", "-n", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    r = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
    assert (r.returncode, r.stdout, r.stderr) == (7, "out\n", "err\n")
    del env["SSL_CERT_FILE"]
    r = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
    assert r.returncode == 125 and "certificate" in r.stderr


def test_env_for_a_shell(server):
    script = f'E2B_API_URL=http://old E2B_SANDBOX_URL=http://old; {cubicle(server, "env")}\necho "$E2B_DOMAIN|$NODE_EXTRA_CA_CERTS|$SSL_CERT_FILE|$E2B_API_URL$E2B_SANDBOX_URL"'
    out = subprocess.run(["sh", "-euc", script.replace("$E2B_API_URL$", "${E2B_API_URL:-}$").replace("$E2B_SANDBOX_URL\"", "${E2B_SANDBOX_URL:-}\"")],
                         env=clean_env(), capture_output=True, text=True, check=True).stdout
    assert out == f"{DOMAIN}:{server.tls_port}|{server.state}/tls/ca.pem|{server.state}/tls/bundle.pem|\n"


def test_the_same_is_served_with_and_without_tls(server):
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 201 and made["domain"] == f"{DOMAIN}:{server.tls_port}"
    assert get(server)[0] == 200
    assert get(server, host=f"49983-{made['sandboxID']}.{DOMAIN}") == (204, b"")
    # HTTP is told of by its port, and of its name by no other.
    c = http.client.HTTPConnection("127.0.0.1", server.tls_port, timeout=60)
    c.request("GET", "/health")
    r = c.getresponse()
    assert r.status == 400 and "https://" in json.loads(r.read())["message"]
    assert server.call("DELETE", "/sandboxes/" + made["sandboxID"])[0] == 204


def test_a_client_without_our_authority_refuses(server):
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, context=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, name="bank.example")


def test_100_http_2_is_not_announced(server):
    context = trust(server)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with connect(server, context=context) as s:
        assert s.selected_alpn_protocol() == "http/1.1"
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError, match="no application protocol"):
        connect(server, context=context)


def test_a_hundred_at_once_beside_silent_ones(server):
    """Handshakes that do not go on keep nobody else waiting."""
    silent = [socket.create_connection(("127.0.0.1", server.tls_port)) for _ in range(100)]
    for s in silent[:50]:
        s.sendall(b"\x16\x03\x01")
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        statuses = list(pool.map(lambda _: get(server)[0], range(200)))
    assert statuses == [200] * 200
    for s in silent:
        s.close()


def start_stream(server, made):
    """An answer under way: the output of a command that goes on, one line for each that is given to its FIFO."""
    message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", "mkfifo /tmp/f; echo begin; exec cat 0<>/tmp/f"]}, "stdin": False}).encode()
    envelope = b"\0" + len(message).to_bytes(4, "big") + message
    s = connect(server, f"49983-{made['sandboxID']}.{DOMAIN}")
    s.sendall(f"POST /process.Process/Start HTTP/1.1\r\nHost: 49983-{made['sandboxID']}.{DOMAIN}\r\nX-Access-Token: {made['envdAccessToken']}\r\n"
              f"Content-Type: application/connect+json\r\nContent-Length: {len(envelope)}\r\n\r\n".encode() + envelope)
    return s


def say_inside(server, made, text):
    cubicle(server, "sandbox", "exec", made["sandboxID"], "-n", "--", "sh", "-c", f"echo {text} >/tmp/f")


def read_until(s, word):
    data = b""
    while word not in data:
        more = s.recv(65536)
        assert more, f"ended after {data!r}"
        data += more


def b64(text):
    return base64.b64encode(text.encode() + b"\n")


def test_certificates_are_replaced_while_a_stream_runs(server):
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 201
    try:
        stream = start_stream(server, made)
        read_until(stream, b64("begin"))
        with connect(server) as s:
            first = serial(s)
        assert serial(stream) == first
        assert "running server" in cubicle(server, "cert", "make")
        with connect(server) as s:
            second = serial(s)
        assert second != first
        say_inside(server, made, "still")
        read_until(stream, b64("still"))

        # What cannot be used changes nothing, and is told.
        pem = server.state / "tls/server.pem"
        good = pem.read_text()
        pem.write_text("nothing of use")
        assert "server.pem" in cubicle(server, "cert", "reload", code=1)
        with connect(server) as s:
            assert serial(s) == second
        pem.write_text(good)
        cubicle(server, "cert", "reload")
        cubicle(server, "cert", "reload", "--json")
        with connect(server) as s:
            assert serial(s) == second

        # The same by a signal.
        key = pem.with_name("elsewhere.pem")
        key.write_text(good)
        pem.write_text("")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "certificates were not read again" in server.log_tail(100000), what="the log's complaint")
        pem.write_text(good)
        key.unlink()
        reads = server.log_path.read_text().count("certificate read")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.log_path.read_text().count("certificate read") > reads, what="the log's confirmation")
        say_inside(server, made, "and-on")
        read_until(stream, b64("and-on"))
        stream.close()
    finally:
        server.call("DELETE", "/sandboxes/" + made["sandboxID"])


def test_101_a_kill_cuts_streams(server):
    """Over TLS a cut is an end without close_notify, which no client takes for a regular one."""
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 201
    stream = start_stream(server, made)
    read_until(stream, b64("begin"))
    assert server.call("DELETE", "/sandboxes/" + made["sandboxID"])[0] == 204
    with pytest.raises((ssl.SSLError, ConnectionResetError), match="(?i)eof|reset"):
        while stream.recv(65536):
            pass


class HalfClosing:
    """What Python's own sockets cannot: close_notify is sent, and reading goes on."""

    def __init__(self, server, name):
        self.raw = socket.create_connection(("127.0.0.1", server.tls_port), timeout=60)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = trust(server).wrap_bio(self.incoming, self.outgoing, server_hostname=name)
        self._do(self.tls.do_handshake)

    def _do(self, what, *args, wait=True):
        while True:
            try:
                done = what(*args)
            except ssl.SSLWantReadError:
                self.raw.sendall(self.outgoing.read())
                if not wait:
                    return None
                if more := self.raw.recv(65536):
                    self.incoming.write(more)
                else:
                    self.incoming.write_eof()
                continue
            self.raw.sendall(self.outgoing.read())
            return done

    def send(self, data):
        self._do(self.tls.write, data)

    def receive(self):
        """b"" at the end that the server announced; without that SSLEOFError."""
        try:
            return self._do(self.tls.read, 65536)
        except ssl.SSLZeroReturnError:
            return b""

    def end(self):
        self._do(self.tls.unwrap, wait=False)


def test_tunnels_have_halves(server):
    """The client's close_notify ends its half alone: the service still answers."""
    code = ("import socket\ns = socket.create_server(('127.0.0.1', 3005))\nc, _ = s.accept()\nc.recv(65536)\n"
            "c.sendall(b'HTTP/1.1 101 Up\\r\\nConnection: Upgrade\\r\\nUpgrade: raw\\r\\n\\r\\n')\n"
            "n = 0\nwhile more := c.recv(65536):\n n += len(more)\nc.sendall(b'got %d' % n)\nc.close()\n")
    status, made = server.call("POST", "/v2/sandboxes", {"templateID": "base"})
    assert status == 201
    host = f"3005-{made['sandboxID']}.{DOMAIN}"
    service = subprocess.Popen([CUBICLE, "sandbox", "exec", made["sandboxID"], f"--state.dir={server.state}", "-n", "--", "python3", "-c", code], env=clean_env())
    try:
        def upgraded():
            s = HalfClosing(server, host)
            s.send(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n".encode())
            return s if s.receive().startswith(b"HTTP/1.1 101 ") else s.raw.close()
        s = wait_for(upgraded, 30, "the service inside")
        for _ in range(64):
            s.send(bytes(65536))
        s.end()
        told = b""
        while more := s.receive():
            told += more
        assert told == b"got %d" % (64 * 65536)
        s.raw.close()
    finally:
        service.kill()
        service.wait()
        server.call("DELETE", "/sandboxes/" + made["sandboxID"])


def test_a_restarted_front_has_its_certificates(server):
    with connect(server) as s:
        before = serial(s)
    pid = server.kill_process("front")
    wait_for(lambda: server.children().get("front") not in (None, pid), what="a new front")
    assert get(server)[0] == 200
    with connect(server) as s:
        assert serial(s) == before


def test_keys_are_where_only_root_reads_them(server):
    tls = server.state / "tls"
    for name, mode in (("ca.key", 0o600), ("server.pem", 0o600), ("ca.pem", 0o644), ("bundle.pem", 0o644)):
        assert stat.S_IMODE((tls / name).stat().st_mode) == mode and (tls / name).stat().st_uid == 0
    # The front got them in memory: its own directory holds none, and of the rest it sees nothing.
    assert not any(b"PRIVATE KEY" in f.read_bytes() for f in (server.state / "front").rglob("*") if f.is_file())
    assert not list(pathlib.Path(f"/proc/{server.children()['front']}/root").rglob("*.pem"))


# What goes wrong


def test_a_server_needs_a_certificate_it_can_use(fresh):
    s = fresh()
    s.start(wait=False)
    assert s.process.wait(60) == 1
    assert "cubicle cert make" in s.log_tail()
    cubicle(s, "cert", "make")
    other = fresh()
    cubicle(other, "cert", "make")
    s.options["tls.cert"], s.options["tls.key"] = s.state / "tls/server.pem", other.state / "tls/server.pem"
    s.start(wait=False)
    assert s.process.wait(60) == 1
    assert "does not belong" in s.log_tail()


def test_certificates_by_name(fresh):
    """Two pairs in two pairs of files; each is given to who asks for its name, the first to all others."""
    s, other = fresh(), fresh(domain="other.test")
    for one in (s, other):
        cubicle(one, "cert", "make")
    s.options["tls.cert"] = f"{s.state}/tls/server.pem, {other.state}/tls/server.pem"
    s.start()
    get(s)
    assert serial(connect(s)) == serial(connect(s, f"1-x.{DOMAIN}")) == serial(connect(s, "localhost"))
    assert serial(connect(other_context(s, other), "api.other.test")) != serial(connect(s))
    assert "in use" in cubicle(s, "cert", "make")  # the first of the two files is the one that this replaces
    shown = json.loads(cubicle(s, "cert", "show", "--json"))
    assert [x["names"].split()[0] for x in shown if x["what"] == "server"] == [DOMAIN, "other.test"]
    env = json.loads(cubicle(s, "env", "--json"))
    assert "NODE_EXTRA_CA_CERTS" not in env and "SSL_CERT_FILE" not in env


class other_context:
    """The server of one, trusted by the authority of the other."""

    def __init__(self, server, authority):
        self.tls_port, self.state = server.tls_port, authority.state


def test_cert_make_keeps_its_authority(fresh):
    s = fresh()
    tls = s.state / "tls"
    assert "new: clients have to trust it" in cubicle(s, "cert", "make")
    ca, pem = (tls / "ca.pem").read_text(), (tls / "server.pem").read_text()
    assert "kept" in cubicle(s, "cert", "make", "--days", "30")
    assert (tls / "ca.pem").read_text() == ca and (tls / "server.pem").read_text() != pem
    assert (tls / "bundle.pem").read_text().endswith(ca)
    shown = json.loads(cubicle(s, "cert", "show", "--json"))
    assert shown[0]["daysLeft"] in (3649, 3650) and shown[1]["daysLeft"] in (29, 30)
    # Without the option the domain of the last time counts.
    s.options["domain"] = ""
    assert f"*.{DOMAIN}" in cubicle(s, "cert", "make")
    s.options["domain"] = "other.test"
    assert "--new-ca" in cubicle(s, "cert", "make", code=1)
    s.options["domain"] = "team." + DOMAIN
    cubicle(s, "cert", "make")
    s.options["domain"] = "other.test:8443"
    assert "new" in cubicle(s, "cert", "make", "--new-ca")
    (tls / "ca.key").unlink()
    assert "ca.key" in cubicle(s, "cert", "make", code=1)
    for bad in ("127.0.0.1", "a b", "*.x", "-", "a" * 300, "a.b,DNS:evil"):
        s.options["domain"] = bad
        assert "is no domain" in cubicle(s, "cert", "make", code=1)


def test_cert_make_on_a_full_disk(fresh):
    """What is there stays whole, and what a killed run left is cleared away."""
    s = fresh()
    cubicle(s, "cert", "make")
    tls = s.state / "tls"
    before = {f.name: f.read_bytes() for f in tls.iterdir()}
    (tls / "server.pem.abcdefgh.tmp").write_text("half of a key")
    script = (f"mount --make-rprivate / && mkdir {s.state}/small && mount -t tmpfs -o size=64k none {s.state}/small && mkdir {s.state}/small/tls && "
              f"cp {tls}/ca.* {tls}/server.pem {s.state}/small/tls && {CUBICLE} cert make --domain={DOMAIN} --state.dir={s.state}/small; echo code $?; "
              f"cmp {tls}/server.pem {s.state}/small/tls/server.pem && ls {s.state}/small/tls")
    r = subprocess.run(["unshare", "-m", "sh", "-c", script], env=clean_env(), capture_output=True, text=True)
    assert "No space left" in r.stderr and "code 1" in r.stdout, r.stdout + r.stderr
    assert r.stdout.split()[2:] == ["ca.key", "ca.pem", "server.pem"]
    assert {f.name: f.read_bytes() for f in tls.iterdir() if f.suffix != ".tmp"} == before
    cubicle(s, "cert", "make")
    assert sorted(f.name for f in tls.iterdir()) == sorted(before)


def test_cert_make_says_whether_it_is_used(fresh):
    """Also when the server was started with options that the command does not know."""
    s, other = fresh(), fresh()
    cubicle(other, "cert", "make")
    s.options["tls.cert"] = other.state / "tls/server.pem"
    s.start()
    del s.options["tls.cert"]
    assert "in use" not in cubicle(s, "cert", "make")
    s.options["tls.cert"] = other.state / "tls/server.pem"
    assert "names other files" in cubicle(s, "cert", "make")


def test_cert_commands_say_what_is_missing(fresh):
    s = fresh(domain="")
    assert "--domain" in cubicle(s, "cert", "make", code=1)
    assert "cubicle cert make" in cubicle(s, "cert", "show", code=1)
    assert "no server answers" in cubicle(s, "cert", "reload", code=1)
    r = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", CUBICLE, "cert", "make", f"--state.dir={s.state}"], env=clean_env(), capture_output=True, text=True)
    assert r.returncode == 1 and "needs root" in r.stderr


def test_a_server_without_tls_says_so(own_server):
    s = own_server()
    s.options["domain"] = DOMAIN
    assert "listen.tls" in cubicle(s, "cert", "reload", code=1)
    # Making one is fine: it serves from the next start on.
    assert "listen.tls" in cubicle(s, "cert", "make")
    s.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "listen.tls is not set" in s.log_tail(), what="the log's answer to the signal")
    assert s.call("GET", "/health")[0] == 200
    shutil.rmtree(s.state / "tls")


def test_options_that_do_not_go_together(fresh):
    s = fresh(**{"tls.key": "/x"})
    assert "tls.cert" in cubicle(s, "config", code=2)
    s.options = {"tls.cert": "/x"}
    assert "listen.tls" in cubicle(s, "config", code=2)
