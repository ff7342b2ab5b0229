"""Commands through the published Python client (e2b.md B.6; cases.md "Commands and PTY")."""

import hashlib
import os
import threading
import time

import pytest
from e2b import CommandExitException, NotFoundException, Sandbox, TimeoutException

from server import wait_for


def test_first_command_works_right_after_create(server):
    box = Sandbox.create("base")
    try:
        assert box.commands.run("echo hi").stdout == "hi\n"
    finally:
        assert box.kill() is True
    assert box.kill() is False


def test_output_exit_code_and_streams(sandbox):
    out, err = [], []
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("echo out; echo err >&2; exit 3", on_stdout=out.append, on_stderr=err.append)
    assert failure.value.exit_code == 3
    assert "".join(out) == "out\n" and "".join(err) == "err\n"


def test_050_nul_bytes_and_052_blank_lines_are_kept(sandbox):
    assert sandbox.commands.run(r"printf 'a\0b'").stdout == "a\0b"
    assert sandbox.commands.run(r"printf 'a\n\nb\r\n\r\nc'").stdout == "a\n\nb\r\n\r\nc"


def test_053_ten_megabytes_without_a_newline(sandbox):
    r = sandbox.commands.run("head -c 10000000 /dev/zero | tr '\\0' x")
    assert len(r.stdout) == 10_000_000 and set(r.stdout) == {"x"}


def test_049_stdin_of_ten_megabytes_arrives_whole(sandbox):
    data = ("".join(chr(32 + i % 90) for i in range(9000)) * 1200)[: 10 * 1024 * 1024]
    handle = sandbox.commands.run("sha256sum", background=True, stdin=True, timeout=120)
    for i in range(0, len(data), 60000):
        sandbox.commands.send_stdin(handle.pid, data[i : i + 60000])
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.split()[0] == hashlib.sha256(data.encode()).hexdigest()


def test_058_timeout_kills_the_process_group(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 987 & sleep 987", timeout=2)
    wait_for(lambda: "987" not in sandbox.commands.run("ps -eo args | grep '[s]leep 987' || true").stdout, 60, "the group to be gone")  # the client may give up before the server does


def test_062_children_that_hold_the_output_keep_the_stream_open(sandbox):
    start = time.monotonic()
    assert sandbox.commands.run("sleep 2 & echo hi").stdout == "hi\n"
    assert time.monotonic() - start > 1.9
    # One that let go of it is not waited for: this would end in a TimeoutException.
    assert sandbox.commands.run("sleep 600 >/dev/null 2>&1 & echo hi", timeout=120).stdout == "hi\n"


def test_064_arguments_are_never_parsed_twice(sandbox):
    text = "' \" ` $(touch /tmp/pwn) \n -- \\ é"
    assert sandbox.commands.run("printf %s \"$X\"", envs={"X": text}).stdout == text
    assert not sandbox.files.exists("/tmp/pwn")


def test_065_environment_is_exact(server):
    envs = {"A": "x\ny", "B": "{\"q\":\"'\"}", "C": "", "D": "é"}
    box = Sandbox.create("base", envs=envs)
    try:
        got = dict(line.split("=", 1) for line in box.commands.run("env -0").stdout.split("\0") if line)
        assert {k: got[k] for k in envs} == envs
        assert got["E2B_SANDBOX"] == "true" and got["E2B_SANDBOX_ID"] == box.sandbox_id
        assert "x\ny" not in box.commands.run("cat /proc/cmdline").stdout
    finally:
        box.kill()


@pytest.mark.parametrize("cwd", ["/nope", "/etc/passwd"])
def test_067_a_bad_working_directory_is_named(sandbox, cwd):
    with pytest.raises(Exception) as failure:
        sandbox.commands.run("true", cwd=cwd)
    assert cwd in str(failure.value)


def test_068_users_homes_and_groups(sandbox):
    assert sandbox.commands.run("whoami; pwd; echo $HOME").stdout.split() == ["user", "/home/user", "/home/user"]
    assert sandbox.commands.run("whoami; pwd; echo $HOME", user="root").stdout.split() == ["root", "/root", "/root"]
    assert sandbox.commands.run("sudo id -u").stdout == "0\n"
    with pytest.raises(Exception, match="nobody-here"):
        sandbox.commands.run("true", user="nobody-here")


def test_073_exit_by_signal_and_odd_codes(sandbox):
    for command, code in (("kill -9 $$", -1), ("exit 255", 255)):
        with pytest.raises(CommandExitException) as failure:
            sandbox.commands.run(command)
        assert failure.value.exit_code == code
    assert "killed" in str(failure.value) or code == 255
    assert sandbox.commands.run("exit 256 2>/dev/null || true").exit_code == 0


def test_background_commands_are_listed_killed_and_gone(sandbox):
    handle = sandbox.commands.run("sleep 1000", background=True)
    listed = {p.pid: p for p in sandbox.commands.list()}
    assert listed[handle.pid].cmd == "/bin/bash" and listed[handle.pid].args == ["-l", "-c", "sleep 1000"]
    assert sandbox.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException):
        sandbox.commands.run(f"kill -0 {handle.pid}")
    assert sandbox.commands.kill(handle.pid) is False
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999999)


def test_reconnect_by_pid_sees_new_output(sandbox):
    handle = sandbox.commands.run("for i in 1 2 3; do echo tick $i; done; while [ ! -e go ]; do sleep 0.1; done; echo tick 6; exit 4", background=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.files.write("go", "")
    with pytest.raises(CommandExitException) as end:
        again.wait()
    assert end.value.exit_code == 4 and "tick 6" in end.value.stdout


def test_thousand_commands_one_after_another_leave_no_memory(sandbox):
    def init_kib():
        return int(sandbox.commands.run("ps -o rss= -p 1", user="root").stdout)
    for _ in range(1000):  # until the log of the sandbox, which is bounded, is full
        sandbox.commands.run("true")
    before = init_kib()
    for _ in range(1000):
        sandbox.commands.run("true")
    assert init_kib() < before + 512


def test_two_hundred_commands_at_once(sandbox):
    results, errors = [], []

    def one(i):
        try:
            results.append(int(sandbox.commands.run(f"echo {i}", timeout=120, request_timeout=120).stdout))
        except Exception as e:  # noqa: BLE001 - every failure is the test's failure
            errors.append(e)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(200)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert errors == [] and sorted(results) == list(range(200))


def test_ten_thousand_orphans_are_reaped(sandbox):
    sandbox.commands.run("for i in $(seq 100); do (for j in $(seq 100); do (true &) ; done) ; done", timeout=300, request_timeout=300)
    wait_for(lambda: sandbox.commands.run("ps -eo stat | grep -c '^Z' || true").stdout.strip() == "0", 60, "no zombie")


def test_a_reader_that_stops_reading_does_not_grow_the_agent(sandbox):
    import socket, json as j, struct
    from urllib.parse import urlparse
    url = urlparse(os.environ["E2B_SANDBOX_URL"])
    body = j.dumps({"process": {"cmd": "/bin/bash", "args": ["-c", "yes | head -c 300000000"]}, "stdin": False}).encode()
    message = struct.pack(">BI", 0, len(body)) + body
    s = socket.create_connection((url.hostname, url.port))
    s.sendall(b"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n"
              b"X-Access-Token: %s\r\nConnect-Protocol-Version: 1\r\nContent-Type: application/connect+json\r\n"
              b"Content-Length: %d\r\n\r\n" % (sandbox.sandbox_id.encode(), sandbox._envd_access_token.encode(), len(message)) + message)
    assert s.recv(100).startswith(b"HTTP/1.1 200")
    time.sleep(3)
    rss = int(sandbox.commands.run("ps -o rss= -p 1", user="root").stdout)
    assert rss < 8 * 1024
    s.close()
    assert sandbox.commands.run("echo still here").stdout == "still here\n"


def test_pty_size_resize_input_and_exit_code(sandbox):
    from e2b import PtySize
    out = []
    handle = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    sandbox.pty.resize(handle.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(handle.pid, b"stty size\nexit 3\n")
    try:
        handle.wait(on_pty=lambda data: out.append(bytes(data)))
        code = 0
    except CommandExitException as e:
        code = e.exit_code
    text = b"".join(out)
    assert code == 3 and b"30 100" in text


def test_the_asynchronous_client(server):
    import asyncio
    from e2b import AsyncSandbox

    async def one(i):
        box = await AsyncSandbox.create("base", metadata={"async": str(i)})
        try:
            await box.files.write("x", f"content {i}")
            lines = []
            result = await box.commands.run("cat x; echo; pwd", on_stdout=lines.append)
            handle = await box.commands.run("cat", background=True, stdin=True)
            await box.commands.send_stdin(handle.pid, "typed")
            await box.commands.close_stdin(handle.pid)
            return result.stdout, "".join(lines), (await handle.wait()).stdout
        finally:
            assert await box.kill() is True

    async def several():
        return await asyncio.gather(*(one(i) for i in range(5)))

    for i, (out, streamed, typed) in enumerate(asyncio.run(several())):
        assert out == streamed == f"content {i}\n/home/user\n" and typed == "typed"
