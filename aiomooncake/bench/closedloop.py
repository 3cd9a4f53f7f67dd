"""Callers that ask again as soon as they were answered: how much is possible, and what it costs.

A slow answer postpones the next question here, so these latencies describe the callers, not the tail that a service
would see: that is what `openloop` is for.
"""

from __future__ import annotations

import gc
import inspect
import time
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio

from .observer import Observer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .clients.base import Ask
    from .observer import Observation

__all__ = ["ClosedLoop", "run_closed_loop"]

# Turns of every caller that a window holds at least: callers that wait in one queue are answered in bursts, and a
# window that is shorter than the time between two of them would see one or none.
_TURNS = 3
_POLL = 0.005


class ClosedLoop(NamedTuple):
    """What callers got.

    Attributes:
        latencies: Seconds, of the lookups that ended in the measured window.
        lookups: Lookups of the whole run, warm-up included.
        observation: Of the measured window.
    """

    latencies: list[float]
    lookups: int
    observation: Observation


async def run_closed_loop(asks: Sequence[Ask], *, seconds: float, warm_up: float) -> ClosedLoop:
    """Let one long-lived task for each of `asks` ask again and again; the window lasts until they had three turns.

    Only a single `ask` may block.
    """
    gc.collect()
    gc.freeze()
    try:
        first = asks[0]()
        if not inspect.isawaitable(first):
            return _run_blocking(asks[0], seconds=seconds, warm_up=warm_up)
        await first
        return await _run(cast("Sequence[Callable[[], Awaitable[object]]]", asks), seconds=seconds, warm_up=warm_up)
    finally:
        gc.unfreeze()


async def _run(asks: Sequence[Callable[[], Awaitable[object]]], *, seconds: float, warm_up: float) -> ClosedLoop:
    clock = time.monotonic
    latencies: list[float] = []
    observer = Observer()
    answered_once = anyio.Event()
    waiting = len(asks)
    running = True

    async def caller(ask: Callable[[], Awaitable[object]]) -> None:
        nonlocal waiting
        start = clock()
        await ask()
        latencies.append(clock() - start)
        waiting -= 1
        if not waiting:
            answered_once.set()
        while running:
            start = clock()
            await ask()
            latencies.append(clock() - start)

    async with anyio.create_task_group() as group:
        for ask in asks:
            group.start_soon(caller, ask)
        # Creating the tasks costs more than their first questions: the window starts after both.
        await answered_once.wait()
        await anyio.sleep(warm_up)
        warmed_up = len(latencies)
        observer.start()
        await anyio.sleep(seconds)
        while len(latencies) < warmed_up + _TURNS * len(asks):
            await anyio.sleep(_POLL)
        measured = len(latencies)
        observation = observer.stop()
        running = False
    return ClosedLoop(latencies[warmed_up:measured], len(latencies) + 1, observation)


def _run_blocking(ask: Ask, *, seconds: float, warm_up: float) -> ClosedLoop:
    clock = time.monotonic
    latencies: list[float] = []

    def ask_until(end: float) -> None:
        start = clock()
        while True:
            ask()
            now = clock()
            latencies.append(now - start)
            if now >= end:
                return
            start = now

    ask_until(clock() + warm_up)
    warmed_up = len(latencies)
    observer = Observer()
    observer.start()
    ask_until(clock() + seconds)
    observation = observer.stop()
    return ClosedLoop(latencies[warmed_up:], len(latencies) + 1, observation)
