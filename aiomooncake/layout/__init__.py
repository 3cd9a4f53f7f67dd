"""Layouts: how SGLang HiCache, vLLM and LMCache name the objects that they store for a page. Pure; no I/O."""

from __future__ import annotations

from .core import Layout
from .pool import KV_POOL, HitPolicy, Pool
from .sglang import SGLangPool
from .vllm import VLLMGroup

__all__ = ["KV_POOL", "HitPolicy", "Layout", "Pool", "SGLangPool", "VLLMGroup"]
