"""stdout and stderr: ipykernel's, but a flush with nothing to flush waits for nobody."""

from itertools import count

from ipykernel.iostream import OutStream


class Stream(OutStream):
    """ipykernel flushes both streams several times in each cell, and waits each time for the thread that publishes."""

    def __init__(self, *args, **kwargs):
        self._numbers = count(1)
        self._written = self._flushed = 0
        super().__init__(*args, **kwargs)

    def write(self, string):
        """As the base class. The number is taken after the text is there: a flush that misses it missed a write that had not returned."""
        length = super().write(string)
        self._written = next(self._numbers)
        return length

    def flush(self):
        """As the base class; at once when all that was written has been flushed, and that was waited for."""
        written = self._written
        if written != self._flushed:
            super().flush()
            self._flushed = written
