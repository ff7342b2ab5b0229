"""Pie charts: one element a wedge, angle in degrees."""

from .values import legend_names, number, shown_label


def read(ax, budget):
    """Returns the chart of an axes' wedges, None when it has none."""
    from matplotlib.patches import Wedge

    wedges = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    if not wedges:
        return None
    budget.take(elements=len(wedges))
    labels = legend_names(ax, [shown_label(w) for w in wedges])
    elements = [{"label": label, "angle": _angle(w), "radius": number(w.r)} for label, w in zip(labels, wedges)]
    return {"type": "pie", "elements": elements}


def _angle(wedge):
    # Axes.pie computes in single precision: the fourth digit after the point is noise.
    return round(float(wedge.theta2) - float(wedge.theta1), 3)

