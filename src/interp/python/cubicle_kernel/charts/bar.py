"""Bar charts: one element a bar, vertical or horizontal; the group is the label of the call that drew it, so stacked and grouped bars differ in it."""

from . import axes as sheet
from .values import names, number, shown_label


def read(ax, budget):
    """Returns the chart of an axes' bars, None when it has none."""
    from matplotlib.container import BarContainer

    containers = [c for c in ax.containers if isinstance(c, BarContainer) and len(c.patches) and _drawn(ax, c)]
    if not containers:
        return None
    x, y = sheet.readers(ax)
    elements = []
    for group, container in zip(names(ax, [_group(c) for c in containers], "Group"), containers):
        budget.take(elements=0, points=len(container.patches))
        elements += [_element(bar, container, group, x, y) for bar in container.patches]
    return {"type": "bar", **sheet.labels(ax), "elements": elements}


def _drawn(ax, container):
    """A container stays when its bars are removed."""
    first = container.patches[0]
    return any(patch is first for patch in ax.patches)


def _group(container):
    """The container's label; hist() of older versions has it on the first bar only. Otherwise bars with labels have one each."""
    labels = [shown_label(bar) for bar in container.patches]
    return shown_label(container) or ("" if any(labels[1:]) else labels[0])


def _element(bar, container, group, x, y):
    horizontal = getattr(container, "orientation", None) == "horizontal"
    middle = bar.get_y() + bar.get_height() / 2 if horizontal else bar.get_x() + bar.get_width() / 2
    value = bar.get_width() if horizontal else bar.get_height()
    return {"label": (y if horizontal else x).name(float(middle)), "group": shown_label(bar) or group, "value": number(value)}
