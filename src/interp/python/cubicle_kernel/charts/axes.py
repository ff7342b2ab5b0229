"""What surrounds the data of one axes: title, labels, units, scales, ticks, and how positions on an axis read."""

import bisect
import datetime
import math
import re

from .. import limits
from ..imports import loaded
from .values import number, real

_UNIT = re.compile(r"\(([^()]*)\)\s*$")
_PLAIN_MATH = re.compile(r"^\$\\mathdefault\{(.*)\}\$$")


def is_colorbar(ax):
    """A colour bar's axes is a legend, not data."""
    return ax.get_label() == "<colorbar>" or getattr(ax, "_colorbar", None) is not None


def title(ax):
    """Returns the title, at whichever of its three places, or None."""
    return next((text for place in ("center", "left", "right") if (text := ax.get_title(place))), None)


def _label(ax, which):
    text = getattr(ax, f"get_{which}label")()
    if not text:
        # An axes from twinx() or twiny() has the other's axis at the same place, with the label there.
        siblings = getattr(ax, f"get_shared_{which}_axes")().get_siblings(ax)
        same_place = [s for s in siblings if s is not ax and s.get_position().bounds == ax.get_position().bounds]
        text = next((t for s in same_place if (t := getattr(s, f"get_{which}label")())), "")
    return text or None


def _unit(label):
    found = _UNIT.search(label or "")
    return (found.group(1).strip() or None) if found else None


def labels(ax):
    """Returns x_label, y_label, x_unit, y_unit: the unit is the text in parentheses at a label's end."""
    x, y = _label(ax, "x"), _label(ax, "y")
    return {"x_label": x, "y_label": y, "x_unit": _unit(x), "y_unit": _unit(y)}


class Reader:
    """How positions on one axis read: numbers, times or categories."""

    def __init__(self, axis):
        self.axis = axis
        self.scale = "unknown"
        self._read = real
        converter = type(getattr(axis, "converter", None))
        periods = loaded("pandas.plotting._matplotlib.converter", "PeriodConverter")
        if periods is not None and issubclass(converter, periods) and getattr(axis.axes, "freq", None) is not None:
            self.scale, self._read = "datetime", self._period
        elif _is_date(axis, converter):
            self.scale, self._read = "datetime", self._date
        elif converter.__name__ == "StrCategoryConverter" and getattr(axis.units, "_mapping", None):
            self._names = {float(position): str(name) for name, position in axis.units._mapping.items()}
            self.scale, self._read = "categorical", self._category
        else:
            self.scale = str(axis.get_scale())

    def _period(self, value):
        import pandas

        return pandas.Period(ordinal=int(round(value)), freq=self.axis.axes.freq).to_timestamp().isoformat()

    def _date(self, value):
        from matplotlib import dates

        zone = self.axis.units if isinstance(self.axis.units, datetime.tzinfo) else None
        time = dates.num2date(value, tz=zone)
        return (time if zone is not None else time.replace(tzinfo=None)).isoformat()

    def _category(self, value):
        return self._names.get(float(value), float(value))

    def value(self, position):
        """Returns a position as float, ISO 8601 time or category; None when there is none (NaN)."""
        position = real(position)
        if position is None:
            return None
        try:
            return self._read(position)
        except (ValueError, OverflowError):
            # A time that the calendar does not have.
            return position

    def values(self, positions):
        """Like value(), of an array, much faster for the common kinds."""
        if self._read is real:
            return [v if math.isfinite(v) else None for v in map(float, positions.tolist())]
        if self._read == self._date and not isinstance(self.axis.units, datetime.tzinfo):
            return _iso_times(positions)
        return [self.value(v) for v in positions.tolist()]

    def name(self, position):
        """Returns a position as text: what the tick there says where ticks were set by name, else its value."""
        ticks, texts = self._tick_names()
        if ticks:
            after = bisect.bisect_left(ticks, position)
            near = min((i for i in (after - 1, after) if 0 <= i < len(ticks)), key=lambda i: abs(ticks[i] - position))
            gaps = [abs(ticks[i] - ticks[near]) for i in (near - 1, near + 1) if 0 <= i < len(ticks)]
            if abs(ticks[near] - position) < (min(gaps) / 2 if gaps else 1):
                return texts[near]
        value = self.value(position)
        return value if isinstance(value, str) else "" if value is None else f"{value:.12g}"

    def _tick_names(self):
        if not hasattr(self, "_named"):
            from matplotlib import ticker

            axis = self.axis
            fixed = isinstance(axis.get_major_locator(), ticker.FixedLocator) or isinstance(axis.get_major_formatter(), ticker.FixedFormatter)
            named = dict(self._names) if self.scale == "categorical" else {}
            if fixed and self.scale != "datetime":
                named = {float(tick): text for tick, text in _tick_texts(axis) if text}
            self._named = sorted(named), [named[tick] for tick in sorted(named)]
        return self._named

    def ticks(self):
        """Returns the values and the texts of the ticks in view."""
        low, high = sorted(self.axis.get_view_interval())
        slack = (high - low) * 1e-9
        seen = [(tick, text) for tick, text in _tick_texts(self.axis) if low - slack <= tick <= high + slack]
        return [self.value(tick) for tick, _ in seen], [text for _, text in seen]


def _is_date(axis, converter):
    from matplotlib import dates

    known = (dates.DateConverter, dates._SwitchableDateConverter) if hasattr(dates, "_SwitchableDateConverter") else (dates.DateConverter,)
    if issubclass(converter, known):
        return True
    pandas_known = loaded("pandas.plotting._matplotlib.converter", "DatetimeConverter")
    if pandas_known is not None and issubclass(converter, pandas_known):
        return True
    # Numbers of days that the user formats as dates.
    return isinstance(axis.get_major_formatter(), (dates.DateFormatter, dates.AutoDateFormatter, dates.ConciseDateFormatter))


def _iso_times(days):
    """Days since matplotlib's epoch as ISO 8601 times, rounded as num2date() does; days that the calendar does not have stay numbers."""
    import numpy
    from matplotlib import dates

    days = numpy.asarray(days, float)
    # From year 1 to 9999, which is what datetime can write.
    epoch = numpy.datetime64(dates.get_epoch(), "us")
    offset = (epoch - numpy.datetime64("1970-01-01", "us")) / numpy.timedelta64(1, "D")
    good = numpy.isfinite(days) & (days + offset > -719162) & (days + offset < 2932897)
    safe = numpy.where(good, days, 0.0)
    step = numpy.where(numpy.abs(safe) > 70 * 365, 20, 1)
    micros = (numpy.rint(safe * 86400e6 / step) * step).astype("int64")
    texts = numpy.datetime_as_string(epoch + micros.astype("m8[us]"), unit="us").tolist()
    return [text.removesuffix(".000000") if ok else real(day) for text, ok, day in zip(texts, good.tolist(), days.tolist())]


def _tick_texts(axis):
    try:
        ticks = [number(tick) for tick in axis.get_majorticklocs()[: limits.CHART_TICKS]]
    except Exception:
        # An axis that cannot be drawn either, one beyond the calendar, say.
        return []
    try:
        texts = axis.get_major_formatter().format_ticks(ticks)
    except Exception:
        # A user's formatter that fails here fails in the picture too.
        texts = [f"{tick:.12g}" for tick in ticks]
    return [(tick, _plain(str(text))) for tick, text in zip(ticks, texts) if tick is not None]


def _plain(text):
    found = _PLAIN_MATH.match(text)
    return found.group(1) if found else text


def readers(ax):
    """Returns the readers of the x and the y axis."""
    return Reader(ax.xaxis), Reader(ax.yaxis)


def grid(x, y):
    """Returns ticks, their labels and scales of both axes, from their readers."""
    x_ticks, x_labels = x.ticks()
    y_ticks, y_labels = y.ticks()
    return {
        "x_ticks": x_ticks,
        "x_tick_labels": x_labels,
        "x_scale": x.scale,
        "y_ticks": y_ticks,
        "y_tick_labels": y_labels,
        "y_scale": y.scale,
    }
