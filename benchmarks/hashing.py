"""How long does it take to hash a prompt, and how much of that is hashlib itself?

    python -m benchmarks.hashing [--tokens 100000] [--page-size 64]

"hashlib" is the time that hashlib needs to take in as many digests and pages and to give the next digest, with nothing
around it, in turn with the function measured; shares are of the whole call, conversion of the token ids included, so
what shows is what comes on top. Medians.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from aiomooncake.hashing import lmcache_chunk_hashes, sglang_page_hashes, vllm_block_hashes

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 101


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--page-size", type=int, default=64)
    args = parser.parse_args()
    size = args.page_size
    tokens = np.random.default_rng(0).integers(0, 151_936, args.tokens)
    as_list = tokens.tolist()
    narrow = tokens.astype(np.uint32)
    page = narrow[:size].tobytes()
    pages = args.tokens // size

    def only_hashlib() -> None:
        digest = b""
        for _ in range(pages):
            state = hashlib.sha256(digest)
            state.update(page)
            digest = state.digest()

    print(f"{args.tokens} tokens, {size} a page, {pages} pages; Python {platform.python_version()}")
    for name, hash_all in {
        "SGLang, numpy uint32": lambda: sglang_page_hashes(narrow, size),
        "SGLang, numpy int64": lambda: sglang_page_hashes(tokens, size),
        "SGLang, list": lambda: sglang_page_hashes(as_list, size),
        "SGLang, EAGLE pairs, numpy uint32": lambda: sglang_page_hashes(narrow, size, bigram=True),
        "vLLM, pickle, numpy int64": lambda: vllm_block_hashes(tokens, size, seed="0"),
        "vLLM, CBOR, numpy int64": lambda: vllm_block_hashes(tokens, size, seed="0", algorithm="sha256_cbor"),
        "LMCache, builtin, numpy int64": lambda: lmcache_chunk_hashes(tokens, size, algorithm="builtin", none_hash=0),
    }.items():
        whole, bare = times_in_turn(hash_all, only_hashlib)
        share = f"{bare / whole:4.0%} hashlib" if name.startswith("SGLang") and "EAGLE" not in name else ""
        print(f"{name:36} {whole * 1e3:6.2f} ms {whole / pages * 1e6:6.3f} us a page  {share}")


def times_in_turn(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, kept in zip((first, second), samples, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return statistics.median(samples[0]), statistics.median(samples[1])


if __name__ == "__main__":
    main()
