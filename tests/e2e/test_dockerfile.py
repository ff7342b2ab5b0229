"""`cubicle template build -f Dockerfile .`: what people have, built on an image of a registry of the test's own, and what runs in the sandboxes made of it."""

import json
import os
import re
import socket
import subprocess

import pytest

from conftest import serving
from registry import Layer, Layout, Registry, busybox
from server import CUBICLE, clean_env


@pytest.fixture(scope="module")
def hub():
    with Registry(users={"anna": "secret"}) as private, Registry() as hub:
        layout = Layout(hub.dir / "layout")
        layout.image([busybox()], {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["sh"]}, tag="base")
        layout.image([busybox(), Layer().file("etc/trigger", b"")], {"Env": ["PATH=/bin"], "OnBuild": ["COPY . /onbuild", "RUN ls /onbuild > /etc/trigger"]}, tag="trigger")
        hub.base = hub.push(layout, "base", "box", "1")
        hub.trigger = hub.push(layout, "trigger", "trigger", "1")
        hub.private = private.push(layout, "base", "private", "1")
        hub.private_host = private.host
        yield hub


@pytest.fixture(scope="module")
def server(hub):
    """Its registries are plain HTTP on the loopback: allowed by name, as an operator would."""
    hosts = f"{hub.host},{hub.private_host}"
    with serving(options={"registry.insecure": hosts, "registry.private": hosts, "registry.insecure_credentials": "true"}) as server:
        yield server


@pytest.fixture(scope="module")
def cli(server):
    def call(*words, check=True, env=None, data=b""):
        at = words.index("--") if "--" in words else len(words)
        flags = [f"--state.dir={server.state}", f"--listen=127.0.0.1:{server.port}"]
        r = subprocess.run([str(CUBICLE), *(str(w) for w in words[:at]), *flags, *words[at:]], input=data, capture_output=True, timeout=300, env=clean_env({"HOME": "/nonexistent", **(env or {})}))
        assert not check or r.returncode == 0, (words, r.returncode, r.stdout.decode(), r.stderr.decode())
        return r

    return call


@pytest.fixture
def project(tmp_path, hub):
    """A directory of its own; write({name: text}) adds files to it, in which BASE, TRIGGER and PRIVATE are images of the registries."""
    class Project:
        path = tmp_path / "project"

        def write(self, files):
            for name, text in files.items():
                to = self.path / name
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(text.replace("BASE", hub.base).replace("TRIGGER", hub.trigger).replace("PRIVATE", hub.private))
            return self

    return Project()


@pytest.fixture
def inside(cli):
    """inside(template, words...): what a command prints in a new sandbox."""
    return lambda template, *words: cli("run", template, "--", *words).stdout.decode()


def log_of(done):
    return done.stdout.decode() + done.stderr.decode()


MULTI = """# syntax=docker/dockerfile:1
ARG VERSION=1
FROM BASE AS build
ARG VERSION
WORKDIR /src
COPY . .
RUN echo "built $VERSION" > out && ls > listing
RUN <<EOF
set -e
echo one > here
cat here > heredoc
EOF

FROM BASE AS unused
RUN exit 7

FROM BASE
ENV GREETING="hello there" NAME=box
LABEL a=b
RUN echo 'app:x:1000:1000::/srv:/bin/sh' >> /etc/passwd && echo 'app:x:1000:' >> /etc/group
SHELL ["/bin/sh", "-e", "-c"]
WORKDIR /srv
COPY --from=build /src/out /src/listing /src/heredoc ./
COPY --chown=app --chmod=640 secret.txt data/
COPY <<EOF conf/app.conf
name = $NAME
EOF
RUN chown app /srv
USER app
RUN id -u > who; pwd > where; echo "$GREETING" > greeting
EXPOSE 8080
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/sh", "-c", "id -u > /tmp/service; pwd >> /tmp/service; echo $GREETING $0 >> /tmp/service; exec sleep 100000"]
CMD ["argument", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20"]
"""

# Until the service has written all of its three lines.
READ_SERVICE = "for i in $(seq 60); do [ $(wc -l < /tmp/service 2>/dev/null || echo 0) = 3 ] && break; sleep 1; done; cat /tmp/service"


def test_stages_arguments_users_and_what_stays(cli, project, inside):
    """Case 116: ENTRYPOINT, CMD, USER, WORKDIR and ENV are honoured."""
    project.write({"Dockerfile": MULTI, "secret.txt": "s", "main.c": "int", "skip.o": "x", "deep/skip.o": "x", "deep/keep.o": "x", ".dockerignore": "**/*.o\n!deep/keep.o\n# comment\nDockerfile\n"})
    done = cli("template", "build", "-t", "multi", "--build-arg", "VERSION=2", "--progress", "plain", project.path)
    assert "exit 7" not in log_of(done)  # a stage that nothing needs
    script = "set -e; cat out listing heredoc conf/app.conf who where greeting; stat -c '%U %a' data/secret.txt; id -u; pwd; echo $GREETING"
    assert inside("multi", "sh", "-c", script).splitlines() == [
        "built 2", "deep", "listing", "main.c", "out", "secret.txt", "one", "name = box", "1000", "/srv", "hello there", "app 640", "1000", "/srv", "hello there"]
    assert inside("multi", "sh", "-c", READ_SERVICE).splitlines() == ["1000", "/srv", "hello there argument"]
    assert any("multi" in t["aliases"] for t in json.loads(cli("template", "list", "--json").stdout))


def cached_steps(done):
    """What each step of a build was: {instruction: taken from an earlier build}."""
    steps, last = {}, None
    for line in log_of(done).splitlines():
        found = re.search(r"\[\d+/\d+\] (.*)$", line)
        if found:
            last = found[1]
            steps[last] = False
        elif line.endswith("CACHED") and last:
            steps[last] = True
    return steps


def test_what_has_not_changed_is_not_done_again(cli, project):
    project.write({"Dockerfile": "FROM BASE\nARG V=1\nRUN echo first > /first\nCOPY a /a\nRUN cat /a > /b\n", "a": "1", "unrelated": "1"})
    first = cached_steps(cli("template", "build", "-t", "cached", project.path))
    assert first == {"ARG V=1": False, "RUN echo first > /first": False, "COPY a /a": False, "RUN cat /a > /b": False}
    again = {**{k: True for k in first}, "ARG V=1": False}
    assert cached_steps(cli("template", "build", "-t", "cached", project.path)) == again
    # A file that nothing copies, and times.
    project.write({"unrelated": "2"})
    os.utime(project.path / "a", (1, 1))
    assert cached_steps(cli("template", "build", "-t", "cached", project.path)) == again
    project.write({"a": "2"})
    assert cached_steps(cli("template", "build", "-t", "cached", project.path)) == {**first, "RUN echo first > /first": True}
    assert cli("run", "cached", "--", "cat", "/b").stdout == b"2"
    # An ARG in scope is part of what a RUN follows from.
    assert not any(cached_steps(cli("template", "build", "-t", "cached", "--build-arg", "V=2", project.path)).values())
    assert not any(cached_steps(cli("template", "build", "-t", "cached", "--no-cache", project.path)).values())


def test_a_failure_names_its_line_and_leaves_the_name_to_the_last_good_build(cli, project, inside):
    project.write({"Dockerfile": "FROM BASE\nRUN echo good > /state\n"})
    cli("template", "build", "-t", "failing", project.path)
    project.write({"Dockerfile": "FROM BASE\n\nRUN echo before; echo why >&2; exit 3\n"})
    failed = cli("template", "build", "-t", "failing", project.path, check=False)
    assert failed.returncode == 1
    assert "Dockerfile:3: RUN: failed to run command 'echo before; echo why >&2; exit 3': exit status 3" in failed.stderr.decode(), log_of(failed)
    assert "why" in log_of(failed)
    assert inside("failing", "cat", "/state") == "good\n"


@pytest.mark.parametrize("text, message", [
    ("FROM BASE\nRUNN x\n", 'Dockerfile:2: unknown instruction "RUNN" (did you mean RUN?)'),
    ("FROM BASE:$NO\n", "NO is not set"),
    ("FROM BASE\nRUN --mount=type=secret,id=x true\n", "Dockerfile:2: --mount with type=secret is not supported"),
    ("FROM BASE\nADD https://example.com/x /x\n", "ADD of a URL or a git repository is not supported"),
])
def test_mistakes_are_told_before_anything_is_sent(cli, project, text, message):
    project.write({"Dockerfile": text})
    failed = cli("template", "build", "-t", "mistake", project.path, check=False)
    assert failed.returncode == 1 and message in failed.stderr.decode()
    assert "mistake" not in cli("template", "list").stdout.decode()


def test_what_cannot_be_in_a_context_is_refused(cli, project):
    project.write({"Dockerfile": "FROM BASE\nCOPY . /x\n", "a": "1"})
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(project.path / "sock"))
        failed = cli("template", "build", "-t", "special", project.path, check=False)
    assert failed.returncode == 1 and "sock is a socket" in failed.stderr.decode()
    failed = cli("template", "build", "-t", "special", project.path / "none", check=False)
    assert failed.returncode == 1 and "none" in failed.stderr.decode()
    (project.path / "sock").unlink()
    project.write({"Dockerfile": "FROM BASE\nCOPY b /x\n"})
    failed = cli("template", "build", "-t", "special", project.path, check=False)
    assert failed.returncode == 1 and 'Dockerfile:2: COPY: "b" is not in the context' in failed.stderr.decode()


def test_a_template_of_one_program_and_nothing_else(cli, project, inside):
    """FROM scratch: no shell, no /etc, no /tmp."""
    project.write({"Dockerfile": 'FROM BASE AS b\nFROM scratch\nCOPY --from=b /bin/busybox /busybox\nCOPY page /www/index.html\nENTRYPOINT ["/busybox", "httpd", "-f", "-p", "8000", "-h", "/www"]\n',
                   "page": "scratch page"})
    cli("template", "build", "-t", "tiny", project.path)
    wait = "for i in $(/busybox seq 60); do /busybox wget -q -O - http://127.0.0.1:8000/ && break; /busybox sleep 1; done"
    assert inside("tiny", "/busybox", "sh", "-c", wait) == "scratch page"
    assert inside("tiny", "/busybox", "id", "-u") == "0\n"


def test_copy_places_files_as_docker_does(cli, project, inside):
    project.write({
        "Dockerfile": "FROM BASE\nWORKDIR /d\nCOPY link renamed/\nCOPY link plain\nCOPY dir/ merged/\nCOPY other/ merged/\nCOPY *.txt dir texts/\nCOPY --exclude=*.log other some/\n"
        "COPY --parents dir/sub/*.txt up/\nADD files.tar.gz unpacked/\nCOPY files.tar.gz packed\nCOPY dir newdir\nRUN find . > /found\n",
        "one.txt": "1", "two.txt": "2", "dir/a": "a", "dir/sub/s.txt": "s", "other/b": "b", "other/c.log": "c"})
    os.symlink("dir/a", project.path / "link")
    os.symlink("sub/s.txt", project.path / "dir/inner")
    subprocess.run(["tar", "-C", project.path / "dir", "-czf", project.path / "files.tar.gz", "sub"], check=True)
    cli("template", "build", "-t", "copies", project.path)
    assert sorted(inside("copies", "cat", "/found").split()) == sorted([
        ".", "./renamed", "./renamed/link", "./plain", "./merged", "./merged/a", "./merged/inner", "./merged/sub", "./merged/sub/s.txt", "./merged/b", "./merged/c.log",
        "./texts", "./texts/one.txt", "./texts/two.txt", "./texts/a", "./texts/inner", "./texts/sub", "./texts/sub/s.txt", "./some", "./some/b",
        "./up", "./up/dir", "./up/dir/sub", "./up/dir/sub/s.txt", "./unpacked", "./unpacked/sub", "./unpacked/sub/s.txt", "./packed",
        "./newdir", "./newdir/a", "./newdir/inner", "./newdir/sub", "./newdir/sub/s.txt"])
    assert inside("copies", "sh", "-c", "cat /d/plain; readlink /d/merged/inner; stat -c '%u %g' /d/plain") == "asub/s.txt\n0 0\n"


def test_images_of_registries_with_passwords_and_onbuild(cli, project, inside, hub, tmp_path):
    """Credentials come from docker's own configuration; they are in no log."""
    project.write({"Dockerfile": "FROM PRIVATE AS p\nFROM TRIGGER\nCOPY --from=p /etc/group /group\n", "file": "x"})
    failed = cli("template", "build", "-t", "private", project.path, check=False)
    assert failed.returncode == 1 and "Dockerfile:1: FROM" in failed.stderr.decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {hub.private_host: {"auth": "YW5uYTpzZWNyZXQ="}}}))
    done = cli("template", "build", "-t", "private", project.path, env={"DOCKER_CONFIG": str(tmp_path)})
    assert "secret" not in log_of(done) and "YW5uYTpzZWNyZXQ" not in log_of(done)
    assert inside("private", "sh", "-c", "cat /etc/trigger; head -n 1 /group").split() == ["Dockerfile", "file", "root:x:0:"]


def test_a_number_is_a_user_and_mounts_are_for_one_command(cli, project, inside):
    """USER with a number that /etc/passwd does not have; RUN --mount leaves nothing behind, and what it hid is there again."""
    project.write({
        "Dockerfile": "FROM BASE\nRUN mkdir -p /cache/old && echo kept > /cache/old/file && chmod 775 /cache\nWORKDIR /w\n"
        "RUN --mount=type=cache,target=/cache --mount=type=bind,source=list,target=list --mount=from=BASE,source=/etc/group,target=/g2 "
        "ls /cache > /seen; cat list >> /seen; head -n 1 /g2 >> /seen; touch /cache/new list2\n"
        # case 118: the one above comes first, whatever is said first.
        "RUN --mount=type=bind,source=list,target=/cache/in/list --mount=type=tmpfs,target=/cache cat /cache/in/list >> /seen; touch /cache/gone\nUSER 1234:0\nRUN id -u > /tmp/id\n", "list": "of the context\n"})
    cli("template", "build", "-t", "mounts", project.path)
    script = "cat /seen /cache/old/file /tmp/id; ls /w /cache; ls -d /g2 2>/dev/null; stat -c %a /cache; id -u; id -g"
    assert inside("mounts", "sh", "-c", script).split() == ["of", "the", "context", "root:x:0:", "of", "the", "context", "kept", "1234", "/cache:", "old", "/w:", "list2", "775", "1234", "0"]


def test_targets_other_names_and_standard_input(cli, project, inside, tmp_path):
    project.write({"Other.df": "FROM BASE AS one\nCOPY f /f\nFROM one AS two\nRUN echo two > /two\n", "Other.df.dockerignore": "g\n", "f": "f", "g": "g"})
    other = project.path / "Other.df"
    cli("template", "build", "-f", other, "-t", "other:v1", "--target", "one", project.path)
    assert inside("other:v1", "sh", "-c", "cat /f; ls /two 2>/dev/null || true") == "f"
    text = other.read_bytes().replace(b"COPY f", b"COPY g")
    other.write_bytes(text)
    failed = cli("template", "build", "-f", other, "-t", "other:v2", project.path, check=False)
    assert failed.returncode == 1 and '"g" is not in the context' in failed.stderr.decode()
    cli("template", "build", "-f", "-", "-t", "other:v2", project.path, data=text)
    assert inside("other:v2", "cat", "/f", "/two") == "gtwo\n"
