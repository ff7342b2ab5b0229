"""The template code-interpreter-v1: what is in it, its kernels, and how `cubicle template make-default` makes it."""

import json
import shutil
import subprocess

import pytest

from conftest import serving
from interpreter import PATIENT, out, run, sandbox, text
from server import CUBICLE, TEMPLATES, clean_env, ensure_templates

NAME = "code-interpreter-v1"
# A package as pip takes it, made in the sandbox: no registry is asked.
WHEEL = """
import sys, zipfile
name = sys.argv[1]
with zipfile.ZipFile(f"/tmp/{name}-1.0-py3-none-any.whl", "w") as z:
    z.writestr(f"{name}.py", "answer = 42\\n")
    info = f"{name}-1.0.dist-info/"
    z.writestr(info + "METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
    z.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    z.writestr(info + "RECORD", "")
"""


@pytest.fixture(scope="module")
def server():
    with serving(templates=("base", NAME)) as s:
        yield s


@pytest.fixture(scope="module")
def box(server):
    with sandbox() as b:
        yield b


def command(box, line, user="user"):
    return box.commands.run(line, user=user, timeout=300).stdout.strip()


# What is in it


def test_the_packages_are_there(box):
    modules = "numpy pandas matplotlib PIL scipy sklearn seaborn sympy orjson requests bs4 lxml openpyxl ipykernel"
    assert command(box, f"python3 -c 'import {', '.join(modules.split())}; print(1)'") == "1"
    assert command(box, "node --version").startswith("v24.")
    assert command(box, "npm --version")
    assert command(box, "Rscript -e 'cat(1 + 1)'") == "2"
    assert command(box, "git --version && curl --version | head -n 1")


def test_it_stands_on_base_and_has_its_users(box, server):
    described = {t["alias"]: t for t in map(json.loads, (p.read_text() for p in (server.state / "node/templates").glob("*.json")))}
    assert described[NAME]["layers"][0] == described["base"]["layers"][0]
    assert command(box, "id -un; id -Gn; sudo id -un").split("\n") == ["user", "user sudo", "root"]
    assert command(box, "find /usr /etc /home /var -xdev -user nobody -print -quit", user="root") == ""


def test_python_and_fonts_are_ready(box):
    """Byte code and the list of fonts are in the template: the first import and the first plot make neither."""
    assert command(box, "ls /usr/local/lib/python3.11/dist-packages/pandas/__pycache__ | head -n 1")
    assert command(box, "ls /usr/lib/cubicle/python/cubicle_kernel/__pycache__ | head -n 1")
    assert command(box, "ls ~/.cache/matplotlib").startswith("fontlist")


@pytest.mark.parametrize("how", ["user", "root", "cell"])
def test_pip_installs_for_the_kernel(box, how):
    box.files.write("/tmp/wheel.py", WHEEL)
    name = f"made_by_{how}"
    command(box, f"python3 /tmp/wheel.py {name}")
    install = f"pip install --no-index --disable-pip-version-check /tmp/{name}-1.0-py3-none-any.whl"
    if how == "cell":
        assert f"Successfully installed {name.replace('_', '-')}" in out(box, f"!{install}").replace("_", "-")
    else:
        command(box, install, user=how)
    assert text(box, f"import {name}; {name}.answer") == "42"


# Its kernels


@pytest.mark.parametrize("language,code,stdout", [
    ("python", "print(6 * 7)", "42\n"),
    ("javascript", "console.log(6 * 7)", "42\n"),
    ("typescript", "const n: number = 6 * 7; console.log(n as number)", "42\n"),
    ("bash", "echo $((6 * 7)); echo $USER $PWD", "42\nuser /home/user\n"),
    ("r", "cat(6 * 7, '\\n')", "42 \n"),
])
def test_each_kernel_prints(box, language, code, stdout):
    assert out(box, code, language=language) == stdout


@pytest.mark.parametrize("language,code,shown", [
    ("javascript", "[1, 'a']", "[ 1, 'a' ]"), ("javascript", "const a = 1", None), ("javascript", "const a = 2; a", "2"),
    ("javascript", "await Promise.resolve('x')", "x"), ("javascript", "import { sep } from 'node:path'; sep", "/"),
    ("javascript", "const { join } = require('path'); join('a', 'b')", "a/b"), ("javascript", "10n", "10n"),
    ("typescript", "interface P { x: number }\nenum E { A, B }\nconst p: P = { x: E.B }; p.x", "1"),
    ("typescript", "const wrong: number = 'not a number'; wrong", "not a number"),
])
def test_each_kernel_shows_values(box, language, code, shown):
    assert run(box, code, language=language).text == shown


def test_r_shows_values(box):
    """IRkernel publishes what a cell ends with like everything else it displays."""
    assert run(box, "x <- 1:3; sum(x)", language="r").results[0].text == "[1] 6"


def test_javascript_waits_for_the_promise_that_a_cell_ends_with(box):
    code = "async function main() { await new Promise(r => setTimeout(r, 50)); console.log('late') }\nmain()"
    assert out(box, code, language="javascript") == "late\n"


def test_javascript_displays_html_and_pictures(box):
    results = run(box, "display.html('<b>x</b>'); $$.png(Buffer.from('x')); ({ a: [1] })", language="javascript").results
    assert [r.html for r in results][0] == "<b>x</b>" and results[1].png == "eA==" and results[2].json == {"a": [1]}
    assert [r.is_main_result for r in results] == [False, False, True]


def test_r_displays_a_plot(box):
    assert run(box, "plot(1:3)", language="r").results[0].png


@pytest.mark.parametrize("language,code,name,value", [
    ("javascript", "function f() { throw new TypeError('boo') }\nf()", "TypeError", "boo"),
    ("javascript", "this is no javascript", "SyntaxError", "Unexpected"),
    ("javascript", "process.exit(3)", "Exit", "process.exit(3)"),
    ("typescript", "const x: string = null as any; x.length", "TypeError", "null"),
    ("bash", "false", "ExitStatus", "exit status 1"),
    ("bash", "echo \"never ends", "ExitStatus", "exit status 2"),
    ("bash", "exit 4", "ExitStatus", "exit status 4"),
    ("r", "stop('boo')", "", "boo"),
])
def test_each_kernel_tells_errors_and_lives(box, language, code, name, value):
    error = box.run_code(code, language=language, **PATIENT).error
    assert error and name in error.name and value in error.value
    assert out(box, {"bash": "echo on", "r": "cat('on\\n')"}.get(language, "console.log('on')"), language=language) == "on\n"


def test_javascript_says_where(box):
    error = box.run_code("function deep() { throw new Error('here') }\n\ndeep()", language="javascript", **PATIENT).error
    assert "at deep (cell-" in error.traceback and ":3:1" in error.traceback and "runtime.mjs" not in error.traceback


def test_what_nobody_waits_for_does_not_end_javascript(box):
    run(box, "var lives = 1; Promise.reject(new Error('x')); setTimeout(() => { throw new Error('y') }, 1); await new Promise(r => setTimeout(r, 50))", language="javascript")
    assert text(box, "lives", language="javascript") == "1"


@pytest.mark.parametrize("language,code,after,stdout", [
    ("javascript", "while (true) {}", "console.log('on')", "on\n"),
    ("javascript", "await new Promise(() => {})", "console.log('on')", "on\n"),
    ("javascript", "for (;;) console.log('line')", "console.log('on')", "on\n"),
    ("bash", "sleep 1000", "echo on", "on\n"),
    ("bash", "while :; do echo line; done", "echo on", "on\n"),
    ("r", "repeat {}", "cat('on\\n')", "on\n"),
])
def test_case_92_a_cell_without_end_is_interrupted(box, language, code, after, stdout):
    from e2b import TimeoutException
    with pytest.raises(TimeoutException):
        box.run_code(code, language=language, timeout=2, request_timeout=300)
    assert out(box, after, language=language) == stdout


def test_state_stays_from_cell_to_cell(box):
    run(box, "x=5; cd /tmp; f() { echo \"f $1\"; }", language="bash")
    assert out(box, "f $x; pwd", language="bash") == "f 5\n/tmp\n"
    assert out(box, "cd; echo to stdout > /dev/stdout; echo 'it'\\''s' | cat", language="bash") == "to stdout\nit's\n"
    run(box, "globalThis.kept = 1; let y = 2; function g() { return y }", language="javascript")
    assert text(box, "kept + g()", language="typescript") == "3"


# How it is made


@pytest.fixture
def made(tmp_path):
    """A state directory with both templates that a test may change: its path and a function that runs make-default there."""
    ensure_templates("base", NAME)
    state = tmp_path / "state"
    shutil.copytree(TEMPLATES / "node/templates", state / "node/templates")
    shutil.copytree(TEMPLATES / "node/images", state / "node/images", copy_function=lambda a, b: subprocess.run(["ln", a, b], check=True), ignore=shutil.ignore_patterns(".*", "*.log"))

    def make(*words, check=True, env=None):
        r = subprocess.run([CUBICLE, "template", "make-default", *words, f"--state.dir={state}"], capture_output=True, text=True, env=clean_env(env))
        assert not check or r.returncode == 0, r.stderr
        return r

    return state, make


def describe(state, name=NAME):
    """(path, description) of the template."""
    for path in (state / "node/templates").glob("*.json"):
        t = json.loads(path.read_text())
        if t["alias"] == name:
            return path, t
    raise AssertionError(name)


def forget_recipe(state, layer):
    """As if that layer had been made by another recipe."""
    path, t = describe(state)
    t["layers"][layer]["recipe"] = "0" * 64
    path.write_text(json.dumps(t))


def test_a_second_run_changes_nothing(made):
    state, make = made
    before = {p.name: p.read_text() for p in (state / "node/templates").iterdir()}
    r = make("--if-missing")
    assert (r.stdout, r.stderr) == ("", "")
    assert {p.name: p.read_text() for p in (state / "node/templates").iterdir()} == before


def test_a_changed_recipe_is_noticed_and_only_its_layer_made_again(made):
    state, make = made
    _, before = describe(state)
    images = lambda: {f"images/{p.name}" for p in (state / "node/images").iterdir()}
    there = images()  # of earlier trees, too, when the state is not new
    forget_recipe(state, 2)
    lines = [json.loads(line) for line in make("--if-missing", "--json").stdout.splitlines()]
    assert lines[-1]["alias"] == NAME and lines[-1]["templateID"] == before["id"]
    assert [line["percent"] for line in lines[:-1]] == sorted(line["percent"] for line in lines[:-1])
    _, after = describe(state)
    assert after["id"] == before["id"] and after["buildId"] != before["buildId"]
    assert after["layers"][:2] == before["layers"][:2]
    assert after["layers"][2]["recipe"] == before["layers"][2]["recipe"]
    assert after["services"] == before["services"] and after["memoryMB"] == before["memoryMB"]
    # The image that only the old description named stays for now: a server removes it, which knows whether anybody stands on it.
    assert {layer["file"] for layer in before["layers"]} <= there and images() == there | {layer["file"] for layer in after["layers"]}


def test_no_registry_is_told_and_nothing_changed(made):
    state, make = made
    forget_recipe(state, 1)
    before = {p.name: p.read_text() for p in (state / "node/templates").iterdir()}
    r = make("--if-missing", check=False, env={"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_INDEX": "0"})
    assert r.returncode == 1
    assert "Python packages" in r.stderr and "PIP_INDEX_URL" in r.stderr
    assert {p.name: p.read_text() for p in (state / "node/templates").iterdir()} == before
    assert [p.name for p in (state / "node/images").iterdir() if p.suffix != ".erofs"] == ["failed.log"]


def test_no_mirror_is_told(made):
    state, make = made
    r = make("base", "--mirror", "http://127.0.0.1:9/debian", check=False)
    assert r.returncode == 1 and "no package mirror was reached (http://127.0.0.1:9/debian)" in r.stderr


def test_other_names_are_refused(made):
    _, make = made
    r = make("nonsense", check=False)
    assert r.returncode != 0 and "nonsense" in r.stderr and NAME in r.stderr
