from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import SGLangHasher, sglang_page_hashes
from aiomooncake.layout import HitPolicy, Layout, Pool, SGLangPool

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "hicache.json").read_text())

# The golden data's config has SGLang's names; these differ here.
RANKS = {"tp_rank": 0, "pp_rank": 0, "attn_cp_rank": 0, "dcp_rank": 0}


def options(case: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = RANKS | case["config"]
    if "logical_page_size" in config:
        config["page_size"] = config.pop("logical_page_size")
    if case["kv"] == "linker":
        config |= {"direct_linker": True, "rank_replicated": case["rank_replicated"]}
    return config | {"swa_trailing_pages": 4}


def pool(description: dict[str, Any]) -> SGLangPool:
    kind = description["kind"]
    return SGLangPool(
        description["name"],
        kind if kind != "device_entry" else None,
        conv_states=description.get("conv", 1),
        temporal=description.get("temporal", True),
    )


@pytest.mark.parametrize("case", GOLDEN["key_layouts"], ids=lambda case: case["id"])
def test_keys_are_those_that_sglang_sends(case: dict[str, Any]) -> None:
    pools: list[SGLangPool | str] = ["kv"] if case["kv"] == "physical" else []
    refused = {name for name, keys in case["pool_keys"].items() if "error" in keys}
    pools += [pool(description) for description in case["pools"] if description["name"] not in refused]
    layout = Layout.sglang(pools=pools, **options(case))

    assert layout.key_prefix == case["key_prefix"]
    if case["kv"] == "physical":
        assert layout.object_keys(case["page_keys"], "kv") == case["kv_keys"]
    for name, expected in case["pool_keys"].items():
        if "error" not in expected:
            assert layout.object_keys(case["page_keys"], name) == expected["keys"]
            assert len(next(p for p in layout.pools if p.name == name).suffixes) == expected["objects_per_page"]
    for description in case["pools"]:
        if description["name"] in refused:
            with pytest.raises(ConfigError, match="SGLang stores no pool"):
                Layout.sglang(pools=[pool(description)], **options(case))


def one_rank_layouts(pools: list[str | SGLangPool], **sizes: Any) -> list[Layout]:
    layouts = []
    for tp in range(sizes.get("tp_size", 1)):
        for pp in range(sizes.get("pp_size", 1)):
            for cp in range(sizes.get("attn_cp_size", 1)):
                for dcp in range(sizes.get("dcp_size", 1)):
                    ranks: dict[str, Any] = {"tp_rank": tp, "pp_rank": pp, "attn_cp_rank": cp, "dcp_rank": dcp}
                    layouts.append(Layout.sglang(pools=pools, **sizes, **ranks))
    return layouts


EVERYTHING: list[str | SGLangPool] = ["kv", "mamba", "swa", "draft", "draft_swa", "indexer", "draft_indexer"]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"tp_size": 4},
        {"tp_size": 2, "pp_size": 3},
        {"tp_size": 2, "pp_size": 2, "attn_cp_size": 2, "is_mla_model": True},
        {"tp_size": 4, "pp_size": 2, "attn_cp_size": 2, "dcp_size": 4, "is_mla_model": True, "page_size": 256},
        {"tp_size": 2, "pp_size": 2, "should_split_heads": True, "tp_lcm_size": 8},
        {"tp_size": 2, "pp_size": 2, "attn_cp_size": 2, "direct_linker": True},
        {"tp_size": 2, "pp_size": 2, "direct_linker": True, "is_mla_model": True},
    ],
    ids=str,
)
def test_all_ranks_at_once_are_the_objects_of_every_single_rank(sizes: dict[str, Any]) -> None:
    sizes = {"swa_trailing_pages": 4, "model_name": "org/model", **sizes}
    everyone = Layout.sglang(pools=EVERYTHING, **sizes)
    singles = one_rank_layouts(EVERYTHING, **sizes)
    assert {single.key_prefix for single in singles} == {everyone.key_prefix}
    for name in (p if isinstance(p, str) else p.name for p in EVERYTHING):
        keys = everyone.object_keys(["aa"], name)
        assert len(keys) == len(set(keys))
        assert set(keys) == {key for single in singles for key in single.object_keys(["aa"], name)}


def test_pools_have_the_hit_policies_that_sglang_gives_them() -> None:
    layout = Layout.sglang(
        is_mla_model=True,
        swa_trailing_pages=5,
        pools=["kv", "mamba", "swa", "indexer", "draft_swa", "deepseek_v4_c4", "deepseek_v4_c4_state", "draft"],
    )
    windows = {p.name: p.trailing_pages for p in layout.pools}
    assert windows == {
        "kv": None,
        "mamba": 1,
        "swa": 5,
        "indexer": None,
        "draft_swa": 5,
        "deepseek_v4_c4": None,
        "deepseek_v4_c4_state": 5,
        "draft": None,
    }


def test_a_hit_policy_of_ones_own_replaces_the_default() -> None:
    pools = [SGLangPool("swa", hit_policy=HitPolicy.ALL_PAGES), SGLangPool("mamba", trailing_pages=3)]
    swa, mamba = Layout.sglang(is_mla_model=True, pools=pools).pools
    assert (swa.hit_policy, swa.trailing_pages) == (HitPolicy.ALL_PAGES, None)
    assert (mamba.hit_policy, mamba.trailing_pages) == (HitPolicy.TRAILING_PAGES, 3)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"tp_size": 0}, "tp_size must be an integer of at least 1, not 0"),
        ({"tp_size": 2, "tp_rank": 2}, "tp_rank must be from 0 to 1, or None for all ranks, not 2"),
        ({"pp_rank": -1}, "pp_rank must be from 0 to 0"),
        ({"dcp_size": 2, "is_mla_model": True}, "give it as page_size"),
        ({"should_split_heads": True, "tp_size": 2}, "needs tp_lcm_size"),
        ({"should_split_heads": True, "tp_size": 2, "tp_lcm_size": 3}, "3 is none"),
        ({"pools": ["swa"]}, "swa_trailing_pages"),
        ({"pools": ["swa"], "swa_trailing_pages": 0}, "at least 1, not 0"),
        ({"pools": []}, "hit on nothing"),
        ({"pools": [Pool("kv", ("_k",))]}, "must hold names or SGLangPool"),
        ({"pools": ["state"]}, "SGLang stores no pool 'state'"),
        ({"page_size": -1}, "page_size"),
        ({"model_name": b"m"}, "model_name must be a string or None, not b'm'"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused(choices: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.sglang(**choices)
    assert reason in str(caught.value)


def described_keys(reply: dict[str, Any], hashes: list[str]) -> dict[str, list[str]]:
    """The keys of a description, pool by pool; those of several stages follow each other within a page."""
    description = reply["hicache_object_layout"]
    prefix = description["key_prefix"]
    keys: dict[str, list[str]] = {}
    for page_hash in hashes:
        for name in dict.fromkeys(entry["pool"] for entry in description["pools"]):
            for entry in description["pools"]:
                if entry["pool"] == name:
                    head = "" if prefix is None else prefix + "_"
                    keys.setdefault(name, []).extend(head + page_hash + suffix for suffix in entry["suffixes"])
    return keys


def check_reply(reply: Any, description: Any) -> None:
    if not (description and description["enabled"]):
        with pytest.raises(ConfigError) as caught:
            Layout.from_sglang(reply)
        if description and reply is description:
            assert description["reason"] in str(caught.value)
        return
    layout = Layout.from_sglang(reply)
    assert layout.page_size == description["page_size"]
    expected = described_keys(description, ["aa", "bb"])
    assert {p.name: layout.object_keys(["aa", "bb"], p.name) for p in layout.pools} == expected
    for entry in description["hicache_object_layout"]["pools"]:
        found = next(p for p in layout.pools if p.name == entry["pool"])
        assert found.hit_policy.value == entry["hit_policy"]
        assert found.trailing_pages == entry.get("trailing_pages")


@pytest.mark.parametrize(
    "case", [case for case in GOLDEN["l3_layouts"] if "layout" in case], ids=lambda case: case["id"]
)
def test_a_reply_of_the_layout_endpoint_becomes_its_layout_or_its_reason(case: dict[str, Any]) -> None:
    check_reply(case["layout"], case["layout"])


@pytest.mark.parametrize("case", GOLDEN["l3_merges"], ids=lambda case: case.get("id"))
def test_merged_replies_and_replies_to_merge_give_the_same_layout(case: dict[str, Any]) -> None:
    check_reply(case["merged"], case["merged"])
    check_reply(case["layouts"], case["merged"])
    if case["merged"] and case["merged"]["enabled"]:
        assert Layout.from_sglang(case["layouts"]) == Layout.from_sglang(case["merged"])
        assert Layout.from_sglang([case["merged"]]) == Layout.from_sglang(case["merged"])


DESCRIPTION: dict[str, Any] = {
    "pools": [{"pool": "kv", "suffixes": ["__k"], "hit_policy": "all_pages"}],
    "key_prefix": "m",
    "is_mla_backend": True,
    "pp_rank": 0,
    "pp_size": 1,
}
REPLY: dict[str, Any] = {
    "enabled": True,
    "backend": "mooncake",
    "page_size": 64,
    "hicache_object_layout": DESCRIPTION,
}


def test_a_description_without_its_envelope_is_taken_too() -> None:
    assert Layout.from_sglang(DESCRIPTION) == Layout((Pool("kv", ("__k",)),), "m")


def test_eagle_is_said_by_the_caller() -> None:
    layout = Layout.from_sglang(REPLY, bigram=True)
    assert layout.hasher == SGLangHasher(bigram=True)
    assert layout.page_hashes(range(129)) == sglang_page_hashes(range(129), 64, bigram=True)


def staged(rank: int, **changes: Any) -> dict[str, Any]:
    return REPLY | {"hicache_object_layout": DESCRIPTION | {"pp_rank": rank, "pp_size": 2} | changes}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (REPLY | {"enabled": False, "reason": "hierarchical cache is off"}, "hierarchical cache is off"),
        (REPLY | {"enabled": False}, "it gives no reason"),
        (REPLY | {"backend": "hf3fs"}, "'hf3fs', not in Mooncake"),
        (REPLY | {"backend": None}, "None, not in Mooncake"),
        (REPLY | {"hicache_object_layout": None}, "no object layout"),
        (REPLY | {"page_size": "64"}, "page_size"),
        (None, "older than the endpoint"),
        ("{}", "is a JSON object"),
        ({}, "refuses lookups from outside"),
        ([], "no replies"),
        ([REPLY, None], "one sent None"),
        ([REPLY, REPLY | {"backend": "file"}], "'file', not in Mooncake"),
        ([staged(0)], "incomplete"),
        ([staged(0), staged(1, key_prefix="other")], "pipeline stages describe different layouts"),
        ([staged(0), staged(0, key_prefix="other")], "schedulers of pipeline stage 0 describe different layouts"),
        (DESCRIPTION | {"pools": {"kv": ["__k"]}}, "has a list of pools"),
        (DESCRIPTION | {"pools": ["kv"]}, "fields pool, suffixes and hit_policy"),
        (DESCRIPTION | {"pools": [{"pool": "kv", "suffixes": ["__k"]}]}, "fields pool, suffixes and hit_policy"),
        (DESCRIPTION | {"pools": [{"pool": "kv", "suffixes": [], "hit_policy": "all_pages"}]}, "no suffixes"),
        (DESCRIPTION | {"key_prefix": 3}, "key_prefix"),
        (
            DESCRIPTION
            | {
                "pools": [
                    {"pool": "swa", "suffixes": ["_0_swa"], "hit_policy": "trailing_pages", "trailing_pages": 4},
                    {"pool": "swa", "suffixes": ["_1_swa"], "hit_policy": "trailing_pages", "trailing_pages": 5},
                ]
            },
            "different hit policies for pool 'swa'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_layout_is_refused_with_the_reason(reply: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.from_sglang(reply)
    assert reason in str(caught.value)


def test_a_reply_is_not_changed() -> None:
    replies = [staged(1), staged(0)]
    before = json.dumps(replies)
    Layout.from_sglang(replies)
    assert json.dumps(replies) == before
