"""How a coalescer ends, gently or at once, and that nobody is left waiting (promise 8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomooncake.errors import ClosedError, ConnectError, RequestTimeout

from ..fakes import FakeTransport, JumpingLoop, run_jumping
from .callers import Callers, numbered, turn

pytestmark = pytest.mark.anyio


async def everybody(callers: Callers) -> list[asyncio.Task[Any]]:
    """One who was sent, and some who wait in the queue and outside."""
    tasks: list[asyncio.Task[Any]] = [await callers.start("sent"), await callers.start("queued")]
    tasks += [await callers.start_many(numbered(count)) for count in (2, 300, 400)]
    tasks.append(await callers.start("queued too"))
    assert callers.place == (304, 1, 1)
    return tasks


async def test_closing_waits_until_everybody_here_is_answered() -> None:
    callers = Callers(max_pending_keys=500)
    tasks = await everybody(callers)
    closing = asyncio.create_task(callers.coalescer.aclose())
    await turn()
    while callers.transport.out:
        assert not closing.done()
        callers.transport.answer()
    await closing
    outcomes = await asyncio.gather(*tasks)
    assert [outcome if isinstance(outcome, bool) else len(outcome.bits) for outcome in outcomes] == [
        False,
        False,
        2,
        300,
        400,
        False,
    ]
    assert callers.place == (0, 0, 0)


@pytest.mark.parametrize("method", ["ask_one", "ask"])
async def test_a_closing_or_closed_coalescer_takes_no_questions(method: str) -> None:
    callers = Callers()
    task = await callers.start("key")
    closing = asyncio.create_task(callers.coalescer.aclose())
    await turn()
    for _ in range(2):
        with pytest.raises(ClosedError, match=r"^this engine is closed"):
            getattr(callers.coalescer, method)(["key"], None)
        callers.transport.answer_all()
        await closing
    assert await task is False


async def test_an_idle_coalescer_closes_at_once() -> None:
    callers = Callers()
    await callers.coalescer.aclose()
    await callers.coalescer.aclose()
    assert callers.place == (0, 0, 0)


@pytest.mark.parametrize("timeout", [0.5, None], ids=["half a second", "no limit"])
def test_closing_ends_at_its_limit_and_fails_who_is_left(timeout: float | None) -> None:
    async def run() -> None:
        callers = Callers(max_pending_keys=500, timeout=timeout)
        tasks = await everybody(callers)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await callers.coalescer.aclose()
        assert loop.time() - started == pytest.approx(timeout or 5.0)
        assert not tasks[0].done()  # the one whose call is out is the transport's to end
        callers.transport.abort()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClosedError] * 6
        assert len({id(outcome) for outcome in outcomes}) == 6
        assert callers.place == (0, 0, 0)

    run_jumping(run())


async def test_closing_that_is_cancelled_fails_who_is_left_at_once() -> None:
    callers = Callers(max_pending_keys=500)
    tasks = await everybody(callers)
    closing = asyncio.create_task(callers.coalescer.aclose())
    await turn()
    closing.cancel()
    outcomes = await asyncio.gather(closing, *tasks[1:], return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [type(outcome) for outcome in outcomes[1:]] == [ClosedError] * 5
    callers.transport.abort()
    with pytest.raises(ClosedError):
        await tasks[0]


async def test_abort_fails_everybody_who_was_not_sent() -> None:
    callers = Callers(max_pending_keys=500)
    tasks = await everybody(callers)
    callers.coalescer.abort()
    callers.coalescer.abort()
    outcomes = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClosedError] * 5
    callers.transport.answer()
    assert await tasks[0] is False


async def test_abort_forgets_a_batch_that_was_about_to_leave() -> None:
    callers = Callers(FakeTransport(slots=2))
    first = callers.coalescer.ask_one("first", 1.0)
    second = callers.coalescer.ask_one("second", 1.0)
    callers.coalescer.abort()
    await turn()
    assert callers.transport.keys_sent == [("first",)]
    with pytest.raises(ClosedError, match=r"^the engine was closed before the question was sent"):
        await second
    callers.transport.answer()
    assert await first is False


def test_abort_leaves_no_timer_behind() -> None:
    loop = JumpingLoop()
    try:
        callers = loop.inside(lambda: Callers(linger=60.0))
        tasks: list[asyncio.Task[Any]] = [loop.create_task(callers.exists("key", 30.0))]
        tasks.append(loop.create_task(callers.ask(["key"], 40.0)))
        loop.turn()
        loop.inside(callers.coalescer.abort)
        loop.turn()
        assert [type(task.exception()) for task in tasks] == [ClosedError] * 2
        started = loop.now
        with pytest.raises(AssertionError, match="nothing is going to happen"):
            loop.run_forever()
        assert loop.now == started
    finally:
        loop.close()


@pytest.mark.parametrize("end", ["lost", "away"])
def test_closing_does_not_wait_for_a_master_that_is_gone(end: str) -> None:
    async def run() -> None:
        callers = Callers(timeout=60.0)
        sent, queued = await callers.start("sent"), await callers.start("queued")
        closing = asyncio.create_task(callers.coalescer.aclose())
        await turn()
        loop = asyncio.get_running_loop()
        started = loop.time()
        callers.transport.refuse_when_lost = end == "away"
        callers.transport.lose()
        if end == "lost":
            callers.transport.give_up()
        await closing
        assert loop.time() == started
        outcomes = await asyncio.gather(sent, queued, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectError, ConnectError]

    run_jumping(run())


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_closing_does_not_wait_for_calls_for_which_nobody_waits(moment: str) -> None:
    async def run() -> None:
        callers = Callers(timeout=60.0)
        tasks: list[asyncio.Task[Any]] = [await callers.start("key", 1.0) for _ in range(3)]
        tasks += [await callers.start_many(numbered(300), 1.0)]
        loop = asyncio.get_running_loop()
        started = loop.time()
        if moment == "before":
            await asyncio.sleep(2)
        await callers.coalescer.aclose()
        assert loop.time() - started < 3
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RequestTimeout] * 4
        callers.transport.abort()
        assert callers.place == (0, 0, 0)

    run_jumping(run())


def test_closing_sends_what_lingers() -> None:
    async def run() -> None:
        callers = Callers(FakeTransport(automatic=True), linger=0.25)
        task = await callers.start("key")
        await callers.coalescer.aclose()
        assert await task is False

    run_jumping(run())
