"""`max_pending_keys`: what waits outside or is refused, who gets in first, who frees a place (promise 6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomooncake.errors import OverloadedError, RequestTimeout

from ..fakes import FakeTransport, run_jumping
from .callers import Callers, numbered, turn

pytestmark = pytest.mark.anyio


async def test_what_finds_no_place_waits_outside_and_gets_in_in_order() -> None:
    callers = Callers(max_pending_keys=3, max_batch_keys=2)
    transport = callers.transport
    blocker = await callers.start("blocker")
    tasks = [await callers.start(key) for key in numbered(9)]
    assert callers.place == (3, 6, 1)
    while transport.out:
        assert callers.coalescer.pending_keys <= 3
        transport.answer()
    await asyncio.gather(blocker, *tasks)
    assert [key for keys in transport.keys_sent[1:] for key in keys] == numbered(9)
    assert callers.place == (0, 0, 0)


@pytest.mark.parametrize("many", [False, True], ids=["one key", "several keys"])
async def test_nobody_overtakes_who_waits_outside(many: bool) -> None:
    callers = Callers(max_pending_keys=10)
    blocker = await callers.start("blocker")
    first = await callers.start_many(numbered(8))
    large = await callers.start_many(numbered(5, "large"))
    # It would fit, were it not for the large one.
    small: asyncio.Task[Any] = await (callers.start_many(["small"]) if many else callers.start("small"))
    assert callers.place == (8, 2, 1)
    callers.transport.answer_all()
    await asyncio.gather(blocker, first, large, small)
    assert list(map(len, callers.transport.keys_sent)) == [1, 8, 6]


@pytest.mark.parametrize("max_batch_keys", [1, 5, 300])
@pytest.mark.parametrize("size", [1, 7, 256])
async def test_who_is_let_in_is_asked_for_once(max_batch_keys: int, size: int) -> None:
    callers = Callers(FakeTransport(slots=2), max_pending_keys=600, max_batch_keys=max_batch_keys, dedup=False)
    transport = callers.transport
    transport.pause()
    tasks: list[asyncio.Task[Any]] = [
        await (callers.start(f"{number}-0") if size == 1 else callers.start_many(numbered(size, str(number))))
        for number in range(1400 // size)
    ]
    assert callers.coalescer.lobby_size
    transport.resume()  # with more than one slot, for which those who are let in may be large enough
    while transport.out:
        transport.answer()
        assert callers.coalescer.pending_keys <= 600
    await asyncio.gather(*tasks)
    asked = [key for keys in transport.keys_sent for key in keys]
    assert len(asked) == len(set(asked)) == 1400 // size * size
    assert callers.place == (0, 0, 0)


async def test_every_place_is_given_away() -> None:
    callers = Callers(max_pending_keys=10, max_batch_keys=4)
    coalescer = callers.coalescer
    tasks: list[asyncio.Task[Any]] = [await callers.start("blocker"), await callers.start("first")]
    tasks.append(await callers.start_many(numbered(9)))
    assert callers.place == (10, 0, 1)
    tasks += [await callers.start(key) for key in numbered(20, "outside")]
    while callers.transport.out:
        assert coalescer.pending_keys == 10 or not coalescer.lobby_size
        callers.transport.answer()
    await asyncio.gather(*tasks)


async def test_a_full_queue_refuses_when_told_to() -> None:
    callers = Callers(max_pending_keys=3, overload="raise")
    tasks = [await callers.start("blocker"), *[await callers.start(key) for key in numbered(3)]]
    with pytest.raises(OverloadedError, match=r"3 keys wait.*1 more.*max_pending_keys=3"):
        await callers.exists("more", 1.0)
    with pytest.raises(OverloadedError):
        await callers.ask(["more", "and more"], 1.0)
    assert callers.counters.refused == 2
    assert callers.place == (3, 0, 1)
    callers.transport.answer_all()
    await asyncio.gather(*tasks)
    assert callers.transport.keys_sent == [("blocker",), tuple(numbered(3))]
    task = await callers.start("more")
    callers.transport.answer()
    assert await task is False


@pytest.mark.parametrize("overload", ["wait", "raise"])
async def test_a_question_that_could_never_fit_is_let_in_when_nothing_else_waits(overload: str) -> None:
    callers = Callers(max_pending_keys=3, max_batch_keys=4, overload=overload)
    task = await callers.start_many(numbered(10))
    assert callers.place == (6, 0, 1)
    callers.transport.answer_all()
    assert (await task).bits == bytes(10)
    assert callers.place == (0, 0, 0)


async def test_a_question_that_could_never_fit_waits_outside_until_then() -> None:
    callers = Callers(max_pending_keys=3, max_batch_keys=4)
    blocker = await callers.start("blocker")
    waiting = await callers.start("waiting")
    large = await callers.start_many(numbered(10))
    behind = await callers.start("behind")
    assert callers.place == (1, 2, 1)
    callers.transport.answer_all()
    assert (await large).bits == bytes(10)
    await asyncio.gather(blocker, waiting, behind)


@pytest.mark.parametrize("count", [1, 30, 2000])
async def test_cancelled_questions_free_their_places_in_the_queue(count: int) -> None:
    callers = Callers(max_pending_keys=count, overload="raise", max_batch_keys=8)
    blocker = await callers.start("blocker")
    tasks = [asyncio.create_task(callers.exists(key)) for key in numbered(count)]
    await turn()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    fresh = [await callers.start(key) for key in numbered(count, "fresh")[:100]]
    callers.transport.answer_all()
    assert await asyncio.gather(*fresh) == [False] * len(fresh)
    await blocker
    assert not set(numbered(count)) & {key for keys in callers.transport.keys_sent for key in keys}


@pytest.mark.parametrize("size", [200, 5000])
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_one_large_question_that_ended_frees_its_places(size: int, end: str) -> None:
    async def run() -> None:
        callers = Callers(max_pending_keys=size, overload="raise")
        blocker = await callers.start("blocker")
        task = await callers.start_many(numbered(size), 1.0)
        assert callers.coalescer.pending_keys == size
        if end == "cancelled":
            task.cancel()
        else:
            await asyncio.sleep(2)
        await asyncio.gather(task, return_exceptions=True)
        future = callers.coalescer.ask(numbered(size, "other"), None)
        callers.transport.answer_all()
        assert (await future).bits == bytes(size)
        await blocker

    run_jumping(run())


async def test_a_cancelled_large_question_lets_in_who_waited_outside() -> None:
    callers = Callers(FakeTransport(channels=2, slots=2), max_pending_keys=1000)
    transport = callers.transport
    huge = await callers.start_many(numbered(10_000))
    other = await callers.start_many(numbered(5000, "other"))
    assert callers.place == (10_000 - 2 * 2048, 1, 2)
    huge.cancel()
    transport.answer()
    await turn(3)
    assert transport.keys_sent[2][0] == "other-0"
    transport.answer_all()
    assert (await other).bits == bytes(5000)


async def test_long_questions_that_fill_the_queue_keep_no_short_one_out() -> None:
    callers = Callers(FakeTransport(channels=2), max_pending_keys=1000)
    huge = [await callers.start_many(numbered(5000, str(number))) for number in range(3)]
    assert callers.place == (5000 - 2048, 2, 1)
    short = [await callers.start("short"), await callers.start_many(numbered(2))]
    assert callers.transport.keys_sent[1:] == [("short",)]
    callers.transport.answer(callers.transport.out[1])
    await turn()
    assert callers.transport.keys_sent[2:] == [("key-0", "key-1")]
    callers.transport.answer_all()
    await asyncio.gather(*short, *huge)
    assert callers.place == (0, 0, 0)


async def test_long_questions_in_the_queue_take_no_places_of_short_ones() -> None:
    callers = Callers(max_pending_keys=1000, overload="raise")
    tasks: list[asyncio.Task[Any]] = [await callers.start("blocker")]
    tasks += [await callers.start_many(numbered(size, "long")) for size in (300, 400)]
    tasks += [await callers.start_many(numbered(125, f"short {number}")) for number in range(4)]
    tasks += [await callers.start_many(numbered(128, "longest short"))]
    tasks += [await callers.start(key) for key in numbered(372)]
    assert callers.place == (1700, 0, 1)
    for ask in (callers.exists("more"), callers.ask(numbered(128)), callers.ask(numbered(129))):
        with pytest.raises(OverloadedError):
            await ask
    callers.transport.answer_all()
    await asyncio.gather(*tasks)
    assert callers.place == (0, 0, 0)


async def test_no_long_question_overtakes_one_that_waits_outside() -> None:
    callers = Callers(max_pending_keys=1000)
    tasks: list[asyncio.Task[Any]] = [await callers.start("blocker")]
    tasks += [await callers.start_many(numbered(size, str(size))) for size in (600, 500, 300)]
    assert callers.place == (600, 2, 1)  # the last one would fit, were it not for the one before
    tasks.append(await callers.start_many(numbered(128)))
    assert callers.place == (728, 2, 1)
    callers.transport.answer_all()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("size", [300, 2500, 5000])
@pytest.mark.parametrize("given_up", [False, True])
async def test_what_was_sent_of_long_questions_gives_short_ones_no_more_places(size: int, given_up: bool) -> None:
    callers = Callers(max_pending_keys=10, overload="raise")
    huge = await callers.start_many(numbered(size))
    left = max(0, size - 2048)
    if given_up and left:
        huge.cancel()
        await turn()
        left = 0  # it was large enough to be looked for
    tasks = [await callers.start(key) for key in numbered(10, "short")]
    assert callers.place == (left + 10, 0, 1)
    for ask in (callers.exists("more"), callers.ask(["more"])):
        with pytest.raises(OverloadedError):
            await ask
    callers.transport.answer_all()
    await asyncio.gather(huge, *tasks, return_exceptions=True)
    assert callers.place == (0, 0, 0)
    tasks = [await callers.start("blocker"), *[await callers.start(key) for key in numbered(10)]]
    with pytest.raises(OverloadedError):
        await callers.exists("more")
    callers.transport.answer_all()
    await asyncio.gather(*tasks)


async def test_a_long_question_given_up_in_the_queue_gives_its_places_back_once() -> None:
    callers = Callers(max_pending_keys=1000, overload="raise")
    blocker = await callers.start("blocker")
    first, given_up, third = [await callers.start_many(numbered(300, name)) for name in ("first", "other", "third")]
    given_up.cancel()
    await turn()
    callers.transport.answer_all()
    await asyncio.gather(blocker, first, third)
    assert callers.place == (0, 0, 0)
    tasks = [await callers.start("blocker"), *[await callers.start(key) for key in numbered(1000)]]
    with pytest.raises(OverloadedError):
        await callers.exists("more")
    callers.transport.answer_all()
    await asyncio.gather(*tasks)


def test_questions_whose_deadline_passed_free_their_places() -> None:
    async def run() -> None:
        callers = Callers(max_pending_keys=3, overload="raise")
        blocker = await callers.start("blocker")
        tasks = [await callers.start(key, 1.0) for key in numbered(3)]
        await asyncio.sleep(2)
        for task in tasks:
            with pytest.raises(RequestTimeout):
                await task
        fresh = [await callers.start(key) for key in numbered(3, "fresh")]
        callers.transport.answer_all()
        await asyncio.gather(blocker, *fresh)

    run_jumping(run())


async def test_who_gives_up_outside_is_not_let_in() -> None:
    callers = Callers(max_pending_keys=1)
    blocker = await callers.start("blocker")
    queued = await callers.start("queued")
    outside = [await callers.start(key) for key in numbered(3)]
    outside[1].cancel()
    await turn()
    callers.transport.answer_all()
    await asyncio.gather(blocker, queued, outside[0], outside[2])
    assert "key-1" not in [key for keys in callers.transport.keys_sent for key in keys]


@pytest.mark.parametrize("max_pending_keys", [1, 50, 1 << 20], ids=["outside", "both", "queued"])
@pytest.mark.parametrize("many", [False, True], ids=["one key", "long questions"])
async def test_while_the_master_hangs_cancelled_questions_do_not_pile_up(max_pending_keys: int, many: bool) -> None:
    callers = Callers(max_pending_keys=max_pending_keys)
    blocker = await callers.start("blocker")
    size = 300 if many else 1
    for _ in range(1000):
        task = await (callers.start_many(numbered(size)) if many else callers.start("key"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    pending, outside, in_flight = callers.place
    assert pending + size * outside <= 2 * (64 + size)
    assert in_flight == 1
    callers.transport.answer_all()
    await blocker
    assert callers.counters.cancelled == 1000
    assert callers.counters.calls == 1
    assert callers.place == (0, 0, 0)


@pytest.mark.parametrize("max_pending_keys", [1, 50, 1 << 20], ids=["outside", "both", "queued"])
@pytest.mark.parametrize("size", [1, 300], ids=["one key", "long questions"])
def test_while_the_master_hangs_expired_questions_do_not_pile_up(max_pending_keys: int, size: int) -> None:
    async def run() -> None:
        callers = Callers(max_pending_keys=max_pending_keys)
        blocker = await callers.start("blocker")
        for _ in range(200):
            task = await (callers.start("key", 0.5) if size == 1 else callers.start_many(numbered(size), 0.5))
            await asyncio.sleep(1)
            with pytest.raises(RequestTimeout):
                await task
        pending, outside, _ = callers.place
        assert pending + size * outside <= 2 * (64 + size)
        callers.transport.answer_all()
        await blocker
        assert callers.counters.timeouts == 200
        assert callers.place == (0, 0, 0)

    run_jumping(run())
