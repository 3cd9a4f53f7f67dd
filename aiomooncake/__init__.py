"""Asyncio existence lookups for Mooncake Store: merged, pipelined, exact."""

from ._version import __version__
from .config import EngineConfig
from .engine import Connector, Engine, connect
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
    "InvalidKeyError",
    "LocalProtocolError",
    "OverloadedError",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestTimeout",
    "RpcError",
    "StoreError",
    "WrongLoopError",
    "__version__",
    "connect",
]
