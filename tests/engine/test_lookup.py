"""`lookup` and `lookup_tokens` on a real master."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest

import aiomooncake as am
from tests.hybrid.test_golden import LOOKUPS, layout_of, page_hashes_of, world_of

if TYPE_CHECKING:
    from tests.conftest import SharedCluster

pytestmark = pytest.mark.anyio

V4 = am.Layout(
    (
        am.Pool("indexer", ("_indexer",)),
        am.Pool("state_a", ("_a",)),
        am.Pool("state_b", ("_b",)),
        am.Pool("tail_a", ("_ta",), am.HitPolicy.TRAILING_PAGES, 4),
        am.Pool("tail_b", ("_tb",), am.HitPolicy.TRAILING_PAGES, 4),
    ),
    key_prefix="v4",
    page_size=64,
)
MLA = am.Layout((am.Pool("kv", ("__k",)), am.Pool("indexer", ("_indexer",))), page_size=64)


def pages_of_a_new_prompt(count: int) -> list[str]:
    """Page hashes that no other test, and no other run of this one, stores."""
    return am.sglang_page_hashes([0] * 64 * count, 64, extra_key=str(uuid.uuid4()))


async def store_pages(cluster: SharedCluster, layout: am.Layout, page_hashes: list[str]) -> None:
    await cluster.put([key for pool in layout.pools for key in layout.object_keys(page_hashes, pool.name)])


@pytest.mark.parametrize("predict", [False, True])
async def test_every_recorded_lookup_of_sglang_is_answered_as_sglang_did(cluster: SharedCluster, predict: bool) -> None:
    await cluster.put(sorted({str(key) for case in LOOKUPS for key in world_of(case).stored}))
    async with am.connect(cluster.address, predict=predict, timeout=30) as engine:
        for _ in range(2):  # the second time with a memory of the first
            for case in LOOKUPS:
                expected = case["result"]
                result = await engine.lookup(page_hashes_of(case), layout_of(case), restorable=True)
                assert result.restorable is not None
                found = (result.pages, list(map(list, result.pool_pages.items())), result.restorable.tolist())
                assert found == (
                    expected["kv_hit_pages"],
                    expected["extra_pool_hit_pages"],
                    expected["restorable_prefix_pages"],
                ), case["id"]
                longest = await engine.lookup(page_hashes_of(case), layout_of(case))
                assert longest.pages == expected["kv_hit_pages"], case["id"]


async def test_a_prompt_seen_before_takes_one_call(cluster: SharedCluster) -> None:
    page_hashes = pages_of_a_new_prompt(300)
    await store_pages(cluster, V4, page_hashes[:250])
    async with am.connect(cluster.address, connections=1) as engine:
        first = await engine.lookup(page_hashes, V4)
        before = engine.stats()
        assert (first.pages, first.round_trips > 1) == (250, True)
        # The first lookup also learnt the pages that were missing, since they are stored next as a rule.
        await store_pages(cluster, V4, page_hashes[250:])
        second = await engine.lookup(page_hashes, V4)
        assert (second.pages, second.round_trips) == (300, 1)
        assert second.keys_queried == 3 * 300 + 2 * 4
        after = engine.stats()
        assert (after.lookups, after.calls - before.calls, after.keys_in_vain) == (2, 1, 0)


async def test_no_page_costs_one_call_and_no_sidecar_key(cluster: SharedCluster) -> None:
    page_hashes = pages_of_a_new_prompt(40)
    async with am.connect(cluster.address, predict=False) as engine:
        result = await engine.lookup(page_hashes, MLA)
        assert (result.kv_pages, result.pages, result.pool_pages, result.round_trips) == (0, 0, {}, 1)
        assert (result.keys_queried, engine.stats().calls) == (32, 1)


async def test_keys_in_vain_of_a_prediction_that_was_too_long_are_counted(cluster: SharedCluster) -> None:
    page_hashes = pages_of_a_new_prompt(40)
    await store_pages(cluster, MLA, page_hashes)
    async with am.connect(cluster.address) as engine:
        assert (await engine.lookup(page_hashes, MLA)).pages == 40
        await cluster.remove([key for pool in MLA.pools for key in MLA.object_keys(page_hashes[10:], pool.name)])
        assert (await engine.lookup(page_hashes, MLA)).pages == 10
        assert engine.stats().keys_in_vain == 29 + 30


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("pages", [3, 400])
async def test_tokens_are_hashed_as_the_layout_says(cluster: SharedCluster, pages: int, as_array: bool) -> None:
    tokens = [(7 * i) % 1000 for i in range(64 * pages + 5)]
    page_hashes = am.sglang_page_hashes(tokens, 64, extra_key="lora", cache_salt=f"salt {pages}")
    assert len(page_hashes) == pages
    await store_pages(cluster, MLA, page_hashes)
    async with am.connect(cluster.address) as engine:
        given = np.array(tokens) if as_array else tokens
        result = await engine.lookup_tokens(given, MLA, extra_key="lora", cache_salt=f"salt {pages}")
        assert result.pages == pages
        assert (await engine.lookup_tokens(given, MLA)).pages == 0


async def test_an_empty_prompt_has_no_pages_and_asks_nothing(cluster: SharedCluster) -> None:
    async with am.connect(cluster.address) as engine:
        for result in (await engine.lookup([], V4), await engine.lookup_tokens([1] * 63, V4)):
            assert (result.pages, result.round_trips, result.keys_queried) == (0, 0, 0)
        assert engine.stats().calls == 0


async def test_bad_input_is_named(cluster: SharedCluster) -> None:
    async with am.connect(cluster.address, errors="miss") as engine:
        with pytest.raises(am.ConfigError, match="None"):
            await engine.lookup(["a"], None)  # type: ignore[arg-type]
        with pytest.raises(am.InvalidKeyError, match="int"):
            await engine.lookup([1], MLA)  # type: ignore[list-item]
        with pytest.raises(am.ConfigError, match=str(2**64)):
            await engine.lookup_tokens([2**64] * 64, MLA)
        with pytest.raises(am.ConfigError, match="page_size"):
            await engine.lookup_tokens([1] * 64, am.Layout(MLA.pools))
        assert engine.stats().degraded == 0


async def test_many_lookups_at_once_share_calls(cluster: SharedCluster) -> None:
    prompts = [pages_of_a_new_prompt(10) for _ in range(200)]
    for page_hashes in prompts[::2]:
        await store_pages(cluster, MLA, page_hashes)
    async with am.connect(cluster.address, timeout=30) as engine:
        results = await asyncio.gather(*(engine.lookup(page_hashes, MLA) for page_hashes in prompts))
        assert [result.pages for result in results] == [10, 0] * 100
        assert engine.stats().calls < 20


async def test_errors_miss_answers_a_lookup_without_a_master(
    cluster: SharedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    page_hashes = pages_of_a_new_prompt(10)
    async with am.connect("127.0.0.1:9", errors="miss") as engine:
        caplog.clear()
        for _ in range(5):
            result = await engine.lookup(page_hashes, MLA)
            assert (result.pages, result.degraded) == (0, -900)
        assert engine.stats().degraded == 5
    assert len([record for record in caplog.records if record.name == "aiomooncake"]) == 1


async def test_a_layout_that_never_hits_is_suspected_once(
    cluster: SharedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = am.Layout(MLA.pools, key_prefix="another-model", page_size=64)
    page_hashes = pages_of_a_new_prompt(10)
    await store_pages(cluster, MLA, page_hashes)
    async with am.connect(cluster.address) as engine:
        with caplog.at_level(logging.WARNING, "aiomooncake"):
            for _ in range(150):
                await engine.lookup(page_hashes, wrong)
                await engine.lookup(page_hashes, MLA)
    assert len([record for record in caplog.records if record.name == "aiomooncake"]) == 1
    assert "another-model" in caplog.text


async def test_errors_miss_hides_no_bad_key(cluster: SharedCluster) -> None:
    async with am.connect("127.0.0.1:9", errors="miss") as engine:
        assert await engine.exists("good") is False
        with pytest.raises(am.InvalidKeyError):
            await engine.exists(None)  # type: ignore[arg-type]
        with pytest.raises(am.InvalidKeyError):
            await engine.batch_exists(["good", "\ud800"])
        with pytest.raises(am.InvalidKeyError):
            await engine.prefix_length([b"good", 1])  # type: ignore[list-item]
