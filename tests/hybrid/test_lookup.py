from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from aiomooncake.errors import InvalidKeyError, StoreError
from aiomooncake.hybrid import LookupResult, lookup
from aiomooncake.layout import HitPolicy, Layout, Pool
from aiomooncake.predictor import Predictor

from .world import Constant, Scene, World, layouts, naive, scenes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiomooncake.reply import Reply

KV = Pool("kv", ("_k", "_v"))
INDEXER = Pool("indexer", ("_indexer",))
SWA = Pool("swa", ("_swa",), HitPolicy.TRAILING_PAGES, 4)
MAMBA = Pool("mamba", ("_temporal", "_conv_0"), HitPolicy.TRAILING_PAGES, 1)
PAGES = [f"{i:064x}" for i in range(1024)]

generous = settings(deadline=None, suppress_health_check=list(HealthCheck))


def predictors() -> st.SearchStrategy[Predictor]:
    return st.builds(Constant, st.integers(0, 450), cautious=st.booleans())


# Answers


@generous
@given(scenes(), st.one_of(st.none(), predictors()), st.integers(1, 64))
def test_every_usable_length_is_what_the_naive_rule_gives(
    scene: Scene, predictor: Predictor | None, first_window: int
) -> None:
    answer = scene.answer
    result, _ = scene.world().lookup(
        scene.page_hashes, scene.layout, restorable=True, predictor=predictor, first_window=first_window
    )
    assert result.restorable is not None
    assert result.restorable.tolist() == answer.restorable
    assert list(result.pool_pages.items()) == answer.pool_pages
    assert result.kv_pages == answer.kv_pages
    assert result.pages == max(answer.restorable, default=0)


@generous
@given(scenes(), predictors(), st.integers(1, 64))
def test_no_forecast_changes_an_answer(scene: Scene, predictor: Predictor, first_window: int) -> None:
    answer = scene.answer
    plain, _ = scene.world().lookup(scene.page_hashes, scene.layout, first_window=first_window)
    foretold, _ = scene.world().lookup(scene.page_hashes, scene.layout, predictor=predictor, first_window=first_window)
    assert (plain.kv_pages, plain.pages) == (answer.kv_pages, max(answer.restorable, default=0))
    assert (foretold.kv_pages, foretold.pages) == (plain.kv_pages, plain.pages)
    assert foretold.pool_pages == plain.pool_pages


@generous
@given(scenes(), st.integers(0, 400))
def test_a_predictor_that_was_taught_lies_changes_no_answer(scene: Scene, found: int) -> None:
    liar = Predictor(2000)
    for lie in (scene.page_hashes, scene.page_hashes[: found // 2]):
        liar.learn(liar.forecast(lie, scene.layout), found)
    for _ in range(3):
        result, _ = scene.world().lookup(scene.page_hashes, scene.layout, predictor=liar)
        assert result.pages == max(scene.answer.restorable, default=0)


@pytest.mark.parametrize("window", [1, 2, 63, 64, 1023, 1024])
@pytest.mark.parametrize("gone", [None, 0, 500, 1023])
def test_windows_of_any_size_are_exact(window: int, gone: int | None) -> None:
    pool = Pool("swa", ("_swa",), HitPolicy.TRAILING_PAGES, window)
    layout = Layout((KV, pool))
    world = World()
    world.put(layout, PAGES)
    present = {"kv": [True] * len(PAGES), "swa": [i != gone for i in range(len(PAGES))]}
    if gone is not None:
        world.stored.remove(layout.object_keys(PAGES, "swa")[gone])
    expected = naive(layout, len(PAGES), present).restorable
    assert world.lookup(PAGES, layout).result.pages == max(expected, default=0)
    every, _ = world.lookup(PAGES, layout, restorable=True)
    assert every.restorable is not None
    assert every.restorable.tolist() == expected


# Counts


@generous
@given(scenes(), st.one_of(st.none(), predictors()), st.booleans())
def test_no_key_is_asked_twice_and_sidecars_only_as_far_as_kv_reaches(
    scene: Scene, predictor: Predictor | None, restorable: bool
) -> None:
    world = scene.world()
    result, in_vain = world.lookup(scene.page_hashes, scene.layout, predictor=predictor, restorable=restorable)
    asked = [key for keys in world.asked for key in keys]
    assert len(asked) == len(set(asked)) == result.keys_queried
    assert len(world.asked) == result.round_trips
    assert in_vain == 0 or predictor
    for pool in scene.layout.sidecars if not in_vain else ():
        of_pool = world.asked_of(scene.layout, scene.page_hashes, pool.name)
        assert of_pool <= result.kv_pages * len(pool.suffixes)


@generous
@given(scenes(), st.integers(0, 400))
def test_what_is_counted_as_asked_in_vain_is_what_a_right_forecast_saves(scene: Scene, forecast: int) -> None:
    layout = Layout((KV,))
    world = World()
    world.put(layout, scene.page_hashes[:50])
    wrong, in_vain = world.lookup(scene.page_hashes, layout, predictor=Constant(forecast))
    right, _ = world.lookup(scene.page_hashes, layout, predictor=Constant(wrong.kv_pages))
    if forecast >= wrong.kv_pages:
        assert wrong.keys_queried - in_vain == right.keys_queried
    else:
        assert in_vain == 0


def test_a_lookup_without_kv_pages_costs_one_call_about_kv_alone() -> None:
    layout = Layout((KV, INDEXER, SWA, MAMBA))
    world = World()
    result, _ = world.lookup(PAGES, layout)
    assert result == LookupResult(0, 0, {}, None, keys_queried=64, round_trips=1)
    assert world.asked == [layout.object_keys(PAGES[:32], "kv")]


def test_no_pages_cost_no_call() -> None:
    world = World()
    result, _ = world.lookup([], Layout((KV, SWA)), restorable=True, predictor=Predictor())
    assert (result.pages, result.round_trips, world.asked) == (0, 0, [])
    assert result.restorable is not None
    assert len(result.restorable) == 0


@pytest.mark.parametrize("layout", [Layout((KV, INDEXER, SWA)), Layout((INDEXER, SWA))], ids=["kv", "logical"])
@pytest.mark.parametrize("stored", [5, 100, 1024])
@pytest.mark.parametrize("predict", [False, True])
def test_a_trailing_pool_whose_tail_is_there_costs_one_window(layout: Layout, stored: int, predict: bool) -> None:
    world = World()
    world.put(layout, PAGES[:stored])
    predictor = Constant(stored) if predict else None
    result, _ = world.lookup(PAGES, layout, predictor=predictor)
    assert result.pages == stored
    assert world.asked_of(layout, PAGES, "swa") <= 4
    assert not predict or result.round_trips == 1


def test_a_prompt_seen_before_is_one_question_of_the_fewest_keys() -> None:
    layout = Layout((KV, INDEXER, SWA))
    world, predictor = World(), Predictor()
    first, _ = world.lookup(PAGES[:100], layout, predictor=predictor)
    assert (first.pages, first.keys_queried, first.round_trips) == (0, 2, 1)
    world.put(layout, PAGES[:100])
    longer, _ = world.lookup(PAGES[:150], layout, predictor=predictor)
    assert (longer.pages, longer.round_trips) == (100, 1)
    assert longer.keys_queried == 101 * 2 + 100 + 4


def test_a_sidecar_is_asked_no_further_once_a_page_is_missing() -> None:
    layout = Layout((KV, INDEXER))
    world = World()
    world.put(layout, PAGES)
    world.stored.difference_update(layout.object_keys(PAGES[10:], "indexer"))
    result, _ = world.lookup(PAGES, layout)
    assert result.pool_pages == {"kv": 1024, "indexer": 10}
    assert world.asked_of(layout, PAGES, "indexer") == 32


def test_a_checkpoint_far_back_is_found_in_few_round_trips() -> None:
    layout = Layout((KV, MAMBA))
    world = World()
    world.put(layout, PAGES)
    world.stored.difference_update(layout.object_keys(PAGES[100:], "mamba"))
    result, _ = world.lookup(PAGES, layout, predictor=Constant(1024))
    assert (result.pages, result.pool_pages) == (100, {"kv": 1024, "mamba": 100})
    assert result.round_trips <= 9
    assert world.asked_of(layout, PAGES, "mamba") <= 2 * 1024


def test_wrong_forecasts_make_the_next_ones_cautious() -> None:
    layout = Layout((KV, INDEXER))
    world, predictor = World(), Predictor()
    asked = [world.lookup(PAGES, layout, predictor=predictor).result.keys_queried for _ in range(6)]
    assert asked[0] == 2
    assert asked[1] == 1024 * 3
    assert asked[-1] == 32 * 2
    world.put(layout, PAGES)
    results = [world.lookup(PAGES, layout, predictor=predictor).result for _ in range(6)]
    assert {result.pages for result in results} == {1024}
    assert results[0].round_trips == 2
    assert results[-1].round_trips == 1


# Errors


@generous
@given(scenes(), st.data())
def test_an_error_is_a_miss_that_is_told_or_raised_wherever_it_could_matter(scene: Scene, data: st.DataObject) -> None:
    keys = [key for pool in scene.layout.pools for key in scene.layout.object_keys(scene.page_hashes, pool.name)]
    failing = data.draw(st.lists(st.sampled_from(keys), max_size=6)) if keys else []
    restorable = data.draw(st.booleans())
    predictor = data.draw(st.one_of(st.none(), predictors()))

    def ask(world: World, errors: str) -> LookupResult:
        return world.lookup(
            scene.page_hashes, scene.layout, restorable=restorable, predictor=predictor, errors=errors
        ).result

    pessimist, optimist, world = scene.world(), scene.world(), scene.world()
    pessimist.stored.difference_update(failing)
    optimist.stored.update(failing)
    world.codes = dict.fromkeys(failing, -900)
    worst, best = ask(pessimist, "raise"), ask(optimist, "raise")
    result = ask(world, "miss")
    assert (result.kv_pages, result.pages, result.pool_pages) == (worst.kv_pages, worst.pages, worst.pool_pages)
    assert str(result.restorable) == str(worst.restorable)
    certain = (worst.kv_pages, worst.pages, str(worst.restorable)) == (best.kv_pages, best.pages, str(best.restorable))
    if result.degraded is None:
        assert certain
    caught = None
    try:
        assert ask(world, "raise").degraded == result.degraded
    except StoreError as error:
        caught = error
    if caught is None:
        assert certain
    else:
        assert result.degraded == caught.code == -900
        assert caught.key in failing
        assert caught.count >= 1


def test_the_error_raised_names_the_key_and_the_code() -> None:
    layout = Layout((KV, SWA), key_prefix="tag")
    world = World()
    world.put(layout, PAGES[:64])
    key = layout.object_keys(PAGES, "kv")[2 * 40 + 1]
    world.codes = {key: -901}
    with pytest.raises(StoreError, match="-901") as caught:
        world.lookup(PAGES[:64], layout)
    assert (caught.value.code, caught.value.key, caught.value.count) == (-901, key, 1)
    result, _ = world.lookup(PAGES[:64], layout, errors="miss")
    assert (result.kv_pages, result.pages, result.degraded) == (40, 40, -901)


def test_an_error_behind_a_certain_miss_is_no_concern() -> None:
    layout = Layout((KV,))
    world = World()
    world.put(layout, PAGES[:10])
    world.codes = dict.fromkeys(layout.object_keys(PAGES[11:], "kv"), -1)
    assert world.lookup(PAGES, layout).result.degraded is None
    world.codes[layout.object_keys(PAGES, "kv")[20]] = -1  # one object missing, the other in doubt: a missing page
    assert world.lookup(PAGES, layout).result.pages == 10


def test_an_error_that_only_hides_how_far_one_pool_reaches_is_told_but_not_raised() -> None:
    layout = Layout((KV, INDEXER, Pool("draft", ("_draft",))))
    world = World()
    world.put(layout, PAGES[:20])
    world.stored.difference_update(layout.object_keys(PAGES[10:], "indexer"))
    world.codes = {layout.object_keys(PAGES, "draft")[15]: -800}
    result, _ = world.lookup(PAGES[:20], layout)
    assert result.pages == 10
    assert result.pool_pages == {"kv": 20, "indexer": 10, "draft": 15}
    assert result.degraded == -800


def test_a_predictor_learns_nothing_from_an_answer_in_doubt() -> None:
    layout = Layout((KV,))
    world, predictor = World(), Predictor()
    world.codes = dict.fromkeys(layout.object_keys(PAGES, "kv"), -1010)
    world.lookup(PAGES, layout, predictor=predictor, errors="miss")
    assert predictor.forecast(PAGES, layout).pages == 0


# Bad input, and what `ask` does


@pytest.mark.parametrize("predict", [False, True])
@pytest.mark.parametrize(
    "page_hashes", ["abcd", b"abcd", "", b"", [b"a"], ["a", 1], ["a"] * 500 + [None], {"a": 1}, 7, None], ids=repr
)
def test_what_is_no_sequence_of_strings_is_refused_before_anything_is_asked(page_hashes: object, predict: bool) -> None:
    world = World()
    with pytest.raises(InvalidKeyError):
        world.lookup(page_hashes, Layout((KV,)), predictor=Predictor() if predict else None)  # type: ignore[arg-type]
    assert world.asked == []


@generous
@given(layouts(), st.lists(st.text(), max_size=60))
def test_any_strings_are_page_hashes(layout: Layout, page_hashes: list[str]) -> None:
    world, predictor = World(), Predictor(100)
    world.put(layout, page_hashes)
    for _ in range(2):
        assert world.lookup(page_hashes, layout, predictor=predictor).result.pages == len(page_hashes)


def test_what_ask_raises_passes_through_and_nothing_is_learnt() -> None:
    async def ask(keys: Sequence[str | bytes]) -> Reply:
        raise ConnectionResetError

    predictor = Predictor()
    with pytest.raises(ConnectionResetError):
        asyncio.run(lookup(ask, PAGES, Layout((KV,)), predictor=predictor))
    assert predictor.forecast(PAGES, Layout((KV,))).pages == 0


def test_cancelling_a_lookup_cancels_its_question() -> None:
    async def main() -> asyncio.Future[Reply]:
        asked: asyncio.Future[asyncio.Future[Reply]] = asyncio.get_running_loop().create_future()

        def ask(keys: Sequence[str | bytes]) -> asyncio.Future[Reply]:
            question: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            asked.set_result(question)
            return question

        task = asyncio.ensure_future(lookup(ask, PAGES, Layout((KV, INDEXER))))
        question = await asked
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return question

    assert asyncio.run(main()).cancelled()


def test_results_compare_by_value_and_cannot_be_changed() -> None:
    layout = Layout((KV, SWA))
    world = World()
    world.put(layout, PAGES[:9])
    one, other = (world.lookup(PAGES, layout, restorable=True).result for _ in range(2))
    assert one == other
    assert one != world.lookup(PAGES, layout).result
    assert one != "a result"
    assert one.restorable is not None
    with pytest.raises(ValueError, match="read-only"):
        one.restorable[0] = 7
    with pytest.raises(AttributeError):
        one.pages = 3  # type: ignore[misc]
