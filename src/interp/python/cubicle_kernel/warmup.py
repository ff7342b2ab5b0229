"""What the first cell would pay for is paid before the kernel says that it is ready: modules imported at first use, code run for the first time."""

import linecache
import tempfile

from tornado.ioloop import IOLoop

CELL = "1+1"


async def _run(kernel):
    shell, silent = kernel.shell, True
    await kernel.do_execute(CELL, silent, False)
    shell.displayhook.compute_format_data(2)
    # What a cell does that is not silent, but for its messages.
    history = shell.history_manager
    history.store_inputs(shell.execution_count, CELL, CELL)
    shell.displayhook.quiet()


def _keep(shell):
    """Returns a function that makes everything that a cell changes as it is now."""
    history, display, compiler = shell.history_manager, shell.displayhook, shell.compile
    lists = [(l, l[:]) for l in (history.input_hist_parsed, history.input_hist_raw, history.db_input_cache)]
    names = [(d, dict(d)) for d in (shell.user_ns, shell.user_ns_hidden, compiler._filename_map, linecache.cache)]
    fields = [(o, n, getattr(o, n)) for o, ns in ((history, ("_i00", "_i", "_ii", "_iii")), (display, ("_", "__", "___")),
              (shell, ("execution_count", "last_execution_result", "last_execution_succeeded")), (tempfile, ("tempdir",))) for n in ns]

    def restore():
        for now, before in lists:
            now[:] = before
        for now, before in names:
            now.clear()
            now.update(before)
        for owner, name, value in fields:
            setattr(owner, name, value)

    return restore


def warm_up(kernel):
    """Runs a cell that leaves nothing behind: no variable, no history, no count, no message. What fails is told in the user's first cell, if it fails there too.

    Returns whether it went through.
    """
    try:
        restore = _keep(kernel.shell)
    except AttributeError:
        # An unknown version of IPython: nothing is touched that could not be put back.
        return False
    try:
        IOLoop.current().run_sync(lambda: _run(kernel))
        return True
    except Exception:
        return False
    finally:
        restore()
