"""Connections that are handed to file workers and come back (guest/workers.c). What the workers answer is tested in tests/unit."""
import json
import os
import select
import shutil
import signal
import tempfile
import unittest

from envd import Envd, Stream, until


class Workers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.envd = Envd("user=root")
        cls.directory = tempfile.mkdtemp(prefix="cubicle-envd-files-", dir="/tmp")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)
        cls.envd.stop()

    def path(self, name):
        return "%s/%s" % (self.directory, name)

    def upload(self, client, name, data):
        client.request("POST", "/files?path=" + self.path(name), data, Content_Type="application/octet-stream")
        status, headers = client.head()
        return status, json.loads(client.body(headers))

    def workers(self):
        return [pid for pid in self.envd.children() if pid != self.envd.spawner]

    def test_one_connection_for_everything(self):
        c = self.envd.connect()
        for i in range(20):
            self.assertEqual(self.upload(c, "a", b"%d" % i), (200, [{"path": self.path("a"), "name": "a", "type": "file"}]))
            status, headers, body = c.get("/files?path=" + self.path("a"))
            self.assertEqual((status, body), (200, b"%d" % i))
            self.assertEqual(c.get("/health")[0], 204)
            self.assertEqual(c.unary("List", {}), (200, {"processes": []}))

    def test_pipelined_requests_come_back_with_the_connection(self):
        c = self.envd.connect()
        self.upload(c, "p", b"content")
        get = ("GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n" % self.path("p")).encode()
        health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        c.send(get + health + get + get + health)
        for want in (200, 204, 200, 200, 204):
            status, headers = c.head()
            self.assertEqual(status, want)
            self.assertEqual(c.body(headers) if status == 200 else b"content", b"content")

    def test_bytes_behind_a_chunked_upload(self):
        c = self.envd.connect()
        head = "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n" % self.path("c")
        c.send(head.encode() + b"3\r\nabc\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers = c.head()
        self.assertEqual((status, json.loads(c.body(headers))[0]["name"]), (200, "c"))
        self.assertEqual(c.head()[0], 204)

    def test_hundred_downloads_at_once(self):
        data = os.urandom(1 << 20)
        with open(self.path("big"), "wb") as f:
            f.write(data)
        clients = [self.envd.connect() for _ in range(100)]
        for c in clients:
            c.request("GET", "/files?path=" + self.path("big"))
        # More than WORKERS_MAX want one; the others wait, and nothing is lost.
        until(lambda: len(self.workers()) == 64)
        for c in clients:
            status, headers = c.head()
            self.assertEqual((status, c.body(headers) == data), (200, True))
            c.close()
        until(lambda: self.workers() == [])
        self.assertLess(self.envd.rss_kib() if not os.environ.get("SANITIZED") else 0, 8 * 1024)

    def test_killed_worker_cuts_its_connection_only(self):
        c = self.envd.connect()
        c.send(("POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n" % self.path("k")).encode() + b"x" * 1000)
        until(lambda: len(self.workers()) == 1)

        def killed():
            """One that is killed before it said so much as its pid has served nothing, and the request gets another (guest/spawn.h)."""
            for pid in self.workers():
                os.kill(pid, signal.SIGKILL)
            return select.select([c.socket], [], [], 0.05)[0]
        until(killed)
        with self.assertRaises((EOFError, ConnectionError)):
            c.head()
        self.assertEqual(self.upload(self.envd.connect(), "k", b"again")[0], 200)

    def test_client_that_leaves(self):
        fds = self.envd.fds()
        for _ in range(50):
            c = self.envd.connect()
            c.send(("POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n" % self.path("l")).encode() + b"x")
            c.close()
        until(lambda: self.workers() == [])
        until(lambda: self.envd.fds() <= fds)

    def test_dead_spawner(self):
        for _ in range(10):
            os.kill(self.envd.spawner, signal.SIGKILL)
            self.assertEqual(self.upload(self.envd.connect(), "s", b"x" * 300000)[0], 200)
            self.envd.spawner = int(self.envd.process.stderr.readline().split()[1])

    def test_filesystem_rpc(self):
        c = self.envd.connect()
        for _ in range(3):
            c.request("POST", "/filesystem.Filesystem/ListDir", json.dumps({"path": "/proc/self/task", "depth": 1}).encode(), Content_Type="application/json")
            status, headers = c.head()
            self.assertEqual((status, len(json.loads(c.body(headers))["entries"])), (200, 1))

    def filesystem(self, method, message, client=None):
        c = client or self.envd.connect()
        c.request("POST", "/filesystem.Filesystem/" + method, json.dumps(message).encode(), Content_Type="application/json")
        status, headers = c.head()
        return status, json.loads(c.body(headers))

    def watch(self, path, headers=None, **more):
        s = Stream(self.envd.connect(), "WatchDir", {"path": path, **more}, headers, service="filesystem.Filesystem")
        self.assertEqual(s.message(), (0, {"start": {}}))
        return s

    def events_of(self, s, last):
        """(type, name) up to this one."""
        found = []
        while not found or found[-1] != last:
            flags, message = s.message()
            self.assertEqual(flags, 0, message)
            if "filesystem" in message:
                found.append((message["filesystem"]["type"][len("EVENT_TYPE_"):], message["filesystem"]["name"]))
        return found

    def test_watch_is_told_of_changes_by_others(self):
        os.mkdir(self.path("w"))
        s = self.watch(self.path("w"), recursive=True)
        self.envd.run("cd %s && mkdir -p a/b && echo x > a/b/f && mv a/b/f a/g && rm a/g" % self.path("w"))
        found = self.events_of(s, ("REMOVE", "a/g"))
        for wanted in (("CREATE", "a"), ("CREATE", "a/b"), ("CREATE", "a/g")):
            self.assertIn(wanted, found)
        s.close()
        until(lambda: self.workers() == [])

    def test_watches_leave_the_workers_to_others(self):
        fds = self.envd.fds()
        streams = [self.watch(self.directory) for _ in range(80)]
        # More than WORKERS_MAX, and a request is served all the same.
        c = self.envd.connect()
        self.assertEqual(self.upload(c, "x", b"1")[0], 200)
        c.close()
        for s in streams:
            self.events_of(s, ("WRITE", "x"))
        for s in streams:
            s.close()
        until(lambda: self.workers() == [])
        until(lambda: self.envd.fds() <= fds)

    def test_connection_of_a_watch_is_used_again(self):
        c = self.envd.connect()
        s = Stream(c, "WatchDir", {"path": self.directory}, {"Connect_Timeout_Ms": "50"}, service="filesystem.Filesystem")
        self.assertEqual(s.message(), (0, {"start": {}}))
        flags, message = s.message()
        self.assertEqual((flags, message["error"]["code"]), (2, "deadline_exceeded"))
        self.assertEqual(c.chunk(), b"")
        self.assertEqual(c.get("/health")[0], 204)

    def test_killed_watch_cuts_its_connection_only(self):
        s = self.watch(self.directory)
        os.kill(self.workers()[0], signal.SIGKILL)
        with self.assertRaises((EOFError, ConnectionError)):
            s.message()
        self.assertEqual(self.envd.connect().get("/health")[0], 204)

    def test_watchers_outlive_connections_and_the_spawner(self):
        os.mkdir(self.path("polled"))
        status, answer = self.filesystem("CreateWatcher", {"path": self.path("polled"), "includeEntry": True})
        self.assertEqual(status, 200, answer)
        watcher = {"watcherId": answer["watcherId"]}
        os.kill(self.envd.spawner, signal.SIGKILL)
        self.assertEqual(self.upload(self.envd.connect(), "polled/f", b"12345")[0], 200)
        self.envd.spawner = int(self.envd.process.stderr.readline().split()[1])
        c = self.envd.connect()
        status, answer = self.filesystem("GetWatcherEvents", watcher, c)
        self.assertEqual(status, 200, answer)
        self.assertEqual([e["type"] for e in answer["events"] if e["name"] == "f"][0], "EVENT_TYPE_CREATE")
        self.assertEqual(answer["events"][0]["entry"]["path"], self.path("polled/f"))
        self.assertEqual(self.filesystem("RemoveWatcher", watcher, c), (200, {}))
        self.assertEqual(self.filesystem("GetWatcherEvents", watcher, c)[0], 404)
        until(lambda: self.workers() == [])

    def test_many_watchers_are_bounded_by_the_kernel_and_it_is_said(self):
        made = []
        while len(made) < 200:
            status, answer = self.filesystem("CreateWatcher", {"path": self.directory})
            if status != 200:
                self.assertEqual((status, answer["code"]), (429, "resource_exhausted"))
                self.assertIn("inotify", answer["message"])
                break
            made.append(answer["watcherId"])
        for watcher in made:
            self.assertEqual(self.filesystem("RemoveWatcher", {"watcherId": watcher})[0], 200)
        until(lambda: self.workers() == [])


if __name__ == "__main__":
    unittest.main()
