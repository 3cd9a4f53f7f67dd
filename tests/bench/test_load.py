from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.bench.clients.base import KeysOnly
from aiomooncake.bench.clients.restorable import restorable_pages
from aiomooncake.bench.keys import page_keys
from aiomooncake.bench.load import LAYOUTS, KeyLoad, PromptLoad, ideal_keys
from aiomooncake.bench.report.units import count, duration, times
from aiomooncake.layout import HitPolicy, Pool

if TYPE_CHECKING:
    from aiomooncake.bench.clients import Ask


class Recorder(KeysOnly):
    def bind(self, keys: list[str]) -> Ask:
        return partial(list, keys)


def test_questions_start_over_when_they_need_more_keys_than_are_stored() -> None:
    questions = [ask() for ask in KeyLoad(keys=3, questions=4, stored=4).asks(Recorder())]
    a, b, c, d = page_keys(4)
    assert questions == [[a, b, c], [d, a, b], [c, d, a], [b, c, d]]


def test_a_question_may_be_larger_than_the_store() -> None:
    (ask,) = KeyLoad(keys=10, questions=1, stored=4).asks(Recorder())
    asked = ask()
    assert isinstance(asked, list)
    assert len(asked) == 10
    assert asked[:4] == asked[4:8]


def test_the_ideal_asks_a_window_of_trailing_pools_and_one_page_more_of_the_others() -> None:
    assert ideal_keys(LAYOUTS["hybrid"], asked=512, found=256) == 3 * 257 + 3 * 4
    assert ideal_keys(LAYOUTS["hybrid"], asked=512, found=0) == 3
    assert ideal_keys(LAYOUTS["hybrid"], asked=512, found=512) == 3 * 512 + 3 * 4


def test_prompts_share_only_what_is_stored() -> None:
    class Prompts(Recorder):
        async def lookup(self, page_hashes: object, layout: object) -> int:
            seen.append(page_hashes)
            return 0

    seen: list[object] = []
    (ask,) = PromptLoad(layout="hybrid", prompts=1, pages=5, hit=2).asks(Prompts())
    for _ in range(2):
        with pytest.raises(StopIteration):
            ask().send(None)  # type: ignore[attr-defined]
    first, second = seen
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert first[:2] == second[:2]
    assert len(set(first + second)) == 8


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12), st.integers(1, 4))
def test_restorable_pages_are_those_that_every_pool_allows(pages: list[tuple[bool, bool, bool]], window: int) -> None:
    whole = Pool("whole", ("a", "b"))
    trailing = Pool("trailing", ("c",), HitPolicy.TRAILING_PAGES, window)

    def usable(length: int) -> bool:
        ending = pages[max(0, length - window) : length]
        return all(a and b for a, b, _ in pages[:length]) and all(c for _, _, c in ending)

    codes = [int(code) for a, b, _ in pages for code in (a, b)]
    answers = [(whole, codes), (trailing, [int(c) for _, _, c in pages])]
    assert restorable_pages(answers, len(pages)) == max(filter(usable, range(len(pages) + 1)))


def test_numbers_are_shown_in_three_digits() -> None:
    assert [duration(value) for value in (2.154e-6, 81.3e-6, 0.00542)] == ["2.15 µs", "81.3 µs", "5.42 ms"]
    assert [count(value) for value in (64, 0.5, 3200, 1.5e6)] == ["64", "0.50", "3.20 k", "1.50 M"]
    assert times(19.34) == "19.3x"


def test_questions_for_what_is_not_stored_share_no_key_with_the_store() -> None:
    load = KeyLoad(keys=3, questions=4, stored=4, hit=False)
    asked = {key for ask in load.asks(Recorder()) for key in ask()}  # type: ignore[attr-defined]
    assert len(asked) == 4
    assert asked.isdisjoint(load.stored_keys())
    assert load.describe()["stored"] == "none"
