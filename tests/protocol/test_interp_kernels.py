"""cubicle-interp (e2b.md C) against kernels that do what no kernel should, and what ours do not."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from interp import Interp, fake, gone, kinds, of, spec, stat_of, until


class Case(unittest.TestCase):
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="interp-kernels-")
        cls.specs(cls.dir)
        cls.service = Interp(cls.dir, *cls.arguments)

    @classmethod
    def tearDownClass(cls):
        try:
            cls.service.stop()
        finally:
            shutil.rmtree(cls.dir)

    @classmethod
    def specs(cls, directory):
        fake(directory, "fake")

    def run_fake(self, code, language="fake", **more):
        return self.service.run(code, language=language, **more)


class Messages(Case):
    @classmethod
    def specs(cls, directory):
        fake(directory, "fake")
        fake(directory, "unix", metadata={"cubicle": {"transport": "ipc"}})
        fake(directory, "polite", interrupt_mode="message")

    def test_each_stream_and_type_has_its_key(self):
        data = {"text/plain": "'quoted'", "text/html": "<b>", "text/markdown": "*", "image/svg+xml": "<svg/>", "image/png": "cA==", "image/jpeg": "ag==",
                "application/pdf": "JQ==", "text/latex": "$x$", "application/json": {"a": [1]}, "application/javascript": "f()", "e2b/data": {"x": [1]},
                "e2b/chart": {"type": "line"}, "application/x-other": {"y": 2}, "text/x-null": None}
        events = self.run_fake("data = %r\npublish('stream', {'name': 'stdout', 'text': 'out'})\npublish('stream', {'name': 'stderr', 'text': 'err'})\n"
                               "publish('display_data', {'data': data, 'metadata': {}})\npublish('execute_result', {'data': {'text/plain': '7'}, 'execution_count': 1})" % data)
        self.assertEqual(kinds(events), ["number_of_executions", "stdout", "stderr", "result", "result"])
        self.assertIn("timestamp", events[1])
        self.assertEqual(events[3], {
            "type": "result", "is_main_result": False, "text": "quoted", "html": "<b>", "markdown": "*", "svg": "<svg/>", "png": "cA==", "jpeg": "ag==", "pdf": "JQ==",
            "latex": "$x$", "json": {"a": [1]}, "javascript": "f()", "data": {"x": [1]}, "chart": {"type": "line"}, "extra": {"application/x-other": {"y": 2}}})
        self.assertEqual(events[4], {"type": "result", "is_main_result": True, "text": "7"})

    def test_quotes_are_stripped_once_and_only_as_a_pair(self):
        texts = {"'a'": "a", '"a"': "a", "''a''": "'a'", "'a\"": "'a\"", "'": "'", "''": "", '"': '"', '"\\"': "\\", "a'": "a'"}
        events = self.run_fake("for t in %r: publish('execute_result', {'data': {'text/plain': t}})" % list(texts))
        self.assertEqual([e["text"] for e in of(events, "result")], list(texts.values()))

    def test_what_is_no_proper_json_or_unicode_comes_through(self):
        raw = b'{"data": {"application/json": {"big": 123456789012345678901234567890, "nan": [NaN, Infinity, -Infinity, 1e999],\n "s": "\\ud800 \\ud83d\\ude00 \xff\xc3\xa4 \xed\xa0\x80"}}}'
        deep = b'{"data": {"application/json": ' + b"[" * 300 + b"]" * 300 + b"}}"
        s = self.service.begin("publish('display_data', {}, raw=%r)\npublish('display_data', {}, raw=%r)" % (raw, deep), language="fake")
        events = s.rest()
        s.close()
        value = events[1]["json"]
        self.assertEqual(value["big"], 123456789012345678901234567890)
        self.assertEqual(value["nan"][:3], [None] * 3)
        self.assertEqual(value["s"], "\ufffd \U0001f600 \ufffd\u00e4 \ufffd\ufffd\ufffd")
        self.assertIn("\\ud83d\\ude00", "".join(s.lines))
        self.assertTrue(all(line.isascii() for line in s.lines))
        self.assertEqual(json.dumps(events[2]["json"]).count("["), 300)

    def test_unsigned_malformed_and_foreign_messages_are_nothing(self):
        events = self.run_fake(
            "publish('stream', {'name': 'stdout', 'text': 'forged'}, key=b'other')\n"
            "publish('stream', {}, raw=b'{\"name\": \"stdout\", \"text\": \"cut')\n"
            "publish('stream', {}, raw=b'[' * 1000 + b']' * 1000)\n"
            "kernel.iopub.send_multipart([b'x'])\nkernel.iopub.send_multipart([b'x', b'<IDS|MSG>', b'', b'{}'])\nkernel.iopub.send_multipart([b''] * 40)\n"
            "kernel.iopub.send_multipart([b'x'] + pack('stream', {'msg_id': 'other'}, {'name': 'stdout', 'text': 'late'}))\n"
            "publish('unheard_of', {})\npublish('stream', {'name': 'stdout'})\npublish('stream', {'name': 'stdout', 'text': 5})\n"
            "publish('execute_result', {'data': 7})\npublish('execute_result', {})\npublish('display_data', {'data': {}})\n"
            "publish('stream', {'name': 'stdout', 'text': 'good'})")
        self.assertEqual([(e["type"], e.get("text")) for e in events], [("number_of_executions", None), ("stdout", "good")])

    def test_an_error_only_in_the_reply_is_told(self):
        events = self.run_fake("manual()\nreply({'status': 'error', 'ename': 'E', 'evalue': 'v', 'traceback': ['a', 'b']})\npublish('status', {'execution_state': 'idle'})")
        self.assertEqual(of(events, "error"), [{"type": "error", "name": "E", "value": "v", "traceback": "a\nb"}])
        events = self.run_fake("manual()\npublish('error', {'ename': 'E', 'evalue': 'v', 'traceback': ['x']})\n"
                               "reply({'status': 'error', 'ename': 'E', 'evalue': 'v', 'traceback': []})\npublish('status', {'execution_state': 'idle'})")
        self.assertEqual([e["traceback"] for e in of(events, "error")], ["x"])

    def test_an_aborted_request_is_an_error(self):
        events = self.run_fake("manual()\nreply({'status': 'aborted'})\npublish('status', {'execution_state': 'idle'})")
        self.assertEqual([e["name"] for e in of(events, "error")], ["ExecutionAborted"])

    def test_the_end_does_not_come_before_the_reply_or_the_rest_of_the_output(self):
        events = self.run_fake("manual()\npublish('status', {'execution_state': 'idle'})\ntime.sleep(0.3)\nreply({'status': 'ok'})")
        self.assertEqual(kinds(events), ["number_of_executions"])
        events = self.run_fake("manual()\nreply({'status': 'ok'})\ntime.sleep(0.3)\npublish('stream', {'name': 'stdout', 'text': 'x'})\npublish('status', {'execution_state': 'idle'})")
        self.assertEqual(kinds(events), ["number_of_executions", "stdout"])

    def test_an_end_that_was_lost_is_no_end_without_end(self):
        events = self.run_fake("manual()\nreply({'status': 'ok'})")
        self.assertEqual([e["name"] for e in of(events, "error")], ["UnexpectedEndOfExecution"])
        self.assertEqual(kinds(self.run_fake("")), ["number_of_executions"])

    def test_the_last_state_of_a_display_is_told_at_the_end(self):
        code = ("def show(kind, text, name): publish(kind, {'data': {'text/plain': text}, 'transient': {'display_id': name}})\n"
                "show('display_data', 'a0', 'a')\nfor i in range(1000): show('update_display_data', 'a%d' % i, 'a'); show('update_display_data', 'b%d' % i, 'b')\n"
                "publish('stream', {'name': 'stdout', 'text': 'x'})")
        self.assertEqual([e.get("text") for e in self.run_fake(code)], [None, "a0", "x", "a999", "b999"])
        self.assertEqual([e.get("text") for e in self.run_fake(code + "\npublish('clear_output', {'wait': False})")], [None, "a0", "x"])
        many = "for i in range(200): publish('update_display_data', {'data': {'text/plain': 't%d' % i}, 'transient': {'display_id': str(i)}})"
        self.assertEqual(sorted(e["text"] for e in of(self.run_fake(many), "result")), sorted("t%d" % i for i in range(200)))

    def test_pages_are_results(self):
        events = self.run_fake("manual()\nreply({'status': 'ok', 'payload': [{'source': 'page', 'data': {'text/plain': 'help'}}, {'source': 'set_next_input', 'text': 'no'}]})\n"
                               "publish('status', {'execution_state': 'idle'})")
        self.assertEqual(of(events, "result"), [{"type": "result", "is_main_result": False, "text": "help"}])

    def test_unix_sockets_when_the_kernel_wants_them(self):
        events = self.run_fake("publish('stream', {'name': 'stdout', 'text': WHERE['transport']})", language="unix")
        self.assertEqual(events[1]["text"], "ipc")

    def test_requests_forbid_questions_and_keep_the_queue(self):
        self.assertEqual(kinds(self.run_fake("assert content['allow_stdin'] is False and content['stop_on_error'] is False and content['store_history'] is True")),
                         ["number_of_executions"])

    def test_interrupt_by_message(self):
        context = self.service.create(language="polite")["id"]
        s = self.service.begin("publish('stream', {'name': 'stdout', 'text': 'on'})\ninterrupted.wait()\ninterrupted.clear()\nafter = 1", context_id=context)
        s.until("stdout")
        s.close()
        self.assertEqual(self.service.text("publish('stream', {'name': 'stdout', 'text': str(after)})", context_id=context), "1")

    def test_env_vars_without_a_way_to_set_them_are_refused_by_name(self):
        status, _, body = self.service.call("POST", "/execute", {"code": "", "language": "fake", "env_vars": {"A": "1"}})
        self.assertEqual(status, 501)
        self.assertIn("fake", body)
        self.assertEqual(kinds(self.run_fake("", env_vars={})), ["number_of_executions"])

    def test_many_contexts_and_many_at_once(self):
        ids = [self.service.create(language="fake")["id"] for _ in range(8)]
        streams = [self.service.begin("publish('stream', {'name': 'stdout', 'text': '%d'})" % i, context_id=ids[i % 8]) for i in range(120)]
        for i, s in enumerate(streams):
            self.assertEqual([e["text"] for e in of(s.rest(), "stdout")], [str(i)])
            s.close()
        before = self.service.fds()
        for i in ids:
            self.assertEqual(self.service.call("DELETE", "/contexts/" + i)[0], 200)
        until(lambda: self.service.fds() <= before - 8 * 6, "descriptors of the deleted kernels are closed")

    def test_a_language_that_nobody_has(self):
        for method, path, body in (("POST", "/contexts", {"language": "nothing"}), ("POST", "/execute", {"code": "", "language": "nothing"})):
            status, headers, body = self.service.call(method, path, body)
            self.assertEqual((status, headers["Content-Type"]), (500, "text/plain; charset=utf-8"))
            self.assertTrue(body.startswith("Failed to create context: there is no kernel for nothing (kernels: "), body)
        self.assertEqual(self.service.call("POST", "/contexts", {"language": "a/b"})[0], 500)
        status, _, body = self.service.call("POST", "/contexts", {"language": "Java"})
        self.assertEqual((status, body.split(" (")[0]), (501, "Failed to create context: there is no kernel for java"))


class Ends(Case):
    @classmethod
    def specs(cls, directory):
        fake(directory, "fake")
        fake(directory, "dying", "die")
        fake(directory, "deaf", "deaf")
        fake(directory, "robbed", "lose-a-port", directory + "/flag")
        spec(directory, "missing", ["/does/not/exist", "{connection_file}"])
        broken = pathlib.Path(directory) / "broken"
        broken.mkdir()
        (broken / "kernel.json").write_text('{"argv": "no list"}')
        (pathlib.Path(directory) / "a-file").write_text("")

    def refused(self, language, **more):
        status, _, body = self.service.call("POST", "/contexts", {"language": language, **more})
        self.assertEqual(status, 500, body)
        self.assertTrue(body.startswith("Failed to create context: "), body)
        status, _, other = self.service.call("POST", "/execute", {"code": "1", "language": language})
        if not more:
            self.assertEqual((status, other.split(":")[0]), (500, "Failed to create context"))
        return body

    def test_a_kernel_that_dies_at_its_start(self):
        self.assertIn("line 999 of its last words", self.refused("dying"))
        self.assertNotIn("line 1 of", self.refused("dying"))

    def test_a_kernel_that_never_answers(self):
        service = Interp(self.dir, "--start-timeout", "15")
        self.addCleanup(service.discard)
        status, _, text = service.call("POST", "/execute", {"code": "1", "language": "deaf"})
        self.assertEqual(status, 500)
        self.assertTrue(text.startswith("Failed to create context: the kernel deaf was not ready after 15 s: "), text)
        self.assertIn("I hear nothing", text)
        service.stop()

    def test_a_kernel_that_is_not_there(self):
        self.assertIn("/does/not/exist: No such file or directory", self.refused("missing"))
        self.assertIn("there is no kernel for broken", self.refused("broken"))
        self.assertIn("/no/such/directory: No such file", self.refused("fake", cwd="/no/such/directory"))
        self.assertEqual([c for c in json.loads(self.service.call("GET", "/contexts")[2]) if c["language"] in ("missing", "broken")], [])

    def test_one_who_leaves_while_his_context_is_made_leaves_none(self):
        before = set(self.service.kernels())  # one of an earlier test may still be about to end
        c = http.client.HTTPConnection("127.0.0.1", self.service.port)
        c.request("POST", "/contexts", '{"language": "deaf"}')
        until(lambda: set(self.service.kernels()) - before, "its kernel is started")
        c.close()
        until(lambda: not set(self.service.kernels()) - before, "its kernel is gone")

    def test_a_port_that_was_taken_meanwhile(self):
        self.assertEqual(kinds(self.service.run("", language="robbed")), ["number_of_executions"])

    def test_what_a_kernel_leaves_behind_ends_with_it(self):
        context = self.service.create(language="fake")["id"]
        pid = int(self.service.text("p = subprocess.Popen(['sleep', '1000'])\npublish('stream', {'name': 'stdout', 'text': str(p.pid)})", context_id=context))
        self.assertFalse(gone(pid))
        self.service.call("POST", "/contexts/%s/restart" % context)
        until(lambda: gone(pid), "its child is gone")

    def test_a_kernel_that_dies_says_its_last_words(self):
        context = self.service.create(language="fake")["id"]
        # A kernel's own thread sends what is published: it ends when that has come.
        s = self.service.begin("publish('stream', {'name': 'stdout', 'text': 'last'})\nwhile not os.path.exists(%r): time.sleep(0.01)\nos._exit(3)" % (self.dir + "/end"), context_id=context)
        self.assertEqual(s.until("stdout")["text"], "last")
        open(self.dir + "/end", "w").close()
        (event,) = s.rest()
        s.close()
        self.assertEqual((event["name"], event["value"]), ("ContextRestarting", "Context was restarted"))
        events = self.service.run("", context_id=context)
        self.assertEqual(kinds(events), ["stderr", "number_of_executions"])
        self.assertIn("restarted", events[0]["text"])
        self.assertEqual(kinds(self.service.run("", context_id=context)), ["number_of_executions"])

    def test_a_kernel_that_dies_idle(self):
        context = self.service.create(language="fake")["id"]
        pid = int(self.service.text("publish('stream', {'name': 'stdout', 'text': str(os.getpid())})", context_id=context))
        before = set(self.service.kernels())
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self.service.kernels() and set(self.service.kernels()) - before, "it is replaced")
        self.assertEqual(kinds(self.service.run("", context_id=context)), ["stderr", "number_of_executions"])

    def test_a_queue_survives_the_kernel(self):
        context = self.service.create(language="fake")["id"]
        first = self.service.begin("time.sleep(0.5)\nos._exit(1)", context_id=context)
        second = self.service.begin("publish('stream', {'name': 'stdout', 'text': 'second'})", context_id=context)
        self.assertEqual(of(first.rest(), "error")[0]["name"], "ContextRestarting")
        self.assertEqual(of(second.rest(), "stdout")[0]["text"], "second")
        first.close()
        second.close()

    def test_deleting_what_runs(self):
        context = self.service.create(language="fake")["id"]
        s = self.service.begin("publish('stream', {'name': 'stdout', 'text': 'on'})\ntime.sleep(1000)", context_id=context)
        s.until("stdout")
        queued = self.service.begin("", context_id=context)
        self.assertEqual(self.service.call("DELETE", "/contexts/" + context)[2], "null")
        for each in (s, queued):
            self.assertEqual([e["name"] for e in of(each.rest(), "error")], ["UnexpectedEndOfExecution"])
            each.close()
        status, _, body = self.service.call("DELETE", "/contexts/" + context)
        self.assertEqual((status, body), (404, "Context %s not found" % context))

    def test_restarting_what_runs(self):
        context = self.service.create(language="fake")["id"]
        s = self.service.begin("publish('stream', {'name': 'stdout', 'text': 'on'})\ntime.sleep(1000)", context_id=context)
        s.until("stdout")
        self.assertEqual(self.service.call("POST", "/contexts/%s/restart" % context)[::2], (200, "null"))
        self.assertEqual([e["name"] for e in of(s.rest(), "error")], ["ContextRestarting"])
        s.close()
        self.assertEqual(kinds(self.service.run("", context_id=context)), ["number_of_executions"])


NODE = """const vm = require('vm'); let b = '';
process.stdin.on('data', d => { b += d; for (let i; (i = b.indexOf('\\0')) >= 0;) { const c = b.slice(0, i); b = b.slice(i + 1);
  try { const v = vm.runInThisContext(c); if (v !== undefined) console.log(v); } catch (e) { console.log(String(e)); } process.stdout.write('\\0'); } });"""


def find_node():
    ours = pathlib.Path(__file__).parents[2] / "build/bin/node"
    return str(ours) if ours.exists() else shutil.which("node")


class Variables(Case):
    """e2b.md C.4, in languages beside Python: their code, in their interpreters."""

    VALUES = {"OLD": "new", "FRESH": "a'b\"c\\d\n\u00e4\U0001f600$x`!", "EMPTY": "", "_x1": "$(exit 1)"}

    @classmethod
    def specs(cls, directory):
        fake(directory, "bash", "through", "bash")
        if find_node():
            fake(directory, "node", "through", find_node(), "-e", NODE, language="javascript")

    def check(self, language, set_old, read):
        """`read` writes the variables of VALUES, and - for one that is not there, each followed by a |."""
        run = lambda code, **more: self.service.run(code, language=language, **more)
        self.assertEqual(kinds(run(set_old)), ["number_of_executions"])
        for _ in range(2):
            events = run(read, env_vars=self.VALUES)
            self.assertEqual(kinds(events), ["number_of_executions", "stdout"], events)
            self.assertEqual(events[1]["text"], "".join(v + "|" for v in self.VALUES.values()))
            self.assertEqual(run(read)[1]["text"], "old|-|-|-|")

    def test_bash(self):
        self.check("bash", "export OLD=old", "for n in OLD FRESH EMPTY _x1; do printf '%s|' \"${!n--}\"; done")
        status, _, body = self.service.call("POST", "/execute", {"code": "", "language": "bash", "env_vars": {"A-B": "1"}})
        self.assertEqual((status, body), (400, "env_vars: A-B: this cannot be the name of a variable"))
        # What was no variable of the environment is none again.
        self.service.run("OLD=shell; declare +x OLD", language="bash")
        self.assertEqual(self.service.text("env | grep ^OLD=", language="bash", env_vars={"OLD": "1"}), "OLD=1\n")
        self.assertEqual(self.service.text("echo $OLD; env | grep ^OLD=", language="bash"), "shell\n")

    @unittest.skipUnless(find_node(), "there is no Node.js here")
    def test_javascript(self):
        self.check("javascript", "process.env.OLD = 'old'; undefined", "process.stdout.write(['OLD', 'FRESH', 'EMPTY', '_x1'].map(n => (process.env[n] ?? '-') + '|').join('')); undefined")
        self.assertEqual(self.service.text("Object.keys(globalThis).includes('e')", language="js", env_vars={"A": "1"}), "false\n")
        # TypeScript shares its context.
        self.assertEqual(self.service.text("var shared = 4; shared", language="ts"), "4\n")
        self.assertEqual(self.service.text("shared", language="JS"), "4\n")


class Service(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="interp-service-")
        fake(self.dir, "fake")
        self.addCleanup(shutil.rmtree, self.dir)

    def start(self, *arguments, **more):
        service = Interp(self.dir, *arguments, **more)
        self.addCleanup(service.discard)
        return service

    def test_a_service_that_was_killed_leaves_nothing_for_the_next(self):
        run_dir = self.dir + "/run"
        first = self.start(run_dir=run_dir)
        pid, child = first.text("p = subprocess.Popen(['sleep', '1000'])\npublish('stream', {'name': 'stdout', 'text': '%d %d' % (os.getpid(), p.pid)})",
                                language="fake").split()
        self.assertEqual(len(os.listdir(run_dir)), 2)
        first.kill()
        until(lambda: gone(int(pid)), "the kernel ends with its service")
        self.assertFalse(gone(int(child)))
        second = self.start(run_dir=run_dir)
        until(lambda: gone(int(child)), "what the kernel left is gone")
        until(lambda: os.listdir(run_dir) == [], "nothing is kept about it")
        self.assertEqual(kinds(second.run("", language="fake")), ["number_of_executions"])
        second.stop()
        self.assertEqual(os.listdir(run_dir), [])

    def test_descriptor_3(self):
        listener = socket.create_server(("127.0.0.1", 0))
        script = 'exec 3<&%d; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$0" "$@"' % listener.fileno()
        service = Interp.__new__(Interp)
        service.dir, service.port = tempfile.mkdtemp(prefix="interp-"), listener.getsockname()[1]
        service.log = open(service.dir + "/log", "w+b")
        service.process = subprocess.Popen(["/bin/sh", "-c", script, os.environ["CUBICLE_INTERP"], "--kernels", self.dir, "--start", "", "--run-dir", service.dir + "/run", "--user", "root"],
                                           stdin=subprocess.DEVNULL, stdout=service.log, stderr=service.log, pass_fds=[listener.fileno()])
        self.addCleanup(service.discard)
        listener.close()
        self.assertEqual(service.call("GET", "/health")[2], '"OK"')
        self.assertEqual(service.text("publish('stream', {'name': 'stdout', 'text': os.environ.get('LISTEN_FDS', 'none')})", language="fake"), "none")
        service.stop()

    @unittest.skipIf(os.geteuid() != 0, "only root can change the user")
    def test_kernels_run_as_the_user_and_their_files_are_private(self):
        os.chmod(self.dir, 0o755)
        service = self.start("--user", "nobody")
        os.chmod(service.dir, 0o755)
        context = service.create(language="fake", cwd="/tmp")
        who = service.text("publish('stream', {'name': 'stdout', 'text': repr((os.getresuid(), os.getresgid(), os.getcwd(), os.environ['USER']))})", context_id=context["id"])
        self.assertEqual(who, repr(((65534,) * 3, (65534,) * 3, "/tmp", "nobody")))
        run = pathlib.Path(service.run_dir)
        files = {p.name: (p.stat().st_mode & 0o777, p.stat().st_uid) for p in run.rglob("*")}
        name = next(p.name for p in run.iterdir() if p.is_dir())
        self.assertEqual(files, {name: (0o700, 65534), "connection.json": (0o600, 65534), name + ".pid": (0o600, 0)})
        self.assertEqual(run.stat().st_mode & 0o777, 0o711)
        service.stop()

    def test_health_waits_for_the_start(self):
        fake(self.dir, "python")
        service = self.start(start="python,javascript")
        self.assertEqual(service.call("GET", "/health")[::2], (200, '"OK"'))
        self.assertEqual([c["language"] for c in json.loads(service.call("GET", "/contexts")[2])], ["python"])
        self.assertEqual(self.probe(service.port), (0, ""))
        service.stop()
        code, said = self.probe(service.port)
        self.assertEqual(code, 1)
        self.assertIn("Connection refused", said)

    @staticmethod
    def probe(port):
        done = subprocess.run([os.environ["CUBICLE_INTERP"], "--probe", str(port)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def test_a_probe_waits_for_the_start(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            probe = subprocess.Popen([os.environ["CUBICLE_INTERP"], "--probe", str(listener.getsockname()[1])], stdin=subprocess.DEVNULL)
            self.addCleanup(probe.kill)
            asked, _ = listener.accept()
            self.assertTrue(asked.recv(4096).startswith(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"))
            self.assertIsNone(probe.poll())
            asked.sendall(b"HTTP/1.1 200 OK\r\n")
            asked.close()
            self.assertEqual(probe.wait(60), 0)

    def test_a_probe_takes_nothing_for_an_answer_that_is_none(self):
        for answer in (b"", b"HTTP/1.1 ", b"HTTP/1.1 2000 OK\r\n", b"HTTP/1.1 503 No\r\n\r\nHTTP/1.1 200 OK", b"\0" * 5000):
            with self.subTest(answer), socket.create_server(("127.0.0.1", 0)) as listener:
                probe = subprocess.Popen([os.environ["CUBICLE_INTERP"], "--probe", str(listener.getsockname()[1])], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.addCleanup(probe.kill)
                asked, _ = listener.accept()
                asked.recv(4096)
                asked.sendall(answer)
                asked.close()
                self.assertEqual(probe.wait(60), 1)
        for wrong in ("0", "65536", "-1", "x", ""):
            self.assertEqual(self.probe(wrong)[0], 2)

    def test_health_tells_that_there_is_no_python(self):
        fake(self.dir, "python", "die")
        service = self.start(start="python")
        status, _, body = service.call("GET", "/health")
        self.assertEqual(status, 503)
        self.assertIn("last words", body)
        code, said = self.probe(service.port)
        self.assertEqual(code, 1)
        self.assertIn("503", said)
        service.stop()

    def test_a_stop_of_everything_is_no_reason_to_lose_a_kernel(self):
        """F.93: the first execution after a pause. A frozen sandbox stops service and kernel at once; deadlines that passed meanwhile are nobody's fault."""
        service = self.start()
        context = service.create(language="fake")["id"]
        pid = int(service.text("publish('stream', {'name': 'stdout', 'text': str(os.getpid())})", context_id=context))
        s = service.begin("wait = catch_interrupts()\npublish('stream', {'name': 'stdout', 'text': 'on'})\nwait()\ntime.sleep(1.5)",
                          context_id=context)
        s.until("stdout")
        for who in (service.process.pid, pid):
            os.kill(who, signal.SIGSTOP)
        s.close()
        # Longer than all the patience with a cancelled execution together.
        subprocess.run(["sleep", "17"])
        for who in (pid, service.process.pid):
            os.kill(who, signal.SIGCONT)
        self.assertEqual(int(service.text("publish('stream', {'name': 'stdout', 'text': str(os.getpid())})", context_id=context)), pid)
        service.stop()

    def state(self, pid):
        found = stat_of(pid)
        self.assertIsNotNone(found, "the kernel ended")
        return found[0]

    def test_a_slow_reader_stops_the_kernel_and_loses_nothing(self):
        service = self.start()
        context = service.create(language="fake")["id"]
        pid = int(service.text("publish('stream', {'name': 'stdout', 'text': str(os.getpid())})", context_id=context))
        s = socket.create_connection(("127.0.0.1", service.port))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        body = json.dumps({"code": "for i in range(30000): publish('stream', {'name': 'stdout', 'text': '%05d ' % i + 'x' * 2000})", "context_id": context})
        s.sendall(("POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
        until(lambda: self.state(pid) == "T", "the kernel is stopped")
        # A sanitizer keeps what was freed for a while.
        most = 2**30 if os.environ.get("SANITIZED") else 64 * 1024
        self.assertLess(service.rss_kib(), most)
        response = http.client.HTTPResponse(s, method="POST")
        response.begin()
        seen = []
        for line in response:
            event = json.loads(line)
            if event["type"] == "stdout":
                seen.append(int(event["text"][:5]))
        self.assertEqual(seen, list(range(30000)))
        self.assertEqual(line, b'{"type": "end_of_execution"}\n')
        self.assertLess(service.rss_kib(), most)
        s.close()
        # One who leaves while the kernel is stopped for him does not leave it so.
        s = socket.create_connection(("127.0.0.1", service.port))
        body = json.dumps({"code": "signal.signal(signal.SIGINT, signal.default_int_handler)\ntry:\n    while True: publish('stream', {'name': 'stdout', 'text': 'x' * 2000})\n"
                                   "except KeyboardInterrupt: pass", "context_id": context})
        s.sendall(("POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
        until(lambda: self.state(pid) == "T", "the kernel is stopped again")
        s.close()
        self.assertEqual(int(service.text("publish('stream', {'name': 'stdout', 'text': str(os.getpid())})", context_id=context)), pid)
        service.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
