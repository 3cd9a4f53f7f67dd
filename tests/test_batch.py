"""The bookkeeping of questions and batches, without anything that sends or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.batch import Batch, Question
from aiomooncake.errors import InvalidKeyError, RpcError, StoreError
from aiomooncake.keys import KeyRun, ObjectKeys
from aiomooncake.reply import ERROR, HIT, MISS, Reply

from .fakes import JumpingLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from aiomooncake.errors import AioMooncakeError
    from aiomooncake.wire.messages import Key


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = JumpingLoop()
    yield loop
    loop.close()


class Filling:
    """A batch, and the futures of those who are in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.batch = Batch()
        self.done: list[tuple[Batch, AioMooncakeError | None]] = []
        self._loop = loop

    def lone(self, key: Any) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = self._loop.create_future()
        self.batch.add_lone(key, future)
        return future

    def question(self, *keys: Any) -> Question:
        return Question(keys, self._loop.create_future())

    def part(self, *keys: Any) -> asyncio.Future[Reply]:
        question = self.question(*keys)
        self.batch.add_part(question, len(keys))
        return question.future

    def pages(self, around: tuple[str, str], *hashes: str) -> asyncio.Future[Reply]:
        """A part of keys that are not spelled yet."""
        question = Question(ObjectKeys([KeyRun((around,), hashes)], 1), self._loop.create_future())
        self.batch.add_part(question, len(hashes))
        return question.future

    def seal(self, *, dedup: bool = True) -> Sequence[Key]:
        self.batch.seal(dedup=dedup, on_done=lambda *how: self.done.append(how))
        return self.batch.keys


def say(said: str) -> Reply:
    """A reply from its letters: 1, 0, and E for error -5."""
    bits = {"1": HIT, "0": MISS, "E": ERROR}
    return Reply(bytes(bits[letter] for letter in said), {at: -5 for at, letter in enumerate(said) if letter == "E"})


def test_a_question_is_answered_when_all_its_parts_are(loop: asyncio.AbstractEventLoop) -> None:
    question = Filling(loop).question(*"abcdef")
    question.receive(4, say("E1"))
    question.receive(0, say("10E"))
    assert not question.future.done()
    question.receive(3, say("1"))
    assert question.future.result() == (say("10E1E1").bits, {2: -5, 4: -5})


def test_a_failed_question_ignores_later_parts(loop: asyncio.AbstractEventLoop) -> None:
    question = Filling(loop).question(*"abc")
    question.receive(0, say("1"))
    error = RpcError(1)
    question.fail(error)
    question.receive(1, say("11"))
    question.fail(RpcError(2))
    assert isinstance(question.future.exception(), RpcError)
    assert question.future.exception() is not error


def test_a_question_counts_the_keys_that_are_in_no_batch(loop: asyncio.AbstractEventLoop) -> None:
    question, batch = Filling(loop).question(*"abcde"), Batch()
    batch.add_part(question, 2)
    assert (question.left, batch.size) == (3, 2)
    batch.add_part(question, 3)
    assert (question.left, batch.size, batch.waiters) == (0, 5, 2)


def test_lone_keys_come_first_and_each_key_once(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    many, lone, again = filling.part("a", "b", "a"), filling.lone("c"), filling.lone("b")
    assert list(filling.seal()) == ["c", "b", "a"]
    filling.batch.answered(say("01E"))
    assert (lone.result(), again.result()) == (False, True)
    assert many.result() == (say("E1E").bits, {0: -5, 2: -5})
    assert filling.done == [(filling.batch, None)]


def test_a_caller_alone_gets_its_keys_asked_as_they_are(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    many = filling.part("a", "a")
    assert list(filling.seal()) == ["a", "a"]
    filling.batch.answered(say("11"))
    assert many.result() == say("11")


def test_a_part_of_a_question_asks_only_its_keys(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    question = filling.question(*"abcde")
    question.taken = 1
    filling.batch.add_part(question, 3)
    assert list(filling.seal()) == ["b", "c", "d"]


def test_keys_that_nobody_spelled_stay_so_when_several_ask(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    first, second = filling.pages(("", "_k"), "a", "b"), filling.pages(("", "_v"), "a", "c", "d")
    keys = filling.seal()
    assert isinstance(keys, ObjectKeys)
    assert list(keys) == ["a_k", "b_k", "a_v", "c_v", "d_v"]
    filling.batch.answered(say("10E01"))
    assert first.result() == say("10")
    assert second.result() == say("E01")


def test_a_page_of_several_prompts_is_asked_once(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    first, second = filling.pages(("", "_k"), "a", "b"), filling.pages(("", "_k"), "b", "c", "a")
    assert list(filling.seal()) == ["a_k", "b_k", "c_k"]
    filling.batch.answered(say("10E"))
    assert first.result() == say("10")
    assert second.result() == say("0E1")


def test_a_page_is_asked_as_often_as_it_comes_where_duplicates_are_left(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    first, second = filling.pages(("", "_k"), "a"), filling.pages(("", "_k"), "a")
    assert list(filling.seal(dedup=False)) == ["a_k", "a_k"]
    filling.batch.answered(say("10"))
    assert (first.result(), second.result()) == (say("1"), say("0"))


def test_spelled_and_unspelled_keys_share_a_batch(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    lone, pages, plain = filling.lone("b_k"), filling.pages(("", "_k"), "a", "b"), filling.part("c", "a_k")
    assert list(filling.seal()) == ["b_k", "a_k", "c"]
    filling.batch.answered(say("01E"))
    assert lone.result() is False
    assert pages.result() == say("10")
    assert plain.result() == say("E1")


@pytest.mark.parametrize("dedup", [True, False])
def test_a_batch_is_sealed_anew_without_the_callers_it_dropped(loop: asyncio.AbstractEventLoop, dedup: bool) -> None:
    filling = Filling(loop)
    bad_lone, miss, bad_many = filling.lone("\ud800"), filling.lone("miss"), filling.part("hit", "\ud800", "miss")
    hits = [filling.lone("hit"), filling.lone("hit")]
    filling.seal(dedup=dedup)
    filling.batch.drop_invalid()
    for future in (bad_lone, bad_many):
        assert isinstance(future.exception(), InvalidKeyError)
    # What is left may hold no duplicates, or others: nothing may remain of where keys stood before.
    keys = filling.seal(dedup=dedup)
    assert list(keys) == (["miss", "hit"] if dedup else ["miss", "hit", "hit"])
    filling.batch.answered(say("01" if dedup else "011"))
    assert [future.result() for future in (miss, *hits)] == [False, True, True]


def test_a_batch_without_duplicates_after_dropping_is_answered_in_its_own_order(
    loop: asyncio.AbstractEventLoop,
) -> None:
    filling = Filling(loop)
    bad = filling.part("miss", "miss", "\ud800")
    miss, hit = filling.lone("miss"), filling.lone("hit")
    filling.seal()
    filling.batch.drop_invalid()
    assert list(filling.seal()) == ["miss", "hit"]
    filling.batch.answered(say("01"))
    assert isinstance(bad.exception(), InvalidKeyError)
    assert (miss.result(), hit.result()) == (False, True)


def test_dropping_bad_keys_leaves_alone_who_was_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    lone, many = filling.lone(5), filling.part("a", None)
    lone.cancel()
    many.cancel()
    filling.seal()
    filling.batch.drop_invalid()
    assert filling.batch.size == filling.batch.waiters == 0


def test_dropping_takes_out_who_no_longer_waits(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    lone, many = [filling.lone(key) for key in "abc"], [filling.part("d", "e"), filling.part("f")]
    lone[1].cancel()
    many[0].cancel()
    assert filling.batch.ended_keys() == 2
    filling.batch.drop_done()
    assert list(filling.seal()) == ["a", "c", "f"]
    assert (filling.batch.size, filling.batch.waiters) == (3, 3)
    filling.batch.answered(say("101"))
    assert (lone[0].result(), lone[2].result(), many[1].result()) == (True, False, say("1"))


def test_an_answer_passes_over_who_was_cancelled_since(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    lone, many = [filling.lone(key) for key in "abc"], filling.part("d")
    filling.seal()
    for future in (lone[0], lone[1], many):
        future.cancel()
    filling.batch.answered(say("E1E1"))
    error = lone[2].exception()
    assert isinstance(error, StoreError)
    assert (error.code, error.key) == (-5, "c")
    assert filling.done


def test_everybody_who_still_waits_gets_an_error_of_their_own(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    lone, many = [filling.lone(key) for key in "abc"], filling.part("d")
    filling.seal()
    lone[0].cancel()
    error = RpcError(3)
    filling.batch.fail_waiters(error)
    got = [future.exception() for future in (lone[1], lone[2], many)]
    assert all(isinstance(one, RpcError) for one in got)
    assert len({id(one) for one in (*got, error)}) == 4


def test_a_failed_call_is_passed_on_before_anybody_is_told(loop: asyncio.AbstractEventLoop) -> None:
    filling = Filling(loop)
    lone, many = filling.lone("a"), filling.part("b")
    filling.seal()
    error = RpcError(3)
    filling.batch.failed(error)
    assert filling.done == [(filling.batch, error)]
    assert not lone.done()
    assert not many.done()


def test_one_key_has_no_halves(loop: asyncio.AbstractEventLoop) -> None:
    lone, many = Filling(loop), Filling(loop)
    _ = lone.lone("a"), many.part("a")
    assert lone.batch.halves() is None
    assert many.batch.halves() is None


@given(lone=st.integers(0, 9), parts=st.lists(st.integers(1, 9), max_size=5))
def test_halves_of_halves_hold_every_key_once_and_answer_everybody(lone: int, parts: list[int]) -> None:
    loop = JumpingLoop()
    try:
        filling = Filling(loop)
        keys = iter(range(10_000))
        futures: list[asyncio.Future[Any]] = [filling.lone(str(next(keys))) for _ in range(lone)]
        futures += [filling.part(*(str(next(keys)) for _ in range(count))) for count in parts]
        total = filling.batch.size
        asked: list[Key] = []
        waiting = [filling.batch] if total else []
        while waiting:
            batch = waiting.pop()
            batch.seal(dedup=True, on_done=lambda *how: filling.done.append(how))
            halves = batch.halves()
            if halves is None:
                asked += batch.keys
                batch.answered(say("1" if int(batch.keys[0]) % 2 else "0"))
            else:
                assert [half.size > 0 for half in halves] == [True, True]
                assert sum(half.size for half in halves) == batch.size
                waiting += halves
        assert sorted(map(int, asked)) == list(range(total))
        numbers = iter(range(total))
        for future in futures[:lone]:
            assert future.result() == bool(next(numbers) % 2)
        for future, count in zip(futures[lone:], parts, strict=True):
            assert list(future.result().bits) == [next(numbers) % 2 for _ in range(count)]
    finally:
        loop.close()
