"""matplotlib figures as `e2b/chart` (wire rules: results). One module a kind of chart; this one takes a figure apart.

Every axes with something drawn gives the charts it holds: pie, box, bar, and line or scatter; "unknown" when it holds none of them
(images, contours, 3-D). One chart stands for the figure, several make a superchart. Colour bars do not count. Numbers that are not
finite are null. A figure over the limits of limits.py, and an empty one, has no chart.
"""

import warnings

from .. import limits
from . import axes as sheet
from . import bar, box, pie, point
from .values import Budget, TooLarge


def chart_of(figure):
    """Returns a figure's chart, None when it has none."""
    try:
        # What there is to warn of was said when the figure was drawn.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _chart(figure)
    except Exception:
        # Over a limit; or strange subclasses and artists: the picture and the text are still there.
        return None


def _chart(figure):
    budget = Budget()
    charts = [chart for ax in _axes(figure) for chart in _charts(ax, budget)]
    title = _suptitle(figure)
    if not charts:
        return None
    if len(charts) == 1:
        charts[0]["title"] = charts[0]["title"] or title
        return charts[0]
    return {"type": "superchart", "title": title, "elements": charts}


def _suptitle(figure):
    text = getattr(figure, "_suptitle", None)
    return (text.get_text() or None) if text is not None else None


def _axes(figure):
    result = []
    for ax in figure.axes:
        result += [ax, *getattr(ax, "child_axes", ())]
    if len(result) > limits.CHART_AXES:
        raise TooLarge("axes")
    return [ax for ax in result if ax.get_visible() and not sheet.is_colorbar(ax) and ax.has_data()]


def _charts(ax, budget):
    title = sheet.title(ax)
    found = []
    if getattr(ax, "name", "") != "3d":
        for read in (pie.read, box.read, bar.read, point.read):
            try:
                chart = read(ax, budget)
            except TooLarge:
                raise
            except Exception:
                # Artists without data, or that lie about it: not a chart of this kind.
                continue
            if chart is not None:
                found.append(chart)
    if not found:
        found.append({"type": "unknown", "elements": []})
    return [{"type": chart.pop("type"), "title": title, **chart} for chart in found]
