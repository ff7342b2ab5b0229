"""Pillow: an image saved under a path is also displayed, and Image.show() displays here whatever viewers are installed."""

import base64
import functools
import io
import os
import sys

from . import limits
from .imports import when_imported


class _Shown:
    """How many were displayed in this cell because they were saved."""

    count = 0

    def reset(self):
        """A new cell."""
        self.count = 0


def arm(shell):
    """Waits for Pillow to be imported."""
    shown = _Shown()
    shell.events.register("pre_execute", shown.reset)
    when_imported("PIL.Image", lambda module: _wrap_save(module.Image, shell, shown))
    when_imported("PIL.ImageShow", _prefer_display)


def _wrap_save(image, shell, shown):
    plain_save = image.save

    @functools.wraps(plain_save)
    def save(self, fp, *args, **kwargs):
        result = plain_save(self, fp, *args, **kwargs)
        # matplotlib saves figures through Pillow, and a figure is displayed by its own rule.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(fp, (str, bytes, os.PathLike)) and not str(caller).startswith("matplotlib."):
            _display(self, plain_save, shell, shown)
        return result

    image.save = save


def _display(picture, plain_save, shell, shown):
    try:
        width, height = picture.size
        if width * height > limits.IMAGE_PIXELS or shown.count > limits.IMAGES_PER_CELL:
            return
        shown.count += 1
        if shown.count > limits.IMAGES_PER_CELL:
            print("more saved images of this cell are not displayed", file=sys.stderr)
            return
        shell.display_pub.publish({"text/plain": repr(picture), "image/png": _png(picture, plain_save)})
    except Exception:
        # It was saved; that it could not be shown as well is no error of the user's.
        pass


def _png(picture, plain_save):
    buffer = io.BytesIO()
    try:
        plain_save(picture, buffer, "PNG")
    except (OSError, ValueError):
        # A mode that PNG does not have, CMYK for one.
        buffer = io.BytesIO()
        plain_save(picture.convert("RGB"), buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _prefer_display(module):
    viewer = getattr(module, "IPythonViewer", None)
    if viewer is not None:
        module.register(viewer, 0)
