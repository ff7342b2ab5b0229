"""The published clients that the matrix drives: one list for the test and for docs/compatibility.md."""

import pathlib
from dataclasses import dataclass

E2E = pathlib.Path(__file__).resolve().parents[1]
ROOT = E2E.parents[1]


@dataclass(frozen=True)
class Client:
    id: str
    package: str    # as the registry calls it
    version: str
    column: str     # head of its column in the page
    pinned: str     # the file that pins it and what it needs, from the repository's root
    kind: str       # which driver: js, sync, async
    suite: str      # which calls

    @property
    def environment(self):
        """Where it is installed: a directory with node_modules, or a virtual environment."""
        if self.kind == "js":
            return ROOT / pathlib.Path(self.pinned).parent
        at = pathlib.Path(self.pinned).parent.name
        return ROOT / "build" / ("venv" if at == "py" else f"clients/{at}")

    def command(self, calls):
        if self.kind == "js":
            code = f"import * as sdk from 'e2b'; import {{ drive }} from '{(E2E / 'matrix/driver.mjs').as_uri()}'; " \
                   f"await drive(sdk, '{self.version}', process.argv.slice(1))"
            return ["node", "--input-type=module", "-e", code, "--", *calls]
        return [self.environment / "bin/python", E2E / "matrix/driver.py", self.kind, self.version, *calls]


CLIENTS = [
    Client("npm-2.21", "npm `e2b`", "2.21.0", "npm 2.21", "tests/e2e/clients/npm-e2b-2.21/package-lock.json", "js", "sdk"),
    Client("npm-2.45", "npm `e2b`", "2.45.0", "npm 2.45", "tests/e2e/clients/npm-e2b-2.45/package-lock.json", "js", "sdk"),
    Client("npm-2.51", "npm `e2b`", "2.51.0", "npm 2.51", "tests/e2e/js/package-lock.json", "js", "sdk"),
    Client("pypi-2.45", "PyPI `e2b`", "2.45.0", "PyPI 2.45", "tests/e2e/py/requirements.txt", "sync", "sdk"),
    Client("pypi-2.45-async", "PyPI `e2b`, async", "2.45.0", "async", "tests/e2e/py/requirements.txt", "async", "sdk"),
    Client("pypi-2.63", "PyPI `e2b`", "2.63.0", "PyPI 2.63", "tests/e2e/clients/pypi-2.63/requirements.txt", "sync", "sdk"),
    Client("pypi-2.63-async", "PyPI `e2b`, async", "2.63.0", "async", "tests/e2e/clients/pypi-2.63/requirements.txt", "async", "sdk"),
]
