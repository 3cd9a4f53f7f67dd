"""What the processes of a cluster write, in a file without a name: the system frees it with its last user."""

from __future__ import annotations

import os
import tempfile

__all__ = ["ProcessLog"]

_KEPT_BYTES = 64 * 1024


class ProcessLog:
    """Processes write to its descriptor by themselves: nothing has to be drained, and nothing can block them."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by `close`

    def fileno(self) -> int:
        """The descriptor to hand to a process."""
        return self._file.fileno()

    def text(self) -> str:
        """The last 64 KiB."""
        # Not seek and read: the position is shared with the writers.
        descriptor = self.fileno()
        start = max(0, os.fstat(descriptor).st_size - _KEPT_BYTES)
        return os.pread(descriptor, _KEPT_BYTES, start).decode(errors="replace")

    def tail(self, lines: int = 12, width: int = 240) -> str:
        """The last lines, cut to a width, to go at the end of an error message."""
        found = self.text().splitlines()[-lines:]
        if not found:
            return "its log is empty"
        return "\n".join(["the end of its log:", *(f"  {line[:width]}" for line in found)])

    def close(self) -> None:
        """Give it up. May be called again."""
        self._file.close()
