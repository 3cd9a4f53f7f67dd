"""Merges the questions of concurrent callers into few calls.

Where a question goes, all in one event loop step and without a task of its own:

    lobby    no place among `max_pending_keys` yet (overload="wait")
    queue    short questions, in the batches in which they will travel; long ones, in turns
    flight   in a batch that was sent

A batch is sent when a channel has a free slot. If nothing is out and nothing waits, that is at once; otherwise what
comes up in the same turn of the loop gathers first, and while every slot is taken, until one is free. Nothing ever
joins a batch that was sent, so an answer is never older than its question.

Short questions and long ones do not share batches: a short one would wait for a long batch to be served. Long ones
take turns of half a batch. Some thousand keys of them are spread over all channels; larger questions leave the last
channel of several to the others.

Invariant: a future handed out here ends by an answer, an error, its deadline, or its caller's cancellation; none of
these concerns any other future.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from weakref import WeakSet

import anyio

from .batch import Batch, Question
from .deadlines import Deadlines
from .errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    OverloadedError,
    RequestTimeout,
    WrongLoopError,
    fresh,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import EngineConfig
    from .errors import AioMooncakeError
    from .reply import Reply
    from .stats import Counters
    from .transport.base import Channel, Transport
    from .wire.messages import Key

__all__ = ["Coalescer"]

# Keys up to which a question counts as short.
_SHORT = 128
# Keys up to which long questions use every channel, in equal parts: one of 3072 keys took 2.4 ms instead of 3.9 when
# two of the master's threads served it. A short one then waits for at most a part of it. Parts have at least _PART
# keys: one call of 205 keys took 150 us, and two of half as many 173. A question is not cut for less than _CRUMB.
_WIDE = 4096
_PART = 256
_CRUMB = 128
# Keys whose callers stopped waiting, before it is worth looking for them in the queue.
_FEW = 64
# A question finds no place: then it is worth looking for them when they may be more than this part of the queue.
_SLACK = 64
# Keys with which a batch need not wait for the end of the turn, and how many batches a turn may send like that: while
# tasks still ask, the master is at work. Few, since every call costs both sides some 10 us.
_EARLY = 256
_EARLY_PER_TURN = 2
# How often a question is asked at most if its connection is lost each time.
_MAX_ATTEMPTS = 3
# Seconds that a close waits for answers where the config sets no limit.
_DRAIN_LIMIT = 5.0

_alive: WeakSet[Coalescer] = WeakSet()

_Waiting: TypeAlias = "tuple[Key, asyncio.Future[bool]] | Question"


class Coalescer:
    """The queue between callers and a transport. Belongs to one event loop; every method must be called on it."""

    def __init__(self, transport: Transport, config: EngineConfig, counters: Counters) -> None:
        """Use `transport`, which must be bound to nobody else, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._counters = counters
        self._max_batch = config.max_batch_keys
        # Keys that a long question may have in a batch while others wait: half of it. Most lookups then are served
        # whole, and in the order in which they came.
        self._turn = max(_SHORT, config.max_batch_keys // 2)
        self._max_pending = config.max_pending_keys
        self._refuse = config.overload == "raise"
        self._linger = config.linger
        self._dedup = config.dedup
        self._drain_limit = _DRAIN_LIMIT if config.timeout is None else config.timeout

        self._filling = Batch()
        self._full: deque[Batch] = deque()
        self._long: deque[Question] = deque()
        # A place in the queue is counted apart for short and long questions, so that long ones that fill it do not keep
        # short ones out.
        self._lobby: deque[_Waiting] = deque()
        self._long_lobby: deque[Question] = deque()
        self._flight: set[Batch] = set()
        self.pending_keys = 0  # in the queue, not in the lobby
        self._long_keys = 0  # those of them that belong to long questions
        self._ended_early = 0  # keys that may still stand in the queue or the lobby though nobody waits for them
        self._long_turn = False
        # A batch that served several callers is likely followed by as many questions: gather those.
        self._expect_company = False
        self._no_room = False  # short questions wait and every slot is taken
        self._early_left = _EARLY_PER_TURN
        self._early_size = min(_EARLY, config.max_batch_keys)
        self._flush: asyncio.Handle | None = None
        self._lingers = False
        self._deadlines = Deadlines(self._loop, self._expire)
        # On this thread only one loop can run, so if ours does, it is the one that calls. Asking for the running loop
        # would cost a system call before Python 3.12.
        self._thread = get_ident()
        self._is_running = self._loop.is_running
        self._barred = False  # closed, or in another process than it was made in
        self._forked = False
        _alive.add(self)
        self._aborted = False
        self._drained: asyncio.Future[None] | None = None
        transport.bind(on_room=self._room, on_unavailable=self._fail_queued)

    # ---- asking -----------------------------------------------------------------------------------------------

    def ask_one(self, key: Key, timeout: float | None) -> asyncio.Future[bool]:
        """Ask one key. The question is on its way, or in the queue, when this returns.

        If the caller stops waiting before the future is done, it must cancel the future and call `forget`.

        Raises:
            WrongLoopError, ClosedError, OverloadedError: nothing was asked.
        """
        if self._barred or get_ident() != self._thread or not self._is_running():
            self._refuse_use()
        future: asyncio.Future[bool] = self._loop.create_future()
        if not self._flight and self._idle() and (channel := self._channel(bulk=False)) is not None:
            batch = Batch()
            batch.add_lone(key, future)
            self._send(channel, batch)
        elif self.pending_keys - self._long_keys < self._max_pending and not self._lobby:
            self._enqueue_one(key, future)
            if self._flush is None or self._lingers:
                self._schedule()
        else:
            self._wait_outside((key, future), 1)
        if timeout is not None:
            self._deadlines.add(future, timeout)
        return future

    def ask(self, keys: Sequence[Key], timeout: float | None) -> asyncio.Future[Reply]:
        """Ask several keys at once, at least one; `keys` must not change afterwards. Otherwise as `ask_one`."""
        if self._barred or get_ident() != self._thread or not self._is_running():
            self._refuse_use()
        future: asyncio.Future[Reply] = self._loop.create_future()
        question = Question(keys, future)
        if self._fits(len(keys)) and not (self._long_lobby if len(keys) > _SHORT else self._lobby):
            idle = self._idle()
            self._enqueue(question)
            if idle:
                self._pump()
            else:
                self._schedule()
        else:
            self._wait_outside(question, len(keys))
        if timeout is not None:
            self._deadlines.add(future, timeout)
        return future

    def forget(self, keys: int = 1) -> None:
        """Somebody who had asked `keys` keys stopped waiting: a future of ours was cancelled."""
        self._counters.cancelled += 1
        self._note_ended(keys)

    @property
    def lobby_size(self) -> int:
        """Questions that wait for a place in the queue."""
        return len(self._lobby) + len(self._long_lobby)

    @property
    def calls_in_flight(self) -> int:
        """Calls that were sent and not answered yet."""
        return len(self._flight)

    def check_usable(self) -> None:
        """Raise what `ask` would raise where and when the engine must not be used."""
        if self._barred or get_ident() != self._thread or not self._is_running():
            self._refuse_use()

    def _refuse_use(self) -> NoReturn:
        if self._forked:
            raise WrongLoopError(
                "this engine was made before a fork, in the parent process; connect one in this process"
            )
        try:
            here = asyncio.get_running_loop()
        except RuntimeError as error:
            raise WrongLoopError("this engine must be used on its event loop, and here none is running") from error
        if here is not self._loop:
            raise WrongLoopError("this engine belongs to another event loop; connect one for each loop")
        raise ClosedError("this engine is closed")

    def leave_behind(self) -> None:
        """This process is a fork: sockets and loop belong to the parent."""
        self._barred = self._forked = True

    def _idle(self) -> bool:
        return not (self._flight or self.pending_keys or self._expect_company or self._linger)

    def _fits(self, count: int) -> bool:
        taken = self.pending_keys if count > _SHORT else self.pending_keys - self._long_keys
        return taken + count <= self._max_pending or not taken

    def _wait_outside(self, waiting: _Waiting, count: int) -> None:
        if self._ended_early > (self.pending_keys + self.lobby_size) // _SLACK:
            self._sweep()
        if self._refuse and not self._fits(count):
            self._counters.refused += 1
            raise OverloadedError(
                f"{self.pending_keys} keys wait to be sent and {count} more would exceed max_pending_keys="
                f"{self._max_pending}; ask less, raise the limit, or choose overload='wait'"
            )
        if isinstance(waiting, Question) and count > _SHORT:
            self._long_lobby.append(waiting)
        else:
            self._lobby.append(waiting)
        self._let_in()
        self._schedule()

    # ---- the queue --------------------------------------------------------------------------------------------

    def _enqueue_one(self, key: Key, future: asyncio.Future[bool]) -> None:
        batch = self._filling
        batch.add_lone(key, future)
        self.pending_keys += 1
        if batch.size >= self._early_size:
            self._send_early()

    def _enqueue(self, question: Question) -> None:
        if len(question.keys) > _SHORT:
            self._long.append(question)
            self.pending_keys += question.left
            self._long_keys += question.left
            return
        while question.left and not question.future.done():  # what was sent early may have failed it
            batch = self._filling
            count = min(question.left, self._max_batch - batch.size)
            batch.add_part(question, count)
            self.pending_keys += count
            if batch.size >= self._early_size:
                self._send_early()

    def _send_early(self) -> None:
        """The filling batch is full, or large enough to be on its way while this turn of the loop goes on."""
        if self._filling.size >= self._max_batch:
            self._full.append(self._filling)
            self._filling = Batch()
        else:
            self._early_left -= 1
        self._set_early_size()
        if not (self._no_room or self._linger or self._lobby):  # who lets others in from there also sends them
            self._pump()

    def _set_early_size(self) -> None:
        early = self._early_left and not self._no_room and not self._linger
        self._early_size = min(_EARLY, self._max_batch) if early else self._max_batch

    def _let_in(self) -> None:
        """Move from the lobby to the queue what fits by now, in order."""
        lobby = self._lobby
        while lobby:
            waiting = lobby[0]
            if isinstance(waiting, Question):
                if not waiting.future.done():
                    if not self._fits(len(waiting.keys)):
                        break
                    self._enqueue(waiting)
            elif not waiting[1].done():
                if not self._fits(1):
                    break
                self._enqueue_one(*waiting)
            lobby.popleft()
        long = self._long_lobby
        while long and (long[0].future.done() or self._fits(len(long[0].keys))):
            question = long.popleft()
            if not question.future.done():
                self._enqueue(question)

    def _take_short(self) -> Batch:
        if self._full:
            batch = self._full.popleft()
        else:
            batch, self._filling = self._filling, Batch()
        self.pending_keys -= batch.size
        return batch

    def _take_long(self, channel: Channel) -> Batch:
        batch = Batch()
        waiting = self._long
        most = self._share(channel)
        while waiting and (room := most - batch.size) >= (_CRUMB if batch.size else 1):
            question = waiting.popleft()
            if question.future.done():
                taken = question.left
            else:
                taken = min(room, question.left, self._turn if waiting else room)
                if question.left - taken < _CRUMB and question.left <= self._max_batch - batch.size:
                    taken = question.left
                batch.add_part(question, taken)
                if question.left:
                    waiting.append(question)
            self.pending_keys -= taken
            self._long_keys -= taken
        return batch

    def _share(self, channel: Channel) -> int:
        """Keys to send on this channel now so that all have as many; a whole batch where there are plenty."""
        keys = self._long_keys + sum(batch.size for batch in self._flight)
        if keys > _WIDE or not self._is_wide(self._long[0]):
            return self._max_batch
        level = -(-keys // max(1, self._transport.open_channels))
        return min(self._max_batch, max(_PART, level - channel.outstanding_keys))

    def _is_wide(self, question: Question) -> bool:
        return len(question.keys) <= _WIDE

    def _note_ended(self, count: int) -> None:
        """Nobody waits for so many keys any more. Once they may be half of the queue, clear it of them."""
        self._ended_early += count
        if self._ended_early >= _FEW + (self.pending_keys + self.lobby_size) // 2:
            self._sweep()

    def _sweep(self) -> None:
        self._ended_early = 0
        batches = [*self._full, self._filling]
        for batch in batches:
            batch.drop_done()
        self._full = deque(batch for batch in batches[:-1] if batch.size)
        self._long = deque(question for question in self._long if not question.future.done())
        self._lobby = deque(waiting for waiting in self._lobby if not _future(waiting).done())
        self._long_lobby = deque(question for question in self._long_lobby if not question.future.done())
        self._long_keys = sum(question.left for question in self._long)
        self.pending_keys = sum(batch.size for batch in batches) + self._long_keys
        if self.lobby_size:
            self._let_in()
            self._schedule()

    # ---- sending ----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """See to it that the queue is looked at: at the end of this turn of the loop, or after the linger."""
        if self._flush is None:
            if not self._no_room:
                self._lingers = self._linger > 0
                if self._lingers:
                    self._flush = self._loop.call_later(self._linger, self._flush_now)
                else:
                    self._flush = self._loop.call_soon(self._flush_now)
        elif self._lingers and self._full:
            self._flush.cancel()
            self._lingers = False
            self._flush = self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self._expect_company = False
        self._early_left = _EARLY_PER_TURN
        self._set_early_size()
        self._pump()

    def _room(self) -> None:
        self._set_no_room(False)
        self._pump()

    def _set_no_room(self, no_room: bool) -> None:
        if self._no_room is not no_room:
            self._no_room = no_room
            self._set_early_size()

    def _channel(self, *, bulk: bool) -> Channel | None:
        try:
            return self._transport.channel(bulk=bulk)
        except ConnectError as error:
            self._fail_queued(error)
            raise

    def _pump(self) -> None:
        """Send while there is something to send and a slot for it."""
        try:
            while self.pending_keys:
                short = bool(self._full or self._filling.size)
                channel: Channel | None = None
                if self._long and (self._long_turn or not short):
                    channel = self._channel(bulk=not self._is_wide(self._long[0]))
                if channel is not None:
                    batch = self._take_long(channel)
                    self._long_turn = False
                elif short and (channel := self._channel(bulk=False)) is not None:
                    batch = self._take_short()
                    self._long_turn = True
                else:
                    self._set_no_room(short)
                    break
                self._send(channel, batch)
                if self._lobby or self._long_lobby:
                    self._let_in()
        except ConnectError:
            pass  # who waited has been told
        if self._drained is not None:
            self._check_drained()

    def _send(self, channel: Channel, batch: Batch) -> None:
        if self._ended_early:
            batch.drop_done()
            if not (self.pending_keys or self.lobby_size):
                self._ended_early = 0
        while batch.size:
            batch.seal(dedup=self._dedup, on_done=self._landed)
            try:
                channel.send(batch)
            except Exception as error:  # whatever it is: nobody may wait for what was never sent
                if not batch.drop_invalid():
                    self._send_halves(batch, error)
                    return
            else:
                batch.attempts += 1
                self._flight.add(batch)
                counters = self._counters
                counters.calls += 1
                counters.keys_sent += len(batch.keys)
                counters.keys_merged += batch.size - len(batch.keys)
                return

    def _send_halves(self, batch: Batch, error: Exception) -> None:
        """A batch cannot be sent as it is: put its halves in front of the queue, or fail its only key."""
        halves = batch.halves()
        if halves is None:
            if not isinstance(error, LocalProtocolError):  # out of memory, or a fault of ours
                error, cause = LocalProtocolError(f"the key could not be sent: {type(error).__name__}: {error}"), error
                error.__cause__ = cause
            batch.fail_waiters(error)
            return
        self._full.extendleft(reversed(halves))
        self.pending_keys += batch.size

    def _landed(self, batch: Batch, error: AioMooncakeError | None) -> None:
        """A call was answered, and its callers have been told, or it failed, and they have not."""
        self._flight.discard(batch)
        self._set_no_room(False)
        if error is None:
            if batch.waiters > 1 and not self._linger:
                # They were woken just now: what they ask next comes before this flush, which also ends the expectation.
                self._expect_company = True
                if self._flush is None:
                    self._flush = self._loop.call_soon(self._flush_now)
        elif isinstance(error, ConnectionLostError) and batch.attempts < _MAX_ATTEMPTS and not self._aborted:
            self._ask_again(batch)
        else:
            batch.fail_waiters(error)
        if self.pending_keys:
            self._pump()
        elif self._drained is not None:
            self._check_drained()

    def _ask_again(self, batch: Batch) -> None:
        """Its connection was lost, and existence is safe to ask twice: for those who still wait."""
        batch.drop_done()
        if batch.size:
            self._full.appendleft(batch)
            self.pending_keys += batch.size

    # ---- endings ----------------------------------------------------------------------------------------------

    def _expire(self, futures: list[asyncio.Future[Any]]) -> None:
        sent = {id(future) for batch in self._flight for future in batch.futures()}
        connected = self._transport.open_channels > 0
        master = self._transport.master.address or "the master"
        where = f"{self.pending_keys} keys queued, {len(self._flight)} calls out to {master}"
        for future in futures:
            phase = "awaiting reply" if id(future) in sent else "queued" if connected else "connecting"
            future.set_exception(RequestTimeout(f"no answer before the deadline ({phase}; {where})", phase=phase))
        self._counters.timeouts += len(futures)
        ended = len(futures) + sum(batch.ended_keys() for batch in (*self._full, self._filling))
        ended += sum(question.left for question in self._long if question.future.done())
        self._note_ended(ended)
        if self._drained is not None:
            self._sweep()
            self._check_drained()

    def _fail_queued(self, error: AioMooncakeError) -> None:
        """Nothing of what waits can be sent."""
        batches, questions, lobby = [*self._full, self._filling], [*self._long, *self._long_lobby], self._lobby
        # First forget them: whoever is told may ask again at once.
        self._full, self._filling, self._long, self._lobby, self._long_lobby = (
            deque(),
            Batch(),
            deque(),
            deque(),
            deque(),
        )
        self.pending_keys = self._long_keys = 0
        self._ended_early = 0
        self._set_no_room(False)
        for batch in batches:
            batch.fail_waiters(error)
        for question in questions:
            question.fail(error)
        for waiting in lobby:
            future = _future(waiting)
            if not future.done():
                future.set_exception(fresh(error))
        if self._drained is not None:
            self._check_drained()

    async def aclose(self) -> None:
        """Take no more questions, let those that are here be answered, and fail what is left at the limit.

        The limit is the config's timeout. If this is cancelled, what is left fails at once. To be called once.
        """
        self._barred = True
        try:
            self._sweep()
            self._drained = self._loop.create_future()
            self._check_drained()
            with anyio.move_on_after(self._drain_limit):
                await self._drained
        finally:
            self.abort()

    def abort(self) -> None:
        """Take no more questions and fail those that wait. Those in flight are the transport's to fail."""
        self._barred = self._aborted = True
        self._deadlines.close()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._fail_queued(ClosedError("the engine was closed before the question was sent"))

    def _check_drained(self) -> None:
        assert self._drained is not None
        if self._drained.done() or self.pending_keys or self.lobby_size:
            return
        if all(future.done() for batch in self._flight for future in batch.futures()):
            self._drained.set_result(None)


def _leave_behind_all() -> None:
    for coalescer in list(_alive):
        coalescer.leave_behind()


os.register_at_fork(after_in_child=_leave_behind_all)


def _future(waiting: _Waiting) -> asyncio.Future[Any]:
    return waiting.future if isinstance(waiting, Question) else waiting[1]
