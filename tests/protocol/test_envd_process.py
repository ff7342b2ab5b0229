"""process.Process of envd (e2b.md B), against envd_host."""
import base64
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest

from envd import Stream, StreamError, envelope, until
from envd_case import Case, b64, lines_of


def gone(pid):
    try:
        os.kill(pid, 0)
        return False
    except ProcessLookupError:
        return True


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


if __name__ == "__main__":
    unittest.main()
