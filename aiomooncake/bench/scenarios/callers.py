"""Many callers: throughput, CPU and calls a lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contenders import AGAIN, DATALOADER, ENGINE, KEY_BY_KEY, NOTHING, OFFICIAL, OVER_STORE, TO_THREAD
from ..load import KeyLoad
from .base import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..contenders import Contender
    from ..session import Session, Settings

__all__ = ["SCENARIO"]

_MAIN = ((1000, 1), (256, 64))
_EVERYBODY = (ENGINE, OFFICIAL, AGAIN, TO_THREAD, DATALOADER, OVER_STORE, NOTHING)
_GRID_CALLERS = (1, 10, 100, 1000, 10_000)
_GRID_KEYS = (1, 16, 64, 512)
_GRID_CONTENDERS = (ENGINE, OFFICIAL)
_GRID_ROUNDS = 2


def _plan(settings: Settings) -> Iterator[tuple[int, int, tuple[Contender, ...], int]]:
    """Callers, keys a question, contenders, rounds."""
    for callers, keys in _MAIN:
        yield callers, keys, _EVERYBODY, settings.rounds
    # Blocks the loop for all callers: as throughput, it is the same with any number of them.
    yield 1, 64, (KEY_BY_KEY,), 2
    if settings.mode == "full":
        for callers in _GRID_CALLERS:
            for keys in _GRID_KEYS:
                if (callers, keys) not in _MAIN:
                    yield callers, keys, _GRID_CONTENDERS, _GRID_ROUNDS


async def _run(session: Session) -> None:
    for callers, keys, contenders, rounds in _plan(session.settings):
        load = KeyLoad(keys=keys, questions=callers, stored=session.settings.stored)
        async for number, contender in session.turns(contenders, rounds=rounds):
            session.say(f"{callers:,} callers, keys a lookup: {keys}: {contender.label}")
            await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return sum(rounds * len(contenders) for _, _, contenders, rounds in _plan(settings))


SCENARIO = Scenario(
    "callers",
    "Many callers at once",
    "Long-lived callers on one loop, each asking for its own keys again and again.",
    _run,
    _slices,
)
