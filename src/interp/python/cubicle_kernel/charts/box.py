"""Box plots. Their numbers cannot be told from the drawn lines alone, so the call that draws boxes leaves them on the median's line."""

import functools

from . import axes as sheet
from .values import real


def mark(module):
    """Called with matplotlib.axes._axes: keeps each box's statistics with what Axes.bxp draws, for boxplot(), pandas and seaborn alike."""
    plain_bxp = module.Axes.bxp

    @functools.wraps(plain_bxp)
    def bxp(self, bxpstats, *args, **kwargs):
        bxpstats = list(bxpstats)
        drawn = plain_bxp(self, bxpstats, *args, **kwargs)
        for artists in drawn.values():
            for artist in artists:
                artist._cubicle_box_part = True
        for median, stats in zip(drawn.get("medians", ()), bxpstats):
            median._cubicle_box = dict(stats, fliers=stats.get("fliers", ()) if drawn.get("fliers") else ())
        return drawn

    module.Axes.bxp = bxp


def read(ax, budget):
    """Returns the chart of an axes' boxes, None when it has none. A box drawn twice at one place is one element."""
    found = [(line, line._cubicle_box) for line in ax.lines if hasattr(line, "_cubicle_box")]
    if not found:
        return None
    x, y = sheet.readers(ax)
    elements, seen = [], set()
    for median, stats in found:
        # The median's line lies across the box: its extent tells the direction, its middle the place.
        xs, ys = median.get_xdata(orig=False), median.get_ydata(orig=False)
        horizontal = xs[0] == xs[-1] and ys[0] != ys[-1]
        place = float((ys[0] + ys[-1]) / 2 if horizontal else (xs[0] + xs[-1]) / 2)
        element = _element((y if horizontal else x).name(place), stats)
        key = (place, horizontal, *(element[k] for k in _NUMBERS), *element["outliers"])
        if key not in seen:
            seen.add(key)
            budget.take(points=len(element["outliers"]))
            elements.append(element)
    return {"type": "box_and_whisker", **sheet.labels(ax), "elements": elements}


_NUMBERS = {"min": "whislo", "first_quartile": "q1", "median": "med", "third_quartile": "q3", "max": "whishi"}


def _element(label, stats):
    element = {"label": label, **{key: real(stats[name]) for key, name in _NUMBERS.items()}}
    element["outliers"] = [real(v) for v in stats["fliers"]]
    return element
