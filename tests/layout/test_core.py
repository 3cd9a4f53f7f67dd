from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.errors import ConfigError, InvalidKeyError
from aiomooncake.layout import HitPolicy, Layout, Pool

KV = Pool("kv", ("_0_k", "_0_v"))
SWA = Pool("swa", ("__swa",), HitPolicy.TRAILING_PAGES, 4)


def test_a_key_is_prefix_hash_and_suffix_page_by_page() -> None:
    layout = Layout((KV, SWA), "tag_model")
    assert layout.object_keys(["aa", "bb"], "kv") == [
        "tag_model_aa_0_k",
        "tag_model_aa_0_v",
        "tag_model_bb_0_k",
        "tag_model_bb_0_v",
    ]
    assert layout.object_keys(("aa",), "swa") == ["tag_model_aa__swa"]


@pytest.mark.parametrize(("prefix", "key"), [(None, "aa_0_k"), ("", "_aa_0_k"), ("p", "p_aa_0_k")])
def test_an_empty_prefix_is_a_prefix_and_none_is_not(prefix: str | None, key: str) -> None:
    assert Layout((KV,), prefix).object_keys(["aa"], "kv")[0] == key


def test_prefixes_of_a_pool_stand_before_the_hash_as_they_are() -> None:
    layout = Layout((Pool("kv", ("@bf16", "@bf16"), prefixes=("m@2@0@", "m@2@1@")),))
    assert layout.object_keys(["aa", "bb"], "kv") == [
        "m@2@0@aa@bf16",
        "m@2@1@aa@bf16",
        "m@2@0@bb@bf16",
        "m@2@1@bb@bf16",
    ]


texts = st.text(max_size=4)


@given(hashes=st.lists(texts), suffixes=st.lists(texts, min_size=1, max_size=4, unique=True), prefix=st.none() | texts)
def test_keys_are_what_a_naive_loop_makes_and_no_input_changes(
    hashes: list[str], suffixes: list[str], prefix: str | None
) -> None:
    layout = Layout((Pool("kv", tuple(suffixes)),), prefix)
    given_hashes = list(hashes)
    expected = []
    for page_hash in given_hashes:
        for suffix in suffixes:
            expected.append(page_hash + suffix if prefix is None else prefix + "_" + page_hash + suffix)
    assert layout.object_keys(hashes, "kv") == expected
    assert hashes == given_hashes


def test_a_layout_without_kv_has_a_logical_anchor() -> None:
    assert Layout((SWA,)).kv is None
    assert Layout((SWA, KV)).kv == KV
    assert Layout((SWA, KV)).sidecars == (SWA,)


def test_layouts_are_values() -> None:
    one = Layout((KV, SWA), "m", 64)
    same = Layout([Pool("kv", ["_0_k", "_0_v"]), Pool("swa", ["__swa"], "trailing_pages", 4)], "m", 64)  # type: ignore[arg-type]
    assert one == same
    assert hash(one) == hash(same)
    assert one != Layout((KV, SWA), "m", 32)
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_pool_may_stand_twice_with_two_windows_over_the_same_objects() -> None:
    twice = Layout((KV, SWA, Pool("swa", ("__swa",), HitPolicy.TRAILING_PAGES, 2)))
    assert [pool.trailing_pages for pool in twice.sidecars] == [4, 2]
    assert twice.object_keys(["aa"], "swa") == ["aa__swa"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("kv", ("_k",), "block_groups"), "unknown hit policy 'block_groups'; known are 'all_pages', 'trailing_pages'"),
        (("kv", ("_k",), None), "unknown hit policy None"),
        (("kv", ()), "no suffixes"),
        (("kv", ("_k", "_v", "_k")), "'{page_hash}_k' more than once"),
        (("kv", "_k"), "suffixes must be a tuple of strings, not '_k'"),
        (("kv", None), "suffixes must be a tuple of strings, not None"),
        (("kv", ("_k", 1)), "suffixes must be a tuple of strings"),
        (("", ("_k",)), "name must be a string that is not empty"),
        ((7, ("_k",)), "name must be a string that is not empty, not 7"),
        (("swa", ("_k",), "trailing_pages"), "an integer of at least 1, not None"),
        (("swa", ("_k",), "trailing_pages", 0), "an integer of at least 1, not 0"),
        (("swa", ("_k",), "trailing_pages", True), "an integer of at least 1, not True"),
        (("swa", ("_k",), "all_pages", 4), "trailing_pages=4 has no meaning"),
        (("kv", ("_k",), "trailing_pages", 4), "the KV pool needs all pages"),
        (("kv", ("", ""), "all_pages", None, ("a",)), "1 prefixes for 2 suffixes"),
        (("kv", ("", ""), "all_pages", None, ("a", "a")), "'a{page_hash}' more than once"),
        (("kv", ("",), "all_pages", None, "a"), "prefixes must be a tuple of strings, not 'a'"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_with_the_reason(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pool(*arguments)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (((),), "hit on nothing"),
        ((KV,), "write (pool,)"),
        ((None,), "must be a tuple of Pool, not None"),
        ((("kv",),), "it holds 'kv'"),
        (((KV, KV),), "the KV pool stands twice"),
        (((SWA, Pool("swa", ("_other",))),), "two pools are named 'swa'"),
        (((KV,), 5), "key_prefix must be a string or None, not 5"),
        (((KV,), None, 0), "page_size must be a number of tokens, at least 1, or None, not 0"),
        (((KV,), None, -64), "not -64"),
        (((KV,), None, 64.0), "not 64.0"),
        (((Pool("kv", ("",), prefixes=("a",)),), "p"), "give one or the other"),
        (((KV,), None, 64, "sglang"), "'sglang' has none"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_reason(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout(*arguments)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("hashes", "reason"),
    [
        (["aa", b"bb"], "page hash 1 is b'bb' (bytes)"),
        ([None], "page hash 0 is None"),
        ([12], "page hash 0 is 12 (int)"),
        ("aabb", "a sequence of strings, not str"),
        (b"aabb", "not bytes"),
        (None, "not NoneType"),
        (iter(["aa"]), "not list_iterator"),
        (np.array([1, 2]), "not ndarray"),
    ],
)
def test_page_hashes_of_a_wrong_type_are_named(hashes: Any, reason: str) -> None:
    for suffixes in (("_k",), ("_k", "_v")):
        with pytest.raises(InvalidKeyError) as caught:
            Layout((Pool("kv", suffixes),)).object_keys(hashes, "kv")
        assert reason in str(caught.value)


def test_no_pages_have_no_keys() -> None:
    assert Layout((KV,)).object_keys([], "kv") == []


def test_a_pool_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"no pool 'mamba'; its pools are 'kv', 'swa'"):
        Layout((KV, SWA)).object_keys(["aa"], "mamba")


def test_token_ids_need_a_page_size() -> None:
    with pytest.raises(ConfigError, match="page_size"):
        Layout((KV,)).page_hashes([1, 2, 3])


def test_a_hand_made_layout_hashes_as_sglang_does() -> None:
    from aiomooncake.hashing import sglang_page_hashes

    hashes = Layout((KV,), page_size=4).page_hashes(range(10), extra_key="lora", cache_salt="salt")
    assert hashes == sglang_page_hashes(range(10), 4, extra_key="lora", cache_salt="salt")
