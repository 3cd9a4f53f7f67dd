"""Engines that are closed and opened again while their callers go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiomooncake as am
from aiomooncake.errors import AioMooncakeError, ClosedError, ConnectError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["CONNECTIONS", "Seat"]

CONNECTIONS = 2


class Seat:
    """The place of one engine.

    Attributes:
        name: For the report.
        forgiving: The engine answers failures as misses.
        engine: The engine now; None between two.
        healed_at: The loop's time when the last fault ended, until the first right answer after that.
        leftovers: What closed engines were found to hold still.
    """

    def __init__(
        self,
        name: str,
        address: str,
        rng: Random,
        *,
        may_raise: tuple[type[AioMooncakeError], ...],
        on_recovered: Callable[[str, float, str], None],
        **options: Any,
    ) -> None:
        self.name = name
        self.forgiving = options.get("errors") == "miss"
        self.engine: am.Engine | None = None
        self.healed_at: float | None = None
        self._after = ""
        self.opened = 0
        self.leftovers: list[str] = []
        self._address = address
        self._rng = rng
        self._may_raise = may_raise
        self._on_recovered = on_recovered
        self._options = options
        self._is_open = asyncio.Event()
        self._recovered = asyncio.Event()

    async def current(self) -> am.Engine:
        """The engine, as soon as there is one."""
        while self.engine is None:
            await self._is_open.wait()
        return self.engine

    def allows(self, engine: am.Engine, error: AioMooncakeError) -> bool:
        """Whether a question to `engine` may have ended with this error."""
        return isinstance(error, self._may_raise) or (isinstance(error, ClosedError) and engine is not self.engine)

    # ---- closing and opening ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open an engine of random options, as soon as a master serves."""
        rng = self._rng
        while self.engine is None:
            try:
                self.engine = await am.connect(
                    self._address,
                    connections=CONNECTIONS,
                    max_batch_keys=rng.choice((64, 1000, 2048, 4096)),
                    max_in_flight=rng.choice((1, 2, 4)),
                    linger=rng.choice((0.0, 0.0, 0.002)),
                    dedup=rng.random() < 0.7,
                    **self._options,
                )
            except ConnectError:
                await asyncio.sleep(0.01)
        self.opened += 1
        self._is_open.set()

    async def close(self, how: str = "once") -> None:
        """Close the engine: "once", "twice" at the same time, or "cancelled" while it waits for answers."""
        engine, self.engine = self.engine, None
        self._is_open.clear()
        assert engine is not None
        closing = [asyncio.ensure_future(engine.aclose()) for _ in range(2 if how == "twice" else 1)]
        if how == "cancelled":
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))
            closing[0].cancel()
        await asyncio.wait(closing)
        for task in closing:
            if not task.cancelled():
                task.result()
        self._inspect(engine)

    def _inspect(self, closed: am.Engine) -> None:
        stats = closed.stats()
        held = {
            name: getattr(stats, name)
            for name in ("pending_keys", "waiting_outside", "calls_in_flight", "connections_open")
            if getattr(stats, name)
        }
        if held:
            self.leftovers.append(f"{self.name}: a closed engine holds {held}")

    # ---- recovery ---------------------------------------------------------------------------------------------

    def struck(self) -> None:
        """A fault began."""
        self.healed_at = None

    def healed(self, after: str) -> None:
        """The last fault has ended; `after` says which there were."""
        self._after = after
        self.healed_at = asyncio.get_running_loop().time()
        self._recovered.clear()

    def answered_right(self) -> None:
        """A caller got an answer that is proven right."""
        if self.healed_at is not None:
            self._on_recovered(self.name, asyncio.get_running_loop().time() - self.healed_at, self._after)
            self.healed_at = None
            self._recovered.set()

    async def wait_recovered(self) -> None:
        """Wait for the first right answer since `healed`."""
        await self._recovered.wait()
