"""Images pulled from registries: Debian's docker-registry, plain, with TLS and with passwords; and one that lies, is slow, loops and leads elsewhere."""
import base64
import contextlib
import gzip
import hashlib
import http.server
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from registry import CONFIG, INDEX, LAYER, MANIFEST, Layer, Layout, Registry, make_certificate  # noqa: E402

PULL = os.environ["PULL"]


def pull(kind, *words, directory="", **options):
    """What pull.c prints. Options with '_' for '.'; ca, user and the like as they are."""
    flags = [f"--{k.replace('__', '.')}={v}" for k, v in options.items()]
    env = {"PATH": os.environ["PATH"], "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run([PULL, *flags, kind, *words, directory], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), f"{done.returncode}: {done.stderr}"
    assert "progress of" not in done.stderr, done.stderr
    out = json.loads(done.stdout)
    out["stderr"] = done.stderr
    return out


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Fake:
    """A registry that does as its test says: routes is a list of (beginning of the path, function(handler) or (status, headers, body)); else the blobs and manifests put into it."""

    def __init__(self, tls=None, port=0, address="127.0.0.1"):
        self.routes, self.asked, self.things, self.tags = [], [], {}, {}
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                fake.asked.append((self.command, self.path, dict(self.headers)))
                if self.command == "POST":
                    self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    fake.answer(self)
                except (OSError, ssl.SSLError):
                    self.close_connection = True

            do_POST = do_GET

            def handle(self):
                with contextlib.suppress(OSError):
                    super().handle()

            def reply(self, status, headers=(), body=b""):
                self.send_response(status)
                headers = dict(headers)
                for name, value in headers.items():
                    for one in value if isinstance(value, list) else [value]:
                        self.send_header(name, one)
                if "Content-Length" not in headers and "Transfer-Encoding" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
            daemon_threads = True
        self.server = Server((address, port), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.crt", tls / "server.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.host = f"[{address}]:{self.server.server_port}" if ":" in address else f"{address}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, h):
        path = h.path
        for start, what in self.routes:
            if path.startswith(start):
                return what(h) if callable(what) else h.reply(*what)
        name = path.split("?")[0].rpartition("/")[2]
        kind, data = self.things.get(self.tags.get(name, name), (None, None))
        if path == "/v2/":
            return h.reply(200)
        if data is None:
            return h.reply(404, {"Content-Type": "application/json"}, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no"}]}')
        wanted = h.headers.get("Range", "")
        if wanted.startswith("bytes="):
            a, b = wanted[6:].split("-")
            part = data[int(a):int(b) + 1]
            return h.reply(206, {"Content-Type": kind, "Content-Range": f"bytes {a}-{int(a) + len(part) - 1}/{len(data)}"}, part)
        return h.reply(200, {"Content-Type": kind, "Docker-Content-Digest": sha256(data)}, data)

    def put(self, kind, data, tag=None):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        digest = sha256(data)
        self.things[digest] = (kind, data)
        if tag:
            self.tags[tag] = digest
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def image(self, layers=(b"layer",), tag="latest", architecture="amd64", diff_ids=None, **config):
        """Layers are blobs (any bytes: nobody unpacks them here)."""
        blobs = [self.put(LAYER, data) for data in layers]
        c = {"os": "linux", "architecture": architecture, "config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids or [sha256(data) for data in layers]}}
        return self.put(MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, "config": self.put(CONFIG, c), "layers": blobs}, tag)

    def paths(self):
        return [path for _, path, _ in self.asked]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Case(unittest.TestCase):
    def setUp(self):
        self.tmp = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="cubicle-pull-", dir="/tmp")))

    if sys.version_info < (3, 11):
        def enterContext(self, context):
            value = context.__enter__()
            self.addCleanup(context.__exit__, None, None, None)
            return value

    def fake(self, **more):
        f = Fake(**more)
        self.addCleanup(f.close)
        return f

    def pull(self, fake, name="a/b:latest", fetch=True, **options):
        """From a fake that may be spoken to in plain HTTP."""
        options.setdefault("registry__insecure", fake.host)
        return pull("image", f"{fake.host}/{name}", directory=str(self.tmp) if fetch else "", platform="amd64", **options)

    def refused(self, out, *words, status=None):
        self.assertIn("error", out)
        for word in words:
            self.assertIn(word, out["error"])
        if status:
            self.assertEqual(out["status"], status, out)
        return out


class Debians(Case):
    """docker-registry, filled with images of a test's own."""

    def layout(self, big=False):
        layout = Layout(self.tmp / "layout")
        top = Layer().file("etc/motd", b"hello\n")
        if big:
            top.file("big", os.urandom(40 << 20))
        layout.image([Layer().dir("etc").file("etc/a", b"a"), top, Layer().file("z", b"z")],
                     {"Env": ["PATH=/bin", "A=1", "A=2"], "Cmd": ["/bin/sh"], "Entrypoint": ["/init"], "User": "me", "WorkingDir": "/w", "ExposedPorts": {"80/tcp": {}}, "Labels": {"k": "v"}},
                     tag="1", compression=["gzip", None if big else "zstd", None])
        return layout

    def check(self, layout, out):
        self.assertNotIn("error", out)
        self.assertEqual(out["digest"], layout.tags["1"]["digest"])
        self.assertEqual((out["env"], out["cmd"], out["entrypoint"], out["user"], out["workdir"], out["ports"]), (["PATH=/bin", "A=2"], ["/bin/sh"], ["/init"], "me", "/w", ["80/tcp"]))
        for i, layer in enumerate(out["layers"]):
            data = (self.tmp / str(i)).read_bytes()
            self.assertEqual((sha256(data), len(data)), (layer["digest"], layer["size"]))
        self.assertEqual(out["fetched"], sum(layer["size"] for layer in out["layers"]))

    def test_plain_http_needs_the_operators_word(self):
        with Registry() as hub:
            layout = self.layout(big=True)
            reference = hub.push(layout, "1", "team/hello", "1")
            self.refused(pull("image", reference), "not at a public address", "registry.private", status=400)
            self.refused(pull("image", "http://" + reference), "plain HTTP", "registry.insecure", status=400)
            self.refused(pull("image", "http://" + reference, registry__private=hub.host), "plain HTTP", status=400)
            self.refused(pull("image", reference, registry__private=hub.host), "TLS", status=502)
            self.refused(pull("image", "https://" + reference, registry__insecure=hub.host), "TLS", status=502)
            for name in (reference, "http://" + reference, "docker://" + reference):
                out = pull("image", name, directory=str(self.tmp), registry__insecure=hub.host.upper())
                self.check(layout, out)
                self.assertEqual(out["reference"], reference)
                self.assertIn("plain HTTP", out["log"][0])
                self.assertIn("without credentials", out["stderr"])
            self.assertEqual([layer["format"] for layer in out["layers"]], ["gzip", "tar", "tar"])
            pinned = f"{reference}@{layout.tags['1']['digest']}"
            self.check(layout, pull("image", pinned, directory=str(self.tmp), registry__insecure=hub.host))
            self.refused(pull("image", reference + "x", registry__insecure=hub.host), "does not have the image", status=404)

    def test_tls_with_an_authority_of_its_own(self):
        with Registry(tls=True) as hub:
            layout = self.layout()
            reference = hub.push(layout, "1", "team/hello", "1")
            self.refused(pull("image", reference, registry__private=hub.host), "TLS", "certificate", status=502)
            self.check(layout, pull("image", reference, directory=str(self.tmp), registry__private=hub.host, ca=hub.ca))
            out = pull("image", reference, directory=str(self.tmp), registry__insecure=hub.host)
            self.check(layout, out)
            self.assertIn("not verified", out["log"][0])
            out = pull("image", reference, registry__insecure=hub.host, ca=hub.ca)
            self.assertEqual(out["log"], [])

    def test_passwords(self):
        with Registry(tls=True, users={"anna": "s3cret"}) as hub:
            layout = self.layout()
            reference = hub.push(layout, "1", "team/hello", "1")
            safe = {"registry__private": hub.host, "ca": hub.ca}
            self.refused(pull("image", reference, **safe), "only to who has credentials", status=400)
            self.check(layout, pull("image", reference, directory=str(self.tmp), user="anna:s3cret", **safe))
            wrong = self.refused(pull("image", reference, user="anna:wr0ng", **safe), "refuses the credentials", status=400)
            self.assertNotIn("wr0ng", json.dumps(wrong))
            # Nobody vouches for it: the password stays here, unless the operator says so.
            self.refused(pull("image", reference, user="anna:s3cret", registry__insecure=hub.host), "not verified TLS", "registry.insecure_credentials", status=400)
            self.check(layout, pull("image", reference, directory=str(self.tmp), user="anna:s3cret", registry__insecure=hub.host, registry__insecure_credentials="true"))
            # From the operator's Docker configuration.
            login = self.tmp / "config.json"
            auth = base64.b64encode(b"anna:s3cret").decode()
            login.write_text(json.dumps({"auths": {hub.host: {"auth": base64.b64encode(b"anna:no").decode()}, f"https://{hub.host}/team": {"auth": auth}}}))
            self.check(layout, pull("image", reference, directory=str(self.tmp), login=login, **safe))
            login.write_text(json.dumps({"auths": {hub.host: {"auth": auth}}, "credHelpers": {hub.host: "x"}}))
            self.refused(pull("image", reference, login=login, **safe), "credHelpers", status=400)
            login.write_text(json.dumps({"auths": {"other.example": {"auth": auth}}}))
            self.refused(pull("image", reference, login=login, **safe), "only to who has credentials")

    def test_110_nested_index(self):
        """Case 110: an index in an index, attestations beside the images, an image of another machine only."""
        with Registry() as hub:
            layout = Layout(self.tmp / "layout")
            images = {p: layout.image([Layer().file(f"for-{p}", b"")], platform=("linux", *p.split("/"))) for p in ("amd64", "arm64/v8", "arm/v7")}
            inner = layout.index([*images.values(), layout.attestation(images["amd64"])])
            layout.index([layout.attestation(inner), {k: v for k, v in inner.items() if k != "platform"}], tag="nested")
            layout.index([images["arm/v7"], images["arm64/v8"]], tag="arm")
            nested = hub.push(layout, "nested", "team/many", "nested")
            arm = hub.push(layout, "arm", "team/many", "arm")
            for platform, image in images.items():
                out = pull("image", nested, platform=platform, directory=str(self.tmp), registry__insecure=hub.host)
                self.assertEqual(out.get("digest"), image["digest"], out)
            self.assertEqual(pull("image", arm, platform="arm64", registry__insecure=hub.host)["digest"], images["arm64/v8"]["digest"])
            self.refused(pull("image", arm, platform="amd64", registry__insecure=hub.host), "no match for linux/amd64", "linux/arm/v7", "linux/arm64/v8", status=400)
            self.refused(pull("image", nested, platform="arm/v6", registry__insecure=hub.host), "no match for linux/arm")


class Elsewhere(Case):
    """Where a registry leads, and what goes there."""

    def test_no_redirect_to_metadata_or_inside(self):
        fake = self.fake()
        fake.image()
        for target in ("http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/", "http://[::ffff:169.254.169.254]/", "http://2852039166/", "http://0xa9fea9fe/", "https://10.0.0.1/",
                       "https://[fd00:ec2::254]/", "https://[64:ff9b::a9fe:a9fe]/", "https://127.0.0.1:1/", "https://localhost/", "https://[::1]/", "https://0/", "https://100.100.100.200/"):
            fake.routes = [("/v2/a/b/blobs/", (307, {"Location": target + "?X-Signature=abc"}, b""))]
            out = self.refused(self.pull(fake), "redirects", "operator", status=400)
            self.assertNotIn("abc", out["error"])
        for target in ("file:///etc/passwd", "gopher://127.0.0.1:25/x", "ftp://127.0.0.1/", "http://me:pw@127.0.0.1/", "//", "http://", "http://[::1%25lo]/"):
            fake.routes = [("/v2/a/b/blobs/", (307, {"Location": target}, b""))]
            out = self.refused(self.pull(fake), "redirects", status=502)
            self.assertNotIn("pw", out["error"])
        # Allowed by name for private addresses: a metadata service still is not.
        fake.routes = [("/v2/a/b/blobs/", (307, {"Location": "http://169.254.169.254/"}, b""))]
        self.refused(self.pull(fake, registry__insecure=fake.host + ",169.254.169.254"), "not at a public address", status=400)

    def test_credentials_stay_with_their_host(self):
        fake, other = self.fake(), self.fake()
        fake.image([b"x" * 1000])
        blob = sha256(b"x" * 1000)
        other.things = dict(fake.things)
        basic = "Basic " + base64.b64encode(b"me:s3cret").decode()

        def only_with_password(h):
            if h.headers.get("Authorization") != basic:
                return h.reply(401, {"WWW-Authenticate": 'Basic realm="x"'})
            if "/blobs/" + blob in h.path:
                return h.reply(307, {"Location": f"http://{other.host}/signed/{blob}?signature=s1gned"})
            fake.routes, saved = [], fake.routes
            fake.answer(h)
            fake.routes = saved
        fake.routes = [("/v2/a", only_with_password)]
        both = {"registry__insecure": f"{fake.host},{other.host}", "registry__insecure_credentials": "true", "user": "me:s3cret"}
        out = self.pull(fake, **both)
        self.assertNotIn("error", out)
        self.assertEqual((self.tmp / "0").read_bytes(), b"x" * 1000)
        self.assertEqual(len(other.asked), 1)
        self.assertNotIn("Authorization", other.asked[0][2])
        # The store asks for credentials: it gets none, whatever it says.
        other.routes = [("/signed", (401, {"WWW-Authenticate": 'Basic realm="give"'}, b""))]
        out = self.refused(self.pull(fake, **both), status=400)
        self.assertTrue(all("Authorization" not in headers for _, _, headers in other.asked))
        self.assertNotIn("s1gned", json.dumps(out))
        # Back to where it came from: nothing is sent again behind somebody else's back.
        other.routes = [("/signed", (307, {"Location": f"http://{fake.host}/v2/back"}, b""))]
        fake.asked.clear()
        self.refused(self.pull(fake, **both))
        back = [headers for _, path, headers in fake.asked if path == "/v2/back"]
        self.assertTrue(back and all("Authorization" not in headers for headers in back))

    def test_ipv6_addresses(self):
        try:
            fake = self.fake(address="::1")
        except OSError as e:
            self.skipTest(f"this machine has no IPv6: {e}")
        fake.image()
        self.assertNotIn("error", self.pull(fake))
        self.refused(self.pull(fake, registry__insecure="localhost:1"), "not at a public address", status=400)

    def test_redirects_end(self):
        fake = self.fake()
        fake.image()
        fake.routes = [("/v2/a/b/blobs/", lambda h: h.reply(302, {"Location": h.path}))]
        self.refused(self.pull(fake), "more than 8 redirects", status=502)
        fake.routes = [("/v2/a/b/manifests/", (302, {}, b""))]
        self.refused(self.pull(fake), "without saying where", status=502)

    def test_no_proxy_of_the_environment(self):
        """pull() sets proxies that answer nothing; all of these tests would fail."""
        fake = self.fake()
        fake.image()
        self.assertNotIn("error", self.pull(fake))


class Tokens(Case):
    """Bearer tokens of a service on another host."""

    def service(self, **more):
        """(registry, token service): pulls need the newest token."""
        fake, auth = self.fake(), self.fake()
        fake.image([b"1" * 50, b"2" * 50])
        state = {"n": 0, "valid": None, "uses": more.get("uses", 10**9)}

        def token(h):
            state["n"] += 1
            state["valid"], state["left"] = f"t0ken-{state['n']}", state["uses"]
            h.reply(200, {"Content-Type": "application/json"}, json.dumps({more.get("key", "token"): state["valid"], "expires_in": 60}).encode())

        def guarded(h):
            if not state["valid"] or h.headers.get("Authorization") != "Bearer " + state["valid"] or state["left"] <= 0:
                return h.reply(401, {"WWW-Authenticate": f'Bearer realm="http://{auth.host}/token?x=1",service="a, \\"b\\"",scope="repository:a/b:pull"'}, b"{}")
            state["left"] -= 1
            routes, fake.routes = fake.routes, []
            fake.answer(h)
            fake.routes = routes
        auth.routes = [("/token", token)]
        fake.routes = [("/v2/a", guarded)]
        return fake, auth, state

    def test_anonymous_token(self):
        for key in ("token", "access_token"):
            fake, auth, _ = self.service(key=key)
            self.refused(self.pull(fake), "token service", "registry.insecure", status=400)
            out = self.pull(fake, registry__insecure=f"{fake.host},{auth.host}")
            self.assertNotIn("error", out)
            self.assertEqual(auth.paths(), ["/token?x=1&service=a%2C%20%22b%22&scope=repository%3Aa%2Fb%3Apull"])
            self.assertNotIn("Authorization", auth.asked[0][2])
            self.assertNotIn("t0ken", json.dumps(out))

    def test_a_token_that_runs_out(self):
        fake, auth, state = self.service(uses=1)
        out = self.pull(fake, registry__insecure=f"{fake.host},{auth.host}")
        self.assertNotIn("error", out)
        self.assertGreaterEqual(state["n"], 4)

    def test_credentials_go_to_the_token_service(self):
        fake, auth, _ = self.service()
        lists = {"registry__insecure": f"{fake.host},{auth.host}", "user": "me:s3cret"}
        self.refused(self.pull(fake, **lists), "not verified TLS", status=400)
        self.assertEqual(auth.asked, [])
        self.assertNotIn("error", self.pull(fake, registry__insecure_credentials="true", **lists))
        self.assertEqual(auth.asked[0][2]["Authorization"], "Basic " + base64.b64encode(b"me:s3cret").decode())
        self.assertTrue(all("Basic" not in headers.get("Authorization", "") for _, _, headers in fake.asked))

    def test_identity_token(self):
        fake, auth, _ = self.service(key="access_token")
        bodies = []
        token = auth.routes[0][1]
        auth.routes = [("/token", lambda h: (bodies.append(h.body), token(h)))]
        out = self.pull(fake, registry__insecure=f"{fake.host},{auth.host}", registry__insecure_credentials="true", token="id&entity")
        self.assertNotIn("error", out)
        self.assertEqual(auth.asked[0][:2], ("POST", "/token?x=1"))
        self.assertIn(b"refresh_token=id%26entity", bodies[0])
        self.assertNotIn("entity", json.dumps(out))

    def test_401_without_end(self):
        fake, auth, state = self.service(uses=0)
        out = self.refused(self.pull(fake, registry__insecure=f"{fake.host},{auth.host}"), "to who has no credentials", status=400)
        self.assertEqual(out["code"], 13)
        self.assertLess(state["n"], 5)

    def test_bad_challenges_and_tokens(self):
        fake, auth, _ = self.service()
        both = {"registry__insecure": f"{fake.host},{auth.host}"}
        bad = {"": "without a challenge", "Negotiate": "without a challenge", 'Bearer realm="unterminated': "malformed", 'Bearer realm="x" service=': "malformed", 'Bearer realm="file:///etc/passwd"': "token service",
               'Bearer realm="http://169.254.169.254/"': "token service", "Basic": "only to who has credentials", 'Bearer realm="' + "x" * 3000 + '"': "malformed"}
        for challenge, words in bad.items():
            fake.routes = [("/v2/a", (401, {"WWW-Authenticate": challenge}, b""))]
            self.refused(self.pull(fake, **both), words)
        fake.routes = [("/v2/a", (401, {"WWW-Authenticate": ["Negotiate", f'NTLM, Bearer realm="http://{auth.host}/token"', "Basic"]}, b""))]
        for body in (b"", b"{}", b"[]", b'{"token": 5}', b'{"token": "a b"}', b'{"token": "a\\r\\nX: y"}', json.dumps({"token": "x" * 40000}).encode()):
            auth.routes = [("/token", (200, {}, body))]
            self.refused(self.pull(fake, **both), "gives no token", status=502)
        auth.routes = [("/token", (403, {}, b""))]
        self.refused(self.pull(fake, **both), "token service", "refuses", status=400)
        auth.routes = [("/token", (200, {}, b" " * 1000000))]
        self.refused(self.pull(fake, **both), "longer than allowed", status=502)


class Clouds(Case):
    def test_amazons_keys_only_for_amazon(self):
        fake = self.fake()
        fake.image()
        fake.routes = [("/v2/a", (401, {"WWW-Authenticate": "Basic"}, b""))]
        trusting = {"registry__insecure_credentials": "true"}
        self.refused(self.pull(fake, aws="AKID:s3cret:eu-west-1", **trusting), "only for registries of Amazon", status=400)
        key = self.tmp / "key.json"
        key.write_text('{"type": "service_account", "private_key": "s3cret"}')
        self.refused(self.pull(fake, gcp=key, **trusting), "only for registries of Google", status=400)


    AMAZON = r"""
import base64, json, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/hosts"], check=True)
sys.path.insert(0, sys.argv[2])
from test_source_registry import Fake, pull
host = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
hub, amazon = Fake(port=80), Fake()
hub.image([b"layer"])
basic = "Basic " + base64.b64encode(b"AWS:made-of-keys").decode()
def guarded(h):
    if h.headers.get("Authorization") != basic:
        return h.reply(401, {"WWW-Authenticate": 'Basic realm="x"'})
    routes, hub.routes = hub.routes, []
    hub.answer(h)
    hub.routes = routes
hub.routes = [("/v2/a", guarded)]
token = base64.b64encode(b"AWS:made-of-keys").decode()
answers = [(200, json.dumps({"authorizationData": [{"authorizationToken": token}]}).encode()), (200, b'{"authorizationData": []}'), (400, b'{"__type": "UnrecognizedClientException", "message": "s3cret"}')]
out = {"pulls": [], "asked": amazon.asked}
def pulled(**more):
    options = {"registry__insecure": f"{host},{amazon.host}", "registry__insecure_credentials": "true", "aws": "AKID:s3cret:eu-west-1", "ecr": f"http://{amazon.host}/", **more}
    out["pulls"].append(pull("image", f"{host}/a/b", platform="amd64", **options))
for status, body in answers:
    amazon.routes = [("/", (status, {}, body))]
    pulled()
pulled(aws="AKID:s3cret:us-east-1")
print(json.dumps(out))
"""

    @unittest.skipIf(os.geteuid() != 0, "needs root: a network and a mount namespace")
    def test_amazons_password(self):
        hosts, script = self.tmp / "hosts", self.tmp / "script.py"
        hosts.write_text("127.0.0.1 localhost 123456789012.dkr.ecr.eu-west-1.amazonaws.com\n")
        script.write_text(self.AMAZON)
        done = subprocess.run(["unshare", "--net", "--mount", sys.executable, str(script), str(hosts), str(pathlib.Path(__file__).parent)], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        out = json.loads(done.stdout)
        good, empty, refused, region = out["pulls"]
        self.assertNotIn("error", good)
        self.refused(empty, "no token", status=502)
        self.refused(refused, "Amazon refuses", "UnrecognizedClientException", status=400)
        self.refused(region, "region eu-west-1", status=400)
        self.assertNotIn("s3cret", json.dumps(out["pulls"]))
        self.assertEqual(len(out["asked"]), 3)
        method, path, headers = out["asked"][0]
        self.assertEqual((method, path), ("POST", "/"))
        self.assertRegex(headers["Authorization"], r"^AWS4-HMAC-SHA256 Credential=AKID/\d{8}/eu-west-1/ecr/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=[0-9a-f]{64}$")


class Liars(Case):
    def test_113_wrong_bytes(self):
        """Case 113: a digest, a size, a diffID list that is not true; truncated."""
        fake = self.fake()
        made = fake.image([b"good" * 100])
        blob = sha256(b"good" * 100)
        manifest = fake.things[made["digest"]]
        fake.things[blob] = (LAYER, b"evil" * 100)
        self.refused(self.pull(fake), "not those of its digest", status=502)
        fake.things[blob] = (LAYER, b"good" * 99)
        self.refused(self.pull(fake), "size is not", status=502)
        fake.things[blob] = (LAYER, b"good" * 101)
        self.refused(self.pull(fake), "size is not", status=502)
        fake.things[blob] = (LAYER, b"good" * 100)
        fake.tags["latest"] = sha256(b"")
        fake.things[sha256(b"")] = (MANIFEST, manifest[1])
        self.assertNotIn("error", self.pull(fake))
        self.refused(self.pull(fake, "a/b@" + sha256(b"")), "not what its digest says", status=502)
        fake.routes = [("/v2/a/b/manifests/", (200, {"Docker-Content-Digest": sha256(b"x")}, manifest[1]))]
        self.refused(self.pull(fake), "not what its digest says", status=502)
        fake.routes = []
        config = json.loads(manifest[1])["config"]["digest"]
        fake.things[config] = (CONFIG, fake.things[config][1] + b" ")
        self.refused(self.pull(fake), "configuration is not what", status=502)
        fake.image([b"a", b"b"], diff_ids=[sha256(b"a")])
        self.refused(self.pull(fake), "names 1 layers, its manifest 2", status=502)

    def test_truncated_and_resumed(self):
        fake = self.fake()
        data = os.urandom(3 << 20)
        fake.image([data])
        cuts = []

        def cut(h):
            first = int(h.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
            cuts.append(first)
            if len(cuts) > 4:
                routes, fake.routes = fake.routes, []
                fake.answer(h)
                fake.routes = routes
                return
            h.send_response(206 if first else 200)
            h.send_header("Content-Length", str(len(data) - first))
            if first:
                h.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            h.end_headers()
            h.wfile.write(data[first:first + (512 << 10)])
            h.close_connection = True
        fake.routes = [("/v2/a/b/blobs/" + sha256(data), cut)]
        out = self.pull(fake)
        self.assertNotIn("error", out)
        self.assertEqual((self.tmp / "0").read_bytes(), data)
        self.assertEqual(cuts, [i * (512 << 10) for i in range(5)])

    def test_truncated_for_ever(self):
        fake = self.fake()
        data = os.urandom(100000)
        fake.image([data])

        def cut(h):
            h.send_response(200)
            h.send_header("Content-Length", str(len(data)))
            h.end_headers()
            h.wfile.write(data[:100])
            h.close_connection = True
        fake.routes = [("/v2/a/b/blobs/" + sha256(data), cut)]
        self.refused(self.pull(fake), "breaks off again and again", status=502)
        self.assertLess(len(fake.asked), 20)

    def test_large_layers_come_in_ranges(self):
        fake = self.fake()
        data = os.urandom(70 << 20)
        fake.image([data, b"small"])
        out = self.pull(fake)
        self.assertNotIn("error", out)
        self.assertEqual(sha256((self.tmp / "0").read_bytes()), sha256(data))
        ranges = [headers["Range"] for _, path, headers in fake.asked if path.endswith(sha256(data))]
        self.assertEqual(len(ranges), 5)

    def test_servers_without_ranges(self):
        fake = self.fake()
        data = os.urandom(40 << 20)
        fake.image([data])
        asked = []

        def whole(h):
            asked.append(h.headers.get("Range"))
            if len(asked) == 1:
                h.send_response(200)
                h.send_header("Content-Length", str(len(data)))
                h.end_headers()
                h.wfile.write(data[:20 << 20])
                h.close_connection = True
            else:
                h.reply(200, {}, data)
        fake.routes = [("/v2/a/b/blobs/" + sha256(data), whole)]
        self.assertNotIn("error", self.pull(fake))
        self.assertEqual(sha256((self.tmp / "0").read_bytes()), sha256(data))
        # Only sometimes: the first range is one, the others are not.
        asked.clear()

        def sometimes(h):
            asked.append(h.headers.get("Range"))
            if len(asked) == 1:
                return h.reply(206, {"Content-Range": f"bytes 0-{(16 << 20) - 1}/{len(data)}"}, data[:16 << 20])
            return h.reply(200, {}, data)
        fake.routes = [("/v2/a/b/blobs/" + sha256(data), sometimes)]
        self.assertNotIn("error", self.pull(fake))
        self.assertEqual(sha256((self.tmp / "0").read_bytes()), sha256(data))

    def test_wrong_ranges(self):
        fake = self.fake()
        data = os.urandom(40 << 20)
        fake.image([data])
        for answer in ("bytes 1-16777216/41943040", "bytes 0-16777215/41943041", "bytes 0-41943039/41943040", "bytes 5-1/41943040", "pages 0-1/2"):
            fake.routes = [("/v2/a/b/blobs/" + sha256(data), (206, {"Content-Range": answer}, data[:16 << 20]))]
            self.refused(self.pull(fake), "another range", status=502)

    def test_endless_answers(self):
        fake = self.fake()
        fake.image()
        blob = sha256(b"layer")

        def endless(h):
            h.send_response(200)
            h.send_header("Transfer-Encoding", "chunked")
            h.end_headers()
            while True:
                h.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        for path, words in (("/v2/a/b/manifests/", "longer than allowed"), ("/v2/a/b/blobs/" + blob, "more than it announced")):
            fake.routes = [(path, endless)]
            self.refused(self.pull(fake), words, status=502)
        config = json.loads(fake.things[fake.tags["latest"]][1])["config"]["digest"]
        fake.routes = [("/v2/a/b/blobs/" + config, endless)]
        self.refused(self.pull(fake), "longer than allowed", status=502)

        def endless_head(h):
            h.send_response(200)
            h.flush_headers()
            with contextlib.suppress(OSError):
                while True:
                    h.wfile.write(b"X-Header: " + b"x" * 1000 + b"\r\n")
        fake.routes = [("/v2/a/b/manifests/", endless_head)]
        self.refused(self.pull(fake), "head of the answer is too long", status=502)

    def test_a_byte_a_second(self):
        fake = self.fake()
        fake.image([b"x" * 100000])

        def slow(h):
            h.send_response(200)
            h.send_header("Content-Length", "100000")
            h.end_headers()
            for _ in range(60):
                h.wfile.write(b"x")
                time.sleep(0.5)
        fake.routes = [("/v2/a/b/manifests/", slow)]
        self.refused(self.pull(fake, patience=3), status=504)

    def test_nothing_at_all(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            host = "127.0.0.1:%d" % s.getsockname()[1]
            self.refused(pull("image", f"http://{host}/a", registry__insecure=host, patience=3), status=504)
        self.refused(pull("image", f"http://{host}/a", registry__insecure=host), "refused", status=502)

    def test_429(self):
        fake = self.fake()
        fake.image()
        times = []

        def busy(h):
            times.append(time.monotonic())
            if len(times) < 3:
                return h.reply(429, {"Retry-After": "1"}, b'{"errors":[{"code":"TOOMANYREQUESTS","message":"x"}]}')
            routes, fake.routes = fake.routes, []
            fake.answer(h)
            fake.routes = routes
        fake.routes = [("/v2/a/b/manifests/", busy)]
        self.assertNotIn("error", self.pull(fake))
        self.assertGreater(times[2] - times[0], 1.9)
        fake.routes = [("/v2/a/b/manifests/", (500, {}, b"no json"))]
        self.refused(self.pull(fake), "status 500", status=502)

    def test_manifests(self):
        fake = self.fake()
        good = fake.image()
        whole = json.loads(fake.things[good["digest"]][1])
        bad = {
            "schema 1": ("application/vnd.docker.distribution.manifest.v1+prettyjws", {"schemaVersion": 1, "fsLayers": []}),
            "no container image, but application/vnd.oci.empty.v1+json": (MANIFEST, {**whole, "config": {**whole["config"], "mediaType": "application/vnd.oci.empty.v1+json"}}),
            "registries do not hold": (MANIFEST, {**whole, "layers": [{**whole["layers"][0], "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}]}),
            "form that is not supported (application/x-7z)": (MANIFEST, {**whole, "layers": [{**whole["layers"][0], "mediaType": "application/x-7z"}]}),
            "at once": (MANIFEST, {**whole, "manifests": []}),
            "more than 512 layers": (MANIFEST, {**whole, "layers": whole["layers"] * 513}),
            "other than sha256": (MANIFEST, {**whole, "config": {**whole["config"], "digest": "sha512:" + "0" * 128}}),
            "more than 1024 entries": (INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [good] * 1025}),
            "is for nothing": (INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}),
            "malformed": (MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST}),
        }
        for words, (kind, body) in bad.items():
            fake.put(kind, body, "bad")
            self.refused(self.pull(fake, "a/b:bad"), words)
        for body in (b"", b"null", b"[]", b"{", b"\xff", b"[" * 100000, b'{"a":1,"a":2}'):
            fake.put(MANIFEST, body, "bad")
            self.refused(self.pull(fake, "a/b:bad"), "manifest", status=502)
        deep = fake.image(tag=None)
        for _ in range(5):
            deep = fake.put(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [deep]}, "deep")
        self.refused(self.pull(fake, "a/b:deep"), "indexes in indexes", status=400)
        many = [fake.image([b"%d" % i], tag=None, architecture="s390x") for i in range(40)]
        fake.put(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": many}, "many")
        self.refused(self.pull(fake, "a/b:many"), "more than 32 manifests", status=400)
        fake.image(tag="wide", architecture="s390x")
        self.refused(self.pull(fake, "a/b:wide"), "no match for linux/amd64: the image is for linux/s390x", status=400)

    def test_formats_by_their_bytes(self):
        fake = self.fake()
        fake.image([gzip.compress(b"x"), b"plain", b""])
        out = self.pull(fake)
        self.assertEqual([layer["format"] for layer in out["layers"]], ["gzip", "tar", "tar"])

    def test_no_room(self):
        fake = self.fake()
        fake.image([os.urandom(1 << 20)])
        self.refused(self.pull(fake, limit=100000), "could not be written", status=507)


class Names(Case):
    """Names that resolve to something else than they should, in a network namespace with a resolver of its own."""

    SCRIPT = r"""
import concurrent.futures, json, pathlib, socket, subprocess, sys, threading
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[2], "/etc/resolv.conf"], check=True)
queries = []
def resolver():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 53))
    while True:
        q, peer = s.recvfrom(512)
        at, labels = 12, []
        while q[at]:
            labels.append(q[at + 1:at + 1 + q[at]].decode().lower())
            at += q[at] + 1
        kind = int.from_bytes(q[at + 1:at + 3], "big")
        queries.append((".".join(labels), kind))
        # "private" is inside at once, "rebind" outside the first time and inside then, "mixed" both at once
        n = sum(1 for name, k in queries if name == ".".join(labels) and k == 1)
        answers = {"private": ["10.1.2.3"], "loop": ["127.0.0.1"], "mapped": [], "rebind": ["93.184.216.34"] if n == 1 else ["127.0.0.1"], "mixed": ["127.0.0.1", "93.184.216.34"]}[labels[0]] if kind == 1 else []
        records = b"".join(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x00\x00\x04" + socket.inet_aton(a) for a in answers)
        if labels[0] == "mapped" and kind == 28:
            records = b"\xc0\x0c\x00\x1c\x00\x01\x00\x00\x00\x00\x00\x10" + socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")
            answers = [1]
        s.sendto(q[:2] + b"\x81\x80" + q[4:6] + len(answers).to_bytes(2, "big") + b"\0\0\0\0" + q[12:at + 5] + records, peer)
threading.Thread(target=resolver, daemon=True).start()
connections = []
def inside(port):
    s = socket.socket()
    s.bind(("127.0.0.1", port))
    s.listen()
    while True:
        connections.append(port)
        c, _ = s.accept()
        connections.append("accepted")
        c.close()
threading.Thread(target=inside, args=(443,), daemon=True).start()
def pull(name):
    done = subprocess.run([sys.argv[1], "image", name + ".test.example/a:1", ""], capture_output=True, text=True, timeout=250)
    return json.loads(done.stdout)
names = ["private", "loop", "rebind", "mixed"] + ["mapped"] * bool(pathlib.Path("/proc/net/if_inet6").exists() and pathlib.Path("/proc/net/if_inet6").read_text())
with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
    out = dict(zip(names, pool.map(pull, names)))
out["accepted"] = connections.count("accepted")
out["queries"] = len([1 for name, kind in queries if name.startswith("rebind") and kind == 1])
print(json.dumps(out))
"""

    @unittest.skipIf(os.geteuid() != 0, "needs root: a network and a mount namespace")
    def test_rebinding(self):
        resolv = self.tmp / "resolv.conf"
        resolv.write_text("nameserver 127.0.0.1\noptions timeout:20 attempts:1\n")
        script = self.tmp / "script.py"
        script.write_text(self.SCRIPT)
        done = subprocess.run(["unshare", "--net", "--mount", sys.executable, str(script), PULL, str(resolv)], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        out = json.loads(done.stdout)
        for name in {"private", "loop", "mapped"} & set(out):
            self.refused(out[name], "not at a public address", status=400)
        # The judged address is the one that is connected to: there is no route to it here.
        for name in ("rebind", "mixed"):
            self.assertNotEqual(out[name]["status"], 400, out[name])
        self.assertEqual(out["accepted"], 0)
        self.assertEqual(out["queries"], 1)


if __name__ == "__main__":
    unittest.main()
