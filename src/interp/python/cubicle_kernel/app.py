"""The kernel application: ipykernel's, with our shell, message encoding and import hooks."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import tempfile
import threading

from . import lean

with lean.imports():
    from ipykernel.ipkernel import IPythonKernel
    from ipykernel.kernelapp import IPKernelApp

from IPython.paths import get_ipython_dir
from traitlets import Any, Float, Type, default
from traitlets.config import Config

from . import imports, pictures
from .shell import Shell
from .warmup import warm_up


def _mark_boxes(module):
    from .charts.box import mark

    mark(module)


def _in_cell(frame):
    """True below the shell's run_code(), which turns whatever is raised into the cell's error; elsewhere KeyboardInterrupt would end the kernel."""
    while frame is not None and frame.f_code is not Shell.run_code.__code__:
        frame = frame.f_back
    return frame is not None


class _NoThread:
    """Stands where ipykernel has its thread for the shell channel: that one only passes each message on to the main thread, and each answer back."""

    parent_thread = threading.main_thread()

    def __bool__(self):
        return False


class Kernel(IPythonKernel):
    """ipykernel's kernel with our shell, and cells with `await` that can be interrupted."""

    shell_class = Type(Shell)
    # ipykernel sleeps before each reply, for clients that take it for the end. Ours waits for the message that says idle, and that one is behind all output.
    _execute_sleep = Float(0).tag(config=True)

    @property
    def _supports_kernel_subshells(self):
        return False

    def start(self):
        """As the base class, without its word about the debugger that is not there."""
        level, self.log.level = self.log.level, max(self.log.level, logging.ERROR)
        super().start()
        self.log.level = level
        # launch.py turned it off. What is here now stays: no collection looks at it again.
        gc.freeze()
        gc.enable()

    @contextlib.contextmanager
    def _cancel_on_sigint(self, future):
        """Interrupts a cell that awaits: KeyboardInterrupt where its own code runs, else its cancellation.

        ipykernel asks its loop to cancel, which does not wake a loop that waits, and never reaches code that does not await.
        """
        loop = asyncio.get_running_loop()

        def interrupt(signum, frame):
            if asyncio.current_task(loop) is future and _in_cell(frame):
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(future.cancel)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class KernelApp(IPKernelApp):
    """ipykernel's application; what is set here gives way to the user's own profile."""

    kernel_class = Type(Kernel, klass=IPythonKernel).tag(config=True)
    # A name in the base class, which is looked up at once, and all of jupyter_client with it.
    blocking_class = Any()

    @default("blocking_class")
    def _blocking_class(self):
        from jupyter_client import BlockingKernelClient

        return BlockingKernelClient

    def initialize(self, argv=None):
        """As the base class, also where no directory can be made in the home directory (a full disk, say)."""
        try:
            get_ipython_dir()
        except OSError:
            shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="ipython-", dir=shared)
        super().initialize(argv)

    def load_config_file(self, suppress_errors=True):
        """Puts our settings under those of the profile's files."""
        config = Config()
        config.Session.packer = "cubicle_kernel.packing.pack"
        config.Session.unpacker = "cubicle_kernel.packing.unpack"
        # The history of a sandbox's kernels is read by nobody: no file, no lock between kernels, nothing to fail on a full disk.
        config.HistoryManager.hist_file = ":memory:"
        config.KernelApp.outstream_class = "cubicle_kernel.streams.Stream"
        self.update_config(config)
        super().load_config_file(suppress_errors)

    def init_control(self, context):
        """As the base class, without a thread between the shell channel and the main thread."""
        super().init_control(context)
        thread = getattr(self, "shell_channel_thread", None)
        if thread is not None:
            thread.io_loop.close(all_fds=True)
            self.shell_channel_thread = _NoThread()

    def init_shell(self):
        """Also warms up, before anything of the user's own profile runs, and waits for the libraries that we add something to."""
        super().init_shell()
        if self.shell:
            warm_up(self.kernel)
            pictures.arm(self.shell)
            imports.when_imported("matplotlib.axes._axes", _mark_boxes)
            imports.install()
