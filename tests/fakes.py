"""A transport in memory whose answers the test releases, and a loop whose clock jumps instead of waiting."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, TypeVar

from aiomooncake.errors import (
    AioMooncakeError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    fresh,
)
from aiomooncake.reply import ERROR, HIT, MISS, Reply
from aiomooncake.transport.base import MasterInfo
from aiomooncake.wire.messages import check_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from aiomooncake.transport.base import Call
    from aiomooncake.wire.messages import Key

T = TypeVar("T")


class FakeCall:
    """A call that was sent. Served when the fake master looks at its keys, over when it was answered or failed."""

    def __init__(self, call: Call, channel: FakeChannel) -> None:
        self.keys = tuple(call.keys)
        self.channel = channel
        self.reply: Reply | None = None
        self.over = False
        self._call = call

    def finish(self, outcome: Reply | AioMooncakeError) -> None:
        assert not self.over
        self.over = True
        self.channel.forget(self)
        if isinstance(outcome, Reply):
            self._call.answered(outcome)
        else:
            self._call.failed(outcome)


class FakeChannel:
    """One of a fake transport's channels."""

    def __init__(self, transport: FakeTransport, slots: int) -> None:
        self.out: list[FakeCall] = []
        self._transport = transport
        self._slots = slots

    @property
    def has_room(self) -> bool:
        return len(self.out) < self._slots

    @property
    def outstanding_keys(self) -> int:
        return sum(len(call.keys) for call in self.out)

    def send(self, call: Call) -> None:
        assert self._transport.serves, "sent on a channel that was not offered"
        assert self.has_room, "sent without a free slot"
        check_keys(call.keys)
        if any(key is self._transport.breaks_at for key in call.keys):
            raise MemoryError
        size = sum(map(len, call.keys))
        if size > self._transport.max_bytes:
            raise LocalProtocolError(f"{size} bytes of keys do not fit one call")
        self.out.append(FakeCall(call, self))
        self._transport.note(self.out[-1])

    def forget(self, call: FakeCall) -> None:
        self.out.remove(call)
        self._transport.out.remove(call)


class FakeTransport:
    """Implements `Transport`. The test says what the master holds and when which call is served, answered or lost.

    As real transports do, it keeps the last of several channels free of bulk calls.

    Attributes:
        present: keys that the master holds.
        codes: keys for which it answers an error instead.
        sent: every call that was ever sent, in order.
        out: those that are neither answered nor failed.
        max_bytes: a call with more bytes of keys is refused.
        refuse_when_lost: when the connections are lost, it is too early to make new ones.
        refuses: there is no channel, though calls may still be out.
        breaks_at: a key at which sending fails in a way that nobody foresaw.
    """

    def __init__(self, *, channels: int = 1, slots: int = 1, max_bytes: int = 1 << 30, automatic: bool = False) -> None:
        """With `automatic`, each call is answered in the next turn of the loop."""
        self.present: set[Key] = set()
        self.codes: dict[Key, int] = {}
        self.sent: list[FakeCall] = []
        self.out: list[FakeCall] = []
        self.refuse_when_lost = False
        self.refuses = False
        self.breaks_at: Key | None = None
        self.max_bytes = max_bytes
        self.connections_lost = 0
        self.closed = False
        self._channels = [FakeChannel(self, slots) for _ in range(channels)]
        self._bulk_channels = self._channels[: max(1, channels - 1)]
        self._automatic = automatic
        self._connected = True
        self._away: ConnectError | None = None
        self._paused = False
        self._on_room: Callable[[], None]
        self._on_unavailable: Callable[[AioMooncakeError], None]

    # ---- what the coalescer and the engine see ----------------------------------------------------------------

    def bind(self, *, on_room: Callable[[], None], on_unavailable: Callable[[AioMooncakeError], None]) -> None:
        self._on_room = on_room
        self._on_unavailable = on_unavailable

    def channel(self, *, bulk: bool) -> FakeChannel | None:
        if self.refuses:
            raise ConnectError("the fake master is away for now")
        if self._away is not None:
            raise fresh(self._away)
        if not self.serves:
            return None
        free = [channel for channel in (self._bulk_channels if bulk else self._channels) if channel.has_room]
        return min(free, key=lambda channel: channel.outstanding_keys, default=None)

    async def connect(self) -> None:
        if self._away is not None:
            raise fresh(self._away)

    async def aclose(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.closed = True
        for call in list(self.out):
            call.finish(ClosedError("the engine was closed before the answer came"))

    @property
    def master(self) -> MasterInfo:
        return MasterInfo(address="fake:1")

    @property
    def open_channels(self) -> int:
        return len(self._channels) if self._connected else 0

    # ---- what the test says and sees --------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return self._connected and not self._paused and not self.closed

    @property
    def keys_sent(self) -> list[tuple[Key, ...]]:
        return [call.keys for call in self.sent]

    def note(self, call: FakeCall) -> None:
        self.sent.append(call)
        self.out.append(call)
        if self._automatic:
            asyncio.get_running_loop().call_soon(self._answer_unless_over, call)

    def _answer_unless_over(self, call: FakeCall) -> None:
        if not call.over:
            self.answer(call)

    def look_up(self, key: Key) -> int:
        """HIT, MISS, or the error code that this master answers for `key`."""
        return self.codes.get(key, HIT if key in self.present else MISS)

    def serve(self, call: FakeCall) -> None:
        """The master looks at the keys; the answer stays on its way."""
        codes = [self.look_up(key) for key in call.keys]
        errors = {at: code for at, code in enumerate(codes) if code not in (HIT, MISS)}
        call.reply = Reply(bytes([ERROR if at in errors else code for at, code in enumerate(codes)]), errors)

    def answer(self, call: FakeCall | None = None) -> None:
        """The answer to `call`, or to the oldest, arrives."""
        call = self.out[0] if call is None else call
        if call.reply is None:
            self.serve(call)
        assert call.reply is not None
        call.finish(call.reply)

    def answer_all(self) -> None:
        """Answer what is out, and what is sent on that, until nothing is."""
        while self.out:
            self.answer()

    def fail(self, error: AioMooncakeError, call: FakeCall | None = None) -> None:
        """`call`, or the oldest, fails; its channel goes on."""
        (self.out[0] if call is None else call).finish(error)

    def lose(self) -> None:
        """Every connection ends, with the calls that are out; new ones are being made."""
        self._connected = False
        self.connections_lost += len(self._channels)
        if self.refuse_when_lost:
            self._away = ConnectError("the fake master is away")
        error = ConnectionLostError("the fake connection was lost")
        for call in list(self.out):
            call.finish(error)

    def give_up(self) -> None:
        """No connection could be made; until `come_back`, there will be no attempt."""
        self._connected = False
        self._away = ConnectError("the fake master is away")
        self._on_unavailable(self._away)

    def come_back(self) -> None:
        """Connections stand again."""
        self._connected = True
        self._away = None
        self._on_room()

    def pause(self) -> None:
        """Take no more calls for now."""
        self._paused = True

    def resume(self) -> None:
        """Take calls again, and say so."""
        self._paused = False
        self._on_room()


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while anything runs, and jumps to the next timer when nothing does."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now

    def turn(self, count: int = 1) -> None:
        """Run what is ready, `count` times, from outside the loop."""
        for _ in range(count):
            self.call_soon(self.stop)
            self.run_forever()

    def inside(self, function: Callable[..., T], *args: object) -> T:
        """Call `function` in the loop, at the end of one turn of it."""
        results: list[T] = []
        self.call_soon(lambda: results.append(function(*args)))
        self.turn()
        return results[0]


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everything waits, and nothing is going to happen"
            self._loop.now += timeout
        return events


def run_jumping(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test on a loop whose clock jumps: seconds in it take no time."""
    loop = JumpingLoop()
    problems: list[Mapping[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
        assert not problems
