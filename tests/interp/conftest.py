"""A real kernel, started from the kernelspec as installed but with the launcher of this tree, and a client to it."""

import json
import os
import pathlib
import sys
import tempfile
import time

import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src/interp/python"
INSTALLED = "/usr/lib/cubicle/python"
PATIENCE = int(os.environ.get("PATIENCE", "300"))  # seconds: how long a loaded machine may take for one cell


class Answer:
    """What one cell sent."""

    def __init__(self):
        self.stdout = self.stderr = ""
        self.results, self.displays, self.errors = [], [], []
        self.status = self.count = None

    @property
    def data(self):
        """The representations of the cell's value."""
        assert len(self.results) == 1, vars(self)
        return self.results[0]

    @property
    def display(self):
        """The representations of the one thing displayed."""
        assert len(self.displays) == 1, vars(self)
        return self.displays[0]

    @property
    def chart(self):
        """The chart of what was displayed."""
        return self.display.get("e2b/chart")


class Kernel:
    """A running kernel in a home and directory of its own."""

    def __init__(self, home, env=None, launcher=None):
        spec = json.loads((SOURCE / "kernelspec/kernel.json").read_text())
        spec["argv"][0] = sys.executable
        argv = [str(launcher or a.replace(INSTALLED, str(SOURCE))) if a.endswith("launch.py") else a for a in spec["argv"]]
        self.home, self.manager = home, KernelManager()
        self.manager._kernel_spec = KernelSpec(argv=argv, display_name=spec["display_name"], language=spec["language"], interrupt_mode=spec["interrupt_mode"])
        self.log = open(home / ".kernel.log", "w+")
        clean = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "PYTHONPATH", "IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
        clean.update({"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(home.parent / "mpl"), **(env or {})})
        self.manager.start_kernel(env=clean, cwd=str(home), stdout=self.log, stderr=self.log)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def start(self, code, **options):
        """Begins a cell, returns its message id."""
        return self.client.execute(code, allow_stdin=False, stop_on_error=False, **options)

    def finish(self, request):
        """Waits for the end of a cell, returns its Answer."""
        answer = Answer()
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                setattr(answer, content["name"], getattr(answer, content["name"]) + content["text"])
            elif kind == "execute_result":
                answer.results.append(content["data"])
            elif kind == "display_data":
                answer.displays.append(content["data"])
            elif kind == "error":
                answer.errors.append(content)
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == request:
                break
        answer.status, answer.count = reply["content"]["status"], reply["content"].get("execution_count")
        return answer

    def run(self, code, fails=False):
        """Runs a cell to its end."""
        answer = self.finish(self.start(code))
        assert fails or (answer.status == "ok" and not answer.errors), vars(answer)
        return answer

    def wait_for_output(self, request, text):
        """Waits until a running cell has printed text."""
        seen = ""
        while text not in seen:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
                seen += message["content"]["text"]

    def close(self):
        """Ends it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.log.close()


@pytest.fixture(scope="session")
def home_root():
    """Where the kernels of this run live; matplotlib's font cache is shared there."""
    with tempfile.TemporaryDirectory(prefix="cubicle-kernel-") as path:
        yield pathlib.Path(path)


@pytest.fixture(scope="module")
def kernel(home_root, request):
    """One kernel for the tests of a file."""
    home = home_root / request.module.__name__
    home.mkdir()
    running = Kernel(home)
    yield running
    running.close()


@pytest.fixture
def own_kernel(home_root, request):
    """A function that starts further kernels, ended with the test."""
    started = []

    def start(name="own", **options):
        home = home_root / f"{request.node.name[:40]}-{name}".replace("/", "_")
        home.mkdir(exist_ok=True)
        started.append(Kernel(home, **options))
        return started[-1]

    yield start
    for running in started:
        running.close()
