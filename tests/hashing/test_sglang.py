from __future__ import annotations

import hashlib
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import SGLangHasher, sglang_namespace_seed, sglang_page_hashes

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "hicache.json").read_text())


def prompt(key: dict[str, Any]) -> list[int]:
    tokens = key["tokens"]
    if isinstance(tokens, dict):
        a, b, c, m = tokens["gen"]
        tokens = [(a * i * i + b * i + c) % m for i in range(tokens["n"])]
    return list(tokens[: key.get("limit")])


def chain(key: dict[str, Any], prior_hash: str | None) -> dict[str, Any]:
    return {
        "extra_key": key.get("extra_key"),
        "cache_salt": key.get("cache_salt"),
        "prior_hash": prior_hash,
        "bigram": key["type"] == "tuples" or key.get("is_bigram", False),
    }


def with_last_page(tokens: list[int], page_size: int, choices: dict[str, Any]) -> list[str]:
    """SGLang's list: our hashes of the whole pages, then that of what is left, as a page of its own size."""
    hashes = sglang_page_hashes(tokens, page_size, **choices)
    positions = max(0, len(tokens) - choices["bigram"])
    left = positions - len(hashes) * page_size
    if left:
        prior = hashes[-1] if hashes else choices["prior_hash"]
        hashes += sglang_page_hashes(tokens[len(hashes) * page_size :], left, **choices | {"prior_hash": prior})
    return hashes


@pytest.mark.parametrize("case", GOLDEN["page_hashes"], ids=lambda case: case["id"])
def test_hashes_are_those_of_sglang(case: dict[str, Any]) -> None:
    tokens, choices = prompt(case["key"]), chain(case["key"], case["prior_hash"])
    page_size = case["page_size"]
    if "error" in case:
        with pytest.raises(ConfigError):
            sglang_page_hashes(tokens, page_size, **choices)
        return
    if page_size is None:  # the whole key as one page; SGLang hashes an empty one too, which is no page
        positions = max(0, len(tokens) - choices["bigram"])
        if positions:
            assert sglang_page_hashes(tokens, positions, **choices) == [case["hashes"]]
        return

    whole = sglang_page_hashes(np.array(tokens, dtype=np.int64), page_size, **choices)
    hashes = with_last_page(tokens, page_size, choices)
    assert hashes[: len(whole)] == whole
    expected = case["hashes"]
    if isinstance(expected, dict):
        joined = hashlib.sha256("".join(hashes).encode()).hexdigest()
        hashes_seen = {"n": len(hashes), "first": hashes[0], "last": hashes[-1], "sha256_of_concatenation": joined}
        assert hashes_seen == expected
    else:
        assert hashes == expected


@pytest.mark.parametrize("case", GOLDEN["namespace_seeds"], ids=lambda case: str(case["seed"])[:8])
def test_namespace_seeds_are_those_of_sglang(case: dict[str, Any]) -> None:
    assert sglang_namespace_seed(case["extra_key"], case["cache_salt"]) == case["seed"]


def naive(tokens: list[int], page_size: int, prior: bytes, bigram: bool) -> list[str]:
    positions = [[a, b] for a, b in itertools.pairwise(tokens)] if bigram else [[token] for token in tokens]
    hashes = []
    for start in range(0, len(positions) - page_size + 1, page_size):
        page = [token for position in positions[start : start + page_size] for token in position]
        if max(page) < 2**32:
            packed = struct.pack(f"<{len(page)}I", *page)
        else:
            packed = b"\xff" + struct.pack(f"<{len(page)}Q", *page)
        prior = hashlib.sha256(prior + packed).digest()
        hashes.append(prior.hex())
    return hashes


narrow = st.integers(0, 2**32 - 1)
wide = st.integers(0, 2**63 - 1)


@given(
    tokens=st.lists(narrow, max_size=40) | st.lists(wide | st.integers(0, 200_000), max_size=40),
    page_size=st.integers(1, 9),
    prior=st.binary(min_size=32, max_size=32) | st.just(b""),
    bigram=st.booleans(),
)
def test_hashes_are_those_of_a_naive_chain(tokens: list[int], page_size: int, prior: bytes, bigram: bool) -> None:
    expected = naive(tokens, page_size, prior, bigram)
    for token_ids in (tokens, np.array(tokens, dtype=np.int64)):
        assert sglang_page_hashes(token_ids, page_size, prior_hash=prior.hex(), bigram=bigram) == expected


@given(tokens=st.lists(wide, max_size=40), cut=st.integers(0, 6), salt=st.none() | st.text(max_size=3))
def test_a_chain_goes_on_from_its_prior_hash(tokens: list[int], cut: int, salt: str | None) -> None:
    whole = sglang_page_hashes(tokens, 4, cache_salt=salt)
    head = sglang_page_hashes(tokens[: 4 * cut], 4, cache_salt=salt)
    prior = head[-1] if head else sglang_namespace_seed(None, salt or None) or ""
    assert head + sglang_page_hashes(tokens[4 * len(head) :], 4, prior_hash=prior) == whole


def test_namespaces_part_prompts() -> None:
    namespaces = [(None, None), ("", None), ("a", None), (None, "a"), ("a", "a"), ("aa", None)]
    hashes = {sglang_page_hashes(range(4), 4, extra_key=key, cache_salt=salt)[0] for key, salt in namespaces}
    assert len(hashes) == len(namespaces)


def test_an_empty_salt_is_no_salt_but_an_empty_extra_key_is_one() -> None:
    plain = sglang_page_hashes(range(4), 4)
    assert sglang_page_hashes(range(4), 4, cache_salt="") == plain
    assert sglang_page_hashes(range(4), 4, extra_key="") != plain


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"page_size": 0}, "page_size must be an integer of at least 1, not 0"),
        ({"page_size": -64}, "not -64"),
        ({"page_size": 4.0}, "not 4.0"),
        ({"page_size": True}, "not True"),
        ({"prior_hash": "abcd"}, "64 hex digits"),
        ({"prior_hash": "zz" * 32}, "64 hex digits"),
        ({"prior_hash": "ab " * 32}, "64 hex digits"),
        ({"prior_hash": b"ab" * 32}, "prior_hash must be a string"),
        ({"extra_key": 5}, "extra_key must be a string or None, not 5"),
        ({"extra_key": "\ud800"}, "extra_key has no UTF-8 form"),
        ({"cache_salt": b"a"}, "cache_salt must be a string or None, not b'a'"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_named(choices: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sglang_page_hashes([1, 2, 3, 4], **{"page_size": 4} | choices)
    assert reason in str(caught.value)


def test_a_hasher_is_a_value_that_hashes_alike() -> None:
    assert SGLangHasher() == SGLangHasher(bigram=False)
    assert len({SGLangHasher(), SGLangHasher(bigram=True), SGLangHasher()}) == 2
    hashes = SGLangHasher(bigram=True).page_hashes(range(9), 4, extra_key="a", cache_salt="b")
    assert hashes == sglang_page_hashes(range(9), 4, extra_key="a", cache_salt="b", bigram=True)
