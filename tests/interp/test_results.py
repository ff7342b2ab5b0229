"""Everything else a cell can give: text, html, images, errors, magics, interrupts; and objects that misbehave."""

import base64
import os
import pathlib
import shutil

import pytest


def test_text_and_count(kernel):
    first = kernel.run("1")
    assert first.data == {"text/plain": "1"} and kernel.run("'a'").data == {"text/plain": "'a'"}
    assert kernel.run("2").count == first.count + 2
    got = kernel.run("print('out'); import sys; print('err', file=sys.stderr)")
    assert (got.stdout, got.stderr, got.results) == ("out\n", "err\n", [])


def test_nothing_is_imported_before_the_user_does(own_kernel):
    fresh = own_kernel()
    names = "numpy pandas matplotlib PIL debugpy jedi cubicle_kernel.frames cubicle_kernel.charts"
    got = fresh.run(f"import sys; [n for n in {names.split()!r} if n in sys.modules]")
    assert got.data["text/plain"] == "[]" and got.count == 1
    assert "debug" not in (fresh.home / ".kernel.log").read_text()


@pytest.mark.parametrize("code, mime, value", [
    ("HTML('<b>x</b>')", "text/html", "<b>x</b>"),
    ("Markdown('# x')", "text/markdown", "# x"),
    ("Latex('$x$')", "text/latex", "$x$"),
    ("Javascript('f()')", "application/javascript", "f()"),
    ("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", "image/svg+xml", '<svg xmlns="http://www.w3.org/2000/svg"/>'),
    ("Image(data=b'\\x89PNG\\r\\n\\x1a\\n', format='png')", "image/png", base64.encodebytes(b"\x89PNG\r\n\x1a\n").decode()),
    ("Image(data=b'\\xff\\xd8\\xff', format='jpeg')", "image/jpeg", base64.encodebytes(b"\xff\xd8\xff").decode()),
])
def test_display_classes(kernel, code, mime, value):
    got = kernel.run(f"from IPython.display import *\ndisplay({code})\n{code}")
    assert got.data[mime].strip() == got.display[mime].strip() == value.strip()
    assert got.data["text/plain"]


def test_raw_display_keeps_unknown_kinds(kernel):
    got = kernel.run("display({'text/latex': 'x', 'application/x-own': {'a': [1]}}, raw=True)").display
    assert got == {"text/latex": "x", "application/x-own": {"a": [1]}}


def test_own_methods(kernel):
    got = kernel.run("""
class A:
    def _repr_html_(self): return "<i>"
    def _repr_markdown_(self): return "*"
    def _repr_latex_(self): return "$a$"
    def __repr__(self): return "A"
A()""").data
    assert got == {"text/plain": "A", "text/html": "<i>", "text/markdown": "*", "text/latex": "$a$"}
    got = kernel.run("class B:\n    def _repr_mimebundle_(self, **k): return {'text/html': 'h', 'x/y': 1}\nB()").data
    assert got["text/html"] == "h" and got["x/y"] == 1 and got["text/plain"].startswith("<__main__.B")


@pytest.mark.parametrize("method", ["_repr_html_", "_repr_png_", "_repr_json_", "_repr_mimebundle_", "_ipython_display_", "_repr_latex_"])
def test_a_representation_that_raises_costs_only_itself(kernel, method):
    got = kernel.run(f"class A:\n    def {method}(self, **k): raise ValueError('boo')\n    def __repr__(self): return 'A'\nA()")
    assert got.data == {"text/plain": "A"} and "ValueError" in got.stderr and not got.errors


@pytest.mark.parametrize("method", ["_repr_html_", "_repr_json_", "_repr_png_"])
def test_a_representation_of_the_wrong_type_costs_only_itself(kernel, method):
    got = kernel.run(f"class A:\n    def {method}(self): return object()\n    def __repr__(self): return 'A'\nA()")
    assert got.data["text/plain"] == "A" and set(got.data) <= {"text/plain", method.strip("_").replace("repr_", "")}


def test_a_repr_that_raises_is_named_by_its_type(kernel):
    got = kernel.run("class A:\n    def __repr__(self): raise ValueError('boo')\nA()")
    assert got.data["text/plain"].startswith("<__main__.A object at 0x") and "ValueError" in got.stderr
    got = kernel.run("class A:\n    def __repr__(self): return 1\nA()")
    assert got.data["text/plain"].startswith("<__main__.A object at 0x")
    got = kernel.run("class A:\n    def __getattr__(self, name): raise RuntimeError(name)\nA()")
    assert got.data["text/plain"].startswith("<__main__.A")
    got = kernel.run("class A:\n    def __repr__(self): return repr(self)\nA()")
    assert got.data["text/plain"].startswith("<__main__.A")
    got = kernel.run("class M(type):\n    def __repr__(cls): raise ValueError\n    __name__ = 3\nclass A(metaclass=M): pass\nA")
    assert got.data["text/plain"]


def test_an_exit_in_a_repr_leaves_the_kernel_alive(kernel):
    kernel.run("class A:\n    def __repr__(self): raise SystemExit\nA()", fails=True)
    assert kernel.run("1 + 1").data["text/plain"] == "2"


def test_huge_texts(kernel):
    got = kernel.run("'x' * 20_000_000").data["text/plain"]
    assert got.startswith("'xxx") and got.endswith("… (11611394 more characters)")
    got = kernel.run("list(range(10_000_000))").data
    assert got["text/plain"].endswith("...]") and "application/json" not in got
    got = kernel.run("class A:\n    def _repr_html_(self): return 'h' * 60_000_000\nA()")
    assert "text/html" not in got.data and "text/html of this result is left out: 60000000 characters" in got.stderr
    assert kernel.run("1").data["text/plain"] == "1"


@pytest.mark.parametrize("code, text", [
    (r"'\ud83d\ude00'", "'\\ud83d\\ude00'"),
    (r"print('\ud83d\ude00', end='')", "😀"),
    (r"print('a\udcffb', end='')", "a�b"),
    (r"print('a\0b', end='')", "a\0b"),
    (r"print('é日本😀', end='')", "é日本😀"),
])
def test_characters_that_utf8_does_not_have(kernel, code, text):
    got = kernel.run(code)
    assert (got.stdout or got.data["text/plain"]) == text


def test_messages_that_json_does_not_have(kernel):
    got = kernel.run("display({'application/json': {'a': float('nan')}, 'text/plain': 'x'}, raw=True)")
    assert got.display["text/plain"] == "x"
    kernel.run("display({'application/json': {1, 2}, 'text/plain': 'x'}, raw=True)", fails=True)
    assert kernel.run("1").data["text/plain"] == "1"


def test_kernel_survives_patched_modules(own_kernel):
    fresh = own_kernel()
    fresh.run("""
import json, base64, math, datetime, io
json.dumps = json.loads = json.JSONEncoder = json.JSONDecoder = None
base64.b64encode = math.isfinite = io.BytesIO = None
import sys
for name in ("json", "math", "datetime", "cubicle_kernel", "cubicle_kernel.plain", "cubicle_kernel.formatters"): sys.modules.pop(name, None)
del json""")
    got = fresh.run("[1, {'a': 2}]")
    assert got.data == {"text/plain": "[1, {'a': 2}]", "application/json": [1, {"a": 2}]}


def test_user_files_named_like_modules_change_nothing(own_kernel, home_root):
    home = home_root / "test_user_files_named_like_modules_chang-own"
    home.mkdir()
    for name in ("charts", "plain", "frames", "limits", "formatters", "shell", "imports", "app", "launch", "uuid", "dataclasses", "decimal", "base64", "json", "cubicle_kernel"):
        (home / f"{name}.py").write_text("raise RuntimeError('user file')\n")
    fresh = own_kernel()
    assert fresh.home == home
    assert fresh.run("[1]").data["application/json"] == [1]
    (home / "mine.py").write_text("value = 7\n")
    assert fresh.run("import mine; mine.value").data["text/plain"] == "7"
    assert "user file" in fresh.run("import charts", fails=True).errors[0]["evalue"]


def test_broken_additions_leave_plain_ipykernel(own_kernel, tmp_path):
    from conftest import SOURCE

    (tmp_path / "launch.py").write_text((SOURCE / "launch.py").read_text())
    (tmp_path / "cubicle_kernel").mkdir()
    (tmp_path / "cubicle_kernel/__init__.py").write_text("raise RuntimeError('unknown version')\n")
    fresh = own_kernel(launcher=tmp_path / "launch.py")
    assert fresh.run("[1]").data == {"text/plain": "[1]"}
    assert "unknown version" in (fresh.home / ".kernel.log").read_text()


def test_images(kernel):
    head = "from PIL import Image\nimport pathlib, io\nim = Image.new('RGB', (3, 2), 'red')\n"
    assert kernel.run(head + "im").data["image/png"].startswith("iVBORw0KGgo")
    assert kernel.run(head + "im.show()").display["image/png"].startswith("iVBORw0KGgo")
    for save in ("im.save('a.png')", "im.save(pathlib.Path('a.jpg'), quality=3)", "im.convert('CMYK').save('c.jpg')", "im.convert('P').save(fp='b.gif')"):
        shown = kernel.run(head + save).display
        assert shown["image/png"].startswith("iVBORw0KGgo") and shown["text/plain"].startswith("<PIL."), save
    assert (kernel.home / "a.png").read_bytes().startswith(b"\x89PNG")
    assert not kernel.run(head + "im.save(io.BytesIO(), 'png')").displays
    got = kernel.run(head + "im.save('nowhere/a.png')", fails=True)
    assert got.errors[0]["ename"] == "FileNotFoundError" and not got.displays
    got = kernel.run(head + "[im.save(f'{k}.png') for k in range(30)]; None")
    assert len(got.displays) == 20 and got.stderr == "more saved images of this cell are not displayed\n"
    assert len(kernel.run(head + "im.save('a.png')").displays) == 1
    assert not kernel.run(head + "Image.new('L', (5000, 5000)).save('big.png')").displays


def test_saved_figures_are_displayed_once(kernel):
    got = kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('f.png')")
    assert got.display["e2b/chart"]["type"] == "line" and (kernel.home / "f.png").exists()


def test_errors(kernel):
    got = kernel.run("def f(): return 1 / 0\nf()", fails=True)
    error = got.errors[0]
    assert (got.status, error["ename"], error["evalue"]) == ("error", "ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in "\n".join(error["traceback"]) and len(error["traceback"]) > 2
    assert kernel.run("x = ", fails=True).errors[0]["ename"] == "SyntaxError"
    assert kernel.run("raise SystemExit(3)", fails=True).errors[0]["ename"] == "SystemExit"
    assert kernel.run("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", fails=True).errors
    assert kernel.run("1").data["text/plain"] == "1"


def test_input_is_a_clean_error(kernel):
    for code in ("input('name? ')", "__import__('getpass').getpass()"):
        got = kernel.run(code, fails=True)
        assert got.errors[0]["ename"] == "StdinNotImplementedError"


def test_await_magics_and_shell(kernel):
    assert kernel.run("import asyncio\nawait asyncio.sleep(0.01)\n'done'").data["text/plain"] == "'done'"
    (kernel.home / "sub").mkdir()
    assert kernel.run("%cd sub").stdout.strip().endswith("/sub")
    assert kernel.run("import os; os.getcwd()").data["text/plain"].endswith("/sub'")
    kernel.run("%cd ..")
    assert kernel.run("!echo hello").stdout.strip() == "hello"
    assert kernel.run("%%bash\necho from $((1 + 1))").stdout == "from 2\n"
    assert "UsageError" in (lambda a: a.stderr + str(a.errors))(kernel.run("%no_such_magic", fails=True))
    assert kernel.run("len('abc') # %timeit").data["text/plain"] == "3"


def test_directory_and_environment(own_kernel):
    fresh = own_kernel(env={"MY_VALUE": "é=1"})
    assert fresh.run("import os; [os.getcwd(), os.environ['MY_VALUE'], os.environ['HOME']]").data["application/json"] == [str(fresh.home), "é=1", str(fresh.home)]
    assert fresh.run("!printenv MY_VALUE").stdout.strip() == "é=1"
    assert fresh.run("import sys; [p for p in sys.path if 'cubicle' in p and p != '']").data["text/plain"] in ("[]", f"['{fresh.home}']")


def test_interrupt(kernel):
    for code in ("import time\nprint('ready', flush=True)\ntime.sleep(1000)", "print('ready', flush=True)\nwhile True: pass",
                 "import asyncio\nprint('ready', flush=True)\nawait asyncio.sleep(1000)",
                 "await asyncio.sleep(0)\nprint('ready', flush=True)\ntime.sleep(1000)",
                 "async def f():\n    print('ready', flush=True)\n    while True: await asyncio.sleep(0)\nawait asyncio.gather(f())"):
        request = kernel.start(code)
        kernel.wait_for_output(request, "ready")
        kernel.manager.interrupt_kernel()
        got = kernel.finish(request)
        assert got.errors[0]["ename"] in ("KeyboardInterrupt", "CancelledError"), vars(got)
        assert kernel.run("'alive'").data["text/plain"] == "'alive'"


def test_home_that_cannot_be_written(own_kernel):
    fresh = own_kernel(env={"IPYTHONDIR": "/proc/nowhere", "HOME": "/proc/nowhere"})
    directory = fresh.run("import os; [os.environ['IPYTHONDIR']]").data["application/json"][0]
    assert pathlib.Path(directory).name.startswith("ipython-")
    shutil.rmtree(directory)  # it is killed and cleans nothing up


def test_profile_of_the_user_still_counts(own_kernel, home_root):
    home = home_root / "test_profile_of_the_user_still_counts-own"
    (home / ".ipython/profile_default/startup").mkdir(parents=True)
    (home / ".ipython/profile_default/ipython_kernel_config.py").write_text("c.InteractiveShell.ast_node_interactivity = 'all'\n")
    (home / ".ipython/profile_default/startup/00.py").write_text("mine = 5\n")
    fresh = own_kernel()
    got = fresh.run("mine\n2")
    assert [r["text/plain"] for r in got.results] == ["5", "2"] and got.count == 1
    assert not list(pathlib.Path(fresh.home).rglob("history.sqlite"))


def test_forked_children_do_not_disturb(kernel):
    got = kernel.run("import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as p: r = p.map(abs, [-1, -2])\nr")
    assert got.data["application/json"] == [1, 2]
    assert os.path.isdir(kernel.home)


def test_an_error_is_told_while_another_thread_formats(kernel):
    got = kernel.run("""
import threading, time
going = threading.Event()
class Slow:
    def _repr_html_(self):
        going.set(); time.sleep(1)
threading.Thread(target=display, args=(Slow(),)).start()
going.wait()
1 / 0""", fails=True)
    assert got.errors and got.errors[0]["ename"] == "ZeroDivisionError"


def test_mathematics(kernel):
    pytest.importorskip("sympy")
    got = kernel.run("import sympy; sympy.Symbol('x') ** 2").data
    assert (got["text/plain"], got["text/latex"]) == ("x**2", "$\\displaystyle x^{2}$")
