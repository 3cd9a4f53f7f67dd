"""How fast the official client answers existence questions: what asyncio code has without aiomooncake.

sync          `MooncakeDistributedStore.batch_is_exist` on the caller's thread, which it blocks
async         `MooncakeDistributedStoreAsync.async_batch_is_exist`, one question at a time
1000 x 1      1000 long-lived tasks, each asking for one key again and again
256 x 64      256 long-lived tasks, each asking for 64 keys again and again

  python -m benchmarks.official [--master HOST:PORT]
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvloop

from benchmarks.measure import master_holding, page_keys, questions_per_second, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OfficialClient", "official_client"]


class OfficialClient:
    """The official client, asked from this process."""

    def __init__(self, master: str) -> None:
        """Set it up. This holds the GIL for 30 ms and more: measure nothing meanwhile."""
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it is read when the library loads
        from mooncake.async_store import MooncakeDistributedStoreAsync

        self._store = MooncakeDistributedStoreAsync()
        code = self._store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", master)
        if code:
            raise RuntimeError(f"the official client could not be set up against {master}: {code}")

    def ask(self, keys: list[str]) -> list[int]:
        """1, 0 or a negative code for each key; blocks."""
        answers: list[int] = self._store.batch_is_exist(keys)
        return answers

    async def ask_async(self, keys: list[str]) -> list[int]:
        """The same through the official async client, which uses the loop's default executor."""
        answers: list[int] = await self._store.async_batch_is_exist(keys)
        return answers

    def close(self) -> None:
        """Close it; this holds the GIL for a second or two."""
        self._store.close()


@contextmanager
def official_client(master: str) -> Iterator[OfficialClient]:
    """An official client for the body's time."""
    client = OfficialClient(master)
    try:
        yield client
    finally:
        client.close()


async def main() -> None:
    keys = page_keys(256 * 64)
    async with master_holding(keys, __doc__) as master:
        with official_client(master) as client:
            groups = [keys[start : start + 64] for start in range(0, len(keys), 64)]
            asks = {"sync": lambda: client.ask(keys[:1]), "async": lambda: client.ask_async(keys[:1])}
            for name, result in (await side_by_side(asks)).items():
                print(f"{name:10}  {result}")
            rate = await questions_per_second(lambda task: client.ask_async([keys[task]]), tasks=1000)
            print(f"1000 x 1    {rate:9.0f} questions/s")
            rate = await questions_per_second(lambda task: client.ask_async(groups[task]), tasks=256)
            print(f"256 x 64    {rate:9.0f} questions/s, {64 * rate / 1e3:.0f} k keys/s")


if __name__ == "__main__":
    uvloop.run(main())
