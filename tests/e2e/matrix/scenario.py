"""One of everything that a Python client sends, for record.py: no result is checked here."""

import io

D = "/tmp/recorded-00000000"


def e2b():
    import e2b
    made = e2b.Sandbox.create("base", metadata={"a": "b c"}, envs={"X": "1"}, timeout=600)
    e2b.Sandbox.create("base").kill()
    s = e2b.Sandbox.connect(made.sandbox_id)
    e2b.Sandbox.connect(made.sandbox_id, timeout=60)
    s.set_timeout(500)
    e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"k y": "v&=ü"}, state=[e2b.SandboxState.RUNNING, e2b.SandboxState.PAUSED]), limit=5).next_items()
    s.get_info()
    s.is_running()
    s.commands.run("echo hi", envs={"A": "b"}, cwd="/tmp", timeout=0)
    cat = s.commands.run("cat", background=True, stdin=True)
    s.commands.list()
    s.commands.send_stdin(cat.pid, "abc")
    s.commands.connect(cat.pid).disconnect()
    s.commands.kill(cat.pid)
    again = s.commands.run("cat", background=True, stdin=True)
    if hasattr(s.commands, "stream_input"):
        s.commands.stream_input(again.pid, ["abc", b"def"])
    s.commands.close_stdin(again.pid)
    pty = s.pty.create(e2b.PtySize(rows=24, cols=80))
    s.pty.resize(pty.pid, e2b.PtySize(rows=30, cols=100))
    s.pty.send_stdin(pty.pid, b"\1\2")
    s.pty.kill(pty.pid)
    s.files.write(f'{D}/a ü".txt', "hello")
    s.files.write(f"{D}/oct", b"octets", use_octet_stream=True, metadata={"foo": "bar"})
    s.files.write(f"{D}/zip", "zipped", gzip=True)
    s.files.write_files([{"path": f"{D}/1", "data": "1"}, {"path": f"{D}/2", "data": "2"}])
    s.files.write(f"{D}/stream", io.BytesIO(b"streamed"))
    s.files.read(f'{D}/a ü".txt')
    s.files.read(f"{D}/zip", gzip=True, format="bytes")
    s.files.list(D, depth=2)
    s.files.make_dir(f"{D}/dir")
    s.files.get_info(f"{D}/1")
    s.files.exists(f"{D}/2")
    s.files.rename(f"{D}/1", f"{D}/deep/3")
    s.files.remove(f"{D}/2")
    watch = s.files.watch_dir(D, recursive=True)
    watch.get_new_events()
    watch.stop()
    s.pause()
    again = e2b.Sandbox.connect(made.sandbox_id)
    snapshot = again.create_snapshot()
    e2b.Sandbox.create(snapshot.snapshot_id).kill()
    e2b.Sandbox.list_snapshots(sandbox_id=made.sandbox_id, limit=5).next_items()
    e2b.Sandbox.delete_snapshot(snapshot.snapshot_id)
    for fork in again.fork(timeout=60, count=2):
        fork.kill()
    s.kill()


def cube():
    from cubesandbox import PtySize, Sandbox
    Sandbox.health()
    s = Sandbox.create("base", envs={"X": "1"})
    Sandbox.connect(s.sandbox_id)
    Sandbox.list()
    Sandbox.list_v2()
    s.set_timeout(500)
    s.get_info()
    s.commands.run("echo hi", timeout=30, cwd="/tmp", envs={"A": "b"})
    pty = s.pty.create(size=PtySize(rows=24, cols=80))
    pty.resize(PtySize(rows=30, cols=100))
    pty.send_stdin(b"\1\2")
    pty.kill()
    s.files.write(f"{D}/1", "hello")
    s.files.read(f"{D}/1")
    s.files.list(D)
    s.files.make_dir(f"{D}/dir")
    s.files.stat(f"{D}/1")
    s.files.rename(f"{D}/1", f"{D}/3")
    s.files.remove(f"{D}/3")
    s.files.watch_dir(D).close()
    s.pause()
    Sandbox.connect(s.sandbox_id)
    snapshot = s.create_snapshot()
    s.rollback(snapshot.snapshot_id)
    Sandbox.list_snapshots(sandbox_id=s.sandbox_id)
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    s.pause()
    s.resume()
    s.kill()


if __name__ == "__main__":
    import sys
    {"e2b": e2b, "cube": cube}[sys.argv[1]]()
