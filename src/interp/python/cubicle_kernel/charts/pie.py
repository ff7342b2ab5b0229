"""Pie charts: one element a wedge, angle in degrees."""

from .values import number, shown_label


def read(ax, budget):
    """Returns the chart of an axes' wedges, None when it has none."""
    from matplotlib.patches import Wedge

    wedges = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    if not wedges:
        return None
    budget.take(elements=len(wedges))
    elements = [{"label": shown_label(w), "angle": _angle(w), "radius": number(w.r)} for w in wedges]
    names = _legend(ax)
    if len(names) == len(elements) and not any(e["label"] for e in elements):
        for element, name in zip(elements, names):
            element["label"] = name
    return {"type": "pie", "elements": elements}


def _angle(wedge):
    # Axes.pie computes in single precision: the fourth digit after the point is noise.
    return round(float(wedge.theta2) - float(wedge.theta1), 3)


def _legend(ax):
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend is not None else []
