"""process.Process and the small endpoints of envd (e2b.md B), against envd_host."""
import base64
import ctypes
import gzip
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse

from envd import Client, Envd, Stream, StreamError, envelope, until

UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"


def b64(data):
    return base64.b64encode(data).decode()


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


def ptrace(request, pid):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(request, pid, None, None) == 0, os.strerror(ctypes.get_errno())


def hold(pid):
    """Keeps it from running; unlike by SIGSTOP, its parent does not hear of it."""
    ptrace(PTRACE_SEIZE, pid)
    ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, WALL)


def lines_of(path):
    with open(path) as f:
        return f.readlines()


def gone(pid):
    try:
        os.kill(pid, 0)
        return False
    except ProcessLookupError:
        return True


class Case(unittest.TestCase):
    arguments = ("user=root", "env:E2B_SANDBOX=true", "env:A=1")

    @classmethod
    def setUpClass(cls):
        cls.envd = Envd(*cls.arguments)

    @classmethod
    def tearDownClass(cls):
        cls.envd.stop()

    def send(self, pid, data, kind="stdin", **headers):
        return self.envd.unary("SendInput", {"process": {"pid": pid}, "input": {kind: b64(data)}}, **headers)

    def start_with_deadline(self, command):
        """A shell command with a deadline that was not over when its first line had come: (stream, the line)."""
        for seconds in (1, 4, 16, 64):
            s = self.envd.start(["/bin/sh", "-c", command], headers={"Connect_Timeout_Ms": str(1000 * seconds)})
            name, value = s.event()
            if name == "start":
                s.pid = value["pid"]
                name, value = s.event()
                if name == "data":
                    return s, base64.b64decode(value["stdout"])
            s.close()  # the machine is slower than that
        self.fail("every deadline was over before a command wrote a line")

    def signal(self, pid, name="SIGNAL_SIGKILL", **more):
        return self.envd.unary("SendSignal", {"process": {"pid": pid}, "signal": name, **more})

    def assert_error(self, answer, status, code, text=""):
        self.assertEqual(answer[0], status, answer)
        self.assertEqual(answer[1]["code"], code)
        self.assertIn(text, answer[1]["message"])


class Http(Case):
    def test_health(self):
        status, headers, body = self.envd.connect().get("/health")
        self.assertEqual((status, body), (204, b""))
        self.assertEqual(headers["cache-control"], "no-store")
        self.assertNotIn("content-length", headers)

    def test_envs(self):
        status, headers, body = self.envd.connect().get("/envs")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        self.assertEqual(json.loads(body), {"E2B_SANDBOX": "true", "A": "1"})

    def test_metrics_have_every_key(self):
        status, headers, body = self.envd.connect().get("/metrics")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        self.assertEqual(set(json.loads(body)), {
            "ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"})

    def test_unknown_paths_are_404_json(self):
        c = self.envd.connect()
        for path in ("/", "/nope", "/init", "/process.Process/Nope", "/freeze"):
            c.request("POST", path, b"{}")
            status, headers = c.head()
            self.assertEqual((status, headers["content-type"]), (404, "application/json"), path)
            self.assertEqual(json.loads(c.body(headers))["code"], 404)

    def test_wrong_method_is_405_with_allow(self):
        c = self.envd.connect()
        for method, path, allow in (("POST", "/health", "GET, HEAD"), ("DELETE", "/envs", "GET, HEAD"), ("GET", "/process.Process/List", "POST")):
            c.request(method, path)
            status, headers = c.head()
            self.assertEqual((status, headers["allow"]), (405, allow))
            self.assertEqual(json.loads(c.body(headers))["code"], 405)

    def test_wrong_content_type_is_415(self):
        for method, kind in (("List", "text/plain"), ("List", "application/connect+json"), ("Start", "application/json"), ("List", "application/proto")):
            c = self.envd.connect()
            c.request("POST", "/process.Process/" + method, b"{}", Content_Type=kind)
            status, headers = c.head()
            self.assertEqual(status, 415)
            self.assertEqual(json.loads(c.body(headers))["code"], 415)

    def test_content_type_with_charset(self):
        self.assertEqual(self.envd.unary("List", {}, Content_Type="application/json; charset=utf-8")[0], 200)

    def test_chunked_body_and_any_case_of_headers(self):
        c = self.envd.connect()
        c.send(b"POST /process.Process/List HTTP/1.1\r\nhOST: x\r\nCONTENT-type: application/json\r\ntransfer-ENCODING: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
        status, headers = c.head()
        self.assertEqual((status, json.loads(c.body(headers))), (200, {"processes": []}))

    def test_connection_is_used_again_after_errors(self):
        c = self.envd.connect()
        self.assert_error(c.unary("SendSignal", {"process": {"pid": 999999999}}), 404, "not_found")
        self.assert_error(c.unary("List", b"{"), 400, "invalid_argument")
        self.assert_error(c.unary("List", b""), 400, "invalid_argument")
        self.assert_error(c.unary("List", b"[]"), 400, "invalid_argument")
        self.assertEqual(c.unary("List", {}), (200, {"processes": []}))

    def test_identity_coding_is_ignored_and_gzip_refused(self):
        self.assertEqual(self.envd.unary("List", {}, Connect_Content_Encoding="identity", Content_Encoding="identity")[0], 200)
        self.assert_error(self.envd.unary("List", {}, Content_Encoding="gzip"), 501, "unimplemented")

    def test_a_million_values_are_refused(self):
        s = Stream(self.envd.connect(), "Start", {"process": {"cmd": "true", "args": [1] * 1000000}})
        self.assertEqual(s.error()["code"], "invalid_argument")
        s.close()

    def test_message_over_the_limit(self):
        self.assert_error(self.envd.unary("List", {"a": "x" * 100000}), 429, "resource_exhausted")


class Token(Case):
    arguments = ("token=secret", "user=root")

    def test_every_path_but_health_wants_it(self):
        c = self.envd.connect()
        self.assertEqual(c.get("/health")[0], 204)
        for path in ("/envs", "/metrics", "/nope", "/process.Process/List"):
            for headers in ({}, {"X_Access_Token": "wrong"}, {"X_Access_Token": "secret1"}, {"X_Access_Token": ""}):
                status, answer, body = c.get(path, **headers)
                self.assertEqual((status, answer["content-type"]), (401, "application/json"))
                self.assertEqual(json.loads(body), {"code": 401, "message": UNAUTHORIZED})
        self.assertEqual(c.get("/envs", X_Access_Token="secret")[0], 200)

    def test_f71_a_preflight_wants_no_token(self):
        c = self.envd.connect()
        for path in ("/files?path=x&signature=y", "/process.Process/Start", "/health"):
            c.request("OPTIONS", path, Origin="https://page", Access_Control_Request_Method="POST", Access_Control_Request_Headers="authorization")
            status, headers = c.head()
            self.assertEqual(status, 204)
            self.assertEqual((headers["access-control-allow-origin"], headers["access-control-allow-headers"], headers["access-control-max-age"]), ("*", "authorization", "7200"))
            self.assertIn("POST", headers["access-control-allow-methods"])
        for path, wanted in (("/health", 204), ("/envs", 401), ("/files?path=x", 401)):
            status, headers, _ = c.get(path, Origin="https://page")
            self.assertEqual((status, headers["access-control-allow-origin"]), (wanted, "*"), path)
        self.assertNotIn("access-control-allow-origin", c.get("/health")[1])

    def test_091_a_signed_url_is_served_without_the_token(self):
        def path(text, expiration=None):
            digest = hashlib.sha256((text + ("" if expiration is None else ":%d" % expiration)).encode()).digest()
            signature = "v1_" + base64.b64encode(digest).decode().rstrip("=")
            more = {} if expiration is None else {"signature_expiration": expiration}
            return "/files?" + urllib.parse.urlencode({"path": "/etc/hostname", "signature": signature, **more})
        with open("/etc/hostname", "rb") as f:
            hostname = f.read()
        c = self.envd.connect()
        status, headers, body = c.get(path("/etc/hostname:read::secret"), Accept_Encoding="gzip, deflate")
        self.assertEqual((status, headers["content-encoding"], gzip.decompress(body)), (200, "gzip", hostname))
        self.assertEqual(c.get(path("/etc/hostname:read::secret", int(time.time()) + 1000), Range="bytes=0-0")[::2], (206, hostname[:1]))
        for query, message in ((path("/etc/hostname:write::secret"), "invalid signature"), (path("/etc/hostname:read::secret", 0), "signature is already expired")):
            status, _, body = c.get(query)
            self.assertEqual((status, json.loads(body)), (401, {"code": 401, "message": message}))

    def test_rpc_is_refused_with_a_plain_error(self):
        self.assertEqual(self.envd.unary("List", {}), (401, {"code": 401, "message": UNAUTHORIZED}))
        self.assertEqual(self.envd.unary("List", {}, x_access_token="secret")[0], 200)

    def test_stream(self):
        s = self.envd.start(["/bin/echo", "hi"], headers={"X_Access_Token": "secret"})
        self.assertEqual(s.finish()[0], b"hi\n")
        s.close()


class Start(Case):
    def test_recorded_bytes(self):
        """e2b.md, appendix 2, frame by frame."""
        body = b'{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"envs":{"A":"b"},"cwd":"/tmp"},"stdin":false}'
        self.assertEqual(len(body), 0x68)
        c = self.envd.connect()
        c.send(b"POST /process.Process/Start HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic cm9vdDo=\r\ncontent-type: application/connect+json\r\n"
               b"connect-protocol-version: 1\r\nkeepalive-ping-interval: 50\r\ncontent-length: 109\r\n\r\n\x00\x00\x00\x00\x68" + body)
        status, headers = c.head()
        self.assertEqual((status, headers["content-type"], headers["transfer-encoding"]), (200, "application/connect+json", "chunked"))
        whole = c.body(headers)
        frames = []
        while whole:
            flags, n = struct.unpack(">BI", whole[:5])
            frames.append((flags, whole[5:5 + n]))
            whole = whole[5 + n:]
        pid = json.loads(frames[0][1])["event"]["start"]["pid"]
        self.assertEqual(frames, [
            (0, b'{"event":{"start":{"pid":%d}}}' % pid),
            (0, b'{"event":{"data":{"stdout":"aGkK"}}}'),
            (0, b'{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}'),
            (2, b"{}")])

    def test_073_exit_rules(self):
        for command, end in (
                ("exit 0", {"exitCode": 0, "exited": True, "status": "exit status 0"}),
                ("exit 1", {"exitCode": 1, "exited": True, "status": "exit status 1", "error": "exit status 1"}),
                ("exit 256", {"exitCode": 0, "exited": True, "status": "exit status 0"}),
                ("exit 255", {"exitCode": 255, "exited": True, "status": "exit status 255", "error": "exit status 255"}),
                ("kill -9 $$", {"exitCode": -1, "exited": False, "status": "signal: killed", "error": "signal: killed"}),
                ("kill -TERM $$", {"exitCode": -1, "exited": False, "status": "signal: terminated", "error": "signal: terminated"}),
                ("kill -SEGV $$", {"exitCode": -1, "exited": False, "status": "signal: segmentation fault", "error": "signal: segmentation fault"})):
            self.assertEqual(self.envd.run(command), (b"", b"", end), command)

    def test_050_output_is_byte_exact(self):
        out, err, _ = self.envd.run(r"printf 'a\0b'; printf 'a\n\nb\r\n\r\nc\377\360\237' >&2")
        self.assertEqual((out, err), (b"a\0b", b"a\n\nb\r\n\r\nc\xff\xf0\x9f"))

    def test_065_environment(self):
        out, _, _ = self.envd.run_argv(["/usr/bin/env", "-0"], envs={"A": "x\ny", "B": "{\"q\":\"'\"}", "C": "", "D": "é=="})
        got = dict(entry.split(b"=", 1) for entry in out.split(b"\0") if entry)
        self.assertEqual(got, {
            b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", b"HOME": b"/root", b"USER": b"root", b"LOGNAME": b"root",
            b"E2B_SANDBOX": b"true", b"A": b"x\ny", b"B": b"{\"q\":\"'\"}", b"C": b"", b"D": "é==".encode()})

    def test_065_bad_names_of_variables(self):
        for name in ("E=F", "", "a\0b"):
            s = self.envd.start(["/bin/true"], envs={name: "1"})
            self.assertEqual(s.error()["code"], "invalid_argument", name)
            s.close()

    def test_064_arguments_are_never_parsed(self):
        args = ["'", '"', "`id`", "$(id)", "a\nb", "--", "", "é", "$HOME", "*", "x" * 100000]
        out, _, _ = self.envd.run_argv(["/usr/bin/printf", "%s\\0", *args])
        self.assertEqual(out, b"".join(a.encode() + b"\0" for a in args))

    def test_a_megabyte_of_arguments(self):
        args = ["%04d" % i + "y" * 1020 for i in range(1000)]
        out, _, end = self.envd.run_argv(["/bin/sh", "-c", 'echo $#; printf %s "$*" | md5sum', "sh", *args])
        self.assertEqual(out.split()[:2], [b"1000", hashlib.md5(" ".join(args).encode()).hexdigest().encode()])

    def test_too_many_arguments_are_an_error(self):
        s = self.envd.start(["/bin/true", *["z" * 100000] * 30])
        self.assertEqual(s.error()["code"], "invalid_argument")
        s.close()

    def test_program_is_searched_in_the_commands_own_path(self):
        self.assertEqual(self.envd.run_argv(["true"])[2]["exitCode"], 0)
        s = self.envd.start(["true"], envs={"PATH": "/nonexistent"})
        self.assertEqual(s.error()["code"], "invalid_argument")
        s.close()

    def test_exec_failure(self):
        for cmd, text in (("/nope", "No such file"), ("/etc/passwd", "Permission denied"), ("/etc", "Permission denied"), ("nope-nope", "No such file")):
            s = self.envd.start([cmd])
            error = s.error()
            self.assertEqual(error["code"], "invalid_argument")
            self.assertIn(text, error["message"])
            self.assertIn(cmd, error["message"])
            s.close()

    def test_cwd(self):
        for cwd, is_at in (("/tmp", b"/tmp\n"), ("", b"/root\n"), ("~", b"/root\n"), (None, b"/root\n")):
            self.assertEqual(self.envd.run_argv(["/bin/pwd"], **({} if cwd is None else {"cwd": cwd}))[0], is_at)

    def test_067_bad_cwd_is_named(self):
        for cwd, text in (("/nope", "cwd '/nope' does not exist"), ("nope", "cwd '/root/nope' does not exist"), ("/etc/passwd", "/etc/passwd"), ("~nobody", "~nobody")):
            s = self.envd.start(["/bin/true"], cwd=cwd)
            error = s.error()
            self.assertEqual(error["code"], "invalid_argument")
            self.assertIn(text, error["message"])
            s.close()

    def test_067_cwd_of_another_user(self):
        s = self.envd.start(["/bin/true"], cwd="/root", headers={"Authorization": "Basic " + b64(b"nobody:")})
        mode = os.stat("/root").st_mode
        if mode & 0o005:
            self.skipTest("/root is open to everyone here")
        error = s.error()
        self.assertEqual(error["code"], "invalid_argument")
        self.assertIn("/root", error["message"])
        s.close()

    def test_user(self):
        out, _, _ = self.envd.run_argv(["/bin/sh", "-c", "id -u; id -g; echo $HOME $USER $LOGNAME; pwd"], headers={"Authorization": "Basic " + b64(b"nobody:x")})
        uid, gid, names, cwd = out.decode().split("\n")[:4]
        entry = next(line.split(":") for line in lines_of("/etc/passwd") if line.startswith("nobody:"))
        self.assertEqual((uid, gid, names), (entry[2], entry[3], "%s nobody nobody" % entry[5]))
        self.assertEqual(cwd, "/" if not os.path.isdir(entry[5]) else entry[5])

    def test_068_unknown_user(self):
        s = self.envd.start(["/bin/true"], headers={"Authorization": "Basic " + b64(b"no-such:")})
        self.assertEqual(s.error(), {"code": "unauthenticated", "message": "invalid username: 'no-such'"})
        s.close()

    def test_068_supplementary_groups(self):
        out, _, _ = self.envd.run_argv(["/bin/sh", "-c", "id -G"])
        expected = {0} | {int(line.split(":")[2]) for line in lines_of("/etc/group") if "root" in line.strip().split(":")[3].split(",")}
        self.assertEqual({int(g) for g in out.split()}, expected)

    def test_stdin_off_is_end_of_file(self):
        self.assertEqual(self.envd.run("cat; echo done")[0], b"done\n")

    def test_descriptors_signals_and_session_of_a_command(self):
        out, _, _ = self.envd.run("ls -l /proc/self/fd | grep -c ' [0-9]* -> '; grep -E 'SigBlk|SigIgn' /proc/self/status; ulimit -c; umask; ps -o pid=,pgid= -p $$")
        lines = out.decode().split("\n")
        self.assertEqual(lines[0], "4", "0, 1, 2 and the directory")
        self.assertEqual(lines[1].split()[1], "0" * 16)
        self.assertEqual(lines[2].split()[1], "0" * 16)
        self.assertEqual(lines[3:5], ["0", "0022"])
        pid, group = lines[5].split()
        self.assertEqual(pid, group)

    def test_bad_requests(self):
        for message in ({}, {"process": {}}, {"process": {"cmd": ""}}, {"process": {"cmd": 1}}, {"process": {"cmd": "a\0b"}}, {"process": {"cmd": "x", "args": "y"}},
                        {"process": {"cmd": "x", "args": [1]}}, {"process": {"cmd": "x", "envs": {"a": 1}}}, {"process": {"cmd": "x"}, "stdin": "no"},
                        {"process": {"cmd": "x"}, "pty": 1}, {"process": {"cmd": "x", "args": ["a\0"]}}, {"process": {"cmd": "true"}, "tag": 5}):
            s = Stream(self.envd.connect(), "Start", message)
            self.assertEqual(s.error()["code"], "invalid_argument", message)
            s.close()

    def test_bad_envelopes(self):
        for body, code in ((b"", "invalid_argument"), (b"\0\0\0\0", "invalid_argument"), (envelope({}) + b"x", "invalid_argument"), (envelope({}, 1), "invalid_argument"),
                           (envelope({})[:-1], "invalid_argument"), (b"\0\xff\xff\xff\xff{}", "resource_exhausted"), (envelope(b"\xff"), "invalid_argument")):
            c = self.envd.connect()
            c.request("POST", "/process.Process/Start", body, Content_Type="application/connect+json")
            status, headers = c.head()
            self.assertEqual(status, 200)
            flags, n = struct.unpack(">BI", (answer := c.body(headers))[:5])
            self.assertEqual((flags, json.loads(answer[5:])["error"]["code"]), (2, code), body)
            c.close()

    def test_unknown_and_null_fields_are_ignored(self):
        s = Stream(self.envd.connect(), "Start", {"process": {"cmd": "/bin/true", "args": None, "envs": None, "cwd": None, "x": [1]}, "pty": None, "tag": None, "stdin": None, "new": {}})
        self.assertEqual(s.finish()[2]["exitCode"], 0)
        s.close()

    def test_bad_timeout_header(self):
        for value in ("abc", "-5", "1.5", "12345678901", ""):
            s = self.envd.start(["/bin/true"], headers={"Connect_Timeout_Ms": value})
            self.assertEqual(s.error()["code"], "invalid_argument", value)
            s.close()

    def test_start_comes_before_any_output(self):
        s = self.envd.start(["/bin/sleep", "100"])
        pid = s.started()
        self.assertEqual(self.signal(pid), (200, {}))
        self.assertEqual(s.finish()[2]["status"], "signal: killed")
        s.close()


class Life(Case):
    def test_062_output_held_by_a_child_keeps_the_stream_open(self):
        s = self.envd.start(["/bin/sh", "-c", "(read x < %s; echo late) & echo hi" % self.fifo()])
        s.started()
        self.assertEqual(s.event(), ("data", {"stdout": b64(b"hi\n")}))
        until(lambda: gone(s.pid))
        with open(self.path, "w") as f:
            f.write("go\n")
        self.assertEqual(s.finish()[:1], (b"late\n",))
        s.close()

    def fifo(self):
        self.path = "/tmp/guest-test-%d-%s" % (os.getpid(), self.id())
        os.mkfifo(self.path)
        self.addCleanup(os.unlink, self.path)
        return self.path

    def test_062_redirected_child_does_not_hold_the_stream(self):
        s = self.envd.start(["/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
        out, _, end = s.finish()
        self.assertEqual(end["exitCode"], 0)
        self.assertFalse(gone(int(out)))
        os.kill(int(out), signal.SIGKILL)
        s.close()

    def test_062_kill_ends_a_stream_whose_pipes_are_held(self):
        s = self.envd.start(["/bin/sh", "-c", "sleep 100 & echo $!"])
        pid = s.started()
        child = int(base64.b64decode(s.event()[1]["stdout"]))
        until(lambda: gone(pid))
        self.assertEqual(self.signal(pid), (200, {}))
        self.assertEqual(s.finish()[2]["exitCode"], 0)
        self.assertFalse(gone(child), "only the leader is meant")
        os.kill(child, signal.SIGKILL)
        s.close()

    def test_kill_is_answered_when_the_process_is_reaped(self):
        for pty in (None, {"size": {"cols": 80, "rows": 24}}):
            for _ in range(20):
                s = self.envd.start(["/bin/sleep", "100"], pty=pty)
                pid = s.started()
                self.assertEqual(self.signal(pid), (200, {}))
                self.assertTrue(gone(pid))
                self.assertEqual(s.finish()[2]["status"], "signal: killed")
                s.close()

    def test_061_term_may_be_ignored_and_kill_not(self):
        s = self.envd.start(["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 100; done"])
        pid = s.started()
        self.assertEqual(s.event()[0], "data")
        self.assertEqual(self.signal(pid, "SIGNAL_SIGTERM"), (200, {}))
        self.assertEqual(self.signal(pid, 15), (200, {}))
        self.assertFalse(gone(pid))
        self.assertEqual(self.signal(pid, 9), (200, {}))
        self.assertEqual(s.finish()[2]["status"], "signal: killed")
        s.close()

    def test_061_signals_that_are_not_sent(self):
        s = self.envd.start(["/bin/sleep", "100"])
        pid = s.started()
        self.assert_error(self.signal(pid, "SIGNAL_UNSPECIFIED"), 501, "unimplemented")
        self.assert_error(self.envd.unary("SendSignal", {"process": {"pid": pid}}), 501, "unimplemented")
        self.assert_error(self.signal(pid, "SIGNAL_SIGHUP"), 400, "invalid_argument")
        self.assert_error(self.signal(pid, 7), 400, "invalid_argument")
        self.assert_error(self.signal(999999999), 404, "not_found", "process with pid 999999999 not found")
        self.signal(pid)
        s.close()

    def test_kill_with_descendants(self):
        times = ["%d.%d" % (1000 + os.getpid(), i) for i in range(3)]
        s = self.envd.start(["/bin/bash", "-c", "setsid sleep %s & (sleep %s & sleep %s) & echo; wait" % tuple(times)])
        pid = s.started()
        s.event()

        def tree():
            out = subprocess.run(["ps", "-eo", "pid=,args="], stdout=subprocess.PIPE, check=True).stdout.decode()
            return [line for line in out.split("\n") if line.split()[1:2] == ["sleep"] and line.split()[-1] in times]
        until(lambda: len(tree()) == 3)
        self.assertEqual(self.signal(pid, descendants=True), (200, {}))
        s.finish()
        until(lambda: tree() == [])
        s.close()

    def test_058_timeout_kills_the_group_and_ends_the_stream(self):
        s, line = self.start_with_deadline("sleep 100 & echo $!; sleep 101")
        child = int(line)
        with self.assertRaises(StreamError) as raised:
            s.finish()
        self.assertEqual(raised.exception.code, "deadline_exceeded")
        until(lambda: gone(child) and gone(s.pid))
        s.close()

    def test_timeout_after_the_leader_has_gone(self):
        s, line = self.start_with_deadline("sleep 100 & echo $!")
        child = int(line)
        with self.assertRaises(StreamError) as raised:
            s.finish()
        self.assertEqual(raised.exception.code, "deadline_exceeded")
        until(lambda: gone(child))
        s.close()

    def test_timeout_leaves_daemons(self):
        s, line = self.start_with_deadline("setsid sleep 100 >/dev/null 2>&1 & while [ $(ps -o sid= -p $!) != $! ]; do :; done; echo $!; sleep 101")
        child = int(line)
        with self.assertRaises(StreamError):
            s.finish()
        until(lambda: gone(s.pid))
        self.assertFalse(gone(child))
        os.kill(child, signal.SIGKILL)
        s.close()

    def test_a_process_outlives_its_client_and_not_its_timeout(self):
        kept = self.envd.start(["/bin/sleep", "100"])
        kept.started()
        kept.close()
        s, _ = self.start_with_deadline("echo on; exec sleep 100")
        s.close()
        until(lambda: gone(s.pid))
        self.assertFalse(gone(kept.pid))
        self.signal(kept.pid)

    def test_timeout_of_zero_is_none(self):
        s = self.envd.start(["/bin/sleep", "0.2"], headers={"Connect_Timeout_Ms": "0"})
        self.assertEqual(s.finish()[2]["exitCode"], 0)
        s.close()

    def test_connect_gets_what_comes_then(self):
        s = self.envd.start(["/bin/cat"], stdin=True, tag="the cat")
        pid = s.started()
        a = self.envd.attach({"pid": pid})
        b = self.envd.attach({"tag": "the cat"})
        self.assertEqual((a.started(), b.started()), (pid, pid))
        self.assertEqual(self.send(pid, b"x"), (200, {}))
        for stream in (s, a, b):
            self.assertEqual(stream.event(), ("data", {"stdout": b64(b"x")}))
        self.assertEqual(self.envd.unary("CloseStdin", {"process": {"tag": "the cat"}}), (200, {}))
        for stream in (s, a, b):
            self.assertEqual(stream.finish()[2]["exitCode"], 0)
            stream.close()

    def test_connect_to_nothing(self):
        a = self.envd.attach({"pid": 999999999})
        self.assertEqual(a.error(), {"code": "not_found", "message": "process with pid 999999999 not found"})
        b = self.envd.attach({"tag": "nope"})
        self.assertEqual(b.error(), {"code": "not_found", "message": "process with tag nope not found"})
        c = self.envd.attach({})
        self.assertEqual(c.error()["code"], "invalid_argument")
        d = self.envd.attach({"pid": 1, "tag": "x"})
        self.assertEqual(d.error()["code"], "invalid_argument")
        for s in (a, b, c, d):
            s.close()

    def test_deadline_of_connect_is_only_its_own(self):
        s = self.envd.start(["/bin/sleep", "100"])
        pid = s.started()
        a = self.envd.attach({"pid": pid}, headers={"Connect_Timeout_Ms": "200"})
        a.started()
        self.assertEqual(a.error()["code"], "deadline_exceeded")
        self.assertFalse(gone(pid))
        self.signal(pid)
        self.assertEqual(s.finish()[2]["status"], "signal: killed")
        a.close()
        s.close()

    def test_exit_is_kept_for_a_while(self):
        s = self.envd.start(["/bin/sh", "-c", "exit 7"], tag="seven")
        s.finish()
        for selector in ({"pid": s.pid}, {"tag": "seven"}, {"pid": str(s.pid)}):
            a = self.envd.attach(selector)
            self.assertEqual(a.finish(), (b"", b"", {"exitCode": 7, "exited": True, "status": "exit status 7", "error": "exit status 7"}))
            a.close()
        self.assert_error(self.signal(s.pid), 404, "not_found")
        self.assert_error(self.send(s.pid, b"x"), 404, "not_found")
        self.assert_error(self.envd.unary("CloseStdin", {"process": {"pid": s.pid}}), 404, "not_found")
        s.close()

    def test_list(self):
        until(lambda: self.envd.unary("List", {}) == (200, {"processes": []}))  # those of other tests may still be about to end
        a = self.envd.start(["/bin/bash", "-c", "sleep 100; :"], cwd="/tmp", envs={"X": "é\n"}, tag="one")
        b = self.envd.start(["/bin/sleep", "100"], pty={"size": {"cols": 80, "rows": 24}})
        a.started()
        b.started()
        status, answer = self.envd.unary("List", {})
        self.assertEqual((status, answer), (200, {"processes": [
            {"config": {"cmd": "/bin/bash", "args": ["-c", "sleep 100; :"], "envs": {"X": "é\n"}, "cwd": "/tmp"}, "pid": a.pid, "tag": "one"},
            {"config": {"cmd": "/bin/sleep", "args": ["100"]}, "pid": b.pid}]}))
        for s in (a, b):
            self.signal(s.pid, descendants=True)
            s.close()
        until(lambda: self.envd.unary("List", {}) == (200, {"processes": []}))

    def test_059_keepalive_in_silence(self):
        s = self.envd.start(["/bin/sleep", "100"], headers={"Keepalive_Ping_Interval": "1"})
        s.started()
        self.assertEqual(s.frame(), (0, b'{"event":{"keepalive":{}}}'))
        self.assertEqual(s.frame(), (0, b'{"event":{"keepalive":{}}}'))
        self.signal(s.pid)
        s.close()

    def test_070_clients_that_leave_at_once(self):
        for _ in range(200):
            s = self.envd.start(["/bin/true"])
            s.close()
        self.assertEqual(self.envd.run("echo ok")[0], b"ok\n")
        until(lambda: self.envd.unary("List", {})[1] == {"processes": []})

    def test_client_that_closes_its_half_is_gone(self):
        s = self.envd.start(["/bin/sleep", "100"])
        s.started()
        s.client.socket.shutdown(socket.SHUT_WR)
        with self.assertRaises((EOFError, ConnectionError)):
            s.event()
        self.assertFalse(gone(s.pid))
        self.signal(s.pid)
        s.close()


class Input(Case):
    def cat(self, argv=("/bin/cat",), **more):
        s = self.envd.start(list(argv), stdin=True, **more)
        s.started()
        return s

    def test_stdin_is_a_pipe_when_it_is_not_said(self):
        s = self.envd.start(["/bin/cat"], stdin=None)
        s.started()
        self.assertEqual(self.send(s.pid, b""), (200, {}))
        self.assertEqual(self.send(s.pid, b"hello"), (200, {}))
        self.assertEqual(self.envd.unary("CloseStdin", {"process": {"pid": s.pid}}), (200, {}))
        self.assertEqual(s.finish()[0], b"hello")
        s.close()

    def test_both_alphabets_and_no_padding(self):
        s = self.cat()
        for text in ("+/8=", "-_8", "-_8="):
            self.assertEqual(self.envd.unary("SendInput", {"process": {"pid": s.pid}, "input": {"stdin": text}}), (200, {}))
        self.envd.unary("CloseStdin", {"process": {"pid": s.pid}})
        self.assertEqual(s.finish()[0], b"\xfb\xff" * 3)
        s.close()

    def test_049_ten_mebibytes_in_one_call_and_close_behind_them(self):
        data = bytes(range(256)) * 40960
        s = self.cat(["/bin/sh", "-c", "kill -STOP $$; exec sha256sum"])
        waiting = threading.Thread(target=lambda: self.send(s.pid, data))
        waiting.start()
        # Nothing at all has to wait too, once they are queued.
        until(lambda: self.send(s.pid, b"", Connect_Timeout_Ms="20")[0] == 504)
        self.assertEqual(self.envd.unary("CloseStdin", {"process": {"pid": s.pid}}), (200, {}))
        os.kill(s.pid, signal.SIGCONT)
        out, _, end = s.finish()
        waiting.join()
        self.assertEqual(out.split()[0].decode(), hashlib.sha256(data).hexdigest())
        s.close()

    def test_077_order_on_one_connection(self):
        s = self.cat()
        c = self.envd.connect()
        for i in range(2000):
            self.assertEqual(c.unary("SendInput", {"process": {"pid": s.pid}, "input": {"stdin": b64(b"%d\n" % i)}}), (200, {}))
        c.unary("CloseStdin", {"process": {"pid": s.pid}})
        self.assertEqual(s.finish()[0], b"".join(b"%d\n" % i for i in range(2000)))
        s.close()

    def test_049_reader_that_closes_early_is_an_error_to_the_sender(self):
        s = self.cat(["/usr/bin/head", "-c", "1"])
        status, answer = self.send(s.pid, b"x" * 1000000)
        self.assertIn((status, answer["code"]), ((500, "internal"), (404, "not_found")))
        self.assertEqual(s.finish()[0], b"x")
        s.close()

    def test_stdin_that_is_off_or_closed(self):
        s = self.envd.start(["/bin/sleep", "100"], stdin=False)
        s.started()
        self.assert_error(self.send(s.pid, b"x"), 500, "internal", "stdin not enabled or closed")
        self.signal(s.pid)
        s.close()
        s = self.cat(["/bin/sleep", "100"])
        for _ in range(2):
            self.assertEqual(self.envd.unary("CloseStdin", {"process": {"pid": s.pid}}), (200, {}))
        self.assert_error(self.send(s.pid, b"x"), 500, "internal", "stdin not enabled or closed")
        self.assert_error(self.send(s.pid, b"x", "pty"), 500, "internal", "tty")
        self.signal(s.pid)
        s.close()

    def test_waiting_input_of_a_process_that_dies(self):
        s = self.cat(["/bin/sleep", "100"])
        answers = []
        t = threading.Thread(target=lambda: answers.append(self.send(s.pid, b"x" * 1000000)))
        t.start()
        t.join(0.2)
        self.signal(s.pid)
        t.join()
        self.assertIn(answers[0][1]["code"], ("not_found", "internal"))
        s.close()

    def test_deadline_of_waiting_input(self):
        s = self.cat(["/bin/sleep", "100"])
        self.assert_error(self.send(s.pid, b"x" * 1000000, Connect_Timeout_Ms="200"), 504, "deadline_exceeded")
        self.signal(s.pid)
        s.close()

    def test_client_leaves_while_its_input_waits(self):
        s = self.cat(["/bin/sh", "-c", "kill -STOP $$; exec wc -c"])
        for data in (b"a" * 1000000, b"b" * 1000000):
            c = self.envd.connect()
            body = json.dumps({"process": {"pid": s.pid}, "input": {"stdin": b64(data)}}).encode()
            c.request("POST", "/process.Process/SendInput", body, Content_Type="application/json", Connect_Timeout_Ms="300")
            until(lambda: self.send(s.pid, b"", Connect_Timeout_Ms="20")[0] == 504)
            time.sleep(0.1)
            c.close()
        time.sleep(0.4)
        os.kill(s.pid, signal.SIGCONT)
        self.envd.unary("CloseStdin", {"process": {"pid": s.pid}})
        # What was begun is written to its end; what was not is dropped with its client.
        self.assertEqual(s.finish()[0], b"1000000\n")
        s.close()

    def test_bad_input(self):
        s = self.cat()
        for message in ({"stdin": "!"}, {"stdin": 5}, {}, {"stdin": "eA==", "pty": "eA=="}, None):
            self.assert_error(self.envd.unary("SendInput", {"process": {"pid": s.pid}, "input": message}), 400, "invalid_argument")
        self.signal(s.pid)
        s.close()

    def stream_input(self, messages, slices=None):
        c = self.envd.connect()
        body = b"".join(envelope(m) for m in messages)
        c.request("POST", "/process.Process/StreamInput", body, Content_Type="application/connect+json")
        status, headers = c.head()
        answer = c.body(headers)
        c.close()
        return status, answer

    def test_stream_input(self):
        s = self.cat()
        start = {"start": {"process": {"pid": s.pid}}}
        data = [{"data": {"input": {"stdin": b64(b"%d " % i)}}} for i in range(5000)]
        status, answer = self.stream_input([start, {"keepalive": {}}, *data])
        self.assertEqual((status, answer), (200, envelope({}) + envelope({}, 2)))
        self.envd.unary("CloseStdin", {"process": {"pid": s.pid}})
        self.assertEqual(s.finish()[0], b"".join(b"%d " % i for i in range(5000)))
        s.close()

    def test_stream_input_waits_for_its_reader(self):
        s = self.cat(["/bin/sh", "-c", "sleep 0.3; exec sha256sum"])
        part = os.urandom(100000)
        status, answer = self.stream_input([{"start": {"process": {"pid": s.pid}}}] + [{"data": {"input": {"stdin": b64(part)}}}] * 20)
        self.assertEqual((status, answer), (200, envelope({}) + envelope({}, 2)))
        self.envd.unary("CloseStdin", {"process": {"pid": s.pid}})
        self.assertEqual(s.finish()[0].split()[0].decode(), hashlib.sha256(part * 20).hexdigest())
        s.close()

    def test_stream_input_errors(self):
        for messages, code in (([{"data": {"input": {"stdin": ""}}}], "invalid_argument"), ([], "invalid_argument"), ([{"start": {"process": {"pid": 999999999}}}], "not_found")):
            status, answer = self.stream_input(messages)
            self.assertEqual((status, answer[0]), (200, 2))
            self.assertEqual(json.loads(answer[5:])["error"]["code"], code)


class Pty(Case):
    SIZE = {"size": {"cols": 80, "rows": 24}}

    def shell(self, **more):
        s = self.envd.start(["/bin/bash", "--norc", "--noprofile", "-i"], stdin=None, pty=self.SIZE, envs={"TERM": "xterm-256color", "PS1": "$ "}, **more)
        s.started()
        return s

    def test_079_session(self):
        s = self.shell()
        self.assertEqual(self.send(s.pid, b"tty; stty size; ps -o pid=,sid=,pgid= -p $$; exit 3\n", "pty"), (200, {}))
        out, err, end = s.finish()
        self.assertEqual(err, b"")
        self.assertIn(b"/dev/pts/", out)
        self.assertIn(b"24 80\r\n", out)
        self.assertRegex(out, (r"\b%d +%d +%d\r\n" % (s.pid, s.pid, s.pid)).encode())
        self.assertEqual((end["exitCode"], end["exited"]), (3, True))
        s.close()

    def test_output_goes_to_pty_only(self):
        s = self.envd.start(["/bin/echo", "hi"], pty=self.SIZE)
        s.started()
        self.assertEqual(s.event(), ("data", {"pty": b64(b"hi\r\n")}))
        self.assertEqual(s.finish()[2]["exitCode"], 0)
        s.close()

    def test_076_resize(self):
        s = self.shell()
        update = lambda cols, rows: self.envd.unary("Update", {"process": {"pid": s.pid}, "pty": {"size": {"cols": cols, "rows": rows}}})
        self.assertEqual(update(100, 30), (200, {}))
        for cols, rows in ((0, 0), (65536, 10), (4294967295, 10), (10, 0), (4294967296, 1), (-1, 5), (1.5, 5)):
            self.assert_error(update(cols, rows), 400, "invalid_argument")
        self.assertEqual(self.envd.unary("Update", {"process": {"pid": s.pid}}), (200, {}))
        self.send(s.pid, b"stty size; exit\n", "pty")
        self.assertIn(b"30 100\r\n", s.finish()[0])
        self.assert_error(update(1, 1), 404, "not_found")
        s.close()

    def test_076_bad_size_at_start(self):
        for cols, rows in ((0, 0), (65536, 1), (1, 4294967295)):
            s = self.envd.start(["/bin/true"], pty={"size": {"cols": cols, "rows": rows}})
            self.assertEqual(s.error()["code"], "invalid_argument")
            s.close()

    def test_a_command_has_no_size(self):
        s = self.envd.start(["/bin/sleep", "100"])
        s.started()
        self.assert_error(self.envd.unary("Update", {"process": {"pid": s.pid}, "pty": self.SIZE}), 500, "internal")
        self.signal(s.pid)
        s.close()

    def test_stdin_and_close_do_not_fit_a_pty(self):
        s = self.shell()
        self.assert_error(self.send(s.pid, b"x"), 500, "internal")
        self.assert_error(self.envd.unary("CloseStdin", {"process": {"pid": s.pid}}), 500, "unknown", "Ctrl+D (0x04)")
        while b"$ " not in base64.b64decode(s.event()[1]["pty"]):
            pass
        self.send(s.pid, b"\x04", "pty")
        self.assertEqual(s.finish()[2]["exitCode"], 0)
        s.close()

    def test_080_reconnect_after_the_client_left(self):
        s = self.shell()
        s.close()
        a = self.envd.attach({"pid": s.pid})
        a.started()
        self.send(s.pid, b"echo $((20+22)); exit\n", "pty")
        self.assertIn(b"42\r\n", a.finish()[0])
        a.close()

    def test_owner_of_the_terminal(self):
        s = self.envd.start(["/bin/sh", "-c", "stat -c %U $(tty); echo > $(tty)"], pty=self.SIZE, headers={"Authorization": "Basic " + b64(b"nobody:")})
        self.assertEqual(s.finish()[0], b"nobody\r\n\r\n")
        s.close()

    def test_080_descriptors_stay_flat(self):
        before = self.envd.fds()
        for _ in range(100):
            s = self.envd.start(["/bin/true"], pty=self.SIZE)
            s.started()
            s.close()
        until(lambda: self.envd.fds() <= before)


class Load(Case):
    def assert_flat(self, kib, limit=8 * 1024):
        # A sanitizer's shadow memory and quarantine say nothing about the program's own.
        if not os.environ.get("SANITIZED"):
            self.assertLess(kib, limit)

    def test_053_a_hundred_megabytes_without_a_newline_in_flat_memory(self):
        s = self.envd.start(["/bin/sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x"])
        s.started()
        total = 0
        peak = 0
        while True:
            name, value = s.event()
            if name != "data":
                break
            data = base64.b64decode(value["stdout"])
            self.assertLessEqual(len(data), 32768)
            self.assertEqual(data.count(b"x"), len(data))
            total += len(data)
            peak = max(peak, self.envd.rss_kib())
        self.assertEqual((name, total), ("end", 100000000))
        self.assert_flat(peak)
        s.close()

    def test_074_slow_reader_stops_its_process_only(self):
        s = self.envd.start(["/bin/sh", "-c", "echo $$; exec yes"])
        s.started()

        def written():
            with open("/proc/%d/io" % s.pid) as f:
                return int(next(line for line in f if line.startswith("wchar:")).split()[1])
        last = [0]

        def stands():
            now, before = written(), last[0]
            last[0] = now
            time.sleep(0.2)
            return now == before
        until(stands)
        self.assertLess(written(), 64 << 20)
        self.assertEqual(self.envd.run("echo ok")[0], b"ok\n")
        # A second stream of the same process waits with the first, and both go on.
        for _ in range(50):
            s.event()
        self.assert_flat(self.envd.rss_kib())
        s.close()
        until(lambda: not stands())  # nobody watches: it runs on, output is dropped
        self.signal(s.pid)

    def test_055_subscriber_that_leaves_in_a_burst(self):
        for _ in range(50):
            s = self.envd.start(["/bin/sh", "-c", "head -c 2000000 /dev/zero"])
            pid = s.started()
            a = self.envd.attach({"pid": pid})
            a.started()
            out = []
            reader = threading.Thread(target=lambda: out.append(s.finish()[0]))
            reader.start()
            a.event()
            a.close()
            reader.join()
            self.assertEqual(len(out[0]), 2000000)
            s.close()

    def test_a_thousand_one_after_another(self):
        self.envd.run("true")
        fds = self.envd.fds()
        for i in range(1000):
            self.assertEqual(self.envd.run_argv(["/bin/echo", str(i)])[0], b"%d\n" % i)
        until(lambda: self.envd.fds() <= fds)
        self.assert_flat(self.envd.rss_kib())

    def test_two_hundred_at_once(self):
        streams = [self.envd.start(["/bin/sh", "-c", "echo %d; sleep 0.5; exit %d" % (i, i % 7)]) for i in range(200)]
        for i, s in enumerate(streams):
            out, _, end = s.finish()
            self.assertEqual((out, end["exitCode"]), (b"%d\n" % i, i % 7))
            s.close()

    def test_ten_thousand_orphans_are_reaped(self):
        self.envd.run("i=0; while [ $i -lt 200 ]; do (for j in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50; do : & done) & i=$((i+1)); done")
        until(lambda: list(self.envd.children()) == [self.envd.spawner], 60)
        self.assert_flat(self.envd.rss_kib())

    def test_exit_races_with_its_report(self):
        """Ends before the pid can have been read: no end may be lost."""
        for _ in range(300):
            s = self.envd.start(["/bin/true"])
            self.assertEqual(s.finish()[2]["exitCode"], 0)
            s.close()

    def test_too_much_waiting_input_is_refused(self):
        s = self.envd.start(["/bin/sleep", "100"], stdin=True)
        s.started()
        clients = [self.envd.connect() for _ in range(12)]
        body = json.dumps({"process": {"pid": s.pid}, "input": {"stdin": b64(b"x" * 4000000)}}).encode()
        for c in clients:
            c.request("POST", "/process.Process/SendInput", body, Content_Type="application/json")
        # The first that is answered is one too many; the others wait.
        first = select.select([c.socket for c in clients], [], [], 60)[0][0]
        c = next(c for c in clients if c.socket is first)
        self.assertEqual(json.loads(c.body(c.head()[1]))["code"], "resource_exhausted")
        self.assert_flat(self.envd.rss_kib(), 64 * 1024)
        self.signal(s.pid)
        for c in clients:
            c.close()
        s.close()
        until(lambda: os.environ.get("SANITIZED") or self.envd.rss_kib() < 8 * 1024)


class Memory(unittest.TestCase):
    """A cgroup of its own with 64 MiB, in which the spawner is put."""

    def setUp(self):
        v1 = os.path.isdir("/sys/fs/cgroup/memory")
        self.directory = "%s/cubicle-envd-test-%d" % ("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup", os.getpid())
        try:
            os.mkdir(self.directory)
            with open(self.directory + ("/memory.limit_in_bytes" if v1 else "/memory.max"), "w") as f:
                f.write(str(64 << 20))
        except OSError as e:
            self.skipTest("no memory cgroup can be made here: %s" % e)
        self.addCleanup(self.remove)
        self.envd = Envd("user=root", "memory=" + self.directory, "cpu=" + self.directory)
        self.addCleanup(self.envd.stop)
        with open(self.directory + "/cgroup.procs", "w") as f:
            f.write(str(self.envd.spawner))

    def remove(self):
        """Its processes may still be dying."""
        def removed():
            try:
                os.rmdir(self.directory)
                return True
            except OSError:
                return False
        until(removed)

    def test_082_a_command_that_runs_out_of_memory(self):
        eat = "x = bytearray(100 << 20)"
        _, _, end = self.envd.run_argv(["/usr/bin/python3", "-c", eat])
        self.assertEqual(end, {"exitCode": -1, "exited": False, "status": "signal: killed",
                               "error": "signal: killed (oom_killed: the memory limit of 64 MiB was reached)"})
        _, _, end = self.envd.run("/usr/bin/python3 -c '%s'; exit $?" % eat)
        self.assertEqual((end["exitCode"], end["status"]), (137, "exit status 137"))
        self.assertIn("oom_killed", end["error"])
        self.assertEqual(self.envd.run("kill -9 $$")[2]["error"], "signal: killed", "a kill of another kind")
        status, _, body = self.envd.connect().get("/metrics")
        self.assertEqual((status, json.loads(body)["mem_total"]), (200, 64 << 20))

    def test_commands_go_on_at_once(self):
        for _ in range(3):
            self.assertIn("oom_killed", self.envd.run_argv(["/usr/bin/python3", "-c", "x = bytearray(100 << 20)"])[2]["error"])
            for i in range(20):
                self.assertEqual(self.envd.run("echo %d" % i)[::2], (b"%d\n" % i, {"exitCode": 0, "exited": True, "status": "exit status 0"}))


class Spawner(Case):
    def test_death_of_the_spawner(self):
        """Whatever it was given and did not start is given to the next one."""
        for i in range(30):
            os.kill(self.envd.spawner, signal.SIGKILL)
            self.assertEqual(self.envd.run("echo %d" % i)[0], b"%d\n" % i)
            self.next_spawner()

    def next_spawner(self):
        self.envd.spawner = int(self.envd.process.stderr.readline().split()[1])

    def test_death_with_many_starts_in_flight(self):
        fds = self.envd.fds()
        with tempfile.TemporaryDirectory() as d:
            for deaths in (1, 3):
                hold(self.envd.spawner)
                big = "x" * 100000  # more than fits a datagram: goes as a file
                streams = [self.envd.start(["/bin/sh", "-c", "cat; echo ran >> %s/%d-%d" % (d, deaths, i)], stdin=True, envs={"BIG": big} if i % 5 == 0 else {}) for i in range(50)]
                for n in range(deaths):
                    time.sleep(0.1)
                    os.kill(self.envd.spawner, signal.SIGKILL)
                    if n == 0:
                        os.waitpid(self.envd.spawner, WALL)
                    self.next_spawner()
                for i, s in enumerate(streams):
                    self.send(s.started(), b"%d" % i)
                    self.envd.unary("CloseStdin", {"process": {"pid": s.pid}})
                    out, _, end = s.finish()
                    self.assertEqual((out, end["exitCode"]), (b"%d" % i, 0))
                    self.assertEqual(lines_of("%s/%d-%d" % (d, deaths, i)), ["ran\n"])
                    s.close()
        until(lambda: self.envd.fds() <= fds)

    def test_deaths_while_many_are_started(self):
        """Each runs once, or fails and did not run."""
        with tempfile.TemporaryDirectory() as d:
            streams = []
            for i in range(200):
                streams.append(self.envd.start(["/bin/sh", "-c", "echo ran >> %s/%d" % (d, i)]))
                if i % 20 == 10:
                    os.kill(self.envd.spawner, signal.SIGKILL)
                    self.next_spawner()
            for i, s in enumerate(streams):
                self.assertEqual(s.finish()[2].get("exitCode"), 0)
                self.assertEqual(lines_of("%s/%d" % (d, i)), ["ran\n"])
                s.close()
        until(lambda: list(self.envd.children()) == [self.envd.spawner])

    def test_any_command_is_killed_before_the_spawner(self):
        def score(pid):
            with open("/proc/%s/oom_score_adj" % pid) as f:
                return int(f.read())
        s = self.envd.start(["/bin/sleep", "100"])
        self.assertEqual(score(s.started()), 500)
        self.assertLess(score(self.envd.spawner), 500)
        self.signal(s.pid)
        s.close()

    def test_a_file_request_that_its_spawner_lost_is_served_by_the_next(self):
        spawner = self.envd.spawner
        hold(spawner)
        c = self.envd.connect()
        answers = []
        asker = threading.Thread(target=lambda: answers.append(c.get("/files?path=/etc/hostname")))
        asker.start()
        time.sleep(0.2)
        os.kill(spawner, signal.SIGKILL)
        os.waitpid(spawner, WALL)
        self.next_spawner()
        asker.join(60)
        self.assertEqual([a[0] for a in answers], [200])

    def test_a_stopped_spawner_or_worker_is_continued(self):
        spawner = self.envd.spawner
        os.kill(spawner, signal.SIGSTOP)
        self.assertEqual(self.envd.run("echo on")[0], b"on\n")
        # A worker in the middle of an upload.
        c = self.envd.connect()
        c.send(b"POST /files?path=/tmp/cubicle-stopped-worker HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 4\r\n\r\nab")
        until(lambda: len(list(self.envd.children())) == 2)
        worker = next(p for p in self.envd.children() if p != spawner)
        for _ in range(20):
            os.kill(worker, signal.SIGSTOP)
        c.send(b"cd")
        self.assertEqual(c.head()[0], 200)
        os.unlink("/tmp/cubicle-stopped-worker")
        # Commands may be stopped, by whoever may signal them.
        s = self.envd.start(["/bin/sleep", "100"])
        s.started()
        os.kill(s.pid, signal.SIGSTOP)
        until(lambda: lines_of("/proc/%d/stat" % s.pid)[0].split(")")[1].split()[0] == "T")
        time.sleep(0.2)
        self.assertEqual(lines_of("/proc/%d/stat" % s.pid)[0].split(")")[1].split()[0], "T")
        os.kill(s.pid, signal.SIGKILL)
        s.finish()

    def test_deadline_while_nothing_can_be_started(self):
        s = self.envd.start(["/bin/true"])
        s.finish()
        s.close()
        until(lambda: len(self.envd.children()) == 1)
        spawner = list(self.envd.children())
        hold(spawner[0])
        s = self.envd.start(["/bin/sleep", "100"], headers={"Connect_Timeout_Ms": "200"})
        self.assertEqual(s.error()["code"], "deadline_exceeded")
        s.close()
        ptrace(PTRACE_DETACH, spawner[0])
        until(lambda: self.envd.unary("List", {})[1] == {"processes": []})
        until(lambda: list(self.envd.children()) == spawner)


if __name__ == "__main__":
    unittest.main()
