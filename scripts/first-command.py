"""The first command, through the published Python client."""

import time

from e2b import Sandbox

start = time.monotonic()
sandbox = Sandbox.create("base", timeout=60)
ready = time.monotonic()
try:
    result = sandbox.commands.run('echo "Hello from $(uname -s) sandbox $E2B_SANDBOX_ID, python $(python3 -c "import platform; print(platform.python_version())")"')
finally:
    sandbox.kill()
print(result.stdout.strip())
print(f"(created in {(ready - start) * 1000:.0f} ms by the client e2b for Python)")
