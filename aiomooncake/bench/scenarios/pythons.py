"""The engine in several interpreters."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import anyio.to_thread

from ..contenders import Contender, in_interpreter
from ..load import KeyLoad
from .base import Scenario

if TYPE_CHECKING:
    from ..session import Session, Settings

__all__ = ["SCENARIO"]

_OWN = Contender(f"Python {platform.python_version()}", "engine")
_CALLERS = (1, 1000)


async def _run(session: Session) -> None:
    settings = session.settings
    if not settings.pythons:
        return
    others = [await anyio.to_thread.run_sync(in_interpreter, python) for python in settings.pythons]
    contenders = list({contender.label: contender for contender in (_OWN, *others)}.values())
    for callers in _CALLERS:
        load = KeyLoad(keys=1, questions=callers, stored=settings.stored)
        async for number, contender in session.turns(contenders):
            session.say(f"{callers:,} callers, one key: {contender.label}")
            await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return settings.rounds * (1 + len(settings.pythons)) * len(_CALLERS) if settings.pythons else 0


SCENARIO = Scenario(
    "pythons",
    "Interpreters",
    "The engine in this interpreter and in those named by --python: one caller, and 1000 callers, one key each.",
    _run,
    _slices,
)
