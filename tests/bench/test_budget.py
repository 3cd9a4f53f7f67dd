"""The guard against getting slower that no clock can disturb: counts beside their budget."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest
import uvloop

import aiomooncake as am
from aiomooncake.bench.clients.engine import EngineClient
from aiomooncake.bench.load import KeyLoad, PromptLoad

from .budget import BUDGETS, Budget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from types import FrameType
    from typing import Any

    from ..conftest import SharedCluster

_CALLS = "master_batch_exist_key_requests_total"
_KEYS = "master_batch_exist_key_items_total"


class Scenario(NamedTuple):
    """Callers that ask their question so many times, after having done so once unobserved."""

    load: KeyLoad | PromptLoad
    times: int


SCENARIOS = {
    "one caller, one key": Scenario(KeyLoad(keys=1, questions=1, stored=16_384), 100),
    "1000 callers, one key": Scenario(KeyLoad(keys=1, questions=1000, stored=16_384), 5),
    "256 callers, 64 keys": Scenario(KeyLoad(keys=64, questions=256, stored=16_384), 5),
    "one caller, 20,000 keys": Scenario(KeyLoad(keys=20_000, questions=1, stored=16_384), 5),
    "hybrid, 512 pages, predicted": Scenario(PromptLoad(layout="hybrid", prompts=1, pages=512, hit=256), 20),
    "32 callers, hybrid, 512 pages, predicted": Scenario(
        PromptLoad(layout="hybrid", prompts=32, pages=512, hit=256), 3
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_lookup_keeps_to_its_budget(name: str, cluster: SharedCluster) -> None:
    cost = uvloop.run(measure(SCENARIOS[name], cluster))
    # Only asyncio's own loop makes its system calls where Python sees them.
    on_asyncio = asyncio.run(measure(SCENARIOS[name], cluster))
    cost = cost._replace(sends=on_asyncio.sends, receives=on_asyncio.receives)
    over = {
        field: (value, limit)
        for field, value, limit in zip(Budget._fields, cost, BUDGETS[name], strict=True)
        if value > limit
    }
    assert not over, f"{name}: (cost, budget) a lookup of {over}; all of it: {cost}"


def test_every_scenario_has_a_budget() -> None:
    assert SCENARIOS.keys() == BUDGETS.keys()


async def measure(scenario: Scenario, cluster: SharedCluster) -> Budget:
    await cluster.put(scenario.load.stored_keys())
    async with am.connect(cluster.address, timeout=None) as engine:
        asks: Sequence[Callable[[], Awaitable[object]]] = scenario.load.asks(EngineClient(engine))  # type: ignore[assignment]

        async def run() -> None:
            await asyncio.gather(*(caller(ask) for ask in asks))

        async def caller(ask: Callable[[], Awaitable[object]]) -> None:
            for _ in range(scenario.times):
                await ask()

        await run()
        before = await cluster.metrics()
        with counting() as counts:
            await run()
        after = await cluster.metrics()
        # What is learnt may pile up for some turns of the loop on a busy machine: the least of several.
        peak = min([await peak_bytes(run) for _ in range(3)])
    lookups = len(asks) * scenario.times
    return Budget(
        master_calls=(after[_CALLS] - before[_CALLS]) / lookups,
        master_keys=(after[_KEYS] - before[_KEYS]) / lookups,
        python_calls=counts["call"] / lookups,
        all_calls=(counts["call"] + counts["c_call"]) / lookups,
        sends=(counts["send"] + counts["sendmsg"]) / lookups,
        receives=(counts["recv"] + counts["recv_into"]) / lookups,
        peak_bytes=peak / len(asks),
    )


@contextmanager
def counting() -> Iterator[Mapping[str, int]]:
    """Count calls in this thread, and those of a socket's methods by name."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        counts[event] += 1
        if event == "c_call" and isinstance(getattr(arg, "__self__", None), socket.socket):
            counts[arg.__name__] += 1

    gc.disable()  # a collection in between would run finalizers of others
    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(previous)
        gc.enable()


async def peak_bytes(run: Callable[[], Awaitable[None]]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
