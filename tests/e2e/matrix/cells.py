"""A round of cells by whichever version of the Python client this interpreter has: sync, then async. Prints what it finished."""

import asyncio

from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from driving import leave

TEMPLATE = "code-interpreter-v1"
PATIENT = {"timeout": 300, "request_timeout": 300}
FAIL = "def f():\n    raise ValueError('ü')\nf()"


def check(execution, text=None, stdout="", error=None, count=None):
    assert execution.text == text, execution
    assert "".join(execution.logs.stdout) == stdout, execution
    assert (execution.error.name if execution.error else None) == error, execution
    assert count in (None, execution.execution_count), execution


def sync():
    box = Sandbox.create(TEMPLATE, timeout=900, envs={"A": "1"}, request_timeout=300)
    try:
        check(box.run_code("1+1", **PATIENT), "2", count=1)
        check(box.run_code("import os; print(os.environ['A'], os.environ['B'])", envs={"B": "ü"}, **PATIENT), stdout="1 ü\n", count=2)
        check(box.run_code(FAIL, **PATIENT), error="ValueError")
        lines, results = [], []
        check(box.run_code("print('out')\n'res'", on_stdout=lambda m: lines.append(m.line), on_result=lambda r: results.append(r.text), **PATIENT), "res", "out\n")
        assert ("".join(lines), results) == ("out\n", ["res"])
        try:
            box.run_code("kept = 5\nwhile True: pass", timeout=1.5, request_timeout=300)
            raise AssertionError("no timeout")
        except TimeoutException:
            pass
        check(box.run_code("kept", **PATIENT), "5")
        context = box.create_code_context(cwd="/tmp", request_timeout=300)
        check(box.run_code("import os; os.getcwd()", context=context, **PATIENT), "/tmp", count=1)
        box.restart_code_context(context)
        assert context.id in [c.id for c in box.list_code_contexts()]
        box.remove_code_context(context)
        try:
            box.run_code("1", context=context, **PATIENT)
            raise AssertionError("no error")
        except NotFoundException:
            pass
    finally:
        box.kill()


async def asynchronous():
    box = await AsyncSandbox.create(TEMPLATE, timeout=900, envs={"A": "1"}, request_timeout=300)
    try:
        check(await box.run_code("1+1", **PATIENT), "2", count=1)
        check(await box.run_code(FAIL, **PATIENT), error="ValueError")
        lines = []

        async def on_stdout(message):
            lines.append(message.line)

        check(await box.run_code("print('out')\n'res'", on_stdout=on_stdout, **PATIENT), "res", "out\n")
        assert "".join(lines) == "out\n"
        try:
            await box.run_code("kept = 5\nwhile True: pass", timeout=1.5, request_timeout=300)
            raise AssertionError("no timeout")
        except TimeoutException:
            pass
        check(await box.run_code("kept", **PATIENT), "5")
        # A task that is given up leaves its kernel free.
        task = asyncio.create_task(box.run_code("while True: pass", **PATIENT))
        await asyncio.sleep(1)
        task.cancel()
        check(await box.run_code("kept + 1", **PATIENT), "6")
        contexts = [await box.create_code_context(request_timeout=300) for _ in range(2)]
        both = await asyncio.gather(*(box.run_code("n = %d\nn" % i, context=c, **PATIENT) for i, c in enumerate(contexts)))
        assert [e.text for e in both] == ["0", "1"]
        for c in contexts:
            await box.remove_code_context(c)
    finally:
        await box.kill()


sync()
print("sync", flush=True)
asyncio.run(asynchronous())
print("async", flush=True)
leave()
