"""What every benchmark shares: a master to ask, keys, samples and rates."""

from __future__ import annotations

import argparse
import inspect
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio
import numpy as np

from aiomooncake.bench.keys import page_keys
from aiomooncake.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

__all__ = ["Latency", "latency", "master_holding", "page_keys", "questions_per_second", "sample", "side_by_side"]


@asynccontextmanager
async def master_holding(keys: Sequence[str], description: str | None) -> AsyncIterator[str]:
    """The address given with --master, or that of a cluster started for this run, which holds `keys`.

    Hits and misses cost the master very different times (about 1.2 and 0.4 us a key; 0.15 when it holds nothing at
    all), so figures compare only when they come from the same keys and the same master.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--master", metavar="HOST:PORT", help="a running master, 0.3.12 or newer, asked for what it has"
    )
    master: str | None = parser.parse_args().master
    if master is not None:
        yield master
    else:
        async with LocalCluster(segment_bytes=512 << 20) as cluster:
            await cluster.put(keys)
            yield cluster.address


class Latency(NamedTuple):
    """Percentiles of how long one question took, in seconds."""

    p50: float
    p99: float
    questions: int

    def __str__(self) -> str:
        return f"p50 {self.p50 * 1e6:7.1f} us   p99 {self.p99 * 1e6:7.1f} us   ({self.questions} questions)"


def latency(samples: Iterable[float]) -> Latency:
    """Condense samples in seconds."""
    seconds = np.fromiter(samples, dtype=np.float64)
    p50, p99 = np.percentile(seconds, [50, 99])
    return Latency(float(p50), float(p99), len(seconds))


async def sample(ask: Callable[[], object], questions: int, warm_up: int = 200) -> list[float]:
    """Ask one question at a time; how long each took, in seconds, without the first `warm_up`.

    What `ask` returns is awaited if it can be; otherwise `ask` has blocked until the answer was there.
    """
    clock = time.perf_counter
    samples = []
    first = ask()
    if inspect.isawaitable(first):
        await first
        ask_async = cast("Callable[[], Awaitable[object]]", ask)
        for _ in range(warm_up):
            await ask_async()
        for _ in range(questions):
            start = clock()
            await ask_async()
            samples.append(clock() - start)
    else:
        for _ in range(warm_up):
            ask()
        for _ in range(questions):
            start = clock()
            ask()
            samples.append(clock() - start)
    return samples


async def side_by_side(
    asks: Mapping[str, Callable[[], object]], *, rounds: int = 20, questions: int = 500
) -> dict[str, Latency]:
    """Latencies of several ways to ask, measured in turns, so that their ratios mean something.

    What else the machine does moves all of them: on a virtual machine whose other cores are busy a question takes
    a third of the time, because nobody has to be woken from idling.
    """
    samples: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(rounds):
        for name, ask in asks.items():
            samples[name] += await sample(ask, questions)
    return {name: latency(values) for name, values in samples.items()}


async def questions_per_second(
    ask: Callable[[int], Awaitable[object]], *, tasks: int, seconds: float = 2.0, warm_up: float = 0.5
) -> float:
    """Questions answered a second while `tasks` long-lived tasks ask again and again; `ask` gets the task's number."""
    answered = 0
    running = True

    async def worker(number: int) -> None:
        nonlocal answered
        while running:
            await ask(number)
            answered += 1

    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(worker, number)
        await anyio.sleep(warm_up)
        start, before = time.perf_counter(), answered
        await anyio.sleep(seconds)
        rate = (answered - before) / (time.perf_counter() - start)
        running = False
    return rate
