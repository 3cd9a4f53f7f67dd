"""One caller, one key: what the engine adds to a bare round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contenders import (
    AGAIN,
    ASYNCIO,
    DATALOADER,
    ENGINE,
    LOOP_FLOOR,
    OFFICIAL,
    OFFICIAL_SYNC,
    OVER_STORE,
    RAW_SOCKET,
    TO_THREAD,
)
from ..load import KeyLoad
from .base import Scenario

if TYPE_CHECKING:
    from ..session import Session, Settings

__all__ = ["SCENARIO"]

_CONTENDERS = (
    LOOP_FLOOR,
    ENGINE,
    AGAIN,
    RAW_SOCKET,
    ASYNCIO,
    OFFICIAL_SYNC,
    OFFICIAL,
    TO_THREAD,
    DATALOADER,
    OVER_STORE,
)


async def _run(session: Session) -> None:
    load = KeyLoad(keys=1, questions=1, stored=session.settings.stored)
    async for number, contender in session.turns(_CONTENDERS):
        session.say(f"one caller, one key: {contender.label}")
        await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return settings.rounds * len(_CONTENDERS)


SCENARIO = Scenario(
    "single",
    "One question at a time",
    "One caller asks for one key, again and again. The loop floor is a bare protocol on uvloop with prebuilt bytes and"
    " one future; the raw socket blocks and decodes nothing.",
    _run,
    _slices,
)
