"""Asyncio existence lookups for Mooncake Store: merged, pipelined, exact."""

from . import local
from ._version import __version__
from .config import EngineConfig
from .connector import Connector, connect
from .engine import Engine
from .errors import (
    AioMooncakeError,
    ClosedError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    InvalidKeyError,
    LocalProtocolError,
    OverloadedError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    RpcError,
    StoreError,
    WrongLoopError,
)
from .hashing import lmcache_chunk_hashes, sglang_page_hashes, vllm_block_hashes
from .hybrid import LookupResult
from .layout import HitPolicy, Layout, Pool, SGLangPool, VLLMGroup
from .stats import EngineStats

__all__ = [
    "AioMooncakeError",
    "ClosedError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "Connector",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "HitPolicy",
    "InvalidKeyError",
    "Layout",
    "LocalProtocolError",
    "LookupResult",
    "OverloadedError",
    "Pool",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestTimeout",
    "RpcError",
    "SGLangPool",
    "StoreError",
    "VLLMGroup",
    "WrongLoopError",
    "__version__",
    "connect",
    "lmcache_chunk_hashes",
    "local",
    "sglang_page_hashes",
    "vllm_block_hashes",
]
