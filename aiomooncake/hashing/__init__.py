"""How SGLang HiCache, vLLM and LMCache hash a prompt into the names of its pages. Pure; no I/O."""

from __future__ import annotations

from .hasher import PageHasher
from .lmcache import LMCacheHasher, lmcache_chunk_hashes
from .sglang import SGLangHasher, sglang_namespace_seed, sglang_page_hashes
from .vllm import VLLMHasher, vllm_block_hashes

__all__ = [
    "LMCacheHasher",
    "PageHasher",
    "SGLangHasher",
    "VLLMHasher",
    "lmcache_chunk_hashes",
    "sglang_namespace_seed",
    "sglang_page_hashes",
    "vllm_block_hashes",
]
