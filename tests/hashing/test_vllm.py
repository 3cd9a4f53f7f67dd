from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.errors import ConfigError
from aiomooncake.hashing import VLLMHasher, vllm_block_hashes

# vLLM's hashes of tokens 0..63 in blocks of 16 with PYTHONHASHSEED=0, as published for its store connector.
SHA256_ENDS = [("6358e315", "aaa6"), ("3c3c50f3", "92c8"), ("0728d913", "8e0a"), ("71c151a8", "61b4")]
# The same chain with cbor2 6.3.0: sha256(cbor2.dumps((parent, tokens, None), canonical=True)).
SHA256_CBOR = [
    "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
    "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
    "ee4c34c217da17ac84268f864db16efed5fcefe10fcc4a9625a719adc68e654f",
    "b1f3544e8610283e85cddbae23bfcad68fa546e89c0fd85aed820e94dca2d75f",
]


def test_pickled_chains_are_those_of_vllm() -> None:
    hashes = vllm_block_hashes(range(64), 16, seed="0")
    assert [(block_hash[:8], block_hash[-4:]) for block_hash in hashes] == SHA256_ENDS


def test_cbor_chains_are_those_of_vllm() -> None:
    assert vllm_block_hashes(np.arange(64), 16, seed="0", algorithm="sha256_cbor") == SHA256_CBOR


def naive_cbor(value: Any) -> bytes:
    if value is None:
        return b"\xf6"
    kinds = {int: 0, bytes: 2, str: 3, tuple: 4}
    data = value.encode() if isinstance(value, str) else value
    size = value if isinstance(value, int) else len(data)
    head = kinds[type(value)] * 32
    if size < 24:
        encoded = bytes([head + size])
    else:
        code, width = next((code, width) for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)) if size < 256**width)
        encoded = bytes([head + code]) + size.to_bytes(width, "big")
    if isinstance(value, int):
        return encoded
    return encoded + (b"".join(map(naive_cbor, data)) if isinstance(value, tuple) else data)


def test_the_oracle_for_cbor_agrees_with_cbor2() -> None:
    value = (b"x" * 32, (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63), ("lora",))
    assert naive_cbor(value).hex() == (
        "835820" + "78" * 32 + "8a0017181818ff19010019ffff1a000100001affffffff1b00000001000000001b8000000000000000"
        "81646c6f7261"
    )


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


tokens_of_all_sizes = st.lists(
    st.sampled_from([0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1]) | st.integers(0, 2**63 - 1),
    max_size=30,
)


@pytest.mark.parametrize(("algorithm", "encode"), [("sha256", pickled), ("sha256_cbor", naive_cbor)])
@given(
    tokens=tokens_of_all_sizes,
    step=st.integers(1, 5),
    steps=st.integers(1, 3),
    seed=st.text(max_size=5),
    lora=st.none() | st.text(max_size=30),
    salt=st.none() | st.text(max_size=30),
)
def test_hashes_are_those_of_a_naive_chain(
    algorithm: str, encode: Any, tokens: list[int], step: int, steps: int, seed: str, lora: str | None, salt: str | None
) -> None:
    parent = hashlib.sha256(encode(seed)).digest()
    expected = []
    for start in range(0, len(tokens) - step + 1, step):
        extra = [lora] if lora else []
        if start == 0 and salt:
            extra.append(salt.encode().decode())
        value = (parent, tuple(tokens[start : start + step]), tuple(extra) if extra else None)
        parent = hashlib.sha256(encode(value)).digest()
        expected.append(parent.hex())
    hashes = vllm_block_hashes(
        tokens,
        step * steps,
        seed=seed,
        algorithm=algorithm,
        hash_block_size=step,
        lora_name=lora,
        cache_salt=salt,
    )
    assert hashes == expected[steps - 1 :: steps]


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_a_name_and_a_salt_that_are_one_object_hash_like_two(algorithm: str) -> None:
    text = "tenant-a"
    apart = ("tenant-" + chr(97), "tenant-" + chr(97))
    assert vllm_block_hashes(
        range(4), 4, seed="0", algorithm=algorithm, lora_name=text, cache_salt=text
    ) == vllm_block_hashes(range(4), 4, seed="0", algorithm=algorithm, lora_name=apart[0], cache_salt=apart[1])


def test_a_chain_without_a_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="PYTHONHASHSEED"):
        vllm_block_hashes(range(64), 16, seed=None)


def test_a_prompt_shorter_than_a_block_has_no_hashes() -> None:
    for algorithm in ("sha256", "sha256_cbor"):
        assert vllm_block_hashes([], 16, seed="0", algorithm=algorithm) == []
        assert vllm_block_hashes(range(15), 16, seed="0", algorithm=algorithm) == []


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"algorithm": "xxhash"}, "unknown vLLM hash algorithm 'xxhash'; known are 'sha256', 'sha256_cbor'"),
        ({"block_size": 0}, "block_size"),
        ({"hash_block_size": 0}, "hash_block_size"),
        ({"hash_block_size": 3}, "must divide block_size (16); 3 does not"),
        ({"seed": 0}, "seed must be a string or None, not 0"),
        ({"lora_name": 1}, "lora_name"),
        ({"cache_salt": "\udfff"}, "cache_salt has no UTF-8 form"),
        ({"token_ids": [-1]}, "token id 0 is -1"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_named(choices: dict[str, Any], reason: str) -> None:
    defaults: dict[str, Any] = {"token_ids": range(64), "block_size": 16, "seed": "0"}
    with pytest.raises(ConfigError) as caught:
        vllm_block_hashes(**defaults | choices)
    assert reason in str(caught.value)


def test_a_hasher_is_a_value() -> None:
    assert VLLMHasher("0") == VLLMHasher("0", "sha256", None)
    assert hash(VLLMHasher("0")) == hash(VLLMHasher("0"))
