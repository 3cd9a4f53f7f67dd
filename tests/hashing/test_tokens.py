from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import sglang_page_hashes

TOKENS = [5, 0, 151935, 2**32 - 1, 17, 18, 19, 20]
EXPECTED = sglang_page_hashes(TOKENS, 4)


@pytest.mark.parametrize(
    "token_ids",
    [
        tuple(TOKENS),
        np.array(TOKENS),
        np.array(TOKENS, dtype=np.uint32),
        np.array(TOKENS, dtype=np.uint64),
        np.array(TOKENS, dtype=">i8"),
        np.array([*TOKENS, *TOKENS])[: len(TOKENS)],
        np.repeat(np.array(TOKENS), 2)[::2],
        array("q", TOKENS),
        [np.int64(token) for token in TOKENS],
    ],
    ids=["tuple", "int64", "uint32", "uint64", "big-endian", "slice", "strided", "array", "numpy scalars"],
)
def test_every_kind_of_sequence_hashes_alike(token_ids: Any) -> None:
    assert sglang_page_hashes(token_ids, 4) == EXPECTED


def test_an_array_is_not_changed() -> None:
    for tokens in (np.array(TOKENS), np.array(TOKENS, dtype=np.uint32)):
        before = tokens.copy()
        tokens.flags.writeable = False
        assert sglang_page_hashes(tokens, 4) == EXPECTED
        assert (tokens == before).all()


@pytest.mark.parametrize(
    "token_ids", [[], (), np.array([]), np.empty(0, dtype=np.uint64), range(0), range(3)], ids=repr
)
@pytest.mark.parametrize("bigram", [False, True])
def test_a_prompt_shorter_than_a_page_has_no_hashes(token_ids: Any, bigram: bool) -> None:
    assert sglang_page_hashes(token_ids, 4, bigram=bigram) == []


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [
        ([1, -1, 3], "token id 1 is -1: token ids are from 0 to 2^63 - 1"),
        ([1, 2**32, -7], "token id 2 is -7"),
        ([1, 2**63], "token id 1 is 9223372036854775808"),
        ([2**64], "token id 0 is 18446744073709551616"),
        ([-(2**64)], "token id 0 is -18446744073709551616"),
        (np.array([1, -1]), "token id 1 is -1"),
        (np.array([2**63], dtype=np.uint64), "token id 0 is 9223372036854775808"),
        (np.array([2**64, 1]), "an array of object"),
        ([1, 2.0], "token id 1 is 2.0 (float)"),
        ([1, "2"], "token id 1 is '2' (str)"),
        ([1, None], "token id 1 is None"),
        ([[1, 2]], "token id 0 is [1, 2] (list)"),
        (np.array([1.0]), "an array of float64"),
        (np.array([True]), "an array of bool"),
        (np.array([[1, 2]]), "one dimension, not shape (1, 2)"),
        (np.array(3), "one dimension, not shape ()"),
        ("1 2 3", "not str: tokenize it first"),
        (b"123", "not bytes"),
        (None, "one dimension"),
        ({1: 2}, "one dimension"),
    ],
    ids=repr,
)
def test_what_is_no_token_id_is_named(token_ids: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sglang_page_hashes(token_ids, 1)
    assert reason in str(caught.value)
