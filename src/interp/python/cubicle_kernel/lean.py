"""What ipykernel imports and a kernel that is only asked to execute does not need: a fifth of its start. Users can import all of it.

debugpy and jedi (ipykernel 6) are said to be missing; jupyter_client is there without its clients and managers until somebody asks for them;
the date in each message is read without dateutil.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from datetime import datetime

_NONE = ("debugpy", "jedi")


def _parse(text, *args, **kwargs):
    try:
        if not args and not kwargs:
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    return importlib.import_module("dateutil.parser").isoparse(text, *args, **kwargs)


def _tzlocal():
    return importlib.import_module("dateutil.tz").tzlocal()


def _dateutil():
    parser, tz = types.ModuleType("dateutil.parser"), types.ModuleType("dateutil.tz")
    parser.parse = parser.isoparse = _parse
    tz.tzlocal = _tzlocal
    package = types.ModuleType("dateutil")
    package.parser, package.tz, package.__path__ = parser, tz, []
    return {"dateutil": package, "dateutil.parser": parser, "dateutil.tz": tz}


def _shallow(name, **where):
    """A package whose __init__ runs when something is asked for that is not in one of these modules: {name: module}."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return {}
    module = importlib.util.module_from_spec(spec)

    def __getattr__(attribute):
        if attribute in where:
            return getattr(importlib.import_module(f"{name}.{where[attribute]}"), attribute)
        if attribute.startswith("__"):
            # Who looks at all modules asks for such.
            raise AttributeError(attribute)
        if module.__dict__.pop("__getattr__", None):
            spec.loader.exec_module(module)
        return getattr(module, attribute)

    module.__getattr__ = __getattr__
    return {name: module}


@contextlib.contextmanager
def imports():
    """While ipykernel is imported."""
    for_now = {name: module for name, module in {**dict.fromkeys(_NONE), **_dateutil()}.items() if name not in sys.modules}
    if "jupyter_client" not in sys.modules:
        sys.modules.update(_shallow("jupyter_client", write_connection_file="connect", find_connection_file="connect", __version__="_version"))
    sys.modules.update(for_now)
    try:
        yield
    finally:
        for name, module in for_now.items():
            if sys.modules.get(name, module) is module:
                sys.modules.pop(name, None)
