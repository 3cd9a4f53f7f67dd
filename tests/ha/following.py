"""What a running `EtcdLeader.watch` has told."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from aiomooncake.transport.leader import EtcdLeader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aiomooncake.target import Address

__all__ = ["Told", "following", "key_of"]

_LIMIT = 30.0


def key_of(cluster: str) -> str:
    """The key in which the masters name their leader."""
    return f"mooncake-store/{cluster}/master_view"


class Told:
    """A callback for `watch`. `leaders` has everything it was called with."""

    def __init__(self) -> None:
        self.leaders: list[Address | None] = []
        self._changed = asyncio.Event()

    def __call__(self, leader: Address | None) -> None:
        self.leaders.append(leader)
        self._changed.set()

    async def wait(self, *leaders: Address | None) -> None:
        """Wait until it was called with exactly these, in this order."""
        await self._wait_until(lambda: len(self.leaders) >= len(leaders))
        assert self.leaders == [*leaders]

    async def wait_last(self, leader: Address | None) -> None:
        """Wait until the last call was with this one."""
        await self._wait_until(lambda: self.leaders[-1:] == [leader])

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(_LIMIT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def following(endpoints: Sequence[Address], cluster: str) -> AsyncIterator[Told]:
    """A watch that runs for as long as the context lasts; its end must be a clean cancellation."""
    told = Told()
    watching = asyncio.ensure_future(EtcdLeader(endpoints, cluster).watch(told))
    try:
        yield told
        assert not watching.done(), "the watch ended by itself"
    finally:
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
