"""What the drivers in Python share: how a call is named, judged and told."""

import asyncio
import inspect
import json
import os
import re
import sys
import time
import traceback


class Absent(Exception):
    """The client has no such call."""


class Refused(Exception):
    """The server refused, in the words of the client's error."""


async def a(value):
    """The value of either form of a client: one returns it, the other one after an await."""
    return await value if inspect.isawaitable(value) else value


def need(condition, what):
    if not condition:
        raise Absent(what)


async def fails(ask, *classes, match=""):
    """The error that ask() must end with."""
    try:
        value = await a(ask())
    except classes as e:
        assert re.search(match, str(e), re.S), f"{type(e).__name__}: {e}"
        return e
    raise AssertionError(f"no error: {value!r}")


async def refused(ask):
    """Asks for something this server does not serve: the client's error goes to the test as it is."""
    try:
        value = await a(ask())
    except Exception as e:
        raise Refused(str(e)) from e
    raise AssertionError(f"not refused: {value!r}")


async def until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while True:
        value = await a(condition())
        if value:
            return value
        assert time.monotonic() < end, f"waited for: {what}"
        await asyncio.sleep(0.02)


def leave(status=0):
    """Ends the process without taking the interpreter down: at that moment the asynchronous e2b client's library (pyqwest up to
    0.9) still has threads of its own that may ask for the interpreter, and then aborts: 13 of 400 clean exits, all output written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Calls:
    """The calls of one driver by name. `shared` makes the sandbox that all get which do not hurt it."""

    def __init__(self, shared):
        self.shared = shared
        self.box = None
        self.bodies = {}

    def on_shared(self, name):
        def add(body):
            async def run():
                if self.box is None:
                    self.box = await a(self.shared())
                await a(body(self.box))
            self.bodies[name] = run
            return body
        return add

    def alone(self, name):
        def add(body):
            async def run():
                await a(body())
            self.bodies[name] = run
            return body
        return add

    def drive(self, names):
        """Runs them in that order, a JSON line each on the standard output, and leaves; what clients print goes to the standard error."""
        async def everything():
            out, sys.stdout = sys.stdout, sys.stderr
            for name in names:
                result, detail = "ok", ""
                try:
                    if name not in self.bodies:
                        raise AssertionError("the driver does not know this call")
                    await self.bodies[name]()
                except Absent as e:
                    result, detail = "absent", str(e)
                except Refused as e:
                    result, detail = "refused", str(e)
                except Exception:
                    result, detail = "failed", traceback.format_exc()
                print(json.dumps({"call": name, "result": result, "detail": detail}), file=out, flush=True)
            if self.box:
                await a(self.box.kill())
        asyncio.run(everything())
        leave()
