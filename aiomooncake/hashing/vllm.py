"""vLLM's block hashes, under which its Mooncake store connector keeps KV blocks.

Read in vLLM main, September 2026: `vllm/v1/core/kv_cache_utils.py`, `vllm/utils/hashing.py` and
`vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/data.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .serial import SERIALIZERS
from .tokens import as_tokens, check_count, check_text

if TYPE_CHECKING:
    from .tokens import TokenIds

__all__ = ["VLLMHasher", "vllm_block_hashes"]


def vllm_block_hashes(
    token_ids: TokenIds,
    block_size: int,
    *,
    seed: str | None,
    algorithm: str = "sha256",
    hash_block_size: int | None = None,
    lora_name: str | None = None,
    cache_salt: str | None = None,
) -> list[str]:
    """The hashes under which vLLM's Mooncake store connector keeps the blocks of a text prompt.

    Prompts with images or embeddings add hashes of these that only the engine knows; they are not covered.

    Args:
        token_ids: The prompt, from 0 to 2^63 - 1 each; a list or a numpy array of integers. Not changed.
        block_size: Tokens a stored block; at least 1.
        seed: `PYTHONHASHSEED` of the vLLM processes, as it stands in their environment ("0"). Without one, each
            process starts its chains from random bytes, and nobody else can name its blocks.
        algorithm: vLLM's `--prefix-caching-hash-algo`: "sha256" or "sha256_cbor".
        hash_block_size: Tokens a hashed block, when vLLM hashes in finer steps than it stores; a divisor of
            `block_size`. A stored block then has the hash of its last step. None: `block_size`.
        lora_name: The adapter's name, in every block's hash; None or "" without one.
        cache_salt: The request's salt, in the first block's hash; None or "" without one.

    Returns:
        One hash a whole block, 64 hex digits each, in order. Empty when there is no whole block.

    Raises:
        ConfigError: `seed` is None, the algorithm is unknown, or another argument is not usable.
    """
    if seed is None:
        raise ConfigError(
            "vLLM's block hashes start from random bytes unless PYTHONHASHSEED is set: set it to the same value for "
            'all vLLM processes, and give that value as seed ("0", for instance)'
        )
    for name, value in (("seed", seed), ("lora_name", lora_name), ("cache_salt", cache_salt)):
        check_text(name, value)
    check_count("block_size", block_size)
    step = block_size if hash_block_size is None else hash_block_size
    check_count("hash_block_size", step)
    if block_size % step:
        raise ConfigError(f"hash_block_size must divide block_size ({block_size}); {hash_block_size!r} does not")
    if algorithm not in SERIALIZERS:
        known = ", ".join(map(repr, SERIALIZERS))
        raise ConfigError(f"unknown vLLM hash algorithm {algorithm!r}; known are {known}")
    serializer = SERIALIZERS[algorithm]

    # A salt that is the same object as the name would be pickled as a reference to it. In vLLM they are two objects.
    names = (lora_name,) if lora_name else ()
    salts = (cache_salt.encode().decode(),) if cache_salt else ()
    extra = names + salts or None
    digest = serializer.digest(seed)
    hashes = []
    for block in serializer.blocks(as_tokens(token_ids), step):
        digest = serializer.chain(digest, block, extra)
        hashes.append(digest.hex())
        extra = names or None
    per_block = block_size // step
    return hashes[per_block - 1 :: per_block]


@dataclass(frozen=True)
class VLLMHasher:
    """`vllm_block_hashes` with the choices that belong to a deployment, for a layout's `hasher`.

    Attributes:
        seed: `PYTHONHASHSEED` of the vLLM processes; None is refused when hashing, not before.
        algorithm: vLLM's `--prefix-caching-hash-algo`.
        hash_block_size: Tokens a hashed block; None: as many as a stored one.
    """

    seed: str | None
    algorithm: str = "sha256"
    hash_block_size: int | None = None

    def page_hashes(
        self, token_ids: TokenIds, page_size: int, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> list[str]:
        """See `vllm_block_hashes`; `extra_key` is the LoRA adapter's name."""
        return vllm_block_hashes(
            token_ids,
            page_size,
            seed=self.seed,
            algorithm=self.algorithm,
            hash_block_size=self.hash_block_size,
            lora_name=extra_key,
            cache_salt=cache_salt,
        )
