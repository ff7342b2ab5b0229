"""Line and scatter charts: both are named lists of points, and an axes that holds both kinds becomes what most points are."""

from . import axes as sheet
from .values import names, shown_label


def read(ax, budget):
    """Returns the chart of an axes' lines and scattered points, None when it has none."""
    lines, dots, rules = _sort(ax)
    if not lines and not dots:
        return None
    x, y = sheet.readers(ax)
    sizes = {True: 0, False: 0}
    artists = _in_order(ax, lines, dots)
    elements = []
    for artist, _, is_line in artists:
        xy = artist.get_xydata() if hasattr(artist, "get_xydata") else artist.get_offsets()
        budget.take(points=len(xy))
        sizes[is_line] += len(xy)
        elements.append({"label": "", "points": _points(xy, x, y)})
    kind = "line" if sizes[True] >= sizes[False] else "scatter"
    for element, name in zip(elements, names(ax, [label for _, label, _ in artists], "Line" if kind == "line" else "Dataset")):
        element["label"] = name
    for rule in rules:
        budget.take(points=2)
        elements.append({"label": shown_label(rule), "points": _rule(ax, rule, x, y)})
    return {"type": kind, **sheet.labels(ax), **sheet.grid(x, y), "elements": elements}


def _points(xy, x, y):
    filled = xy.filled(float("nan")) if hasattr(xy, "filled") else xy
    return [[a, b] for a, b in zip(x.values(filled[:, 0]), y.values(filled[:, 1]))]


def _rule(ax, line, x, y):
    """A line across the axes (axhline, axvline) has its own value on one axis and ends where the view ends on the other."""
    across_x, _ = _in_data(ax, line)
    (x0, x1), (y0, y1) = line.get_xdata(orig=False), line.get_ydata(orig=False)
    if across_x:
        y0, y1 = ax.get_ylim()
    else:
        x0, x1 = ax.get_xlim()
    return [[x.value(x0), y.value(y0)], [x.value(x1), y.value(y1)]]


def _in_data(ax, line):
    return line.get_transform().contains_branch_seperately(ax.transData)


def _sort(ax):
    """Returns the lines, the scattered points and the named rules of an axes, each artist with its label."""
    from matplotlib.collections import PathCollection

    parts, labels = _containers(ax)
    lines, dots, rules = [], [], []
    for line in ax.lines:
        if id(line) in parts or not line.get_visible() or getattr(line, "_cubicle_box_part", False) or type(line).__name__ == "AxLine":
            continue
        data = _in_data(ax, line)
        label = labels.get(id(line)) or shown_label(line)
        if all(data) and not len(line.get_xydata()):
            continue  # only there for its entry in the legend
        if all(data):
            (dots if line.get_linestyle() in ("None", "", " ") else lines).append((line, label))
        elif any(data) and label and len(line.get_xydata()) == 2:
            rules.append(line)
    for collection in ax.collections:
        # Contours are path collections too, but drawn at no points of the data.
        at_points = isinstance(collection, PathCollection) and collection.get_offset_transform().contains_branch(ax.transData)
        if at_points and collection.get_visible() and len(collection.get_offsets()):
            dots.append((collection, shown_label(collection)))
    return lines, dots, rules


def _in_order(ax, lines, dots):
    """All of them in the order they were drawn."""
    place = {id(child): i for i, child in enumerate(ax.get_children())}
    named = [(artist, label, True) for artist, label in lines] + [(artist, label, False) for artist, label in dots]
    return sorted(named, key=lambda entry: place.get(id(entry[0]), len(place)))


def _containers(ax):
    """Returns the lines that are only parts (caps of error bars, base lines of stems), and names that a container has for a line."""
    from matplotlib.container import ErrorbarContainer, StemContainer

    parts, labels = set(), {}
    for container in ax.containers:
        if isinstance(container, ErrorbarContainer):
            line, caps, _ = container
            parts.update(id(cap) for cap in caps)
            if line is not None:
                labels[id(line)] = shown_label(container)
        elif isinstance(container, StemContainer):
            parts.add(id(container.baseline))
            labels[id(container.markerline)] = shown_label(container)
    return parts, labels
