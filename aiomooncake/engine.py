"""The public face: ask and close. It decides nothing that a layer below could."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Sized
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio
import numpy as np

from .chores import Chores
from .coalescer import Coalescer
from .config import check_timeout
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
from .hybrid import LookupResult, lookup, prefix_length
from .layout import Layout
from .notices import HitWatch, OutageNotice, log
from .predictor import Predictor
from .reply import ERROR, MISS, Reply
from .stats import Counters, EngineStats
from .wire.messages import check_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from .config import EngineConfig
    from .hashing.tokens import TokenIds
    from .hybrid import Ask
    from .transport.base import Transport
    from .wire.messages import Key

__all__ = ["Engine"]


class _Default(Enum):
    TIMEOUT = "the config's timeout"

    def __repr__(self) -> str:
        return self.value


_DEFAULT: Final = _Default.TIMEOUT
Timeout: TypeAlias = "float | Literal[_Default.TIMEOUT] | None"

# What stays an error with errors="miss": the caller is wrong, not the cache.
_MISUSE = (ClosedError, ConfigError, LocalProtocolError, WrongLoopError)
_RPC_FAIL, _RPC_TIMEOUT = -900, -901
# Token ids that are hashed where they are: some 0.1 to 1 ms, depending on the engine's hash (benchmarks/hashing.py).
_HASHED_ON_THE_LOOP = 10_000


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
        self._predictor = Predictor(config.predictor_pages) if config.predict else None
        self._hit_watch = HitWatch()
        self._outage = OutageNotice()
        self._loop = asyncio.get_running_loop()
        self._chores = Chores(self._loop)
        self._pid = os.getpid()
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
                found = await future
            except asyncio.CancelledError:
                self._coalescer.forget()
                raise
            if self._outage.is_on:
                self._outage.answered()
            return found
        except AioMooncakeError as error:
            if not self._forgives(error, (key,)):
                raise
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
            self._coalescer.check_usable()
            return np.zeros(0, np.bool_)
        bits = bytes(len(asked))
        try:
            bits, errors = await self._ask(asked, self._timeout if timeout is _DEFAULT else _checked(timeout))
            if errors:
                position, code = min(errors.items())
                raise StoreError(code, key=asked[position], count=len(errors))
        except AioMooncakeError as error:
            if not self._forgives(error, asked):
                raise
            bits = bits.replace(bytes((ERROR,)), bytes((MISS,)))
        return np.frombuffer(bits, np.bool_)

    async def prefix_length(self, keys: Iterable[Key], *, timeout: Timeout = _DEFAULT) -> int:
        """How many keys from the start exist without a gap.

        Asks in windows that double from 32 keys, each only when the one before was full, so a short prefix of many
        keys costs few. An error behind the first missing key does not matter and is not raised.
        """
        asked = _key_list(keys)
        try:
            prefix = await prefix_length(self._asker(timeout), asked, errors=self._config.errors)
        except AioMooncakeError as error:
            self._count(error)
            raise
        if prefix.degraded is not None:
            self._note_degraded(StoreError(prefix.degraded))
        return prefix.length

    async def lookup(
        self, page_hashes: Sequence[str], layout: Layout, *, restorable: bool = False, timeout: Timeout = _DEFAULT
    ) -> LookupResult:
        """How many pages of a prompt can be restored, over all pools of its layout.

        Semantics are those of SGLang's `batch_exists_v2`; sidecar pools are asked only for pages that the KV pool has.
        With `predict` (the default) one round trip mostly does.

        Args:
            page_hashes: the prompt's pages from its first on, bare: the layout makes keys of them.
            layout: how the engine that stored them names their objects.
            restorable: find every usable prefix length, not only the longest; trailing pools then are asked for all
                pages that the KV pool has.
            timeout: as everywhere; all round trips share it.

        Raises:
            StoreError: the answer depends on a key that the master answered with an error. Errors that cannot change
                it do not matter. With errors="miss" the key counts as missing, and `degraded` is its code; a call that
                failed as a whole counts as -901 (RPC_TIMEOUT) or -900 (RPC_FAIL) for each of its keys.
            ConfigError: `layout` is no Layout.
        """
        if not isinstance(layout, Layout):
            raise ConfigError(
                f"layout is {layout!r}; make one with Layout(…), Layout.sglang(…) or Layout.from_sglang(…)"
            )
        try:
            result, in_vain = await lookup(
                self._asker(timeout),
                page_hashes,
                layout,
                predictor=self._predictor,
                restorable=restorable,
                errors=self._config.errors,
                later=self._chores.add,
            )
        except AioMooncakeError as error:
            self._count(error)
            raise
        self._counters.lookups += 1
        self._counters.keys_in_vain += in_vain
        if result.degraded is not None and self._miss:
            self._note_degraded(StoreError(result.degraded))
        elif page_hashes:
            self._hit_watch.note(layout, hit=bool(result.pool_pages))
        return result

    async def lookup_tokens(
        self,
        token_ids: TokenIds,
        layout: Layout,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        restorable: bool = False,
        timeout: Timeout = _DEFAULT,
    ) -> LookupResult:
        """As `lookup`, for a prompt given as token ids; the layout's engine says how its pages are hashed.

        Hashing is not part of `timeout`. A long prompt is hashed on a worker thread, so that it does not hold up the
        loop.

        Args:
            token_ids: a list or a numpy array of integers. Not changed, and not to be changed meanwhile.
            layout: must have a `page_size`.
            extra_key: the request's `extra_key` in SGLang, the name of the LoRA adapter in vLLM.
            cache_salt: the request's salt.
            restorable: see `lookup`.
            timeout: see `lookup`.

        Raises:
            ConfigError: the layout has no page size, or a token id or argument is not usable.
        """
        if not isinstance(layout, Layout):
            raise ConfigError(
                f"layout is {layout!r}; make one with Layout(…), Layout.sglang(…) or Layout.from_sglang(…)"
            )
        hash_pages = partial(layout.page_hashes, token_ids, extra_key=extra_key, cache_salt=cache_salt)
        given: object = token_ids  # what it should be is for the layout to say
        long = isinstance(given, Sized) and len(given) > _HASHED_ON_THE_LOOP
        page_hashes = await anyio.to_thread.run_sync(hash_pages) if long else hash_pages()
        return await self.lookup(page_hashes, layout, restorable=restorable, timeout=timeout)

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
            reply = await future
        except asyncio.CancelledError:
            self._coalescer.forget(len(keys))
            raise
        if self._outage.is_on:
            self._outage.answered()
        return reply

    def _asker(self, timeout: Timeout) -> Ask:
        """What asks for one call of several round trips, which share a deadline.

        With errors="miss" a question that fails answers an error code for each of its keys.
        """
        self._coalescer.check_usable()  # also if there will be nothing to ask
        limit = self._timeout if timeout is _DEFAULT else _checked(timeout)
        deadline = None if limit is None else self._loop.time() + limit

        async def ask(keys: Sequence[Key]) -> Reply:
            left = None if deadline is None else max(0.0, deadline - self._loop.time())
            try:
                return await self._ask(keys, left)
            except AioMooncakeError as error:
                if self._raises(error):
                    raise
                check_keys(keys)
                return Reply(bytes((ERROR,)) * len(keys), dict.fromkeys(range(len(keys)), _code_of(error)))

        return ask

    def _forgives(self, error: AioMooncakeError, keys: Sequence[Key]) -> bool:
        """Count a failed question; whether it is to be answered as a miss instead of raising its error."""
        self._count(error)
        if self._raises(error):
            return False
        check_keys(keys)  # wrong use is told even if nobody got to see it
        self._note_degraded(error)
        return True

    def _raises(self, error: AioMooncakeError) -> bool:
        return not self._miss or isinstance(error, _MISUSE)

    def _count(self, error: AioMooncakeError) -> None:
        if not isinstance(error, RequestTimeout):
            self._counters.errors += 1

    def _note_degraded(self, error: AioMooncakeError) -> None:
        self._counters.degraded += 1
        self._outage.degraded(error)

    # ---- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Internal: connect, within the config's timeout."""
        try:
            try:
                with anyio.fail_after(self._timeout):
                    await self._transport.connect()
            except TimeoutError as error:
                raise ConnectError(
                    f"{self._transport.master.address or 'the master'} was not ready within {self._timeout} s;"
                    " is it hung, or is this the master's metrics port?"
                ) from error
        except ConnectError as error:
            if not self._miss:
                raise
            log.warning("starting without a cache: %s", error)
        self._open = True

    async def aclose(self) -> None:
        """Close: no more questions; those that are here are answered, within the config's timeout; the rest fails.

        May be called again, and by several tasks: each returns when the engine is closed. If the first is cancelled,
        what is left fails at once.
        """
        if not _is_running_here(self._loop):
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
        # A forked child must leave its parent's sockets, and the selector that both share, alone.
        if getattr(self, "_open", False) and self._pid == os.getpid():
            text = f"{self!r} was never closed; use `async with connect(…)`"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            with suppress(RuntimeError):  # the loop was closed, and its transports with it
                # Whoever lets go of us last may do so on another thread.
                self._loop.call_soon_threadsafe(self._transport.abort)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


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


def _code_of(error: AioMooncakeError) -> int:
    """Mooncake's code for a question that failed as a whole."""
    if isinstance(error, StoreError):
        return error.code
    return _RPC_TIMEOUT if isinstance(error, RequestTimeout) else _RPC_FAIL
