"""`cubicle template` against a stand-in for the server: what it asks, what it sends, what it shows."""
import gzip
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import signal
import socketserver
import subprocess
import tarfile
import tempfile
import threading
import unittest

CUBICLE = os.environ["CUBICLE"]
ID, BUILD = "t" * 20, "0f0e0d0c-0000-4000-8000-000000000001"
TEMPLATE = {"templateID": ID, "buildID": BUILD, "public": False, "aliases": ["web"], "names": ["web"], "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 10240, "size": 123456789,
            "createdAt": "2026-01-02T03:04:05.678901Z", "buildStatus": "ready",
            "builds": [{"buildID": BUILD, "status": "ready", "createdAt": "2026-01-02T03:04:05.678901Z", "finishedAt": "2026-01-02T03:05:05.678901Z", "cpuCount": 2, "memoryMB": 512,
                        "diskSizeMB": 10240}]}


def entry(message, level="info", step=None):
    return {"timestamp": "2026-01-02T03:04:05.678901Z", "message": message, "level": level, **({"step": step} if step else {})}


def page(status="building", *entries, **more):
    return {"templateID": ID, "buildID": BUILD, "status": status, "logs": [e["message"] for e in entries], "logEntries": list(entries), **more}


class Front:
    """`pages` is what each look at the build answers in turn, the last one for ever; `answers` other (status, body) by (method, path without query)."""

    def __init__(self, pages=(), answers=None, present=False, unix=None):
        self.pages, self.answers, self.present, self.asked, self.files = list(pages) or [page("ready")], dict(answers or {}), present, [], {}
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self):
                return "client"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                if path.startswith("/upload/"):
                    front.files[path.rsplit("/", 1)[1]] = body
                    front.asked.append((self.command, self.path, dict(self.headers)))
                    status, value = front.answers.get((self.command, path), (200, None))
                else:
                    front.asked.append((self.command, self.path, json.loads(body) if body else None))
                    status, value = front.look_up(self.command, path, self.headers)
                data = b"" if value is None else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            do_GET = do_PUT = do_DELETE = do_POST = do_PATCH = answer

            def log_message(self, *_):
                pass

        if unix:
            class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
                daemon_threads = True
            self.server = Server(unix, Handler)
        else:
            self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server.server_address[1]

    def look_up(self, method, path, headers):
        if (method, path) in self.answers:
            answer = self.answers[method, path]
            return answer.pop(0) if isinstance(answer, list) and len(answer) > 1 else answer[0] if isinstance(answer, list) else answer
        if (method, path) == ("POST", "/v3/templates"):
            return 202, {"templateID": ID, "buildID": BUILD, "public": False, "names": ["web"], "aliases": ["web"], "tags": ["default"]}
        if path.startswith(f"/templates/{ID}/files/"):
            return 201, {"present": True} if self.present else {"present": False, "url": f"http://{headers['Host']}/upload/{path.rsplit('/', 1)[1]}", "headers": {"X-Ticket": "7"}}
        if method == "POST" and path == f"/v2/templates/{ID}/builds/{BUILD}":
            return 202, None
        if path.endswith("/status"):
            return 200, self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if path == "/templates":
            return 200, [TEMPLATE]
        if path in (f"/templates/{ID}", "/templates/web"):
            return 200, TEMPLATE
        if path == f"/templates/{ID}/tags":
            return 200, [{"tag": "default", "buildID": BUILD, "createdAt": "2026-01-02T03:04:05.678901Z"}, {"tag": "v1", "buildID": BUILD, "createdAt": "2026-01-02T03:04:05.678901Z"}]
        return 404, {"code": 404, "message": f"nothing at {path}"}

    def bodies(self, method, path):
        return [a[2] for a in self.asked if a[:2] == (method, path)]

    @property
    def started(self):
        """The body that started the build."""
        return self.bodies("POST", f"/v2/templates/{ID}/builds/{BUILD}")[0]

    def run(self, *words, env=None, input=None, **more):
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "CUBICLE_API_URL": self.url, "CUBICLE_API_KEY": "e2b_" + "0" * 40, **(env or {})}
        return subprocess.run([CUBICLE, "template", *map(str, words)], env=env, capture_output=True, text=True, timeout=300, input=input, **more)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Case(unittest.TestCase):
    def front(self, *pages, **more):
        front = Front(pages, **more)
        self.addCleanup(front.close)
        return front

    def setUp(self):
        d = tempfile.TemporaryDirectory(prefix="cubicle-cli-")
        self.addCleanup(d.cleanup)
        self.dir = pathlib.Path(d.name)

    def fails(self, r, code, *texts):
        self.assertEqual((r.returncode, r.stdout), (code, ""), r.stderr)
        for text in texts:
            self.assertIn(text, r.stderr)


class Create(Case):
    def test_image(self):
        front = self.front(page("building", entry("pulling", step="base"), entry("quiet", "debug")), page("building", phase="PULLING", progress=30), page("building", entry("a\nb", "warn")),
                           page("ready"))
        r = front.run("create", "web:v2", "--image", "ghcr.io/a/b:1", "--cpu", "4", "--memory=2048", "--disk", "4096", "--start-cmd", "serve", "--ready-cmd", "true", "--probe-port", "80",
                      "--probe-path", "/up", "--env", "A=1", "--env", "B=x=y", "--user", "www", "--workdir", "/srv", "--no-cache",
                      "--isolation", "microvm")
        self.assertEqual((r.returncode, r.stdout), (0, ID + "\n"))
        self.assertEqual(front.bodies("POST", "/v3/templates"), [{"name": "web:v2", "cpuCount": 4, "memoryMB": 2048, "minFreeDiskMb": 4096}])
        self.assertEqual(front.started, {"fromImage": "ghcr.io/a/b:1", "startCmd": "serve", "readyCmd": "true", "probePort": 80, "probePath": "/up", "env": ["A=1", "B=x=y"], "user": "www",
                                         "workdir": "/srv", "kind": "image", "force": True, "isolation": "microvm"})
        self.assertEqual([line for line in r.stderr.splitlines() if not re.match(r" +\d+ s ", line)], ["[base] pulling", "warn: a", "b"])
        self.assertIn("PULLING", r.stderr)
        self.assertNotIn("\x1b", r.stderr)
        self.assertNotIn("\r", r.stderr)
        # Offsets count entries that were seen, and the last look was at an empty page.
        offsets = [int(re.search(r"logsOffset=(\d+)", p).group(1)) for m, p, _ in front.asked if "/status" in p]
        self.assertEqual(offsets, [0, 2, 2, 3])

    def test_what_programs_read(self):
        front = self.front(page("building", entry("one")), page("building", phase="PULLING", progress=30), page("ready", entry("two")), page("ready"))
        r = front.run("create", "web", "--image", "b", "--json")
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertEqual([x["message"] for x in lines if "message" in x], ["one", "two"])
        self.assertIn({"phase": "PULLING", "percent": 30}, [{k: v for k, v in x.items() if k != "seconds"} for x in lines])
        self.assertEqual({k: v for k, v in lines[-1].items() if k != "seconds"}, {"templateID": ID, "buildID": BUILD, "name": "web", "status": "ready"})

    def test_a_failed_build(self):
        front = self.front(page("building", entry("E: no such file", "error", "2")), page("error", reason={"message": "command failed: exit status 1", "step": "2"}))
        r = front.run("create", "web", "--image", "b")
        self.fails(r, 1, "error: E: no such file", "the build failed in step 2: command failed: exit status 1")
        r = front.run("create", "web", "--image", "b", "--json")
        self.assertEqual(r.returncode, 1)
        self.assertIn("in step 2", json.loads(r.stderr)["error"]["message"])

    def test_no_wait_and_public(self):
        front = self.front(answers={("PATCH", f"/v2/templates/{ID}"): (200, {"names": ["web"]})})
        r = front.run("create", "web", "--template", "base", "--no-wait", "--public")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, ID + "\n", ""))
        self.assertEqual(front.bodies("PATCH", f"/v2/templates/{ID}"), [{"public": True}])
        self.assertEqual(front.started, {"fromTemplate": "base", "kind": "image"})
        self.assertFalse([p for _, p, _ in front.asked if "/status" in p])

    def test_e2b_kind(self):
        front = self.front()
        self.assertEqual(front.run("create", "web", "--image", "b", "--e2b").returncode, 0)
        self.assertEqual(front.started, {"fromImage": "b", "kind": "e2b"})

    def test_a_server_that_is_started_again_meanwhile(self):
        front = self.front(answers={("GET", f"/templates/{ID}/builds/{BUILD}/status"): [(503, {"code": 503, "message": "starting"}), (200, page("ready"))]})
        self.assertEqual(front.run("create", "web", "--image", "b").returncode, 0)

    def test_what_is_wrong_is_said_before_anything_is_asked(self):
        for words, text in ((["web"], "what is it made of?"), (["web", "--image", "a", "--rootfs", "b"], "--image and --rootfs"), (["web", "--image", "a", "--suite", "sid"], "--suite"),
                            (["web", "--image", "a", "--username", "u"], "go together"), (["web", "--image", "a", "--password-stdin"], "go together"), (["web", "--rootfs", "/", "--gcp-key", "x"], "--gcp-key"),
                            (["web", "--image", "a", "--gcp-key", "x", "--aws-region", "y"], "is enough"), (["web", "--image", "a", "--probe-path", "/"], "--probe-port"), ([], "missing"),
                            (["web", "--image", "a", "--cpu", "0"], "--cpu")):
            front = self.front()
            self.fails(front.run("create", *words), 2, text)
            self.assertEqual(front.asked, [])
        for words, text in ((["--image", "Upper/Case"], ""), (["--rootfs", "/nonexistent"], "/nonexistent"), (["--oci-layout", "/etc/passwd"], "no tar"), (["--docker-archive", "/"], "is a directory")):
            front = self.front()
            self.fails(front.run("create", "web", *words), 1, text)
            self.assertEqual([a[0] for a in front.asked], ["GET"], "nothing was made")

    def test_errors_of_the_server(self):
        front = self.front(answers={("POST", "/v3/templates"): (400, {"code": 400, "message": "Name is required"})})
        self.fails(front.run("create", "", "--image", "b"), 1, "Name is required")
        front = self.front(answers={("POST", f"/v2/templates/{ID}/builds/{BUILD}"): (400, {"code": 400, "message": "build is not in waiting state"})})
        self.fails(front.run("create", "web", "--image", "b"), 1, "not in waiting state")
        front = self.front(answers={("GET", "/templates"): (401, {"code": 401, "message": "no such key"})})
        self.fails(front.run("create", "web", "--rootfs", "/"), 1, "no such key")

    def test_sandbox(self):
        box, snapshot = "i" + "b" * 20, "snap-" + "c" * 20
        answers = {("POST", f"/sandboxes/{box}/snapshots"): (201, {"snapshotID": snapshot, "names": []}), ("DELETE", f"/templates/{snapshot}"): (204, None)}
        front = self.front(answers=answers)
        r = front.run("create", "web", "--sandbox", box)
        self.assertEqual((r.returncode, r.stdout, r.stderr.splitlines()[:0]), (0, ID + "\n", []))
        self.assertEqual(front.started["fromTemplate"], snapshot)
        self.assertEqual(front.asked[-1][:2], ("DELETE", f"/templates/{snapshot}"), "when the build has ended")
        front = self.front(answers={**answers, ("DELETE", f"/templates/{snapshot}"): (409, {"code": 409, "message": "used"})})
        r = front.run("create", "web", "--sandbox", box)
        self.assertEqual(r.returncode, 0)
        self.assertIn(f"cubicle snapshot delete {snapshot}", r.stderr)

    def test_an_interrupt_ends_the_watching(self):
        front = self.front(page("building"))
        env = {"PATH": os.environ["PATH"], "CUBICLE_API_URL": front.url, "CUBICLE_API_KEY": "e2b_" + "0" * 40}
        p = subprocess.Popen([CUBICLE, "template", "create", "web", "--image", "b"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # The first look at the build, and what follows from it, was told.
        self.assertIn("building", p.stderr.readline())
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=100)
        self.assertEqual((p.returncode, out), (130, ""))
        self.assertIn(f"cubicle template logs -f {ID}", err)

    def test_snapshot(self):
        front = self.front()
        self.assertEqual(front.run("create", "web", "--snapshot", "tools").returncode, 0)
        self.assertEqual(front.started, {"fromTemplate": "tools", "kind": "image"})


class Files(Case):
    def make_root(self):
        root = self.dir / "root"
        (root / "etc").mkdir(parents=True)
        (root / "etc/motd").write_text("hello\n")
        os.link(root / "etc/motd", root / "etc/motd2")
        os.symlink("motd", root / "etc/link")
        os.mkfifo(root / "pipe")
        (root / "tmp").mkdir()
        os.chmod(root / "tmp", 0o1777)
        (root / "su").write_bytes(b"x")
        if os.geteuid() == 0:
            os.chown(root / "su", 1234, 60000)
        os.chmod(root / "su", 0o4755)
        os.setxattr(root / "su", "user.note", b"\xff\x00y")
        with open(root / "sparse", "wb") as f:
            f.seek(50 << 20)
            f.write(b"end")
        import socket
        s = socket.socket(socket.AF_UNIX)
        s.bind(str(root / "socket"))
        s.close()
        return root

    def test_a_directory(self):
        """Owners, modes, links, attributes and holes as they are; sockets left out."""
        root = self.make_root()
        front = self.front()
        r = front.run("create", "web", "--rootfs", root)
        self.assertEqual((r.returncode, r.stdout), (0, ID + "\n"), r.stderr)
        (hash_, data), = front.files.items()
        self.assertEqual(hash_, hashlib.sha256(data).hexdigest())
        self.assertEqual(front.started["source"], {"type": "rootfs", "hash": hash_})
        headers = next(h for m, p, h in front.asked if p.startswith("/upload/"))
        self.assertEqual((headers["Content-Length"], headers["X-Ticket"], headers.get("Transfer-Encoding")), (str(len(data)), "7", None))
        self.assertLess(len(data), 5 << 20, "holes are not sent")
        with tarfile.open(fileobj=io.BytesIO(data)) as t:
            members = {m.name.removeprefix("./"): m for m in t.getmembers()}
            self.assertEqual(sorted(members), [".", "etc", "etc/link", "etc/motd", "etc/motd2", "pipe", "sparse", "su", "tmp"])
            self.assertEqual(members["tmp"].mode & 0o7777, 0o1777)
            self.assertEqual(members["su"].mode & 0o7777, 0o4755)
            if os.geteuid() == 0:
                self.assertEqual((members["su"].uid, members["su"].gid), (1234, 60000))
            self.assertEqual({m.uname for m in members.values()} | {m.gname for m in members.values()}, {""})
            self.assertTrue(any("xattr.user.note" in k for k in members["su"].pax_headers))
            hard = [m for m in members.values() if m.islnk()]
            self.assertEqual(len(hard), 1)
            self.assertEqual(t.extractfile(members["etc/motd2"]).read(), b"hello\n")
            self.assertEqual(members["etc/link"].linkname, "motd")
            self.assertTrue(members["pipe"].isfifo())
            content = t.extractfile(members["sparse"]).read()
            self.assertEqual((len(content), content[-3:]), ((50 << 20) + 3, b"end"))

    def test_the_same_directory_is_sent_once(self):
        root = self.make_root()
        front = self.front(present=True)
        self.assertEqual(front.run("create", "web", "--rootfs", root).returncode, 0)
        self.assertEqual(front.files, {})
        again = self.front()
        self.assertEqual(again.run("create", "web", "--rootfs", root).returncode, 0)
        self.assertEqual(again.started["source"], front.started["source"])

    def tar(self, name="a.tar", mode="w"):
        path = self.dir / name
        with tarfile.open(path, mode) as t:
            info = tarfile.TarInfo("oci-layout")
            info.size = 2
            t.addfile(info, io.BytesIO(b"{}"))
        return path

    def test_tars(self):
        """As they are, when the server can read them so; else what is in them."""
        plain = self.tar().read_bytes()
        for flag, kind, keeps_gzip in (("--rootfs", "rootfs", True), ("--oci-layout", "oci-archive", False), ("--docker-archive", "docker-archive", False)):
            for name, mode in (("b.tar", "w"), ("b.tar.gz", "w:gz"), ("b.tar.xz", "w:xz"), ("b.tar.bz2", "w:bz2")):
                path = self.tar(name, mode)
                front = self.front()
                r = front.run("create", "web", flag, path)
                self.assertEqual(r.returncode, 0, r.stderr)
                (hash_, data), = front.files.items()
                self.assertEqual(front.started["source"], {"type": kind, "hash": hash_})
                self.assertEqual(data, path.read_bytes() if mode == "w" or (keeps_gzip and mode == "w:gz") else plain)
        front = self.front()
        self.assertEqual(front.run("create", "web", "--oci-layout", f"{self.tar()}:v1.2").returncode, 0)
        self.assertEqual(front.started["source"]["name"], "v1.2")

    def test_an_upload_that_fails(self):
        path = self.tar()
        hash_ = hashlib.sha256(path.read_bytes()).hexdigest()
        front = self.front(answers={("PUT", f"/upload/{hash_}"): (507, {"code": 507, "message": "no room"})})
        self.fails(front.run("create", "web", "--rootfs", path), 1, "uploading: no room")
        self.assertEqual(front.bodies("POST", f"/v2/templates/{ID}/builds/{BUILD}"), [])

    def test_no_room_for_the_tar(self):
        self.fails(self.front().run("create", "web", "--rootfs", "/etc", env={"TMPDIR": "/nonexistent"}), 1, "/nonexistent")


class Packages(Case):
    """With a stand-in for mmdebstrap, which notes how it was called."""

    def build(self, script, *words):
        path = self.dir / "mmdebstrap"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        front = self.front()
        return front, front.run("create", "web", "--packages", *words, env={"PATH": f"{self.dir}:{os.environ['PATH']}", "TMPDIR": str(self.dir)})

    def test_a_tar_of_packages(self):
        (self.dir / "tree").mkdir()
        front, r = self.build(f"printf '%s\\n' \"$@\" > {self.dir}/words; cat > {self.dir}/sources; ls /proc/$$/fd > {self.dir}/fds; echo 'I: working' >&2; tar -C {self.dir}/tree -c .", "git,curl",
                              "--suite", "trixie", "--mirror", "http://mirror.test/debian")
        self.assertEqual((r.returncode, r.stdout), (0, ID + "\n"), r.stderr)
        words = (self.dir / "words").read_text().splitlines()
        self.assertEqual(words[-3:], ["trixie", "-", "-"])
        self.assertIn("--include=git,curl", words)
        self.assertEqual((self.dir / "sources").read_text(), "deb http://mirror.test/debian trixie main\n")
        self.assertLess(max(map(int, (self.dir / "fds").read_text().split())), 20, "nothing of ours is open there")
        self.assertEqual(front.started["source"]["type"], "rootfs")
        self.assertIn("I: working\n", r.stderr)
        self.assertEqual([p.name for p in self.dir.glob("cubicle-*")], [])

    def test_one_that_fails(self):
        front, r = self.build("echo 'E: no such package' >&2; exit 25", "nothing")
        self.fails(r, 1, "E: no such package\n", "mmdebstrap could not make it (25)")
        self.assertEqual([a[0] for a in front.asked], ["GET"])


class Logins(Case):
    def login(self, config, image, helper=None, **more):
        (self.dir / "config.json").write_text(json.dumps(config))
        env = {"DOCKER_CONFIG": str(self.dir)}
        if helper:
            path = self.dir / "docker-credential-test"
            path.write_text(f"#!/bin/sh\n{helper}\n")
            path.chmod(0o755)
            env["PATH"] = f"{self.dir}:{os.environ['PATH']}"
        front = self.front()
        r = front.run("create", "web", "--image", image, env=env, **more)
        return r, front.started.get("fromImageRegistry") if r.returncode == 0 else None

    def test_docker_config(self):
        """cases of `docker login`: keys with and without a scheme, Docker's own registry by its old address."""
        auths = {"auths": {"ghcr.io": {"auth": "YW5uYTpwYTpzcw=="}, "https://index.docker.io/v1/": {"auth": "aHViOmh1YnB3"}, "localhost:5000": {"auth": ""}}}
        for image, want in (("ghcr.io/a/b", ("anna", "pa:ss")), ("busybox", ("hub", "hubpw")), ("docker.io/a/b:1", ("hub", "hubpw")), ("quay.io/a/b", None), ("localhost:5000/a", None)):
            r, got = self.login(auths, image)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(got, want and {"type": "registry", "username": want[0], "password": want[1]}, image)

    def test_helpers(self):
        say = """read host; [ "$1 $host" = "get ghcr.io" ] || exit 1; echo '{"ServerURL":"x","Username":"bob","Secret":"s3"}'"""
        for config in ({"credsStore": "test"}, {"credHelpers": {"ghcr.io": "test"}}):
            r, got = self.login(config, "ghcr.io/a/b", say)
            self.assertEqual((r.returncode, got), (0, {"type": "registry", "username": "bob", "password": "s3"}), r.stderr)
        r, got = self.login({"credsStore": "test"}, "quay.io/a/b", say)
        self.assertEqual((r.returncode, got), (0, None))
        r, _ = self.login({"credsStore": "test"}, "ghcr.io/a/b", """echo '{"Username":"<token>","Secret":"s3"}'""")
        self.fails(r, 1, "identity token")
        self.assertNotIn("s3", r.stderr)
        r, _ = self.login({"credsStore": "absent"}, "ghcr.io/a/b")
        self.fails(r, 1, "docker-credential-absent is missing")

    def test_damaged_files(self):
        (self.dir / "config.json").write_text("{")
        self.fails(self.front().run("create", "web", "--image", "b", env={"DOCKER_CONFIG": str(self.dir)}), 1, "config.json")

    def test_given(self):
        front = self.front()
        r = front.run("create", "web", "--image", "b", "--username", "anna", "--password-stdin", input="pass word\n")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(front.started["fromImageRegistry"], {"type": "registry", "username": "anna", "password": "pass word"})
        front = self.front()
        r = front.run("create", "web", "--image", "b", "--aws-region", "eu-west-1", env={"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "k"})
        self.assertEqual(front.started["fromImageRegistry"], {"type": "aws", "awsAccessKeyId": "AKIA", "awsSecretAccessKey": "k", "awsRegion": "eu-west-1"})
        self.fails(self.front().run("create", "web", "--image", "b", "--aws-region", "eu-west-1"), 1, "AWS_ACCESS_KEY_ID")
        (self.dir / "key.json").write_text('{"type":"service_account"}')
        front = self.front()
        front.run("create", "web", "--image", "b", "--gcp-key", self.dir / "key.json")
        self.assertEqual(front.started["fromImageRegistry"], {"type": "gcp", "serviceAccountJson": '{"type":"service_account"}'})


class Others(Case):
    def test_list(self):
        front = self.front(answers={("GET", "/templates"): (200, [TEMPLATE, {**TEMPLATE, "aliases": [], "names": [], "public": True, "buildStatus": "error"}])})
        lines = front.run("list").stdout.splitlines()
        self.assertRegex(lines[0], r"^NAME +ID +STATUS +SIZE +CREATED +PUBLIC +CPU +MEMORY$")
        self.assertRegex(lines[1], rf"^web +{ID} +ready +123 MB +2026-01-02T\S+ +no +2 +512 MiB$")
        self.assertRegex(lines[2], rf"^- +{ID} +error .* yes ")
        self.assertEqual(json.loads(front.run("list", "--json").stdout)[0], TEMPLATE)

    def test_info(self):
        front = self.front(answers={("GET", "/templates/web%3Av1/description"): (200, {"layers": [{"file": "images/o1.erofs", "size": 5000}]})})
        out = front.run("info", "web:v1").stdout
        self.assertRegex(out, rf"(?m)^id +{ID}$")
        self.assertRegex(out, rf"(?m)^{BUILD} +ready +default, v1 +2026\S+ +2026\S+ +2 +512 MiB +10240 MiB$")
        self.assertRegex(out, r"(?m)^images/o1.erofs +5\.0 kB$")
        self.assertEqual([t["tag"] for t in json.loads(front.run("info", "web", "--json").stdout)["tags"]], ["default", "v1"])
        self.fails(front.run("info", "nothing"), 1, "nothing at /templates/nothing")

    def test_logs(self):
        front = self.front(page("building", entry("one")), page("building"), page("ready", entry("two\n")), page("ready"))
        r = front.run("logs", "-f", "web")
        self.assertEqual((r.returncode, r.stdout), (0, "one\ntwo\n"))
        front = self.front(page("building", entry("one\x1b[31m")), page("building"))
        r = front.run("logs", "web:v1")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, "one?[31m\n", ""))
        r = front.run("logs", "web", BUILD[:4])
        self.assertEqual(r.returncode, 0)
        self.fails(front.run("logs", "web", "9"), 1, "no such build")
        self.fails(front.run("logs", "web:v9"), 1, "no such build")

    def test_tags(self):
        front = self.front(answers={("POST", "/templates/tags"): (201, {"tags": ["a", "b"], "buildID": BUILD}), ("DELETE", "/templates/tags"): (204, None)})
        self.assertEqual(front.run("tag", "web:v1", "a", "b").stdout, "a\nb\n")
        self.assertEqual(front.asked[-1], ("POST", "/templates/tags", {"target": "web:v1", "tags": ["a", "b"]}))
        self.assertEqual(json.loads(front.run("tag", "web:v1", "a", "b", "--json").stdout)["buildID"], BUILD)
        self.assertEqual(front.run("untag", "web", "a").stdout, "a\n")
        self.assertEqual(front.asked[-1], ("DELETE", "/templates/tags", {"name": "web", "tags": ["a"]}))
        self.fails(front.run("tag", "web"), 2, "missing")

    def test_publish(self):
        front = self.front(answers={("PATCH", f"/v2/templates/{ID}"): (200, {"names": ["web"]})})
        self.assertEqual(front.run("publish", "web").stdout, "web\n")
        self.assertEqual(front.run("unpublish", "web").stdout, "web\n")
        self.assertEqual(front.bodies("PATCH", f"/v2/templates/{ID}"), [{"public": True}, {"public": False}])

    def test_delete(self):
        front = self.front(answers={("DELETE", "/templates/web%3Av1"): (204, None), ("DELETE", "/templates/a%2Fb"): (409, {"code": 409, "message": "2 sandboxes use it"})})
        r = front.run("delete", "a/b", "web:v1")
        self.assertEqual((r.returncode, r.stdout), (1, "web:v1\n"))
        self.assertIn("2 sandboxes use it", r.stderr)
        self.assertEqual(json.loads(front.run("delete", "web:v1", "--force", "--json").stdout), {"deleted": ["web:v1"]})
        self.assertEqual(front.asked[-1][1], "/templates/web%3Av1?force=true")

    def test_gc(self):
        if os.geteuid() != 0:
            self.skipTest("the admin socket is root's")
        state = self.dir / "state"
        state.mkdir()
        answer = {"images": [{"name": "o12.erofs", "bytes": 1500000, "idleSeconds": 7200}], "bytes": 1500000, "count": 1}
        front = self.front(unix=str(state / "admin.sock"), answers={("POST", "/admin/collect-images"): (200, answer)})

        def run(*words):
            return subprocess.run([CUBICLE, "template", "gc", f"--state.dir={state}", *words], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=300)
        r = run("--dry-run", "--older-than", "90m")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertRegex(r.stdout, r"o12.erofs +1\.5 MB +2 h ago\n1 file, 1\.5 MB, would be removed\n$")
        self.assertEqual(json.loads(run("--json").stdout), answer)
        self.assertEqual(front.bodies("POST", "/admin/collect-images"), [{"dryRun": True, "olderThan": 5400}, {"dryRun": False}])
        self.fails(run("--older-than", "soon"), 2, "--older-than")


if __name__ == "__main__":
    unittest.main()
