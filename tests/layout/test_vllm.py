from __future__ import annotations

from typing import Any

import pytest

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import vllm_block_hashes
from aiomooncake.layout import HitPolicy, Layout, VLLMGroup


def test_a_key_names_the_model_the_ranks_the_group_and_the_hash() -> None:
    layout = Layout.vllm("/models/org/Qwen3-8B/")
    assert layout.object_keys(["aa"], "kv") == ["Qwen3-8B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@aa"]


def test_a_cache_prefix_comes_first_and_a_namespace_behind_the_model() -> None:
    [key] = Layout.vllm("m", cache_prefix="prod", namespace="#v2").object_keys(["aa"], "kv")
    assert key == "prod@m#v2@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@aa"


def heads(layout: Layout, pool: str) -> set[str]:
    return {key.removeprefix("m@").removesuffix("@aa") for key in layout.object_keys(["aa"], pool)}


def test_all_ranks_are_asked_about() -> None:
    assert heads(Layout.vllm("m", tp_size=2, pp_size=2, pcp_size=2), "kv") == {
        f"tp_rank:{tp}@pcp{pcp}@dcp0@pp_rank:{pp}@group:0" for tp in (0, 1) for pcp in (0, 1) for pp in (0, 1)
    }


@pytest.mark.parametrize(
    ("group", "shards"),
    [
        (VLLMGroup(), 8),
        (VLLMGroup(num_kv_heads=2), 2),
        (VLLMGroup(num_kv_heads=8), 8),
        (VLLMGroup(num_kv_heads=32), 8),
        (VLLMGroup("mla"), 1),
        (VLLMGroup("mamba"), 8),
    ],
    ids=str,
)
def test_ranks_that_hold_copies_are_asked_about_once(group: VLLMGroup, shards: int) -> None:
    [pool] = Layout.vllm("m", tp_size=8, groups=[group]).pools
    assert pool.prefixes == tuple(f"m@tp_rank:{tp}@pcp0@dcp0@pp_rank:0@group:0@" for tp in range(shards))


def test_with_dcp_every_rank_has_something_of_its_own() -> None:
    assert heads(Layout.vllm("m", tp_size=4, dcp_size=2, groups=[VLLMGroup("mla")]), "kv") == {
        f"tp_rank:{tp}@pcp0@dcp{tp % 2}@pp_rank:0@group:0" for tp in range(4)
    }


def test_the_first_group_that_needs_all_blocks_is_the_kv_pool() -> None:
    groups = [VLLMGroup(trailing_blocks=9), VLLMGroup(), VLLMGroup("mamba"), VLLMGroup()]
    layout = Layout.vllm("m", groups=groups)
    assert [(p.name, p.hit_policy, p.trailing_pages) for p in layout.pools] == [
        ("group0", HitPolicy.TRAILING_PAGES, 9),
        ("kv", HitPolicy.ALL_PAGES, None),
        ("group2", HitPolicy.TRAILING_PAGES, 1),
        ("group3", HitPolicy.ALL_PAGES, None),
    ]
    assert heads(layout, "kv") == {"tp_rank:0@pcp0@dcp0@pp_rank:0@group:1"}


def test_token_ids_are_hashed_as_vllm_does() -> None:
    layout = Layout.vllm("m", block_size=16, hash_block_size=8, seed="0", algorithm="sha256_cbor")
    assert layout.page_hashes(range(70), extra_key="lora", cache_salt="salt") == vllm_block_hashes(
        range(70), 16, hash_block_size=8, seed="0", algorithm="sha256_cbor", lora_name="lora", cache_salt="salt"
    )


def test_token_ids_need_a_seed_but_hashes_do_not() -> None:
    layout = Layout.vllm("m", block_size=16)
    assert layout.object_keys(["aa"], "kv")
    with pytest.raises(ConfigError, match="PYTHONHASHSEED"):
        layout.page_hashes(range(70))


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"model": ""}, "model must be the name or path"),
        ({"model": "/"}, "model must be the name or path"),
        ({"model": None}, "model must be the name or path that vLLM was given, not None"),
        ({"tp_size": 0}, "tp_size"),
        ({"pp_size": 0}, "pp_size"),
        ({"pcp_size": "2"}, "pcp_size"),
        ({"tp_size": 4, "dcp_size": 3}, "dcp_size must divide tp_size (4); 3 does not"),
        ({"groups": []}, "hit on nothing"),
        ({"groups": ["mla"]}, "groups must hold VLLMGroup, not 'mla'"),
        ({"block_size": 0}, "page_size"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused(choices: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.vllm(**{"model": "m"} | choices)
    assert reason in str(caught.value)


@pytest.mark.parametrize("choices", [{"kind": "full"}, {"num_kv_heads": 0}, {"trailing_blocks": 0}], ids=str)
def test_a_group_that_cannot_be_is_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(choices))):
        VLLMGroup(**choices)
