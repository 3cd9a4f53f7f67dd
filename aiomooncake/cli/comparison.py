"""What the demo measured, and the table of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from .console import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rich.console import Console

__all__ = ["Comparison", "Measured"]


@dataclass
class Measured:
    """What one client did.

    Attributes:
        answers: when all callers asked at once: for each caller an answer a key, 1 for one that exists.
        calls: that reached the master for those.
        together: seconds that each question took while all callers asked over and over.
        together_seconds: how long that went on.
        alone: seconds that each question took while nobody else asked.
    """

    answers: list[list[int]] = field(default_factory=list)
    calls: int = 0
    together: list[float] = field(default_factory=list)
    together_seconds: float = 0.0
    alone: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Questions answered a second."""
        return len(self.together) / self.together_seconds


class Comparison:
    """The engine beside the official client."""

    def __init__(
        self, questions: Sequence[list[str]], stored: Collection[str], engine: Measured, official: Measured
    ) -> None:
        self._callers = len(questions)
        self._keys = len(questions[0])
        truth = [[int(key in stored) for key in question] for question in questions]
        self._engine, self._official = engine, official
        self._right = [_equal(truth, client.answers) for client in (engine, official)]
        self._equal = _equal(engine.answers, official.answers)

    @property
    def all_right(self) -> bool:
        """Whether every answer of both clients was what the store holds."""
        return self._right == [self._callers, self._callers]

    def print(self, console: Console) -> None:
        """One row a figure, with how many times better the engine is."""
        keys, call = ("1 key", "exists") if self._keys == 1 else (f"{self._keys} keys", "batch_exists")
        console.print(f"{self._callers} callers, {keys} a lookup", style="bold")
        console.print(f"Engine.{call} beside MooncakeDistributedStoreAsync.async_batch_is_exist", style="dim")
        console.print(self._table())

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column("aiomooncake", justify="right", no_wrap=True)
        table.add_column("official client", justify="right")
        table.add_column("gain", justify="right", no_wrap=True)
        engine, official = self._engine, self._official

        def section(title: str) -> None:
            table.add_row(Text(title, "bold"))

        def figures(name: str, ours: float, theirs: float, show: Callable[[float], str], *, more: bool = False) -> None:
            ratio = ours / theirs if more else theirs / ours
            better = Text(f"{ratio:.{1 if ratio < 100 else 0}f}x", "green" if ratio > 1 else "red")
            table.add_row(f"  {name}", show(ours), show(theirs), better)

        def durations(ours: Sequence[float], theirs: Sequence[float]) -> None:
            for name, percent in (("p50", 50), ("p99", 99)):
                figures(name, _percentile(ours, percent), _percentile(theirs, percent), format_duration)

        section("all at once")
        different = self._callers - self._equal
        verdict = Text(f"{different} differ", "bold red") if different else Text("equal", "green")
        table.add_row("  right answers", *(f"{right}/{self._callers}" for right in self._right), verdict)
        figures("master calls", engine.calls, official.calls, "{:.0f}".format)
        section("over and over")
        figures("lookups/s", engine.rate, official.rate, "{:,.0f}".format, more=True)
        durations(engine.together, official.together)
        section("one caller alone")
        durations(engine.alone, official.alone)
        return table


def _equal(ones: Sequence[list[int]], others: Sequence[list[int]]) -> int:
    """How many answers are the same in both."""
    return sum(one == other for one, other in zip(ones, others, strict=True))


def _percentile(samples: Sequence[float], percent: int) -> float:
    return float(np.percentile(samples, percent))
