"""Services that init keeps running (guest/services.h), against envd_host."""
import json
import os
import signal
import socket
import sys
import time
import unittest

from envd import Envd, free_port, until

# Answers every connection with what it finds itself to be; "die", "shutdown" and "nonblock" in the request do that.
SERVER = """
import fcntl, json, os, socket, sys
s = socket.socket(fileno=3)
me = dict(pid=os.getpid(), sid=os.getsid(0), cwd=os.getcwd(), env=dict(os.environ), accepts=s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN),
    blocking=not fcntl.fcntl(3, fcntl.F_GETFL) & os.O_NONBLOCK, descriptors=sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
    undelayed=s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
    stdin=os.readlink("/proc/self/fd/0"), umask=os.umask(0o22))
while True:
    c, _ = s.accept()
    word = c.recv(100)
    if word == b"shutdown":
        s.shutdown(socket.SHUT_RDWR)
    if word == b"nonblock":
        s.setblocking(False)
    if word != b"hello":
        os._exit(3)
    c.sendall(json.dumps(me).encode())
    c.close()
"""


class Case(unittest.TestCase):
    def start(self, *services, arguments=("env:E2B_SANDBOX=true", "env:A=1")):
        texts = ["service:" + "\x1f".join([name, user, str(port or ""), *command]) for name, user, port, command in services]
        self.envd = Envd(*arguments, *texts)
        self.addCleanup(self.end)

    def end(self):
        # What PID 1's end does in a sandbox.
        children = self.envd.children()
        self.envd.stop()
        for pid in children:
            try:
                os.killpg(os.getsid(pid), signal.SIGKILL) if os.getsid(pid) == pid else os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def serve(self, **more):
        self.port = free_port()
        self.start(("web", "root", self.port, [sys.executable, "-c", SERVER]), **more)

    def services(self, **headers):
        c = self.envd.connect()
        status, _, body = c.get("/services", **headers)
        c.close()
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def ask(self, word=b"hello"):
        with socket.create_connection(("127.0.0.1", self.port), 60) as c:
            c.sendall(word)
            text = b""
            while data := c.recv(65536):
                text += data
        return json.loads(text) if text else None

    def test_it_gets_a_socket_and_the_environment_of_commands(self):
        self.serve(arguments=("env:A=1", "env:LISTEN_FDS=9", "env:LISTEN_PID=1", "workdir=/nonexistent", "user=nobody"))
        me = self.ask()  # connected before the program ran
        command = dict(line.split("=", 1) for line in self.envd.run("env", cwd="/", headers={"Authorization": "Basic cm9vdDo="})[0].decode().splitlines() if "=" in line)
        for name in ("PATH", "HOME", "USER", "LOGNAME", "A"):
            self.assertEqual(me["env"][name], command[name])
        self.assertEqual((me["env"]["LISTEN_FDS"], me["env"]["LISTEN_PID"]), ("1", str(me["pid"])))
        self.assertEqual((me["sid"], me["cwd"], me["accepts"], me["blocking"], me["umask"], me["undelayed"]), (me["pid"], "/root", 1, True, 0o22, 1))
        self.assertEqual((me["descriptors"], me["stdin"]), ([0, 1, 2, 3], "/dev/null"))
        (it,) = self.services()
        self.assertEqual({k: it[k] for k in ("name", "user", "port", "state", "pid", "starts", "output")},
            {"name": "web", "user": "root", "port": self.port, "state": "running", "pid": me["pid"], "starts": 1, "output": ""})
        self.assertNotIn("lastEnd", it)

    def test_it_has_a_directory_and_variables_of_its_own(self):
        self.port = free_port()
        self.start(("web", "root", self.port, [sys.executable, "-c", SERVER]), arguments=(
            "env:FROM=template", "env:BOTH=template", "env:GIVEN=create", "template_envs=2", "option:\x1f/tmp\x1fBOTH=service\x1fGIVEN=service\x1fPATH=/opt/x:/bin\x1fOWN=="))
        me = self.ask()
        self.assertEqual({n: me["env"][n] for n in ("FROM", "BOTH", "GIVEN", "PATH", "OWN")},
            {"FROM": "template", "BOTH": "service", "GIVEN": "create", "PATH": "/opt/x:/bin", "OWN": "="})
        self.assertEqual(me["cwd"], "/tmp")
        self.assertEqual(self.envd.run("echo $BOTH", headers={"Authorization": "Basic cm9vdDo="})[0], b"template\n")

    def test_one_that_runs_once_leaves_what_it_has_started(self):
        self.start(("start", "root", None, ["/bin/sh", "-c", "sleep 1000 & echo $!; exit 7"]), arguments=("option:once",))
        until(lambda: self.services()[0]["state"] == "ended" and self.services()[0]["output"])
        (it,) = self.services()
        self.assertEqual((it["lastEnd"], it["starts"], "pid" in it), ("exit status 7", 1, False))
        os.kill(int(it["output"]), 0)
        time.sleep(0.3)
        self.assertEqual(self.services()[0]["starts"], 1)
        os.kill(int(it["output"]), signal.SIGKILL)

    def test_a_missing_directory_is_told(self):
        self.start(("start", "root", None, ["/bin/true"]), ("other", "root", None, ["/nowhere/x"]), arguments=("option:once\x1f/no/such", "option:once"))
        until(lambda: [s["state"] for s in self.services()] == ["ended", "ended"])
        one, two = self.services()
        self.assertEqual((one["lastEnd"], "/nowhere/x" in two["lastEnd"]), ("cwd '/no/such' does not exist", True))
        self.assertEqual((one["starts"], two["starts"]), (0, 0))

    def test_who_connects_while_it_is_down_waits(self):
        self.serve()
        seen = set()
        for i in range(4):
            me = self.ask()
            seen.add(me["pid"])
            os.kill(me["pid"], signal.SIGKILL)
            until(lambda: me["pid"] not in self.envd.children())
        self.assertEqual(len(seen), 4)
        self.assertNotIn(self.ask()["pid"], seen)
        (it,) = self.services()
        self.assertEqual((it["starts"], it["lastEnd"]), (5, "signal: killed"))

    def test_what_one_does_to_the_socket_does_not_outlast_it(self):
        self.serve()
        for word in (b"shutdown", b"nonblock"):
            pid = self.ask()["pid"]
            self.assertIsNone(self.ask(word))
            until(lambda: self.services()[0].get("lastEnd") == "exit status 3" and pid not in self.envd.children())
            until(lambda: self.services()[0]["state"] == "running")
            me = self.ask()
            self.assertNotEqual(me["pid"], pid)
            self.assertEqual((me["accepts"], me["blocking"]), (1, True))

    def test_one_that_ends_at_once_does_not_spin(self):
        self.start(("false", "root", None, ["/bin/false"]))
        until(lambda: self.services()[0]["starts"] >= 3)
        before = self.services()[0]["starts"]
        # Pauses are doubled: 100 ms, 200, 400, 800 ... so not many fit into this, however fast the machine is.
        time.sleep(1.5)
        (it,) = self.services()
        self.assertLessEqual(it["starts"] - before, 5)
        self.assertEqual((it["lastEnd"], "port" in it), ("exit status 1", False))
        self.assertEqual(self.envd.run("echo fine")[0], b"fine\n")

    def test_one_that_cannot_be_started_says_why_and_is_tried_again(self):
        path = "/tmp/cubicle-test-service-%d" % os.getpid()
        self.start(("missing", "root", None, [path]), ("nobody", "no-such-user", None, ["/bin/true"]))
        until(lambda: all("lastEnd" in s for s in self.services()))
        missing, nobody = self.services()
        self.assertIn("No such file", missing["lastEnd"])
        self.assertIn("no-such-user", nobody["lastEnd"])
        self.assertEqual((missing["starts"], nobody["starts"]), (0, 0))
        with open(path, "w") as f:
            f.write("#!/bin/sh\necho here I am\nexec sleep 1000\n")
            os.fchmod(f.fileno(), 0o755)
        self.addCleanup(os.unlink, path)
        until(lambda: self.services()[0]["output"] == "here I am\n")
        self.assertEqual(self.services()[0]["state"], "running")

    def test_the_last_of_its_output_is_kept(self):
        script = "import sys\nfor i in range(40000): print('line', i)\nsys.stderr.write('\\xff end')\nsys.stdout.flush()\nimport time; time.sleep(1000)"
        self.start(("loud", "root", None, [sys.executable, "-u", "-c", script]))
        until(lambda: "line 39999" in self.services()[0]["output"] and "end" in self.services()[0]["output"])
        output = self.services()[0]["output"]
        self.assertLessEqual(len(output), 16384)
        self.assertIn("line 39000\n", output)
        self.assertLess(self.envd.rss_kib() if not os.environ.get("SANITIZED") else 0, 32 * 1024)

    def test_what_it_started_ends_with_it(self):
        script = "set -m; sleep 1000 & echo started $!; wait"  # in a process group of its own
        self.start(("parent", "root", None, ["/bin/bash", "-c", script]))
        until(lambda: self.services()[0]["output"].endswith("\n"))
        (it,) = self.services()
        child = int(it["output"].split()[-1])
        self.assertNotEqual(os.getpgid(child), it["pid"])
        os.kill(it["pid"], signal.SIGKILL)
        until(lambda: child not in self.envd.children() and not os.path.exists("/proc/%d" % child))
        until(lambda: self.services()[0]["starts"] == 2)

    def test_it_comes_back_when_its_spawner_dies_with_it(self):
        self.serve()
        pid = self.ask()["pid"]
        os.kill(self.envd.spawner, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self.envd.children())
        self.assertNotEqual(self.ask()["pid"], pid)

    def test_a_hundred_that_wait_are_served(self):
        self.serve()
        first = self.ask()["pid"]
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in self.envd.children())
        waiting = [socket.create_connection(("127.0.0.1", self.port), 60) for _ in range(100)]
        for c in waiting:
            c.sendall(b"hello")
        pids = set()
        for c in waiting:
            text = b""
            while data := c.recv(65536):
                text += data
            pids.add(json.loads(text)["pid"])
            c.close()
        self.assertEqual(len(pids), 1)

    def test_the_list_needs_the_token(self):
        self.start(("sleep", "root", None, ["/bin/sleep", "1000"]), arguments=("token=secret",))
        c = self.envd.connect()
        self.assertEqual(c.get("/services")[0], 401)
        self.assertEqual(self.services(X_Access_Token="secret")[0]["name"], "sleep")

    def test_without_services_the_list_is_empty(self):
        self.start()
        self.assertEqual(self.services(), [])


if __name__ == "__main__":
    unittest.main()
