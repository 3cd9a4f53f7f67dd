from __future__ import annotations

import hashlib

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aiomooncake.config import EngineConfig
from aiomooncake.errors import ConfigError
from aiomooncake.layout import Layout, Pool
from aiomooncake.predictor import Predictor

ONE = Layout((Pool("kv", ("_k",)),))
OTHER = Layout((Pool("kv", ("_k",)),), key_prefix="other")


def prompt(name: object, pages: int) -> list[str]:
    return [hashlib.sha256(f"{name}/{i}".encode()).hexdigest() for i in range(pages)]


def learn(predictor: Predictor, page_hashes: list[str], found: int | None = None, layout: Layout = ONE) -> None:
    predictor.learn(predictor.forecast(page_hashes, layout), len(page_hashes) if found is None else found)


def expected(predictor: Predictor, page_hashes: list[str], layout: Layout = ONE) -> int:
    return predictor.forecast(page_hashes, layout).pages


def test_nothing_is_expected_of_what_was_never_seen() -> None:
    assert expected(Predictor(), prompt("new", 500)) == 0
    assert expected(Predictor(), []) == 0


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(0, 600), st.integers(0, 600))
def test_the_boundary_is_where_a_prompt_leaves_what_was_seen(seen: int, shared: int, rest: int) -> None:
    predictor = Predictor()
    old = prompt("old", seen)
    learn(predictor, old, found=0)  # missing pages too: they are about to be stored
    assert expected(predictor, old[:shared] + prompt("new", rest)) == min(seen, shared)


@settings(deadline=None)
@given(st.lists(st.text(max_size=70), min_size=1, unique=True))
def test_any_strings_are_remembered(page_hashes: list[str]) -> None:
    predictor = Predictor()
    learn(predictor, page_hashes)
    assert expected(predictor, page_hashes) == len(page_hashes)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_strings_that_differ_in_one_place_only_are_told_apart(width: int) -> None:
    predictor = Predictor()
    for place in range(width):
        learn(predictor, ["0" * place + "1" + "0" * (width - place - 1)])
        assert expected(predictor, ["0" * place + "2" + "0" * (width - place - 1)]) == 0


def test_two_layouts_never_mix_and_equal_ones_are_one() -> None:
    predictor = Predictor()
    pages = prompt("p", 200)
    learn(predictor, pages, layout=ONE)
    assert expected(predictor, pages, OTHER) == 0
    assert expected(predictor, pages, Layout((Pool("kv", ["_k"]),))) == 200  # type: ignore[arg-type]


def test_memory_is_bounded_and_two_bytes_a_page() -> None:
    assert Predictor().memory_bytes == 2 * EngineConfig().predictor_pages == 1_000_000
    predictor = Predictor(2000)
    before = predictor.memory_bytes
    for number in range(100):
        learn(predictor, prompt(number, 100))
    assert predictor.memory_bytes == before == 4000
    assert "memory=4000 bytes" in repr(predictor)


def test_the_most_recent_pages_are_remembered_and_the_oldest_forgotten() -> None:
    predictor = Predictor(10_000)
    for number in range(400):
        learn(predictor, prompt(number, 100))
    assert all(expected(predictor, prompt(number, 100)) == 100 for number in range(300, 400))
    assert all(expected(predictor, prompt(number, 100)) < 10 for number in range(150))


def test_what_is_in_use_is_not_forgotten() -> None:
    predictor = Predictor(10_000)
    system = prompt("system", 50)
    for number in range(400):
        learn(predictor, system + prompt(number, 100))
        assert 50 <= expected(predictor, system + prompt("next", 100)) <= 55  # false positives lengthen it


def test_false_positives_lengthen_few_forecasts() -> None:
    predictor = Predictor(25_000)
    for number in range(450):  # one generation full, the other nearly
        learn(predictor, prompt(number, 100))
    wrong = sum(expected(predictor, prompt(449, 100) + prompt(f"new{number}", 100)) != 100 for number in range(1000))
    assert wrong < 40


def test_a_store_that_evicts_early_shortens_the_memory() -> None:
    predictor = Predictor(50_000)
    for number in range(500):
        learn(predictor, prompt(number, 100))
    assert expected(predictor, prompt(300, 100)) == 100
    for number in range(60):
        learn(predictor, prompt(number, 100), found=60)
    assert expected(predictor, prompt(300, 100)) < 10
    assert expected(predictor, prompt(59, 100)) == 100


def test_wrong_forecasts_make_it_cautious_for_that_layout_until_they_are_right_again() -> None:
    predictor = Predictor()
    pages = prompt("p", 100)
    learn(predictor, pages, layout=ONE)
    learn(predictor, pages, layout=OTHER)
    for _ in range(3):
        assert not predictor.forecast(pages, ONE).cautious
        learn(predictor, pages, found=0)
    assert predictor.forecast(pages, ONE).cautious
    assert not predictor.forecast(pages, OTHER).cautious
    for _ in range(2):
        learn(predictor, pages)
    assert not predictor.forecast(pages, ONE).cautious


def test_a_layout_that_never_hits_does_not_age_what_others_know() -> None:
    predictor = Predictor(50_000)
    pages, never = prompt("p", 100), prompt("never", 100)
    learn(predictor, pages, layout=OTHER)
    for _ in range(200):
        learn(predictor, never, found=0)
    assert expected(predictor, pages, OTHER) == 100


def test_many_layouts_take_bounded_memory() -> None:
    predictor = Predictor(5_000)
    pages = prompt("p", 2)
    for number in range(1000):
        layout = Layout((Pool("kv", ("_k",)),), key_prefix=str(number))
        learn(predictor, pages, layout=layout)
        learn(predictor, pages, layout=layout)
    assert len(predictor._trust) <= 256


def test_a_predictor_of_no_pages_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Predictor(0)
    learn(Predictor(1), prompt("p", 100))
