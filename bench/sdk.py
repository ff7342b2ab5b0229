"""Times Sandbox.create and run_code("1+1") of PyPI e2b-code-interpreter: a line "CONCURRENCY ROUNDS" on the standard input, a JSON line on the standard output."""

import json
import sys
import threading
import time

from e2b_code_interpreter import Sandbox


def life(found):
    box = None
    try:
        start = time.monotonic()
        box = Sandbox.create()
        text = box.run_code("1+1").text
        assert text == "2", f"result {text}"
        found["samples_ms"].append((time.monotonic() - start) * 1000)
    except Exception as e:
        found["failed"] += 1
        found["failure"] = str(e)[:200]
    if box is not None:
        box.kill()


def caller(found, rounds):
    for _ in range(rounds):
        life(found)


for line in sys.stdin:
    concurrency, rounds = map(int, line.split())
    found = {"samples_ms": [], "failed": 0}
    callers = [threading.Thread(target=caller, args=(found, rounds)) for _ in range(concurrency)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    print(json.dumps(found), flush=True)
