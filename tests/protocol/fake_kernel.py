"""A Jupyter kernel whose code is told to it: each execute_request is Python that runs with the names below, so that a test says what the kernel does, also what none should."""
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

import zmq

CONNECTION, HOW = sys.argv[1], sys.argv[2:]
with open(CONNECTION) as f:
    WHERE = json.load(f)
KEY = WHERE["key"].encode()
interrupted = threading.Event()


def endpoint(name):
    between = ":" if WHERE["transport"] == "tcp" else "-"
    return "%s://%s%s%d" % (WHERE["transport"], WHERE["ip"], between, WHERE[name + "_port"])


def signed(parts, key=KEY):
    return hmac.new(key, b"".join(parts), hashlib.sha256).hexdigest().encode()


def pack(kind, parent, content, key=KEY, raw=None):
    header = {"msg_id": uuid.uuid4().hex, "session": "s", "username": "k", "date": "", "msg_type": kind, "version": "5.3"}
    parts = [json.dumps(header).encode(), json.dumps(parent).encode(), b"{}", raw if raw is not None else json.dumps(content).encode()]
    return [b"<IDS|MSG>", signed(parts, key)] + parts


def catch_interrupts():
    """Gives a function that waits for a SIGINT. The signal goes through a pipe: a handler that set an event would wait for ever for the event's lock, if the main thread was just about to wait for it."""
    waits, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGINT, lambda *a: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    return lambda: os.read(waits, 1)


class Kernel:
    def __init__(self):
        context = zmq.Context.instance()
        self.shell, self.control, self.iopub = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER), context.socket(zmq.PUB)
        # On a machine with little time a publisher's own thread takes nothing for a while, and what is over this is lost: more room than any test publishes, but not for what nobody reads.
        self.iopub.sndhwm = 40000
        for name in ("shell", "control", "iopub"):
            getattr(self, name).bind(endpoint(name))
        self.count = 0
        self.child = HOW[:1] == ["through"] and subprocess.Popen(HOW[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.names = {"kernel": self, "publish": self.publish, "reply": self.reply, "pack": pack, "interrupted": interrupted, "catch_interrupts": catch_interrupts,
                      "time": time, "os": os, "signal": signal, "subprocess": subprocess, "sys": sys, "WHERE": WHERE, "manual": self.manual}

    def publish(self, kind, content, **more):
        self.iopub.send_multipart([kind.encode()] + pack(kind, self.parent, content, **more))

    def reply(self, content, kind="execute_reply"):
        self.shell.send_multipart([self.peer] + pack(kind, self.parent, content))

    def manual(self):
        """The code itself sends what ends an execution."""
        self.automatic = False

    def execute(self, content):
        self.automatic = True
        self.publish("status", {"execution_state": "busy"})
        if not content["silent"]:
            self.count += 1
            self.publish("execute_input", {"code": content["code"], "execution_count": self.count})
        self.names["content"] = content
        if self.child:
            self.run_in_child(content)
        else:
            exec(content["code"], self.names)
        if self.automatic:
            self.reply({"status": "ok", "execution_count": self.count})
            self.publish("status", {"execution_state": "idle"})

    def run_in_child(self, content):
        """Code of the child's language; what it writes is the output."""
        code = content["code"] + ("\nprintf '\\0'\n" if HOW[1] == "bash" else "\0")
        self.child.stdin.write(code.encode())
        self.child.stdin.flush()
        output = b""
        while not output.endswith(b"\0"):
            output += os.read(self.child.stdout.fileno(), 65536)
        if len(output) > 1:
            self.publish("stream", {"name": "stderr" if content["silent"] else "stdout", "text": output[:-1].decode()})

    def watch_control(self):
        while True:
            frames = self.control.recv_multipart()
            if json.loads(frames[3])["msg_type"] == "interrupt_request":
                interrupted.set()

    def serve(self):
        threading.Thread(target=self.watch_control, daemon=True).start()
        while True:
            frames = self.shell.recv_multipart()
            if frames[1] != b"<IDS|MSG>" or not hmac.compare_digest(frames[2], signed(frames[3:7])):
                print("a request is not signed", file=sys.stderr, flush=True)
                continue
            self.peer, self.parent = frames[0], json.loads(frames[3])
            if self.parent["msg_type"] == "kernel_info_request":
                if "deaf" in HOW:
                    continue
                self.publish("status", {"execution_state": "busy"})
                self.reply({"status": "ok", "protocol_version": "5.3"}, kind="kernel_info_reply")
                self.publish("status", {"execution_state": "idle"})
            elif self.parent["msg_type"] == "execute_request":
                self.execute(json.loads(frames[6]))


def lose_a_port():
    """Somebody takes a port, and the kernel ends because of it: once."""
    flag = HOW[1]
    if os.path.exists(flag):
        return
    open(flag, "w").close()
    thief = socket.socket()
    thief.bind(("127.0.0.1", WHERE["control_port"]))
    thief.listen()
    ready, says = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.write(says, b"x")  # it is not of the kernel's process group any more, which ends with the kernel
        for fd in (1, 2):
            os.close(fd)
        time.sleep(20)
        os._exit(0)
    os.read(ready, 1)
    os._exit(1)


if HOW[:1] == ["die"]:
    for i in range(1000):
        print("line %d of its last words" % i, file=sys.stderr)
    sys.exit(7)
if HOW[:1] == ["deaf"]:
    print("I hear nothing", file=sys.stderr, flush=True)
if HOW[:1] == ["lose-a-port"]:
    lose_a_port()
Kernel().serve()
