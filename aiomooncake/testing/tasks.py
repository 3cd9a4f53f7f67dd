"""Tasks that serve the body of an `async with`: how they wait for each other, and how they end with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

__all__ = ["Changes", "leave"]


class Changes:
    """Wakes the tasks that wait for a condition on some shared state."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def announce(self) -> None:
        """The state has changed: let the waiting tasks look at their conditions."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds; at once if it does."""
        while not condition():
            await self._changed.wait()


async def leave(tasks: TaskGroup, error: BaseException | None) -> None:
    """Cancel `tasks` and wait for their end. `error` is what the body ended with.

    An error of the body is not shown to the group, which would wrap it; a cancellation is, since it may be the
    group's own, sent because one of the tasks failed. Then what failed is raised here, as an exception group.
    """
    tasks.cancel_scope.cancel()
    if isinstance(error, asyncio.CancelledError):
        await tasks.__aexit__(type(error), error, error.__traceback__)
    else:
        await tasks.__aexit__(None, None, None)
