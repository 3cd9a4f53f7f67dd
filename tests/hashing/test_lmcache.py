from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import LMCacheHasher, lmcache_chunk_hashes

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "lmcache.json").read_text())
TOKENS = RECORDED["tokens"]


def named(case: dict[str, Any]) -> str:
    return f"{'multiprocess' if case['multiprocess'] else 'classic'}-{case['algorithm']}-{case.get('none_hash', '')}"


@pytest.mark.parametrize("case", RECORDED["chunk_hashes"], ids=named)
def test_hashes_are_those_of_lmcache(case: dict[str, Any]) -> None:
    choices = {key: value for key, value in case.items() if key != "hashes"}
    for token_ids in (TOKENS, np.array(TOKENS), [*TOKENS, 1, 2, 3]):
        assert lmcache_chunk_hashes(token_ids, RECORDED["chunk_size"], **choices) == case["hashes"]


def test_the_former_name_of_sha256_cbor_is_known() -> None:
    former = lmcache_chunk_hashes(TOKENS, algorithm="sha256_cbor_64bit", seed="0")
    assert former == lmcache_chunk_hashes(TOKENS, algorithm="sha256_cbor", seed="0")


@pytest.mark.parametrize("case", RECORDED["chunk_hashes"], ids=named)
def test_a_prompt_shorter_than_a_chunk_has_no_hashes(case: dict[str, Any]) -> None:
    choices = {key: value for key, value in case.items() if key != "hashes"}
    assert lmcache_chunk_hashes([], **choices) == []
    assert lmcache_chunk_hashes(range(255), **choices) == []


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"algorithm": "builtin"}, "none_hash must be the one it logs at its start"),
        ({"algorithm": "builtin", "none_hash": "5"}, "not '5'"),
        ({"algorithm": "builtin", "seed": "0"}, "seed is the start of a SHA-256 chain"),
        ({"algorithm": "sha256"}, "start from PYTHONHASHSEED"),
        ({"algorithm": "sha256_cbor", "seed": "0", "none_hash": 1}, "none_hash is the start of a 'builtin' chain"),
        ({"algorithm": "sha256", "seed": 0}, "seed must be a string or None, not 0"),
        ({"algorithm": "blake3"}, "in the classic modes it can be one of 'builtin', 'sha256', 'sha256_cbor'"),
        ({"algorithm": "builtin", "multiprocess": True, "none_hash": 0}, "in multi-process mode it can be one of"),
        ({"algorithm": "blake3", "multiprocess": True, "seed": "0"}, "'blake3' does not use it"),
        ({"algorithm": "blake3", "multiprocess": True, "token_ids": [2**32] * 256}, "32-bit token ids"),
        ({"algorithm": "xxhash"}, "unknown or not reproducible"),
        ({"algorithm": "sha256", "seed": "0", "chunk_size": 0}, "chunk_size"),
        ({"algorithm": "sha256", "seed": "0", "token_ids": [2**64]}, "token id 0 is 18446744073709551616"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_named(choices: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lmcache_chunk_hashes(**{"token_ids": range(512)} | choices)
    assert reason in str(caught.value)


def test_a_missing_blake3_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(ConfigError, match=r"aiomooncake\[lmcache\]"):
        lmcache_chunk_hashes(range(512), algorithm="blake3", multiprocess=True)


def test_a_hasher_is_a_value() -> None:
    assert LMCacheHasher("builtin", none_hash=1) == LMCacheHasher("builtin", none_hash=1)
    assert hash(LMCacheHasher("blake3", multiprocess=True)) == hash(LMCacheHasher("blake3", multiprocess=True))
