"""How many connections?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contenders import with_connections
from ..load import KeyLoad
from .base import Scenario

if TYPE_CHECKING:
    from ..session import Session, Settings

__all__ = ["SCENARIO"]

_CONTENDERS = tuple(with_connections(count) for count in (1, 2, 3, 4))
_LOADS = {"quick": ((256, 64),), "full": ((1000, 1), (256, 64))}
_ROUNDS = {"quick": 1, "full": 6}


async def _run(session: Session) -> None:
    settings = session.settings
    for callers, keys in _LOADS[settings.mode]:
        load = KeyLoad(keys=keys, questions=callers, stored=settings.stored)
        async for number, contender in session.turns(_CONTENDERS, rounds=_ROUNDS[settings.mode]):
            session.say(f"{callers:,} callers, keys a lookup: {keys}: {contender.label}")
            await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return _ROUNDS[settings.mode] * len(_CONTENDERS) * len(_LOADS[settings.mode])


SCENARIO = Scenario("connections", "Connections", "The engine with one to four connections.", _run, _slices)
