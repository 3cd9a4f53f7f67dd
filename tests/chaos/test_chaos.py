"""A short run of the chaos program, on both loops, and a run against an engine that lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import aiomooncake as am

from .run import run_chaos

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

# Often enough that some lies fall on keys whose state is known, on a machine that answers few questions too.
_LIE_EVERY = 5


async def test_nothing_is_lost_while_everything_fails() -> None:
    report = await run_chaos(8, seed=7)
    assert not report.broken(), str(report)
    assert report.tally.master_faults["SIGKILL"]
    assert report.tally.connection_faults
    assert report.tally.keys_proven > 1000


async def test_an_engine_that_lies_now_and_then_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = 0

    def lying(exists: Callable[..., Any]) -> Callable[..., Any]:
        async def lie(self: am.engine.Engine, key: str, **options: Any) -> bool:
            nonlocal answered
            found: bool = await exists(self, key, **options)
            answered += 1
            return found is (answered % _LIE_EVERY != 0)

        return lie

    monkeypatch.setattr(am.engine.Engine, "exists", lying(am.engine.Engine.exists))
    report = await run_chaos(2, seed=3)
    assert report.tally.wrong_answers
    assert any("wrong answer" in line for line in report.broken())
