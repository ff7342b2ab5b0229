"""Code cells through the published clients: results of every kind, contexts, variables, languages (e2b.md C)."""

import base64
import datetime
import json
import os
import pathlib
import re
import subprocess
import threading

import pytest

from conftest import serving
from interpreter import PATIENT, Stream, create, interpreter, out, png, run, sandbox, text

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def server():
    with serving(templates=("base", "code-interpreter-v1")) as s:
        yield s


@pytest.fixture(scope="module")
def box(server):
    with sandbox(envs={"FROM_CREATE": "yes"}) as b:
        yield b


def test_the_first_cell_of_a_sandbox(server):
    with sandbox(envs={"A": "of the create", "E": ""}) as b:
        first, second = run(b, "1+1"), run(b, "x = 41\nx + 1")
        assert (first.text, first.execution_count, second.text, second.execution_count) == ("2", 1, "42", 2)
        assert [r.is_main_result for r in first.results] == [True]
        assert first.logs.stdout == first.logs.stderr == []
        assert text(b, "import os, getpass; (os.environ['A'], os.environ['E'], os.environ['E2B_SANDBOX'], os.getcwd(), getpass.getuser(), os.environ['HOME'])") == \
            "('of the create', '', 'true', '/home/user', 'user', '/home/user')"
        assert text(b, "open('mine', 'w').write('seen'); os.environ['E2B_SANDBOX_ID']") == b.sandbox_id
        assert b.files.read("/home/user/mine") == "seen"


def test_health_and_what_is_not_there(server, box):
    status, headers, body = interpreter(server, box, "GET", "/health")
    assert (status, json.loads(body)) == (200, "OK")
    assert interpreter(server, box, "GET", "/nothing")[0] == 404
    assert interpreter(server, box, "GET", "/execute")[0] == 405
    status, headers, _ = interpreter(server, box, "OPTIONS", "/execute", headers={"Origin": "https://x.test", "Access-Control-Request-Method": "POST"})
    assert status < 300 and headers["Access-Control-Allow-Origin"] == "*"


# Results


def test_case_94_quotes_are_taken_off_once(box):
    assert text(box, "'plain'") == "plain"
    assert text(box, "\"'inner'\"") == "'inner'"
    assert text(box, "'it\\'s \"both\"'") == "it\\'s \"both\""
    assert text(box, "None") is None
    assert text(box, "print('x')") is None


def test_display_data_of_each_kind(box):
    execution = run(box, """
from IPython.display import HTML, Markdown, SVG, Latex, JSON, Javascript, display
display(HTML("<b>ü</b>"))
display(Markdown("# head"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg'><circle r='3'/></svg>"))
display(Latex("$x^2$"))
display(JSON({"a": [1, {"b": None}]}))
display(Javascript("alert(1)"))
display({"application/pdf": "JVBERi0=", "text/plain": "a pdf"}, raw=True)
display({"application/vnd.custom+json": {"k": 1}, "text/plain": "custom"}, raw=True)
"the last"
""")
    html, markdown, svg, latex, js, javascript, pdf, custom, last = execution.results
    assert (html.html, markdown.markdown, latex.latex, javascript.javascript) == ("<b>ü</b>", "# head", "$x^2$", "alert(1)")
    assert "<circle" in svg.svg and js.json == {"a": [1, {"b": None}]}
    assert (pdf.pdf, pdf.text) == ("JVBERi0=", "a pdf")
    assert custom.extra == {"application/vnd.custom+json": {"k": 1}}
    assert [r.is_main_result for r in execution.results] == [False] * 8 + [True]
    assert (last.text, execution.text) == ("the last", "the last")


def test_case_94_json_is_for_objects_and_lists(box):
    assert run(box, "{'a': 1, 'b': [1.5, None, True]}").results[0].json == {"a": 1, "b": [1.5, None, True]}
    assert run(box, "[1, 'two']").results[0].json == [1, "two"]
    assert run(box, "42").results[0].json is None
    assert run(box, "'text'").results[0].json is None


def test_pictures_come_as_they_were_drawn(box):
    execution = run(box, """
from PIL import Image
from IPython.display import display
import io
im = Image.new("RGB", (3, 2), (10, 20, 30))
im.putpixel((1, 0), (255, 0, 1))
display(im)
jpeg = io.BytesIO(); im.resize((40, 24)).save(jpeg, "JPEG")
from IPython.display import Image as Shown
display(Shown(jpeg.getvalue(), format="jpeg"))
""")
    picture = next(r.png for r in execution.results if r.png)
    width, height, rows = png(picture)
    assert (width, height) == (3, 2)
    assert [[p[:3] for p in row] for row in rows] == [[(10, 20, 30), (255, 0, 1), (10, 20, 30)], [(10, 20, 30)] * 3]
    jpeg = base64.b64decode(next(r.jpeg for r in execution.results if r.jpeg and not r.png))
    assert jpeg[:3] == b"\xff\xd8\xff" and jpeg[-2:] == b"\xff\xd9"
    at = jpeg.index(b"\xff\xc0")  # the frame's head: height, width
    assert (int.from_bytes(jpeg[at + 5:at + 7], "big"), int.from_bytes(jpeg[at + 7:at + 9], "big")) == (24, 40)


def test_a_saved_picture_is_shown_too(box):
    execution = run(box, "from PIL import Image\nImage.new('RGB', (2, 1), (9, 8, 7)).save('/home/user/p.png')")
    _, _, rows = png(next(r.png for r in execution.results if r.png))
    assert [p[:3] for p in rows[0]] == [(9, 8, 7)] * 2
    assert box.files.read("/home/user/p.png", format="bytes")[:4] == b"\x89PNG"


def test_data_of_a_frame(box):
    execution = run(box, """
import pandas as pd
pd.DataFrame({"n": [1, 2], "when": [pd.Timestamp("2026-01-02"), pd.Timestamp("2026-01-03T04:05:06")], "s": ["a", "ü"]})
""")
    (r,) = execution.results
    assert r.data == {"n": [1, 2], "when": ["2026-01-02T00:00:00", "2026-01-03T04:05:06"], "s": ["a", "ü"]}
    assert "<table" in r.html and "when" in r.text


def test_case_94_a_chart_for_show_and_for_the_last_line(box):
    draw = """
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(2, 1), dpi=50)
ax.plot([0, 1, 2], [5, 6.5, 4], label="speed")
ax.set_xlabel("time (s)"); ax.set_ylabel("speed (m/s)"); ax.set_title("A ride")
"""
    for last, main in (("plt.show()", False), ("fig", True)):
        execution = run(box, draw + last)
        (r,) = [r for r in execution.results if r.chart and r.is_main_result == main]  # what is drawn and not closed is shown at the end of the cell, too
        chart = r.chart
        assert (chart.type.value, chart.title, chart.x_label, chart.x_unit, chart.y_label, chart.y_unit) == \
            ("line", "A ride", "time (s)", "s", "speed (m/s)", "m/s")
        assert [(e.label, e.points) for e in chart.elements] == [("speed", [(0, 5), (1, 6.5), (2, 4)])]
        width, height, rows = png(r.png)
        assert width > 10 and height > 10 and len({p for row in rows for p in row}) > 2
        run(box, "plt.close('all')")


# Output and errors


def test_output_comes_while_the_cell_runs(box):
    """The cell waits for a file that is made when its output has arrived."""
    run(box, "import os\nif os.path.exists('/tmp/go'): os.remove('/tmp/go')")
    seen = []

    def on_stdout(message):
        seen.append(message.line)
        box.files.write("/tmp/go", "1")

    execution = run(box, "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('second')", on_stdout=on_stdout)
    assert "".join(seen) == "".join(execution.logs.stdout) == "first\nsecond\n"
    assert seen[0] == "first\n"


def test_stderr_and_order(box):
    execution = run(box, "import sys\nfor i in range(3):\n    print('o', i, flush=True)\n    print('e', i, file=sys.stderr, flush=True)")
    assert "".join(execution.logs.stdout) == "o 0\no 1\no 2\n"
    assert "".join(execution.logs.stderr) == "e 0\ne 1\ne 2\n"


def test_errors_have_their_traceback_and_the_next_cell_works(box):
    told = []
    execution = box.run_code("print('before')\ndef f():\n    return 1 / 0\nf()", on_error=told.append, **PATIENT)
    assert "".join(execution.logs.stdout) == "before\n"
    error = execution.error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)
    assert "ZeroDivisionError: division by zero" in plain and "return 1 / 0" in plain and "----> 4 f()" in plain
    assert [e.name for e in told] == ["ZeroDivisionError"] and execution.results == []
    assert box.run_code("a b", **PATIENT).error.name == "SyntaxError"
    assert box.run_code("raise KeyboardInterrupt('x')", **PATIENT).error.name == "KeyboardInterrupt"
    assert text(box, "2+2") == "4"
    assert box.run_code("", **PATIENT).error is None


def test_case_95_the_stream_is_ascii_whatever_is_printed(server, box):
    stream = Stream(server, box, "print('ü 漢 🎉' * 10)\n'é'")
    raw = b"".join(stream.lines())
    assert max(raw) < 0x80
    events = [json.loads(line) for line in raw.splitlines()]
    assert "".join(e["text"] for e in events if e["type"] == "stdout") == "ü 漢 🎉" * 10 + "\n"
    assert events[0]["type"] == "number_of_executions" and raw.splitlines()[-1] == b'{"type": "end_of_execution"}'
    for e in events:
        if e["type"] == "stdout":
            assert datetime.datetime.fromisoformat(e["timestamp"])
    assert "é" in [e.get("text") for e in events if e["type"] == "result"]
    assert not any(v is None for e in events for v in e.values())


def test_case_92_a_silent_cell_gets_keepalives(server, box):
    stream = Stream(server, box, "import time; time.sleep(11)\n'done'")
    kinds = [e["type"] for e in stream.events()]
    assert "keepalive" in kinds[:kinds.index("result")]


def test_a_long_output_arrives_whole(box):
    """Ten megabytes in lines that tell their place."""
    execution = run(box, "for i in range(100000): print(f'{i:07d}', 'x' * 92)")
    lines = "".join(execution.logs.stdout).splitlines()
    assert len(lines) == 100000
    assert all(line == f"{i:07d} " + "x" * 92 for i, line in enumerate(lines))


def test_a_result_of_a_megabyte(box):
    assert text(box, "'ab' * 500000") == "ab" * 500000


def test_magics_shell_and_await(box):
    assert out(box, "!echo from the shell").split() == ["from", "the", "shell"]
    assert out(box, "%cd /tmp\nimport os; print(os.getcwd())\n%cd /home/user").splitlines()[1] == "/tmp"
    assert out(box, "%%bash\necho cell magic") == "cell magic\n"
    assert text(box, "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))") == "[1, 2]"


# Variables


def test_variables_of_create_and_of_one_execution(box):
    look = "import os; [os.environ.get(k) for k in ('FROM_CREATE', 'ONLY_NOW', 'QUOTED')]"
    envs = {"FROM_CREATE": "changed", "ONLY_NOW": "1", "QUOTED": "a'b\"c\\n\nü"}
    assert run(box, look).results[0].json == ["yes", None, None]
    assert run(box, look, envs=envs).results[0].json == ["changed", "1", envs["QUOTED"]]
    assert run(box, look).results[0].json == ["yes", None, None]
    # Also when the cell fails, and for other languages.
    assert box.run_code("1/0", envs=envs, **PATIENT).error.name == "ZeroDivisionError"
    assert run(box, look).results[0].json == ["yes", None, None]
    assert out(box, "echo $FROM_CREATE.$ONLY_NOW", language="bash", envs={"ONLY_NOW": "2"}) == "yes.2\n"
    assert out(box, "echo $FROM_CREATE.$ONLY_NOW", language="bash") == "yes.\n"


def test_variables_do_not_move_the_lines_of_a_traceback(box):
    error = box.run_code("a = 1\nb = 2\nraise ValueError('here')", envs={"X": "1"}, **PATIENT).error
    assert "----> 3 raise ValueError('here')" in re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)


# Contexts


def test_contexts_are_apart_and_can_be_listed_restarted_and_removed(server, box):
    box.commands.run("mkdir -p /tmp/work")
    context = box.create_code_context(cwd="/tmp/work", request_timeout=300)
    assert (context.language, context.cwd) == ("python", "/tmp/work")
    run(box, "mine = 'default'")
    assert text(box, "import os; mine = 'other'; os.getcwd()", context=context) == "/tmp/work"
    assert (text(box, "mine"), text(box, "mine", context=context)) == ("default", "other")
    listed = {c.id: c for c in box.list_code_contexts()}
    assert listed[context.id].cwd == "/tmp/work" and "default" not in listed

    box.restart_code_context(context)
    assert context.id in {c.id for c in box.list_code_contexts()}
    again = box.run_code("mine", context=context, **PATIENT)
    assert again.error.name == "NameError"
    assert text(box, "import os; os.getcwd()", context=context) == "/tmp/work"
    assert text(box, "mine") == "default"

    box.remove_code_context(context)
    assert context.id not in {c.id for c in box.list_code_contexts()}
    status, _, body = interpreter(server, box, "POST", "/execute", {"code": "1", "context_id": context.id})
    assert (status, body.decode()) == (404, f"Context {context.id} not found")
    for method, target in (("DELETE", f"/contexts/{context.id}"), ("POST", f"/contexts/{context.id}/restart")):
        assert interpreter(server, box, method, target)[0] == 404


def test_what_a_request_may_not_say(server, box):
    both = interpreter(server, box, "POST", "/execute", {"code": "1", "context_id": "default", "language": "python"})
    assert (both[0], both[2].decode()) == (400, "Only one of context_id or language can be provided")
    assert 400 <= interpreter(server, box, "POST", "/execute", {"nothing": 1})[0] < 500
    assert 400 <= interpreter(server, box, "POST", "/execute", {"code": 1})[0] < 500
    assert interpreter(server, box, "POST", "/contexts", {"language": "cobol"})[0] == 500
    nulls = interpreter(server, box, "POST", "/execute", {"code": "1+1", "context_id": None, "language": None, "env_vars": None})
    assert nulls[0] == 200 and b'"2"' in nulls[2]


def test_contexts_work_at_the_same_time(box):
    """Each waits for the other's sign."""
    contexts = [box.create_code_context(request_timeout=300) for _ in range(2)]
    code = "import os, time\nopen('/tmp/sign{}', 'w').close()\nwhile not os.path.exists('/tmp/sign{}'): time.sleep(0.01)\n'met'"
    found = {}
    threads = [threading.Thread(target=lambda i=i, c=c: found.update({i: text(box, code.format(i, 1 - i), context=c)})) for i, c in enumerate(contexts)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for c in contexts:
        box.remove_code_context(c)
    assert found == {0: "met", 1: "met"}


def test_cells_of_one_context_follow_each_other(box):
    run(box, "import time; log = []")
    code = "for _ in range(5):\n    log.append({}); time.sleep(0.01)"
    threads = [threading.Thread(target=lambda i=i: run(box, code.format(i))) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    log = run(box, "log").results[0].json
    assert len(log) == 40 and all(len(set(log[i:i + 5])) == 1 for i in range(0, 40, 5))


# Languages


def test_bash(box):
    assert out(box, "x=5; echo $((x + 1))", language="bash") == "6\n"
    assert out(box, "echo $x; echo ü >&1", language="bash") == "5\nü\n"
    assert "".join(run(box, "echo err >&2", language="bash").logs.stderr) == "err\n"


def test_javascript_and_typescript_share_a_kernel(box):
    assert text(box, "const a = [1, 2, 3].map(x => x * 2); a.length", language="javascript") == "3"
    assert out(box, "console.log('ü', a[2])", language="js") == "ü 6\n"
    assert text(box, "const n: number = a[0] + 40; n", language="typescript") == "42"
    assert text(box, "await Promise.resolve(7)", language="ts") == "7"
    error = box.run_code("throw new TypeError('bad')", language="javascript", **PATIENT).error
    assert (error.name, error.value) == ("TypeError", "bad")


def test_r(box):
    assert "[1] 6" in "".join(run(box, "x <- c(1, 2, 3); print(sum(x))", language="r").logs.stdout)
    assert run(box, "mean(x)", language="R").results[0].text == "[1] 2"


def test_java_is_refused(server, box):
    status, _, body = interpreter(server, box, "POST", "/execute", {"code": "1", "language": "java"})
    assert status in (500, 501) and b"java" in body
    from e2b import SandboxException
    with pytest.raises(SandboxException):
        box.run_code("1", language="java", **PATIENT)


# The other clients


def test_case_96_a_guarded_sandbox_takes_cells_with_its_tokens(server):
    with sandbox(network={"allow_public_traffic": False}) as b:
        assert b.traffic_access_token
        assert text(b, "6*7") == "42"
        assert b.create_code_context(request_timeout=300).language == "python"
        assert interpreter(server, b, "GET", "/health")[0] in (401, 403)


@pytest.mark.parametrize("environment", ["venv", "clients/pypi-2.63"])
def test_pypi_clients(server, environment):
    """The pinned versions, synchronous and asynchronous."""
    python = ROOT / "build" / environment / "bin/python"
    r = subprocess.run([python, HERE / "matrix/cells.py"], env={**os.environ, **server.env()}, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-4000:]
    assert r.stdout.split() == ["sync", "async"]


def test_npm_client(server):
    at = HERE / "clients/npm-code-interpreter-2.8"
    r = subprocess.run(["node", "--test", "--test-force-exit", "--test-concurrency=1", at / "code_interpreter.test.mjs"], cwd=at, env={**os.environ, **server.env()},
                       capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr[-2000:]


def test_twenty_sandboxes_at_once(server):
    found = {}

    def one(i):
        b = create()
        try:
            found[i] = text(b, f"{i} * {i}"), run(b, "1").execution_count
        finally:
            b.kill()

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {i: (str(i * i), 2) for i in range(20)}
