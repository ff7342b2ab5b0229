"""The published clients that the matrix drives: one list for the test and for docs/compatibility.md."""

import pathlib
from dataclasses import dataclass

from .calls import names

E2E = pathlib.Path(__file__).resolve().parents[1]
MATRIX = E2E / "matrix"
ROOT = E2E.parents[1]
JS = ("import * as sdk from '{package}'; import {{ drive }} from '{matrix}/driver.mjs'; import {{ calls }} from '{matrix}/{driver}'; "
      "await drive(calls(sdk, '{version}'), process.argv.slice(1))")


@dataclass(frozen=True)
class Client:
    id: str
    package: str    # as the registry calls it
    version: str
    column: str     # head of its column in the page
    pinned: str     # the file that pins it and what it needs, from the repository's root
    suite: str      # which calls
    driver: tuple   # what drives it: file, arguments before the calls
    form: str = ""

    @property
    def environment(self):
        """Where it is installed: a directory with node_modules, or a virtual environment."""
        at = pathlib.Path(self.pinned).parent
        if self.pinned.endswith("lock.json"):
            return ROOT / at
        return ROOT / "build" / ("venv" if at.name == "py" else f"clients/{at.name}")

    def command(self):
        """(words, working directory)."""
        driver, *arguments = self.driver
        if driver.endswith(".mjs"):
            code = JS.format(package=self.package, matrix=MATRIX.as_uri(), driver=driver, version=self.version)
            return ["node", "--input-type=module", "-e", code, "--", *names(self.suite)], self.environment
        python = ROOT / "build/venv" if self.pinned.endswith("lock.json") else self.environment
        arguments = [w.format(environment=self.environment, version=self.version) for w in arguments]
        return [python / "bin/python", MATRIX / driver, *arguments, *names(self.suite)], None


def npm(id, package, version, column, pinned, suite="sdk", driver=("driver.mjs",)):
    return Client(id, package, version, column, f"tests/e2e/{pinned}/package-lock.json", suite, driver)


def pypi(id, package, version, column, pinned, suite="sdk", driver=("driver.py", "sync", "{version}"), form=""):
    return Client(id, package, version, column, f"tests/e2e/{pinned}/requirements.txt", suite, driver, form)


NEWEST = "clients/pypi-2.63"
CLIENTS = [
    npm("npm-2.21", "e2b", "2.21.0", "npm 2.21", "clients/npm-e2b-2.21"),
    npm("npm-2.45", "e2b", "2.45.0", "npm 2.45", "clients/npm-e2b-2.45"),
    npm("npm-2.51", "e2b", "2.51.0", "npm 2.51", "js"),
    pypi("pypi-2.45", "e2b", "2.45.0", "PyPI 2.45", "py"),
    pypi("pypi-2.45-async", "e2b", "2.45.0", "async", "py", driver=("driver.py", "async", "{version}"), form="async"),
    pypi("pypi-2.63", "e2b", "2.63.0", "PyPI 2.63", NEWEST),
    pypi("pypi-2.63-async", "e2b", "2.63.0", "async", NEWEST, driver=("driver.py", "async", "{version}"), form="async"),
    npm("npm-code", "@e2b/code-interpreter", "2.8.0", "npm 2.8", "clients/npm-code-interpreter-2.8", "code", ("driver_code.mjs",)),
    pypi("pypi-code", "e2b-code-interpreter", "2.11.5", "PyPI 2.11", NEWEST, "code", ("driver_code.py", "sync")),
    pypi("pypi-code-async", "e2b-code-interpreter", "2.11.5", "async", NEWEST, "code", ("driver_code.py", "async"), "async"),
    npm("cli", "@e2b/cli", "2.19.0", "npm 2.19", "clients/npm-cli-2.19", "cli",
        ("driver_cli.py", "{environment}/node_modules/@e2b/cli/dist/index.js")),
    pypi("cube", "cubesandbox", "0.7.3", "PyPI 0.7.3", NEWEST, "cube", ("driver_cube.py",)),
]
