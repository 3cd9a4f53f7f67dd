from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import lmcache_chunk_hashes
from aiomooncake.layout import HitPolicy, Layout

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "lmcache.json").read_text())
MODEL = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("case", RECORDED["keys"], ids=lambda case: case["key"])
def test_keys_are_those_of_lmcache(case: dict[str, Any]) -> None:
    choices = {"world_size": 4, "worker_id": case["worker_id"], "dtype": case["dtype"], "tags": case["tags"]}
    assert Layout.lmcache(MODEL, **choices).object_keys([case["hash"]], "kv") == [case["key"]]
    assert Layout.lmcache(MODEL, num_layers=3, **choices).object_keys([case["hash"]], "kv") == case["layers"]


@pytest.mark.parametrize("case", RECORDED["multiprocess_keys"], ids=lambda case: f"{case['world_size']} workers")
def test_multiprocess_keys_are_those_of_lmcache(case: dict[str, Any]) -> None:
    numbers = case["groups"]
    layout = Layout.lmcache(
        "Qwen/Qwen3-8B",
        multiprocess=True,
        world_size=case["world_size"],
        cache_salt=case["cache_salt"],
        object_groups=[None] * (max(numbers) + 1),
    )
    for number, keys in zip(numbers, case["keys"], strict=True):
        assert layout.object_keys(case["chunk_hashes"], "kv" if number == 0 else f"group{number}") == keys


def test_all_workers_and_layers_are_asked_about() -> None:
    keys = Layout.lmcache("m", world_size=2, dtype="bfloat16", num_layers=2).object_keys(["aa"], "kv")
    assert keys == [f"m@2@{worker}@aa@bfloat16@{layer}" for worker in (0, 1) for layer in (0, 1)]


def test_when_only_the_first_rank_saves_keys_know_no_other() -> None:
    layout = Layout.lmcache("m", world_size=8, dtype="bfloat16", save_only_first_rank=True)
    assert layout.object_keys(["aa"], "kv") == ["m@1@0@aa@bfloat16"]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("torch.float16", "half"), ("float16", "half"), ("half", "half"), ("float8_e5m2", "fp8_e5m2"), ("uint8", "uint8")],
)
def test_data_types_are_known_by_the_names_of_torch_and_of_lmcache(dtype: str, name: str) -> None:
    assert Layout.lmcache("m", dtype=dtype).object_keys(["aa"], "kv") == [f"m@1@0@aa@{name}"]


def test_object_groups_have_their_windows() -> None:
    layout = Layout.lmcache("m", multiprocess=True, object_groups=[4, None, None])
    assert [(p.name, p.hit_policy, p.trailing_pages) for p in layout.pools] == [
        ("group0", HitPolicy.TRAILING_PAGES, 4),
        ("kv", HitPolicy.ALL_PAGES, None),
        ("group2", HitPolicy.ALL_PAGES, None),
    ]


def test_token_ids_are_hashed_as_lmcache_does() -> None:
    tokens = range(700)
    classic = Layout.lmcache("m", dtype="half", none_hash=7)
    assert classic.page_hashes(tokens) == lmcache_chunk_hashes(tokens, algorithm="builtin", none_hash=7)
    server = Layout.lmcache("m", multiprocess=True, chunk_size=128)
    assert server.page_hashes(tokens) == lmcache_chunk_hashes(tokens, 128, algorithm="blake3", multiprocess=True)


@pytest.mark.parametrize("name", ["extra_key", "cache_salt"])
def test_what_lmcache_does_not_hash_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"LMCache does not hash {name}"):
        Layout.lmcache("m", dtype="half", none_hash=0).page_hashes(range(700), **{name: "a"})


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({}, "one of bfloat16, "),
        ({"dtype": "bf16"}, "'bf16' is none"),
        ({"dtype": "half", "num_layers": 0}, "num_layers"),
        ({"dtype": "half", "world_size": 0}, "world_size"),
        ({"dtype": "half", "world_size": 2, "worker_id": 2}, "worker_id must be from 0 to 1"),
        ({"dtype": "half", "cache_salt": "a"}, "cache_salt='a' has no meaning with multiprocess=False"),
        ({"dtype": "half", "object_groups": [None]}, "object_groups=[None] has no meaning"),
        ({"dtype": "half", "chunk_size": 0}, "page_size"),
        ({"multiprocess": True, "dtype": "half"}, "dtype='half' has no meaning with multiprocess=True"),
        ({"multiprocess": True, "num_layers": 2}, "num_layers=2 has no meaning"),
        ({"multiprocess": True, "tags": {"a": 1}}, "tags={'a': 1} has no meaning"),
        ({"multiprocess": True, "save_only_first_rank": True}, "save_only_first_rank"),
        ({"multiprocess": True, "cache_salt": "a@b"}, "'a@b' has"),
        ({"multiprocess": True, "cache_salt": "a" * 129}, "at most 128 characters"),
        ({"multiprocess": True, "world_size": 256}, "at most 255 workers"),
        ({"multiprocess": True, "object_groups": [0]}, "at least 1, not 0"),
        ({"multiprocess": True, "model_name": "a@b"}, "like 'a@b'"),
        ({"model_name": "", "dtype": "half"}, "model_name"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused(choices: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.lmcache(**{"model_name": "m"} | choices)
    assert reason in str(caught.value)
