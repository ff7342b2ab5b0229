"""`cubicle pool` against a stand-in for the server: what it asks, how it waits, what it says when nothing gets ready."""
import http.server
import json
import os
import subprocess
import threading
import unittest

CUBICLE = os.environ["CUBICLE"]
POOL = {"templateID": "t" * 20, "alias": "code-interpreter-v1", "set": True, "min": 2, "size": 3, "max": 8, "ready": 0, "starting": 1, "blocked": None, "hits": 5, "misses": 1,
        "failed": 0, "evicted": 0, "refillMs": 1530, "memoryMB": 1024}


class Front:
    """`pools` is what each GET in turn answers, the last one for ever; `refuse` a status for everything."""

    def __init__(self, pools, refuse=None):
        self.pools, self.refuse, self.asked = list(pools), refuse, []
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length", 0))
                front.asked.append((self.command, self.path, json.loads(self.rfile.read(length)) if length else None))
                status, value = 200, None
                if front.refuse:
                    status, value = front.refuse, {"code": front.refuse, "message": "not this one"}
                elif self.command == "DELETE":
                    status = 204
                elif self.command == "PUT":
                    value = POOL
                else:
                    value = front.pools.pop(0) if len(front.pools) > 1 else front.pools[0]
                body = b"" if value is None else json.dumps(value).encode()
                self.send_response(status)
                if body:
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            do_GET = do_PUT = do_DELETE = answer

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def run(self, *words):
        env = {"PATH": os.environ["PATH"], "CUBICLE_API_URL": "http://127.0.0.1:%d" % self.server.server_port, "CUBICLE_API_KEY": "e2b_" + "0" * 40}
        return subprocess.run([CUBICLE, "pool", *words], env=env, capture_output=True, text=True, timeout=300)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Pools(unittest.TestCase):
    def front(self, *pools, **more):
        front = Front(pools or [[POOL]], **more)
        self.addCleanup(front.close)
        return front

    def test_set_says_what_is_asked_for(self):
        front = self.front()
        r = front.run("set", "code-interpreter-v1", "3", "--min", "2", "--max=8")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertEqual(front.asked, [("PUT", "/pools/code-interpreter-v1", {"size": 3, "min": 2, "max": 8})])
        self.assertRegex(r.stdout, r"code-interpreter-v1 +2-8 +3 +0, 1 starting +5 +1 +1\.5 s +1\.1 GB\n")
        self.assertEqual(json.loads(front.run("set", "a/b", "0", "--json").stdout), POOL)
        self.assertEqual(front.asked[-1], ("PUT", "/pools/a%2Fb", {"size": 0}))

    def test_set_waits_until_the_fewest_are_ready(self):
        front = self.front([POOL], [{**POOL, "ready": 1}], [{**POOL, "templateID": "u" * 20, "ready": 7}, {**POOL, "ready": 2}])
        r = front.run("set", "code-interpreter-v1", "3", "--min", "2", "--max", "8", "--wait", "200")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertEqual([a[0] for a in front.asked], ["PUT", "GET", "GET", "GET"])
        self.assertIn(" 2, 1 starting ", r.stdout)

    def test_set_says_why_none_is_ready(self):
        for now, why in (({"starting": 0, "blocked": "no_room"}, "no room"), ({"starting": 0, "blocked": "failing"}, "starts fail"), ({}, "being started")):
            r = self.front([{**POOL, **now, "ready": 1}]).run("set", "code-interpreter-v1", "3", "--wait", "1")
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertIn("1 of 2 sandboxes are ready after 1 s: ", r.stderr)
            self.assertIn(why, r.stderr)
        r = self.front([]).run("set", "code-interpreter-v1", "3", "--wait", "200")
        self.assertEqual(r.returncode, 1)
        self.assertIn("gone", r.stderr)

    def test_list(self):
        front = self.front([{**POOL, "set": False, "starting": 0, "blocked": "no_room", "refillMs": 0}])
        r = front.run("list")
        self.assertRegex(r.stdout, r"^TEMPLATE .*\ncode-interpreter-v1 +2-8 \(default\) +3 +0, no room +5 +1 +- +1\.1 GB\n$")
        self.assertEqual(json.loads(front.run("list", "--json").stdout)[0]["blocked"], "no_room")

    def test_unset(self):
        front = self.front()
        self.assertEqual(front.run("unset", "base").stdout, "base\n")
        self.assertEqual(json.loads(front.run("unset", "base", "--json").stdout), {"unset": "base"})
        self.assertEqual(front.asked, [("DELETE", "/pools/base", None)] * 2)

    def test_what_is_wrong_is_said(self):
        for words in (["set", "base"], ["set", "base", "x"], ["set", "base", "1001"], ["set", "base", "-1"], ["set", "base", "1", "--wait", "0"], ["unset"], ["list", "x"]):
            r = self.front().run(*words)
            self.assertEqual((r.returncode, r.stdout), (2, ""), words)
        for words in (["set", "base", "1"], ["unset", "base"], ["list"]):
            r = self.front(refuse=403).run(*words)
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertIn("not this one", r.stderr)


if __name__ == "__main__":
    unittest.main()
