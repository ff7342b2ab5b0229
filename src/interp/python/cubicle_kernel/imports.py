"""Calls back when a named module has been imported, so that nothing is imported before the user does."""

import importlib.abc
import importlib.util
import sys
import threading

_waiting = {}


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then the callbacks."""

    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        # What asks a module for its loader (resources, pkgutil) finds the one it would have without us.
        module.__loader__ = module.__spec__.loader = self.inner
        self.inner.exec_module(module)
        for callback in _waiting.pop(module.__name__, ()):
            _run(callback, module)


class _Finder(importlib.abc.MetaPathFinder):
    """First on sys.meta_path: finds the awaited modules only, with the help of the other finders."""

    def __init__(self):
        self.asking = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name not in _waiting or getattr(self.asking, "others", False):
            return None
        self.asking.others = True
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        finally:
            self.asking.others = False
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader)
        return spec


def _run(callback, module):
    try:
        callback(module)
    except Exception:
        # An unknown version of the library: it works without our addition.
        pass


def when_imported(name, callback):
    """Calls callback(module) once the module has run, or now when it has already. What the callback raises is dropped."""
    module = sys.modules.get(name)
    if module is not None:
        _run(callback, module)
    else:
        _waiting.setdefault(name, []).append(callback)


def install():
    """Starts to wait for what when_imported() named."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def loaded(module, name):
    """Returns a class of a module when the module has been imported, else None."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None
