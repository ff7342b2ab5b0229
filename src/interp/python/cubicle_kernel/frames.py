"""pandas frames as `e2b/data`: column name to list of values, as DataFrame.to_dict(orient="list") has them, in exact JSON.

Missing values (NaN, NaT, NA, None) are null. What JSON has no form for keeps its value as text: times and durations in ISO 8601,
Decimal, integers over 64 bits, "Infinity" and "-Infinity", periods, intervals, and anything else by its str(). The index is not part
of it (as in to_dict). Names that are not text become text; one that is there already gets a number (".1"), as read_csv does.
"""

import datetime
import decimal
import math

from . import limits
from .plain import INT_MAX, INT_MIN, Budget, NotPlain, numpy_scalar, uniform


def data_of(frame):
    """Returns the columns of a frame, None when it is larger than limits.py allows or odd beyond reading."""
    rows, columns = frame.shape
    if columns > limits.FRAME_COLUMNS or rows * columns > limits.FRAME_CELLS:
        return None
    budget = Budget(2 * limits.FRAME_CELLS, limits.FRAME_CHARACTERS)
    try:
        names = _names(frame.columns)
        return {name: _column(frame.iloc[:, i], budget) for i, name in enumerate(names)}
    except NotPlain:
        return None


def _names(columns):
    result, taken = [], set()
    for column in columns:
        name = first = _name(column)
        number = 0
        while name in taken:
            number += 1
            name = f"{first}.{number}"
        taken.add(name)
        result.append(name)
    return result


def _name(column):
    if isinstance(column, tuple):
        return ", ".join(text for text in map(_name, column) if text)
    if isinstance(column, str):
        return str(column)
    if isinstance(column, datetime.date):
        return column.isoformat()
    return str(column)


def _column(series, budget):
    budget.take(len(series))
    kind, module = getattr(series.dtype, "kind", "O"), type(series.dtype).__module__
    if module.startswith("numpy") and kind == "M":
        return _times(series.to_numpy())
    values = series.tolist()
    if module.startswith("numpy") and kind in "biu":
        return values
    result = uniform(values, budget)
    return [_cell(value, budget, 0) for value in values] if result is None else result


def _times(values):
    """Times without a zone, as Timestamp.isoformat() writes them: with a fraction only where there is one."""
    import numpy
    import pandas

    seconds = values.astype("M8[s]")
    whole = numpy.datetime_as_string(seconds, unit="s").tolist()
    exact = ((seconds == values) | numpy.isnat(values)).tolist()
    return [None if text == "NaT" else text if same else pandas.Timestamp(values[i]).isoformat() for i, (text, same) in enumerate(zip(whole, exact))]


def _float(value):
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return None
    return "Infinity" if value > 0 else "-Infinity"


def _text(text, budget):
    budget.take(0, len(text))
    return text


def _cell(value, budget, depth):
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(str(value), budget)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return int(value) if INT_MIN <= value <= INT_MAX else _text(str(int(value)), budget)
    if isinstance(value, (datetime.date, datetime.time)):
        text = value.isoformat()
        return None if text == "NaT" else text
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return _nested(value, budget, depth)
    return _other(value, budget, depth)


def _nested(value, budget, depth):
    budget.take(len(value))
    if depth >= limits.JSON_DEPTH:
        raise NotPlain("too deep")
    if isinstance(value, dict):
        return {str(k): _cell(v, budget, depth + 1) for k, v in value.items()}
    return [_cell(v, budget, depth + 1) for v in value]


def _other(value, budget, depth):
    import numpy
    import pandas

    if value is pandas.NA or value is pandas.NaT:
        return None
    if isinstance(value, decimal.Decimal):
        return None if value.is_nan() else str(value)
    if isinstance(value, datetime.timedelta):
        return pandas.Timedelta(value).isoformat()
    if isinstance(value, numpy.ndarray):
        return _nested(value.tolist(), budget, depth) if value.ndim else _cell(value.item(), budget, depth)
    if isinstance(value, numpy.floating):
        return _float(float(value))
    if isinstance(value, numpy.generic):
        try:
            return numpy_scalar(value)
        except NotPlain:
            pass
    if isinstance(value, bytes):
        return _text(value.decode("utf-8", "backslashreplace"), budget)
    try:
        return _text(str(value), budget)
    except NotPlain:
        raise
    except Exception:
        return _text(object.__repr__(value), budget)
