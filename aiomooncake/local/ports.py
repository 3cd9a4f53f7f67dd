"""Free loopback ports, kept free of other local clusters for as long as one wants them."""

from __future__ import annotations

import random
import socket

__all__ = ["ReservedPort"]

# Below 32768, where Linux takes the ports of outgoing connections from, and above 17000, where Mooncake's clients
# take theirs.
_FIRST, _LAST = 18_000, 32_767


class ReservedPort:
    """A port on which nobody listened when it was chosen, and which no other ReservedPort has.

    The reservation is a name in the kernel, so it holds between processes and ends with this one at the latest. It
    does not bind the port: that is for the server to do.
    """

    def __init__(self) -> None:
        for port in random.sample(range(_FIRST, _LAST + 1), 500):
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                lock.bind(f"\0aiomooncake.local.port.{port}")
            except OSError:
                lock.close()
                continue
            self.number = port
            self._lock = lock
            if self.is_free():
                return
            lock.close()
        raise OSError(f"none of 500 ports tried between {_FIRST} and {_LAST} is free to listen on")

    def is_free(self) -> bool:
        """Whether a server could listen on the port, on any address, right now."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the master does: TIME_WAIT is no hindrance
            try:
                probe.bind(("", self.number))
                probe.listen(1)
            except OSError:
                return False
        return True

    def release(self) -> None:
        """Let others have the port. May be called again."""
        self._lock.close()
