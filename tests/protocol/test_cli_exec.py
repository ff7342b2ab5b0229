"""`cubicle run`, `exec` and `shell` against a real envd behind a stand-in for the front: streams, exit codes, signals, terminals, broken connections."""
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from envd import Envd  # noqa: E402

CUBICLE = os.environ["CUBICLE"]
ID = "i" + "a" * 20


class Front:
    """Answers the control plane from a table and joins everything else to envd, byte for byte."""

    def __init__(self, envd_port):
        self.envd_port = envd_port
        self.requests = []
        self.sandboxes = [{"sandboxID": ID, "templateID": "t" * 20, "state": "running", "metadata": {}}]
        self.links = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(s,), daemon=True).start()

    def _serve(self, s):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                more = s.recv(65536)
                if not more:
                    s.close()
                    return
                data += more
            head, _, rest = data.partition(b"\r\n\r\n")
            method, path = head.split(b"\r\n")[0].decode().split()[:2]
            headers = {k.strip().lower(): v.strip() for k, v in (line.decode().split(":", 1) for line in head.split(b"\r\n")[1:])}
            if path.startswith("/process.Process/") and headers.get("e2b-sandbox-id") == ID and headers.get("e2b-sandbox-port") == "49983":
                self._join(s, data)
                return
            length = int(headers.get("content-length", 0))
            while len(rest) < length:
                rest += s.recv(65536)
            data = rest[length:]
            self.requests.append((method, path, json.loads(rest[:length]) if length else None))
            status, body = self._answer(method, path)
            text = b"" if body is None else json.dumps(body).encode()
            s.sendall(("HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(text))).encode() + text)

    def _answer(self, method, path):
        if method == "POST" and path == "/v2/sandboxes":
            return 201, self.sandboxes[0]
        if method == "GET" and path.startswith("/v2/sandboxes"):
            return 200, self.sandboxes
        if path == "/sandboxes/" + ID:
            return (204, None) if method == "DELETE" else (200, self.sandboxes[0])
        if path == "/sandboxes/i" + "b" * 20:
            return 404, {"code": 404, "message": "sandbox not found", "lastTermination": {"reason": "oom_killed", "at": "2026-01-01T00:00:00Z", "detail": "at 512 MiB"}}
        return 404, {"code": 404, "message": "not found"}

    def _join(self, s, data):
        up = socket.create_connection(("127.0.0.1", self.envd_port))
        up.sendall(data)
        self.links.append(s)
        self.links.append(up)

        def copy(a, b):
            try:
                while True:
                    d = a.recv(65536)
                    if not d:
                        break
                    b.sendall(d)
            except OSError:
                pass
            for x in (a, b):
                try:
                    x.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

        threading.Thread(target=copy, args=(s, up), daemon=True).start()
        copy(up, s)

    def cut(self):
        for s in self.links:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class CliExec(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.envd = Envd()
        cls.front = Front(cls.envd.port)

    @classmethod
    def tearDownClass(cls):
        cls.front.listener.close()
        cls.front.cut()
        cls.envd.stop()

    def setUp(self):
        self.front.requests.clear()

    def env(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUBICLE", "E2B_"))}
        return dict(kept, CUBICLE_API_URL=self.front.url, CUBICLE_API_KEY="e2b_x")

    def start(self, *words, **kwargs):
        return subprocess.Popen([CUBICLE, *words], env=self.env(), **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs})

    def run_cli(self, *words, data=b"", timeout=120):
        p = self.start(*words)
        try:
            out, err = p.communicate(data, timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            raise
        return p.returncode, out, err

    def exec(self, *command, flags=(), data=b""):
        return self.run_cli("sandbox", "exec", ID[:5], *flags, "--", *command, data=data)

    def test_streams_stay_apart_and_the_code_is_passed_on(self):
        self.assertEqual(self.exec("sh", "-c", "echo out; echo err >&2; exit 7"), (7, b"out\n", b"err\n"))

    def test_arguments_arrive_as_they_are(self):
        words = ["a b", "", "'", '"', "$HOME", "--json", "ü\n"]
        self.assertEqual(self.exec("printf", "%s|", *words), (0, "".join(w + "|" for w in words).encode(), b""))

    def test_environment_and_directory(self):
        code, out, _ = self.exec("sh", "-c", "echo $A; pwd", flags=["-e", "A=b c", "-w", "/tmp"])
        self.assertEqual((code, out), (0, b"b c\n/tmp\n"))

    def test_standard_input_goes_through_whole(self):
        data = os.urandom(1 << 20)
        self.assertEqual(self.exec("cat", data=data), (0, data, b""))

    def test_the_end_of_standard_input_is_passed_on(self):
        self.assertEqual(self.exec("sh", "-c", "cat >/dev/null; echo end"), (0, b"end\n", b""))

    def test_input_that_nobody_reads_does_not_hang(self):
        self.assertEqual(self.exec("true", data=b"x" * (4 << 20))[0], 0)

    def test_much_output_with_a_slow_reader(self):
        p = self.start("sandbox", "exec", ID, "--", "head", "-c", "20000000", "/dev/zero", stdin=subprocess.DEVNULL)
        time.sleep(0.5)
        total = 0
        while True:
            piece = p.stdout.read1(1 << 16)
            if not piece:
                break
            total += len(piece)
        self.assertEqual((p.wait(), total), (0, 20000000))
        p.stdout.close()
        p.stderr.close()

    def test_a_reader_that_leaves_ends_the_command(self):
        p = self.start("sandbox", "exec", ID, "--", "yes", "reader-left", stdin=subprocess.DEVNULL)
        p.stdout.read(10)
        p.stdout.close()
        self.assertEqual(p.wait(60), 128 + signal.SIGPIPE)
        p.stderr.close()

    def test_signals_that_end_the_command(self):
        self.assertEqual(self.exec("sh", "-c", "kill -9 $$")[0], 137)
        self.assertEqual(self.exec("sh", "-c", "kill -15 $$")[0], 143)

    def test_ctrl_c_asks_then_kills(self):
        p = self.start("sandbox", "exec", ID, "--", "sh", "-c", "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.1; done", stdin=subprocess.DEVNULL)
        self.assertEqual(p.stdout.readline(), b"ready\n")
        p.send_signal(signal.SIGINT)
        self.assertEqual((p.stdout.read(), p.wait(60)), (b"asked\n", 9))
        p.stdout.close()
        p.stderr.close()
        p = self.start("sandbox", "exec", ID, "--", "sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done", stdin=subprocess.DEVNULL)
        self.assertEqual(p.stdout.readline(), b"ready\n")
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.stdout.readline(), b"asked\n")
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(60), 137)
        p.stdout.close()
        p.stderr.close()

    def test_a_command_that_cannot_start(self):
        code, out, err = self.exec("/no/such/program")
        self.assertIn(code, (126, 127))
        self.assertEqual(out, b"")
        code, _, err = self.exec("true", flags=["-w", "/no/such/directory"])
        self.assertEqual(code, 126)
        self.assertIn(b"/no/such/directory", err)
        code, _, err = self.exec("true", flags=["-u", "nosuchuser"])
        self.assertEqual(code, 126)
        self.assertIn(b"nosuchuser", err)

    def test_a_timeout_has_its_own_code(self):
        code, _, err = self.exec("sleep", "100", flags=["--timeout", "1"])
        self.assertEqual(code, 124)
        self.assertIn(b"1 s", err)

    def test_json_gives_the_events(self):
        code, out, _ = self.exec("sh", "-c", "echo hi; exit 3", flags=["--json"])
        events = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(code, 3)
        self.assertGreater(events[0]["start"]["pid"], 0)
        self.assertEqual(events[1], {"data": {"stdout": "aGkK"}})
        self.assertEqual(events[-1]["end"]["exitCode"], 3)

    def test_a_broken_connection_is_no_success(self):
        p = self.start("sandbox", "exec", ID, "--", "sh", "-c", "echo ready; sleep 100", stdin=subprocess.DEVNULL)
        self.assertEqual(p.stdout.readline(), b"ready\n")
        self.front.cut()
        _, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 125)
        self.assertIn(b"connection broke", err)

    def test_no_server_and_no_sandbox(self):
        p = subprocess.run([CUBICLE, "sandbox", "exec", ID, "--", "true"], env=dict(self.env(), CUBICLE_API_URL="http://127.0.0.1:1"), capture_output=True, timeout=60)
        self.assertEqual(p.returncode, 125)
        self.assertIn(b"no server answers", p.stderr)
        code, _, err = self.run_cli("sandbox", "exec", "i" + "b" * 20, "--", "true")
        self.assertEqual(code, 125)
        self.assertIn(b"oom_killed", err)
        code, _, err = self.run_cli("sandbox", "info", "zzz")
        self.assertEqual(code, 1)
        self.assertIn(b"begins with 'zzz'", err)

    def test_an_ambiguous_beginning_is_refused(self):
        self.front.sandboxes.append({"sandboxID": "i" + "a" * 19 + "b"})
        try:
            code, _, err = self.exec("true")
        finally:
            self.front.sandboxes.pop()
        self.assertEqual(code, 125)
        self.assertIn(b"more than one", err)

    def test_run_ends_its_sandbox(self):
        self.assertEqual(self.run_cli("run", "base", "--", "sh", "-c", "exit 5")[0], 5)
        self.assertEqual([(m, p) for m, p, _ in self.front.requests], [("POST", "/v2/sandboxes"), ("DELETE", "/sandboxes/" + ID)])
        self.assertEqual(self.front.requests[0][2]["timeout"], 300)

    def test_run_ends_its_sandbox_when_interrupted(self):
        p = self.start("run", "base", "--", "sh", "-c", "echo ready; sleep 100", stdin=subprocess.DEVNULL)
        self.assertEqual(p.stdout.readline(), b"ready\n")
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(60), 128 + signal.SIGTERM)
        self.assertEqual(self.front.requests[-1][:2], ("DELETE", "/sandboxes/" + ID))
        p.stdout.close()
        p.stderr.close()

    def test_a_terminal(self):
        master, slave = pty.openpty()
        import fcntl
        import struct
        import termios
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        before = termios.tcgetattr(slave)
        p = subprocess.Popen([CUBICLE, "sandbox", "shell", ID], env=self.env(), stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        seen = b""

        def until(wanted):
            nonlocal seen
            deadline = time.monotonic() + 60
            while wanted not in seen:
                if not select.select([master], [], [], max(0, deadline - time.monotonic()))[0]:
                    self.fail("no %r in %r" % (wanted, seen))
                seen += os.read(master, 65536)

        os.write(master, b"stty size; echo mark-$((1+1))\n")
        until(b"33 101")
        until(b"mark-2")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 99, 0, 0))
        p.send_signal(signal.SIGWINCH)
        seen = b""
        deadline = time.monotonic() + 60
        while b"44 99" not in seen and time.monotonic() < deadline:
            os.write(master, b"stty size\n")
            if select.select([master], [], [], 0.5)[0]:
                seen += os.read(master, 65536)
        self.assertIn(b"44 99", seen)
        os.write(master, b"\x03")  # raw: it goes to the shell inside, not to cubicle
        # What is typed while the shell handles the signal is lost with the line it had: again, then.
        while p.poll() is None:
            os.write(master, b"exit 6\n")
            end = time.monotonic() + 2
            while p.poll() is None and time.monotonic() < end:
                if select.select([master], [], [], 0.2)[0]:
                    seen += os.read(master, 65536)
        self.assertEqual(p.returncode, 6)
        self.assertEqual(termios.tcgetattr(slave)[3], before[3])
        os.close(master)
        os.close(slave)

    def test_shell_without_a_terminal_says_what_to_do(self):
        code, _, err = self.run_cli("sandbox", "shell", ID)
        self.assertEqual(code, 125)
        self.assertIn(b"sandbox exec", err)


if __name__ == "__main__":
    unittest.main()
