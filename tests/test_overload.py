"""A hundred thousand questions for a master that says nothing: what waits is bounded, and all of it comes to an end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

import aiomooncake as am
from aiomooncake.errors import AioMooncakeError, ClosedError, OverloadedError, RequestTimeout
from aiomooncake.local import LocalCluster

from .engine.support import HANG, new_keys, outcome, through_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from .conftest import SharedCluster

pytestmark = [
    pytest.mark.anyio,
    # In debug mode, asyncio takes longer for the tasks than the engine for their questions.
    pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"], scope="module"),
]

QUESTIONS = 100_000
LIMIT = 10_000
IN_FLIGHT = 4  # two calls on each of two connections


@pytest.fixture
async def silent_master(anyio_backend: object) -> AsyncIterator[LocalCluster]:
    """A master that can be stopped; it holds nothing."""
    async with LocalCluster(store=False) as cluster:
        yield cluster


async def start(engine: am.Engine, keys: Sequence[str]) -> list[asyncio.Task[bool | AioMooncakeError]]:
    """One task a key; returns when all have asked."""
    tasks = [asyncio.create_task(outcome(engine.exists(key))) for key in keys]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def ends(tasks: Sequence[asyncio.Task[bool | AioMooncakeError]]) -> Counter[object]:
    """How often each answer, or type of error, was the end."""
    with anyio.fail_after(HANG):
        ended = await asyncio.gather(*tasks)
    return Counter(type(end) if isinstance(end, AioMooncakeError) else end for end in ended)


def check_bounded(engine: am.Engine) -> None:
    stats = engine.stats()
    assert stats.pending_keys <= LIMIT
    assert stats.calls_in_flight <= IN_FLIGHT


async def test_what_exceeds_the_limit_waits_outside_and_is_answered_in_the_end(cluster: SharedCluster) -> None:
    held, *missing = new_keys(QUESTIONS // 100)
    await cluster.put(held)
    async with through_proxy(cluster.address, max_pending_keys=LIMIT, timeout=None) as (proxy, engine):
        proxy.requests.hold()
        tasks = await start(engine, [held, *missing] * 100)
        check_bounded(engine)
        stats = engine.stats()
        assert stats.questions == QUESTIONS
        assert stats.pending_keys + stats.waiting_outside + IN_FLIGHT * 2048 >= QUESTIONS
        proxy.requests.release()
        async with anyio.create_task_group() as group:

            async def look() -> None:
                while True:
                    check_bounded(engine)
                    await anyio.lowlevel.checkpoint()

            group.start_soon(look)
            assert await ends(tasks) == {True: 100, False: QUESTIONS - 100}
            group.cancel_scope.cancel()
        stats = engine.stats()
        assert (stats.pending_keys, stats.waiting_outside, stats.calls_in_flight) == (0, 0, 0)
        assert (stats.errors, stats.refused) == (0, 0)


async def test_what_exceeds_the_limit_is_refused_when_told_to(silent_master: LocalCluster) -> None:
    async with am.connect(silent_master.address, max_pending_keys=LIMIT, overload="raise", timeout=None) as engine:
        silent_master.stop_master()
        tasks = await start(engine, new_keys(QUESTIONS))
        check_bounded(engine)
        stats = engine.stats()
        assert stats.pending_keys == LIMIT
        assert stats.waiting_outside == 0
        assert stats.refused == QUESTIONS - LIMIT - stats.keys_sent
        silent_master.continue_master()
        assert await ends(tasks) == {False: LIMIT + stats.keys_sent, OverloadedError: stats.refused}
        assert await engine.exists("a") is False


async def test_what_was_refused_counts_as_a_miss_when_told_to(silent_master: LocalCluster) -> None:
    config = am.EngineConfig(max_pending_keys=LIMIT, overload="raise", errors="miss", timeout=None)
    async with am.connect(silent_master.address, config=config) as engine:
        silent_master.stop_master()
        tasks = await start(engine, new_keys(2 * LIMIT))
        silent_master.continue_master()
        assert await ends(tasks) == {False: 2 * LIMIT}
        stats = engine.stats()
        assert 0 < stats.refused == stats.degraded < LIMIT


@pytest.mark.parametrize("overload", ["wait", "raise"])
async def test_deadlines_end_what_waits_inside_and_outside(silent_master: LocalCluster, overload: str) -> None:
    async with am.connect(silent_master.address, max_pending_keys=LIMIT, overload=overload, timeout=0.3) as engine:
        silent_master.stop_master()
        tasks = await start(engine, new_keys(QUESTIONS))
        ended = await ends(tasks)
        assert ended[RequestTimeout] + ended[OverloadedError] == QUESTIONS
        assert ended[OverloadedError] == engine.stats().refused
        assert (engine.stats().pending_keys, engine.stats().waiting_outside) == (0, 0)
        silent_master.continue_master()
        with anyio.fail_after(HANG):
            while await outcome(engine.exists("a")) is not False:
                pass


async def test_cancelled_questions_leave_nothing_behind(silent_master: LocalCluster) -> None:
    async with am.connect(silent_master.address, max_pending_keys=LIMIT, timeout=None) as engine:
        silent_master.stop_master()
        tasks = await start(engine, new_keys(QUESTIONS))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        stats = engine.stats()
        assert stats.cancelled == QUESTIONS
        assert stats.pending_keys + stats.waiting_outside <= 128
        silent_master.continue_master()
        assert await engine.exists("a") is False
        assert (engine.stats().pending_keys, engine.stats().waiting_outside) == (0, 0)


async def test_closing_ends_what_waits_inside_and_outside(silent_master: LocalCluster) -> None:
    async with am.connect(silent_master.address, max_pending_keys=LIMIT, timeout=0.3) as engine:
        silent_master.stop_master()
        tasks = [asyncio.create_task(outcome(engine.exists(key, timeout=None))) for key in new_keys(QUESTIONS)]
        await asyncio.sleep(0)
    assert await ends(tasks) == {ClosedError: QUESTIONS}
