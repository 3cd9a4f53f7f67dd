"""Large questions: the cost of a key, and whether it grows with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contenders import ENGINE, OFFICIAL_SYNC, RAW_SOCKET
from ..load import KeyLoad
from .base import Scenario

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..session import Session, Settings

__all__ = ["LARGE", "SCENARIO"]

LARGE = 65_536
"""Keys of the question that contenders are compared with."""

_CONTENDERS = (ENGINE, RAW_SOCKET, OFFICIAL_SYNC)
_SIZES = {"quick": (1, 10, 100, 1000, 10_000, 100_000), "full": (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)}


async def _run(session: Session) -> None:
    async for number, contender in session.turns(_CONTENDERS):
        await _ask(session, contender, LARGE, number)
    for keys in _SIZES[session.settings.mode]:
        await _ask(session, ENGINE, keys, 0)


async def _ask(session: Session, contender: Contender, keys: int, number: int) -> None:
    session.say(f"{keys:,} keys in one question: {contender.label}")
    load = KeyLoad(keys=keys, questions=1, stored=session.settings.stored)
    await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return settings.rounds * len(_CONTENDERS) + len(_SIZES[settings.mode])


SCENARIO = Scenario(
    "bulk",
    "Large questions",
    "One caller, many keys in one question. The raw socket sends prebuilt frames of 4096 keys, one after the other.",
    _run,
    _slices,
)
