"""What one caller does wrong, or gives up, changes nobody else's answer (promise 3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomooncake.errors import (
    InvalidKeyError,
    LocalProtocolError,
    RequestTimeout,
    RpcError,
    StoreError,
)
from aiomooncake.reply import HIT, MISS

from ..fakes import FakeTransport, run_jumping
from .callers import Callers, numbered, turn

pytestmark = pytest.mark.anyio


class RaisesWhenHashed:
    def __hash__(self) -> int:
        raise RuntimeError("no hash today")


class RaisesWhenShown:
    def __repr__(self) -> str:
        raise RuntimeError("nothing to show")


class EqualToAll(str):
    """Calls itself equal to every other key, and has their hash."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("good")


BAD_KEYS: list[Any] = [
    5,
    None,
    1.5,
    True,
    "\ud800",
    ["unhashable"],
    {},
    bytearray(b"key"),
    RaisesWhenHashed(),
    RaisesWhenShown(),
]
BAD_KEY_NAMES = ["int", "None", "float", "bool", "surrogate", "list", "dict", "bytearray", "hashed", "shown"]


# ---- bad keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", BAD_KEYS, ids=BAD_KEY_NAMES)
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "busy"])
@pytest.mark.parametrize("dedup", [True, False])
async def test_a_bad_key_fails_its_caller_alone(bad: Any, idle: bool, dedup: bool) -> None:
    callers = Callers(dedup=dedup)
    transport = callers.transport
    transport.present = {"good"}
    others: list[asyncio.Task[bool]] = []
    if not idle:
        others = [await callers.start("good"), await callers.start("good")]
    lone = asyncio.create_task(callers.exists(bad))
    many = asyncio.create_task(callers.ask(["good", bad]))
    after = asyncio.create_task(callers.exists("good"))
    await turn()
    transport.answer_all()
    for task in (lone, many):
        with pytest.raises(InvalidKeyError):
            await task
    assert await after is True
    assert await asyncio.gather(*others) == [True] * len(others)
    assert callers.place == (0, 0, 0)


@pytest.mark.parametrize("place", [0, 256, 299, 1500])
async def test_a_bad_key_anywhere_in_a_long_question_fails_it_alone(place: int) -> None:
    callers = Callers(max_batch_keys=600)
    transport = callers.transport
    blocker = await callers.start("blocker")
    keys: list[Any] = numbered(2000)
    keys[place] = None
    bad = await callers.start_many(keys)
    good = await callers.start_many(numbered(2000, "good"))
    transport.answer_all()
    with pytest.raises(InvalidKeyError, match=f"key {place} is None"):
        await bad
    assert (await good).bits == bytes(2000)
    await blocker


async def test_a_batch_of_bad_keys_alone_is_not_sent() -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    bad: list[Any] = [5, 6, 7]
    tasks = [await callers.start(key) for key in bad]
    callers.transport.answer_all()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InvalidKeyError] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert len(callers.transport.sent) == 1
    assert callers.place == (0, 0, 0)
    await blocker


async def test_a_caller_who_was_cancelled_in_the_turn_in_which_bad_keys_are_found_harms_nobody() -> None:
    callers = Callers(FakeTransport(slots=2))
    blocker = await callers.start("blocker")
    bad: Any = 5
    cancelled = callers.coalescer.ask_one(bad, None)
    many = callers.coalescer.ask([bad], None)
    good = callers.coalescer.ask_one("good", None)
    cancelled.cancel()  # nobody has told the coalescer yet
    many.cancel()
    await turn()
    callers.transport.answer_all()
    assert await good is False
    await blocker


async def test_a_subclass_of_str_that_calls_every_key_its_equal_gets_and_gives_no_wrong_answer() -> None:
    callers = Callers()
    transport = callers.transport
    transport.present = {"good"}
    blocker = await callers.start("blocker")
    tasks = [await callers.start(key) for key in (EqualToAll("other"), "good", "good")]
    await turn()
    transport.answer()
    assert [str.__str__(key) for key in transport.sent[1].keys if isinstance(key, str)] == ["other", "good", "good"]
    await blocker
    transport.answer()
    assert (await asyncio.gather(*tasks))[1:] == [True, True]


async def test_a_plain_subclass_of_str_is_a_key() -> None:
    class Name(str):
        __slots__ = ()

    callers = Callers()
    callers.transport.present = {"name"}
    blocker = await callers.start("blocker")
    tasks = [await callers.start(Name("name")), await callers.start("name")]
    callers.transport.answer_all()
    assert await asyncio.gather(*tasks) == [True, True]
    await blocker


# ---- keys too large for a call ------------------------------------------------------------------------------------


async def test_a_batch_too_large_for_one_call_is_sent_in_parts() -> None:
    callers = Callers(FakeTransport(max_bytes=40))
    transport = callers.transport
    transport.present = {"lone-1", "many-2"}
    blocker = await callers.start("blocker")
    lone = [await callers.start(key) for key in numbered(10, "lone")]
    many = [await callers.start_many(numbered(5, "many")), await callers.start_many(numbered(12, "more"))]
    transport.answer_all()
    assert await asyncio.gather(*lone) == [key == "lone-1" for key in numbered(10, "lone")]
    assert list((await many[0]).bits) == [MISS, MISS, HIT, MISS, MISS]
    assert (await many[1]).bits == bytes(12)
    assert max(sum(map(len, keys)) for keys in transport.keys_sent) <= 40
    assert callers.place == (0, 0, 0)
    await blocker


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "busy"])
async def test_a_key_too_large_for_any_call_fails_its_caller_alone(idle: bool) -> None:
    callers = Callers(FakeTransport(max_bytes=40))
    transport = callers.transport
    transport.present = {"good"}
    others = [] if idle else [await callers.start("good") for _ in range(3)]
    lone = asyncio.create_task(callers.exists("x" * 41))
    many = asyncio.create_task(callers.ask(["good", "y" * 41, "good"]))
    after = [asyncio.create_task(callers.exists("good")), asyncio.create_task(callers.exists("bad"))]
    await turn()
    transport.answer_all()
    for task in (lone, many):
        with pytest.raises(LocalProtocolError, match="41 bytes"):
            await task
    assert await asyncio.gather(*after, *others) == [True, False, *[True] * len(others)]
    assert callers.place == (0, 0, 0)


async def test_keys_too_large_for_one_call_stay_within_a_long_question() -> None:
    callers = Callers(FakeTransport(max_bytes=2000))
    callers.transport.present = {"key-299"}
    task = await callers.start_many(numbered(300))
    callers.transport.answer_all()
    assert (await task).bits == bytes(299) + bytes((HIT,))


async def test_an_unforeseen_failure_to_send_leaves_nobody_waiting() -> None:
    callers = Callers()
    callers.transport.breaks_at = "poison"
    blocker = await callers.start("blocker")
    tasks = [await callers.start(key) for key in ("good", "poison", "better", "best")]
    callers.transport.answer_all()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[0] is outcomes[2] is outcomes[3] is False
    assert isinstance(outcomes[1], LocalProtocolError)
    assert isinstance(outcomes[1].__cause__, MemoryError)
    assert str(outcomes[1]).startswith("the key could not be sent: MemoryError")
    assert callers.place == (0, 0, 0)
    await blocker


# ---- giving up ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["outside", "queued", "sent", "served"])
@pytest.mark.parametrize("many", [False, True], ids=["one key", "several keys"])
async def test_a_cancelled_caller_changes_nobody_elses_answer(moment: str, many: bool) -> None:
    callers = Callers(max_pending_keys=2 if moment == "outside" else 1000, max_batch_keys=10)
    transport = callers.transport
    transport.present = {"key-1", "key-3"}
    blocker = await callers.start("blocker")
    tasks: list[asyncio.Task[Any]] = [
        await (callers.start_many([key]) if many else callers.start(key)) for key in numbered(5)
    ]
    if moment in ("sent", "served"):
        transport.answer()
    if moment == "served":
        transport.serve(transport.out[0])
    tasks[1].cancel()
    tasks[4].cancel()
    await turn()
    transport.answer_all()
    outcomes: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    expected = [False, asyncio.CancelledError, False, True, asyncio.CancelledError]
    for outcome, right in zip(outcomes, expected, strict=True):
        if right is asyncio.CancelledError:
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            assert (outcome.bits == bytes((HIT,)) if many else outcome) is right
    if moment in ("outside", "queued"):
        assert "key-1" not in {key for keys in transport.keys_sent for key in keys}
    assert callers.counters.cancelled == 2
    assert callers.place == (0, 0, 0)
    await blocker


async def test_a_shared_key_is_still_asked_when_one_of_its_callers_gives_up() -> None:
    callers = Callers()
    callers.transport.present = {"hot"}
    blocker = await callers.start("blocker")
    tasks = [await callers.start("hot") for _ in range(3)]
    tasks[0].cancel()
    await turn()
    callers.transport.answer_all()
    assert await asyncio.gather(*tasks[1:]) == [True, True]
    await blocker


async def test_the_rest_of_a_cancelled_long_question_is_not_asked() -> None:
    callers = Callers(max_batch_keys=300)
    task = await callers.start_many(numbered(3000))
    task.cancel()
    await turn()
    callers.transport.answer_all()
    assert len(callers.transport.sent) == 1


@pytest.mark.parametrize("moment", ["outside", "queued", "sent"])
def test_a_deadline_ends_its_own_question_and_no_other(moment: str) -> None:
    async def run() -> None:
        callers = Callers(max_pending_keys=1 if moment == "outside" else 1000)
        transport = callers.transport
        transport.present = {"patient"}
        blocker = await callers.start("blocker")
        filler = [await callers.start("filler")] if moment == "outside" else []
        if moment == "sent":
            transport.answer()
        hasty = await callers.start("hasty", 1.0)
        hasty_too = await callers.start_many(["hasty", "patient"], 1.0)
        patient = await callers.start("patient", 60.0)
        await asyncio.sleep(0.99)
        assert not hasty.done()
        await asyncio.sleep(1.0)
        errors = await asyncio.gather(hasty, hasty_too, return_exceptions=True)
        assert [type(error) for error in errors] == [RequestTimeout, RequestTimeout]
        assert errors[0] is not errors[1]
        phases = [error.phase for error in errors if isinstance(error, RequestTimeout)]
        assert phases == (["awaiting reply", "queued"] if moment == "sent" else ["queued", "queued"])
        assert not patient.done()
        transport.answer_all()
        assert await patient is True
        await asyncio.gather(blocker, *filler)
        assert callers.counters.timeouts == 2
        assert callers.place == (0, 0, 0)

    run_jumping(run())


def test_a_deadline_says_that_there_was_no_connection() -> None:
    async def run() -> None:
        callers = Callers()
        callers.transport.lose()
        with pytest.raises(RequestTimeout, match="connecting; 1 keys queued, 0 calls out to fake:1") as caught:
            await callers.exists("key", 1.0)
        assert caught.value.phase == "connecting"

    run_jumping(run())


def test_an_answer_after_the_deadline_upsets_nobody() -> None:
    async def run() -> None:
        callers = Callers()
        for keys in (["late"], numbered(300)):
            task = await callers.start_many(keys, 1.0)
            await asyncio.sleep(2)
            with pytest.raises(RequestTimeout):
                await task
            callers.transport.answer_all()
        callers.transport.present = {"key"}
        task_of_next = await callers.start("key", 1.0)
        callers.transport.answer_all()
        assert await task_of_next is True

    run_jumping(run())


def test_a_deadline_of_no_seconds_ends_a_question_that_is_not_answered_at_once() -> None:
    async def run() -> None:
        callers = Callers()
        with pytest.raises(RequestTimeout):
            await callers.exists("key", 0)
        with pytest.raises(RequestTimeout):
            await callers.ask(numbered(3), 0.0)
        callers.transport.answer_all()

    run_jumping(run())


# ---- errors -------------------------------------------------------------------------------------------------------


async def test_every_waiter_of_a_failed_call_gets_an_error_of_its_own() -> None:
    callers = Callers()
    blocker = await callers.start("blocker")
    tasks: list[asyncio.Task[Any]] = [await callers.start("key") for _ in range(3)]
    tasks += [await callers.start_many(["key", "other"]) for _ in range(3)]
    callers.transport.answer()
    cause = ValueError("the common cause")
    failure = RpcError(14, "too large")
    failure.__cause__ = cause
    callers.transport.fail(failure)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert len({id(outcome) for outcome in (*outcomes, failure)}) == 7
    for outcome in outcomes:
        assert isinstance(outcome, RpcError)
        assert (outcome.code, outcome.detail, outcome.__cause__) == (14, "too large", cause)
    await blocker


async def test_every_waiter_of_a_key_with_an_error_code_gets_an_error_of_its_own() -> None:
    callers = Callers()
    callers.transport.codes = {"key": -1010}
    blocker = await callers.start("blocker")
    tasks = [await callers.start("key") for _ in range(3)]
    callers.transport.answer_all()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    await blocker


async def test_a_question_of_which_one_call_failed_fails_and_its_rest_is_not_asked() -> None:
    callers = Callers(FakeTransport(slots=2), max_batch_keys=300)
    task = await callers.start_many(numbered(3000))
    other = await callers.start("other")
    assert len(callers.transport.out) == 2
    callers.transport.fail(RpcError(1))
    with pytest.raises(RpcError):
        await task
    callers.transport.answer_all()
    assert await other is False
    assert len(callers.transport.sent) == 3
    assert callers.place == (0, 0, 0)


async def test_a_thousand_callers_who_do_every_wrong_thing_change_no_answer() -> None:
    callers = Callers(FakeTransport(slots=2), max_batch_keys=64)
    transport = callers.transport
    keys = numbered(1000)
    transport.present = set(keys[::2])
    bad: list[Any] = [BAD_KEYS[number % len(BAD_KEYS)] if number % 10 == 9 else key for number, key in enumerate(keys)]
    tasks = [asyncio.create_task(callers.exists(key)) for key in bad]
    await turn()
    for number in range(3, 1000, 10):
        tasks[number].cancel()
    transport.answer()
    for number in range(5, 1000, 10):
        tasks[number].cancel()
    await turn()
    transport.answer_all()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for number, outcome in enumerate(outcomes):
        if number % 10 == 9:
            assert isinstance(outcome, InvalidKeyError)
        elif number % 10 in (3, 5) and isinstance(outcome, asyncio.CancelledError):
            continue
        else:
            assert outcome is (number % 2 == 0)
    assert sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes) >= 150
    assert callers.place == (0, 0, 0)
