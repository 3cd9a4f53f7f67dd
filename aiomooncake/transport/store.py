"""The store transport: asks through a `MooncakeDistributedStore` that the process already has.

The official call blocks its thread, so each channel is a thread of its own; the loop's default executor is left to
others. A call that blocks inside the C++ client cannot be cancelled: its waiters end at their deadline, and its
thread takes no more calls until it returns. Threads are daemons, so a blocked one cannot keep a process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ..errors import AioMooncakeError, ClosedError, ConfigError, ConnectError
from ..reply import ERROR, HIT, MISS, Reply
from ..wire.messages import check_keys
from .base import MasterInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wire.messages import Key
    from .base import Call

__all__ = ["Store", "StoreTransport"]

# Seconds inside one call after which a thread counts as stuck. With a dead master the official client blocks for 4.3 s
# a call, with a hung one for 30 s. More threads would only be stuck as well: questions are refused until one returns.
_STUCK = 2.0
# Seconds that a close waits for threads that are inside a call.
_JOIN_LIMIT = 1.0


class Store(Protocol):
    """The part of `mooncake.store.MooncakeDistributedStore` that is used."""

    def batch_is_exist(self, keys: list[Any], /) -> list[int]:
        """One code per key: 1 there, 0 not there, negative an error."""
        ...


class StoreTransport:
    """Implements `Transport` over a store that the caller has set up and will close."""

    def __init__(self, store: Store, *, workers: int) -> None:
        """Ask `store` on `workers` threads, which start at `connect`.

        Raises:
            ConfigError: this is no store.
        """
        if not callable(getattr(store, "batch_is_exist", None)):
            raise ConfigError(f"store is {store!r}; give a MooncakeDistributedStore that was set up")
        self._store = store
        self._workers = [_Worker(self, index) for index in range(workers)]
        self._bulk_workers = self._workers[: max(1, workers - 1)]
        self._on_room: Callable[[], None]

    def bind(self, *, on_room: Callable[[], None], on_unavailable: Callable[[AioMooncakeError], None]) -> None:
        """See `Transport`."""
        self._on_room = on_room

    def channel(self, *, bulk: bool) -> _Worker | None:
        """See `Transport`. Raises ConnectError when every thread has been inside a call for too long."""
        for worker in self._bulk_workers if bulk else reversed(self._workers):
            if worker.free:
                return worker
        blocked = min((worker.blocked_for() for worker in self._workers), default=0.0)
        if blocked > _STUCK:
            raise ConnectError(
                f"every thread for the store ({len(self._workers)}) has been inside a call for {blocked:.1f} s or more;"
                " its master is away or hangs, and such a call cannot be called off"
            )
        return None

    async def connect(self) -> None:
        """See `Transport`. Refuses a store that was not set up, as far as its version can tell."""
        self.check_usable()
        for worker in self._workers:
            worker.start()

    async def aclose(self) -> None:
        """See `Transport`. Waits up to a second for threads that are inside a call."""
        self.abort()
        with anyio.move_on_after(_JOIN_LIMIT):
            for worker in self._workers:
                await worker.ended.wait()

    def abort(self) -> None:
        """See `Transport`."""
        for worker in self._workers:
            worker.stop()

    def check_usable(self) -> None:
        """Raise ConnectError if the store says that it is not set up; asking it would crash the process.

        `health_check` is there from 0.3.8 on; older stores cannot be told.
        """
        check = getattr(self._store, "health_check", None)
        if check is not None and check() != 0:
            raise ConnectError(
                "the store is not set up, or was closed; call its setup() first and check that it returns 0"
            )

    def ask(self, keys: Sequence[Key]) -> Reply:
        """Ask the store; blocks."""
        self.check_usable()
        codes = self._store.batch_is_exist(list(keys))
        if len(codes) != len(keys):
            raise ConnectError(f"the store answered {len(codes)} codes for {len(keys)} keys")
        errors = {position: code for position, code in enumerate(codes) if code not in (HIT, MISS)}
        return Reply(bytes([ERROR if code not in (HIT, MISS) else code for code in codes]), errors)

    @property
    def master(self) -> MasterInfo:
        """See `Transport`: a store does not tell its master."""
        return MasterInfo()

    @property
    def open_channels(self) -> int:
        """See `Transport`."""
        return sum(worker.is_alive() for worker in self._workers)

    @property
    def connections_lost(self) -> int:
        """See `Transport`: the store connects by itself."""
        return 0


class _Worker(threading.Thread):
    """A channel: one thread, one call at a time."""

    def __init__(self, transport: StoreTransport, index: int) -> None:
        super().__init__(name=f"aiomooncake store {index}", daemon=True)
        self.free = False
        self.ended = asyncio.Event()
        self._transport = transport
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._current: Call | None = None
        self._since = 0.0
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        super().start()
        self.free = True

    def blocked_for(self) -> float:
        """How long it has been inside its call, in seconds; 0 outside one."""
        return 0.0 if self._current is None else self._loop.time() - self._since

    @property
    def outstanding_keys(self) -> int:
        """See `Channel`."""
        return 0 if self._current is None else len(self._current.keys)

    def send(self, call: Call) -> None:
        """See `Channel`."""
        check_keys(call.keys)
        self.free = False
        self._since = self._loop.time()
        self._current = call
        self._calls.put(call)

    def stop(self) -> None:
        """Take no more calls, end the current one for its waiters, and let the thread end when it can."""
        self.free = False
        call, self._current = self._current, None
        if call is not None:
            call.failed(ClosedError("the engine was closed before the answer came"))
        self._calls.put(None)
        if self.ident is None:
            self.ended.set()

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            outcome: Reply | AioMooncakeError
            try:
                outcome = self._transport.ask(call.keys)
            except AioMooncakeError as error:
                outcome = error
            except Exception as error:
                outcome = ConnectError(f"the store's batch_is_exist raised {type(error).__name__}: {error}")
                outcome.__cause__ = error
            if not self._tell(self._done, call, outcome):
                return
        self._tell(self.ended.set)

    def _tell(self, callback: Callable[..., object], *args: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed under us, and everybody who waited on it is gone
            return False
        return True

    def _done(self, call: Call, outcome: Reply | AioMooncakeError) -> None:
        if self._current is not call:  # stopped meanwhile
            return
        self._current = None
        self.free = True
        if isinstance(outcome, Reply):
            call.answered(outcome)
        else:
            call.failed(outcome)
