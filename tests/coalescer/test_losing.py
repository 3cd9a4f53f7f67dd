"""The transport is lost, comes back, or refuses: every waiter ends (promise 8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomooncake.errors import ConnectError, ConnectionLostError, InvalidKeyError, WrongLoopError

from ..fakes import FakeTransport
from .callers import Callers, numbered, turn

pytestmark = pytest.mark.anyio


async def test_what_was_sent_on_a_lost_connection_is_asked_again_before_what_was_not() -> None:
    callers = Callers(FakeTransport(slots=2), max_batch_keys=2)
    transport = callers.transport
    sent: list[asyncio.Task[Any]] = [await callers.start(key) for key in numbered(2)]
    queued = [await callers.start(key) for key in numbered(3, "queued")]
    first = set(transport.keys_sent)
    transport.lose()
    await turn()
    assert not any(task.done() for task in sent)
    assert callers.place == (5, 0, 0)
    transport.present.update(numbered(2))
    transport.come_back()
    assert set(transport.keys_sent[2:4]) == first
    transport.answer_all()
    assert await asyncio.gather(*sent) == [True] * 2
    assert await asyncio.gather(*queued) == [False] * 3
    assert callers.place == (0, 0, 0)


async def test_a_question_whose_connection_is_lost_three_times_fails() -> None:
    callers = Callers(max_batch_keys=2)
    tasks: list[asyncio.Task[Any]] = [await callers.start(key) for key in numbered(3)]
    callers.transport.answer()
    await turn()
    assert tasks[0].done()
    for _ in range(3):
        assert not tasks[1].done()
        callers.transport.lose()
        callers.transport.come_back()
        await turn()
    outcomes = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLostError] * 2
    assert outcomes[0] is not outcomes[1]
    assert len(callers.transport.sent) == 4
    assert callers.place == (0, 0, 0)


async def test_who_stopped_waiting_is_not_asked_for_again() -> None:
    callers = Callers()
    first = await callers.start("first")
    tasks = [await callers.start(key) for key in numbered(3)]
    callers.transport.answer()
    tasks[1].cancel()
    await turn()
    callers.transport.lose()
    callers.transport.come_back()
    assert callers.transport.keys_sent[-1] == ("key-0", "key-2")
    callers.transport.answer_all()
    assert [await tasks[0], await tasks[2], await first] == [False, False, False]
    assert callers.place == (0, 0, 0)


async def test_a_long_question_goes_on_where_the_connection_that_carried_a_part_of_it_was_lost() -> None:
    callers = Callers(max_batch_keys=300)
    task = await callers.start_many(numbered(1000))
    callers.transport.answer()
    callers.transport.lose()
    callers.transport.present.update(numbered(1000)[300:])
    callers.transport.come_back()
    callers.transport.answer_all()
    assert (await task).bits == bytes(300) + b"\1" * 700
    assert [len(keys) for keys in callers.transport.keys_sent] == [300, 300, 300, 300, 100]
    assert callers.place == (0, 0, 0)


async def test_questions_wait_while_a_connection_is_being_made() -> None:
    callers = Callers()
    callers.transport.lose()
    tasks = [await callers.start(key) for key in numbered(3)]
    assert callers.place == (3, 0, 0)
    callers.transport.come_back()
    callers.transport.answer_all()
    assert await asyncio.gather(*tasks) == [False] * 3


async def test_whoever_waits_is_told_that_no_connection_can_be_made() -> None:
    callers = Callers(max_pending_keys=700)
    callers.transport.lose()
    tasks: list[asyncio.Task[Any]] = [await callers.start(key) for key in numbered(2)]
    tasks += [await callers.start_many(numbered(count)) for count in (3, 600, 300)]
    tasks.append(await callers.start("outside"))
    assert callers.coalescer.lobby_size == 1
    callers.transport.give_up()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectError] * 6
    assert len({id(outcome) for outcome in outcomes}) == 6
    assert callers.place == (0, 0, 0)


async def test_who_asks_after_that_is_told_at_once_though_a_call_is_still_out() -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    waiting = await callers.start("waiting")
    callers.transport.give_up()
    with pytest.raises(ConnectError):
        await waiting
    later = await callers.start("later")
    with pytest.raises(ConnectError):
        await later
    callers.transport.answer()
    assert await blocker is False


async def test_a_master_that_is_away_is_told_at_once() -> None:
    callers = Callers()
    callers.transport.lose()
    callers.transport.give_up()
    with pytest.raises(ConnectError, match="away"):
        await callers.exists("key")
    with pytest.raises(ConnectError, match="away"):
        await callers.ask(numbered(2))
    outcomes = await asyncio.gather(*map(callers.exists, numbered(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectError] * 5
    assert callers.place == (0, 0, 0)
    callers.transport.come_back()
    task = await callers.start("key")
    callers.transport.answer_all()
    assert await task is False


async def test_a_master_found_away_as_calls_are_lost_ends_the_queue_too() -> None:
    callers = Callers()
    sent = await callers.start("sent")
    queued = await callers.start("queued")
    callers.transport.refuse_when_lost = True
    callers.transport.lose()
    outcomes = await asyncio.gather(sent, queued, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectError, ConnectError]
    assert callers.place == (0, 0, 0)


async def test_who_is_told_of_a_loss_may_ask_again_at_once() -> None:
    callers = Callers()
    transport = callers.transport

    async def ask_until_answered(key: str) -> int:
        for attempt in range(10):
            try:
                await callers.exists(key)
            except (ConnectionLostError, ConnectError):
                continue
            return attempt
        raise AssertionError("never answered")

    tasks = [asyncio.create_task(ask_until_answered(f"key-{number}")) for number in range(20)]
    await turn()
    for _ in range(3):
        transport.lose()
        await turn()
        transport.come_back()
        await turn()
    for _ in range(3):
        transport.answer_all()
        await turn()
    assert set(await asyncio.gather(*tasks)) <= {0, 1, 2, 3}


@pytest.mark.parametrize("method", ["ask_one", "ask"])
async def test_another_loop_or_none_is_refused(method: str) -> None:
    callers = Callers()

    def ask() -> None:
        getattr(callers.coalescer, method)("key" if method == "ask_one" else ["key"], None)

    async def ask_here() -> None:
        ask()

    def on_another_loop() -> None:
        loop = asyncio.SelectorEventLoop()
        try:
            loop.run_until_complete(ask_here())
        finally:
            loop.close()

    with pytest.raises(WrongLoopError, match=r"^this engine belongs to another event loop"):
        await asyncio.to_thread(on_another_loop)
    with pytest.raises(WrongLoopError, match=r"^this engine must be used on its event loop, and here none is running"):
        await asyncio.to_thread(ask)
    assert callers.place == (0, 0, 0)
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_what_a_fork_inherited_is_refused() -> None:
    callers = Callers()
    callers.coalescer.leave_behind()
    with pytest.raises(WrongLoopError, match=r"^this engine was made before a fork, in the parent process; connect"):
        await callers.exists("key")
    assert callers.place == (0, 0, 0)


async def test_after_an_abort_a_lost_call_is_not_asked_again() -> None:
    callers = Callers()
    task = await callers.start("key")
    callers.coalescer.abort()
    callers.transport.lose()
    with pytest.raises(ConnectionLostError):
        await task
    assert callers.place == (0, 0, 0)


@pytest.mark.parametrize("gone", ["away", "bad key"])
async def test_a_question_that_fails_while_it_is_being_queued_leaves_nothing_behind(gone: str) -> None:
    callers = Callers(FakeTransport(slots=2), max_batch_keys=10)
    transport = callers.transport
    keys: list[Any] = numbered(64)
    blocker = await callers.start("blocker")
    if gone == "away":
        transport.refuses = True
    else:
        keys[3] = None
    task = await callers.start_many(keys)
    with pytest.raises(ConnectError if gone == "away" else InvalidKeyError):
        await task
    transport.answer_all()
    await blocker
    assert transport.keys_sent == [("blocker",)]
    assert callers.place == (0, 0, 0)
