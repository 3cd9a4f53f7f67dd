"""Open loop: latency against load, and the tail at the rate that the official client can just sustain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..contenders import AGAIN, DATALOADER, ENGINE, OFFICIAL
from ..load import KeyLoad
from .base import Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..contenders import Contender
    from ..generator import Generator
    from ..result import Measurement
    from ..session import Session, Settings

__all__ = ["DEADLINE", "SCENARIO", "is_sustained"]

DEADLINE = 1.0
"""Seconds after its planned start when a lookup counts as timed out: the engine's own default."""

_KEYS = 64
_QUESTIONS = 256
_SWEPT = (ENGINE, OFFICIAL, DATALOADER)
_AT_ONE_RATE = (ENGINE, OFFICIAL, AGAIN, DATALOADER)
_SHARES = {"quick": (0.3, 0.6, 0.95), "full": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)}
_ACHIEVED = 0.95  # the rest is what was under way when the last one came


def is_sustained(measurement: Measurement) -> bool:
    """Whether the client kept up: no timeout, no error, and no backlog left at the end."""
    return (
        measurement.offered is not None
        and measurement.achieved >= _ACHIEVED * measurement.offered
        and not measurement.timeouts
        and not measurement.errors
    )


async def _run(session: Session) -> None:
    for hit in (True, False):
        await _sweep(session, KeyLoad(keys=_KEYS, questions=_QUESTIONS, stored=session.settings.stored, hit=hit))


async def _sweep(session: Session, load: KeyLoad) -> None:
    settings = session.settings
    marks = {name: value for name, value in load.describe().items() if name != "callers"}
    shares = _SHARES[settings.mode]
    await session.ready(_SWEPT)
    saturation = {contender: await _saturation(session, contender, load) for contender in _SWEPT}
    sustained = dict.fromkeys(_SWEPT, 0.0)
    for share in shares:
        for contender in _SWEPT:
            rate = saturation[contender] * share
            session.say(f"{rate:,.0f} lookups/s planned: {contender.label}")
            measurement = await session.measure(
                SCENARIO.name,
                contender,
                {**marks, "share": share, "rate": round(rate)},
                0,
                _planned(settings, load, rate, seed=0),
            )
            if is_sustained(measurement):
                sustained[contender] = rate
    # Without a rate that it sustains, the lowest one of the sweep.
    rate = sustained[OFFICIAL] or saturation[OFFICIAL] * shares[0]
    async for number, contender in session.turns(_AT_ONE_RATE):
        session.say(f"{rate:,.0f} lookups/s planned: {contender.label}")
        await session.measure(
            SCENARIO.name,
            contender,
            {**marks, "share": "same", "rate": round(rate)},
            number,
            _planned(settings, load, rate, seed=number),
        )


async def _saturation(session: Session, contender: Contender, load: KeyLoad) -> float:
    session.say(f"how much is possible: {contender.label}")
    measurement = await session.closed(SCENARIO.name, contender, load, marks={"share": "saturation"})
    return measurement.achieved


def _planned(
    settings: Settings, load: KeyLoad, rate: float, *, seed: int
) -> Callable[[Generator], Awaitable[dict[str, Any]]]:
    seconds = min(settings.longest, max(settings.seconds, settings.samples / rate))
    return lambda generator: generator.open(
        load, rate=rate, seconds=seconds, warm_up=settings.warm_up, deadline=DEADLINE, seed=seed
    )


def _slices(settings: Settings) -> int:
    return 2 * (len(_SWEPT) * (1 + len(_SHARES[settings.mode])) + settings.rounds * len(_AT_ONE_RATE))


SCENARIO = Scenario(
    "tail",
    "Latency against load",
    "Lookups of 64 keys arrive at planned (Poisson) times, each in a task of its own, from 30 to 95% of what the client"
    " answers when 256 callers saturate it; then all clients at the highest rate that the official one sustains. Once"
    " with all keys stored, when the master grants a lease for each, and once with none.",
    _run,
    _slices,
)
