"""The command line against a running server: what people and scripts type."""

import json
import os
import re
import signal
import subprocess

import pytest

from server import CUBICLE, clean_env, wait_for


@pytest.fixture
def cli(server):
    """cli(words...): runs the program as root on the server's machine, over the admin socket."""
    def call(*words, data=b"", check=True, extra=None, where=True):
        flags = [f"--state.dir={server.state}", f"--listen=127.0.0.1:{server.port}"] if where else []
        at = words.index("--") if "--" in words else len(words)
        r = subprocess.run([str(CUBICLE), *words[:at], *flags, *words[at:]], input=data, capture_output=True, timeout=120, env=clean_env(extra))
        assert not check or r.returncode == 0, (words, r.returncode, r.stderr)
        return r

    return call


def ids(cli):
    return {s["sandboxID"] for s in json.loads(cli("sandbox", "list", "--json").stdout)}


def test_run_passes_streams_and_code_and_leaves_nothing(cli):
    before = ids(cli)
    r = cli("run", "base", "--", "sh", "-c", "cat; echo err >&2; exit 9", data=b"through\n", check=False)
    assert (r.returncode, r.stdout, r.stderr) == (9, b"through\n", b"err\n")
    assert ids(cli) == before


def test_run_interrupted_leaves_nothing(cli, server):
    before = ids(cli)
    p = subprocess.Popen([str(CUBICLE), "run", "base", f"--state.dir={server.state}", "--", "sh", "-c", "echo up; sleep 1000"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=clean_env())
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 130
    p.stdout.close()
    assert ids(cli) == before


def test_a_sandbox_by_hand(cli):
    box = cli("sandbox", "create", "base", "-m", "purpose=cli test", "-e", "GREETING=hi there").stdout.decode().strip()
    try:
        assert cli("sandbox", "exec", box[:8], "--", "sh", "-c", "echo $GREETING; whoami; pwd").stdout == b"hi there\nuser\n/home/user\n"
        assert cli("sandbox", "exec", box, "-u", "root", "-w", "/", "--", "sh", "-c", "whoami; pwd").stdout == b"root\n/\n"
        listed = json.loads(cli("sandbox", "list", "--json", "-m", "purpose=cli test").stdout)
        assert [s["sandboxID"] for s in listed] == [box]
        assert cli("sandbox", "list", "-m", "purpose=other").stdout.count(b"\n") == 1
        info = cli("sandbox", "info", box[:8]).stdout.decode()
        assert box in info and "purpose=cli test" in info and "running" in info
        assert json.loads(cli("sandbox", "info", box, "--json").stdout)["sandboxID"] == box
    finally:
        assert cli("sandbox", "kill", box).stdout.decode().strip() == box
    r = cli("sandbox", "info", box, check=False)
    assert r.returncode == 1 and b"killed" in r.stderr
    assert cli("sandbox", "exec", box, "--", "true", check=False).returncode == 125
    assert cli("sandbox", "kill", box, check=False).returncode == 1


def test_pause_fork_snapshot_by_hand(cli):
    made = [cli("sandbox", "create", "base", "--auto-pause").stdout.decode().strip()]
    box = made[0]
    try:
        cli("sandbox", "exec", box, "--", "sh", "-c", "echo kept > file")
        assert cli("sandbox", "pause", box[:8]).stdout.decode().split() == [box]
        info = cli("sandbox", "info", box).stdout.decode()
        assert re.search(r"state +paused", info) and "ends in" not in info and re.search(r"at the end +pause\n", info), info
        assert re.search(rf"{box} +base +paused", cli("sandbox", "list").stdout.decode())
        for words in (("sandbox", "pause", box), ("sandbox", "exec", box, "--", "true"), ("sandbox", "fork", box)):
            r = cli(*words, check=False)
            assert r.returncode and b"paused" in r.stderr, r
        assert json.loads(cli("sandbox", "resume", box, "--timeout", "100", "--json").stdout) == {"resumed": [box]}
        assert re.search(r"resumed from +memory", cli("sandbox", "info", box).stdout.decode())
        cli("sandbox", "pause", box, "--disk-only")
        cli("sandbox", "resume", box)
        assert re.search(r"resumed from +disk", cli("sandbox", "info", box).stdout.decode())
        made += cli("sandbox", "fork", box, "--count", "2").stdout.decode().split()
        assert len(set(made)) == 3
        assert cli("sandbox", "exec", made[1], "--", "cat", "file").stdout == b"kept\n"
        snapshot = cli("sandbox", "snapshot", box, "by/hand:v1").stdout.decode().strip()
        assert re.search(rf"{snapshot} +by/hand:v1 +{box}", cli("snapshot", "list", "--sandbox", box).stdout.decode())
        assert "by/hand:v1" in cli("completion", "words", "--", "cubicle", "snapshot", "delete", "by").stdout.decode()
        cli("sandbox", "exec", box, "--", "rm", "file")
        assert cli("sandbox", "rollback", box, "by/hand:v1").stdout.decode().strip() == box
        assert cli("sandbox", "exec", box, "--", "cat", "file").stdout == b"kept\n"
        assert cli("run", "by/hand:v1", "--", "cat", "/home/user/file").stdout == b"kept\n"
        assert cli("snapshot", "delete", "by/hand:v1").returncode == 0
        r = cli("snapshot", "delete", snapshot, check=False)
        assert r.returncode == 1 and b"not found" in r.stderr
    finally:
        cli("sandbox", "kill", *made)


def test_no_internet_is_passed_on(cli):
    r = cli("run", "base", "--no-internet", "--", "python3", "-c", "import socket; socket.create_connection(('1.1.1.1', 53), 3)", check=False)
    assert r.returncode == 1


def test_keys(cli, server):
    made = json.loads(cli("key", "create", "ci", "--json").stdout)
    assert server.call("GET", "/v2/sandboxes", key=made["key"])[0] == 200
    listed = cli("key", "list").stdout.decode()
    assert "ci" in listed and made["key"] not in listed
    # The key serves where there is no admin socket.
    remote = {"CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": made["key"]}
    assert cli("run", "base", "--", "echo", "remote", extra=remote, where=False).stdout == b"remote\n"
    cli("key", "revoke", made["id"])
    assert server.call("GET", "/v2/sandboxes", key=made["key"])[0] == 401
    r = cli("sandbox", "list", extra=remote, where=False, check=False)
    assert r.returncode == 1 and b"CUBICLE_API_KEY" in r.stderr
    assert cli("key", "revoke", "no-such-key", check=False).returncode == 1


def test_env_serves_a_shell_and_the_client(cli, server):
    script = 'eval "$(%s env --state.dir=%s --listen=127.0.0.1:%d)"; python3 -c "%s"' % (
        CUBICLE, server.state, server.port, "import e2b; s = e2b.Sandbox.create('base'); print(s.commands.run('whoami').stdout); s.kill()")
    r = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120, env=clean_env())
    assert r.stdout.strip() == "user", r.stderr
    values = json.loads(cli("env", "--json").stdout)
    assert values["E2B_API_KEY"] == server.api_key and values["CUBE_PROXY_PORT_HTTP"] == str(server.port)


def test_templates(cli):
    assert b"base" in cli("template", "list").stdout
    listed = json.loads(cli("template", "list", "--json").stdout)
    assert [t for t in listed if "base" in t["aliases"]]
    cli("template", "make-default", "base", "--if-missing")
    r = cli("run", "nope", "--", "true", check=False)
    assert r.returncode == 125 and b"nope" in r.stderr


def test_a_new_description_is_read_by_the_running_server(cli, server):
    source = next((server.state / "node/templates").glob("*.json"))
    t = json.loads(source.read_text())
    t.update(id="clitest" + "0" * 13, alias="cli-copy")
    path = server.state / "node/templates" / (t["id"] + ".json")
    path.write_text(json.dumps(t))
    os.chmod(path, 0o600)
    try:
        wait_for(lambda: subprocess.run(["curl", "-sf", "--unix-socket", f"{server.state}/admin.sock", "-X", "POST", "http://localhost/admin/reload-templates"]).returncode == 0)
        assert cli("run", "cli-copy", "--", "echo", "new").stdout == b"new\n"
    finally:
        path.unlink()
        subprocess.run(["curl", "-sf", "--unix-socket", f"{server.state}/admin.sock", "-X", "POST", "http://localhost/admin/reload-templates"], check=True)
    assert cli("run", "cli-copy", "--", "true", check=False).returncode == 125


def test_doctor_finds_this_machine_fit(cli):
    checks = json.loads(cli("doctor", "--json").stdout)
    assert len(checks) > 20
    assert [c for c in checks if c["required"] and not c["ok"]] == []


def test_doctor_insists_on_what_microvms_need_only_where_they_are_wanted(cli):
    def needed(*words):
        r = cli("doctor", "--json", *words, check=False)
        checks = json.loads(r.stdout)
        assert r.returncode == any(c["required"] and not c["ok"] for c in checks)
        return {c["name"]: c for c in checks if c["name"].startswith("microVMs: ")}

    hints, errors = needed("--guest.kernel=/nowhere/vmlinuz-0"), needed("--guest.kernel=/nowhere/vmlinuz-0", "--isolation=microvm")
    assert list(hints) == list(errors) == [f"microVMs: {what}" for what in ("KVM", "guest kernel", "monitor", "tap links")]
    assert not any(c["required"] for c in hints.values()) and all(c["required"] for c in errors.values())
    assert {n: c["ok"] for n, c in hints.items()} == {n: c["ok"] for n, c in errors.items()}
    assert not hints["microVMs: guest kernel"]["ok"] and "/nowhere/vmlinuz-0" in hints["microVMs: guest kernel"]["detail"]
    # What it found, whatever this machine has.
    assert hints["microVMs: KVM"]["detail"].split(":")[0] == "hardware" if hints["microVMs: KVM"]["ok"] else hints["microVMs: KVM"]["detail"].split(":")[0] in ("none", "interpreted")


def test_config_names_sources(cli):
    r = json.loads(cli("config", "--json", extra={"CUBICLE_POOL_MIN": "3"}).stdout)
    assert r["pool.min"] == {"value": "3", "source": "environment CUBICLE_POOL_MIN", "doc": r["pool.min"]["doc"]}
    assert r["listen"]["source"] == "flag --listen"


def completions(server, shell, program):
    """What a shell offers, by the script that the program prints for it."""
    where = {"PATH": f"{CUBICLE.parent}:{os.environ['PATH']}", "CUBICLE_STATE_DIR": str(server.state), "CUBICLE_LISTEN": f"127.0.0.1:{server.port}"}
    r = subprocess.run([shell, "-c", program], capture_output=True, text=True, timeout=120, env=clean_env(where))
    assert r.returncode == 0, r.stderr
    return [line.split("\t")[0] for line in r.stdout.splitlines()]


def test_shells_complete_ids_of_sandboxes(cli, server):
    box = cli("sandbox", "create", "base").stdout.decode().strip()
    try:
        bash = f'source <(cubicle completion bash); COMP_WORDS=(cubicle sandbox kill {box[:6]}) COMP_CWORD=3; _cubicle cubicle; printf "%s\\n" "${{COMPREPLY[@]}}"'
        assert completions(server, "bash", bash) == [box]
        fish = f'cubicle completion fish | source; complete -C "cubicle sandbox kill {box[:6]}"'
        assert completions(server, "fish", fish) == [box]
    finally:
        cli("sandbox", "kill", box)
    assert cli("completion", "tcsh", where=False, check=False).returncode == 2


def test_the_manual_page_is_sound(cli):
    page = cli("man", where=False).stdout
    r = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-c"], input=page, capture_output=True, timeout=60)
    assert r.returncode == 0 and r.stderr == b"", r.stderr
    text = re.sub(rb".\x08", b"", r.stdout)  # bold is printed twice
    assert b"sandbox exec" in text and b"network.pool" in text
