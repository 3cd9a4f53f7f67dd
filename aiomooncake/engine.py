"""The public face: connect, ask, close."""

from __future__ import annotations

import asyncio
import logging
import warnings
from dataclasses import asdict, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio
import numpy as np

from .coalescer import Coalescer
from .config import EngineConfig, check_timeout
from .errors import (
    AioMooncakeError,
    ClosedError,
    ConfigError,
    ConnectError,
    InvalidKeyError,
    LocalProtocolError,
    RequestTimeout,
    StoreError,
    WrongLoopError,
)
from .reply import ERROR, HIT, Reply
from .stats import Counters, EngineStats
from .target import Target, parse_target
from .transport.rpc import RpcTransport
from .transport.store import Store, StoreTransport

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from types import TracebackType

    import numpy.typing as npt

    from .transport.base import Transport
    from .wire.messages import Key

__all__ = ["Connector", "Engine", "connect"]

_log = logging.getLogger("aiomooncake")


class _Default(Enum):
    TIMEOUT = "the config's timeout"

    def __repr__(self) -> str:
        return self.value


_DEFAULT: Final = _Default.TIMEOUT
Timeout: TypeAlias = "float | Literal[_Default.TIMEOUT] | None"

# What stays an error with errors="miss": the caller is wrong, not the cache.
_MISUSE = (ClosedError, ConfigError, LocalProtocolError, WrongLoopError)
# prefix_length asks this many keys first, then twice as many each time.
_FIRST_WINDOW = 32


def connect(
    target: str | None = None, *, store: Store | None = None, config: EngineConfig | None = None, **overrides: Any
) -> Connector:
    """An engine to be: `async with` it for as long as the engine is needed, or `await` it and close the engine later.

    Args:
        target: "host:port" of a master's RPC port, or "mooncake://host:port,host:port?tenant=NAME": whichever serves.
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
        assert self._target is not None
        return RpcTransport(
            self._target.addresses,
            tenant=self._target.tenant,
            connections=config.connections,
            max_in_flight=config.max_in_flight,
            max_batch_keys=config.max_batch_keys,
        )


class Engine:
    """Asks which keys exist. Made by `connect`; belongs to the event loop on which it was made.

    Any number of tasks may call it at once; what they ask is merged into few calls. Every call takes `timeout`
    (seconds, queueing included; None: no limit; not given: the config's). A call that is cancelled gives up its own
    question and nobody else's.

    A key that was found may be evicted a moment later; the master grants it a short lease, and so does each answer.

    Every call raises:
        RequestTimeout: the deadline passed.
        ConnectError, ConnectionLostError: the master is away, or went away meanwhile.
        RemoteProtocolError: what answers is no Mooncake master.
        RpcError, StoreError: the master answered with an error. An error is never a hit, and never a miss.
        OverloadedError: too much waits (overload="raise").
        InvalidKeyError: a key is neither str nor bytes, or a str without a UTF-8 form.
        ClosedError, WrongLoopError: the engine is closed, or belongs to another loop, thread or process.
    With errors="miss" all but the last two lines answer "nothing is cached" instead.
    """

    def __init__(self, transport: Transport, config: EngineConfig) -> None:
        """Internal: use `connect`."""
        self._config = config
        self._timeout = config.timeout
        self._miss = config.errors == "miss"
        self._counters = Counters()
        self._transport = transport
        self._coalescer = Coalescer(transport, config, self._counters)
        self._loop = asyncio.get_running_loop()
        self._open = False
        self._closed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Engine {state}, master {self._transport.master.address or 'behind a store'}>"

    async def exists(self, key: Key, *, timeout: Timeout = _DEFAULT) -> bool:
        """Whether an object of this key is stored, complete, in memory or on disk."""
        counters = self._counters
        counters.questions += 1
        counters.keys_asked += 1
        try:
            future = self._coalescer.ask_one(key, self._timeout if timeout is _DEFAULT else _checked(timeout))
            try:
                return await future
            except asyncio.CancelledError:
                self._coalescer.forget()
                raise
        except AioMooncakeError as error:
            self._failed(error)
            return False

    async def batch_exists(self, keys: Iterable[Key], *, timeout: Timeout = _DEFAULT) -> npt.NDArray[np.bool_]:
        """Whether each key is stored.

        Returns:
            A read-only boolean array of shape (number of keys,), in key order; duplicates are allowed.

        Raises:
            StoreError: for at least one key the master answered an error; see the class for the rest.
        """
        asked = _key_list(keys)
        if not asked:
            return np.zeros(0, np.bool_)
        try:
            reply = await self._ask(asked, self._timeout if timeout is _DEFAULT else _checked(timeout))
            bits = reply.bits
            if reply.errors:
                position, code = min(reply.errors.items())
                self._failed(StoreError(code, key=asked[position], count=len(reply.errors)))
                bits = bits.replace(bytes((ERROR,)), b"\0")
        except AioMooncakeError as error:
            self._failed(error)
            bits = bytes(len(asked))
        return np.frombuffer(bits, np.bool_)

    async def prefix_length(self, keys: Iterable[Key], *, timeout: Timeout = _DEFAULT) -> int:
        """How many keys from the start exist without a gap.

        Asks in windows that double from 32 keys, each only when the one before was full, so a short prefix of many
        keys costs few. An error behind the first missing key does not matter and is not raised.
        """
        asked = _key_list(keys)
        limit = self._timeout if timeout is _DEFAULT else _checked(timeout)
        deadline = None if limit is None else self._loop.time() + limit
        length, window = 0, _FIRST_WINDOW
        while length < len(asked):
            left = None if deadline is None else max(0.0, deadline - self._loop.time())
            try:
                bits, errors = await self._ask(asked[length : length + window], left)
                run = len(bits) - len(bits.lstrip(bytes((HIT,))))
                if run < len(bits) and bits[run] == ERROR:
                    self._failed(StoreError(errors[run], key=asked[length + run], count=len(errors)))
            except AioMooncakeError as error:
                self._failed(error)
                break
            length += run
            if run < len(bits):
                break
            window *= 2
        return length

    def stats(self) -> EngineStats:
        """What this engine has done so far, and how it stands."""
        master = self._transport.master
        return EngineStats(
            **asdict(self._counters),
            pending_keys=self._coalescer.pending_keys,
            waiting_outside=self._coalescer.lobby_size,
            calls_in_flight=self._coalescer.calls_in_flight,
            connections_open=self._transport.open_channels,
            connections_lost=self._transport.connections_lost,
            master=master.address,
            master_version=master.version,
            master_takes_tenant=master.tenants,
        )

    async def _ask(self, keys: Sequence[Key], timeout: float | None) -> Reply:
        self._counters.questions += 1
        self._counters.keys_asked += len(keys)
        future = self._coalescer.ask(keys, timeout)
        try:
            return await future
        except asyncio.CancelledError:
            self._coalescer.forget()
            raise

    def _failed(self, error: AioMooncakeError) -> None:
        """Count a failed question, and raise its error unless it is to be answered as a miss."""
        if not isinstance(error, RequestTimeout):
            self._counters.errors += 1
        if not self._miss or isinstance(error, _MISUSE):
            raise error
        self._counters.degraded += 1

    # ---- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Internal: connect, within the config's timeout."""
        try:
            try:
                with anyio.fail_after(self._timeout):
                    await self._transport.connect()
            except TimeoutError as error:
                raise ConnectError(
                    f"{self._transport.master.address} was not ready within {self._timeout} s; is it hung?"
                ) from error
        except ConnectError as error:
            if not self._miss:
                raise
            _log.warning("starting without a cache: %s", error)
        self._open = True

    async def aclose(self) -> None:
        """Close: no more questions; those that are here are answered, within the config's timeout; the rest fails.

        May be called again, and by several tasks: each returns when the engine is closed. If the first is cancelled,
        what is left fails at once.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError("this engine must be closed on its own event loop")
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closed = self._loop.create_future()
        try:
            await self._coalescer.aclose()
            await self._transport.aclose()
        finally:
            self.abort()
            self._closed.set_result(None)

    def abort(self) -> None:
        """Close at once: everything that waits fails with ClosedError."""
        self._open = False
        self._coalescer.abort()
        self._transport.abort()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            text = f"{self!r} was never closed; use `async with connect(…)`"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            if not self._loop.is_closed():
                self._transport.abort()


def _checked(timeout: float | None) -> float | None:
    check_timeout(timeout)
    return timeout


def _key_list(keys: Iterable[Key]) -> list[Key]:
    """A list of our own: the caller may change his while we wait."""
    if isinstance(keys, (str, bytes)):
        raise InvalidKeyError(f"keys is one key, {keys[:64]!r}; give a list of keys, or use exists()")
    try:
        return list(keys)
    except TypeError as error:
        raise InvalidKeyError(f"keys is {keys!r} of type {type(keys).__name__}; give a list of keys") from error
