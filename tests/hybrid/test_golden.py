"""The answers that SGLang's own `batch_exists_v2` gave on a real master."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiomooncake.errors import ConfigError, StoreError
from aiomooncake.layout import HitPolicy, Layout, Pool
from aiomooncake.predictor import Predictor

from .world import Constant, World

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "hicache.json").read_text(encoding="utf-8"))
REFUSED = {  # what SGLang meets only once it gets there, a layout refuses when it is made
    "pE008": "a logical anchor without pools",
    "pE013": "an unknown policy",
    "pE014": "an unknown policy",
    "pE015": "an unknown policy",
    "pE016": "a pool without suffixes",
    "pE017": "a pool without suffixes",
}
LOOKUPS = [case for case in GOLDEN["lookups"] + GOLDEN["edge_lookups"] if case["id"] not in REFUSED]
REFUSALS = [case for case in GOLDEN["edge_lookups"] if case["id"] in REFUSED]


def by_id(case: dict[str, Any]) -> str:
    return str(case["id"])


def layout_of(case: dict[str, Any]) -> Layout:
    pools = []
    for component in case["components"]:
        policy = component.get("hit_policy", "all_pages")
        window = (component["trailing_keys"] or 1) if policy == HitPolicy.TRAILING_PAGES.value else None
        pools.append(Pool(component["pool"], component["suffixes"], policy, window))
    return Layout(tuple(pools), case["key_prefix"])


def page_hashes_of(case: dict[str, Any]) -> list[str]:
    pages = case["pages"]
    return pages["keys"] if "keys" in pages else [f"{pages['prefix']}{i:03d}" for i in range(pages["n"])]


def world_of(case: dict[str, Any]) -> World:
    layout, page_hashes = layout_of(case), page_hashes_of(case)
    world = World()
    for pool, objects in zip(layout.pools, case["present"], strict=True):
        keys = layout.object_keys(page_hashes, pool.name)
        for item, pages in enumerate(objects):
            world.stored.update(keys[page * len(objects) + item] for page, bit in enumerate(pages) if bit == "1")
    return world


def inject(case: dict[str, Any], world: World) -> None:
    """Give keys the error codes of a fault case, which names them by call: KV first, then all sidecars."""
    layout, page_hashes = layout_of(case), page_hashes_of(case)
    calls = [[layout.kv]] if layout.kv else []
    calls.append(list(layout.sidecars))
    for fault in case["inject"]:
        keys = [key for pool in calls[fault["rpc"]] if pool for key in layout.object_keys(page_hashes, pool.name)]
        for key in keys if fault["key_index"] == "*" else [keys[fault["key_index"]]]:
            world.codes[key] = fault["code"]


@pytest.mark.parametrize("forecast", [None, 0, 1, 5, 1000])
@pytest.mark.parametrize("case", LOOKUPS, ids=by_id)
def test_a_lookup_answers_what_sglang_answers(case: dict[str, Any], forecast: int | None) -> None:
    predictor = None if forecast is None else Constant(forecast)
    expected = case["result"]
    world = world_of(case)
    result, _ = world.lookup(page_hashes_of(case), layout_of(case), restorable=True, predictor=predictor)
    assert result.pages == expected["kv_hit_pages"]
    assert [list(entry) for entry in result.pool_pages.items()] == expected["extra_pool_hit_pages"]
    assert result.restorable is not None
    assert result.restorable.tolist() == expected["restorable_prefix_pages"]
    assert result.degraded is None


@pytest.mark.parametrize("case", LOOKUPS, ids=by_id)
def test_the_longest_prefix_is_found_without_asking_for_every_usable_length(case: dict[str, Any]) -> None:
    predictor = Predictor(1000)
    for remembered in (None, predictor, predictor):  # the second fills it
        world = world_of(case)
        result, in_vain = world.lookup(page_hashes_of(case), layout_of(case), predictor=remembered)
        assert result.pages == case["result"]["kv_hit_pages"]
        assert result.restorable is None
        assert result.keys_queried - in_vain <= sum(case["rpc"])
        assert in_vain == 0 or remembered


@pytest.mark.parametrize("case", REFUSALS, ids=by_id)
def test_a_layout_without_a_meaning_is_refused_before_anything_is_asked(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        layout_of(case)


@pytest.mark.parametrize("case", GOLDEN["fault_lookups"], ids=by_id)
def test_an_error_is_trusted_no_more_than_a_miss_and_is_not_hidden(case: dict[str, Any]) -> None:
    expected = case["upstream_result"]
    world = world_of(case)
    hopeful, _ = world.lookup(page_hashes_of(case), layout_of(case), restorable=True)
    inject(case, world)
    result, _ = world.lookup(page_hashes_of(case), layout_of(case), restorable=True, errors="miss")
    assert result.restorable is not None
    assert result.pages == expected["kv_hit_pages"]
    assert [list(entry) for entry in result.pool_pages.items()] == expected["extra_pool_hit_pages"]
    assert result.restorable.tolist() == expected["restorable_prefix_pages"]
    if result.degraded is None:
        assert (result.pages, result.pool_pages) == (hopeful.pages, hopeful.pool_pages)
        return
    assert result.degraded in world.codes.values()
    assert hopeful.restorable is not None
    if hopeful.restorable.tolist() != result.restorable.tolist():
        with pytest.raises(StoreError) as caught:
            world.lookup(page_hashes_of(case), layout_of(case), restorable=True)
        assert caught.value.code == result.degraded
        assert world.codes[str(caught.value.key)] == caught.value.code
