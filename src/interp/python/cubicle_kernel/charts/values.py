"""Numbers of artists as JSON values, and the bounds of one figure."""

import math

from .. import limits


class TooLarge(Exception):
    """The figure holds more than a chart may."""


class Budget:
    """What may still be taken of one figure's elements and points."""

    def __init__(self):
        self.elements, self.points = limits.CHART_ELEMENTS, limits.CHART_POINTS

    def take(self, elements=1, points=0):
        """Raises TooLarge when that is more than is left."""
        self.elements -= elements
        self.points -= points
        if self.elements < 0 or self.points < 0:
            raise TooLarge("elements")


def number(value):
    """Returns an int or float of Python for any real number, None for NaN, infinities and masked values."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, (bool, int)):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else None


def real(value):
    """Like number(), but always a float."""
    value = number(value)
    return None if value is None else float(value)


def shown_label(artist):
    """Returns an artist's label, "" when matplotlib made it up (it starts with an underscore) or there is none."""
    label = artist.get_label()
    label = "" if label is None else str(label)
    return "" if label.startswith("_") else label


def legend_names(ax, labels):
    """Returns labels, or the legend's texts where nothing has a label and the legend has a text for each."""
    legend = ax.get_legend()
    texts = [text.get_text() for text in legend.get_texts()] if legend is not None else []
    return texts if len(texts) == len(labels) and not any(labels) else labels


def names(ax, labels, word):
    """Returns a name for each of several elements: its label, else the legend's text, else word and number; "" for the only one without any."""
    labels = legend_names(ax, labels)
    return labels if len(labels) < 2 else [label or f"{word} {i}" for i, label in enumerate(labels, 1)]
