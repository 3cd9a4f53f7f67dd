"""Which questions travel together, when they leave, and how their answers find back (promises 1, 2 and 4)."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.errors import StoreError
from aiomooncake.reply import ERROR, HIT, MISS

from ..fakes import FakeTransport, run_jumping
from .callers import Callers, numbered, turn

if TYPE_CHECKING:
    from aiomooncake.wire.messages import Key

pytestmark = pytest.mark.anyio


# ---- when a question leaves ---------------------------------------------------------------------------------------


async def test_a_question_to_an_idle_coalescer_has_left_when_the_call_returns() -> None:
    callers = Callers()
    callers.transport.present = {"here"}
    future = callers.coalescer.ask_one("here", None)
    assert callers.transport.keys_sent == [("here",)]
    callers.transport.answer()
    assert future.result() is True


@pytest.mark.parametrize("count", [1, 64, 256, 257, 2048])
async def test_a_question_of_many_keys_to_an_idle_coalescer_leaves_as_it_is_asked(count: int) -> None:
    callers = Callers()
    future = callers.coalescer.ask(numbered(count), None)
    assert callers.transport.keys_sent == [tuple(numbered(count))]
    callers.transport.answer()
    assert future.result().bits == bytes(count)


async def test_an_idle_question_needs_no_callback_and_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers()
    loop = asyncio.get_running_loop()

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was scheduled")

    with monkeypatch.context() as patch:
        for name in ("call_soon", "call_later", "call_at"):
            patch.setattr(loop, name, refuse)
        future = callers.coalescer.ask_one("key", None)
        assert len(callers.transport.sent) == 1
        callers.transport.answer()
    assert await future is False


async def test_a_question_that_waits_for_a_slot_needs_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    waiting = await callers.start("waiting")
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patch:
        for name in ("call_soon", "call_later", "call_at"):
            patch.setattr(loop, name, None)
        futures = [callers.coalescer.ask_one(key, None) for key in numbered(300)]
    callers.transport.answer_all()
    await asyncio.gather(blocker, waiting, *futures)
    assert list(map(len, callers.transport.keys_sent)) == [1, 301]


async def test_questions_of_many_keys_gather_while_a_call_is_out() -> None:
    callers = Callers(FakeTransport(slots=2))
    blocker = await callers.start("blocker")
    questions = [callers.coalescer.ask([key, "shared"], None) for key in numbered(3)]
    await turn()
    assert callers.transport.keys_sent[1:] == [("key-0", "shared", "key-1", "key-2")]
    callers.transport.answer_all()
    await asyncio.gather(blocker, *questions)


async def test_questions_of_one_turn_leave_together_behind_the_first() -> None:
    callers = Callers(FakeTransport(slots=2))
    tasks = [asyncio.create_task(callers.exists(key)) for key in numbered(5)]
    await turn()
    assert callers.transport.keys_sent == [("key-0",), ("key-1", "key-2", "key-3", "key-4")]
    callers.transport.answer_all()
    assert await asyncio.gather(*tasks) == [False] * 5


async def test_what_waits_for_a_slot_leaves_in_the_moment_in_which_one_is_free() -> None:
    callers = Callers()
    tasks = [await callers.start(key) for key in numbered(4)]
    assert callers.place == (3, 0, 1)
    callers.transport.answer()
    assert callers.transport.keys_sent[1:] == [("key-1", "key-2", "key-3")]
    callers.transport.answer()
    await asyncio.gather(*tasks)


async def test_what_waits_leaves_when_the_transport_says_that_it_has_room() -> None:
    callers = Callers()
    callers.transport.pause()
    task = await callers.start("key")
    assert callers.place == (1, 0, 0)
    callers.transport.resume()
    assert callers.transport.keys_sent == [("key",)]
    callers.transport.answer()
    await task


@pytest.mark.parametrize("count", [2, 100])
async def test_callers_who_were_answered_together_gather_again(count: int) -> None:
    callers = Callers(FakeTransport(automatic=True, slots=4))

    async def ask_again_and_again(key: Key) -> None:
        for _ in range(20):
            await callers.exists(key)

    blocker = asyncio.create_task(callers.exists("blocker"))
    await asyncio.gather(*map(ask_again_and_again, numbered(count)))
    assert [len(keys) for keys in callers.transport.keys_sent] == [1] + [count] * 20
    await blocker


async def test_after_a_lone_question_the_coalescer_is_idle_again() -> None:
    callers = Callers(FakeTransport(automatic=True))
    await asyncio.gather(*map(callers.exists, numbered(3)))
    await callers.exists("gathers")  # for company that does not come
    before = len(callers.transport.sent)
    future = callers.coalescer.ask_one("key", None)
    assert len(callers.transport.sent) == before + 1
    await future


def test_a_question_lingers_for_company() -> None:
    async def run() -> None:
        callers = Callers(FakeTransport(automatic=True), linger=0.25)
        loop = asyncio.get_running_loop()
        started = loop.time()
        first = await callers.start("first")
        await asyncio.sleep(0.125)
        second = await callers.start("second")
        assert not callers.transport.sent
        await asyncio.gather(first, second)
        assert callers.transport.keys_sent == [("first", "second")]
        assert loop.time() == started + 0.25

    run_jumping(run())


def test_a_full_batch_does_not_linger() -> None:
    async def run() -> None:
        callers = Callers(FakeTransport(automatic=True), linger=0.25, max_batch_keys=3)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.gather(*map(callers.exists, numbered(3)))
        assert loop.time() == started
        assert callers.transport.keys_sent == [("key-0", "key-1", "key-2")]

    run_jumping(run())


def test_an_idle_coalescer_has_no_timer_and_no_callback() -> None:
    async def run() -> None:
        callers = Callers(FakeTransport(automatic=True))
        await asyncio.gather(*(callers.exists(key, 1.0) for key in numbered(100)))
        await asyncio.sleep(2)  # past the deadlines that nobody waits for any longer
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="nothing is going to happen"):  # says the loop's selector
        run_jumping(run())


# ---- how many calls -----------------------------------------------------------------------------------------------


async def test_of_many_questions_in_one_turn_the_first_are_on_their_way_before_the_last_is_asked() -> None:
    callers = Callers(FakeTransport(slots=9))
    futures = [callers.coalescer.ask_one(key, None) for key in numbered(1000)]
    assert list(map(len, callers.transport.keys_sent)) == [1, 256, 256]
    await turn()
    assert list(map(len, callers.transport.keys_sent)) == [1, 256, 256, 487]
    futures += [callers.coalescer.ask_one(key, None) for key in numbered(300)]
    assert list(map(len, callers.transport.keys_sent)) == [1, 256, 256, 487, 256]
    await turn()
    callers.transport.answer_all()
    assert await asyncio.gather(*futures) == [False] * 1300


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_a_thousand_callers_of_one_key_share_few_calls(channels: int, busy: bool) -> None:
    callers = Callers(FakeTransport(channels=channels, slots=2))
    transport = callers.transport
    keys = numbered(1000)
    transport.present = set(keys[::3])
    before = [await callers.start(key, None) for key in numbered(2 * channels if busy else 0, "before")]
    sent_before = len(transport.sent)
    tasks = [asyncio.create_task(callers.exists(key)) for key in keys]
    await turn()
    transport.answer_all()
    assert await asyncio.gather(*tasks) == [key in transport.present for key in keys]
    await asyncio.gather(*before)
    assert len(transport.sent) - sent_before <= 4
    assert callers.place == (0, 0, 0)


_THOUSAND_QUESTIONS = [numbered(64, f"caller-{number}") for number in range(1000)]


@pytest.mark.parametrize("max_batch_keys", [10, 63, 64, 100, 1000, 2048, 1 << 20])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_a_thousand_callers_of_64_keys_fill_their_batches(max_batch_keys: int, busy: bool) -> None:
    callers = Callers(FakeTransport(slots=2), max_batch_keys=max_batch_keys, dedup=False)
    transport = callers.transport
    questions = _THOUSAND_QUESTIONS
    transport.present = {keys[number % 64] for number, keys in enumerate(questions)}
    before = [await callers.start(key) for key in numbered(2 if busy else 0, "before")]
    sent_before = len(transport.sent)
    tasks = [asyncio.create_task(callers.ask(keys)) for keys in questions]
    await turn()
    transport.answer_all()
    for number, reply in enumerate(await asyncio.gather(*tasks)):
        assert reply.bits.find(HIT) == number % 64
        assert reply.bits.count(HIT) == 1
    await asyncio.gather(*before)
    assert len(transport.sent) - sent_before <= math.ceil(64000 / max_batch_keys) + 3
    assert max(map(len, transport.keys_sent)) <= max_batch_keys


async def test_long_questions_share_calls_as_well() -> None:
    callers = Callers(FakeTransport(automatic=True), max_batch_keys=1000)
    await asyncio.gather(*(callers.ask(numbered(300, f"caller-{number}")) for number in range(100)))
    assert len(callers.transport.sent) <= 34 + 3  # three whole ones a call


# ---- fresh --------------------------------------------------------------------------------------------------------


async def test_a_question_never_joins_a_call_that_was_sent_for_the_same_key() -> None:
    callers = Callers(FakeTransport(slots=2))
    transport = callers.transport
    first = await callers.start("key")
    transport.serve(transport.sent[0])
    transport.present.add("key")  # a put that completed while the first answer is on its way
    second = await callers.start("key")
    assert transport.keys_sent == [("key",), ("key",)]
    transport.answer_all()
    assert (await first, await second) == (False, True)


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_put_before_a_question_of_many_keys_is_seen_while_a_call_for_them_is_in_flight(slots: int) -> None:
    callers = Callers(FakeTransport(slots=slots))
    transport = callers.transport
    first = await callers.start_many(numbered(300))
    transport.serve(transport.sent[0])
    transport.present.update(numbered(300))
    second = await callers.start_many(numbered(300))
    transport.answer_all()
    assert (await first).bits == bytes(300)
    assert (await second).bits == bytes((HIT,)) * 300


# ---- exact --------------------------------------------------------------------------------------------------------


async def test_parts_of_a_question_are_put_together_in_key_order_however_they_arrive() -> None:
    callers = Callers(FakeTransport(slots=4), max_batch_keys=3)
    transport = callers.transport
    keys = numbered(10)
    transport.present = {"key-1", "key-5", "key-9"}
    transport.codes = {"key-0": -1, "key-4": -600, "key-8": -900}
    task = await callers.start_many(keys)
    for call in reversed(transport.out):
        transport.answer(call)
    reply = await task
    assert list(reply.bits) == [ERROR, HIT, MISS, MISS, ERROR, HIT, MISS, MISS, ERROR, HIT]
    assert reply.errors == {0: -1, 4: -600, 8: -900}


async def test_an_error_of_one_key_reaches_whom_it_concerns_at_the_right_place() -> None:
    callers = Callers()
    transport = callers.transport
    transport.present = {"hit"}
    transport.codes = {"bad": -1010, "worse": -704}
    blocker = await callers.start("blocker")
    lone = [await callers.start(key) for key in ("bad", "hit", "bad", "miss")]
    many = [await callers.start_many(keys) for keys in (["hit", "miss"], ["miss", "worse", "bad"], ["hit"])]
    transport.answer_all()
    assert len(transport.sent) == 2
    assert await lone[1] is True
    assert await lone[3] is False
    for task in (lone[0], lone[2]):
        with pytest.raises(StoreError) as caught:
            await task
        assert (caught.value.code, caught.value.key) == (-1010, "bad")
    assert await many[0] == (bytes((HIT, MISS)), {})
    assert await many[1] == (bytes((MISS, ERROR, ERROR)), {1: -704, 2: -1010})
    assert await many[2] == (bytes((HIT,)), {})
    await blocker


@given(
    questions=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=12),
    lone=st.lists(st.booleans(), min_size=12, max_size=12),
    present=st.sets(st.integers(0, 9)),
    codes=st.dictionaries(st.integers(0, 9), st.integers(-2000, -1)),
    max_batch_keys=st.integers(1, 20),
    slots=st.integers(1, 3),
    dedup=st.booleans(),
    data=st.data(),
)
def test_every_answer_is_what_the_master_says_of_that_key(
    questions: list[list[int]],
    lone: list[bool],
    present: set[int],
    codes: dict[int, int],
    max_batch_keys: int,
    slots: int,
    dedup: bool,
    data: st.DataObject,
) -> None:
    async def run() -> None:
        callers = Callers(FakeTransport(slots=slots), max_batch_keys=max_batch_keys, dedup=dedup)
        transport = callers.transport
        transport.present = {str(key) for key in present}
        transport.codes = {str(key): code for key, code in codes.items()}
        tasks = [
            asyncio.create_task(callers.exists(str(keys[0])) if alone else callers.ask([str(key) for key in keys]))
            for keys, alone in zip(questions, lone, strict=False)
        ]
        await turn()
        while transport.out:
            transport.answer(data.draw(st.sampled_from(transport.out)))
        for keys, alone, task in zip(questions, lone, tasks, strict=False):
            codes_of_keys = [transport.look_up(str(key)) for key in keys]
            outcome: Any = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(outcome, StoreError):
                assert alone
                assert outcome.code == codes_of_keys[0]
            elif isinstance(outcome, bool):
                assert alone
                assert outcome == codes_of_keys[0]
            else:
                got = [outcome.errors[at] if bit == ERROR else bit for at, bit in enumerate(outcome.bits)]
                assert got == codes_of_keys
        assert callers.place == (0, 0, 0)

    run_jumping(run())


# ---- the same key of several callers ------------------------------------------------------------------------------


async def test_a_key_that_several_callers_wait_for_is_asked_once() -> None:
    callers = Callers()
    transport = callers.transport
    transport.present = {"hot"}
    blocker = await callers.start("blocker")
    tasks = [await callers.start(key) for key in ("hot", "cold", "hot", "hot")]
    many = await callers.start_many(["cold", "hot", "other"])
    transport.answer_all()
    assert transport.keys_sent[1:] == [("hot", "cold", "other")]
    assert await asyncio.gather(*tasks) == [True, False, True, True]
    assert (await many).bits == bytes((MISS, HIT, MISS))
    assert (callers.counters.keys_sent, callers.counters.keys_merged) == (4, 4)
    await blocker


async def test_without_dedup_every_key_is_asked_as_often_as_it_was_asked_for() -> None:
    callers = Callers(dedup=False)
    blocker = await callers.start("blocker")
    tasks = [await callers.start("hot") for _ in range(3)]
    callers.transport.answer_all()
    assert callers.transport.keys_sent[1:] == [("hot",) * 3]
    await asyncio.gather(blocker, *tasks)
    assert callers.counters.keys_merged == 0


@pytest.mark.parametrize("dedup", [False, True])
async def test_a_question_may_name_a_key_twice(dedup: bool) -> None:
    callers = Callers(dedup=dedup, max_batch_keys=3)
    callers.transport.present = {"twice"}
    task = await callers.start_many(["twice", "once", "twice", "twice", "once"])
    callers.transport.answer_all()
    assert list((await task).bits) == [HIT, MISS, HIT, HIT, MISS]


async def test_text_and_bytes_of_the_same_letters_are_asked_apart() -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    tasks = [await callers.start(key) for key in ("key", b"key")]
    callers.transport.answer_all()
    assert callers.transport.keys_sent[1:] == [("key", b"key")]
    await asyncio.gather(blocker, *tasks)


# ---- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "slots"), [(1, 1), (1, 3), (2, 2)])
async def test_no_more_calls_are_out_than_there_are_slots(channels: int, slots: int) -> None:
    callers = Callers(FakeTransport(channels=channels, slots=slots), max_batch_keys=2)
    tasks = [await callers.start(key) for key in numbered(40)]
    assert len(callers.transport.out) == channels * slots
    assert callers.coalescer.calls_in_flight == channels * slots
    while callers.transport.out:  # the fake refuses a call that has no slot
        callers.transport.answer()
    await asyncio.gather(*tasks)


async def test_calls_and_keys_are_counted() -> None:
    callers = Callers(max_batch_keys=2)
    tasks = [await callers.start(key) for key in ("a", "b", "b", "c", "d")]
    callers.transport.answer_all()
    await asyncio.gather(*tasks)
    counters = callers.counters
    assert (counters.calls, counters.keys_sent, counters.keys_merged) == (3, 4, 1)
