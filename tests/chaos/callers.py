"""Hundreds of callers, each asking again and again, with every kind of patience."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import numpy as np

from aiomooncake.errors import AioMooncakeError, InvalidKeyError

from .questions import makers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiomooncake import Engine

    from .model import Model
    from .questions import Maker, Question
    from .report import Tally
    from .seats import Seat

__all__ = ["Callers"]


class _Kind(NamedTuple):
    """How many callers ask this kind of question, and their mean pause between two, in seconds."""

    callers: int
    pause: float


_KINDS = {
    "exists": _Kind(120, 0.1),
    "small batch": _Kind(60, 0.1),
    "large batch": _Kind(8, 0.5),
    "100k batch": _Kind(3, 2.0),
    "prefix_length": _Kind(40, 0.1),
    "lookup": _Kind(40, 0.2),
    "bad key": _Kind(10, 0.2),
}
_TIMEOUTS = (None, 0.0, 0.002, 0.02, 0.1, 0.5, 1.0, 1.0, 3.0, 3.0)
# Parts of the questions whose caller gives them up: by cancelling the task, and by a cancel scope.
_CANCELLED, _SCOPED = 0.1, 0.1
_BURST = 50


class Callers:
    """Everybody who asks. Only the order of what each caller chooses follows from the seed, not when it happens."""

    def __init__(self, model: Model, seats: Sequence[Seat], tally: Tally, seed: int) -> None:
        self._model = model
        self._seats = seats
        self._tally = tally
        self._seed = seed
        self._makers = makers(model)
        self._waiting: dict[asyncio.Task[None], float] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        self._may_ask = asyncio.Event()
        self._may_ask.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with anyio.create_task_group() as tasks:
            for name, kind in _KINDS.items():
                for number in range(kind.callers):
                    tasks.start_soon(self._call, name, kind.pause, Random(f"{self._seed} {name} {number}"))

    @property
    def waiting(self) -> int:
        """Questions that have not ended."""
        return len(self._waiting)

    async def pause(self, patience: float) -> None:
        """Ask nothing more until `resume`, and wait for what is asked; it may not take longer than `patience`."""
        self._may_ask.clear()
        with anyio.move_on_after(patience):
            while self._waiting:
                await asyncio.wait(self._waiting)

    def resume(self) -> None:
        """Ask again."""
        self._may_ask.set()

    def cancel_some(self, rng: Random, share: float) -> None:
        """Cancel this part of the questions that wait."""
        for task in list(self._waiting):
            if rng.random() < share:
                self._cancel(task)

    def ask_at_once(self, rng: Random) -> None:
        """So many questions in one turn of the loop that half of them are cancelled before they were looked at."""
        for number in range(_BURST):
            seat = rng.choice(self._seats)
            if seat.engine is not None:
                task = self._start(seat, seat.engine, "exists", self._makers["exists"](rng), 1.0, None)
                if number % 2:
                    self._cancel(task)

    async def _call(self, kind: str, pause: float, rng: Random) -> None:
        make: Maker = self._makers[kind]
        while True:
            await asyncio.sleep(rng.expovariate(1 / pause))
            await self._may_ask.wait()
            seat = rng.choice(self._seats)
            question = make(rng)
            style = rng.random()
            timeout = rng.choice(_TIMEOUTS)
            patience = rng.choice((0.0, 0.001, 0.01, 0.1))
            engine = await seat.current()
            if not self._may_ask.is_set():
                continue
            scoped = _CANCELLED <= style < _CANCELLED + _SCOPED
            task = self._start(seat, engine, kind, question, timeout, patience if scoped else None)
            if style < _CANCELLED:
                await asyncio.wait([task], timeout=patience)
                self._cancel(task)
            await asyncio.wait([task])

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if task.cancel():
            self._cancelled.add(task)

    def _start(
        self, seat: Seat, engine: Engine, kind: str, question: Question, timeout: float | None, patience: float | None
    ) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._ask(seat, engine, kind, question, timeout, patience))
        self._waiting[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._waiting[task]
        if task.cancelled():
            if task in self._cancelled:
                self._tally.cancelled += 1
            else:
                self._tally.unexpected("a question was cancelled that nobody had cancelled")
        elif (error := task.exception()) is not None:
            self._tally.unexpected(f"{type(error).__name__}: {error}")
        self._cancelled.discard(task)

    async def _ask(
        self, seat: Seat, engine: Engine, kind: str, question: Question, timeout: float | None, patience: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._tally.asked[kind] += 1
        asked_at, start = self._model.clock, loop.time()
        answered = False
        answer: Any = None
        try:
            with anyio.move_on_after(patience):
                answer = await question.ask(engine, timeout)
                answered = True
        except AioMooncakeError as error:
            self._tally.failed(error)
            if timeout is not None:
                self._tally.ended_late(loop.time() - start - timeout)
            if not (seat.allows(engine, error) or (question.judge is None and isinstance(error, InvalidKeyError))):
                self._tally.unexpected(f"{seat.name}, {kind}: {type(error).__name__}: {error}")
            return
        if not answered:
            self._tally.cancelled += 1
        elif question.judge is None:
            if not seat.forgiving or np.any(answer):  # it may have failed before anybody looked at the key
                self._tally.wrong(f"{seat.name}, {kind}: answered {answer!r}")
        else:
            verdict = question.judge(answer, asked_at, seat.forgiving)
            self._tally.answered(kind, verdict.proven)
            if verdict.wrong is not None:
                self._tally.wrong(
                    f"{seat.name}, {kind}: {verdict.wrong} (asked at {asked_at}, answered at {self._model.clock},"
                    f" epoch {self._model.epoch})"
                )
            elif verdict.proven:
                seat.answered_right()
