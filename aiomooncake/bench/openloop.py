"""Lookups that arrive when planned, however long the ones before them take: the tail that a service sees.

Latency counts from the planned start. If the client, its loop or the master stalls, every lookup that was due
meanwhile waits, and every one of those waits is in the histogram: nothing is omitted by coordination with the stall.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import anyio
import numpy as np

from .alarm import Alarm
from .observer import Observer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from numpy.typing import NDArray

    from .clients.base import Ask
    from .observer import Observation

__all__ = ["OpenLoop", "run_open_loop"]

# Between planning and the first arrival.
_HEAD_START = 0.01
# How long what was late already may take to end, so that it does not disturb the next measurement.
_PATIENCE = 60.0


class OpenLoop(NamedTuple):
    """What happened to the planned lookups.

    Attributes:
        latencies: Seconds from the planned start, of the lookups planned after the warm-up, in order of their plan;
            the deadline for those that were not answered before it.
        lookups: Lookups of the whole run, warm-up included.
        timeouts: How many of `latencies` were not answered before the deadline.
        errors: How many of `latencies` ended in another error, by its type; they count as the deadline too.
        offered: Planned lookups a second, in the measured window.
        achieved: Those of them that were answered, a second, until the last was: less than `offered` when a backlog
            was left behind.
        outstanding: Most lookups that were under way at once.
        observation: Of the measured window.
    """

    latencies: NDArray[np.float64]
    lookups: int
    timeouts: int
    errors: dict[str, int]
    offered: float
    achieved: float
    outstanding: int
    observation: Observation


async def run_open_loop(
    asks: Sequence[Ask],
    arrivals: NDArray[np.float64],
    *,
    warm_up: float,
    deadline: float,
    pauses: Collection[int] = (),
    pause: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
) -> OpenLoop:
    """Start one task for each arrival, at its time, and wait for all of them.

    Args:
        asks: The lookups, taken in turns. One that blocks holds up the loop, as it would in a service.
        arrivals: Seconds from the start, ascending.
        warm_up: Seconds at the start of the plan that are not measured.
        deadline: Seconds after its planned start from which a lookup counts as timed out. Nothing is cancelled: what
            the client goes on doing for a caller who has left is part of its cost.
        pauses: Numbers of arrivals before which the plan's clock stands still, until the lookups before them have ended
            and `pause` has: what happens then is in no latency.
        pause: What happens then.
    """
    measured = int(np.searchsorted(arrivals, warm_up))
    if not len(arrivals) or arrivals[-1] <= warm_up:
        raise ValueError(f"no arrival of {len(arrivals)} lies after the warm-up of {warm_up} s")
    gc.collect()
    gc.freeze()
    try:
        run = _Run(asks, arrivals, measured, sorted(pauses))
        return _evaluate(run, await run.finish(pause), arrivals, measured, warm_up, deadline)
    finally:
        gc.unfreeze()


class _Run:
    """One run while it lasts. Times are the plan's, whose clock can stand still."""

    def __init__(
        self, asks: Sequence[Ask], arrivals: NDArray[np.float64], measured: int, pauses: Sequence[int]
    ) -> None:
        self._asks = asks
        self._loop = asyncio.get_running_loop()
        self._measured = measured
        self._next = 0
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._all_here_ended = anyio.Event()
        self._alarm = Alarm(self._start_due)
        self._observer = Observer()
        self.outstanding = 0
        self.errors: dict[int, str] = {}
        self.ended = [0.0] * len(arrivals)
        self._due: list[float] = arrivals.tolist()
        self._halts = [*pauses, len(arrivals)]
        self._start = time.monotonic() + _HEAD_START
        self._alarm.set(self._start + self._due[0])

    async def finish(self, pause: Callable[[], Awaitable[None]]) -> Observation:
        """See to the pauses, and wait for the last lookup."""
        try:
            while True:
                left = max(0.0, self._due[self._halts[0] - 1] - self._now())
                with anyio.fail_after(left + _PATIENCE):
                    await self._all_here_ended.wait()
                if self._next == len(self._due):
                    return self._observer.stop()
                await pause()
                self._all_here_ended = anyio.Event()
                del self._halts[0]
                self._start = time.monotonic() - self._due[self._next]
                self._start_due()
        finally:
            self._alarm.close()

    def _now(self) -> float:
        return time.monotonic() - self._start

    def _start_due(self) -> None:
        due, number, halt = self._due, self._next, self._halts[0]
        while number < halt and due[number] <= self._now():
            if number == self._measured:
                self._observer.start()
            self._under_way[number] = self._loop.create_task(self._one(number))
            number += 1
        self._next = number
        self.outstanding = max(self.outstanding, len(self._under_way))
        if number < halt:
            self._alarm.set(self._start + due[number])

    async def _one(self, number: int) -> None:
        try:
            answer = self._asks[number % len(self._asks)]()
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # whatever a contender raises is its result
            self.errors[number] = type(error).__name__ if not isinstance(error, TimeoutError) else ""
        self.ended[number] = self._now()
        del self._under_way[number]
        if not self._under_way and self._next == self._halts[0]:
            self._all_here_ended.set()


def _evaluate(
    run: _Run,
    observation: Observation,
    arrivals: NDArray[np.float64],
    measured: int,
    warm_up: float,
    deadline: float,
) -> OpenLoop:
    ended = np.array(run.ended)
    latencies = (ended - arrivals)[measured:]
    failed = [number for number in run.errors if number >= measured]
    latencies[[number - measured for number in failed]] = deadline
    errors = Counter(run.errors[number] for number in failed)
    del errors[""]
    timeouts = int((latencies >= deadline).sum()) - errors.total()
    window = float(arrivals[-1]) - warm_up
    until_last = float(ended[measured:].max()) - warm_up
    return OpenLoop(
        latencies=np.minimum(latencies, deadline),
        lookups=len(arrivals),
        timeouts=timeouts,
        errors=dict(errors),
        offered=len(latencies) / window,
        achieved=(len(latencies) - len(failed)) / until_last,
        outstanding=run.outstanding,
        observation=observation,
    )
