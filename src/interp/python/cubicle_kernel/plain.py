"""Lists and dicts as JSON data: what orjson takes with its numpy and non-string-key options, or nothing."""

import dataclasses
import datetime
import enum
import math
import uuid

from . import limits
from .imports import loaded

INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1


class NotPlain(Exception):
    """The value has no exact JSON form, or too large a one."""


class Budget:
    """How much may still be converted."""

    def __init__(self, nodes, characters):
        self.nodes, self.characters = nodes, characters

    def take(self, nodes=1, characters=0):
        """Raises NotPlain when that is more than is left."""
        self.nodes -= nodes
        self.characters -= characters
        if self.nodes < 0 or self.characters < 0:
            raise NotPlain("too large")


def json_of(obj):
    """Returns a list or dict as JSON data, None when it holds anything else than plain data (or itself)."""
    try:
        return convert(obj, Budget(limits.JSON_NODES, limits.JSON_CHARACTERS))
    except NotPlain:
        return None


def scalar(obj):
    """Returns the JSON form of a number, bool, None, time, enum or UUID; NaN and infinities are null. NotPlain for other types."""
    kind = type(obj)
    if obj is None or kind is bool:
        return obj
    if isinstance(obj, enum.Enum):
        return scalar(obj.value) if not isinstance(obj.value, str) else str(obj.value)
    if isinstance(obj, int):
        if not INT_MIN <= obj <= INT_MAX:
            raise NotPlain("integer of more than 64 bits")
        return int(obj)
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else None
    if isinstance(obj, (datetime.datetime, datetime.date, datetime.time)):
        return _iso(obj)
    if isinstance(obj, uuid.UUID):
        return str(obj)
    generic = loaded("numpy", "generic")
    if generic is not None and isinstance(obj, generic):
        return numpy_scalar(obj)
    raise NotPlain(kind.__name__)


def _iso(obj):
    text = obj.isoformat()
    if text == "NaT":
        return None
    return text


def numpy_scalar(obj):
    """Returns the JSON form of a numpy scalar. NotPlain for complex numbers, bytes and records."""
    if obj.dtype.kind == "M":
        text = str(obj)
        return None if text == "NaT" else text
    item = obj.item()
    if obj.dtype.kind in "biuf" and isinstance(item, (bool, int, float)):
        return scalar(item)
    if isinstance(item, str):
        return item
    raise NotPlain(str(obj.dtype))


def _key(key):
    if isinstance(key, str):
        return str(key)
    value = scalar(key)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _array(obj, budget, depth):
    if obj.dtype.kind not in "biufM":
        raise NotPlain(str(obj.dtype))
    if obj.size > budget.nodes:
        raise NotPlain("too large")
    if obj.dtype.kind == "M":
        budget.take(len(obj))
        return [numpy_scalar(v) for v in obj] if obj.ndim == 1 else [_array(v, budget, depth + 1) for v in obj]
    return convert(obj.tolist(), budget, depth)


def uniform(values, budget):
    """Returns the JSON form of a list whose values are all text, all integers or all floats, much faster than one by one; None for others."""
    kinds = set(map(type, values))
    if kinds == {str}:
        budget.take(0, sum(map(len, values)))
        return list(values)
    if kinds == {int}:
        return list(values) if INT_MIN <= min(values) and max(values) <= INT_MAX else None
    if kinds == {float}:
        return list(values) if all(map(math.isfinite, values)) else None
    return None


def convert(obj, budget, depth=0):
    """Returns JSON data of its own for plain data. Raises NotPlain for the rest: other types, cycles, keys that would collide."""
    if isinstance(obj, str):
        budget.take(0, len(obj))
        return str(obj)
    if isinstance(obj, (list, tuple, dict)):
        budget.take(len(obj))
        if depth >= limits.JSON_DEPTH:
            raise NotPlain("too deep")
        if not isinstance(obj, dict):
            result = uniform(obj, budget)
            return [convert(v, budget, depth + 1) for v in obj] if result is None else result
        result = {}
        for key, value in obj.items():
            name = _key(key)
            budget.take(0, len(name))
            if name in result:
                raise NotPlain("two keys with one name")
            result[name] = convert(value, budget, depth + 1)
        return result
    array = loaded("numpy", "ndarray")
    if array is not None and isinstance(obj, array):
        return _array(obj, budget, depth) if obj.ndim else scalar(obj[()])
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return convert({f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}, budget, depth + 1)
    return scalar(obj)
