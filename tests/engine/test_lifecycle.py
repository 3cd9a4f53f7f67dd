"""From connect to close, and every way to skip a step of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiomooncake as am
from aiomooncake.errors import (
    ClosedError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    InvalidKeyError,
    RequestTimeout,
    WrongLoopError,
)
from aiomooncake.testing import FaultProxy, ScriptedPeer

from .support import (
    HANG,
    answer_soon,
    host_and_port,
    new_keys,
    outcome,
    outcomes,
    stay_silent,
    through_proxy,
    until,
    with_fake_master,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..conftest import SharedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]


def questions(engine: am.Engine) -> list[Awaitable[Any]]:
    """One of each kind."""
    return [engine.exists("a"), engine.batch_exists(["a", "b"]), engine.prefix_length(["a", "b"])]


# ---- connect ------------------------------------------------------------------------------------------------------


async def test_connect_can_be_entered_or_awaited(cluster: SharedCluster) -> None:
    async with am.connect(cluster.address) as entered:
        assert not await entered.exists("a")
    awaited = await am.connect(cluster.address)
    assert not await awaited.exists("a")
    await awaited.aclose()


async def test_connect_does_nothing_before_it_is_awaited(dead_address: str) -> None:
    connector = am.connect(dead_address)
    del connector
    gc.collect()  # and says nothing of it: warnings are errors here


async def test_a_connect_is_entered_once(cluster: SharedCluster) -> None:
    connector = am.connect(cluster.address)
    async with connector:
        pass
    with pytest.raises(ClosedError, match="call connect"):
        async with connector:
            pass


def test_what_cannot_be_used_is_refused_before_anything_is_awaited() -> None:
    unusable: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), {}),
        (("h:1",), {"store": object()}),
        (("h",), {}),
        (("h:1",), {"time_out": 1}),
        (("h:1",), {"timeout": -1}),
        (("h:1",), {"config": am.EngineConfig(), "connections": 0}),
    ]
    for arguments, options in unusable:
        with pytest.raises(ConfigError):
            _ = am.connect(*arguments, **options)


async def test_an_unusable_timeout_of_a_call_is_refused(cluster: SharedCluster) -> None:
    async with am.connect(cluster.address) as engine:
        for timeout in (-1, float("nan"), float("inf"), "1", True):
            for question in (
                engine.exists("a", timeout=timeout),  # type: ignore[arg-type]
                engine.batch_exists(["a"], timeout=timeout),  # type: ignore[arg-type]
                engine.prefix_length(["a"], timeout=timeout),  # type: ignore[arg-type]
            ):
                with pytest.raises(ConfigError, match="timeout"):
                    await question
        assert await engine.exists("a", timeout=None) is False


async def test_a_connect_that_is_cancelled_leaves_nothing() -> None:
    async with ScriptedPeer(stay_silent) as peer:
        for seconds in (0, 0.001, 0.01, 0.05):
            with anyio.move_on_after(seconds) as scope:
                await am.connect(peer.address, timeout=None)
            assert scope.cancelled_caught
        accepted = len(peer.received)
        task = asyncio.ensure_future(outcome(am.connect(peer.address, timeout=None)))
        await until(lambda: len(peer.received) > accepted)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_error_in_the_body_closes_the_engine(cluster: SharedCluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with am.connect(cluster.address) as engine:
            raise ZeroDivisionError
    assert isinstance(await outcome(engine.exists("a")), ClosedError)


# ---- close --------------------------------------------------------------------------------------------------------


async def test_a_close_lets_those_who_wait_have_their_answers(cluster: SharedCluster) -> None:
    keys = new_keys(1000)
    await cluster.put(keys[:500])
    async with through_proxy(cluster.address, timeout=20) as (proxy, engine):
        proxy.answers.hold()
        waiting = [asyncio.ensure_future(outcome(engine.exists(key))) for key in keys]
        many = asyncio.ensure_future(engine.batch_exists(keys * 10))
        await proxy.answers.wait_held()
        closing = asyncio.ensure_future(engine.aclose())
        await asyncio.sleep(0)
        for question in questions(engine):
            assert isinstance(await outcome(question), ClosedError)
        assert not closing.done()
        proxy.answers.release()
        assert await asyncio.gather(*waiting) == [True] * 500 + [False] * 500
        assert (await many).sum() == 5000
        await closing
        await proxy.wait_until(lambda: proxy.open == 0)


async def test_a_close_that_gets_no_answers_fails_those_who_wait(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address, timeout=0.4) as (proxy, engine):
        proxy.answers.hold()
        waiting = [asyncio.ensure_future(outcome(engine.exists(key, timeout=None))) for key in new_keys(100)]
        waiting.append(asyncio.ensure_future(outcome(engine.batch_exists(new_keys(10_000), timeout=None))))  # type: ignore[arg-type]
        await proxy.answers.wait_held()
        with anyio.fail_after(HANG):
            await engine.aclose()
        for ended in await asyncio.gather(*waiting):
            assert isinstance(ended, ClosedError)


async def test_close_may_be_called_again_and_by_several(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.answers.hold()
        waiting = asyncio.ensure_future(engine.exists("a"))
        await proxy.answers.wait_held()
        closing = [asyncio.ensure_future(engine.aclose()) for _ in range(3)]
        await asyncio.sleep(0)
        closing[1].cancel()  # its own business
        await asyncio.sleep(0)
        assert [closer.done() for closer in closing] == [False, True, False]
        proxy.answers.release()
        await asyncio.gather(closing[0], closing[2])
        assert await waiting is False
        await engine.aclose()
    await engine.aclose()


async def test_a_close_that_is_cancelled_fails_the_rest_at_once(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address, timeout=None) as (proxy, engine):
        proxy.answers.hold()
        waiting = [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(100)]
        await proxy.answers.wait_held()
        closing = asyncio.ensure_future(engine.aclose())
        other = asyncio.ensure_future(engine.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with anyio.fail_after(HANG):
            await other
            for ended in await asyncio.gather(*waiting):
                assert isinstance(ended, ClosedError)


async def test_a_close_while_the_master_is_away_ends(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.answers.hold()
        waiting = [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(10)]
        await proxy.answers.wait_held()
        proxy.refuse()
        await proxy.cut()
        with anyio.fail_after(HANG):
            await engine.aclose()
            for ended in await asyncio.gather(*waiting):
                assert isinstance(ended, (ConnectError, ConnectionLostError, ClosedError))


async def test_a_close_while_connections_are_made_leaves_nothing(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address, timeout=0.4) as (proxy, engine):
        await proxy.cut()
        proxy.answers.hold()
        waiting = [asyncio.ensure_future(outcome(engine.exists(key, timeout=None))) for key in new_keys(10)]
        await proxy.wait_until(lambda: proxy.accepted == 3)
        with anyio.fail_after(HANG):
            await engine.aclose()
            for ended in await asyncio.gather(*waiting):
                assert isinstance(ended, ClosedError)


async def test_a_closed_engine_says_so(cluster: SharedCluster) -> None:
    async with am.connect(cluster.address) as engine:
        assert not await engine.exists("a")
    for question in questions(engine):
        with pytest.raises(ClosedError, match="closed"):
            await question
    assert engine.stats().questions >= 1
    assert "closed" in repr(engine)


# ---- the wrong place ----------------------------------------------------------------------------------------------


async def test_another_loop_is_told_apart(cluster: SharedCluster) -> None:
    async def ask() -> None:
        for question in questions(engine):
            with pytest.raises(WrongLoopError, match="another event loop"):
                await question
        with pytest.raises(WrongLoopError):
            await engine.aclose()

    async with am.connect(cluster.address) as engine:
        await anyio.to_thread.run_sync(asyncio.run, ask())
        assert not await engine.exists("a")


async def test_a_thread_without_a_loop_is_told_apart(cluster: SharedCluster) -> None:
    def ask() -> None:
        for question in (*questions(engine), engine.aclose()):
            with pytest.raises(WrongLoopError, match="loop"):
                question.send(None)  # type: ignore[attr-defined]

    async with am.connect(cluster.address) as engine:
        await anyio.to_thread.run_sync(ask)
        assert not await engine.exists("a")


# ---- forgotten ----------------------------------------------------------------------------------------------------


async def test_an_engine_that_is_never_closed_warns_and_lets_go(cluster: SharedCluster) -> None:
    async with FaultProxy(*host_and_port(cluster.address)) as proxy:
        engine = await am.connect(proxy.address)
        assert not await engine.exists("a")
        gone = weakref.ref(engine)
        with pytest.warns(ResourceWarning, match="never closed.*async with"):  # noqa: PT031  # letting go is what warns
            del engine
            gc.collect()
        assert gone() is None
        with anyio.fail_after(HANG):
            await proxy.wait_until(lambda: proxy.open == 0)


async def test_an_engine_may_be_forgotten_on_another_thread(cluster: SharedCluster) -> None:
    async with FaultProxy(*host_and_port(cluster.address)) as proxy:
        engines = [await am.connect(proxy.address)]
        with pytest.warns(ResourceWarning, match="never closed"):
            await anyio.to_thread.run_sync(engines.clear)
        with anyio.fail_after(HANG):
            await proxy.wait_until(lambda: proxy.open == 0)


async def test_an_engine_with_a_waiting_caller_is_not_forgotten(cluster: SharedCluster) -> None:
    async with FaultProxy(*host_and_port(cluster.address)) as proxy:
        engine = await am.connect(proxy.address)
        proxy.answers.hold()
        waiting = asyncio.ensure_future(engine.exists("a"))
        await proxy.answers.wait_held()
        del engine
        gc.collect()
        proxy.answers.release()
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031  # as above
            assert await waiting is False
            del waiting
            gc.collect()


# ---- callers ------------------------------------------------------------------------------------------------------


async def test_cancel_scopes_around_calls_end_them_and_nothing_else(cluster: SharedCluster) -> None:
    hit, miss = new_keys(2)
    await cluster.put(hit)
    async with through_proxy(cluster.address, timeout=20) as (proxy, engine):
        proxy.answers.hold()
        other = asyncio.ensure_future(engine.exists(hit))
        for question in questions(engine):
            with anyio.move_on_after(0.01) as scope:
                await question
            assert scope.cancelled_caught
        with pytest.raises(TimeoutError) as caught, anyio.fail_after(0.01):
            await engine.exists(miss)
        assert not isinstance(caught.value, RequestTimeout)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await engine.exists(miss)
        async with anyio.create_task_group() as tasks:
            for question in questions(engine):
                tasks.start_soon(outcome, question)
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            proxy.answers.release()
            assert await other
        assert not await engine.exists(miss)
        assert engine.stats().cancelled == 8
        assert engine.stats().errors == engine.stats().timeouts == engine.stats().connections_lost == 0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup came with Python 3.11")
async def test_a_task_group_whose_member_fails_ends_the_others(cluster: SharedCluster) -> None:
    if sys.version_info >= (3, 11):

        async def fail_together() -> None:
            with pytest.raises(Exception, match="unhandled errors") as caught:  # noqa: PT012  # TaskGroup raises on leaving
                async with asyncio.TaskGroup() as tasks:
                    waiting = [tasks.create_task(engine.exists(key)) for key in new_keys(100)]
                    tasks.create_task(engine.batch_exists([hit, "\ud800"]))
            assert isinstance(caught.value, ExceptionGroup)  # noqa: F821  # built in from 3.11 on
            assert [type(error) for error in caught.value.exceptions] == [InvalidKeyError]
            assert all(task.cancelled() for task in waiting)

        async def succeed() -> None:
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(engine.exists(hit))
            assert asked.result() is True

        (hit,) = new_keys(1)
        await cluster.put(hit)
        async with through_proxy(cluster.address, timeout=20) as (proxy, engine):
            proxy.answers.hold()
            await asyncio.ensure_future(fail_together())
            proxy.answers.release()
            await asyncio.ensure_future(succeed())


# Not on uvloop: 0.22 hands Python 3.13's factory an argument that it does not know.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks_are_merged_as_well(cluster: SharedCluster) -> None:
    if sys.version_info >= (3, 12):
        keys = new_keys(1000)
        await cluster.put(keys[::2])
        loop = asyncio.get_running_loop()
        async with am.connect(cluster.address) as engine:
            loop.set_task_factory(asyncio.eager_task_factory)
            try:
                for _ in range(2):
                    before = engine.stats().calls
                    assert await outcomes(engine.exists(key) for key in keys) == [True, False] * 500
                    assert engine.stats().calls - before <= 4
                (wrong,) = await outcomes([engine.exists("\ud800")])
                assert isinstance(wrong, InvalidKeyError)
            finally:
                loop.set_task_factory(None)


# ---- errors="miss" ------------------------------------------------------------------------------------------------


async def test_an_engine_that_may_miss_starts_without_a_master_and_finds_it(
    cluster: SharedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    hit, *keys = new_keys(50)
    await cluster.put(hit)
    async with FaultProxy(*host_and_port(cluster.address)) as proxy:
        proxy.refuse()
        async with am.connect(proxy.address, errors="miss") as engine:
            assert proxy.address in caplog.text
            for _ in range(20):
                assert await outcomes(engine.exists(key) for key in [hit, *keys]) == [False] * 50
                assert (await engine.batch_exists([hit, *keys])).tolist() == [False] * 50
                assert await engine.prefix_length([hit, *keys]) == 0
            assert engine.stats().degraded == 20 * 52
            warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert 1 <= len(warned) <= 3
            with pytest.raises(ConfigError):
                await engine.exists("a", timeout=-1)
            proxy.resume()
            with anyio.fail_after(HANG):
                while not await engine.exists(hit):
                    await anyio.sleep(0.005)
            degraded = engine.stats().degraded
            assert (await engine.batch_exists([hit, *keys])).tolist() == [True] + [False] * 49
            with pytest.raises(InvalidKeyError):
                await engine.exists("\ud800")
            assert engine.stats().degraded == degraded
        with pytest.raises(ClosedError):
            await engine.exists(hit)


async def test_an_engine_that_may_miss_starts_with_a_hung_master() -> None:
    async with ScriptedPeer(stay_silent) as peer, am.connect(peer.address, errors="miss", timeout=0.05) as engine:
        assert await engine.exists("a") is False
        assert await engine.prefix_length(["a"]) == 0
        assert engine.stats().degraded == 2


# ---- at rest ------------------------------------------------------------------------------------------------------


def timers() -> dict[int, object]:
    """The timers of every loop here that are still to come."""
    gc.collect()
    handles = [each for each in gc.get_objects() if type(each).__name__ == "TimerHandle"]
    return {id(handle): handle for handle in handles if not handle.cancelled()}


async def test_an_idle_engine_has_no_timers_and_wakes_nobody() -> None:
    async with with_fake_master(timeout=0.4) as (_, _, engine):
        before = timers()
        await outcomes(engine.exists(key) for key in new_keys(300))
        await engine.batch_exists(new_keys(5000))
        await engine.prefix_length(new_keys(5000))
        for _ in range(1000):
            if not timers().keys() - before.keys():
                break
            await anyio.sleep(0.02)
        assert not timers().keys() - before.keys()
        # Each wait for events gives up the processor once.
        woken = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        await asyncio.sleep(0.3)
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - woken < 30


async def test_the_loops_thread_is_the_only_one(cluster: SharedCluster) -> None:
    def threads() -> tuple[set[threading.Thread], set[str]]:
        return set(threading.enumerate()), set(os.listdir("/proc/self/task"))

    before = threads()
    async with am.connect(cluster.address, connections=4) as engine:
        asked = [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(1000)]
        asked.append(asyncio.ensure_future(outcome(engine.batch_exists(new_keys(10_000)))))  # type: ignore[arg-type]
        while not all(task.done() for task in asked):
            now = threads()
            assert now[0] <= before[0]
            assert now[1] <= before[1]
            await asyncio.sleep(0)


@pytest.fixture
def dead_address() -> str:
    return "127.0.0.1:9"


async def test_warnings_of_a_failed_connect_are_none(dead_address: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with pytest.raises(ConnectError):
                await am.connect(dead_address)
            gc.collect()


async def test_failed_questions_leave_no_garbage(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.refuse()
        await proxy.cut()
        await until(lambda: engine.stats().connections_open == 0)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert isinstance(await outcome(engine.exists("a")), ConnectError)
            before = len(gc.get_objects())
            for _ in range(200):
                with pytest.raises(ConnectError):
                    await engine.exists("a")
            assert len(gc.get_objects()) - before < 2000
        finally:
            gc.enable()
        proxy.resume()
        assert not await answer_soon(engine, "a")
