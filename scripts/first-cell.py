"""The first code cell, through the published code interpreter client for Python."""

import time

from e2b_code_interpreter import Sandbox

start = time.monotonic()
sandbox = Sandbox.create(timeout=120, request_timeout=120)
try:
    execution = sandbox.run_code("import sys, math\nf'python {sys.version.split()[0]} says 20! = {math.factorial(20)}'", timeout=120, request_timeout=120)
finally:
    sandbox.kill()
if execution.error:
    raise SystemExit(execution.error.traceback)
print(execution.text)
print(f"(a code cell, {(time.monotonic() - start) * 1000:.0f} ms with its sandbox, by the client e2b-code-interpreter)")
