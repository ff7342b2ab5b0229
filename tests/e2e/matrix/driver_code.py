"""Drives PyPI e2b-code-interpreter through the calls of calls.py: driver_code.py sync|async CALL..."""

import re
import sys

import e2b
import e2b_code_interpreter as ci
from driving import Calls, a, fails

ASYNC = sys.argv[1] == "async"
Sandbox = ci.AsyncSandbox if ASYNC else ci.Sandbox

calls = Calls(lambda: Sandbox.create(timeout=900))
call, alone = calls.on_shared, calls.alone


@call("run code")
async def _(box):
    r = await a(box.run_code("print('out'); x = 20 + 1; x * 2"))
    assert r.text == "42" and r.logs.stdout == ["out\n"] and r.error is None and r.execution_count == 1
    assert (await a(box.run_code("x"))).text == "21"


@call("run code with callbacks")
async def _(box):
    out, err, results, errors = [], [], [], []
    await a(box.run_code("import sys\nprint('ü日')\nprint('e', file=sys.stderr)\n1",
                         on_stdout=lambda m: out.append(m.line), on_stderr=lambda m: err.append(m.line), on_result=results.append, on_error=errors.append))
    assert "".join(out) == "ü日\n" and "".join(err) == "e\n" and [r.text for r in results] == ["1"] and errors == []


@call("run code that fails")
async def _(box):
    r = await a(box.run_code("def f():\n  return 1 / 0\nf()"))
    assert r.error.name == "ZeroDivisionError" and r.error.value == "division by zero" and "return 1 / 0" in re.sub(r"\x1b\[[0-9;]*m", "", r.error.traceback)


@call("results of many kinds")
async def _(box):
    r = await a(box.run_code("from IPython.display import HTML, Markdown, SVG, JSON, Latex, Javascript, display\n"
                             "display(HTML('<b>h</b>')); display(Markdown('# m')); display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))\n"
                             "display(JSON({'a': 1})); display(Latex('$x$')); display(Javascript('1'))"))
    kinds = [next(iter(k for k in x.formats() if k != "text")) for x in r.results]
    assert kinds == ["html", "markdown", "svg", "json", "latex", "javascript"], kinds


@call("a chart")
async def _(box):
    r = await a(box.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='l')\nplt.title('t')\nplt.xlabel('x')\nplt.show()"))
    assert r.results[0].png.startswith("iVBOR")
    assert r.results[0].chart.title == "t" and r.results[0].chart.elements[0].points == [(1, 4), (2, 5), (3, 6)]


@call("a data frame")
async def _(box):
    r = await a(box.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"))
    assert r.results[0].data == {"a": [1, 2], "b": ["x", "y"]} and "<table" in r.results[0].html


@call("environment of one run")
async def _(box):
    assert (await a(box.run_code("import os; os.environ['Q']", envs={"Q": "1"}))).text == "1"
    assert (await a(box.run_code("os.environ.get('Q', 'none')"))).text == "none"


@call("contexts")
async def _(box):
    context = await a(box.create_code_context(cwd="/tmp", language="python"))
    assert (context.language, context.cwd) == ("python", "/tmp")
    await a(box.run_code("y = 5", context=context))
    assert (await a(box.run_code("import os; os.getcwd(), y", context=context))).text == "('/tmp', 5)"
    assert (await a(box.run_code("y"))).error.name == "NameError"
    assert context.id in [c.id for c in await a(box.list_code_contexts())]
    await a(box.restart_code_context(context))
    assert (await a(box.run_code("y", context=context))).error.name == "NameError"
    await a(box.remove_code_context(context))
    assert context.id not in [c.id for c in await a(box.list_code_contexts())]


@call("javascript and bash")
async def _(box):
    r = await a(box.run_code("console.log('js'); [1, 2].length", language="js"))
    assert "".join(r.logs.stdout) == "js\n" and r.text == "2"
    assert "".join((await a(box.run_code("echo $((40+2))", language="bash"))).logs.stdout) == "42\n"


@call("code that takes too long")
async def _(box):
    await fails(lambda: box.run_code("import time; time.sleep(300)", timeout=2), e2b.TimeoutException)
    assert (await a(box.run_code("'goes on'"))).text == "goes on"


@call("no such context")
async def _(box):
    class Gone:
        id = "no-such-context"
    await fails(lambda: box.run_code("1", context=Gone()), e2b.NotFoundException)


calls.drive(sys.argv[2:])
