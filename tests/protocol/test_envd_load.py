"""envd with many commands and much output, without memory, and when its spawner dies, against envd_host."""
import base64
import ctypes
import json
import os
import select
import signal
import tempfile
import threading
import time
import unittest

from envd import Envd, until
from envd_case import Case, b64, lines_of


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


def ptrace(request, pid):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(request, pid, None, None) == 0, os.strerror(ctypes.get_errno())


def hold(pid):
    """Keeps it from running; unlike by SIGSTOP, its parent does not hear of it."""
    ptrace(PTRACE_SEIZE, pid)
    ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, WALL)


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
