"""Watching directories through the published Python clients: polled watchers with the synchronous one, streams with the asynchronous one (e2b.md B.7, F 73-77; the field case 100)."""

import asyncio
import os
import threading
import time

import pytest
from e2b import AsyncSandbox, FileNotFoundException, InvalidArgumentException, RateLimitException, Sandbox

from inside import kept, rpc
from server import wait_for

# Every directory of a tree gets files in the same breath as it is made: a watch that is armed a moment later has to find them.
TREES = r"""
import os, sys
for tree in range(int(sys.argv[1])):
    path = f"t{tree}"
    os.makedirs(path + "/a/b/c/d/e/f/g")
    for level in ["", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/c/d/e", "/a/b/c/d/e/f", "/a/b/c/d/e/f/g"]:
        for i in range(3):
            with open(f"{path}{level}/f{i}", "w") as f:
                f.write("x")
"""


def pairs(events):
    return [(e.type.value, e.name) for e in events]


def tree_names(n):
    levels = ["a/b/c/d/e/f/g"[: max(2 * i - 1, 0)] for i in range(8)]
    dirs = {f"t{t}" + (f"/{x}" if x else "") for t in range(n) for x in levels}
    return dirs, {f"{d}/f{i}" for d in dirs for i in range(3)}


class Stream:
    """A WatchDir stream of the asynchronous client."""

    @classmethod
    async def open(cls, box, path, on_event=None, **options):
        s = cls()
        s.events, s.ended = [], asyncio.get_running_loop().create_future()
        s.handle = await box.files.watch_dir(path, on_event or s.events.append, on_exit=s.ended.set_result, timeout=0, **options)
        return s

    async def until(self, type, name, seconds=60):
        """What came up to this event."""
        deadline = time.monotonic() + seconds
        while (type, name) not in (found := pairs(self.events)):
            assert not self.ended.done(), self.ended.result()
            assert time.monotonic() < deadline, f"no {type} of {name} in {found[-20:]}"
            await asyncio.sleep(0.02)
        return found


def with_async(test):
    """Runs an asynchronous test with a sandbox of its own."""
    def run(server):
        async def main():
            box = await AsyncSandbox.create("base", timeout=300)
            try:
                await test(box)
            finally:
                await box.kill()
        asyncio.run(main())
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def all_events(handle, last, seconds=60):
    """Polled until this one came."""
    found, deadline = [], time.monotonic() + seconds
    while last not in pairs(found):
        assert time.monotonic() < deadline, f"no {last} in {pairs(found)[-20:]}"
        found += handle.get_new_events()
    return found


def test_100_a_watcher_tells_what_commands_do(sandbox):
    sandbox.commands.run("mkdir -p watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.commands.run("mkdir -p watched/a/b && echo x > watched/a/b/f && mv watched/a watched/c && rm -r watched/c")
    events = pairs(handle.get_new_events())
    for wanted in (("create", "a"), ("rename", "a"), ("create", "c"), ("remove", "c")):
        assert wanted in events, events
    assert handle.get_new_events() == []
    handle.stop()
    with pytest.raises(Exception, match="stopped"):
        handle.get_new_events()
    wait_for(lambda: "cubicle-watch" not in sandbox.commands.run("ps -eo comm").stdout, 60, "its process to be gone")


def test_each_change_has_its_event_and_children_only_without_recursive(sandbox):
    sandbox.commands.run("mkdir -p w/sub")
    handle = sandbox.files.watch_dir("w")
    sandbox.commands.run("echo x > w/f; chmod 600 w/f; mv w/f w/g; rm w/g; echo y > w/sub/unseen; mkdir w/d; echo z > w/d/unseen; touch w/last")
    events = pairs(all_events(handle, ("create", "last")))
    assert [e for e in events if e[1] in ("f", "g")] == [("create", "f"), ("write", "f"), ("chmod", "f"), ("rename", "f"), ("create", "g"), ("remove", "g")]
    assert ("create", "d") in events and not any("unseen" in name for _, name in events)


def test_f73_trees_made_at_once_lose_nothing_for_a_watcher(sandbox):
    sandbox.files.write("trees.py", TREES)
    sandbox.commands.run("mkdir w")
    handle = sandbox.files.watch_dir("w", recursive=True)
    sandbox.commands.run("cd w && python3 ../trees.py 40 && touch last")
    events = pairs(all_events(handle, ("create", "last")))
    dirs, files = tree_names(40)
    created = [name for type, name in events if type == "create"]
    assert sorted(created) == sorted(dirs | files | {"last"})  # each exactly once
    assert files <= {name for type, name in events if type == "write"}


@with_async
async def test_f73_trees_made_at_once_lose_nothing_for_a_stream(box):
    await box.files.write("trees.py", TREES)
    await box.commands.run("mkdir w")
    s = await Stream.open(box, "w", recursive=True)
    await box.commands.run("cd w && python3 ../trees.py 40 && touch last")
    events = await s.until("create", "last")
    dirs, files = tree_names(40)
    assert sorted(name for type, name in events if type == "create") == sorted(dirs | files | {"last"})
    assert files <= {name for type, name in events if type == "write"}
    await s.handle.stop()


def test_entries_of_a_watcher(sandbox):
    sandbox.commands.run("mkdir w")
    handle = sandbox.files.watch_dir("w", include_entry=True)
    sandbox.commands.run("echo 12345 > w/f; ln -s f w/link; rm w/f")
    found = {(e.type.value, e.name): e.entry for e in all_events(handle, ("remove", "f"))}
    assert found["remove", "f"] is None
    sandbox.files.write("w/g", b"123456789", metadata={"who": "me"})
    entry = [e.entry for e in all_events(handle, ("write", "g")) if e.entry][-1]
    assert (entry.name, entry.path, entry.size, entry.owner, entry.type.value) == ("g", "/home/user/w/g", 9, "user", "file")
    assert entry.metadata == {"who": "me"}


@with_async
async def test_entries_of_a_stream_carry_the_path_that_was_asked_for(box):
    await box.commands.run("mkdir real && ln -s real link")
    s = await Stream.open(box, "link/../link", recursive=True, include_entry=True)
    await box.commands.run("mkdir real/d && echo 12345 > real/d/f")
    await s.until("write", "d/f")
    entries = {e.name: e.entry for e in s.events if e.entry}
    assert entries["d"].type.value == "dir"
    assert (entries["d/f"].path, entries["d/f"].size) == ("/home/user/link/d/f", 6)
    await s.handle.stop()


def test_f75_what_cannot_be_watched(sandbox):
    sandbox.commands.run("touch file; mkdir closed; mkfifo fifo; ln -s nowhere broken")
    for missing in ("/no/such", "broken", "file/below"):
        with pytest.raises(FileNotFoundException):
            sandbox.files.watch_dir(missing)
    for other in ("file", "fifo"):
        with pytest.raises(InvalidArgumentException, match="not a directory"):
            sandbox.files.watch_dir(other)


def test_f76_watchers_belong_to_the_sandbox_and_end_when_they_are_removed(server, sandbox):
    sandbox.commands.run("mkdir w")
    status, answer = rpc(server, sandbox, "CreateWatcher", {"path": "w"})  # a connection that is gone now
    assert status == 200
    watcher = {"watcherId": answer["watcherId"]}
    sandbox.files.write("w/f", b"x")
    status, answer = rpc(server, sandbox, "GetWatcherEvents", watcher)
    assert status == 200 and [e["name"] for e in answer["events"]][:1] == ["f"]
    assert rpc(server, sandbox, "GetWatcherEvents", watcher) == (200, {"events": []})
    assert rpc(server, sandbox, "RemoveWatcher", watcher) == (200, {})
    for method in ("GetWatcherEvents", "RemoveWatcher"):
        for other in (watcher, {"watcherId": "w" + "0" * 20}, {"watcherId": "/etc/passwd"}, {}):
            status, answer = rpc(server, sandbox, method, other)
            assert (status, answer["code"]) == (404, "not_found") and "watcher with id" in answer["message"]
    handle = sandbox.files.watch_dir("w")
    handle.stop()
    with pytest.raises(Exception, match="not found"):
        handle.stop()


def test_f74_a_removed_directory_is_told_and_then_silent(sandbox):
    sandbox.commands.run("mkdir -p w/d/sub && touch w/d/f")
    handle = sandbox.files.watch_dir("w/d", recursive=True)
    outer = sandbox.files.watch_dir("w", recursive=True)
    sandbox.files.remove("w/d")
    events = pairs(all_events(handle, ("remove", ".")))
    assert ("remove", "f") in events and ("remove", "sub") in events
    assert ("remove", "d/f") in pairs(all_events(outer, ("remove", "d")))
    # A new one of that name is another directory; whoever watches above it sees it.
    sandbox.commands.run("mkdir w/d && touch w/d/new")
    all_events(outer, ("create", "d/new"))
    assert handle.get_new_events() == []
    handle.stop()
    outer.stop()
    wait_for(lambda: kept(sandbox)[1] == 0, 60, "the instances to go")


def test_renamed_directories_go_on_under_their_new_names(sandbox):
    sandbox.commands.run("mkdir -p w/a/deep out")
    handle = sandbox.files.watch_dir("w", recursive=True)
    sandbox.commands.run("mv w/a w/b && touch w/b/deep/f1 && mv w/b out/ && touch out/b/deep/unseen && mv out/b w/c && touch w/c/deep/f2")
    events = pairs(all_events(handle, ("create", "c/deep/f2")))
    assert ("rename", "a") in events and ("create", "b/deep/f1") in events and ("rename", "b") in events
    # It came back with what is in it.
    assert ("create", "c/deep/unseen") in events
    # The watched directory itself moves: what is known goes on, what is new in it cannot be followed and that is told.
    sandbox.commands.run("mv w v && touch v/c/deep/f3")
    assert ("rename", ".") in pairs(all_events(handle, ("create", "c/deep/f3")))
    sandbox.commands.run("mkdir v/unknown")
    with pytest.raises(Exception, match="was moved"):
        for _ in range(100):
            handle.get_new_events()


def test_links_are_followed_at_the_top_only(sandbox):
    sandbox.commands.run("mkdir -p real elsewhere && ln -s real link && ln -s ../elsewhere real/inner && ln -s . real/loop")
    handle = sandbox.files.watch_dir("link", recursive=True)
    sandbox.commands.run("touch elsewhere/unseen; ln -s ../elsewhere real/later; touch elsewhere/unseen2 real/seen")
    events = pairs(all_events(handle, ("create", "seen")))
    assert events.count(("create", "seen")) == 1 and ("create", "later") in events
    assert not any("unseen" in name or "/" in name for _, name in events), events


@with_async
async def test_100_ten_thousand_events_in_a_burst(box):
    await box.commands.run("mkdir w")
    s = await Stream.open(box, "w", recursive=True)
    await box.commands.run("mkdir w/d && cd w/d && seq -f f%05.0f 10000 | xargs touch && touch ../last")
    created = sorted(name for type, name in await s.until("create", "last", 120) if type == "create" and name.startswith("d/"))
    assert created == [f"d/f{i:05d}" for i in range(1, 10001)]
    await s.handle.stop()


# More than a watcher keeps (16 MiB of messages) and more than any queue and buffer on the way of a stream holds.
FLOOD = r"""
import os
names = [f"w/{'x' * 200}{i}" for i in range(500)]
for name in names:
    open(name, "w").close()
for i in range(400):
    for name in names:
        os.chmod(name, 0o600 + i % 7)
"""


def test_100_a_watcher_that_lost_events_says_so(sandbox):
    sandbox.commands.run("mkdir w")
    sandbox.files.write("flood.py", FLOOD)
    handle = sandbox.files.watch_dir("w")
    sandbox.commands.run("python3 flood.py", timeout=120)
    assert len(handle.get_new_events()) > 10000  # what came before the loss
    for _ in range(2):
        with pytest.raises(Exception, match="events were lost"):
            handle.get_new_events()
    handle.stop()
    again = sandbox.files.watch_dir("w")
    sandbox.commands.run("touch w/new")
    all_events(again, ("create", "new"))


@with_async
async def test_100_a_stream_whose_reader_is_slow_is_whole_or_says_what_it_lost(box):
    """The client takes nothing while a flood goes by; then it reads on: every event, or an end that names the loss, and never an end that looks whole."""
    await box.commands.run("mkdir w")
    await box.files.write("flood.py", FLOOD)
    go_on, seen = asyncio.Event(), []

    async def on_event(event):
        seen.append(event)
        await go_on.wait()

    s = await Stream.open(box, "w", on_event)
    await box.commands.run("python3 flood.py", timeout=120)
    rss = int((await box.commands.run("ps -o rss= -p 1", user="root")).stdout)
    assert rss < 8 * 1024
    await box.commands.run("touch w/last")
    go_on.set()
    error = await asyncio.wait_for(s.ended, 120)
    assert "events were lost" in str(error) and len(seen) > 1000
    # The sandbox and other watches do not mind.
    other = await Stream.open(box, "w")
    await box.commands.run("touch w/other")
    await other.until("create", "other")
    await other.handle.stop()


@with_async
async def test_a_deadline_ends_a_stream_with_its_error(box):
    ended = asyncio.get_running_loop().create_future()
    await box.files.watch_dir("/tmp", lambda e: None, on_exit=ended.set_result, timeout=1)
    assert "TimeoutException" in type(await asyncio.wait_for(ended, 30)).__name__


def test_f74_stopped_and_deserted_watches_leave_nothing(server, sandbox):
    """Descriptors inside and of the front, processes, and the memory of PID 1 are what they were."""
    def of_front():
        return len(os.listdir(f"/proc/{server.children()['front']}/fd"))

    async def many(leave):
        box = await AsyncSandbox.connect(sandbox.sandbox_id)
        streams = await asyncio.gather(*(Stream.open(box, "/tmp", recursive=True) for _ in range(30)))
        await box.files.write("/tmp/f", "x")
        for s in streams:
            await s.until("create", "f")
        if not leave:
            for s in streams:
                await s.handle.stop()
        await box.files.remove("/tmp/f")

    def round():
        asyncio.run(many(leave=False))
        asyncio.run(many(leave=True))
        for handle in [sandbox.files.watch_dir("/tmp") for _ in range(30)]:
            handle.stop()

    # The allocator's pools level off some rounds later than the first: 16 rounds end where the fourth does.
    for _ in range(4):
        round()
    wait_for(lambda: kept(sandbox)[1] == 0, 60, "the streams to end")
    processes, _, rss = kept(sandbox)
    front = of_front()
    for _ in range(4):
        round()
    wait_for(lambda: kept(sandbox)[0] <= processes and kept(sandbox)[1] == 0, 60, "as few processes as before")
    assert kept(sandbox)[2] < rss + 256
    wait_for(lambda: of_front() <= front + 8, 60, "the front's descriptors")


@with_async
async def test_a_stream_of_a_sandbox_that_is_killed_ends_with_an_error(box):
    s = await Stream.open(box, "/tmp")
    await box.kill()
    assert await asyncio.wait_for(s.ended, 60) is not None


def test_watchers_at_once(sandbox):
    """A hundred watchers made and asked at once all tell the same."""
    sandbox.commands.run("mkdir w")
    handles, errors = [], []

    def make():
        try:
            handles.append(sandbox.files.watch_dir("w", recursive=True))
        except Exception as e:  # noqa: BLE001 - every failure is the test's failure
            errors.append(e)

    def in_threads(jobs):
        threads = [threading.Thread(target=job) for job in jobs]
        [t.start() for t in threads]
        [t.join() for t in threads]

    in_threads([make] * 100)
    assert errors == [] and len(handles) == 100
    sandbox.commands.run("mkdir w/d && touch w/d/f")
    told = []
    in_threads([lambda h=h: told.append(pairs(all_events(h, ("create", "d/f")))) for h in handles])
    assert len(told) == 100 and all(("create", "d") in events for events in told)
    in_threads([h.stop for h in handles])
    wait_for(lambda: kept(sandbox)[1] == 0, 60, "the instances to go")


# Takes inotify instances, in as many processes as that needs, until there are no more; writes how many, and keeps them.
TAKE = r"""
import ctypes, os, resource, signal
libc = ctypes.CDLL(None)
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
total, n = 0, 1
while n:
    r, w = os.pipe()
    if os.fork() == 0:
        n = 0
        while libc.inotify_init1(0) >= 0:
            n += 1
        os.write(w, b"%d" % n)
        signal.pause()
    n = int(os.read(r, 20))
    total += n
with open("taken.tmp", "w") as f:
    f.write(str(total))
os.rename("taken.tmp", "taken")
signal.pause()
"""


def test_f77_a_sandbox_has_many_watches_and_instances_and_their_end_is_told(server):
    box, other = Sandbox.create("base", timeout=300), Sandbox.create("base", timeout=300)
    try:
        box.commands.run("mkdir w && cd w && for i in $(seq 80); do mkdir $i && (cd $i && seq 900 | xargs mkdir); done", timeout=120)
        handle = box.files.watch_dir("w", recursive=True, request_timeout=120)  # 72,081 watches
        box.commands.run("touch w/80/900/f")
        all_events(handle, ("create", "80/900/f"))
        handle.stop()
        box.files.write("take.py", TAKE)
        taking = box.commands.run("python3 take.py", background=True, timeout=0)
        wait_for(lambda: box.files.exists("taken"), 100, "all instances to be taken")
        assert int(box.files.read("taken")) >= 1000
        with pytest.raises(RateLimitException, match="inotify instances"):
            box.files.watch_dir("w")
        # Each sandbox has limits of its own.
        other.files.watch_dir("/tmp").stop()
        taking.kill()
        box.commands.run("pkill python3 || true")
        wait_for(lambda: kept(box)[1] == 0, 60, "the instances to go")
        box.files.watch_dir("/tmp").stop()
    finally:
        box.kill()
        other.kill()
