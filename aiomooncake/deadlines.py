"""Deadlines for very many futures with at most one timer, which is not set anew when nothing waits.

A loop timer per question costs more than the question itself. Here a future is only appended to a bucket of futures
that end at about the same time. Buckets are as wide as 1/64 to 1/32 of the timeout (1 ms at least), so a deadline is
met that much and one millisecond late at most, and never early. Futures that are done are dropped whenever a bucket
has doubled, so a bucket holds about as many as are really waiting.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Deadlines"]

_FIRST_SWEEP = 64
# A bucket is 2**-5 of the largest power of two in the timeout wide.
_WIDTH_BITS = 5
# uvloop's clock counts milliseconds.
_LEAST_WIDTH = 0.001
# It also rounds timers to milliseconds, and one that comes too early is set again at once, until the clock moves.
_TIMER_MARGIN = 0.0006


class Deadlines:
    """Tells which futures have outlived their timeout."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[list[asyncio.Future[Any]]], None]
    ) -> None:
        """Call `on_expired` with the futures that are not done at their deadline."""
        self._loop = loop
        self._on_expired = on_expired
        self._buckets: dict[float, _Bucket] = {}
        self._order: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._widths: dict[float, float] = {}
        self._now = loop.time
        self._last = _Bucket()
        self._last_timeout = self._last_until = -1.0

    def add(self, future: asyncio.Future[Any], timeout: float) -> None:
        """Watch `future` for `timeout` seconds from now."""
        now = self._now()
        is_last = timeout == self._last_timeout and now < self._last_until
        bucket = self._last if is_last else self._find(now, timeout)
        futures = bucket.futures
        futures.append(future)
        if len(futures) >= bucket.sweep_at:
            bucket.sweep()

    def _find(self, now: float, timeout: float) -> _Bucket:
        width = self._widths.get(timeout)
        if width is None:
            width = self._width(timeout)
        # Up to the end of the bucket in which the deadline falls, so never early.
        when = (int((now + timeout) / width) + 1) * width
        bucket = self._buckets.get(when)
        if bucket is None:
            bucket = self._open(when)
        # Most questions have the config's timeout: the next one will mostly go into the same bucket.
        self._last, self._last_timeout, self._last_until = bucket, timeout, when - timeout
        return bucket

    def close(self) -> None:
        """Forget every deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._order.clear()
        self._last_timeout = -1.0

    def _width(self, timeout: float) -> float:
        if len(self._widths) > 256:  # callers that pass on what is left of their own deadline never repeat
            self._widths.clear()
        width = max(_LEAST_WIDTH, 2.0 ** (math.frexp(timeout)[1] - 1 - _WIDTH_BITS)) if timeout else _LEAST_WIDTH
        self._widths[timeout] = width
        return width

    def _open(self, when: float) -> _Bucket:
        bucket = self._buckets[when] = _Bucket()
        heapq.heappush(self._order, when)
        if self._order[0] == when:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()
        return bucket

    def _set_timer(self) -> None:
        self._timer = self._loop.call_at(self._order[0] + _TIMER_MARGIN, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        order = self._order
        expired: list[asyncio.Future[Any]] = []
        while order and order[0] <= now:
            expired += [future for future in self._buckets.pop(heapq.heappop(order)).futures if not future.done()]
        # Buckets in which nobody waits any longer need no timer. Whoever comes must not be put into a dropped one.
        self._last_timeout = -1.0
        while order and not self._buckets[order[0]].sweep():
            del self._buckets[heapq.heappop(order)]
        if order:
            self._set_timer()
        if expired:
            self._on_expired(expired)


class _Bucket:
    __slots__ = ("futures", "sweep_at")

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []
        self.sweep_at = _FIRST_SWEEP

    def sweep(self) -> int:
        """Drop what is done; return how many still wait."""
        self.futures = [future for future in self.futures if not future.done()]
        waiting = len(self.futures)
        self.sweep_at = max(_FIRST_SWEEP, 2 * waiting)
        return waiting
