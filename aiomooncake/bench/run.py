"""A run of the benchmark, from the cluster to the result file."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from .replay import TRACE
from .result import Result, describe_machine, describe_versions
from .scenarios import SCENARIOS
from .session import Session, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Progress", "full_settings", "quick_settings", "run_scenarios"]


class Progress(Protocol):
    """Told how far the run is."""

    def begin(self, steps: int) -> None:
        """So many steps are to come."""
        ...

    def say(self, text: str) -> None:
        """What happens now."""
        ...

    def step(self) -> None:
        """A step is done."""
        ...


def quick_settings(trace: Path = TRACE, pythons: tuple[str, ...] = ()) -> Settings:
    """Everything once or twice, in under a minute: what to expect, not what to publish."""
    return Settings("quick", 2, 0.2, 0.05, 500, 0.5, 16_384, trace, 80, 192.0, pythons)


def full_settings(trace: Path = TRACE, pythons: tuple[str, ...] = ()) -> Settings:
    """Six rounds of all, with 10,000 samples or more for a p99."""
    return Settings("full", 6, 1.0, 0.3, 10_500, 10.0, 65_536, trace, 1_790, 192.0, pythons)


async def run_scenarios(names: Sequence[str], settings: Settings, *, command: str, progress: Progress) -> Result:
    """Run these scenarios, in the order of `SCENARIOS`.

    Args:
        names: Names in `SCENARIOS`.
        settings: How thorough.
        command: What was typed, for the result file.
        progress: Told how far it is.
    """
    scenarios = [scenario for scenario in SCENARIOS.values() if scenario.name in names]
    result = Result(
        command=command,
        mode=settings.mode,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=describe_machine(),
        versions=describe_versions(),
    )
    start = time.monotonic()
    progress.begin(sum(scenario.slices(settings) for scenario in scenarios))
    async with Session(settings, result, say=progress.say, step=progress.step) as session:
        for scenario in scenarios:
            await scenario.run(session)
    result.duration = round(time.monotonic() - start, 1)
    return result
