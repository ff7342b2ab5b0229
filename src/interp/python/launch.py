"""Starts the Python kernel of code-interpreter templates: ipykernel with what cubicle_kernel adds.

A broken addition must not cost the user the kernel: whatever happens while it loads (a package upgraded to something it does not
know, say), plain ipykernel starts instead and the reason is on stderr.
"""

import gc
import os
import sys
import traceback

# The directory of this file is where cubicle_kernel is found, and nothing else may be found there by user code.
HERE = os.path.dirname(os.path.realpath(__file__))
REPLACED = ("cubicle_kernel", "dateutil", "debugpy", "ipykernel", "jedi", "jupyter_client")


def load():
    """Returns the application class: ours, or ipykernel's when ours cannot be loaded."""
    sys.path[:] = [p for p in sys.path if p and os.path.realpath(p) != HERE]
    sys.path.insert(0, HERE)
    try:
        from cubicle_kernel.app import KernelApp
    except Exception:
        traceback.print_exc()
        # What is half loaded, or stands in for something, is in the way of the real thing.
        for name in [n for n in sys.modules if n.split(".")[0] in REPLACED]:
            del sys.modules[name]
        from ipykernel.kernelapp import IPKernelApp as KernelApp
    finally:
        sys.path.remove(HERE)
    return KernelApp


if __name__ == "__main__":
    # A twentieth of the start went into looking for garbage among what is there to stay. The kernel turns it on again as it starts.
    gc.disable()
    application = load()
    if not application.__module__.startswith("cubicle_kernel."):
        gc.enable()
    application.launch_instance()
