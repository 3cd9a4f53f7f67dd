"""Everything at once, in orders that hypothesis chooses, against a model of what each caller may be told."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiomooncake.errors import (
    AioMooncakeError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    InvalidKeyError,
    LocalProtocolError,
    OverloadedError,
    RequestTimeout,
    RpcError,
    StoreError,
)
from aiomooncake.reply import ERROR, HIT, MISS, Reply

from ..fakes import FakeTransport, JumpingLoop
from .callers import Callers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from aiomooncake.wire.messages import Key

LETTERS = "abcdefgh"
BAD: list[Any] = [5, None, "\ud800", ["list"]]
# Too large for a call of this many bytes; everything else in one batch is too large together now and then.
MAX_BYTES = 1500
LARGE = "x" * (MAX_BYTES + 1)
LONG = 300  # from 257 keys on, the coalescer calls a question long


@dataclass
class Caller:
    """One who asked: what, when (in steps), and what became of it."""

    keys: list[Key]
    lone: bool
    task: asyncio.Task[Any]
    asked: int
    deadline: float | None  # in seconds of the loop
    cancelled: bool = False
    ended: int | None = None

    @property
    def bad(self) -> bool:
        return any(key in BAD for key in self.keys)


class Schedules(RuleBasedStateMachine):
    """Steps of callers, of the master, of its connection and of the clock; between two steps the loop need not turn."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = JumpingLoop()
        self.problems: list[Mapping[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.waiting: list[Caller] = []
        self.ended: list[Caller] = []
        self.step = 0
        # For each key, what the master says of it, and from which step on.
        self.history: dict[Key, list[tuple[int, int]]] = {}
        self.losses: list[int] = []
        self.failures: list[int] = []
        self.last_down = -1
        self.up, self.paused, self.closed = True, False, False

    @initialize(
        channels=st.integers(1, 3),
        slots=st.integers(1, 3),
        max_batch_keys=st.sampled_from([1, 3, 100, 2048]),
        max_pending_keys=st.sampled_from([1, 5, 400, 1 << 20]),
        overload=st.sampled_from(["wait", "raise"]),
        dedup=st.booleans(),
        linger=st.sampled_from([0.0, 0.0, 0.25]),
    )
    def make(self, channels: int, slots: int, **options: Any) -> None:
        self.options = options
        self.transport = FakeTransport(channels=channels, slots=slots, max_bytes=MAX_BYTES)
        self.callers = self.loop.inside(lambda: Callers(self.transport, timeout=5.0, **options))

    # ---- callers ----------------------------------------------------------------------------------------------

    timeouts = st.sampled_from([None, None, 0.5, 2.0])

    @rule(keys=st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8), lone=st.booleans(), timeout=timeouts)
    def ask(self, keys: list[Key], lone: bool, timeout: float | None) -> None:
        self.start(keys[:1] if lone else keys, lone, timeout)

    @rule(key=st.sampled_from(LETTERS), count=st.integers(2, 12), timeout=timeouts)
    def several_ask_the_same(self, key: Key, count: int, timeout: float | None) -> None:
        for _ in range(count):
            self.start([key], True, timeout)

    @rule(count=st.integers(257, 2 * LONG), at=st.integers(0, 256), key=st.sampled_from(LETTERS), timeout=timeouts)
    def ask_much(self, count: int, at: int, key: Key, timeout: float | None) -> None:
        keys: list[Key] = [f"{number}" for number in range(count)]
        keys[at] = key
        self.start(keys, False, timeout)

    @rule(bad=st.sampled_from([*BAD, LARGE]), beside=st.lists(st.sampled_from(LETTERS), max_size=3), lone=st.booleans())
    def ask_wrongly(self, bad: Any, beside: list[Key], lone: bool) -> None:
        self.start([bad] if lone else [*beside, bad], lone, None)

    def start(self, keys: list[Key], lone: bool, timeout: float | None) -> None:
        callers = self.callers
        task = self.loop.create_task(callers.exists(keys[0], timeout) if lone else callers.ask(keys, timeout))
        deadline = None if timeout is None else self.loop.now + timeout
        self.waiting.append(Caller(keys, lone, task, self.step, deadline))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.waiting))
        caller.cancelled = True
        caller.task.cancel()

    # ---- the master -------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(LETTERS), said=st.sampled_from([HIT, MISS, -1010]))
    def change(self, key: Key, said: int) -> None:
        self.transport.present.discard(key)
        self.transport.codes.pop(key, None)
        if said == HIT:
            self.transport.present.add(key)
        elif said != MISS:
            self.transport.codes[key] = said
        self.history.setdefault(key, []).append((self.step, said))

    @precondition(lambda self: self.transport.out)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.transport.out))
        if call.reply is None:
            self.transport.serve(call)

    @precondition(lambda self: self.transport.out)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.loop.inside(self.transport.answer, data.draw(st.sampled_from(self.transport.out)))

    @precondition(lambda self: self.transport.out)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.failures.append(self.step)
        self.loop.inside(self.transport.fail, RpcError(10), data.draw(st.sampled_from(self.transport.out)))

    # ---- the connection ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.up)
    @rule(too_early=st.booleans())
    def lose(self, too_early: bool) -> None:
        self.up = False
        self.losses.append(self.step)
        self.transport.refuse_when_lost = too_early
        self.loop.inside(self.transport.lose)

    @precondition(lambda self: not self.up)
    @rule()
    def give_up(self) -> None:
        self.loop.inside(self.transport.give_up)

    @precondition(lambda self: not self.up)
    @rule()
    def come_back(self) -> None:
        self.up = True
        self.last_down = self.step
        self.loop.inside(self.transport.come_back)

    @precondition(lambda self: not self.paused)
    @rule()
    def pause(self) -> None:
        self.paused = True
        self.transport.pause()

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self) -> None:
        self.paused = False
        self.loop.inside(self.transport.resume)

    # ---- the loop and its clock -------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def turn(self, count: int) -> None:
        self.loop.turn(count)

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.loop.turn(2)
        self.loop.now += seconds
        self.loop.turn(2)
        for caller in self.waiting:
            # A deadline is met within 1/32 of the timeout; 0.1 s is more than that for those that are used here.
            assert caller.task.done() or caller.deadline is None or self.loop.now <= caller.deadline + 0.1

    @rule()
    def settle(self) -> None:
        """What can leave has left once the loop has nothing more to do."""
        self.loop.turn(3)
        self.loop.now += self.options["linger"]
        self.loop.turn(3)
        pending, outside, in_flight = self.callers.place
        assert in_flight == len(self.transport.out)
        if self.closed or not self.up or self.paused:
            return
        if self.loop.inside(lambda: self.transport.channel(bulk=True)) is not None:
            assert (pending, outside) == (0, 0)

    # ---- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def everybody_who_ended_was_told_right(self) -> None:
        self.step += 1
        for caller in [caller for caller in self.waiting if caller.task.done()]:
            self.waiting.remove(caller)
            self.ended.append(caller)
            caller.ended = self.step
            self.check(caller)
        assert not self.problems

    @invariant()
    def batches_keep_to_their_limit(self) -> None:
        if hasattr(self, "transport"):
            assert all(len(call.keys) <= self.options["max_batch_keys"] for call in self.transport.out)
            assert self.callers.coalescer.pending_keys >= 0

    def check(self, caller: Caller) -> None:
        if caller.task.cancelled():
            assert caller.cancelled
            return
        error = caller.task.exception()
        if error is None:
            self.check_answer(caller, caller.task.result())
        else:
            assert isinstance(error, AioMooncakeError)
            self.check_error(caller, error)

    def check_answer(self, caller: Caller, answer: bool | Reply) -> None:
        assert not caller.bad
        assert LARGE not in caller.keys
        if isinstance(answer, Reply):
            assert not caller.lone
            assert set(answer.errors) == {at for at, bit in enumerate(answer.bits) if bit == ERROR}
            said = [answer.errors[at] if bit == ERROR else bit for at, bit in enumerate(answer.bits)]
        else:
            assert caller.lone
            said = [int(answer)]
        assert len(said) == len(caller.keys)
        for key, code in zip(caller.keys, said, strict=True):
            assert code in self.sayings(key, caller)

    def check_error(self, caller: Caller, error: AioMooncakeError) -> None:
        match error:
            case InvalidKeyError():
                assert caller.bad
            case LocalProtocolError():
                assert LARGE in caller.keys
            case StoreError():
                assert caller.lone
                assert error.key == caller.keys[0]
                assert error.code in self.sayings(caller.keys[0], caller)
            case RequestTimeout():
                assert caller.deadline is not None
                assert self.loop.now >= caller.deadline
            case ConnectionLostError():
                assert sum(step >= caller.asked for step in self.losses) >= 3
            case ConnectError():
                assert not self.up or self.last_down >= caller.asked
            case RpcError():
                assert any(step >= caller.asked for step in self.failures)
            case OverloadedError():
                assert self.options["overload"] == "raise"
            case ClosedError():
                assert self.closed
            case _:
                raise AssertionError(error)
        others = [other.task for other in self.ended if other is not caller and not other.task.cancelled()]
        assert all(other.exception() is not error for other in others)

    def sayings(self, key: Key, caller: Caller) -> set[int]:
        """What the master said of `key` at some moment between question and answer."""
        history = self.history.get(key, [])
        said = [code for step, code in history if step < caller.asked][-1:] or [MISS]
        return {*said, *(code for step, code in history if step >= caller.asked)}

    def teardown(self) -> None:
        try:
            if hasattr(self, "transport"):
                self.let_everybody_end()
        finally:
            self.loop.set_exception_handler(lambda _, context: None)  # an example that failed leaves tasks behind
            self.loop.close()

    def let_everybody_end(self) -> None:
        """One way or another: here by answers, if the master is there, else by closing."""
        if self.up and not self.paused and self.step % 2:
            self.settle()
            while self.transport.out:
                self.loop.inside(self.transport.answer_all)
                self.settle()
        else:
            self.closed = True
            closing = self.loop.create_task(self.callers.coalescer.aclose())
            self.loop.turn(3)
            self.loop.now += 6
            self.loop.turn(3)
            closing.result()
            self.loop.inside(self.transport.abort)
            self.loop.turn(3)
        self.everybody_who_ended_was_told_right()
        assert not self.waiting
        assert self.callers.place == (0, 0, 0)
        self.ended.clear()
        gc.collect(0)  # an exception that nobody took reports itself
        self.loop.turn()
        assert not self.problems


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
