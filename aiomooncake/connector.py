"""From a target and options to an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .config import EngineConfig
from .engine import Engine
from .errors import ClosedError, ConfigError
from .target import Target, parse_target
from .transport.rpc import RpcTransport
from .transport.store import Store, StoreTransport

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from .transport.base import Transport
    from .transport.rpc import LeaderSource

__all__ = ["Connector", "connect"]


def connect(
    target: str | None = None, *, store: Store | None = None, config: EngineConfig | None = None, **overrides: Any
) -> Connector:
    """An engine to be: `async with` it for as long as the engine is needed, or `await` it and close the engine later.

    Args:
        target: "host:port" of a master's RPC port; "mooncake://host:port,host:port?tenant=NAME": whichever serves; or
            "etcd://host:port,host:port/cluster": the leader that etcd names (extra `ha`).
        store: instead of a target, a `MooncakeDistributedStore` that was set up. It stays the caller's to close.
        config: the options; default: `EngineConfig()`.
        **overrides: single options, over `config`.

    Raises:
        ConfigError: at once, for a target or option that cannot be used.
        ConnectError: when awaited, if no master serves (not with errors="miss": then lookups answer "nothing is
            cached" until one does).
    """
    if (target is None) == (store is None):
        raise ConfigError("give either a target or store=, the one or the other")
    try:
        config = replace(config or EngineConfig(), **overrides)
    except TypeError as error:
        raise ConfigError(f"unknown option: {error}") from error
    return Connector(None if target is None else parse_target(target), store, config)


class Connector:
    """What `connect` returns: await it, or enter it. Nothing happens before that."""

    def __init__(self, target: Target | None, store: Store | None, config: EngineConfig) -> None:
        self._target = target
        self._store = store
        self._config = config
        self._engine: Engine | None = None

    def __await__(self) -> Generator[Any, None, Engine]:
        return self._open().__await__()

    async def __aenter__(self) -> Engine:
        if self._engine is not None:
            raise ClosedError("this connect() was entered before; call connect() again")
        self._engine = await self._open()
        return self._engine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._engine is not None
        await self._engine.aclose()

    async def _open(self) -> Engine:
        config = self._config
        engine = Engine(self._transport(), config)
        try:
            await engine.start()
        except BaseException:
            engine.abort()
            raise
        return engine

    def _transport(self) -> Transport:
        config = self._config
        if self._store is not None:
            return StoreTransport(self._store, workers=config.connections)
        target = self._target
        assert target is not None
        leader: LeaderSource | None = None
        if target.cluster is not None:
            from .transport.leader import EtcdLeader  # needs the extra `ha`, and httpx takes 50 ms to import

            leader = EtcdLeader(target.addresses, target.cluster)
        return RpcTransport(
            () if leader else target.addresses,
            tenant=target.tenant,
            connections=config.connections,
            max_in_flight=config.max_in_flight,
            max_batch_keys=config.max_batch_keys,
            leader=leader,
        )
