"""The agent's side of `cubicle mcp`: JSON-RPC over its standard streams, and nothing that a client library would hide."""

import json
import os
import queue
import subprocess
import threading

from server import CUBICLE, clean_env

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Agent:
    def __init__(self, server=None, *flags, env=None, initialize=True, template="base"):
        where = {"CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": server.api_key} if server else {}
        self.process = subprocess.Popen([CUBICLE, "mcp", f"--template={template}", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=clean_env({**where, **(env or {})}))
        self.lines = []  # everything that came, as it came
        self.answers, self.notes, self.strays = {}, queue.Queue(), queue.Queue()
        self.lock, self.last = threading.Lock(), 0
        self.deaf = False  # set: it reads one more line, then nobody does
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if initialize:
            assert self.request("initialize", HELLO)["result"]["serverInfo"]["name"] == "cubicle"
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            message = json.loads(line)  # anything else on stdout ends the thread, and so the test
            for one in message if isinstance(message, list) else [message]:
                if "method" in one:
                    self.notes.put(one)
                elif one.get("id") in self.answers:
                    self.answers[one["id"]].put(one)
                else:
                    self.strays.put(one)
            if self.deaf:
                self.process.stdout.close()
                return

    def raw(self, data):
        with self.lock:
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def send(self, message):
        self.raw(json.dumps(message).encode() + b"\n")

    def begin(self, method, params=None):
        """Sends a request: its id."""
        with self.lock:
            self.last += 1
            number = self.last
        self.answers[number] = queue.Queue()
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
        return number

    def wait(self, number, timeout=60):
        return self.answers[number].get(timeout=timeout)

    def request(self, method, params=None, timeout=60):
        return self.wait(self.begin(method, params), timeout)

    def begin_call(self, tool, meta=None, **arguments):
        return self.begin("tools/call", {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})})

    def result(self, number, timeout=90):
        """(text of the first part, is it an error, all parts) of a call."""
        answer = self.wait(number, timeout)
        assert "result" in answer, answer
        content = answer["result"]["content"]
        text = content[0].get("text", "") if content else ""
        return text, answer["result"].get("isError", False), content

    def call(self, tool, **arguments):
        return self.result(self.begin_call(tool, **arguments))

    def ok(self, tool, **arguments):
        text, failed, _ = self.call(tool, **arguments)
        assert not failed, text
        return text

    def fails(self, tool, **arguments):
        text, failed, _ = self.call(tool, **arguments)
        assert failed, text
        return text

    def create(self, **arguments):
        """A new sandbox: its id."""
        return self.ok("sandbox_create", **arguments).split()[1]

    def leave(self, timeout=60):
        """Closes standard input, as an agent does: the exit code."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        code = self.process.wait(timeout)
        self.reader.join(10)
        return code

    def stderr(self):
        return self.process.stderr.read().decode()

    def destroy(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, 9)
            self.process.wait()
