"""LMCache's chunk hashes (lmcache 0.5.6: `v1/token_database.py` and `v1/multiprocess/token_hasher.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .serial import SERIALIZERS
from .tokens import as_tokens, check_count, check_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tokens import TokenArray, TokenIds

__all__ = ["LMCacheHasher", "lmcache_chunk_hashes"]


def lmcache_chunk_hashes(
    token_ids: TokenIds,
    chunk_size: int = 256,
    *,
    algorithm: str,
    multiprocess: bool = False,
    seed: str | None = None,
    none_hash: int | None = None,
) -> list[str]:
    """The hashes under which LMCache keeps the chunks of a prompt, spelled as they stand in its keys.

    Which start a chain has depends on the algorithm; a start that cannot be known is refused, since every lookup
    would miss.

    - "builtin" (the default of the classic modes) is Python's `hash` of a tuple of integers. It is the same in every
      64-bit CPython from 3.8 on, but its start is not: LMCache logs it when it begins ("Initialized NONE_HASH=… from
      vLLM", or 0 without vLLM). Give that number as `none_hash`.
    - "sha256" and "sha256_cbor" start from `PYTHONHASHSEED`: give it as `seed`. LMCache takes them from vLLM; where
      that is not installed, it falls back to "builtin", whatever is configured.
    - "blake3" (multi-process mode only, its default) needs neither. It needs the blake3 package.

    Args:
        token_ids: The prompt, from 0 to 2^63 - 1 each (2^32 - 1 for "blake3"); a list or a numpy array of integers.
        chunk_size: Tokens a chunk; at least 1.
        algorithm: `pre_caching_hash_algorithm` in the classic modes, `--hash-algorithm` in multi-process mode.
        multiprocess: Whether LMCache runs in multi-process mode, which chains whole digests. The classic modes chain
            64-bit numbers.
        seed: `PYTHONHASHSEED` of the LMCache processes, for the SHA-256 algorithms.
        none_hash: The number that LMCache logged, for "builtin".

    Returns:
        One hash a whole chunk, in order: a hexadecimal number without padding (and possibly negative with
        "builtin") in the classic modes, 64 hex digits in multi-process mode.

    Raises:
        ConfigError: The start of the chain is not given, the algorithm is unknown or not for that mode, or another
            argument is not usable.
    """
    check_count("chunk_size", chunk_size)
    check_text("seed", seed)
    known = ("blake3", *SERIALIZERS) if multiprocess else ("builtin", *SERIALIZERS)
    # vLLM's former name for it, which LMCache accepts still.
    algorithm = "sha256_cbor" if algorithm == "sha256_cbor_64bit" else algorithm
    if algorithm not in known:
        mode = "multi-process mode" if multiprocess else "the classic modes"
        raise ConfigError(
            f"unknown or not reproducible LMCache hash algorithm {algorithm!r}; "
            f"in {mode} it can be one of {', '.join(map(repr, known))}"
        )
    if algorithm != "builtin" and none_hash is not None:
        raise ConfigError(f"none_hash is the start of a 'builtin' chain; {algorithm!r} does not use it: leave it out")
    if algorithm in ("builtin", "blake3") and seed is not None:
        raise ConfigError(f"seed is the start of a SHA-256 chain; {algorithm!r} does not use it: leave it out")
    tokens = as_tokens(token_ids)
    if algorithm == "builtin":
        return _builtin(tokens, chunk_size, none_hash)
    if algorithm == "blake3":
        return _blake3(tokens, chunk_size)
    if seed is None:
        raise ConfigError(
            f"LMCache's {algorithm!r} chains start from PYTHONHASHSEED: set it to the same value for all LMCache "
            'processes, and give that value as seed ("0", for instance)'
        )
    return _sha256(tokens, chunk_size, algorithm, seed, multiprocess)


@dataclass(frozen=True)
class LMCacheHasher:
    """`lmcache_chunk_hashes` with the choices that belong to a deployment, for a layout's `hasher`.

    Attributes:
        algorithm: The configured hash algorithm.
        multiprocess: Whether LMCache runs in multi-process mode.
        seed: `PYTHONHASHSEED` of the LMCache processes, for the SHA-256 algorithms.
        none_hash: The number that LMCache logged, for "builtin".
    """

    algorithm: str
    multiprocess: bool = False
    seed: str | None = None
    none_hash: int | None = None

    def page_hashes(
        self, token_ids: TokenIds, page_size: int, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> list[str]:
        """See `lmcache_chunk_hashes`. LMCache hashes tokens only, so `extra_key` and `cache_salt` are refused."""
        for name, value in (("extra_key", extra_key), ("cache_salt", cache_salt)):
            if value is not None:
                raise ConfigError(
                    f"LMCache does not hash {name} ({value!r}): in multi-process mode a salt is a part of the key, "
                    "Layout.lmcache(cache_salt=...); in the classic modes tags are, Layout.lmcache(tags=...)"
                )
        return lmcache_chunk_hashes(
            token_ids,
            page_size,
            algorithm=self.algorithm,
            multiprocess=self.multiprocess,
            seed=self.seed,
            none_hash=self.none_hash,
        )


def _builtin(tokens: TokenArray, chunk_size: int, none_hash: int | None) -> list[str]:
    if not isinstance(none_hash, int) or isinstance(none_hash, bool):
        raise ConfigError(
            f"LMCache's 'builtin' chains start from a number that depends on its process: none_hash must be the one "
            f'it logs at its start ("Initialized NONE_HASH=…"; 0 without vLLM), not {none_hash!r}'
        )
    ints = tokens.tolist()
    previous = none_hash
    hashes = []
    for start in range(0, len(ints) - chunk_size + 1, chunk_size):
        previous = hash((previous, tuple(ints[start : start + chunk_size]), ()))
        hashes.append(f"{previous:x}")
    return hashes


def _sha256(tokens: TokenArray, chunk_size: int, algorithm: str, seed: str, multiprocess: bool) -> list[str]:
    serializer = SERIALIZERS[algorithm]
    keep: Callable[[bytes], int | bytes] = bytes if multiprocess else _fold
    extra = None if multiprocess else ()
    previous = keep(serializer.digest(seed))
    hashes = []
    for block in serializer.blocks(tokens, chunk_size):
        previous = keep(serializer.chain(previous, block, extra))
        hashes.append(previous.hex() if isinstance(previous, bytes) else f"{previous:x}")
    return hashes


def _fold(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def _blake3(tokens: TokenArray, chunk_size: int) -> list[str]:
    try:
        from blake3 import blake3
    except ImportError:
        raise ConfigError(
            "LMCache's multi-process mode hashes with blake3, which is not installed: install aiomooncake[lmcache]"
        ) from None
    if tokens.itemsize > 4:
        raise ConfigError("LMCache's 'blake3' chains hold 32-bit token ids, and one of these needs more")
    count = len(tokens) // chunk_size
    chunks = tokens[: count * chunk_size].astype(">u4").reshape(count, chunk_size)
    # The start is the hash of one token 0 after eight zero bytes.
    previous = blake3(bytes(8) + bytes(4)).digest()
    hashes = []
    for chunk in chunks:
        previous = blake3(previous + chunk.tobytes()).digest()
        hashes.append(previous.hex())
    return hashes
