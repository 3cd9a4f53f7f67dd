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
_COMPARED = (ENGINE, OFFICIAL, AGAIN)
_EVERYBODY = (ENGINE, OFFICIAL, AGAIN, TO_THREAD, DATALOADER, OVER_STORE, NOTHING)
_GRID_CALLERS = (1, 10, 100, 1000, 10_000)
_GRID_KEYS = (1, 16, 64, 512)
_GRID_CONTENDERS = (ENGINE, OFFICIAL)
_GRID_ROUNDS = 2


def _plan(settings: Settings) -> Iterator[tuple[KeyLoad, tuple[Contender, ...], int]]:
    """Loads, contenders, rounds."""

    def load(callers: int, keys: int, *, hit: bool = True) -> KeyLoad:
        return KeyLoad(keys=keys, questions=callers, stored=settings.stored, hit=hit)

    for callers, keys in _MAIN:
        yield load(callers, keys), _EVERYBODY, settings.rounds
        yield load(callers, keys, hit=False), _COMPARED, settings.rounds
    # Blocks the loop for all callers: as throughput, it is the same with any number of them.
    yield load(1, 64), (KEY_BY_KEY,), 2
    if settings.mode == "full":
        for callers in _GRID_CALLERS:
            for keys in _GRID_KEYS:
                if (callers, keys) not in _MAIN:
                    yield load(callers, keys), _GRID_CONTENDERS, _GRID_ROUNDS


async def _run(session: Session) -> None:
    for load, contenders, rounds in _plan(session.settings):
        async for number, contender in session.turns(contenders, rounds=rounds):
            session.say(f"{load.questions:,} callers, keys a lookup: {load.keys}: {contender.label}")
            await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return sum(rounds * len(contenders) for _, contenders, rounds in _plan(settings))


SCENARIO = Scenario(
    "callers",
    "Many callers at once",
    "Long-lived callers on one loop, each asking for its own keys again and again; all are stored, or none.",
    _run,
    _slices,
)
