"""Short questions beside long ones, and long ones beside each other (promise 5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomooncake.reply import HIT

from ..fakes import FakeChannel, FakeTransport
from .callers import Callers, numbered, turn

pytestmark = pytest.mark.anyio

HUGE = 300_000


@pytest.mark.parametrize(("channels", "slots"), [(1, 1), (1, 2), (2, 2)])
async def test_a_short_question_behind_a_huge_one_waits_for_the_calls_in_flight_at_most(
    channels: int, slots: int
) -> None:
    callers = Callers(FakeTransport(channels=channels, slots=slots))
    transport = callers.transport
    transport.present = {"short"}
    huge = await callers.start_many(numbered(HUGE))
    for _ in range(3):  # in the middle of it as well as at its start
        ahead = list(transport.out)
        short = await callers.start("short")
        while not short.done():
            assert any(not call.over for call in ahead) or ("short",) in [call.keys for call in transport.out]
            transport.answer()
            await turn()
        assert await short
    assert not huge.done()
    transport.answer_all()
    assert (await huge).bits == bytes(HUGE)


async def test_with_several_channels_one_carries_no_part_of_a_huge_question() -> None:
    callers = Callers(FakeTransport(channels=2, slots=2))
    transport = callers.transport
    huge = await callers.start_many(numbered(HUGE))
    assert len(transport.out) == 2
    future = callers.coalescer.ask_one("short", None)
    await turn()
    assert transport.out[-1].keys == ("short",)
    assert transport.out[-1].channel is not transport.out[0].channel
    transport.answer(transport.out[-1])
    assert await future is False
    transport.answer_all()
    await huge


async def test_the_first_slot_that_is_free_is_for_a_short_question_that_came_later() -> None:
    callers = Callers()
    tasks: list[asyncio.Task[Any]] = [await callers.start("blocker"), await callers.start_many(numbered(HUGE))]
    tasks.append(await callers.start("short"))
    callers.transport.answer()
    assert callers.transport.keys_sent[1:] == [("short",)]
    callers.transport.answer_all()
    await asyncio.gather(*tasks)


async def test_a_short_question_never_shares_a_call_with_a_long_one() -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    tasks = [await callers.start_many(numbered(129)), await callers.start_many(numbered(128, "other"))]
    tasks.append(await callers.start_many(["short"]))
    callers.transport.answer_all()
    assert sorted(map(len, callers.transport.keys_sent)) == [1, 129, 129]
    await asyncio.gather(blocker, *tasks)


async def test_a_huge_question_gets_every_other_slot_while_short_ones_keep_coming() -> None:
    callers = Callers(max_batch_keys=1000)
    transport = callers.transport
    blocker = await callers.start("blocker")
    huge = await callers.start_many(numbered(10_000))
    short = []
    while not huge.done():
        short.append(await callers.start("short"))
        transport.answer()
        await turn()
    assert len(short) <= 2 * 10 + 2
    assert (await huge).bits == bytes(10_000)
    transport.answer_all()
    await asyncio.gather(blocker, *short)


async def test_long_questions_take_turns() -> None:
    callers = Callers(max_batch_keys=1024)
    transport = callers.transport
    blocker = await callers.start("blocker")
    huge = await callers.start_many(numbered(100_000, "huge"))
    transport.present = set(numbered(512, "long"))
    long = await callers.start_many(numbered(512, "long"))
    transport.answer()
    assert len(set(transport.out[0].keys) & transport.present) == 512
    assert len(transport.out[0].keys) == 1024
    transport.answer()
    assert (await long).bits == bytes((HIT,)) * 512
    assert len(transport.sent) == 3
    transport.answer_all()
    assert (await huge).bits == bytes(100_000)
    await blocker


async def test_a_long_question_of_half_a_batch_is_asked_whole_before_those_that_came_later() -> None:
    callers = Callers(max_batch_keys=2048)
    transport = callers.transport
    tasks: list[asyncio.Task[Any]] = [await callers.start("blocker")]
    tasks += [await callers.start_many(numbered(1024, f"question {number}")) for number in range(6)]
    for pair in ((1, 2), (3, 4), (5, 6)):
        transport.answer()
        await turn()
        assert [task.done() for task in tasks] == [True] * pair[0] + [False] * (7 - pair[0])
        assert transport.out[0].keys == (
            *numbered(1024, f"question {pair[0] - 1}"),
            *numbered(1024, f"question {pair[1] - 1}"),
        )
    transport.answer_all()
    await asyncio.gather(*tasks)


async def test_long_questions_are_spread_over_the_channels_so_that_all_carry_as_much() -> None:
    callers = Callers(FakeTransport(channels=2, slots=4))
    transport = callers.transport

    def carried() -> list[int]:
        return sorted(sum(len(call.keys) for call in transport.out if call.channel is channel) for channel in channels)

    first = await callers.start_many(numbered(800, "first"))
    channels = {call.channel for call in transport.out}
    assert carried() == [400, 400]
    second, third = (asyncio.create_task(callers.ask(numbered(700, name))) for name in ("second", "third"))
    await turn()
    assert carried() == [1100, 1100]
    assert [len(call.keys) for call in transport.out] == [400, 400, 700, 700]
    transport.answer_all()
    await asyncio.gather(first, second, third)


async def test_a_large_question_fills_its_batches_to_the_last() -> None:
    callers = Callers(FakeTransport(channels=3, slots=2), max_batch_keys=2048)
    task = await callers.start_many(numbered(20_000))
    callers.transport.answer_all()
    assert [len(keys) for keys in callers.transport.keys_sent] == [2048] * 9 + [20_000 - 9 * 2048]
    await task


@pytest.mark.parametrize(("keys", "parts"), [(300, [300]), (383, [383]), (384, [256, 128]), (512, [256, 256])])
async def test_a_question_is_not_cut_for_a_crumb(keys: int, parts: list[int]) -> None:
    callers = Callers(FakeTransport(channels=2))
    task = await callers.start_many(numbered(keys))
    assert [len(call.keys) for call in callers.transport.out] == parts
    callers.transport.answer_all()
    await task


async def test_no_question_is_begun_with_a_crumb() -> None:
    callers = Callers(max_batch_keys=1000)
    blocker = await callers.start("blocker")
    tasks = [await callers.start_many(numbered(475, name)) for name in "abcdefghijkl"]
    callers.transport.answer_all()
    assert [len(keys) for keys in callers.transport.keys_sent] == [1, *[950] * 6]
    await asyncio.gather(blocker, *tasks)


async def test_a_call_of_long_questions_passes_over_one_that_nobody_waits_for() -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    first, given_up, third = [await callers.start_many(numbered(300, name)) for name in ("first", "other", "third")]
    given_up.cancel()
    await turn()
    callers.transport.answer()
    assert set(callers.transport.out[0].keys) == {*numbered(300, "first"), *numbered(300, "third")}
    callers.transport.answer()
    await asyncio.gather(blocker, first, third)


async def test_an_idle_coalescer_may_use_the_channel_that_is_kept_for_short_questions() -> None:
    class NoRoomForBulk(FakeTransport):
        def channel(self, *, bulk: bool) -> FakeChannel | None:
            return None if bulk else super().channel(bulk=False)

    callers = Callers(NoRoomForBulk())
    future = callers.coalescer.ask_one("short", None)
    assert callers.transport.keys_sent == [("short",)]
    callers.transport.answer()
    assert await future is False


async def test_a_lone_long_question_fills_its_calls() -> None:
    callers = Callers(max_batch_keys=1000)
    task = await callers.start_many(numbered(3500))
    callers.transport.answer_all()
    assert list(map(len, callers.transport.keys_sent)) == [1000, 1000, 1000, 500]
    await task


async def test_short_questions_are_sent_in_the_order_in_which_they_were_asked() -> None:
    callers = Callers(max_batch_keys=2)
    tasks = [await callers.start(key) for key in numbered(7)]
    callers.transport.answer_all()
    assert [key for keys in callers.transport.keys_sent for key in keys] == numbered(7)
    await asyncio.gather(*tasks)
