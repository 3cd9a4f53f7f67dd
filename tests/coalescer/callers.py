"""Callers of a coalescer, who wait and give up as the engine does for its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiomooncake.coalescer import Coalescer
from aiomooncake.config import EngineConfig
from aiomooncake.stats import Counters

from ..fakes import FakeTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiomooncake.reply import Reply
    from aiomooncake.wire.messages import Key

__all__ = ["Callers", "numbered", "turn"]


class Callers:
    """Callers of one coalescer over a fake transport. No call has a deadline unless it is given one."""

    def __init__(self, transport: FakeTransport | None = None, **options: Any) -> None:
        self.transport = transport or FakeTransport()
        self.counters = Counters()
        self.coalescer = Coalescer(self.transport, EngineConfig(**options), self.counters)

    async def exists(self, key: Key, timeout: float | None = None) -> bool:
        future = self.coalescer.ask_one(key, timeout)
        try:
            return await future
        except asyncio.CancelledError:
            self.coalescer.forget()
            raise

    async def ask(self, keys: Sequence[Key], timeout: float | None = None) -> Reply:
        future = self.coalescer.ask(keys, timeout)
        try:
            return await future
        except asyncio.CancelledError:
            self.coalescer.forget(len(keys))
            raise

    async def start(self, key: Key, timeout: float | None = None) -> asyncio.Task[bool]:
        """A task that waits for one key; returns once it does."""
        task = asyncio.create_task(self.exists(key, timeout))
        await turn()
        return task

    async def start_many(self, keys: Sequence[Key], timeout: float | None = None) -> asyncio.Task[Reply]:
        """A task that waits for several keys; returns once it does."""
        task = asyncio.create_task(self.ask(keys, timeout))
        await turn()
        return task

    @property
    def place(self) -> tuple[int, int, int]:
        """Keys in the queue, questions in the lobby, calls in flight."""
        coalescer = self.coalescer
        return coalescer.pending_keys, coalescer.lobby_size, coalescer.calls_in_flight


async def turn(count: int = 2) -> None:
    """Let the loop turn: in the first, tasks run that can; in the second, what they asked together leaves."""
    for _ in range(count):
        await asyncio.sleep(0)


def numbered(count: int, prefix: str = "key") -> list[Key]:
    return [f"{prefix}-{number}" for number in range(count)]
