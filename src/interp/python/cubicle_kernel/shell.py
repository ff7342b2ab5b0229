"""The interactive shell: ipykernel's, with our formatters."""

import sys

from ipykernel.zmqshell import ZMQInteractiveShell

from .formatters import Formatters


class Shell(ZMQInteractiveShell):
    """A cell fails only when its code does: what a result's representations raise is told on stderr, not as the cell's error."""

    def init_display_formatter(self):
        """Called by the base class while it is made."""
        self.display_formatter = Formatters(parent=self)
        self.configurables.append(self.display_formatter)

    def _showtraceback(self, etype, evalue, stb):
        """Sends a traceback: as the cell's error, or on stderr while a result is formatted."""
        if not self.display_formatter.busy:
            return super()._showtraceback(etype, evalue, stb)
        print(self.InteractiveTB.stb2text(stb), file=sys.stderr)
        return None
