"""Every end-to-end test runs on either backend: CUBICLE_BACKEND=microvm, with CUBICLE_GUEST_KERNEL where the machine has no kernel for guests installed."""

import os

import pytest

MICROVM = os.environ.get("CUBICLE_BACKEND") == "microvm"

of_namespaces = pytest.mark.skipif(MICROVM, reason="root in a microVM is root of its own kernel: what it may do there is no boundary (docs/microvm.md)")


def options():
    """Of a server."""
    asked = {"isolation": os.environ.get("CUBICLE_BACKEND"), "guest.kernel": os.environ.get("CUBICLE_GUEST_KERNEL")}
    return {name: value for name, value in asked.items() if value}
