"""Work that no answer waits for, done on the loop in small steps, so that none waits for it either."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

__all__ = ["Chores"]

# Chores that may wait for another turn of the loop. When more come, the turn does more than a step.
_WAITING = 8


class Chores:
    """Does one step a turn of the loop; between two turns the loop looks after its sockets.

    Args:
        loop: The loop, on whose thread everything happens.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chores: deque[Iterator[None]] = deque()

    def add(self, chore: Iterator[None]) -> None:
        """Do this, a step at each `next`, after what was added before."""
        self._chores.append(chore)
        if len(self._chores) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        chores = self._chores
        try:
            while chores:
                if next(chores[0], _END) is _END:
                    chores.popleft()
                if len(chores) <= _WAITING:
                    break
        finally:  # one that raises has ended, and is told of by the loop; the others go on
            if chores:
                self._loop.call_soon(self._turn)


_END = object()
