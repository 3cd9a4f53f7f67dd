"""Deadlines on a loop whose clock is stepped by hand."""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import random
import weakref
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiomooncake.deadlines import Deadlines, _Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUTS = (0, 1e-6, 0.001, 0.0015, 0.01, 0.1, 1, 1.0, 5.5, 60.0, 3600.0, 1e9)


class SteppedLoop:
    """As much of a loop as Deadlines and bare futures use.

    `tick` makes its clock count whole ticks, and rounds timers to them, as uvloop does with 1 ms.
    """

    def __init__(self, start: float = 1000.0, *, tick: float = 0.0) -> None:
        self._now = start
        self._tick = tick
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._made = 0
        self.woken = 0

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        return math.floor(self._now / self._tick) * self._tick if self._tick else self._now

    def get_debug(self) -> bool:
        return False

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        assert when >= self.time(), "a timer set in the past"
        self._made += 1
        handle = asyncio.TimerHandle(when, callback, args, self.as_loop, context)
        due = self.time() + round((when - self.time()) / self._tick) * self._tick if self._tick else when
        heapq.heappush(self._timers, (due, self._made, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    @property
    def timers(self) -> int:
        return sum(not handle.cancelled() for _, _, handle in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass, and what is due happen at its time."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._now = max(self._now, when)
                self.woken += 1
                assert self.woken < 100_000, "a timer set again and again"
                handle._run()
        self._now = max(self._now, end)


class Watch:
    """Deadlines with a note of when each future was told of."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.loop = loop
        self.told: dict[asyncio.Future[None], float] = {}
        self.deadlines = Deadlines(loop.as_loop, self._expired)
        self.on_expired: Callable[[], None] = lambda: None

    def _expired(self, futures: list[asyncio.Future[None]]) -> None:
        assert futures
        for future in futures:
            assert future not in self.told
            assert not future.done()
            self.told[future] = self.loop.time()
            future.cancel()
        self.on_expired()

    def add(self, timeout: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.Future(loop=self.loop.as_loop)
        self.deadlines.add(future, timeout)
        return future

    @property
    def held(self) -> int:
        return sum(len(bucket.futures) for bucket in self.deadlines._buckets.values())


def latest(timeout: float) -> float:
    """How late a deadline may be noticed, as the module says."""
    return max(0.001, timeout / 32) + 0.001


@pytest.fixture
def watch() -> Watch:
    return Watch(SteppedLoop())


def settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("start", [0.0, 0.0009, 1000.0, 1e6 + 1 / 3])
def test_a_deadline_is_never_told_early_and_late_by_what_is_documented(timeout: float, start: float) -> None:
    watch = Watch(SteppedLoop(start))
    future = watch.add(timeout)
    watch.loop.advance(timeout * (1 - 1e-9) - 1e-9)
    assert not watch.told
    watch.loop.advance(timeout * 1e-9 + latest(timeout) * 1.001 + 1e-6)
    late = watch.told[future] - (start + timeout)
    assert 0 <= late <= latest(timeout) * 1.001
    assert watch.loop.timers == 0


@settings(deadline=None, max_examples=300)
@given(st.floats(0, 1e7), st.one_of(st.sampled_from(TIMEOUTS), st.floats(0, 1e5)))
def test_no_clock_and_timeout_make_it_early(start: float, timeout: float) -> None:
    watch = Watch(SteppedLoop(start))
    future = watch.add(timeout)
    watch.loop.advance(2 * timeout + 0.01)
    assert watch.told[future] >= start + timeout


def test_futures_that_are_done_are_not_told_of(watch: Watch) -> None:
    done, waiting, cancelled = (watch.add(1.0) for _ in range(3))
    settle(done)
    cancelled.cancel()
    watch.loop.advance(2)
    assert list(watch.told) == [waiting]


def test_futures_of_one_moment_are_told_of_together_in_their_order(watch: Watch) -> None:
    tellings: list[int] = []
    watch.on_expired = lambda: tellings.append(len(watch.told))
    futures = [watch.add(1.0) for _ in range(1000)]
    assert watch.loop.timers == 1
    watch.loop.advance(2)
    assert tellings == [1000]
    assert list(watch.told) == futures


def test_mixed_timeouts_share_one_timer_and_end_in_their_order(watch: Watch) -> None:
    futures = {timeout: watch.add(timeout) for timeout in (3600.0, 1.0, 0, 60.0, 0.01, 0.5)}
    assert watch.loop.timers == 1
    for timeout in sorted(futures):
        watch.loop.advance(timeout + latest(timeout) * 1.001 + 1e-6 - (watch.loop.time() - 1000.0))
        assert set(watch.told) == {future for other, future in futures.items() if other <= timeout}
        assert watch.loop.timers == (timeout != 3600.0)


def test_an_earlier_deadline_takes_the_timer_over(watch: Watch) -> None:
    late, early = watch.add(10.0), watch.add(1.0)
    assert watch.loop.timers == 1
    watch.loop.advance(2)
    assert list(watch.told) == [early]
    assert watch.loop.timers == 1
    watch.loop.advance(10)
    assert list(watch.told) == [early, late]


def test_no_timer_is_left_when_nothing_waits(watch: Watch) -> None:
    assert watch.loop.timers == 0
    futures = [watch.add(timeout) for timeout in (1.0, 2.0, 60.0, 3600.0) for _ in range(100)]
    for future in futures:
        settle(future)
    watch.loop.advance(1.1)
    assert (watch.loop.timers, watch.loop.woken, watch.held) == (0, 1, 0)
    assert not watch.told


def test_a_deadline_behind_settled_ones_is_kept(watch: Watch) -> None:
    settled = [watch.add(timeout) for timeout in (1.0, 2.0, 4.0)]
    last = watch.add(8.0)
    for future in settled:
        settle(future)
    watch.loop.advance(1.5)
    assert watch.loop.timers == 1
    watch.loop.advance(8)
    assert list(watch.told) == [last]
    assert watch.loop.woken == 2


def test_who_is_told_may_ask_again_and_is_told_again(watch: Watch) -> None:
    again: list[asyncio.Future[None]] = []

    def ask_again() -> None:
        if len(again) < 5:
            again.append(watch.add(0))

    watch.on_expired = ask_again
    _ = watch.add(1.0)
    _ = watch.add(3600.0)
    watch.loop.advance(2)
    assert list(watch.told)[1:] == again
    assert len(again) == 5
    assert watch.loop.timers == 1


def test_who_is_told_may_close(watch: Watch) -> None:
    watch.on_expired = watch.deadlines.close
    _ = watch.add(1.0)
    _ = watch.add(2.0)
    watch.loop.advance(10)
    assert len(watch.told) == 1
    assert watch.loop.timers == 0


def test_close_forgets_everything_and_may_be_repeated(watch: Watch) -> None:
    for timeout in TIMEOUTS:
        _ = watch.add(timeout)
    watch.deadlines.close()
    watch.deadlines.close()
    assert (watch.loop.timers, watch.held) == (0, 0)
    watch.loop.advance(1e10)
    assert not watch.told


def test_after_close_it_can_be_used_again(watch: Watch) -> None:
    _ = watch.add(1.0)
    watch.deadlines.close()
    again = watch.add(2.0)
    watch.loop.advance(3)
    assert list(watch.told) == [again]


def test_what_waits_is_looked_through_ever_more_rarely(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = 0
    sweep = _Bucket.sweep

    def counting(bucket: _Bucket) -> int:
        nonlocal sweeps
        sweeps += 1
        return sweep(bucket)

    monkeypatch.setattr(_Bucket, "sweep", counting)
    for _ in range(64 << 8):
        _ = watch.add(1.0)
    assert sweeps == 9


@pytest.mark.parametrize("timeout", [0.01, 1.0, 3600.0])
def test_what_is_held_does_not_grow_with_the_questions_asked(watch: Watch, timeout: float) -> None:
    waiting = [watch.add(timeout) for _ in range(10)]
    for _ in range(20_000):
        settle(watch.add(timeout))
        assert watch.held <= 128
    assert not any(future.done() for future in waiting)
    watch.loop.advance(2 * timeout)
    assert list(watch.told) == waiting


def test_done_futures_are_let_go_while_others_wait(watch: Watch) -> None:
    _ = watch.add(3600.0)
    future = watch.add(3600.0)
    settle(future)
    gone = weakref.ref(future)
    del future
    for _ in range(128):
        settle(watch.add(3600.0))
    gc.collect()
    assert gone() is None


def test_timeouts_that_never_repeat_are_held_no_longer_than_others(watch: Watch) -> None:
    chance = random.Random(1)
    for _ in range(20_000):
        settle(watch.add(chance.uniform(0, 10)))
        watch.loop.advance(0.001)
    # Five octaves of timeouts above 1/3 s, whose deadlines fall into up to 64 buckets each, and the millisecond ones.
    assert len(watch.deadlines._buckets) < 1000
    assert len(watch.deadlines._widths) <= 257
    assert watch.loop.timers <= 1
    watch.loop.advance(12)
    assert (watch.loop.timers, watch.held, len(watch.deadlines._buckets)) == (0, 0, 0)


def test_a_clock_and_timers_of_whole_milliseconds_are_never_early_and_wake_nobody_in_vain() -> None:
    loop = SteppedLoop(1000.0003, tick=1 / 1024)  # as coarse as uvloop's, and exact in binary
    watch = Watch(loop)
    chance = random.Random(2)
    tellings = 0

    def count() -> None:
        nonlocal tellings
        tellings += 1

    watch.on_expired = count
    futures: dict[asyncio.Future[None], tuple[float, float]] = {}
    for _ in range(300):
        timeout = chance.choice((0, 0.002, 0.0101, 0.25, chance.uniform(0, 2)))
        futures[watch.add(timeout)] = (loop.time(), timeout)
        loop.advance(chance.choice((0, 0.0001, 0.003)))
    loop.advance(10)
    assert set(watch.told) == set(futures)
    for future, (added, timeout) in futures.items():
        assert added + timeout <= watch.told[future] <= added + timeout + latest(timeout) * 1.001 + 1 / 1024
    assert loop.timers == 0
    assert loop.woken == tellings


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.one_of(st.sampled_from(TIMEOUTS), st.floats(0, 100))),
            st.tuples(st.just("settle"), st.floats(0, 1)),
            st.tuples(st.just("advance"), st.one_of(st.floats(0, 0.01), st.floats(0, 100))),
        ),
        max_size=60,
    )
)
def test_any_mix_of_questions_answers_and_time_keeps_every_promise(script: list[tuple[str, float]]) -> None:
    watch = Watch(SteppedLoop())
    added: dict[asyncio.Future[None], tuple[float, float]] = {}
    for what, number in script:
        if what == "add":
            future = watch.add(number)
            added[future] = (watch.loop.time(), number)
        elif what == "settle" and added:
            settle(list(added)[min(int(number * len(added)), len(added) - 1)])
        elif what == "advance":
            watch.loop.advance(number)
        now = watch.loop.time()
        assert watch.loop.timers <= 1
        for future, (since, timeout) in added.items():
            if future in watch.told:
                late = watch.told[future] - (since + timeout)
                assert 0 <= late <= latest(timeout) * 1.001 + 1e-6
            elif not future.done():
                assert now <= since + timeout + latest(timeout) * 1.001 + 1e-6
                assert watch.loop.timers == 1
    watch.loop.advance(1e10)
    assert (watch.loop.timers, watch.held) == (0, 0)
    assert all(future.done() for future in added)
