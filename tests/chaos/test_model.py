"""The judge: it catches what is provably wrong, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake import LookupResult

from .model import Certain, Model, State, Universe

if TYPE_CHECKING:
    from .model import Places

UNIVERSE = Universe()
SHELF, OTHER = UNIVERSE.shelves[:2]


@pytest.fixture
def model() -> Model:
    return Model(UNIVERSE)


def store(model: Model, places: Places) -> None:
    assert model.changed(places, State.PRESENT, model.changing(places))


def catches(model: Model, places: Places, found: list[bool], asked_at: int) -> bool:
    return model.certain(places, asked_at).judge_bits(np.array(found), may_miss=False).wrong is not None


def test_no_key_is_named_twice() -> None:
    assert len(set(UNIVERSE.keys)) == len(UNIVERSE.keys)


def test_what_was_never_stored_is_no_hit(model: Model) -> None:
    assert catches(model, UNIVERSE.never[:2], [False, True], model.clock)
    assert not catches(model, UNIVERSE.never[:2], [False, False], model.clock)


def test_what_was_stored_before_the_question_is_no_miss(model: Model) -> None:
    store(model, SHELF)
    assert catches(model, SHELF[:2], [True, False], model.clock)
    assert not catches(model, SHELF[:2], [True, True], model.clock)


def test_what_is_being_stored_may_be_either(model: Model) -> None:
    before = model.clock
    epoch = model.changing(SHELF)
    during = model.clock
    for asked_at in (before, during):
        assert not catches(model, SHELF[:2], [True, False], asked_at)
    model.changed(SHELF, State.PRESENT, epoch)
    for asked_at in (before, during):  # the question may have been answered before that
        assert not catches(model, SHELF[:2], [True, False], asked_at)
    assert catches(model, SHELF[:2], [True, False], model.clock)


def test_another_key_that_changes_excuses_nothing(model: Model) -> None:
    store(model, SHELF)
    asked_at = model.clock
    store(model, OTHER)
    assert catches(model, SHELF[:1], [False], asked_at)


def test_a_lost_master_loses_every_key(model: Model) -> None:
    store(model, SHELF)
    before = model.clock
    model.losing_all()
    during = model.clock
    assert not catches(model, SHELF[:2], [True, False], during)
    model.lost_all()
    for asked_at in (before, during):
        assert not catches(model, SHELF[:2], [True, False], asked_at)
    assert catches(model, SHELF[:1], [True], model.clock)


def test_what_was_absent_stays_certain_while_the_master_is_lost(model: Model) -> None:
    asked_at = model.clock
    model.losing_all()
    model.lost_all()
    assert catches(model, SHELF[:1], [True], asked_at)


def test_what_was_stored_on_a_lost_master_says_nothing_of_the_next(model: Model) -> None:
    epoch = model.changing(SHELF)
    model.losing_all()
    model.lost_all()
    assert not model.changed(SHELF, State.PRESENT, epoch)
    assert catches(model, SHELF[:1], [True], model.clock)


def test_a_miss_that_may_be_a_failure_proves_nothing(model: Model) -> None:
    store(model, SHELF)
    certain = model.certain(np.concatenate([SHELF[:2], UNIVERSE.never[:1]]), model.clock)
    assert certain.judge_bits(np.zeros(3, np.bool_), may_miss=True) == (None, 0)
    assert certain.judge_bits(np.ones(3, np.bool_), may_miss=True).wrong is not None


@given(st.lists(st.sampled_from(["hit", "miss", "open"]), max_size=6), st.integers(-1, 7))
def test_a_prefix_is_wrong_when_no_store_could_have_given_it(states: list[str], length: int) -> None:
    certain = Certain(np.array([s == "hit" for s in states], bool), np.array([s == "miss" for s in states], bool))
    possible = 0 <= length <= len(states) and "miss" not in states[:length] and states[length : length + 1] != ["hit"]
    assert (certain.judge_prefix(length, may_miss=False).wrong is None) == possible


def test_a_lookup_is_judged_between_what_is_certain_and_what_may_be(model: Model) -> None:
    prompt = UNIVERSE.prompts[0]
    for objects in prompt.objects.values():
        store(model, objects[:10].reshape(-1))
    model.changing(prompt.objects["kv"][10:12].reshape(-1))
    asked_at = model.clock

    def catches_lookup(kv_pages: int, pages: int) -> bool:
        result = LookupResult(kv_pages, pages, {})
        return model.judge_lookup(prompt, 20, result, asked_at).wrong is not None

    assert [catches_lookup(kv_pages, 10) for kv_pages in range(9, 14)] == [True, False, False, False, True]
    assert [catches_lookup(10, pages) for pages in (9, 10, 11)] == [True, False, True]


def test_a_lookup_whose_keys_are_all_certain_is_compared_whole(model: Model) -> None:
    prompt = UNIVERSE.prompts[0]
    for objects in prompt.objects.values():
        store(model, objects[:3].reshape(-1))
    right = {"kv": 3, "swa": 3, "indexer": 3}

    def verdict(pool_pages: dict[str, int], restorable: list[int]) -> str | None:
        result = LookupResult(3, 3, pool_pages, np.array(restorable))
        return model.judge_lookup(prompt, 20, result, model.clock).wrong

    assert verdict(right, [1, 2, 3]) is None
    assert verdict(right, [1, 3]) is not None
    assert verdict({"kv": 3, "swa": 3, "indexer": 2}, [1, 2, 3]) is not None
