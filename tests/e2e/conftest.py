import contextlib
import os
import time

import pytest

import leak
from internet import internet
from matrix.driving import leave
from server import Server, wait_for
from small_host import SmallHost

STATUS = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    session.config.stash[STATUS] = exitstatus


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Everything is told: leaves with the status of the session (absent: it never began)."""
    leave(config.stash.get(STATUS, 2))


@contextlib.contextmanager
def serving(prepare=None, **kwargs):
    """A server that clients find in their environment, which is put back at the end; that comes with the leak check. prepare(server) is called before it starts."""
    before = leak.snapshot()
    s = Server(**kwargs)
    if prepare:
        prepare(s)
    s.start()
    others = {name: os.environ.get(name) for name in s.env()}
    os.environ.update(s.env())
    try:
        yield s
        assert s.process.poll() is None, f"the server died during the tests:\n{s.log_tail()}"
        s.kill_all_sandboxes()
        assert s.stop() == 0
        check_leaks(before, s)
    finally:
        for name, value in others.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        s.destroy()


@pytest.fixture(scope="session")
def server():
    """One server for the tests that do not disturb it."""
    with serving() as s:
        yield s


def check_leaks(before, s):
    """Namespaces and links die asynchronously in the kernel: wait for nothing to be left."""
    words = [s.tag, str(s.state)]
    deadline = time.monotonic() + 60
    while leak.leaked(before, words) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert leak.leaked(before, words) == {}
    assert leak.state_leftovers(s.state) == []


@pytest.fixture
def own_server():
    """A factory of servers that a test may hurt: own_server(options) starts one; each ends with its own leak check."""
    made = []

    def make(start=True, **kwargs):
        before = leak.snapshot()
        s = Server(**kwargs)
        made.append((s, before))
        return s.start() if start else s

    yield make
    for s, before in reversed(made):
        try:
            if s.process is not None and s.process.poll() is not None:
                s.process = None
                s.start()
            if s.process is not None:
                s.kill_all_sandboxes()
            s.stop()
            check_leaks(before, s)
        finally:
            s.destroy()


@pytest.fixture
def small_host():
    host = SmallHost()
    try:
        yield host.make()
    finally:
        host.destroy()


@pytest.fixture(scope="module")
def world():
    """The hosts that sandboxes of the module may reach, or not (internet.py)."""
    with internet() as w:
        yield w


@pytest.fixture
def sandbox(server):
    from e2b import Sandbox
    box = Sandbox.create("base", timeout=300)
    yield box
    box.kill()
