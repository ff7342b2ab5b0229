"""The published JavaScript client: tests/e2e/js, run by Node's own test runner."""

import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent / "js"


def test_npm_e2b(server):
    r = subprocess.run(["node", "--test", "--test-concurrency=1", *sorted(map(str, HERE.glob("*.test.mjs")))], cwd=HERE,
                       env={**os.environ, **server.env()}, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr[-2000:]
    assert "# pass" in r.stdout or "ℹ pass" in r.stdout
