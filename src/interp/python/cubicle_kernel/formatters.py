"""How a result becomes a set of representations: IPython's own, and `e2b/data`, `e2b/chart` and `json` (wire rules: result events)."""

import sys
import threading

from IPython.core.formatters import BaseFormatter, DisplayFormatter, JSONFormatter, PlainTextFormatter, PNGFormatter
from IPython.utils.dir2 import get_real_method
from traitlets import ObjectName, Unicode

from . import limits, plain
from .imports import loaded


class DataFormatter(BaseFormatter):
    """`e2b/data` of pandas frames."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict

    def lookup(self, obj):
        frame = loaded("pandas", "DataFrame")
        if frame is None or not isinstance(obj, frame):
            return super().lookup(obj)
        from .frames import data_of

        return data_of


class ChartFormatter(BaseFormatter):
    """`e2b/chart` of matplotlib figures. Found by class each time: choosing figure formats wipes what is registered for Figure."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    def lookup(self, obj):
        figure = loaded("matplotlib.figure", "Figure")
        if figure is None or not isinstance(obj, figure):
            return super().lookup(obj)
        from .charts import chart_of

        return chart_of


class FigurePNGFormatter(PNGFormatter):
    """PNG of figures also where pyplot has not registered it: figures made without pyplot, and when the user chose other formats."""

    def lookup(self, obj):
        try:
            return super().lookup(obj)
        except KeyError:
            figure = loaded("matplotlib.figure", "Figure")
            if figure is None or not isinstance(obj, figure):
                raise
        from IPython.core.pylabtools import print_figure

        return lambda fig: print_figure(fig, fmt="png", base64=True)


class ListJSONFormatter(JSONFormatter):
    """`json` of lists and dicts that are plain data."""

    def lookup(self, obj):
        try:
            return super().lookup(obj)
        except KeyError:
            if not isinstance(obj, (list, dict)) or get_real_method(obj, self.print_method) is not None:
                raise
        return plain.json_of


class TextFormatter(PlainTextFormatter):
    """Text that is always there: an object whose repr fails is named by its type, and a cut says so."""

    def __call__(self, obj):
        text = super().__call__(obj)
        if text is None:
            return _nameless(obj)
        if len(text) > limits.TEXT_CHARACTERS:
            return f"{text[:limits.TEXT_CHARACTERS]}… ({len(text) - limits.TEXT_CHARACTERS} more characters)"
        return text


def _nameless(obj):
    try:
        return object.__repr__(obj)
    except Exception:
        return f"<object at {id(obj):#x}>"


class Formatters(DisplayFormatter):
    """The shell's display formatter."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._depth = threading.local()
        for cls in (TextFormatter, FigurePNGFormatter, ListJSONFormatter, DataFormatter, ChartFormatter):
            formatter = cls(parent=self)
            self.formatters[formatter.format_type] = formatter
        self.active_types = self.format_types

    @property
    def busy(self):
        """True while this thread is in format()."""
        return getattr(self._depth, "value", 0) > 0

    def format(self, obj, include=None, exclude=None):
        """As the base class, and bounded."""
        self._depth.value = getattr(self._depth, "value", 0) + 1
        try:
            data, metadata = super().format(obj, include=include, exclude=exclude)
        finally:
            self._depth.value -= 1
        for kind in [k for k, v in data.items() if isinstance(v, (str, bytes)) and len(v) > limits.REPRESENTATION_CHARACTERS]:
            print(f"{kind} of this result is left out: {len(data.pop(kind))} characters", file=sys.stderr)
            metadata.pop(kind, None)
        return data, metadata
