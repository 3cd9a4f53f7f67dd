"""What is counted during a run, and what is said of it at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiomooncake.errors import RequestTimeout

if TYPE_CHECKING:
    from aiomooncake.errors import AioMooncakeError

    from .resources import Held

__all__ = ["Report", "Tally"]

# Of each kind of complaint, so many are kept word for word.
_KEPT = 20
# Memory may be this much more at the end than after warm-up: what malloc keeps between pieces that are in use.
_RSS_FACTOR, _RSS_SLACK = 1.1, 16 << 20


@dataclass
class Tally:
    """Counted as things happen.

    Attributes:
        asked, answers: Questions and answers, by kind.
        keys_proven: Answers for single keys (or pages) that could be judged, since what is right was certain.
        errors: Errors, by kind.
        cancelled: Questions that their callers gave up.
        wrong_answers: How many answers contradicted what was certain.
        surprises: How many things happened that nothing documents.
        complaints: The first of both, in words.
        recoveries: For each seat, seconds from the end of a fault to the first right answer, and which fault.
        latest: The most seconds that a question ended after its deadline.
    """

    asked: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    keys_proven: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    wrong_answers: int = 0
    surprises: int = 0
    complaints: list[str] = field(default_factory=list)
    master_faults: Counter[str] = field(default_factory=Counter)
    connection_faults: Counter[str] = field(default_factory=Counter)
    caller_faults: Counter[str] = field(default_factory=Counter)
    garbled_frames: int = 0
    recoveries: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    latest: float = 0.0

    def answered(self, kind: str, proven: int) -> None:
        """A question was answered; `proven` of its keys could be judged."""
        self.answers[kind] += 1
        self.keys_proven += proven

    def failed(self, error: AioMooncakeError) -> None:
        """A question ended with an error."""
        phase = f" ({error.phase})" if isinstance(error, RequestTimeout) else ""
        self.errors[type(error).__name__ + phase] += 1

    def ended_late(self, seconds: float) -> None:
        """A question with a deadline ended with an error, so long after it (or before, if negative)."""
        self.latest = max(self.latest, seconds)

    def recovered(self, seat: str, seconds: float, after: str) -> None:
        """A seat answered right again, so long `after` these faults."""
        self.recoveries.setdefault(seat, []).append((seconds, after))

    def wrong(self, what: str) -> None:
        """An answer was wrong."""
        self.wrong_answers += 1
        if self.wrong_answers <= _KEPT:
            self.complaints.append(f"wrong answer: {what}")

    def unexpected(self, what: str) -> None:
        """Something happened that nothing documents."""
        self.surprises += 1
        if self.surprises <= _KEPT:
            self.complaints.append(f"unexpected: {what}")


@dataclass
class Report:
    """A finished run.

    Attributes:
        waiting: Questions that had not ended some time after the last fault.
        engines: Engines opened.
        held: What the process held at every checkpoint, when nothing was asked: after warm-up first.
    """

    seed: int
    seconds: float
    tally: Tally
    changes: int
    engines: int
    waiting: int
    held: list[Held]
    peak_rss: int
    kills_due: int
    connection_faults_due: int

    def broken(self) -> list[str]:
        """What did not hold, in words; nothing if all is well."""
        tally, first, last = self.tally, self.held[0], self.held[-1]
        broken = list(tally.complaints)
        if tally.wrong_answers > _KEPT or tally.surprises > _KEPT:
            broken.append(f"… in all {tally.wrong_answers} wrong answers, {tally.surprises} unexpected events")
        if self.waiting:
            broken.append(f"{self.waiting} questions never ended")
        if not tally.keys_proven:
            broken.append("no answer could be judged")
        broken += [
            f"{name} grew from {getattr(first, name)} after warm-up to {getattr(last, name)}"
            for name in ("fds", "threads", "tasks")
            if getattr(last, name) > getattr(first, name)
        ]
        if last.rss > first.rss * _RSS_FACTOR + _RSS_SLACK:
            broken.append(f"RSS grew from {first.rss >> 20} MiB after warm-up to {last.rss >> 20} MiB")
        kills, cuts = tally.master_faults["SIGKILL"], tally.connection_faults.total()
        if kills < self.kills_due:
            broken.append(f"the master was killed {kills} times, and {self.kills_due} times are due")
        if cuts < self.connection_faults_due:
            broken.append(f"{cuts} connection faults, and {self.connection_faults_due} are due")
        return broken

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        held = [checkpoint._asdict() for checkpoint in self.held]
        tally = {
            name: dict(counts) if isinstance(counts, Counter) else counts for name, counts in vars(self.tally).items()
        }
        tally["recoveries"] = {name: max(times) for name, times in self.tally.recoveries.items()}
        return {**vars(self), "tally": tally, "held": held, "broken": self.broken()}

    def __str__(self) -> str:
        tally = self.tally
        asked, answers = tally.asked.total(), tally.answers.total()
        lines = [
            f"{self.seconds:.0f} s, seed {self.seed}",
            f"questions          {asked:,} ({_listed(tally.asked)})",
            f"answers            {answers:,}; {tally.keys_proven:,} of their keys could be judged",
            f"wrong answers      {tally.wrong_answers}",
            f"errors             {tally.errors.total():,} ({_listed(tally.errors)})",
            f"given up           {tally.cancelled:,} by their callers",
            f"never ended        {self.waiting}",
            f"master faults      {tally.master_faults.total()} ({_listed(tally.master_faults)})",
            f"connection faults  {tally.connection_faults.total()} ({_listed(tally.connection_faults)})",
            f"frames garbled     {tally.garbled_frames}",
            f"caller faults      {tally.caller_faults.total()} ({_listed(tally.caller_faults)})",
            f"engines opened     {self.engines}",
            f"puts and removes   {self.changes}",
            f"past a deadline    {1e3 * tally.latest:.0f} ms at most",
        ]
        for seat, times in sorted(tally.recoveries.items()):
            (middle, _), (slowest, after) = sorted(times)[len(times) // 2], max(times)
            lines.append(
                f"recovery           {seat}: {1e3 * middle:.0f} ms in the median of {len(times)},"
                f" {1e3 * slowest:.0f} ms at most (after {after})"
            )
        lines += [
            f"after warm-up      {self.held[0]}",
            f"at the end         {self.held[-1]}",
            f"peak RSS           {self.peak_rss / 2**20:.1f} MiB",
        ]
        broken = self.broken()
        return "\n".join([*lines, "", *(["BROKEN", *broken] if broken else ["everything held"])])


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
