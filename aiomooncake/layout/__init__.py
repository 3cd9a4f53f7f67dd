"""Layouts: how SGLang HiCache, vLLM and LMCache name the objects that they store for a page. Pure; no I/O."""

from __future__ import annotations

from aiomooncake.layout.core import Layout
from aiomooncake.layout.pool import KV_POOL, HitPolicy, Pool
from aiomooncake.layout.sglang import SGLangPool
from aiomooncake.layout.vllm import VLLMGroup

__all__ = ["KV_POOL", "HitPolicy", "Layout", "Pool", "SGLangPool", "VLLMGroup"]
