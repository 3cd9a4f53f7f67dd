from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

import aiomooncake as am
from aiomooncake.bench.arrivals import poisson
from aiomooncake.bench.clients.engine import EngineClient
from aiomooncake.bench.closedloop import run_closed_loop
from aiomooncake.bench.openloop import run_open_loop

if TYPE_CHECKING:
    from aiomooncake.local import LocalCluster

pytestmark = pytest.mark.anyio

RATE = 1000


def every_millisecond(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.arange(0, seconds, 1 / RATE)


async def test_a_stall_is_charged_to_every_lookup_that_was_due_meanwhile() -> None:
    stall = 0.1
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 100:
            time.sleep(stall)  # noqa: ASYNC251  # the loop itself stalls

    ran = await run_open_loop([ask], every_millisecond(0.3), warm_up=0.0, deadline=1.0)
    # Those due in the first half of the stall waited for half of it and more.
    assert (ran.latencies > stall / 2).sum() >= RATE * stall / 2 - 1
    # Asking one after the other would have seen the stall once.
    assert asked == 300


async def test_a_master_that_stalls_shows_in_the_tail(own_cluster: LocalCluster) -> None:
    stall = 0.2
    await own_cluster.put("key")
    async with am.connect(own_cluster.address) as engine:
        ask = EngineClient(engine).bind(["key"])

        async def stall_once() -> None:
            await anyio.sleep(0.1)
            own_cluster.stop_master()
            await anyio.sleep(stall)
            own_cluster.continue_master()

        async with anyio.create_task_group() as group:
            group.start_soon(stall_once)
            ran = await run_open_loop([ask], poisson(RATE, 0.5, seed=0), warm_up=0.02, deadline=5.0)
    assert ran.timeouts == 0
    assert ran.errors == {}
    assert (ran.latencies > stall / 2).sum() >= RATE * stall / 4


async def test_what_is_not_answered_by_the_deadline_is_a_timeout_of_that_length() -> None:
    gate = asyncio.Event()

    async def ask() -> None:
        await gate.wait()

    async with anyio.create_task_group() as group:

        async def open_late() -> None:
            await anyio.sleep(0.1)
            gate.set()

        group.start_soon(open_late)
        ran = await run_open_loop([ask], every_millisecond(0.05), warm_up=0.0, deadline=0.01)
    assert ran.timeouts == len(ran.latencies) == 50
    assert set(ran.latencies) == {0.01}
    assert ran.outstanding == 50


async def test_lookups_that_fail_are_counted_by_their_error_and_as_the_deadline() -> None:
    async def refuse() -> None:
        raise am.OverloadedError("full")

    async def run_late() -> None:
        raise TimeoutError

    async def answer() -> None:
        pass

    ran = await run_open_loop([refuse, run_late, answer], np.arange(0.001, 0.031, 0.001), warm_up=0.0, deadline=1.0)
    assert ran.errors == {"OverloadedError": 10}
    assert ran.timeouts == 10
    assert (ran.latencies == 1.0).sum() == 20


async def test_lookups_of_the_warm_up_are_asked_but_not_measured() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1

    ran = await run_open_loop([ask], np.arange(0.0005, 0.1, 0.001), warm_up=0.04, deadline=1.0)
    assert asked == ran.lookups == 100
    assert len(ran.latencies) == 60
    assert ran.offered == pytest.approx(60 / 0.0595)


async def test_a_plan_without_a_lookup_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="no arrival"):
        await run_open_loop([asyncio.Event().wait], np.array([0.1]), warm_up=0.2, deadline=1.0)


async def test_a_closed_loop_measures_every_caller_after_its_warm_up() -> None:
    asked = [0] * 10

    def caller(number: int) -> object:
        async def ask() -> None:
            asked[number] += 1
            await asyncio.sleep(0)

        return ask

    ran = await run_closed_loop([caller(number) for number in range(10)], seconds=0.05, warm_up=0.01)  # type: ignore[misc]
    assert all(asked)
    assert sum(asked) == ran.lookups
    assert 0 < len(ran.latencies) < ran.lookups
    assert ran.observation.cpu_seconds > 0


async def test_a_single_caller_may_block() -> None:
    asked = 0

    def ask() -> int:
        nonlocal asked
        asked += 1
        return 1

    ran = await run_closed_loop([ask], seconds=0.02, warm_up=0.01)
    assert asked == ran.lookups > len(ran.latencies) > 0


async def test_at_a_pause_the_clock_stands_still_until_all_before_it_have_ended_and_it_is_over() -> None:
    order: list[str] = []
    gate = asyncio.Event()

    def lookup(number: int) -> object:
        async def ask() -> None:
            order.append(f"start {number}")
            if number == 1:
                await gate.wait()
            order.append(f"end {number}")

        return ask

    async def pause() -> None:
        order.append("pause")
        await anyio.sleep(0.2)

    async with anyio.create_task_group() as group:

        async def open_late() -> None:
            await anyio.sleep(0.1)  # far behind the time at which the next one is planned
            assert order == ["start 0", "end 0", "start 1"]
            gate.set()

        group.start_soon(open_late)
        ran = await run_open_loop(
            [lookup(number) for number in range(4)],  # type: ignore[misc]
            np.array([0.001, 0.002, 0.003, 0.004]),
            warm_up=0.0,
            deadline=1.0,
            pauses=[2],
            pause=pause,
        )
    assert order[2:5] == ["start 1", "end 1", "pause"]
    assert order[5:] == ["start 2", "end 2", "start 3", "end 3"]
    assert ran.latencies[1] > 0.08
    assert max(ran.latencies[2:]) < 0.08  # neither waiting for the others nor the pause is charged to them


async def test_a_pause_that_fails_ends_the_run() -> None:
    async def pause() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_open_loop(
            [anyio.lowlevel.checkpoint], np.array([0.001, 0.002]), warm_up=0.0, deadline=1.0, pauses=[1], pause=pause
        )
