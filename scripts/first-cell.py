"""The first code cell, through the published code interpreter client for Python."""

import json
import os
import time
import urllib.request

from e2b_code_interpreter import Sandbox


def wait_until_one_is_ready(seconds):
    """A server that has just started is still starting the sandbox that it keeps ready: the first cell is to be what later ones are. Where none comes, the create starts one itself."""
    url = os.environ.get("E2B_API_URL") or "https://api." + os.environ["E2B_DOMAIN"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        request = urllib.request.Request(url + "/pools", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
        with urllib.request.urlopen(request, timeout=10) as answer:
            pool = next((p for p in json.load(answer) if p.get("alias") == "code-interpreter-v1"), None)
        if not pool or not pool["size"] or pool["ready"] or pool["blocked"]:
            return
        time.sleep(0.1)


wait_until_one_is_ready(30)
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
