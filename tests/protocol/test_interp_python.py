"""cubicle-interp (e2b.md C) in front of a real IPython kernel."""
import json
import os
import shutil
import socket
import tempfile
import unittest

from interp import FakeEnvd, Interp, kinds, of, spec, until

KERNELS = "/usr/share/jupyter/kernels"


class Case(unittest.TestCase):
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.service = Interp(KERNELS, *cls.arguments, start="python")

    @classmethod
    def tearDownClass(cls):
        cls.service.stop()

    def setUp(self):
        self.contexts = []

    def tearDown(self):
        for c in self.contexts:
            self.service.call("DELETE", "/contexts/" + c)

    def context(self, **wish):
        self.contexts.append(self.service.create(**wish)["id"])
        return self.contexts[-1]

    def value(self, code, **more):
        """The text of the main result."""
        events = self.service.run(code, **more)
        results = [e for e in events if e["type"] == "result" and e["is_main_result"]]
        self.assertEqual(len(results), 1, events)
        return results[0]["text"]


class Executions(Case):
    def test_a_whole_answer(self):
        context = self.context()
        s = self.service.begin("print('out')\nimport sys\nprint('err', file=sys.stderr)\n[1, 2]", context_id=context)
        self.assertEqual(s.response.headers["Transfer-Encoding"], "chunked")
        self.assertEqual(s.response.headers["Content-Type"], "application/x-ndjson")
        events = s.rest()
        s.close()
        self.assertEqual(events[0], {"type": "number_of_executions", "execution_count": 1})
        self.assertEqual(sorted(kinds(events[1:3])), ["stderr", "stdout"])
        self.assertEqual({e["text"] for e in events[1:3]}, {"out\n", "err\n"})
        self.assertRegex(events[1]["timestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$")
        self.assertEqual(events[3], {"type": "result", "is_main_result": True, "text": "[1, 2]"})
        self.assertEqual(len(events), 4)
        self.assertEqual(self.service.run("1", context_id=context)[0]["execution_count"], 2)

    def test_output_comes_while_it_runs(self):
        s = self.service.begin("import time, os\nprint('first', flush=True)\nwhile not os.path.exists(%r): time.sleep(0.01)\nprint('second')" % (self.service.dir + "/go"))
        self.assertEqual(s.until("stdout")["text"], "first\n")
        open(self.service.dir + "/go", "w").close()
        self.assertEqual([e["text"] for e in of(s.rest(), "stdout")], ["second\n"])
        s.close()

    def test_an_error(self):
        context = self.context()
        events = self.service.run("x = 1\n\n1/0", context_id=context)
        self.assertEqual(kinds(events), ["number_of_executions", "error"])
        self.assertEqual((events[1]["name"], events[1]["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("Traceback (most recent call last)", events[1]["traceback"])
        self.assertEqual(self.value("x", context_id=context), "1")
        self.assertEqual([e["name"] for e in of(self.service.run("def (", context_id=context), "error")], ["SyntaxError"])

    def test_what_ipython_adds(self):
        context = self.context()
        run = lambda code: self.service.run(code, context_id=context)
        self.assertEqual(self.value("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'", context_id=context), "awaited")
        self.assertEqual(of(run("!echo from a shell"), "stdout")[0]["text"].strip(), "from a shell")
        run("%cd /tmp")
        self.assertEqual(self.value("import os; os.getcwd()", context_id=context), "/tmp")
        self.assertIn("Return the number of items", of(run("len?"), "result")[0]["text"])
        self.assertEqual(kinds(run("None")), ["number_of_executions"])
        self.assertEqual([e["name"] for e in of(run("raise SystemExit(3)"), "error")], ["SystemExit"])

    def test_displays(self):
        events = self.service.run("from IPython.display import *\ndisplay(HTML('<b>h</b>'))\ndisplay(JSON({'a': [1]}))\ndisplay({'application/x-own': {'b': 1}, 'text/plain': 't'}, raw=True)\n"
                                  "h = display('one', display_id=True)\nh.update('two')\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')")
        results = of(events, "result")
        self.assertEqual([r["is_main_result"] for r in results], [False, False, False, False, True, False])
        self.assertEqual(results[0]["html"], "<b>h</b>")
        self.assertEqual(results[1]["json"], {"a": [1]})
        self.assertEqual(results[2], {"type": "result", "is_main_result": False, "text": "t", "extra": {"application/x-own": {"b": 1}}})
        self.assertEqual([results[3]["text"], results[5]["text"]], ["one", "two"])
        self.assertTrue(results[4]["svg"].startswith("<svg"))

    def test_characters(self):
        """F.95: ASCII only, so that no reader's chunk cuts one."""
        s = self.service.begin("print('h\u00e4\u6f22\U0001f600\\x00\\x1b\u2028')\nimport os\nprint(os.fsdecode(b'\\xff'))\n'\u00e4' * 3")
        events = s.rest()
        s.close()
        self.assertTrue(all(line.isascii() for line in s.lines))
        text = "".join(e["text"] for e in of(events, "stdout"))
        self.assertTrue(text.startswith("h\u00e4\u6f22\U0001f600\x00\x1b\u2028\n"), text)
        self.assertEqual(of(events, "result")[0]["text"], "\u00e4\u00e4\u00e4")

    def test_a_large_result_and_large_code(self):
        self.assertEqual(len(self.value("'\u00e4' * 20_000_000")), 20_000_000)
        code = "x = '" + "y" * 5_000_000 + "'\nlen(x)"
        self.assertEqual(self.value(code), "5000000")
        self.assertLess(self.service.rss_kib(), 2**30 if os.environ.get("SANITIZED") else 300 * 1024)

    def test_questions_fail_at_once(self):
        for code in ("input('name? ')", "import getpass; getpass.getpass()"):
            self.assertEqual([e["name"] for e in of(self.service.run(code), "error")], ["StdinNotImplementedError"])
        self.assertEqual(self.value("import sys; sys.stdin.read()"), "")

    def test_keepalive_while_nothing_happens(self):
        """F.92, F.54."""
        s = self.service.begin("import time; time.sleep(11)")
        events = []
        while (e := s.next()) is not None:
            events.append(e["type"])
        s.close()
        self.assertGreaterEqual(events.count("keepalive"), 1)
        self.assertEqual(s.lines.count('{"type": "keepalive"}'), events.count("keepalive"))

    def test_executions_of_one_context_follow_each_other(self):
        context = self.context()
        self.service.run("order = []", context_id=context)
        streams = [self.service.begin("import time; time.sleep(0.1 if %d == 0 else 0); order.append(%d)" % (i, i), context_id=context) for i in range(20)]
        for s in streams:
            s.rest()
            s.close()
        self.assertEqual(self.value("order", context_id=context), str(list(range(20))))

    def test_one_who_left_the_queue_is_not_run(self):
        context = self.context()
        go = self.service.dir + "/go-on"
        first = self.service.begin("import os, time\nprint('on', flush=True)\nwhile not os.path.exists(%r): time.sleep(0.01)\nran = []" % go, context_id=context)
        first.until("stdout")
        second = self.service.begin("ran.append(2)", context_id=context)
        third = self.service.begin("ran.append(3)", context_id=context)
        fds = self.service.fds()
        second.close()
        until(lambda: self.service.fds() < fds, "the service knows that he left")
        open(go, "w").close()
        first.rest()
        third.rest()
        self.assertEqual(self.value("ran", context_id=context), "[3]")
        first.close()
        third.close()


class Interrupts(Case):
    def begin(self, code, **more):
        """Runs the code, whose ON says that it has come so far."""
        s = self.service.begin(code.replace("ON", "print('on', flush=True)"), **more)
        s.until("stdout")
        return s

    def test_a_client_that_leaves_interrupts(self):
        """F.92."""
        context = self.context()
        for i, code in enumerate(("ON; time.sleep(1000)", "ON\nwhile True: pass", "ON; os.system('sleep 1000')", "while True: ON", "ON; await asyncio.sleep(1000)")):
            with self.subTest(code):
                s = self.begin("import time, os, asyncio\ny = %d\n" % i + code, context_id=context)
                s.close()
                self.assertEqual(self.value("y", context_id=context), str(i))

    def test_one_that_leaves_at_once(self):
        context = self.context()
        for _ in range(5):
            self.service.begin("import time\ntime.sleep(1000)", context_id=context).close()
        self.assertEqual(self.value("6", context_id=context), "6")

    def test_code_that_catches_the_first_interrupt(self):
        context = self.context()
        s = self.begin("import time\nz = 7\ntry:\n    ON; time.sleep(1000)\nexcept KeyboardInterrupt: time.sleep(1000)", context_id=context)
        s.close()
        self.assertEqual(self.value("z", context_id=context), "7")

    def test_code_that_cannot_be_interrupted_costs_the_kernel(self):
        context = self.context()
        s = self.begin("import time, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nw = 1; ON\nwhile True: time.sleep(1)", context_id=context)
        s.close()
        events = self.service.run("'w' in globals()", context_id=context)
        self.assertEqual(kinds(events), ["stderr", "number_of_executions", "result"])
        self.assertIn("could not be interrupted", events[0]["text"])
        self.assertEqual(events[2]["text"], "False")

    def test_variables_are_put_back_after_an_interrupt(self):
        context = self.context()
        s = self.begin("import os, time\nON; time.sleep(1000)", context_id=context, env_vars={"V": "1"})
        s.close()
        self.assertEqual(self.value("os.environ.get('V', 'none')", context_id=context), "none")

    def test_one_who_closes_his_half_is_gone(self):
        context = self.context()
        s = self.begin("import time\nON; time.sleep(1000)", context_id=context)
        s.connection.sock.shutdown(socket.SHUT_WR) if s.connection.sock else s.response.fp.raw._sock.shutdown(socket.SHUT_WR)
        self.assertEqual(self.value("1", context_id=context), "1")
        s.close()


class Deaths(Case):
    def test_the_kernel_is_killed_while_it_runs(self):
        """F.18: the answer ends as an answer."""
        context = self.context()
        for code in ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "import os\nos._exit(0)", "import ctypes\nctypes.string_at(0)"):
            events = self.service.run("x = 1\n" + code, context_id=context)
            self.assertEqual([(e["name"], e["value"]) for e in of(events, "error")], [("ContextRestarting", "Context was restarted")])
            events = self.service.run("'x' in globals()", context_id=context)
            self.assertEqual([e.get("text") for e in of(events, "result")], ["False"])
            self.assertEqual(of(events, "number_of_executions")[0]["execution_count"], 1)

    def test_the_kernel_ends_itself(self):
        context = self.context()
        for _ in range(3):
            self.assertEqual(kinds(self.service.run("x = 1\nexit()", context_id=context))[-1:], ["number_of_executions"])
            events = self.service.run("'x' in globals()", context_id=context)
            self.assertEqual(kinds(events), ["stderr", "number_of_executions", "result"])
            self.assertEqual(events[2]["text"], "False")


class Contexts(Case):
    def test_their_life(self):
        status, headers, body = self.service.call("POST", "/contexts", {"language": None, "cwd": None})
        made = json.loads(body)
        self.assertEqual((status, made["language"], made["cwd"]), (200, "python", os.path.expanduser("~root")))
        self.contexts.append(made["id"])
        other = self.service.create(language="Python", cwd="/usr")  # not /tmp, where anybody may have left a module of a known name
        self.contexts.append(other["id"])
        listed = json.loads(self.service.call("GET", "/contexts")[2])
        self.assertIn(made, listed)
        self.assertIn(other, listed)
        self.assertNotIn("default", [c["id"] for c in listed])
        self.assertEqual(self.value("import os; os.getcwd()", context_id=other["id"]), "/usr")
        self.service.run("mine = 1", context_id=other["id"])
        self.assertEqual(self.value("'mine' in globals()", context_id=made["id"]), "False")
        self.assertEqual(self.service.call("POST", "/contexts/%s/restart" % other["id"])[::2], (200, "null"))
        events = self.service.run("'mine' in globals()", context_id=other["id"])
        self.assertEqual([events[0]["execution_count"], events[1]["text"]], [1, "False"])
        self.assertEqual(self.value("os.getcwd()" if False else "import os; os.getcwd()", context_id=other["id"]), "/usr")
        self.assertEqual(self.service.call("DELETE", "/contexts/" + other["id"])[::2], (200, "null"))
        for method, path in (("DELETE", ""), ("POST", "/restart")):
            self.assertEqual(self.service.call(method, "/contexts/%s%s" % (other["id"], path))[::2], (404, "Context %s not found" % other["id"]))
        status, headers, body = self.service.call("POST", "/execute", {"code": "1", "context_id": other["id"]})
        self.assertEqual((status, headers["Content-Type"], body), (404, "text/plain; charset=utf-8", "Context %s not found" % other["id"]))

    def test_the_default_context(self):
        self.service.run("kept = 8")
        for names in ({}, {"language": "python"}, {"context_id": None, "language": None, "env_vars": None}, {"context_id": "default"}, {"language": "PYTHON"}, {"context_id": ""}):
            self.assertEqual(self.value("kept", **names), "8")

    def test_deleting_the_default_context_makes_a_fresh_one(self):
        self.service.run("kept = 9")
        default = json.loads(self.service.call("GET", "/contexts")[2])[0]["id"]
        self.assertEqual(self.service.call("DELETE", "/contexts/" + default)[0], 200)
        self.assertEqual(self.value("'kept' in globals()"), "False")


class Requests(Case):
    def test_what_is_wrong_is_said_as_text(self):
        for body, status, text in (
                ({"code": "1", "context_id": "a", "language": "python"}, 400, "Only one of context_id or language can be provided"),
                ({"code": "1", "context_id": "no-such"}, 404, "Context no-such not found"), ({}, 400, "code must be a string"), ({"code": 1}, 400, "code must be a string"),
                ({"code": "1", "language": 5}, 400, "language must be a string"), ("{", 400, "the body is no valid JSON"), ("[]", 400, "the body is no JSON object"),
                ("", 400, "code must be"), ({"code": "1", "env_vars": []}, 400, "env_vars must be"), ({"code": "1", "env_vars": {"A": 1}}, 400, "A: the value"),
                ({"code": "1", "env_vars": {"A=B": "1"}}, 400, "A=B: this cannot be"), ({"code": "1", "env_vars": {"": "1"}}, 400, "name of a variable"),
                ({"code": "1", "env_vars": {"A": "a\0"}}, 400, "without NUL"), ("[" * 100000, 400, "nested deeper")):
            got, headers, answer = self.service.call("POST", "/execute", body)
            self.assertEqual(got, status, (body, answer))
            self.assertIn(text, answer)
            self.assertEqual(headers["Content-Type"], "text/plain; charset=utf-8")

    def test_paths_and_methods(self):
        for method, path, status in (("GET", "/", 404), ("GET", "/execute", 405), ("POST", "/health", 405), ("GET", "/contexts/x", 405), ("POST", "/contexts/x/other", 404),
                                     ("PUT", "/contexts", 405), ("HEAD", "/health", 200)):
            self.assertEqual(self.service.call(method, path)[0], status, (method, path))
        self.assertEqual(self.service.call("GET", "/execute")[1]["Allow"], "POST")

    def test_browsers_of_any_origin(self):
        status, headers, _ = self.service.call("OPTIONS", "/execute", Origin="https://x", Access_Control_Request_Method="POST", Access_Control_Request_Headers="x-access-token,content-type")
        self.assertEqual((status, headers["Access-Control-Allow-Origin"], headers["Access-Control-Allow-Headers"]), (204, "*", "x-access-token,content-type"))
        self.assertIn("POST", headers["Access-Control-Allow-Methods"])
        for path in ("/health", "/nothing"):
            self.assertEqual(self.service.call("GET", path, Origin="https://x")[1]["Access-Control-Allow-Origin"], "*")

    def test_bodies_have_limits(self):
        s = socket.create_connection(("127.0.0.1", self.service.port), 60)
        s.sendall(b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        self.assertIn(b" 413 ", s.recv(4096))
        s.close()
        self.assertEqual(self.service.call("POST", "/contexts", " " * 70000)[0], 413)

    def test_chunked_bodies_and_a_connection_used_twice(self):
        s = socket.create_connection(("127.0.0.1", self.service.port), 60)
        self.addCleanup(s.close)
        for code in (b'{"code": "2', b'{"code": "3'):
            s.sendall(b"POST /execute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n3\r\n+1\"\r\n1\r\n}\r\n0\r\n\r\n" % (len(code), code))
            answer = b""
            while not answer.endswith(b"\r\n0\r\n\r\n"):
                piece = s.recv(65536)
                self.assertTrue(piece, answer)
                answer += piece
            self.assertIn(b'\r\n{"type": "result", "is_main_result": true, "text": "%d"}\n\r\n' % (int(code[-1:]) + 1), answer)


class Variables(Case):
    def test_those_of_a_request_last_for_it(self):
        context = self.context()
        self.service.run("import os\nos.environ['OLD'] = 'old'", context_id=context)
        vars = {"OLD": "new", "FRESH": "a'b\"c\\d\n\u00e4\U0001f600$x`", "EMPTY": ""}
        self.assertEqual(self.value("[os.environ[k] for k in %r] == %r" % (list(vars), list(vars.values())), context_id=context, env_vars=vars), "True")
        check = "[os.environ.get(k) for k in ('OLD', 'FRESH', 'EMPTY')]"
        self.assertEqual(self.value(check, context_id=context), "['old', None, None]")
        error = of(self.service.run("os.environ['OLD'] = 'other'\n1/0", context_id=context, env_vars=vars), "error")[0]
        self.assertRegex(error["traceback"], r"line 2|----> 2")
        self.assertEqual(self.value(check, context_id=context), "['old', None, None]")

    def test_they_leave_no_other_trace(self):
        context = self.context()
        before = self.value("sorted(k for k in globals() if not k.startswith('_'))", context_id=context, env_vars={"A": "1"})
        events = self.service.run("sorted(k for k in globals() if not k.startswith('_'))", context_id=context)
        self.assertEqual(events[0]["execution_count"], 2)
        self.assertEqual(events[1]["text"], before)
        self.assertEqual(self.value("len(In), len(Out)", context_id=context), "(4, 2)")

    def test_a_child_process_sees_them(self):
        self.assertEqual(of(self.service.run("!echo $CHILD", env_vars={"CHILD": "yes"}), "stdout")[0]["text"].strip(), "yes")


class UnixSockets(unittest.TestCase):
    def test_ipython_behind_sockets_of_a_private_directory(self):
        directory = tempfile.mkdtemp(prefix="interp-ipc-")
        self.addCleanup(shutil.rmtree, directory)
        spec(directory, "python3", ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python", metadata={"cubicle": {"transport": "ipc"}})
        service = Interp(directory, start="python")
        self.addCleanup(service.discard)
        self.assertEqual(service.text("print(1)"), "1\n")
        self.assertEqual(of(service.run("import os\nos._exit(1)"), "error")[0]["name"], "ContextRestarting")
        self.assertEqual(service.text("print(2)"), "2\n")
        service.stop()


class SandboxVariables(unittest.TestCase):
    def test_they_are_asked_for_once_a_kernel_with_the_token_of_the_client(self):
        envd = FakeEnvd({"G": "global", "H": "x'\u00e4", "BAD=": "1"})
        self.addCleanup(envd.stop)
        service = Interp(KERNELS, "--envd", envd.url)
        self.addCleanup(service.discard)
        read = "import os\nprint(os.environ.get('G'), os.environ.get('H'))"
        # Without the token there are none, and the next one is asked for again.
        self.assertEqual(service.text(read), "None None\n")
        self.assertEqual(service.text(read, token="secret"), "global x'\u00e4\n")
        self.assertEqual(service.text(read), "global x'\u00e4\n")
        self.assertEqual(envd.asked, [("/envs", None), ("/envs", "secret")])
        self.assertEqual(service.text(read, env_vars={"G": "local"}), "local x'\u00e4\n")
        self.assertEqual(service.text(read), "global x'\u00e4\n")
        context = json.loads(service.call("GET", "/contexts")[2])[0]["id"]
        envd.variables = {"G": "later"}
        service.call("POST", "/contexts/%s/restart" % context)
        s = service.begin(read, token="secret")
        events = s.rest()
        s.close()
        self.assertEqual(of(events, "stdout")[0]["text"], "later None\n")
        self.assertEqual(of(events, "number_of_executions")[0]["execution_count"], 1)
        service.stop()

    def test_a_kernel_that_was_ready_before_they_were_known_has_them_in_its_first_cell(self):
        # As in a ready pool: the sandbox becomes somebody's when its services run.
        envd = FakeEnvd({"G": "nobody's"})
        self.addCleanup(envd.stop)
        service = Interp(KERNELS, "--envd", envd.url, start="python", env={**os.environ, "G": "of the service", "K": "kept"})
        self.addCleanup(service.discard)
        self.assertEqual(service.call("GET", "/health")[0], 200)
        self.assertEqual(envd.asked, [])
        envd.variables, envd.token = {"G": "somebody's", "E2B_SANDBOX_ID": "his"}, "his token"
        events = service.run("import os\nprint(*(os.environ[n] for n in ('G', 'E2B_SANDBOX_ID', 'K')))\n1", token="his token")
        self.assertEqual(of(events, "stdout")[0]["text"], "somebody's his kept\n")
        self.assertEqual(of(events, "number_of_executions")[0]["execution_count"], 1)
        self.assertEqual(service.text("import os\nprint(os.environ['G'])", context_id=service.create()["id"], token="his token"), "somebody's\n")
        service.stop()

    def test_an_envd_that_is_not_there_or_silent_stops_nothing(self):
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        service = Interp(KERNELS, "--envd", "http://127.0.0.1:%d" % port)
        self.addCleanup(service.discard)
        self.assertEqual(service.text("print(1)"), "1\n")
        # One who leaves meanwhile leaves nothing behind.
        service.begin("print(2)").close()
        listener.close()
        self.assertEqual(service.text("print(3)"), "3\n")
        service.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
